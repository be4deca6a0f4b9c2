//! A memcached client of all nodes: get, set, add, cas, incr, append and delete of single keys, one at a time.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use anyhow::{bail, Result};
use inband_sim::Rng;

use super::connection::Connection;
use super::keys;
use super::local_reads::{LocalReads, Times};
use super::{Members, Serving};
use crate::history::{Command, Outcome, Verb};
use crate::stale_proxy::StaleReplies;
use crate::workload::{Asked, End, Operate, Scribe, Shared, ANSWER_LIMIT};

/// A connection is closed after this many operations, and another one is opened, usually to another node.
const OPERATIONS_PER_CONNECTION: u64 = 100;

pub struct MemcachedClient {
    number: usize,
    rng: Rng,
    scribe: Scribe,
    members: Members,
    local_reads: Arc<LocalReads>,
    /// Set in a control run.
    stale: Option<Arc<StaleReplies>>,
    limit: Duration,
    connection: Option<Connection>,
    /// The node of the connection.
    node: Option<Serving>,
    /// A connection to its port of local reads, with a number.
    local: Option<(usize, Connection)>,
    operations: u64,
    writes: u64,
}

impl Operate for MemcachedClient {
    fn operate(&mut self) -> bool {
        if self.operations >= OPERATIONS_PER_CONNECTION {
            self.close();
        }
        if self.connection.is_none() {
            let members = self.members.read().unwrap_or_else(PoisonError::into_inner);
            let node = self.rng.pick(&members).copied();
            drop(members);
            if node.is_none_or(|node| self.connect(node).is_err()) {
                return false;
            }
        }
        self.operations += 1;
        let key = keys::one(self.rng.next_u64(), self.scribe.now_ns());
        match self.rng.below(100) {
            0..=34 => drop(self.read(&key)),
            35..=39 => self.read_local(&key),
            40..=64 => self.store(Verb::Set, &key),
            65..=71 => self.store(Verb::Add, &key),
            72..=77 => self.store(Verb::Append, &key),
            78..=86 => self.compare_and_swap(&key),
            87..=94 => self.incr(&key),
            _ => self.delete(&key),
        }
        true
    }
}

impl MemcachedClient {
    pub fn new(
        number: usize,
        shared: Shared,
        members: Members,
        local_reads: Arc<LocalReads>,
        stale: Option<Arc<StaleReplies>>,
        seed: u64,
    ) -> MemcachedClient {
        MemcachedClient {
            number,
            rng: Rng::new(seed, 1_000 + number as u64),
            scribe: Scribe::new(number, shared),
            members,
            local_reads,
            stale,
            limit: ANSWER_LIMIT,
            connection: None,
            node: None,
            local: None,
            operations: 0,
            writes: 0,
        }
    }

    fn connect(&mut self, node: Serving) -> Result<()> {
        self.close();
        self.connection = Some(Connection::open(node.memcached, self.limit)?);
        self.node = Some(node);
        Ok(())
    }

    fn close(&mut self) {
        (self.connection, self.operations) = (None, 0);
        (self.node, self.local) = (None, None);
    }

    /// Returns a value that has not been written before.
    fn value(&mut self) -> String {
        self.writes += 1;
        keys::value(self.writes, self.number)
    }

    /// Returns a key's value and its cas unique; `None` if there is no value or no answer.
    fn read(&mut self, key: &str) -> Option<(String, u64)> {
        let command = self.one(Verb::Get, key, None);
        let mut found = None;
        let (stale, local_reads) = (self.stale.clone(), Arc::clone(&self.local_reads));
        let clock = self.scribe.clock();
        let call_ns = clock.now_ns();
        self.perform(vec![command], |connection| match connection.gets(key) {
            Ok(read) => {
                let return_ns = clock.now_ns();
                let value = read.as_ref().map(|(value, _)| value.clone());
                local_reads.read(key, &read, Times { call_ns, return_ns });
                found = read;
                End::Ok(vec![match stale {
                    Some(stale) => stale.of(key, value),
                    None => value,
                }])
            }
            Err(end) => end,
        });
        found
    }

    /// Reads what this node has. Local reads are not part of the history, because they need not be linearizable.
    fn read_local(&mut self, key: &str) {
        let Some(node) = self.node else { return };
        if self.local.is_none() {
            let connection = Connection::open(node.local, self.limit).ok();
            self.local = connection.map(|to| (self.local_reads.connection(), to));
        }
        let Some((number, connection)) = &mut self.local else {
            return;
        };
        let call_ns = self.scribe.now_ns();
        match connection.gets(key) {
            Ok(read) => {
                let return_ns = self.scribe.now_ns();
                let times = Times { call_ns, return_ns };
                self.local_reads.read_local(*number, key, &read, times);
            }
            Err(_) => self.local = None,
        }
    }

    fn store(&mut self, verb: Verb, key: &str) {
        let value = self.value();
        self.local_reads.called(&value, self.scribe.now_ns());
        let (name, added, replies) = match verb {
            Verb::Add => (
                "add",
                value.clone(),
                [("STORED", Some("1")), ("NOT_STORED", Some("0"))],
            ),
            // With a comma, a value is no longer a number.
            Verb::Append => (
                "append",
                format!(",{value}"),
                [("STORED", Some("1")), ("NOT_STORED", Some("0"))],
            ),
            _ => ("set", value.clone(), [("STORED", Some("OK")); 2]),
        };
        let request = format!("{name} {key} 0 0 {}\r\n{added}\r\n", added.len());
        let command = self.one(verb, key, Some(added));
        self.perform(vec![command], |to| to.command(&request, &replies));
    }

    /// Reads, and writes if the key has not changed since.
    fn compare_and_swap(&mut self, key: &str) {
        let Some((before, unique)) = self.read(key) else {
            return;
        };
        let value = self.value();
        self.local_reads.called(&value, self.scribe.now_ns());
        let request = format!("cas {key} 0 0 {} {unique}\r\n{value}\r\n", value.len());
        let commands = vec![
            self.one(Verb::Check, key, Some(before)),
            self.one(Verb::Set, key, Some(value)),
        ];
        self.perform(commands, |to| {
            match to.command(
                &request,
                &[
                    ("STORED", Some("OK")),
                    ("EXISTS", None),
                    ("NOT_FOUND", None),
                ],
            ) {
                End::Ok(replies) if replies[0].is_none() => {
                    End::Failed("not written: the value has changed".into())
                }
                End::Ok(replies) => End::Ok([vec![None], replies].concat()),
                end => end,
            }
        });
    }

    fn incr(&mut self, key: &str) {
        let command = self.one(Verb::IncrExisting, key, None);
        self.perform(vec![command], |to| to.incr(key));
    }

    fn delete(&mut self, key: &str) {
        let command = self.one(Verb::Del, key, None);
        let request = format!("delete {key}\r\n");
        let replies = [("DELETED", Some("1")), ("NOT_FOUND", Some("0"))];
        let (clock, local_reads) = (self.scribe.clock(), Arc::clone(&self.local_reads));
        let call_ns = clock.now_ns();
        self.perform(vec![command], |to| {
            let end = to.command(&request, &replies);
            let return_ns = match &end {
                End::Ok(replies) if replies[0].as_deref() == Some("1") => Some(clock.now_ns()),
                End::Ok(_) | End::Failed(_) => None,
                End::Unknown(_) => Some(u64::MAX),
            };
            if let Some(return_ns) = return_ns {
                local_reads.deleted(key, Times { call_ns, return_ns });
            }
            end
        });
    }

    fn one(&self, verb: Verb, key: &str, value: Option<String>) -> Command {
        Command {
            verb,
            key: key.to_owned(),
            value,
        }
    }

    /// Returns the outcome; `None` if there is no connection.
    fn perform(
        &mut self,
        commands: Vec<Command>,
        act: impl FnOnce(&mut Connection) -> End,
    ) -> Option<Outcome> {
        let connection = self.connection.as_mut()?;
        let call_ns = self.scribe.now_ns();
        let end = act(connection);
        let asked = Asked {
            group: commands[0].key.clone(),
            call_ns,
            commands,
            replica: connection.address.to_string(),
            reads: "strong",
        };
        let outcome = self.scribe.write_down(asked, &end);
        if outcome == Outcome::Unknown {
            // The reply may still arrive.
            self.close();
        }
        Some(outcome)
    }

    /// Reads all these keys at each of these nodes.
    pub fn read_all(&mut self, keys: &[String], nodes: &[Serving], limit: Duration) -> Result<()> {
        self.limit = limit;
        for node in nodes {
            self.connect(*node)?;
            for key in keys {
                self.read(key);
                if self.connection.is_none() {
                    bail!("reading {key} at node/{}: no reply", node.id);
                }
            }
        }
        Ok(())
    }
}
