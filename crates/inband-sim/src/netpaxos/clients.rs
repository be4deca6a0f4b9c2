//! Proposers, and the outcomes reported to them.

use std::collections::BTreeSet;

use inband_netpaxos::proposer::{Outcome, Proposer};

use super::hosts::gate;
use super::{Event, Host, NetPaxos, LEARNERS, SERIALIZERS};
use crate::World;

/// Few different values, so that many requests have equal bytes.
const VALUES: u64 = 3;

pub(super) struct Client {
    pub proposer: Proposer,
    pub done: u64,
    asked: BTreeSet<u64>,
}

impl World<NetPaxos> {
    /// Starts a client. Requests of an earlier process have an unknown outcome.
    pub(super) fn start_client(&mut self, number: u8) {
        let nonce = self.rng.hosts.next_u64();
        let client = Client {
            proposer: Proposer::new(SERIALIZERS.into(), number.into(), nonce),
            done: 0,
            asked: BTreeSet::new(),
        };
        self.system.client.insert(number, client);
        self.client_ticks(number);
        for _ in 0..self.system.outstanding {
            let think = self.rng.hosts.wait(self.system.think_ns);
            self.after(think, Event::Request(Host::Client(number)));
        }
    }

    pub(super) fn at_client(&mut self, number: u8, packet: &[u8]) {
        if !gate().admits(packet) {
            return;
        }
        let now = self.local(Host::Client(number));
        let client = self.system.client.get_mut(&number).expect("a client");
        client.proposer.on_packet(now, packet);
        self.client_acted(number, Vec::new());
    }

    pub(super) fn client_ticks(&mut self, number: u8) {
        let now = self.local(Host::Client(number));
        let client = self.system.client.get_mut(&number).expect("a client");
        let mut out = Vec::new();
        client.proposer.tick(now, &mut out);
        self.client_acted(number, out);
    }

    pub(super) fn client_thinks(&mut self, number: u8) {
        let own = Host::Client(number);
        let client = &self.system.client[&number];
        if !self.system.is_loaded || client.asked.len() >= self.system.outstanding {
            return;
        }
        if !client.proposer.is_ready() {
            let think = self.rng.hosts.wait(self.system.think_ns);
            return self.after(think, Event::Request(own));
        }
        let value = vec![self.rng.hosts.below(VALUES) as u8];
        let (now, deadline) = (self.local(own), self.deadline(own));
        let client = self.system.client.get_mut(&number).expect("a client");
        let mut out = Vec::new();
        let request = client.proposer.submit(now, &value, deadline, &mut out);
        client.asked.insert(request);
        let session = client.proposer.session().expect("it is open");
        self.system.ledger.submit((session, request), value);
        self.client_acted(number, out);
    }

    fn client_acted(&mut self, number: u8, out: Vec<(usize, Vec<u8>)>) {
        let own = Host::Client(number);
        for (serializer, mut packet) in out {
            gate().sign(&mut packet);
            self.send(own, Host::Serializer(serializer as u8 + 1), packet);
        }
        let client = self.system.client.get_mut(&number).expect("a client");
        let due = client.proposer.due();
        let session = client.proposer.session().unwrap_or(0);
        for (request, outcome) in client.proposer.take_done() {
            let client = self.system.client.get_mut(&number).expect("a client");
            client.asked.remove(&request);
            match outcome {
                Outcome::Delivered(instance) => {
                    client.done += 1;
                    self.stats.count("delivered", 1);
                    let result = self.system.ledger.acknowledge((session, request));
                    self.check(result);
                    // At another learner than the one that answered first, more often than not.
                    self.read_at(1 + (instance % u64::from(LEARNERS)) as u8);
                }
                Outcome::Unknown => self.stats.count("unknown outcomes", 1),
            }
            let think = self.rng.hosts.wait(self.system.think_ns);
            self.after(think, Event::Request(own));
        }
        self.sleep(own, due);
    }
}
