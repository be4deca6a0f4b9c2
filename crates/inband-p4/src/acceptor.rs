//! `inband p4 acceptor`: the control plane of an acceptor whose packets a switch handles. What an acceptor must remember
//! and forget (protocol.md, 5) is decided by the same code as for every other acceptor.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{bail, ensure, Context, Result};
use inband_cluster::paxos::control;
use inband_control::configuration::Configuration;
use inband_control::first::{configuration_of, settings_of};
use inband_control::message::{ReplicaPositions, StoppedLog};
use inband_control::registers::{AcceptorRegisters, RegisterState};
use inband_control::service::{Hooks, Service, ServiceConfig};
use inband_control::state::Refusal;
use inband_control::timing::Timing;
use inband_ground::xdp::attach::find_link;
use inband_ground::xdp::netlink::Netlink;
use inband_host::logging;
use inband_host::signals::{Interrupt, StopRequest};
use inband_host::state_dir::StateLock;
use inband_paxos::config::{Config, Durability, Role};
use inband_paxos::dataplane::soft::Geometry;
use inband_paxos::durable;
use inband_transport::certificates::CertificateFiles;
use inband_transport::tls::Transport;

use crate::network::Network;
use crate::status::{Known, View};
use crate::switch::{Settings, Switch};

/// Directory of the control plane's files in the state directory.
const CONTROL_DIR: &str = "control";
/// Headers of IPv4 and UDP.
const IP_UDP_LEN_BYTES: usize = 28;
/// How often neighbours are read, and the switch is asked whether it is still there.
const LOOK: Duration = Duration::from_millis(500);
/// How soon the process notices that it must stop.
const STOP_POLL: Duration = Duration::from_millis(50);

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Configuration of the host, which is an acceptor and nothing else: its address is the switch's, its
    /// control_plane this host's
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// The control interface of the switch, which runs dataplane/paxos/p4/acceptor.p4
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:9090")]
    thrift: SocketAddr,
    /// This host's interface to the switch
    #[arg(long, value_name = "NAME")]
    interface: String,
    /// The switch's port to the other hosts
    #[arg(long, value_name = "PORT", default_value_t = 0)]
    uplink: u16,
    /// The switch's port to this host
    #[arg(long, value_name = "PORT", default_value_t = 1)]
    host_port: u16,
}

/// Checks that the host is one that a switch can be.
fn check(config: &Config) -> Result<()> {
    let this = config.this();
    ensure!(
        this.roles == [Role::Acceptor],
        "{:?} has the roles {:?}; in a switch it can be only an acceptor: give the others to another node",
        this.name,
        this.roles
    );
    ensure!(
        config.is_managed(),
        "the cluster has no controllers, and a switch could not be recovered; give some nodes the role controller"
    );
    ensure!(
        config.cluster.durability == Durability::Memory,
        "durability is {}, and a switch has no disk; use durability = \"memory\"",
        config.cluster.durability
    );
    ensure!(
        config.cluster.key_file.is_none(),
        "cluster.key_file is set, and a switch computes no tags with keys; remove it from this host's configuration, and put \
         the switch and this host behind a gate if the other hosts have keys (docs/gate.md)"
    );
    ensure!(
        this.control_plane().ip() != this.address.ip(),
        "address and control_plane of {:?} have the same IP address, and the switch answers packets to {}; give \
         control_plane the address of this host",
        this.name,
        this.address.ip()
    );
    Ok(())
}

/// Checks that the switch is behind this interface.
fn check_interface(interface: &str, switch: Ipv4Addr) -> Result<()> {
    let netlink = Netlink::open().context("opening a netlink socket")?;
    let link = find_link(&netlink, interface).context("--interface")?;
    let route = netlink.route(switch).with_context(|| {
        format!(
            "--interface {interface}: this host has no route to {switch}, the switch's address; is {interface} up, with \
             an address of that network?"
        )
    })?;
    ensure!(
        route.ifindex == link.index,
        "--interface {interface}: this host reaches {switch}, the switch's address, by another one; give that one (`ip \
         route get {switch}` shows it), or correct the route"
    );
    Ok(())
}

fn transport_of(config: &Config) -> Result<Transport> {
    let Some(tls) = &config.host.tls else {
        return Ok(Transport::plain());
    };
    let files = CertificateFiles {
        ca: tls.ca.clone(),
        certificate: tls.certificate.clone(),
        key: tls.key.clone(),
    };
    Transport::mutual(&files).context("host.tls")
}

pub fn run(args: &Args) -> Result<()> {
    let config = Config::load(&args.config)?;
    logging::configure(config.log, None);
    check(&config)?;
    check_interface(&args.interface, *config.this().address.ip())?;
    let state_dir = &config.host.state_dir;
    let _lock = StateLock::take(state_dir).context("host.state_dir")?;
    let stop = Arc::new(AtomicBool::new(false));
    let _request = StopRequest::listen(stop.clone(), Interrupt::Stops)?;
    let transport = transport_of(&config)?;
    let this = config.this();
    let life = durable::next_incarnation(state_dir)?;
    let settings = Settings {
        node: this.id,
        address: this.address,
        host_port: args.host_port,
        uplink: args.uplink,
        geometry: Geometry {
            partitions: config.logs(),
            ring_slots: config.cluster.ring_slots as usize,
        },
        packet_len_max_bytes: usize::from(config.cluster.mtu) - IP_UDP_LEN_BYTES,
    };
    let host = this.control_plane();
    let switch = Switch::start(args.thrift, *host.ip(), settings, life)?;
    let switch = Arc::new(switch);
    let own = (this.id, this.address);
    let network = Network::new(&switch, own, &args.interface, args.uplink)?;
    tracing::info!(
        "{}: the acceptor runs in the switch at {}; its registers are empty",
        this.name,
        args.thrift
    );
    let service = ServiceConfig {
        cluster: config.cluster.name.clone(),
        node: this.id,
        life,
        control: SocketAddr::new(IpAddr::V4(*host.ip()), host.port()),
        dir: state_dir.join(CONTROL_DIR),
        entered: durable::entered_epoch(state_dir)?,
        first: configuration_of(&config),
        settings: settings_of(&config),
        timing: Timing::default(),
        transport: transport.clone(),
    };
    let (entered, configurations) = mpsc::channel();
    let refusal = Arc::<Mutex<Option<String>>>::default();
    let known = Arc::<Known>::default();
    let hooks = SwitchHooks {
        entered,
        known: known.clone(),
        refusal: refusal.clone(),
        stop: stop.clone(),
    };
    let acceptor = RegisterState::new(switch.clone(), settings.geometry);
    let service = Service::start(service, Some(acceptor), Box::new(hooks))
        .with_context(|| format!("control plane of node {:?}", this.name))?;
    let first = configuration_of(&config);
    let view = View {
        switch: switch.clone(),
        thrift: args.thrift,
        known: known.clone(),
        transport,
        listener: service.counters(),
        stop: stop.clone(),
        config: config.clone(),
    };
    let _control = control::serve(&config, move |request| view.answer(request))?;
    keep_up(&switch, network, &known, first, &configurations, &stop)?;
    let refusal = refusal.lock().ok().and_then(|mut refusal| refusal.take());
    match refusal {
        Some(refusal) => bail!(refusal),
        None => Ok(()),
    }
}

/// Keeps the switch's tables up to date, until told to stop. An error if the switch is gone: a process serves one life
/// of a switch, and the next starts without memory. `latest`: where the controllers are, of whom this host learns the
/// configuration in force through the switch.
fn keep_up(
    switch: &Switch,
    mut network: Network,
    known: &Known,
    mut latest: Configuration,
    configurations: &Receiver<Configuration>,
    stop: &AtomicBool,
) -> Result<()> {
    let mut since = Duration::MAX;
    let mut told = Vec::new();
    while !stop.load(Ordering::Acquire) {
        match configurations.recv_timeout(STOP_POLL) {
            Ok(configuration) => (latest, since) = (configuration, Duration::MAX),
            Err(RecvTimeoutError::Timeout) => since = since.saturating_add(STOP_POLL),
            Err(RecvTimeoutError::Disconnected) => {
                bail!("the control service of this process has ended; start it again, and please report this with its log")
            }
        }
        if since >= LOOK {
            since = Duration::ZERO;
            switch.view(0);
            match network.update(switch, &latest) {
                Err(error) if !switch.is_lost() => return Err(error),
                _ => {}
            }
            known.unresolved(network.unresolved().len());
            if told != network.unresolved() {
                told = network.unresolved().to_vec();
                tracing::warn!("no hardware address is known of {told:?}; see `ip neigh`");
            }
        }
        if let Some(why) = switch.lost() {
            bail!(
                "{why} Its votes count as lost, also if it answers again, and this process ends. Start simple_switch again if \
                 it has ended, and then this program: the control plane has the acceptor recovered"
            );
        }
    }
    Ok(())
}

struct SwitchHooks {
    entered: Sender<Configuration>,
    known: Arc<Known>,
    refusal: Arc<Mutex<Option<String>>>,
    stop: Arc<AtomicBool>,
}

impl Hooks for SwitchHooks {
    fn entered(&mut self, configuration: &Configuration) {
        tracing::info!(
            "epoch {} (revision {}): acceptors {:?}, replicas {:?}",
            configuration.epoch,
            configuration.revision,
            configuration.acceptors(),
            configuration.replicas()
        );
        self.known.entered(configuration);
        // The main thread has ended: so does this process.
        let _ = self.entered.send(configuration.clone());
    }

    fn refused(&mut self, refusal: &Refusal) {
        let refused = format!("the cluster does not take this host: {refusal}");
        tracing::error!("{refused}");
        if matches!(refusal, Refusal::OtherSettings { .. }) {
            if let Ok(mut place) = self.refusal.lock() {
                *place = Some(refused);
            }
            self.stop.store(true, Ordering::Release);
        }
    }

    fn positions(&mut self) -> Option<ReplicaPositions> {
        None
    }

    fn stopped(&mut self) -> Vec<StoppedLog> {
        Vec::new()
    }
}
