//! What a client has subscribed to.

use std::collections::BTreeSet;

use inband_resp::reply::{push_header, write_bulk, Protocol, Reply};
use inband_resp::request::Args;

use super::Connection;
use crate::subscriptions::{Message, Receiver, Topic};
use crate::table::{self, CommandId};

/// Approximate memory of a subscription besides its name.
const SUBSCRIPTION_BYTES: usize = 256;

#[derive(Debug, Default)]
pub(super) struct Subscribed {
    channels: BTreeSet<Vec<u8>>,
    patterns: BTreeSet<Vec<u8>>,
    /// Length of all names.
    name_bytes: usize,
}

impl Subscribed {
    fn names(&mut self, topic: Topic) -> &mut BTreeSet<Vec<u8>> {
        match topic {
            Topic::Channel => &mut self.channels,
            Topic::Pattern => &mut self.patterns,
        }
    }

    fn len(&self) -> usize {
        self.channels.len() + self.patterns.len()
    }

    /// Approximate memory, here and in the list of subscribers.
    pub(super) fn memory_bytes(&self) -> usize {
        2 * self.name_bytes + self.len() * SUBSCRIPTION_BYTES
    }
}

/// Longest subcommand that is repeated in an error.
const SUBCOMMAND_LEN_MAX: usize = 128;

fn has_subcommands(id: CommandId) -> bool {
    let ids = [
        CommandId::Client,
        CommandId::Command,
        CommandId::Config,
        CommandId::PubSub,
        CommandId::Script,
    ];
    ids.contains(&id)
}

impl Connection {
    /// Returns the number of channels and patterns.
    pub fn subscriptions(&self) -> usize {
        self.subscribed.len()
    }

    pub fn add_subscription(&mut self, topic: Topic, name: &[u8]) {
        if self.subscribed.names(topic).insert(name.to_vec()) {
            self.subscribed.name_bytes += name.len();
        }
    }

    pub fn remove_subscription(&mut self, topic: Topic, name: &[u8]) {
        if self.subscribed.names(topic).remove(name) {
            self.subscribed.name_bytes -= name.len();
        }
    }

    /// Returns the names of its channels or patterns.
    pub fn subscribed_names(&mut self, topic: Topic) -> Vec<Vec<u8>> {
        self.subscribed.names(topic).iter().cloned().collect()
    }

    /// Confirms a subscription or its end; there is no request in progress. `name` is missing if there was nothing to end.
    pub fn confirm_subscription(&mut self, what: &str, name: Option<&[u8]>) {
        let (count, protocol) = (self.subscriptions() as i64, self.protocol);
        push_header(&mut self.output, 3, protocol);
        write_bulk(&mut self.output, what.as_bytes());
        match name {
            Some(name) => write_bulk(&mut self.output, name),
            None => Reply::Nil.write_resp(&mut self.output, protocol),
        }
        Reply::Integer(count).write_resp(&mut self.output, protocol);
        self.output.grown();
    }

    /// Pushes a message. Between two replies, because the output always ends with a whole one. Returns its length.
    pub fn push_message(&mut self, message: &Message, receiver: &Receiver) -> usize {
        let before = self.output.len();
        match &receiver.pattern {
            None => {
                push_header(&mut self.output, 3, self.protocol);
                write_bulk(&mut self.output, b"message");
            }
            Some(pattern) => {
                push_header(&mut self.output, 4, self.protocol);
                write_bulk(&mut self.output, b"pmessage");
                write_bulk(&mut self.output, pattern);
            }
        }
        write_bulk(&mut self.output, &message.channel);
        write_bulk(&mut self.output, &message.payload);
        self.output.grown();
        self.output.len() - before
    }

    /// The error for a request that a subscriber may not send: in RESP2 a reply could be taken for a message.
    pub(super) fn refusal_of_subscriber(&self, args: Args<'_>) -> Option<Reply> {
        if self.subscriptions() == 0 || self.protocol != Protocol::Resp2 {
            return None;
        }
        let spec = table::find(args.get(0)).filter(|spec| spec.takes(args.len()))?;
        let is_other = matches!(
            spec.id,
            CommandId::Ping | CommandId::Quit | CommandId::Reset
        );
        (!spec.id.is_subscription() && !is_other).then(|| {
            let mut name = spec.name.to_lowercase();
            if has_subcommands(spec.id) && args.get(1).len() <= SUBCOMMAND_LEN_MAX {
                name += "|";
                name += &String::from_utf8_lossy(args.get(1)).to_lowercase();
            }
            Reply::error(format!(
                "ERR Can't execute '{name}': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are \
                 allowed in this context"
            ))
        })
    }
}
