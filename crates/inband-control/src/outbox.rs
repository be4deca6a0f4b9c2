//! What a state machine wants sent: it owns no socket.

use std::net::SocketAddr;

use crate::configuration::NodeId;
use crate::message::Message;

/// Where a message goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum To {
    /// A node's control service.
    Node(NodeId, SocketAddr),
    /// Whoever sent the message that is being handled.
    Sender,
}

/// Messages to send, in order.
#[derive(Debug, Default)]
pub struct Outbox {
    messages: Vec<(To, Message)>,
}

impl Outbox {
    /// An empty outbox.
    pub fn new() -> Outbox {
        Outbox::default()
    }

    /// Send a message.
    pub fn send(&mut self, to: To, message: Message) {
        self.messages.push((to, message));
    }

    /// Take all messages out.
    pub fn drain(&mut self) -> impl Iterator<Item = (To, Message)> + '_ {
        self.messages.drain(..)
    }
}
