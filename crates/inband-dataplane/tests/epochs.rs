//! Changes the members of a quorum counter while it counts on other CPUs.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use inband_paxos::dataplane::soft::{Geometry, Roles, SoftSwitch, Verdict};
use inband_paxos::dataplane::wire::{digest, emit, Header, Type, PACKET_LEN_MAX_BYTES};

const OLD_EPOCH: u64 = 3;
const OLD_MEMBERS: [u8; 5] = [1, 2, 3, 4, 5];
const NEW_MEMBERS: [u8; 3] = [1, 2, 3];
/// More than the number of CPUs: a counter that is preempted in the middle of a packet is the difficult case.
const COUNTERS: usize = 4;
const WATCH: Duration = Duration::from_secs(4);

/// Two votes are a majority of three members but not of five. A packet of the old epoch must never be counted by the
/// new epoch's rule, regardless of when the change happens.
#[test]
fn votes_are_counted_by_the_members_of_their_epoch() {
    let geometry = Geometry {
        partitions: COUNTERS,
        ring_slots: 64,
    };
    let roles = Roles {
        quorum: true,
        ..Roles::default()
    };
    let switch = SoftSwitch::new(9, roles, geometry);
    let quorum = &switch.registers().quorum;
    let stop = AtomicBool::new(false);
    let decided = thread::scope(|scope| {
        let counters: Vec<_> = (0..COUNTERS)
            .map(|partition| {
                let (switch, stop) = (&switch, &stop);
                scope.spawn(move || count_two_votes(switch, partition as u16, stop))
            })
            .collect();
        let started = Instant::now();
        while started.elapsed() < WATCH && !stop.load(Ordering::Relaxed) {
            quorum.configure(OLD_EPOCH, &OLD_MEMBERS);
            quorum.configure(OLD_EPOCH + 1, &NEW_MEMBERS);
        }
        stop.store(true, Ordering::Relaxed);
        let ends = counters.into_iter().map(|c| c.join().expect("it ends"));
        ends.sum::<u64>()
    });
    let reached = switch.counters().get("quorum_counted").copied();
    assert!(reached.unwrap_or(0) > 1_000, "hardly anything was counted");
    assert_eq!(decided, 0, "two of five decided");
}

/// Counts votes of the old epoch from two members, instance after instance. Returns how many were decided.
fn count_two_votes(switch: &SoftSwitch, partition: u16, stop: &AtomicBool) -> u64 {
    let mut buffer = [0u8; PACKET_LEN_MAX_BYTES];
    let mut packet = Vec::new();
    let mut decided = 0;
    for instance in 1.. {
        for node in [1, 2] {
            let mut header = Header::new(Type::Phase2B, node, OLD_EPOCH as u32);
            header.partition = partition;
            header.instance = instance;
            header.round = 1;
            header.digest = digest(b"");
            packet.clear();
            emit(&header, b"", &mut packet);
            buffer[..packet.len()].copy_from_slice(&packet);
            let (verdict, _, _) = switch.handle(&mut buffer, packet.len());
            decided += u64::from(verdict == Verdict::Deliver);
        }
        if decided > 0 || stop.load(Ordering::Relaxed) {
            stop.store(true, Ordering::Relaxed);
            return decided;
        }
    }
    decided
}
