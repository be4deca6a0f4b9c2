//! Clients of replicas: the commands and reads that they submit.

use inband_paxos::log::ReadTicket;
use inband_paxos::outbox::Outbox;

use crate::paxos::limits::{COMMAND_LEN_BYTES, STORE_EXPIRY_MAX_MS};
use crate::paxos::store::{Asked, ReadBegun};
use crate::paxos::trace::Happened;
use crate::paxos::{counts, World};

impl World {
    /// The application of replica `node` asks to recover `instance` of log 0, or to have it decided as `noop`.
    pub fn recover(&mut self, node: u8, instance: u64, noop: &[u8]) {
        self.recover_in(node, 0, instance, noop);
    }

    /// Like [`World::recover`], for any log.
    pub fn recover_in(&mut self, node: u8, partition: usize, instance: u64, noop: &[u8]) {
        self.with_host(node, None, None, |host, now, out| {
            let known = &mut |_: inband_paxos::log::Origin, _: &[u8]| {};
            // An instance that is already delivered, or too far ahead, needs no recovery.
            let _ = host.recover(now, partition, instance, noop, out, known);
        });
    }

    fn any_partition(&mut self) -> usize {
        match self.system.layout.partitions {
            1 => 0,
            several => self.system.rng.load.below(several as u64) as usize,
        }
    }

    /// A client of replica `node` reads from a random log. Returns false if the replica accepts no reads.
    pub fn read(&mut self, node: u8) -> bool {
        let partition = self.any_partition();
        self.read_from(node, partition)
    }

    /// A client of replica `node` reads from this log. Returns false if the replica accepts no reads.
    pub fn read_from(&mut self, node: u8, partition: usize) -> bool {
        if !self.host(node).is_well() {
            return false;
        }
        let deadline = self.now + self.system.layout.submit_deadline_us();
        let Some(at) = self.index(node) else {
            return false;
        };
        let sim = &mut self.system.hosts[at];
        let Some(host) = &mut sim.host else {
            return false;
        };
        let ticket = host.confirm_read(sim.clock.shows(self.now), partition);
        self.system.ledger.read_begun(node, ticket, deadline);
        self.store_read_begun(at, ticket);
        self.arm(at);
        true
    }

    /// Returns a value for a log, the number of its first command, and the request if replicas run the real store.
    fn new_value(&mut self, at: usize, partition: usize) -> (u64, Vec<u8>, Option<Asked>) {
        if self.system.hosts[at].store.is_some() {
            let command = self.system.ledger.commands() + 1;
            let asked = self.ask_of_store(partition);
            let sim = &self.system.hosts[at];
            let shows = sim.clock.shows(self.now);
            let store = sim.store.as_ref().expect("looked at just now");
            let value = store.value_of(&asked, partition, shows);
            return (command, value, Some(asked));
        }
        let command = self.system.ledger.new_command();
        let mut value = command.to_be_bytes().to_vec();
        let long = self.system.rng.load.chance_ppm(10_000);
        let longest = inband_paxos::dataplane::wire::VALUE_LEN_MAX_BYTES;
        value.resize(if long { longest } else { COMMAND_LEN_BYTES }, 0x5a);
        (command, value, None)
    }

    /// A client of replica `node` submits a command to a random log. Returns false if the replica accepts none.
    pub fn submit(&mut self, node: u8) -> bool {
        let partition = self.any_partition();
        self.submit_to(node, partition)
    }

    /// A client of replica `node` submits a command to this log. Returns false if the replica accepts none.
    pub fn submit_to(&mut self, node: u8, partition: usize) -> bool {
        if !self.host(node).is_well() {
            return false;
        }
        let Some(at) = self.index(node) else {
            return false;
        };
        let (command, value, asked) = self.new_value(at, partition);
        let deadline = self.now + self.system.layout.submit_deadline_us();
        self.trace
            .note(self.now, Happened::Submitted(node, command));
        // Note the ticket before handling anything that the submission causes.
        let mut early = Outbox::new();
        let sim = &mut self.system.hosts[at];
        let shows = sim.clock.shows(self.now);
        let host = sim.host.as_mut();
        let submitted = host.map(|h| h.submit(shows, partition, &value, &mut early));
        let Some(Ok(ticket)) = submitted else {
            return false;
        };
        self.stats.count(counts::SUBMITTED, 1);
        self.system
            .ledger
            .submitted(node, ticket, command, deadline);
        if let (Some(store), Some(asked)) = (&mut self.system.hosts[at].store, asked) {
            store.wait(
                asked,
                ticket,
                shows + self.system.layout.submit_deadline_us(),
            );
        }
        self.with_host(node, None, None, |_, _, out| {
            for (dest, packet) in early.iter() {
                out.send_raw(dest, packet);
            }
        });
        true
    }

    /// Returns a random request of a client of the store for a log.
    pub(crate) fn ask_of_store(&mut self, log: usize) -> Asked {
        let partitions = inband_kv::partition::partitions_of_logs(self.system.layout.partitions);
        let rng = &mut self.system.rng.load;
        let command = self.system.ledger.new_command();
        if log < partitions {
            let more = [0, 0, 0, 1, 2][rng.below(5) as usize];
            let commands = std::iter::once(command);
            let commands = commands.chain((0..more).map(|_| self.system.ledger.new_command()));
            let commands: Vec<u64> = commands.collect();
            for command in &commands {
                self.system.histories.submitted(*command, &[log]);
            }
            return Asked::Append(commands);
        }
        if rng.chance_ppm(self.system.layout.store_reads_ppm) {
            return Asked::ReadAll(self.system.histories.all_known());
        }
        match rng.below(5) {
            0 => Asked::SetAll(command),
            1 => Asked::SetExpiring(command, rng.between(1, STORE_EXPIRY_MAX_MS)),
            _ => {
                let spared = rng.below(partitions as u64 + 1) as usize;
                let mut involved: Vec<usize> = (0..partitions).collect();
                if involved.len() > 2 {
                    involved.retain(|p| *p != spared);
                }
                self.system.histories.submitted(command, &involved);
                Asked::Transaction(command, involved)
            }
        }
    }

    /// A read of the store begins.
    pub(crate) fn store_read_begun(&mut self, at: usize, ticket: ReadTicket) {
        let sim = &mut self.system.hosts[at];
        let deadline = sim.clock.shows(self.now) + self.system.layout.submit_deadline_us();
        if let Some(store) = &mut sim.store {
            let log = ticket.partition();
            let must_see = match log < store.partitions {
                true => self.system.histories.known(log),
                false => 0,
            };
            store.reads.insert(ticket, ReadBegun { must_see, deadline });
        }
    }
}
