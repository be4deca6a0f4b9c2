//! Requirements of a lab; each missing one is reported on one line with a remedy.

use std::fs;
use std::path::{Path, PathBuf};

use inband_host::backend::KERNEL_MIN_NATIVE;
use nix::sys::statvfs::statvfs;

use crate::error::LabError;
use crate::netns::search_path;

/// Oldest kernel that accepts the programs in native mode.
pub const OLDEST_KERNEL: (u32, u32) = KERNEL_MIN_NATIVE;
/// Free space that a cluster's directory must have at the start.
pub const DISK_FREE_MIN_BYTES: u64 = 256 << 20;
/// Commands that a lab runs, with their Debian packages.
pub const TOOLS: [(&str, &str); 2] = [("ip", "iproute2"), ("ethtool", "ethtool")];

// Bits of the effective capabilities in /proc/self/status.
const CAPABILITIES: [(u32, &str); 3] = [
    (12, "CAP_NET_ADMIN"),
    (13, "CAP_NET_RAW"),
    (21, "CAP_SYS_ADMIN"),
];

/// Checks everything that a lab of namespaces needs.
pub fn check_lab() -> Result<(), LabError> {
    check_privileges()?;
    check_kernel()?;
    check_namespaces()?;
    check_tools()
}

/// Checks the privileges to create namespaces and load programs.
pub fn check_privileges() -> Result<(), LabError> {
    let status = fs::read_to_string("/proc/self/status")
        .map_err(LabError::file("read", "/proc/self/status"))?;
    let effective = status
        .lines()
        .find_map(|l| l.strip_prefix("CapEff:"))
        .and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok())
        .unwrap_or(0);
    let missing: Vec<&str> = CAPABILITIES
        .iter()
        .filter(|(bit, _)| effective >> bit & 1 == 0)
        .map(|c| c.1)
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    let what = format!(
        "make namespaces and load XDP programs ({} missing)",
        missing.join(", ")
    );
    Err(LabError::NotPrivileged { what })
}

/// Checks that the kernel is new enough.
pub fn check_kernel() -> Result<(), LabError> {
    let path = "/proc/sys/kernel/osrelease";
    let release = fs::read_to_string(path).map_err(LabError::file("read", path))?;
    let release = release.trim().to_owned();
    if version_of(&release).is_some_and(|version| version >= OLDEST_KERNEL) {
        return Ok(());
    }
    let oldest = format!("{}.{}", OLDEST_KERNEL.0, OLDEST_KERNEL.1);
    Err(LabError::KernelTooOld { release, oldest })
}

fn version_of(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// Checks that the kernel supports network namespaces.
pub fn check_namespaces() -> Result<(), LabError> {
    if Path::new("/proc/self/ns/net").exists() {
        Ok(())
    } else {
        Err(LabError::NoNamespaces)
    }
}

/// Checks for the commands in [`TOOLS`].
pub fn check_tools() -> Result<(), LabError> {
    let path = search_path();
    for (tool, package) in TOOLS {
        if !std::env::split_paths(&path).any(|dir| dir.join(tool).is_file()) {
            return Err(LabError::ToolMissing { tool, package });
        }
    }
    Ok(())
}

/// The disk of a directory is full, or nearly so.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "disk full: {} has {} MiB free, {} are needed; free some or choose another --data directory",
    path.display(), free_bytes >> 20, DISK_FREE_MIN_BYTES >> 20
)]
pub struct DiskFull {
    pub path: PathBuf,
    pub free_bytes: u64,
}

/// Checks the free space for a cluster's directory. A file system that does not report it is assumed to have room.
pub fn check_disk(path: &Path) -> Result<(), DiskFull> {
    let Ok(fs) = statvfs(path) else { return Ok(()) };
    let free_bytes = fs.blocks_available() * fs.fragment_size();
    if free_bytes < DISK_FREE_MIN_BYTES {
        return Err(DiskFull {
            path: path.to_owned(),
            free_bytes,
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_versions_are_compared_as_numbers() {
        assert_eq!(version_of("6.18.44-fc-v445"), Some((6, 18)));
        assert_eq!(version_of("5.4.0"), Some((5, 4)));
        assert!(version_of("5.4").expect("version") < OLDEST_KERNEL);
        assert!(version_of("10.0-rc1").expect("version") > OLDEST_KERNEL);
        assert_eq!(version_of("unknown"), None);
    }

    #[test]
    fn a_full_disk_is_one_line() {
        let full = DiskFull {
            path: "/data".into(),
            free_bytes: 3 << 20,
        };
        assert_eq!(
            full.to_string(),
            "disk full: /data has 3 MiB free, 256 are needed; free some or choose another --data \
             directory"
        );
        check_disk(Path::new("/")).expect("this machine has room");
    }
}
