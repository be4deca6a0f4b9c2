//! `inband memory switch`.

use std::collections::BTreeMap;
use std::net::SocketAddrV4;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};
use clap::Args;
use inband_ground::auth::Keys;
use inband_ground::xdp::multicast::Peer;
use inband_ground::xdp::XdpError;
use inband_host::line_json::Server;
use inband_host::signals::StopSignals;
use inband_host::state_dir::{self, StateLock};
use inband_memory::plan::Ask;
use inband_memory::registers::SwitchRegisters;
use inband_memory::soft_switch::{SoftSwitch, SwitchSpec, Verdict};
use inband_memory::status::{socket_of, Status};
use inband_memory::switch_host::{Out, SwitchConfig, SwitchHost, ToWhom};
use inband_memory::wire::parse;
use inband_memory::xdp::switch::{Attached, Spec};
use inband_memory::SWITCH_NODES;

use super::node::{with_refused, NodeArgs, Port, Turn};

/// How often the servers' hardware addresses are confirmed.
const REFRESH: Duration = Duration::from_secs(1);

/// Options of a switch.
#[derive(Debug, Args)]
pub struct SwitchArgs {
    /// Node id, 16 to 31, unique among the switches
    #[arg(long, value_parser = clap::value_parser!(u8).range(16..=31))]
    node: u8,
    #[command(flatten)]
    common: NodeArgs,
    /// Lines that share a write counter
    #[arg(long, default_value_t = 16, value_name = "LINES")]
    block: u64,
    /// Requests in flight, of all clients together
    #[arg(long, default_value_t = 16_384)]
    slots: u64,
    /// Concurrent client sessions
    #[arg(long, default_value_t = 1_024)]
    sessions: u64,
}

/// The role, run in this process or in the kernel.
enum Role {
    Soft(Box<SoftSwitch>),
    Kernel(Box<Mutex<Attached>>),
}

impl Role {
    fn registers(&self) -> Arc<SwitchRegisters> {
        match self {
            Role::Soft(soft) => soft.registers().clone(),
            Role::Kernel(program) => lock(program).registers().clone(),
        }
    }

    fn set_keys(&self, keys: &Keys) -> Result<(), XdpError> {
        match self {
            Role::Soft(_) => Ok(()),
            Role::Kernel(program) => lock(program).set_keys(keys),
        }
    }

    fn counters(&self) -> BTreeMap<String, u64> {
        let counters = match self {
            Role::Soft(soft) => soft.counters(),
            Role::Kernel(program) => lock(program).counters().unwrap_or_default(),
        };
        counters
            .into_iter()
            .map(|(name, n)| (name.to_owned(), n))
            .collect()
    }
}

fn lock(program: &Mutex<Attached>) -> std::sync::MutexGuard<'_, Attached> {
    program
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// What the process reports in its status.
#[derive(Default)]
struct Said {
    is_active: AtomicBool,
    sessions: AtomicU64,
    activations: AtomicU64,
    epochs_refused: AtomicU64,
}

impl SwitchArgs {
    pub fn run(&self) -> Result<()> {
        let common = &self.common;
        common.check()?;
        ensure!(
            SWITCH_NODES.contains(&self.node),
            "--node {}: switches are {SWITCH_NODES:?}",
            self.node
        );
        let plan = Ask {
            servers: common.servers.len() as u64,
            block_lines: self.block,
            slots: self.slots,
            sessions: self.sessions,
            ..Ask::of(common.space()?)
        }
        .plan()?;
        let live = common
            .role
            .keys(common.listen, "anybody could read and write the memory")?;
        let keys = live.keys();
        let signals = StopSignals::take_supervised()?.reloading(live.reading());
        state_dir::create(&common.data)?;
        let _lock = StateLock::take(&common.data).context("--data")?;
        common.keep_space()?;
        let socket = common.bind()?;
        let spec = SwitchSpec {
            node: self.node,
            servers: common.servers.len(),
            chunks: plan.chunks,
            block_lines: self.block,
            sessions: self.sessions as usize,
            slots: self.slots as usize,
        };
        let peers: Vec<Peer> = (1..)
            .zip(&common.servers)
            .map(|(node, at)| Peer {
                node,
                address: *at,
                local: false,
            })
            .collect();
        let attach = |mode, address, interface: &str| {
            let spec = Spec {
                switch: spec.clone(),
                address,
                mode,
                keys,
            };
            spec.attach(interface, &peers)
        };
        let trial = |mode, address, interface: &str| attach(mode, address, interface).map(drop);
        let (choice, place) =
            common
                .role
                .choose(common.listen, common.servers.iter().copied(), trial)?;
        let role = Arc::new(match place {
            Some((mode, interface)) => {
                let program = attach(mode, common.listen, interface)?;
                Role::Kernel(Box::new(Mutex::new(program)))
            }
            None => Role::Soft(Box::new(SoftSwitch::new(&spec))),
        });
        let registers = role.registers();
        let config = SwitchConfig {
            node: self.node,
            servers: common.servers.len() as u8,
            chunks: plan.chunks,
        };
        let mut host = SwitchHost::new(config, common.promised()?, rand::random());
        println!(
            "switch/{} at {}, {} ({}), {} servers, {} chunks",
            self.node - SWITCH_NODES.start() + 1,
            common.listen,
            choice.dataplane,
            choice.why,
            common.servers.len(),
            plan.chunks
        );
        let said = Arc::new(Said::default());
        let control = {
            let (role, said, registers) = (role.clone(), said.clone(), registers.clone());
            let (listen, node) = (common.listen, self.node);
            let status = move |()| {
                let is_active = said.is_active.load(Ordering::Relaxed);
                let epochs_refused = said.epochs_refused.load(Ordering::Relaxed);
                Ok::<Status, String>(Status {
                    name: format!("switch/{}", node - SWITCH_NODES.start() + 1),
                    listen,
                    dataplane: choice.dataplane,
                    why: choice.why.clone(),
                    pid: std::process::id(),
                    epoch: registers.epoch(),
                    state: if is_active { "active" } else { "passive" }.to_owned(),
                    memory_bytes: registers.memory_bytes() as u64,
                    notes: vec![
                        format!("{} sessions", said.sessions.load(Ordering::Relaxed)),
                        format!("{} activations", said.activations.load(Ordering::Relaxed)),
                    ],
                    counters: with_refused(role.counters(), epochs_refused),
                })
            };
            Server::start(&socket_of(&common.data), status, Err)?
        };
        let mut port = Port::new(socket, live, &common.data);
        let mut out = Out::default();
        let servers = common.servers.clone();
        let address = |to: &ToWhom| match to {
            ToWhom::Server(node) => servers[usize::from(*node) - 1],
            ToWhom::Client(address) => *address,
        };
        let mut refreshed: Option<Instant> = None;
        port.serve(&signals, |port, turn| {
            let now = port.now();
            match turn {
                Turn::Tick => {
                    if let Role::Kernel(program) = &*role {
                        if refreshed.is_none_or(|at| at.elapsed() >= REFRESH) {
                            let left = lock(program).refresh_neighbours()?;
                            refreshed = left.is_empty().then(Instant::now);
                        }
                    }
                    host.tick(now, &registers, &mut out);
                }
                Turn::Keys(keys) => role.set_keys(keys)?,
                Turn::Packet(packet, len_bytes, from) => {
                    let is_passed = match &*role {
                        Role::Kernel(_) => true,
                        Role::Soft(soft) => {
                            soft_turn(port, soft, &servers, packet, len_bytes, from)
                        }
                    };
                    if is_passed {
                        if let Ok((header, _)) = parse(&packet[..len_bytes]) {
                            host.on_packet(now, from, &header, &registers, &mut out);
                        }
                    }
                }
            }
            said.is_active
                .store(host.is_active(&registers), Ordering::Relaxed);
            said.sessions
                .store(host.sessions() as u64, Ordering::Relaxed);
            said.activations
                .store(host.activations(), Ordering::Relaxed);
            said.epochs_refused
                .store(host.epochs_refused(), Ordering::Relaxed);
            port.flush(&mut out, address)?;
            Ok(host.due(now))
        })?;
        drop(control);
        Ok(())
    }
}

/// Handles a packet in the soft role. Returns true if the packet is for the process.
fn soft_turn(
    port: &Port,
    soft: &SoftSwitch,
    servers: &[SocketAddrV4],
    packet: &mut [u8; inband_ground::wire::PACKET_LEN_MAX_BYTES],
    len_bytes: usize,
    from: SocketAddrV4,
) -> bool {
    let handled = soft.handle(packet, len_bytes, from);
    let packet = &mut packet[..handled.len_bytes];
    match handled.verdict {
        Verdict::Drop => {}
        Verdict::Pass => return true,
        Verdict::Reply => port.send(packet, from),
        Verdict::ToClient(client) => port.send(packet, client),
        Verdict::ToServers => servers.iter().for_each(|server| port.send(packet, *server)),
    }
    false
}
