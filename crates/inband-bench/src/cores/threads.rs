//! CPU time of a replica's threads, from `/proc`.

use std::fs;

use anyhow::{Context, Result};

use crate::cpu::{ticks_used, TICKS_PER_S};

const US_PER_TICK: f64 = 1e6 / TICKS_PER_S;

/// Threads with the same work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The replica's own: clients, protocol, commands.
    Replica,
    /// They take part in its turns.
    Workers,
    /// They write to RocksDB.
    Writers,
    /// Packet roles in user space, RocksDB's own, and those that hardly do anything.
    Others,
}

impl Kind {
    pub const ALL: [Kind; 4] = [Kind::Replica, Kind::Workers, Kind::Writers, Kind::Others];

    pub fn name(self) -> &'static str {
        match self {
            Kind::Replica => "replica's thread",
            Kind::Workers => "workers",
            Kind::Writers => "writers",
            Kind::Others => "other threads",
        }
    }

    fn of(is_main: bool, name: &str) -> Kind {
        match name {
            _ if is_main => Kind::Replica,
            _ if name.starts_with("ib-work") => Kind::Workers,
            _ if name.starts_with("ib-write") => Kind::Writers,
            _ => Kind::Others,
        }
    }
}

/// By kind: user and system time in microseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ThreadTimes([[f64; 2]; Kind::ALL.len()]);

impl ThreadTimes {
    /// The times of a process so far.
    pub fn read(pid: u32) -> Result<ThreadTimes> {
        let mut times = ThreadTimes::default();
        let dir = format!("/proc/{pid}/task");
        for thread in fs::read_dir(&dir).with_context(|| format!("reading {dir}"))? {
            let path = thread?.path();
            // A thread that has exited meanwhile uses nothing more.
            let Ok(stat) = fs::read_to_string(path.join("stat")) else {
                continue;
            };
            times.add(pid, &stat);
        }
        Ok(times)
    }

    /// Adds what one thread's `stat` says.
    fn add(&mut self, pid: u32, stat: &str) {
        let Some((id, rest)) = stat.split_once(" (") else {
            return;
        };
        // The name is in parentheses and may contain anything.
        let name = rest.rsplit_once(')').map_or("", |(name, _)| name);
        let kind = Kind::of(id.parse() == Ok(pid), name);
        for (us, ticks) in self.0[kind as usize].iter_mut().zip(ticks_used(stat)) {
            *us += ticks * US_PER_TICK;
        }
    }

    /// What was used since an earlier reading.
    pub fn since(&self, before: &ThreadTimes) -> [[f64; 2]; Kind::ALL.len()] {
        let mut used = self.0;
        for (used, before) in used.iter_mut().flatten().zip(before.0.iter().flatten()) {
            *used = (*used - before).max(0.0);
        }
        used
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_by_kind_of_thread() {
        let stat = |id, name, user, system| {
            format!("{id} ({name}) S 1 7 7 0 -1 4194560 1 0 0 0 {user} {system} 0 0 20 0 1 0 100")
        };
        let mut times = ThreadTimes::default();
        times.add(7, &stat(7, "inband", 3, 4));
        times.add(7, &stat(8, "ib-work0", 1, 0));
        times.add(7, &stat(9, "ib-work1", 1, 2));
        times.add(7, &stat(10, "ib-write", 5, 0));
        times.add(7, &stat(11, "a) b", 0, 6));
        times.add(7, "nothing");
        let expected =
            [[3, 4], [2, 2], [5, 0], [0, 6]].map(|pair| pair.map(|t| f64::from(t) * 1e4));
        assert_eq!(times.since(&ThreadTimes::default()), expected);
        let own = ThreadTimes::read(std::process::id()).expect("this process");
        assert!(own.0.iter().flatten().all(|us| *us >= 0.0));
    }
}
