//! Tests the C library's replicated memory on a real cluster on 127.0.0.1.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use inband_cluster::command::SystemCommand;
use inband_cluster::memory::{Memory, Options};
use inband_cluster::scratch::retry;
use inband_cluster::supervisor::Supervisor;
use inband_host::config::Dataplane;

const STRICT: [&str; 7] = [
    "-std=gnu11",
    "-Wall",
    "-Wextra",
    "-Wpedantic",
    "-Werror",
    "-g",
    "-pthread",
];
const SERVING_LIMIT: Duration = Duration::from_secs(60);

/// Builds a C file of this crate, linked with the library for this test.
fn program(dir: &Path, source: &str) -> PathBuf {
    let test = std::env::current_exe().expect("this test is a file");
    let library = test.parent().expect("in a directory");
    let program = dir.join(Path::new(source).file_stem().expect("a name"));
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let status = Command::new("cc")
        .args(STRICT)
        .arg("-I")
        .arg(here)
        .arg(here.join(source))
        .arg("-o")
        .arg(&program)
        .arg("-L")
        .arg(library)
        .arg("-linband")
        .arg(format!("-Wl,-rpath,{}", library.display()))
        .status();
    assert!(status.expect("cc is on the PATH").success(), "{source}");
    program
}

fn cluster(dir: &Path) -> Supervisor<Memory> {
    inband_testing::build("inband-memory");
    let options = Options {
        servers: 3,
        switches: 2,
        space: 4 << 20,
        block: 16,
        dataplane: Dataplane::Udp,
        no_key: false,
        accept_loss: false,
    };
    let mut spec = Memory::spec(&options, &dir.join("cluster")).expect("it fits");
    let test = std::env::current_exe().expect("this test is a file");
    let release = test.parent().and_then(Path::parent).expect("two parents");
    spec.program = Some(release.join("inband-memory"));
    Supervisor::start(spec).expect("a cluster")
}

#[test]
fn every_function_of_the_header() {
    let dir = tempfile::tempdir().expect("a directory");
    let cluster = cluster(dir.path());
    let at = cluster.status().cluster;
    let switches: Vec<String> = at.switches.iter().map(ToString::to_string).collect();
    let key_file = at.key_file.expect("a key");
    let exposed = dir.path().join("exposed.toml");
    std::fs::copy(&key_file, &exposed).expect("copied");
    let everybody = std::fs::Permissions::from_mode(0o644);
    std::fs::set_permissions(&exposed, everybody).expect("permitted");
    let ended = Command::new(program(dir.path(), "tests/memory.c"))
        .arg(cluster.hosts().data())
        .arg(switches.join(","))
        .args([&key_file, &exposed])
        .output()
        .expect("it runs");
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success(), "{said}");
    assert_eq!(ended.stdout, b"ok\n");
}

#[test]
fn the_example_loses_nothing_when_a_server_and_the_switch_are_killed() {
    let dir = tempfile::tempdir().expect("a directory");
    let cluster = cluster(dir.path());
    let example = program(dir.path(), "example/lines.c");
    let start = || {
        let mut example = Command::new(&example)
            .arg(cluster.hosts().data())
            .arg("20000")
            .stdout(Stdio::piped())
            .spawn()
            .expect("it runs");
        let mut said = BufReader::new(example.stdout.take().expect("piped"));
        let mut line = String::new();
        said.read_line(&mut line).expect("it speaks");
        assert_eq!(line, "begun\n");
        (example, said)
    };
    let end = |(mut example, mut said): (Child, BufReader<ChildStdout>)| {
        assert!(example.wait().expect("it ends").success());
        let mut line = String::new();
        said.read_to_string(&mut line).expect("it speaks");
        assert!(line.starts_with("20000 rounds, "), "{line}");
    };
    let runs = |example: &mut Child| example.try_wait().expect("its status").is_none();
    let all_serve = || {
        let nodes = cluster.status().nodes;
        let serving = nodes.iter().filter(|node| node.state == "serving").count();
        anyhow::ensure!(serving == 3, "{serving} servers serve");
        Ok(())
    };
    let mut running = start();
    let mut role_is_missed = |role: &str| {
        if !runs(&mut running.0) {
            end(std::mem::replace(&mut running, start()));
        }
        let host = cluster.kill(role).expect("killed");
        std::thread::sleep(Duration::from_millis(100));
        let is_missed = runs(&mut running.0);
        cluster.restart(&host).expect("restarted");
        retry(SERVING_LIMIT, all_serve).expect("recovered");
        is_missed
    };
    for role in ["server/1", "switch", "server/1", "switch"] {
        // If the machine stalls, the program may have ended before it could miss anybody.
        assert!((0..8).any(|_| role_is_missed(role)), "it is too short");
    }
    end(running);
}
