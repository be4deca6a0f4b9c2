//! The work of simulated tasks: bytes that say how long a task takes and how it ends.

use inband_falcon::message::{Outcome, Payload};
use inband_falcon::timing::Nanos;

use crate::trace::mix;

/// How a run ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ends {
    /// With a result of this many bytes, at least 8.
    Output(u32),
    Error,
    /// The whole worker dies.
    Kills,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// Unique to each task.
    pub number: u64,
    /// In true time.
    pub takes_ns: Nanos,
    pub ends: Ends,
}

/// Length of an encoded plan.
const PLAN_LEN_BYTES: usize = 21;

impl Plan {
    /// Encodes the plan as a task's work, padded to at least `len_bytes`.
    pub fn work(&self, len_bytes: usize) -> Vec<u8> {
        let (kind, length) = match self.ends {
            Ends::Output(length) => (0, length),
            Ends::Error => (1, 0),
            Ends::Kills => (2, 0),
        };
        let mut work = vec![kind];
        work.extend(self.number.to_le_bytes());
        work.extend(self.takes_ns.to_le_bytes());
        work.extend(u32::to_le_bytes(length));
        work.resize(len_bytes.max(PLAN_LEN_BYTES), self.number as u8);
        work
    }

    /// Decodes a task's work; `None` if it is not a plan.
    pub fn of(work: &[u8]) -> Option<Plan> {
        let word = |at: usize| Some(u64::from_le_bytes(work.get(at..at + 8)?.try_into().ok()?));
        let length = u32::from_le_bytes(work.get(17..PLAN_LEN_BYTES)?.try_into().ok()?);
        let ends = match work.first()? {
            0 => Ends::Output(length),
            1 => Ends::Error,
            _ => Ends::Kills,
        };
        Some(Plan {
            number: word(1)?,
            takes_ns: word(9)?,
            ends,
        })
    }
}

/// Returns the outcome of running this work. It is derived from the bytes, so that one task's result cannot pass for
/// another's.
pub fn outcome_of(work: &[u8]) -> Outcome {
    let hash = work
        .iter()
        .fold(7, |hash, byte| mix(hash, u64::from(*byte)));
    let mut said = hash.to_le_bytes().to_vec();
    match Plan::of(work).map(|plan| plan.ends) {
        Some(Ends::Output(length)) => {
            said.resize(said.len().max(length as usize), hash as u8);
            Outcome::Output(Payload::Inline(said))
        }
        _ => Outcome::Error(Payload::Inline(said)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_says_what_it_is() {
        for ends in [Ends::Output(9), Ends::Error, Ends::Kills] {
            let plan = Plan {
                number: 77,
                takes_ns: 1 << 40,
                ends,
            };
            assert_eq!(Plan::of(&plan.work(0)), Some(plan));
            assert_eq!(Plan::of(&plan.work(3000)), Some(plan));
            assert_ne!(outcome_of(&plan.work(30)), outcome_of(&plan.work(31)));
        }
        assert_eq!(Plan::of(&[0; 20]), None);
    }
}
