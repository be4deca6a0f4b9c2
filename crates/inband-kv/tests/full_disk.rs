//! A full disk: reads are served and writes refused with the reason; writes recover by themselves.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::Duration;

use crate::common::{scratch, wait_for, Client, Served};
use inband_kv::access::Access;
use inband_kv::import::{ask_for_export, read};
use inband_kv::machine::MachineConfig;
use inband_kv::replica::ReplicaConfig;
use inband_kv::store::StoreError;
use inband_kv::testing::MemoryCluster;
use nix::fcntl::{fallocate, FallocateFlags};
use nix::mount::{mount, umount, MsFlags};
use nix::sys::statvfs::statvfs;

/// A small file system in memory.
struct Disk {
    dir: tempfile::TempDir,
}

impl Disk {
    /// `None` if mounting is not allowed here; the test is then reported as skipped.
    fn new() -> Option<Disk> {
        let dir = scratch();
        let (flags, options) = (MsFlags::empty(), Some("size=256m"));
        match mount(Some("tmpfs"), dir.path(), Some("tmpfs"), flags, options) {
            Ok(()) => Some(Disk { dir }),
            Err(error) => {
                inband_testing::not_run(format!("mounting a small file system: {error}"));
                None
            }
        }
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Uses all free space, as fast as is possible.
    fn fill_at_once(&self) -> PathBuf {
        let path = self.path().join("filler");
        let file = File::create(&path).unwrap();
        let take = |len_bytes| {
            let end = file.metadata().unwrap().len() as i64;
            fallocate(&file, FallocateFlags::empty(), end, len_bytes)
        };
        for len_bytes in [64 << 20, 8 << 20, 1 << 20, 4096] {
            while take(len_bytes).is_ok() {}
        }
        path
    }

    /// Uses all free space except `but_bytes`.
    fn fill(&self, but_bytes: u64) -> PathBuf {
        let path = self.path().join("filler");
        let mut file = File::options()
            .append(true)
            .create(true)
            .open(&path)
            .unwrap();
        let free = || {
            let disk = statvfs(self.path()).unwrap();
            disk.blocks_available() * disk.fragment_size()
        };
        while free() > but_bytes && file.write_all(&[1; 64 * 1024]).is_ok() {}
        path
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // A thread that serves an export, and a child of another test before its exec, hold files for a moment more.
        wait_for("nobody uses it any more", || {
            umount(self.dir.path()).is_ok()
        });
    }
}

#[test]
fn a_full_disk_refuses_writes_and_recovers_by_itself() {
    let Some(disk) = Disk::new() else {
        return;
    };
    let (cluster, elsewhere) = (MemoryCluster::new(), scratch());
    let full = Served::start(&cluster, disk.path(), ReplicaConfig::default());
    let roomy = Served::start(&cluster, elsewhere.path(), ReplicaConfig::default());
    let mut client = full.client();
    assert_eq!(client.ask("SET a 1"), "+OK");
    for _ in 0..3 {
        // A disk cannot take in the reserved space between two checks, but memory can.
        disk.fill(20 << 20);
        wait_for("it is noticed", || {
            full.control.status().write_refusal.is_some()
        });
        let filler = disk.fill(0);
        wait_for("it is full", || client.ask("DEL b").starts_with("-MISCONF"));
        let said = client.ask("SET a 2");
        assert!(
            said.starts_with("-MISCONF not applied: the disk of "),
            "{said}"
        );
        // The figure follows, although writes were refused before.
        wait_for("the figure is that of a full disk", || {
            let said = client.ask("SET a 2");
            said.contains(" 0 MiB left, and 32 MiB are kept free")
        });
        client.send("MULTI\r\nINCR a\r\nEXEC\r\nGET a\r\nPING\r\n");
        assert_eq!(client.line(), "+OK");
        assert!(client.line().starts_with("-MISCONF"));
        assert!(client.line().starts_with("-EXECABORT"));
        client.expect("$1\r\n1\r\n+PONG\r\n");
        // Other replicas continue.
        assert_eq!(roomy.client().ask("SET c 1"), "+OK");
        assert!(full.control.status().limit_hits.iter().sum::<u64>() > 0);
        std::fs::remove_file(filler).unwrap();
        wait_for("writes are taken again", || client.ask("SET a 1") == "+OK");
        assert_eq!(full.control.status().write_refusal, None);
    }
    // While a little space is left, commands that free space are executed.
    let filler = disk.fill(24 << 20);
    wait_for("it is noticed", || {
        full.control.status().write_refusal.is_some()
    });
    assert!(client.ask("INCR n").starts_with("-MISCONF"));
    assert_eq!(client.ask("DEL c"), ":1");
    std::fs::remove_file(filler).unwrap();
    wait_for("writes are taken again", || client.ask("INCR n") == ":1");
    wait_for("both are equal", || {
        full.control.digest().unwrap() == roomy.control.digest().unwrap()
    });
    full.stop();
}

/// An array of strings, in order.
fn strings(client: &mut Client) -> Vec<String> {
    let head = client.line();
    let count = head.strip_prefix('*').and_then(|count| count.parse().ok());
    let count: usize = count.unwrap_or_else(|| panic!("{head}"));
    let mut strings: Vec<String> = (0..count)
        .map(|_| {
            assert!(client.line().starts_with('$'));
            client.line()
        })
        .collect();
    strings.sort();
    strings
}

/// The keys that a complete scan finds.
fn scanned(client: &mut Client, count: usize) -> Vec<String> {
    let (mut cursor, mut keys) = ("0".to_owned(), Vec::new());
    loop {
        let head = client.ask(&format!("SCAN {cursor} COUNT {count}"));
        assert_eq!(head, "*2");
        assert!(client.line().starts_with('$'));
        cursor = client.line();
        keys.append(&mut strings(client));
        if cursor == "0" {
            keys.sort();
            return keys;
        }
    }
}

/// What this replica has acknowledged, and could not write before its disk was full, is in every answer, or there is none:
/// scans, exports and syncs, also while it ends.
#[test]
fn what_a_full_disk_keeps_from_being_written_is_not_left_out() {
    let Some(disk) = Disk::new() else {
        return;
    };
    let cluster = MemoryCluster::new();
    let full = Served::start(&cluster, disk.path(), ReplicaConfig::default());
    let mut client = full.client();
    let key = |n: usize| format!("k{n:02}");
    for n in 0..20 {
        assert_eq!(client.ask(&format!("SET {} 1", key(n))), "+OK");
    }
    full.control.sync().unwrap();
    // This write is under way when the disk becomes full, and what follows has to wait.
    full.control.faults().hold(true);
    assert_eq!(client.ask(&format!("DEL {}", key(0))), ":1");
    wait_for("it is being written", || full.control.faults().held() > 0);
    for n in 10..60 {
        assert_eq!(client.ask(&format!("SET {} 2", key(n))), "+OK");
    }
    assert_eq!(client.ask(&format!("DEL {}", key(1))), ":1");
    // There is room for the write under way.
    let filler = disk.fill(8 << 20);
    wait_for("it is full", || {
        client.ask("DEL none").starts_with("-MISCONF")
    });
    full.control.faults().hold(false);
    let acknowledged: Vec<String> = (2..60).map(key).collect();
    let is_right = |client: &mut Client| {
        for n in 0..60 {
            client.send(format!("EXISTS {}\r\n", key(n)));
            client.expect(format!(":{}\r\n", u8::from(n >= 2)));
        }
        assert_eq!(client.ask("DBSIZE"), ":58");
        client.send("KEYS *\r\n");
        assert_eq!(strings(client), acknowledged);
        for count in [1, 7, 1000] {
            assert_eq!(scanned(client, count), acknowledged, "{count}");
        }
    };
    is_right(&mut client);
    let refused = full.control.sync().unwrap_err().to_string();
    assert!(
        refused.contains(": the disk of ") && refused.contains("make room"),
        "{refused}"
    );
    let address = full.address;
    let export = std::thread::spawn(move || {
        let (_, mut from) = ask_for_export(address, &Access::default())?;
        read(&mut from, &mut |_| Ok(()))
    });
    // It counts the keys, then it waits.
    std::thread::sleep(Duration::from_millis(100));
    let control = full.control.clone();
    full.stop();
    let exported = export.join().unwrap();
    assert!(exported.is_err(), "{exported:?}");
    let synced = control.sync();
    assert!(matches!(synced, Err(StoreError::Ended)), "{synced:?}");
    drop(control);
    std::fs::remove_file(filler).unwrap();
    let full = Served::start(&cluster, disk.path(), ReplicaConfig::default());
    let mut client = full.client();
    wait_for("it has caught up", || client.ask("DBSIZE") == ":58");
    is_right(&mut client);
    let (count, mut from) = ask_for_export(full.address, &Access::default()).unwrap();
    let mut exported = Vec::new();
    read(&mut from, &mut |key| {
        exported.push(String::from_utf8(key.key.to_vec()).unwrap());
        Ok(())
    })
    .unwrap();
    exported.sort();
    assert_eq!((count, exported), (58, acknowledged.clone()));
    full.stop();
}

/// A replica with a full disk applies nothing, so it cannot answer reads once something is decided. It says why.
#[test]
fn a_read_that_waits_for_a_full_disk_says_so() {
    let Some(disk) = Disk::new() else {
        return;
    };
    let (cluster, elsewhere) = (MemoryCluster::new(), scratch());
    let config = ReplicaConfig {
        deadline_ms: 1_000,
        ..ReplicaConfig::default()
    };
    let full = Served::start(&cluster, disk.path(), config);
    let roomy = Served::start(&cluster, elsewhere.path(), ReplicaConfig::default());
    let mut client = full.client();
    assert_eq!(client.ask("SET a 1"), "+OK");
    let filler = disk.fill(8 << 20);
    let mut said = String::new();
    wait_for("it is full", || {
        said = client.ask("DEL none");
        said.starts_with("-MISCONF")
    });
    assert!(
        said.contains("; nothing is applied, and reads are served until "),
        "{said}"
    );
    client.send("GET a\r\n");
    client.expect("$1\r\n1\r\n");
    assert_eq!(roomy.client().ask("SET a 2"), "+OK");
    for line in ["GET a", "SCAN 0"] {
        let said = client.ask(line);
        let start = "-TRYAGAIN not read: this replica is behind for 1000 ms, as it applies nothing: the disk of ";
        assert!(said.starts_with(start), "{said}");
    }
    std::fs::remove_file(filler).unwrap();
    wait_for("it is read", || client.ask("GET a") == "$1");
    client.expect("2\r\n");
    full.stop();
}

/// The reply to a line; `None` if the replica has ended.
fn ask(address: SocketAddr, line: &str) -> Option<String> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.write_all(format!("{line}\r\n").as_bytes()).ok()?;
    let mut reply = String::new();
    let len = BufReader::new(stream).read_line(&mut reply).ok()?;
    (len > 0).then(|| reply.trim_end().to_owned())
}

/// The info logs of the databases under `dir`.
fn info_logs(dir: &Path) -> Vec<String> {
    let mut logs = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => logs.append(&mut info_logs(&path)),
            false if path.ends_with("LOG") => logs.push(std::fs::read_to_string(path).unwrap()),
            false => {}
        }
    }
    logs
}

/// Another program takes all space faster than the replica looks, again and again, while values of 16 KiB are written.
/// If that fails a write, the replica may end, but not the process.
#[test]
fn a_disk_that_is_full_at_once_aborts_nothing() {
    let Some(disk) = Disk::new() else {
        return;
    };
    let (cluster, elsewhere) = (MemoryCluster::new(), scratch());
    let start = || {
        let machine = MachineConfig {
            sync: true,
            ..MachineConfig::single(disk.path())
        };
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        Served::start_with(&cluster, machine, ReplicaConfig::default(), listener)
    };
    let mut full = Some(start());
    let address_of = |served: &Option<Served>| served.as_ref().unwrap().address;
    let roomy = Served::start(&cluster, elsewhere.path(), ReplicaConfig::default());
    let stop = Arc::new(AtomicBool::new(false));
    let writer = {
        let (stop, mut client) = (stop.clone(), roomy.client());
        std::thread::spawn(move || {
            let value = "x".repeat(16 << 10);
            while !stop.load(Ordering::Relaxed) {
                assert_eq!(client.ask(&format!("SET big {value}")), "+OK");
                std::thread::sleep(Duration::from_micros(500));
            }
        })
    };
    for round in 0..8 {
        let filler = disk.fill_at_once();
        wait_for("it is full", || {
            let reply = ask(address_of(&full), "SET a 1");
            reply.is_none_or(|reply| reply.starts_with("-MISCONF"))
        });
        std::thread::sleep(Duration::from_millis(100));
        std::fs::remove_file(filler).unwrap();
        let set = format!("SET a {round}");
        wait_for("writes are taken again", || {
            let reply = ask(address_of(&full), &set);
            if reply.is_none() {
                // It holds its databases until it is dropped.
                full = None;
                full = Some(start());
            }
            reply.as_deref() == Some("+OK")
        });
    }
    stop.store(true, Ordering::Relaxed);
    writer.join().unwrap();
    wait_for("both are equal", || {
        // A write may still fail after it was acknowledged: the replica ends, and its next start reads the log again.
        if ask(address_of(&full), "PING").is_none() {
            full = None;
            full = Some(start());
        }
        let digest = full.as_ref().unwrap().control.digest();
        digest.is_ok_and(|digest| digest == roomy.control.digest().unwrap())
    });
    full.unwrap().stop();
    // It may write there at any time.
    for log in info_logs(disk.path()) {
        assert!(!log.contains("EVENT_LOG"), "{log}");
    }
}
