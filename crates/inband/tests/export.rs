//! `inband export` and `inband import` as a user runs them.

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use crate::common::{Client, Cluster, PROGRAM};
use inband_kv::import::read;
use inband_paxos::config::Dataplane;

type Keys = BTreeMap<Vec<u8>, (Vec<u8>, u64)>;

fn inband(args: &[&str]) -> Output {
    let output = Command::new(PROGRAM).args(args).output();
    output.expect("it runs")
}

fn succeeds(args: &[&str]) -> String {
    let output = inband(args);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {said}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn fails(args: &[&str]) -> String {
    let output = inband(args);
    assert!(!output.status.success(), "{args:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn path(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

/// The keys of a file, except those that `Cluster` wrote to see whether it serves.
fn keys_of(file: &Path) -> (Keys, u64) {
    let mut keys = Keys::new();
    let summary = read(fs::File::open(file).unwrap(), &mut |key| {
        keys.insert(key.key.to_vec(), (key.value.to_vec(), key.expire_at_ms));
        Ok(())
    });
    keys.remove(&b"warm"[..]);
    (keys, summary.expect("it is whole").partitions)
}

fn fill(address: SocketAddr) {
    let mut client = Client::connect(address);
    for i in 0..300 {
        let value = "v".repeat(i * 7);
        assert_eq!(client.call(&["SET", &format!("key{i}"), &value]), "+OK");
    }
    let large = "x".repeat(300_000);
    assert_eq!(client.call(&["SET", "large", &large]), "+OK");
    let expiring = ["SET", "expiring", "1", "PX", "3600000"];
    assert_eq!(client.call(&expiring), "+OK");
    assert_eq!(client.call(&["SET", "gone", "1", "PX", "1"]), "+OK");
}

fn start(name: &str, partitions: u32) -> Cluster {
    Cluster::start(name, Dataplane::Udp, |spec| spec.partitions = partitions)
}

/// Clusters are waited for by writing a key.
fn empty(address: SocketAddr) {
    assert_eq!(Client::connect(address).call(&["FLUSHALL"]), "+OK");
}

#[test]
fn from_two_partitions_to_four() {
    let files = tempfile::tempdir().unwrap();
    let file = |name: &str| files.path().join(name);
    let (running, by_dir, stopped) = (file("running"), file("by-dir"), file("stopped"));
    let source = start("export", 2);
    fill(source.resp());
    let address = source.resp().to_string();
    let said = succeeds(&["export", "--host", &address, path(&running)]);
    assert!(
        said.starts_with("exported 303 keys of 2 partitions to"),
        "{said}"
    );
    let dir = source.dir.clone();
    succeeds(&["export", "--data", path(&dir), path(&by_dir)]);
    let report = source.supervisor.down().expect("down");
    assert!(report.clean_at.is_some());
    let crashed = source.crash();
    succeeds(&["export", "--data", path(&dir), path(&stopped)]);
    drop(crashed);
    let (keys, partitions) = keys_of(&running);
    assert_eq!((keys.len(), partitions), (302, 2));
    assert!(!keys.contains_key(&b"gone"[..]));
    assert_eq!(keys_of(&by_dir).0, keys);
    assert_eq!(keys_of(&stopped).0, keys);
    // No unfinished files are left.
    assert_eq!(fs::read_dir(files.path()).unwrap().count(), 3);

    let target = start("import", 4);
    empty(target.resp());
    let address = target.resp().to_string();
    // Nothing is imported from a damaged file.
    let damaged = file("damaged");
    fs::copy(&running, &damaged).unwrap();
    let mut bytes = fs::File::options().write(true).open(&damaged).unwrap();
    bytes.seek(SeekFrom::End(-100)).unwrap();
    bytes.write_all(b"?").unwrap();
    let said = fails(&["import", "--host", &address, path(&damaged)]);
    assert!(said.contains("the export is damaged or cut off"), "{said}");
    bytes.set_len(2000).unwrap();
    let said = fails(&["import", "--host", &address, path(&damaged)]);
    assert!(said.contains("it ends too early"), "{said}");
    let mut client = Client::connect(target.resp());
    assert_eq!(client.call(&["DBSIZE"]), ":0");

    let said = succeeds(&["import", "--host", &address, path(&stopped)]);
    assert!(said.starts_with("imported 303 keys"), "{said}");
    succeeds(&["export", "--host", &address, path(&by_dir)]);
    let (again, partitions) = keys_of(&by_dir);
    assert_eq!((&again, partitions), (&keys, 4));
    let ttl = client.call(&["PTTL", "expiring"]);
    let ttl: i64 = ttl.trim_start_matches(':').parse().unwrap();
    assert!((3_000_000..=3_600_000).contains(&ttl), "{ttl}");
    let said = fails(&["import", "--host", &address, path(&running)]);
    assert!(said.contains("has 303 keys already"), "{said}");
    assert!(said.contains("--overwrite"), "{said}");
    assert_eq!(client.call(&["SET", "key7", "other"]), "+OK");
    succeeds(&["import", "--overwrite", "--host", &address, path(&running)]);
    assert_eq!(client.call(&["GET", "key7"]), "v".repeat(49));
    target.down_and_compare();
}

#[test]
fn data_that_were_not_stopped_cleanly_are_exported_only_if_asked_for() {
    let files = tempfile::tempdir().unwrap();
    let file = files.path().join("file");
    let cluster = start("export-crash", 2);
    fill(cluster.resp());
    cluster.wait_until_equal(Duration::from_secs(60));
    cluster.wait_until_stored(Duration::from_secs(60));
    let dir = cluster.dir.clone();
    let replica = dir.join("hosts/replica-0/data");
    let crashed = cluster.crash();
    let said = fails(&["export", "--data", path(&dir), path(&file)]);
    assert!(said.contains("was not stopped cleanly"), "{said}");
    let data = path(&dir);
    for what_to_do in [
        format!("(inband up --data {data} --accept-loss) and export"),
        format!("inband export --data {data} --accept-loss FILE"),
    ] {
        assert!(said.contains(&what_to_do), "{said}");
    }
    assert!(!file.exists());
    succeeds(&["export", "--accept-loss", "--data", path(&dir), path(&file)]);
    let (keys, _) = keys_of(&file);
    assert!(keys.contains_key(&b"large"[..]) && keys.contains_key(&b"key299"[..]));
    // One replica's directory alone.
    succeeds(&["export", "--data", path(&replica), path(&file)]);
    assert_eq!(keys_of(&file).0, keys);
    drop(crashed);
}

#[test]
fn what_is_wrong_is_said() {
    let files = tempfile::tempdir().unwrap();
    let file = files.path().join("file");
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    drop(listener);
    let said = fails(&["export", "--host", &address, path(&file)]);
    assert!(said.contains("Connection refused"), "{said}");
    assert!(said.contains("--data"), "{said}");
    let said = fails(&["export", "--data", path(files.path()), path(&file)]);
    assert!(said.contains("neither a cluster's directory"), "{said}");
    let said = fails(&["export", path(&files.path().join("no/file"))]);
    assert!(said.contains("a file in"), "{said}");
    let said = fails(&["import", path(&file)]);
    assert!(said.contains("No such file"), "{said}");
    fs::write(&file, b"IBEXPT9\nwhatever").unwrap();
    let said = fails(&["import", path(&file)]);
    assert!(said.contains("of another version"), "{said}");
    fs::write(&file, b"a file of another kind").unwrap();
    let said = fails(&["import", path(&file)]);
    assert!(said.contains("damaged or cut off (it is none)"), "{said}");
    let said = fails(&["import", "/dev/null"]);
    assert!(said.contains("not a regular file"), "{said}");
    assert_eq!(fs::read_dir(files.path()).unwrap().count(), 1);
    let pipe = files.path().join("pipe");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let said = fails(&["export", path(&pipe)]);
    assert!(said.contains("is not a regular file"), "{said}");
    assert!(fs::metadata(&pipe).unwrap().file_type().is_fifo());
}

#[test]
fn a_cluster_that_requires_tls_is_named_as_such() {
    let files = tempfile::tempdir().unwrap();
    let password = files.path().join("password");
    fs::write(&password, "secret").unwrap();
    fs::set_permissions(&password, Permissions::from_mode(0o600)).unwrap();
    let with_password = ["--password-file", path(&password)];
    for options in [&[][..], &with_password] {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let answering = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            // The first bytes decide; then an alert: decode error.
            let _ = stream.read(&mut [0; 64]).unwrap();
            stream.write_all(b"\x15\x03\x03\0\x02\x02\x32").unwrap();
        });
        let file = files.path().join("file");
        let export = ["export", "--host", &address, path(&file)];
        let said = fails(&[&export[..], options].concat());
        assert!(said.contains("requires TLS"), "{said}");
        assert!(said.contains("--tls-ca"), "{said}");
        answering.join().unwrap();
    }
}

/// A replica that starts an export and then sends nothing more.
#[test]
fn ctrl_c_leaves_nothing_behind() {
    let files = tempfile::tempdir().unwrap();
    let file = files.path().join("file");
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let child = Command::new(PROGRAM)
        .args(["export", "--host", &address, path(&file)])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut stream, _) = listener.accept().unwrap();
    stream.write_all(b":7\r\n+OK\r\nIBEXPT1\n").unwrap();
    assert_eq!(fs::read_dir(files.path()).unwrap().count(), 1);
    let pid = nix::unistd::Pid::from_raw(i32::try_from(child.id()).unwrap());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("interrupted; nothing was exported"), "{said}");
    assert_eq!(fs::read_dir(files.path()).unwrap().count(), 0);
}
