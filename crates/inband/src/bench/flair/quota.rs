//! So much of a CPU for a process, by a control group (version 1) that ends with this.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{ensure, Context, Result};

/// Where groups for the CPU are made.
const ROOT: &str = "/sys/fs/cgroup/cpu";
/// A process that has used its share waits for the next period: short, or every wait shows in the latencies.
pub const PERIOD: Duration = Duration::from_millis(5);

/// The kernel grants no shorter time in a period.
const SHARE_MIN_US: u128 = 1000;

/// See the module.
pub struct Quota {
    dir: PathBuf,
    pid: u32,
}

impl Quota {
    /// Put a process, with all its threads, under a quota.
    pub fn on(pid: u32, percent: u32) -> Result<Quota> {
        let period_us = PERIOD.as_micros();
        let share_us = period_us * u128::from(percent) / 100;
        ensure!(
            share_us >= SHARE_MIN_US,
            "--quota-percent {percent} is below {}: the kernel grants no less than {SHARE_MIN_US} us",
            SHARE_MIN_US * 100 / period_us
        );
        let dir = PathBuf::from(ROOT).join(format!("inband-bench-{pid}"));
        fs::create_dir(&dir).with_context(|| {
            format!(
                "cannot make {}: run as root where control groups of version 1 are mounted",
                dir.display()
            )
        })?;
        let quota = Quota { dir, pid };
        quota.write("cpu.cfs_period_us", &period_us.to_string())?;
        quota.write("cpu.cfs_quota_us", &share_us.to_string())?;
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
        // A group with processes stays; one whose process has gone is empty.
        let _ = fs::write(
            PathBuf::from(ROOT).join("cgroup.procs"),
            self.pid.to_string(),
        );
        let _ = fs::remove_dir(&self.dir);
    }
}
