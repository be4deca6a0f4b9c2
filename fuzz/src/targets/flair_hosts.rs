//! FLAIR's host side: three replicas, two switches and a client. The fuzzer controls their packets and messages, and
//! forges others. Nothing panics; and without forgeries, at most one switch serves, replicas that have applied the same
//! hold the same, and nothing is read that was never written.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddrV4};

use inband_flair::client::{self, Client, Op, Outcome};
use inband_flair::dataplane::wire::{self, Header};
use inband_flair::dataplane::{FlairGeometry, FlairSwitch, Verdict};
use inband_flair::reads::Reads;
use inband_flair::replica::{self, Config, Message, Replica};
use inband_flair::timing::{ClientTiming, Nanos, Timing, MS, TUNING};
use inband_paxos::dataplane::wire::PACKET_LEN_MAX_BYTES;

use crate::input::Input;

const REPLICAS: u8 = 3;
const SWITCHES: u8 = 2;
const GROUPS: usize = 2;
const UNDER_WAY_MAX: usize = 128;
/// Maximum deliveries per step: packets in flight may lead to more, but a step must end.
const DELIVERIES_MAX: usize = 200;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Host {
    Replica(u8),
    Switch(u8),
    Client,
}

#[derive(Debug, Clone)]
enum Thing {
    Packet(Vec<u8>),
    Message(Box<Message>),
}

#[derive(Debug, Clone)]
struct Passing {
    from: Host,
    to: Host,
    thing: Thing,
}

struct World {
    now: Nanos,
    replicas: Vec<Replica>,
    switches: Vec<FlairSwitch>,
    client: Client,
    under_way: Vec<Passing>,
    starts: u64,
    values: u64,
    has_lies: bool,
}

/// First byte: what is possible. Then steps.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let may_lie = input.byte() % 2 == 1;
    let mut world = World::new();
    while !input.is_empty() {
        world.step(&mut input, may_lie);
        world.judge();
    }
}

fn replica(number: u8, founder: bool, random: u64, now: Nanos) -> Replica {
    let config = Config {
        replica: number,
        replicas: REPLICAS,
        node: u16::from(number) + 1,
        set: 0,
        sets: 1,
        switches: SWITCHES,
        groups: GROUPS,
        founder,
        leader_avoidance: false,
        load_awareness: false,
        reads: Reads::Flair,
        timing: Timing::default(),
        tuning: TUNING,
    };
    // The lowest byte names the node.
    Replica::new(config, random << 8, now).expect("it starts")
}

fn switch(number: u8, incarnation: u64) -> FlairSwitch {
    let geometry = FlairGeometry {
        sets: 1,
        groups: GROUPS,
    };
    FlairSwitch::new(100 + number, geometry, incarnation)
}

fn address(host: Host) -> SocketAddrV4 {
    let last = match host {
        Host::Replica(number) => 10 + number,
        Host::Switch(number) => 20 + number,
        Host::Client => 30,
    };
    SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, last), 7400)
}

impl World {
    fn new() -> World {
        let now = 1_000 * MS;
        let config = client::Config {
            set: 0,
            switches: SWITCHES,
            nonce: 77,
            reads: Reads::Flair,
            timing: ClientTiming::default(),
        };
        World {
            now,
            replicas: (0..REPLICAS).map(|n| replica(n, n == 0, 5, now)).collect(),
            switches: (0..SWITCHES)
                .map(|n| switch(n, 1000 + u64::from(n)))
                .collect(),
            client: Client::new(config),
            under_way: Vec::new(),
            starts: 2000,
            values: 0,
            has_lies: false,
        }
    }

    fn step(&mut self, input: &mut Input<'_>, may_lie: bool) {
        match input.byte() % 16 {
            0..=3 => {
                if let Some(passing) = self.take(input) {
                    self.arrive(passing);
                }
            }
            // Time passes, and nothing is lost.
            4..=7 => {
                for _ in 0..input.below(32) {
                    self.tick(MS);
                    self.deliver_all();
                }
            }
            8 => {
                let ms = input.below(512) as Nanos;
                self.tick(ms * MS);
            }
            9 => drop(self.take(input)),
            10 => {
                if let Some(passing) = self.take(input) {
                    self.under_way.push(passing.clone());
                    self.arrive(passing);
                }
            }
            11 | 12 => self.submit(input),
            13 => self.restart(input),
            _ if may_lie => self.lie(input),
            _ => self.deliver_all(),
        }
    }

    fn take(&mut self, input: &mut Input<'_>) -> Option<Passing> {
        let count = self.under_way.len();
        let which = input.below(256);
        (count > 0).then(|| self.under_way.remove(which % count))
    }

    fn deliver_all(&mut self) {
        for _ in 0..DELIVERIES_MAX {
            if self.under_way.is_empty() {
                return;
            }
            let passing = self.under_way.remove(0);
            self.arrive(passing);
        }
    }

    fn send(&mut self, from: Host, to: Host, thing: Thing) {
        if self.under_way.len() < UNDER_WAY_MAX {
            self.under_way.push(Passing { from, to, thing });
        }
    }

    fn tick(&mut self, passes: Nanos) {
        self.now += passes;
        for number in 0..REPLICAS {
            self.at_replica(number, |replica, now, out| {
                if now >= replica.due() {
                    replica.tick(now, out);
                }
            });
        }
        self.at_client(|client, now, out| client.tick(now, out));
    }

    fn arrive(&mut self, passing: Passing) {
        let Passing { from, to, thing } = passing;
        match (from, to, thing) {
            (Host::Switch(from), Host::Replica(to), Thing::Packet(bytes)) => {
                self.at_replica(to, |replica, now, out| {
                    replica.on_packet(now, from, &bytes, out);
                });
            }
            (Host::Replica(from), Host::Replica(to), Thing::Message(message)) => {
                self.at_replica(to, |replica, now, _| {
                    replica.on_message(now, from, *message)
                });
            }
            (_, Host::Switch(number), Thing::Packet(bytes)) => {
                self.at_switch(from, number, &bytes);
            }
            (_, Host::Client, Thing::Packet(bytes)) => {
                self.at_client(|client, now, out| client.on_packet(now, &bytes, out));
            }
            // Not sent between these hosts.
            _ => {}
        }
    }

    fn at_replica(
        &mut self,
        number: u8,
        event: impl FnOnce(&mut Replica, Nanos, &mut replica::Out),
    ) {
        let mut out = replica::Out::default();
        let replica = &mut self.replicas[usize::from(number)];
        event(replica, self.now, &mut out);
        replica
            .advance(self.now, &mut out)
            .expect("a log in memory");
        let own = Host::Replica(number);
        for (switch, packet) in out.packets.iter() {
            self.send(own, Host::Switch(switch), Thing::Packet(packet.to_vec()));
        }
        for (to, message) in out.messages.drain(..) {
            self.send(own, Host::Replica(to), Thing::Message(Box::new(message)));
        }
    }

    fn at_switch(&mut self, from: Host, number: u8, bytes: &[u8]) {
        let mut buffer = [0; PACKET_LEN_MAX_BYTES];
        buffer[..bytes.len()].copy_from_slice(bytes);
        let switch = &self.switches[usize::from(number)];
        let random = self.now / MS;
        let (verdict, _, len_bytes) =
            switch.handle(&mut buffer, bytes.len(), address(from), self.now, random);
        let to = match verdict {
            Verdict::Drop | Verdict::Pass => return,
            Verdict::Reply => from,
            Verdict::ToReplica { replica, .. } if replica < usize::from(REPLICAS) => {
                Host::Replica(replica as u8)
            }
            Verdict::ToReplica { .. } => return,
            Verdict::ToClient(_) => Host::Client,
        };
        let packet = Thing::Packet(buffer[..len_bytes].to_vec());
        self.send(Host::Switch(number), to, packet);
    }

    fn at_client(&mut self, event: impl FnOnce(&mut Client, Nanos, &mut client::Out)) {
        let mut out = client::Out::default();
        event(&mut self.client, self.now, &mut out);
        for (switch, packet) in out.packets.iter() {
            let packet = Thing::Packet(packet.to_vec());
            self.send(Host::Client, Host::Switch(switch), packet);
        }
        for (_, outcome) in out.outcomes {
            if let Outcome::Value(Some(value)) = outcome {
                let is_written = value.len() == 8
                    && value
                        .try_into()
                        .is_ok_and(|v| (1..=self.values).contains(&u64::from_be_bytes(v)));
                assert!(self.has_lies || is_written, "a value of nobody's");
            }
        }
    }

    fn submit(&mut self, input: &mut Input<'_>) {
        let key = vec![input.byte() % 4 + 1];
        self.values += 1;
        let op = match input.byte() % 4 {
            0 => Op::Delete(key),
            1 => Op::Put(key, self.values.to_be_bytes().to_vec()),
            _ => Op::Get(key),
        };
        // Refused if there are too many at a time.
        self.at_client(|client, now, out| {
            let _ = client.submit(now, op, out);
        });
    }

    /// A switch loses its state; a replica does too if the others can do without it.
    fn restart(&mut self, input: &mut Input<'_>) {
        self.starts += 1;
        let which = input.byte();
        if which % 2 == 0 {
            let number = which / 2 % SWITCHES;
            self.switches[usize::from(number)] = switch(number, self.starts);
            return;
        }
        let ids: BTreeSet<u64> = self.replicas.iter().map(|r| r.raft_ids().0).collect();
        let voters = |r: &Replica| r.raft_ids().1.into_iter().collect::<BTreeSet<u64>>();
        if self.replicas.iter().all(|r| voters(r) == ids) {
            let number = which / 2 % REPLICAS;
            self.replicas[usize::from(number)] = replica(number, false, self.starts, self.now);
        }
    }

    /// A forged packet: a changed real one, or an arbitrary one.
    fn lie(&mut self, input: &mut Input<'_>) {
        self.has_lies = true;
        let host = |byte: u8| match byte % 6 {
            n @ 0..=2 => Host::Replica(n),
            5 => Host::Client,
            n => Host::Switch(n - 3),
        };
        let (from, to) = (host(input.byte()), host(input.byte()));
        let known = self.take(input);
        let (mut header, key, data) = match &known {
            Some(Passing {
                thing: Thing::Packet(bytes),
                ..
            }) => match wire::parse(bytes) {
                Ok((header, key, data)) => (header, key.to_vec(), data.to_vec()),
                Err(_) => return,
            },
            _ => {
                let len_bytes = input.below(256);
                let message = postcard::from_bytes(input.piece(len_bytes));
                if let Ok(message) = message {
                    let message = Thing::Message(Box::new(message));
                    self.send(from, to, message);
                }
                return;
            }
        };
        for _ in 0..input.below(4) {
            distort(&mut header, input);
        }
        let mut bytes = Vec::new();
        wire::emit(&header, &key, &data, &mut bytes);
        self.send(from, to, Thing::Packet(bytes));
    }

    fn judge(&self) {
        if self.has_lies {
            return;
        }
        let serves = |switch: &&FlairSwitch| {
            let session = switch.registers().sessions.session(0);
            session.expect("nothing stays taken").is_active(self.now)
        };
        let serving = self.switches.iter().filter(serves).count();
        assert!(serving <= 1, "{serving} switches serve");
        for pair in self.replicas.windows(2) {
            let is_same =
                pair[0].applied() != pair[1].applied() || pair[0].store() == pair[1].store();
            assert!(is_same, "replicas differ at {}", pair[0].applied());
        }
    }
}

fn distort(header: &mut Header, input: &mut Input<'_>) {
    let what = input.byte();
    let number = input.number();
    match what % 10 {
        0 => header.session = number,
        1 => header.seq = number,
        2 => header.log_index = number,
        3 => header.term = number as u32,
        4 => header.client_seq = number,
        5 => header.client_id = number,
        6 => header.window = number as u16,
        7 => header.flags = number as u16,
        8 => header.followers = number as u8,
        _ => header.replica = number as u8,
    }
}
