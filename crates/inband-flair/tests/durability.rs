//! Replicas with logs on simulated disks. All lose power repeatedly in the middle of writes; acknowledged writes must
//! survive.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddrV4};

use inband_flair::client::{self, Client, Op, Outcome, Ticket};
use inband_flair::dataplane::{FlairGeometry, FlairSwitch, Verdict};
use inband_flair::packets::Packets;
use inband_flair::reads::Reads;
use inband_flair::replica::{self, Replica};
use inband_flair::timing::{ClientTiming, Timing, MS, TUNING};
use inband_ground::wire::PACKET_LEN_MAX_BYTES;
use inband_raft::Tuning;
use inband_storage::{Cut, SimulatedDisk};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

const REPLICAS: usize = 3;
const KEYS: u64 = 12;
const GEOMETRY: FlairGeometry = FlairGeometry {
    sets: 1,
    groups: 16,
};
const STEP_NS: u64 = MS;
/// Short logs, so that they are compacted often.
const SHORT: Tuning = Tuning {
    compact_entries: 24,
    // Many slices per compaction, so that power is cut between any two of them.
    slice_bytes: 16,
    keep_entries: 8,
    ..TUNING
};
const CLIENT: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 9), 9);

fn address(replica: usize) -> SocketAddrV4 {
    SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 1), replica as u16 + 1)
}

/// A write that was submitted.
struct Write {
    key: u64,
    value: u64,
}

struct World {
    now: u64,
    random: SmallRng,
    disks: Vec<SimulatedDisk>,
    /// `None` after its disk failed.
    replicas: Vec<Option<Replica>>,
    switch: FlairSwitch,
    client: Client,
    writes: BTreeMap<Ticket, Write>,
    reads: BTreeMap<Ticket, u64>,
    /// For each key, the last acknowledged value, and the values that may have overwritten it.
    acknowledged: BTreeMap<u64, u64>,
    possible: BTreeMap<u64, Vec<u64>>,
    value: u64,
    answers: u64,
}

impl World {
    fn new(seed: u64) -> World {
        let mut random = SmallRng::seed_from_u64(seed);
        let client = Client::new(client::Config {
            reads: Reads::Flair,
            set: 0,
            switches: 1,
            nonce: random.random(),
            timing: ClientTiming::default(),
        });
        World {
            now: 0,
            disks: vec![(); REPLICAS]
                .into_iter()
                .map(|()| SimulatedDisk::new())
                .collect(),
            replicas: Vec::new(),
            switch: FlairSwitch::new(101, GEOMETRY, random.random()),
            client,
            random,
            writes: BTreeMap::new(),
            reads: BTreeMap::new(),
            acknowledged: BTreeMap::new(),
            possible: BTreeMap::new(),
            value: 0,
            answers: 0,
        }
    }

    /// Starts all hosts; the switch starts without a session.
    fn start(&mut self) {
        self.switch = FlairSwitch::new(101, GEOMETRY, self.random.random());
        self.replicas.clear();
        for number in 0..REPLICAS {
            let config = replica::Config {
                reads: Reads::Flair,
                replica: number as u8,
                replicas: REPLICAS as u8,
                node: number as u16 + 1,
                set: 0,
                sets: 1,
                switches: 1,
                groups: GEOMETRY.groups,
                founder: number == 0,
                leader_avoidance: false,
                load_awareness: false,
                timing: Timing::default(),
                tuning: SHORT,
            };
            let storage = Box::new(self.disks[number].clone());
            let replica = Replica::open(config, storage, self.random.random(), self.now);
            self.replicas
                .push(Some(replica.expect("a torn tail is no damage")));
        }
    }

    fn cut_power(&mut self) {
        self.replicas.clear();
        for disk in &self.disks {
            let cut = match self.random.random_range(0..3) {
                0 => Cut::Unsynced,
                1 => Cut::Torn,
                _ => Cut::Scattered,
            };
            let random = &mut self.random;
            disk.power_cut(cut, &mut |bound| random.random_range(0..bound));
        }
    }

    /// Makes each disk lose power during one of its next operations.
    fn arm(&mut self) {
        for disk in &self.disks {
            let soon = self.random.random_range(1..600);
            disk.power_off_at(disk.operations() + soon);
        }
    }

    fn through_switch(&mut self, packets: &Packets, from: SocketAddrV4, out: &mut client::Out) {
        for (_, packet) in packets.iter() {
            let mut buffer = [0; PACKET_LEN_MAX_BYTES];
            buffer[..packet.len()].copy_from_slice(packet);
            let random = self.random.random();
            let (verdict, _, len_bytes) =
                self.switch
                    .handle(&mut buffer, packet.len(), from, self.now, random);
            let packet = &buffer[..len_bytes];
            let to = match verdict {
                Verdict::Drop | Verdict::Pass => continue,
                Verdict::Reply if from == CLIENT => None,
                Verdict::ToClient(_) => None,
                Verdict::Reply => (0..REPLICAS).find(|r| address(*r) == from),
                Verdict::ToReplica { replica, .. } => Some(replica),
            };
            match to {
                None => self.client.on_packet(self.now, packet, out),
                Some(replica) => self.at_replica(replica, out, &mut |replica, now, out| {
                    replica.on_packet(now, 0, packet, out);
                }),
            }
        }
    }

    fn at_replica(
        &mut self,
        number: usize,
        client_out: &mut client::Out,
        act: &mut dyn FnMut(&mut Replica, u64, &mut replica::Out),
    ) {
        let Some(Some(replica)) = self.replicas.get_mut(number) else {
            return;
        };
        let mut out = replica::Out::default();
        act(replica, self.now, &mut out);
        if replica.advance(self.now, &mut out).is_err() {
            // Discard the output: it was not durable.
            self.replicas[number] = None;
            return;
        }
        let messages = std::mem::take(&mut out.messages);
        self.through_switch(&out.packets, address(number), client_out);
        for (to, message) in messages {
            let mut message = Some(message);
            self.at_replica(usize::from(to), client_out, &mut |replica, now, _| {
                let message = message.take().expect("it is delivered once");
                replica.on_message(now, number as u8, message);
            });
        }
    }

    fn step(&mut self) {
        self.now += STEP_NS;
        let mut out = client::Out::default();
        self.client.tick(self.now, &mut out);
        for number in 0..REPLICAS {
            self.at_replica(number, &mut out, &mut |replica, now, out| {
                if now >= replica.due() {
                    replica.tick(now, out);
                }
            });
        }
        self.settle(out);
    }

    fn settle(&mut self, mut out: client::Out) {
        while !out.packets.is_empty() {
            let packets = std::mem::take(&mut out.packets);
            self.through_switch(&packets, CLIENT, &mut out);
        }
        for (ticket, outcome) in out.outcomes {
            match self.writes.remove(&ticket) {
                Some(write) => self.on_written(&write, &outcome),
                None => self.on_read(ticket, &outcome),
            }
        }
    }

    fn on_written(&mut self, write: &Write, outcome: &Outcome) {
        if *outcome == Outcome::Written {
            self.acknowledged.insert(write.key, write.value);
            self.possible.remove(&write.key);
            self.answers += 1;
        } else {
            self.possible
                .entry(write.key)
                .or_default()
                .push(write.value);
        }
    }

    fn on_read(&mut self, ticket: Ticket, outcome: &Outcome) {
        let key = self.reads.remove(&ticket).expect("it was submitted");
        let Outcome::Value(value) = outcome else {
            return;
        };
        let value = value
            .as_ref()
            .map(|v| u64::from_be_bytes(v[..].try_into().expect("a number")));
        let last = self.acknowledged.get(&key).copied();
        let possible = self.possible.get(&key);
        let may_be = value.is_some_and(|v| possible.is_some_and(|p| p.contains(&v)));
        assert!(
            value == last || may_be,
            "key {key} has {value:?}, {last:?} was acknowledged"
        );
    }

    /// Submits one operation at a time per key: a write or a read.
    fn submit(&mut self) {
        let key = self.random.random_range(0..KEYS);
        let is_used =
            self.writes.values().any(|w| w.key == key) || self.reads.values().any(|k| *k == key);
        if is_used {
            return;
        }
        let name = key.to_be_bytes().to_vec();
        let mut out = client::Out::default();
        if self.random.random_bool(0.5) {
            let read = self.client.submit(self.now, Op::Get(name), &mut out);
            self.reads.insert(read.expect("there is room"), key);
        } else {
            self.value += 1;
            let put = Op::Put(name, self.value.to_be_bytes().to_vec());
            let write = self
                .client
                .submit(self.now, put, &mut out)
                .expect("there is room");
            let value = self.value;
            self.writes.insert(write, Write { key, value });
        }
        self.settle(out);
    }

    fn run(&mut self, steps: u64) {
        for _ in 0..steps {
            self.submit();
            self.step();
        }
    }

    /// Reads every key after all operations have ended.
    fn check_all(&mut self) {
        while !(self.writes.is_empty() && self.reads.is_empty()) {
            self.step();
        }
        for key in 0..KEYS {
            let mut out = client::Out::default();
            let get = Op::Get(key.to_be_bytes().to_vec());
            let read = self
                .client
                .submit(self.now, get, &mut out)
                .expect("there is room");
            self.reads.insert(read, key);
            self.settle(out);
        }
        let answered = self.now + 4_000 * MS;
        while !self.reads.is_empty() {
            assert!(self.now < answered, "it does not serve");
            self.step();
        }
    }
}

#[test]
fn power_cuts_of_all_take_nothing_that_was_acknowledged() {
    let seed: u64 = rand::random();
    println!("seed {seed}");
    let mut world = World::new(seed);
    world.start();
    let (mut last_answers, mut served) = (0, 0);
    for _ in 0..30 {
        world.run(500);
        served += u64::from(world.answers > last_answers);
        last_answers = world.answers;
        world.arm();
        world.run(100);
        world.cut_power();
        world.start();
    }
    assert!(served > 25, "it served after {served} of 30 power cuts");
    world.run(500);
    world.check_all();
    let applied = world.replicas.iter().flatten().map(Replica::applied).max();
    assert!(applied > Some(1000), "the logs were rewritten: {applied:?}");
}

#[test]
fn with_a_log_in_memory_a_loss_of_all_is_a_new_beginning() {
    let config = replica::Config {
        reads: Reads::Flair,
        replica: 0,
        replicas: 1,
        node: 1,
        set: 0,
        sets: 1,
        switches: 1,
        groups: GEOMETRY.groups,
        founder: true,
        leader_avoidance: false,
        load_awareness: false,
        timing: Timing::default(),
        tuning: SHORT,
    };
    let disk = SimulatedDisk::new();
    let ran = |replica: Replica| {
        let (mut replica, mut out) = (replica, replica::Out::default());
        for now in (0..1_000).map(|step| step * STEP_NS) {
            replica.tick(now, &mut out);
            replica.advance(now, &mut out).expect("it goes on");
        }
        (replica.raft_ids().0, replica.applied())
    };
    let open = || Replica::open(config, Box::new(disk.clone()), rand::random(), 0).expect("opens");
    let new = || Replica::new(config, rand::random(), 0).expect("begins");
    let (first, second) = (ran(open()), ran(open()));
    assert_eq!(first.0, second.0, "one log");
    assert!(first.1 < second.1, "{first:?} and then {second:?}");
    let (first, second) = (ran(new()), ran(new()));
    assert_ne!(first.0, second.0, "two logs");
    assert_eq!(first.1, second.1, "and both begin at the beginning");
}
