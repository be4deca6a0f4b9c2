//! `inband up`, `status`, `kill`, `restart`, `pause`, `resume` and `down`, the same for every system.

use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::background::{leave_terminal, spawn_until};
use anyhow::{ensure, Context, Result};
use clap::{ArgMatches, Args, Command, Subcommand};
use inband_host::output::quoted;
use inband_host::program;
use inband_host::settings::Setting;
use inband_host::signals::StopSignals;
use inband_host::state_dir::StateLock;
use serde::Serialize;

use crate::background;
use crate::console::ConsoleArgs;
use crate::host_process::ProcessStatus;
use crate::link;
use crate::socket::{self, socket_in, Request};
use crate::supervisor::{is_in, Supervisor};
use crate::system::System;

const WATCH_INTERVAL: Duration = Duration::from_millis(200);
/// A host that catches up, perhaps with a large table, is given up on when it has got nothing for so long.
pub(crate) const NO_PROGRESS_TIMEOUT: Duration = Duration::from_secs(30);
const ROLL_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Parses options as the command line does. Without arguments, all options have their default values.
pub(crate) fn parse_options<A: Args>(args: &[&str]) -> A {
    let command = A::augment_args(Command::new("inband").no_binary_name(true));
    let matches = command.get_matches_from(args);
    A::from_arg_matches(&matches).unwrap_or_else(|error| error.exit())
}

/// [`SystemCommand::counters`] of nodes with these names and counters.
pub(crate) fn counters_of<'a>(
    nodes: impl Iterator<Item = (&'a String, &'a BTreeMap<String, u64>)>,
) -> Vec<(&'a str, &'a str, u64)> {
    let mut all = Vec::new();
    for (node, counters) in nodes {
        all.extend(counters.iter().map(|(name, n)| (&node[..], &name[..], *n)));
    }
    all
}

/// ` --data DIR` for a command to copy. Also for the default directory: without the option, a command is refused where
/// clusters of several systems run.
pub(crate) fn data_option(data: &Path) -> String {
    format!(" --data {}", quoted(data))
}

/// A node's status in readable form.
pub(crate) trait NodeInWords: Serialize {
    /// Returns its name, as `inband kill` accepts it.
    fn name(&self) -> &str;

    /// Returns its state, in one line.
    fn in_words(&self) -> String;
}

/// Returns all processes, one line each.
pub(crate) fn nodes_in_words<N: NodeInWords>(processes: &[ProcessStatus], nodes: &[N]) -> String {
    let widths = processes.iter().map(|process| process.name.len());
    let width = widths.max().unwrap_or(0);
    let mut text = String::new();
    for process in processes {
        let node = nodes.iter().find(|node| node.name() == process.name);
        let how = process.in_words_with(node.map(NodeInWords::in_words));
        text += &format!("{:<width$} {how}\n", process.name);
    }
    text
}

/// One node, in the form of [`SystemCommand::node_status`].
pub(crate) fn node_status_of<N: NodeInWords>(node: &N, json: bool) -> Option<String> {
    match json {
        true => serde_json::to_string_pretty(node).ok(),
        false => Some(format!("{} {}", node.name(), node.in_words())),
    }
}

/// The command-line interface of a system: the options of its `up`, and its status in readable form.
pub trait SystemCommand: System {
    /// A description of the system, in one line of `inband --help`.
    const ABOUT: &'static str;
    /// What `inband up` starts, for its help.
    const ABOUT_UP: &'static str;
    /// The role names that `inband kill` and others accept, for their help.
    const ABOUT_ROLES: &'static str;
    /// The other functions of the program `inband-NAME`, for the end of the help. Empty if there is no such program.
    const OTHER_COMMANDS: &'static str = "";
    /// Options of `inband up`, besides --data and --detach.
    type Options: Args;

    fn spec(options: &Self::Options, data: &Path) -> Result<Self::Spec>;

    /// Returns the status in a few readable lines.
    fn in_words(status: &Self::Status) -> String;

    /// Counters of all hosts: host, name, value.
    fn counters(status: &Self::Status) -> Vec<(&str, &str, u64)>;

    /// Uses a cluster that was just started and describes the result in one line. `None`: there is nothing to use.
    fn self_check(options: &Self::Options, status: &Self::Status) -> Result<Option<String>>;

    /// Returns the line before the status at the start: where the role runs, and why.
    fn notice(status: &Self::Status) -> String;

    /// Returns what to do next with a cluster that was just started: commands to copy.
    fn next_steps(options: &Self::Options, status: &Self::Status, data: &Path) -> String;

    /// Returns all timeouts and limits in force in the cluster in a directory, for `inband config show`.
    fn settings(_data: &Path) -> Result<Vec<Setting>> {
        Ok(Vec::new())
    }

    /// Returns the status of a node that runs without a cluster on this machine, given its directory, as JSON or in
    /// readable form.
    fn node_status(_data: &Path, _json: bool) -> Option<String> {
        None
    }

    /// Returns the hosts of a rolling restart, in the order in which they are restarted; `None`: the system has none.
    fn hosts_to_roll(_status: &Self::Status) -> Option<Vec<String>> {
        None
    }

    /// Returns a number that changes as long as hosts catch up, so that a rolling restart waits for them.
    fn progress(_status: &Self::Status) -> u64 {
        0
    }

    /// Returns what will happen to the data when the cluster stops. Shown at the start; empty if there is nothing to
    /// say.
    fn what_stays(_status: &Self::Status) -> &'static str {
        ""
    }

    /// Returns what has happened to the data. Shown after the cluster has stopped.
    fn what_stayed(status: &Self::Status) -> &'static str;
}

#[derive(Debug, Args)]
pub struct StatusForm {
    /// Print everything, as one JSON object.
    #[arg(long)]
    pub json: bool,
    /// Also print every counter.
    #[arg(long, conflicts_with = "json")]
    pub counters: bool,
}

impl StatusForm {
    /// Prints JSON or readable text, the latter with counters on request.
    pub fn show<S: Serialize>(&self, status: &S, words: fn(&S), counters: fn(&S)) -> Result<()> {
        if self.json {
            println!("{}", serde_json::to_string_pretty(status)?);
            return Ok(());
        }
        words(status);
        if self.counters {
            counters(status);
        }
        Ok(())
    }
}

#[derive(Args)]
pub struct UpArgs<S: SystemCommand> {
    #[command(flatten)]
    options: S::Options,
    /// Directory for data, sockets, logs and keys.
    #[arg(long, default_value = S::DEFAULT_DATA, value_name = "DIR")]
    data: PathBuf,
    /// Run in the background; stop with `inband down`.
    #[arg(long)]
    detach: bool,
    #[command(flatten)]
    console: ConsoleArgs,
    /// Set for the background process that --detach starts.
    #[arg(long, hide = true)]
    detached: bool,
}

#[derive(Args)]
pub struct ClusterArgs<S: SystemCommand> {
    /// Directory of the cluster.
    #[arg(long, default_value = S::DEFAULT_DATA, value_name = "DIR")]
    data: PathBuf,
    #[arg(skip)]
    system: PhantomData<fn() -> S>,
}

#[derive(Args)]
pub struct StatusArgs<S: SystemCommand> {
    #[command(flatten)]
    cluster: ClusterArgs<S>,
    #[command(flatten)]
    form: StatusForm,
}

#[derive(Args)]
pub struct RoleArgs<S: SystemCommand> {
    #[arg(help = S::ABOUT_ROLES)]
    role: String,
    #[command(flatten)]
    cluster: ClusterArgs<S>,
}

#[derive(Args)]
pub struct EndArgs<S: SystemCommand> {
    #[command(flatten)]
    role: RoleArgs<S>,
    /// Do it even if the cluster loses its data.
    #[arg(long)]
    force: bool,
}

#[derive(Args)]
pub struct RestartArgs<S: SystemCommand> {
    #[arg(help = S::ABOUT_ROLES, required_unless_present = "rolling")]
    role: Option<String>,
    /// Restart all hosts one after another, each once all others take part, while the cluster serves: for upgrading the
    /// program
    #[arg(long, conflicts_with_all = ["role", "force"])]
    rolling: bool,
    /// Do it even if the cluster loses its data, and do not wait until the host takes part.
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    cluster: ClusterArgs<S>,
}

#[derive(Args)]
pub struct LinkArgs<S: SystemCommand> {
    #[command(flatten)]
    role: RoleArgs<S>,
    #[command(flatten)]
    change: link::Change,
}

/// The commands for clusters of a system. A system with additional commands has an enum with these flattened into it.
#[derive(Subcommand)]
pub enum ClusterCommand<S: SystemCommand> {
    #[command(about = S::ABOUT_UP)]
    Up(UpArgs<S>),
    /// Stop the cluster.
    Down(ClusterArgs<S>),
    /// Show the status of the cluster and its hosts.
    Status(StatusArgs<S>),
    /// Kill the process of a role at once.
    Kill(EndArgs<S>),
    /// Restart the process of a role; or all of them, one after another.
    Restart(RestartArgs<S>),
    /// Hold the packets of a role on its link; without namespaces, stop its process.
    Pause(RoleArgs<S>),
    /// Undo a pause: release the packets, or let the process continue.
    Resume(RoleArgs<S>),
    /// Give a host's link faults; without options, take them away.
    Link(LinkArgs<S>),
}

/// The parsed commands of a system.
pub trait RunCommand: Subcommand {
    type System: SystemCommand;

    /// Returns whether the command only prints, so that it may end quietly when its reader closes the pipe.
    fn only_prints(&self) -> bool;

    fn run(self) -> Result<()>;
}

impl<S: SystemCommand> RunCommand for ClusterCommand<S> {
    type System = S;

    fn only_prints(&self) -> bool {
        matches!(self, ClusterCommand::Status(_))
    }

    fn run(self) -> Result<()> {
        match self {
            ClusterCommand::Up(args) => up(&args),
            ClusterCommand::Down(args) => down::<S>(&args.data),
            ClusterCommand::Status(args) => {
                if let Some(node) = S::node_status(&args.cluster.data, args.form.json) {
                    println!("{node}");
                    return Ok(());
                }
                let status = socket::status::<S>(&args.cluster.data)?;
                args.form.show(
                    &status,
                    |s| print!("{}", S::in_words(s)),
                    print_counters::<S>,
                )
            }
            ClusterCommand::Kill(EndArgs { role, force }) => {
                done(role, "killed", |role| Request::Kill { role, force })
            }
            ClusterCommand::Restart(RestartArgs {
                role,
                force,
                cluster,
                ..
            }) => match role {
                Some(role) => {
                    let args = RoleArgs { role, cluster };
                    done(args, "restarted", |role| Request::Restart { role, force })
                }
                None => roll::<S>(&cluster.data, |line| println!("{line}")),
            },
            ClusterCommand::Pause(args) => done(args, "paused", |role| Request::Pause { role }),
            ClusterCommand::Resume(args) => done(args, "resumed", |role| Request::Resume { role }),
            ClusterCommand::Link(LinkArgs { role, change }) => {
                let what = format!("{}:", change.in_words());
                done(role, &what, |role| Request::Link { role, change })
            }
        }
    }
}

fn print_counters<S: SystemCommand>(status: &S::Status) {
    for (host, name, value) in S::counters(status) {
        println!("  {host:<10} {name:<32} {value}");
    }
}

fn done<S: SystemCommand>(
    args: RoleArgs<S>,
    what: &str,
    request: impl FnOnce(String) -> Request<S::Request>,
) -> Result<()> {
    let host = socket::done::<S>(&args.cluster.data, &request(args.role))?;
    println!("{what} {host}");
    Ok(())
}

/// Restarts all hosts, one after another, each once all others take part. Reports each of them. Waits for a restarted
/// host as long as it catches up.
pub fn roll<S: SystemCommand>(data: &Path, mut report: impl FnMut(String)) -> Result<()> {
    let hosts = S::hosts_to_roll(&socket::status::<S>(data)?);
    let hosts = hosts.with_context(|| {
        format!(
            "--rolling: {} has no rolling restart; restart its hosts one by one: inband restart NAME",
            S::NAME
        )
    })?;
    for (n, host) in (1..).zip(&hosts) {
        let began = Instant::now();
        let request = Request::Roll { host: host.clone() };
        socket::done::<S>(data, &request)?;
        let take_part = || socket::done::<S>(data, &Request::TakePart).map(drop);
        let progress = || Ok(S::progress(&socket::status::<S>(data)?));
        wait_while_progress(NO_PROGRESS_TIMEOUT, take_part, progress)
            .with_context(|| format!("{host} was restarted; no host after it was touched"))?;
        report(format!(
            "{n} of {}: {host} restarted, and all take part after {:.1} s",
            hosts.len(),
            began.elapsed().as_secs_f64()
        ));
    }
    Ok(())
}

/// For how long a number has been the same.
pub(crate) struct Progress {
    last: u64,
    since: Instant,
}

impl Progress {
    pub(crate) fn new() -> Progress {
        Progress {
            last: 0,
            since: Instant::now(),
        }
    }

    /// Returns the time since the number last changed, as observed; `now` is its value.
    pub(crate) fn unchanged_for(&mut self, now: u64) -> Duration {
        if now != self.last {
            (self.last, self.since) = (now, Instant::now());
        }
        self.since.elapsed()
    }
}

/// Waits until `is_done` succeeds. Fails once `progress` has been the same for `limit`.
fn wait_while_progress(
    limit: Duration,
    mut is_done: impl FnMut() -> Result<()>,
    mut progress: impl FnMut() -> Result<u64>,
) -> Result<()> {
    let mut so_far = Progress::new();
    while let Err(lack) = is_done() {
        ensure!(
            so_far.unchanged_for(progress()?) < limit,
            "{lack:#}, and nothing has changed for {} s; `inband status` says what the hosts do",
            limit.as_secs()
        );
        std::thread::sleep(ROLL_POLL_INTERVAL);
    }
    Ok(())
}

fn down<S: SystemCommand>(data: &Path) -> Result<()> {
    let status = socket::status::<S>(data)?;
    let supervisor = socket::supervisor::<S>(data)?;
    socket::done::<S>(data, &Request::Down)?;
    // The lock goes last: once it is free the next `up` can begin.
    let is_free = || !socket_in(data).exists() && StateLock::take(data).is_ok();
    background::wait_for_end(data, supervisor.pid, is_free)?;
    println!("stopped; {}", S::what_stayed(&status));
    Ok(())
}

/// Starts the cluster, checks it, shows its status, and stops it at Ctrl-C.
fn up<S: SystemCommand>(args: &UpArgs<S>) -> Result<()> {
    if args.detach {
        return up_detached(args);
    }
    if args.detached {
        leave_terminal();
    }
    let signals = StopSignals::take()?;
    let console = args.console.find()?;
    let spec = S::spec(&args.options, &args.data)?;
    let cluster = Supervisor::<S>::start_unless(spec, &|| signals.wait(Duration::ZERO))?;
    let mut running = None;
    if !args.detached {
        let status = cluster.status();
        show_start(args, &status)?;
        running = console.and_then(|console| console.start(&args.data));
        println!("{}", joined("Ctrl-C stops it.", S::what_stays(&status)));
    }
    while !signals.wait(WATCH_INTERVAL) && !cluster.wait_for_end(WATCH_INTERVAL) {}
    drop(running);
    drop(cluster);
    println!("stopped");
    Ok(())
}

fn up_detached<S: SystemCommand>(args: &UpArgs<S>) -> Result<()> {
    let data = &args.data;
    let started = spawn_until(background::this_command()?, data, |pid| {
        // If another supervisor holds the directory, ours ends soon.
        let supervisor = socket::supervisor::<S>(data).ok()?;
        let is_ours = supervisor.pid == pid;
        is_ours.then(|| socket::status::<S>(data).ok()).flatten()
    })?;
    started.show(|status| {
        show_start(args, status)?;
        let how = format!(
            "It runs in the background; `inband down --data {}` stops it.",
            quoted(data)
        );
        println!("{}", joined(&how, S::what_stays(status)));
        Ok(())
    })
}

fn joined(first: &str, second: &str) -> String {
    let separator = if second.is_empty() { "" } else { " " };
    format!("{first}{separator}{second}")
}

fn show_start<S: SystemCommand>(args: &UpArgs<S>, status: &S::Status) -> Result<()> {
    println!("{}", S::notice(status));
    print!("{}", S::in_words(status));
    let checked = S::self_check(&args.options, status);
    if let Some(line) = checked.with_context(|| format!("self-check: {} does not work", S::NAME))? {
        println!("self-check: {line}");
    }
    print!("{}", S::next_steps(&args.options, status, &args.data));
    Ok(())
}

/// A system, found on the command line by its name or by a cluster's directory.
pub trait Registered: Sync {
    /// Returns the name of its command, such as `flair`.
    fn name(&self) -> &'static str;
    /// Returns the default directory of its clusters.
    fn default_data(&self) -> &'static Path;
    /// Returns whether a directory holds a cluster of this system.
    fn is_in(&self, data: &Path) -> bool;
    /// Returns all timeouts and limits in force in the cluster in a directory.
    fn settings(&self, data: &Path) -> Result<Vec<Setting>>;
    /// Returns its commands, for the parser.
    fn command(&self) -> clap::Command;
    fn run(&self, matches: &ArgMatches) -> Result<()>;
}

/// The registry entry of a system, given the type of its commands.
pub struct Entry<C>(PhantomData<fn() -> C>);

impl<C> Entry<C> {
    #[allow(clippy::new_without_default)]
    pub const fn new() -> Entry<C> {
        Entry(PhantomData)
    }
}

/// The end of a system's help.
fn notes<S: SystemCommand>() -> String {
    let note = format!(
        "`inband up {}` starts a cluster. `inband status`, `kill`, `restart`, `pause`, `resume`, `link` and `down` need no \
         name of a system: they find it in --data.",
        S::COMMAND
    );
    match S::OTHER_COMMANDS {
        "" => note,
        other => format!("{note}\n\n{other}"),
    }
}

impl<C: RunCommand> Registered for Entry<C> {
    fn name(&self) -> &'static str {
        C::System::COMMAND
    }

    fn default_data(&self) -> &'static Path {
        Path::new(C::System::DEFAULT_DATA)
    }

    fn is_in(&self, data: &Path) -> bool {
        is_in::<C::System>(data)
    }

    fn settings(&self, data: &Path) -> Result<Vec<Setting>> {
        C::System::settings(data)
    }

    fn command(&self) -> clap::Command {
        C::augment_subcommands(clap::Command::new(self.name()))
            // Without this, clap would use the doc comment of the enum of commands.
            .about(C::System::ABOUT)
            .long_about(None)
            .after_help(notes::<C::System>())
            .mut_subcommand("up", |up| {
                up.override_usage(format!("inband up {} [OPTIONS]", self.name()))
            })
            .subcommand_required(true)
            .arg_required_else_help(true)
    }

    fn run(&self, matches: &ArgMatches) -> Result<()> {
        let command = C::from_arg_matches(matches).unwrap_or_else(|error| program::usage(&error));
        if command.only_prints() {
            program::end_with_reader();
        }
        command.run()
    }
}

/// The settings, except limits, that a section of docs/configuration.md does not have.
#[cfg(test)]
pub(crate) fn undocumented(section: &str, settings: &[Setting]) -> Vec<String> {
    let page = include_str!("../../../docs/configuration.md");
    let section = page.split(&format!("\n## {section}\n")).nth(1);
    let section = section.and_then(|text| text.split("\n## ").next());
    let section = section.expect("the page has this section");
    // docs/limits.md has those.
    let settings = settings.iter().map(|setting| &setting.name);
    let names = settings.filter(|name| !name.starts_with("limits."));
    let missing = names.filter(|name| !section.contains(&format!("`{name}`")));
    missing.cloned().collect()
}

#[cfg(test)]
mod tests {
    use anyhow::bail;

    use super::*;

    const LIMIT: Duration = Duration::from_millis(200);

    #[test]
    fn a_host_that_catches_up_is_waited_for_and_one_that_does_not_is_named() {
        let began = Instant::now();
        let mut so_far = 0;
        let is_done = || {
            ensure!(began.elapsed() > 4 * LIMIT, "node/2 does not follow");
            Ok(())
        };
        let progress = || {
            so_far += 1;
            Ok(so_far)
        };
        wait_while_progress(LIMIT, is_done, progress).expect("it goes on and on");
        let stuck = wait_while_progress(LIMIT, || bail!("node/2 does not follow"), || Ok(7));
        let stuck = stuck.expect_err("nothing changes").to_string();
        assert!(
            stuck.starts_with("node/2 does not follow, and nothing has changed"),
            "{stuck}"
        );
    }
}
