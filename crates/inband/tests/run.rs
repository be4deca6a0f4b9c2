//! `inband run` by hand, as on a real machine: one host with all roles, over UDP.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::small_disk::SmallDisk;
use crate::common::{self, Client, PROGRAM};
use inband_testing::port::{free_address, free_ports};
use nix::fcntl::{fcntl, FcntlArg, FdFlag};
use nix::sys::signal::{kill, Signal};
use nix::unistd::Pid;

pub const TIMEOUT: Duration = Duration::from_secs(60);
/// Ports of a host: packets and checkpoints, and the control service.
const PORTS: u16 = 2;

/// A process that is always killed in the end.
pub struct Host(Child);

impl Host {
    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.0.id() as i32);
        kill(pid, signal).expect("signalled");
    }

    /// Sends SIGTERM and returns whether it ended well.
    pub fn terminate(&mut self) -> bool {
        self.signal(Signal::SIGTERM);
        self.0.wait().expect("it ended").success()
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A free address for a host. Its port is none that the kernel gives to a client, which would make the host fail.
fn address() -> SocketAddr {
    ([127, 0, 0, 1], free_ports(PORTS)).into()
}

fn config(dir: &Path) -> PathBuf {
    let address = address();
    let text = format!(
        r#"
        cluster = {{ name = "one", epoch = 1, first_instance = 1, durability = "memory" }}
        host = {{ node = 1, state_dir = {dir:?}, dataplane = "udp" }}
        [[node]]
        id = 1
        name = "one"
        address = "{address}"
        roles = ["leader", "acceptor", "replica"]
        "#
    );
    let path = dir.join("config.toml");
    std::fs::write(&path, text).expect("the configuration");
    path
}

/// Two hosts on loopback: a cluster of one, and a replica to be added.
fn configs(dirs: [&Path; 2], resp: [SocketAddr; 2]) -> [PathBuf; 2] {
    let (one, two) = (free_ports(PORTS), free_ports(PORTS));
    let host = |id: usize| {
        let dir = dirs[id - 1];
        let first = r#"["leader", "acceptor", "replica", "controller"]"#;
        let second = match id {
            1 => String::new(),
            _ => format!(
                r#"
                [[node]]
                id = 2
                name = "two"
                address = "127.0.0.1:{two}"
                roles = ["replica", "leader"]
                "#
            ),
        };
        let resp = resp[id - 1];
        let text = format!(
            r#"
            cluster = {{ name = "grown", epoch = 1, first_instance = 1, durability = "memory" }}
            host = {{ node = {id}, state_dir = {dir:?}, dataplane = "udp", resp = ["{resp}"] }}
            [[node]]
            id = 1
            name = "one"
            address = "127.0.0.1:{one}"
            roles = {first}
            {second}
            "#
        );
        let path = dir.join("config.toml");
        std::fs::write(&path, text).expect("the configuration");
        path
    };
    [host(1), host(2)]
}

/// Addresses for Redis clients.
pub fn free_addresses() -> [SocketAddr; 2] {
    [(); 2].map(|()| free_address())
}

pub fn start(config: &Path) -> Host {
    start_with(config, [])
}

pub fn start_with<const N: usize>(config: &Path, environment: [(&str, &str); N]) -> Host {
    let mut command = Command::new(PROGRAM);
    let child = command.args(["run", "--config"]).arg(config);
    Host(child.envs(environment).spawn().expect("it runs"))
}

fn inband(args: &[&str], config: &Path) -> (bool, String) {
    let output = Command::new(PROGRAM)
        .args(args)
        .arg("--config")
        .arg(config)
        .output()
        .expect("it runs");
    let said = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    (output.status.success(), said)
}

#[test]
fn a_host_joins_a_cluster_and_leaves_it() {
    let dirs = [(); 2].map(|()| tempfile::tempdir().expect("a directory"));
    let resp = free_addresses();
    let [one, two] = configs([dirs[0].path(), dirs[1].path()], resp);
    let first = start(&one);
    wait_until_it_answers(resp[0], &["SET", "a", "1"], "+OK");
    let (good, said) = inband(&["member", "list"], &one);
    assert!(
        good && said.contains("votes") && !said.contains("two"),
        "{said}"
    );

    let second = start(&two);
    let (good, said) = inband(&["member", "add"], &two);
    assert!(good && said.contains("two is a member"), "{said}");
    wait_until_it_answers(resp[1], &["GET", "a"], "1");
    wait_until_it_answers(resp[1], &["SET", "a", "2"], "+OK");
    let (good, said) = inband(&["member", "add"], &two);
    assert!(good, "it is one already: {said}");
    let (good, said) = inband(&["leader", "move", "two"], &one);
    assert!(good, "{said}");

    let (good, said) = inband(&["member", "remove"], &two);
    assert!(good && said.contains("never use its id 2 again"), "{said}");
    let removed = "-LOADING this host is in no configuration of its cluster: it was removed, or is not a member yet; use another replica";
    wait_until_it_answers(resp[1], &["GET", "a"], removed);
    // Its control service may hear of it later than its replica.
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let (_, said) = inband(&["status"], &two);
        if said.contains("in no configuration: it was removed") {
            break;
        }
        assert!(Instant::now() < deadline, "{said}");
        std::thread::sleep(Duration::from_millis(20));
    }
    drop(second);
    wait_until_it_answers(resp[0], &["SET", "a", "3"], "+OK");
    let (good, said) = inband(&["member", "remove"], &two);
    assert!(
        !good && said.contains("no member is called \"two\""),
        "{said}"
    );
    let anew = ["member", "begin-anew", "--applied", "9"];
    let (good, said) = inband(&anew, &one);
    assert!(
        !good && said.contains("would discard what they hold"),
        "{said}"
    );
    let (good, said) = inband(&["member", "remove", "one"], &one);
    assert!(!good && said.contains("without acceptors"), "{said}");

    // With its memory lost it does not know what was chosen, until it is told that the store has everything.
    drop(first);
    let held: serde_json::Value =
        serde_json::from_str(&common::inspect(&[dirs[0].path().join("data")])).expect("JSON");
    let applied = held["applied"][0].to_string();
    let _again = start(&one);
    let deadline = Instant::now() + TIMEOUT;
    let until_it_says = |args: &[&str], good: bool, what: &str| loop {
        let (is_good, said) = inband(&[&["member", "begin-anew"], args].concat(), &one);
        if is_good == good && said.contains(what) {
            break;
        }
        assert!(is_good <= good && Instant::now() < deadline, "{said}");
        std::thread::sleep(Duration::from_millis(100));
    };
    // The replica's report counts, whatever the operator claims.
    let up_to = format!("have applied instances up to {applied}");
    for wrong in ["0", "999999999"] {
        until_it_says(&["--applied", wrong], false, &up_to);
    }
    until_it_says(&[], true, "begins with empty acceptors");
    wait_until_it_answers(resp[0], &["GET", "a"], "3");
    wait_until_it_answers(resp[0], &["SET", "a", "4"], "+OK");
}

/// Nothing is lost, but nothing is decided either: the second acceptor hangs.
#[test]
fn a_log_that_stands_begins_anew_behind_what_was_delivered() {
    let dirs = [(); 2].map(|()| tempfile::tempdir().expect("a directory"));
    let resp = free_addresses();
    let paths = configs([dirs[0].path(), dirs[1].path()], resp);
    // Both are members from the start, and the second one only votes.
    let text = std::fs::read_to_string(&paths[1]).expect("read");
    let text = text.replace(r#"["replica", "leader"]"#, r#"["acceptor"]"#);
    let text = text.replace(&format!(r#", resp = ["{}"]"#, resp[1]), "");
    std::fs::write(&paths[1], &text).expect("written");
    let own = |id: usize| format!("node = {id}, state_dir = {:?}", dirs[id - 1].path());
    let first = text.replace(&own(2), &own(1));
    let listening = format!(
        r#"dataplane = "udp", resp = ["{}"], timing = {{ submit_deadline_ms = 500 }}"#,
        resp[0]
    );
    let first = first.replace(r#"dataplane = "udp""#, &listening);
    std::fs::write(&paths[0], first).expect("written");
    let hosts = [start(&paths[0]), start(&paths[1])];
    wait_until_it_answers(resp[0], &["SET", "a", "1"], "+OK");
    let begin_anew = || inband(&["member", "begin-anew"], &paths[0]);
    let deadline = Instant::now() + TIMEOUT;
    let (good, said) = loop {
        let (good, said) = begin_anew();
        // The second host votes before its first report has arrived.
        if !said.contains("has not been heard of") || Instant::now() >= deadline {
            break (good, said);
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    assert!(
        !good && said.contains("no replica reports a log that makes no progress"),
        "{said}"
    );

    let second = Pid::from_raw(hosts[1].0.id().cast_signed());
    kill(second, Signal::SIGSTOP).expect("ours");
    let mut client = Client::connect(resp[0]);
    let unknown = client.call(&["SET", "b", "1"]);
    assert!(unknown.starts_with("-UNKNOWN"), "{unknown}");
    let deadline = Instant::now() + TIMEOUT;
    let said = loop {
        let (good, said) = begin_anew();
        if good {
            break said;
        }
        // Until the host is known to hang, and for how long.
        let not_yet = ["no replica reports a log", "not been heard of"];
        assert!(not_yet.iter().any(|why| said.contains(why)), "{said}");
        assert!(Instant::now() < deadline, "{said}");
        std::thread::sleep(Duration::from_millis(200));
    };
    for what in [
        "one: partition 0 has stood at instance ",
        "no report from two",
        "no acceptor votes until all replicas have reported what they have applied",
        "begins with empty acceptors",
    ] {
        assert!(said.contains(what), "{what:?} is not in {said:?}");
    }
    // It has been resolved, and the acceptor does not bring back what was given up.
    kill(second, Signal::SIGCONT).expect("ours");
    wait_until_it_answers(resp[0], &["SET", "c", "1"], "+OK");
    wait_until_it_answers(resp[0], &["GET", "a"], "1");
}

#[test]
fn a_host_that_is_drained_takes_nothing_more_and_says_how_far_it_is() {
    let dirs = [(); 2].map(|()| tempfile::tempdir().expect("a directory"));
    let resp = free_addresses();
    let [one, _] = configs([dirs[0].path(), dirs[1].path()], resp);
    let (good, said) = inband(&["drain"], &one);
    assert!(
        !good && said.contains("run this on the host itself"),
        "{said}"
    );
    let _host = start(&one);
    wait_until_it_answers(resp[0], &["SET", "a", "1"], "+OK");
    let deadline = Instant::now() + TIMEOUT;
    let (good, said) = loop {
        let (good, said) = inband(&["drain"], &one);
        // A slow machine may need longer than the command waits.
        if good || !said.contains("run this again") || Instant::now() >= deadline {
            break (good, said);
        }
    };
    let applied = said
        .trim_end()
        .strip_prefix("one: drained and synced, applied ");
    assert!(good && applied.is_some_and(|at| at != "0"), "{said}");
    let refused = Client::try_connect(resp[0]).and_then(|mut c| c.try_call(&["SET", "a", "2"]));
    assert_ne!(refused.as_deref(), Some("+OK"));
    let again = inband(&["drain"], &one);
    assert_eq!(again, (true, said), "nothing has changed");
}

#[test]
fn a_host_with_other_settings_ends() {
    let dirs = [(); 2].map(|()| tempfile::tempdir().expect("a directory"));
    let resp = free_addresses();
    let [one, two] = configs([dirs[0].path(), dirs[1].path()], resp);
    let text = std::fs::read_to_string(&two).expect("read");
    let other = text.replace("epoch = 1,", "epoch = 1, mtu = 1400,");
    assert_ne!(text, other);
    std::fs::write(&two, other).expect("written");
    let _first = start(&one);
    wait_until_it_answers(resp[0], &["SET", "a", "1"], "+OK");
    let mut second = start(&two);
    let deadline = Instant::now() + TIMEOUT;
    let status = loop {
        if let Some(status) = second.0.try_wait().expect("ours") {
            break status;
        }
        assert!(Instant::now() < deadline, "it does not end");
        std::thread::sleep(Duration::from_millis(20));
    };
    assert_eq!(status.code(), Some(78));
    wait_until_it_answers(resp[0], &["GET", "a"], "1");
}

/// A host's status from its control socket, and its metrics.
fn status_and_metrics(config: &Path, metrics: SocketAddr) -> (serde_json::Value, String, String) {
    let (good, json) = inband(&["status", "--json"], config);
    assert!(good, "{json}");
    let (good, words) = inband(&["status"], config);
    assert!(good, "{words}");
    let mut socket = TcpStream::connect(metrics).expect("metrics");
    let request = "GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    socket.write_all(request.as_bytes()).expect("sent");
    let mut text = String::new();
    socket.read_to_string(&mut text).expect("read");
    (serde_json::from_str(&json).expect("JSON"), words, text)
}

#[test]
fn an_acceptor_whose_disk_is_full_says_so_and_votes_again_by_itself() {
    let dir = tempfile::tempdir().expect("a directory");
    let Some(disk) = SmallDisk::mount(dir.path().join("acceptor")) else {
        return;
    };
    let [resp, metrics] = free_addresses();
    let path = config(dir.path());
    let text = std::fs::read_to_string(&path).expect("read");
    let text = text.replace("\"memory\"", "\"sync\"");
    let listening =
        format!("dataplane = \"udp\", resp = [\"{resp}\"], metrics = \"{metrics}\", timing = {{ submit_deadline_ms = 500 }}");
    let text = text.replace("dataplane = \"udp\"", &listening);
    std::fs::write(&path, text).expect("written");
    let _host = start(&path);
    wait_until_it_answers(resp, &["SET", "a", "1"], "+OK");
    for round in 0..2 {
        let filler = disk.fill();
        // Space that the journal has preallocated still suffices for some votes.
        let mut client = Client::connect(resp);
        let value = "x".repeat(64 * 1024);
        let deadline = Instant::now() + TIMEOUT;
        let (status, words, metrics_text) = loop {
            while client.call(&["SET", "big", &value]) == "+OK" {
                assert!(Instant::now() < deadline, "its disk never fills");
            }
            // It does not vote, or the machine stalled for longer than the deadline of a command.
            let said = status_and_metrics(&path, metrics);
            if said.0["acceptor_disk_failure"].is_string() {
                break said;
            }
            assert!(Instant::now() < deadline, "{}", said.0);
            std::thread::sleep(Duration::from_millis(50));
        };
        let why = status["acceptor_disk_failure"].as_str().expect("a reason");
        assert!(why.contains("No space left on device"), "{why}");
        assert_eq!(status["acceptors"][0]["voting"], false);
        assert!(words.contains("DOES NOT VOTE: "), "{words}");
        let gauge = |name: &str, value| format!("{name} {value}\n");
        let [fails, votes] = [
            "inband_acceptor_disk_fails{node=\"one\"}",
            "inband_acceptor_voting{node=\"one\",partition=\"0\"}",
        ];
        assert!(metrics_text.contains(&gauge(fails, 1)), "{metrics_text}");
        assert!(metrics_text.contains(&gauge(votes, 0)), "{metrics_text}");

        std::fs::remove_file(filler).expect("room again");
        let number = round.to_string();
        wait_until_it_answers(resp, &["SET", "a", &number], "+OK");
        // The published state may be older than the answer.
        let deadline = Instant::now() + TIMEOUT;
        let (words, metrics_text) = loop {
            let (status, words, metrics_text) = status_and_metrics(&path, metrics);
            if status["acceptor_disk_failure"].is_null() {
                break (words, metrics_text);
            }
            assert!(Instant::now() < deadline, "{status}");
            std::thread::sleep(Duration::from_millis(50));
        };
        assert!(
            words.contains("  votes") || words.contains("votes  "),
            "{words}"
        );
        assert!(metrics_text.contains(&gauge(fails, 0)), "{metrics_text}");
        assert!(metrics_text.contains(&gauge(votes, 1)), "{metrics_text}");
    }
}

pub fn wait_until_it_answers(address: SocketAddr, command: &[&str], answer: &str) {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let reply = Client::try_connect(address).and_then(|mut c| c.try_call(command));
        if reply.as_deref() == Some(answer) {
            return;
        }
        assert!(Instant::now() < deadline, "{command:?} answered {reply:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// As systemd does: descriptor 3 is the socket, and the variables name this same process.
fn run_as_systemd_does(config: &Path, socket: &TcpListener) -> Host {
    fcntl(socket, FcntlArg::F_SETFD(FdFlag::empty())).expect("handed down");
    let script = format!(
        "exec 3<&{}; LISTEN_FDS=1 LISTEN_PID=$$ LISTEN_FDNAMES=inband.socket exec \"$0\" run --config \"$1\"",
        socket.as_raw_fd()
    );
    let child = Command::new("bash")
        .arg("-c")
        .arg(script)
        .arg(PROGRAM)
        .arg(config)
        .spawn()
        .expect("bash runs");
    fcntl(socket, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC)).expect("private again");
    Host(child)
}

#[test]
fn a_socket_of_systemd_serves_and_a_state_directory_has_one_process() {
    let dir = tempfile::tempdir().expect("a directory");
    let config = config(dir.path());
    let socket = TcpListener::bind("127.0.0.1:0").expect("a socket");
    let address = socket.local_addr().expect("its address");
    let first = run_as_systemd_does(&config, &socket);
    wait_until_it_answers(address, &["SET", "a", "1"], "+OK");

    let second = Command::new(PROGRAM)
        .args(["run", "--config"])
        .arg(&config)
        .stdin(Stdio::null())
        .output()
        .expect("it runs");
    let said = String::from_utf8_lossy(&second.stderr).into_owned();
    let expected = format!("in use by process {};", first.0.id());
    assert!(
        !second.status.success() && said.contains(&expected),
        "{said}"
    );

    // A killed host releases the directory. Its acceptor has lost its votes, so the next one answers only what needs no
    // agreement.
    drop(first);
    let _again = run_as_systemd_does(&config, &socket);
    wait_until_it_answers(address, &["PING"], "+PONG");
}
