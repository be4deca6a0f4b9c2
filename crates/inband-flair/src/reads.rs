//! How reads are answered: FLAIR's way, or in one of the ways that it is measured against.

use serde::{Deserialize, Serialize};

/// See the module. All of them keep reads linearizable (docs/flair.md, Other ways to read).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reads {
    /// By every replica that the switch knows to hold the last value.
    #[default]
    Flair,
    /// By the leader alone, whose lease is the session's.
    Leader,
    /// By the leader alone, once a majority has confirmed that it leads: plain Raft.
    Majority,
    /// By any replica that has a lease of the key's group; a write waits for all that have one.
    FollowerLeases,
}

impl Reads {
    /// All of them, FLAIR's first.
    pub const ALL: [Reads; 4] = [
        Reads::Flair,
        Reads::Leader,
        Reads::Majority,
        Reads::FollowerLeases,
    ];

    /// Its name in configurations and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Reads::Flair => "flair",
            Reads::Leader => "leader",
            Reads::Majority => "majority",
            Reads::FollowerLeases => "follower-leases",
        }
    }

    /// Are followers sent reads?
    pub fn spreads(self) -> bool {
        matches!(self, Reads::Flair | Reads::FollowerLeases)
    }

    /// Do all replicas get the same share, the leader too, whatever it has to do?
    pub fn is_even(self) -> bool {
        self == Reads::FollowerLeases
    }

    /// The `key_hash` of a request for a key of this hash. With leases for followers the switch is only to pick a replica: writes go by
    /// one half of its groups, reads by the other, which so are never written.
    pub fn route(self, hash: u64, is_read: bool) -> u64 {
        const HALF: u64 = 1 << 63;
        match (self, is_read) {
            (Reads::FollowerLeases, true) => hash & !HALF,
            (Reads::FollowerLeases, false) => hash | HALF,
            _ => hash,
        }
    }
}

impl std::str::FromStr for Reads {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let named = Reads::ALL.into_iter().find(|reads| reads.name() == text);
        named.ok_or_else(|| {
            let names = Reads::ALL.map(Reads::name).join(", ");
            format!("unknown way to read {text:?}; there are {names}")
        })
    }
}

impl std::fmt::Display for Reads {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataplane::wire;

    #[test]
    fn reads_by_leases_go_by_groups_that_nobody_writes() {
        for number in 0..1000u32 {
            let key = number.to_be_bytes();
            let of = |reads: Reads, is_read| {
                wire::group_of(reads.route(wire::key_hash(&key), is_read), 16)
            };
            assert!(of(Reads::FollowerLeases, true) < 8);
            assert!(of(Reads::FollowerLeases, false) >= 8);
            assert_eq!(of(Reads::Flair, true), of(Reads::Flair, false));
        }
    }

    #[test]
    fn names_are_what_is_parsed() {
        for reads in Reads::ALL {
            assert_eq!(reads.name().parse(), Ok(reads));
        }
        let said = "x".parse::<Reads>().expect_err("no such way");
        assert!(
            said.contains("flair, leader, majority, follower-leases"),
            "{said}"
        );
    }
}
