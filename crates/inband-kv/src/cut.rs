//! A cut through all stores at one entry of the log of commands over several partitions: what an
//! export reads. Between two turns of the machine the partitions are where their logs happen to be,
//! and one may have a client's second write without another having its first.

use std::io::Write;
use std::sync::mpsc::{sync_channel, Receiver, SyncSender};
use std::sync::Arc;
use std::time::Duration;

use rocksdb::DB;

use crate::export::{export_frozen, ExportError, Summary};
use crate::limits::CUT_WAIT_MS_MAX;

/// Longest time that the machine waits for somebody to look.
const LOOK_MAX: Duration = Duration::from_millis(CUT_WAIT_MS_MAX);

/// The machine's end: it stands still while somebody looks.
pub(crate) struct Cut {
    there: SyncSender<Vec<Arc<DB>>>,
    seen: Receiver<()>,
}

/// The end of who wants to look.
pub struct CutWaiter {
    there: Receiver<Vec<Arc<DB>>>,
    seen: SyncSender<()>,
}

/// Both ends.
pub(crate) fn cut() -> (Cut, CutWaiter) {
    let (there, arrives) = sync_channel(1);
    let (sees, seen) = sync_channel(1);
    let waiter = CutWaiter {
        there: arrives,
        seen: sees,
    };
    (Cut { there, seen }, waiter)
}

impl Cut {
    /// The databases, one a log, hold what is before the cut and nothing else.
    pub(crate) fn show(self, dbs: Vec<Arc<DB>>) {
        // Whoever waited may have given up.
        if self.there.send(dbs).is_ok() {
            let _ = self.seen.recv_timeout(LOOK_MAX);
        }
    }
}

impl CutWaiter {
    /// Export what is there at the cut, which has to come within `limit`.
    pub fn export(self, to: impl Write, limit: Duration) -> Result<Summary, ExportError> {
        let arrived = self.there.recv_timeout(limit);
        let dbs = arrived.map_err(|_| ExportError::NoCut {
            limit_ms: limit.as_millis() as u64,
        })?;
        let snapshots: Vec<_> = dbs.iter().map(|db| db.snapshot()).collect();
        // Full or gone: the machine has gone on, and what was seen is no cut.
        if self.seen.send(()).is_err() {
            return Err(ExportError::NoCut {
                limit_ms: CUT_WAIT_MS_MAX,
            });
        }
        export_frozen(&dbs, &snapshots, to)
    }
}
