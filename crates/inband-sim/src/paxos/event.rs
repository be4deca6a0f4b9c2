//! What happens in the world of Paxos.

use inband_control::message::Message;
use inband_control::state::Command;

/// Something that will happen.
#[derive(Debug)]
pub enum Event {
    /// A packet reaches a host.
    Packet {
        /// Who sent it.
        from: u8,
        /// Whom it reaches.
        to: u8,
        /// The UDP payload.
        bytes: Vec<u8>,
        /// How many packets were sent before it.
        sent: u64,
        /// A bit was flipped on the way.
        damaged: bool,
    },
    /// A host that is slow comes to a packet.
    Handle {
        /// Who sent it.
        from: u8,
        /// Who handles it.
        to: u8,
        /// The UDP payload.
        bytes: Vec<u8>,
        /// A bit was flipped on the way.
        damaged: bool,
    },
    /// A host's timers are due.
    Tick(u8),
    /// A client of this replica submits a command.
    Submit(u8),
    /// A replica of this incarnation makes durable what it has applied.
    Flush(u8, u64),
    /// An acceptor of this incarnation syncs its journal.
    Sync(u8, u64),
    /// A replica of this incarnation has copied a peer's state of this partition.
    CheckpointCopied(u8, u64, usize),
    /// The coordinator seals an acceptor for this epoch.
    Seal(u8, u32),
    /// The coordinator gives an acceptor the state it begins this epoch with.
    Install(u8, u32),
    /// A host is told of this epoch.
    EnterEpoch(u8, u32),
    /// A host is told of another order of the leaders of its epoch.
    ReorderLeaders(u8),
    /// A control message arrives: from, to.
    Control(u8, u8, Box<Message>),
    /// A host's part in the control plane has something to do.
    MemberTick(u8),
    /// A controller has something to do.
    ControllerTick(usize),
    /// A command reaches the controllers' log.
    Append(Box<Command>),
    /// Somebody wants other members.
    Reconfigure,
    /// The attacker sends a packet.
    Attack,
    /// The next fault strikes.
    Fault,
    /// The fault of this number ends.
    FaultEnds(u64),
}
