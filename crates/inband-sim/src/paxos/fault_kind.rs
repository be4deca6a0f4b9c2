//! The kinds of faults.

use crate::listed;

listed! {
    /// Something that goes wrong on purpose. What happens to single packets is counted apart, in
    /// [`crate::Stats`].
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum FaultKind, said by name {
        /// A host does not hear another one, which hears it.
        OneWayCut = "one-way partition of a pair",
        /// Two hosts do not hear each other.
        PairCut = "partition of a pair",
        /// A host hears nobody, or nobody hears it.
        OneWayIsolation = "one-way isolation",
        /// A host hears nobody and nobody hears it.
        Isolation = "isolation",
        /// The hosts are in two parts.
        Split = "partition in two",
        /// Most packets of one type are lost.
        LossOfType = "loss of one type",
        /// Loss, duplication and delay everywhere.
        BadWeather = "bad weather",
        /// A host's packets wait and are let go later, while it runs on.
        LinksHeld = "links held",
        /// A process is stopped and goes on later; its packets wait.
        ProcessStopped = "process stopped",
        /// A host handles packets slowly.
        SlowNode = "slow node",
        /// A host's clock jumps forward.
        ClockJump = "clock jumps",
        /// A host's clock stands still while packets come.
        ClockStall = "clock stands still",
        /// Decided values cannot be handed over.
        HandOffFails = "hand-off fails",
        /// A host restarts; an acceptor has forgotten everything.
        Crash = "crash without memory",
        /// A host restarts; an acceptor has its journal.
        CrashWithJournal = "crash with journal",
        /// A journal is damaged somewhere while its host is down.
        JournalDamaged = "journal damaged",
        /// All hosts lose their power.
        PowerCut = "power cut of everything",
        /// A power cut took all that was not synced.
        UnsyncedLost = "unsynced writes lost",
        /// A power cut left a write half done.
        TornWrite = "write torn",
        /// A power cut left any sectors of what was not synced, and garbage.
        ScatteredWrites = "writes scattered",
        /// A disk is full.
        DiskFull = "disk full",
        /// A disk's operation fails.
        DiskFails = "disk fails",
        /// A true floor reaches an acceptor or a leader at any moment.
        EarlyTrim = "early trim",
        /// A learner recovers an instance that nobody waits for.
        StrayRecovery = "stray recovery",
        /// The leaders have another order.
        LeaderMove = "leader moved",
        /// Another epoch, perhaps with other members.
        Reconfiguration = "reconfiguration",
        /// A controller goes down and has forgotten whom it heard.
        ControllerCrash = "controller crash",
    }
}

impl FaultKind {
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
