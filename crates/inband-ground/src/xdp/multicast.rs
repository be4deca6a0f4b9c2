//! Multicast groups: the members that get copies of a packet, the interfaces that the copies leave by, and their
//! hardware addresses. On the programs' side, `dataplane/ground/xdp/multicast.h` sends to a group, and `copies.h`
//! addresses each copy.

use std::net::SocketAddrV4;
use std::os::fd::{AsRawFd, OwnedFd};

use super::attach::open_link;
use super::error::{Doing, XdpError};
use super::loopback::Loopback;
use super::maps::{delete, update};
use super::netlink::{LinkInfo, Netlink};
use super::programs::Loaded;
use super::{nobody, resolve_into, wire_address, wire_port, XdpMode};
use crate::c;

/// Maximum number of remote members of a group.
pub const MEMBERS_MAX: usize = c::IB_XDP_MEMBERS as usize;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    pub node: u8,
    /// The address to send its packets to.
    pub address: SocketAddrV4,
    /// Whether it is this host itself. Its copy goes through the loopback pair to the roles here.
    pub local: bool,
}

/// A peer whose hardware address is not known yet. Copies to it are dropped and counted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unresolved {
    pub peer: Peer,
    pub why: String,
}

/// Checks that [`Multicast`] can serve this group. `name` is what its members are called, and `max` is the system's
/// limit.
pub fn check_peers(name: &str, peers: &[Peer], max: usize) -> Result<(), XdpError> {
    let max = max.min(MEMBERS_MAX);
    if peers.len() > max {
        return Err(XdpError::Spec(format!(
            "{} {name} are more than the limit of {max}",
            peers.len()
        )));
    }
    if peers.iter().filter(|p| p.local).count() > 1 {
        return Err(XdpError::Spec(format!(
            "more than one of the {name} is local; a host has one of each"
        )));
    }
    Ok(())
}

/// The maps that determine where copies go.
pub struct GroupMaps {
    groups: OwnedFd,
    /// The egress program.
    copies: OwnedFd,
    /// The devmaps of the sending programs, by group number.
    devices: Vec<(u32, OwnedFd)>,
}

impl GroupMaps {
    /// `copies` is the egress program (`copies.h`). `senders` lists each group's number, the program that sends to it,
    /// and the name of its devmap there.
    pub fn new(copies: &Loaded, senders: &[(u32, &Loaded, &str)]) -> Result<GroupMaps, XdpError> {
        let devices = senders
            .iter()
            .map(|(which, sender, map)| Ok((*which, sender.map(map)?)));
        Ok(GroupMaps {
            groups: copies.map("ib_groups_map")?,
            copies: copies
                .program
                .try_clone()
                .doing("duplicating a descriptor")?,
            devices: devices.collect::<Result<_, XdpError>>()?,
        })
    }

    /// Sets the members of a group and, in native mode, the interfaces that its copies leave by. A program that sends
    /// to a group of one addresses the packet itself. The order of the two updates ensures that no packet leaves
    /// unaddressed, whichever state the program sees in between.
    pub fn set_members(
        &self,
        which: u32,
        group: &c::ib_group,
        ifindexes: &[u32],
    ) -> Result<(), XdpError> {
        if let [_] = ifindexes {
            self.set_addresses(which, group)?;
            self.set_devices(which, ifindexes)
        } else {
            self.set_devices(which, ifindexes)?;
            self.set_addresses(which, group)
        }
    }

    fn set_addresses(&self, which: u32, group: &c::ib_group) -> Result<(), XdpError> {
        update(&self.groups, &which, group).doing("setting a multicast group")
    }

    fn set_devices(&self, which: u32, ifindexes: &[u32]) -> Result<(), XdpError> {
        let Some((_, map)) = self.devices.iter().find(|(group, _)| *group == which) else {
            return Ok(());
        };
        for (i, ifindex) in ifindexes.iter().enumerate() {
            // struct bpf_devmap_val: interface, egress program (0: none).
            let copies = self.copies.as_raw_fd() as u32;
            let value = [*ifindex, if ifindexes.len() > 1 { copies } else { 0 }];
            update(map, &(i as u32), &value).doing("filling a multicast map")?;
        }
        for i in ifindexes.len() as u32..c::IB_XDP_GROUP_ENTRIES {
            delete(map, &i).doing("emptying a multicast map")?;
        }
        Ok(())
    }
}

/// The interface that copies leave by.
pub struct Uplink {
    pub netlink: Netlink,
    pub link: LinkInfo,
    pub interface: String,
    /// This host's address on the interface.
    pub address: SocketAddrV4,
    pub mode: XdpMode,
}

impl Uplink {
    /// Finds the interface, as [`open_link`] does.
    pub fn open(interface: &str, address: SocketAddrV4, mode: XdpMode) -> Result<Uplink, XdpError> {
        let (netlink, link) = open_link(interface, *address.ip(), mode)?;
        Ok(Uplink {
            netlink,
            link,
            interface: interface.to_owned(),
            address,
            mode,
        })
    }
}

/// A group and what is known of its members.
struct Group {
    which: u32,
    peers: Vec<Peer>,
    current: c::ib_group,
}

/// The groups of a host whose programs are attached to an interface. All methods must be called in the interface's
/// network namespace.
pub struct Multicast {
    maps: GroupMaps,
    groups: Vec<Group>,
    uplink: Uplink,
    loopback: Option<Loopback>,
}

impl Multicast {
    /// Sets up the groups; must be called before the programs are attached. `loopback` is required if a peer is local.
    pub fn new(
        maps: GroupMaps,
        uplink: Uplink,
        loopback: Option<Loopback>,
        groups: &[(u32, &[Peer])],
    ) -> Result<Multicast, XdpError> {
        let mut multicast = Multicast {
            maps,
            groups: Vec::new(),
            uplink,
            loopback,
        };
        multicast.set_groups(groups)?;
        Ok(multicast)
    }

    /// Replaces the members. Packets sent during the change may miss some of them. Members whose hardware address is
    /// known stay addressed throughout.
    pub fn set_groups(&mut self, groups: &[(u32, &[Peer])]) -> Result<(), XdpError> {
        let local = groups
            .iter()
            .any(|(_, peers)| peers.iter().any(|p| p.local));
        if local && self.loopback.is_none() {
            return Err(XdpError::NoLoopback);
        }
        let known: Vec<c::ib_member> = self.groups.iter().flat_map(Group::known).collect();
        let groups = groups.iter().map(|(which, peers)| {
            let mut group = Group::new(*which, peers, &self.uplink, self.loopback.as_ref());
            group.take_addresses(&known);
            group
        });
        self.groups = groups.collect();
        for group in &self.groups {
            let devices = match self.uplink.mode {
                XdpMode::Native => group.devices(self.uplink.link.index, self.loopback.as_ref()),
                XdpMode::Generic => Vec::new(),
            };
            self.maps
                .set_members(group.which, &group.current, &devices)?;
        }
        self.refresh_neighbours().map(drop)
    }

    /// Looks up the peers' hardware addresses in the kernel's neighbour table, and makes the kernel resolve or confirm
    /// them. Call it until it returns an empty list, and about every second after that. Returns the unresolved peers;
    /// one that was resolved before keeps its address.
    pub fn refresh_neighbours(&mut self) -> Result<Vec<Unresolved>, XdpError> {
        if let Some(pair) = &self.loopback {
            pair.keep_filter_off()?;
        }
        let Uplink {
            netlink,
            link,
            interface,
            ..
        } = &self.uplink;
        let mut unresolved: Vec<Unresolved> = Vec::new();
        for group in &mut self.groups {
            let mut changed = false;
            let remote = group.peers.iter().filter(|p| !p.local);
            for (peer, member) in remote.zip(&mut group.current.member) {
                match resolve_into(member, *peer.address.ip(), netlink, link, interface) {
                    Ok(new) => changed |= new,
                    Err(why) if unresolved.iter().any(|u| u.peer == *peer && u.why == why) => {}
                    Err(why) => unresolved.push(Unresolved { peer: *peer, why }),
                }
            }
            if changed {
                self.maps.set_addresses(group.which, &group.current)?;
            }
        }
        Ok(unresolved)
    }

    /// Returns the path from this host to its own roles, if there is one.
    pub fn loopback(&self) -> Option<&Loopback> {
        self.loopback.as_ref()
    }

    /// Returns the interfaces to attach programs to. The loopback pair comes first, so that nothing is sent to a link
    /// without a program. The pair is native in either mode, because generic XDP skips packets that tc has redirected.
    pub fn links(&self) -> impl Iterator<Item = (&LinkInfo, &str, XdpMode)> {
        let pair = self
            .loopback
            .iter()
            .flat_map(|l| [(&l.near, &*l.near_name), (&l.far, &*l.far_name)]);
        let pair = pair.map(|(link, name)| (link, name, XdpMode::Native));
        let Uplink { link, mode, .. } = &self.uplink;
        pair.chain([(link, &*self.uplink.interface, *mode)])
    }
}

impl Group {
    fn new(which: u32, peers: &[Peer], uplink: &Uplink, loopback: Option<&Loopback>) -> Group {
        let unused = nobody(&uplink.link, uplink.address);
        let mut current = c::ib_group {
            count: 0,
            has_local: 0,
            local: unused,
            member: [unused; MEMBERS_MAX],
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

    /// Returns the interfaces that the group's copies leave by, in order of the members.
    fn devices(&self, uplink: u32, loopback: Option<&Loopback>) -> Vec<u32> {
        let local = self.peers.iter().any(|p| p.local);
        let near = loopback.filter(|_| local).map(|l| l.near.index);
        let remote = self.peers.iter().filter(|p| !p.local);
        remote.map(|_| uplink).chain(near).collect()
    }

    /// Remote members whose hardware address is known.
    fn known(&self) -> Vec<c::ib_member> {
        let remote = &self.current.member[..self.current.count as usize];
        remote.iter().filter(|m| m.known == 1).copied().collect()
    }

    /// Takes over the hardware addresses of members that were known before.
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
