//! `inband run`: the roles of one host.

use std::net::TcpListener;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{ensure, Context, Result};
use inband_control::service::Service;
use inband_ground::xdp::keep_refusals_in;
use inband_host::logging::{self, LogFormat};
use inband_host::notify::Notifier;
use inband_host::signals::{Interrupt, StopRequest, LISTEN_FDS_ENV, SHARED_LISTENER};
use inband_host::state_dir::StateLock;
use inband_host::wait::wait;
use inband_paxos::backend;
use inband_paxos::config::{unprotected, Config, Role};
use inband_paxos::log::{Burst, ReplicatedLog};
use inband_paxos::mtu;
use inband_paxos::node::Node;

use crate::announce::Announcer;
use crate::control_plane::{self, Stop};
use crate::exit_status::Unsuitable;
use crate::metrics::Endpoint;
use crate::reload::HostReload;
use crate::replica::StartingReplica;
use crate::serve::{self, HostView};
use crate::stopping;
use crate::transport;

/// Longest sleep of a host without a store; it only has to notice when to stop.
const IDLE_MAX: Duration = Duration::from_millis(100);

/// Runs until told to stop, by a signal, the control socket or the supervisor's exit.
pub fn run(config_path: &Path, log_format: Option<LogFormat>) -> Result<()> {
    if let Some(format) = log_format {
        // An error in the configuration is in the log, too.
        logging::set_format(format);
    }
    let config = Arc::new(Config::load(config_path)?);
    logging::configure(config.log, log_format);
    let _state_lock = StateLock::take(&config.host.state_dir).context("host.state_dir")?;
    let stop = Stop::new(Arc::default());
    let request = StopRequest::listen(Arc::default(), Interrupt::Stops)?;
    mtu::check(&config)?;
    // Check for errors that a restart will not fix, before touching interfaces.
    transport::check_holder(&config)?;
    crate::replica::password_of(&config)?;
    let this = config.this();

    let inherited = Inherited::take()?;
    let metrics_listeners = listeners(inherited.metrics, config.host.metrics, "host.metrics")?;
    let resp = config.host.resp.iter().copied();
    let resp_listeners = listeners(inherited.resp, resp, "host.resp")?;
    let shared_listeners = inherited.shared;
    check_protected(&config, resp_listeners.iter().chain(&shared_listeners))?;
    ensure!(
        (resp_listeners.is_empty() && shared_listeners.is_empty()) || this.has(Role::Replica),
        "a socket for Redis clients was handed down, but {} is not a replica; only replicas serve them",
        this.name
    );
    let reload = HostReload {
        config_path: std::path::absolute(config_path)?,
        log_format,
    };
    // What follows may take long. Until then, clients and probes get an answer.
    let endpoint = Endpoint::default();
    for listener in metrics_listeners {
        endpoint.start(listener, stop.flag.clone())?;
    }
    let starting = this
        .has(Role::Replica)
        .then(|| StartingReplica::start(&config, resp_listeners, shared_listeners))
        .transpose()?;

    keep_refusals_in(&config.host.state_dir);
    let choice = backend::of_host(&config)?;
    tracing::info!(
        "{}: dataplane {} ({})",
        this.name,
        choice.dataplane,
        choice.why
    );
    if let Some(starting) = starting {
        return crate::replica::run(&config, choice, stop, request, starting, &endpoint, reload);
    }
    let firsts = config.cluster.first_instances.iter();
    let applied: Vec<u64> = firsts.map(|first| first - 1).collect();
    let transport = transport::of(&config)?;
    let node = Node::open(&config, choice.dataplane, &applied)?;
    // The service must be dropped last, so it is the first binding.
    let (service, mut node, state, node_commands) =
        control_plane::join(&config, node, &transport, &stop)?;
    let view = HostView {
        config: config.clone(),
        choice,
        state,
        transport,
        control_listener: service.as_ref().map(Service::counters),
        node_commands,
        replica: None,
        stop: stop.flag.clone(),
        request,
        notifier: Notifier::from_environment(),
    };
    endpoint.serve(view.clone());
    let _announcer = Announcer::start(view.clone())?;
    let _control = serve::start(view.clone())?;
    reload.start(view.clone())?;
    stopping::start(view.clone())?;
    let mut bursts = Burst::for_logs(node.partitions());
    while !view.stop.load(Ordering::Acquire) {
        node.poll(&mut bursts);
        bursts.iter_mut().for_each(Burst::clear);
        wait(&node.wake_fds(), node.poll_timeout().min(IDLE_MAX));
    }
    tracing::info!("{}: stopped", config.this().name);
    stop.outcome()
}

/// Sockets that a supervisor or systemd has opened.
#[derive(Default)]
pub struct Inherited {
    pub metrics: Vec<TcpListener>,
    /// For Redis clients.
    pub resp: Vec<TcpListener>,
    /// For Redis clients, of whom other replicas accept some.
    pub shared: Vec<TcpListener>,
}

impl Inherited {
    /// Takes them over. Those without a known name are for Redis clients: by default systemd uses the name of the unit.
    pub fn take() -> Result<Inherited> {
        let mut all = Inherited::default();
        for (usage, listener) in inband_ground::inherit::listeners(LISTEN_FDS_ENV) {
            listener.local_addr().with_context(|| {
                format!("the inherited socket {usage:?} is no TCP socket; write ListenStream=ADDRESS:PORT in its unit")
            })?;
            match usage.as_str() {
                "metrics" => all.metrics.push(listener),
                SHARED_LISTENER => all.shared.push(listener),
                _ => all.resp.push(listener),
            }
        }
        Ok(all)
    }
}

/// Sockets passed by systemd are not in the configuration, which is checked separately.
fn check_protected<'l>(config: &Config, resp: impl Iterator<Item = &'l TcpListener>) -> Result<()> {
    let host = &config.host;
    let is_open = host.password_file.is_none() && !host.tls.as_ref().is_some_and(|tls| tls.resp);
    if host.protected_mode && is_open {
        for listener in resp {
            let address = listener.local_addr()?;
            if !address.ip().is_loopback() {
                return Err(Unsuitable(unprotected("an inherited socket", address)).into());
            }
        }
    }
    Ok(())
}

/// Inherited sockets, and those that the configuration says to bind.
fn listeners(
    mut inherited: Vec<TcpListener>,
    addresses: impl IntoIterator<Item = std::net::SocketAddr>,
    option: &str,
) -> Result<Vec<TcpListener>> {
    for address in addresses {
        let listener = TcpListener::bind(address).with_context(|| {
            format!("{option}: cannot listen at {address}; is the port in use?")
        })?;
        inherited.push(listener);
    }
    Ok(inherited)
}
