//! The world's clients: their requests and how these end.

use inband_flair::client::{self, Client, Op, Outcome, Ticket};
use inband_flair::timing::Nanos;

use crate::flair::history::{written, Act};
use crate::flair::host::Host;
use crate::flair::system::Request;
use crate::flair::trace::Happened;
use crate::flair::World;

fn key(number: u8) -> Vec<u8> {
    format!("key/{number}").into_bytes()
}

impl World {
    /// Answered requests by client.
    pub fn answered(&self) -> Vec<u64> {
        self.system
            .clients
            .iter()
            .map(|client| client.answered)
            .collect()
    }

    /// Returns whether no request is in flight.
    pub fn is_idle(&self) -> bool {
        self.system.clients.iter().all(|c| c.under_way.is_empty())
    }

    /// Lets clients begin new requests, or stops them.
    pub fn set_load(&mut self, is_loaded: bool) {
        let begins = is_loaded && !self.system.is_loaded;
        self.system.is_loaded = is_loaded;
        for client in (0..self.system.layout.clients).filter(|_| begins) {
            self.after(0, Request(client));
        }
    }

    pub(in crate::flair) fn at_client(
        &mut self,
        number: u8,
        event: impl FnOnce(&mut Client, Nanos, &mut client::Out),
    ) {
        let own = Host::Client(number);
        let now = self.local(own);
        let mut out = std::mem::take(&mut self.system.client_out);
        let host = &mut self.system.clients[usize::from(number)];
        event(&mut host.client, now, &mut out);
        if let Some(due) = host.client.due() {
            self.sleep(own, due);
        }
        for (switch, packet) in out.packets.iter() {
            self.send_bytes(own, Host::Switch(switch), packet.to_vec());
        }
        for (ticket, outcome) in out.outcomes.drain(..) {
            self.on_outcome(number, ticket, &outcome);
        }
        out.packets.clear();
        self.system.client_out = out;
    }

    fn on_outcome(&mut self, number: u8, ticket: Ticket, outcome: &Outcome) {
        let host = &mut self.system.clients[usize::from(number)];
        let request = host.under_way.remove(&ticket).expect("it was begun");
        let is_answered = !matches!(outcome, Outcome::Failed(_) | Outcome::Unknown);
        host.answered += u64::from(is_answered);
        self.system.history.ends(self.now, request, outcome);
        let how = match outcome {
            Outcome::Value(_) => "read",
            Outcome::Written | Outcome::Missing => "written",
            Outcome::Failed(_) => "failed",
            Outcome::Unknown => "unknown",
        };
        let ended = Happened::Ended(Host::Client(number), request, how);
        self.trace.note(self.now, ended);
        if how == "written" {
            self.lose_founder();
        }
        let think = self.rng.hosts.wait(self.system.layout.think_ns);
        self.after(think, Request(number));
    }

    pub(in crate::flair) fn on_request(&mut self, number: u8) {
        let host = &self.system.clients[usize::from(number)];
        if !self.system.is_loaded || host.under_way.len() >= self.system.layout.outstanding {
            return;
        }
        let key_number = self.rng.hosts.below(u64::from(self.system.layout.keys)) as u8;
        self.system.values += 1;
        let act = match self.rng.hosts.below(100) {
            0..=54 => Act::Get,
            55..=89 => Act::Put(self.system.values),
            _ => Act::Delete,
        };
        self.request(number, key_number, act);
    }

    pub fn request(&mut self, number: u8, key_number: u8, act: Act) {
        let op = match act {
            Act::Get => Op::Get(key(key_number)),
            Act::Put(value) => Op::Put(key(key_number), written(value)),
            Act::Delete => Op::Delete(key(key_number)),
        };
        let request = self.system.history.begins(self.now, key_number, act);
        let begun = Happened::Begun(Host::Client(number), request, key_number, act);
        self.trace.note(self.now, begun);
        let mut ticket = None;
        self.at_client(number, |client, now, out| {
            ticket = Some(client.submit(now, op, out).expect("it is short"));
        });
        let host = &mut self.system.clients[usize::from(number)];
        host.under_way.insert(ticket.expect("set above"), request);
    }
}
