//! The faults that a nemesis knows.

use clap::ValueEnum;

/// What the nemesis does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum FaultKind {
    /// Hosts are killed and started again; an acceptor's memory is lost.
    Kill,
    /// Processes stand still; their roles in the kernel do not.
    Freeze,
    /// The packets of a host are held and released later.
    Pause,
    /// Hosts do not hear each other, in one direction or both.
    Partition,
    /// Packets are lost.
    Loss,
    /// Packets are late, and overtake each other.
    Delay,
    /// Packets arrive twice.
    Duplicate,
    /// Hosts are added, removed and replaced.
    Member,
    /// A host loses its disk, and another takes its place.
    Wipe,
    /// Another host is made the leader.
    Leader,
    /// Everything is killed at once, and started again; only with --durability sync.
    Power,
}

impl FaultKind {
    /// As it is asked for and reported.
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

    /// Or of hosts.
    pub fn is_of_links(self) -> bool {
        matches!(
            self,
            Self::Pause | Self::Partition | Self::Loss | Self::Delay | Self::Duplicate
        )
    }
}
