//! A record of what happened: a hash of all events, for comparing two runs, and the last events in readable form.

use std::collections::VecDeque;

use crate::queue::Time;

/// An event that a trace notes.
pub trait Happening {
    /// The words that the hash covers.
    type Words: AsRef<[u64]>;

    /// Returns the words that the hash covers.
    fn words(&self) -> Self::Words;
    /// Returns a line for people.
    fn describe(&self) -> String;
}

#[derive(Debug)]
pub struct Trace {
    /// How many of the last events are kept in readable form.
    pub keep: usize,
    ticks_per_us: u64,
    hash: u64,
    last: VecDeque<(Time, String)>,
}

/// Returns a mixing step of good quality; the same on every machine.
pub fn mix(hash: u64, word: u64) -> u64 {
    let z = (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (z ^ z >> 29)
        .wrapping_mul(0xbf58_476d_1ce4_e5b9)
        .rotate_left(27)
}

/// Returns a name as a word of the hash.
pub fn word_of(name: &str) -> u64 {
    name.bytes().fold(0, |sum, byte| mix(sum, byte.into()))
}

impl Trace {
    pub(crate) fn new(ticks_per_us: u64) -> Trace {
        Trace {
            keep: 0,
            ticks_per_us,
            hash: 0,
            last: VecDeque::new(),
        }
    }

    pub fn note(&mut self, now: Time, what: impl Happening) {
        self.note_words(now, what.words().as_ref(), || what.describe());
    }

    /// Notes an event without a type for it. `describe` is called only if the last events are kept.
    pub fn note_words(&mut self, now: Time, words: &[u64], describe: impl FnOnce() -> String) {
        let hash = mix(self.hash, now);
        self.hash = words.iter().fold(hash, |hash, word| mix(hash, *word));
        if self.keep == 0 {
            return;
        }
        if self.last.len() == self.keep {
            self.last.pop_front();
        }
        self.last.push_back((now, describe()));
    }

    /// Equal for equal runs.
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// Returns the last events, one per line.
    pub fn lines(&self) -> Vec<String> {
        let line = |(at, text): &(Time, String)| {
            let at_us = at / self.ticks_per_us;
            format!("{at_us:>10} us  {text}")
        };
        self.last.iter().map(line).collect()
    }
}
