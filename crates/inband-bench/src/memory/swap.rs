//! Limits the memory of programs with a control group (version 1), with swap on a block device in memory (zram) for the
//! rest. Both are removed on drop.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{ensure, Context, Result};

const GROUPS: &str = "/sys/fs/cgroup/memory";
const ZRAM_CONTROL: &str = "/sys/class/zram-control";
const DEVICE_LEN: &str = "4G";
/// Higher than any other swap of the machine.
const PRIORITY: &str = "32000";

pub struct Swap {
    group: PathBuf,
    // Dropped after the group.
    _device: Device,
}

/// A zram device used as swap.
struct Device {
    number: String,
}

fn tool(program: &str, arguments: &[&str]) -> Result<()> {
    let output = Command::new(program).args(arguments).output();
    let output = output.with_context(|| format!("{program} cannot be run"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{program}: {}", said.trim());
    Ok(())
}

fn write(file: &Path, text: &str) -> Result<()> {
    fs::write(file, text).with_context(|| format!("cannot write {text} to {}", file.display()))
}

impl Device {
    fn path(&self) -> String {
        format!("/dev/zram{}", self.number)
    }

    fn create() -> Result<Device> {
        let add = Path::new(ZRAM_CONTROL).join("hot_add");
        let number = fs::read_to_string(&add)
            .with_context(|| format!("no zram device: cannot read {}", add.display()))?;
        let device = Device {
            number: number.trim().to_owned(),
        };
        let size = format!("/sys/block/zram{}/disksize", device.number);
        write(Path::new(&size), DEVICE_LEN)?;
        tool("mkswap", &[&device.path()])?;
        tool("swapon", &["--priority", PRIORITY, &device.path()])?;
        Ok(device)
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // Fails if swapon did not succeed, which is fine.
        let _ = tool("swapoff", &[&self.path()]);
        let _ = fs::write(Path::new(ZRAM_CONTROL).join("hot_remove"), &self.number);
    }
}

impl Swap {
    /// Creates a group without a limit. The error says what the machine lacks.
    pub fn create() -> Result<Swap> {
        let device = Device::create()?;
        let group = PathBuf::from(GROUPS).join(format!("inband-bench-{}", std::process::id()));
        fs::create_dir(&group).with_context(|| {
            format!(
                "cannot make {}: run as root where control groups of version 1 are mounted",
                group.display()
            )
        })?;
        Ok(Swap {
            group,
            _device: device,
        })
    }

    /// Limits the memory of all programs in the group together.
    pub fn limit(&self, bytes: u64) -> Result<()> {
        write(
            &self.group.join("memory.limit_in_bytes"),
            &bytes.to_string(),
        )
    }

    /// Returns a command that starts a program in the group; the caller adds the program.
    pub fn runner(&self) -> Command {
        let mut command = Command::new("sh");
        let enter = r#"echo $$ > "$0" && exec "$@""#;
        command
            .args(["-c", enter])
            .arg(self.group.join("cgroup.procs"));
        command
    }
}

/// Pages that the machine has read from swap.
pub fn pages_in() -> u64 {
    let text = fs::read_to_string("/proc/vmstat").unwrap_or_default();
    let pages = text.lines().find_map(|line| line.strip_prefix("pswpin "));
    pages.and_then(|pages| pages.parse().ok()).unwrap_or(0)
}

impl Drop for Swap {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.group);
    }
}
