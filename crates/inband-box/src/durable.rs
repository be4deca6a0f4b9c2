//! A node's directory with `--durability sync`: the log in `journal`, a checkpoint of the table in `table`.

use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use anyhow::{bail, ensure, Context, Result};
use clap::ValueEnum;
use inband_host::backend::Choice;
use inband_host::config::Dataplane;
use inband_host::state_dir::write_number;
use inband_storage::{Disk, Journal, JournalError, Storage, StorageError};
use serde::{Deserialize, Serialize};

use crate::apply::{Machine, MachineError};
use crate::journal::{LogOnDisk, Replayed};
use crate::node::{SUSPECT_AFTER_NS, SUSPECT_AFTER_SYNC_NS};
use crate::promise::{Nanos, Stored};
use crate::role::Role;
use crate::stored::HAS_LOG;

/// Not `log`: a supervisor writes the process's output there.
const LOG: &str = "journal";
const TABLES: &str = "table";
const TABLE: &str = "checkpoint";

/// What survives a node's crash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Durability {
    /// Log and table are in memory: a node that ends loses them, and gets them back from the others.
    #[default]
    Memory,
    /// A write is on the disks of a quorum before it is acknowledged, so that even a power failure of all nodes loses
    /// no acknowledged write.
    Sync,
}

impl Durability {
    /// Returns its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Durability::Memory => "memory",
            Durability::Sync => "sync",
        }
    }

    /// Returns the default suspicion timeout: a disk may stop a node for longer than the network is silent.
    pub fn suspect_after_ns(self) -> Nanos {
        match self {
            Durability::Memory => SUSPECT_AFTER_NS,
            Durability::Sync => SUSPECT_AFTER_SYNC_NS,
        }
    }

    /// Returns where a node's role may run, given what was asked for, and why not elsewhere. In the kernel it would
    /// acknowledge records that the process has not synced yet.
    ///
    /// # Errors
    /// If it was asked to run in the kernel.
    pub fn choose(self, asked: Dataplane) -> Result<Option<Choice>> {
        let why = "with --durability sync the process acknowledges, once a record is synced";
        match (self, asked) {
            (Durability::Memory, _) | (Durability::Sync, Dataplane::Udp) => Ok(None),
            (Durability::Sync, Dataplane::Auto) => Ok(Some(Choice::udp(why))),
            (Durability::Sync, Dataplane::Xdp | Dataplane::XdpGeneric) => {
                bail!("--dataplane {asked}: {why}; give --dataplane udp or auto, or --durability memory")
            }
        }
    }
}

/// The log and the table's checkpoints of a running node.
pub struct Durable {
    tables: PathBuf,
    log: LogOnDisk,
    /// Size of the last checkpoint.
    table_bytes: u64,
    /// The first journal segment to keep once the checkpoint that the machine is making is on disk.
    begun: Option<u64>,
    /// The same, for a checkpoint that is being written.
    writing: Option<(u64, JoinHandle<Result<(), StorageError>>)>,
}

/// The content of the directory.
struct Loaded {
    machine: Machine,
    log: LogOnDisk,
    replayed: Replayed,
    table_bytes: u64,
}

/// Why the content is not used.
enum NotLoaded {
    Damaged(String),
    Failed(anyhow::Error),
}

impl<E: Into<anyhow::Error>> From<E> for NotLoaded {
    fn from(error: E) -> NotLoaded {
        NotLoaded::Failed(error.into())
    }
}

fn disk(dir: &Path, name: &str) -> Result<Box<Disk>, StorageError> {
    Ok(Box::new(Disk::open(&dir.join(name))?))
}

fn load(dir: &Path, node: u8, mut machine: Machine) -> Result<Loaded, NotLoaded> {
    let mut table_bytes = 0;
    match disk(dir, TABLES)?.read(TABLE) {
        Err(StorageError::NotFound { .. }) => {}
        Err(error) => return Err(error.into()),
        Ok(bytes) => {
            table_bytes = bytes.len() as u64;
            machine.restore(&bytes).map_err(|error| match error {
                MachineError::Damaged => NotLoaded::Damaged("the table's checkpoint".to_owned()),
                error => error.into(),
            })?;
        }
    }
    let opened = LogOnDisk::open(disk(dir, LOG)?, node, machine.applied());
    let (log, replayed) = opened.map_err(|error| match error {
        JournalError::Damaged { .. } => NotLoaded::Damaged(error.to_string()),
        error => error.into(),
    })?;
    for record in &replayed.records {
        if record.zxid <= replayed.committed {
            machine.apply(record)?;
        }
    }
    Ok(Loaded {
        machine,
        log,
        replayed,
        table_bytes,
    })
}

impl Durable {
    /// Loads what is on disk into the empty role. If there is nothing, or it is damaged, starts empty and says so in
    /// `stored`: the node has lost its log. `machine` creates an empty machine.
    ///
    /// # Errors
    /// If the disk fails, or the node has less memory than its data needs.
    pub fn open(
        dir: &Path,
        node: u8,
        stored: &mut Stored,
        role: &impl Role,
        machine: impl Fn() -> Result<Machine>,
    ) -> Result<(Durable, Machine)> {
        let mut loaded = None;
        if stored.has_log {
            match load(dir, node, machine()?) {
                Ok(found) => loaded = Some(found),
                Err(NotLoaded::Failed(error)) => return Err(error),
                Err(NotLoaded::Damaged(what)) => {
                    tracing::error!(
                        "{}: damaged: {what}; the node gets log and table from the others",
                        dir.display()
                    );
                }
            }
        }
        let loaded = match loaded {
            Some(loaded) => loaded,
            None => {
                stored.has_log = false;
                write_number(dir, HAS_LOG, 0)?;
                Journal::discard(disk(dir, LOG)?.as_mut())?;
                match disk(dir, TABLES)?.remove(TABLE) {
                    Err(StorageError::NotFound { .. }) | Ok(()) => {}
                    Err(error) => return Err(error.into()),
                }
                let (log, replayed) = LogOnDisk::open(disk(dir, LOG)?, node, 0)?;
                let (machine, table_bytes) = (machine()?, 0);
                Loaded {
                    machine,
                    log,
                    replayed,
                    table_bytes,
                }
            }
        };
        let machine = loaded.machine;
        let at = (machine.applied(), machine.epoch(), machine.time_ms());
        ensure!(
            !stored.has_log || loaded.replayed.restore(role, stored.promise, at),
            "--log-records {}: the log in {} has {} records that may be uncommitted; give as many as before",
            role.capacity(),
            dir.display(),
            loaded.replayed.records.len()
        );
        let durable = Durable {
            tables: dir.join(TABLES),
            log: loaded.log,
            table_bytes: loaded.table_bytes,
            begun: None,
            writing: None,
        };
        Ok((durable, machine))
    }

    /// As [`LogOnDisk::durable`].
    pub fn durable(&self) -> u64 {
        self.log.durable()
    }

    /// As [`LogOnDisk::write`].
    pub fn write(&mut self, role: &impl Role) -> Result<u64> {
        self.log.write(role).context("the log on disk")
    }

    /// Begins a checkpoint if one is due: the machine must make a snapshot of its current state. Returns whether it has
    /// begun.
    pub fn begins_checkpoint(&mut self, machine: &mut Machine, role: &impl Role) -> Result<bool> {
        let is_busy = self.writing.is_some() || machine.has_begun_snapshot();
        if is_busy || !self.log.needs_checkpoint(self.table_bytes) {
            return Ok(false);
        }
        machine.begin_snapshot();
        self.begun = Some(self.log.begin_checkpoint(machine.applied(), role)?);
        Ok(true)
    }

    /// Gives up the checkpoint in progress, because the machine's snapshot is needed for a follower. It is made later.
    pub fn gives_way(&mut self) {
        self.begun = None;
    }

    /// Takes a snapshot that the machine has made. Returns it if it was not for a checkpoint.
    pub fn take(&mut self, bytes: Vec<u8>) -> Option<Vec<u8>> {
        let Some(segment) = self.begun.take() else {
            return Some(bytes);
        };
        self.table_bytes = bytes.len() as u64;
        let dir = self.tables.clone();
        let write = move || Disk::open(&dir)?.replace(TABLE, &bytes);
        self.writing = Some((segment, std::thread::spawn(write)));
        None
    }

    /// Trims the journal once a checkpoint is on disk.
    pub fn go_on(&mut self) -> Result<()> {
        let is_written = |(_, writing): &mut (u64, JoinHandle<_>)| writing.is_finished();
        if let Some((segment, writing)) = self.writing.take_if(is_written) {
            let written = writing.join().expect("it does not panic");
            written.context("the table's checkpoint")?;
            self.log.forget(segment)?;
        }
        Ok(())
    }

    /// Stores a table of another node that was installed up to this record.
    pub fn installed(&mut self, zxid: u64, bytes: &[u8], role: &impl Role) -> Result<()> {
        self.begun = None;
        if let Some((_, writing)) = self.writing.take() {
            writing.join().expect("it does not panic")?;
        }
        self.table_bytes = bytes.len() as u64;
        Disk::open(&self.tables)?.replace(TABLE, bytes)?;
        Ok(self.log.installed(zxid, role)?)
    }
}

impl Drop for Durable {
    fn drop(&mut self) {
        // The next start must not find it.
        if let Some((_, writing)) = self.writing.take() {
            let _ = writing.join();
        }
    }
}
