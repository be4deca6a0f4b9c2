//! `inband box node` and `inband box status`.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, UdpSocket};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use anyhow::{bail, ensure, Context, Result};
use clap::builder::RangedU64ValueParser;
use clap::{Args, Subcommand};
use inband_box::announce::Announcer;
use inband_box::changes::{change_at, Changed};
use inband_box::durable::Durability;
use inband_box::gateway::datagrams::Listener;
use inband_box::gateway::Settings;
use inband_box::kernel::Kernel;
use inband_box::limits::{
    CLIENTS_MAX, CLIENTS_MAX_RANGE, LOG_RECORDS_DEFAULT, NODE_COUNTS, TABLE_BYTES_DEFAULT,
};
use inband_box::membership::{Change, Membership};
use inband_box::metrics;
use inband_box::network::Network;
use inband_box::node::{Config, Quorum, SUSPECT_AFTER_US};
use inband_box::ports::Ports;
use inband_box::process::{socket_of, status_at, End, Process, Spec, Status};
use inband_box::registers::WINDOW_DEFAULT;
use inband_box::role::Role;
use inband_box::stored::{forget, has_log, has_promised};
use inband_box::xdp::UdpClients;
use inband_box::{soft::soft, store, xdp, NODES};
use inband_ground::auth::Keys;
use inband_ground::inherit;
use inband_ground::raw_link::RawLink;
use inband_ground::socket::HostSocket;
use inband_ground::xdp::multicast::Peer;
use inband_ground::xdp::XdpMode;
use inband_host::line_json::Server;
use inband_host::live_keys::LiveKeys;
use inband_host::namespace;
use inband_host::role_process::RoleArgs;
use inband_host::signals::{StopSignals, LISTEN_FDS_ENV};
use inband_host::size::parse_size;
use inband_host::state_dir::{self, StateLock};
use serde::Serialize;

/// Name of inherited sockets for Prometheus.
const METRICS: &str = "metrics";

/// The status of the node that runs now: one that begins again is another one.
type Running = Arc<Mutex<Option<Arc<Mutex<Option<Status>>>>>>;

/// What a node that begins again keeps.
struct Kept {
    listeners: Vec<TcpListener>,
    datagrams: Vec<Listener>,
    keys: LiveKeys,
    running: Running,
}

/// The control socket's answer: the node's status, or the outcome of a change.
#[derive(Serialize)]
#[serde(untagged)]
enum Answer {
    Status(Box<Status>),
    Changed(Changed),
}

#[derive(Debug, Args)]
pub struct NodeArgs {
    /// TOML file with options by the same names as here (`node = 1`, `nodes = ["ADDR:PORT", ...]`, `memcached-open = true`);
    /// those on the command line override it
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Node id: the node's position in --nodes, from 1
    #[arg(long)]
    node: u8,
    /// All nodes, in order: the first is node 1
    #[arg(
        long,
        value_name = "ADDR:PORT,...",
        value_delimiter = ',',
        required = true
    )]
    nodes: Vec<SocketAddrV4>,
    /// Directory for the node's promise and its control socket; it must survive a restart
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    /// Address for memcached clients, whose reads are linearizable
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:11211")]
    memcached: SocketAddr,
    /// Address for clients that read this node's own copy, which may be behind
    #[arg(long, value_name = "ADDR:PORT")]
    memcached_local: Option<SocketAddr>,
    /// Serve memcached clients beyond loopback: there are no passwords, so anyone who reaches the port can read and
    /// write
    #[arg(long)]
    memcached_open: bool,
    /// Size of the table, the same at every node: in bytes, or with KiB, MiB, GiB
    #[arg(long, value_name = "SIZE", default_value_t = TABLE_BYTES_DEFAULT, value_parser = parse_size)]
    memory: u64,
    /// Number of log records to keep, a power of two, 1.3 KB each: a node that misses more of them gets the whole table
    /// from the leader
    #[arg(long, value_name = "COUNT", default_value_t = LOG_RECORDS_DEFAULT)]
    log_records: usize,
    /// Maximum number of concurrent clients, 1 to 100000
    #[arg(long, default_value_t = CLIENTS_MAX, value_name = "COUNT",
        value_parser = RangedU64ValueParser::<usize>::new().range(CLIENTS_MAX_RANGE))]
    clients_max: usize,
    /// Number of --nodes, from the first on, that start together; the others may join later (--join). By default all
    #[arg(long, value_name = "COUNT")]
    members: Option<u8>,
    /// This node is not one of those that started together: it joins once `inband-box member add` has admitted it
    #[arg(long, conflicts_with = "new")]
    join: bool,
    /// How many nodes must have a write when the cluster starts; later `inband-box quorum` changes it
    #[arg(long, value_enum, default_value_t = Quorum::Majority)]
    quorum: Quorum,
    /// What survives a node's crash, the same at every node
    #[arg(long, value_enum, default_value_t = Durability::Memory)]
    durability: Durability,
    /// Microseconds of silence after which a leader is suspected; by default 10000, and 50000 with --durability sync,
    /// where a disk may stop a node for that long
    #[arg(long, value_name = "US",
        value_parser = clap::value_parser!(u64).range(SUSPECT_AFTER_US))]
    suspect_after_us: Option<u64>,
    /// The cluster is new, and so are all its nodes
    #[arg(long)]
    new: bool,
    /// With --new: start with an empty table although there was a cluster before. Must be given at all nodes
    #[arg(long, requires = "new")]
    accept_loss: bool,
    /// Address for datagrams of memcached clients. Where the role runs in native XDP, a leader's packet program proposes
    /// SETs that arrive at its interface. Off unless given
    #[arg(long, value_name = "ADDR:PORT")]
    memcached_udp: Option<SocketAddr>,
    /// Address for datagrams of memcached clients that read this node's own copy, which may be behind; in the node's own
    /// network namespace. Where the role runs in native XDP, the packet program answers GETs of one key. Off unless given
    #[arg(long, value_name = "ADDR:PORT")]
    memcached_local_udp: Option<SocketAddr>,
    /// Network whose datagrams are answered; others are ignored. A reply has at most one datagram of 1,400 bytes
    #[arg(long, value_name = "ADDR/BITS", default_value_t = Network::LOOPBACK)]
    memcached_udp_from: Network,
    /// Serve /metrics for Prometheus at this address: numbers only, to anyone who asks
    #[arg(long, value_name = "ADDR:PORT")]
    metrics: Option<SocketAddr>,
    /// Serve memcached clients in this network namespace (`/proc/PID/ns/net`) instead of the node's own
    #[arg(long, value_name = "PATH")]
    memcached_namespace: Option<PathBuf>,
    /// Dedicated links to every other node, with no other hosts on them: the nodes' packets use these links, without IP
    /// and UDP, while all of them are up
    #[arg(long, value_name = "NODE=INTERFACE,...", value_delimiter = ',', value_parser = link)]
    direct: Vec<(u8, String)>,
    #[command(flatten)]
    role: RoleArgs,
}

fn link(text: &str) -> Result<(u8, String), String> {
    let wrong = || format!("{text:?} is not NODE=INTERFACE, such as 2=eth1");
    let (node, interface) = text.split_once('=').ok_or_else(wrong)?;
    Ok((node.parse().map_err(|_| wrong())?, interface.to_owned()))
}

impl NodeArgs {
    fn check(&self) -> Result<()> {
        let count = self.nodes.len();
        let founding = self.founding();
        ensure!(
            (3..=usize::from(*NODES.end())).contains(&count),
            "--nodes: {count} addresses; give 3 to {}",
            NODES.end()
        );
        ensure!(
            NODES.contains(&self.node) && usize::from(self.node) <= count,
            "--node {}: --nodes has {count} addresses",
            self.node
        );
        ensure!(
            NODE_COUNTS.contains(&founding.into()) && usize::from(founding) <= count,
            "{founding} nodes begin together; give 3, 4, 5 or 7 of the {count} --nodes with --members"
        );
        ensure!(
            self.join == (self.node > founding),
            "--node {}: {founding} nodes begin together; those that follow them are started with --join, and only they",
            self.node
        );
        for (n, node) in self.nodes.iter().enumerate() {
            let is_new = !self.nodes[..n].contains(node);
            ensure!(is_new, "--nodes: {node} is given twice");
        }
        for address in [Some(self.memcached), self.memcached_local]
            .into_iter()
            .flatten()
        {
            ensure!(
                address.ip().is_loopback() || self.memcached_open,
                "--memcached {address} is beyond loopback, where anyone could read and write; give --memcached-open to allow it"
            );
        }
        let mut linked: Vec<u8> = self.direct.iter().map(|(node, _)| *node).collect();
        linked.sort_unstable();
        let others: Vec<u8> = self.others().map(|peer| peer.node).collect();
        ensure!(
            linked.is_empty() || linked == others,
            "--direct names links to the nodes {linked:?}; give one to each other node, {others:?}"
        );
        let datagrams = [
            (self.memcached_udp, "--memcached-udp"),
            (self.memcached_local_udp, "--memcached-local-udp"),
        ];
        ensure!(
            self.memcached_udp_from == Network::LOOPBACK
                || datagrams.iter().any(|(address, _)| address.is_some()),
            "--memcached-udp-from is for --memcached-udp and --memcached-local-udp; give one of them"
        );
        for (address, option) in datagrams {
            let Some(address) = address else { continue };
            ensure!(
                address.ip().is_loopback() || self.memcached_udp_from != Network::LOOPBACK,
                "{option} {address} is beyond loopback, where senders can be forged; name the network that is answered with --memcached-udp-from ADDR/BITS"
            );
        }
        let records = self.log_records;
        ensure!(
            records.is_power_of_two() && (1024..=1 << 24).contains(&records),
            "--log-records {records}: give a power of two from 1024 to {}",
            1 << 24
        );
        self.durability.choose(self.role.dataplane())?;
        let chunks = store::chunks_in(self.memory);
        ensure!(
            (5000..=u64::from(u32::MAX)).contains(&chunks),
            "--memory {}: give at least {} bytes, so that the longest value fits, and at most {}",
            self.memory,
            5000 * store::CHUNK_BYTES * 2,
            u64::from(u32::MAX) * store::CHUNK_BYTES as u64
        );
        Ok(())
    }

    pub fn run(&self) -> Result<()> {
        let from = self.config.as_ref();
        self.check().map_err(|error| match from {
            Some(path) => error.context(format!("with the options of {}", path.display())),
            None => error,
        })?;
        let listen = self.nodes[usize::from(self.node) - 1];
        let live = self
            .role
            .keys(listen, "anybody could write to the log")
            .context("--nodes")?;
        let keys = live.keys();
        let signals = StopSignals::take_supervised()?.reloading(live.reading());
        state_dir::create(&self.data)?;
        let _lock = StateLock::take(&self.data).context("--data")?;
        ensure!(
            self.new || self.join || has_promised(&self.data),
            "{} has no promise of this node: give --new if the cluster is new at all nodes",
            self.data.display()
        );
        ensure!(
            !self.new || self.accept_loss || !has_promised(&self.data),
            "--new: {} has a promise, so this node has run before: start it without --new, also if the cluster was not complete yet; if all nodes have lost their memory, give --accept-loss at all of them to begin with an empty table",
            self.data.display()
        );
        if self.accept_loss {
            forget(&self.data)?;
        }
        let (listeners, mut datagrams) = self.listeners()?;
        if let Some(address) = self.memcached_local_udp {
            let socket = UdpSocket::bind(address)
                .with_context(|| format!("--memcached-local-udp: cannot listen at {address}"))?;
            datagrams.push(self.listener(socket, true));
        }
        let kept = Kept {
            running: self.serve_metrics()?,
            listeners,
            datagrams,
            keys: live,
        };
        let local_ports = match kept.listeners.get(1) {
            Some(listener) => vec![listener.local_addr()?.port()],
            None => Vec::new(),
        };
        let trial = |mode, address, interface: &str| {
            let mut program = self.program(keys, mode, address);
            // A table only costs memory here.
            program.clients.iter_mut().for_each(|c| c.chunks = 1);
            program.attach(interface, &[]).map(drop)
        };
        let (choice, place) = match self.durability.choose(self.role.dataplane())? {
            Some(choice) => (choice, None),
            None => self
                .role
                .choose(listen, self.others().map(|peer| peer.address), trial)?,
        };
        let mut spec = Spec {
            config: Config {
                node: self.node,
                nodes: self.nodes.len() as u8,
                founding: Membership::founding(self.founding(), self.quorum),
                suspect_after_ns: match self.suspect_after_us {
                    Some(us) => us * 1000,
                    None => self.durability.suspect_after_ns(),
                },
            },
            nodes: self.nodes.clone(),
            data: self.data.clone(),
            is_founding: self.new,
            durability: self.durability,
            chunks: store::chunks_in(self.memory),
            keys,
            choice,
            gateway: Settings {
                clients_max: self.clients_max,
                local_ports,
                ..Settings::default()
            },
        };
        let mut announcer = Announcer::from_environment();
        let mut stops = |status: &Mutex<Option<Status>>| {
            announcer.turned(status);
            let stops = signals.wait(Duration::ZERO);
            if stops {
                announcer.stopping();
            }
            stops
        };
        loop {
            match self.run_once(&spec, place, &kept, &mut stops)? {
                End::Stopped => return Ok(()),
                End::Removed => {
                    println!("node/{} was removed from the cluster for good", self.node);
                    return Ok(());
                }
                End::Lost => bail!(
                    "node/{} has run before, as a member or while it joined, and {} has nothing of it: it cannot come back under its id; remove it with `member remove`, and add another node",
                    self.node,
                    self.data.display()
                ),
                End::BeginsAgain => {
                    eprintln!(
                        "the other nodes' logs begin behind this one's end: it gets their table"
                    );
                    spec.is_founding = false;
                    spec.keys = kept.keys.keys();
                }
            }
        }
    }

    /// Binds the sockets for memcached clients: the ordinary port, the port of local reads, and the one for datagrams.
    fn listeners(&self) -> Result<(Vec<TcpListener>, Vec<Listener>)> {
        let addresses = [Some(self.memcached), self.memcached_local];
        let bind = || {
            let listeners = addresses.into_iter().flatten().map(|address| {
                TcpListener::bind(address)
                    .with_context(|| format!("--memcached: cannot listen at {address}"))
            });
            let datagrams = self.memcached_udp.map(|address| {
                UdpSocket::bind(address)
                    .with_context(|| format!("--memcached-udp: cannot listen at {address}"))
            });
            let datagrams = datagrams.transpose()?.into_iter();
            let datagrams = datagrams.map(|socket| self.listener(socket, false));
            Ok((listeners.collect::<Result<_>>()?, datagrams.collect()))
        };
        let Some(path) = &self.memcached_namespace else {
            return bind();
        };
        // On a thread of its own, because the rest of the process stays in its namespace.
        thread::scope(|scope| {
            let there = scope.spawn(|| {
                namespace::enter(path).context("--memcached-namespace")?;
                bind()
            });
            there.join().expect("it does not panic")
        })
    }

    /// Serves the metrics of the running node, at the address given and at inherited sockets.
    fn serve_metrics(&self) -> Result<Running> {
        let running = Running::default();
        let inherited = inherit::listeners(LISTEN_FDS_ENV).into_iter();
        let inherited = inherited.filter(|(usage, _)| usage == METRICS);
        let mut listeners: Vec<TcpListener> = inherited.map(|(_, listener)| listener).collect();
        if let Some(address) = self.metrics {
            let failed = || format!("--metrics: cannot listen at {address}");
            listeners.push(TcpListener::bind(address).with_context(failed)?);
        }
        for listener in listeners {
            let running = Arc::clone(&running);
            metrics::start(listener, move || {
                let status = running.lock().expect("nobody panics with it").clone()?;
                let status = status.lock().expect("nobody panics with it").clone();
                status
            })?;
        }
        Ok(running)
    }

    fn listener(&self, socket: UdpSocket, is_local: bool) -> Listener {
        Listener {
            socket,
            network: self.memcached_udp_from,
            is_local,
        }
    }

    /// Returns the clients whom the program on the interface with this address serves. Datagrams to a loopback address,
    /// or to another namespace, do not arrive there.
    fn udp_clients(&self, mode: XdpMode, interface: Ipv4Addr) -> Option<UdpClients> {
        let at = |address: Option<SocketAddr>| {
            let SocketAddr::V4(mut address) = address? else {
                return None;
            };
            if address.ip().is_unspecified() {
                address.set_ip(interface);
            }
            (!address.ip().is_loopback() && address.port() != 0).then_some(address)
        };
        let local = at(self.memcached_local_udp);
        let strong = match self.memcached_namespace {
            Some(_) => None,
            None => at(self.memcached_udp),
        };
        let from = self.memcached_udp_from.ipv4()?;
        let is_served = mode == XdpMode::Native && local.or(strong).is_some();
        is_served.then_some(UdpClients {
            from,
            local,
            strong,
            chunks: store::chunks_in(self.memory),
        })
    }

    /// Returns whether no node behind a virtual link can have its role in generic XDP mode, which gets messages whole that
    /// the kernel was to split into packets. Towards native mode such links do not carry them.
    fn may_join_packets(&self, mode: Option<XdpMode>) -> bool {
        let listen = self.nodes[usize::from(self.node) - 1];
        let is_all_in_user_space = self.durability == Durability::Sync || listen.ip().is_loopback();
        mode == Some(XdpMode::Native) || mode.is_none() && is_all_in_user_space
    }

    /// Returns how many nodes start together.
    fn founding(&self) -> u8 {
        self.members.unwrap_or(self.nodes.len() as u8)
    }

    /// Returns the other nodes.
    fn others(&self) -> impl Iterator<Item = Peer> + '_ {
        let nodes = (1..).zip(&self.nodes);
        let others = nodes.filter(|(node, _)| *node != self.node);
        others.map(|(node, address)| Peer {
            node,
            address: *address,
            local: false,
        })
    }

    fn program(&self, keys: Option<Keys>, mode: XdpMode, address: SocketAddrV4) -> xdp::Spec {
        xdp::Spec {
            node: self.node,
            capacity: self.log_records,
            address,
            mode,
            keys,
            clients: self.udp_clients(mode, *address.ip()),
        }
    }

    fn run_once(
        &self,
        spec: &Spec,
        place: Option<(XdpMode, &str)>,
        kept: &Kept,
        stops: &mut impl FnMut(&Mutex<Option<Status>>) -> bool,
    ) -> Result<End> {
        let listen = self.nodes[usize::from(self.node) - 1];
        let socket = HostSocket::bind(listen)
            .with_context(|| format!("--nodes: cannot listen at {listen}"))?;
        if !self.may_join_packets(place.map(|(mode, _)| mode)) {
            socket.join_no_packets();
        }
        let listeners = kept.listeners.iter().map(TcpListener::try_clone);
        let listeners = listeners.collect::<Result<_, _>>()?;
        let datagrams = kept.datagrams.iter().map(Listener::try_clone);
        let datagrams = datagrams.collect::<Result<_, _>>()?;
        let open = |(node, interface): &(u8, String)| {
            let link = RawLink::open(interface, self.node);
            let link = link.with_context(|| format!("--direct: cannot open {interface}"))?;
            Ok((*node, link))
        };
        let links = self.direct.iter().map(open);
        let links = links.collect::<Result<Vec<(u8, RawLink)>>>()?;
        let (role, kernel) = match place {
            None => (soft(self.node, self.log_records), None),
            Some((mode, interface)) => {
                let others: Vec<Peer> = self.others().collect();
                let program = self.program(spec.keys, mode, listen);
                let mut attached = program.attach(interface, &others)?;
                // In generic mode this process serves the links itself.
                if !links.is_empty() && mode == XdpMode::Native {
                    attached.attach_links(links.iter().map(|(_, link)| link))?;
                }
                (attached.another_role()?, Some(Kernel::new(attached)?))
            }
        };
        // A new leader must find room for its first record after everything that was not committed under the last one.
        role.set_window((self.log_records as u64 / 4).min(WINDOW_DEFAULT));
        let mut process = Process::start(
            spec.clone(),
            role,
            kernel,
            Ports::new(socket, spec.nodes.clone(), links),
            listeners,
            datagrams,
        )?;
        println!(
            "node/{} at {listen}, {} ({}), memcached at {:?}, {}",
            self.node,
            spec.choice.dataplane,
            spec.choice.why,
            process.memcached(),
            match (has_log(&spec.data), spec.is_founding) {
                (true, _) => "with the log on its disk",
                (false, true) => "new",
                (false, false) => "recovering",
            }
        );
        process.follow(kept.keys.clone());
        let status = process.status();
        *kept.running.lock().expect("nobody panics with it") = Some(status.clone());
        let seen = Arc::clone(&status);
        let changer = process.take_changer().expect("nobody has taken it");
        let answer = move |change: Option<Change>| -> Result<Answer, String> {
            if let Some(change) = change {
                return Ok(Answer::Changed(changer.change(change)));
            }
            let status = status.lock().expect("nobody panics with it").clone();
            let status = status.ok_or_else(|| "it is starting".to_owned())?;
            Ok(Answer::Status(Box::new(status)))
        };
        let _control = Server::start(&socket_of(&self.data), answer, Err)?;
        process.run(|| stops(&seen))
    }
}

#[derive(Debug, Args)]
pub struct StatusArgs {
    /// Directory of the node
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl StatusArgs {
    pub fn run(&self) -> Result<()> {
        let status = status_at(&socket_of(&self.data))?;
        match self.json {
            true => println!("{}", serde_json::to_string_pretty(&status)?),
            false => println!("{}", status.in_words()),
        }
        Ok(())
    }
}

/// Options of `inband-box quorum`.
#[derive(Debug, Args)]
pub struct QuorumArgs {
    #[arg(value_enum)]
    quorum: Quorum,
    /// Change to majority although a node is down: writes that wait for it are then answered without it
    #[arg(long)]
    force: bool,
    /// Directory of the node that leads
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
}

impl QuorumArgs {
    pub fn run(&self) -> Result<()> {
        let &QuorumArgs { quorum, force, .. } = self;
        let now = change_at(&socket_of(&self.data), Change::Quorum { quorum, force })??;
        println!("quorum: {}", now.quorum.name());
        Ok(())
    }
}

/// Subcommands of `inband-box member`.
#[derive(Debug, Subcommand)]
pub enum MemberCommand {
    /// Let the next node join; then start it with --join. It becomes a member once it has all records
    Add {
        /// Directory of the node that leads
        #[arg(long, value_name = "DIR")]
        data: PathBuf,
    },
    /// Remove a node for good, or give up one that is joining. Its id is not used again
    Remove {
        /// The node's id
        node: u8,
        /// Directory of the node that leads
        #[arg(long, value_name = "DIR")]
        data: PathBuf,
    },
}

impl MemberCommand {
    pub fn run(&self) -> Result<()> {
        match self {
            MemberCommand::Add { data } => {
                let now = change_at(&socket_of(data), Change::Add)??;
                println!("node/{} may join: start it with --join", now.joining);
            }
            MemberCommand::Remove { node, data } => {
                change_at(&socket_of(data), Change::Remove { node: *node })??;
                println!("removed node/{node}");
            }
        }
        Ok(())
    }
}
