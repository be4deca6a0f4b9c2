//! Requirements of a lab; each missing one is reported on one line with a remedy.

use std::fs;
use std::path::Path;

use inband_host::backend::KERNEL_MIN_NATIVE;

use crate::error::LabError;
use crate::netns::search_path;

/// Oldest kernel that accepts the programs in native mode.
pub const OLDEST_KERNEL: (u32, u32) = KERNEL_MIN_NATIVE;
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
}
