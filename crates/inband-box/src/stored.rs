//! What a node stores in its directory, besides its log.

use std::io;
use std::path::Path;

use anyhow::{Context, Result};
use inband_host::state_dir::{read_number, write_number};

use crate::promise::{Founders, Stored};

/// The file in a node's directory with the highest epoch that it has proposed or promised.
pub const PROMISED: &str = "promised";
/// The file in a node's directory with the number of its last start.
pub const SESSION: &str = "session";
/// The file in a node's directory that contains 1 while its log on disk is complete.
pub const HAS_LOG: &str = "has-log";
/// The file in a node's directory with its [`Stored::new_id`].
const NEW_ID: &str = "new-id";
/// The file in a node's directory with its [`Stored::founders`], in decimal.
const FOUNDERS: &str = "founders";

/// Returns whether a node has run in this directory before.
pub fn has_promised(dir: &Path) -> bool {
    dir.join(PROMISED).exists()
}

/// Returns whether the directory has a node's log.
pub fn has_log(dir: &Path) -> bool {
    read_number(&dir.join(HAS_LOG)).is_ok_and(|number| number == 1)
}

/// Returns whether the node in this directory has no place in a cluster yet, so that it has acknowledged nothing.
pub fn is_new(dir: &Path) -> bool {
    read_number(&dir.join(NEW_ID)).is_ok_and(|number| number > 0)
}

/// Removes all traces of an earlier node.
pub fn forget(dir: &Path) -> io::Result<()> {
    for name in [HAS_LOG, PROMISED, SESSION, NEW_ID, FOUNDERS] {
        match std::fs::remove_file(dir.join(name)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// Reads what is stored; nothing is, in a new directory.
pub(crate) fn read(dir: &Path) -> Result<Stored> {
    let number = |name| read_number(&dir.join(name));
    Ok(Stored {
        promise: number(PROMISED)?,
        session: number(SESSION)?,
        has_log: number(HAS_LOG)? == 1,
        new_id: number(NEW_ID)?,
        founders: read_founders(&dir.join(FOUNDERS))?,
    })
}

fn read_founders(path: &Path) -> Result<Founders> {
    let text = match std::fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Founders::default()),
        other => other.with_context(|| path.display().to_string())?,
    };
    let numbers: Option<Vec<u64>> = text.split_whitespace().map(|n| n.parse().ok()).collect();
    let founders = numbers.and_then(|numbers| numbers.try_into().ok());
    founders.with_context(|| {
        let path = path.display();
        format!("{path} is damaged: remove this node with `member remove`, and add another one")
    })
}

/// Stores what differs from `before`. If it is interrupted, nothing that was stored promises more than is known.
pub(crate) fn write(dir: &Path, stored: &Stored, before: &Stored) -> Result<()> {
    if stored.founders != before.founders {
        let text = stored.founders.map(|id| format!("{id}\n")).concat();
        let path = dir.join(FOUNDERS);
        let written = inband_storage::replace(&path, text.as_bytes(), inband_storage::FILE_MODE);
        written.with_context(|| path.display().to_string())?;
    }
    for (name, number, former) in [
        (NEW_ID, stored.new_id, before.new_id),
        (SESSION, stored.session, before.session),
        (HAS_LOG, stored.has_log.into(), before.has_log.into()),
    ] {
        if number != former {
            write_number(dir, name, number)?;
        }
    }
    // Always: its file says that a node has run here.
    Ok(write_number(dir, PROMISED, stored.promise)?)
}
