//! Keyspace events: messages about what commands do to keys, as Redis publishes them.
//!
//! Which events there are is replicated state: clients are connected to any replica, and must get the same events at
//! each. The events follow from executing the log, so all replicas have the same ones, and those of a partition in the
//! same order.

use std::fmt;

use inband_resp::reply::Reply;
use inband_resp::request::Args;

use crate::command::Command;
use crate::types::Kind;

/// The setting, as Redis names it.
pub const SETTING: &str = "notify-keyspace-events";

/// A class of events. Stored as its bit in [`EventClasses`]: never renumber.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventClass {
    Generic = 2,
    String = 3,
    List = 4,
    Set = 5,
    Hash = 6,
    SortedSet = 7,
    Expired = 8,
    Evicted = 9,
    Stream = 10,
    Module = 11,
    New = 12,
}

impl EventClass {
    /// The events of commands for values of this kind.
    pub fn of_kind(kind: Kind) -> Self {
        match kind {
            Kind::String => EventClass::String,
            Kind::Hash => EventClass::Hash,
            Kind::Set => EventClass::Set,
            Kind::List => EventClass::List,
            Kind::SortedSet => EventClass::SortedSet,
        }
    }
}

/// Publish to `__keyspace@0__:KEY`.
const BY_KEY: u16 = 1 << 0;
/// Publish to `__keyevent@0__:EVENT`.
const BY_EVENT: u16 = 1 << 1;

const fn bit(class: EventClass) -> u16 {
    1 << class as u16
}

/// The letters in the order in which Redis writes them, between `A` and `K`.
const LETTERS: [(char, u16); 11] = [
    ('g', bit(EventClass::Generic)),
    ('$', bit(EventClass::String)),
    ('l', bit(EventClass::List)),
    ('s', bit(EventClass::Set)),
    ('h', bit(EventClass::Hash)),
    ('z', bit(EventClass::SortedSet)),
    ('x', bit(EventClass::Expired)),
    ('e', bit(EventClass::Evicted)),
    ('t', bit(EventClass::Stream)),
    ('d', bit(EventClass::Module)),
    ('n', bit(EventClass::New)),
];

/// What `A` stands for: all of the letters except `n`.
const ALL: u16 = {
    let (mut all, mut at) = (0, 0);
    while at < LETTERS.len() - 1 {
        all |= LETTERS[at].1;
        at += 1;
    }
    all
};

/// Which events are published, and to which channels.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EventClasses(u16);

impl EventClasses {
    /// Reads the letters; the error is the reply.
    fn of_letters(letters: &[u8]) -> Result<Self, Reply> {
        let mut bits = 0;
        for letter in letters {
            let known = LETTERS.iter().find(|(known, _)| *known as u8 == *letter);
            bits |= match (letter, known) {
                (_, Some((_, bit))) => *bit,
                (b'A', _) => ALL,
                (b'K', _) => BY_KEY,
                (b'E', _) => BY_EVENT,
                (b'm', _) => {
                    return Err(failed(
                        "'m' is not supported: reads are not in the log, so the other replicas do not know of them",
                    ))
                }
                _ => {
                    return Err(failed(
                        "Invalid event class character. Use 'Ag$lshzxeKEtmdn'.",
                    ))
                }
            };
        }
        Ok(Self(bits))
    }

    pub fn of_bits(bits: u64) -> Option<Self> {
        let bits = u16::try_from(bits).ok()?;
        let known = ALL | bit(EventClass::New) | BY_KEY | BY_EVENT;
        (bits & !known == 0).then_some(Self(bits))
    }

    pub fn bits(self) -> u64 {
        self.0.into()
    }

    pub fn is_any(self) -> bool {
        self.0 & (BY_KEY | BY_EVENT) != 0
    }

    /// The messages about an event: channel and payload.
    pub fn messages<'m>(
        self,
        class: EventClass,
        event: &'m str,
        key: &'m [u8],
    ) -> impl Iterator<Item = (Vec<u8>, &'m [u8])> {
        let is_published = self.0 & bit(class) != 0;
        let is_to = move |channel: u16| is_published && self.0 & channel != 0;
        let by_key = is_to(BY_KEY).then(|| {
            let channel = [b"__keyspace@0__:", key].concat();
            (channel, event.as_bytes())
        });
        let by_event = is_to(BY_EVENT).then(|| {
            let channel = format!("__keyevent@0__:{event}");
            (channel.into_bytes(), key)
        });
        by_key.into_iter().chain(by_event)
    }
}

impl fmt::Display for EventClasses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let has = |bits: u16| self.0 & bits == bits;
        if has(ALL) {
            f.write_str("A")?;
        }
        for (letter, bit) in LETTERS {
            if has(bit) && !(has(ALL) && ALL & bit != 0) {
                write!(f, "{letter}")?;
            }
        }
        for (letter, bit) in [("K", BY_KEY), ("E", BY_EVENT)] {
            if has(bit) {
                f.write_str(letter)?;
            }
        }
        Ok(())
    }
}

fn failed(why: &str) -> Reply {
    Reply::error(format!(
        "ERR CONFIG SET failed (possibly related to argument '{SETTING}') - {why}"
    ))
}

/// `CONFIG SET` of the setting; `None` if it is something else, which the replica answers.
pub fn parse_config(args: Args<'_>) -> Result<Option<Command<'_>>, Reply> {
    let is = |at: usize, word: &str| args.get(at).eq_ignore_ascii_case(word.as_bytes());
    if args.len() != 4 || !is(1, "SET") || !is(2, SETTING) {
        return Ok(None);
    }
    let classes = EventClasses::of_letters(args.get(3))?;
    Ok(Some(Command::SetEvents(classes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters() {
        let written = |letters: &str| {
            let classes = EventClasses::of_letters(letters.as_bytes()).unwrap();
            assert_eq!(EventClasses::of_bits(classes.bits()), Some(classes));
            classes.to_string()
        };
        for (letters, as_written) in [
            ("", ""),
            ("KEA", "AKE"),
            ("Ex", "xE"),
            ("EKnA", "AnKE"),
            ("g$lshzxetd", "A"),
            ("nz$", "$zn"),
        ] {
            assert_eq!(written(letters), as_written);
        }
        for wrong in ["KEAm", "KEAq", "K E"] {
            assert!(EventClasses::of_letters(wrong.as_bytes()).is_err());
        }
        assert_eq!(EventClasses::of_bits(1 << 13), None);
        assert_eq!(EventClasses::of_bits(1 << 16), None);
    }

    #[test]
    fn nothing_is_published_without_a_channel() {
        let messages = |letters: &str, class| {
            let classes = EventClasses::of_letters(letters.as_bytes()).unwrap();
            classes.messages(class, "set", b"k").count()
        };
        assert_eq!(messages("$", EventClass::String), 0);
        assert_eq!(messages("K$", EventClass::String), 1);
        assert_eq!(messages("KEA", EventClass::String), 2);
        assert_eq!(messages("KEA", EventClass::New), 0);
        assert_eq!(messages("KEg", EventClass::String), 0);
    }
}
