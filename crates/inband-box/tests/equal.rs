//! Runs the kernel's program and the native build on the same random packets, and compares verdicts, outgoing packets,
//! registers and counters. `INBAND_SEED=N` repeats a run.
#![allow(missing_docs)]

use crate::common::{rig, role, Tested, CAPACITY};
use inband_box::registers::Registers;
use inband_box::role::{Mode, Peer, View};
use inband_box::wire::{emit, flag, Header, Type};
use inband_box::{owner_of, Zab, GROUPS, PROPOSERS, RECORD_LEN_MAX_BYTES};
use inband_ground::auth::Keys;
use inband_ground::soft::Arrival;
use inband_testing::frame::{may_load_bpf, tag, NODE, THERE};
use inband_testing::random::{seed, Prng};
use inband_testing::role::{self, missing, sign_at_random, two_keys, Equal, Pair};

const STEPS: usize = 60_000;
const STEPS_WITH_KEYS: usize = 20_000;
/// Steps after which the node is replaced by one that has forgotten everything.
const RESTART_EVERY: usize = 5_000;
const MEMBERS: [u64; 3] = [0b1110, 0b11_1110, 0b101_0110];

/// A node's life: what its process does, and packets that mostly fit.
#[derive(Default)]
pub struct Life {
    now_ns: u64,
}

fn pick<T: Copy>(random: &mut Prng, from: &[T]) -> T {
    from[random.below(from.len() as u64) as usize]
}

fn flag_sometimes(random: &mut Prng, one_in: u64, flag: u16) -> u16 {
    if random.below(one_in) == 0 {
        flag
    } else {
        0
    }
}

/// Returns a number near this one, usually the number itself.
fn near(random: &mut Prng, number: u64) -> u64 {
    (number + pick(random, &[0, 0, 0, 0, 1, 1, 2])).saturating_sub(random.below(8) / 6)
}

/// Lets the process act occasionally.
fn process(random: &mut Prng, view: &mut View) {
    if view.members == 0 {
        (view.members, view.quorum, view.window) = (MEMBERS[0], 2, 6);
    }
    match random.below(100) {
        0 => {
            view.epoch += 1 + random.below(2 * PROPOSERS);
            (view.mode, view.leader, view.matched) = (Mode::Idle, 0, view.committed);
        }
        1..=4 => {
            view.epoch = (view.epoch / PROPOSERS + 1) * PROPOSERS + pick(random, &[1, 3]);
            (view.mode, view.leader) = (Mode::Following, owner_of(view.epoch));
            view.matched = view.committed;
            view.recovering = random.below(4) == 0;
        }
        5..=8 => {
            view.epoch = (view.epoch / PROPOSERS + 1) * PROPOSERS + u64::from(NODE);
            (view.mode, view.leader) = (Mode::Leading, NODE);
            view.peers = [Peer::default(); 8];
            view.peers[usize::from(NODE)].matched = view.last;
            view.established_at = view.last + 1;
        }
        9 => view.members = pick(random, &MEMBERS),
        10 => view.quorum = 2 + random.below(2) as usize,
        11 => view.window = 1 + random.below(10),
        12 => view.acks_by_process = random.below(4) == 0,
        13 => view.recovering = random.below(4) == 0,
        14..=30 => view.applied = view.committed,
        31 => view.time_ms += random.below(50),
        32 => view.guests = pick(random, &[0, 0b1_0000, 0b1000]),
        _ => {}
    }
}

fn header(random: &mut Prng, view: &View) -> Header {
    let kinds = match view.mode {
        Mode::Leading => [Type::Submit, Type::Submit, Type::Ack, Type::Ack, Type::Ack],
        _ => [
            Type::Propose,
            Type::Propose,
            Type::Propose,
            Type::Commit,
            Type::Commit,
        ],
    };
    let any = pick(random, &Type::ALL);
    let kind = pick(
        random,
        &[kinds[0], kinds[1], kinds[2], kinds[3], kinds[4], any],
    );
    let leader = u16::from(owner_of(view.epoch));
    let others = [1, 3, 3, 4, 5, 2, 7];
    let mut header = Header {
        node: pick(random, &others),
        epoch: view.epoch,
        committed: near(random, view.committed),
        round: random.below(8),
        leader: random.below(4) as u16,
        origin_session: random.next(),
        origin_seq: random.next(),
        ..Header::of(kind)
    };
    match kind {
        Type::Propose => {
            header.node = leader;
            header.zxid = near(random, view.matched + 1);
            header.record_epoch = pick(random, &[view.epoch, view.epoch, view.last_epoch]);
            header.time_ms = random.below(1000);
            header.origin = random.below(4) as u16;
        }
        Type::Commit => {
            header.node = leader;
            header.zxid = view.last;
            header.committed = near(random, view.matched);
            header.flags = flag_sometimes(random, 3, flag::ROUND);
        }
        Type::Ack => {
            header.zxid = near(random, view.last).min(view.last + u64::from(random.below(30) == 0));
            header.flags = flag_sometimes(random, 4, flag::ROUND)
                | flag_sometimes(random, 12, flag::GAP)
                | flag_sometimes(random, 12, flag::RECOVERING);
        }
        Type::Submit => {
            header.origin = header.node;
            if random.below(6) == 0 {
                (header.node, header.origin) = (NODE.into(), 0);
            }
        }
        Type::Refused => header.flags = pick(random, &[flag::EPOCH, flag::BUSY]),
        Type::Control => {}
    }
    if random.below(12) == 0 {
        match random.below(8) {
            0 => header.node = random.below(9) as u16,
            1 => header.epoch += random.below(3 * PROPOSERS),
            2 => header.epoch = header.epoch.saturating_sub(random.below(3 * PROPOSERS)),
            3 => header.zxid = random.below(3 * CAPACITY as u64),
            4 => header.record_epoch = random.below(view.epoch + 2),
            5 => header.origin = random.below(4) as u16,
            6 => header.flags = random.below(64) as u16,
            _ => header.committed = random.next(),
        }
    }
    header
}

impl role::Sequence for Life {
    type System = Tested;

    fn packet(&mut self, record: &[u8; 16], registers: [&Registers; 2]) -> (Vec<u8>, Arrival) {
        let words = [0, 8].map(|at| u64::from_le_bytes(record[at..at + 8].try_into().unwrap()));
        let random = &mut Prng(words[0] ^ words[1].rotate_left(32) | 1);
        let mut view = registers[0].view();
        process(random, &mut view);
        registers.into_iter().for_each(|one| one.restore(&view));
        let header = header(random, &view);
        let has_value = match header.kind {
            Type::Submit | Type::Propose | Type::Control => true,
            _ => random.below(40) == 0,
        };
        let most = RECORD_LEN_MAX_BYTES as u64 + 1 + random.below(2);
        let len = pick(random, &[0, 1, 7, 64]) + random.below(20) / 19 * random.below(most);
        let value = vec![random.next() as u8; if has_value { len as usize } else { 0 }];
        let mut packet = emit(&header, &value);
        if random.below(60) == 0 {
            let at = random.below(packet.len() as u64) as usize;
            packet[at] ^= 1 << random.below(8);
        }
        self.now_ns += random.below(3);
        let arrival = Arrival {
            from: THERE,
            now_ns: self.now_ns,
            random: 0,
        };
        (packet, arrival)
    }

    fn words(registers: &Registers) -> Vec<(String, Vec<u64>)> {
        registers.words()
    }

    fn clear(registers: &Registers) {
        registers.restart();
    }
}

fn equal(keys: Option<Keys>) -> Equal<Life> {
    Equal::new(Pair::new(role(), rig(keys), keys, GROUPS))
}

#[test]
fn random_packets_leave_kernel_and_native_equal() {
    if !may_load_bpf() {
        return;
    }
    let seed = seed();
    let what = format!("INBAND_SEED={seed}");
    let mut equal = equal(None);
    let random = &mut Prng(seed);
    equal.random(random, STEPS, RESTART_EVERY, &what, &mut |packet| {
        tag(packet);
    });
    eprintln!("{what} {:?}", equal.pair.compare_counters(&what));
    let missing = missing::<Zab>("box_", &[], &equal.pair.met);
    assert!(missing.is_empty(), "{missing:?} in {what}");
}

#[test]
fn random_packets_with_keys_leave_kernel_and_native_equal() {
    if !may_load_bpf() {
        return;
    }
    let seed = seed();
    let what = format!("INBAND_SEED={seed}");
    let mut equal = equal(Some(two_keys()));
    let (random, signs) = (&mut Prng(seed), &mut Prng(seed + 2));
    equal.random(
        random,
        STEPS_WITH_KEYS,
        RESTART_EVERY,
        &what,
        &mut |packet| {
            sign_at_random(signs, packet);
        },
    );
    let counters = equal.pair.compare_counters(&what);
    assert!(counters["bad_key"] > 0 && counters["bad_tag"] > 0);
}
