//! The sequencer: the real role, and clients that retry until they have an answer. The role may restart without its
//! memory, with a new incarnation. This is the smallest world (docs/adding-a-system.md).

use std::collections::BTreeSet;

use clap::Args;
use inband_sequencer::Header;

use crate::asking::{Asking, Hosts};
use crate::{listed, Broken, Rng};

#[cfg(test)]
mod tests;

const LOGS: usize = 2;

listed! {
    /// What must hold in every schedule.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Invariant, said by describe {
        Unique = "no number of a log is given twice by one incarnation",
        Liveness = "once faults end, every client is answered",
        NoPanic = "nothing panics",
    }
}

#[derive(Debug, Clone, Default, Args)]
pub struct Options {
    /// Introduce a deliberate fault: a restarted sequencer keeps its old incarnation
    #[arg(long)]
    pub same_incarnation: bool,
}

pub type Sequencer = Hosts<Numbers>;

/// The numbers given to clients: incarnation, log, number.
pub struct Numbers {
    same_incarnation: bool,
    incarnation: u64,
    given: BTreeSet<(u64, u16, u64)>,
}

impl Asking for Numbers {
    const NAME: &'static str = "sequencer";
    const ABOUT: &'static str = "A sequencer that gives out numbers, the smallest system";
    const CLIENTS: u8 = 3;
    const COUNTED: &'static str = "numbers given";
    const LIVENESS: Invariant = Invariant::Liveness;
    const NO_PANIC: Invariant = Invariant::NoPanic;
    type Role = inband_sequencer::Sequencer;
    type Invariant = Invariant;
    type Options = Options;

    fn begin(options: &Options) -> Numbers {
        Numbers {
            same_incarnation: options.same_incarnation,
            incarnation: 0,
            given: BTreeSet::new(),
        }
    }

    fn start(&mut self) -> inband_sequencer::Sequencer {
        let is_next = !self.same_incarnation || self.incarnation == 0;
        self.incarnation += u64::from(is_next);
        let (logs, incarnation) = (LOGS, self.incarnation);
        inband_sequencer::Sequencer { logs, incarnation }
    }

    fn request(random: &mut Rng) -> Header {
        let log = random.below(LOGS as u64) as u16;
        Header::next(log, random.between(1, 5))
    }

    fn on_answer(&mut self, answer: Header) -> (u64, Vec<Broken<Invariant>>) {
        let numbers = answer.number..answer.number + answer.count;
        let again = numbers
            .filter(|number| !self.given.insert((answer.incarnation, answer.log, *number)))
            .map(|number| Broken {
                invariant: Invariant::Unique,
                what: format!("{number} of log {}, and before", answer.log),
            });
        (answer.count, again.collect())
    }
}
