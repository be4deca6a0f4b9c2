//! The faults of the memory world.

use inband_memory::epoch::{AHEAD, EPOCHS, SERVERS_MAX, SWITCH_FIRST, SWITCH_LAST};
use inband_memory::lines::LINE_LEN_BYTES;
use inband_memory::registers::COUNT_BITS;
use inband_memory::server_host::Start;
use inband_memory::wire::{
    self, Header, EPOCH, F_ACTIVATE, F_TO_GRANT, GRANT, HELLO, READ, WRITE, WRITE_BACK,
};

use super::hosts::gate;
use super::{Event, Host, Invariant, Memory, CHUNKS, CLIENTS, LINES, MS, SWITCHES};
use crate::links::TypeRates;
use crate::{listed, Rates, Strike, Time, World};

listed! {
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Fault, said by name {
        CutOneWay = "cut-one-way",
        CutBothWays = "cut-both-ways",
        SwitchCutFromServers = "switch-cut-from-servers",
        ClientCutFromSwitch = "client-cut-from-switch",
        ServerPaused = "server-paused",
        SwitchPaused = "switch-paused",
        ClientPaused = "client-paused",
        /// The client's program computes and takes no packets.
        ClientComputes = "client-computes",
        ProcessPaused = "process-paused",
        ServerRestarted = "server-restarted",
        ServerGone = "server-gone",
        /// It loses its promise too, and another server takes its place.
        ServerReplaced = "server-replaced",
        SwitchRestarted = "switch-restarted",
        SwitchGone = "switch-gone",
        ClientRestarted = "client-restarted",
        PacketsLost = "packets-lost",
        PacketsRepeated = "packets-repeated",
        PacketsLate = "packets-late",
        PacketsDamaged = "packets-damaged",
        /// It stored promises at many starts in which it reached no server.
        SwitchRestartedOften = "switch-restarted-often",
        ServerRestartedOften = "server-restarted-often",
        /// A packet of somebody else, with an epoch or a timestamp from the upper half of all.
        ForeignEpoch = "foreign-epoch",
        /// Most packets of one type are lost, or arrive after their receiver has timed out.
        OneTypeLate = "one-type-late",
    }
}

/// Slow hosts: mean time that a host runs between two waits for a CPU.
const RUNS_NS: Time = 100 * MS;
/// Maximum wait; half of the waits are shorter than an eighth of it.
const WAITS_MAX_NS: Time = 40 * MS;

impl World<Memory> {
    /// Makes all hosts wait for a CPU again and again.
    pub(super) fn slow_down(&mut self) {
        let clients = (0..CLIENTS).map(Host::Client);
        for host in self.processes().into_iter().chain(clients) {
            let runs = self.rng.faults.wait(RUNS_NS);
            self.after(runs, Event::Wait(host));
        }
    }

    /// Makes a host, including its role in user space, wait for a CPU, and plans the next wait.
    pub(super) fn waits_for_cpu(&mut self, host: Host) {
        if !self.system.is_loaded {
            return;
        }
        let shorter = self.rng.faults.below(7);
        let lasts = (self.rng.faults.below(WAITS_MAX_NS) >> shorter).max(1);
        self.stand_still(host, lasts, false);
        self.stats.count("waits for a CPU", 1);
        let runs = self.rng.faults.wait(RUNS_NS);
        self.after(lasts + runs, Event::Wait(host));
    }

    /// Pauses a host. `computes`: the host is a client whose program does something else. Otherwise the client is
    /// stopped while it waits for packets, and notices only the part of the pause after its wait would have ended.
    fn stand_still(&mut self, host: Host, lasts: Time, computes: bool) {
        let until = self.now + lasts;
        self.pause(host, until);
        if let Host::Client(number) = host {
            self.client_is_away(number, computes);
            self.at(until, Event::Back(host));
        }
    }

    fn any_server(&mut self) -> u8 {
        1 + self.rng.faults.below(self.system.servers.into()) as u8
    }

    fn any_switch(&mut self) -> u8 {
        self.rng.faults.below(SWITCHES.into()) as u8
    }

    fn any_client(&mut self) -> u8 {
        self.rng.faults.below(CLIENTS.into()) as u8
    }

    fn any_host(&mut self) -> Host {
        match self.rng.faults.below(5) {
            0..=1 => Host::Server(self.any_server()),
            2..=3 => Host::Switch(self.any_switch()),
            _ => Host::Client(self.any_client()),
        }
    }

    /// Returns whether a majority keeps its memory without this server.
    fn may_lose(&self, node: u8) -> bool {
        let servers = self.system.server.iter();
        let keep = servers.filter(|(n, server)| {
            **n != node
                && server
                    .as_ref()
                    .is_some_and(|server| server.host.is_serving())
        });
        keep.count() >= self.system.majority() && self.system.server[&node].is_some()
    }

    /// Raises what a host has promised, as starts that store it ahead and reach nobody do.
    fn skip_epochs(&mut self, host: Host) {
        let starts = self.rng.faults.between(80, 400);
        *self.system.promised.entry(host).or_default() += starts * AHEAD;
    }

    /// Sends a packet that no host of this memory sends: it has no session and no nonce that a host asked with.
    fn foreign_epoch(&mut self) {
        let rng = &mut self.rng.faults;
        let node = match rng.below(2) {
            0 => rng.between(1, SERVERS_MAX.into()),
            _ => rng.between(SWITCH_FIRST.into(), SWITCH_LAST.into()),
        };
        // Often the last one but few: there are epochs above it to propose.
        let behind = [0, 3, rng.below(EPOCHS / 64)][rng.below(3) as usize];
        let last = EPOCHS / 32 - 1;
        let epoch = (last - behind) * 32 + node;
        let kinds = [
            HELLO,
            READ,
            WRITE,
            WRITE_BACK,
            GRANT,
            EPOCH,
            wire::WELCOME,
            wire::REFUSED,
        ];
        let kind = *rng.pick(&kinds).expect("some");
        let flags = match kind {
            HELLO => [0, F_ACTIVATE][rng.below(2) as usize],
            EPOCH => [0, F_TO_GRANT][rng.below(2) as usize],
            _ => 0,
        };
        let n = rng.below(LINES.into());
        let mut header = Header {
            kind,
            flags,
            node: node as u16,
            epoch,
            session: rng.next_u64(),
            request: rng.next_u64(),
            chunk: rng.below(CHUNKS),
            timestamp: epoch << COUNT_BITS,
            lines: 1 << n,
            ..Header::default()
        };
        let is_current = rng.below(2) == 0;
        let server = self.any_server();
        if let (Some(server), true) = (&self.system.server[&server], is_current) {
            if [WRITE, WRITE_BACK].contains(&kind) {
                // Only the timestamp is of the future.
                header.epoch = server.role.registers().epoch().max(1);
            }
        }
        let mut value = Vec::new();
        if kind == WRITE_BACK {
            value.extend_from_slice(&header.timestamp.to_be_bytes());
        }
        if [WRITE, WRITE_BACK].contains(&kind) {
            value.resize(value.len() + LINE_LEN_BYTES, 0xff);
        }
        let (switch, client) = (self.any_switch(), self.any_client());
        let (from, to) = match kind {
            READ | WRITE | WRITE_BACK | GRANT => (Host::Switch(switch), Host::Server(server)),
            HELLO => (Host::Client(client), Host::Switch(switch)),
            EPOCH => (Host::Server(server), self.any_host()),
            _ => (Host::Switch(switch), Host::Client(client)),
        };
        let mut packet = Vec::new();
        wire::emit(&header, &value, &mut packet);
        gate().sign(&mut packet);
        self.send(from, to, packet);
    }

    /// Checks that epochs of foreign packets got nowhere.
    pub(super) fn check_epochs(&mut self) {
        let servers = self.system.server.iter().filter_map(|(node, server)| {
            Some((
                Host::Server(*node),
                server.as_ref()?.role.registers().epoch(),
            ))
        });
        let promised = self
            .system
            .promised
            .iter()
            .map(|(host, epoch)| (*host, *epoch));
        let used_up = servers
            .chain(promised)
            .find(|(_, epoch)| *epoch >= EPOCHS / 2);
        if let Some((host, epoch)) = used_up {
            let what = format!("{host} has epoch {epoch} of {EPOCHS}");
            self.broken(Invariant::EpochsLeft, what);
        }
    }

    pub(super) fn strike(&mut self, fault: Fault, lasts: Time) -> Option<Strike<Memory>> {
        let server = self.any_server();
        let switch = self.any_switch();
        let client = self.any_client();
        match fault {
            Fault::CutOneWay => {
                let (a, b) = (self.any_host(), self.any_host());
                self.cut(vec![(a, b)])
            }
            Fault::CutBothWays => {
                let (a, b) = (self.any_host(), self.any_host());
                self.cut(vec![(a, b), (b, a)])
            }
            Fault::SwitchCutFromServers => {
                let switch = Host::Switch(switch);
                let servers = (1..=self.system.servers).map(Host::Server);
                self.cut(servers.flat_map(|s| [(switch, s), (s, switch)]).collect())
            }
            Fault::ClientCutFromSwitch => {
                let (client, switch) = (Host::Client(client), Host::Switch(switch));
                self.cut(vec![(client, switch), (switch, client)])
            }
            Fault::ServerPaused => self.pause_for(Host::Server(server), lasts),
            Fault::SwitchPaused => self.pause_for(Host::Switch(switch), lasts),
            Fault::ClientPaused | Fault::ClientComputes => {
                self.stand_still(Host::Client(client), lasts, fault == Fault::ClientComputes);
                Strike::for_a_while()
            }
            Fault::ProcessPaused => {
                let host = match self.rng.faults.below(2) {
                    0 => Host::Server(server),
                    _ => Host::Switch(switch),
                };
                let until = self.now + lasts;
                self.system.process_paused_until.insert(host, until);
                Strike::for_a_while()
            }
            Fault::ServerRestarted
            | Fault::ServerGone
            | Fault::ServerReplaced
            | Fault::ServerRestartedOften
                if !self.may_lose(server) =>
            {
                None
            }
            Fault::ServerRestarted => {
                self.stop(Host::Server(server));
                self.start_server(server, Start::Recover);
                Some(Strike::Once)
            }
            Fault::ServerGone => {
                self.stop(Host::Server(server));
                Strike::until(move |world| world.start_server(server, Start::Recover))
            }
            Fault::ServerReplaced => {
                self.stop(Host::Server(server));
                self.system.promised.remove(&Host::Server(server));
                self.system.replaced.insert(server);
                Strike::until(move |world| world.start_server(server, Start::Recover))
            }
            Fault::SwitchRestarted | Fault::SwitchGone if self.system.switch[&switch].is_none() => {
                None
            }
            Fault::SwitchRestarted => {
                self.stop(Host::Switch(switch));
                self.start_switch(switch);
                Some(Strike::Once)
            }
            Fault::SwitchGone => {
                self.stop(Host::Switch(switch));
                Strike::until(move |world| world.start_switch(switch))
            }
            Fault::SwitchRestartedOften if self.system.switch[&switch].is_none() => None,
            Fault::SwitchRestartedOften => {
                self.stop(Host::Switch(switch));
                self.skip_epochs(Host::Switch(switch));
                self.start_switch(switch);
                Some(Strike::Once)
            }
            Fault::ServerRestartedOften => {
                self.stop(Host::Server(server));
                self.skip_epochs(Host::Server(server));
                self.start_server(server, Start::Recover);
                Some(Strike::Once)
            }
            Fault::ForeignEpoch => {
                self.foreign_epoch();
                Some(Strike::Once)
            }
            Fault::ClientRestarted => {
                self.start_client(client);
                Some(Strike::Once)
            }
            Fault::PacketsLost => self.raise_rates(Rates::MANY_LOST),
            Fault::PacketsRepeated => self.raise_rates(Rates::MANY_REPEATED),
            Fault::PacketsLate => self.raise_rates(Rates::MANY_LATE),
            Fault::OneTypeLate => {
                let rates = TypeRates {
                    kind: self.rng.faults.between(HELLO.into(), EPOCH.into()) as u8,
                    loss_ppm: 300_000,
                    hold_up_ppm: 800_000,
                };
                self.raise_type_rates(self.fault_number(), rates)
            }
            Fault::PacketsDamaged => self.raise_rates(Rates::MANY_DAMAGED),
        }
    }
}
