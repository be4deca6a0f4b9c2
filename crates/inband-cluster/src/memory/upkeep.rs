//! Maintenance of replicated memory while clients use it: enlarging it, and replacing a lost server.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context, Result};
use clap::{Args, Subcommand};
use inband_host::file_lock::FileLock;
use inband_host::size::{parse_size, size};
use inband_host::state_dir::{read_number, write_number};
use inband_memory::cluster::{Cluster, PROMISED, REPLACES, SPACE};
use inband_memory::lines::{CHUNK_LINES, LINE_LEN_BYTES};
use inband_memory::plan::Ask;

use super::{ClusterStatus, Memory};
use crate::command::{ClusterCommand, RunCommand};
use crate::host_process::Process;
use crate::socket::{self, Request};
use crate::supervisor::host_dir;
use crate::system::System;

/// A server that replaces another starts only after this, when the other's packets have arrived.
const OFF: Duration = Duration::from_secs(1);
const POLL: Duration = Duration::from_millis(50);
/// In the cluster's directory: locked by the one process that enlarges the memory.
const GROWS: &str = "grow.lock";
/// Give up a server that makes no progress in copying for this long.
const NO_PROGRESS: Duration = Duration::from_secs(30);

/// The commands of replicated memory.
#[derive(Subcommand)]
pub enum MemoryCommand {
    #[command(flatten)]
    Cluster(ClusterCommand<Memory>),
    /// Enlarge the memory while clients use it: restarts its servers, then its switches, one after the other.
    Grow(GrowArgs),
    /// Replace a server by an empty one with the same name.
    Replace(ReplaceArgs),
}

#[derive(Args)]
pub struct GrowArgs {
    /// New size of the memory, in bytes; more than before
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    space: u64,
    /// Directory of the cluster
    #[arg(long, default_value = Memory::DEFAULT_DATA, value_name = "DIR")]
    data: PathBuf,
}

#[derive(Args)]
pub struct ReplaceArgs {
    /// The server to replace, such as server/1
    server: String,
    /// Directory of the cluster
    #[arg(long, default_value = Memory::DEFAULT_DATA, value_name = "DIR")]
    data: PathBuf,
}

impl RunCommand for MemoryCommand {
    type System = Memory;

    fn only_prints(&self) -> bool {
        matches!(self, MemoryCommand::Cluster(command) if command.only_prints())
    }

    fn run(self) -> Result<()> {
        match self {
            MemoryCommand::Cluster(command) => command.run(),
            MemoryCommand::Grow(GrowArgs { space, data }) => {
                grow(&data, space, |what| println!("{what}"))
            }
            MemoryCommand::Replace(ReplaceArgs { server, data }) => {
                replace(&data, &server)?;
                println!("replaced {server}: it serves");
                Ok(())
            }
        }
    }
}

fn restart(data: &Path, role: &str) -> Result<()> {
    let role = role.to_owned();
    let force = false;
    socket::done::<Memory>(data, &Request::Restart { role, force }).map(drop)
}

fn serving(status: &ClusterStatus) -> usize {
    let nodes = status.nodes.iter();
    nodes.filter(|node| node.state == "serving").count()
}

/// Waits until all servers serve, as long as those that copy the memory make progress.
fn all_serve(data: &Path) -> Result<()> {
    let (mut last, mut since) = (Vec::new(), Instant::now());
    loop {
        let status = socket::status::<Memory>(data)?;
        let servers = status.cluster.servers.len();
        if serving(&status) == servers {
            return Ok(());
        }
        let recovering = status.nodes.iter().filter(|n| n.state == "recovering");
        let progress: Vec<_> = recovering
            .map(|node| (node.name.clone(), node.notes.clone()))
            .collect();
        if progress != last {
            (last, since) = (progress, Instant::now());
        }
        ensure!(
            since.elapsed() < NO_PROGRESS,
            "{} of {servers} servers serve, and nothing has changed for {} s ({last:?}): see `inband status`, and run this again when all serve",
            serving(&status),
            NO_PROGRESS.as_secs()
        );
        std::thread::sleep(POLL);
    }
}

/// Enlarges the memory of the cluster in a directory. Switches offer the new lines to clients only when all servers
/// have them: with fewer than a majority, requests for them would not be answered.
pub fn grow(data: &Path, space: u64, mut say: impl FnMut(String)) -> Result<()> {
    let status = socket::status::<Memory>(data)?;
    let mut cluster = Cluster::load(data)?;
    let chunk_len_bytes = (CHUNK_LINES * LINE_LEN_BYTES) as u64;
    let before = cluster.chunks * chunk_len_bytes;
    let servers = cluster.servers.len();
    let _lock = FileLock::take(&data.join(GROWS))
        .context("another `inband memory grow` is under way in this directory")?;
    let dirs = status.processes.iter().map(|p| host_dir(data, &p.name));
    let kept: Vec<u64> = dirs
        .map(|dir| read_number(&dir.join(SPACE)))
        .collect::<Result<_, _>>()?;
    // An interrupted growth counts: clients may already use its lines.
    let begun = kept.into_iter().max().unwrap_or(0).max(before);
    ensure!(
        space >= begun || begun == before,
        "--space {}: an interrupted growth has begun to give the memory {}; give that size, or a larger one",
        size(space),
        size(begun)
    );
    ensure!(
        space > before,
        "--space {}: the memory already has {}; it can grow, and cannot shrink",
        size(space),
        size(before)
    );
    let ask = Ask {
        servers: servers as u64,
        block_lines: cluster.block_lines,
        ..Ask::of(space)
    };
    let plan = ask.plan()?;
    ensure!(
        servers > 1,
        "a memory of one server cannot be enlarged: its server would lose it when it starts again"
    );
    ensure!(
        serving(&status) == servers,
        "{} of {servers} servers serve; restart the others first: inband restart server/N",
        serving(&status)
    );
    let switches_of = |status: &ClusterStatus| -> Vec<String> {
        let names = status.processes.iter().map(|p| p.name.clone());
        names.filter(|name| name.starts_with("switch/")).collect()
    };
    let silent: Vec<String> = switches_of(&status)
        .into_iter()
        .filter(|name| status.nodes.iter().all(|node| node.name != *name))
        .collect();
    ensure!(
        silent.is_empty(),
        "{} does not answer; a switch that is left out would offer the old size when it takes over: inband restart {} first",
        silent.join(", "),
        silent.first().map_or("", String::as_str)
    );
    for n in 1..=servers {
        let name = format!("server/{n}");
        let dir = host_dir(data, &name);
        let smaller = read_number(&dir.join(SPACE))?;
        write_number(&dir, SPACE, space)?;
        if let Err(error) = restart(data, &name).and_then(|()| all_serve(data)) {
            // The size may be more than the host can hold. No switch has offered the new lines yet, so it can go back.
            write_number(&dir, SPACE, smaller)?;
            restart(data, &name)?;
            return Err(error.context(format!("{name} does not serve with {}", size(space))));
        }
        say(format!("{name} has {}", size(space)));
    }
    // From here on every switch gets the new size, even one that crashes and is restarted, because all servers have it.
    let status = socket::status::<Memory>(data)?;
    for name in switches_of(&status) {
        write_number(&host_dir(data, &name), SPACE, space)?;
    }
    // The active switch goes last, so that its clients change switches only once.
    let is_active = |name: &String| {
        let of = status.nodes.iter().find(|node| node.name == *name);
        of.is_some_and(|node| node.state == "active")
    };
    let (active, passive): (Vec<_>, Vec<_>) = switches_of(&status).into_iter().partition(is_active);
    for name in passive.into_iter().chain(active) {
        restart(data, &name)?;
        say(format!("{name} has {}", size(space)));
    }
    cluster.chunks = plan.chunks;
    cluster.store(data)?;
    say(format!(
        "grown from {} to {}: clients that begin from now on have all of it, others when they change to another switch",
        size(before),
        size(space)
    ));
    Ok(())
}

/// Replaces a server of the cluster in a directory: its promises are lost, as if its machine were.
pub fn replace(data: &Path, server: &str) -> Result<()> {
    let status = socket::status::<Memory>(data)?;
    let is_server = |name: &str| name == server && name.starts_with("server/");
    let Some(process) = status.processes.iter().find(|p| is_server(&p.name)) else {
        bail!(
            "{server} is not a server of this memory: there are server/1 to server/{}; a switch has nothing to lose: inband restart {server}",
            status.cluster.servers.len()
        );
    };
    let others = status.nodes.iter();
    let others = others.filter(|node| node.state == "serving" && node.name != server);
    let (others, servers) = (others.count(), status.cluster.servers.len());
    ensure!(
        others > servers / 2,
        "{server} would copy the memory from {} others that serve, and {others} do: restart them and wait until `inband status` says that they serve",
        servers / 2 + 1
    );
    let role = server.to_owned();
    let force = false;
    let killed = socket::done::<Memory>(data, &Request::Kill { role, force });
    if matches!(process.process, Process::Running | Process::Paused) {
        killed?;
    }
    let dir = host_dir(data, server);
    // Written before the promise is removed, so that the next start completes an interrupted replacement.
    write_number(&dir, REPLACES, 1)?;
    if dir.join(PROMISED).exists() {
        fs::remove_file(dir.join(PROMISED))?;
    }
    std::thread::sleep(OFF);
    restart(data, server)?;
    all_serve(data)
}
