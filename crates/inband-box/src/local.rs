//! A cluster of one machine in this process, without a log: for tests, and to measure the gateway alone.

use std::io;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::apply::Machine;
use crate::gateway::{Event, Submit};
use crate::role::Record;
use crate::store::Table;

pub struct Local {
    machine: Machine,
    zxid: u64,
    seq: u64,
    events: Vec<Event>,
}

const OWN: (u8, u64) = (1, 1);

impl Local {
    /// Creates a cluster with a table of `chunks` chunks.
    pub fn new(chunks: u64) -> io::Result<Local> {
        Ok(Local {
            machine: Machine::new(OWN, Table::new(chunks)?),
            zxid: 0,
            seq: 0,
            events: Vec::new(),
        })
    }

    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    fn apply(&mut self, origin: u8, seq: u64, value: Vec<u8>) {
        self.zxid += 1;
        let time = SystemTime::now().duration_since(UNIX_EPOCH);
        let record = Record {
            zxid: self.zxid,
            epoch: 1,
            time_ms: time.map_or(0, |time| time.as_millis() as u64),
            origin,
            origin_session: OWN.1,
            origin_seq: seq,
            value,
        };
        let outcomes = self.machine.apply(&record);
        let outcomes = outcomes.expect("its table is the only one").outcomes;
        if !outcomes.is_empty() {
            self.events.push(Event::Outcomes(outcomes));
        }
    }
}

impl Submit for Local {
    fn submit(&mut self, value: Vec<u8>) -> u64 {
        self.seq += 1;
        self.apply(OWN.0, self.seq, value);
        self.seq
    }

    fn barrier(&mut self, id: u64) {
        self.apply(0, 0, Vec::new());
        self.events.push(Event::Barrier(id));
    }

    fn events(&mut self, into: &mut Vec<Event>) {
        into.append(&mut self.events);
    }
}
