//! This host's part in the control plane: its control service, and the service's access to the node.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::{Context, Result};
use inband_control::acceptor::{AcceptorError, AcceptorState, Holds, Merged, Piece, Position};
use inband_control::configuration::{Beginning, Configuration, Epoch, Member};
use inband_control::first::{configuration_of, settings_of};
use inband_control::message::{ReplicaPositions, StoppedLog};
use inband_control::registers::RegisterState;
use inband_control::service::{Hooks, Service, ServiceConfig};
use inband_control::state::Refusal;
use inband_control::timing::Timing;
use inband_ground::auth::Digest;
use inband_paxos::config::{Config, NodeConfig, Role};
use inband_paxos::dataplane::soft::Registers;
use inband_paxos::durable;
use inband_paxos::journal::{self, Reconfigured};
use inband_paxos::node::Node;
use inband_transport::tls::Transport;

use crate::exit_status::Unsuitable;
use crate::node_commands::{node_commands, NodeCommands};
use crate::published::{self, PublishedNode};

/// Directory of the control plane's files in the state directory.
const CONTROL_DIR: &str = "control";
/// Time limit for a command on the node's thread. One command may install the votes of a whole log.
const NODE_COMMAND_TIMEOUT: Duration = Duration::from_secs(5);

/// The acceptor as seen by the control plane.
type Acceptor = RegisterState<Arc<Registers>>;

/// Stops the process. A running host stops if the cluster refuses its configuration.
#[derive(Clone)]
pub struct Stop {
    /// Set to stop, for any reason.
    pub flag: Arc<AtomicBool>,
    /// The cluster's refusal, if that is the reason.
    refusal: Arc<OnceLock<String>>,
}

impl Stop {
    pub fn new(flag: Arc<AtomicBool>) -> Stop {
        Stop {
            flag,
            refusal: Arc::default(),
        }
    }

    /// The exit result of a host that has stopped.
    pub fn outcome(&self) -> Result<()> {
        match self.refusal.get() {
            Some(refusal) => Err(Unsuitable(refusal.clone()).into()),
            None => Ok(()),
        }
    }
}

/// Publishes a node that was just opened and, if the cluster has a control plane, start this host's control service.
/// The service must be dropped last: its thread may be waiting for the node's, and notices when the node is gone.
pub fn join(
    config: &Config,
    node: Node,
    transport: &Transport,
    stop: &Stop,
) -> Result<(
    Option<Service>,
    PublishedNode,
    published::Shared,
    NodeCommands,
)> {
    let acceptor = acceptor_of(&node);
    let life = node.host().config().incarnation;
    let (node_commands, queue) = node_commands()?;
    let (node, state) = PublishedNode::new(node, queue);
    let service = config
        .is_managed()
        .then(|| {
            start(
                config,
                acceptor,
                life,
                node_commands.clone(),
                state.clone(),
                transport,
                stop.clone(),
            )
        })
        .transpose()?;
    Ok((service, node, state, node_commands))
}

/// Returns the acceptor of a node that was just opened, if it has one.
fn acceptor_of(node: &Node) -> Option<Acceptor> {
    let registers = node.acceptor_registers()?.clone();
    let holds = node.holds().map(|held| Holds {
        epoch: held.epoch,
        base: held.base,
    });
    let config = node.host().config();
    let (geometry, digest) = (config.geometry, config.digest);
    Some(RegisterState::restored(registers, geometry, digest, holds))
}

fn start(
    config: &Config,
    acceptor: Option<Acceptor>,
    life: u64,
    node_commands: NodeCommands,
    state: published::Shared,
    transport: &Transport,
    stop: Stop,
) -> Result<Service> {
    let this = config.this();
    let host = &config.host;
    let entered = durable::entered_epoch(&host.state_dir)?;
    let service = ServiceConfig {
        cluster: config.cluster.name.clone(),
        node: this.id,
        life,
        control: SocketAddr::V4(this.control_plane()),
        dir: host.state_dir.join(CONTROL_DIR),
        entered,
        first: configuration_of(config),
        settings: settings_of(config),
        timing: Timing::default(),
        transport: transport.clone(),
    };
    let acceptor = acceptor.map(|state| NodeAcceptor {
        state,
        node_commands: node_commands.clone(),
    });
    let hooks = NodeHooks {
        node_commands,
        state,
        latest: None,
        is_entered: Arc::default(),
        stop,
    };
    Service::start(service, acceptor, Box::new(hooks))
        .with_context(|| format!("control plane of node {:?}", this.name))
}

fn node_of(member: &Member) -> NodeConfig {
    let parts = [
        (member.parts.leader, Role::Leader),
        (member.parts.acceptor, Role::Acceptor),
        (member.parts.replica, Role::Replica),
        (member.parts.controller, Role::Controller),
    ];
    let roles = parts.into_iter().filter(|(has, _)| *has);
    NodeConfig {
        id: member.node,
        name: member.name.clone(),
        address: member.data,
        control_plane: None,
        roles: roles.map(|(_, role)| role).collect(),
    }
}

/// The host would enter an epoch whose history differs from its own.
#[derive(Debug, thiserror::Error)]
#[error(
    "this replica has delivered instance {delivered} of log {log}, and the epoch begins anew at {first}: stop this \
     host, move its data directory away, and start it again; it loads a checkpoint from another replica"
)]
pub struct OtherHistory {
    pub log: usize,
    pub delivered: u64,
    pub first: u64,
}

/// A process from an earlier epoch must not have delivered instances that a later epoch decides again. `next`: the next
/// instance that it delivers, for each log.
pub fn check_history(
    current: u32,
    next: &[u64],
    configuration: &Configuration,
) -> Result<(), OtherHistory> {
    let Beginning::Fresh(firsts) = &configuration.beginning else {
        return Ok(());
    };
    // When a process starts it does not know in which epoch its data was decided.
    if current == 0 || configuration.epoch <= current {
        return Ok(());
    }
    let mut logs = next.iter().zip(firsts).enumerate();
    match logs.find(|(_, (next, first))| next > first) {
        None => Ok(()),
        Some((log, (next, first))) => Err(OtherHistory {
            log,
            delivered: next - 1,
            first: *first,
        }),
    }
}

fn enter(node: &mut Node, configuration: &Configuration) -> anyhow::Result<()> {
    let logs = node.host().partitions().iter();
    let next: Vec<u64> = logs
        .filter_map(|log| log.learner())
        .map(|l| l.next())
        .collect();
    let logs = node.host().partitions().len();
    anyhow::ensure!(
        configuration.leaders.len() == logs,
        "the cluster has {} logs, this host's configuration makes {logs}; give cluster.partitions the value that it has \
         on the other hosts, and start this one again",
        configuration.leaders.len()
    );
    check_history(node.host().config().epoch, &next, configuration)?;
    let nodes: Vec<NodeConfig> = configuration.members.values().map(node_of).collect();
    node.enter_epoch(configuration.epoch, &nodes, &configuration.leaders)?;
    // A configuration that a later epoch has superseded is ignored.
    if node.host().config().epoch == configuration.epoch {
        node.reorder_leaders(&configuration.leaders);
    }
    Ok(())
}

/// The service's callbacks into this host.
struct NodeHooks {
    node_commands: NodeCommands,
    state: published::Shared,
    latest: Option<Configuration>,
    /// Cleared with every new configuration, set by the node's thread.
    is_entered: Arc<AtomicBool>,
    stop: Stop,
}

impl NodeHooks {
    fn enter_latest(&self) {
        let Some(configuration) = self.latest.clone() else {
            return;
        };
        let is_entered = self.is_entered.clone();
        self.node_commands
            .send(move |node| match enter(node, &configuration) {
                Ok(()) => is_entered.store(true, Ordering::Release),
                Err(error) => {
                    tracing::error!("epoch {} is not entered: {error}", configuration.epoch)
                }
            });
    }
}

impl Hooks for NodeHooks {
    fn entered(&mut self, configuration: &Configuration) {
        tracing::info!(
            "epoch {} (revision {}): acceptors {:?}, replicas {:?}",
            configuration.epoch,
            configuration.revision,
            configuration.acceptors(),
            configuration.replicas()
        );
        self.latest = Some(configuration.clone());
        self.is_entered = Arc::default();
        self.enter_latest();
    }

    fn refused(&mut self, refusal: &Refusal) {
        let refused = format!("the cluster does not take this host: {refusal}");
        tracing::error!("{refused}");
        // Otherwise it would continue with its old configuration, and serve with settings that the others do not allow.
        if matches!(refusal, Refusal::OtherSettings { .. }) {
            let _ = self.stop.refusal.set(refused);
            self.stop.flag.store(true, Ordering::Release);
        }
    }

    fn positions(&mut self) -> Option<ReplicaPositions> {
        if self.latest.is_some() && !self.is_entered.load(Ordering::Acquire) {
            self.enter_latest();
        }
        let progress = published::progress(&self.state);
        let epoch = self.latest.as_ref().map_or(0, |latest| latest.epoch);
        progress.positions.filter(|_| progress.epoch >= epoch)
    }

    fn stopped(&mut self) -> Vec<StoppedLog> {
        published::progress(&self.state).stopped
    }
}

/// The acceptor of a running node: read from here, but changed by the node's own thread, so that a role in user space
/// never sees a partial change, and the journal records it.
struct NodeAcceptor {
    state: Acceptor,
    node_commands: NodeCommands,
}

impl NodeAcceptor {
    /// Has the node's thread make a change, and journal it if votes are durable.
    fn change(
        &mut self,
        keep: Option<Reconfigured>,
        change: impl FnOnce(&mut Acceptor) -> Result<(), AcceptorError> + Send + 'static,
    ) -> Result<(), AcceptorError> {
        let mut state = self.state.clone();
        let (done, changed) = mpsc::channel();
        self.node_commands.send(move |node| {
            let result = change(&mut state).and_then(|()| match keep {
                Some(what) => keep_in(node, what, &state),
                None => Ok(()),
            });
            // A caller that has timed out will ask again.
            let _ = done.send(result.map(|()| state));
        });
        let changed = changed.recv_timeout(NODE_COMMAND_TIMEOUT);
        let late = |_| AcceptorError::Unreachable("its host is busy, or ends".into());
        self.state = changed.map_err(late)??;
        Ok(())
    }
}

fn keep_in(node: &mut Node, what: Reconfigured, state: &Acceptor) -> Result<(), AcceptorError> {
    let holds = state.holds().map(|holds| journal::Holds {
        epoch: holds.epoch,
        base: holds.base,
    });
    let kept = node.keep_acceptor(what, holds);
    kept.map_err(|error| AcceptorError::Unreachable(error.to_string()))
}

impl AcceptorState for NodeAcceptor {
    fn partitions(&self) -> usize {
        self.state.partitions()
    }

    fn digest(&self) -> Digest {
        self.state.digest()
    }

    fn position(&self, partition: usize) -> Position {
        self.state.position(partition)
    }

    fn epoch(&self) -> Epoch {
        self.state.epoch()
    }

    fn is_voting(&self) -> bool {
        self.state.is_voting()
    }

    fn holds(&self) -> Option<Holds> {
        self.state.holds()
    }

    fn seal(&mut self, epoch: Epoch) -> Result<(), AcceptorError> {
        self.change(Some(Reconfigured::Registers), move |a| a.seal(epoch))
    }

    fn export(
        &self,
        partition: usize,
        from: u64,
        len_bytes_max: usize,
    ) -> Result<Piece, AcceptorError> {
        self.state.export(partition, from, len_bytes_max)
    }

    fn install(&mut self, partition: usize, merged: &Merged) -> Result<(), AcceptorError> {
        // Journalled together with the others, when all are installed: until then the previous votes count.
        let merged = merged.clone();
        self.change(None, move |a| a.install(partition, &merged))
    }

    fn installed(&mut self, holds: Holds) -> Result<(), AcceptorError> {
        self.change(Some(Reconfigured::Slots), move |a| a.installed(holds))
    }

    fn start_fresh(&mut self, epoch: Epoch, first: &[u64]) -> Result<(), AcceptorError> {
        let first = first.to_vec();
        self.change(Some(Reconfigured::Slots), move |a| {
            a.start_fresh(epoch, &first)
        })
    }

    fn open(&mut self) -> Result<(), AcceptorError> {
        self.change(Some(Reconfigured::Registers), Acceptor::open)
    }
}
