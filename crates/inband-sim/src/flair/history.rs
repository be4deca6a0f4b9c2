//! What clients did and saw, by key.

use std::collections::BTreeMap;

use inband_flair::client::Outcome;
use inband_flair::timing::Nanos;

pub use crate::linearizable::Act;
use crate::linearizable::{check, Event};

#[derive(Debug, Clone, Copy)]
struct Done {
    key: u8,
    act: Act,
    from: Nanos,
    /// `None`: still in flight, or the outcome is unknown.
    until: Option<Nanos>,
    saw: Option<u64>,
    /// It certainly had no effect.
    failed: bool,
}

#[derive(Debug, Default)]
pub struct History {
    all: Vec<Done>,
    /// How often requests ended in each way.
    pub ends: BTreeMap<&'static str, u64>,
}

/// Returns a value as stored.
pub(super) fn written(value: u64) -> Vec<u8> {
    value.to_be_bytes().to_vec()
}

impl History {
    /// A request begins. Returns its number.
    pub fn begins(&mut self, now: Nanos, key: u8, act: Act) -> usize {
        self.all.push(Done {
            key,
            act,
            from: now,
            until: None,
            saw: None,
            failed: false,
        });
        self.all.len() - 1
    }

    pub fn ends(&mut self, now: Nanos, number: usize, outcome: &Outcome) {
        let done = &mut self.all[number];
        let name = match outcome {
            Outcome::Value(value) => {
                let value = value.as_deref().map(|v| v.try_into().expect("8 bytes"));
                done.saw = value.map(u64::from_be_bytes);
                done.until = Some(now);
                "read"
            }
            Outcome::Written | Outcome::Missing => {
                done.until = Some(now);
                "written"
            }
            Outcome::Failed(_) => {
                done.failed = true;
                "failed"
            }
            Outcome::Unknown => "unknown",
        };
        *self.ends.entry(name).or_default() += 1;
    }

    /// Returns the number of acknowledged writes, and of all writes begun.
    pub fn writes(&self) -> (u64, u64) {
        let writes = || self.all.iter().filter(|done| done.act != Act::Get);
        let acknowledged = writes().filter(|done| done.until.is_some()).count();
        (acknowledged as u64, writes().count() as u64)
    }

    /// Checks that some order of all requests explains what was seen. The error names a key for which none does.
    pub fn check(&self) -> Result<(), String> {
        let mut keys: BTreeMap<u8, Vec<Event>> = BTreeMap::new();
        for done in self.all.iter().filter(|done| !done.failed) {
            if done.act == Act::Get && done.until.is_none() {
                continue; // it saw nothing
            }
            keys.entry(done.key).or_default().push(Event {
                from: done.from,
                until: done.until.unwrap_or(Nanos::MAX),
                act: done.act,
                saw: done.saw,
            });
        }
        for (key, events) in keys {
            check(events).map_err(|what| format!("key {key}: {what}"))?;
        }
        Ok(())
    }
}
