//! The sequencer: the real role and clients that ask it until they are answered. It may lose its memory, and is then
//! another incarnation. The smallest world (docs/adding-a-system.md).

use std::collections::BTreeSet;

use clap::Args;
use inband_sequencer::Header;

use crate::asking::{Asking, Hosts};
use crate::{listed, Broken, Rng};

const LOGS: usize = 2;

listed! {
    /// What must be true in every schedule.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Invariant, said by describe {
        Unique = "no number of a log is given twice by one incarnation",
        Liveness = "once faults end, every client is answered",
        NoPanic = "nothing panics",
    }
}

/// How seeds are played.
#[derive(Debug, Clone, Default, Args)]
pub struct Options {
    /// A deliberate fault: a sequencer that restarts draws no new incarnation
    #[arg(long)]
    pub same_incarnation: bool,
}

/// The world.
pub type Sequencer = Hosts<Numbers>;

/// Which numbers clients were given: incarnation, log, number.
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
