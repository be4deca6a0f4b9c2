//! The keys at which clients of this replica wait, as the stores see them: what puts elements there is noted.

use std::collections::{BTreeSet, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::types::Kind;

/// A key together with the type of the elements that are awaited there.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AwaitedKey(Vec<u8>);

impl AwaitedKey {
    pub fn new(kind: Kind, key: &[u8]) -> Self {
        Self([&[kind as u8], key].concat())
    }

    pub fn key(&self) -> &[u8] {
        &self.0[1..]
    }
}

#[derive(Debug, Clone, Default)]
pub struct AwaitedKeys(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    /// Some keys are awaited: all other writes look no further.
    is_any: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    keys: HashSet<AwaitedKey>,
    /// Those that elements were put to.
    put: BTreeSet<AwaitedKey>,
    /// Keys may have changed in other ways.
    is_unsure: bool,
}

/// What has changed since the last call of [`AwaitedKeys::take`].
#[derive(Debug, PartialEq, Eq)]
pub enum News {
    /// Elements were put to these keys.
    Put(BTreeSet<AwaitedKey>),
    /// Any key may have elements.
    Unsure,
}

impl AwaitedKeys {
    fn state(&self) -> MutexGuard<'_, State> {
        let state = self.0.state.lock();
        state.unwrap_or_else(PoisonError::into_inner)
    }

    pub fn add(&self, key: AwaitedKey) {
        self.state().keys.insert(key);
        self.0.is_any.store(true, Ordering::Relaxed);
    }

    pub fn remove(&self, key: &AwaitedKey) {
        let mut state = self.state();
        state.keys.remove(key);
        state.put.remove(key);
        let is_any = !state.keys.is_empty();
        self.0.is_any.store(is_any, Ordering::Relaxed);
    }

    /// A value of this kind was put.
    pub fn note_put(&self, kind: Kind, key: &[u8]) {
        let can_be_awaited = matches!(kind, Kind::List | Kind::SortedSet);
        if !can_be_awaited || !self.0.is_any.load(Ordering::Relaxed) {
            return;
        }
        let key = AwaitedKey::new(kind, key);
        let mut state = self.state();
        if state.keys.contains(&key) {
            state.put.insert(key);
        }
    }

    /// Keys were changed in a way that is not noted for each of them.
    pub fn lose_track(&self) {
        self.state().is_unsure = true;
    }

    pub fn take(&self) -> News {
        let mut state = self.state();
        let put = std::mem::take(&mut state.put);
        match std::mem::take(&mut state.is_unsure) {
            true => News::Unsure,
            false => News::Put(put),
        }
    }
}
