//! The acceptor in RTL, under Verilator on a tap interface, as a member of a cluster of `inband run`. `make rtl-demo`
//! runs this and shows what happens.
//!
//! Three hosts in network namespaces on a bridge: `one` leads, votes and has the store; `two` votes; `block` is
//! `dataplane/ground/rtl/tap.cpp` with the acceptor, and this test is its host process.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use inband_paxos::durable;
use nix::sys::signal::{kill, Signal};
use nix::unistd::Pid;

use crate::common::{lab_works, PROGRAM};

/// A block under Verilator takes milliseconds for a packet, and the machine may be busy.
const TIMEOUT: Duration = Duration::from_secs(60);
/// How long nothing may be decided without a majority.
const SILENCE: Duration = Duration::from_secs(3);
/// Exit status of `scripts/rtl`.
const CANNOT_RUN: i32 = 77;
/// Values that the block's votes must complete.
const VALUES: u64 = 20;
const EPOCH: u32 = 1;
/// The ring that the block has by default (`dataplane/paxos/rtl/acceptor.py`).
const RING_SLOTS: u32 = 64;
const BLOCK: usize = 3;
const SYSTEM: &str = "paxos";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Prints a step: the demonstration is read, not only passed.
fn say(text: &str) {
    println!("rtl-demo: {text}");
}

fn shell(script: &str) {
    let done = Command::new("sh").args(["-ec", script]).output();
    let done = done.expect("sh runs");
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{script}: {said}");
}

/// Builds the block; `None` if Verilator or the RTL's Python packages cannot be had.
fn program() -> Option<String> {
    let mut build = Command::new(root().join("scripts/rtl"));
    build.args(["tap", SYSTEM, "acceptor", "128"]);
    let done = build.stderr(Stdio::inherit()).output().expect("it runs");
    if done.status.code() == Some(CANNOT_RUN) {
        inband_testing::not_run("Verilator or the RTL's Python packages cannot be had (see above)");
        return None;
    }
    assert!(done.status.success(), "scripts/rtl tap");
    Some(String::from_utf8_lossy(&done.stdout).trim().to_owned())
}

struct Demo {
    prefix: String,
    dir: tempfile::TempDir,
    program: String,
    running: [Option<Child>; BLOCK],
}

fn address(id: usize) -> String {
    format!("10.98.0.{id}")
}

fn mac(id: usize) -> String {
    format!("02:49:42:00:00:{id:02x}")
}

impl Demo {
    /// The hosts' namespaces, with nothing running yet. The block's host has its address on a tap interface; the block is
    /// between that and `eth0`.
    fn new(program: String) -> Demo {
        let prefix = std::env::var("INBAND_RTL_DEMO");
        let demo = Demo {
            prefix: prefix.unwrap_or_else(|_| format!("ibr{}", std::process::id())),
            dir: tempfile::tempdir().expect("a directory"),
            program,
            running: [const { None }; BLOCK],
        };
        let p = &demo.prefix;
        shell(&format!(
            "ip netns add {p}-sw; ip -n {p}-sw link add br0 type bridge; ip -n {p}-sw link set br0 up"
        ));
        for id in 1..=BLOCK {
            let mac = mac(id);
            // Only the kernel accepts checksums that offloading left incomplete; all others verify them.
            shell(&format!(
                "ip netns add {p}-{id}
                 ip -n {p}-{id} link add eth0 address {mac} type veth peer name p{id} netns {p}-sw
                 ip netns exec {p}-{id} ethtool -K eth0 tx off gso off tso off gro off >/dev/null
                 ip -n {p}-sw link set p{id} master br0 up
                 ip -n {p}-{id} link set lo up"
            ));
            let (device, more) = match id {
                BLOCK => ("tap0", "ip tuntap add tap0 mode tap"),
                _ => ("eth0", "true"),
            };
            let host = address(id);
            shell(&format!(
                "ip netns exec {p}-{id} {more}
                 ip -n {p}-{id} link set {device} address {mac}
                 ip -n {p}-{id} addr add {host}/24 dev {device}
                 ip -n {p}-{id} link set {device} up"
            ));
        }
        // The kernel sees only what the block passes to it.
        shell(&format!(
            "ip -n {p}-{BLOCK} link set eth0 address 02:49:42:00:01:00
             ip -n {p}-{BLOCK} link set eth0 arp off up"
        ));
        for id in 1..BLOCK {
            demo.configure(id);
        }
        demo
    }

    fn configure(&self, id: usize) {
        let state = self.state_dir(id);
        let resp = if id == 1 {
            "resp = [\"127.0.0.1:6379\"]\n"
        } else {
            ""
        };
        let mut text = format!(
            "[cluster]\nname = \"rtl-demo\"\nepoch = {EPOCH}\nfirst_instance = 1\nring_slots = {RING_SLOTS}\n\
             durability = \"memory\"\n[host]\nnode = {id}\nstate_dir = {state:?}\ndataplane = \"udp\"\n{resp}"
        );
        let roles = [
            r#"["leader", "acceptor", "replica"]"#,
            r#"["acceptor"]"#,
            r#"["acceptor"]"#,
        ];
        for (other, roles) in (1..).zip(roles) {
            let (name, address) = (["one", "two", "block"][other - 1], address(other));
            text += &format!(
                "[[node]]\nid = {other}\nname = \"{name}\"\naddress = \"{address}:7400\"\nroles = {roles}\n"
            );
        }
        fs::write(self.file(id), text).expect("written");
    }

    fn state_dir(&self, id: usize) -> PathBuf {
        self.dir.path().join(format!("state-{id}"))
    }

    fn file(&self, id: usize) -> PathBuf {
        self.dir.path().join(format!("host-{id}.toml"))
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("registers")
    }

    fn log(&self, id: usize) -> String {
        fs::read_to_string(self.dir.path().join(format!("log-{id}"))).unwrap_or_default()
    }

    /// A program in a host's namespace.
    fn on(&self, id: usize, program: &str, args: &[&str]) -> Command {
        let mut command = Command::new("ip");
        let namespace = format!("{}-{id}", self.prefix);
        let command_line = ["netns", "exec", &namespace, program];
        command.args(command_line).args(args).stdin(Stdio::null());
        command
    }

    fn spawn(&mut self, id: usize, program: &str, args: &[&str]) {
        let log = fs::File::options()
            .create(true)
            .append(true)
            .open(self.dir.path().join(format!("log-{id}")))
            .expect("a log");
        let mut command = self.on(id, program, args);
        command.stdout(log.try_clone().expect("cloned")).stderr(log);
        self.running[id - 1] = Some(command.spawn().expect("it starts"));
    }

    fn start(&mut self, id: usize) {
        let file = self.file(id).display().to_string();
        self.spawn(id, PROGRAM, &["run", "--config", &file]);
    }

    /// Starts the simulated block, whose memory is empty then, and its host process. Returns whether it may vote.
    fn start_block(&mut self) -> bool {
        let (program, socket) = (self.program.clone(), self.socket().display().to_string());
        let (mac, own, member) = (
            mac(BLOCK),
            address(BLOCK),
            format!("{},{}:7400", mac(1), address(1)),
        );
        let node = BLOCK.to_string();
        let args = [
            ["--tap", "tap0"],
            ["--wire", "eth0"],
            ["--host", &socket],
            ["--mac", &mac],
            ["--node", &node],
            ["--partitions", "1"],
            ["--address", &own],
            ["--port", "7400"],
            ["--member", &member],
        ];
        self.spawn(BLOCK, &program, &args.concat());
        self.wait_for("the block's socket", || self.try_ask("events").is_some());
        // As the host process of an acceptor in XDP does: first the note on disk, then the registers.
        let voting = durable::enter_epoch(&self.state_dir(BLOCK), EPOCH).expect("noted");
        let first = 1;
        let (promise, floor, highest, epoch, votes) = (0, 1, 2, 3, 4);
        let registers = [
            (votes, 0),
            (promise, 0),
            (floor, first),
            (highest, first - 1),
            (epoch, u64::from(EPOCH)),
            (votes, u64::from(voting)),
        ];
        for (word, value) in registers {
            let said = self.ask(&format!("write 0 0 {word} {value}"));
            assert_eq!(said, "ok");
        }
        voting
    }

    fn try_ask(&self, line: &str) -> Option<String> {
        let mut stream = UnixStream::connect(self.socket()).ok()?;
        stream.set_read_timeout(Some(TIMEOUT)).ok()?;
        writeln!(stream, "{line}").ok()?;
        let mut said = String::new();
        BufReader::new(stream).read_line(&mut said).ok()?;
        said.ends_with('\n').then(|| said.trim_end().to_owned())
    }

    fn ask(&self, line: &str) -> String {
        self.try_ask(line)
            .unwrap_or_else(|| panic!("{line}: {}", self.log(BLOCK)))
    }

    /// How often the block counted this.
    fn events(&self, name: &str) -> u64 {
        let said = self.ask("events");
        let mut words = said.split(' ').filter_map(|word| word.split_once('='));
        let found = words.find(|(known, _)| *known == name);
        found.map_or(0, |(_, count)| count.parse().expect("a number"))
    }

    fn redis(&self, args: &[&str]) -> String {
        let done = self.on(1, "redis-cli", args).output();
        let done = done.expect("redis-cli runs");
        String::from_utf8_lossy(&done.stdout).trim().to_owned()
    }

    fn wait_for(&self, what: &str, mut holds: impl FnMut() -> bool) {
        let begun = Instant::now();
        while !holds() {
            let logs: Vec<String> = (1..=BLOCK).map(|id| self.log(id)).collect();
            let logs = logs.join("\n---\n");
            assert!(begun.elapsed() < TIMEOUT, "{what}: {logs}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn signal(&self, id: usize, signal: Signal) {
        let child = self.running[id - 1].as_ref().expect("it runs");
        // `ip netns exec` has become the program.
        kill(Pid::from_raw(child.id() as i32), signal).expect("signalled");
    }

    fn end(&mut self, id: usize) {
        let mut child = self.running[id - 1].take().expect("it runs");
        child.kill().expect("killed");
        child.wait().expect("it ended");
    }

    /// A SET in the background.
    fn set(&self, key: &str) -> Child {
        let mut command = self.on(1, "redis-cli", &["SET", key, "1"]);
        let spawned = command.stdout(Stdio::null()).spawn();
        spawned.expect("redis-cli runs")
    }
}

impl Drop for Demo {
    fn drop(&mut self) {
        for child in self.running.iter_mut().flatten() {
            let _ = child.kill();
            let _ = child.wait();
        }
        for name in ["1", "2", "3", "sw"] {
            let namespace = format!("{}-{name}", self.prefix);
            let _ = Command::new("ip")
                .args(["netns", "del", &namespace])
                .status();
        }
    }
}

#[test]
fn an_acceptor_in_rtl_completes_a_majority_and_does_not_vote_after_it_has_forgotten() {
    if !lab_works() {
        return;
    }
    let Some(program) = program() else {
        return;
    };
    let mut demo = Demo::new(program);
    demo.start(1);
    demo.start(2);
    assert!(demo.start_block(), "a new acceptor votes");
    say("three acceptors: `one` (leader and store, too) and `two` in user space, `block` in RTL under Verilator");
    demo.wait_for("a SET", || demo.redis(&["SET", "a", "1"]) == "OK");
    demo.wait_for("the block's votes", || demo.events("acceptor_voted") > 0);
    say(&format!("the block counts: {}", demo.ask("events")));

    demo.end(2);
    say("`two` is killed: `one` and the block are the only majority left");
    let before = demo.events("acceptor_voted");
    let begun = Instant::now();
    for number in 0..VALUES {
        let key = format!("key-{number}");
        demo.wait_for("a SET of two acceptors", || {
            demo.redis(&["SET", &key, "2"]) == "OK"
        });
    }
    let votes = demo.events("acceptor_voted") - before;
    assert!(votes >= VALUES, "{votes} votes for {VALUES} values");
    say(&format!(
        "{VALUES} values were written in {} ms; the block voted {votes} times",
        begun.elapsed().as_millis()
    ));

    demo.signal(BLOCK, Signal::SIGSTOP);
    let mut waiting = demo.set("held");
    std::thread::sleep(SILENCE);
    let undecided = waiting.try_wait().expect("it can be asked").is_none();
    assert!(undecided, "one acceptor of three is no majority");
    say("the block is stopped for 3 s: a SET waits");
    demo.signal(BLOCK, Signal::SIGCONT);
    assert!(waiting.wait().expect("it ended").success());
    demo.wait_for("the SET that waited", || {
        demo.redis(&["GET", "held"]) == "1"
    });
    say("it goes on, and the SET is there");

    demo.end(BLOCK);
    assert!(!demo.start_block(), "it has forgotten its votes");
    let mut waiting = demo.set("never");
    std::thread::sleep(SILENCE);
    let undecided = waiting.try_wait().expect("it can be asked").is_none();
    let _ = (waiting.kill(), waiting.wait());
    assert!(undecided, "an acceptor that has forgotten its votes votes");
    assert!(demo.events("acceptor_recovering") > 0);
    assert_eq!(demo.events("acceptor_voted"), 0);
    say(&format!(
        "the block is started again with empty registers, and does not vote in this epoch: {}",
        demo.ask("events")
    ));
}
