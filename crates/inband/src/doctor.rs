//! `inband doctor`: what works on this machine, and how to fix what does not.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use std::time::Duration;

use anyhow::{anyhow, bail, Result};
use clap::Args;
use inband_cluster::network::preflight;
use inband_cluster::paxos::cluster_dir::ClusterDir;
use inband_cluster::paxos::memory::{self, TooLarge};
use inband_cluster::paxos::{control, ClusterSpec};
use inband_ground::xdp::{self, keep_refusals_in, Support};
use inband_host::key_file::KeyFile;
use inband_host::state_dir::StateLock;
use inband_paxos::backend;
use inband_paxos::config::{Config, Role, DEFAULT_RING_SLOTS};

use crate::exit_status::Unsuitable;
use crate::transport;
use crate::up::DEFAULT_DATA;
use inband_cluster::kv::store_memory_bytes;

/// Options of `inband doctor`.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Check this interface only.
    #[arg(long, value_name = "NAME")]
    interface: Option<String>,
    /// Check what `inband run` with this configuration needs: this host's roles, data plane, memory, keys and
    /// certificate. Default: check what a cluster of `inband up` on this machine needs.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["interface", "partitions", "ring_slots", "key_file"])]
    config: Option<PathBuf>,
    /// Check whether a cluster with this many partitions fits in this machine's memory.
    #[arg(long, value_name = "P")]
    partitions: Option<u32>,
    /// For the same check: slots of each acceptor's ring.
    #[arg(long, value_name = "I")]
    ring_slots: Option<u32>,
    /// Directory of the cluster whose key file is checked.
    #[arg(long, default_value = DEFAULT_DATA, value_name = "DIR")]
    data: PathBuf,
    /// Check this key file instead, that of a host of `inband run`.
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
}

fn line(good: bool, what: &str, says: &str) {
    println!("{} {what:<22} {says}", if good { "ok  " } else { "--  " });
}

/// Time limit for a running host to report its status.
const STATUS_LIMIT: Duration = Duration::from_secs(2);

/// Runs the checks and prints the results. Fails only if nothing at all would work, or a requested check fails.
pub fn doctor(args: &DoctorArgs) -> Result<()> {
    match &args.config {
        Some(path) => host(path),
        None => machine(args),
    }
}

/// Checks what `inband run` with this configuration would do, with the same code.
fn host(path: &Path) -> Result<()> {
    let config = Config::load(path)?;
    let mut bad: Vec<&str> = Vec::new();
    let mut check = |what: &'static str, good: bool, says: &str| {
        line(good, what, says);
        if !good {
            bad.push(what);
        }
    };
    let this = config.this();
    let roles: Vec<String> = this.roles.iter().map(Role::to_string).collect();
    let durability = config.cluster.durability;
    line(
        true,
        "host",
        &format!(
            "{}: {}; durability {durability}",
            this.name,
            roles.join(", ")
        ),
    );
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    line(true, "kernel", release.trim());
    let need = memory::host_bytes(
        &this.roles,
        config.ring_memory_bytes(),
        store_memory_bytes(config.cluster.partitions),
    );
    let running = control::status(&config.host.control, STATUS_LIMIT).ok();
    let available = memory::available_bytes();
    let says = format!(
        "this host takes about {} MiB, {} MiB are available",
        need >> 20,
        available >> 20
    );
    // It still starts, but the kernel may kill it later.
    line(running.is_some() || need <= available, "memory", &says);
    if let Some(path) = &config.host.password_file {
        let password = crate::replica::password_of(&config);
        let good = format!("{} is for its owner alone", path.display());
        check("password file", password.is_ok(), &words(&password, &good));
    }
    if let Some(path) = &config.cluster.key_file {
        let keys = KeyFile::load(path);
        let good = format!("{} is for its owner alone", path.display());
        check("key file", keys.is_ok(), &words(&keys, &good));
    } else {
        line(
            false,
            "key file",
            "none: packets are not authenticated; see docs/security.md",
        );
    }
    let (good, says) = transport::health(&config)?;
    match config.host.tls {
        Some(_) => check("certificate", good, &says),
        None => line(good, "certificate", &says),
    }
    let mtu = inband_paxos::mtu::check(&config);
    let says = format!("packets are made for {}", config.cluster.mtu);
    check("mtu", mtu.is_ok(), &words(&mtu, &says));
    let lock = state_lock(&config);
    if let Some(status) = running {
        // Its own programs are attached, so no other can be tried.
        let backends = status.backends.values().cloned().collect::<BTreeSet<_>>();
        let backends: Vec<String> = backends.into_iter().collect();
        let says = format!(
            "it is running, with {} ({})",
            backends.join(" and "),
            status.dataplane_why
        );
        line(true, "data plane", &says);
    } else if let Err(error) = &lock {
        // It is starting: trying programs would take the interface away from it.
        line(true, "data plane", &format!("not tried: {error}"));
    } else {
        keep_refusals_in(&std::env::temp_dir());
        match backend::try_host(&config) {
            Ok(choice) => {
                let says = format!("{} ({})", choice.dataplane, choice.why);
                line(true, "data plane", &says);
            }
            Err(error) => check("data plane", false, &error.to_string()),
        }
    }
    if bad.is_empty() {
        return Ok(());
    }
    Err(Unsuitable(format!("{} would not start: {}", this.name, bad.join(", "))).into())
}

/// Returns a lock that keeps the host from starting while its interface is tested; `None` if it has never started.
fn state_lock(config: &Config) -> Result<Option<StateLock>> {
    let state_dir = &config.host.state_dir;
    Ok(state_dir
        .exists()
        .then(|| StateLock::take(state_dir))
        .transpose()?)
}

/// Checks whether a cluster of `inband up` would work on this machine.
fn machine(args: &DoctorArgs) -> Result<()> {
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
    let asked = args.partitions.is_some() || args.ring_slots.is_some();
    match memory {
        Err(too_large) if asked => Err(anyhow!(too_large)),
        _ => Ok(()),
    }
}

/// Checks that the key file exists and only its owner can read it. Without a cluster there is none to check.
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

/// Checks whether all hosts of a cluster on this machine fit in memory; the text describes the result.
fn memory(args: &DoctorArgs) -> Result<Result<String, TooLarge>> {
    let mut spec = ClusterSpec::new("inband", DEFAULT_DATA);
    spec.partitions = args.partitions.unwrap_or(1);
    spec.ring_slots = args.ring_slots.unwrap_or(DEFAULT_RING_SLOTS);
    spec.store_memory_bytes = store_memory_bytes(spec.partitions);
    spec.check().map_err(|message| anyhow!(message))?;
    let available_bytes = memory::available_bytes();
    let mib = |bytes: u64| bytes >> 20;
    Ok(memory::check(&spec, available_bytes).map(|need| {
        format!(
            "{} MiB available; a cluster with --partitions {} --ring-slots {} takes about {}, of \
             which rings {} in each acceptor",
            mib(available_bytes),
            spec.partitions,
            spec.ring_slots,
            mib(need.total_bytes),
            mib(need.acceptor_rings_bytes)
        )
    }))
}

fn interface(name: &str) {
    let mtu = fs::read_to_string(format!("/sys/class/net/{name}/mtu")).unwrap_or_default();
    match xdp::probe(name) {
        Ok(probe) => {
            let says = format!(
                "takes native XDP: {}; generic XDP: {}; mtu {}",
                yes_or(&probe.native),
                yes_or(&probe.generic),
                mtu.trim()
            );
            line(probe.native.works(), &format!("interface {name}"), &says);
        }
        Err(error) => line(false, &format!("interface {name}"), &error.to_string()),
    }
}

/// Shows only that a program can be attached: sending is tested with --config, which names peers.
fn yes_or(support: &Support) -> String {
    match support {
        Support::Yes => "yes".into(),
        Support::No(why) => why.clone(),
    }
}
