//! The path of a packet through a host: to its soft roles, then to the state machines, and from there to other hosts or to
//! this host itself.

use std::collections::VecDeque;

use crate::dataplane::round;
use crate::dataplane::soft::Verdict;
use crate::dataplane::wire::{self, flag, Header, Type, PACKET_LEN_MAX_BYTES};

use super::Host;
use crate::journal::AcceptorJournal;
use crate::outbox::{Dest, Outbox};
use crate::timing::Micros;

/// Most packets of a host to itself handled in one call; more than any exchange of roles can cause.
const LOCAL_PACKETS_MAX: usize = 100_000;

/// No log reaches this instance in a hundred thousand years. A packet with a higher one is damaged; accepting it would
/// make a host wait for instances that never come, or overflow.
pub(super) const INSTANCE_END: u64 = 1 << 62;

/// There are never this many leader changes: half of what a round can count. A host that accepted such a round would
/// have none left.
pub(super) const ROUND_COUNTER_END: u64 = 1 << 31;

/// A host's packets to itself.
#[derive(Default)]
pub(super) struct LocalPackets {
    waiting: VecDeque<Vec<u8>>,
    /// Handled ones, whose memory is reused.
    spare: Vec<Vec<u8>>,
}

impl LocalPackets {
    pub(super) fn push(&mut self, packet: &[u8]) {
        let mut copy = self.spare.pop().unwrap_or_default();
        copy.clear();
        copy.extend_from_slice(packet);
        self.waiting.push_back(copy);
    }
}

impl Host {
    /// Handles one packet: the soft roles first, then the state machines.
    pub(super) fn handle(&mut self, now: Micros, packet: &[u8], from_self: bool, out: &mut Outbox) {
        if packet.len() > PACKET_LEN_MAX_BYTES {
            self.shared.bad_packets += 1;
            return;
        }
        let Some(switch) = &self.shared.switch else {
            self.host_packet(now, packet, from_self, out);
            return;
        };
        let mut buffer = [0u8; PACKET_LEN_MAX_BYTES];
        buffer[..packet.len()].copy_from_slice(packet);
        if let (Some(journal), Ok((header, _))) = (&mut self.journal, wire::parse(packet)) {
            if AcceptorJournal::is_for_acceptor(&header) {
                if journal.handle(switch, &header, &mut buffer, packet.len()) {
                    self.host_packet(now, packet, from_self, out);
                }
                return;
            }
        }
        let (verdict, _reason, len_bytes) = switch.handle(&mut buffer, packet.len());
        let packet = &buffer[..len_bytes];
        match verdict {
            Verdict::Drop => {}
            Verdict::Pass => self.host_packet(now, packet, from_self, out),
            Verdict::Reply if from_self => self.local.push(packet),
            Verdict::Reply => out.send_raw(Dest::Sender, packet),
            Verdict::ToAcceptors => self.route_one(Dest::Acceptors, packet, out),
            Verdict::ToLearners => self.route_one(Dest::Learners, packet, out),
            Verdict::Deliver => self.decided(now, packet, out),
        }
    }

    /// Returns whether a received packet may be handled. A PHASE2A for an acceptor in user space whose value does not
    /// match its digest must not: an attacker on the path has substituted a value with the same checksum, and a
    /// majority voting for it would stop the log. A packet program has no time for this check. Only drivers on a real
    /// network call this; the simulator's acceptors have just the kernel's guards.
    pub fn admits(&mut self, packet: &[u8]) -> bool {
        let is_forged = self.shared.config.soft_roles.acceptor
            && wire::parse(packet).is_ok_and(|(header, value)| {
                header.kind == Type::Phase2A && self.shared.config.digest.of(value) != header.digest
            });
        self.shared.bad_packets += u64::from(is_forged);
        !is_forged
    }

    pub(super) fn decided(&mut self, now: Micros, packet: &[u8], out: &mut Outbox) {
        let Some((header, value)) = self.parse(packet) else {
            return;
        };
        let partition = usize::from(header.partition);
        self.act(partition, false, out, |p, shared, own| {
            p.on_decided(now, &header, value, shared, own);
        });
    }

    /// Parses a packet, and checks its partition, instance and round for plausibility.
    fn parse<'p>(&mut self, packet: &'p [u8]) -> Option<(Header, &'p [u8])> {
        let parsed = wire::parse(packet).ok();
        let good = parsed.filter(|(header, _)| {
            usize::from(header.partition) < self.partitions.len()
                && header.instance.max(header.floor) < INSTANCE_END
                && round::counter(header.round) < ROUND_COUNTER_END
        });
        self.shared.bad_packets += u64::from(good.is_none());
        good
    }

    /// A packet for the state machines.
    fn host_packet(&mut self, now: Micros, packet: &[u8], from_self: bool, out: &mut Outbox) {
        let Some((header, value)) = self.parse(packet) else {
            return;
        };
        if !self.is_member(header.node) {
            self.shared.bad_packets += 1;
            return;
        }
        let to_acceptor = matches!(header.kind, Type::Phase1A | Type::Phase2A);
        self.missed_by_kernel += u64::from(to_acceptor && self.shared.config.kernel_roles.acceptor);
        self.highest_epoch_seen = self.highest_epoch_seen.max(header.epoch);
        if header.kind == Type::Alive {
            self.on_alive(now, &header, value, out);
            return;
        }
        let partition = usize::from(header.partition);
        self.act(partition, from_self, out, |p, shared, own| {
            p.on_packet(now, &header, value, shared, own);
        });
    }

    /// Every sender of packets for state machines is a node of the configuration. A stranger's claim about far
    /// instances would make a learner wait for them forever.
    fn is_member(&self, node: u16) -> bool {
        let config = &self.shared.config;
        let groups = [&config.acceptors, &config.replicas, config.leader_nodes()];
        groups
            .iter()
            .any(|group| group.iter().any(|member| u16::from(*member) == node))
    }

    pub(super) fn drain_local(&mut self, now: Micros, out: &mut Outbox) {
        for _ in 0..LOCAL_PACKETS_MAX {
            if self.local.waiting.is_empty() {
                self.release_answers(out);
            }
            let Some(packet) = self.local.waiting.pop_front() else {
                return;
            };
            self.handle(now, &packet, true, out);
            self.local.spare.push(packet);
        }
        panic!("roles of one host keep answering each other");
    }

    fn release_answers(&mut self, out: &mut Outbox) {
        let Some(mut journal) = self.journal.take() else {
            return;
        };
        journal.release(&mut |dest, packet| match dest {
            // The destination was read from a packet that may have been damaged.
            Dest::Node(node) if !self.is_member(u16::from(node)) => self.shared.bad_packets += 1,
            _ => self.route_one(dest, packet, out),
        });
        self.journal = Some(journal);
    }

    /// Sends a packet. One for this host itself is handled here, unless a role in the kernel must handle it: then the
    /// driver passes it on.
    pub(super) fn route_one(&mut self, dest: Dest, packet: &[u8], out: &mut Outbox) {
        let nodes: &[u8] = match dest {
            Dest::Acceptors => &self.shared.config.acceptors,
            Dest::Learners => &self.shared.config.replicas,
            Dest::Leaders => self.shared.config.leader_nodes(),
            Dest::Peers => &self.peers,
            Dest::Node(node) => &[node],
            Dest::Sender => {
                out.send_raw(dest, packet);
                return;
            }
        };
        for node in nodes {
            if *node != self.shared.config.node || self.is_for_kernel(packet) {
                out.send_raw(Dest::Node(*node), packet);
            } else {
                self.local.push(packet);
            }
        }
    }

    fn is_for_kernel(&self, packet: &[u8]) -> bool {
        let roles = self.shared.config.kernel_roles;
        let Ok((header, _)) = wire::parse(packet) else {
            return false;
        };
        match header.kind {
            Type::Request => roles.leader,
            Type::Phase1A | Type::Phase2A => roles.acceptor,
            Type::Learn => roles.acceptor && !header.has(flag::PEER),
            Type::Trim | Type::Position if header.has(flag::ANSWER) => false,
            Type::Trim | Type::Position if header.has(flag::LEADER) => roles.leader,
            Type::Trim | Type::Position => roles.acceptor,
            Type::Phase2B => roles.quorum && !header.has(flag::REPEAT),
            Type::Phase1B | Type::Nack | Type::Busy | Type::Reply | Type::Alive => false,
        }
    }
}
