//! Three processes, and memcached clients: acknowledged writes survive a killed leader.

use std::io::{self, BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::{channel, Sender};
use std::time::{Duration, Instant};

use inband_box::changes::change_at;
use inband_box::membership::{Change, Membership};
use inband_box::node::Quorum;
use inband_box::process::{socket_of, status_at, Status};
use inband_testing::port::free_address;
use nix::sys::signal::{kill, Signal};
use nix::unistd::Pid;

/// How long anything may take here; the machine may be busy.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Other tests take the CPUs at the same time.
const SUSPECT_AFTER_US: &str = "250000";

struct Cluster {
    dir: tempfile::TempDir,
    nodes: Vec<SocketAddr>,
    memcached: Vec<SocketAddr>,
    processes: Vec<Option<Child>>,
    /// This many nodes start together; the others may join.
    members: usize,
    log_records: &'static str,
    durability: &'static str,
}

impl Cluster {
    fn start(nodes: usize, log_records: &'static str) -> Cluster {
        Cluster::start_with(nodes, log_records, "memory")
    }

    fn start_with(nodes: usize, log_records: &'static str, durability: &'static str) -> Cluster {
        let mut cluster = Cluster::with_places(nodes, nodes, log_records, durability);
        (0..nodes).for_each(|n| cluster.spawn(n, true));
        cluster.until_whole();
        cluster
    }

    /// Nothing runs yet.
    fn with_places(
        nodes: usize,
        members: usize,
        log_records: &'static str,
        durability: &'static str,
    ) -> Cluster {
        Cluster {
            dir: tempfile::tempdir().expect("a directory"),
            nodes: (0..nodes).map(|_| free_address()).collect(),
            memcached: (0..nodes).map(|_| free_address()).collect(),
            processes: (0..nodes).map(|_| None).collect(),
            members,
            log_records,
            durability,
        }
    }

    fn until_whole(&self) {
        self.until("a leader", |statuses| {
            statuses.iter().filter(|s| s.state == "leading").count() == 1
                && statuses.iter().filter(|s| s.state == "following").count()
                    == self.nodes.len() - 1
        });
    }

    fn data(&self, n: usize) -> PathBuf {
        self.dir.path().join(format!("node-{}", n + 1))
    }

    fn spawn(&mut self, n: usize, is_new: bool) {
        self.spawn_in(n, is_new, &[]);
    }

    fn spawn_in(&mut self, n: usize, is_new: bool, environment: &[(&str, &str)]) {
        let nodes: Vec<String> = self.nodes.iter().map(ToString::to_string).collect();
        let mut command = Command::new(env!("CARGO_BIN_EXE_inband-box"));
        command
            .envs(environment.iter().copied())
            .args(["node", "--node", &(n + 1).to_string()])
            .args(["--nodes", &nodes.join(",")])
            .args(["--memcached", &self.memcached[n].to_string()])
            // Other tests take the CPUs at the same time.
            .args(["--suspect-after-us", SUSPECT_AFTER_US])
            .args(["--log-records", self.log_records])
            .args(["--durability", self.durability])
            .arg("--data")
            .arg(self.data(n))
            .args(["--members", &self.members.to_string()])
            .stdout(Stdio::null());
        if n >= self.members {
            command.arg("--join");
        }
        if is_new {
            command.arg("--new");
        }
        self.processes[n] = Some(command.spawn().expect("it starts"));
    }

    fn kill(&mut self, n: usize) {
        let mut process = self.processes[n].take().expect("it runs");
        process.kill().expect("killed");
        process.wait().expect("it ends");
    }

    fn status(&self, n: usize) -> Option<Status> {
        status_at(&socket_of(&self.data(n))).ok()
    }

    fn statuses(&self) -> Vec<Status> {
        let runs = |n: &usize| self.processes[*n].is_some();
        let nodes = (0..self.nodes.len()).filter(runs);
        nodes.filter_map(|n| self.status(n)).collect()
    }

    fn until(&self, what: &str, is_so: impl Fn(&[Status]) -> bool) -> Vec<Status> {
        let until = Instant::now() + TIMEOUT;
        loop {
            let statuses = self.statuses();
            if is_so(&statuses) {
                return statuses;
            }
            assert!(Instant::now() < until, "{what}: {statuses:#?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Asks the leader for a change, and another one if it does not lead any more.
    fn change(&self, change: Change) -> Membership {
        let until = Instant::now() + TIMEOUT;
        loop {
            let leader = socket_of(&self.data(self.leader()));
            match change_at(&leader, change).expect("an answer") {
                Ok(changed) => return changed,
                Err(failed) => {
                    assert!(failed.may_ask_again && Instant::now() < until, "{failed:?}")
                }
            }
        }
    }

    fn leader(&self) -> usize {
        let statuses = self.until("a leader", |statuses| {
            statuses.iter().any(|status| status.state == "leading")
        });
        let leading = statuses.iter().filter(|status| status.state == "leading");
        let leader = leading.max_by_key(|status| status.epoch).expect("there is");
        leader.name["node/".len()..]
            .parse::<usize>()
            .expect("a number")
            - 1
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for process in self.processes.iter_mut().flatten() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

struct Client(BufReader<TcpStream>);

impl Client {
    fn connect(address: SocketAddr) -> Client {
        let stream = TcpStream::connect(address).expect("it listens");
        stream.set_nodelay(true).expect("set");
        stream.set_read_timeout(Some(TIMEOUT)).expect("set");
        Client(BufReader::new(stream))
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).expect("a line");
        line.trim_end().to_owned()
    }

    fn ask(&mut self, request: &str) -> String {
        self.try_ask(request).expect("a reply")
    }

    fn try_ask(&mut self, request: &str) -> io::Result<String> {
        self.0.get_mut().write_all(request.as_bytes())?;
        let mut line = String::new();
        match self.0.read_line(&mut line)? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(line.trim_end().to_owned()),
        }
    }

    fn get(&mut self, key: &str) -> Option<String> {
        let first = self.ask(&format!("get {key}\r\n"));
        if first == "END" {
            return None;
        }
        assert!(first.starts_with("VALUE "), "{first}");
        let value = self.line();
        assert_eq!(self.line(), "END");
        Some(value)
    }
}

/// Writes at all nodes, a killed leader, reads at the remaining nodes, a restarted node.
#[test]
fn what_was_acknowledged_survives_a_killed_leader() {
    let mut cluster = Cluster::start(3, "65536");
    let value = |n: usize| format!("{n}-{}", "v".repeat(n * 37 % 3000));
    let count = 300;
    for n in 0..count {
        if n % 100 == 99 {
            continue;
        }
        let mut client = Client::connect(cluster.memcached[n % 3]);
        let text = value(n);
        let set = format!("set key{n} 0 0 {}\r\n{text}\r\n", text.len());
        assert_eq!(client.ask(&set), "STORED", "{n}");
    }
    // A read at another node sees every write that was acknowledged before it.
    let mut clients: Vec<_> = cluster
        .memcached
        .iter()
        .map(|a| Client::connect(*a))
        .collect();
    clients[0].ask("set n 0 0 1\r\n0\r\n");
    for n in 1..=100 {
        assert_eq!(clients[n % 3].ask("incr n 1\r\n"), n.to_string());
        let read = clients[(n + 1) % 3].get("n").expect("it is there");
        assert_eq!(read.trim_end(), n.to_string());
    }
    let leader = cluster.leader();
    cluster.kill(leader);
    let left: Vec<usize> = (0..3).filter(|n| *n != leader).collect();
    for n in 0..count {
        let client = &mut clients[left[n % 2]];
        let expected = (n % 100 != 99).then(|| value(n));
        assert_eq!(client.get(&format!("key{n}")), expected, "{n}");
    }
    assert_eq!(clients[left[0]].ask("incr n 1\r\n"), "101");
    // The node has lost its memory, joins, and becomes equal.
    cluster.spawn(leader, false);
    cluster.until("equal nodes", |statuses| {
        statuses.len() == 3 && are_equal(statuses)
    });
    let mut client = Client::connect(cluster.memcached[leader]);
    assert_eq!(client.get("n").as_deref(), Some("101"));
}

fn are_equal(statuses: &[Status]) -> bool {
    let first = &statuses[0];
    statuses
        .iter()
        .all(|s| (s.applied, s.digest) == (first.applied, first.digest) && s.state != "recovering")
}

/// The log holds 1,024 records, and there are more: a node that has lost its memory, and one that was stopped, get the
/// leader's table while clients write.
#[test]
fn a_node_that_misses_more_than_the_log_gets_the_table() {
    let mut cluster = Cluster::start(3, "1024");
    let leader = cluster.leader();
    let [dead, paused] = [1, 2].map(|n| (leader + n) % 3);
    let mut client = Client::connect(cluster.memcached[leader]);
    let set = |client: &mut Client, n: usize| {
        let value = format!("{n}-{}", "v".repeat(n % 1_500));
        let request = format!("set key{} 0 0 {}\r\n{value}\r\n", n % 2_000, value.len());
        assert_eq!(client.ask(&request), "STORED", "{n}");
        value
    };
    let installed = |statuses: &[Status], n: usize| {
        let name = format!("node/{}", n + 1);
        let node = statuses.iter().find(|status| status.name == name);
        node.map_or(0, |node| node.counters["snapshots_installed"])
    };
    let process = cluster.processes[paused].as_ref().expect("it runs");
    let pid = nix::unistd::Pid::from_raw(process.id() as i32);
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGSTOP).expect("paused");
    // More than its socket's buffer holds, too.
    (0..9_000).for_each(|n| drop(set(&mut client, n)));
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGCONT).expect("it goes on");
    cluster.until("the paused node has the table", |all| {
        all.len() == 3 && are_equal(all) && installed(all, paused) == 1
    });

    cluster.kill(dead);
    (9_000..12_000).for_each(|n| drop(set(&mut client, n)));
    cluster.spawn(dead, false);
    (12_000..13_000).for_each(|n| drop(set(&mut client, n)));
    cluster.until("the restarted node has the table", |all| {
        all.len() == 3 && are_equal(all) && installed(all, dead) == 1
    });

    // The other two have everything, and clients find it there.
    cluster.kill(leader);
    let mut clients = [dead, paused].map(|n| Client::connect(cluster.memcached[n]));
    for n in 11_000..13_000 {
        let value = format!("{n}-{}", "v".repeat(n % 1_500));
        let read = clients[n % 2].get(&format!("key{}", n % 2_000));
        assert_eq!(read, Some(value), "{n}");
    }
    set(&mut clients[0], 13_000);
}

#[test]
fn a_node_joins_and_leaves_by_commands_at_the_leader() {
    let mut cluster = Cluster::with_places(4, 3, "1024", "memory");
    (0..3).for_each(|n| cluster.spawn(n, true));
    let leader = cluster.leader();
    let data: Vec<PathBuf> = (0..3).map(|n| cluster.data(n)).collect();
    let at = |n: usize, args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_inband-box"));
        command.args(args).arg("--data").arg(&data[n]);
        let output = command.output().expect("it runs");
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said).into_owned();
        (output.status.success(), said)
    };
    let (done, said) = at((leader + 1) % 3, &["quorum", "all"]);
    let leads = format!("node/{} does", leader + 1);
    assert!(!done && said.contains(&leads), "{said}");
    let (done, said) = at(leader, &["quorum", "all"]);
    assert!(done && said.contains("quorum: all"), "{said}");
    let (done, said) = at(leader, &["member", "add"]);
    assert!(done && said.contains("node/4 may join"), "{said}");
    let (done, said) = at(leader, &["member", "add"]);
    assert!(!done && said.contains("node/4 is joining"), "{said}");
    cluster.spawn(3, false);
    cluster.until("four members", |statuses| {
        let is_member = |s: &Status| s.membership.is_member(4);
        statuses.len() == 4 && statuses.iter().all(is_member)
    });
    let (done, said) = at(leader, &["member", "remove", "4"]);
    assert!(done && said.contains("removed node/4"), "{said}");
    // The node ends by itself.
    let left = cluster.processes[3].as_mut().expect("it runs").wait();
    assert!(left.expect("it ends").success());
    let (done, said) = at(leader, &["member", "remove", "4"]);
    assert!(!done && said.contains("is not a member"), "{said}");
}

/// Asks node `n` for a change, on a thread, and says then that it has been answered.
fn asks(cluster: &Cluster, n: usize, change: Change, answered: &Sender<(Change, String)>) {
    let (socket, answered) = (socket_of(&cluster.data(n)), answered.clone());
    std::thread::spawn(move || {
        let said = match change_at(&socket, change).expect("an answer") {
            Ok(now) => now.to_string(),
            Err(failed) => failed.to_string(),
        };
        let _ = answered.send((change, said));
    });
}

/// The first change waits for a node that is down, and the second one need not wait for that.
#[test]
fn a_change_beside_another_one_is_refused_at_once() {
    let mut cluster = Cluster::start(3, "1024");
    let all = Change::Quorum {
        quorum: Quorum::All,
        force: false,
    };
    // On a busy machine another node may lead by now.
    let leader = loop {
        let leader = cluster.leader();
        match change_at(&socket_of(&cluster.data(leader)), all).expect("an answer") {
            Ok(_) => break leader,
            Err(failed) => assert!(failed.may_ask_again, "{failed:?}"),
        }
    };
    cluster.kill((leader + 1) % 3);
    let majority = Change::Quorum {
        quorum: Quorum::Majority,
        force: false,
    };
    // On a busy machine the first one may be over before the second one is asked for.
    let is_refused_at_once = |_| {
        let (answered, answers) = channel();
        asks(&cluster, leader, majority, &answered);
        cluster.until("the change is under way", |statuses| {
            let notes = statuses.iter().flat_map(|status| &status.notes);
            notes.into_iter().any(|note| note.contains("waits to be"))
        });
        asks(&cluster, leader, Change::Add, &answered);
        let (first, said) = answers.recv().expect("an answer");
        let (_, other) = answers.recv().expect("another answer");
        assert!(
            said.contains("another change is under way")
                || other.contains("another change is under way"),
            "{said}; {other}"
        );
        first == Change::Add
    };
    assert!((0..3).any(is_refused_at_once));
}

/// It must not come back as the member that it was, since it has forgotten what it promised.
#[test]
fn a_node_whose_directory_was_lost_ends_and_another_one_takes_its_place() {
    let mut cluster = Cluster::with_places(5, 3, "1024", "memory");
    (0..3).for_each(|n| cluster.spawn(n, true));
    let are_members = |cluster: &Cluster, members: u8| {
        cluster.until("members", |statuses| {
            let are = |s: &Status| s.membership.members == members && s.membership.joining == 0;
            !statuses.is_empty() && statuses.iter().all(are)
        });
    };
    assert_eq!(cluster.change(Change::Add).joining, 4);
    cluster.spawn(3, false);
    are_members(&cluster, 0b11110);
    cluster.kill(3);
    std::fs::remove_dir_all(cluster.data(3)).expect("removed");
    cluster.spawn(3, false);
    let until = Instant::now() + TIMEOUT;
    let process = cluster.processes[3].as_mut().expect("it was started");
    let ended = loop {
        if let Some(ended) = process.try_wait().expect("a child") {
            break ended;
        }
        assert!(Instant::now() < until, "it runs");
        std::thread::sleep(Duration::from_millis(20));
    };
    assert!(!ended.success());
    cluster.processes[3] = None;
    cluster.change(Change::Remove { node: 4 });
    assert_eq!(cluster.change(Change::Add).joining, 5);
    cluster.spawn(4, false);
    are_members(&cluster, 0b101110);
}

#[test]
fn a_node_says_what_is_wrong() {
    let dir = tempfile::tempdir().expect("a directory");
    let say = |args: &[&str], data: &Path| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_inband-box"));
        command.arg("node").args(args).arg("--data").arg(data);
        let output = command.output().expect("it runs");
        assert!(!output.status.success());
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let nodes = "--nodes=127.0.0.1:1,127.0.0.1:2,127.0.0.1:3";
    for (args, expected) in [
        (&["--node=1", "--nodes=127.0.0.1:1"][..], "give 3 to 7"),
        (
            &["--node=1", nodes, "--members=2"],
            "2 nodes begin together",
        ),
        (&["--node=1", nodes, "--join"], "and only they"),
        (&["--node=4", nodes], "--nodes has 3 addresses"),
        (&["--node=1", nodes], "give --new"),
        (
            &["--node=1", nodes, "--memcached=0.0.0.0:1"],
            "--memcached-open",
        ),
        (&["--node=1", nodes, "--memory=1000"], "--memory 1000"),
        (&["--node=1", nodes, "--quorum=some"], "majority"),
        (&["--node=1", nodes, "--suspect-after-us=1"], "1"),
        (
            &[
                "--node=1",
                nodes,
                "--durability=sync",
                "--dataplane=xdp-generic",
                "--interface=lo",
            ],
            "the process acknowledges, once a record is synced",
        ),
    ] {
        let error = say(args, dir.path());
        assert!(error.contains(expected), "{args:?}: {error}");
    }
}

/// Three nodes from files. A file is refused with what is wrong with it, and the command line overrides it.
#[test]
fn nodes_start_from_files() {
    let mut cluster = Cluster::with_places(3, 3, "1024", "memory");
    let nodes: Vec<String> = cluster.nodes.iter().map(|at| format!("'{at}'")).collect();
    for n in 0..3 {
        let text = format!(
            "node = {}\nnodes = [{}]\ndata = '{}'\nmemcached = '{}'\nlog-records = 1024\nsuspect-after-us = {SUSPECT_AFTER_US}\n\
             memory = '32MiB'\nclients-max = 5\n",
            n + 1,
            nodes.join(", "),
            cluster.data(n).display(),
            cluster.memcached[n],
        );
        let path = cluster.dir.path().join(format!("{n}.toml"));
        std::fs::write(&path, text).expect("written");
        let mut command = Command::new(env!("CARGO_BIN_EXE_inband-box"));
        let options = ["--new", "--memory=16MiB", "--config"];
        let command = command.arg("node").args(options).arg(&path);
        let child = command.stdout(Stdio::null()).spawn().expect("it starts");
        cluster.processes[n] = Some(child);
    }
    cluster.until_whole();
    let statuses = cluster.statuses();
    assert!(
        statuses.iter().all(|s| s.memory_bytes <= 16 << 20),
        "{statuses:?}"
    );
    let mut client = Client::connect(cluster.memcached[0]);
    assert_eq!(client.ask("set k 0 0 1\r\nv\r\n"), "STORED");

    let path = cluster.dir.path().join("wrong.toml");
    for (text, says) in [
        (
            "nods = []",
            "there is no option \"nods\"; there are node, nodes, data",
        ),
        (
            "accept-loss = true",
            "the table would be lost at every start",
        ),
        ("node = 4", "--nodes has 3 addresses"),
    ] {
        std::fs::write(&path, text).expect("written");
        let mut command = Command::new(env!("CARGO_BIN_EXE_inband-box"));
        command
            .args(["node", "--config"])
            .arg(&path)
            .arg("--data=x");
        command.arg("--nodes=127.0.0.1:1,127.0.0.1:2,127.0.0.1:3");
        let output = command.output().expect("it runs");
        let said = String::from_utf8_lossy(&output.stderr);
        let is_named = said.contains("wrong.toml") && said.contains(says);
        assert!(!output.status.success() && is_named, "{text}: {said}");
    }
}

/// All nodes end at once, and continue with what is on their disks; then one disk is damaged.
#[test]
fn with_sync_what_was_acknowledged_survives_the_end_of_all_nodes() {
    let mut cluster = Cluster::start_with(3, "1024", "sync");
    let count = 200;
    for n in 0..count {
        let mut client = Client::connect(cluster.memcached[n % 3]);
        let set = format!("set key{n} 0 0 4\r\n{n:04}\r\n");
        assert_eq!(client.ask(&set), "STORED", "{n}");
    }
    (0..3).for_each(|n| cluster.kill(n));
    (0..3).for_each(|n| cluster.spawn(n, false));
    cluster.until_whole();
    let has_all = |cluster: &Cluster, node: usize| {
        let mut client = Client::connect(cluster.memcached[node]);
        for n in 0..count {
            assert_eq!(client.get(&format!("key{n}")), Some(format!("{n:04}")));
        }
    };
    has_all(&cluster, 0);
    cluster.kill(2);
    let log = cluster.data(2).join("journal");
    let files = std::fs::read_dir(&log).expect("its log");
    let segment = files
        .map(|file| file.expect("a file").path())
        .find(|path| path.to_string_lossy().contains("journal-"))
        .expect("a segment");
    let mut bytes = std::fs::read(&segment).expect("read");
    bytes[600] ^= 1;
    std::fs::write(&segment, bytes).expect("written");
    cluster.spawn(2, false);
    cluster.until_whole();
    has_all(&cluster, 2);
}

/// All nodes are killed several times while clients write: each key must have its last acknowledged value, or a newer
/// one.
#[test]
fn with_sync_all_nodes_may_be_killed_while_clients_write() {
    const KEYS: usize = 20;
    let mut cluster = Cluster::start_with(3, "1024", "sync");
    let mut sent = 0;
    for round in 0..4 {
        let is_over = AtomicBool::new(false);
        let acknowledged = AtomicUsize::new(0);
        let written = std::thread::scope(|scope| {
            let (is_over, acknowledged, first) = (&is_over, &acknowledged, sent);
            let writers: Vec<_> = (0..3)
                .zip(&cluster.memcached)
                .map(|(writer, address)| {
                    let mut client = Client::connect(*address);
                    scope.spawn(move || {
                        let mut last = [None; KEYS];
                        for n in first.. {
                            let fill = "v".repeat(n % 700);
                            let value = format!("{n:08}{fill}");
                            let key = format!("w{writer}-{}", n % KEYS);
                            let set = format!("set {key} 0 0 {}\r\n{value}\r\n", value.len());
                            match client.try_ask(&set) {
                                Ok(reply) if reply == "STORED" => last[n % KEYS] = Some(n),
                                _ if is_over.load(SeqCst) => return (n, last),
                                other => panic!("{key}: {other:?}"),
                            }
                            acknowledged.fetch_add(1, SeqCst);
                        }
                        unreachable!("it writes until its node has ended");
                    })
                })
                .collect();
            let until = Instant::now() + TIMEOUT;
            while acknowledged.load(SeqCst) < 500 {
                assert!(Instant::now() < until, "{:?}", acknowledged);
                std::thread::sleep(Duration::from_millis(1));
            }
            is_over.store(true, SeqCst);
            let processes = cluster.processes.iter_mut().flatten();
            processes.for_each(|process| process.kill().expect("killed"));
            let written = writers.into_iter().map(|writer| writer.join());
            written.collect::<Result<Vec<_>, _>>().expect("writers")
        });
        (0..3).for_each(|n| cluster.kill(n));
        (0..3).for_each(|n| cluster.spawn(n, false));
        cluster.until_whole();
        for (writer, (tried, last)) in written.iter().enumerate() {
            let mut client = Client::connect(cluster.memcached[(writer + round) % 3]);
            for n in last.iter().flatten() {
                let value = client.get(&format!("w{writer}-{}", n % KEYS));
                let found: usize = value.expect("it was stored")[..8]
                    .parse()
                    .expect("a number");
                assert!((*n..=*tried).contains(&found), "{writer}: {found}, not {n}");
            }
            sent = sent.max(tried + 1);
        }
    }
}

/// Waits until a line begins so, and returns all lines up to then.
fn wait_for(manager: &UnixDatagram, line: &str) -> Vec<String> {
    let until = Instant::now() + TIMEOUT;
    let mut lines = Vec::new();
    let mut buffer = [0; 4096];
    while !lines.iter().any(|said: &String| said.starts_with(line)) {
        assert!(Instant::now() < until, "no {line} in {lines:?}");
        let Ok(len_bytes) = manager.recv(&mut buffer) else {
            continue;
        };
        let message = String::from_utf8_lossy(&buffer[..len_bytes]);
        lines.extend(message.lines().map(str::to_owned));
    }
    lines
}

#[test]
fn the_service_manager_learns_that_a_node_is_ready_lives_and_stops() {
    let mut cluster = Cluster::with_places(3, 3, "1024", "memory");
    let path = cluster.dir.path().join("notify");
    let manager = UnixDatagram::bind(&path).expect("bound");
    let timeout = Some(Duration::from_millis(100));
    manager.set_read_timeout(timeout).expect("a timeout");
    let environment = [
        ("NOTIFY_SOCKET", path.to_str().expect("text")),
        ("WATCHDOG_USEC", "2000000"),
    ];
    cluster.spawn_in(0, true, &environment);
    // Alone it is alive and not ready.
    let lines = wait_for(&manager, "STATUS=not ready: the node is ");
    assert!(!lines.contains(&"READY=1".to_owned()), "{lines:?}");
    let lines = wait_for(&manager, "WATCHDOG=1");
    assert!(!lines.contains(&"READY=1".to_owned()), "{lines:?}");
    (1..3).for_each(|n| cluster.spawn(n, true));
    let lines = wait_for(&manager, "STATUS=ready: ");
    assert!(lines.contains(&"READY=1".to_owned()), "{lines:?}");

    (1..3).for_each(|n| cluster.kill(n));
    let lines = wait_for(&manager, "STATUS=not ready: ");
    assert!(!lines.contains(&"READY=1".to_owned()), "once: {lines:?}");

    let mut process = cluster.processes[0].take().expect("it runs");
    let pid = Pid::from_raw(process.id() as i32);
    kill(pid, Signal::SIGTERM).expect("it runs");
    let lines = wait_for(&manager, "STOPPING=1");
    assert!(!lines.contains(&"READY=1".to_owned()), "once: {lines:?}");
    assert!(process.wait().expect("it ends").success());
}
