//! A full disk: reads are served and writes refused with the reason; writes recover by themselves.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use crate::common::{scratch, wait_for, Served};
use inband_kv::replica::ReplicaConfig;
use inband_kv::testing::MemoryCluster;
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
        umount(self.dir.path()).expect("nobody uses it any more");
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
        assert!(
            said.contains(" 0 MiB left, and 32 MiB are kept free"),
            "{said}"
        );
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
