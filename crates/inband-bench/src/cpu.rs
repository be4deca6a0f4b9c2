//! CPU time of processes and of the packet programs that they have loaded.
//!
//! On veth a packet runs through all programs on its path within its sender's system call, so the kernel charges their
//! time to the sender. Its per-program statistics, when enabled, show which program used the time.

use std::fs;
use std::time::{Duration, Instant};

/// Enables the kernel's statistics of programs' run time, for the whole machine.
const BPF_STATS: &str = "/proc/sys/kernel/bpf_stats_enabled";
/// The clock tick rate in /proc on all supported Linux systems.
pub const TICKS_PER_S: f64 = 100.0;

/// CPU seconds per second: 1 is one core.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct CpuUse {
    /// Time charged to the process.
    pub process: f64,
    /// Run time of the packet programs that it loaded, whichever process it was charged to.
    pub programs: f64,
}

/// Readings of several processes; the first has been taken.
pub struct CpuClock {
    started: Instant,
    hosts: Vec<(String, u32, Reading)>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Reading {
    process_s: f64,
    programs_s: f64,
}

impl CpuClock {
    /// Takes the first reading.
    pub fn start(pids: &[(String, u32)]) -> CpuClock {
        let hosts = pids.iter();
        CpuClock {
            hosts: hosts
                .map(|(name, pid)| (name.clone(), *pid, read(*pid)))
                .collect(),
            started: Instant::now(),
        }
    }

    /// Time since the start.
    pub fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// Takes the second reading.
    pub fn stop(self) -> Vec<(String, CpuUse)> {
        let elapsed_s = self.elapsed().as_secs_f64().max(f64::MIN_POSITIVE);
        let hosts = self.hosts.into_iter();
        hosts
            .map(|(name, pid, before)| {
                let now = read(pid);
                let share = |now: f64, before: f64| ((now - before) / elapsed_s).max(0.0);
                let used = CpuUse {
                    process: share(now.process_s, before.process_s),
                    programs: share(now.programs_s, before.programs_s),
                };
                (name, used)
            })
            .collect()
    }
}

fn read(pid: u32) -> Reading {
    // A process that has exited used nothing more.
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let programs_ns: u64 = program_times_ns(pid).into_iter().map(|(_, ns)| ns).sum();
    Reading {
        process_s: process_s(&stat),
        programs_s: programs_ns as f64 / 1e9,
    }
}

fn process_s(stat: &str) -> f64 {
    ticks_used(stat).iter().sum::<f64>() / TICKS_PER_S
}

/// User and system time, in clock ticks, from the `stat` of a process or a thread.
pub fn ticks_used(stat: &str) -> [f64; 2] {
    // The program's name is in parentheses and may contain anything.
    let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let ticks = |at: usize| -> f64 {
        let field = fields.split_whitespace().nth(at);
        field.and_then(|f| f.parse().ok()).unwrap_or(0.0)
    };
    [11, 12].map(ticks)
}

/// Programs by id, each once even if it has several descriptors.
fn program_times_ns(pid: u32) -> Vec<(u64, u64)> {
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/fdinfo")) else {
        return Vec::new();
    };
    let mut programs: Vec<(u64, u64)> = entries
        .filter_map(|entry| program_time_ns(&fs::read_to_string(entry.ok()?.path()).ok()?))
        .collect();
    programs.sort_unstable();
    programs.dedup_by_key(|program| program.0);
    programs
}

fn program_time_ns(fdinfo: &str) -> Option<(u64, u64)> {
    let field = |name: &str| -> Option<u64> {
        let line = fdinfo.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim_start_matches(':').trim().parse().ok()
    };
    Some((field("prog_id")?, field("run_time_ns")?))
}

/// Enables the kernel's statistics while it lives.
pub struct ProgramTimes {
    before: String,
}

impl ProgramTimes {
    /// Enables the statistics; fails without the privilege.
    pub fn count() -> std::io::Result<ProgramTimes> {
        let before = fs::read_to_string(BPF_STATS)?;
        fs::write(BPF_STATS, "1")?;
        Ok(ProgramTimes { before })
    }
}

impl Drop for ProgramTimes {
    fn drop(&mut self) {
        // If it fails, the kernel keeps counting, which costs each packet a few nanoseconds.
        let _ = fs::write(BPF_STATS, self.before.trim());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_from_what_the_kernel_writes() {
        let stat = "7 (a b) c) S 1 7 7 0 -1 4194560 1 0 0 0 250 50 0 0 20 0 1 0 100 0 0";
        assert_eq!(process_s(stat), 3.0);
        assert_eq!(process_s(""), 0.0);
        let program = "pos:\t0\nprog_type:\t6\nprog_id:\t12\nrun_time_ns:\t345\nrun_cnt:\t6\n";
        assert_eq!(program_time_ns(program), Some((12, 345)));
        assert_eq!(program_time_ns("pos:\t0\nflags:\t02\n"), None);
    }

    #[test]
    fn a_busy_process_uses_cpu() {
        let clock = CpuClock::start(&[("me".into(), std::process::id())]);
        while clock.elapsed() < Duration::from_millis(200) {
            std::hint::black_box(fs::read("/proc/self/stat").ok());
        }
        let used = clock.stop()[0].1;
        assert!(used.process > 0.05, "{used:?}");
    }
}
