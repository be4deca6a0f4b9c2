//! `inband member`, and what is shared with other control-plane commands.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{bail, Context, Result};
use clap::{Args, Subcommand};
use inband_cluster::paxos::change::{self, Goal, Plane, PlaneError};
use inband_cluster::paxos::supervisor::remote::{self, SupervisorReply, SupervisorRequest};
use inband_cluster::paxos::MemberKind;
use inband_control::configuration::{Beginning, Configuration, Member, NodeId, Parts};
use inband_control::message::AcceptorReport;
use inband_control::service::{self, HostStatus, Request, Response, Status};
use inband_control::state::Refusal;
use inband_host::signals::StopSignals;
use inband_paxos::config::{Config, Role};

use crate::up::DEFAULT_DATA;

/// Time limit for one answer of the control plane.
const CALL_LIMIT: Duration = Duration::from_secs(5);
/// Interval between looks at the progress.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);
/// Time limit for the replicas of a halted cluster to report what they have applied, with a majority holding it.
const HALT_LIMIT: Duration = Duration::from_secs(10);
/// A host that is silent for longer is shown as silent; hosts report ten times a second.
const SILENT_MS: u64 = 1000;
/// With fewer controllers, the control plane survives the loss of none.
const CONTROLLERS_SAFE: usize = 3;

/// Options that select the cluster.
#[derive(Debug, Args)]
pub struct PlaneArgs {
    /// Directory of a cluster of `inband up`.
    #[arg(long, default_value = DEFAULT_DATA, value_name = "DIR")]
    pub data: PathBuf,
    /// Configuration of a host of `inband run`, for a cluster that was not started with `inband up`. Its controllers
    /// are asked directly.
    #[arg(long, value_name = "FILE", conflicts_with = "data")]
    pub config: Option<PathBuf>,
}

/// Subcommands of `inband member`.
#[derive(Debug, Subcommand)]
pub enum MemberCommand {
    /// List the members, their state, and the change in progress.
    List {
        #[command(flatten)]
        plane: PlaneArgs,
        /// Print everything as one JSON object.
        #[arg(long)]
        json: bool,
    },
    /// Add an acceptor or replica while the cluster serves, and wait until it takes part.
    Add {
        /// acceptor or replica. With --config, omit it: the file specifies the role, and the host must be running.
        #[arg(
            required_unless_present = "config",
            conflicts_with = "config",
            value_name = "acceptor|replica"
        )]
        kind: Option<MemberKind>,
        #[command(flatten)]
        plane: PlaneArgs,
    },
    /// Remove a host permanently while the cluster serves. Its id is never reused.
    Remove {
        /// acceptor/1, replica/2, ... With --config, the default is the host of the file.
        #[arg(required_unless_present = "config")]
        name: Option<String>,
        #[command(flatten)]
        plane: PlaneArgs,
    },
    /// Replace a host, which may be dead or have lost its disk, with a new one.
    Replace {
        /// The host to replace: acceptor/1, replica/2, ... With --config, the host of the file takes its place; it must
        /// be running.
        name: String,
        #[command(flatten)]
        plane: PlaneArgs,
    },
    /// Start a new epoch with empty acceptors, after what the replicas have: for a full stop with durability "memory",
    /// or when a log makes no progress and does not recover by itself. What only the acceptors knew is lost. Refused if
    /// they can continue, or unless all replicas report what they have applied.
    BeginAnew(BeginAnewArgs),
}

/// Options of `inband member begin-anew`.
#[derive(Debug, Args)]
pub struct BeginAnewArgs {
    /// The last applied instance of each log, the highest of all replicas. Needed only if a replica cannot report it:
    /// then `inband inspect` of its data shows it. Values that contradict other replicas are refused.
    #[arg(long, value_delimiter = ',', value_name = "N[,N...]")]
    applied: Vec<u64>,
    /// Configuration of any host of the cluster. (`inband up` does this itself.)
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
}

/// Subcommands of `inband leader`.
#[derive(Debug, Subcommand)]
pub enum LeaderCommand {
    /// Make a host the preferred leader, and wait until it leads.
    Move {
        /// leader/0, replica/2, ...: a host that may lead.
        name: String,
        /// Only for this partition: its number, or M for the log of commands over several partitions.
        #[arg(long, value_name = "P|M")]
        partition: Option<String>,
        #[command(flatten)]
        plane: PlaneArgs,
    },
}

pub fn member(command: &MemberCommand) -> Result<()> {
    match command {
        MemberCommand::List { plane, json } => list(plane, *json),
        MemberCommand::Add { kind, plane } => match (&plane.config, kind) {
            (Some(_), _) => Direct::of(plane)?.add(None),
            (None, Some(kind)) => {
                let host = in_lab(plane, SupervisorRequest::Add { kind: *kind })?;
                println!("{host} is a member");
                Ok(())
            }
            (None, None) => bail!("name what to add: acceptor or replica"),
        },
        MemberCommand::Remove { name, plane } => match (&plane.config, name) {
            (Some(_), name) => Direct::of(plane)?.remove(name.as_deref()),
            (None, Some(name)) => {
                let host = name.clone();
                let host = in_lab(plane, SupervisorRequest::Remove { host })?;
                println!("{host} is gone; what was on its disk stays in the cluster's directory");
                Ok(())
            }
            (None, None) => bail!("name the host to remove (`inband member list`)"),
        },
        MemberCommand::Replace { name, plane } => match &plane.config {
            Some(_) => Direct::of(plane)?.add(Some(name)),
            None => {
                let host = name.clone();
                let new = in_lab(plane, SupervisorRequest::Replace { host })?;
                println!("{new} is in the place of {name}");
                Ok(())
            }
        },
        MemberCommand::BeginAnew(args) => begin_anew(args),
    }
}

pub fn leader(command: &LeaderCommand) -> Result<()> {
    let LeaderCommand::Move {
        name,
        partition,
        plane,
    } = command;
    let status = status_of(plane)?;
    let opened = opened(&status)?;
    let log = match partition.as_deref() {
        None => None,
        Some("M") if opened.partitions() > 1 => Some(opened.partitions() as u32 - 1),
        Some(number) => Some(number.parse().with_context(|| {
            format!("--partition {number:?} is not a partition; write its number, or M")
        })?),
    };
    if plane.config.is_some() {
        let direct = Direct::of(plane)?;
        let to = node_named(opened, name)?;
        direct.ask(&Request::MoveLeader { partition: log, to })?;
        println!("{name} is the preferred leader; /metrics shows when it leads");
        return Ok(());
    }
    let host = name.clone();
    let host = in_lab(plane, SupervisorRequest::Lead { log, host })?;
    println!("{host} leads");
    Ok(())
}

fn begin_anew(args: &BeginAnewArgs) -> Result<()> {
    let first_instances = args.applied.iter().map(|at| at.saturating_add(1)).collect();
    begin_anew_on(&Direct::open(&args.config)?, first_instances)
}

/// `inband member begin-anew` on this control plane.
pub fn begin_anew_on(plane: &dyn Plane, first_instances: Vec<u64>) -> Result<()> {
    let request = Request::Restart {
        at_least: 0,
        first_instances,
    };
    let before = plane.status()?;
    let mut is_explained = explain(plane, &before);
    let opened = before.opened.as_ref();
    let mut is_halted = opened.is_some_and(|opened| opened.beginning == Beginning::Halted);
    let deadline = Instant::now() + HALT_LIMIT;
    let mut waits_for = None;
    loop {
        let passing = match plane.ask(&request) {
            Ok(Response::Accepted { epoch }) => {
                println!("epoch {epoch} begins with empty acceptors");
                return Ok(());
            }
            Ok(Response::Halted { epoch }) => {
                is_halted = true;
                // A log may have been reported as stopped after the first look.
                if let (false, Ok(status)) = (is_explained, plane.status()) {
                    is_explained = explain(plane, &status);
                }
                println!("epoch {epoch}: no acceptor votes until all replicas have reported what they have applied");
                None
            }
            Ok(other) => {
                let error = anyhow::anyhow!(
                    "the control plane answered {other:?}; is it of the same version?"
                );
                return Err(unfinished(is_halted, error));
            }
            Err(error) if is_halted && is_awaited(&error) && Instant::now() < deadline => {
                Some(error.to_string())
            }
            Err(error @ (PlaneError::Unknown | PlaneError::Silent(_))) if !is_halted => {
                return Err(anyhow::Error::from(error).context(
                    "it is unknown whether the cluster is halted; fix this and run `inband member begin-anew` again",
                ))
            }
            Err(error) => return Err(unfinished(is_halted, error.into())),
        };
        if passing.is_some() && passing != waits_for {
            plane.say(format!(
                "waiting: {}",
                passing.as_deref().unwrap_or_default()
            ));
            waits_for = passing;
        }
        if !plane.wait_a_little() {
            bail!("interrupted; `inband member begin-anew` continues where this one stopped");
        }
    }
}

/// Replicas of a halted cluster report or reach their positions shortly after they have entered its epoch.
fn is_awaited(error: &PlaneError) -> bool {
    matches!(
        error,
        PlaneError::Refused(Refusal::PositionUnknown(_) | Refusal::NotDurable { .. })
    )
}

/// Returns the error of begin-anew; if the cluster is halted, with advice.
fn unfinished(is_halted: bool, error: anyhow::Error) -> anyhow::Error {
    match is_halted {
        true => error
            .context("the cluster is halted; fix this and run `inband member begin-anew` again"),
        false => error,
    }
}

/// Says which logs make no progress and why. Returns whether there are any.
fn explain(plane: &dyn Plane, status: &Status) -> bool {
    let stopped = stopped_logs(status);
    if !stopped.is_empty() {
        plane.say(stopped.trim_end().to_owned());
    }
    !stopped.is_empty()
}

/// Returns the logs that make no progress, with reasons, one per line.
fn stopped_logs(status: &Status) -> String {
    let Some(opened) = &status.opened else {
        return String::new();
    };
    let name = |node: &NodeId| {
        let member = opened.members.get(node);
        member.map_or_else(|| format!("node {node}"), |m| m.name.clone())
    };
    let names = |nodes: &[NodeId]| nodes.iter().map(name).collect::<Vec<_>>().join(", ");
    let acceptors = opened.acceptors();
    let heard = |node: &NodeId| status.hosts.iter().find(|host| host.node == *node);
    let silent: Vec<NodeId> = acceptors
        .iter()
        .filter(|node| heard(node).is_none_or(|host| host.silent_ms > SILENT_MS))
        .copied()
        .collect();
    let mute: Vec<NodeId> = acceptors
        .iter()
        .filter(|node| !silent.contains(node))
        .filter(|node| {
            let acceptor = heard(node).and_then(|host| host.acceptor.as_ref());
            acceptor.is_none_or(|acceptor| !acceptor.voting)
        })
        .copied()
        .collect();
    let mut text = String::new();
    for host in status
        .hosts
        .iter()
        .filter(|host| host.silent_ms <= SILENT_MS)
    {
        for stopped in &host.stopped {
            let log =
                inband_cluster::paxos::control::log_name(stopped.log as usize, opened.partitions());
            text += &format!(
                "{}: {log} has stood at instance {} for {} s",
                name(&host.node),
                stopped.instance,
                stopped.for_ms / 1000
            );
            let reasons = [
                ("the value is damaged at", &stopped.unreadable_at),
                ("no report from", &silent),
                ("no votes from", &mute),
            ];
            for (what, nodes) in reasons {
                if !nodes.is_empty() {
                    text += &format!("; {what} {}", names(nodes));
                }
            }
            text += "\n";
        }
    }
    text
}

fn status_of(plane: &PlaneArgs) -> Result<Status> {
    match &plane.config {
        Some(_) => Ok(Direct::of(plane)?.status()?),
        None => Ok(remote::plane_status(&plane.data)?),
    }
}

/// Has the supervisor make a change, and shows its progress. Returns a host's name.
fn in_lab(plane: &PlaneArgs, request: SupervisorRequest) -> Result<String> {
    // Must precede the creation of another thread.
    let signals = StopSignals::take()?;
    let data = plane.data.clone();
    let asked = thread::spawn(move || remote::ask(&data, &request));
    let mut shown = None;
    while !asked.is_finished() {
        if signals.wait(PROGRESS_INTERVAL) {
            bail!(
                "no longer waiting; the change continues in the cluster, see `inband member list`"
            );
        }
        let doing = remote::ask(&plane.data, &SupervisorRequest::Progress);
        if let Ok(SupervisorReply::Progress { doing: Some(doing) }) = doing {
            if shown.as_ref() != Some(&doing) {
                println!("{doing}");
                shown = Some(doing);
            }
        }
    }
    let answer = asked
        .join()
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    match answer? {
        SupervisorReply::Done { host } => Ok(host),
        other => bail!("the supervisor answered {other:?}; is it of the same version?"),
    }
}

fn opened(status: &Status) -> Result<&Configuration> {
    let none = "the cluster has no configuration yet; start all its controllers once";
    status.opened.as_ref().context(none)
}

fn node_named(configuration: &Configuration, name: &str) -> Result<NodeId> {
    let mut members = configuration.members.values();
    let Some(member) = members.find(|member| member.name == name) else {
        let names = configuration.members.values().map(|m| m.name.as_str());
        bail!(
            "no member is called {name:?}; there are {}",
            names.collect::<Vec<_>>().join(", ")
        );
    };
    Ok(member.node)
}

/// A cluster whose controllers are asked directly.
struct Direct {
    config: Config,
    signals: StopSignals,
    shown: RefCell<String>,
}

impl Direct {
    fn of(plane: &PlaneArgs) -> Result<Direct> {
        Direct::open(plane.config.as_deref().context("--config is missing")?)
    }

    fn open(path: &Path) -> Result<Direct> {
        let config = Config::load(path)?;
        if config.controllers().next().is_none() {
            bail!(
                "{}: no node has the role \"controller\", so the members are fixed",
                path.display()
            );
        }
        Direct::of_config(config)
    }

    fn of_config(config: Config) -> Result<Direct> {
        Ok(Direct {
            config,
            signals: StopSignals::take()?,
            shown: RefCell::default(),
        })
    }

    /// Adds the host of the file, possibly in place of another.
    fn add(&self, in_place_of: Option<&str>) -> Result<()> {
        let new = change::member_of(self.config.this());
        let (name, id) = (new.name.clone(), new.node);
        let goes = match in_place_of {
            Some(old) => Some(node_named(opened(&self.status()?)?, old)?),
            None => None,
        };
        let request = match goes {
            Some(old) => Request::Replace { old, new },
            None => Request::Add(new),
        };
        let comes = Some(id);
        self.carry_out(&request, Goal { comes, goes })?;
        println!(
            "{name} is a member; `inband member list` and its /metrics show when it takes part"
        );
        if let Some(old) = in_place_of {
            println!("{old} is no longer a member: stop it, and never use its id again");
        }
        Ok(())
    }

    fn remove(&self, name: Option<&str>) -> Result<()> {
        let name = name.unwrap_or(&self.config.this().name);
        let id = node_named(opened(&self.status()?)?, name)?;
        let goal = Goal {
            comes: None,
            goes: Some(id),
        };
        self.carry_out(&Request::Remove(id), goal)?;
        println!("{name} is no longer a member: stop it, and never use its id {id} again");
        Ok(())
    }

    fn carry_out(&self, request: &Request, goal: Goal) -> Result<()> {
        change::carry_out(self, request, goal).map_err(|failure| failure.error().into())
    }
}

impl Plane for Direct {
    fn ask(&self, request: &Request) -> Result<Response, PlaneError> {
        let controllers = self.config.controllers();
        let services: Vec<SocketAddr> = controllers
            .map(|node| SocketAddr::V4(node.control_plane()))
            .collect();
        let cluster = &self.config.cluster.name;
        let transport = crate::transport::of(&self.config);
        let transport = transport.map_err(|error| PlaneError::Silent(format!("{error:#}")))?;
        let called = service::call(cluster, &services, request, CALL_LIMIT, &transport);
        Ok(called?)
    }

    fn say(&self, what: String) {
        if *self.shown.borrow() != what {
            println!("{what}");
            *self.shown.borrow_mut() = what;
        }
    }

    fn wait_a_little(&self) -> bool {
        !self.signals.wait(PROGRESS_INTERVAL)
    }
}

fn list(plane: &PlaneArgs, json: bool) -> Result<()> {
    let status = status_of(plane)?;
    if json {
        println!("{}", serde_json::to_string_pretty(&status)?);
        return Ok(());
    }
    print!("{}", in_words(&status));
    Ok(())
}

/// Returns the members of the cluster of this host, as reported by its controllers.
pub fn members_in_words(config: &Config) -> Result<String> {
    if config.controllers().next().is_none() {
        return Ok(String::new());
    }
    let status = Direct::of_config(config.clone())?.status()?;
    Ok(in_words(&status))
}

/// The table of `inband member list`.
pub fn in_words(status: &Status) -> String {
    let Some(opened) = &status.opened else {
        return "no configuration yet: the control plane founds the cluster once all its hosts are up\n"
            .into();
    };
    let name = |node: NodeId| {
        let member = opened.members.get(&node);
        member.map_or_else(|| format!("node {node}"), |m| m.name.clone())
    };
    let mut text = format!(
        "epoch {}  revision {}  control plane led by {}\n",
        opened.epoch,
        opened.revision,
        name(status.leader)
    );
    text += &format!(
        "{:>4}  {:<14} {:<28} {:<22} {}\n",
        "id", "name", "roles", "address", "state"
    );
    let target = status.pending.as_ref().map(|pending| &pending.target);
    let coming = target.iter().flat_map(|target| target.members.values());
    let coming = coming.filter(|member| !opened.members.contains_key(&member.node));
    for member in opened.members.values().chain(coming) {
        let heard = status.hosts.iter().find(|host| host.node == member.node);
        let mut state = state_of(member, heard, opened);
        match target {
            Some(target) if !target.members.contains_key(&member.node) => {
                state += ", on its way out"
            }
            Some(_) if !opened.members.contains_key(&member.node) => state += ", on its way in",
            _ => {}
        }
        text += &format!(
            "{:>4}  {:<14} {:<28} {:<22} {state}\n",
            member.node,
            member.name,
            roles(&member.parts),
            member.data.to_string()
        );
    }
    if let Some(pending) = &status.pending {
        let why = match &pending.change {
            Some(_) => "with other members",
            None => "so that all acceptors vote again",
        };
        text += &format!("epoch {} is being prepared, {why}\n", pending.target.epoch);
    }
    let members = opened.members.values();
    let controllers = members.filter(|member| member.parts.controller).count();
    if (1..CONTROLLERS_SAFE).contains(&controllers) {
        text += &format!(
            "{controllers} of the members are controllers: if one fails, no member can be replaced. Add an acceptor \
             that is a controller, too\n"
        );
    }
    text += &stopped_logs(status);
    for (log, order) in opened.leaders.iter().enumerate() {
        let order: Vec<String> = order.iter().map(|node| name(*node)).collect();
        let log = inband_cluster::paxos::control::log_name(log, opened.partitions());
        text += &format!("{log} is led by the first of: {}\n", order.join(", "));
    }
    if status.waiting != inband_control::coordinator::Waiting::Nothing {
        text += &format!("{}\n", change::in_words(&Ok(status.clone())));
    }
    text
}

fn roles(parts: &Parts) -> String {
    let roles = [
        (parts.acceptor, Role::Acceptor),
        (parts.replica, Role::Replica),
        (parts.leader, Role::Leader),
        (parts.controller, Role::Controller),
    ];
    let names = roles.into_iter().filter(|(has, _)| *has);
    let names: Vec<String> = names.map(|(_, role)| role.to_string()).collect();
    names.join(", ")
}

fn state_of(member: &Member, heard: Option<&HostStatus>, opened: &Configuration) -> String {
    let Some(heard) = heard else {
        return "never heard by the leader of the control plane".into();
    };
    if member.identity.is_some_and(|known| known != heard.identity) {
        return "another host has its id: it has lost its state directory, replace it".into();
    }
    if heard.silent_ms > SILENT_MS {
        return format!("silent for {} s", heard.silent_ms / 1000);
    }
    match &heard.acceptor {
        Some(acceptor) if member.parts.acceptor => acceptor_state(acceptor, opened),
        _ => "up".into(),
    }
}

fn acceptor_state(acceptor: &AcceptorReport, opened: &Configuration) -> String {
    if acceptor.voting && acceptor.epoch == opened.epoch {
        "votes".into()
    } else if acceptor.voting {
        format!("votes in epoch {} still", acceptor.epoch)
    } else if acceptor.forgot(opened.epoch) {
        "recovering: it has lost its votes".into()
    } else {
        "does not vote yet".into()
    }
}
