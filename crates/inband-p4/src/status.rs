//! The control socket of the process: `inband status --config FILE` and `inband member` as on every other host.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use inband_cluster::paxos::control::{
    ask_control_plane, transport_in_words, AcceptorStatus, HostReply, HostRequest, HostStatus,
    Position,
};
use inband_control::configuration::Configuration;
use inband_control::registers::AcceptorRegisters;
use inband_control::service::ListenerCounters;
use inband_paxos::config::{Config, Role};
use inband_transport::tls::Transport;

use crate::switch::Switch;

/// What the process last learned, for the thread that answers.
#[derive(Debug, Default)]
pub struct Known {
    /// The configuration in force, and how many neighbours have no known hardware address.
    inner: Mutex<(Option<Configuration>, usize)>,
}

impl Known {
    fn with<T>(&self, what: impl FnOnce(&mut (Option<Configuration>, usize)) -> T) -> T {
        what(&mut self.inner.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub fn entered(&self, configuration: &Configuration) {
        self.with(|(known, _)| *known = Some(configuration.clone()));
    }

    pub fn unresolved(&self, neighbours: usize) {
        self.with(|(_, unresolved)| *unresolved = neighbours);
    }
}

/// The process as seen by that thread.
pub struct View {
    pub config: Config,
    pub switch: Arc<Switch>,
    /// The switch's control interface.
    pub thrift: SocketAddr,
    pub known: Arc<Known>,
    pub transport: Transport,
    /// Refusal counters of the control service.
    pub listener: Arc<ListenerCounters>,
    /// Set to end the process.
    pub stop: Arc<AtomicBool>,
}

impl View {
    fn status(&self) -> HostStatus {
        let this = self.config.this();
        let (epoch, is_removed, unresolved) = self.known.with(|(configuration, unresolved)| {
            let epoch = configuration.as_ref().map_or(0, |known| known.epoch);
            let is_member = |known: &Configuration| known.members.contains_key(&this.id);
            let is_removed = configuration
                .as_ref()
                .is_some_and(|known| !is_member(known));
            (epoch, is_removed, *unresolved)
        });
        let views = (0..self.config.logs()).map(|log| self.switch.view(log));
        // Of a switch that is gone there are none; this process ends soon.
        let mut counters = self.switch.counters().unwrap_or_default();
        counters.insert("host_unresolved_peers".into(), unresolved as u64);
        let refused = self.listener.all();
        counters.extend(refused.map(|(name, value)| (name.into(), value)));
        HostStatus {
            name: this.name.clone(),
            node: this.id,
            version: env!("CARGO_PKG_VERSION").into(),
            epoch,
            durability: self.config.cluster.durability.to_string(),
            transport: transport_in_words(&self.transport),
            backends: BTreeMap::from([(Role::Acceptor, "p4".into())]),
            dataplane_why: format!("the switch at {}", self.thrift),
            stopping: self.stop.load(Ordering::Acquire),
            is_removed,
            acceptors: views.map(|view| AcceptorStatus::from(&view)).collect(),
            counters,
            ..HostStatus::default()
        }
    }

    pub fn answer(&self, request: HostRequest) -> HostReply {
        match request {
            HostRequest::Status => HostReply::Status(Box::new(self.status())),
            // It has no replica.
            HostRequest::Drain | HostRequest::Applied | HostRequest::Sync => {
                HostReply::Position(Position {
                    applied: Vec::new(),
                    outstanding: 0,
                })
            }
            HostRequest::ReloadKeys => HostReply::Keys { keys: None },
            HostRequest::Control { request } => {
                ask_control_plane(&self.config, &request, &self.transport)
            }
            HostRequest::Stop => {
                self.stop.store(true, Ordering::Release);
                HostReply::Stopping
            }
        }
    }
}
