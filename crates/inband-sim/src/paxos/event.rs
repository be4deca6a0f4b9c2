//! The events of the Paxos world.

use inband_control::message::Message;
use inband_control::state::Command;
use inband_paxos::timing::Micros;

use crate::system;

/// A packet in flight.
#[derive(Debug, Clone)]
pub struct Packet {
    /// The UDP payload.
    pub bytes: Vec<u8>,
    /// How many packets were sent before it.
    pub sent: u64,
    /// A bit was flipped in flight.
    pub damaged: bool,
}

impl Packet {
    /// Returns an undamaged packet.
    pub fn whole(bytes: Vec<u8>, sent: u64) -> Packet {
        Packet {
            bytes,
            sent,
            damaged: false,
        }
    }
}

impl system::Packet for Packet {
    fn kind(&self) -> Option<u8> {
        self.bytes.kind()
    }

    fn len_bytes(&self) -> usize {
        self.bytes.len()
    }

    fn flip(&mut self, byte: usize, bit: u8) {
        self.bytes.flip(byte, bit);
        self.damaged = true;
    }

    fn hash(&self) -> u64 {
        self.bytes.hash()
    }

    fn describe(&self) -> String {
        self.bytes.describe()
    }
}

#[derive(Debug)]
pub enum Event {
    /// A slow host handles a packet that was queued.
    Handle {
        from: u8,
        to: u8,
        /// The UDP payload.
        bytes: Vec<u8>,
        /// A bit was flipped in flight.
        damaged: bool,
    },
    /// A host's timers are due at this time.
    Tick(u8, Micros),
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
    /// The coordinator gives an acceptor its initial state for this epoch.
    Install(u8, u32),
    /// A host is told of this epoch.
    EnterEpoch(u8, u32),
    /// A host is told of a new order of its epoch's leaders.
    ReorderLeaders(u8),
    /// A control message arrives: from, to.
    Control(u8, u8, Box<Message>),
    /// A member has something to do in the control plane.
    MemberTick(u8),
    /// A controller has something to do.
    ControllerTick(usize),
    /// A command reaches the controllers' log.
    Append(Box<Command>),
    Reconfigure,
    /// The attacker sends a packet.
    Attack,
}
