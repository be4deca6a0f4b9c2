//! `inband flair run`: one host of FLAIR.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};
use inband_flair::config::{Config, Part};
use inband_flair::gateway::{ClientSettings, Gateway};
use inband_flair::replica_node::ReplicaNode;
use inband_flair::switch_node::SwitchNode;
use inband_host::line_json::Server;
use inband_host::signals::{Interrupt, StopRequest};
use inband_resp::password::Password;
use inband_transport::tls::{server_for_clients, Transport};

use crate::descriptors;
use crate::run::Inherited;
use crate::transport;
use inband_cluster::flair::keys::HostKeys;
use inband_cluster::flair::status::{HostReply, HostRequest, HostStatus, SwitchStatus};
use inband_host::wait::wait;

/// Interval between updates of the published status.
const PUBLISH_INTERVAL: Duration = Duration::from_millis(20);
/// Longest time until a request to this host is noticed.
const IDLE_MAX: Duration = Duration::from_millis(100);
/// Open files that a gateway reserves for itself.
const RESERVED_DESCRIPTORS: u64 = 64;

/// The status that the control socket reports; updated by the host's thread.
#[derive(Clone)]
struct Published {
    status: Arc<Mutex<HostStatus>>,
    keys: HostKeys,
    renewed: Option<Instant>,
}

impl Published {
    fn new(config: &Config, keys: HostKeys, transport: &Transport) -> Published {
        let status = HostStatus {
            name: config.host.name.clone(),
            transport: format!("{transport:?}"),
            ..HostStatus::default()
        };
        Published {
            status: Arc::new(Mutex::new(status)),
            keys,
            renewed: None,
        }
    }

    /// Updates it at intervals.
    fn renew(&mut self, with: impl FnOnce(&mut HostStatus)) {
        let is_new = |at: Instant| at.elapsed() < PUBLISH_INTERVAL;
        if self.renewed.is_some_and(is_new) {
            return;
        }
        self.renewed = Some(Instant::now());
        let mut status = self.status.lock().unwrap_or_else(PoisonError::into_inner);
        status.keys = self.keys.status();
        with(&mut status);
    }
}

/// Runs until told to stop, by a signal, the control socket or the supervisor's exit.
pub fn run(config_path: &Path, found: bool) -> Result<()> {
    let config = Config::load(config_path)?;
    let stop = Arc::new(AtomicBool::new(false));
    StopRequest::listen(stop.clone(), Interrupt::Stops)?;
    let part = config
        .part()
        .context("a checked configuration has a part")?;
    ensure!(
        !found || matches!(part, Part::Replica(_)),
        "--found is for replicas, and {} is none",
        config.host.name
    );
    let mut listeners = Inherited::take()?.resp;
    for address in &config.host.resp {
        let listener = TcpListener::bind(address).with_context(|| {
            format!("host.resp: cannot listen at {address}; is the port in use?")
        })?;
        listeners.push(listener);
    }
    let keys = HostKeys::load(&config)?;
    let transport = transport::of_tls(config.host.tls.as_ref())?;
    let published = Published::new(&config, keys, &transport);
    let _control = serve(&config, published.clone())?;
    match part {
        Part::Switch(_) => run_switch(&config, &stop, published),
        Part::Replica(_) => run_replica(&config, found, transport, &stop, published),
        Part::Gateway => run_gateway(&config, listeners, &stop, published),
    }
}

fn serve(config: &Config, published: Published) -> Result<Server> {
    let path = &config.host.socket;
    let handle = move |request: HostRequest| match request {
        HostRequest::Status => {
            let status = published.status.lock();
            HostReply::Status(Box::new(
                status.unwrap_or_else(PoisonError::into_inner).clone(),
            ))
        }
        HostRequest::ReloadKeys => match published.keys.reload() {
            Ok(keys) => HostReply::Keys(keys),
            Err(error) => HostReply::Error {
                message: format!("{error:#}"),
            },
        },
    };
    Server::start(path, handle, |message| HostReply::Error { message })
        .with_context(|| format!("host.socket: cannot listen at {}", path.display()))
}

fn owned(counters: BTreeMap<&'static str, u64>) -> BTreeMap<String, u64> {
    let own = |(name, value): (&str, u64)| (name.to_owned(), value);
    counters.into_iter().map(own).collect()
}

fn session_of(node: &SwitchNode, set: usize) -> SwitchStatus {
    let (session, active) = node.session(set);
    SwitchStatus {
        session: session.session,
        active,
        unstable_groups: node.unstable_groups(set),
    }
}

fn run_switch(config: &Config, stop: &AtomicBool, mut published: Published) -> Result<()> {
    let mut node = SwitchNode::open(config, published.keys.file().as_ref())?;
    while !stop.load(Ordering::Acquire) {
        if let Some(keys) = published.keys.take() {
            node.set_keys(keys)?;
        }
        let more = node.poll()?;
        published.renew(|status| {
            status.backend = node.dataplane().to_string();
            status.sessions = (0..node.sets()).map(|set| session_of(&node, set)).collect();
            status.counters = owned(node.counters());
        });
        if !more {
            wait(&[node.fd()], node.poll_timeout().min(IDLE_MAX));
        }
    }
    Ok(())
}

fn run_replica(
    config: &Config,
    found: bool,
    transport: Transport,
    stop: &AtomicBool,
    mut published: Published,
) -> Result<()> {
    let keys = published.keys.file();
    let mut node = ReplicaNode::open(config, found, keys.as_ref(), transport)?;
    while !stop.load(Ordering::Acquire) {
        if let Some(keys) = published.keys.take() {
            node.set_keys(keys);
        }
        let more = node.poll()?;
        published.renew(|status| {
            status.backend = "udp".into();
            status.replica = Some(node.status());
            status.counters = owned(node.counters());
        });
        if !more {
            wait(&node.fds(), node.poll_timeout().min(IDLE_MAX));
        }
    }
    Ok(())
}

/// Requirements for Redis clients, and their maximum number, as far as the limit on open files allows.
fn settings(config: &Config) -> Result<ClientSettings> {
    let host = &config.host;
    let password = host.password_file.as_deref().map(Password::read);
    let tls = host.tls.as_ref().filter(|tls| tls.resp);
    let tls = tls.map(|tls| server_for_clients(&transport::certificate_files(tls)));
    let settings = ClientSettings {
        password: password.transpose().context("host.password_file")?,
        tls: tls.transpose().context("host.tls")?,
        ..ClientSettings::default()
    };
    let clients_max = descriptors::room_for(settings.clients_max as u64, RESERVED_DESCRIPTORS)?;
    Ok(ClientSettings {
        clients_max,
        ..settings
    })
}

fn run_gateway(
    config: &Config,
    listeners: Vec<TcpListener>,
    stop: &AtomicBool,
    mut published: Published,
) -> Result<()> {
    let keys = published.keys.file();
    let mut gateway = Gateway::open(config, keys.as_ref(), listeners, settings(config)?)?;
    gateway.run(stop, |gateway| {
        if let Some(keys) = published.keys.take() {
            gateway.set_keys(keys);
        }
        published.renew(|status| {
            status.backend = "udp".into();
            status.counters = owned(gateway.counters());
        });
    })?;
    Ok(())
}
