//! Nodes: the real role with the real process next to it.

use std::collections::BTreeMap;

use inband_box::control::Control;
use inband_box::journal::LogOnDisk;
use inband_box::membership::{ids, Membership};
use inband_box::node::{Config, Doing, Node, Out, Start, To};
use inband_box::role::{Record, Role, Verdict};
use inband_box::snapshot::Snapshot;
use inband_box::{soft, wire};
use inband_ground::auth::Gate;
use inband_ground::soft::Soft;
use inband_ground::wire::{digest, PACKET_LEN_MAX_BYTES};
use inband_storage::{Cut, Journal, SimulatedDisk, Storage};

use super::clients::Keys;
use super::{Event, Host, Invariant, Mistake, Zab, MS, PLACES};
use crate::{System, Time, World};

/// A packet reaches the process less than this after the role passes it.
pub(super) const PASS_NS: Time = 50_000;
/// A process may handle several packets before it syncs its log, in a turn of less than this.
const TURN_NS: Time = 8 * PASS_NS;

pub(super) struct NodeHost {
    pub role: Soft<inband_box::Zab>,
    pub node: Node,
    pub keys: Keys,
    pub applied: u64,
    /// The client that waits for each token.
    pub asked: BTreeMap<u64, u8>,
    /// Tokens of writes, by their number in the session.
    pub puts: BTreeMap<u64, u64>,
    /// Client and token of SETs that came as datagrams, by their number in the session.
    pub datagrams: BTreeMap<u64, (u8, u64)>,
    /// Reads that wait until their index is applied.
    pub ready: Vec<(u64, u64)>,
    pub start: u64,
    advances: u64,
    /// Until then the process handles packets before it syncs its log.
    turn_ends_at: Time,
    /// In which epoch it led, and up to where, when it was checked who has what is committed.
    pub checked: (u64, u64),
    pub log: Option<LogOnDisk>,
}

/// What a node keeps across restarts.
#[derive(Default)]
pub(super) struct Disks {
    log: SimulatedDisk,
    table: SimulatedDisk,
}

/// The table's file: its zxid, epoch and time, and its content.
const TABLE: &str = "table";

/// An event of a process.
pub(super) enum Process {
    Ticks,
    Gets(Vec<u8>),
}

pub(super) fn gate() -> Gate {
    Gate::of::<inband_box::Zab>(None, inband_box::GROUPS)
}

impl World<Zab> {
    pub(super) fn start_node(&mut self, id: u8, start: Start) {
        if self.system.left.contains(&id) {
            return;
        }
        let mut stored = self.system.stored.get(&id).copied().unwrap_or_default();
        match self.system.mistake {
            Some(Mistake::ForgottenPromise) => stored.promise = 0,
            Some(Mistake::ForgottenSession) => {
                stored.session = stored.session.min(1) - u64::from(stored.session > 0)
            }
            _ => {}
        }
        let role = self.new_role(id);
        role.set_window(self.system.window);
        let config = Config {
            node: id,
            nodes: PLACES,
            founding: Membership::founding(self.system.nodes, self.system.quorum),
            suspect_after_ns: self.system.suspect_after_ns,
        };
        let random = self.rng.hosts.next_u64();
        let now = self.local(Host(id));
        let (mut start, mut keys, mut applied, mut log) = (start, Keys::default(), 0, None);
        if self.system.is_durable {
            let promise = stored.promise;
            let opened = match stored.has_log {
                true => self.open_log(id, &role, promise),
                false => None,
            };
            match opened {
                Some((machine, zxid, on_disk)) => {
                    (start, keys, applied, log) = (Start::WithLog, machine, zxid, Some(on_disk));
                }
                None => {
                    stored.has_log = false;
                    self.system.stored.insert(id, stored);
                    log = Some(self.empty_log(id));
                }
            }
        }
        let role = match start {
            Start::WithLog => role,
            _ => self.new_role(id),
        };
        role.set_window(self.system.window);
        let mut node = Node::new(config, start, stored, keys.membership, random, now, &role);
        if let Some(log) = &log {
            node.keep_log(log.durable(), &role);
        }
        self.stats.count(
            "nodes that kept their log",
            u64::from(start == Start::WithLog),
        );
        self.system.starts += 1;
        let host = NodeHost {
            role,
            node,
            keys,
            applied,
            asked: BTreeMap::new(),
            puts: BTreeMap::new(),
            datagrams: BTreeMap::new(),
            ready: Vec::new(),
            start: self.system.starts,
            advances: 0,
            turn_ends_at: 0,
            checked: (0, 0),
            log,
        };
        self.system.node.insert(id, Some(host));
        self.note(&[1, id.into()], || format!("node/{id} starts, {stored:?}"));
        self.sleep(Host(id), now);
    }

    fn new_role(&self, id: u8) -> Soft<inband_box::Zab> {
        match self.system.is_durable {
            true => soft::soft(id, self.system.capacity),
            false => soft::soft_with_clients(id, self.system.capacity),
        }
    }

    /// Stops a node; only what it has stored survives.
    pub(super) fn stop_node(&mut self, id: u8) {
        self.note(&[3, id.into()], || format!("node/{id} is gone"));
        self.system.node.insert(id, None);
        self.abandon(id);
    }

    /// Reads a node's disk: the machine's state, up to which record it is applied, and the log, which is also restored
    /// to the role. `None` if there is nothing, or it is damaged.
    fn open_log(
        &mut self,
        id: u8,
        role: &Soft<inband_box::Zab>,
        promise: u64,
    ) -> Option<(Keys, u64, LogOnDisk)> {
        let disks = self.system.disk.entry(id).or_default();
        let (mut keys, mut at) = (Keys::default(), (0, 0, 0));
        if let Ok(bytes) = disks.table.read(TABLE) {
            let word = |n: usize| {
                let bytes = bytes.get(8 * n..8 * n + 8)?.try_into().ok()?;
                Some(u64::from_be_bytes(bytes))
            };
            at = (word(0)?, word(1)?, word(2)?);
            let (bytes, sum) = bytes.split_last_chunk()?;
            if u64::from_be_bytes(*sum) != digest(bytes) {
                return None;
            }
            keys = Keys::decode(bytes.get(24..)?)?;
        }
        let log = LogOnDisk::open(Box::new(disks.log.clone()), id, at.0);
        let (log, replayed) = match log {
            Ok(opened) => opened,
            Err(error) => {
                self.stats.count("damaged logs", 1);
                self.note(&[7, id.into()], || format!("node/{id}: {error}"));
                return None;
            }
        };
        let committed = replayed.committed;
        for record in replayed.records.iter().filter(|r| r.zxid <= committed) {
            let is_executed = keys.apply(record);
            at = (record.zxid, record.epoch, record.time_ms);
            let state = keys.hash;
            let now = self.now;
            let result = self
                .system
                .ledger
                .apply(id, record, is_executed, state, now);
            self.check(result);
        }
        assert!(replayed.restore(role, promise, at), "the ring has room");
        Some((keys, at.0, log))
    }

    fn empty_log(&mut self, id: u8) -> LogOnDisk {
        let disks = self.system.disk.entry(id).or_default();
        Journal::discard(&mut disks.log).expect("the disk works");
        let _ = disks.table.remove(TABLE);
        let opened = LogOnDisk::open(Box::new(disks.log.clone()), id, 0);
        opened.expect("the disk works").0
    }

    /// Cuts the power of a node that is not running.
    pub(super) fn cut_power(&mut self, id: u8) {
        let cuts = [Cut::Unsynced, Cut::Torn, Cut::Scattered];
        let cut = *self.rng.faults.pick(&cuts).expect("some");
        let disks = self.system.disk.entry(id).or_default();
        let mut choose = |below: u64| self.rng.faults.below(below);
        disks.log.power_cut(cut, &mut choose);
        disks.table.power_cut(cut, &mut choose);
    }

    /// Damages a byte on the disk of a node that is not running.
    pub(super) fn damage_disk(&mut self, id: u8) {
        let disks = self.system.disk.entry(id).or_default();
        let disk = match self.rng.faults.below(4) {
            0 => &disks.table,
            _ => &disks.log,
        };
        let files = disk.list().expect("the disk works");
        if let Some(file) = self.rng.faults.pick(&files) {
            let len_bytes = disk.len_bytes(file).expect("it is there");
            let at = self.rng.faults.below(len_bytes.max(1));
            disk.corrupt(file, at, 1 << self.rng.faults.below(8));
        }
    }

    /// Writes a table to disk and drops the log before it.
    pub(super) fn checkpoint(&mut self, id: u8) {
        let Some(Some(host)) = self.system.node.get_mut(&id) else {
            return;
        };
        let (Some(log), true) = (host.log.as_mut(), host.applied > 0) else {
            return;
        };
        let disks = self.system.disk.entry(id).or_default();
        let segment = log.begin_checkpoint(host.applied, &host.role);
        let segment = segment.expect("the disk works");
        let record = self.system.ledger.entry(host.applied).0;
        let table = table(record, &host.keys);
        disks.table.replace(TABLE, &table).expect("the disk works");
        log.forget(segment).expect("the disk works");
        self.stats.count("checkpoints", 1);
    }

    /// Writes what is new in a node's log to its disk and acknowledges it.
    fn make_durable(&mut self, id: u8) {
        let Some(Some(host)) = self.system.node.get_mut(&id) else {
            return;
        };
        let Some(log) = host.log.as_mut() else {
            return;
        };
        let durable = log.write(&host.role).expect("the disk works");
        let mut out = Out::default();
        host.node.on_durable(durable, &host.role, &mut out);
        self.perform(id, out);
    }

    pub(super) fn at_node(&mut self, id: u8, packet: Vec<u8>) {
        let now = self.local(Host(id));
        let Some(Some(host)) = self.system.node.get_mut(&id) else {
            return;
        };
        let mut gate = gate();
        if packet.len() > PACKET_LEN_MAX_BYTES || !gate.admits(&packet) {
            return;
        }
        host.role.set_time_ms(now / MS);
        let from = packet_from(&packet);
        let mut buffer = [0; PACKET_LEN_MAX_BYTES];
        buffer[..packet.len()].copy_from_slice(&packet);
        let handled = host.role.handle_packet(&mut buffer, packet.len(), now);
        let advances = host.role.advances();
        let is_woken = advances != host.advances;
        host.advances = advances;
        let name = <inband_box::Zab as inband_ground::System>::reason_name(handled.reason);
        if let Some(name) = name {
            self.stats.count(name, 1);
        }
        let left = &mut buffer[..handled.len_bytes];
        match handled.verdict {
            Verdict::Drop => {}
            Verdict::Pass => {
                let wait = self.rng.hosts.below(PASS_NS);
                self.after(wait, Event::Passed(Host(id), packet));
            }
            Verdict::Reply => {
                gate.sign(left);
                self.remember_acknowledged(left);
                self.send(Host(id), Host(from), left.to_vec());
            }
            Verdict::ToOthers => {
                gate.sign(left);
                self.send_to_others(id, left);
            }
        }
        self.check_commits(id);
        if is_woken {
            let wait = self.rng.hosts.below(PASS_NS);
            self.after(wait, Event::Advanced(Host(id)));
        }
    }

    pub(super) fn send_to_others(&mut self, id: u8, packet: &[u8]) {
        let Some(Some(host)) = self.system.node.get(&id) else {
            return;
        };
        for to in ids(host.node.reach()) {
            self.send(Host(id), Host(to), packet.to_vec());
        }
    }

    /// Returns until when a process is paused while its role runs.
    pub(super) fn process_waits(&self, id: u8) -> Option<Time> {
        let until = self.system.process_paused_until.get(&id).copied();
        until.filter(|until| *until > self.now)
    }

    /// Handles a packet or a timer at a process.
    pub(super) fn process_acts(&mut self, id: u8, what: Process) {
        if let Some(until) = self.process_waits(id) {
            match what {
                Process::Gets(packet) => self.at(until, Event::Passed(Host(id), packet)),
                Process::Ticks => self.sleep(Host(id), self.local(Host(id)) + MS),
            }
            return;
        }
        if self.is_paused(Host(id)) {
            return;
        }
        let now = self.local(Host(id));
        let Some(Some(host)) = self.system.node.get_mut(&id) else {
            return;
        };
        let mut out = Out::default();
        match what {
            Process::Ticks => host.node.on_tick(now, &host.role, &mut out),
            Process::Gets(packet) => {
                if let Ok((header, value)) = wire::parse(&packet) {
                    host.node
                        .on_packet(now, &header, value, &host.role, &mut out);
                }
            }
        }
        host.ready.append(&mut out.reads);
        let (taken, snapshot, begins_again) =
            (out.takes_snapshot, out.snapshot.take(), out.begins_again);
        if out.is_removed {
            return self.leaves(id);
        }
        if out.is_lost && self.system.lost.contains(&id) {
            return self.stop_node(id);
        }
        if out.is_lost {
            let what = format!("node {id} is told that its directory was lost");
            return self.broken(Invariant::Liveness, what);
        }
        self.perform(id, out);
        let may_handle_more = snapshot.is_none() && !begins_again;
        if !may_handle_more || !self.goes_on_with_its_turn(id) {
            self.turn_ends(id);
        }
        if begins_again {
            self.stats.count("nodes that began again", 1);
            self.stop_node(id);
            return self.start_node(id, Start::Recovering);
        }
        if taken {
            let wait = self.rng.hosts.below(MS);
            self.after(wait, Event::TakesSnapshot(Host(id)));
        }
        if let Some(snapshot) = snapshot {
            self.install(id, snapshot);
        }
        if let Some(Some(host)) = self.system.node.get(&id) {
            let due = host.node.due(now, &host.role);
            self.sleep(Host(id), due.max(now + 1));
        }
    }

    /// Returns whether a process may handle more packets before it syncs its log.
    fn goes_on_with_its_turn(&mut self, id: u8) -> bool {
        let now = self.now;
        let Some(Some(host)) = self.system.node.get_mut(&id) else {
            return false;
        };
        if now <= host.turn_ends_at {
            return now < host.turn_ends_at;
        }
        let begins = self.system.has_turns && self.rng.hosts.below(2) == 0;
        if begins {
            host.turn_ends_at = now + 1 + self.rng.hosts.below(TURN_NS);
            let at = host.turn_ends_at;
            self.at(at, Event::Advanced(Host(id)));
        }
        begins
    }

    fn turn_ends(&mut self, id: u8) {
        self.make_durable(id);
        self.check_commits(id);
        self.look_at(id);
        self.apply(id);
    }

    /// A node that is told to stop hands over its lead. Returns whether it may stop.
    pub(super) fn hands_over(&mut self, id: u8) -> bool {
        if self.process_waits(id).is_some() || self.is_paused(Host(id)) {
            return false;
        }
        let now = self.local(Host(id));
        let Some(Some(host)) = self.system.node.get_mut(&id) else {
            return true;
        };
        let mut out = Out::default();
        let may_stop = host.node.hand_over(now, &host.role, &mut out);
        self.perform(id, out);
        may_stop
    }

    /// Makes the snapshot that was requested, from the machine's current state.
    pub(super) fn takes_snapshot(&mut self, id: u8) {
        if let Some(Some(host)) = self.system.node.get_mut(&id) {
            let snapshot = Snapshot {
                zxid: host.applied,
                bytes: host.keys.encode(),
            };
            host.node.on_snapshot(snapshot);
        }
    }

    fn install(&mut self, id: u8, snapshot: Snapshot) {
        let Some(Some(host)) = self.system.node.get_mut(&id) else {
            return;
        };
        let zxid = snapshot.zxid;
        if zxid <= host.applied {
            return;
        }
        let disks = self.system.disk.entry(id).or_default();
        let Some(keys) = Keys::decode(&snapshot.bytes) else {
            let what = format!("node {id} got a damaged snapshot");
            return self.broken(Invariant::Integrity, what);
        };
        let (hash, record) = (keys.hash, self.system.ledger.entry(zxid).0);
        (host.keys, host.applied) = (keys, zxid);
        host.role.install(zxid, record.epoch, record.time_ms);
        host.role.set_applied(zxid);
        let membership = host.keys.membership;
        let mut told = Out::default();
        host.node.on_installed(membership, &host.role, &mut told);
        if let Some(log) = host.log.as_mut() {
            let table = table(record, &host.keys);
            disks.table.replace(TABLE, &table).expect("the disk works");
            log.installed(zxid, &host.role).expect("the disk works");
        }
        self.stats.count("snapshots installed", 1);
        self.note(&[6, id.into(), zxid], || {
            format!("node/{id} has the snapshot {zxid}")
        });
        let result = self.system.ledger.install(id, zxid, hash);
        self.check(result);
    }

    pub(super) fn perform(&mut self, id: u8, out: Out) {
        if let Some(stored) = out.store {
            let before = self.system.stored.insert(id, stored);
            let before = before.unwrap_or_default();
            self.note(&[4, id.into(), stored.promise], || {
                format!("node/{id} stores {stored:?} after {before:?}")
            });
        }
        match (out.store, self.system.stores_in_ns) {
            (Some(_), took @ 1..) => self.block_process(id, took, out.packets),
            _ => self.send_all(id, out.packets),
        }
    }

    /// Blocks a process while it stores what it must before it sends anything.
    fn block_process(&mut self, id: u8, took: Time, packets: Vec<(To, Vec<u8>)>) {
        let Some(Some(host)) = self.system.node.get(&id) else {
            return;
        };
        let (start, until) = (host.start, self.now + took);
        let paused_until = self.system.process_paused_until.entry(id).or_default();
        *paused_until = until.max(*paused_until);
        self.at(until, Event::Stored(Host(id), start, took, packets));
    }

    pub(super) fn has_stored(
        &mut self,
        id: u8,
        start: u64,
        took: Time,
        packets: Vec<(To, Vec<u8>)>,
    ) {
        let now = self.local(Host(id));
        let Some(Some(host)) = self.system.node.get_mut(&id) else {
            return;
        };
        if host.start == start {
            host.node.on_stored(now, took);
            self.send_all(id, packets);
        }
    }

    fn send_all(&mut self, id: u8, packets: Vec<(To, Vec<u8>)>) {
        let gate = gate();
        for (to, mut packet) in packets {
            gate.sign(&mut packet);
            self.check_claim(id, &packet);
            self.remember_acknowledged(&packet);
            match to {
                To::Node(to) => self.send(Host(id), Host(to), packet),
                To::Others => self.send_to_others(id, &packet),
            }
        }
    }

    /// Checks what a node tells its leader.
    fn check_claim(&mut self, id: u8, packet: &[u8]) {
        let Some(Some(host)) = self.system.node.get(&id) else {
            return;
        };
        let (Some(log), Ok((header, value))) = (&host.log, wire::parse(packet)) else {
            return;
        };
        let claimed = match header.kind {
            wire::Type::Ack => Some(header.zxid),
            wire::Type::Control => match Control::decode(&header, value) {
                Some(Control::Joined(joined)) => Some(joined.matched),
                _ => None,
            },
            _ => None,
        };
        let missing = claimed.and_then(|zxid| log.first_missing(&host.role, zxid));
        if let Some(missing) = missing {
            let what = format!(
                "node {id} says in epoch {} that it has {claimed:?}, and {missing} is not on its disk",
                header.epoch
            );
            self.broken(Invariant::OnDisk, what);
        }
    }

    /// Checks a node that leads.
    fn look_at(&mut self, id: u8) {
        let Some(Some(host)) = self.system.node.get(&id) else {
            return;
        };
        let status = host.node.status(&host.role);
        let leads = matches!(status.doing, Doing::Leading | Doing::Establishing);
        if !leads {
            return;
        }
        let (start, ledger) = (host.start, &self.system.ledger);
        let known = self.system.led.get(&status.epoch).copied();
        if known.is_none() {
            let first = host.role.view().first;
            let mut zxids = first.max(1)..=ledger.len();
            let is_there = |zxid: u64| {
                host.role
                    .read(zxid)
                    .is_some_and(|r| r == *ledger.entry(zxid).0)
            };
            let lost = zxids.find(|zxid| !is_there(*zxid));
            if let Some(zxid) = lost {
                let (own, right) = (host.role.read(zxid), ledger.entry(zxid).0);
                let epoch = status.epoch;
                let what =
                    format!("node {id} leads {epoch} without {zxid}: {own:?}, not {right:?}");
                self.broken(Invariant::NothingLost, what);
            }
            self.stats.count("leaders", 1);
            self.note(&[5, status.epoch], || {
                format!("node/{id} leads epoch {}", status.epoch)
            });
        }
        let user = *self.system.led.entry(status.epoch).or_insert((id, start));
        if user != (id, start) {
            let what = format!("nodes {id} and {} lead {}", user.0, status.epoch);
            self.broken(Invariant::OneLeader, what);
        }
    }

    /// Applies what is committed, and answers clients.
    fn apply(&mut self, id: u8) {
        let now = self.local(Host(id));
        let Some(Some(host)) = self.system.node.get_mut(&id) else {
            return;
        };
        let durable = host.log.as_ref().map_or(u64::MAX, LogOnDisk::durable);
        let until = host.role.committed().min(durable);
        let was_behind = host.applied < until;
        let mut answers = Vec::new();
        let (mut replies, mut sets) = (Vec::new(), Vec::new());
        let mut result = Ok(());
        let applied_at = self.now;
        while host.applied < until && result.is_ok() {
            let zxid = host.applied + 1;
            let Some(record) = host.role.read(zxid) else {
                let what = format!("node {id} has no {zxid}, which is committed");
                return self.broken(Invariant::NothingLost, what);
            };
            // Once it is said to be applied, the slot may have another client.
            let client = host.role.registers().client_of(&record);
            let is_executed = host.keys.apply(&record);
            let state = host.keys.hash;
            let ledger = &mut self.system.ledger;
            result = ledger.apply(id, &record, is_executed, state, applied_at);
            host.applied = zxid;
            host.role.set_applied(zxid);
            host.node.on_applied(&record, is_executed, now);
            let is_own = record.origin == id && record.origin_session == host.node.session();
            if is_own && is_executed {
                let datagram = host.datagrams.remove(&record.origin_seq);
                replies.extend(datagram.map(|(number, token)| (number, token, zxid)));
                if let Some(token) = host.puts.remove(&record.origin_seq) {
                    answers.extend(
                        host.asked
                            .remove(&token)
                            .map(|client| (client, token, None)),
                    );
                }
            }
            if is_executed {
                sets.extend(client.map(|client| (client, record)));
            }
        }
        let applied = host.applied;
        let (ready, wait): (Vec<_>, Vec<_>) = host
            .ready
            .drain(..)
            .partition(|(_, index)| *index <= applied);
        host.ready = wait;
        for (token, _) in ready {
            if let Some(client) = host.asked.remove(&token) {
                let key = self.system.client.get(&client).and_then(|c| c.asked);
                let saw = key.and_then(|asked| host.keys.get(asked.key()));
                answers.push((client, token, saw));
            }
        }
        self.check(result);
        for (client, token, saw) in answers {
            self.answered(client, token, saw);
        }
        for (number, token, zxid) in replies {
            self.replies(id, number, token, zxid);
        }
        for (client, record) in sets {
            self.answers_set(id, &client, &record);
        }
        if was_behind && self.system.is_durable && self.rng.hosts.below(50) == 0 {
            self.after(MS, Event::Checkpoint(Host(id)));
        }
        if was_behind {
            // The space that became free may let the role or the process continue.
            self.after(1_000, Event::Advanced(Host(id)));
        }
    }

    /// The state of all nodes, for reports.
    pub fn standing(&self) -> String {
        let nodes = self.system.node.iter();
        let said: Vec<String> = nodes
            .map(|(id, host)| match host {
                None => format!("{id} gone"),
                Some(host) => format!("{id} {:?}", host.node.status(&host.role)),
            })
            .collect();
        let records = self.system.ledger.len();
        format!(
            "{}; {records} records; {}",
            self.system.describe(),
            said.join("; ")
        )
    }

    /// Adds up the counters of the nodes.
    pub(super) fn count_all(&mut self) {
        let (records, executed) = (self.system.ledger.len(), self.system.ledger.executed());
        self.stats.count("records", records);
        self.stats.count("executed", executed);
    }
}

fn packet_from(packet: &[u8]) -> u8 {
    wire::parse(packet).map_or(0, |(header, _)| header.node as u8)
}

fn table(record: &Record, keys: &Keys) -> Vec<u8> {
    let words = [record.zxid, record.epoch, record.time_ms];
    let mut bytes = words.map(u64::to_be_bytes).concat();
    bytes.extend(keys.encode());
    bytes.extend(digest(&bytes).to_be_bytes());
    bytes
}
