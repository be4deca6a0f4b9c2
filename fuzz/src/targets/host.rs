//! Three whole hosts. The fuzzer controls their packets: it delivers, loses, repeats and damages them, forges others,
//! lets time pass and submits values. No host may panic; and without forgeries, no two deliver different values.

use std::collections::HashMap;

use inband_ground::auth::Digest;
use inband_paxos::dataplane::soft::{Geometry, Roles};
use inband_paxos::dataplane::wire::{digest, emit, Header, Type, PACKET_LEN_MAX_BYTES};
use inband_paxos::host::{spread_leaders, EpochConfig, Host, HostConfig, LogStart};
use inband_paxos::log::Burst;
use inband_paxos::outbox::{Dest, Outbox};
use inband_paxos::timing::{Micros, Timing};

use crate::input::Input;

const NODES: [u8; 3] = [1, 2, 3];
const PARTITIONS: usize = 2;
const GEOMETRY: Geometry = Geometry {
    partitions: PARTITIONS,
    ring_slots: 64,
};
const LOG_VALUES_MAX: usize = 128;
/// Maximum packets in flight; further ones are lost.
const UNDER_WAY_MAX: usize = 256;
const EPOCH: u32 = 1;

struct Packet {
    from: u8,
    to: u8,
    bytes: Vec<u8>,
}

struct Cluster {
    hosts: Vec<Host>,
    now: Micros,
    under_way: Vec<Packet>,
    epoch: u32,
    /// Digest of what was delivered, by partition and instance.
    delivered: HashMap<(usize, u64), (u64, u64, u64)>,
    /// Some packet was not what its sender sent.
    has_lies: bool,
}

/// First byte: what is possible. Then steps.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let may_lie = input.byte() % 2 == 1;
    let mut cluster = Cluster::new();
    while !input.is_empty() {
        cluster.step(&mut input, may_lie);
    }
}

fn config(node: u8) -> HostConfig {
    let start = LogStart {
        first_instance: 1,
        applied: 0,
    };
    HostConfig {
        node,
        epoch: EPOCH,
        logs: vec![start; PARTITIONS],
        acceptors: NODES.to_vec(),
        replicas: NODES.to_vec(),
        leaders: spread_leaders(&NODES, PARTITIONS),
        soft_roles: Roles {
            leader: true,
            acceptor: true,
            quorum: true,
        },
        kernel_roles: Roles::default(),
        geometry: GEOMETRY,
        timing: Timing::default(),
        log_values_max: LOG_VALUES_MAX,
        incarnation: 1,
        digest: Digest::PLAIN,
        voting: true,
        packet_len_max_bytes: PACKET_LEN_MAX_BYTES,
    }
}

impl Cluster {
    fn new() -> Cluster {
        Cluster {
            hosts: NODES
                .iter()
                .map(|node| Host::new(1, config(*node)))
                .collect(),
            now: 1,
            under_way: Vec::new(),
            epoch: EPOCH,
            delivered: HashMap::new(),
            has_lies: false,
        }
    }

    fn step(&mut self, input: &mut Input<'_>, may_lie: bool) {
        let at = input.below(NODES.len());
        let partition = input.below(PARTITIONS);
        match input.byte() % 16 {
            0..=4 => self.deliver(input, true),
            5 => self.deliver(input, false),
            6 => self.lose(input),
            7 => self.deliver_all(),
            8 | 9 => {
                self.now +=
                    [1, 100, 3_000, 10_000, 30_000, 110_000, 250_000, 6_000_000][input.below(8)];
                self.tick_all();
            }
            10 => {
                let (len_bytes, byte) = (input.below(1500), input.byte());
                let value = vec![byte; len_bytes];
                // Refused if it is too long, or if there are too many.
                self.with(at, |host, now, out| {
                    let _ = host.submit(now, partition, &value, out);
                });
            }
            11 => self.with(at, |host, now, _| {
                let _ = host.confirm_read(now, partition);
            }),
            12 => {
                let instance = input.number();
                self.with(at, |host, now, out| {
                    let _ = host.recover(now, partition, instance, b"", out, &mut |_, _| ());
                });
            }
            13 if may_lie => self.lie(input, partition),
            14 if may_lie => self.damage(input),
            15 => self.reconfigure(input),
            _ => self.tick_all(),
        }
    }

    fn with(&mut self, at: usize, act: impl FnOnce(&mut Host, Micros, &mut Outbox)) {
        self.handle(at, None, act);
    }

    /// Runs `act` on a host, with the packet's `sender` if there is one, and takes the packets that it sends.
    fn handle(
        &mut self,
        at: usize,
        sender: Option<u8>,
        act: impl FnOnce(&mut Host, Micros, &mut Outbox),
    ) {
        let mut out = Outbox::new();
        act(&mut self.hosts[at], self.now, &mut out);
        for (dest, bytes) in out.iter() {
            let to = match dest {
                Dest::Node(node) => Some(node),
                Dest::Sender => sender,
                _ => unreachable!("a host names nodes"),
            };
            let known = to.filter(|to| NODES.contains(to));
            if let Some(to) = known.filter(|_| self.under_way.len() < UNDER_WAY_MAX) {
                self.under_way.push(Packet {
                    from: NODES[at],
                    to,
                    bytes: bytes.to_vec(),
                });
            }
        }
        self.take_decided(at);
    }

    fn take_decided(&mut self, at: usize) {
        let mut bursts = Burst::for_logs(PARTITIONS);
        self.hosts[at].take_bursts(&mut bursts);
        for (partition, burst) in bursts.iter().enumerate() {
            for decided in burst.decided() {
                let origin = decided.origin;
                let said = (origin.client_id, origin.client_seq, digest(decided.value));
                let place = (partition, decided.instance);
                let before = *self.delivered.entry(place).or_insert(said);
                assert!(self.has_lies || before == said, "two values at {place:?}");
                self.hosts[at].applied(partition, decided.instance);
            }
            if burst.checkpoint_needed {
                let applied = self.delivered.keys().filter(|(of, _)| *of == partition);
                let applied = applied.map(|(_, instance)| *instance).max().unwrap_or(0);
                self.hosts[at].reset(partition, applied);
            }
        }
    }

    fn deliver_one(&mut self, packet: &Packet) {
        let at = NODES
            .iter()
            .position(|node| *node == packet.to)
            .expect("a host");
        self.handle(at, Some(packet.from), |host, now, out| {
            host.on_packet(now, &packet.bytes, out);
        });
    }

    fn deliver(&mut self, input: &mut Input<'_>, once: bool) {
        if self.under_way.is_empty() {
            return;
        }
        let which = input.below(256) % self.under_way.len();
        let packet = self.under_way.remove(which);
        self.deliver_one(&packet);
        if !once && self.under_way.len() < UNDER_WAY_MAX {
            self.under_way.push(packet);
        }
    }

    fn deliver_all(&mut self) {
        for packet in std::mem::take(&mut self.under_way) {
            self.deliver_one(&packet);
        }
    }

    fn lose(&mut self, input: &mut Input<'_>) {
        let count = input.below(256);
        self.under_way.truncate(count);
    }

    fn tick_all(&mut self) {
        for at in 0..self.hosts.len() {
            self.with(at, |host, now, out| host.on_tick(now, out));
        }
    }

    /// A later epoch with the same members: acceptors are sealed and opened, then all hosts enter.
    fn reconfigure(&mut self, input: &mut Input<'_>) {
        // A real reconfiguration installs merged votes. Here all acceptors are sealed at the same moment, so whatever a
        // majority has voted for stays voted without that.
        self.epoch += 1;
        let mut leaders = NODES.to_vec();
        leaders.rotate_left(input.below(NODES.len()));
        let entered = EpochConfig {
            epoch: self.epoch,
            acceptors: NODES.to_vec(),
            replicas: NODES.to_vec(),
            leaders: spread_leaders(&leaders, PARTITIONS),
        };
        for host in &self.hosts {
            let acceptor = &host.switch().expect("soft roles").registers().acceptor;
            for partition in 0..PARTITIONS {
                acceptor.seal(partition, u64::from(self.epoch));
                acceptor.open(partition);
            }
        }
        for at in 0..self.hosts.len() {
            self.with(at, |host, now, out| host.enter_epoch(now, &entered, out));
        }
    }

    /// A forged packet.
    fn lie(&mut self, input: &mut Input<'_>, partition: usize) {
        self.has_lies = true;
        let kind = Type::ALL[input.below(Type::ALL.len())];
        let mut header = Header::new(kind, u16::from(input.byte() % 5), self.epoch);
        header.partition = partition as u16;
        header.flags = u16::from_be_bytes([input.byte(), input.byte()]);
        header.instance = input.number();
        header.floor = input.number();
        header.round = input.number();
        header.vround = input.number();
        header.client_id = input.number();
        header.client_seq = input.number();
        header.client_low = input.number();
        let len_bytes = input.below(1377);
        let value = match input.byte() % 2 {
            0 => input.piece(len_bytes).to_vec(),
            _ => vec![7; len_bytes],
        };
        header.digest = digest(&value);
        let mut bytes = Vec::new();
        emit(&header, &value, &mut bytes);
        let (from, to) = (NODES[input.below(3)], NODES[input.below(3)]);
        self.deliver_one(&Packet { from, to, bytes });
    }

    fn damage(&mut self, input: &mut Input<'_>) {
        let (which, at, mask) = (input.byte(), input.below(1024), input.byte());
        if let Some(packet) = self.under_way.get_mut(usize::from(which)) {
            self.has_lies = true;
            let at = at % packet.bytes.len();
            packet.bytes[at] ^= mask;
            if mask == 0 {
                packet.bytes.truncate(at.max(1));
            }
            assert!(packet.bytes.len() <= PACKET_LEN_MAX_BYTES);
        }
    }
}
