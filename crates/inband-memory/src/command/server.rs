//! `inband memory server`.

use std::collections::BTreeMap;
use std::net::SocketAddrV4;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::time::Instant;

use anyhow::{ensure, Context, Result};
use clap::Args;
use inband_ground::auth::Keys;
use inband_ground::xdp::XdpError;
use inband_host::line_json::Server;
use inband_host::signals::StopSignals;
use inband_host::state_dir::{self, StateLock};
use inband_memory::cluster::{has_promised, PROMISED, REPLACES};
use inband_memory::epoch::majority;
use inband_memory::registers::ServerRegisters;
use inband_memory::server_host::{Out, ServerConfig, ServerHost, Start, ToWhom};
use inband_memory::soft_server::SoftServer;
use inband_memory::soft_switch::Verdict;
use inband_memory::status::{socket_of, Status};
use inband_memory::wire::parse;
use inband_memory::xdp::server::{Attached, Spec};

use super::node::{with_refused, NodeArgs, Port, Turn};

/// Options of a server.
#[derive(Debug, Args)]
pub struct ServerArgs {
    /// Node id: the server's position in --servers, from 1
    #[arg(long, value_parser = clap::value_parser!(u8).range(1..=7))]
    node: u8,
    #[command(flatten)]
    common: NodeArgs,
    /// The memory is new: serve zeros at once. Only if all servers start for the first time
    #[arg(long, conflicts_with = "replace")]
    new: bool,
    /// With --new: start with zeros although there was a memory before. Must be given at all servers
    #[arg(long, requires = "new")]
    accept_loss: bool,
    /// Replace a server whose --data directory is lost, and which has been off for at least a second
    #[arg(long)]
    replace: bool,
}

/// The role, run in this process or in the kernel.
enum Role {
    Soft(Box<SoftServer>),
    Kernel(Box<Attached>),
}

impl Role {
    fn registers(&self) -> Arc<ServerRegisters> {
        match self {
            Role::Soft(soft) => soft.registers().clone(),
            Role::Kernel(program) => program.registers().clone(),
        }
    }

    fn set_keys(&self, keys: &Keys) -> Result<(), XdpError> {
        match self {
            Role::Soft(_) => Ok(()),
            Role::Kernel(program) => program.set_keys(keys),
        }
    }

    fn counters(&self) -> BTreeMap<String, u64> {
        let counters = match self {
            Role::Soft(soft) => soft.counters(),
            Role::Kernel(program) => program.counters().unwrap_or_default(),
        };
        counters
            .into_iter()
            .map(|(name, n)| (name.to_owned(), n))
            .collect()
    }
}

impl ServerArgs {
    pub fn run(&self) -> Result<()> {
        let common = &self.common;
        common.check()?;
        let servers = common.servers.len();
        ensure!(
            usize::from(self.node) <= servers,
            "--node {}: --servers has {servers} addresses",
            self.node
        );
        let chunks = common.chunks()?;
        let live = common
            .role
            .keys(common.listen, "anybody could read and write the memory")?;
        let keys = live.keys();
        let signals = StopSignals::take_supervised()?.reloading(live.reading());
        state_dir::create(&common.data)?;
        let _lock = StateLock::take(&common.data).context("--data")?;
        let promised = common.promised()?;
        let replaces = common.data.join(REPLACES);
        let replace = self.replace || replaces.exists();
        ensure!(
            self.new || replace || has_promised(&common.data),
            "{} has no promise of this server: give --new if the memory is new at all servers, or --replace if this server takes the place of one that is lost",
            common.data.display()
        );
        ensure!(
            !self.new || self.accept_loss || !has_promised(&common.data),
            "--new: {} has a promise, so there was a memory; a server that starts again recovers without --new; if all servers have lost theirs, give --accept-loss to begin with zeros",
            common.data.display()
        );
        common.keep_space()?;
        if replace {
            // The file stays until the server serves: a replacement that stops earlier has to skip epochs again.
            state_dir::write_number(&common.data, REPLACES, 1)?;
        }
        state_dir::write_number(&common.data, PROMISED, promised)?;
        let socket = common.bind()?;
        let attach = |mode, address, interface: &str| {
            let spec = Spec {
                node: self.node,
                chunks: chunks as usize,
                address,
                mode,
                keys,
            };
            spec.attach(interface)
        };
        let trial = |mode, address, interface: &str| attach(mode, address, interface).map(drop);
        let (choice, place) =
            common
                .role
                .choose(common.listen, common.servers.iter().copied(), trial)?;
        let role = Arc::new(match place {
            Some((mode, interface)) => {
                let program = attach(mode, common.listen, interface)?;
                Role::Kernel(Box::new(program))
            }
            None => Role::Soft(Box::new(SoftServer::new(self.node, chunks as usize))),
        });
        let registers = role.registers();
        let config = ServerConfig {
            node: self.node,
            servers: servers as u8,
        };
        let start = if self.new { Start::New } else { Start::Recover };
        let mut host = ServerHost::new(config, start, promised, rand::random(), &registers);
        if replace {
            host.replaces();
        }
        println!(
            "server/{} at {}, {} ({}), {chunks} chunks, {}",
            self.node,
            common.listen,
            choice.dataplane,
            choice.why,
            if self.new { "new" } else { "recovering" }
        );
        // Chunks copied; MAX once the server serves.
        let copied = Arc::new(AtomicU64::new(0));
        let epochs_refused = Arc::new(AtomicU64::new(0));
        let control = {
            let (role, registers, copied) = (role.clone(), registers.clone(), copied.clone());
            let epochs_refused = epochs_refused.clone();
            let (listen, node) = (common.listen, self.node);
            let needed = majority(servers as u8);
            let status = move |()| {
                let is_serving = registers.serving();
                let mut notes = Vec::new();
                if !is_serving {
                    let copied = copied.load(Ordering::Relaxed).min(chunks);
                    notes.push(format!(
                        "copied {} % ({copied} of {chunks} chunks); it needs {needed} other servers that serve",
                        copied * 100 / chunks
                    ));
                }
                Ok::<Status, String>(Status {
                    name: format!("server/{node}"),
                    listen,
                    dataplane: choice.dataplane,
                    why: choice.why.clone(),
                    pid: std::process::id(),
                    epoch: registers.epoch(),
                    state: if is_serving { "serving" } else { "recovering" }.to_owned(),
                    memory_bytes: registers.memory_bytes() as u64,
                    notes,
                    counters: with_refused(role.counters(), epochs_refused.load(Ordering::Relaxed)),
                })
            };
            Server::start(&socket_of(&common.data), status, Err)?
        };
        let mut port = Port::new(socket, live, &common.data);
        let mut out = Out::default();
        let address = |to: &ToWhom<SocketAddrV4>| match to {
            ToWhom::Server(node) => common.servers[usize::from(*node) - 1],
            ToWhom::Asker(address) => *address,
        };
        let (mut was_serving, began) = (registers.serving(), Instant::now());
        port.serve(&signals, |port, turn| {
            let now = port.now();
            match turn {
                Turn::Tick => host.tick(now, &registers, &mut out),
                Turn::Keys(keys) => role.set_keys(keys)?,
                Turn::Packet(packet, len_bytes, from) => {
                    let mut is_passed = true;
                    if let Role::Soft(soft) = &*role {
                        let handled = soft.handle(packet, len_bytes);
                        is_passed = handled.verdict == Verdict::Pass;
                        if handled.verdict == Verdict::Reply {
                            port.send(&mut packet[..handled.len_bytes], from);
                        }
                    }
                    if is_passed {
                        if let Ok((header, value)) = parse(&packet[..len_bytes]) {
                            host.on_packet(now, from, &header, value, &registers, &mut out);
                        }
                    }
                }
            }
            copied.store(host.copied().unwrap_or(u64::MAX), Ordering::Relaxed);
            epochs_refused.store(host.epochs_refused(), Ordering::Relaxed);
            if !was_serving && registers.serving() {
                was_serving = true;
                if replace {
                    std::fs::remove_file(&replaces)?;
                }
                println!(
                    "serving: it has its memory again after {:.1} s",
                    began.elapsed().as_secs_f64()
                );
            }
            port.flush(&mut out, address)?;
            Ok(host.due(now))
        })?;
        drop(control);
        Ok(())
    }
}
