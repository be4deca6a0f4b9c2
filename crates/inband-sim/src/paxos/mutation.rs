//! Rules broken on purpose. Production code is unchanged: the simulator forges packets or mistreats hosts so that the
//! cluster behaves as if a rule were missing. The checks must notice.

/// A rule to break.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mutation {
    /// One acceptor's vote is counted twice (schedules.md, 7).
    VoteCountedTwice,
    /// A new leader does not see the votes in PHASE1B.
    VotesIgnored,
    /// A lost phase 1 question is treated as if it were answered "no vote" (schedules.md, 3).
    SilenceIsNoVote,
    /// An acceptor that lost its memory keeps voting (schedules.md, 11).
    Amnesia,
    /// A restarted host reuses its old incarnation (schedules.md, 2).
    IncarnationReused,
    /// Acceptors are told to trim more than a majority of replicas holds (schedules.md, 1).
    TrimTooFar,
    /// Replicas apply whatever is decided (protocol.md, 8).
    NoSessionTable,
    /// Replicas remember only the highest sequence (schedules.md, 13).
    HighestSequenceOnly,
    /// Replicas claim to hold durably what they forget in a crash (protocol.md, 7).
    NotDurable,
    /// An epoch's acceptors vote before a majority of the previous epoch is sealed (schedules.md, 5).
    OpenedEarly,
    /// An acceptor without memory counts as sealed (protocol.md, 4).
    RecoveringSealed,
    /// A read's index is the last instance that a leader has stamped (schedules.md, 12).
    ReadOfStamped,
    /// One acceptor's answer is enough for a read (protocol.md, 11).
    ReadOfOneAcceptor,
    /// A read joins a round of questions that is already in flight (protocol.md, 11).
    ReadJoinedLate,
    /// An acceptor without memory counts for a read (protocol.md, 11).
    ReadOfRecovering,
    /// An answer to another host counts for a read (docs/security.md).
    ReadOfAnother,
    /// The disks under journals report a sync that they have not done (schedules.md, 8).
    LyingDisk,
}

impl Mutation {
    /// All mutations, with their names on the command line.
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
