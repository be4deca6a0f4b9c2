//! The role names that `inband kill` and `restart` accept.

use anyhow::{bail, ensure, Context, Result};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// The current leader of this set.
    Leader(u16),
    /// One of this set's replicas that do not lead, counted from 0.
    Follower(u16, usize),
    /// The switch that serves the first set.
    Switch,
    /// A host, by its own name.
    Host,
}

/// Role names to show when no role was given.
pub fn names(sets: usize) -> &'static str {
    match sets {
        1 => "leader, switch, follower/N",
        _ => "leader/S and follower/S/N of set S, switch",
    }
}

impl Role {
    /// With a single set, the set may be left out.
    pub fn parse(text: &str, sets: usize) -> Result<Role> {
        let words: Vec<&str> = text.split('/').collect();
        let number = |word: &str| -> Result<usize> {
            let number = word.parse().ok();
            number.with_context(|| format!("{text}: {word:?} is not a number"))
        };
        let set = |word: &str| -> Result<u16> {
            let set = number(word)?;
            ensure!(
                set < sets,
                "{text}: there is no set {set}; sets are 0 to {}",
                sets - 1
            );
            Ok(set as u16)
        };
        Ok(match words[..] {
            ["switch"] => Role::Switch,
            ["leader"] if sets == 1 => Role::Leader(0),
            ["leader", of] => Role::Leader(set(of)?),
            ["follower", at] if sets == 1 => Role::Follower(0, number(at)?),
            ["follower", of, at] => Role::Follower(set(of)?, number(at)?),
            ["follower"] if sets == 1 => bail!("{text}: which one? There are {text}/N, from 0 on"),
            ["leader" | "follower", ..] => {
                bail!("{text}: of which set? There are {}", names(sets))
            }
            _ => Role::Host,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn with_one_set_it_need_not_be_said() {
        for (text, role) in [
            ("leader", Role::Leader(0)),
            ("leader/0", Role::Leader(0)),
            ("follower/1", Role::Follower(0, 1)),
            ("follower/0/1", Role::Follower(0, 1)),
            ("switch", Role::Switch),
            ("switch/0", Role::Host),
            ("replica/2", Role::Host),
        ] {
            assert_eq!(Role::parse(text, 1).expect(text), role, "{text}");
        }
        let said = Role::parse("follower", 1)
            .expect_err("no number")
            .to_string();
        assert!(said.contains("which one? There are follower/N"), "{said}");
    }

    #[test]
    fn with_several_sets_it_must_be_said() {
        for (text, role) in [
            ("leader/2", Role::Leader(2)),
            ("follower/1/0", Role::Follower(1, 0)),
            ("switch", Role::Switch),
            ("replica/1/2", Role::Host),
        ] {
            assert_eq!(Role::parse(text, 3).expect(text), role, "{text}");
        }
        for (text, says) in [
            ("leader", "of which set? There are leader/S"),
            ("follower/1", "of which set?"),
            ("leader/3", "there is no set 3; sets are 0 to 2"),
            ("follower/1/x", "\"x\" is not a number"),
        ] {
            let said = Role::parse(text, 3).expect_err(text).to_string();
            assert!(said.contains(says), "{said}");
        }
    }
}
