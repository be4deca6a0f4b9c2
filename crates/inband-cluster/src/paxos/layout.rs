//! Which hosts a cluster has, and their names.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;

use inband_host::text::counted;
use inband_paxos::config::{
    bounds, Dataplane, Durability, Limits, Role, Timing, DEFAULT_RING_SLOTS,
};

/// Number of hosts that only lead.
pub const LEADER_HOSTS: RangeInclusive<usize> = 1..=16;

/// Where each acceptor runs, in order; [`Dataplane::Auto`] means "like the cluster". Parses from `3` and from
/// `xdp:2,udp:1`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AcceptorChoice(pub Vec<Dataplane>);

impl Default for AcceptorChoice {
    fn default() -> Self {
        Self(vec![Dataplane::Auto; 3])
    }
}

impl FromStr for AcceptorChoice {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let mut acceptors = Vec::new();
        for part in text.split(',') {
            let (dataplane, count) = match part.trim().split_once(':') {
                Some((dataplane, count)) => (dataplane.parse()?, count),
                None => (Dataplane::Auto, part.trim()),
            };
            let count: usize = count.parse().map_err(|_| {
                format!("{text:?}: {count:?} is not a number; write 3, or xdp:2,udp:1")
            })?;
            if !bounds::ACCEPTORS.contains(&(acceptors.len() + count)) || count == 0 {
                return Err(format!(
                    "{text:?}: a cluster has {} to {} acceptors",
                    bounds::ACCEPTORS.start(),
                    bounds::ACCEPTORS.end()
                ));
            }
            acceptors.extend(vec![dataplane; count]);
        }
        Ok(Self(acceptors))
    }
}

/// Where the first leaders in the order of take-over run. The replicas' hosts follow. Each log starts the order at a
/// different host, so that leaders of several logs are spread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeaderLayout {
    /// On separate hosts, `leader/0`, `leader/1`, ..., on these dataplanes ([`Dataplane::Auto`] means "like the
    /// cluster").
    OwnHosts(Vec<Dataplane>),
    /// On the host of `acceptor/0`.
    WithAcceptor,
}

impl Default for LeaderLayout {
    fn default() -> Self {
        Self::OwnHosts(vec![Dataplane::Auto])
    }
}

/// Maximum number of hosts that keep the configuration.
pub const CONTROLLERS_MAX: usize = 5;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum NetworkChoice {
    /// Namespaces if any host runs XDP, loopback if all run UDP.
    #[default]
    Auto,
    /// A lab: each host in a namespace, with faults on its link.
    Namespaces,
    /// All hosts on 127.0.0.1, without privileges; UDP only.
    Loopback,
}

/// The options of `inband up`.
#[derive(Debug, Clone)]
pub struct ClusterSpec {
    /// The `inband` program that runs on every host.
    pub program: PathBuf,
    /// Directory of the cluster.
    pub data: PathBuf,
    /// Additional directories for the replicas' stores, for example on other disks: with `n` of them, partition `k` is
    /// in directory `k mod (n + 1)`, where `data` is the first.
    pub more_data: Vec<PathBuf>,
    /// Where the roles run.
    pub dataplane: Dataplane,
    pub acceptors: AcceptorChoice,
    pub replicas: usize,
    /// Partitions of the key space.
    pub partitions: u32,
    pub leader: LeaderLayout,
    /// Number of hosts that only keep the cluster's configuration; with 0, hosts of acceptors do.
    pub controllers: usize,
    /// What a vote survives.
    pub durability: Durability,
    /// A new cluster gets a key, and its packets carry tags.
    pub authenticated: bool,
    pub network: NetworkChoice,
    /// Address for RESP clients; replica `i` also listens at the port plus 1 plus `i`.
    pub resp: SocketAddr,
    /// Replicas answer cluster-aware clients as nodes of Redis Cluster.
    pub redis_cluster: bool,
    /// First port of `/metrics` on loopback; host `i` uses the port plus `i`, or any free one; 0: any free ones.
    pub metrics_port: u16,
    /// Slots of each acceptor's ring.
    pub ring_slots: u32,
    /// Approximate memory of a replica's store, for the check whether the cluster fits.
    pub store_memory_bytes: u64,
    /// Checkpoints and control-plane messages use TLS; certificates are made.
    pub tls: bool,
    /// Redis clients must use TLS too.
    pub resp_tls: bool,
    /// A file with the password that Redis clients must give.
    pub password_file: Option<PathBuf>,
    /// Limits of every host.
    pub limits: Limits,
    /// Timing of every host.
    pub timing: Timing,
    /// Continue after an unclean stop, from the most advanced replica.
    pub accept_loss: bool,
    /// With `accept_loss`: even if a replica's data is missing.
    pub accept_missing_replicas: bool,
}

impl ClusterSpec {
    /// Returns the defaults of `inband up`: one leader, three acceptors, three replicas.
    pub fn new(program: impl Into<PathBuf>, data: impl Into<PathBuf>) -> Self {
        Self {
            program: program.into(),
            data: data.into(),
            more_data: Vec::new(),
            dataplane: Dataplane::Auto,
            acceptors: AcceptorChoice::default(),
            replicas: 3,
            partitions: 1,
            leader: LeaderLayout::default(),
            controllers: 0,
            durability: Durability::default(),
            authenticated: true,
            network: NetworkChoice::Auto,
            resp: SocketAddr::from(([127, 0, 0, 1], 6379)),
            redis_cluster: false,
            metrics_port: 9464,
            ring_slots: DEFAULT_RING_SLOTS,
            store_memory_bytes: 0,
            tls: true,
            resp_tls: false,
            password_file: None,
            limits: Limits::default(),
            timing: Timing::default(),
            accept_loss: false,
            accept_missing_replicas: false,
        }
    }

    /// Returns the hosts, in the order of their ids. Leaders come in the order of take-over.
    pub fn hosts(&self) -> Vec<HostPlan> {
        let mut hosts = Vec::new();
        let mut add = |name: String, roles: &[Role], dataplane| {
            hosts.push(HostPlan {
                name,
                roles: roles.to_vec(),
                dataplane,
            });
        };
        if let LeaderLayout::OwnHosts(dataplanes) = &self.leader {
            for (i, &dataplane) in dataplanes.iter().enumerate() {
                add(format!("leader/{i}"), &[Role::Leader], dataplane);
            }
        }
        for (i, &dataplane) in self.acceptors.0.iter().enumerate() {
            let mut roles = vec![Role::Acceptor];
            if i == 0 && self.leader == LeaderLayout::WithAcceptor {
                roles.push(Role::Leader);
            }
            if i < self.acceptors_that_control() {
                roles.push(Role::Controller);
            }
            add(format!("acceptor/{i}"), &roles, dataplane);
        }
        for i in 0..self.replicas {
            add(
                format!("replica/{i}"),
                &[Role::Replica, Role::Leader],
                Dataplane::Auto,
            );
        }
        for i in 0..self.controllers {
            add(
                format!("controller/{i}"),
                &[Role::Controller],
                Dataplane::Auto,
            );
        }
        hosts
    }

    /// Returns how many of the acceptors' hosts keep the configuration: an odd number, because one more would not
    /// tolerate more failures.
    fn acceptors_that_control(&self) -> usize {
        if self.controllers > 0 {
            return 0;
        }
        let acceptors = self.acceptors.0.len();
        let odd = acceptors - usize::from(acceptors % 2 == 0);
        odd.min(CONTROLLERS_MAX)
    }

    /// Returns whether some host must run XDP, whatever "auto" resolves to.
    pub fn demands_xdp(&self) -> bool {
        let xdp = |d: &Dataplane| matches!(d, Dataplane::Xdp | Dataplane::XdpGeneric);
        xdp(&self.dataplane) || self.hosts().iter().any(|h| xdp(&h.dataplane))
    }

    /// Rejects clusters that cannot be started at all.
    pub fn check(&self) -> Result<(), String> {
        if !bounds::REPLICAS.contains(&self.replicas) {
            return Err(format!(
                "--replicas {}: a cluster has {} to {} replicas",
                self.replicas,
                bounds::REPLICAS.start(),
                bounds::REPLICAS.end()
            ));
        }
        if !bounds::ACCEPTORS.contains(&self.acceptors.0.len()) {
            return Err(format!(
                "--acceptors: a cluster has {} to {} acceptors, not {}",
                bounds::ACCEPTORS.start(),
                bounds::ACCEPTORS.end(),
                self.acceptors.0.len()
            ));
        }
        if !bounds::PARTITIONS.contains(&u64::from(self.partitions)) {
            return Err(format!(
                "--partitions {}: a cluster has {} to {} partitions",
                self.partitions,
                bounds::PARTITIONS.start(),
                bounds::PARTITIONS.end()
            ));
        }
        if !bounds::RING_SLOTS.contains(&u64::from(self.ring_slots))
            || !self.ring_slots.is_power_of_two()
        {
            return Err(format!(
                "a ring of {} slots; it must be a power of two, {} to {}",
                self.ring_slots,
                bounds::RING_SLOTS.start(),
                bounds::RING_SLOTS.end()
            ));
        }
        if self.more_data.len() >= self.partitions as usize {
            return Err(format!(
                "--data names {} directories for {}, and a partition is in one of them; name fewer, or give more \
                 --partitions",
                self.more_data.len() + 1,
                counted(self.partitions.into(), "partition")
            ));
        }
        if self.controllers > CONTROLLERS_MAX {
            return Err(format!(
                "--controllers {}: at most {CONTROLLERS_MAX} hosts keep the configuration",
                self.controllers
            ));
        }
        let last_port = usize::from(self.resp.port()) + self.replicas;
        if self.resp.port() == 0 || last_port > usize::from(u16::MAX) {
            return Err(format!(
                "--resp {}: the port and the {} after it (one for each replica) must be 1 to 65535",
                self.resp, self.replicas
            ));
        }
        if self.network == NetworkChoice::Loopback && self.demands_xdp() {
            return Err("XDP needs namespaces, and loopback was asked for; use udp".into());
        }
        if let LeaderLayout::OwnHosts(hosts) = &self.leader {
            if !LEADER_HOSTS.contains(&hosts.len()) {
                return Err(format!(
                    "--leaders {}: a cluster has {} to {} hosts that only lead",
                    hosts.len(),
                    LEADER_HOSTS.start(),
                    LEADER_HOSTS.end()
                ));
            }
        }
        Ok(())
    }
}

/// A host that may not have an address yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostPlan {
    /// `leader/0`, `acceptor/0`, `replica/0`, ...
    pub name: String,
    pub roles: Vec<Role>,
    /// Where it runs; [`Dataplane::Auto`] means "like the cluster".
    pub dataplane: Dataplane,
}

/// Kind and number in a host's name: `acceptor` and 3 of `acceptor/3`.
pub fn kind_of(name: &str) -> (&str, u32) {
    match name.split_once('/') {
        Some((kind, number)) => (kind, number.parse().unwrap_or(0)),
        None => (name, 0),
    }
}

impl HostPlan {
    /// Returns whether it has this role.
    pub fn has(&self, role: Role) -> bool {
        self.roles.contains(&role)
    }

    /// Name of its directory.
    pub fn dir_name(&self) -> String {
        self.name.replace('/', "-")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acceptors_are_parsed() {
        use Dataplane::{Auto, Udp, Xdp};
        let parse = |text: &str| text.parse::<AcceptorChoice>().map(|a| a.0);
        assert_eq!(parse("3"), Ok(vec![Auto; 3]));
        assert_eq!(parse("xdp:2,udp:1"), Ok(vec![Xdp, Xdp, Udp]));
        assert_eq!(parse("xdp-generic:1"), Ok(vec![Dataplane::XdpGeneric]));
        for (wrong, says) in [
            ("", "not a number"),
            ("x", "not a number"),
            ("0", "1 to 15"),
            ("16", "1 to 15"),
            ("xdp:10,udp:6", "1 to 15"),
            ("dpdk:3", "unknown dataplane"),
            ("xdp:", "not a number"),
        ] {
            let message = parse(wrong).expect_err(wrong);
            assert!(message.contains(says), "{wrong}: {message}");
        }
    }

    #[test]
    fn the_default_layout() {
        let spec = ClusterSpec::new("inband", "/data");
        spec.check().expect("the defaults are good");
        let names: Vec<String> = spec.hosts().into_iter().map(|h| h.name).collect();
        let expected = [
            "leader/0",
            "acceptor/0",
            "acceptor/1",
            "acceptor/2",
            "replica/0",
            "replica/1",
            "replica/2",
        ];
        assert_eq!(names, expected);
        assert!(spec.hosts()[4].has(Role::Leader), "replicas are backups");
        assert!(!spec.demands_xdp());
    }

    #[test]
    fn an_odd_number_of_hosts_keeps_the_configuration() {
        let mut spec = ClusterSpec::new("inband", "/data");
        let controllers = |spec: &ClusterSpec| {
            let hosts = spec.hosts();
            let names = hosts.into_iter().filter(|h| h.has(Role::Controller));
            names.map(|host| host.name).collect::<Vec<_>>()
        };
        for (acceptors, wanted) in [(1, 1), (2, 1), (3, 3), (4, 3), (5, 5), (15, 5)] {
            spec.acceptors = AcceptorChoice(vec![Dataplane::Auto; acceptors]);
            assert_eq!(controllers(&spec).len(), wanted, "{acceptors} acceptors");
        }
        spec.controllers = 3;
        assert_eq!(
            controllers(&spec),
            ["controller/0", "controller/1", "controller/2"]
        );
        spec.controllers = 6;
        assert!(spec.check().expect_err("six").contains("--controllers 6"));
    }

    #[test]
    fn other_layouts() {
        let mut spec = ClusterSpec::new("inband", "/data");
        spec.leader = LeaderLayout::WithAcceptor;
        let roles = [Role::Acceptor, Role::Leader, Role::Controller];
        assert_eq!(spec.hosts()[0].roles, roles);
        spec.leader = LeaderLayout::OwnHosts(vec![Dataplane::Xdp, Dataplane::Udp]);
        assert_eq!(spec.hosts()[1].name, "leader/1");
        assert!(spec.demands_xdp());
        spec.network = NetworkChoice::Loopback;
        assert!(spec.check().is_err());
        spec.network = NetworkChoice::Auto;
        spec.replicas = 0;
        assert!(spec
            .check()
            .expect_err("no replicas")
            .contains("--replicas 0"));
        spec.replicas = 3;
        spec.leader = LeaderLayout::OwnHosts(Vec::new());
        assert!(spec.check().expect_err("leaders").contains("--leaders 0"));
        spec.leader = LeaderLayout::default();
        spec.partitions = 65;
        assert!(spec.check().expect_err("65").contains("--partitions 65"));
        spec.partitions = 2;
        spec.more_data = vec!["/a".into(), "/b".into()];
        let error = spec.check().expect_err("directories");
        assert!(error.contains("3 directories for 2 partitions,"), "{error}");
        spec.more_data.pop();
        spec.resp.set_port(65_534);
        assert!(spec.check().expect_err("ports").contains("--resp"));
    }
}
