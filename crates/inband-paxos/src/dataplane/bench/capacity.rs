//! Whole instances in the kernel: a client's REQUEST, a leader, three acceptors and a quorum counter, each in its own
//! network namespace, connected by veth pairs; and over the same links two baselines, plain forwarding and roles
//! without a protocol.
//!
//! The caller provides the namespaces and links; [`SITES`] and [`LINKS`] specify them.

use std::mem::offset_of;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use inband_ground::auth::sign;
use inband_ground::bench::keys;
use inband_ground::objects as ground_objects;
use inband_ground::registers::Shared;
use inband_ground::xdp::attach::Attachment;
use inband_ground::xdp::error::Doing;
use inband_ground::xdp::live;
use inband_ground::xdp::maps::{sums_per_cpu, update, UpRing};
use inband_ground::xdp::programs::{load_object, Loaded};
use inband_ground::xdp::rig::udp_frame;
use inband_ground::xdp::{wire_address, wire_port, XdpError, XdpMode};

use crate::dataplane::registers::{AcceptorView, LeaderView};
use crate::dataplane::soft::{Geometry, Roles};
use crate::dataplane::wire::{digest, emit, Header, Type, VALUE_LEN_MAX_BYTES};
use crate::dataplane::xdp::programs::{Build, Programs};
use crate::dataplane::{c, objects};

/// Where programs run, by namespace name: the client, the leader, three acceptors, the learner's host.
pub const SITES: [&str; 6] = [
    "client",
    "leader",
    "acceptor0",
    "acceptor1",
    "acceptor2",
    "learner",
];
const CLIENT: usize = 0;
const LEADER: usize = 1;
const ACCEPTORS: std::ops::Range<usize> = 2..5;
const LEARNER: usize = 5;

/// One end of a link: the index of the site in [`SITES`], and the index of its interface there.
pub type End = (usize, u32);

/// The veth pairs, each in the direction of the frames.
pub const LINKS: [(End, End); 7] = [
    ((CLIENT, 100), (LEADER, 101)),
    ((LEADER, 110), (2, 120)),
    ((LEADER, 111), (3, 121)),
    ((LEADER, 112), (4, 122)),
    ((2, 130), (LEARNER, 140)),
    ((3, 131), (LEARNER, 141)),
    ((4, 132), (LEARNER, 142)),
];

/// What runs on the links.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Variant {
    /// The roles as deployed.
    Roles,
    /// The same with a cluster key.
    Authenticated,
    /// Roles without a protocol: stamp, store the value, count.
    Bare,
    /// The same frames on the same links, forwarded and dropped at the end.
    Forwarding,
}

pub const VARIANTS: [Variant; 4] = [
    Variant::Roles,
    Variant::Authenticated,
    Variant::Bare,
    Variant::Forwarding,
];

/// The results of one run.
#[derive(Debug, Clone)]
pub struct Run {
    /// Time per instance in ns, for each window of [`WINDOW_INSTANCES`].
    pub window_ns: Vec<f64>,
    pub sent: u64,
    /// Number of completed instances.
    pub completed: u64,
}

/// Instances between two readings of the clock.
pub const WINDOW_INSTANCES: u32 = 1024;
/// Instances between two trims, and how far a trim stays behind the leader.
const FLOOR_INSTANCES: u64 = 256;
const EPOCH: u32 = 1;
const RING_BUFFER_BYTES: usize = 16 << 20;
/// How often decided values are taken from the ring buffer, which holds 10,000 of the largest.
const TAKE_INTERVAL: Duration = Duration::from_micros(200);
const PORT: u16 = 7707;

fn node(site: usize) -> u8 {
    site as u8 + 1
}

fn address(site: usize) -> SocketAddrV4 {
    SocketAddrV4::new(Ipv4Addr::new(10, 78, 0, node(site)), PORT)
}

fn incoming(site: usize) -> impl Iterator<Item = u32> {
    let ends = LINKS.iter().filter(move |link| link.1 .0 == site);
    ends.map(|link| link.1 .1)
}

/// Outgoing interfaces of a site, with the site at the other end.
fn outgoing(site: usize) -> impl Iterator<Item = (u32, usize)> {
    let ends = LINKS.iter().filter(move |link| link.0 .0 == site);
    ends.map(|link| (link.0 .1, link.1 .0))
}

/// The programs of one site, one set per variant.
struct Site {
    roles: Programs,
    /// On the same maps.
    authenticated: Loaded,
    bare: Loaded,
    plain: Loaded,
    attachments: Vec<Attachment>,
}

impl Site {
    fn load(site: usize, geometry: Geometry) -> Result<Site, XdpError> {
        let settings = geometry.settings(c::ib_settings {
            node: u32::from(node(site)),
            partitions: geometry.partitions as u32,
            address: wire_address(address(site)),
            loop_ifindex: 0,
            generic: 0,
            port: wire_port(address(site)),
            authenticated: 0,
        });
        let build = Build {
            roles: Roles {
                leader: site == LEADER,
                acceptor: ACCEPTORS.contains(&site),
                quorum: site == LEARNER,
            },
            geometry,
            settings,
            ring_buffer_bytes: RING_BUFFER_BYTES,
        };
        let roles = Programs::load(&build, None)?;
        roles.set_keys(&keys()?)?;
        let shared: Vec<&Loaded> = [&roles.leader, &roles.acceptor, &roles.quorum]
            .into_iter()
            .flatten()
            .collect();
        let mut authenticated = settings;
        authenticated.common.authenticated = 1;
        let all: Vec<&Loaded> = [&roles.dispatch, &roles.copies]
            .into_iter()
            .chain(shared.iter().copied())
            .collect();
        let alone = match site {
            LEADER => objects::LEADER_ALONE,
            LEARNER => objects::QUORUM_ALONE,
            _ => objects::ACCEPTOR_ALONE,
        };
        let authenticated = load_object("authenticated", alone, Some(&authenticated), &[], &all)?;
        let object = match site {
            LEADER => objects::BENCH_BARE_LEADER,
            LEARNER => objects::BENCH_BARE_QUORUM,
            _ => objects::BENCH_BARE_ACCEPTOR,
        };
        let bare = load_object("bench_bare", object, Some(&settings), &[], &shared)?;
        let plain = load_object("bench_plain", ground_objects::BENCH_PLAIN, None, &[], &[])?;
        Ok(Site {
            roles,
            authenticated,
            bare,
            plain,
            attachments: Vec::new(),
        })
    }

    /// Sets the outgoing interfaces and attaches the roles. Call in the site's namespace.
    fn wire(&mut self, site: usize) -> Result<(), XdpError> {
        let out: Vec<(u32, usize)> = outgoing(site).collect();
        let ifindexes: Vec<u32> = out.iter().map(|(ifindex, _)| *ifindex).collect();
        for (loaded, map) in [
            (&self.bare, "ib_bare_devices_map"),
            (&self.plain, "ib_plain_map"),
        ] {
            let map = loaded.map(map)?;
            for (i, ifindex) in ifindexes.iter().enumerate() {
                update(&map, &(i as u32), ifindex).doing("filling a multicast map")?;
            }
        }
        let fan_out = ifindexes.len() as u64;
        self.plain
            .set_bytes("ib_fan_out_map", 0, &fan_out.to_ne_bytes())?;
        let which = if site == LEADER {
            c::IB_PAXOS_ACCEPTORS_GROUP
        } else {
            c::IB_PAXOS_LEARNERS_GROUP
        };
        self.roles
            .group_maps()?
            .set_members(which, &group(site, &out), &ifindexes)?;
        let entry = &self.roles.entry().program;
        for ifindex in incoming(site) {
            let native = XdpMode::Native;
            self.attachments
                .push(Attachment::xdp(entry, ifindex, SITES[site], native)?);
        }
        Ok(())
    }

    fn select(&self, variant: Variant) -> Result<(), XdpError> {
        let program = match variant {
            Variant::Roles => &self.roles.entry().program,
            Variant::Authenticated => &self.authenticated.program,
            Variant::Bare => &self.bare.program,
            Variant::Forwarding => &self.plain.program,
        };
        self.attachments.iter().try_for_each(|a| a.replace(program))
    }
}

/// Returns the members of the multicast group of a site: those at the other ends of its links.
fn group(site: usize, out: &[(u32, usize)]) -> c::ib_group {
    let member = |ifindex: u32, to: usize| c::ib_member {
        known: 1,
        ifindex,
        to_address: wire_address(address(to)),
        from_address: wire_address(address(site)),
        to_port: wire_port(address(to)),
        from_port: wire_port(address(site)),
        to_mac: [2, 0, 0, 0, 0, node(to)],
        from_mac: [2, 0, 0, 0, 0, node(site)],
    };
    let mut members = [member(0, site); c::IB_XDP_MEMBERS as usize];
    for (at, (ifindex, to)) in out.iter().enumerate() {
        members[at] = member(*ifindex, *to);
    }
    c::ib_group {
        count: out.len() as u32,
        has_local: 0,
        local: member(0, site),
        member: members,
    }
}

/// The programs on all links.
pub struct Chain {
    /// From the leader on.
    sites: Vec<Site>,
    feed: Loaded,
    feed_words: Shared<c::ib_feed>,
    up: UpRing,
    /// The client's interface needs a program too, because without one it cannot send frames.
    pass: Loaded,
    client: Option<Attachment>,
}

impl Chain {
    /// Loads the programs of all variants, without attaching them.
    pub fn load(geometry: Geometry) -> Result<Chain, XdpError> {
        let mut sites = (LEADER..=LEARNER)
            .map(|site| Site::load(site, geometry))
            .collect::<Result<Vec<_>, _>>()?;
        let up = sites[LEARNER - LEADER].roles.up.take();
        let up =
            up.ok_or_else(|| XdpError::Spec("the learner's host has no ring buffer".into()))?;
        let registers = |site: usize| &sites[site - LEADER].roles;
        let mut shared = Vec::new();
        if let Some(leader) = &registers(LEADER).leader {
            shared.push(leader.renamed("ib_leader_map", "ib_leader_map")?);
        }
        for (i, site) in ACCEPTORS.enumerate() {
            if let Some(acceptor) = &registers(site).acceptor {
                shared.push(acceptor.renamed("ib_acceptor_map", &format!("ib_acceptor_{i}_map"))?);
            }
        }
        let shared: Vec<&Loaded> = shared.iter().collect();
        let feed = load_object("bench_feed", objects::BENCH_FEED, None, &[], &shared)?;
        let feed_words = feed.registers("ib_feed_map")?;
        let chain = Chain {
            sites,
            feed,
            feed_words,
            up,
            pass: load_object("bare", ground_objects::BARE, None, &[], &[])?,
            client: None,
        };
        chain.prepare();
        Ok(chain)
    }

    /// Registers with which all packets take the normal path.
    fn prepare(&self) {
        let epoch = u64::from(EPOCH);
        let leader = LeaderView {
            round: 1,
            next: 1,
            floor: 1,
            epoch,
        };
        let acceptor = AcceptorView {
            promise: 1,
            floor: 1,
            highest: 0,
            epoch,
            voting: true,
        };
        let voters: Vec<u8> = ACCEPTORS.map(node).collect();
        for site in &self.sites {
            let registers = &site.roles.registers;
            registers.leader.restore(0, leader);
            registers.acceptor.restore(0, acceptor);
            registers.quorum.configure(epoch, &voters);
            if let Some(polling) = &site.roles.polling {
                polling.set(0, 1);
            }
        }
    }

    /// Attaches the programs of one of the [`SITES`]. Call it for each, in its namespace.
    pub fn wire(&mut self, site: usize) -> Result<(), XdpError> {
        if site == CLIENT {
            let program = &self.pass.program;
            let (ifindex, _) = outgoing(site).next().unwrap_or_default();
            let native = XdpMode::Native;
            self.client = Some(Attachment::xdp(program, ifindex, SITES[site], native)?);
            return Ok(());
        }
        self.sites[site - LEADER].wire(site)
    }

    /// Sends `instances` requests with values of this length through a variant. Call in the client's namespace.
    pub fn run(
        &mut self,
        variant: Variant,
        value_len_bytes: usize,
        instances: u32,
    ) -> Result<Run, XdpError> {
        assert!(value_len_bytes <= VALUE_LEN_MAX_BYTES);
        let frame = request(value_len_bytes, variant)?;
        let windows_max = c::IB_BENCH_WINDOWS_MAX;
        assert!(instances / WINDOW_INSTANCES <= windows_max);
        self.sites.iter().try_for_each(|s| s.select(variant))?;
        self.feed.set_bytes("ib_feed_map", 0, &feed(&frame))?;
        let came_before = self.came_at_learner()?;
        let (ifindex, _) = outgoing(CLIENT).next().unwrap_or_default();
        let over = AtomicBool::new(false);
        let (up, feed) = (&mut self.up, &self.feed.program);
        let decided = thread::scope(|scope| {
            let taking = scope.spawn(|| take_decided(up, &over));
            let sent = live::send(feed, &frame, ifindex, instances);
            over.store(true, Ordering::Release);
            let decided = match taking.join() {
                Ok(decided) => decided,
                Err(panic) => std::panic::resume_unwind(panic),
            };
            sent.map(|()| decided).doing("sending live frames")
        })?;
        let completed = match variant {
            Variant::Forwarding => (self.came_at_learner()? - came_before) / ACCEPTORS.len() as u64,
            _ => decided,
        };
        Ok(Run {
            window_ns: self.windows(),
            sent: u64::from(instances),
            completed,
        })
    }

    fn came_at_learner(&self) -> Result<u64, XdpError> {
        let learner = &self.sites[LEARNER - LEADER];
        let came = sums_per_cpu(&learner.plain.map("ib_came_map")?, 0..1);
        Ok(came.doing("reading a counter")?[0])
    }

    fn windows(&self) -> Vec<f64> {
        let words = self.feed_words.words(0);
        let word = |offset_bytes: usize| words[offset_bytes / 8];
        let count = word(offset_of!(c::ib_feed, windows)) as usize;
        let first = offset_of!(c::ib_feed, window_ns) / 8;
        words[first..first + count]
            .iter()
            .map(|ns| *ns as f64 / f64::from(WINDOW_INSTANCES))
            .collect()
    }

    /// Counters of the learner's host, for a run with losses.
    pub fn counters(&self) -> Result<Vec<(&'static str, u64)>, XdpError> {
        let mut all = Vec::new();
        for site in &self.sites {
            all.extend(site.roles.counters()?);
        }
        Ok(all)
    }
}

/// Takes decided values until told to stop and none are left. Returns how many.
fn take_decided(up: &mut UpRing, over: &AtomicBool) -> u64 {
    let mut taken = 0;
    loop {
        let last = over.load(Ordering::Acquire);
        taken += up.poll(|_| ()) as u64;
        if last {
            return taken;
        }
        thread::sleep(TAKE_INTERVAL);
    }
}

fn request(value_len_bytes: usize, variant: Variant) -> Result<Vec<u8>, XdpError> {
    let value = vec![7u8; value_len_bytes];
    let mut header = Header::new(Type::Request, u16::from(node(CLIENT)), EPOCH);
    (header.client_id, header.client_seq, header.digest) = (1, 1, digest(&value));
    let mut packet = Vec::new();
    emit(&header, &value, &mut packet);
    let keys = match variant {
        Variant::Authenticated => Some(keys()?),
        _ => None,
    };
    sign(keys.as_ref(), &mut packet);
    Ok(udp_frame(address(CLIENT), address(LEADER), &packet))
}

/// `struct ib_feed` at the start of a run.
fn feed(frame: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0u8; size_of::<c::ib_feed>()];
    let mut put =
        |offset: usize, from: &[u8]| bytes[offset..offset + from.len()].copy_from_slice(from);
    put(
        offset_of!(c::ib_feed, window_packets),
        &u64::from(WINDOW_INSTANCES).to_ne_bytes(),
    );
    put(
        offset_of!(c::ib_feed, floor_packets),
        &FLOOR_INSTANCES.to_ne_bytes(),
    );
    put(
        offset_of!(c::ib_feed, headers),
        &frame[..c::IB_BENCH_HEADERS_LEN_BYTES as usize],
    );
    bytes
}
