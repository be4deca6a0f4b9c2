//! Clients whose blocking pops found nothing: which of them tries again, and when.
//!
//! A pop is an attempt in the log, which never waits there; what is here is no part of the replicated state. The first
//! attempt of a client is made at once, unless all its keys have clients that wait already. A client that found nothing
//! waits until this replica applies a write that puts an element at one of its keys; then the client that has waited
//! longest for that key tries again, and no other one does so before its attempt has ended. So the clients of one
//! replica are served in order. Between replicas the log decides.
//!
//! No element is overlooked: a key has *news* from when an element is put there, or from when nothing is known about it,
//! until an attempt that began later has found all its keys empty. As long as a key has news and a client that waits, an
//! attempt is in progress. A client is registered before its first attempt, so what is put after that is news.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::time::Instant;

use crate::awaited_keys::{AwaitedKey, AwaitedKeys, News};

/// What a client wants to pop.
#[derive(Debug, Clone)]
pub struct Pop {
    /// Each key once.
    pub keys: Vec<AwaitedKey>,
    /// The log of the attempts.
    pub log: usize,
    /// The encoded first attempt.
    pub first: Vec<u8>,
    /// The encoded later attempts.
    pub again: Vec<u8>,
    /// `None`: no limit.
    pub deadline: Option<Instant>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Its first attempt is in progress.
    TriesFirst,
    Waits,
    TriesAgain,
}

#[derive(Debug)]
struct Client {
    slot: usize,
    pop: Pop,
    state: State,
    /// The keys with news when the attempt began.
    had_news: Vec<AwaitedKey>,
    /// Another client ends its wait, with an error.
    is_refused: bool,
}

#[derive(Debug, Default)]
struct Key {
    /// The clients that want an element of it, by their numbers.
    clients: BTreeSet<u64>,
    /// How many of them are past their first attempt.
    waiting: usize,
    /// How many of them are trying again.
    trying_again: usize,
    has_news: bool,
}

/// An attempt to be submitted.
#[derive(Debug, PartialEq, Eq)]
pub struct Attempt<'a> {
    pub client: u64,
    pub slot: usize,
    pub log: usize,
    pub command: &'a [u8],
}

#[derive(Debug, Default)]
pub struct WaitingClients {
    awaited: AwaitedKeys,
    /// By number, in the order of their arrival.
    clients: BTreeMap<u64, Client>,
    /// How many of them are past their first attempt.
    waiting: usize,
    keys: HashMap<AwaitedKey, Key>,
    deadlines: BTreeSet<(Instant, u64)>,
    /// The clients whose attempts have to be submitted.
    attempts: VecDeque<u64>,
    next_number: u64,
}

impl WaitingClients {
    /// `awaited` is shared with the stores.
    pub fn new(awaited: AwaitedKeys) -> Self {
        Self {
            awaited,
            ..Self::default()
        }
    }

    pub fn is_empty(&self) -> bool {
        self.clients.is_empty()
    }

    /// Returns how many clients are here, including those in their first attempt.
    pub fn len(&self) -> usize {
        self.clients.len()
    }

    /// Returns the number of clients that are past their first attempt.
    pub fn waiting(&self) -> usize {
        self.waiting
    }

    /// Returns whether the client waits without trying.
    pub fn is_waiting(&self, number: u64) -> bool {
        let client = self.clients.get(&number);
        client.is_some_and(|client| client.state == State::Waits)
    }

    /// Returns the clients that wait without trying, and their slots.
    pub fn all_waiting(&self) -> Vec<(u64, usize)> {
        let all = self.clients.iter();
        let waiting = all.filter(|(_, client)| client.state == State::Waits);
        waiting
            .map(|(number, client)| (*number, client.slot))
            .collect()
    }

    /// Registers a client. Returns its number.
    pub fn enter(&mut self, slot: usize, pop: Pop) -> u64 {
        let number = self.next_number;
        self.next_number += 1;
        let (mut is_first_somewhere, mut had_news) = (false, Vec::new());
        for name in &pop.keys {
            let awaited = &self.awaited;
            let key = self.keys.entry(name.clone()).or_insert_with(|| {
                awaited.add(name.clone());
                Key::default()
            });
            if key.clients.is_empty() {
                // Nothing is known about it.
                had_news.push(name.clone());
            }
            is_first_somewhere |= key.waiting == 0;
            key.clients.insert(number);
        }
        let state = match is_first_somewhere {
            true => State::TriesFirst,
            false => State::Waits,
        };
        if let Some(deadline) = pop.deadline {
            self.deadlines.insert((deadline, number));
        }
        let client = Client {
            slot,
            pop,
            state,
            had_news,
            is_refused: false,
        };
        self.clients.insert(number, client);
        match state {
            State::TriesFirst => self.attempts.push_back(number),
            _ => self.count(number, 1, 0),
        }
        self.waiting += usize::from(state == State::Waits);
        number
    }

    /// Adds to the counters of the client's keys.
    fn count(&mut self, number: u64, waiting: isize, trying_again: isize) {
        let Some(client) = self.clients.get(&number) else {
            return;
        };
        for name in &client.pop.keys {
            if let Some(key) = self.keys.get_mut(name) {
                key.waiting = key.waiting.saturating_add_signed(waiting);
                key.trying_again = key.trying_again.saturating_add_signed(trying_again);
            }
        }
    }

    /// Takes what the stores have noted.
    pub fn take_news(&mut self) {
        let names: Vec<AwaitedKey> = match self.awaited.take() {
            News::Put(names) => names.into_iter().collect(),
            News::Unsure => self.keys.keys().cloned().collect(),
        };
        for name in names {
            if let Some(key) = self.keys.get_mut(&name) {
                key.has_news = true;
                self.wake(&name);
            }
        }
    }

    /// If a key has news, the client that has waited longest for it tries again.
    fn wake(&mut self, name: &AwaitedKey) {
        let Some(key) = self.keys.get(name) else {
            return;
        };
        if !key.has_news || key.trying_again > 0 {
            return;
        }
        let Some(number) = key.clients.iter().copied().find(|c| self.is_waiting(*c)) else {
            return;
        };
        self.count(number, 0, 1);
        let Some(client) = self.clients.get_mut(&number) else {
            return;
        };
        client.state = State::TriesAgain;
        for name in &client.pop.keys {
            if let Some(key) = self.keys.get_mut(name) {
                if std::mem::take(&mut key.has_news) {
                    client.had_news.push(name.clone());
                }
            }
        }
        self.attempts.push_back(number);
    }

    /// Takes the next attempt to submit.
    pub fn next_attempt(&mut self) -> Option<Attempt<'_>> {
        loop {
            let number = self.attempts.pop_front()?;
            // It may have left.
            let is_trying = |client: &Client| client.state != State::Waits;
            if self.clients.get(&number).is_some_and(is_trying) {
                let client = &self.clients[&number];
                return Some(Attempt {
                    client: number,
                    slot: client.slot,
                    log: client.pop.log,
                    command: match client.state {
                        State::TriesFirst => &client.pop.first,
                        _ => &client.pop.again,
                    },
                });
            }
        }
    }

    /// The attempt of a client has found all its keys empty: it waits. Returns false if its time is over.
    pub fn found_nothing(&mut self, number: u64, now: Instant) -> bool {
        let Some(client) = self.clients.get_mut(&number) else {
            return false;
        };
        client.had_news.clear();
        let is_over = client.pop.deadline.is_some_and(|deadline| deadline <= now);
        let before = std::mem::replace(&mut client.state, State::Waits);
        let names = client.pop.keys.clone();
        match before {
            State::TriesFirst => {
                self.waiting += 1;
                self.count(number, 1, 0);
            }
            State::TriesAgain => self.count(number, 0, -1),
            State::Waits => {}
        }
        for name in names {
            self.wake(&name);
        }
        !is_over
    }

    /// A client is served, has failed, or is gone. `popped`: the key where its attempt has found an element.
    pub fn leave(&mut self, number: u64, popped: Option<&[u8]>) {
        match self.clients.get(&number).map(|client| client.state) {
            None => return,
            Some(State::TriesFirst) => {}
            Some(State::Waits) => self.count(number, -1, 0),
            Some(State::TriesAgain) => self.count(number, -1, -1),
        }
        let Some(client) = self.clients.remove(&number) else {
            return;
        };
        self.waiting -= usize::from(client.state != State::TriesFirst);
        if let Some(deadline) = client.pop.deadline {
            self.deadlines.remove(&(deadline, number));
        }
        for name in &client.pop.keys {
            let Some(key) = self.keys.get_mut(name) else {
                continue;
            };
            key.clients.remove(&number);
            if key.clients.is_empty() {
                self.keys.remove(name);
                self.awaited.remove(name);
                continue;
            }
            // It says nothing about the keys where it has not popped. What it has left in the other one was put there.
            let is_known = popped == Some(name.key());
            key.has_news |= client.had_news.contains(name) && !is_known;
            self.wake(name);
        }
    }

    /// Ends a client's wait as if its time were over, or with an error. For one that is trying, what its attempt finds
    /// counts.
    pub fn unblock(&mut self, number: u64, now: Instant, with_error: bool) -> bool {
        let Some(client) = self.clients.get_mut(&number) else {
            return false;
        };
        client.is_refused = with_error;
        if let Some(deadline) = client.pop.deadline.replace(now) {
            self.deadlines.remove(&(deadline, number));
        }
        self.deadlines.insert((now, number));
        true
    }

    /// Returns whether the client's wait ends with an error.
    pub fn is_refused(&self, number: u64) -> bool {
        let client = self.clients.get(&number);
        client.is_some_and(|client| client.is_refused)
    }

    /// Returns when the next client that waits has to be told that there was nothing.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.deadlines.first().map(|(deadline, _)| *deadline)
    }

    /// Returns the waiting clients whose time is over, and their slots. For one that is trying, the end of its attempt
    /// decides.
    pub fn take_overdue(&mut self, now: Instant) -> Vec<(u64, usize)> {
        let mut overdue = Vec::new();
        while let Some((deadline, number)) = self.deadlines.first().copied() {
            if deadline > now {
                break;
            }
            self.deadlines.pop_first();
            if self.is_waiting(number) {
                overdue.push((number, self.clients[&number].slot));
            }
        }
        overdue
    }
}

#[cfg(test)]
mod tests;
