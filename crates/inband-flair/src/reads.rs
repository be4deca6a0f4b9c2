//! How reads are answered: FLAIR's way, or one of the ways that it is compared with.

use serde::{Deserialize, Serialize};

/// The read mode. All modes are linearizable (docs/flair.md, Other ways to read).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reads {
    /// By every replica that the switch knows to hold the latest value.
    #[default]
    Flair,
    /// By the leader alone; the session is its lease.
    Leader,
    /// By the leader alone, after a majority has confirmed that it leads: plain Raft.
    Majority,
    /// By any replica that has a lease on the key's group; a write waits for all replicas that may have one.
    FollowerLeases,
}

impl Reads {
    /// All modes, FLAIR first.
    pub const ALL: [Reads; 4] = [
        Reads::Flair,
        Reads::Leader,
        Reads::Majority,
        Reads::FollowerLeases,
    ];

    /// Returns the name in configurations and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Reads::Flair => "flair",
            Reads::Leader => "leader",
            Reads::Majority => "majority",
            Reads::FollowerLeases => "follower-leases",
        }
    }

    /// Returns whether followers get reads.
    pub fn spreads(self) -> bool {
        matches!(self, Reads::Flair | Reads::FollowerLeases)
    }

    /// Returns whether all replicas, including a busy leader, get equal shares.
    pub fn is_even(self) -> bool {
        self == Reads::FollowerLeases
    }

    /// Returns the `key_hash` to send in a request for a key with this hash. With follower leases, the switch only
    /// picks a replica: writes use one half of its groups and reads the other half, which is therefore never written.
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
