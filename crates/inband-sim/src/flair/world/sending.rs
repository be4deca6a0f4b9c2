//! Packets and messages on their way: what the links make of them.

use inband_dataplane::flair::wire;
use inband_flair::replica::Message;
use inband_raft::node_of;

use super::{Event, World};
use crate::flair::limits::LINK_MIN_NS;
use crate::flair::links::{Host, MessageKind, Passing};
use crate::flair::trace::Happened;

impl World {
    pub(super) fn send(&mut self, from: Host, to: Host, bytes: Vec<u8>) {
        let header = wire::parse(&bytes).ok().map(|(header, ..)| header);
        if let (Host::Switch(_), Host::Replica(number)) = (from, to) {
            let is_read = header.is_some_and(|h| h.kind == wire::Type::Read);
            let is_dead = self.replicas[usize::from(number)].replica.is_none();
            self.stats.reads_of_the_dead += u64::from(is_read && is_dead);
        }
        if let Some(forged) = self.forged_answer(to, header.as_ref()) {
            let event = Event::Packet {
                from: to,
                to: from,
                bytes: forged,
            };
            return self.queue.push(self.now + LINK_MIN_NS, event);
        }
        let passing = Passing {
            now: self.now,
            from,
            to,
            header,
            message: None,
        };
        let arrivals = self.links.fate(&mut self.rng_links, &passing);
        if let Some(header) = header {
            self.trace.note(
                self.now,
                match arrivals.is_empty() {
                    true => Happened::Lost(from, to, header),
                    false => Happened::Sent(from, to, header),
                },
            );
        }
        for after in arrivals {
            let bytes = bytes.clone();
            self.queue
                .push(self.now + after, Event::Packet { from, to, bytes });
        }
    }

    fn forged_answer(&self, to: Host, header: Option<&wire::Header>) -> Option<Vec<u8>> {
        let (Host::Switch(number), Some(mutation)) = (to, self.mutation) else {
            return None;
        };
        let answer = mutation.answer(self.switch(number)?, header?, self.local(to))?;
        let mut bytes = Vec::new();
        wire::emit(&answer, &[], &[], &mut bytes);
        Some(bytes)
    }

    pub(super) fn send_message(&mut self, from: u8, to: u8, message: Message) {
        let passing = Passing {
            now: self.now,
            from: Host::Replica(from),
            to: Host::Replica(to),
            header: None,
            message: Some(MessageKind::of(&message)),
        };
        if let Message::Raft(raft) = &message {
            debug_assert_eq!(node_of(raft.to), to);
        }
        for after in self.links.fate(&mut self.rng_links, &passing) {
            let message = Box::new(message.clone());
            self.queue
                .push(self.now + after, Event::Message { from, to, message });
        }
    }
}
