//! Recovery where answers are slow.
#![allow(missing_docs)]

use std::collections::BTreeMap;

use inband_netpaxos::control::{Control, To};
use inband_netpaxos::learner::{self, Learner};
use inband_netpaxos::quorum::{Generations, Sizes};
use inband_netpaxos::storage::{self, Storage};
use inband_netpaxos::wire::node;

const MS: u64 = 1_000_000;
const SIZES: Sizes = Sizes { failures: 1 };
const LEARNERS: u8 = 3;
const NETWORK_NS: u64 = MS / 10;
/// Instances in which nobody has voted.
const INSTANCES: u64 = 100;

/// Learners and storage servers, and the packets between them.
struct World {
    now: u64,
    learners: Vec<Learner>,
    storages: Vec<Storage>,
    /// By time of arrival and number.
    packets: BTreeMap<(u64, u64), (u8, Vec<u8>)>,
    number: u64,
    sent: u64,
    /// How long a storage server takes to make its records durable. In that time it handles no packets.
    disk_ns: u64,
    /// By storage server: when it began with the packets that had arrived together, and when they are durable.
    batches: Vec<(u64, u64)>,
}

impl World {
    fn new(disk_ns: u64) -> World {
        let learners = (1..=LEARNERS).map(|number| {
            Learner::new(learner::Config {
                number,
                sizes: SIZES,
                nonce: 1,
                incarnation: 1,
            })
        });
        let storages = (1..=SIZES.minions()).map(|minion| {
            Storage::new(storage::Config {
                minion,
                sizes: SIZES,
                learners: LEARNERS,
                window: storage::WINDOW,
            })
        });
        World {
            now: 1,
            learners: learners.collect(),
            storages: storages.collect(),
            packets: BTreeMap::new(),
            number: 0,
            sent: 0,
            disk_ns,
            batches: vec![(0, 0); usize::from(SIZES.minions())],
        }
    }

    fn send(&mut self, from: u8, delay_ns: u64, packets: Vec<(To, Vec<u8>)>) {
        for (to, packet) in packets {
            let group: Vec<u8> = match to {
                To::Storages => (1..=SIZES.minions()).map(node::storage).collect(),
                To::Learners => (1..=LEARNERS).map(node::learner).collect(),
                To::Node(id) => vec![id],
                To::Proposer(_) => Vec::new(),
            };
            for id in group.into_iter().filter(|id| *id != from) {
                self.sent += 1;
                self.arrive(self.now + delay_ns, id, packet.clone());
            }
        }
    }

    fn arrive(&mut self, at: u64, id: u8, packet: Vec<u8>) {
        self.number += 1;
        self.packets.insert((at, self.number), (id, packet));
    }

    fn with_learner(&mut self, at: usize, act: impl FnOnce(&mut Learner, u64, &mut learner::Out)) {
        let mut out = learner::Out::default();
        act(&mut self.learners[at], self.now, &mut out);
        self.send(node::learner(at as u8 + 1), NETWORK_NS, out.packets);
    }

    fn deliver(&mut self, id: u8, packet: &[u8]) {
        let (from, control) = Control::of(packet).expect("a control packet");
        if let Some(number) = node::as_learner(id, LEARNERS) {
            return self.with_learner(usize::from(number) - 1, |learner, now, out| {
                learner.on_control(now, from, control, out);
                learner.tick(now, out);
            });
        }
        let minion = node::as_storage(id, SIZES.minions()).expect("a storage server");
        let at = usize::from(minion) - 1;
        let (began, durable) = self.batches[at];
        if self.now < durable && self.now != began {
            return self.arrive(durable, id, packet.to_vec());
        }
        let mut out = storage::Out::default();
        self.storages[at].on_control(self.now, from, control, &mut out);
        self.storages[at].tick(self.now, &mut out);
        if !out.records.is_empty() {
            self.batches[at] = (self.now, self.now + self.disk_ns);
        }
        let wait_ns = self.batches[at].1.saturating_sub(self.now);
        self.send(id, NETWORK_NS + wait_ns, out.packets);
    }

    /// Runs until this time, or until all learners have delivered everything.
    fn run(&mut self, until: u64) {
        while self.now < until && self.learners.iter().any(|l| l.position() < INSTANCES) {
            let due = self.learners.iter().map(Learner::due).min().expect("some");
            let arrival = self.packets.first_key_value().map(|(at, _)| at.0);
            if let Some((_, (id, packet))) = arrival
                .filter(|at| *at <= due)
                .and_then(|_| self.packets.pop_first())
            {
                self.now = self.now.max(arrival.expect("as above"));
                self.deliver(id, &packet);
                continue;
            }
            self.now = due.max(self.now + 1);
            for at in 0..self.learners.len() {
                self.with_learner(at, |learner, now, out| learner.tick(now, out));
            }
        }
    }
}

/// Otherwise each learner's round ends the others' before it is decided, and what is sent again in the meantime makes
/// slow storage servers slower.
#[test]
fn recovery_ends_and_sends_little_however_slow_storage_is() {
    for disk_ms in [0, 1, 20, 100, 300] {
        let mut world = World::new(disk_ms * MS);
        for at in 0..world.learners.len() {
            world.with_learner(at, |learner, now, out| {
                let in_use = Control::Position {
                    highest: INSTANCES,
                    generations: Generations::default(),
                    question: None,
                };
                learner.on_control(now, node::storage(1), in_use, out);
            });
        }
        world.run(60_000 * MS);
        let positions: Vec<u64> = world.learners.iter().map(Learner::position).collect();
        let per_instance = world.sent / INSTANCES;
        println!(
            "disk {disk_ms} ms: {positions:?} after {} ms, {per_instance} packets per instance",
            world.now / MS
        );
        assert_eq!(
            positions, [INSTANCES; LEARNERS as usize],
            "disk {disk_ms} ms"
        );
        assert!(
            world.now < 20_000 * MS,
            "disk {disk_ms} ms: {} ms",
            world.now / MS
        );
        assert!(
            per_instance < 600,
            "disk {disk_ms} ms: {per_instance} packets"
        );
    }
}
