//! Which hosts roles meant. After `kill leader` another host leads, but `restart leader` is for the one that was killed.

/// Hosts that were killed or paused under the name of a role, the last one at the end. A host is in it once at most.
#[derive(Debug, Default)]
pub(crate) struct Meant(Vec<(String, String)>);

impl Meant {
    /// A host was killed or paused under the name of a role; `None`: under its own name.
    pub(crate) fn note(&mut self, role: Option<&str>, host: &str) {
        self.forget(host);
        if let Some(role) = role {
            self.0.push((role.to_owned(), host.to_owned()));
        }
    }

    /// The host runs again.
    pub(crate) fn forget(&mut self, host: &str) {
        self.0.retain(|(_, name)| name != host);
    }

    /// Returns the host that was last killed or paused as this role and satisfies a condition.
    pub(crate) fn host(&self, role: &str, is_it: impl Fn(&str) -> bool) -> Option<String> {
        let hosts = self.0.iter().rev().filter(|(name, _)| name == role);
        let mut hosts = hosts.map(|(_, host)| host);
        hosts.find(|host| is_it(host)).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_role_means_the_hosts_that_were_killed_or_paused_as_it_the_last_one_first() {
        let mut meant = Meant::default();
        assert_eq!(meant.host("leader", |_| true), None);
        for host in ["leader/0", "replica/0"] {
            meant.note(Some("leader"), host);
        }
        meant.note(None, "acceptor/0");
        assert_eq!(meant.host("leader", |_| true).as_deref(), Some("replica/0"));
        let is_first = |host: &str| host == "leader/0";
        assert_eq!(meant.host("leader", is_first).as_deref(), Some("leader/0"));
        assert_eq!(meant.host("acceptor/0", |_| true), None);
        meant.forget("replica/0");
        assert_eq!(meant.host("leader", |_| true).as_deref(), Some("leader/0"));
        // It was killed again, by its own name.
        meant.note(None, "leader/0");
        assert_eq!(meant.host("leader", |_| true), None);
    }
}
