//! What a node tells of itself.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::{Process, CHUNK_BYTES};
use crate::kernel::Kernel;
use crate::node::Doing;
use crate::promise::{Nanos, MS};
use crate::role::Role;
use crate::status::Status;

/// How often the status is renewed.
const STATUS_PERIOD: Duration = Duration::from_millis(50);

impl Process {
    /// Renews the status, if it is due.
    pub(super) fn tell_status(&mut self, now: Nanos) {
        if now < self.status_at {
            return;
        }
        self.status_at = now + STATUS_PERIOD.as_nanos() as Nanos;
        let node = self.node.status(&self.role);
        let mut notes = Vec::new();
        if let Some(next) = node.changes_to {
            notes.push(format!("waits to be committed: {next}"));
        }
        if node.is_new && !node.recovering {
            notes.push(
                "it is new, and waits until all nodes that begin together are there".to_owned(),
            );
        }
        if node.recovering {
            notes.push("it has lost its log and joins the next leader".to_owned());
        }
        let serves = |what: fn(&Kernel) -> bool| self.kernel.as_ref().is_some_and(what);
        if serves(Kernel::answers_gets) {
            notes.push("the packet program answers local GETs over UDP".to_owned());
        }
        if serves(Kernel::proposes_sets) {
            notes
                .push("the packet program proposes SETs over UDP while this node leads".to_owned());
        }
        if self.ports.are_links_up() {
            notes.push("direct links".to_owned());
        } else if self.ports.has_links() {
            let down = self.ports.down().map(|node| node.to_string());
            let down = down.collect::<Vec<_>>().join(", ");
            notes.push(format!(
                "the link to node {down} is down: the network is used"
            ));
        }
        let own = self.role.counters_by_name().into_iter();
        let own = own.map(|(name, n)| match self.kernel {
            Some(_) => (format!("process_{name}"), n),
            None => (name.to_owned(), n),
        });
        let kernel = self.kernel.as_ref().map(Kernel::counters);
        let others = kernel.into_iter().flatten();
        let others = others.chain(self.gateway_counters.by_name());
        let others = others.map(|(name, n)| (name.to_owned(), n));
        let mut counters: BTreeMap<String, u64> = own.chain(others).collect();
        let refused = self.packets_refused.load(Ordering::Relaxed);
        for (name, n) in [
            ("packets_refused", refused),
            ("epochs_refused", node.epochs_refused),
            ("snapshots_made", self.snapshots_made),
            ("snapshots_installed", self.snapshots_installed),
        ] {
            counters.insert(name.to_owned(), n);
        }
        let lost = counters.get("xdp_transmits_lost").copied().unwrap_or(0);
        if lost > 0 {
            notes.push(format!(
                "its interface has lost {lost} packets that XDP sent: unless it was just down, start it with --dataplane xdp-generic or udp"
            ));
        }
        let status = Status {
            name: format!("node/{}", self.spec.config.node),
            listen: self.spec.nodes[usize::from(self.spec.config.node) - 1],
            dataplane: self.spec.choice.dataplane,
            why: self.spec.choice.why.clone(),
            memcached: self.memcached.clone(),
            memcached_udp: self.memcached_udp,
            memcached_local_udp: self.memcached_local_udp,
            pid: std::process::id(),
            state: match (node.recovering, node.doing) {
                (true, _) => "recovering",
                (_, Doing::Leading) => "leading",
                (_, Doing::Following) => "following",
                (_, Doing::Waiting) => "waiting",
                (_, Doing::Electing | Doing::Establishing) => "electing",
            }
            .to_owned(),
            epoch: node.epoch,
            leader: node.leader,
            membership: node.membership,
            changes_to: node.changes_to,
            last: node.last,
            committed: node.committed,
            applied: self.machine.applied(),
            digest: self.machine.digest(),
            pulled_bytes: node.pulled_bytes,
            items: self.machine.table().len(),
            memory_bytes: self.spec.chunks * CHUNK_BYTES,
            memory_used_bytes: self.machine.table().used_chunks() * CHUNK_BYTES,
            at_ms: now / MS,
            elections: node.elections,
            notes,
            counters,
        };
        *self.status.lock().expect("nobody panics with it") = Some(status);
    }
}
