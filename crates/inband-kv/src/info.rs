//! The contents of `INFO`, `CLIENT LIST` and `CONFIG GET`.

use std::net::SocketAddr;
use std::time::Instant;

use inband_resp::front::ClientConnection;
use inband_resp::reply::Protocol;
use nix::sys::resource::{getrusage, UsageWho};
use nix::sys::time::TimeVal;
use nix::unistd::{sysconf, SysconfVar};

use crate::connection::Connection;
use crate::control::Status;
use crate::discovery::Discovery;
use crate::limit_hits::LimitHit;
use crate::parse::ReadMode;

/// Static properties of a replica.
#[derive(Debug, Clone)]
pub struct Identity {
    pub name: String,
    /// Index of this replica, from 0.
    pub replica_index: u64,
    pub partitions: usize,
    /// Maximum number of clients.
    pub clients_max: usize,
    /// The read mode of connections that have not chosen one.
    pub reads: ReadMode,
    pub worker_threads: usize,
    /// Whether the store survives power failures.
    pub is_sync: bool,
    /// Seconds after which an idle client is disconnected; 0: never.
    pub idle_s: u64,
    pub started: Instant,
    /// Listening addresses.
    pub addresses: Vec<SocketAddr>,
    pub command_len_bytes_max: usize,
    /// Clients must use TLS.
    pub has_tls: bool,
    pub discovery: Discovery,
}

impl Identity {
    /// `redis_mode` of `INFO`, and `mode` of `HELLO`.
    pub fn mode(&self) -> &'static str {
        match self.discovery.is_cluster {
            true => "cluster",
            false => "standalone",
        }
    }

    /// Returns the settings that `CONFIG GET` returns.
    pub fn settings(&self) -> Vec<(&'static str, String)> {
        vec![
            (
                "appendfsync",
                if self.is_sync { "always" } else { "no" }.into(),
            ),
            ("appendonly", "yes".into()),
            ("databases", "1".into()),
            ("maxclients", self.clients_max.to_string()),
            ("maxmemory", "0".into()),
            ("maxmemory-policy", "noeviction".into()),
            ("port", self.port().to_string()),
            (
                "proto-max-bulk-len",
                inband_resp::limits::REQUEST_LEN_BYTES_MAX.to_string(),
            ),
            ("save", String::new()),
            ("timeout", self.idle_s.to_string()),
        ]
    }

    fn port(&self) -> u16 {
        self.addresses.first().map_or(0, SocketAddr::port)
    }
}

pub fn info(
    sections: &[&[u8]],
    status: &Status,
    identity: &Identity,
    expiring_keys: &dyn Fn() -> u64,
    now: Instant,
) -> String {
    let all: [(&str, String); 10] = [
        ("Server", server(identity, now)),
        (
            "Clients",
            format!(
                "connected_clients:{}\r\nmaxclients:{}\r\nblocked_clients:{}\r\n",
                status.connected_clients, identity.clients_max, status.waiting_clients
            ),
        ),
        ("Memory", memory()),
        ("CPU", cpu()),
        (
            "Persistence",
            format!(
                "loading:{}\r\nasync_loading:0\r\n",
                u8::from(status.is_loading || status.is_behind)
            ),
        ),
        (
            "Stats",
            format!(
                "total_connections_received:{}\r\ntotal_commands_processed:{}\r\n\
             rejected_connections:{}\r\n",
                status.connections_total,
                status.requests_total,
                status.hits(LimitHit::Clients)
            ),
        ),
        (
            "Replication",
            format!(
                "role:master\r\nconnected_slaves:0\r\nmaster_repl_offset:{}\r\n",
                status.applied_instance
            ),
        ),
        (
            "Keyspace",
            if status.keys == 0 {
                String::new()
            } else {
                format!(
                    "db0:keys={},expires={},avg_ttl=0\r\n",
                    status.keys,
                    expiring_keys().min(status.keys)
                )
            },
        ),
        (
            "Cluster",
            format!(
                "cluster_enabled:{}\r\n",
                u8::from(identity.discovery.is_cluster)
            ),
        ),
        ("Inband", inband(status, identity)),
    ];
    let is_asked = |title: &str| {
        let is_in = |s: &&[u8]| {
            let is_group = ["all", "default", "everything"];
            s.eq_ignore_ascii_case(title.as_bytes())
                || is_group
                    .iter()
                    .any(|group| s.eq_ignore_ascii_case(group.as_bytes()))
        };
        sections.is_empty() || sections.iter().any(is_in)
    };
    let asked = all.iter().filter(|(title, _)| is_asked(title));
    asked
        .map(|(title, body)| format!("# {title}\r\n{body}"))
        .collect::<Vec<_>>()
        .join("\r\n")
}

/// Memory of the process, including what allocators and caches hold.
fn memory() -> String {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm.split(' ').nth(1).and_then(|pages| pages.parse().ok());
    let page_bytes = sysconf(SysconfVar::PAGE_SIZE).ok().flatten().unwrap_or(0);
    let bytes = pages.unwrap_or(0) * u64::try_from(page_bytes).unwrap_or(0);
    let mib = bytes as f64 / f64::from(1 << 20);
    format!(
        "used_memory:{bytes}\r\nused_memory_human:{mib:.2}M\r\nused_memory_rss:{bytes}\r\nmaxmemory:0\r\n\
         maxmemory_policy:noeviction\r\n"
    )
}

/// CPU time of the process.
fn cpu() -> String {
    let Ok(usage) = getrusage(UsageWho::RUSAGE_SELF) else {
        return String::new();
    };
    let text = |time: TimeVal| format!("{}.{:06}", time.tv_sec(), time.tv_usec());
    format!(
        "used_cpu_sys:{}\r\nused_cpu_user:{}\r\nused_cpu_sys_children:0.000000\r\nused_cpu_user_children:0.000000\r\n",
        text(usage.system_time()),
        text(usage.user_time())
    )
}

fn server(identity: &Identity, now: Instant) -> String {
    let uptime_s = now.saturating_duration_since(identity.started).as_secs();
    format!(
        "redis_version:7.2.0\r\nredis_mode:{}\r\ninband_version:{}\r\nos:Linux\r\n\
         process_id:{}\r\ntcp_port:{}\r\nuptime_in_seconds:{uptime_s}\r\n\
         uptime_in_days:{}\r\n",
        identity.mode(),
        env!("CARGO_PKG_VERSION"),
        std::process::id(),
        identity.port(),
        uptime_s / 86_400,
    )
}

fn inband(status: &Status, identity: &Identity) -> String {
    let s = status;
    let fields = [
        ("replica_index", identity.replica_index),
        ("partitions", identity.partitions as u64),
        ("applied_instance", s.applied_instance),
        ("replicated_time_ms", s.time_ms),
        ("client_sessions", s.client_sessions),
        ("commands_applied", s.commands_applied_total),
        ("reads_by_position", s.reads_total),
        ("worker_threads", identity.worker_threads as u64),
        ("worker_rounds", s.worker_rounds_total),
        ("worker_cpu_us", s.worker_cpu_us_total),
        ("values_submitted", s.values_submitted_total),
        ("values_in_flight", s.values_in_flight),
        ("delivered_bytes", s.delivered_bytes),
        ("outcomes_unknown", s.outcomes_unknown_total),
        ("command_bytes_max", identity.command_len_bytes_max as u64),
        ("loading_bytes", s.loading_bytes),
        ("loading_bytes_total", s.loading_bytes_total),
        ("checkpoints_installed", s.checkpoints_installed_total),
        ("checkpoints_served", s.checkpoints_served_total),
        ("draining", u64::from(s.is_draining)),
        ("clients_memory_bytes", s.clients_memory_bytes),
    ];
    let reads = identity.reads.name();
    let mut text = format!("name:{}\r\nreads:{reads}\r\n", identity.name);
    for (log, applied) in s.applied_instances.iter().enumerate() {
        let name = match log == identity.partitions {
            true => "m".to_owned(),
            false => format!("p{log}"),
        };
        text += &format!("applied_instance_{name}:{applied}\r\n");
    }
    let skew_ms = s.clock_skew_ms.map(|ms| ms.to_string());
    text += &format!(
        "clock_skew_ms:{}\r\nclocks_heard:{}\r\n",
        skew_ms.as_deref().unwrap_or("unknown"),
        s.clocks_heard
    );
    let hits = LimitHit::ALL.map(|hit| (hit.counter(), s.hits(hit)));
    for (name, value) in fields.into_iter().chain(hits) {
        text += &format!("{name}:{value}\r\n");
    }
    text
}

/// One line of `CLIENT LIST`.
pub fn client_line(client: &Connection, now: Instant) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    format!(
        "id={} addr={} name={} age={} idle={} flags={} db=0 qbuf={} obl={} tot-mem={} tot-cmds={} resp={} \
         lib-name={} lib-ver={}\n",
        client.id,
        client.peer,
        text(&client.name),
        now.saturating_duration_since(client.accepted).as_secs(),
        now.saturating_duration_since(client.last_request).as_secs(),
        match (client.waiting_number(), client.subscriptions()) {
            (Some(_), _) => "b",
            (None, 1..) => "P",
            (None, 0) => "N",
        },
        client.encoded_len_bytes(),
        client.output.len(),
        client.memory_bytes(),
        client.requests,
        if client.protocol == Protocol::Resp3 {
            3
        } else {
            2
        },
        text(&client.library[0]),
        text(&client.library[1]),
    )
}
