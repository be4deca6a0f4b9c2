//! Switches and servers: the real role with the real process next to it.

use std::net::{Ipv4Addr, SocketAddrV4};

use inband_ground::auth::Gate;
use inband_ground::wire::PACKET_LEN_MAX_BYTES;
use inband_memory::epoch::SWITCH_FIRST;
use inband_memory::server_host::{self, ServerConfig, Start};
use inband_memory::soft_server::SoftServer;
use inband_memory::soft_switch::{SoftSwitch, SwitchSpec, Verdict};
use inband_memory::switch_host::{self, SwitchConfig};
use inband_memory::wire::{self, EPOCH, F_TO_GRANT};
use inband_memory::SPACES;

use super::{Event, Host, Invariant, Memory, Mistake, CHUNKS, MS, SWITCHES};
use crate::{Time, World};

const PORT: u16 = 7500;
/// A packet reaches the process less than this after the role passes it.
const PASS_NS: Time = 50_000;
const SLOTS: usize = 256;
const SESSIONS: usize = 64;

pub(super) struct ServerHost {
    pub role: SoftServer,
    pub host: server_host::ServerHost,
}

pub(super) struct SwitchHost {
    pub role: SoftSwitch,
    pub host: switch_host::SwitchHost,
    start: u64,
}

impl SwitchHost {
    pub fn is_its_first_start(&self) -> bool {
        self.start <= SWITCHES.into()
    }
}

/// An event of a process.
pub(super) enum Process {
    Ticks,
    Gets(Host, Vec<u8>),
}

pub(super) fn gate() -> Gate {
    Gate::of::<inband_memory::Memory>(None, SPACES)
}

fn address(host: Host) -> SocketAddrV4 {
    let (kind, number) = match host {
        Host::Server(n) => (1, n),
        Host::Switch(n) => (2, n),
        Host::Client(n) => (3, n),
    };
    SocketAddrV4::new(Ipv4Addr::new(10, 0, kind, number), PORT)
}

fn host_at(address: SocketAddrV4) -> Host {
    let [_, _, kind, number] = address.ip().octets();
    match kind {
        1 => Host::Server(number),
        2 => Host::Switch(number),
        _ => Host::Client(number),
    }
}

impl World<Memory> {
    fn random(&mut self) -> u64 {
        self.rng.hosts.next_u64()
    }

    fn promised(&self, host: Host) -> u64 {
        match self.system.mistake {
            Some(Mistake::ForgottenPromise) => 0,
            _ => self.system.promised.get(&host).copied().unwrap_or(0),
        }
    }

    /// Running switches and servers.
    pub(super) fn processes(&self) -> Vec<Host> {
        let servers = self.system.server.iter().filter(|(_, s)| s.is_some());
        let switches = self.system.switch.iter().filter(|(_, s)| s.is_some());
        let servers = servers.map(|(node, _)| Host::Server(*node));
        servers
            .chain(switches.map(|(number, _)| Host::Switch(*number)))
            .collect()
    }

    pub(super) fn start_server(&mut self, node: u8, start: Start) {
        let host = Host::Server(node);
        let chunks = match (start, self.system.small) {
            (Start::New, Some(small)) if small == node => CHUNKS - 1,
            _ => CHUNKS,
        };
        let role = SoftServer::new(node, chunks as usize);
        let config = ServerConfig {
            node,
            servers: self.system.servers,
        };
        let start = match self.system.mistake {
            Some(Mistake::EmptyServerAnswers) => Start::New,
            _ => start,
        };
        let (promised, random) = (self.promised(host), self.random());
        let mut process =
            server_host::ServerHost::new(config, start, promised, random, role.registers());
        if self.system.replaced.contains(&node) {
            process.replaces();
        }
        let server = ServerHost {
            role,
            host: process,
        };
        self.system.server.insert(node, Some(server));
        self.note(&[1, node.into()], || format!("{host} starts"));
        self.sleep(host, self.local(host));
    }

    pub(super) fn start_switch(&mut self, number: u8) {
        let host = Host::Switch(number);
        let node = SWITCH_FIRST + number;
        let is_first = !self.system.switch.contains_key(&number);
        let chunks = match is_first && self.system.small_switch == Some(number) {
            true => CHUNKS - 1,
            false => CHUNKS,
        };
        let role = SoftSwitch::new(&SwitchSpec {
            node,
            servers: self.system.servers.into(),
            chunks,
            block_lines: self.system.block_lines,
            sessions: SESSIONS,
            slots: SLOTS,
        });
        let config = SwitchConfig {
            node,
            servers: self.system.servers,
            chunks,
        };
        let (promised, random) = (self.promised(host), self.random());
        if self.system.mistake == Some(Mistake::InventedEpoch) && promised > 0 {
            let epoch = inband_memory::epoch::next(promised, node).expect("there are more");
            role.registers().set_epoch(epoch);
        }
        let process = switch_host::SwitchHost::new(config, promised, random);
        self.system.starts += 1;
        let switch = SwitchHost {
            role,
            host: process,
            start: self.system.starts,
        };
        self.system.switch.insert(number, Some(switch));
        self.note(&[2, number.into()], || format!("{host} starts"));
        self.sleep(host, self.local(host));
    }

    /// Stops a host; only its promise survives.
    pub(super) fn stop(&mut self, host: Host) {
        self.note(&[3, crate::trace::word_of(&host.to_string())], || {
            format!("{host} is gone")
        });
        match host {
            Host::Server(node) => drop(self.system.server.insert(node, None)),
            Host::Switch(number) => drop(self.system.switch.insert(number, None)),
            Host::Client(_) => unreachable!("clients are replaced"),
        }
    }

    pub(super) fn at_server(&mut self, from: Host, node: u8, packet: Vec<u8>) {
        let own = Host::Server(node);
        let Some(Some(server)) = self.system.server.get(&node) else {
            return;
        };
        let mut gate = gate();
        if packet.len() > PACKET_LEN_MAX_BYTES || !gate.admits(&packet) {
            return;
        }
        let mut buffer = [0; PACKET_LEN_MAX_BYTES];
        buffer[..packet.len()].copy_from_slice(&packet);
        let handled = server.role.handle(&mut buffer, packet.len());
        match handled.verdict {
            Verdict::Reply => {
                gate.sign(&mut buffer[..handled.len_bytes]);
                self.send(own, from, buffer[..handled.len_bytes].to_vec());
            }
            Verdict::Pass => self.pass(own, from, packet),
            Verdict::Drop | Verdict::ToServers | Verdict::ToClient(_) => {}
        }
    }

    pub(super) fn at_switch(&mut self, from: Host, number: u8, packet: Vec<u8>) {
        let own = Host::Switch(number);
        let Some(Some(switch)) = self.system.switch.get(&number) else {
            return;
        };
        let mut gate = gate();
        if packet.len() > PACKET_LEN_MAX_BYTES || !gate.admits(&packet) {
            return;
        }
        let mut buffer = [0; PACKET_LEN_MAX_BYTES];
        buffer[..packet.len()].copy_from_slice(&packet);
        let handled = switch.role.handle(&mut buffer, packet.len(), address(from));
        if let Some(name) =
            <inband_memory::Memory as inband_ground::System>::reason_name(handled.reason)
        {
            self.stats.count(name, 1);
        }
        let to = match handled.verdict {
            Verdict::Drop => return,
            Verdict::Pass => return self.pass(own, from, packet),
            Verdict::Reply => vec![from],
            Verdict::ToClient(client) => vec![host_at(client)],
            Verdict::ToServers => (1..=self.system.servers).map(Host::Server).collect(),
        };
        gate.sign(&mut buffer[..handled.len_bytes]);
        for to in to {
            self.send(own, to, buffer[..handled.len_bytes].to_vec());
        }
    }

    fn pass(&mut self, host: Host, from: Host, packet: Vec<u8>) {
        let wait = self.rng.hosts.below(PASS_NS);
        self.after(wait, Event::Passed(host, from, packet));
    }

    /// Handles a packet or a timer at a process.
    pub(super) fn process_acts(&mut self, host: Host, what: Process) {
        let paused_until = self.system.process_paused_until.get(&host).copied();
        if let Some(until) = paused_until.filter(|until| *until > self.now) {
            match what {
                Process::Gets(from, packet) => self.at(until, Event::Passed(host, from, packet)),
                Process::Ticks => self.sleep(host, self.local(host) + MS),
            }
            return;
        }
        match host {
            Host::Server(node) => self.server_process(node, what),
            Host::Switch(number) => self.switch_process(number, what),
            Host::Client(_) => unreachable!("it has no role"),
        }
    }

    fn server_process(&mut self, node: u8, what: Process) {
        let own = Host::Server(node);
        let now = self.local(own);
        let Some(Some(server)) = self.system.server.get_mut(&node) else {
            return;
        };
        let was_serving = server.host.is_serving();
        let mut out = server_host::Out::default();
        let registers = server.role.registers().clone();
        match what {
            Process::Ticks => server.host.tick(now, &registers, &mut out),
            Process::Gets(from, packet) => {
                if let Ok((header, value)) = wire::parse(&packet) {
                    server
                        .host
                        .on_packet(now, from, &header, value, &registers, &mut out);
                }
            }
        }
        let due = server.host.due(now);
        if !was_serving && server.host.is_serving() {
            self.system.replaced.remove(&node);
            self.stats.count("servers recovered", 1);
            self.note(&[4, node.into()], || format!("{own} has recovered"));
        }
        if let Some(promise) = out.promise.take() {
            self.system.promised.insert(own, promise);
        }
        let gate = gate();
        let mut packets = Vec::new();
        out.drain(|to, packet| {
            let to = match to {
                server_host::ToWhom::Server(node) => Host::Server(*node),
                server_host::ToWhom::Asker(from) => *from,
            };
            gate.sign(packet);
            packets.push((to, packet.to_vec()));
        });
        for (to, packet) in packets {
            if let Ok((header, _)) = wire::parse(&packet) {
                if header.kind == EPOCH && header.flags & F_TO_GRANT != 0 {
                    self.system
                        .granted
                        .entry(header.epoch)
                        .or_default()
                        .insert(node);
                }
            }
            self.send(own, to, packet);
        }
        self.sleep(own, due);
    }

    fn switch_process(&mut self, number: u8, what: Process) {
        let own = Host::Switch(number);
        let now = self.local(own);
        let Some(Some(switch)) = self.system.switch.get_mut(&number) else {
            return;
        };
        let registers = switch.role.registers().clone();
        let before = registers.epoch();
        let mut out = switch_host::Out::default();
        match what {
            Process::Ticks => switch.host.tick(now, &registers, &mut out),
            Process::Gets(from, packet) => {
                if let Ok((header, _)) = wire::parse(&packet) {
                    switch
                        .host
                        .on_packet(now, address(from), &header, &registers, &mut out);
                }
            }
        }
        let (due, start) = (switch.host.due(now), switch.start);
        let epoch = registers.epoch();
        if let Some(promise) = out.promise.take() {
            self.system.promised.insert(own, promise);
        }
        if epoch != before && epoch != 0 {
            self.stats.count("activations", 1);
            self.note(&[5, epoch], || format!("{own} is active in epoch {epoch}"));
        }
        self.look_at_epoch(number, epoch, start);
        let gate = gate();
        let mut packets = Vec::new();
        out.drain(|to, packet| {
            let to = match to {
                switch_host::ToWhom::Server(node) => Host::Server(*node),
                switch_host::ToWhom::Client(address) => host_at(*address),
            };
            gate.sign(packet);
            packets.push((to, packet.to_vec()));
        });
        for (to, packet) in packets {
            self.send(own, to, packet);
        }
        self.sleep(own, due);
    }

    fn look_at_epoch(&mut self, number: u8, epoch: u64, start: u64) {
        if epoch == 0 {
            return;
        }
        let granted = self.system.granted.get(&epoch).map_or(0, |by| by.len());
        if granted < self.system.majority() {
            let what =
                format!("switch/{number} is active in {epoch}, granted by {granted} servers");
            self.broken(Invariant::OwnedEpochs, what);
        }
        let user = *self.system.used.entry(epoch).or_insert((number, start));
        if user != (number, start) {
            let what = format!(
                "switch/{number} is active in {epoch}, as was switch/{}",
                user.0
            );
            self.broken(Invariant::OwnedEpochs, what);
        }
    }

    /// Adds up the counters of the roles.
    pub(super) fn count_all(&mut self) {
        for number in 0..SWITCHES {
            let Some(Some(switch)) = self.system.switch.get(&number) else {
                continue;
            };
            let (sessions, refused) = (switch.host.sessions(), switch.host.epochs_refused());
            self.stats.count("sessions at the end", sessions as u64);
            self.stats.count("epochs refused", refused);
        }
        let servers = self.system.server.values().flatten();
        let refused: u64 = servers.map(|server| server.host.epochs_refused()).sum();
        self.stats.count("epochs refused", refused);
    }
}
