//! A host with a replica: the store, its clients and the node in one loop.

use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{ensure, Context, Result};
use inband_control::service::Service;
use inband_host::notify::Notifier;
use inband_host::signals::StopRequest;
use inband_kv::discovery::Discovery;
use inband_kv::machine::{Machine, MachineConfig};
use inband_kv::replica::{Replica, ReplicaConfig};
use inband_kv::starting::{Clients, Starting};
use inband_kv::workers::WorkerConfig;
use inband_paxos::backend::Choice;
use inband_paxos::config::{Config, Durability};
use inband_paxos::node::Node;
use inband_resp::password::Password;
use inband_resp::timeouts::ClientTimeouts;
use inband_transport::tls::server_for_clients;
use rustls::ServerConfig;

use crate::announce::Announcer;
use crate::control_plane::{self, Stop};
use crate::descriptors;
use crate::exit_status::Unsuitable;
use crate::metrics::Endpoint;
use crate::reload::HostReload;
use crate::serve::{self, HostView};
use crate::stopping;
use crate::transport;

/// How much longer a command may take than the log's own deadline.
const APPLY_MS_MAX: u64 = 2_000;

/// A replica whose clients are told that it starts.
pub struct StartingReplica {
    config: ReplicaConfig,
    store: MachineConfig,
    clients: Starting,
    /// Sockets that are not served yet, because other replicas serve them.
    shared: Vec<TcpListener>,
}

impl StartingReplica {
    /// Serves the clients at `listeners`, and at `shared` only when there is a replica.
    pub fn start(
        config: &Config,
        listeners: Vec<TcpListener>,
        shared: Vec<TcpListener>,
    ) -> Result<StartingReplica> {
        let store = MachineConfig {
            dirs: config.host.data_dirs.clone(),
            partitions: config.cluster.partitions as usize,
            sync: config.cluster.durability == Durability::Sync,
        };
        let config = config_of(config, &listeners)?;
        let clients = Clients::listen(&config, listeners)?;
        let clients = Starting::start(&config, &store, clients)?;
        Ok(StartingReplica {
            config,
            store,
            clients,
            shared,
        })
    }
}

fn config_of(config: &Config, listeners: &[TcpListener]) -> Result<ReplicaConfig> {
    let this = config.this();
    let index = config.replicas().position(|n| n.id == this.id).unwrap_or(0);
    let limits = &config.host.limits;
    let seconds = |s: u32| Duration::from_secs(s.into());
    Ok(ReplicaConfig {
        name: this.name.clone(),
        replica_index: index as u64,
        clients_max: descriptors::clients_max(config)?,
        clients_memory_bytes_max: (limits.clients_memory_mib as usize) << 20,
        timeouts: ClientTimeouts {
            incomplete: seconds(limits.client_request_s),
            password: ReplicaConfig::default().timeouts.password,
            unread: seconds(limits.client_unread_s),
            idle: (limits.client_idle_s > 0).then(|| seconds(limits.client_idle_s)),
        },
        password: password_of(config)?,
        tls: clients_tls_of(config)?,
        transport: transport::of(config)?,
        spin_us: config.host.timing.spin_us,
        deadline_ms: config.host.timing.submit_deadline_ms + APPLY_MS_MAX,
        discovery: discovery_of(config, listeners)?,
        workers: WorkerConfig {
            threads: limits.worker_threads as usize,
            ..WorkerConfig::default()
        },
        ..ReplicaConfig::default()
    })
}

/// Runs until `stop` is set, or `request` says so.
pub fn run(
    config: &Arc<Config>,
    choice: Choice,
    stop: Stop,
    request: StopRequest,
    starting: StartingReplica,
    endpoint: &Endpoint,
    reload: HostReload,
) -> Result<()> {
    let this = config.this();
    let machine = Machine::open(starting.store)
        .with_context(|| format!("host.data_dirs {:?}", config.host.data_dirs))?;
    let applied = machine.applied();
    let firsts = &config.cluster.first_instances;
    let is_behind = |(applied, first): (&u64, &u64)| *applied != 0 && applied + 1 < *first;
    ensure!(
        !applied.iter().zip(firsts).any(is_behind) || config.replicas().count() > 1,
        "the store has applied instances {applied:?}, the epoch starts at {firsts:?}, and there is no peer to copy from",
    );
    let transport = starting.config.transport.clone();
    let node = Node::open(config, choice.dataplane, &applied)?;
    // The service must be dropped last, so it is the first binding.
    let (service, node, state, node_commands) =
        control_plane::join(config, node, &transport, &stop)?;
    // Peers fetch checkpoints over TCP from the address that also receives packets.
    let checkpoints = TcpListener::bind(this.address)
        .with_context(|| format!("TCP address {} of node {:?}", this.address, this.name))?;
    let mut clients = starting.clients.finish()?;
    clients.listen_at(starting.shared)?;
    let mut replica = Replica::of(
        starting.config,
        machine,
        Box::new(node),
        clients,
        Some(checkpoints),
    )?;
    let view = HostView {
        config: config.clone(),
        choice,
        state,
        transport,
        control_listener: service.as_ref().map(Service::counters),
        node_commands,
        replica: Some(replica.control()),
        stop: stop.flag.clone(),
        request,
        notifier: Notifier::from_environment(),
    };
    endpoint.serve(view.clone());
    let _announcer = Announcer::start(view.clone())?;
    let _control = serve::start(view.clone())?;
    reload.start(view.clone())?;
    stopping::start(view)?;
    replica.run()?;
    tracing::info!("{}: stopped", this.name);
    stop.outcome()
}

/// Returns the password that Redis clients must send, if any.
pub fn password_of(config: &Config) -> Result<Option<Password>> {
    let file = config.host.password_file.as_deref();
    let password = file.map(Password::read).transpose();
    password.map_err(|error| Unsuitable(format!("host.password_file: {error}")).into())
}

/// Returns what clients that look for replicas are told about this one.
fn discovery_of(config: &Config, listeners: &[TcpListener]) -> Result<Discovery> {
    let mut announce = config.host.announce.clone();
    if let (None, Some(listener)) = (&announce, listeners.first()) {
        let mut address = listener.local_addr()?;
        if address.ip().is_unspecified() {
            address.set_ip((*config.this().address.ip()).into());
        }
        announce = Some(address.into());
    }
    Ok(Discovery {
        cluster: config.cluster.name.clone(),
        node: config.this().id.into(),
        announce,
        is_cluster: config.host.redis_cluster,
        redirects: config.host.redis_cluster_redirect,
    })
}

/// Returns the TLS configuration for Redis clients, if they must use TLS.
pub fn clients_tls_of(config: &Config) -> Result<Option<Arc<ServerConfig>>> {
    let tls = config.host.tls.as_ref().filter(|tls| tls.resp);
    tls.map(|tls| server_for_clients(&transport::certificate_files(tls)))
        .transpose()
        .context("host.tls")
}
