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
use inband_host::key_drops::KeyDrops;
use inband_host::line_json::Server;
use inband_host::live_keys::LiveKeys;
use inband_host::notify::Notifier;
use inband_host::reload::Reload;
use inband_host::signals::{Interrupt, StopRequest};
use inband_resp::password::Password;
use inband_transport::tls::{server_for_clients, Transport};

use crate::descriptors;
use crate::run::Inherited;
use crate::transport;
use inband_cluster::flair::status::{HostReply, HostRequest, HostStatus, SwitchStatus};
use inband_host::wait::wait;

/// Interval between updates of the published status.
const PUBLISH_INTERVAL: Duration = Duration::from_millis(20);
/// Longest time until a request to this host is noticed.
const IDLE_MAX: Duration = Duration::from_millis(100);
/// What the service manager shows.
const ANSWERS: &str = "answers";
/// Open files that a gateway reserves for itself.
const RESERVED_DESCRIPTORS: u64 = 64;

/// The status that the control socket reports; updated by the host's thread.
#[derive(Clone)]
struct Published {
    status: Arc<Mutex<HostStatus>>,
    keys: LiveKeys,
    /// Requirements for Redis clients that a gateway has read again and not yet taken.
    clients: Arc<Mutex<Option<ClientSettings>>>,
    notifier: Notifier,
    renewed: Option<Instant>,
    key_drops: Arc<Mutex<KeyDrops>>,
}

impl Published {
    fn new(config: &Config, keys: LiveKeys, transport: &Transport) -> Published {
        let status = HostStatus {
            name: config.host.name.clone(),
            transport: format!("{transport:?}"),
            ..HostStatus::default()
        };
        Published {
            status: Arc::new(Mutex::new(status)),
            keys,
            clients: Arc::default(),
            notifier: Notifier::from_environment(),
            renewed: None,
            key_drops: Arc::default(),
        }
    }

    /// The main loop turns; updates the status at intervals.
    fn renew(&mut self, with: impl FnOnce(&mut HostStatus)) {
        self.notifier.turned(Instant::now());
        let is_new = |at: Instant| at.elapsed() < PUBLISH_INTERVAL;
        if self.renewed.is_some_and(is_new) {
            return;
        }
        self.renewed = Some(Instant::now());
        let mut status = self.status.lock().unwrap_or_else(PoisonError::into_inner);
        status.keys = self.keys.status();
        with(&mut status);
        let counters = status.counters.iter();
        let counters = counters.map(|(name, count)| (name.as_str(), *count));
        let key_drops = self.key_drops.lock();
        let mut key_drops = key_drops.unwrap_or_else(PoisonError::into_inner);
        key_drops.note(Instant::now(), counters);
    }
}

/// Runs until told to stop, by a signal, the control socket or the supervisor's exit.
pub fn run(config_path: &Path, found: bool) -> Result<()> {
    let config = Config::load(config_path)?;
    let stop = Arc::new(AtomicBool::new(false));
    let request = StopRequest::listen(stop.clone(), Interrupt::Stops)?;
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
    let keys = LiveKeys::load(config.cluster.key_file.as_deref())?;
    let transport = transport::of_tls(config.host.tls.as_ref())?;
    let published = Published::new(&config, keys, &transport);
    let _control = serve(&config, published.clone())?;
    let is_over = stop.clone();
    reload_of(&config, &published, &transport).start(
        request,
        published.notifier.clone(),
        move || is_over.load(Ordering::Acquire),
    )?;
    let notifier = published.notifier.clone();
    let ended = match part {
        Part::Switch(_) => run_switch(&config, &stop, published),
        Part::Replica(_) => run_replica(&config, found, transport, &stop, published),
        Part::Gateway => run_gateway(&config, listeners, &stop, published),
    };
    notifier.stopping();
    ended
}

/// What this host reads again on SIGHUP.
fn reload_of(config: &Config, published: &Published, transport: &Transport) -> Reload {
    let keys = published.keys.clone();
    let mut reload = Reload::new().with("packet keys", move || keys.reload_in_words());
    if let Some(tls) = &config.host.tls {
        let (files, transport) = (transport::certificate_files(tls), transport.clone());
        reload = reload.with("certificates", move || {
            transport.reload(&files).context("host.tls")?;
            Ok(Some(transport::expiry(&files)?))
        });
    }
    if config.part() == Some(Part::Gateway) {
        let (config, clients) = (config.clone(), published.clients.clone());
        reload = reload.with("password and certificate for clients", move || {
            let fresh = settings(&config)?;
            let is_any = fresh.password.is_some() || fresh.tls.is_some();
            *clients.lock().unwrap_or_else(PoisonError::into_inner) = Some(fresh);
            Ok(is_any.then(|| "for clients that connect from now on".into()))
        });
    }
    reload
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
    published.notifier.ready(ANSWERS);
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
    published.notifier.ready(ANSWERS);
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
    published.notifier.ready(ANSWERS);
    gateway.run(stop, |gateway| {
        if let Some(keys) = published.keys.take() {
            gateway.set_keys(keys);
        }
        let fresh = published.clients.lock();
        if let Some(fresh) = fresh.unwrap_or_else(PoisonError::into_inner).take() {
            gateway.set_access(fresh);
        }
        published.renew(|status| {
            status.backend = "udp".into();
            status.counters = owned(gateway.counters());
        });
    })?;
    Ok(())
}
