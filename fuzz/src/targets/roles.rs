//! The parser and every role through the shells, in the native build: sequences of packets and host steps, and after
//! each packet the rules of Paxos that no packet may break.
//!
//! `crates/inband-dataplane/tests/equal.rs` runs the same corpus through the kernel's programs.

#[path = "../../../crates/inband-dataplane/tests/common/sequence.rs"]
mod sequence;

use std::collections::{HashMap, HashSet};

use inband_paxos::dataplane::registers::{AcceptorView, CountView, LeaderView, SlotView};
use inband_paxos::dataplane::soft::{Registers, Roles, SoftSwitch, Verdict};
use inband_paxos::dataplane::wire::{parse, Header, Type, HEADER_LEN_BYTES, PACKET_LEN_MAX_BYTES};

use sequence::{HostStep, Sequence, Step, GEOMETRY, MEMBERS, NODE, RECORD_LEN_BYTES};

/// Every register that a packet may change.
#[derive(Debug, Clone, PartialEq)]
struct Moment {
    leader: LeaderView,
    acceptor: AcceptorView,
    slot: SlotView,
    count: CountView,
}

struct Run<'a> {
    switch: &'a SoftSwitch,
    sequence: Sequence,
    /// Instances by partition and round.
    stamped: HashSet<(u16, u64, u64)>,
    /// Slots by index, as packets and host steps left them.
    touched: HashMap<usize, Vec<u64>>,
}

thread_local! {
    /// Created once, because it is large.
    static SWITCH: SoftSwitch = SoftSwitch::new(NODE, ALL_ROLES, GEOMETRY);
}

const ALL_ROLES: Roles = Roles {
    leader: true,
    acceptor: true,
    quorum: true,
};

/// A sequence of records.
pub fn run(bytes: &[u8]) {
    SWITCH.with(|switch| {
        sequence::restart_all(switch.registers());
        let mut run = Run {
            switch,
            sequence: Sequence::default(),
            stamped: HashSet::new(),
            touched: HashMap::new(),
        };
        for record in bytes.chunks_exact(RECORD_LEN_BYTES) {
            run.step(record.try_into().expect("so many bytes"));
        }
        run.nothing_else_was_touched();
    });
}

impl Run<'_> {
    fn step(&mut self, record: &sequence::Record) {
        match self.sequence.step(record, self.switch.registers()) {
            Step::Packet(packet) => self.packet(&packet),
            Step::Host(partition, step) => {
                step.apply(partition, self.registers());
                if matches!(step, HostStep::Adopt { .. } | HostStep::Restart) {
                    self.note_all_touched();
                }
            }
        }
    }

    fn registers(&self) -> &Registers {
        self.switch.registers()
    }

    fn packet(&mut self, packet: &[u8]) {
        let mut buffer = Box::new([0u8; PACKET_LEN_MAX_BYTES]);
        buffer[..packet.len()].copy_from_slice(packet);
        let header = parse(packet).ok().map(|(header, _)| header);
        let known = header.filter(|h| usize::from(h.partition) < GEOMETRY.partitions);
        let before = known.map(|header| self.moment(&header));
        let (verdict, _reason, len_bytes) = self.switch.handle(&mut buffer, packet.len());
        let out = &buffer[..len_bytes];
        let (Some(header), Some(before)) = (known, before) else {
            assert_eq!(verdict, Verdict::Drop, "not a packet for this host");
            return;
        };
        let after = self.moment(&header);
        nothing_falls(&before, &after);
        votes_are_kept(&before, &after, &header, packet);
        let index = index_of(&header);
        self.touched
            .insert(index, self.registers().ring.words(index));
        match verdict {
            Verdict::Drop => {}
            Verdict::Pass => assert_eq!(out, packet, "passed unchanged"),
            Verdict::Deliver => self.is_decided(&before, &after, &header),
            Verdict::Reply | Verdict::ToAcceptors | Verdict::ToLearners => {
                self.is_sound(verdict, &header, &after, out);
                self.sequence.answered(out);
            }
        }
        if verdict == Verdict::Pass || header.kind != Type::Phase2B {
            assert_eq!(before.count, after.count, "only votes are counted");
        }
    }

    fn moment(&self, header: &Header) -> Moment {
        let (partition, registers) = (usize::from(header.partition), self.registers());
        let index = index_of(header);
        Moment {
            leader: registers.leader.leader(partition),
            acceptor: registers.acceptor.acceptor(partition),
            slot: registers.ring.slot(index).expect("no slot stays taken"),
            count: registers.counts.counted(index),
        }
    }

    /// An outgoing packet parses again, is from this node, and agrees with the registers.
    fn is_sound(&mut self, verdict: Verdict, header: &Header, after: &Moment, out: &[u8]) {
        let (sent, value) = parse(out).expect("what leaves parses again");
        assert_eq!(
            out.len(),
            HEADER_LEN_BYTES + value.len(),
            "no padding leaves"
        );
        assert_eq!(sent.node, u16::from(NODE));
        assert_eq!(sent.partition, header.partition);
        match sent.kind {
            Type::Phase2A => {
                assert_eq!(verdict, Verdict::ToAcceptors);
                let LeaderView {
                    round,
                    next,
                    floor,
                    epoch,
                } = after.leader;
                assert_eq!((sent.round, sent.floor), (round, floor));
                assert_eq!(u64::from(sent.epoch), epoch & u64::from(u32::MAX));
                assert!(round != 0 && sent.instance + 1 == next && sent.instance >= floor);
                assert!(sent.instance - floor < GEOMETRY.ring_slots as u64, "window");
                let stamp = (sent.partition, sent.round, sent.instance);
                assert!(self.stamped.insert(stamp), "stamped twice: {stamp:?}");
            }
            Type::Phase2B => {
                let slot = &after.slot;
                assert_eq!((sent.instance, sent.round), (slot.instance, slot.vround));
                assert_eq!(
                    (sent.digest, value),
                    (slot.digest, &slot.value[..]),
                    "the vote"
                );
                assert!(slot.vround != 0 && after.acceptor.highest >= slot.instance);
            }
            Type::Phase1B => {
                assert_eq!(sent.floor, after.acceptor.floor);
                if !header.has(inband_paxos::dataplane::wire::flag::SLOT) {
                    assert_eq!(sent.instance, after.acceptor.highest);
                    assert_eq!(sent.round, after.acceptor.promise);
                } else {
                    assert_eq!(sent.round, after.slot.promise);
                    assert_eq!(sent.vround, after.slot.vround, "the vote is told");
                }
            }
            _ => {}
        }
    }

    fn is_decided(&self, before: &Moment, after: &Moment, header: &Header) {
        let (was, is) = (&before.count, &after.count);
        assert!(is.done && is.instance == header.instance && is.round == header.round);
        let same = was.instance == is.instance;
        assert!(!(same && was.done), "handed up twice");
        assert!(self.switch.registers().quorum.words(0)[1] <= u64::from(is.members.count_ones()));
        assert!(is.members >> MEMBERS.len() == 0, "members only");
    }

    fn note_all_touched(&mut self) {
        let ring = &self.switch.registers().ring;
        for index in 0..ring.slots().count() {
            if ring.rounds(index) != [0; 3] || self.touched.contains_key(&index) {
                self.touched.insert(index, ring.words(index));
            }
        }
    }

    /// No packet has changed a slot other than its own.
    fn nothing_else_was_touched(&self) {
        let ring = &self.registers().ring;
        for index in 0..ring.slots().count() {
            match self.touched.get(&index) {
                Some(left) => assert_eq!(&ring.words(index), left, "slot {index}"),
                None => assert_eq!(ring.rounds(index), [0; 3], "slot {index}"),
            }
        }
    }
}

fn index_of(header: &Header) -> usize {
    let slot = header.instance % GEOMETRY.ring_slots as u64;
    usize::from(header.partition) * GEOMETRY.ring_slots + slot as usize
}

fn nothing_falls(before: &Moment, after: &Moment) {
    let (was, is) = (&before.acceptor, &after.acceptor);
    assert!(is.promise >= was.promise && is.floor >= was.floor && is.highest >= was.highest);
    assert_eq!(
        (is.epoch, is.voting),
        (was.epoch, was.voting),
        "only the host changes these"
    );
    let (was, is) = (&before.slot, &after.slot);
    assert!(
        is.instance >= was.instance,
        "a slot moved to a lower instance"
    );
    if is.instance == was.instance {
        assert!(is.promise >= was.promise && is.vround >= was.vround);
    }
    let (was, is) = (&before.leader, &after.leader);
    assert!(is.next >= was.next && is.floor >= was.floor && is.epoch == was.epoch);
    assert!(
        is.round == was.round || is.round == 0,
        "only the host activates"
    );
    let (was, is) = (&before.count, &after.count);
    assert!(is.instance >= was.instance);
    assert!(is.epoch >= was.epoch || is.instance > was.instance);
    if is.instance == was.instance && is.epoch == was.epoch {
        assert!(is.round >= was.round && is.done >= was.done);
    }
}

/// A vote changes only by a proposal of a round at least as high as every promise, and never within a round.
fn votes_are_kept(before: &Moment, after: &Moment, header: &Header, packet: &[u8]) {
    let (was, is) = (&before.slot, &after.slot);
    let vote = |slot: &SlotView| (slot.instance, slot.vround, slot.digest, slot.value.clone());
    if vote(was) == vote(is) {
        return;
    }
    assert!(
        is.instance >= before.acceptor.floor,
        "a vote below the floor"
    );
    if is.vround == 0 {
        assert!(is.instance > was.instance, "a vote was forgotten");
        return;
    }
    let promise = match was.instance == is.instance {
        true => was.promise.max(before.acceptor.promise),
        false => before.acceptor.promise,
    };
    assert_eq!(header.kind, Type::Phase2A, "only a proposal makes a vote");
    assert!(before.acceptor.voting && u64::from(header.epoch) == before.acceptor.epoch);
    assert!(header.round >= promise, "a vote below a promise");
    assert!(
        was.instance < is.instance || was.vround < is.vround,
        "a vote was replaced"
    );
    let (_, value) = parse(packet).expect("it was parsed before");
    assert_eq!((is.vround, is.digest), (header.round, header.digest));
    assert_eq!(
        (is.instance, &is.value[..]),
        (header.instance, value),
        "as proposed"
    );
    assert!(after.acceptor.highest >= is.instance);
}
