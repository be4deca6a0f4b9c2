//! A replica of the real key-value store on one simulated host: its state machine over all partitions, and the clients
//! that wait for it. The sockets and the packing around it are not simulated.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use bytes::BytesMut;
use inband_kv::command::{Command, Expiry, Queue, SetReply, SetWhen, Strings, Watched};
use inband_kv::limits::{MARKER_REPEAT_MS, MARKER_STAGGER_MS};
use inband_kv::machine::{Machine, MachineConfig};
use inband_kv::partition::{partition_of, partitions_of_logs};
use inband_kv::store::StoreError;
use inband_kv::value::ValueWriter;
use inband_paxos::log::{ReadTicket, Ticket};
use inband_paxos::timing::Micros;
use inband_resp::reply::Reply;
use inband_resp::request::Args;
use tempfile::TempDir;

use crate::paxos::history::written;

/// Wall clock at the start of simulated time.
const WALL_CLOCK_MS: u64 = 1_700_000_000_000;

/// A client's request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Asked {
    /// Append these commands, one after the other, to the history of their partition.
    Append(Vec<u64>),
    /// Append a command to the histories of several partitions, in one transaction.
    Transaction(u64, Vec<usize>),
    /// Set a key of each partition to the number of this command, atomically.
    SetAll(u64),
    /// Set another key of each partition to the number of this command, atomically, with an expiry in milliseconds.
    SetExpiring(u64, u64),
    /// Read all of these keys and all histories, atomically. The numbers say how many commands of each partition
    /// clients know of.
    ReadAll(Vec<usize>),
    /// Not a client's request: tells a partition to execute commands over several.
    Marker,
}

/// A client that waits for a value or an entry.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub asked: Asked,
    pub ticket: Ticket,
    /// By the host's clock.
    pub deadline: Micros,
    /// The session under which it was last refused.
    pub refused_session: u64,
}

/// A read that waits until its index is applied.
#[derive(Debug)]
pub(crate) struct ReadWaiting {
    pub ticket: ReadTicket,
    pub index: u64,
}

/// The marker that a partition waits for.
#[derive(Debug, Default)]
pub(crate) struct Marker {
    pub in_flight: Option<(Ticket, u64)>,
    wanted_since: Option<Micros>,
}

/// A read whose index is not yet known.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ReadBegun {
    /// How many commands of the partition clients knew of.
    pub must_see: usize,
    /// By the host's clock.
    pub deadline: Micros,
}

pub(crate) struct StoreReplica {
    dir: TempDir,
    /// `None` while the host is down.
    pub machine: Option<Machine>,
    pub partitions: usize,
    /// By partition: the key that holds its history.
    pub history_keys: Vec<String>,
    /// By partition: the key that is set together with those of the others.
    pub set_keys: Vec<String>,
    /// By partition: the same, for keys that expire.
    pub expiring_keys: Vec<String>,
    /// The store survives power cuts.
    sync: bool,
    /// A copy of each log's store as a power cut leaves it at least, each in its own directory.
    synced: TempDir,
    /// By log: the last instance in that copy.
    pub synced_applied: Vec<u64>,
    /// By log: the last instance delivered.
    pub delivered: Vec<u64>,
    pub waiting: BTreeMap<Ticket, Waiting>,
    /// Values whose clients were told that the outcome is unknown.
    pub orphans: BTreeSet<Ticket>,
    /// Entries of the log of commands over several partitions that are not yet executed.
    pub entries: BTreeMap<u64, Waiting>,
    pub markers: Vec<Marker>,
    pub reads: BTreeMap<ReadTicket, ReadBegun>,
    pub confirmed: Vec<ReadWaiting>,
}

fn key_of_each(prefix: &str, partitions: usize) -> Vec<String> {
    let key_of = |partition| {
        let is_there = |key: &String| partition_of(key.as_bytes(), partitions) == partition;
        let mut names = (0..).map(|i| format!("{prefix}{i}"));
        names.find(is_there).expect("there are keys enough")
    };
    (0..partitions).map(key_of).collect()
}

/// Returns the wall clock of a host whose clock shows this.
pub(crate) fn wall_ms(shows: Micros) -> u64 {
    WALL_CLOCK_MS + shows / 1000
}

fn in_one_value(commands: &[BytesMut], shows: Micros) -> Vec<u8> {
    let mut writer = ValueWriter::new();
    commands.iter().for_each(|command| writer.push(command));
    writer.finish(wall_ms(shows)).to_vec()
}

fn encoded(command: &Command<'_>) -> BytesMut {
    let mut bytes = BytesMut::new();
    command.encode(None, &mut bytes);
    bytes
}

/// Passes words as the arguments of a request.
fn with_args<R>(words: &[&[u8]], act: impl FnOnce(Strings<'_>) -> R) -> R {
    let bytes = words.concat();
    let mut end = 0;
    let ranges = words.iter().map(|word| {
        end += word.len();
        (end - word.len(), end)
    });
    let ranges: Vec<(usize, usize)> = ranges.collect();
    act(Strings::Args(Args::new(&bytes, &ranges), 0))
}

impl StoreReplica {
    /// Creates an empty store, in memory if there is a file system for that.
    pub fn new(logs: usize, sync: bool) -> std::io::Result<StoreReplica> {
        let mut builder = tempfile::Builder::new();
        builder.prefix("inband-sim-");
        let in_memory = |builder: &tempfile::Builder<'_, '_>| {
            let dir = builder.tempdir_in("/dev/shm");
            dir.or_else(|_| builder.tempdir())
        };
        let partitions = partitions_of_logs(logs);
        Ok(StoreReplica {
            dir: in_memory(&builder)?,
            synced: in_memory(&builder)?,
            synced_applied: vec![0; logs],
            sync,
            machine: None,
            partitions,
            history_keys: key_of_each("h", partitions),
            set_keys: key_of_each("s", partitions),
            expiring_keys: key_of_each("e", partitions),
            delivered: vec![0; logs],
            waiting: BTreeMap::new(),
            orphans: BTreeSet::new(),
            entries: BTreeMap::new(),
            markers: (0..partitions).map(|_| Marker::default()).collect(),
            reads: BTreeMap::new(),
            confirmed: Vec::new(),
        })
    }

    /// Opens what the previous process has written. Returns the last applied instance of each log.
    pub fn open(&mut self) -> Result<Vec<u64>, StoreError> {
        let mut machine = Machine::open(MachineConfig {
            dirs: vec![self.dir.path().to_path_buf()],
            partitions: self.partitions,
            sync: self.sync,
        })?;
        machine.defer_writes();
        self.delivered = machine.applied();
        self.machine = Some(machine);
        self.keep_synced()?;
        Ok(self.delivered.clone())
    }

    /// What is on disk now survives power cuts.
    fn keep_synced(&mut self) -> Result<(), StoreError> {
        if !self.sync {
            return Ok(());
        }
        let copies: Vec<_> = (0..self.delivered.len())
            .map(|log| self.synced.path().join(log.to_string()))
            .collect();
        for dir in copies.iter().filter(|dir| dir.exists()) {
            fs::remove_dir_all(dir).map_err(|e| failed(dir, e))?;
        }
        self.machine().shared().checkpoint(&copies)?;
        self.synced_applied = self.machine().written();
        Ok(())
    }

    /// Begins to write what is applied, or continues with that.
    pub fn write_apart(&mut self) -> Result<(), StoreError> {
        let machine = self.machine();
        if !machine.is_writing() {
            return machine.begin_write();
        }
        // Writers write the parts in any order. Not a random number: it would change the schedule of every seed.
        let is_last = machine.written().iter().sum::<u64>() % 2 == 1;
        machine.step_write(is_last);
        machine.end_write().map(|_| ())
    }

    pub fn sync_all(&mut self) -> Result<(), StoreError> {
        self.machine().sync()?;
        self.keep_synced()
    }

    /// The host loses power. `takes` is asked whether a log's store loses everything written since the last sync. It is
    /// asked only for the queue and the last partition: the others are synced with commands over several.
    pub fn lose_power(&mut self, mut takes: impl FnMut() -> bool) -> std::io::Result<()> {
        let logs = self.partitions - 1..self.delivered.len();
        let Some(machine) = self.machine.as_ref().filter(|_| self.sync) else {
            return Ok(());
        };
        let paths = logs.map(|log| (log, machine.store(log).path().to_path_buf()));
        let mut paths: Vec<_> = paths.collect();
        paths.retain(|_| takes());
        self.machine = None;
        for (log, path) in paths {
            fs::remove_dir_all(&path)?;
            fs::rename(self.synced.path().join(log.to_string()), path)?;
        }
        Ok(())
    }

    /// The process ends and loses what it has not written.
    pub fn crash(&mut self) {
        self.machine = None;
        self.waiting.clear();
        self.orphans.clear();
        self.entries.clear();
        self.markers.iter_mut().for_each(|m| *m = Marker::default());
        self.reads.clear();
        self.confirmed.clear();
    }

    /// Returns the state machine.
    ///
    /// # Panics
    /// While the host is down.
    pub fn machine(&mut self) -> &mut Machine {
        self.machine.as_mut().expect("the host is up")
    }

    /// Registers a client that waits for a value, with a deadline by the host's clock.
    pub fn wait(&mut self, asked: Asked, ticket: Ticket, deadline: Micros) {
        let waiting = Waiting {
            asked,
            ticket,
            deadline,
            refused_session: 0,
        };
        self.waiting.insert(ticket, waiting);
    }

    /// Encodes a request as a value.
    pub fn value_of(&self, asked: &Asked, partition: usize, shows: Micros) -> Vec<u8> {
        match asked {
            Asked::Append(commands) => {
                let key = self.history_keys[partition].as_bytes();
                let append = |c: &u64| encoded(&Command::Append(key, written(*c).as_bytes()));
                in_one_value(&commands.iter().map(append).collect::<Vec<_>>(), shows)
            }
            Asked::Transaction(command, involved) => {
                let (tail, mut queue) = (written(*command), BytesMut::new());
                for partition in involved {
                    let key = self.history_keys[*partition].as_bytes();
                    Queue::push(&mut queue, &Command::Append(key, tail.as_bytes()));
                }
                let exec = Command::Exec {
                    watched: Watched::new(0, &[]),
                    commands: Queue::new(involved.len(), &queue),
                };
                in_one_value(&[encoded(&exec)], shows)
            }
            Asked::SetAll(command) => {
                let number = written(*command);
                let pairs = self.set_keys.iter();
                let words: Vec<&[u8]> = pairs
                    .flat_map(|key| [key.as_bytes(), number.as_bytes()])
                    .collect();
                with_args(&words, |all| {
                    in_one_value(&[encoded(&Command::MSet(all))], shows)
                })
            }
            Asked::SetExpiring(command, ms) => {
                let (number, mut queue) = (written(*command), BytesMut::new());
                for key in &self.expiring_keys {
                    let set = Command::Set {
                        key: key.as_bytes(),
                        value: number.as_bytes(),
                        when: SetWhen::Always,
                        expiry: Expiry::InMs(*ms as i64),
                        reply: SetReply::Status,
                    };
                    Queue::push(&mut queue, &set);
                }
                let exec = Command::Exec {
                    watched: Watched::new(0, &[]),
                    commands: Queue::new(self.expiring_keys.len(), &queue),
                };
                in_one_value(&[encoded(&exec)], shows)
            }
            Asked::ReadAll(_) => {
                let keys = self.set_keys.iter().chain(&self.expiring_keys);
                let keys = keys.chain(&self.history_keys);
                let words: Vec<&[u8]> = keys.map(|key| key.as_bytes()).collect();
                with_args(&words, |all| {
                    in_one_value(&[encoded(&Command::MGet(all))], shows)
                })
            }
            Asked::Marker => Vec::new(),
        }
    }

    /// Returns the history of a partition as this replica has it.
    pub fn history(&mut self, partition: usize, shows: Micros) -> Result<Vec<u8>, StoreError> {
        let command = encoded(&Command::Get(self.history_keys[partition].as_bytes()));
        let mut reader = self.machine().reader(partition, wall_ms(shows))?;
        Ok(match reader.read(&command)? {
            Some(Reply::Bulk(value)) => value,
            _ => Vec::new(),
        })
    }

    /// Markers to submit now: for which partition, up to which entry. `index` is this replica's index among all: for
    /// other replicas' entries each waits somewhat longer than the one before.
    pub fn wanted_markers(&mut self, shows: Micros, index: u64) -> Vec<(usize, u64)> {
        let Some(machine) = &self.machine else {
            return Vec::new();
        };
        let timeout_us = (MARKER_REPEAT_MS + MARKER_STAGGER_MS * index) * 1000;
        let mut due = Vec::new();
        for (partition, marker) in self.markers.iter_mut().enumerate() {
            let Some(wanted) = machine.wanted_marker(partition) else {
                marker.wanted_since = None;
                continue;
            };
            if marker
                .in_flight
                .is_some_and(|(_, entry)| entry >= wanted.entry)
            {
                continue;
            }
            let since = *marker.wanted_since.get_or_insert(shows);
            if wanted.is_own || shows >= since + timeout_us {
                due.push((partition, wanted.entry));
            }
        }
        due
    }

    /// A value ended; if it was a marker, another one may be submitted.
    pub fn forget_marker(&mut self, ticket: Ticket) {
        for marker in &mut self.markers {
            if marker.in_flight.is_some_and(|(own, _)| own == ticket) {
                marker.in_flight = None;
            }
        }
    }

    /// Takes the clients whose deadlines have passed.
    pub fn overdue(&mut self, shows: Micros) -> Vec<Waiting> {
        let is_overdue = |w: &Waiting| w.asked != Asked::Marker && w.deadline < shows;
        let values = take_if(&mut self.waiting, is_overdue);
        self.orphans.extend(values.iter().map(|w| w.ticket));
        let entries = take_if(&mut self.entries, is_overdue);
        values.into_iter().chain(entries).collect()
    }

    /// After a checkpoint the outcomes of values in flight are unknown.
    pub fn orphan_all(&mut self) -> Vec<Waiting> {
        let values = std::mem::take(&mut self.waiting);
        self.orphans.extend(values.keys());
        self.markers.iter_mut().for_each(|m| *m = Marker::default());
        let entries = std::mem::take(&mut self.entries);
        values.into_values().chain(entries.into_values()).collect()
    }

    /// Copies the stores of a peer. Returns the logs that have to be reset, and to which instance.
    pub fn install_from(
        &mut self,
        peer: &mut StoreReplica,
    ) -> Result<Vec<(usize, u64)>, StoreError> {
        // The peer does not write first; neither does a real peer's checkpoint server.
        let (theirs, own) = (peer.machine(), self.machine());
        let (from, to) = (theirs.outgoing(), own.incoming());
        for dir in from.iter().chain(&to) {
            if dir.exists() {
                fs::remove_dir_all(dir).map_err(|e| failed(dir, e))?;
            }
            if let Some(parent) = dir.parent() {
                fs::create_dir_all(parent).map_err(|e| failed(parent, e))?;
            }
        }
        theirs.shared().checkpoint(&from)?;
        for (from, to) in from.iter().zip(&to) {
            fs::rename(from, to).map_err(|e| failed(to, e))?;
        }
        let reset = own.install()?;
        let applied = own.applied();
        for (log, delivered) in self.delivered.iter_mut().enumerate() {
            *delivered = (*delivered).max(applied[log]);
        }
        self.keep_synced()?;
        Ok(reset)
    }
}

fn failed(path: &Path, source: std::io::Error) -> StoreError {
    StoreError::Io {
        path: path.to_path_buf(),
        source,
    }
}

fn take_if<K: Ord + Copy>(
    from: &mut BTreeMap<K, Waiting>,
    is_wanted: impl Fn(&Waiting) -> bool,
) -> Vec<Waiting> {
    let wanted = from.iter().filter(|(_, waiting)| is_wanted(waiting));
    let keys: Vec<K> = wanted.map(|(key, _)| *key).collect();
    keys.iter().filter_map(|key| from.remove(key)).collect()
}
