//! Clients of the gateways, each with one request at a time. Keys are registers.

use inband_box::membership::Membership;
use inband_box::node::Quorum;
use inband_box::role::Record;
use inband_box::sessions::Sessions;
use std::collections::BTreeMap;

use super::datagrams::{command, written};
use super::{Invariant, Mistake, Process, Zab, KEYS, MS};
use crate::linearizable::{self, Act};
use crate::trace::mix;
use crate::{Time, World};

/// A client times out after this.
const CLIENT_TIMEOUT_NS: Time = 60 * MS;
/// A client whose node is down tries another one after this.
const MOVE_NS: Time = 3 * MS;
/// One of this many times, a client that sends a datagram sends a burst.
const BURST_ONE_OF: u64 = 10;
const BURST_DATAGRAMS: u64 = 6;
/// Padding that makes snapshots long.
const SNAPSHOT_PADDING_LEN_BYTES: usize = 150_000;

/// The keys' values according to a node's records.
#[derive(Default)]
pub(super) struct Keys {
    pub sessions: Sessions,
    values: BTreeMap<u64, u64>,
    pub membership: Option<Membership>,
    pub hash: u64,
}

impl Keys {
    /// Applies a record. Returns whether it is executed.
    pub fn apply(&mut self, record: &inband_box::role::Record) -> bool {
        if let Some(membership) = Membership::of(record) {
            self.membership = Some(membership);
            self.hash = mix(self.hash, word_of(Some(membership)));
        }
        let is_executed = record.origin != 0
            && self
                .sessions
                .admit(record.origin, record.origin_session, record.origin_seq);
        if is_executed {
            let (key, token) = written(record).expect("clients only write");
            self.values.insert(key, token);
            self.hash = mix(mix(self.hash, key), token);
        }
        is_executed
    }

    /// Encodes a snapshot.
    pub fn encode(&self) -> Vec<u8> {
        let sessions = self.sessions.encode();
        let mut words = vec![self.hash, sessions.len() as u64, word_of(self.membership)];
        words.extend(self.values.iter().flat_map(|(key, value)| [*key, *value]));
        let mut bytes: Vec<u8> = words.into_iter().flat_map(u64::to_be_bytes).collect();
        bytes.splice(24..24, sessions);
        // The padding makes the snapshot span many packets.
        bytes.extend(std::iter::repeat_n(0, SNAPSHOT_PADDING_LEN_BYTES));
        bytes
    }

    /// Decodes a snapshot.
    pub fn decode(bytes: &[u8]) -> Option<Keys> {
        let word = |at: usize| {
            let bytes = bytes.get(at..at + 8)?.try_into().ok()?;
            Some(u64::from_be_bytes(bytes))
        };
        let rest = 24 + word(8)? as usize;
        let end = bytes.len().checked_sub(SNAPSHOT_PADDING_LEN_BYTES)?;
        let pairs = (rest..end).step_by(16);
        Some(Keys {
            hash: word(0)?,
            sessions: Sessions::decode(bytes.get(24..rest)?)?,
            membership: membership_of(word(16)?),
            values: pairs
                .map(|at| Some((word(at)?, word(at + 8)?)))
                .collect::<Option<_>>()?,
        })
    }

    pub fn get(&self, key: u64) -> Option<u64> {
        self.values.get(&key).copied()
    }
}

/// As a word of a snapshot; 0: none.
fn word_of(membership: Option<Membership>) -> u64 {
    let mut bytes = [0; 8];
    if let Some(membership) = membership {
        let value = membership.record().value;
        bytes[..value.len()].copy_from_slice(&value);
    }
    u64::from_le_bytes(bytes)
}

fn membership_of(word: u64) -> Option<Membership> {
    let len_bytes = 8 - word.leading_zeros() as usize / 8;
    let value = Membership::founding(1, Quorum::All).record().value;
    let value = word.to_le_bytes()[..len_bytes.max(value.len())].to_vec();
    Membership::of(&Record {
        value,
        ..Record::default()
    })
}

/// A request in flight.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asked {
    pub token: u64,
    key: u64,
    from: Time,
    act: Act,
    /// Its outcome is known from the log: it was sent as a datagram.
    is_datagram: bool,
}

impl Asked {
    pub fn key(&self) -> u64 {
        self.key
    }
}

pub(super) struct Client {
    pub node: u8,
    pub asked: Option<Asked>,
    pub done: u64,
    /// The last local read: where, and at least how much that node had applied.
    local: (u8, u64, u64),
}

impl World<Zab> {
    pub(super) fn start_client(&mut self, number: u8) {
        let client = Client {
            node: number % self.system.nodes + 1,
            asked: None,
            done: 0,
            local: (0, 0, 0),
        };
        self.system.client.insert(number, client);
        self.after(MS, super::Event::Request(number));
    }

    fn client_mut(&mut self, number: u8) -> &mut Client {
        self.system.client.get_mut(&number).expect("a client")
    }

    fn think_again(&mut self, number: u8) {
        let wait = self.rng.hosts.wait(self.system.think_ns);
        self.after(wait, super::Event::Request(number));
    }

    /// The client moves to another node; its request may still be executed.
    pub(super) fn client_leaves(&mut self, number: u8) {
        if let Some(asked) = self.client_mut(number).asked.take() {
            if asked.act != Act::Get && !asked.is_datagram {
                self.remember(asked, Time::MAX, None);
            }
            self.stats.count("unknown outcomes", 1);
        }
        let up = self.system.up();
        if let Some(node) = self.rng.hosts.pick(&up).copied() {
            self.client_mut(number).node = node;
        }
        self.after(MOVE_NS, super::Event::Request(number));
    }

    pub(super) fn client_gives_up(&mut self, number: u8, token: u64) {
        if self
            .client_mut(number)
            .asked
            .is_some_and(|a| a.token == token)
        {
            self.client_leaves(number);
        }
    }

    fn remember(&mut self, asked: Asked, until: Time, saw: Option<u64>) {
        let event = linearizable::Event {
            from: asked.from,
            until,
            act: asked.act,
            saw,
        };
        self.system
            .history
            .entry(asked.key)
            .or_default()
            .push(event);
    }

    pub(super) fn client_thinks(&mut self, number: u8) {
        let id = self.client_mut(number).node;
        if !self.system.is_loaded || self.client_mut(number).asked.is_some() {
            return;
        }
        let is_running = matches!(self.system.node.get(&id), Some(Some(_)));
        if !is_running {
            return self.client_leaves(number);
        }
        let key = self.rng.hosts.below(KEYS);
        let kind = self.rng.hosts.below(10);
        if kind == 0 {
            self.reads_locally(number, id, key);
            return self.think_again(number);
        }
        self.system.tokens += 1;
        let (token, from) = (self.system.tokens, self.now);
        let act = match kind {
            1..=4 => Act::Get,
            _ => Act::Put(token),
        };
        let is_datagram = act != Act::Get && self.rng.hosts.below(2) == 0;
        let asked = Asked {
            token,
            key,
            from,
            act,
            is_datagram,
        };
        self.client_mut(number).asked = Some(asked);
        self.note(&[20, number.into(), token], || {
            format!("client {number} at node/{id}: {act:?} key {key}, token {token}")
        });
        self.after(CLIENT_TIMEOUT_NS, super::Event::GiveUp(number, token));
        let padding = self.rng.hosts.below(64) as usize;
        if is_datagram {
            // Only a leader's role proposes it.
            let leader = self.leader().filter(|_| self.rng.hosts.below(2) == 0);
            let to = leader.unwrap_or(id);
            let others = match self.rng.hosts.below(BURST_ONE_OF) {
                0 => BURST_DATAGRAMS - 1,
                _ => 0,
            };
            // It does not wait for the replies to the others.
            for _ in 0..others {
                self.system.tokens += 1;
                let (token, key) = (self.system.tokens, self.rng.hosts.below(KEYS));
                self.client_sends(number, to, key, token, padding);
            }
            return self.client_sends(number, to, key, token, padding);
        }
        let is_hasty = self.system.mistake == Some(Mistake::StaleRead);
        let node = self.system.node.get_mut(&id).expect("it runs");
        let host = node.as_mut().expect("it runs");
        host.asked.insert(token, number);
        match act {
            Act::Get if is_hasty && host.node.leader() == Some(id) => {
                host.ready.push((token, 0));
            }
            Act::Get => host.node.read_index(token),
            _ => {
                let value = command(key, token, padding);
                let seq = host.node.submit(value.clone());
                host.puts.insert(seq, token);
                let session = (id, host.node.session());
                self.system.ledger.submit(session, seq, value);
            }
        }
        self.process_acts(id, Process::Ticks);
    }

    /// A local read: whatever the node has.
    fn reads_locally(&mut self, number: u8, id: u8, key: u64) {
        let Some(Some(host)) = self.system.node.get(&id) else {
            return;
        };
        let (start, applied, value) = (host.start, host.applied, host.keys.get(key));
        let mut zxids = (1..=applied).rev();
        let written = zxids.find_map(|zxid| {
            let (record, is_executed) = self.system.ledger.entry(zxid);
            let (of, token) = written(record).filter(|_| is_executed)?;
            (of == key).then_some(token)
        });
        let (node, last_start, last) = self.client_mut(number).local;
        if written != value || ((node, last_start) == (id, start) && applied < last) {
            let what = format!("node {id} says {value:?} of key {key} after {applied}");
            self.broken(Invariant::Prefix, what);
        }
        self.client_mut(number).local = (id, start, applied);
        self.stats.count("local reads", 1);
    }

    /// Returns whether the client waits for this request.
    pub(super) fn is_asked(&self, number: u8, token: u64) -> bool {
        let asked = self
            .system
            .client
            .get(&number)
            .and_then(|client| client.asked);
        asked.is_some_and(|asked| asked.token == token)
    }

    /// A node answers.
    pub(super) fn answered(&mut self, number: u8, token: u64, saw: Option<u64>) {
        let client = self.client_mut(number);
        let Some(asked) = client.asked.take_if(|asked| asked.token == token) else {
            return;
        };
        client.done += 1;
        let name = match asked.act {
            Act::Get => "strong reads",
            _ => "writes",
        };
        self.stats.count(name, 1);
        self.note(&[21, number.into(), token], || {
            format!("client {number} is answered: token {token}, {saw:?}")
        });
        let now = self.now;
        self.remember(asked, now, saw);
        self.think_again(number);
    }

    /// Handles the clients of a node that has stopped.
    pub(super) fn abandon(&mut self, id: u8) {
        let of_it = self.system.client.iter();
        let of_it = of_it.filter(|(_, client)| client.node == id && client.asked.is_some());
        let numbers: Vec<u8> = of_it.map(|(number, _)| *number).collect();
        for number in numbers {
            self.client_leaves(number);
        }
    }

    pub(super) fn check_history(&mut self) {
        self.remember_unanswered();
        for (key, events) in std::mem::take(&mut self.system.history) {
            if let Err(why) = linearizable::check(events) {
                self.broken(Invariant::Linearizable, format!("key {key}: {why}"));
            }
        }
    }
}
