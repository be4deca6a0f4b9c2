//! The roles as XDP programs on a network interface of this host.
//!
//! [`XdpHost::load`] loads the programs, links them and attaches them; they are detached when it is dropped or its
//! process dies. Registers are mapped into this process, with the same types and the same atomic steps as the soft
//! switch's.
//!
//! Packets that the roles do not handle reach the host's ordinary UDP socket, bound to [`XdpSpec::address`].

pub(crate) mod programs;
pub mod rig;

use std::collections::BTreeMap;
use std::net::SocketAddrV4;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use inband_ground::auth::Keys;
use inband_ground::xdp::attach::Attachment;
use inband_ground::xdp::loopback::Loopback;
use inband_ground::xdp::lost::{self, Lost};
use inband_ground::xdp::multicast::{check_peers, Multicast, Uplink};
use inband_ground::xdp::{wire_address, wire_port, XdpError, XdpMode};

use super::c;
use super::soft::{Geometry, Registers, Roles};
use programs::{Build, Programs};

pub use inband_ground::xdp::multicast::{Peer, Unresolved};

/// What to load.
#[derive(Debug, Clone)]
pub struct XdpSpec {
    /// This host's node id, 1..=254.
    pub node: u8,
    /// The roles that run as XDP programs.
    pub roles: Roles,
    /// Sizes of the registers.
    pub geometry: Geometry,
    /// This host's address as known to its peers. Only UDP packets to this address are Inband's.
    pub address: SocketAddrV4,
    /// The interface with that address.
    pub interface: String,
    /// Native or generic.
    pub mode: XdpMode,
    /// Destinations of a leader's PHASE2A.
    pub acceptors: Vec<Peer>,
    /// Destinations of an acceptor's PHASE2B.
    pub learners: Vec<Peer>,
    /// Size of the ring buffer of decided values: a power of two, at least 64 KiB.
    pub ring_buffer_bytes: usize,
    /// Create the loopback pair even if no peer is local, for [`XdpHost::send_local`].
    pub loopback: bool,
    /// With keys, packets without a valid tag are dropped, and outgoing packets carry one.
    pub keys: Option<Keys>,
}

/// A host's roles, running as XDP programs. Dropping it detaches them.
pub struct XdpHost {
    // Attachments are dropped before the programs' maps, the loopback pair (in `multicast`) last.
    attachments: Vec<Attachment>,
    /// Counts sent packets that did not leave the host; `None`: this kernel does not report it.
    lost: Option<Lost>,
    programs: Programs,
    spec: XdpSpec,
    multicast: Multicast,
}

impl XdpSpec {
    fn check(&self) -> Result<(), XdpError> {
        let no = |message: String| Err(XdpError::Spec(message));
        if self.node == 0 || self.node == u8::MAX {
            return no(format!("node {} is not one of 1..=254", self.node));
        }
        check_peers("acceptors", &self.acceptors, c::IB_ACCEPTORS_MAX as usize)?;
        check_peers("learners", &self.learners, c::IB_LEARNERS_MAX as usize)?;
        let bytes = self.ring_buffer_bytes;
        let min = programs::RING_BUFFER_MIN_BYTES;
        if !bytes.is_power_of_two() || bytes < min || bytes > 1 << 30 {
            return no(format!(
                "a ring buffer of {bytes} bytes is not a power of two from {min} to {}",
                1 << 30
            ));
        }
        Ok(())
    }

    fn peers(&self) -> impl Iterator<Item = &Peer> {
        self.acceptors.iter().chain(&self.learners)
    }

    fn groups(&self) -> [(u32, &[Peer]); 2] {
        [
            (c::IB_PAXOS_ACCEPTORS_GROUP, &self.acceptors),
            (c::IB_PAXOS_LEARNERS_GROUP, &self.learners),
        ]
    }

    fn needs_loopback(&self) -> bool {
        self.loopback || self.peers().any(|p| p.local)
    }
}

impl XdpHost {
    /// Loads the programs and attaches them.
    pub fn load(spec: XdpSpec) -> Result<XdpHost, XdpError> {
        spec.check()?;
        spec.geometry.validate().map_err(XdpError::Spec)?;
        let uplink = Uplink::open(&spec.interface, spec.address, spec.mode)?;
        let loopback = if spec.needs_loopback() {
            Some(Loopback::create(&uplink.netlink, spec.node, spec.address)?)
        } else {
            None
        };
        let build = Build {
            roles: spec.roles,
            geometry: spec.geometry,
            settings: spec.geometry.settings(c::ib_settings {
                node: u32::from(spec.node),
                partitions: spec.geometry.partitions as u32,
                address: wire_address(spec.address),
                loop_ifindex: loopback.as_ref().map_or(0, |l| l.near.index),
                generic: u32::from(spec.mode == XdpMode::Generic),
                port: wire_port(spec.address),
                authenticated: u16::from(spec.keys.is_some()),
            }),
            ring_buffer_bytes: spec.ring_buffer_bytes,
        };
        let programs = Programs::load(&build, None)?;
        if let Some(keys) = &spec.keys {
            programs.set_keys(keys)?;
        }
        let pair = loopback.iter().flat_map(|l| [l.near.index, l.far.index]);
        let interfaces: Vec<u32> = [uplink.link.index].into_iter().chain(pair).collect();
        let maps = programs.group_maps()?;
        let multicast = Multicast::new(maps, uplink, loopback, &spec.groups())?;
        let mut host = XdpHost {
            attachments: Vec::new(),
            lost: Lost::count_or_warn(&interfaces),
            programs,
            spec,
            multicast,
        };
        host.attach()?;
        Ok(host)
    }

    /// Changes the multicast groups. Packets sent during the change may miss some members; a member whose hardware
    /// address was known is reached without interruption. Must be called in the interface's network namespace, as
    /// [`XdpHost::load`].
    pub fn set_groups(
        &mut self,
        acceptors: Vec<Peer>,
        learners: Vec<Peer>,
    ) -> Result<(), XdpError> {
        let mut spec = self.spec.clone();
        (spec.acceptors, spec.learners) = (acceptors, learners);
        spec.check()?;
        self.multicast.set_groups(&spec.groups())?;
        self.spec = spec;
        Ok(())
    }

    fn attach(&mut self) -> Result<(), XdpError> {
        for (link, name, mode) in self.multicast.links() {
            if let Some(generic) = &self.programs.generic {
                self.attachments
                    .push(Attachment::tc_ingress(&generic.program, link.index, name)?);
            }
            let program = &self.programs.entry().program;
            self.attachments
                .push(Attachment::xdp(program, link.index, name, mode)?);
        }
        Ok(())
    }

    /// Replaces the keys. Has no effect if there were none at the start.
    pub fn set_keys(&mut self, keys: Keys) -> Result<(), XdpError> {
        if self.spec.keys.is_some() {
            self.programs.set_keys(&keys)?;
            self.spec.keys = Some(keys);
        }
        Ok(())
    }

    /// Returns the registers, shared with the programs; they may outlive the programs.
    pub fn registers(&self) -> &Arc<Registers> {
        &self.programs.registers
    }

    /// Non-zero counters by name, summed over the CPUs.
    pub fn counters(&self) -> Result<BTreeMap<&'static str, u64>, XdpError> {
        let mut counters = self.programs.counters()?;
        lost::add(&self.lost, &mut counters)?;
        Ok(counters)
    }

    /// Passes each decided packet (PHASE2B, header and value) to `deliver`, without waiting. Returns how many there
    /// were.
    pub fn decided(&mut self, deliver: impl FnMut(&[u8])) -> usize {
        self.programs.up.as_mut().map_or(0, |up| up.poll(deliver))
    }

    /// Sets whether this process polls [`decided`](Self::decided) in a loop. While it does, it is not woken through
    /// [`decided_fd`](Self::decided_fd), which saves an interrupt per value. After setting `false`, call `decided` once
    /// more before waiting: earlier packets cause no wake-up.
    pub fn set_polling(&self, polling: bool) {
        if let Some(word) = &self.programs.polling {
            word.set(0, u64::from(polling));
        }
    }

    /// Returns whether [`decided`](Self::decided) would deliver something now.
    pub fn has_decided(&self) -> bool {
        self.programs.up.as_ref().is_some_and(|up| up.has_record())
    }

    /// Returns a descriptor that is readable when [`decided`](Self::decided) has something; works with level- and
    /// edge-triggered epoll. `None` without the quorum role.
    pub fn decided_fd(&self) -> Option<BorrowedFd<'_>> {
        self.programs.up.as_ref().map(|up| up.fd())
    }

    /// Memory of the maps in bytes.
    pub fn memory_bytes(&self) -> usize {
        self.programs.memory_bytes()
    }

    pub fn spec(&self) -> &XdpSpec {
        &self.spec
    }

    /// Looks up the peers' hardware addresses in the kernel's tables, and has the kernel resolve or confirm them. Call
    /// until it returns nothing, and about every second from then on. Returns the unresolved peers; one that was
    /// resolved before keeps its address.
    pub fn refresh_neighbours(&mut self) -> Result<Vec<Unresolved>, XdpError> {
        self.multicast.refresh_neighbours()
    }

    /// Passes a packet of this process to this host's own roles. Answers arrive at the UDP socket bound to
    /// [`XdpSpec::address`], as if sent by itself.
    pub fn send_local(&self, packet: &[u8]) -> Result<(), XdpError> {
        self.multicast
            .loopback()
            .ok_or(XdpError::NoLoopback)?
            .send(packet)
    }
}
