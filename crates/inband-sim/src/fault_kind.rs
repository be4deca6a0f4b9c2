//! The kinds of faults, and how often each has struck.

use std::ops::AddAssign;

/// Something that goes wrong on purpose. What happens to single packets is counted apart, in
/// [`crate::Stats`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(usize)]
pub enum FaultKind {
    /// A host does not hear another one, which hears it.
    OneWayCut,
    /// Two hosts do not hear each other.
    PairCut,
    /// A host hears nobody, or nobody hears it.
    OneWayIsolation,
    /// A host hears nobody and nobody hears it.
    Isolation,
    /// The hosts are in two parts.
    Split,
    /// Most packets of one type are lost.
    LossOfType,
    /// Loss, duplication and delay everywhere.
    BadWeather,
    /// A host's packets wait and are let go later, while it runs on.
    LinksHeld,
    /// A process is stopped and goes on later; its packets wait.
    ProcessStopped,
    /// A host handles packets slowly.
    SlowNode,
    /// A host's clock jumps forward.
    ClockJump,
    /// A host's clock stands still while packets come.
    ClockStall,
    /// Decided values cannot be handed over.
    HandOffFails,
    /// A host restarts; an acceptor has forgotten everything.
    Crash,
    /// A host restarts; an acceptor has its journal.
    CrashWithJournal,
    /// A journal is damaged somewhere while its host is down.
    JournalDamaged,
    /// All hosts lose their power.
    PowerCut,
    /// A power cut took all that was not synced.
    UnsyncedLost,
    /// A power cut left a write half done.
    TornWrite,
    /// A power cut left any sectors of what was not synced, and garbage.
    ScatteredWrites,
    /// A disk is full.
    DiskFull,
    /// A disk's operation fails.
    DiskFails,
    /// A true floor reaches an acceptor or a leader at any moment.
    EarlyTrim,
    /// A learner recovers an instance that nobody waits for.
    StrayRecovery,
    /// The leaders have another order.
    LeaderMove,
    /// Another epoch, perhaps with other members.
    Reconfiguration,
    /// A controller goes down and has forgotten whom it heard.
    ControllerCrash,
}

/// How many kinds there are.
pub const FAULT_KINDS: usize = 27;

impl FaultKind {
    /// All of them, in order.
    pub const ALL: [FaultKind; FAULT_KINDS] = [
        FaultKind::OneWayCut,
        FaultKind::PairCut,
        FaultKind::OneWayIsolation,
        FaultKind::Isolation,
        FaultKind::Split,
        FaultKind::LossOfType,
        FaultKind::BadWeather,
        FaultKind::LinksHeld,
        FaultKind::ProcessStopped,
        FaultKind::SlowNode,
        FaultKind::ClockJump,
        FaultKind::ClockStall,
        FaultKind::HandOffFails,
        FaultKind::Crash,
        FaultKind::CrashWithJournal,
        FaultKind::JournalDamaged,
        FaultKind::PowerCut,
        FaultKind::UnsyncedLost,
        FaultKind::TornWrite,
        FaultKind::ScatteredWrites,
        FaultKind::DiskFull,
        FaultKind::DiskFails,
        FaultKind::EarlyTrim,
        FaultKind::StrayRecovery,
        FaultKind::LeaderMove,
        FaultKind::Reconfiguration,
        FaultKind::ControllerCrash,
    ];

    /// Name for people.
    pub fn name(self) -> &'static str {
        match self {
            FaultKind::OneWayCut => "one-way partition of a pair",
            FaultKind::PairCut => "partition of a pair",
            FaultKind::OneWayIsolation => "one-way isolation",
            FaultKind::Isolation => "isolation",
            FaultKind::Split => "partition in two",
            FaultKind::LossOfType => "loss of one type",
            FaultKind::BadWeather => "bad weather",
            FaultKind::LinksHeld => "links held",
            FaultKind::ProcessStopped => "process stopped",
            FaultKind::SlowNode => "slow node",
            FaultKind::ClockJump => "clock jumps",
            FaultKind::ClockStall => "clock stands still",
            FaultKind::HandOffFails => "hand-off fails",
            FaultKind::Crash => "crash without memory",
            FaultKind::CrashWithJournal => "crash with journal",
            FaultKind::JournalDamaged => "journal damaged",
            FaultKind::PowerCut => "power cut of everything",
            FaultKind::UnsyncedLost => "unsynced writes lost",
            FaultKind::TornWrite => "write torn",
            FaultKind::ScatteredWrites => "writes scattered",
            FaultKind::DiskFull => "disk full",
            FaultKind::DiskFails => "disk fails",
            FaultKind::EarlyTrim => "early trim",
            FaultKind::StrayRecovery => "stray recovery",
            FaultKind::LeaderMove => "leader moved",
            FaultKind::Reconfiguration => "reconfiguration",
            FaultKind::ControllerCrash => "controller crash",
        }
    }

    /// How often it strikes, compared with the others; 0: not in such a cluster, or it comes with
    /// something else.
    pub(crate) fn weight(self, sync: bool) -> u64 {
        match self {
            FaultKind::OneWayCut
            | FaultKind::PairCut
            | FaultKind::OneWayIsolation
            | FaultKind::Isolation
            | FaultKind::Split
            | FaultKind::ProcessStopped
            | FaultKind::SlowNode
            | FaultKind::ClockJump
            | FaultKind::ClockStall
            | FaultKind::HandOffFails
            | FaultKind::EarlyTrim
            | FaultKind::StrayRecovery
            | FaultKind::LeaderMove => 2,
            FaultKind::LossOfType | FaultKind::BadWeather | FaultKind::LinksHeld => 4,
            FaultKind::Crash => 6,
            FaultKind::PowerCut
            | FaultKind::DiskFull
            | FaultKind::DiskFails
            | FaultKind::JournalDamaged => u64::from(sync),
            // They come with crashes, and with changes of members.
            FaultKind::CrashWithJournal
            | FaultKind::UnsyncedLost
            | FaultKind::TornWrite
            | FaultKind::ScatteredWrites
            | FaultKind::Reconfiguration
            | FaultKind::ControllerCrash => 0,
        }
    }
}

/// How often each kind has struck.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FaultCounts([u64; FAULT_KINDS]);

impl FaultCounts {
    /// One more.
    pub(crate) fn note(&mut self, kind: FaultKind) {
        self.0[kind as usize] += 1;
    }

    /// Of one kind.
    pub fn of(&self, kind: FaultKind) -> u64 {
        self.0[kind as usize]
    }

    /// Of all kinds together.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }
}

impl AddAssign for FaultCounts {
    fn add_assign(&mut self, other: FaultCounts) {
        for (sum, count) in self.0.iter_mut().zip(other.0) {
            *sum += count;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_a_place() {
        for (at, kind) in FaultKind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, at);
        }
    }
}
