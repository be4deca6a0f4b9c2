//! The faults that a nemesis can inject.

use clap::ValueEnum;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum FaultKind {
    /// Hosts are killed and restarted; an acceptor's memory is lost.
    Kill,
    /// Processes are stopped (SIGSTOP); their roles in the kernel keep running.
    Freeze,
    /// A host's packets are held back and released later.
    Pause,
    /// Hosts cannot reach each other, in one direction or both.
    Partition,
    /// Packets are lost.
    Loss,
    /// Packets are delayed and reordered.
    Delay,
    /// Packets are duplicated.
    Duplicate,
    /// Hosts are added, removed and replaced.
    Member,
    /// A host loses its disk and is replaced.
    Wipe,
    /// Leadership moves to another host.
    Leader,
    /// Every host is killed at once, then restarted; only with --durability sync.
    Power,
}

impl FaultKind {
    /// Returns the name in `--faults` and in the report.
    pub fn name(self) -> &'static str {
        match self {
            Self::Kill => "kill",
            Self::Freeze => "freeze",
            Self::Pause => "pause",
            Self::Partition => "partition",
            Self::Loss => "loss",
            Self::Delay => "delay",
            Self::Duplicate => "duplicate",
            Self::Member => "member",
            Self::Wipe => "wipe",
            Self::Leader => "leader",
            Self::Power => "power",
        }
    }

    /// Returns whether it is a fault of links, rather than of hosts.
    pub fn is_of_links(self) -> bool {
        matches!(
            self,
            Self::Pause | Self::Partition | Self::Loss | Self::Delay | Self::Duplicate
        )
    }
}
