//! Hosts, and what they send each other.

use std::fmt;

use inband_flair::dataplane::wire::{self, Header};
use inband_flair::replica::Message;

use crate::links;
use crate::system;

/// A host, numbered within its kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Host {
    Replica(u8),
    Switch(u8),
    Client(u8),
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Host::Replica(number) => write!(f, "replica/{number}"),
            Host::Switch(number) => write!(f, "switch/{number}"),
            Host::Client(number) => write!(f, "client/{number}"),
        }
    }
}

/// A message between replicas as a test's filter sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MessageKind {
    /// Raft entries or a snapshot.
    Entries,
    /// Any other Raft message.
    Raft,
    /// A replica announces itself.
    Announcement,
    /// Read leases.
    Grant,
}

impl MessageKind {
    pub(super) fn of(message: &Message) -> MessageKind {
        match message {
            Message::Raft(raft) => {
                let brings = raft.snapshot_index().is_some() || raft.commands().next().is_some();
                if brings {
                    MessageKind::Entries
                } else {
                    MessageKind::Raft
                }
            }
            Message::Announce(_) => MessageKind::Announcement,
            Message::Grant(_) => MessageKind::Grant,
        }
    }
}

#[derive(Debug, Clone)]
pub enum Packet {
    /// To or from a switch.
    Bytes(Vec<u8>),
    /// Between replicas.
    Message(Box<Message>),
}

impl Packet {
    /// Returns a packet's header; `None` for a message, and for a packet that cannot be parsed.
    pub fn header(&self) -> Option<Header> {
        match self {
            Packet::Bytes(bytes) => wire::parse(bytes).ok().map(|(header, ..)| header),
            Packet::Message(_) => None,
        }
    }
}

impl system::Packet for Packet {
    fn kind(&self) -> Option<u8> {
        self.header().map(|header| header.kind as u8)
    }

    fn len_bytes(&self) -> usize {
        match self {
            Packet::Bytes(bytes) => bytes.len(),
            Packet::Message(_) => 0,
        }
    }

    fn flip(&mut self, byte: usize, bit: u8) {
        if let Packet::Bytes(bytes) = self {
            bytes[byte] ^= 1 << bit;
        }
    }

    fn hash(&self) -> u64 {
        match self {
            Packet::Bytes(bytes) => bytes.hash(),
            Packet::Message(_) => 0,
        }
    }

    fn describe(&self) -> String {
        format!("{self:?}")
    }
}

/// A packet or message as a test's filter sees it.
pub type Passing<'a> = links::Passing<'a, Host, Packet>;

impl Passing<'_> {
    /// Returns a packet's header; `None` for a message between replicas.
    pub fn header(&self) -> Option<Header> {
        self.packet.header()
    }

    /// Returns the kind of a message between replicas; `None` for a packet.
    pub fn message(&self) -> Option<MessageKind> {
        match self.packet {
            Packet::Bytes(_) => None,
            Packet::Message(message) => Some(MessageKind::of(message)),
        }
    }
}

/// Decides the fate of every packet and message, for directed tests.
pub type Filter = links::Filter<Host, Packet>;
