//! Delivery of decided values through the ring buffer: none is lost or duplicated, and a waiting consumer is woken.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{self, Prng, EPOCH, HERE, NODE, THERE};
use inband_ground::xdp::rig::udp_frame;
use inband_paxos::dataplane::soft::{Geometry, Roles};
use inband_paxos::dataplane::wire::{digest, emit, parse, Header, Type};
use inband_paxos::dataplane::xdp::rig::Rig;
use nix::poll::{poll, PollFd, PollFlags, PollTimeout};

const TIME: Duration = Duration::from_secs(3);
/// A wait that lasts this long although there is something to read was never woken.
const WAKE_WITHIN_MS: u16 = 2_000;

fn vote(instance: u64) -> Vec<u8> {
    let value = vec![instance as u8; (instance % 700) as usize];
    let mut header = Header::new(Type::Phase2B, 3, EPOCH);
    (header.instance, header.round, header.digest) = (instance, 1, digest(&value));
    let mut packet = Vec::new();
    emit(&header, &value, &mut packet);
    common::tag(&mut packet);
    packet
}

#[test]
fn a_host_that_polls_and_sleeps_by_turns_misses_nothing() {
    if !common::may_load_bpf() {
        return;
    }
    let roles = Roles {
        leader: false,
        acceptor: false,
        quorum: true,
    };
    let geometry = Geometry {
        partitions: 1,
        ring_slots: 64,
    };
    let rig = Rig::load(NODE, HERE, roles, geometry, None).unwrap();
    rig.registers().quorum.configure(u64::from(EPOCH), &[3]);
    let fd = rig.decided_fd().unwrap();
    let (sent, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let (mut next, mut waits) = (1, 0u64);
    thread::scope(|scope| {
        let _stop_if_we_panic = StopOnDrop(&stop);
        scope.spawn(|| {
            let mut prng = Prng(1);
            for instance in 1.. {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                rig.run(&udp_frame(THERE, HERE, &vote(instance)), 1)
                    .unwrap();
                sent.store(instance, Ordering::SeqCst);
                // Let the host fall asleep sometimes, and sometimes hit it while it is falling asleep.
                for _ in 0..prng.below(3000) {
                    std::hint::spin_loop();
                }
            }
        });
        let mut take = || {
            rig.decided(|packet| {
                let (header, value) = parse(packet).unwrap();
                assert_eq!((header.instance, header.digest), (next, digest(value)));
                next += 1;
            })
        };
        let start = Instant::now();
        while start.elapsed() < TIME {
            rig.set_polling(true);
            for _ in 0..20 {
                take();
            }
            rig.set_polling(false);
            if take() > 0 {
                continue;
            }
            let mut wait = [PollFd::new(fd.as_fd(), PollFlags::POLLIN)];
            let ready = poll(&mut wait, PollTimeout::from(WAKE_WITHIN_MS)).unwrap();
            assert_eq!(ready, 1, "it sleeps forever");
            waits += 1;
        }
        stop.store(true, Ordering::Relaxed);
    });
    rig.decided(|_| next += 1);
    eprintln!("{} values, {waits} waits", next - 1);
    assert_eq!(next - 1, sent.into_inner());
    assert!(waits > 0);
}

/// Stops the sender even if an assertion fails; otherwise the test would wait for it forever.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
