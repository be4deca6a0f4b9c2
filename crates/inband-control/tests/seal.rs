//! An acceptor is sealed while other CPUs process packets.

use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use inband_control::acceptor::{AcceptorState, Merged, StoredVote};
use inband_control::registers::RegisterState;
use inband_paxos::dataplane::soft::{Geometry, Registers, Roles, SoftSwitch};
use inband_paxos::dataplane::wire::{digest, emit, Header, Type, PACKET_LEN_MAX_BYTES};

const GEOMETRY: Geometry = Geometry {
    partitions: 1,
    ring_slots: 64,
};
const VOTERS: u64 = 3;
const TURNS: u32 = 300;

struct Switch<'a>(&'a SoftSwitch);

impl Deref for Switch<'_> {
    type Target = Registers;
    fn deref(&self) -> &Registers {
        self.0.registers()
    }
}

fn propose(switch: &SoftSwitch, epoch: u32, instance: u64, round: u64) {
    let value = (round << 8 | instance).to_be_bytes();
    let mut header = Header::new(Type::Phase2A, 1, epoch);
    (header.instance, header.round) = (instance, round);
    header.digest = digest(&value);
    let mut packet = Vec::new();
    emit(&header, &value, &mut packet);
    let mut buffer = [0; PACKET_LEN_MAX_BYTES];
    buffer[..packet.len()].copy_from_slice(&packet);
    switch.handle(&mut buffer, packet.len());
}

fn all(state: &impl AcceptorState) -> Vec<StoredVote> {
    let piece = state.export(0, 0, usize::MAX).expect("slots are free");
    assert_eq!(piece.next, None);
    piece.votes
}

/// What is read after the seal is final; packets of the old epoch do not change what was installed. Without the seal it
/// would change: the load is real.
#[test]
fn no_vote_comes_after_the_seal() {
    let roles = Roles {
        acceptor: true,
        ..Roles::default()
    };
    let switch = SoftSwitch::new(1, roles, GEOMETRY);
    let mut state = RegisterState::new(Switch(&switch), GEOMETRY);
    state.start_fresh(1, &[1]).expect("free");
    let (stop, epoch, round) = (AtomicBool::new(false), AtomicU64::new(1), AtomicU64::new(1));
    let mut unsealed_moved = 0;
    thread::scope(|scope| {
        for _ in 0..VOTERS {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let round = round.fetch_add(1, Ordering::Relaxed);
                    let instance = 1 + round % GEOMETRY.ring_slots as u64;
                    propose(
                        &switch,
                        epoch.load(Ordering::Relaxed) as u32,
                        instance,
                        round,
                    );
                }
            });
        }
        for turn in 1..=TURNS {
            let before = round.load(Ordering::Relaxed);
            let early = all(&state);
            while round.load(Ordering::Relaxed) < before + 200 {
                thread::yield_now();
            }
            unsealed_moved += u32::from(all(&state) != early);
            state.seal(turn + 1).expect("memory");
            let sealed = all(&state);
            let after = round.load(Ordering::Relaxed);
            while round.load(Ordering::Relaxed) < after + 200 {
                thread::yield_now();
            }
            assert_eq!(all(&state), sealed, "turn {turn}");
            let mut merged = Merged::default();
            let piece = state.export(0, 0, usize::MAX).expect("free");
            merged.add(&piece).expect("one acceptor");
            merged.votes.retain(|instance, _| instance % 2 == 0);
            state.install(0, &merged).expect("free");
            let after = round.load(Ordering::Relaxed);
            while round.load(Ordering::Relaxed) < after + 50 {
                thread::yield_now();
            }
            let installed: Vec<StoredVote> = merged.votes.into_values().collect();
            assert_eq!(all(&state), installed, "turn {turn}");
            state.open().expect("memory");
            epoch.store(u64::from(turn) + 1, Ordering::Relaxed);
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert!(unsealed_moved > TURNS / 2, "{unsealed_moved} of {TURNS}");
}
