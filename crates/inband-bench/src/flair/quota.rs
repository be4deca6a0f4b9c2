//! Limits the CPU time of a process with a control group (version 1), which is removed on drop.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{ensure, Context, Result};

/// Mount point of the cpu controller.
const ROOT: &str = "/sys/fs/cgroup/cpu";
/// A process that has used its share waits for the next period. The period is short, to keep these waits out of the
/// latencies as far as possible.
const PERIOD_MIN: Duration = Duration::from_millis(5);
/// The kernel's minimum share per period.
const SHARE_MIN: Duration = Duration::from_millis(1);

/// Returns the period for a share.
pub fn period(percent: u32) -> Duration {
    PERIOD_MIN.max(SHARE_MIN * 100 / percent.max(1))
}

/// The kernel's maximum; the default is 1,024.
const WEIGHT_MOST: &str = "262144";

pub struct Quota {
    dir: PathBuf,
    pid: u32,
}

impl Quota {
    /// Limits a process with all its threads. The process gets its share even if others compete for the CPU.
    pub fn on(pid: u32, percent: u32) -> Result<Quota> {
        ensure!(
            (1..=100).contains(&percent),
            "a quota of {percent} % of a CPU: from 1 to 100"
        );
        let period_us = period(percent).as_micros();
        let share_us = (period_us * u128::from(percent)).div_ceil(100);
        let quota = Quota::first(pid)?;
        quota.write("cpu.cfs_period_us", &period_us.to_string())?;
        quota.write("cpu.cfs_quota_us", &share_us.to_string())?;
        Ok(quota)
    }

    /// Gives a process the highest weight, without a limit.
    pub fn first(pid: u32) -> Result<Quota> {
        let dir = PathBuf::from(ROOT).join(format!("inband-bench-{pid}"));
        fs::create_dir(&dir).with_context(|| {
            format!(
                "cannot make {}: run as root where control groups of version 1 are mounted",
                dir.display()
            )
        })?;
        let quota = Quota { dir, pid };
        quota.write("cpu.shares", WEIGHT_MOST)?;
        quota.write("cgroup.procs", &pid.to_string())?;
        Ok(quota)
    }

    fn write(&self, file: &str, text: &str) -> Result<()> {
        let file = self.dir.join(file);
        fs::write(&file, text).with_context(|| format!("cannot write {text} to {}", file.display()))
    }
}

impl Drop for Quota {
    fn drop(&mut self) {
        // A group can be removed only once it has no processes.
        let _ = fs::write(
            PathBuf::from(ROOT).join("cgroup.procs"),
            self.pid.to_string(),
        );
        let _ = fs::remove_dir(&self.dir);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_share_takes_a_longer_period() {
        assert_eq!(period(50), Duration::from_millis(5));
        assert_eq!(period(20), Duration::from_millis(5));
        assert_eq!(period(10), Duration::from_millis(10));
        assert_eq!(period(8), Duration::from_micros(12_500));
    }
}
