//! The world's switches: packets go through the real role, and at most one switch may serve.

use std::net::{Ipv4Addr, SocketAddrV4};

use inband_flair::dataplane::registers::SessionView;
use inband_flair::dataplane::wire;
use inband_flair::dataplane::{FlairSwitch, Verdict};
use inband_paxos::dataplane::wire::PACKET_LEN_MAX_BYTES;

use crate::flair::host::Host;
use crate::flair::invariant::Invariant;
use crate::flair::mutation::session_of;
use crate::flair::trace::Happened;
use crate::flair::{counts, World};

/// Every host's port.
const PORT: u16 = 7400;

fn address(host: Host) -> SocketAddrV4 {
    let (kind, number) = match host {
        Host::Replica(n) => (1, n),
        Host::Switch(n) => (2, n),
        Host::Client(n) => (3, n),
    };
    SocketAddrV4::new(Ipv4Addr::new(10, 0, kind, number), PORT)
}

impl World {
    pub fn switch(&self, number: u8) -> Option<&FlairSwitch> {
        self.system.switches[usize::from(number)].as_ref()
    }

    pub fn session(&self, number: u8) -> SessionView {
        self.switch(number).map(session_of).unwrap_or_default()
    }

    /// Switches that serve a session now.
    pub fn active(&self) -> Vec<u8> {
        let is_active = |number: &u8| {
            let now = self.local(Host::Switch(*number));
            let switch = self.system.switches[usize::from(*number)].as_ref();
            switch.is_some_and(|switch| session_of(switch).is_active(now))
        };
        (0..self.system.layout.switches).filter(is_active).collect()
    }

    pub(super) fn at_switch(&mut self, from: Host, number: u8, mut bytes: Vec<u8>) {
        let own = Host::Switch(number);
        let now_ns = self.local(own);
        let random = self.rng.links.next_u64();
        let Some(switch) = &self.system.switches[usize::from(number)] else {
            return;
        };
        let Ok((mut header, key, data)) = wire::parse(&bytes) else {
            return self.broken(Invariant::WellFormed, "a packet to a switch is none");
        };
        if let Some(mutation) = self.system.mutation {
            let (key, data) = (key.to_vec(), data.to_vec());
            let (groups, replicas) = (self.system.layout.groups, self.system.layout.replicas);
            mutation.at_switch(switch, &mut header, groups, replicas, now_ns);
            bytes.clear();
            wire::emit(&header, &key, &data, &mut bytes);
        }
        let mut buffer = [0; PACKET_LEN_MAX_BYTES];
        buffer[..bytes.len()].copy_from_slice(&bytes);
        let source = address(from);
        let (verdict, _, len) = switch.handle(&mut buffer, bytes.len(), source, now_ns, random);
        let to = match verdict {
            Verdict::Drop | Verdict::Pass => return,
            Verdict::Reply => from,
            Verdict::ToReplica { replica, .. } => Host::Replica(replica as u8),
            Verdict::ToClient(client) => Host::Client(client.ip().octets()[3]),
        };
        if header.kind == wire::Type::Heartbeat {
            self.look_at_switches(number);
        }
        self.send_bytes(own, to, buffer[..len].to_vec());
    }

    /// After a heartbeat was accepted: at most one switch may serve.
    fn look_at_switches(&mut self, number: u8) {
        let active = self.active();
        let is_in_time = |switch: &&u8| !self.system.suspended.contains(switch);
        if active.iter().filter(is_in_time).count() > 1 {
            let sessions: Vec<u64> = active
                .iter()
                .filter_map(|n| self.system.switches[usize::from(*n)].as_ref())
                .map(|switch| session_of(switch).session)
                .collect();
            let what = format!("switches {active:?} serve sessions {sessions:?}");
            self.broken(Invariant::OneSwitchServes, what);
        }
        if let Some(switch) = &self.system.switches[usize::from(number)] {
            let session = session_of(switch).session;
            let last = &mut self.system.active[usize::from(number)];
            if active.contains(&number) && *last != session {
                *last = session;
                self.stats.count(counts::ACTIVATIONS, 1);
                let active = Happened::Active(Host::Switch(number), session);
                self.trace.note(self.now, active);
            }
        }
    }
}
