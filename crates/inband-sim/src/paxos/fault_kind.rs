//! The kinds of faults.

use crate::listed;

listed! {
    /// A fault that is injected. Faults of single packets are counted separately, in [`crate::Stats`].
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum FaultKind, said by name {
        /// One host cannot hear another, which can hear it.
        OneWayCut = "one-way partition of a pair",
        /// Two hosts cannot hear each other.
        PairCut = "partition of a pair",
        /// A host hears no other host, or no other host hears it.
        OneWayIsolation = "one-way isolation",
        /// A host neither hears another host nor is heard.
        Isolation = "isolation",
        /// The hosts are split into two parts.
        Split = "partition in two",
        /// Most packets of one type are lost.
        LossOfType = "loss of one type",
        /// Loss, duplication and delay on all links.
        BadWeather = "bad weather",
        /// A host's packets are held and released later, while it keeps running.
        LinksHeld = "links held",
        /// A process is stopped and resumes later; its packets wait.
        ProcessStopped = "process stopped",
        /// A host handles packets slowly.
        SlowNode = "slow node",
        /// A host's clock jumps forward.
        ClockJump = "clock jumps",
        /// A host's clock stops while packets still arrive.
        ClockStall = "clock stands still",
        /// Decided values cannot be handed to the application.
        HandOffFails = "hand-off fails",
        /// A host restarts; its acceptor has lost its memory.
        Crash = "crash without memory",
        /// A host restarts; its acceptor has its journal.
        CrashWithJournal = "crash with journal",
        /// A journal is damaged in one place while its host is down.
        JournalDamaged = "journal damaged",
        /// All hosts lose power.
        PowerCut = "power cut of everything",
        /// A power cut loses everything that was not synced.
        UnsyncedLost = "unsynced writes lost",
        /// A power cut leaves a write half done.
        TornWrite = "write torn",
        /// A power cut leaves an arbitrary subset of unsynced sectors, and garbage.
        ScatteredWrites = "writes scattered",
        /// A disk is full.
        DiskFull = "disk full",
        /// A disk operation fails.
        DiskFails = "disk fails",
        /// A valid floor reaches an acceptor or a leader at an arbitrary moment.
        EarlyTrim = "early trim",
        /// A learner recovers an instance that nobody waits for.
        StrayRecovery = "stray recovery",
        /// The leaders get a new order.
        LeaderMove = "leader moved",
        /// Another epoch, possibly with other members.
        Reconfiguration = "reconfiguration",
        /// A controller restarts and no longer knows whom it has heard from.
        ControllerCrash = "controller crash",
    }
}

impl FaultKind {
    /// Relative frequency; 0 if the fault cannot occur in such a cluster, or only comes with another one.
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
            // They come with crashes and with changes of members.
            FaultKind::CrashWithJournal
            | FaultKind::UnsyncedLost
            | FaultKind::TornWrite
            | FaultKind::ScatteredWrites
            | FaultKind::Reconfiguration
            | FaultKind::ControllerCrash => 0,
        }
    }
}
