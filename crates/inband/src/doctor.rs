//! `inband doctor`: what works on this machine, and the cure for what does not.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{anyhow, bail, Result};
use clap::Args;
use inband_dataplane::wire::PACKET_LEN_MAX_BYTES;
use inband_dataplane::xdp;
use inband_lab::cluster_dir::ClusterDir;
use inband_lab::memory::{self, TooLarge};
use inband_lab::{preflight, ClusterSpec};
use inband_paxos::config::DEFAULT_RING_SLOTS;
use inband_paxos::key_file::KeyFile;

use crate::transport;
use crate::up::{store_memory_bytes, DEFAULT_DATA};

/// Bytes of IPv4 and UDP headers before a packet.
const IP_UDP_LEN_BYTES: usize = 28;

/// Options of `inband doctor`.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Look at this interface only.
    #[arg(long, value_name = "NAME")]
    interface: Option<String>,
    /// Look also at the certificate of the host with this configuration.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Would a cluster of so many partitions fit into this machine's memory?
    #[arg(long, default_value_t = 1, value_name = "P")]
    partitions: u32,
    /// The same: slots of each acceptor's ring.
    #[arg(long, default_value_t = DEFAULT_RING_SLOTS, value_name = "I")]
    ring_slots: u32,
    /// The cluster whose key file is looked at.
    #[arg(long, default_value = DEFAULT_DATA, value_name = "DIR")]
    data: PathBuf,
    /// Another key file to look at, of a host of `inband run`.
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
}

fn line(good: bool, what: &str, says: &str) {
    println!("{} {what:<22} {says}", if good { "ok  " } else { "--  " });
}

/// Check and print; fails only if nothing at all would work, or what was asked for does not fit.
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
    let memory = memory(args)?;
    match &memory {
        Ok(says) => line(true, "memory", says),
        Err(too_large) => line(false, "memory", &too_large.to_string()),
    }
    let keys = key_file(args);
    if let Some(config) = &args.config {
        let (good, says) = transport::health(config)?;
        line(good, "certificate", &says);
    }
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
    keys?;
    memory.map(drop).map_err(|too_large| anyhow!(too_large))
}

/// Is the key file there and for its owner alone? Without a cluster there is none to look at.
fn key_file(args: &DoctorArgs) -> Result<()> {
    let of_cluster = ClusterDir::key_file_in(&args.data);
    let path = match &args.key_file {
        Some(path) => path,
        None if of_cluster.exists() => &of_cluster,
        None => return Ok(()),
    };
    let keys = KeyFile::load(path);
    let good = format!("{} is for its owner alone", path.display());
    line(keys.is_ok(), "key file", &words(&keys, &good));
    Ok(keys.map(drop)?)
}

fn words<T, E: std::fmt::Display>(result: &Result<T, E>, good: &str) -> String {
    match result {
        Ok(_) => good.to_owned(),
        Err(error) => error.to_string(),
    }
}

/// Whether all hosts of a cluster on this machine fit; in words if they do.
fn memory(args: &DoctorArgs) -> Result<Result<String, TooLarge>> {
    let mut spec = ClusterSpec::new("inband", DEFAULT_DATA);
    spec.partitions = args.partitions;
    spec.ring_slots = args.ring_slots;
    spec.store_memory_bytes = store_memory_bytes(args.partitions);
    spec.check().map_err(|message| anyhow!(message))?;
    let available_bytes = memory::available_bytes();
    let mib = |bytes: u64| bytes >> 20;
    Ok(memory::check(&spec, available_bytes).map(|need| {
        format!(
            "{} MiB available; a cluster with --partitions {} --ring-slots {} takes about {}, of \
             which rings {} in each acceptor",
            mib(available_bytes),
            args.partitions,
            args.ring_slots,
            mib(need.total_bytes),
            mib(need.acceptor_rings_bytes)
        )
    }))
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
