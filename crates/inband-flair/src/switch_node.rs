//! A FLAIR switch on real packets: the role in this process, or its program in the kernel.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddrV4;
use std::os::fd::RawFd;
use std::time::Duration;

use crate::dataplane::registers::SessionView;
use crate::dataplane::xdp::{
    allow_forwarding, forward_of, may_look_up_clients, FlairXdp, FlairXdpSpec,
};
use crate::dataplane::{FlairGeometry, FlairRegisters, FlairSwitch, Verdict};
use inband_ground::auth::{Gate, Keys};
use inband_ground::socket::HostSocket;
use inband_ground::wire::PACKET_LEN_MAX_BYTES;
use inband_ground::xdp::{XdpError, XdpMode};
use inband_host::backend::{self, Place};
use inband_host::config::Dataplane;
use inband_host::key_file::KeyFile;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::clock::boot_time_ns;
use crate::config::{Config, Part};

/// Packets handled per [`SwitchNode::poll`].
const BATCH_PACKETS: usize = 64;
/// Maximum sleep; there is nothing to do unless packets arrive.
const IDLE_MAX: Duration = Duration::from_millis(100);
/// Interval of neighbour refreshes once all replicas are resolved.
const REFRESH_NS: u64 = 1_000_000_000;
/// Interval until then.
const RESOLVE_NS: u64 = 2_000_000;

/// Why a switch cannot run.
#[derive(Debug, thiserror::Error)]
pub enum SwitchError {
    /// The configuration is that of another kind of host.
    #[error("{0} is not a switch; start it in its own role")]
    OtherPart(String),
    /// Its address cannot be bound.
    #[error(
        "cannot receive packets at {address}: {source}; is it an address of this host, and free?"
    )]
    Address {
        address: SocketAddrV4,
        source: io::Error,
    },
    #[error("cannot receive packets: {0}")]
    Socket(io::Error),
    /// The program cannot be loaded.
    #[error(transparent)]
    Xdp(#[from] XdpError),
    /// The configuration lacks an interface.
    #[error("host.interface is missing: dataplane {0} attaches to an interface")]
    NoInterface(Dataplane),
}

/// Where the role runs.
enum Backend {
    /// In this process.
    Soft(FlairSwitch),
    /// In the kernel. The process receives only packets that the program could not address.
    Kernel(Box<FlairXdp>),
}

pub struct SwitchNode {
    socket: HostSocket,
    /// Used only if the role runs in this process; the program in the kernel checks tags itself.
    gate: Gate,
    backend: Backend,
    dataplane: Dataplane,
    node: u8,
    /// Indexed by set and number.
    replicas: Vec<Vec<SocketAddrV4>>,
    geometry: FlairGeometry,
    /// Chooses replicas; not security-relevant.
    random: SmallRng,
    lost: u64,
    /// When to refresh the kernel's neighbours next.
    refresh_at_ns: u64,
}

impl SwitchNode {
    /// Binds the switch's address and attaches its program if it runs in the kernel. The switch starts without any
    /// session. With `keys`, packets without a valid tag are dropped.
    pub fn open(config: &Config, keys: Option<&KeyFile>) -> Result<SwitchNode, SwitchError> {
        let Some(Part::Switch(number)) = config.part() else {
            return Err(SwitchError::OtherPart(config.host.name.clone()));
        };
        let keys = keys.map(KeyFile::keys);
        let address = config.cluster.switches[number].address;
        let socket =
            HostSocket::bind(address).map_err(|source| SwitchError::Address { address, source })?;
        let geometry = FlairGeometry {
            sets: config.cluster.sets(),
            groups: config.cluster.groups as usize,
        };
        // 0 means "unknown" in packets.
        let incarnation = rand::random::<u64>().max(1);
        let node = Part::Switch(number).node();
        let cluster = &config.cluster;
        let address_of = |place: usize| cluster.replicas[place].address;
        let members = |set| cluster.places(set).into_iter().map(address_of).collect();
        let replicas: Vec<Vec<_>> = (0..geometry.sets as u16).map(members).collect();
        let host = &config.host;
        let spec = |mode, interface: &str, address| FlairXdpSpec {
            node,
            geometry,
            incarnation,
            address,
            interface: interface.into(),
            mode,
            replicas: replicas.clone(),
            keys,
        };
        let place = host.interface.as_deref().map(|interface| Place {
            interface,
            address,
            peers: replicas.iter().flatten().map(|to| *to.ip()).collect(),
        });
        let choice = backend::resolve(host.dataplane, place.as_ref(), |mode, trial| {
            let interface = host.interface.as_deref().unwrap_or_default();
            // A data plane chosen by name is loaded below, without a trial.
            match host.dataplane {
                Dataplane::Auto => FlairXdp::load(spec(mode, interface, trial)).map(drop),
                _ => Ok(()),
            }
        })?;
        let dataplane = choice.dataplane;
        tracing::info!("{}: dataplane {dataplane} ({})", host.name, choice.why);
        let mode = match dataplane {
            Dataplane::Xdp => Some(XdpMode::Native),
            Dataplane::XdpGeneric => Some(XdpMode::Generic),
            Dataplane::Udp | Dataplane::Auto => None,
        };
        let backend = match mode {
            None => Backend::Soft(FlairSwitch::new(node, geometry, incarnation)),
            Some(mode) => {
                let interface = host.interface.clone();
                let interface = interface.ok_or(SwitchError::NoInterface(dataplane))?;
                if !may_look_up_clients(&interface) {
                    allow_forwarding(&interface)?;
                }
                Backend::Kernel(Box::new(FlairXdp::load(spec(mode, &interface, address))?))
            }
        };
        Ok(SwitchNode {
            socket,
            gate: Gate::of::<crate::dataplane::Flair>(keys, geometry.sets),
            backend,
            dataplane,
            node,
            replicas,
            geometry,
            random: SmallRng::seed_from_u64(incarnation),
            lost: 0,
            refresh_at_ns: 0,
        })
    }

    /// Handles packets that have arrived. Returns whether there may be more.
    pub fn poll(&mut self) -> Result<bool, SwitchError> {
        self.refresh_neighbours()?;
        let mut buffer = [0; PACKET_LEN_MAX_BYTES + 1];
        for _ in 0..BATCH_PACKETS {
            let received = self.socket.receive(&mut buffer);
            let received = received.map_err(SwitchError::Socket)?;
            let Some((len_bytes, from)) = received else {
                return Ok(false);
            };
            if len_bytes <= PACKET_LEN_MAX_BYTES {
                self.handle(&mut buffer, len_bytes, from);
            }
        }
        Ok(true)
    }

    /// Refreshes the kernel's neighbours: often until all are resolved, and periodically after that.
    fn refresh_neighbours(&mut self) -> Result<(), SwitchError> {
        let now_ns = boot_time_ns();
        if let Backend::Kernel(xdp) = &mut self.backend {
            if now_ns >= self.refresh_at_ns {
                let unknown = xdp.refresh_neighbours()?.len();
                let wait_ns = if unknown == 0 { REFRESH_NS } else { RESOLVE_NS };
                self.refresh_at_ns = now_ns + wait_ns;
            }
        }
        Ok(())
    }

    fn handle(
        &mut self,
        buffer: &mut [u8; PACKET_LEN_MAX_BYTES + 1],
        len_bytes: usize,
        from: SocketAddrV4,
    ) {
        if !self.gate.admits(&buffer[..len_bytes]) {
            return;
        }
        let random = self.random.random();
        let packet = buffer.first_chunk_mut().expect("it is longer");
        let (to, len_bytes) = match &self.backend {
            Backend::Soft(switch) => {
                // Read the clock after the packet was received. An earlier time could accept a reply that arrived after
                // the session's end.
                let now_ns = boot_time_ns();
                let (verdict, _, len_bytes) =
                    switch.handle(packet, len_bytes, from, now_ns, random);
                (address_of(verdict, from, &self.replicas), len_bytes)
            }
            Backend::Kernel(_) => (forward_of(&packet[..len_bytes], self.node), len_bytes),
        };
        if let Some(to) = to {
            let packet = &mut packet[..len_bytes];
            self.gate.sign(packet);
            self.lost += u64::from(!self.socket.send(packet, to));
        }
    }

    /// Replaces the keys. Has no effect if there were none at start.
    pub fn set_keys(&mut self, keys: Keys) -> Result<(), SwitchError> {
        self.gate.set_keys(keys);
        if let Backend::Kernel(xdp) = &mut self.backend {
            xdp.set_keys(&keys)?;
        }
        Ok(())
    }

    /// Returns the socket, for `poll(2)`.
    pub fn fd(&self) -> RawFd {
        self.socket.fd()
    }

    /// Maximum sleep before the next [`SwitchNode::poll`].
    pub fn poll_timeout(&self) -> Duration {
        match &self.backend {
            Backend::Soft(_) => IDLE_MAX,
            Backend::Kernel(_) => {
                let due_ns = self.refresh_at_ns.saturating_sub(boot_time_ns());
                Duration::from_nanos(due_ns).min(IDLE_MAX)
            }
        }
    }

    pub fn dataplane(&self) -> Dataplane {
        self.dataplane
    }

    /// Returns the number of replica sets.
    pub fn sets(&self) -> usize {
        self.geometry.sets
    }

    /// Returns the session of a set, and whether it is active now.
    pub fn session(&self, set: usize) -> (SessionView, bool) {
        let session = self.registers().sessions.session(set).unwrap_or_default();
        (session, session.is_active(boot_time_ns()))
    }

    /// Returns the number of unstable key groups of a set, that is, groups with a write in flight.
    pub fn unstable_groups(&self, set: usize) -> u64 {
        let (session, _) = self.session(set);
        let first = set * self.geometry.groups;
        let groups = first..first + self.geometry.groups;
        let group = |index| self.registers().groups.group(index);
        groups
            .filter_map(group)
            .filter(|group| group.session == session.session && group.session != 0 && !group.stable)
            .count() as u64
    }

    fn registers(&self) -> &FlairRegisters {
        match &self.backend {
            Backend::Soft(switch) => switch.registers(),
            Backend::Kernel(xdp) => xdp.registers(),
        }
    }

    /// Returns all counters, by name.
    pub fn counters(&self) -> BTreeMap<&'static str, u64> {
        let mut counters = match &self.backend {
            Backend::Soft(switch) => switch.counters(),
            // The maps of a loaded program should always be readable; if not, report no counters.
            Backend::Kernel(xdp) => xdp.counters().unwrap_or_default(),
        };
        counters.insert("flair_packets_unsent", self.lost);
        for (name, count) in self.gate.counters() {
            *counters.entry(name).or_default() += count;
        }
        counters
    }
}

/// Returns the destination of a packet that came from `from`.
fn address_of(
    verdict: Verdict,
    from: SocketAddrV4,
    replicas: &[Vec<SocketAddrV4>],
) -> Option<SocketAddrV4> {
    match verdict {
        Verdict::Drop | Verdict::Pass => None,
        Verdict::Reply => Some(from),
        Verdict::ToReplica { set, replica } => replicas.get(set)?.get(replica).copied(),
        Verdict::ToClient(client) => Some(client),
    }
}
