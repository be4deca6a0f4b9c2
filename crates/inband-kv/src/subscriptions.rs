//! Which clients of this replica have subscribed to which channels, and the messages for them.
//!
//! A message goes through the log. Every replica executes it and hands it to its own subscribers; nothing of it is stored.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::glob;
use crate::limits::{PATTERNS_MAX, UNDELIVERED_BYTES_MAX};

/// What a client subscribes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Topic {
    Channel,
    /// All channels whose names match a pattern.
    Pattern,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    pub channel: Vec<u8>,
    pub payload: Vec<u8>,
}

/// A client that gets a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Receiver {
    pub slot: usize,
    /// The pattern because of which it gets the message.
    pub pattern: Option<Arc<[u8]>>,
}

#[derive(Debug, Clone, Default)]
pub struct Subscriptions(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    /// There are subscribers: otherwise messages are dropped at once.
    is_any: AtomicBool,
    registry: Mutex<Registry>,
}

/// The slots of the subscribers by name.
type Slots = BTreeMap<Vec<u8>, BTreeSet<usize>>;

#[derive(Debug, Default)]
struct Registry {
    channels: Slots,
    patterns: Slots,
    undelivered: Vec<Message>,
    undelivered_bytes: usize,
    /// Messages were lost: their subscribers must notice.
    has_lost: bool,
    /// The same for single subscribers, whose pattern took too long to compare.
    slow_patterns: BTreeSet<usize>,
}

/// How many messages there were, so that later ones can be withdrawn.
#[derive(Debug, Clone, Copy)]
pub struct Mark {
    messages: usize,
    bytes: usize,
    has_lost: bool,
}

impl Registry {
    fn slots(&mut self, topic: Topic) -> &mut Slots {
        match topic {
            Topic::Channel => &mut self.channels,
            Topic::Pattern => &mut self.patterns,
        }
    }

    fn matching<'r>(
        &'r self,
        channel: &'r [u8],
    ) -> impl Iterator<Item = (&'r Vec<u8>, &'r BTreeSet<usize>)> {
        let all = self.patterns.iter();
        all.filter(move |(pattern, _)| glob::matches(pattern, channel) == Some(true))
    }

    /// Returns how many subscribers have a pattern that matches. Drops patterns that take too long to compare.
    fn count_by_pattern(&mut self, channel: &[u8]) -> usize {
        let mut receivers = 0;
        let slow = &mut self.slow_patterns;
        self.patterns.retain(|pattern, slots| {
            let is_match = glob::matches(pattern, channel);
            match is_match {
                Some(true) => receivers += slots.len(),
                Some(false) => {}
                None => slow.append(slots),
            }
            is_match.is_some()
        });
        receivers
    }
}

impl Subscriptions {
    fn registry(&self) -> MutexGuard<'_, Registry> {
        let registry = self.0.registry.lock();
        registry.unwrap_or_else(PoisonError::into_inner)
    }

    pub fn is_any(&self) -> bool {
        self.0.is_any.load(Ordering::Relaxed)
    }

    /// Returns false if there are too many patterns.
    pub fn subscribe(&self, topic: Topic, name: &[u8], slot: usize) -> bool {
        let mut registry = self.registry();
        let slots = registry.slots(topic);
        let is_new = !slots.contains_key(name);
        if topic == Topic::Pattern && is_new && slots.len() >= PATTERNS_MAX {
            return false;
        }
        slots.entry(name.to_vec()).or_default().insert(slot);
        self.0.is_any.store(true, Ordering::Relaxed);
        true
    }

    pub fn unsubscribe(&self, topic: Topic, name: &[u8], slot: usize) {
        let mut registry = self.registry();
        let slots = registry.slots(topic);
        if let Some(subscribers) = slots.get_mut(name) {
            subscribers.remove(&slot);
            if subscribers.is_empty() {
                slots.remove(name);
            }
        }
        let is_any = !registry.channels.is_empty() || !registry.patterns.is_empty();
        self.0.is_any.store(is_any, Ordering::Relaxed);
    }

    /// A message was executed. Returns how many subscribers of this replica get it.
    pub fn publish(&self, channel: &[u8], payload: &[u8]) -> usize {
        if !self.is_any() {
            return 0;
        }
        let mut registry = self.registry();
        let direct = registry.channels.get(channel).map_or(0, BTreeSet::len);
        let receivers = direct + registry.count_by_pattern(channel);
        if receivers == 0 {
            return 0;
        }
        let len_bytes = size_of::<Message>() + channel.len() + payload.len();
        if registry.undelivered_bytes + len_bytes > UNDELIVERED_BYTES_MAX {
            registry.has_lost = true;
            return receivers;
        }
        registry.undelivered_bytes += len_bytes;
        registry.undelivered.push(Message {
            channel: channel.to_vec(),
            payload: payload.to_vec(),
        });
        receivers
    }

    pub fn mark(&self) -> Mark {
        let registry = self.registry();
        Mark {
            messages: registry.undelivered.len(),
            bytes: registry.undelivered_bytes,
            has_lost: registry.has_lost,
        }
    }

    /// Withdraws the messages since then, none of which has been delivered.
    pub fn withdraw(&self, mark: Mark) {
        let mut registry = self.registry();
        registry.undelivered.truncate(mark.messages);
        registry.undelivered_bytes = mark.bytes;
        registry.has_lost = mark.has_lost;
    }

    /// Messages may have been skipped.
    pub fn lose_messages(&self) {
        // Nobody misses anything otherwise: later subscribers must not be told.
        if self.is_any() {
            self.registry().has_lost = true;
        }
    }

    /// Takes the messages to deliver; `None`: some were lost.
    pub fn take_messages(&self) -> Option<Vec<Message>> {
        let mut registry = self.registry();
        registry.undelivered_bytes = 0;
        let messages = std::mem::take(&mut registry.undelivered);
        (!std::mem::take(&mut registry.has_lost)).then_some(messages)
    }

    /// Takes the subscribers whose patterns were dropped because they take too long to compare.
    pub fn take_slow_patterns(&self) -> BTreeSet<usize> {
        std::mem::take(&mut self.registry().slow_patterns)
    }

    /// Returns who gets a message, as in Redis: first those that have subscribed to the channel.
    pub fn receivers(&self, channel: &[u8]) -> Vec<Receiver> {
        let registry = self.registry();
        let direct = registry.channels.get(channel).into_iter().flatten();
        let mut receivers: Vec<Receiver> = direct
            .map(|slot| Receiver {
                slot: *slot,
                pattern: None,
            })
            .collect();
        for (pattern, slots) in registry.matching(channel) {
            let pattern: Arc<[u8]> = pattern.as_slice().into();
            receivers.extend(slots.iter().map(|slot| Receiver {
                slot: *slot,
                pattern: Some(pattern.clone()),
            }));
        }
        receivers
    }

    /// Returns the slots of all subscribers.
    pub fn subscribers(&self) -> BTreeSet<usize> {
        let registry = self.registry();
        let all = registry.channels.values().chain(registry.patterns.values());
        all.flatten().copied().collect()
    }

    /// Returns the channels that have subscribers.
    pub fn channels(&self) -> Vec<Vec<u8>> {
        self.registry().channels.keys().cloned().collect()
    }

    /// Returns the number of subscribers of a channel, without those by patterns.
    pub fn subscribers_of(&self, channel: &[u8]) -> usize {
        let registry = self.registry();
        registry.channels.get(channel).map_or(0, BTreeSet::len)
    }

    /// Returns the number of different patterns.
    pub fn patterns(&self) -> usize {
        self.registry().patterns.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn who(subscriptions: &Subscriptions, channel: &str) -> Vec<(usize, String)> {
        let receivers = subscriptions.receivers(channel.as_bytes());
        let text = |r: Receiver| {
            let pattern = r.pattern.unwrap_or_default();
            (r.slot, String::from_utf8_lossy(&pattern).into_owned())
        };
        receivers.into_iter().map(text).collect()
    }

    #[test]
    fn by_name_and_by_pattern() {
        let all = Subscriptions::default();
        assert_eq!(all.publish(b"news", b"early"), 0);
        all.subscribe(Topic::Channel, b"news", 2);
        all.subscribe(Topic::Channel, b"news", 1);
        all.subscribe(Topic::Pattern, b"n*", 1);
        all.subscribe(Topic::Pattern, b"x*", 3);
        assert_eq!(all.publish(b"news", b"1"), 3);
        assert_eq!(all.publish(b"other", b"2"), 0);
        let expected = [(1, "".into()), (2, "".into()), (1, "n*".into())];
        assert_eq!(who(&all, "news"), expected);
        let messages = all.take_messages().unwrap();
        assert_eq!(messages.len(), 1);
        assert_eq!(
            (&messages[0].channel[..], &messages[0].payload[..]),
            (&b"news"[..], &b"1"[..])
        );
        assert_eq!(all.subscribers(), [1, 2, 3].into());
        all.unsubscribe(Topic::Channel, b"news", 1);
        all.unsubscribe(Topic::Channel, b"news", 7);
        all.unsubscribe(Topic::Pattern, b"n*", 1);
        assert_eq!(who(&all, "news"), [(2, "".into())]);
        all.unsubscribe(Topic::Pattern, b"x*", 3);
        assert!(all.is_any());
        all.unsubscribe(Topic::Channel, b"news", 2);
        assert!(!all.is_any());
    }

    #[test]
    fn a_pattern_that_takes_too_long_is_dropped_with_its_subscribers() {
        let all = Subscriptions::default();
        let slow = format!("*{}b", "a".repeat(2000));
        all.subscribe(Topic::Pattern, slow.as_bytes(), 1);
        all.subscribe(Topic::Pattern, b"a*", 2);
        let channel = "a".repeat(4000);
        assert_eq!(all.publish(channel.as_bytes(), b"x"), 1);
        assert_eq!(who(&all, &channel), [(2, "a*".into())]);
        assert_eq!(all.take_slow_patterns(), [1].into());
        assert_eq!(all.take_slow_patterns(), BTreeSet::new());
        assert_eq!(all.patterns(), 1);
    }

    #[test]
    fn what_waits_is_bounded() {
        let all = Subscriptions::default();
        all.lose_messages();
        all.subscribe(Topic::Channel, b"c", 1);
        assert_eq!(all.take_messages(), Some(Vec::new()));
        all.lose_messages();
        assert_eq!(all.take_messages(), None);
        let payload = vec![0; UNDELIVERED_BYTES_MAX / 4];
        assert_eq!(all.publish(b"c", &payload), 1);
        assert_eq!(all.take_messages().unwrap().len(), 1);
        for _ in 0..5 {
            assert_eq!(all.publish(b"c", &payload), 1);
        }
        assert_eq!(all.take_messages(), None);
        assert_eq!(all.take_messages(), Some(Vec::new()));
        for n in 0..PATTERNS_MAX {
            assert!(all.subscribe(Topic::Pattern, n.to_string().as_bytes(), 1));
        }
        assert!(!all.subscribe(Topic::Pattern, b"one more", 1));
        assert!(all.subscribe(Topic::Pattern, b"0", 2));
    }
}
