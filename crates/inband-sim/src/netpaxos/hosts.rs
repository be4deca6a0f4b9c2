//! The hosts: real roles and processes.

use std::net::{Ipv4Addr, SocketAddrV4};

use inband_ground::auth::Gate;
use inband_ground::soft::{Arrival, Soft};
use inband_ground::wire::PACKET_LEN_MAX_BYTES;
use inband_netpaxos::c::IB_NETPAXOS_TO_GROUP;
use inband_netpaxos::control::{Control, To};
use inband_netpaxos::learner::{self, Learner};
use inband_netpaxos::request::Request;
use inband_netpaxos::role::{next_incarnation, soft, Kind};
use inband_netpaxos::storage::{self, Storage};
use inband_netpaxos::wire::{intact, node, Type};
use inband_netpaxos::{NetPaxos as Roles, LOGS};

use super::{
    Host, Invariant, NetPaxos, StorageHost, CLIENTS, JOURNAL_RECORDS_MAX, LEARNERS, SERIALIZERS,
};
use crate::{Time, World};

pub(super) fn gate() -> Gate {
    Gate::of::<Roles>(None, LOGS)
}

const NOWHERE: Arrival = Arrival {
    from: SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0),
    now_ns: 0,
    random: 0,
};

fn signed(mut packet: Vec<u8>) -> Vec<u8> {
    gate().sign(&mut packet);
    packet
}

impl World<NetPaxos> {
    pub(super) fn all_hosts(&self) -> Vec<Host> {
        let minions = self.system.sizes.minions();
        let serializers = (1..=SERIALIZERS).map(Host::Serializer);
        serializers
            .chain((1..=minions).map(Host::Minion))
            .chain((1..=minions).map(Host::Storage))
            .chain((1..=LEARNERS).map(Host::Learner))
            .chain((1..=CLIENTS).map(Host::Client))
            .collect()
    }

    pub(super) fn is_up(&self, host: Host) -> bool {
        let system = &self.system;
        match host {
            Host::Serializer(n) => system.serializer[&n].is_some(),
            Host::Minion(n) => system.minion[&n].is_some(),
            Host::Storage(n) => system.storage[&n].is_some(),
            Host::Learner(n) => system.learner[&n].is_some(),
            Host::Client(_) => true,
        }
    }

    /// Returns the next incarnation of a minion. It is stored durably.
    fn incarnation(&mut self, host: Host) -> u64 {
        let last = self.system.incarnation.entry(host).or_default();
        *last = next_incarnation(*last, 0);
        *last
    }

    /// `is_new`: the cluster is started for the first time.
    pub(super) fn start(&mut self, host: Host, is_new: bool) {
        self.note(&[1, crate::trace::word_of(&host.to_string())], || {
            format!("{host} starts")
        });
        match host {
            Host::Serializer(n) => {
                let role = soft(node::serializer(n), Kind::Serializer);
                self.system.serializer.insert(n, Some(role));
            }
            Host::Minion(n) => {
                let incarnation = self.incarnation(host);
                let role = soft(node::minion(n), Kind::Minion { incarnation });
                self.system.minion.insert(n, Some(role));
            }
            Host::Storage(n) => self.start_storage(n, is_new),
            Host::Learner(n) => {
                let config = learner::Config {
                    number: n,
                    sizes: self.system.sizes,
                    nonce: self.rng.hosts.next_u64(),
                    // As if its directory was lost.
                    incarnation: 0,
                };
                self.system.starts += 1;
                self.system.start.insert(n, self.system.starts);
                let log = self.system.log.get(&n).cloned().unwrap_or_default();
                self.system.ledger.restart(n, log.len() as u64);
                let learner = Learner::restored(config, log);
                self.system.learner.insert(n, Some(learner));
            }
            Host::Client(n) => return self.start_client(n),
        }
        self.sleep(host, self.local(host));
    }

    fn start_storage(&mut self, minion: u8, is_new: bool) {
        let config = storage::Config {
            minion,
            sizes: self.system.sizes,
            learners: LEARNERS,
            window: self.system.window,
        };
        let nonce = self.rng.hosts.next_u64();
        let disk = self.system.disk.entry(minion).or_default();
        let process = match (is_new, disk.records.as_slice()) {
            (true, _) => Storage::new(config),
            (false, []) => Storage::without_memory(config, nonce),
            (false, records) => Storage::restored(config, records.iter().cloned(), nonce),
        };
        let generation = process.generation();
        let host = StorageHost {
            process,
            generation,
        };
        self.system.storage.insert(minion, Some(host));
    }

    /// Stops a host. In a world with durable storage its disk survives.
    pub(super) fn stop(&mut self, host: Host) {
        self.note(&[2, crate::trace::word_of(&host.to_string())], || {
            format!("{host} is gone")
        });
        match host {
            Host::Serializer(n) => drop(self.system.serializer.insert(n, None)),
            Host::Minion(n) => drop(self.system.minion.insert(n, None)),
            Host::Storage(n) => {
                drop(self.system.storage.insert(n, None));
                if !self.system.is_durable {
                    self.system.disk.remove(&n);
                }
            }
            Host::Learner(n) => drop(self.system.learner.insert(n, None)),
            Host::Client(_) => unreachable!("clients are replaced"),
        }
    }

    pub(super) fn at_role(&mut self, own: Host, packet: &[u8]) {
        let system = &self.system;
        let minions = system.sizes.minions();
        let (role, to): (&Option<Soft<Roles>>, Vec<Host>) = match own {
            Host::Serializer(n) => (
                &system.serializer[&n],
                (1..=minions).map(Host::Minion).collect(),
            ),
            Host::Minion(n) => {
                let learners = (1..=LEARNERS).map(Host::Learner);
                let to = [Host::Storage(n)].into_iter().chain(learners);
                (&system.minion[&n], to.collect())
            }
            _ => unreachable!("it has no role"),
        };
        let Some(role) = role else {
            return;
        };
        if packet.len() > PACKET_LEN_MAX_BYTES || !gate().admits(packet) {
            return;
        }
        let mut buffer = [0; PACKET_LEN_MAX_BYTES];
        buffer[..packet.len()].copy_from_slice(packet);
        let (result, len_bytes) = role.handle(&mut buffer, packet.len(), NOWHERE);
        if result.verdict != IB_NETPAXOS_TO_GROUP {
            return;
        }
        let packet = signed(buffer[..len_bytes].to_vec());
        for to in to {
            self.send(own, to, packet.clone());
        }
    }

    pub(super) fn at_storage(&mut self, minion: u8, packet: &[u8]) {
        let now = self.local(Host::Storage(minion));
        let Some(Some(host)) = self.system.storage.get_mut(&minion) else {
            return;
        };
        if !gate().admits(packet) {
            return;
        }
        let mut out = storage::Out::default();
        let Some((header, value)) = intact(packet) else {
            return;
        };
        match header.kind {
            Type::Numbered if header.node == u16::from(node::minion(minion)) => {
                let request = Request::of(&header, value);
                host.process
                    .on_numbered(header.incarnation, header.number, request, &mut out);
            }
            Type::Control => {
                if let Some((from, control)) = Control::of(packet) {
                    host.process.on_control(now, from, control, &mut out);
                }
            }
            _ => {}
        }
        self.storage_acted(minion, out);
    }

    pub(super) fn storage_ticks(&mut self, minion: u8) {
        let now = self.local(Host::Storage(minion));
        let mut out = storage::Out::default();
        if let Some(Some(host)) = self.system.storage.get_mut(&minion) {
            host.process.tick(now, &mut out);
        }
        self.storage_acted(minion, out);
    }

    fn storage_acted(&mut self, minion: u8, out: storage::Out) {
        let own = Host::Storage(minion);
        let Some(Some(host)) = self.system.storage.get_mut(&minion) else {
            return;
        };
        let generation = host.process.generation();
        let due = host.process.due();
        if host.generation != generation {
            host.generation = generation;
            self.stats.count("storages fenced", 1);
        }
        let mut result = Ok(());
        for record in out.records {
            let checked = self.system.ledger.record(minion, generation, &record);
            result = result.and(checked);
            let disk = self.system.disk.entry(minion).or_default();
            disk.records.push(record);
        }
        let disk = self.system.disk.entry(minion).or_default();
        if disk.records.len() > JOURNAL_RECORDS_MAX {
            let Some(Some(host)) = self.system.storage.get(&minion) else {
                unreachable!("as above");
            };
            disk.records = host.process.snapshot();
            self.stats.count("snapshots", 1);
        }
        self.check(result);
        for (to, packet) in out.packets {
            let packet = signed(packet);
            for to in self.storage_sends_to(minion, to) {
                self.send(own, to, packet.clone());
            }
        }
        self.sleep(own, due);
    }

    fn storage_sends_to(&self, own: u8, to: To) -> Vec<Host> {
        let minions = self.system.sizes.minions();
        match to {
            To::Learners => (1..=LEARNERS).map(Host::Learner).collect(),
            To::Storages => {
                let others = (1..=minions).filter(|n| *n != own);
                others.map(Host::Storage).collect()
            }
            To::Node(id) => self.host_of_node(id).into_iter().collect(),
            To::Proposer(_) => unreachable!("learners answer"),
        }
    }

    fn host_of_node(&self, id: u8) -> Option<Host> {
        let minions = self.system.sizes.minions();
        let storage = node::as_storage(id, minions).map(Host::Storage);
        storage.or_else(|| node::as_learner(id, LEARNERS).map(Host::Learner))
    }

    pub(super) fn at_learner(&mut self, number: u8, packet: &[u8]) {
        let now = self.local(Host::Learner(number));
        let minions = self.system.sizes.minions();
        let Some(Some(learner)) = self.system.learner.get_mut(&number) else {
            return;
        };
        if !gate().admits(packet) {
            return;
        }
        let mut out = learner::Out::default();
        let Some((header, value)) = intact(packet) else {
            return;
        };
        match header.kind {
            Type::Numbered => {
                if let Some(minion) = node::as_minion(header.node, minions) {
                    let number = (header.incarnation, header.number);
                    let request = Request::of(&header, value);
                    learner.on_numbered(now, minion, number, request, &mut out);
                }
            }
            Type::Control => {
                if let Some((from, control)) = Control::of(packet) {
                    learner.on_control(now, from, control, &mut out);
                }
            }
            _ => {}
        }
        self.learner_acted(number, out);
    }

    pub(super) fn learner_ticks(&mut self, number: u8) {
        let now = self.local(Host::Learner(number));
        let mut out = learner::Out::default();
        if let Some(Some(learner)) = self.system.learner.get_mut(&number) {
            learner.tick(now, &mut out);
        }
        self.learner_acted(number, out);
    }

    /// A read begins at a learner, if it is up.
    pub(super) fn read_at(&mut self, number: u8) {
        let Some(Some(learner)) = self.system.learner.get_mut(&number) else {
            return;
        };
        learner.read(self.system.ledger.begin_read());
        let due = learner.due();
        self.sleep(Host::Learner(number), due);
    }

    fn learner_acted(&mut self, number: u8, out: learner::Out) {
        let own = Host::Learner(number);
        let Some(Some(learner)) = self.system.learner.get(&number) else {
            return;
        };
        let (due, position) = (learner.due(), learner.position());
        for (read, seen) in &out.confirmed {
            let result = self.system.ledger.end_read(*read, *seen, position);
            self.stats.count("reads", 1);
            self.check(result);
        }
        let quorum = 2 * usize::from(self.system.sizes.failures) + 1;
        for (instance, request) in &out.fast {
            let ledger = &mut self.system.ledger;
            let stored = ledger.decide_fast(*instance, request, quorum);
            let agreed = ledger.decide(number, *instance, &Some(request.clone()));
            self.check(stored.and(agreed));
        }
        for delivered in &out.delivered {
            let result = self.system.ledger.deliver(number, delivered);
            self.check(result);
            if self.system.is_durable {
                let log = self.system.log.entry(number).or_default();
                log.push(delivered.value.clone());
            }
            let instance = delivered.instance;
            self.note(&[3, number.into(), instance], || {
                format!("{own} delivers {instance}: {:?}", delivered.value)
            });
        }
        for (to, packet) in out.packets {
            if let Some((_, Control::Prepare { round, .. })) = Control::of(&packet) {
                self.begins(number, round);
            }
            let packet = signed(packet);
            for to in self.learner_sends_to(number, to) {
                self.send(own, to, packet.clone());
            }
        }
        self.sleep(own, due);
    }

    fn begins(&mut self, number: u8, round: u64) {
        let start = (number, self.system.start[&number]);
        let user = *self.system.rounds.entry(round).or_insert(start);
        if user != start {
            let what = format!("round {round:x} of {user:?} is used by {start:?}");
            self.broken(Invariant::OneRound, what);
        }
    }

    fn learner_sends_to(&self, own: u8, to: To) -> Vec<Host> {
        let minions = self.system.sizes.minions();
        match to {
            To::Storages => (1..=minions).map(Host::Storage).collect(),
            To::Learners => {
                let others = (1..=LEARNERS).filter(|n| *n != own);
                others.map(Host::Learner).collect()
            }
            To::Node(id) => self.host_of_node(id).into_iter().collect(),
            To::Proposer(at) if (1..=CLIENTS.into()).contains(&at) => {
                vec![Host::Client(at as u8)]
            }
            To::Proposer(_) => Vec::new(),
        }
    }

    /// Returns whether all learners have every instance.
    pub(super) fn is_over(&self) -> bool {
        let system = &self.system;
        let position = system.ledger.len();
        let learners = system.learner.values().flatten();
        let storages = system.storage.values().flatten();
        system
            .client
            .values()
            .all(|c| c.proposer.outstanding() == 0)
            && learners
                .into_iter()
                .all(|l| l.position() == position && l.highest() == position)
            && storages.into_iter().all(|s| s.process.is_complete())
    }

    pub(super) fn what_is_left(&self) -> String {
        let system = &self.system;
        let clients: Vec<usize> = system
            .client
            .values()
            .map(|c| c.proposer.outstanding())
            .collect();
        let learners = system.learner.values().flatten();
        let learners: Vec<(u64, u64)> = learners.map(|l| (l.position(), l.highest())).collect();
        let storages = system.storage.values().flatten();
        let storages: Vec<bool> = storages.map(|s| s.process.is_complete()).collect();
        format!(
            "under way {clients:?}; of {} instances learners have {learners:?}; storages are complete: {storages:?}",
            system.ledger.len()
        )
    }

    /// Adds up the counters of the processes.
    pub(super) fn count_all(&mut self) {
        let mut counted: Vec<(&'static str, u64)> = Vec::new();
        for learner in self.system.learner.values().flatten() {
            let counts = learner.counts();
            counted.extend([
                ("decided fast", counts.fast),
                ("recovered", counts.recovered),
                ("told", counts.told),
                ("conflicts", counts.conflicts),
                ("holes", counts.noops),
                ("duplicates", counts.duplicates),
            ]);
        }
        for storage in self.system.storage.values().flatten() {
            let counts = storage.process.counts();
            counted.extend([
                ("votes refused", counts.refused),
                ("gaps", counts.gaps),
                ("aligned", counts.aligned),
                ("full windows", counts.window_full),
                ("renumbered", counts.renumbered),
            ]);
        }
        counted.push(("instances", self.system.ledger.len()));
        counted.push(("applied", self.system.ledger.applied()));
        for (name, count) in counted {
            self.stats.count(name, count);
        }
    }

    /// Returns the highest floor of the storage servers.
    pub(super) fn floor(&self) -> u64 {
        let storages = self.system.storage.values().flatten();
        storages.map(|s| s.process.floor()).max().unwrap_or(0)
    }

    /// Returns the deadline of a request that starts now, by the host's clock.
    pub(super) fn deadline(&self, host: Host) -> Time {
        self.local(host) + self.system.deadline_ns
    }
}
