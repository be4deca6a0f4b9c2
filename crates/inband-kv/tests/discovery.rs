//! What clients are told that look for replicas, compared with a real Redis Cluster and a real Sentinel, and with
//! redis-py as the client.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};

use crate::common::{scratch, wait_for, Served, TestClocks};
use crate::types::{Asker, RealRedis};
use inband_kv::discovery::Discovery;
use inband_kv::machine::MachineConfig;
use inband_kv::replica::ReplicaConfig;
use inband_kv::testing::MemoryCluster;

struct Replicas {
    served: Vec<Option<Served>>,
    addresses: Vec<SocketAddr>,
    _dirs: Vec<tempfile::TempDir>,
    _cluster: MemoryCluster,
}

impl Replicas {
    /// Replicas with the node ids 1, 2, ... that ask each other.
    fn start(count: usize, discovery: &Discovery) -> Self {
        let cluster = MemoryCluster::new();
        let port = || TcpListener::bind("127.0.0.1:0").unwrap();
        let listeners: Vec<TcpListener> = (0..count).map(|_| port()).collect();
        let address = |listener: &TcpListener| listener.local_addr().unwrap();
        for at in 0..count {
            let others = (0..count).filter(|other| *other != at);
            let peers = others.map(|other| address(&listeners[other])).collect();
            cluster.set_peers_of_next(at, peers);
        }
        let dirs: Vec<_> = (0..count).map(|_| scratch()).collect();
        let mut served = Vec::new();
        for (at, listener) in listeners.into_iter().enumerate() {
            let config = ReplicaConfig {
                replica_index: at as u64,
                discovery: Discovery {
                    node: at as u64 + 1,
                    ..discovery.clone()
                },
                ..ReplicaConfig::default()
            };
            let machine = MachineConfig::single(dirs[at].path());
            let clocks = TestClocks::default();
            served.push(Served::start_at(
                &cluster,
                machine,
                config,
                port(),
                listener,
                clocks,
            ));
        }
        let replicas = Self {
            addresses: served.iter().map(|served| served.address).collect(),
            served: served.into_iter().map(Some).collect(),
            _dirs: dirs,
            _cluster: cluster,
        };
        replicas.wait_for_living();
        replicas
    }

    fn ask(&self, replica: usize) -> Asker {
        Asker::connect(self.addresses[replica])
    }

    fn port(&self, replica: usize) -> String {
        self.addresses[replica].port().to_string()
    }

    fn stop(&mut self, replica: usize) {
        self.served[replica].take().unwrap().stop();
    }

    /// Waits until every living replica counts exactly the living ones.
    fn wait_for_living(&self) {
        let living: Vec<usize> = (0..self.served.len())
            .filter(|at| self.served[*at].is_some())
            .collect();
        for at in &living {
            let mut client = self.ask(*at);
            let all = format!("+OK {} usable Sentinels.", living.len());
            wait_for("all living ones are known, and only they", || {
                client.ask("SENTINEL CKQUORUM inband").starts_with(&all)
            });
        }
    }
}

/// Without an announced address, a node does not know its own before it meets another.
const REAL_CLUSTER: [&str; 4] = [
    "--cluster-enabled",
    "yes",
    "--cluster-announce-ip",
    "127.0.0.1",
];

fn as_cluster() -> Discovery {
    Discovery {
        is_cluster: true,
        ..Discovery::default()
    }
}

/// Replaces what differs between two servers.
fn without_names(reply: &str, port: u16) -> String {
    let reply = reply.replace(&port.to_string(), "PORT");
    let mut out = String::new();
    let mut rest = reply.as_str();
    while !rest.is_empty() {
        let is_hex = |c: char| c.is_ascii_hexdigit();
        let hex = rest.find(|c| !is_hex(c)).unwrap_or(rest.len());
        let taken = match hex {
            40 => {
                out += "ID";
                hex
            }
            0 => rest.chars().next().map_or(0, char::len_utf8),
            _ => hex,
        };
        if hex != 40 {
            out += &rest[..taken];
        }
        rest = &rest[taken..];
    }
    let offset = "'replication-offset' :";
    if let Some(at) = out.find(offset) {
        let digits = out[at + offset.len()..]
            .bytes()
            .take_while(u8::is_ascii_digit);
        let end = at + offset.len() + digits.count();
        out.replace_range(at + offset.len()..end, "OFFSET");
    }
    out
}

#[test]
fn a_real_cluster_answers_the_same() {
    let Some(redis) = RealRedis::start_with(&REAL_CLUSTER) else {
        return;
    };
    let ours = Replicas::start(1, &as_cluster());
    let mut theirs = Asker::connect(redis.address);
    assert_eq!(theirs.ask("CLUSTER ADDSLOTSRANGE 0 16383"), "+OK");
    wait_for("the cluster is up", || {
        theirs.ask("CLUSTER INFO").contains("cluster_state:ok")
    });
    let mut ours_asked = ours.ask(0);
    let questions = [
        "CLUSTER SLOTS",
        "CLUSTER SHARDS",
        "CLUSTER MYID",
        "CLUSTER KEYSLOT foo{a}b",
        "CLUSTER KEYSLOT",
        "CLUSTER COUNTKEYSINSLOT 16384",
        "CLUSTER COUNTKEYSINSLOT x",
        "CLUSTER SLOTS a",
        "CLUSTER NODES a",
        "CLUSTER NOSUCH",
        "CLUSTER REPLICAS nosuch",
        "CLUSTER",
        "READONLY",
        "READWRITE",
        "READONLY a",
        "ASKING",
        "SELECT 1",
        "SELECT 0",
    ];
    for protocol in ["HELLO 2", "HELLO 3"] {
        for asker in [&mut ours_asked, &mut theirs] {
            assert!(asker.ask(protocol).contains("'mode' 'cluster'"));
        }
        for question in questions {
            let ours = without_names(&ours_asked.ask(question), ours.addresses[0].port());
            let theirs = without_names(&theirs.ask(question), redis.address.port());
            assert_eq!(ours, theirs, "{protocol}, {question}");
        }
    }
    let (mut ours_asked, mut theirs) = (ours.ask(0), Asker::connect(redis.address));
    let fields = |info: &str| -> Vec<String> {
        let lines = info.trim_matches('\'').lines();
        let names = lines.filter_map(|line| line.split_once(':'));
        names.map(|(name, _)| name.to_owned()).collect()
    };
    let known = fields(&theirs.ask("CLUSTER INFO"));
    for field in fields(&ours_asked.ask("CLUSTER INFO")) {
        assert!(known.contains(&field), "{field}");
    }
    // Of a line of CLUSTER NODES: the port of the bus, times and the epoch are a server's own.
    let words = |line: String| -> Vec<String> {
        let words = line.trim_matches('\'').trim_end().split(' ');
        let own = |(at, word): (usize, &str)| match at {
            1 => word.split('@').next().unwrap_or(word).to_owned(),
            4..=6 => word.bytes().all(|b| b.is_ascii_digit()).to_string(),
            _ => word.to_owned(),
        };
        words.enumerate().map(own).collect()
    };
    let line = without_names(&ours_asked.ask("CLUSTER NODES"), ours.addresses[0].port());
    let real = without_names(&theirs.ask("CLUSTER NODES"), redis.address.port());
    assert_eq!(words(line), words(real));
    for asker in [&mut ours_asked, &mut theirs] {
        assert!(asker.ask("INFO cluster").contains("cluster_enabled:1"));
        assert!(asker.ask("INFO server").contains("redis_mode:cluster"));
    }
}

#[test]
fn without_the_setting_it_is_no_cluster() {
    let ours = Replicas::start(1, &Discovery::default());
    let mut client = ours.ask(0);
    let questions = [
        "CLUSTER SLOTS",
        "CLUSTER INFO",
        "READONLY",
        "READWRITE",
        "ASKING",
    ];
    let real = RealRedis::start();
    for question in questions {
        let disabled = "-ERR This instance has cluster support disabled";
        assert!(client.ask(question).starts_with(disabled), "{question}");
        if let Some(real) = &real {
            assert_eq!(Asker::connect(real.address).ask(question), disabled);
        }
    }
    assert!(client.ask("INFO").contains("cluster_enabled:0"));
    assert!(client.ask("HELLO 3").contains("'mode' 'standalone'"));
    let role = client.ask("ROLE");
    assert!(
        role.starts_with("['master' :") && role.ends_with(" []]"),
        "{role}"
    );
}

/// Names of the fields of a Sentinel's reply.
fn names(reply: &str) -> Vec<&str> {
    let words = reply.trim_matches(|c| "[]{}".contains(c)).split(' ');
    words.step_by(2).collect()
}

#[test]
fn a_real_sentinel_answers_in_the_same_form() {
    let Some(redis) = RealRedis::start() else {
        return;
    };
    let (dir, socket) = (scratch(), TcpListener::bind("127.0.0.1:0").unwrap());
    let address = socket.local_addr().unwrap();
    drop(socket);
    let file = dir.path().join("sentinel.conf");
    let monitored = redis.address.port();
    let text = format!(
        "bind 127.0.0.1\nport {}\nsentinel monitor inband 127.0.0.1 {monitored} 1\n",
        address.port()
    );
    std::fs::write(&file, text).unwrap();
    let sentinel = Command::new("redis-server")
        .arg(&file)
        .arg("--sentinel")
        .stdout(Stdio::null())
        .spawn();
    let mut sentinel = sentinel.unwrap();
    wait_for("it is up", || TcpStream::connect(address).is_ok());
    let ours = Replicas::start(1, &Discovery::default());
    let (mut asked, mut real) = (ours.ask(0), Asker::connect(address));
    let compared = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        for protocol in ["HELLO 2", "HELLO 3"] {
            asked.ask(protocol);
            real.ask(protocol);
            for question in ["SENTINEL MASTERS", "SENTINEL MASTER inband"] {
                let (ours, theirs) = (asked.ask(question), real.ask(question));
                assert_eq!(names(&ours), names(&theirs), "{question}");
                assert_eq!(ours.find('{'), theirs.find('{'), "{question}");
            }
            for question in [
                "SENTINEL GET-MASTER-ADDR-BY-NAME inband",
                "SENTINEL GET-MASTER-ADDR-BY-NAME nosuch",
                "SENTINEL MASTER nosuch",
                "SENTINEL MASTER",
                "SENTINEL REPLICAS inband",
                "SENTINEL SLAVES nosuch",
                "SENTINEL SENTINELS inband",
                "SENTINEL CKQUORUM inband",
                "SENTINEL CKQUORUM nosuch",
                "SENTINEL MYID",
                "SENTINEL NOSUCH",
                "SENTINEL",
            ] {
                let answer = without_names(&asked.ask(question), ours.addresses[0].port());
                let theirs = without_names(&real.ask(question), monitored);
                assert_eq!(answer, theirs, "{question}");
            }
        }
    }));
    sentinel.kill().unwrap();
    sentinel.wait().unwrap();
    compared.expect("they are alike");
}

#[test]
fn a_dead_replica_is_left_out() {
    let mut replicas = Replicas::start(3, &as_cluster());
    let master = |replicas: &Replicas, at: usize| {
        let reply = replicas
            .ask(at)
            .ask("SENTINEL GET-MASTER-ADDR-BY-NAME inband");
        let port = reply
            .trim_matches(']')
            .rsplit(' ')
            .next()
            .map(str::to_owned);
        port.unwrap().trim_matches('\'').to_owned()
    };
    for at in 0..3 {
        assert_eq!(master(&replicas, at), replicas.port(0));
    }
    let mut client = replicas.ask(2);
    let slots = client.ask("CLUSTER SLOTS");
    let mut places = (0..3).map(|at| slots.find(&replicas.port(at)).expect("all are there"));
    assert!(places.by_ref().collect::<Vec<_>>().is_sorted(), "{slots}");
    let lines = client.ask("CLUSTER NODES");
    assert_eq!(lines.matches("slave").count(), 2, "{lines}");
    let replicas_of = client.ask("SENTINEL REPLICAS inband");
    assert_eq!(
        names(&replicas_of)
            .iter()
            .filter(|n| **n == "'master-host'")
            .count(),
        2
    );
    assert!(
        !replicas_of.contains(&format!("'port' '{}'", replicas.port(0))),
        "{replicas_of}"
    );
    replicas.stop(0);
    replicas.wait_for_living();
    for at in 1..3 {
        assert_eq!(master(&replicas, at), replicas.port(1));
        let slots = replicas.ask(at).ask("CLUSTER SLOTS");
        assert!(!slots.contains(&replicas.port(0)), "{slots}");
    }
    replicas.stop(1);
    replicas.wait_for_living();
    assert_eq!(master(&replicas, 2), replicas.port(2));
}

#[test]
fn clients_are_redirected_only_if_asked_for() {
    let mut replicas = Replicas::start(
        2,
        &Discovery {
            redirects: true,
            ..as_cluster()
        },
    );
    let moved = format!("-MOVED 12182 127.0.0.1:{}", replicas.port(0));
    let mut client = replicas.ask(1);
    // The master must have said that it is one.
    wait_for("it is redirected", || client.ask("GET foo") == moved);
    assert_eq!(client.ask("MSET foo 1 bar 2"), moved);
    assert_eq!(client.ask("BLPOP foo 0"), moved);
    assert_eq!(client.ask("EVAL x 1 foo"), moved);
    for elsewhere in ["DBSIZE", "PUBLISH foo 1"] {
        assert_eq!(client.ask(elsewhere), ":0");
    }
    assert_eq!(client.ask("READONLY"), "+OK");
    assert_eq!(client.ask("GET foo"), "$-1");
    assert_eq!(client.ask("SET foo 1"), moved);
    assert_eq!(client.ask("READWRITE"), "+OK");
    assert_eq!(client.ask("MULTI"), "+OK");
    assert_eq!(client.ask("GET foo"), moved);
    assert!(client.ask("EXEC").starts_with("-EXECABORT"));
    assert_eq!(replicas.ask(0).ask("SET foo 1"), "+OK");
    // A command of a session keeps its number only if it is executed here.
    let session = client.ask("INBAND.SESSION NEW");
    let session = session.trim_matches(':');
    assert_eq!(client.ask(&format!("INBAND.SESSION {session} 1")), "+OK");
    assert_eq!(client.ask("INCR foo"), ":2");
    replicas.stop(0);
    replicas.wait_for_living();
    assert_eq!(replicas.ask(1).ask("INCR foo"), ":3");
}

const REDIS_PY: &str = r#"
import sys, time
import redis
from redis.cluster import RedisCluster, ClusterNode
from redis.sentinel import Sentinel

ports = [int(port) for port in sys.argv[1:]]
cluster = RedisCluster(startup_nodes=[ClusterNode("127.0.0.1", port) for port in ports], read_from_replicas=True)
assert {node.port for node in cluster.get_nodes()} == set(ports)
for n in range(20):
    cluster.set(f"k{n}", n)
    assert cluster.get(f"k{n}") == str(n).encode()
assert cluster.dbsize() == 20
assert sorted(cluster.scan_iter()) == sorted(f"k{n}".encode() for n in range(20))
pipeline = cluster.pipeline()
pipeline.incr("a"), pipeline.incr("b")
assert pipeline.execute() == [1, 1]

sentinel = Sentinel([("127.0.0.1", port) for port in ports], socket_timeout=5)
assert sentinel.discover_master("inband") == ("127.0.0.1", ports[0])
assert sorted(sentinel.discover_slaves("inband")) == [("127.0.0.1", port) for port in sorted(ports[1:])]
master = sentinel.master_for("inband", socket_timeout=5)
assert master.incr("n") == 1
print("stop", flush=True)
sys.stdin.readline()

deadline = time.monotonic() + 10
while True:
    try:
        assert master.incr("n") == 2
        break
    except redis.ConnectionError:
        assert time.monotonic() < deadline
assert sentinel.discover_master("inband") == ("127.0.0.1", ports[1])
assert sentinel.slave_for("inband", socket_timeout=5).get("n") == b"2"
cluster = RedisCluster(startup_nodes=[ClusterNode("127.0.0.1", port) for port in ports[1:]])
assert {node.port for node in cluster.get_nodes()} == set(ports[1:])
assert cluster.incr("n") == 3
print("good", flush=True)
"#;

#[test]
fn redis_py_finds_the_living_replicas() {
    // The interpreter that has Debian's packages.
    let python = "/usr/bin/python3";
    let import = ["-c", "import redis.cluster"];
    let has = Command::new(python).args(import).output();
    if !has.is_ok_and(|output| output.status.success()) {
        inband_testing::not_run("python3-redis is not installed");
        return;
    }
    let mut replicas = Replicas::start(3, &as_cluster());
    let mut program = Command::new(python)
        .args(["-c", REDIS_PY])
        .args((0..3).map(|at| replicas.port(at)))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(program.stdout.take().unwrap()).lines();
    let mut said = || lines.next().and_then(Result::ok);
    let before = said();
    if before.as_deref() == Some("stop") {
        replicas.stop(0);
        replicas.wait_for_living();
        let mut stdin = program.stdin.take().unwrap();
        stdin.write_all(b"stopped\n").unwrap();
        let after = said();
        assert_eq!(after.as_deref(), Some("good"), "its errors are above");
    }
    assert!(program.wait().unwrap().success(), "its errors are above");
    assert_eq!(before.as_deref(), Some("stop"));
}
