//! Tests the C library on a real cluster on 127.0.0.1. The leader and the acceptors are threads of this test; the
//! replicas are C programs, and programs in Go, linked with the library like an application. All hosts of `evpaxos` are in programs
//! linked with `bindings/evpaxos`.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{mpsc, Arc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use inband_paxos::config::{Config, Dataplane};
use inband_paxos::library::{Event, Library};
use inband_testing::port::free_address;

#[path = "cluster/evpaxos.rs"]
mod evpaxos;
#[path = "cluster/go.rs"]
mod go;

/// Time limit for a program of this test; under a memory checker it takes several seconds.
const TIMEOUT: Duration = Duration::from_secs(60);
const ACCEPTORS: u8 = 3;
const LEADER: u8 = 1;
const FIRST_REPLICA: u8 = 11;
const RING_SLOTS: usize = 1024;

/// Options for `cc` and `c++`; warnings are errors.
const STRICT: [&str; 6] = ["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-g", "-O1"];
/// Libraries that the static library needs: `cargo rustc -p inband-c -- --print=native-static-libs`.
const STATIC_NEEDS: [&str; 6] = ["-lelf", "-lz", "-lpthread", "-ldl", "-lm", "-lrt"];

struct Cluster {
    dir: tempfile::TempDir,
    nodes: String,
    first_instance: u64,
    acceptors: Running,
    leader: Running,
}

/// Hosts in threads, stopped on drop.
#[derive(Default)]
struct Running {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Running {
    fn start(&mut self, config: Config) {
        let stop = self.stop.clone();
        self.threads.push(std::thread::spawn(move || {
            let mut host = Library::open(&config, Dataplane::Udp, None).expect("host starts");
            while !stop.load(Ordering::Relaxed) {
                host.wait(Duration::from_millis(20), None);
                while host.next_event().is_some() {}
            }
        }));
    }

    fn stop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            thread.join().expect("host ends");
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

fn nodes(replicas: u8) -> String {
    let mut hosts = vec![(LEADER, "leader", r#""leader""#)];
    hosts.extend((0..ACCEPTORS).map(|i| (2 + i, "acceptor", r#""acceptor""#)));
    hosts.extend((0..replicas).map(|i| (FIRST_REPLICA + i, "replica", r#""replica""#)));
    nodes_of(&hosts)
}

/// The nodes of a configuration: id, the name's beginning, and roles.
fn nodes_of(hosts: &[(u8, &str, &str)]) -> String {
    let node = |(id, name, roles): &(u8, &str, &str)| {
        let address = free_address();
        format!(
            "[[node]]\nid = {id}\nname = \"{name}/{id}\"\naddress = \"{address}\"\n\
             roles = [{roles}]\n"
        )
    };
    hosts.iter().map(node).collect()
}

/// Writes the configuration of a host and returns its path.
fn configure(dir: &Path, nodes: &str, node: u8, first_instance: u64, deadline_ms: u64) -> PathBuf {
    let state = dir.join(format!("state-{node}"));
    let text = format!(
        "[cluster]\nname = \"c-library\"\nepoch = {}\nfirst_instance = {first_instance}\n\
         durability = \"memory\"\nring_slots = {RING_SLOTS}\n[host]\nnode = {node}\nstate_dir = {state:?}\ndata_dir = {:?}\n\
         dataplane = \"udp\"\n[host.timing]\nsubmit_deadline_ms = {deadline_ms}\n{nodes}",
        if first_instance == 1 { 1 } else { 2 },
        state.join("data"),
    );
    let path = dir.join(format!("host-{node}.toml"));
    std::fs::write(&path, text).expect("the configuration is written");
    path
}

impl Cluster {
    fn start(replicas: u8, first_instance: u64) -> Cluster {
        let mut cluster = Cluster {
            dir: tempfile::tempdir().expect("a directory"),
            nodes: nodes(replicas),
            first_instance,
            acceptors: Running::default(),
            leader: Running::default(),
        };
        for acceptor in 0..ACCEPTORS {
            let config = Config::load(&cluster.config(2 + acceptor, 5000)).expect("it is right");
            cluster.acceptors.start(config);
        }
        let config = Config::load(&cluster.config(LEADER, 5000)).expect("it is right");
        cluster.leader.start(config);
        cluster
    }

    fn config(&self, node: u8, deadline_ms: u64) -> PathBuf {
        configure(
            self.dir.path(),
            &self.nodes,
            node,
            self.first_instance,
            deadline_ms,
        )
    }

    fn end(mut self) {
        self.acceptors.stop();
        self.leader.stop();
    }
}

/// The directory where cargo has put the library for this test.
fn library_dir() -> PathBuf {
    let test = std::env::current_exe().expect("this test is a file");
    test.parent().expect("in a directory").to_owned()
}

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

fn run(command: &mut Command) {
    let output = command
        .output()
        .unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {message}");
}

/// Builds a C program with the shared or the static library.
fn build(dir: &Path, name: &str, from: &str, shared: bool) -> PathBuf {
    let program = dir.join(name);
    let libraries = library_dir();
    let mut cc = Command::new("cc");
    cc.args(STRICT)
        .args(["-std=gnu99", "-pthread", "-I"])
        .arg(source("."));
    cc.arg("-o").arg(&program).arg(source(from));
    if shared {
        cc.arg("-L").arg(&libraries).arg("-linband");
        cc.arg(format!("-Wl,-rpath,{}", libraries.display()));
    } else {
        cc.arg(libraries.join("libinband.a")).args(STATIC_NEEDS);
    }
    run(&mut cc);
    program
}

/// A program whose output lines can be awaited; killed if the test fails.
struct Program {
    child: Child,
    lines: mpsc::Receiver<String>,
}

impl Program {
    fn start(command: &mut Command) -> Program {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|e| panic!("{command:?}: {e}"));
        let output = BufReader::new(child.stdout.take().expect("it is piped"));
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Program { child, lines }
    }

    /// All lines up to and including the one with this prefix.
    fn lines_until(&mut self, begin: &str) -> Vec<String> {
        let deadline = Instant::now() + TIMEOUT;
        let mut lines = Vec::new();
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left) {
                Ok(line) => lines.push(line),
                Err(_) => panic!(
                    "no line {begin:?} after {} lines; program: {:?}",
                    lines.len(),
                    self.child.try_wait()
                ),
            }
            if lines.last().is_some_and(|line| line.starts_with(begin)) {
                return lines;
            }
        }
    }

    fn say(&mut self, line: &str) {
        let input = self.child.stdin.as_mut().expect("it is piped");
        writeln!(input, "{line}").expect("the program reads");
    }

    fn end(mut self) {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            if let Some(status) = self.child.try_wait().expect("it is our child") {
                assert!(status.success(), "{status}");
                return;
            }
            assert!(Instant::now() < deadline, "the program does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn check_header(header: &Path, include: &Path) {
    for standard in ["c99", "c11", "c17"] {
        let mut cc = Command::new("cc");
        cc.args(STRICT)
            .arg(format!("-std={standard}"))
            .args(["-fsyntax-only", "-x", "c", "-I"]);
        run(cc.arg(include).arg(header));
    }
    let cpp = ["-fsyntax-only", "-std=c++11", "-x", "c++", "-I"];
    if Command::new("c++").arg("--version").output().is_err() {
        return inband_testing::not_run("there is no c++ on this machine");
    }
    let mut cc = Command::new("c++");
    run(cc.args(STRICT).args(cpp).arg(include).arg(header));
}

#[test]
fn the_header_is_plain_c_and_cpp() {
    check_header(&source("inband.h"), &source("."));
}

#[test]
fn three_replicas_deliver_the_same_values_in_the_same_order() {
    const COUNT: usize = 2000;
    let cluster = Cluster::start(3, 1);
    let shared = build(cluster.dir.path(), "counter", "example/counter.c", true);
    let archived = build(
        cluster.dir.path(),
        "counter-static",
        "example/counter.c",
        false,
    );
    let mut replicas: Vec<Program> = [&shared, &shared, &archived]
        .into_iter()
        .zip(FIRST_REPLICA..)
        .map(|(program, node)| {
            let mut command = Command::new(program);
            command.arg(cluster.config(node, 20_000));
            Program::start(command.arg(COUNT.to_string()).arg((3 * COUNT).to_string()))
        })
        .collect();
    let outputs: Vec<Vec<String>> = replicas
        .iter_mut()
        .map(|replica| replica.lines_until("delivered"))
        .collect();

    assert!(
        outputs[0] == outputs[1] && outputs[0] == outputs[2],
        "replicas differ"
    );
    let (summary, deliveries) = outputs[0].split_last().expect("there is a summary");
    assert_eq!(deliveries.len(), 3 * COUNT);
    let sum = 3 * COUNT * (COUNT + 1) / 2;
    let expected = format!("delivered {}, failed 0, sum {sum}, digest ", 3 * COUNT);
    assert!(summary.starts_with(&expected), "{summary}, not {expected}");
    let mut last_instance = 0;
    let mut values = std::collections::BTreeSet::new();
    for line in deliveries {
        let (instance, value) = line.split_once(' ').expect("INSTANCE ORIGIN NUMBER");
        let instance: u64 = instance.parse().expect("a number");
        assert!(
            instance > last_instance,
            "{line} after instance {last_instance}"
        );
        last_instance = instance;
        assert!(values.insert(value), "{value} was delivered twice");
    }
    for replica in &replicas {
        for number in 1..=COUNT {
            let value = format!("{} {number}", replica.child.id());
            assert!(values.contains(value.as_str()), "{value} is missing");
        }
    }
    for replica in replicas {
        run(Command::new("kill").arg(replica.child.id().to_string()));
        replica.end();
    }
    cluster.end();
}

/// One event per wait, as when every callback stops the run.
#[test]
fn slots_are_reused_although_every_run_is_stopped_after_one_delivery() {
    let cluster = Cluster::start(1, 1);
    let config = Config::load(&cluster.config(FIRST_REPLICA, 20_000)).expect("it is right");
    let mut library = Library::open(&config, Dataplane::Udp, None).expect("it starts");
    let (mut submitted, mut delivered) = (0, 0);
    while delivered < 3 * RING_SLOTS {
        while submitted < 3 * RING_SLOTS && library.submit(b"value").is_ok() {
            submitted += 1;
        }
        library.wait(Duration::MAX, None);
        match library.next_event() {
            Some(Event::Delivery(_)) => delivered += 1,
            Some(event) => panic!("after {delivered} deliveries: {event:?}"),
            None => {}
        }
    }
    drop(library);
    cluster.end();
}

/// Runs `tests/api.c`, directly or under `checker`.
fn check_api(checker: &[&str]) {
    const FIRST_INSTANCE: u64 = 100; // FIRST in api.c
    let mut cluster = Cluster::start(2, FIRST_INSTANCE);
    let dir = cluster.dir.path().to_owned();
    let program = build(&dir, "api", "tests/api.c", true);
    let malformed = dir.join("malformed.toml");
    std::fs::write(
        &malformed,
        "cluster = { name = \"t\", epoch = 0, first_instance = 1, durability = \"memory\" }\n\
                                host = { node = 1, state_dir = \"/tmp\" }\n",
    )
    .expect("it is written");
    let alone_dir = dir.join("alone");
    std::fs::create_dir(&alone_dir).expect("a directory");
    let alone_nodes = nodes(1);
    let alone = |node| configure(&alone_dir, &alone_nodes, node, 1, 100);

    let words: Vec<&std::ffi::OsStr> = checker
        .iter()
        .map(std::ffi::OsStr::new)
        .chain([program.as_os_str()])
        .collect();
    let mut command = Command::new(words[0]);
    command.args(&words[1..]);
    // No value may fail on a slow machine, except the one that must.
    let replica = |number| cluster.config(FIRST_REPLICA + number, 60_000);
    command.arg(replica(0)).arg(replica(1));
    command
        .arg(&malformed)
        .arg(alone(FIRST_REPLICA))
        .arg(alone(LEADER));
    let impatient = dir.join("impatient");
    std::fs::create_dir(&impatient).expect("a directory");
    let first = cluster.first_instance;
    command.arg(configure(
        &impatient,
        &cluster.nodes,
        FIRST_REPLICA,
        first,
        1000,
    ));
    // The address of the lone replica, with a separate state directory.
    let twin = dir.join("twin");
    std::fs::create_dir(&twin).expect("a directory");
    command.arg(configure(&twin, &alone_nodes, FIRST_REPLICA, 1, 100));
    let mut api = Program::start(&mut command);
    api.lines_until("stop the acceptors");
    cluster.acceptors.stop();
    api.say("done");
    api.lines_until("ok");
    api.end();
    cluster.end();
}

#[test]
fn the_whole_interface() {
    check_api(&[]);
}

/// The command before a program that valgrind checks; `None`, and a line that says so, on a machine without it.
fn valgrind() -> Option<[&'static str; 5]> {
    match Command::new("valgrind").arg("--version").output() {
        Ok(output) if output.status.success() => Some([
            "valgrind",
            "--quiet",
            "--error-exitcode=99",
            "--leak-check=full",
            "--errors-for-leak-kinds=definite",
        ]),
        _ => {
            inband_testing::not_run("valgrind is not on the PATH");
            None
        }
    }
}

#[test]
fn the_whole_interface_under_valgrind() {
    if let Some(checker) = valgrind() {
        check_api(&checker);
    }
}
