//! `sync` mode with real processes on a real file system: everything is killed, or loses power, and recovers completely
//! in the same epoch.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::common::{self, Client, Cluster};
use inband_paxos::config::{Dataplane, Durability};

const TIMEOUT: Duration = Duration::from_secs(60);
/// How long clients write before the failure, at least.
const LOAD: Duration = Duration::from_millis(1_000);
const ACKNOWLEDGED_MIN: u64 = 100;
const CLIENTS: usize = 3;
const IMAGE_BYTES: u64 = 1 << 30;

fn start(name: &str, dataplane: Dataplane) -> Cluster {
    Cluster::start(name, dataplane, |spec| {
        spec.durability = Durability::Sync;
        spec.partitions = 2;
    })
}

/// Clients that write numbered keys until the connection is lost; they return the last number acknowledged. This returns
/// while they write.
fn write_keys(address: SocketAddr, round: usize) -> Vec<JoinHandle<u64>> {
    let total = Arc::new(AtomicU64::new(0));
    let client = move |id: usize, total: &AtomicU64| {
        let mut client = Client::connect(address);
        let acknowledged = |number: &u64| {
            let key = format!("{round}:{id}:{number}");
            let reply = client.try_call(&["SET", &key, &number.to_string()]);
            let is_acknowledged = reply.as_deref() == Some("+OK");
            total.fetch_add(u64::from(is_acknowledged), Ordering::Relaxed);
            is_acknowledged
        };
        (1..).take_while(acknowledged).last().unwrap_or(0)
    };
    let start = |id| {
        let total = Arc::clone(&total);
        thread::spawn(move || client(id, &total))
    };
    let clients = (0..CLIENTS).map(start).collect();
    thread::sleep(LOAD);
    let deadline = Instant::now() + TIMEOUT;
    while total.load(Ordering::Relaxed) < ACKNOWLEDGED_MIN {
        assert!(Instant::now() < deadline, "nothing is acknowledged");
        thread::sleep(Duration::from_millis(5));
    }
    clients
}

/// A replica that lost more than the others loads a checkpoint first, and meanwhile answers with an error.
fn read(reader: &mut Client, key: &str) -> String {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let got = reader.call(&["GET", key]);
        if !got.starts_with('-') || Instant::now() > deadline {
            return got;
        }
        thread::sleep(Duration::from_millis(20));
    }
}

/// Checks that every acknowledged key is there.
fn read_keys(address: SocketAddr, round: usize, clients: Vec<JoinHandle<u64>>) -> u64 {
    let mut reader = Client::connect(address);
    let mut total = 0;
    for (id, client) in clients.into_iter().enumerate() {
        let last = client.join().expect("a client does not panic");
        for number in 1..=last {
            let got = read(&mut reader, &format!("{round}:{id}:{number}"));
            assert_eq!(
                got,
                number.to_string(),
                "round {round}, client {id} of {last}"
            );
        }
        total += last;
    }
    assert!(total > 0, "nothing was acknowledged");
    total
}

fn killed(name: &str, dataplane: Dataplane) {
    let mut cluster = start(name, dataplane);
    assert_eq!(cluster.status().durability, "sync");
    for round in 0..3 {
        let clients = write_keys(cluster.resp(), round);
        let stopped = cluster.crash();
        (cluster, _) = stopped.up_again(|_| {});
        assert_eq!(cluster.status().epoch, 1);
        let total = read_keys(cluster.resp(), round, clients);
        println!("{total} acknowledged SETs read back");
    }
    // A killed acceptor votes again when it is restarted, in the same epoch.
    for acceptor in ["acceptor/0", "acceptor/1"] {
        cluster.supervisor.kill(acceptor).expect("it is killed");
        cluster.supervisor.restart(acceptor).expect("it starts");
        let mut client = Client::connect(cluster.resp());
        assert_eq!(client.call(&["SET", acceptor, "killed"]), "+OK");
    }
    cluster.wait_until_equal(TIMEOUT);
    cluster.down_and_compare();
}

#[test]
fn a_killed_cluster_goes_on_in_its_epoch() {
    killed("killed", Dataplane::Udp);
}

/// Leaders and quorum counters are in the kernel, acceptors are not.
#[test]
fn a_killed_cluster_goes_on_in_its_epoch_with_xdp() {
    if common::lab_works() {
        killed("killed-xdp", Dataplane::Xdp);
    }
}

/// A file system in an image file, so that the state of its disk can be copied at any time.
struct Disk {
    image: PathBuf,
    at: PathBuf,
}

fn run(program: &str, arguments: &[&Path]) -> bool {
    let ran = Command::new(program).args(arguments).output();
    ran.is_ok_and(|output| output.status.success())
}

impl Disk {
    /// `None` if the required privileges or programs are missing.
    fn new(at: &Path) -> Option<Disk> {
        let disk = Disk {
            image: at.with_extension("img"),
            at: at.to_owned(),
        };
        fs::create_dir_all(at).expect("a directory is made");
        let file = fs::File::create(&disk.image).expect("a file is made");
        file.set_len(IMAGE_BYTES).expect("it may be this long");
        let made = run("mkfs.ext4", &[Path::new("-q"), &disk.image]);
        (made && disk.mount()).then_some(disk)
    }

    fn mount(&self) -> bool {
        // As far as the kernel allows, nothing is written before it is synced.
        let options = Path::new("-oloop,commit=600");
        run("mount", &[options, &self.image, &self.at])
    }

    /// A copy of what is on disk now, without what is only in memory.
    fn copy(&self) -> PathBuf {
        let copy = self.image.with_extension("copy");
        let sparse = Path::new("--sparse=always");
        assert!(
            run("cp", &[sparse, &self.image, &copy]),
            "no copy of the disk"
        );
        copy
    }

    /// Power returns: only the copy is left.
    fn put_back(&self, copy: &Path) {
        let deadline = Instant::now() + TIMEOUT;
        while !run("umount", &[&self.at]) {
            assert!(Instant::now() < deadline, "{} is busy", self.at.display());
            thread::sleep(Duration::from_millis(50));
        }
        fs::rename(copy, &self.image).expect("the copy takes the disk's place");
        assert!(self.mount(), "the disk is mounted again");
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        run("umount", &[Path::new("-l"), &self.at]);
        let _ = fs::remove_file(&self.image);
        let _ = fs::remove_dir(&self.at);
    }
}

/// Suspends all processes of the cluster.
fn stop_processes(dir: &Path) {
    let mut stopped = 0;
    for host in fs::read_dir(dir.join("hosts")).expect("there are hosts") {
        let pid = host.expect("a host").path().join("pid");
        let pid = fs::read_to_string(pid).expect("a process id");
        assert!(run("kill", &[Path::new("-STOP"), Path::new(pid.trim())]));
        stopped += 1;
    }
    assert!(stopped >= 6, "{stopped} processes");
}

#[test]
fn a_power_cut_of_everything_loses_nothing_acknowledged() {
    let dir = std::env::temp_dir().join(format!("ib-power-{}", std::process::id()));
    let Some(disk) = Disk::new(&dir) else {
        inband_testing::not_run("no file system can be mounted from a file");
        return;
    };
    let mut cluster = start("power", Dataplane::Udp);
    assert_eq!(cluster.dir, dir);
    for round in 0..3 {
        let clients = write_keys(cluster.resp(), round);
        let unsynced = dir.join(format!("unsynced-{round}"));
        fs::write(&unsynced, "gone with the power").expect("it is written");
        stop_processes(&dir);
        let copy = disk.copy();
        let stopped = cluster.crash();
        disk.put_back(&copy);
        // Otherwise the copied disk is not what a power failure leaves.
        assert!(fs::read(&unsynced).is_ok_and(|bytes| bytes.is_empty()) || !unsynced.exists());
        (cluster, _) = stopped.up_again(|_| {});
        assert_eq!(cluster.status().epoch, 1);
        let total = read_keys(cluster.resp(), round, clients);
        println!("{total} acknowledged SETs read back");
    }
    cluster.wait_until_equal(TIMEOUT);
    cluster.down_and_compare();
}
