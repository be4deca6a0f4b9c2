//! Subscribers: what they ask for, and handing them the messages that were executed.

use inband_resp::reply::Reply;
use inband_resp::request::Args;

use super::Replica;
use crate::connection::Connection;
use crate::limit_hits::LimitHit;
use crate::limits::{CHANNEL_LEN_BYTES_MAX, DELIVERED_AT_ONCE_BYTES_MAX, SUBSCRIPTIONS_MAX};
use crate::subscriptions::{Subscriptions, Topic};
use crate::table::CommandId;

/// Ends all subscriptions of a client.
pub(crate) fn end_subscriptions(all: &Subscriptions, slot: usize, client: &mut Connection) {
    for topic in [Topic::Channel, Topic::Pattern] {
        for name in client.subscribed_names(topic) {
            all.unsubscribe(topic, &name, slot);
            client.remove_subscription(topic, &name);
        }
    }
}

impl Replica {
    /// Answers a request if it is about subscriptions; there is no other one in progress.
    pub(super) fn change_subscriptions(
        &mut self,
        slot: usize,
        id: CommandId,
        args: Args<'_>,
    ) -> bool {
        let (topic, what) = match id {
            CommandId::Subscribe => (Topic::Channel, "subscribe"),
            CommandId::PSubscribe => (Topic::Pattern, "psubscribe"),
            CommandId::Unsubscribe => (Topic::Channel, "unsubscribe"),
            CommandId::PUnsubscribe => (Topic::Pattern, "punsubscribe"),
            _ => return false,
        };
        let Some(client) = self.front.connections.get_mut(slot) else {
            return true;
        };
        if matches!(id, CommandId::Unsubscribe | CommandId::PUnsubscribe) {
            let names: Vec<Vec<u8>> = match args.len() {
                1 => client.subscribed_names(topic),
                _ => args.from(1).map(<[u8]>::to_vec).collect(),
            };
            for name in &names {
                self.subscriptions.unsubscribe(topic, name, slot);
                client.remove_subscription(topic, name);
                client.confirm_subscription(what, Some(name));
            }
            if names.is_empty() {
                client.confirm_subscription(what, None);
            }
            return true;
        }
        if let Some(refused) = too_many(client, args) {
            self.control.limit_hits.count(LimitHit::Request);
            client.answer_local(refused);
            return true;
        }
        for name in args.from(1) {
            if !self.subscriptions.subscribe(topic, name, slot) {
                self.control.limit_hits.count(LimitHit::Request);
                client.answer_local(Reply::error("ERR this replica has too many patterns"));
                break;
            }
            client.add_subscription(topic, name);
            client.confirm_subscription(what, Some(name));
        }
        true
    }

    /// Hands the messages that were executed to their subscribers.
    pub(super) fn deliver_messages(&mut self) {
        if !self.subscriptions.is_any() {
            return;
        }
        for slot in self.subscriptions.take_slow_patterns() {
            self.close_for(slot, LimitHit::LostMessages);
        }
        let Some(messages) = self.subscriptions.take_messages() else {
            return self.close_subscribers();
        };
        let mut pushed_bytes = 0;
        for message in messages {
            for receiver in self.subscriptions.receivers(&message.channel) {
                let Some(client) = self.front.connections.get_mut(receiver.slot) else {
                    continue;
                };
                pushed_bytes += client.push_message(&message, &receiver);
                if self.dirty.last() != Some(&receiver.slot) {
                    self.dirty.push(receiver.slot);
                }
                if pushed_bytes > DELIVERED_AT_ONCE_BYTES_MAX {
                    // Else many subscribers of one message would take much memory before anything is sent.
                    pushed_bytes = 0;
                    self.write_replies();
                }
            }
        }
    }

    /// Disconnects all subscribers, so that they know that messages are missing.
    pub(super) fn close_subscribers(&mut self) {
        for slot in self.subscriptions.subscribers() {
            self.close_for(slot, LimitHit::LostMessages);
        }
    }
}

fn too_many(client: &Connection, args: Args<'_>) -> Option<Reply> {
    let names = args.len() - 1;
    if client.subscriptions() + names > SUBSCRIPTIONS_MAX {
        return Some(Reply::error(format!(
            "ERR a client has at most {SUBSCRIPTIONS_MAX} subscriptions"
        )));
    }
    let longest = args.from(1).map(<[u8]>::len).max().unwrap_or(0);
    over_channel_limit(longest)
}

/// The error for the name of a channel, or a pattern, that is too long.
pub(crate) fn over_channel_limit(len_bytes: usize) -> Option<Reply> {
    (len_bytes > CHANNEL_LEN_BYTES_MAX).then(|| {
        Reply::error(format!(
            "ERR channel of {len_bytes} bytes is over the limit of {CHANNEL_LEN_BYTES_MAX} bytes"
        ))
    })
}
