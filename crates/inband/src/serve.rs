//! The control socket of a host: status, drain, sync, stop.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{mpsc, Arc};
use std::time::Duration;

use anyhow::{anyhow, Result};
use inband_cluster::paxos::control::{
    ask_control_plane, serve, transport_in_words, AcceptorStatus, HostReply, HostRequest,
    HostStatus, KeyStatus, LeaderStatus, Position, ReplicaStatus,
};
use inband_control::service::ListenerCounters;
use inband_host::line_json::Server;
use inband_host::notify::Notifier;
use inband_host::signals::StopRequest;
use inband_kv::control::ReplicaControl;
use inband_kv::limit_hits::LimitHit;
use inband_paxos::backend::Choice;
use inband_paxos::config::{Config, Dataplane, Durability, Role};
use inband_paxos::dataplane::registers::LeaderView;
use inband_transport::tls::Transport;

use crate::node_commands::NodeCommands;
use crate::published::{self, Shared};
use crate::transport;

/// Time limit for what is in flight: a submission's deadline and a little more.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);
/// Time limit for the node's thread to read the keys.
const RELOAD_TIMEOUT: Duration = Duration::from_secs(5);

/// This host as seen by other threads.
#[derive(Clone)]
pub struct HostView {
    pub config: Arc<Config>,
    /// Where the roles run, and why.
    pub choice: Choice,
    pub state: Shared,
    /// Sends commands to the node's thread.
    pub node_commands: NodeCommands,
    /// The store, if this host is a replica.
    pub replica: Option<Arc<ReplicaControl>>,
    /// The transport to other hosts.
    pub transport: Transport,
    /// Refusal counters of the control service, if there is one.
    pub control_listener: Option<Arc<ListenerCounters>>,
    /// Set to end the process.
    pub stop: Arc<AtomicBool>,
    /// What signals and the supervisor ask for.
    pub request: StopRequest,
    pub notifier: Notifier,
}

impl HostView {
    /// Returns whether this host has been told to stop, for any reason.
    pub fn is_stopping(&self) -> bool {
        self.request.stops() || self.stop.load(Ordering::Acquire)
    }

    /// Returns the complete status.
    pub fn status(&self) -> HostStatus {
        let this = self.config.this();
        let state = published::read(&self.state);
        let store = self.replica.as_ref().map(|r| r.status());
        let mut counters: std::collections::BTreeMap<String, u64> = state
            .counters
            .iter()
            .map(|(name, value)| ((*name).to_owned(), *value))
            .collect();
        counters.insert("leader_takeovers".into(), state.takeovers);
        counters.insert(
            "host_unresolved_peers".into(),
            state.unresolved.len() as u64,
        );
        if let Some(next) = state.next_delivery {
            counters.insert("learner_next_instance".into(), next);
            counters.insert("learner_known_highest".into(), state.known_highest);
        }
        let mut add_time = |name: &str, time: Option<Duration>| {
            if let Some(time) = time {
                counters.insert(
                    name.into(),
                    u64::try_from(time.as_micros()).unwrap_or(u64::MAX),
                );
            }
        };
        add_time("leader_takeover_us", state.last_takeover.activated_after);
        add_time(
            "leader_first_decision_us",
            state.last_takeover.decided_after,
        );
        for (name, value) in self
            .control_listener
            .iter()
            .flat_map(|listener| listener.all())
        {
            counters.insert(name.into(), value);
        }
        if let Some(tls) = &self.config.host.tls {
            let handshakes = self.transport.counters().all();
            counters.extend(handshakes.map(|(name, value)| (name.into(), value)));
            let left = transport::days_left(&transport::certificate_files(tls));
            let left = u64::try_from(left.unwrap_or(0)).unwrap_or(0);
            counters.insert("tls_certificate_days_left".into(), left);
        }
        if let Some(store) = &store {
            counters.insert("kv_requests".into(), store.requests_total);
            counters.insert("kv_commands_applied".into(), store.commands_applied_total);
            counters.insert("kv_values_submitted".into(), store.values_submitted_total);
            counters.insert("kv_outcomes_unknown".into(), store.outcomes_unknown_total);
            counters.insert(
                "kv_checkpoints_installed".into(),
                store.checkpoints_installed_total,
            );
            counters.insert(
                "kv_checkpoints_served".into(),
                store.checkpoints_served_total,
            );
            counters.insert("kv_clients_memory_bytes".into(), store.clients_memory_bytes);
            for hit in LimitHit::ALL {
                counters.insert(hit.counter().into(), store.hits(hit));
            }
        }
        HostStatus {
            name: this.name.clone(),
            node: this.id,
            version: env!("CARGO_PKG_VERSION").into(),
            epoch: state.epoch,
            durability: self.config.cluster.durability.to_string(),
            transport: transport_in_words(&self.transport),
            backends: this
                .roles
                .iter()
                .map(|role| (*role, self.backend_of(*role)))
                .collect(),
            dataplane_why: self.choice.why.clone(),
            stopping: self.is_stopping(),
            is_removed: state.epoch != 0 && !state.is_member,
            leaders: state.leaders.iter().map(leader_status).collect(),
            acceptors: state
                .acceptors
                .iter()
                .map(|view| AcceptorStatus {
                    voting: view.voting && state.acceptor_disk_failure.is_none(),
                    ..AcceptorStatus::from(view)
                })
                .collect(),
            acceptor_disk_failure: state.acceptor_disk_failure,
            key_drops: state.key_drops,
            replica: store.map(|store| ReplicaStatus {
                applied: store.applied_instances,
                outstanding: state.outstanding as u64,
                draining: store.is_draining,
                keys: store.keys,
                clients: store.connected_clients,
                clock_skew_ms: store.clock_skew_ms,
                refuses: store.clock_refusal.or(store.write_refusal),
                catching_up: store.is_loading || store.is_catching_up,
            }),
            keys: state
                .keys
                .map(|(active, accepted)| KeyStatus { active, accepted }),
            counters,
            memory_bytes: state.memory_bytes,
        }
    }

    /// With `sync`, acceptors are in user space whatever the other roles use; controllers always are.
    fn backend_of(&self, role: Role) -> String {
        let journal = self.config.cluster.durability == Durability::Sync;
        let dataplane = match role {
            Role::Acceptor if journal => Dataplane::Udp,
            Role::Controller => Dataplane::Udp,
            _ => self.choice.dataplane,
        };
        dataplane.to_string()
    }

    fn position(&self) -> Position {
        let state = published::read(&self.state);
        let store = self.replica.as_ref().map(|r| r.status());
        Position {
            outstanding: store.as_ref().map_or(0, |s| s.values_in_flight)
                + state.outstanding as u64,
            applied: store.map_or_else(Vec::new, |s| s.applied_instances),
        }
    }

    /// The node's thread reads the key file between two packets. Returns the keys now in use, if there is a key file.
    pub fn reload_keys(&self) -> Result<Option<KeyStatus>> {
        let (done, reloaded) = mpsc::channel();
        self.node_commands.send(move |node| {
            let keys = node.reload_keys().map(|keys| keys.map(KeyStatus::of));
            // A caller that has timed out will ask again.
            let _ = done.send(keys.map_err(|error| error.to_string()));
        });
        let reloaded = reloaded.recv_timeout(RELOAD_TIMEOUT);
        reloaded
            .map_err(|_| anyhow!("the host is busy, or ends; ask again"))?
            .map_err(anyhow::Error::msg)
    }

    fn answer(&self, request: HostRequest) -> HostReply {
        match request {
            HostRequest::Status => HostReply::Status(Box::new(self.status())),
            HostRequest::Applied => HostReply::Position(self.position()),
            HostRequest::Drain => {
                if let Some(replica) = &self.replica {
                    if !replica.drain_and_wait(DRAIN_TIMEOUT) {
                        let message = format!(
                            "commands are still undecided after {} s; is there a majority of acceptors?",
                            DRAIN_TIMEOUT.as_secs()
                        );
                        return HostReply::Error { message };
                    }
                }
                HostReply::Position(self.position())
            }
            HostRequest::Sync => match self.replica.as_ref().map(|r| r.sync()) {
                Some(Err(error)) => HostReply::Error {
                    message: error.to_string(),
                },
                Some(Ok(())) | None => HostReply::Position(self.position()),
            },
            HostRequest::ReloadKeys => match self.reload_keys() {
                Ok(keys) => HostReply::Keys { keys },
                Err(error) => HostReply::Error {
                    message: error.to_string(),
                },
            },
            HostRequest::Control { request } => {
                ask_control_plane(&self.config, &request, &self.transport)
            }
            HostRequest::Stop => {
                // A replica drains first.
                self.stop.store(true, Ordering::Release);
                HostReply::Stopping
            }
        }
    }
}

fn leader_status(view: &LeaderView) -> LeaderStatus {
    LeaderStatus {
        active: view.round != 0,
        round: view.round,
        next_instance: view.next,
        floor: view.floor,
    }
}

/// Answers requests at the configured socket until the server is dropped.
pub fn start(view: HostView) -> Result<Server> {
    let config = Arc::clone(&view.config);
    serve(&config, move |request| view.answer(request))
}
