//! Free space on the disks of the stores.
//!
//! RocksDB does not survive a write that fails for lack of space: a later one aborts the process. So client writes are
//! refused while there is still some space, and when there is hardly any left nothing is written. Other programs may
//! take the rest at any speed, so the disks are checked at short intervals and again right before each write.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use nix::sys::statvfs::statvfs;

use crate::limits::{DISK_FREE_BYTES_MIN, DISK_FREE_SHARE_MIN};

/// Interval between checks: less is written in between than is kept free. A check takes about a microsecond.
const PERIOD: Duration = Duration::from_millis(1);

/// How much space there is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Room {
    Enough,
    /// Only for commands decided elsewhere, and for those that free space.
    Little,
    /// Nothing may be written.
    None,
}

/// Checks the disks at intervals.
#[derive(Debug)]
pub struct SpaceWatch {
    dirs: Vec<PathBuf>,
    looked_at: Option<Instant>,
    room: Room,
    /// The disk with the least space, and how much that is.
    why: String,
}

impl SpaceWatch {
    /// Watches the disks that hold these directories.
    pub fn new(dirs: Vec<PathBuf>) -> Self {
        Self {
            dirs,
            looked_at: None,
            room: Room::Enough,
            why: String::new(),
        }
    }

    /// Checks again if the interval has elapsed. Returns whether the result or its description has changed.
    pub fn look(&mut self, now: Instant) -> bool {
        let age = self.looked_at.map(|at| now.saturating_duration_since(at));
        if age.is_some_and(|age| age < PERIOD) {
            return false;
        }
        self.look_now(now)
    }

    /// Checks again, and returns whether the result or its description has changed.
    pub fn look_now(&mut self, now: Instant) -> bool {
        self.looked_at = Some(now);
        let before = self.room;
        let described = std::mem::take(&mut self.why);
        self.room = Room::Enough;
        for dir in &self.dirs {
            // If this fails, the store fails too and reports the reason.
            let Ok(disk) = statvfs(dir) else {
                continue;
            };
            let unit_bytes = disk.fragment_size();
            let total_bytes = disk.blocks() * unit_bytes;
            let free_bytes = disk.blocks_available() * unit_bytes;
            let kept_bytes = DISK_FREE_BYTES_MIN.min(total_bytes / DISK_FREE_SHARE_MIN);
            // Hysteresis: a little more is needed to recover, so that refusals do not flap.
            let is_below = |limit_bytes: u64, room| {
                let is_there = before >= room;
                free_bytes < limit_bytes + if is_there { limit_bytes / 4 } else { 0 }
            };
            let room = match () {
                () if is_below(kept_bytes / 2, Room::None) => Room::None,
                () if is_below(kept_bytes, Room::Little) => Room::Little,
                () => Room::Enough,
            };
            if room > self.room {
                self.room = room;
                self.why = format!(
                    "the disk of {} has {} MiB left, and {} MiB are kept free",
                    dir.display(),
                    free_bytes >> 20,
                    kept_bytes >> 20
                );
            }
        }
        if self.room != before {
            match self.room {
                Room::Enough => {
                    tracing::info!("there is room on the disks; writes are taken again")
                }
                room => tracing::warn!(?room, "writes are refused: {}", self.why),
            }
        }
        self.room != before || self.why != described
    }

    pub fn room(&self) -> Room {
        self.room
    }

    /// Returns a description of the shortage, if there is one.
    pub fn why(&self) -> Option<&str> {
        (self.room != Room::Enough).then_some(&self.why)
    }
}
