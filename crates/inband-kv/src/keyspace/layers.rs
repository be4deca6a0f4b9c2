//! What has changed in a keyspace since it was last written.
//!
//! The newest layer collects changes. While it is written, the next one is above it, and the database below may have
//! the layer or not: readers see the same either way. The records themselves are in the cache.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use super::records::DirtyKeys;

#[derive(Default)]
pub(super) struct Layer {
    /// Stored keys put or deleted.
    pub(super) dirty: DirtyKeys,
    /// Changes to the expiry index: added or removed.
    pub(super) index: BTreeMap<Vec<u8>, bool>,
    /// Everything below this layer is deleted.
    pub(super) flushed: bool,
}

impl Layer {
    pub(super) fn clear(&mut self) {
        self.dirty.clear();
        self.index.clear();
        self.flushed = false;
    }
}

/// The layers above the database.
#[derive(Default)]
pub(super) struct Layers {
    pub(super) newest: Layer,
    /// Being written.
    writing: Layer,
}

impl Layers {
    /// The newest layer is being written from now on. The one before it must be written.
    pub(super) fn write_begins(&mut self) {
        std::mem::swap(&mut self.newest, &mut self.writing);
        self.newest.clear();
    }

    pub(super) fn write_ended(&mut self) {
        self.writing.clear();
    }

    /// Nothing in the database counts.
    pub(super) fn hide_database(&self) -> bool {
        self.newest.flushed || self.writing.flushed
    }

    /// The stored keys whose records in the database do not count, with repetitions.
    pub(super) fn dirty(&self) -> impl Iterator<Item = &[u8]> {
        self.newest.dirty.iter().chain(self.writing.dirty.iter())
    }

    /// The same from `start` on, in order, each once.
    pub(super) fn dirty_from(&self, start: &[u8]) -> impl Iterator<Item = &[u8]> {
        let keys = self.dirty().filter(|key| *key >= start).map(Reverse);
        // Most readers stop early.
        let mut keys: BinaryHeap<_> = keys.collect();
        std::iter::from_fn(move || {
            let first = keys.pop()?;
            while keys.peek() == Some(&first) {
                keys.pop();
            }
            Some(first.0)
        })
    }

    /// Returns whether a key was added to the expiry index or removed from it; `None`: see the database.
    pub(super) fn index(&self, key: &[u8]) -> Option<bool> {
        let newest = self.newest.index.get(key).copied();
        let writing = self.writing.index.get(key).copied();
        newest.or(writing.filter(|_| !self.newest.flushed))
    }

    /// What was added to the expiry index, in order in each layer.
    pub(super) fn added(&self) -> [impl Iterator<Item = &[u8]>; 2] {
        [&self.newest, &self.writing].map(|layer| {
            let added = layer.index.iter().filter(|(_, is_added)| **is_added);
            added
                .map(|(key, _)| &key[..])
                .filter(|key| self.index(key) == Some(true))
        })
    }
}
