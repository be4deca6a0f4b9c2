//! A client of FLAIR: GET, SET and DEL of single keys, one at a time, through the gateway or straight to the switches.

use anyhow::{bail, Result};
use inband_sim::Rng;

use super::connections::{Connection, Opener};
use super::keys;
use crate::history::{Command, Outcome, Verb};
use crate::workload::{Asked, End, Operate, Scribe, Shared, CLIENTS_MAX};

/// After this many operations the client reconnects, which starts a new session.
const OPERATIONS_PER_CONNECTION: u64 = 200;

pub struct FlairClient {
    number: usize,
    rng: Rng,
    scribe: Scribe,
    opener: Opener,
    connection: Option<Box<dyn Connection>>,
    operations: u64,
    values: u64,
}

impl Operate for FlairClient {
    fn operate(&mut self) -> bool {
        let key = keys::one(self.rng.next_u64(), self.scribe.now_ns());
        let verb = match self.rng.below(100) {
            0..=59 => Verb::Get,
            60..=92 => Verb::Set,
            _ => Verb::Del,
        };
        self.perform(verb, key).is_some()
    }
}

impl FlairClient {
    pub fn new(number: usize, shared: Shared, opener: Opener, seed: u64) -> FlairClient {
        FlairClient {
            number,
            rng: Rng::new(seed, 1000 + number as u64),
            scribe: Scribe::new(number, shared),
            opener,
            connection: None,
            operations: 0,
            values: 0,
        }
    }

    /// Returns a value that no client has written before.
    fn value(&mut self) -> String {
        self.values += 1;
        (self.values * CLIENTS_MAX + self.number as u64).to_string()
    }

    /// Returns `None` if it cannot connect.
    fn perform(&mut self, verb: Verb, key: String) -> Option<End> {
        if self.operations >= OPERATIONS_PER_CONNECTION {
            (self.connection, self.operations) = (None, 0);
        }
        if self.connection.is_none() {
            self.connection = (self.opener)().ok();
        }
        let value = (verb == Verb::Set).then(|| self.value());
        let connection = self.connection.as_mut()?;
        self.operations += 1;
        let command = Command {
            verb,
            key: key.clone(),
            value,
        };
        let call_ns = self.scribe.now_ns();
        let end = connection.perform(&command);
        let asked = Asked {
            group: key,
            call_ns,
            commands: vec![command],
            replica: connection.address(),
            reads: connection.kind(),
        };
        let is_redis = connection.kind() == "gateway";
        if self.scribe.write_down(asked, &end) != Outcome::Ok && is_redis {
            // A late answer would be taken for that of the next operation. (The Rust client matches answers to
            // requests.)
            self.connection = None;
        }
        Some(end)
    }

    /// Reads each of these keys `times` times.
    pub fn read_all(&mut self, keys: &[String], times: usize) -> Result<()> {
        for key in keys {
            for _ in 0..times {
                match self.perform(Verb::Get, key.clone()) {
                    Some(End::Ok(_)) => {}
                    Some(End::Failed(why) | End::Unknown(why)) => bail!("reading {key}: {why}"),
                    None => bail!("reading {key}: no replica answers"),
                }
            }
        }
        Ok(())
    }
}
