//! What a node reports of itself.

use std::sync::Arc;

use crate::dataplane::registers::{AcceptorView, LeaderView};
use crate::dataplane::soft::Registers;
use crate::dataplane::xdp::XdpHost;

use super::Node;
use crate::config::Dataplane;
use crate::host::Host;
use crate::journal::AcceptorDisk;

impl Node {
    /// Returns the protocol state.
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// Returns the host's registers, in the kernel or in the soft switch.
    pub fn registers(&self) -> Option<&Arc<Registers>> {
        match (&self.kernel, self.host.switch()) {
            (Some(kernel), _) => Some(kernel.registers()),
            (None, switch) => switch.map(|s| s.registers()),
        }
    }

    /// Returns the acceptor's registers of a partition, if this host has the role.
    pub fn acceptor_view(&self, partition: usize) -> Option<AcceptorView> {
        let registers = self.acceptor_registers();
        registers.map(|r| r.acceptor.acceptor(partition))
    }

    /// Returns why the acceptor's disk accepts no votes, if it does not. Until it does, the acceptor drops packets,
    /// whatever its registers say.
    pub fn acceptor_disk_failure(&self) -> Option<&str> {
        self.disk.as_ref()?.failure()
    }

    /// Returns the registers that hold the acceptor's state, if this host has the role.
    pub fn acceptor_registers(&self) -> Option<&Arc<Registers>> {
        let config = self.host.config();
        if config.soft_roles.acceptor {
            self.host.switch().map(|switch| switch.registers())
        } else {
            self.registers().filter(|_| config.kernel_roles.acceptor)
        }
    }

    /// Returns the leader's registers of a partition, if this host has the role.
    pub fn leader_view(&self, partition: usize) -> Option<LeaderView> {
        let config = self.host.config();
        let has = config.soft_roles.leader || config.kernel_roles.leader;
        self.registers()
            .filter(|_| has)
            .map(|r| r.leader.leader(partition))
    }

    pub fn counters(&self) -> std::collections::BTreeMap<&'static str, u64> {
        let kernel = self.kernel.as_ref();
        let mut counters = kernel.map_or_else(Default::default, |kernel| {
            kernel.counters().unwrap_or_default()
        });
        let switch = self.host.switch().map(|s| s.counters());
        for (name, count) in switch.into_iter().flatten().chain(self.gate.counters()) {
            *counters.entry(name).or_default() += count;
        }
        let mut add = |name, value: u64| {
            if value != 0 {
                *counters.entry(name).or_default() += value;
            }
        };
        if let Some((journal, _)) = self.host.journal() {
            add("acceptor_disk_refuses", journal.refused());
        }
        add(
            "journal_failures",
            self.disk.as_ref().map_or(0, AcceptorDisk::failures),
        );
        add("host_bad_packets", self.host.bad_packets());
        add("host_missed_by_kernel", self.host.missed_by_kernel());
        add(
            "host_send_failures",
            self.send_failures + self.socket.lost(),
        );
        add("host_cut_packets", self.socket.dropped());
        for partition in self.host.partitions() {
            let (sent, repeated) = partition.proposer().requests();
            add("proposer_requests", sent);
            add("proposer_requests_repeated", repeated);
            let reads = partition.reader().stats();
            add("reads", reads.reads);
            add("read_rounds", reads.rounds);
            if let Some(learner) = partition.learner() {
                let stats = learner.stats();
                add("learner_digest_mismatch", stats.digest_mismatch);
                add("learner_learn_asked", stats.learn_asked);
                add("learner_recoveries", stats.recoveries);
                add("learner_from_peers", stats.from_peers);
                add("learner_noops", stats.noops);
            }
        }
        counters
    }

    /// Memory in bytes of registers, rings and the log kept for peers.
    pub fn memory_bytes(&self) -> u64 {
        let kernel = self.kernel.as_ref().map_or(0, XdpHost::memory_bytes);
        let switch = self.host.switch();
        let registers = kernel + switch.map_or(0, |s| s.registers().memory_bytes());
        let learners = self.host.partitions().iter().filter_map(|p| p.learner());
        let logs: usize = learners.map(|l| l.log().memory_bytes()).sum();
        (registers + logs) as u64
    }

    /// Returns where the roles run.
    pub fn dataplane(&self) -> Dataplane {
        self.dataplane
    }

    /// Nodes whose link-layer address the kernel does not know yet; packets to them are lost.
    pub fn unresolved(&self) -> &[u8] {
        &self.unresolved
    }
}
