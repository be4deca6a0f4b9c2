//! What `INBAND.WATCH` has pushed to clients, and what it must have pushed: every change once and in order, although the
//! replicas that the clients watch are killed, or the reply GONE.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::{Excluded, Included};
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{bail, ensure, Context, Result};
use inband_kv::changes::{ChangeKind, Point, Revision};
use inband_kv::partition::partition_of;

use crate::history::Outcome;

const KINDS: [ChangeKind; 4] = [
    ChangeKind::Put,
    ChangeKind::Delete,
    ChangeKind::Expire,
    ChangeKind::Flush,
];
/// What is pushed if the revision is a newer one without a change.
const PROGRESS: &str = "progress";

/// One change that was pushed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    pub kind: ChangeKind,
    pub key: String,
    pub value: Option<String>,
}

/// One write of a value that is written only once, or a marker of the end.
#[derive(Debug, Clone)]
pub struct Write {
    pub key: String,
    pub value: String,
    pub call_ns: u64,
    pub return_ns: u64,
    pub outcome: Outcome,
}

/// What was pushed to one watcher without a gap, on one connection or several.
#[derive(Debug)]
struct Stream {
    /// When the reply with its first revision had arrived.
    begun_ns: u64,
    from: Revision,
    seen: Revision,
    /// By partition.
    changes: Vec<Vec<(Point, Change)>>,
    /// Nothing more will be pushed.
    is_over: bool,
}

#[derive(Debug, Default)]
struct State {
    streams: Vec<Stream>,
    /// The stream of each watcher.
    current: BTreeMap<usize, usize>,
    writes: Vec<Write>,
    /// The first push that came out of order.
    wrong: Option<String>,
    resumed: usize,
}

/// All that was pushed and written. Shared by watchers and writers.
#[derive(Debug)]
pub struct Changes {
    partitions: usize,
    state: Mutex<State>,
}

/// What a check has found in order.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Checked {
    /// Pushed, to all watchers.
    pub changes: usize,
    /// How often a watcher went on behind its last revision.
    pub resumed: usize,
    /// How often no replica had the changes behind it.
    pub gone: usize,
}

impl Changes {
    pub fn new(partitions: usize) -> Changes {
        Changes {
            partitions,
            state: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The revision behind which a watcher continues; `None`: it begins anew.
    pub fn seen(&self, watcher: usize) -> Option<String> {
        let state = self.lock();
        let stream = state.current.get(&watcher)?;
        Some(state.streams[*stream].seen.to_string())
    }

    /// A watcher has got the reply to its first request, or to one after a gap.
    pub fn begin(&self, watcher: usize, revision: &str, now_ns: u64) -> Result<()> {
        let from = revision_of(revision)?;
        let mut state = self.lock();
        let stream = state.streams.len();
        state.current.insert(watcher, stream);
        state.streams.push(Stream {
            begun_ns: now_ns,
            seen: from.clone(),
            changes: vec![Vec::new(); from.0.len()],
            from,
            is_over: false,
        });
        Ok(())
    }

    /// A watcher continues behind the last revision that it has seen.
    pub fn resume(&self) {
        self.lock().resumed += 1;
    }

    /// No replica has the changes that a watcher has not seen.
    pub fn lose(&self, watcher: usize) {
        let mut state = self.lock();
        if let Some(stream) = state.current.remove(&watcher) {
            state.streams[stream].is_over = true;
        }
    }

    /// Something was pushed: the command, the prefix, revision, kind, key, value.
    pub fn pushed(&self, watcher: usize, push: Vec<Option<String>>) {
        let mut state = self.lock();
        let state = &mut *state;
        let Some(stream) = state.current.get(&watcher) else {
            return;
        };
        let stream = &mut state.streams[*stream];
        if let Err(error) = stream.add(self.partitions, push) {
            state.wrong.get_or_insert(format!("{error:#}"));
        }
    }

    /// A client has written something, or tried to.
    pub fn wrote(&self, write: Write) {
        self.lock().writes.push(write);
    }

    /// Whether these values were pushed to a watcher.
    pub fn has_seen(&self, watcher: usize, values: &[String]) -> bool {
        let state = self.lock();
        let Some(stream) = state.current.get(&watcher) else {
            return false;
        };
        let changes = state.streams[*stream].changes.iter().flatten();
        let pushed: BTreeSet<&str> = changes.filter_map(|(_, c)| c.value.as_deref()).collect();
        values.iter().all(|value| pushed.contains(value.as_str()))
    }

    /// The changes of a key, of each stream.
    pub fn of_key(&self, key: &str) -> Vec<Vec<Change>> {
        let state = self.lock();
        let of_key = |stream: &Stream| {
            let all = stream.changes[partition_of(key.as_bytes(), self.partitions)].iter();
            let of_key = all.filter(|(_, change)| change.key == key);
            of_key.map(|(_, change)| change.clone()).collect()
        };
        state.streams.iter().map(of_key).collect()
    }

    /// Checks everything, once all watchers have seen the last changes. `values` are what the keys hold then.
    pub fn check(&self, values: &BTreeMap<String, Option<String>>) -> Result<Checked> {
        let state = self.lock();
        ensure!(state.wrong.is_none(), "{}", state.wrong.as_ref().unwrap());
        state.check_streams_agree(self.partitions)?;
        let writes: BTreeMap<&str, &Write> = state
            .writes
            .iter()
            .map(|write| (write.value.as_str(), write))
            .collect();
        let mut checked = Checked {
            resumed: state.resumed,
            ..Checked::default()
        };
        for stream in &state.streams {
            for (partition, changes) in stream.changes.iter().enumerate() {
                check_writes(changes, &writes)?;
                let of_partition = state.writes.iter();
                let of_partition = of_partition.filter(|write| {
                    partition_of(write.key.as_bytes(), self.partitions) == partition
                });
                check_complete(stream.begun_ns, changes, &writes, of_partition)?;
                check_keys(changes)?;
                checked.changes += changes.len();
            }
            checked.gone += usize::from(stream.is_over);
            if !stream.is_over {
                stream.check_end(values)?;
            }
        }
        Ok(checked)
    }
}

fn revision_of(text: &str) -> Result<Revision> {
    text.parse()
        .map_err(|_| anyhow::anyhow!("{text:?} is not a revision"))
}

impl Stream {
    fn add(&mut self, partitions: usize, push: Vec<Option<String>>) -> Result<()> {
        let text = format!("{push:?}");
        let Ok([_, _, revision, kind, key, value]) = <[Option<String>; 6]>::try_from(push) else {
            bail!("{text} was pushed, which has not six parts");
        };
        let revision = revision_of(&revision.unwrap_or_default())?;
        let is_later = |(now, before): (&Point, &Point)| now >= before;
        let mut parts = revision.0.iter().zip(&self.seen.0);
        ensure!(
            revision.0.len() == partitions && parts.all(is_later),
            "{text} was pushed after revision {}",
            self.seen
        );
        let kind = kind.unwrap_or_default();
        if kind != PROGRESS {
            let kind = KINDS.into_iter().find(|known| known.name() == kind);
            let (Some(kind), Some(key)) = (kind, key) else {
                bail!("{text} was pushed");
            };
            let partition = partition_of(key.as_bytes(), partitions);
            let point = revision.0[partition];
            ensure!(
                point > self.seen.0[partition],
                "{text} was pushed after revision {}: twice, or out of order",
                self.seen
            );
            self.changes[partition].push((point, Change { kind, key, value }));
        }
        self.seen = revision;
        Ok(())
    }

    /// The last change of each key must be what the key holds.
    fn check_end(&self, values: &BTreeMap<String, Option<String>>) -> Result<()> {
        let all = self.changes.iter().flatten();
        let last: BTreeMap<&str, &Change> = all.map(|(_, c)| (c.key.as_str(), c)).collect();
        for (key, change) in last {
            let held = values
                .get(key)
                .with_context(|| format!("{key} was not read"))?;
            ensure!(
                *held == change.value,
                "{key} holds {held:?} at the end, but the last change that was pushed is {change:?}"
            );
        }
        Ok(())
    }
}

impl State {
    /// A point of a partition is the same change at every replica, and between the first and the last point of a stream
    /// there is none that another stream has and this one has not.
    fn check_streams_agree(&self, partitions: usize) -> Result<()> {
        for partition in 0..partitions {
            let mut all: BTreeMap<Point, &Change> = BTreeMap::new();
            for (point, change) in self.streams.iter().flat_map(|s| &s.changes[partition]) {
                match all.entry(*point) {
                    Entry::Vacant(place) => drop(place.insert(change)),
                    Entry::Occupied(other) => ensure!(
                        *other.get() == change,
                        "{change:?} was pushed to one watcher as {:?} to another",
                        other.get()
                    ),
                }
            }
            for stream in &self.streams {
                let (from, to) = (stream.from.0[partition], stream.seen.0[partition]);
                let mut pushed = stream.changes[partition].iter();
                for (point, change) in all.range((Excluded(from), Included(to))) {
                    ensure!(
                        pushed.next().is_some_and(|(pushed, _)| pushed == point),
                        "{change:?} was pushed to one watcher and not to another, which has seen what came later"
                    );
                }
            }
        }
        Ok(())
    }
}

/// Every value that was pushed was written, and in this order.
fn check_writes(changes: &[(Point, Change)], writes: &BTreeMap<&str, &Write>) -> Result<()> {
    let (mut first_return_ns, mut first) = (u64::MAX, None);
    let mut pushed = BTreeSet::new();
    for (_, change) in changes.iter().rev() {
        let Some(value) = change.value.as_deref() else {
            continue;
        };
        let Some(write) = writes.get(value) else {
            ensure!(is_lock(value), "{change:?} was pushed, which nobody wrote");
            continue;
        };
        ensure!(
            write.key == change.key && write.outcome != Outcome::Failed,
            "{change:?} was pushed, but {write:?} had no effect"
        );
        ensure!(pushed.insert(value), "{change:?} was pushed twice");
        ensure!(
            first_return_ns >= write.call_ns,
            "{change:?} was pushed before {first:?}, which was written before it"
        );
        if write.outcome == Outcome::Ok && write.return_ns < first_return_ns {
            (first_return_ns, first) = (write.return_ns, Some(change));
        }
    }
    Ok(())
}

fn is_lock(value: &str) -> bool {
    value.starts_with("inband.lock ")
}

/// Nothing is missing that was written after the stream began and before a write that was pushed.
fn check_complete<'w>(
    begun_ns: u64,
    changes: &[(Point, Change)],
    writes: &BTreeMap<&str, &Write>,
    mut of_partition: impl Iterator<Item = &'w Write>,
) -> Result<()> {
    let values = changes.iter().filter_map(|(_, c)| c.value.as_deref());
    let pushed: BTreeSet<&str> = values.collect();
    let calls = pushed.iter().filter_map(|value| writes.get(value));
    let last_call_ns = calls.map(|write| write.call_ns).max().unwrap_or(0);
    let must_be_there = |write: &&Write| {
        write.outcome == Outcome::Ok && write.call_ns > begun_ns && write.return_ns < last_call_ns
    };
    let is_missing = |write: &&Write| must_be_there(write) && !pushed.contains(&*write.value);
    match of_partition.find(is_missing) {
        None => Ok(()),
        Some(write) => {
            bail!("{write:?} was acknowledged, but not pushed to a watcher that saw a later write")
        }
    }
}

/// A key is only deleted, or expires, after it was written.
fn check_keys(changes: &[(Point, Change)]) -> Result<()> {
    let mut gone = BTreeSet::new();
    for (_, change) in changes {
        match change.kind {
            ChangeKind::Put => drop(gone.remove(&change.key)),
            _ => ensure!(
                gone.insert(&change.key),
                "{change:?} was pushed, but the key did not exist"
            ),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
