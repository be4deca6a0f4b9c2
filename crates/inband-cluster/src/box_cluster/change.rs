//! A box while clients use it: how many nodes must have a write, and which nodes there are.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Result};
use clap::{Args, Subcommand};
use inband_box::changes::{change_at, Failed};
use inband_box::durable::Durability;
use inband_box::membership::{bitmap, ids, Change, Membership};
use inband_box::node::Quorum;
use inband_box::process::Status;
use inband_host::line_json::CallError;

use super::top::BoxTopArgs;
use super::{leader_of, node_number, BoxCluster, Nodes, ELECTING, RECOVERING};
use crate::command::{ClusterCommand, Progress, RunCommand, NO_PROGRESS_TIMEOUT};
use crate::socket::{self, Request};
use crate::system::System;

/// Nodes have a leader by then, if a majority of them is there.
const LEADER_TIMEOUT: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(50);

/// Commands of consensus in a box.
#[derive(Subcommand)]
#[expect(clippy::large_enum_variant, reason = "a process has one")]
pub enum BoxCommand {
    #[command(flatten)]
    Cluster(ClusterCommand<BoxCluster>),
    /// Change how many nodes must have a write before it is answered, while clients use it.
    #[command(override_usage = "inband quorum [OPTIONS] <QUORUM>")]
    Quorum(QuorumArgs),
    /// Show what each node does, and how much of it in a second, again and again.
    Top(BoxTopArgs),
    /// Add or remove nodes while clients use the others.
    #[command(subcommand)]
    Member(MemberCommand),
}

/// Options of `inband quorum`.
#[derive(Args)]
pub struct QuorumArgs {
    #[arg(value_enum)]
    quorum: Quorum,
    /// Change to majority although a node is down: writes that wait for it are then answered without it
    #[arg(long)]
    force: bool,
    /// Directory of the cluster
    #[arg(long, default_value = BoxCluster::DEFAULT_DATA, value_name = "DIR")]
    data: PathBuf,
}

/// Subcommands of `inband member` for a box.
#[derive(Subcommand)]
pub enum MemberCommand {
    /// List the members
    List {
        /// Directory of the cluster
        #[arg(long, default_value = BoxCluster::DEFAULT_DATA, value_name = "DIR")]
        data: PathBuf,
    },
    /// Start a node and wait until it is a member; the others go on
    Add {
        /// Directory of the cluster
        #[arg(long, default_value = BoxCluster::DEFAULT_DATA, value_name = "DIR")]
        data: PathBuf,
    },
    /// Remove a node for good, or give up one that is joining. Its id is not used again
    Remove {
        /// node/4
        node: String,
        /// Directory of the cluster
        #[arg(long, default_value = BoxCluster::DEFAULT_DATA, value_name = "DIR")]
        data: PathBuf,
    },
}

impl RunCommand for BoxCommand {
    type System = BoxCluster;

    fn only_prints(&self) -> bool {
        match self {
            BoxCommand::Cluster(command) => command.only_prints(),
            BoxCommand::Top(_) | BoxCommand::Member(MemberCommand::List { .. }) => true,
            _ => false,
        }
    }

    fn run(self) -> Result<()> {
        match self {
            BoxCommand::Cluster(command) => command.run(),
            BoxCommand::Top(args) => args.run(),
            BoxCommand::Quorum(QuorumArgs {
                quorum,
                force,
                data,
            }) => {
                let now = change(&data, Change::Quorum { quorum, force })?;
                println!("quorum: {}", now.quorum.name());
                Ok(())
            }
            BoxCommand::Member(MemberCommand::List { data }) => {
                let status = socket::status::<BoxCluster>(&data)?;
                let membership = membership_of(&status.nodes);
                println!("{membership}");
                Ok(())
            }
            BoxCommand::Member(MemberCommand::Add { data }) => {
                let name = add(&data)?;
                println!("added {name}: it is a member");
                Ok(())
            }
            BoxCommand::Member(MemberCommand::Remove { node, data }) => {
                remove(&data, &node)?;
                println!("removed {node}");
                Ok(())
            }
        }
    }
}

/// Who takes part, by the node that has applied most.
pub(super) fn membership_of(nodes: &[Status]) -> Membership {
    let newest = nodes.iter().max_by_key(|node| node.applied);
    newest.map_or(Membership::founding(0, Quorum::default()), |node| {
        node.membership
    })
}

/// Returns whether writes need every member: by what is committed, or by a change in a leader's log that is not.
pub fn needs_all(nodes: &[Status]) -> bool {
    let in_logs = nodes.iter().filter_map(|node| node.changes_to);
    let mut all = in_logs.chain([membership_of(nodes)]);
    all.any(|membership| membership.quorum == Quorum::All)
}

/// Change something, and wait until that is committed.
pub fn change(data: &Path, change: Change) -> Result<Membership> {
    socket::request::<BoxCluster>(data, change)
}

/// Start another node, and wait until it is a member. Returns its name.
pub fn add(data: &Path) -> Result<String> {
    let id = change(data, Change::Add)?.joining;
    let name = format!("node/{id}");
    let (role, force) = (name.clone(), true);
    let started = socket::done::<BoxCluster>(data, &Request::Restart { role, force });
    if let Err(error) = started {
        // Nobody else may join while it is on its way.
        let _ = change(data, Change::Remove { node: id });
        return Err(error.context(format!("{name} is not added")));
    }
    let mut so_far = Progress::new();
    loop {
        let status = socket::status::<BoxCluster>(data)?;
        if membership_of(&status.nodes).is_member(id) {
            return Ok(name);
        }
        let node = status.nodes.iter().find(|node| node.name == name);
        ensure!(
            so_far.unchanged_for(node.map_or(0, progress_of)) < NO_PROGRESS_TIMEOUT,
            "{name} has got nothing for {} s; look at `inband status`, and give it up with `inband member remove {name}`",
            NO_PROGRESS_TIMEOUT.as_secs()
        );
        std::thread::sleep(POLL);
    }
}

/// Returns a number that changes as long as a node gets records, or parts of the table.
pub(super) fn progress_of(node: &Status) -> u64 {
    node.applied.wrapping_add(node.pulled_bytes)
}

/// Take a node out, and end it.
pub fn remove(data: &Path, name: &str) -> Result<()> {
    let Some(node) = node_number(name) else {
        bail!("{name:?} is not a node; give node/1, node/2, ...");
    };
    change(data, Change::Remove { node })?;
    let (role, force) = (name.to_owned(), true);
    // It may have ended itself, or before.
    let _ = socket::done::<BoxCluster>(data, &Request::Kill { role, force });
    Ok(())
}

impl BoxCluster {
    /// Have the leader change something.
    pub(super) fn change(&self, change: Change) -> Result<Membership> {
        if let Change::Remove { node } = change {
            self.check_logs_without(node)?;
        }
        let mut until = Instant::now() + LEADER_TIMEOUT;
        let mut was_interrupted = false;
        let now = loop {
            let nodes = self.nodes();
            let asked = match self.may_change(&nodes, change) {
                Some(leader) => {
                    change_at(&self.sockets[&leader.name], change).or_else(|error| {
                        let failed = interrupted(&leader.name, change, &error);
                        if failed.may_ask_again && !was_interrupted {
                            (until, was_interrupted) = (Instant::now() + LEADER_TIMEOUT, true);
                        }
                        anyhow::Ok(Err(failed))
                    })?
                }
                None => Err(Failed {
                    message: no_leader_in_words(&nodes),
                    may_ask_again: true,
                }),
            };
            match asked {
                Ok(now) => break now,
                // The leader has changed since it said that it leads; the next one may have the change in its log.
                Err(failed)
                    if (failed.may_ask_again || was_interrupted) && Instant::now() < until =>
                {
                    std::thread::sleep(POLL);
                }
                Err(failed) => return Err(failed.into()),
            }
        };
        // One that was added by a change that is not committed any more begins again with it.
        self.store_nodes(&Nodes::of(&now))?;
        Ok(now)
    }

    /// Returns the node to ask. A leader whose epoch is not established accepts a forced quorum: with the quorum of all and
    /// a node down, nothing else would establish it.
    fn may_change<'a>(&self, nodes: &'a [Status], change: Change) -> Option<&'a Status> {
        let is_forced = matches!(change, Change::Quorum { force: true, .. });
        let electing = nodes.iter().filter(|node| node.state == ELECTING);
        leader_of(nodes).or_else(|| electing.filter(|_| is_forced).max_by_key(|node| node.epoch))
    }

    /// With logs in memory a majority of the members that are left must have theirs, or a leader that is lost next takes the
    /// table with it.
    fn check_logs_without(&self, node: u8) -> Result<()> {
        let nodes = self.nodes();
        let mut left = membership_of(&nodes);
        if self.spec.options.durability == Durability::Sync || !left.is_member(node) {
            return Ok(());
        }
        left.members &= !(1 << node);
        let with_log = nodes.iter().filter(|node| node.state != RECOVERING);
        let with_log = with_log.filter_map(|node| node_number(&node.name));
        let with_log = bitmap(with_log);
        ensure!(
            left.has_majority(with_log),
            "of the {} nodes that would be left, {} have the log, and {} must: wait until `inband status` says that the others follow",
            left.count(),
            (left.members & with_log).count_ones(),
            left.majority()
        );
        Ok(())
    }
}

/// Returns what is known of a change if the node that was asked gave no answer.
fn interrupted(node: &str, change: Change, error: &anyhow::Error) -> Failed {
    let call = error.downcast_ref::<CallError>();
    if call.is_some_and(CallError::nobody_listens) {
        return Failed {
            message: format!("{node} has ended: {error:#}"),
            may_ask_again: true,
        };
    }
    Failed {
        message: format!(
            "{node} ended before it answered, and the change may be done all the same: look at `inband member list` ({error:#})"
        ),
        // The second time changes nothing.
        may_ask_again: matches!(change, Change::Quorum { .. }),
    }
}

/// Explains why there is no leader, as far as the nodes that answer can tell.
fn no_leader_in_words(nodes: &[Status]) -> String {
    let membership = membership_of(nodes);
    let answers = |id: u8| {
        let mut numbers = nodes.iter().filter_map(|node| node_number(&node.name));
        numbers.any(|number| number == id)
    };
    let silent: Vec<String> = ids(membership.members)
        .filter(|id| !answers(*id))
        .map(|id| format!("node/{id}"))
        .collect();
    if needs_all(nodes) && !silent.is_empty() {
        return format!(
            "no node leads: with the quorum of all a new leader needs every node, and {} did not answer: start them again, or let a majority decide with `inband quorum majority --force`",
            silent.join(", ")
        );
    }
    "no node leads, so nothing can change; `inband status` says what the nodes do".to_owned()
}
