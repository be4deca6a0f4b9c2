//! The contents of the file, each value with its position, and the checks that turn it into a [`Config`]. Values are
//! read loosely and checked here, so that messages can name a limit instead of a Rust type.

use std::collections::HashMap;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use toml::Spanned;

use super::discovery::Discovery;
use super::log::RawLog;
use super::{
    bounds, control_plane_beside, logs_of, unprotected, ClusterConfig, Config, Dataplane,
    HostConfig, Limits, NodeConfig, Role, Timing, TlsConfig, DEFAULT_MTU, DEFAULT_PORT,
    DEFAULT_RING_SLOTS,
};

/// A mistake and its byte offset in the text.
pub(super) struct Mistake {
    pub(super) at: usize,
    pub(super) message: String,
}

pub(super) fn mistake<T, S>(at: &Spanned<S>, message: impl Into<String>) -> Result<T, Mistake> {
    Err(Mistake {
        at: at.span().start,
        message: message.into(),
    })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawConfig {
    cluster: RawCluster,
    host: RawHost,
    #[serde(default)]
    log: RawLog,
    #[serde(default)]
    node: Vec<Spanned<RawNode>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawCluster {
    name: Spanned<String>,
    epoch: Spanned<i64>,
    first_instance: Option<Spanned<i64>>,
    first_instances: Option<Spanned<Vec<Spanned<i64>>>>,
    partitions: Option<Spanned<i64>>,
    leader_balance: Option<bool>,
    ring_slots: Option<Spanned<i64>>,
    port: Option<Spanned<i64>>,
    durability: Option<Spanned<String>>,
    mtu: Option<Spanned<i64>>,
    key_file: Option<Spanned<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawHost {
    node: Spanned<i64>,
    state_dir: Spanned<String>,
    data_dir: Option<Spanned<String>>,
    data_dirs: Option<Spanned<Vec<Spanned<String>>>>,
    dataplane: Option<Spanned<String>>,
    interface: Option<Spanned<String>>,
    control: Option<Spanned<String>>,
    metrics: Option<Spanned<String>>,
    #[serde(default)]
    resp: Vec<Spanned<String>>,
    pub(super) announce: Option<Spanned<String>>,
    pub(super) redis_cluster: Option<Spanned<bool>>,
    pub(super) redis_cluster_redirect: Option<Spanned<bool>>,
    password_file: Option<Spanned<String>>,
    protected_mode: Option<bool>,
    tls: Option<RawTls>,
    #[serde(default)]
    limits: RawLimits,
    #[serde(default)]
    timing: RawTiming,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawTls {
    ca: Spanned<String>,
    certificate: Spanned<String>,
    key: Spanned<String>,
    #[serde(default)]
    resp: bool,
}

impl RawTls {
    fn check(&self) -> Result<TlsConfig, Mistake> {
        Ok(TlsConfig {
            ca: path("tls.ca", &self.ca)?,
            certificate: path("tls.certificate", &self.certificate)?,
            key: path("tls.key", &self.key)?,
            resp: self.resp,
        })
    }
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct RawLimits {
    max_clients: Option<Spanned<i64>>,
    clients_memory_mib: Option<Spanned<i64>>,
    client_request_s: Option<Spanned<i64>>,
    client_unread_s: Option<Spanned<i64>>,
    client_idle_s: Option<Spanned<i64>>,
    peer_log_values: Option<Spanned<i64>>,
    ring_memory_mib: Option<Spanned<i64>>,
    worker_threads: Option<Spanned<i64>>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct RawTiming {
    submit_deadline_ms: Option<Spanned<i64>>,
    suspect_after_ms: Option<Spanned<i64>>,
    probe_interval_ms: Option<Spanned<i64>>,
    spin_us: Option<Spanned<i64>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawNode {
    id: Spanned<i64>,
    name: Spanned<String>,
    address: Spanned<String>,
    control_plane: Option<Spanned<String>>,
    roles: Spanned<Vec<Spanned<String>>>,
}

fn integer(key: &str, value: &Spanned<i64>, allowed: RangeInclusive<u64>) -> Result<u64, Mistake> {
    match u64::try_from(*value.get_ref()) {
        Ok(n) if allowed.contains(&n) => Ok(n),
        _ => mistake(
            value,
            format!(
                "{key} = {} is out of range; it must be {} to {}",
                value.get_ref(),
                allowed.start(),
                allowed.end()
            ),
        ),
    }
}

/// Like [`integer`], with a default; the callers' ranges guarantee that the result fits in `u32`.
fn integer_or(
    key: &str,
    value: &Option<Spanned<i64>>,
    allowed: RangeInclusive<u64>,
    default: u64,
) -> Result<u64, Mistake> {
    value
        .as_ref()
        .map_or(Ok(default), |v| integer(key, v, allowed))
}

fn name(key: &str, value: &Spanned<String>, also: &[char]) -> Result<String, Mistake> {
    let text = value.get_ref();
    let fits = bounds::NAME_LEN_BYTES.contains(&text.len());
    let legal = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_' || also.contains(&c);
    if fits && text.chars().all(legal) && text.starts_with(|c: char| c.is_ascii_alphanumeric()) {
        return Ok(text.clone());
    }
    let also: String = also.iter().map(|c| format!(", '{c}'")).collect();
    mistake(
        value,
        format!(
            "{key} = {text:?} is not a name; use {} to {} letters, digits, '-', '_'{also}, the \
             first a letter or digit",
            bounds::NAME_LEN_BYTES.start(),
            bounds::NAME_LEN_BYTES.end()
        ),
    )
}

fn listen_address(key: &str, value: &Spanned<String>) -> Result<SocketAddr, Mistake> {
    match value.get_ref().parse::<SocketAddr>() {
        Ok(address) if address.port() != 0 => Ok(address),
        _ => mistake(
            value,
            format!(
                "{key} = {:?} is not an address; write ADDRESS:PORT with a port from 1, for \
                 instance \"127.0.0.1:6379\"",
                value.get_ref()
            ),
        ),
    }
}

fn node_address(
    key: &str,
    value: &Spanned<String>,
    default_port: u16,
) -> Result<SocketAddrV4, Mistake> {
    let text = value.get_ref();
    let parsed = text.parse::<SocketAddrV4>().or_else(|_| {
        text.parse::<Ipv4Addr>()
            .map(|ip| SocketAddrV4::new(ip, default_port))
    });
    let is_ipv6 = text.parse::<SocketAddrV6>().is_ok() || text.parse::<Ipv6Addr>().is_ok();
    if is_ipv6 {
        return mistake(
            value,
            format!(
                "{key} = {text:?} is an IPv6 address; hosts of a cluster reach each other over IPv4 \
                 (Redis clients and metrics may use IPv6): give each host an IPv4 address, private \
                 ones will do"
            ),
        );
    }
    let Ok(address) = parsed else {
        return mistake(
            value,
            format!(
                "{key} = {text:?} is not an address; write IPV4 or IPV4:PORT, for instance \
                 \"10.77.0.1:7400\""
            ),
        );
    };
    let ip = address.ip();
    if ip.is_unspecified() || ip.is_multicast() || ip.is_broadcast() || address.port() == 0 {
        return mistake(
            value,
            format!(
                "{key} = {text:?} cannot receive packets; it must be one host's own IPv4 address \
                 and a port from 1"
            ),
        );
    }
    Ok(address)
}

impl RawConfig {
    pub(super) fn check(self) -> Result<Config, Mistake> {
        let cluster = self.cluster.check()?;
        let nodes = check_nodes(&self.node, cluster.port)?;
        let host = self.host.check(&nodes)?;
        Ok(Config {
            cluster,
            host,
            log: self.log.check()?,
            nodes,
        })
    }
}

impl RawCluster {
    fn check(&self) -> Result<ClusterConfig, Mistake> {
        let partitions = integer_or("partitions", &self.partitions, bounds::PARTITIONS, 1)? as u32;
        let ring_slots = integer_or(
            "ring_slots",
            &self.ring_slots,
            bounds::RING_SLOTS,
            u64::from(DEFAULT_RING_SLOTS),
        )?;
        if let (Some(at), false) = (&self.ring_slots, ring_slots.is_power_of_two()) {
            return mistake(
                at,
                format!(
                    "ring_slots = {ring_slots} is not a power of two; {} is the next one",
                    ring_slots.next_power_of_two()
                ),
            );
        }
        let durability = match &self.durability {
            None => return mistake(
                &self.epoch,
                "missing field `durability`: write durability = \"memory\" (a value survives the \
                     loss of any minority of acceptors, not of power everywhere) or durability = \
                     \"sync\" (every vote is on a disk before it counts)",
            ),
            Some(text) => text
                .get_ref()
                .parse()
                .or_else(|message: String| mistake(text, message))?,
        };
        Ok(ClusterConfig {
            name: name("name", &self.name, &[])?,
            epoch: integer("epoch", &self.epoch, bounds::EPOCH)? as u32,
            first_instances: self.first_instances(logs_of(partitions))?,
            partitions,
            leader_balance: self.leader_balance.unwrap_or(true),
            ring_slots: ring_slots as u32,
            port: integer_or("port", &self.port, bounds::PORT, u64::from(DEFAULT_PORT))? as u16,
            durability,
            mtu: integer_or("mtu", &self.mtu, bounds::MTU, u64::from(DEFAULT_MTU))? as u16,
            key_file: match &self.key_file {
                Some(text) => Some(path("key_file", text)?),
                None => None,
            },
        })
    }
}

impl RawCluster {
    /// One for each log.
    fn first_instances(&self, logs: usize) -> Result<Vec<u64>, Mistake> {
        let (all, each) = (&self.first_instance, &self.first_instances);
        let allowed = bounds::FIRST_INSTANCE;
        match (all, each) {
            (Some(all), None) => Ok(vec![integer("first_instance", all, allowed)?; logs]),
            (None, Some(each)) if each.get_ref().len() == logs => each
                .get_ref()
                .iter()
                .map(|first| integer("first_instances", first, allowed.clone()))
                .collect(),
            (None, Some(each)) => mistake(
                each,
                format!(
                    "first_instances has {} entries; this cluster has {logs} logs: one for each \
                     partition and, if there are several, one for the commands of several",
                    each.get_ref().len()
                ),
            ),
            (Some(all), Some(_)) => mistake(
                all,
                "first_instance and first_instances are both set; leave one out",
            ),
            (None, None) => mistake(
                &self.epoch,
                "missing field `first_instance` (or `first_instances`, one for each log)",
            ),
        }
    }
}

impl RawHost {
    fn check(&self, nodes: &[NodeConfig]) -> Result<HostConfig, Mistake> {
        let node = integer("node", &self.node, bounds::NODE_ID)? as u8;
        let Some(this) = nodes.iter().find(|n| n.id == node) else {
            let ids: Vec<String> = nodes.iter().map(|n| n.id.to_string()).collect();
            return mistake(
                &self.node,
                format!(
                    "node = {node}: no [[node]] has this id; the ids are {}",
                    ids.join(", ")
                ),
            );
        };
        let dataplane = match &self.dataplane {
            None => Dataplane::Auto,
            Some(text) => text
                .get_ref()
                .parse()
                .or_else(|message: String| mistake(text, message))?,
        };
        if let Some(interface) = &self.interface {
            let length = interface.get_ref().len();
            let legal = |c: char| !c.is_whitespace() && c != '/' && c != ':';
            if length == 0
                || length > bounds::INTERFACE_NAME_MAX_BYTES
                || !interface.get_ref().chars().all(legal)
            {
                return mistake(
                    interface,
                    format!(
                        "interface = {:?} is not the name of an interface (1 to {} bytes, see `ip \
                         link`)",
                        interface.get_ref(),
                        bounds::INTERFACE_NAME_MAX_BYTES
                    ),
                );
            }
        } else if matches!(dataplane, Dataplane::Xdp | Dataplane::XdpGeneric) {
            let at = self.dataplane.as_ref().expect("xdp is never the default");
            return mistake(
                at,
                format!(
                    "dataplane = \"{dataplane}\" needs an interface; add interface = \"NAME\" \
                     under [host]"
                ),
            );
        }
        let state_dir = path("state_dir", &self.state_dir)?;
        let data_dirs = self.data_dirs(&state_dir)?;
        let control = match &self.control {
            Some(text) => path("control", text)?,
            None => state_dir.join("control.sock"),
        };
        if control.as_os_str().len() > bounds::SOCKET_PATH_MAX_BYTES {
            return mistake(
                self.control.as_ref().unwrap_or(&self.state_dir),
                format!(
                    "the control socket's path {:?} has {} bytes, the kernel takes {}; set control \
                     to a shorter path",
                    control,
                    control.as_os_str().len(),
                    bounds::SOCKET_PATH_MAX_BYTES
                ),
            );
        }
        if let (Some(at), false) = (self.resp.first(), this.has(Role::Replica)) {
            return mistake(
                at,
                format!(
                    "resp is set, but node {node} ({:?}) is not a replica; only replicas serve clients",
                    this.name
                ),
            );
        }
        let mut resp = Vec::with_capacity(self.resp.len());
        for text in &self.resp {
            let address = listen_address("resp", text)?;
            if resp.contains(&address) {
                return mistake(text, format!("resp names {address} twice"));
            }
            resp.push(address);
        }
        let protected_mode = self.protected_mode.unwrap_or(true);
        let is_open =
            self.password_file.is_none() && !self.tls.as_ref().is_some_and(|tls| tls.resp);
        let beyond = resp.iter().position(|address| !address.ip().is_loopback());
        if let (Some(at), true, true) = (beyond, protected_mode, is_open) {
            return mistake(&self.resp[at], unprotected("resp", resp[at]));
        }
        let metrics = match &self.metrics {
            Some(text) => {
                let address = listen_address("metrics", text)?;
                if resp.contains(&address) {
                    return mistake(text, format!("metrics and resp both name {address}"));
                }
                Some(address)
            }
            None => None,
        };
        let discovery = Discovery::check(self, this)?;
        let timing = self.timing.check()?;
        Ok(HostConfig {
            node,
            state_dir,
            data_dirs,
            dataplane,
            interface: self.interface.as_ref().map(|i| i.get_ref().clone()),
            control,
            metrics,
            resp,
            announce: discovery.announce,
            redis_cluster: discovery.is_cluster,
            redis_cluster_redirect: discovery.redirects,
            password_file: self
                .password_file
                .as_ref()
                .map(|text| path("password_file", text))
                .transpose()?,
            protected_mode,
            tls: self.tls.as_ref().map(RawTls::check).transpose()?,
            limits: self.limits.check()?,
            timing,
        })
    }
}

impl RawHost {
    fn data_dirs(&self, state_dir: &Path) -> Result<Vec<PathBuf>, Mistake> {
        let dirs = match (&self.data_dir, &self.data_dirs) {
            (None, None) => return Ok(vec![state_dir.join("data")]),
            (Some(one), None) => return Ok(vec![path("data_dir", one)?]),
            (None, Some(dirs)) => dirs,
            (Some(one), Some(_)) => {
                return mistake(one, "data_dir and data_dirs are both set; leave one out");
            }
        };
        if dirs.get_ref().is_empty() {
            return mistake(
                dirs,
                "data_dirs names no directory; leave it out, or name one",
            );
        }
        let mut found: Vec<PathBuf> = Vec::with_capacity(dirs.get_ref().len());
        for text in dirs.get_ref() {
            let dir = path("data_dirs", text)?;
            if found.contains(&dir) {
                return mistake(text, format!("data_dirs names {dir:?} twice"));
            }
            found.push(dir);
        }
        Ok(found)
    }
}

fn path(key: &str, value: &Spanned<String>) -> Result<PathBuf, Mistake> {
    if value.get_ref().is_empty() || value.get_ref().contains('\0') {
        return mistake(
            value,
            format!("{key} = {:?} is not a path", value.get_ref()),
        );
    }
    Ok(PathBuf::from(value.get_ref()))
}

impl RawLimits {
    fn check(&self) -> Result<Limits, Mistake> {
        let default = Limits::default();
        let or = |key, value, allowed, default: u32| {
            integer_or(key, value, allowed, u64::from(default)).map(|n| n as u32)
        };
        Ok(Limits {
            max_clients: or(
                "max_clients",
                &self.max_clients,
                bounds::MAX_CLIENTS,
                default.max_clients,
            )?,
            clients_memory_mib: or(
                "clients_memory_mib",
                &self.clients_memory_mib,
                bounds::CLIENTS_MEMORY_MIB,
                default.clients_memory_mib,
            )?,
            client_request_s: or(
                "client_request_s",
                &self.client_request_s,
                bounds::CLIENT_TIMEOUT_S,
                default.client_request_s,
            )?,
            client_unread_s: or(
                "client_unread_s",
                &self.client_unread_s,
                bounds::CLIENT_TIMEOUT_S,
                default.client_unread_s,
            )?,
            client_idle_s: or(
                "client_idle_s",
                &self.client_idle_s,
                bounds::CLIENT_IDLE_S,
                default.client_idle_s,
            )?,
            peer_log_values: or(
                "peer_log_values",
                &self.peer_log_values,
                bounds::PEER_LOG_VALUES,
                default.peer_log_values,
            )?,
            ring_memory_mib: or(
                "ring_memory_mib",
                &self.ring_memory_mib,
                bounds::RING_MEMORY_MIB,
                default.ring_memory_mib,
            )?,
            worker_threads: or(
                "worker_threads",
                &self.worker_threads,
                bounds::WORKER_THREADS,
                default.worker_threads,
            )?,
        })
    }
}

impl RawTiming {
    fn check(&self) -> Result<Timing, Mistake> {
        let default = Timing::default();
        let timing = Timing {
            submit_deadline_ms: integer_or(
                "submit_deadline_ms",
                &self.submit_deadline_ms,
                bounds::SUBMIT_DEADLINE_MS,
                default.submit_deadline_ms,
            )?,
            suspect_after_ms: integer_or(
                "suspect_after_ms",
                &self.suspect_after_ms,
                bounds::SUSPECT_AFTER_MS,
                default.suspect_after_ms,
            )?,
            probe_interval_ms: integer_or(
                "probe_interval_ms",
                &self.probe_interval_ms,
                bounds::PROBE_INTERVAL_MS,
                default.probe_interval_ms,
            )?,
            spin_us: integer_or("spin_us", &self.spin_us, bounds::SPIN_US, default.spin_us)?,
        };
        if timing.probe_interval_ms >= timing.suspect_after_ms {
            let at = self
                .probe_interval_ms
                .as_ref()
                .or(self.suspect_after_ms.as_ref());
            return mistake(
                at.expect("the defaults satisfy this, so one of the two is in the file"),
                format!(
                    "probe_interval_ms = {} must be below suspect_after_ms = {}, or every leader \
                     is suspected",
                    timing.probe_interval_ms, timing.suspect_after_ms
                ),
            );
        }
        Ok(timing)
    }
}

fn check_nodes(raw: &[Spanned<RawNode>], port: u16) -> Result<Vec<NodeConfig>, Mistake> {
    let mut ids = HashMap::new();
    let mut names = HashMap::new();
    let mut addresses = HashMap::new();
    let mut nodes: Vec<NodeConfig> = Vec::with_capacity(raw.len());
    for raw in raw.iter().map(Spanned::get_ref) {
        let id = integer("id", &raw.id, bounds::NODE_ID)? as u8;
        let name = name("name", &raw.name, &['/', '.'])?;
        let address = node_address("address", &raw.address, port)?;
        let control_plane = match &raw.control_plane {
            Some(text) => Some(node_address(
                "control_plane",
                text,
                control_plane_beside(address).port(),
            )?),
            None => None,
        };
        if let Some(other) = ids.insert(id, name.clone()) {
            return mistake(
                &raw.id,
                format!("id = {id} is taken by node {other:?} already"),
            );
        }
        if let Some(other) = names.insert(name.clone(), id) {
            return mistake(
                &raw.name,
                format!("name = {name:?} is taken by node {other} already"),
            );
        }
        if let Some(other) = addresses.insert(address, name.clone()) {
            return mistake(
                &raw.address,
                format!("address = \"{address}\" is taken by node {other:?} already"),
            );
        }
        if raw.roles.get_ref().is_empty() {
            return mistake(
                &raw.roles,
                format!(
                    "node {name:?} has no roles; give it \"leader\", \"acceptor\", \"replica\" or \"controller\""
                ),
            );
        }
        let mut roles = Vec::new();
        for text in raw.roles.get_ref() {
            let role: Role = text
                .get_ref()
                .parse()
                .or_else(|message: String| mistake(text, message))?;
            if roles.contains(&role) {
                return mistake(text, format!("node {name:?} has the role \"{role}\" twice"));
            }
            roles.push(role);
        }
        nodes.push(NodeConfig {
            id,
            name,
            address,
            control_plane,
            roles,
        });
    }
    let limits = [
        (Role::Leader, bounds::LEADERS),
        (Role::Acceptor, bounds::ACCEPTORS),
        (Role::Replica, bounds::REPLICAS),
        (Role::Controller, bounds::CONTROLLERS),
    ];
    for (role, allowed) in limits {
        let having: Vec<usize> = (0..nodes.len()).filter(|&i| nodes[i].has(role)).collect();
        if having.len() < *allowed.start() {
            let at = raw.last().map_or(0, |r| r.span().start);
            return Err(Mistake {
                at,
                message: format!("no [[node]] has the role \"{role}\"; a cluster needs one"),
            });
        }
        if having.len() > *allowed.end() {
            return mistake(
                &raw[having[*allowed.end()]],
                format!(
                    "{} nodes have the role \"{role}\"; at most {} may",
                    having.len(),
                    allowed.end()
                ),
            );
        }
    }
    Ok(nodes)
}
