//! The sequencer: the real role and clients that ask it until they are answered. It may lose its memory, and is then
//! another incarnation. The smallest world (docs/adding-a-system.md).

use std::collections::BTreeSet;

use clap::Args;
use inband_ground::auth::Gate;
use inband_ground::soft::{Arrival, Soft};
use inband_sequencer::client::{Client, RETRY_NS};

use crate::asking::{Asking, Hosts};
use crate::{listed, Broken, Rng, Time};

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

/// The role, and which numbers clients were given: incarnation, log, number.
pub struct Numbers {
    same_incarnation: bool,
    incarnation: u64,
    role: Soft<inband_sequencer::Sequencer>,
    given: BTreeSet<(u64, u16, u64)>,
}

fn gate() -> Gate {
    Gate::of::<inband_sequencer::Sequencer>(None, LOGS)
}

impl Asking for Numbers {
    const NAME: &'static str = "sequencer";
    const ABOUT: &'static str = "A sequencer that gives out numbers, the smallest system";
    const CLIENTS: u8 = 3;
    const RETRY_NS: Time = RETRY_NS;
    const COUNTED: &'static str = "numbers given";
    const LIVENESS: Invariant = Invariant::Liveness;
    const NO_PANIC: Invariant = Invariant::NoPanic;
    type Invariant = Invariant;
    type Options = Options;
    type Client = Client;

    fn begin(options: &Options) -> Numbers {
        Numbers {
            same_incarnation: options.same_incarnation,
            incarnation: 1,
            role: inband_sequencer::soft(1, LOGS, 1),
            given: BTreeSet::new(),
        }
    }

    fn describe(&self) -> String {
        format!("{LOGS} logs")
    }

    fn client(number: u8) -> Client {
        Client::new(gate(), u64::from(number) << 32)
    }

    fn ask(client: &mut Client, random: &mut Rng) {
        let log = random.below(LOGS as u64) as u16;
        client.ask(log, random.between(1, 5));
    }

    fn packet(client: &Client) -> Vec<u8> {
        client.packet()
    }

    fn answer(&mut self, packet: &[u8], arrival: Arrival) -> Option<Vec<u8>> {
        self.role.answer(&mut gate(), packet, arrival)
    }

    fn on_answer(
        &mut self,
        client: &mut Client,
        packet: &[u8],
    ) -> Option<(u64, Vec<Broken<Invariant>>)> {
        let answer = client.on_packet(packet)?;
        let numbers = answer.number..answer.number + answer.count;
        let again = numbers
            .filter(|number| !self.given.insert((answer.incarnation, answer.log, *number)))
            .map(|number| Broken {
                invariant: Invariant::Unique,
                what: format!("{number} of log {}, and before", answer.log),
            });
        Some((answer.count, again.collect()))
    }

    fn restart(&mut self) {
        self.incarnation += u64::from(!self.same_incarnation);
        self.role = inband_sequencer::soft(1, LOGS, self.incarnation);
    }
}
