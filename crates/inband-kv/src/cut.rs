//! A consistent cut through all stores at one entry of the log of cross-partition commands, for exports. Between two
//! turns of the machine each partition is wherever its log happens to be, and one may have a client's second write
//! while another lacks its first.

use std::io::Write;
use std::sync::mpsc::{sync_channel, Receiver, SyncSender};
use std::sync::Arc;
use std::time::Duration;

use rocksdb::DB;

use crate::export::{export_frozen, ExportError, Summary};
use crate::limits::CUT_WAIT_MS_MAX;

/// Longest time that the machine waits for the reader to take its snapshots.
const LOOK_MAX: Duration = Duration::from_millis(CUT_WAIT_MS_MAX);

/// The machine's end: the machine pauses while the reader takes snapshots.
pub(crate) struct Cut {
    there: SyncSender<Vec<Arc<DB>>>,
    seen: Receiver<()>,
}

/// The reader's end.
pub struct CutWaiter {
    there: Receiver<Vec<Arc<DB>>>,
    seen: SyncSender<()>,
}

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
    /// The databases, one per log, hold exactly what precedes the cut.
    pub(crate) fn show(self, dbs: Vec<Arc<DB>>) {
        // The waiting reader may have given up.
        if self.there.send(dbs).is_ok() {
            let _ = self.seen.recv_timeout(LOOK_MAX);
        }
    }
}

impl CutWaiter {
    /// Exports the state at the cut, which must be reached within `limit`.
    pub fn export(self, to: impl Write, limit: Duration) -> Result<Summary, ExportError> {
        let arrived = self.there.recv_timeout(limit);
        let dbs = arrived.map_err(|_| ExportError::NoCut {
            limit_ms: limit.as_millis() as u64,
        })?;
        let snapshots: Vec<_> = dbs.iter().map(|db| db.snapshot()).collect();
        // Full or disconnected: the machine has moved on, and the snapshots are not a cut.
        if self.seen.send(()).is_err() {
            return Err(ExportError::NoCut {
                limit_ms: CUT_WAIT_MS_MAX,
            });
        }
        export_frozen(&dbs, &snapshots, to)
    }
}
