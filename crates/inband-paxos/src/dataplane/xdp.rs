//! The roles as XDP programs on a network interface of this host.
//!
//! [`XdpHost::load`] loads the programs, ties them together and attaches them; they are detached
//! when it is dropped or its process dies. Registers are mapped into this process: the same type, and
//! the same atomic steps, as the soft switch's.
//!
//! Packets that the roles do not handle reach the host's ordinary UDP socket, bound to
//! [`XdpSpec::address`].

pub(crate) mod programs;
pub mod rig;

use std::collections::BTreeMap;
use std::net::SocketAddrV4;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use inband_ground::auth::Keys;
use inband_ground::xdp::attach::{self, Attachment};
use inband_ground::xdp::error::Doing;
use inband_ground::xdp::loopback::Loopback;
use inband_ground::xdp::lost::{self, Lost};
use inband_ground::xdp::netlink::{LinkInfo, Netlink};
use inband_ground::xdp::{nobody, probe, resolve_into, wire_address, wire_port, XdpError, XdpMode};

use super::c;
use super::soft::{Geometry, Registers, Roles};
use programs::{Build, Programs};

/// A member of a multicast group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    /// Its node id.
    pub node: u8,
    /// Where it gets Inband's packets.
    pub address: SocketAddrV4,
    /// It is this very host: its copy goes through the loopback pair to the roles here.
    pub local: bool,
}

/// What to load.
#[derive(Debug, Clone)]
pub struct XdpSpec {
    /// This host's node id, 1..=254.
    pub node: u8,
    /// The roles that run as XDP programs.
    pub roles: Roles,
    /// Sizes of the registers.
    pub geometry: Geometry,
    /// This host's address as its peers know it. Only UDP packets to it are Inband's.
    pub address: SocketAddrV4,
    /// The interface that has the address.
    pub interface: String,
    /// Native or generic.
    pub mode: XdpMode,
    /// Where a leader's PHASE2A go.
    pub acceptors: Vec<Peer>,
    /// Where an acceptor's PHASE2B go.
    pub learners: Vec<Peer>,
    /// Size of the ring buffer of decided values: a power of two, at least 64 KiB.
    pub ring_buffer_bytes: usize,
    /// Make the loopback pair even if no peer is local, for [`XdpHost::send_local`].
    pub loopback: bool,
    /// With keys, packets without a right tag are dropped, and those that leave carry one.
    pub keys: Option<Keys>,
}

/// A peer whose hardware address is not known (yet); copies to it are dropped and counted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unresolved {
    /// The peer.
    pub peer: Peer,
    /// Why.
    pub why: String,
}

/// The remote members of a group and what is known of them.
struct Group {
    which: c::ib_xdp_group,
    peers: Vec<Peer>,
    current: c::ib_group,
}

/// Roles of this host, running as XDP programs. Dropping it detaches them.
pub struct XdpHost {
    // Attachments go before the programs' maps, the loopback pair last.
    attachments: Vec<Attachment>,
    /// What was sent and did not leave; `None`: this kernel does not say.
    lost: Option<Lost>,
    programs: Programs,
    groups: Vec<Group>,
    link: LinkInfo,
    netlink: Netlink,
    spec: XdpSpec,
    loopback: Option<Loopback>,
}

impl XdpSpec {
    fn check(&self) -> Result<(), XdpError> {
        let no = |message: String| Err(XdpError::Spec(message));
        if self.node == 0 || self.node == u8::MAX {
            return no(format!("node {} is not one of 1..=254", self.node));
        }
        let limits = [
            ("acceptors", &self.acceptors, c::IB_ACCEPTORS_MAX as usize),
            ("learners", &self.learners, c::IB_LEARNERS_MAX as usize),
        ];
        for (name, peers, limit) in limits {
            if peers.len() > limit {
                return no(format!(
                    "{} {name} are more than the limit of {limit}",
                    peers.len()
                ));
            }
            if peers.iter().filter(|p| p.local).count() > 1 {
                return no(format!(
                    "more than one of the {name} is local; a host has one of each"
                ));
            }
        }
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

    fn needs_loopback(&self) -> bool {
        self.loopback || self.peers().any(|p| p.local)
    }
}

impl XdpHost {
    /// Load the programs and attach them.
    pub fn load(spec: XdpSpec) -> Result<XdpHost, XdpError> {
        spec.check()?;
        spec.geometry.validate().map_err(XdpError::Spec)?;
        probe::check_kernel(spec.mode)?;
        let netlink = Netlink::open().doing("opening a netlink socket")?;
        let link = attach::find_link(&netlink, &spec.interface)?;
        attach::check_address(&spec.interface, *spec.address.ip())?;
        let loopback = if spec.needs_loopback() {
            Some(Loopback::create(&netlink, spec.node, spec.address)?)
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
        let groups = [
            (c::IB_PAXOS_ACCEPTORS_GROUP, &spec.acceptors),
            (c::IB_PAXOS_LEARNERS_GROUP, &spec.learners),
        ]
        .map(|(which, peers)| Group::new(which, peers, &spec, &link, loopback.as_ref()));
        let pair = loopback.iter().flat_map(|l| [l.near.index, l.far.index]);
        let interfaces: Vec<u32> = [link.index].into_iter().chain(pair).collect();
        let mut host = XdpHost {
            attachments: Vec::new(),
            lost: Lost::count_or_warn(&interfaces),
            programs,
            groups: groups.into(),
            link,
            netlink,
            spec,
            loopback,
        };
        host.fill_groups()?;
        host.refresh_neighbours()?;
        host.attach()?;
        Ok(host)
    }

    fn fill_groups(&self) -> Result<(), XdpError> {
        for group in &self.groups {
            let local = group.peers.iter().any(|p| p.local);
            let near = self.loopback.iter().filter(|_| local).map(|l| l.near.index);
            let remote = group.peers.iter().filter(|p| !p.local);
            let devices: Vec<u32> = remote.map(|_| self.link.index).chain(near).collect();
            let devices = match self.spec.mode {
                XdpMode::Native => &devices[..],
                XdpMode::Generic => &[],
            };
            self.programs
                .set_members(group.which, &group.current, devices)?;
        }
        Ok(())
    }

    /// Send to other members from now on. What is sent while this changes may miss some of them; a
    /// member whose hardware address was known is addressed without a break. To be called in the
    /// interface's network namespace, as [`XdpHost::load`].
    pub fn set_groups(
        &mut self,
        acceptors: Vec<Peer>,
        learners: Vec<Peer>,
    ) -> Result<(), XdpError> {
        let mut spec = self.spec.clone();
        (spec.acceptors, spec.learners) = (acceptors, learners);
        spec.check()?;
        if spec.needs_loopback() && self.loopback.is_none() {
            return Err(XdpError::NoLoopback);
        }
        let known: Vec<c::ib_member> = self.groups.iter().flat_map(Group::known).collect();
        let members = [
            (c::IB_PAXOS_ACCEPTORS_GROUP, &spec.acceptors),
            (c::IB_PAXOS_LEARNERS_GROUP, &spec.learners),
        ];
        let groups = members.map(|(which, peers)| {
            let mut group = Group::new(which, peers, &spec, &self.link, self.loopback.as_ref());
            group.take_addresses(&known);
            group
        });
        (self.groups, self.spec) = (groups.into(), spec);
        self.fill_groups()?;
        self.refresh_neighbours()?;
        Ok(())
    }

    /// The loopback pair first, so that nothing is sent to a link without a program.
    ///
    /// The pair is native in either mode: generic XDP skips packets that tc has redirected.
    fn attach(&mut self) -> Result<(), XdpError> {
        let native = XdpMode::Native;
        let pair = self.loopback.iter().flat_map(|l| {
            [
                (&l.near, &l.near_name, native),
                (&l.far, &l.far_name, native),
            ]
        });
        let links = pair.chain([(&self.link, &self.spec.interface, self.spec.mode)]);
        for (link, name, mode) in links {
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

    /// Other keys from now on. Without keys at the start there are none.
    pub fn set_keys(&mut self, keys: Keys) -> Result<(), XdpError> {
        if self.spec.keys.is_some() {
            self.programs.set_keys(&keys)?;
            self.spec.keys = Some(keys);
        }
        Ok(())
    }

    /// The registers, shared with the programs; whoever holds them may outlive the programs.
    pub fn registers(&self) -> &Arc<Registers> {
        &self.programs.registers
    }

    /// Counters by name, summed over the CPUs, those that are not zero.
    pub fn counters(&self) -> Result<BTreeMap<&'static str, u64>, XdpError> {
        let mut counters = self.programs.counters()?;
        lost::add(&self.lost, &mut counters)?;
        Ok(counters)
    }

    /// Hand each decided packet (PHASE2B, header and value) to `deliver`, without waiting. Returns
    /// how many there were.
    pub fn decided(&mut self, deliver: impl FnMut(&[u8])) -> usize {
        self.programs.up.as_mut().map_or(0, |up| up.poll(deliver))
    }

    /// Say whether this process polls [`decided`](Self::decided) in a loop. While it does it is not
    /// woken through [`decided_fd`](Self::decided_fd), which saves an interrupt a value. After saying
    /// `false`, call `decided` once more before waiting: what came before it wakes nobody.
    pub fn set_polling(&self, polling: bool) {
        if let Some(word) = &self.programs.polling {
            word.set(0, u64::from(polling));
        }
    }

    /// Would [`decided`](Self::decided) hand something over now?
    pub fn has_decided(&self) -> bool {
        self.programs.up.as_ref().is_some_and(|up| up.has_record())
    }

    /// A descriptor that is readable when [`decided`](Self::decided) has something; works with
    /// level- and edge-triggered epoll. `None` without the quorum role.
    pub fn decided_fd(&self) -> Option<BorrowedFd<'_>> {
        self.programs.up.as_ref().map(|up| up.fd())
    }

    /// Bytes of memory that the maps take.
    pub fn memory_bytes(&self) -> usize {
        self.programs.memory_bytes()
    }

    /// What was loaded.
    pub fn spec(&self) -> &XdpSpec {
        &self.spec
    }

    /// Look the peers' hardware addresses up in the kernel's tables, and have the kernel resolve or
    /// confirm them. Call until it returns nothing, and every second or so from then on. Returns the
    /// peers that are not resolved; one that was stays addressed as before.
    pub fn refresh_neighbours(&mut self) -> Result<Vec<Unresolved>, XdpError> {
        if let Some(pair) = &self.loopback {
            pair.keep_filter_off()?;
        }
        let mut unresolved: Vec<Unresolved> = Vec::new();
        for group in &mut self.groups {
            let mut changed = false;
            let remote = group.peers.iter().filter(|p| !p.local);
            for (peer, member) in remote.zip(&mut group.current.member) {
                let address = *peer.address.ip();
                match resolve_into(
                    member,
                    address,
                    &self.netlink,
                    &self.link,
                    &self.spec.interface,
                ) {
                    Ok(new) => changed |= new,
                    Err(why) if unresolved.iter().any(|u| u.peer == *peer && u.why == why) => {}
                    Err(why) => unresolved.push(Unresolved { peer: *peer, why }),
                }
            }
            if changed {
                self.programs.set_group(group.which, &group.current)?;
            }
        }
        Ok(unresolved)
    }

    /// Hand a packet of this process to this host's own roles. Answers come to the UDP socket bound
    /// to [`XdpSpec::address`], as if from itself.
    pub fn send_local(&self, packet: &[u8]) -> Result<(), XdpError> {
        self.loopback
            .as_ref()
            .ok_or(XdpError::NoLoopback)?
            .send(packet)
    }
}

impl Group {
    fn new(
        which: c::ib_xdp_group,
        peers: &[Peer],
        spec: &XdpSpec,
        link: &LinkInfo,
        loopback: Option<&Loopback>,
    ) -> Group {
        let unused = nobody(link, spec.address);
        let mut current = c::ib_group {
            count: 0,
            has_local: 0,
            local: unused,
            member: [unused; c::IB_XDP_MEMBERS as usize],
        };
        for peer in peers {
            let member = if peer.local {
                current.has_local = 1;
                &mut current.local
            } else {
                current.count += 1;
                &mut current.member[current.count as usize - 1]
            };
            member.to_address = wire_address(peer.address);
            member.to_port = wire_port(peer.address);
        }
        if let (1, Some(pair)) = (current.has_local, loopback) {
            current.local.known = 1;
            current.local.ifindex = pair.near.index;
            current.local.from_mac = pair.near.mac;
            current.local.to_mac = pair.far.mac;
        }
        Group {
            which,
            peers: peers.to_vec(),
            current,
        }
    }
}

impl Group {
    /// Remote members whose hardware addresses are known.
    fn known(&self) -> Vec<c::ib_member> {
        let remote = &self.current.member[..self.current.count as usize];
        remote.iter().filter(|m| m.known == 1).copied().collect()
    }

    /// Members that were known before have their hardware addresses at once.
    fn take_addresses(&mut self, known: &[c::ib_member]) {
        for member in &mut self.current.member[..self.current.count as usize] {
            let before = known.iter().find(|k| k.to_address == member.to_address);
            if let Some(before) = before {
                member.to_mac = before.to_mac;
                member.known = 1;
            }
        }
    }
}
