//! memcached's clients against consensus in a box: what they write is there after the leader was killed.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Mutex;
use std::time::Duration;

use anyhow::{ensure, Result};
use inband_cluster::box_cluster::{BoxCluster, Options};
use inband_cluster::command::SystemCommand;
use inband_cluster::scratch::retry;
use inband_cluster::supervisor::Supervisor;
use inband_testing::port::{free_ports, loopback};

const LIMIT: Duration = Duration::from_secs(60);
const NODES: u16 = 3;

/// One cluster at a time.
static ONE: Mutex<()> = Mutex::new(());

fn program() -> PathBuf {
    inband_testing::build("inband-box")
}

fn target() -> PathBuf {
    let test = std::env::current_exe().expect("this test is a file");
    let target = test.ancestors().nth(3).expect("target/release/deps/TEST");
    target.to_owned()
}

fn clients() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients")
}

/// Writes through the first node, kills the leader, and checks through all others. The killed node comes back, and is
/// checked, too.
fn survives_the_leader(write: impl Fn(SocketAddr), check: impl Fn(SocketAddr)) {
    let _one = ONE
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    let dir = tempfile::tempdir().expect("a directory");
    let options = Options {
        memcached: loopback(free_ports(NODES)),
        memory: 16 << 20,
        ..Options::default()
    };
    let mut spec = BoxCluster::spec(&options, dir.path()).expect("a specification");
    spec.program = Some(program());
    let cluster = Supervisor::<BoxCluster>::start(spec).expect("a new cluster");
    let all = cluster.status().memcached;
    write(all[0]);
    // On a busy machine nobody may lead for a moment.
    let killed = retry(LIMIT, || cluster.kill("leader")).expect("killed");
    let place: usize = killed["node/".len()..].parse().expect("a number");
    let others = all.iter().filter(|address| **address != all[place - 1]);
    others.for_each(|address| check(*address));
    cluster.restart(&killed).expect("restarted");
    retry(LIMIT, || -> Result<()> {
        let nodes = cluster.status().nodes;
        let serving = nodes
            .iter()
            .filter(|n| ["leading", "following"].contains(&&n.state[..]));
        ensure!(serving.count() == usize::from(NODES), "{nodes:?}");
        Ok(())
    })
    .expect("all nodes serve");
    check(all[place - 1]);
}

fn run(command: &mut Command) -> Output {
    let output = command.output().expect("it runs");
    assert!(
        output.status.success(),
        "{command:?}: {}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

fn is_there(program: &str, argument: &str) -> bool {
    let there = Command::new(program).arg(argument).output().is_ok();
    if !there {
        inband_testing::not_run(format!("{program} is not installed"));
    }
    there
}

#[test]
fn pymemcache_survives_the_leader() {
    let venv = target().join("memcached-clients");
    let python = venv.join("bin/python");
    if !python.exists() {
        let made = Command::new("python3")
            .args(["-m", "venv"])
            .arg(&venv)
            .status();
        if !made.is_ok_and(|status| status.success()) {
            return inband_testing::not_run("python3 -m venv fails");
        }
    }
    let pip = Command::new(&python)
        .args(["-m", "pip", "--quiet", "--disable-pip-version-check"])
        .args(["install", "pymemcache==4.0.0"])
        .output()
        .expect("python runs");
    if !pip.status.success() {
        return inband_testing::not_run("pip cannot install pymemcache");
    }
    let act = |what: &str, address: SocketAddr| {
        run(Command::new(&python)
            .arg(clients().join("pymemcache_client.py"))
            .args([what, &address.ip().to_string(), &address.port().to_string()]));
    };
    survives_the_leader(
        |address| act("write", address),
        |address| act("check", address),
    );
}

#[test]
fn gomemcache_survives_the_leader() {
    if !is_there("go", "version") {
        return;
    }
    let program = target().join("gomemcache-client");
    let mut build = Command::new("go");
    build.current_dir(clients().join("gomemcache"));
    let built = build.args(["build", "-o"]).arg(&program).arg(".").output();
    let built = built.expect("go runs");
    if !built.status.success() {
        let said = String::from_utf8_lossy(&built.stderr);
        return inband_testing::not_run(format!("go cannot build it: {}", said.trim()));
    }
    let act = |what: &str, address: SocketAddr| {
        run(Command::new(&program).args([what, &address.to_string()]));
    };
    survives_the_leader(
        |address| act("write", address),
        |address| act("check", address),
    );
}

/// Files copied in and out by the tools of libmemcached.
#[test]
fn libmemcached_survives_the_leader() {
    if !is_there("memccp", "--version") {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let files: Vec<(PathBuf, String)> = [1, 1_000, 100_000]
        .map(|len| (dir.path().join(format!("file{len}")), "inband ".repeat(len)))
        .into_iter()
        .collect();
    for (path, text) in &files {
        fs::write(path, text).expect("written");
    }
    let servers = |address: SocketAddr| format!("--servers={address}");
    survives_the_leader(
        |address| {
            for (path, _) in &files {
                run(Command::new("memccp").arg(servers(address)).arg(path));
            }
        },
        |address| {
            for (path, text) in &files {
                let name = path.file_name().expect("a name");
                run(Command::new("memcexist").arg(servers(address)).arg(name));
                let output = run(Command::new("memccat").arg(servers(address)).arg(name));
                let said = String::from_utf8_lossy(&output.stdout);
                assert_eq!(said.trim_end(), text.trim_end());
            }
        },
    );
}

/// libmemcached's tests of a server's ASCII protocol.
#[test]
fn memccapable_finds_nothing_wrong() {
    if !is_there("memccapable", "-h") {
        return;
    }
    let test = |address: SocketAddr| {
        let (ip, port) = (address.ip().to_string(), address.port().to_string());
        let passes = || {
            let mut test = Command::new("memccapable");
            let output = test.args(["-a", "-h", &ip, "-p", &port]).output()?;
            let said = String::from_utf8_lossy(&output.stdout).into_owned()
                + &String::from_utf8_lossy(&output.stderr);
            // It waits for two seconds, and a machine may stall for longer.
            ensure!(!said.contains("Connection timed out"), "{said}");
            let all = output.status.success() && said.contains("All tests passed");
            assert!(all, "{said}");
            Ok(())
        };
        retry(LIMIT, passes).expect("it is answered in time");
    };
    survives_the_leader(test, test);
}
