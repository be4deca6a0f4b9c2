//! The network between hosts, coordinators and proposers.

use inband_paxos::dataplane::soft::Verdict;
use inband_paxos::dataplane::wire::{self, flag, Header, Type, PACKET_LEN_MAX_BYTES};

use super::{Cluster, Event, COORDINATORS, PROPOSERS};
use crate::configuration::NodeId;
use crate::message::Message;
use crate::outbox::{Outbox, To};
use crate::simulation::paxos::Packets;

impl Cluster {
    fn is_cut_off(&self, node: NodeId) -> bool {
        let host = self.hosts.get(&node).map(|h| h.cut_off_until);
        let seat = COORDINATORS.iter().position(|c| *c == node);
        let seat = seat
            .and_then(|at| self.seats.get(at))
            .map(|s| s.cut_off_until);
        host.or(seat).is_some_and(|until| self.now < until)
    }

    fn transmit(&mut self, event: impl Fn() -> Event) {
        let Some(weather) = self.weather else {
            return self.later(200, event());
        };
        if self.dice.chance_ppm(weather.loss_ppm) {
            return;
        }
        let copies = 1 + u64::from(self.dice.chance_ppm(weather.repeat_ppm));
        for _ in 0..copies {
            let late = self.dice.chance_ppm(weather.late_ppm);
            let mean = if late { 2_000_000 } else { 500 };
            let after = self.dice.wait(mean);
            self.later(after, event());
        }
    }

    pub(super) fn send_all(&mut self, from: NodeId, sender: NodeId, out: &mut Outbox) {
        for (to, message) in out.drain() {
            let to = match to {
                To::Node(node, _) => node,
                To::Sender => sender,
            };
            if !self.is_cut_off(from) {
                self.transmit(|| Event::Control(from, to, message.clone()));
            }
        }
    }

    pub(super) fn control_arrives(&mut self, from: NodeId, to: NodeId, message: Message) {
        if self.is_cut_off(to) {
            return;
        }
        if let Some(at) = COORDINATORS.iter().position(|c| *c == to) {
            let Message::Report(report) = message else {
                return;
            };
            let mut out = Outbox::new();
            let seat = &mut self.seats[at];
            let command = seat
                .coordinator
                .on_report(self.now, report, &seat.state, &mut out);
            self.send_all(to, from, &mut out);
            command.into_iter().for_each(|c| self.propose_command(c));
            return;
        }
        self.with_member_from(to, from, |member, now, out| match message {
            Message::Order(order) => member.on_order(now, order, out),
            Message::Pull(pull) => member.on_pull(pull, out),
            Message::Pulled { pull, whole, piece } => {
                member.on_pulled(now, from, pull, whole, &piece, out);
            }
            Message::Report(_) => {}
        });
    }

    pub(super) fn packet_arrives(&mut self, from: NodeId, to: NodeId, packet: &[u8]) {
        if self.is_cut_off(to) {
            return;
        }
        if let Some(at) = PROPOSERS.iter().position(|p| *p == to) {
            let Ok((header, value)) = wire::parse(packet) else {
                return;
            };
            let packets = self.proposers[at].on_packet(&header, value);
            return self.send_packets(to, packets);
        }
        let Some(host) = self.hosts.get(&to).filter(|h| h.member.is_some()) else {
            return;
        };
        let mut buffer = [0u8; PACKET_LEN_MAX_BYTES];
        buffer[..packet.len()].copy_from_slice(packet);
        let (verdict, _, len_bytes) = host.switch.handle(&mut buffer, packet.len());
        if verdict != Verdict::Reply {
            return;
        }
        let Ok((header, value)) = wire::parse(&buffer[..len_bytes]) else {
            return;
        };
        self.look_at(to, &header, value);
        self.send_packets(to, vec![(from, buffer[..len_bytes].to_vec())]);
    }

    fn look_at(&mut self, node: NodeId, header: &Header, value: &[u8]) {
        let ballot = (
            header.epoch,
            usize::from(header.partition),
            header.instance,
            header.vround,
        );
        match header.kind {
            Type::Phase2B => self.checker.shows(node, ballot, value),
            Type::Phase1B if header.has(flag::VOTE) => self.checker.shows(node, ballot, value),
            Type::Phase1B => self.checker.answered(node, header.epoch),
            _ => {}
        }
    }

    pub(super) fn send_packets(&mut self, from: NodeId, packets: Packets) {
        for (to, packet) in packets {
            if !self.is_cut_off(from) {
                self.transmit(|| Event::Packet(from, to, packet.clone()));
            }
        }
    }
}
