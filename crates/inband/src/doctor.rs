//! `inband doctor`: what works on this machine, and the cure for what does not.

use std::fs;
use std::path::Path;

use anyhow::{bail, Result};
use clap::Args;
use inband_dataplane::wire::PACKET_LEN_MAX_BYTES;
use inband_dataplane::xdp;
use inband_lab::preflight;

/// Bytes of IPv4 and UDP headers before a packet.
const IP_UDP_LEN_BYTES: usize = 28;
/// Memory that a default cluster on one machine takes, roughly.
const MEMORY_MIN_MIB: u64 = 1024;

/// Options of `inband doctor`.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Look at this interface only.
    #[arg(long, value_name = "NAME")]
    interface: Option<String>,
}

fn line(good: bool, what: &str, says: &str) {
    println!("{} {what:<22} {says}", if good { "ok  " } else { "--  " });
}

/// Check and print; fails only if nothing at all would work.
pub fn doctor(args: &DoctorArgs) -> Result<()> {
    let root = preflight::check_privileges();
    line(
        root.is_ok(),
        "privileges",
        &words(&root, "namespaces and BPF are allowed"),
    );
    let kernel = preflight::check_kernel();
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    line(kernel.is_ok(), "kernel", &words(&kernel, release.trim()));
    let tools = preflight::check_tools();
    line(
        tools.is_ok(),
        "tools",
        &words(&tools, "ip and ethtool are installed"),
    );
    if root.is_ok() {
        let namespaces = preflight::check_namespaces();
        line(
            namespaces.is_ok(),
            "network namespaces",
            &words(&namespaces, "can be made"),
        );
    }
    let bpffs = fs::read_to_string("/proc/mounts").is_ok_and(|m| m.contains(" bpf "));
    line(
        true,
        "bpffs",
        if bpffs {
            "mounted"
        } else {
            "not mounted, and not needed"
        },
    );
    memory();
    let mut interfaces: Vec<String> = match &args.interface {
        Some(name) => vec![name.clone()],
        None => fs::read_dir("/sys/class/net")?
            .filter_map(|e| e.ok()?.file_name().into_string().ok())
            .collect(),
    };
    interfaces.sort();
    for name in &interfaces {
        interface(name);
    }
    if args.interface.is_some() && !Path::new("/sys/class/net").join(&interfaces[0]).exists() {
        bail!("interface {:?} does not exist", interfaces[0]);
    }
    line(
        true,
        "udp backend",
        "always works: inband up --dataplane udp",
    );
    Ok(())
}

fn words<T, E: std::fmt::Display>(result: &Result<T, E>, good: &str) -> String {
    match result {
        Ok(_) => good.to_owned(),
        Err(error) => error.to_string(),
    }
}

fn memory() {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kib = text.lines().find_map(|l| {
        l.strip_prefix("MemAvailable:")?
            .split_whitespace()
            .next()?
            .parse()
            .ok()
    });
    let mib: u64 = kib.unwrap_or(0u64) / 1024;
    let says = if mib >= MEMORY_MIN_MIB {
        format!("{mib} MiB available")
    } else {
        format!("{mib} MiB available, a default cluster wants {MEMORY_MIN_MIB}: lower --ring-slots and --replicas")
    };
    line(mib >= MEMORY_MIN_MIB, "memory", &says);
}

fn interface(name: &str) {
    let mtu = fs::read_to_string(format!("/sys/class/net/{name}/mtu")).unwrap_or_default();
    let need = PACKET_LEN_MAX_BYTES + IP_UDP_LEN_BYTES;
    let mtu_ok = mtu.trim().parse::<usize>().is_ok_and(|m| m >= need);
    let cure = if mtu_ok {
        String::new()
    } else {
        format!(", below {need}: ip link set {name} mtu {need}")
    };
    match xdp::probe(name) {
        Ok(probe) => {
            let says = format!(
                "native XDP: {}; generic XDP: {}; mtu {}{cure}",
                probe.native,
                probe.generic,
                mtu.trim()
            );
            line(
                probe.native.works() && mtu_ok,
                &format!("interface {name}"),
                &says,
            );
        }
        Err(error) => line(false, &format!("interface {name}"), &error.to_string()),
    }
}
