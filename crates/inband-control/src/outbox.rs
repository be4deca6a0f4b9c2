//! Messages that a sans-I/O state machine wants to send.

use std::net::SocketAddr;

use crate::configuration::NodeId;
use crate::message::Message;

/// The destination of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum To {
    /// A node's control service.
    Node(NodeId, SocketAddr),
    /// The sender of the message being handled.
    Sender,
}

/// Messages to send, in order.
#[derive(Debug, Default)]
pub struct Outbox {
    messages: Vec<(To, Message)>,
}

impl Outbox {
    pub fn new() -> Outbox {
        Outbox::default()
    }

    pub fn send(&mut self, to: To, message: Message) {
        self.messages.push((to, message));
    }

    /// Takes out all messages.
    pub fn drain(&mut self) -> impl Iterator<Item = (To, Message)> + '_ {
        self.messages.drain(..)
    }
}
