//! Rules broken on purpose. Nothing here touches production code: the simulator forges packets or
//! mistreats hosts so that the cluster behaves as if a rule were missing. The checks must notice.

/// A rule to break.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mutation {
    /// One acceptor's vote is counted for two (schedules.md, 7).
    VoteCountedTwice,
    /// A new leader does not see the votes in PHASE1B.
    VotesIgnored,
    /// A lost question of phase 1 is taken for the answer "no vote" (schedules.md, 3).
    SilenceIsNoVote,
    /// An acceptor that lost its memory votes on (schedules.md, 11).
    Amnesia,
    /// A restarted host uses its old incarnation again (schedules.md, 2).
    IncarnationReused,
    /// Acceptors are told to trim more than a majority of replicas holds (schedules.md, 1).
    TrimTooFar,
    /// Replicas apply whatever is decided (protocol.md, 8).
    NoSessionTable,
    /// Replicas remember the highest sequence only (schedules.md, 13).
    HighestSequenceOnly,
    /// Replicas tell that they hold durably what a crash makes them forget (protocol.md, 7).
    NotDurable,
    /// An epoch's acceptors vote before a majority of the epoch before is sealed (schedules.md, 5).
    OpenedEarly,
    /// An acceptor without memory counts among the sealed ones (protocol.md, 4).
    RecoveringSealed,
    /// A read's index is what a leader has stamped (schedules.md, 12).
    ReadOfStamped,
    /// One acceptor's answer is enough for a read (protocol.md, 11).
    ReadOfOneAcceptor,
    /// A read joins the round of questions that is under way (protocol.md, 11).
    ReadJoinedLate,
    /// An acceptor without memory counts for a read (protocol.md, 11).
    ReadOfRecovering,
    /// What another host was told counts for a read (docs/security.md).
    ReadOfAnother,
    /// The disks under journals say "synced" and are not (schedules.md, 8).
    LyingDisk,
}

impl Mutation {
    /// All of them, with the names the command line uses.
    pub const ALL: [(Mutation, &'static str); 17] = [
        (Mutation::VoteCountedTwice, "vote-counted-twice"),
        (Mutation::VotesIgnored, "votes-ignored"),
        (Mutation::SilenceIsNoVote, "silence-is-no-vote"),
        (Mutation::Amnesia, "amnesia"),
        (Mutation::IncarnationReused, "incarnation-reused"),
        (Mutation::TrimTooFar, "trim-too-far"),
        (Mutation::NoSessionTable, "no-session-table"),
        (Mutation::HighestSequenceOnly, "highest-sequence-only"),
        (Mutation::NotDurable, "not-durable"),
        (Mutation::OpenedEarly, "opened-early"),
        (Mutation::RecoveringSealed, "recovering-sealed"),
        (Mutation::ReadOfStamped, "read-of-stamped"),
        (Mutation::ReadOfOneAcceptor, "read-of-one-acceptor"),
        (Mutation::ReadJoinedLate, "read-joined-late"),
        (Mutation::ReadOfRecovering, "read-of-recovering"),
        (Mutation::ReadOfAnother, "read-of-another"),
        (Mutation::LyingDisk, "lying-disk"),
    ];
}
