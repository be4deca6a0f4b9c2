//! Options of `inband up box` that are the node's: clients who read a node's own copy in datagrams, how many clients a
//! node serves, and when a leader is suspected; and `inband top`.

use std::fs;
use std::io::{ErrorKind, Read};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{ensure, Context, Result};
use inband_cluster::box_cluster::{BoxCluster, Options};
use inband_cluster::scratch::retry;
use inband_cluster::supervisor::Supervisor;
use inband_host::config::Dataplane;
use inband_testing::port::{free_ports, loopback};

use crate::boxes::{ask, options, set, start, LIMIT};

/// A datagram may be lost; then it is sent again.
const RESEND_AFTER: Duration = Duration::from_millis(500);
/// memcached's header of a request in one datagram.
const HEADER: [u8; 8] = [0, 1, 0, 0, 0, 1, 0, 0];
/// What `version` replies begin with.
const VERSION: &str = "VERSION ";
const GETS_PORT: u16 = 11311;

/// Asks until a node's own copy, which may be behind, has the value.
fn read(socket: &UdpSocket, at: SocketAddr, key: &str, value: &str) -> Result<()> {
    socket.set_read_timeout(Some(RESEND_AFTER))?;
    let expected = format!("VALUE {key} 0 {}\r\n{value}\r\nEND\r\n", value.len());
    retry(LIMIT, || {
        let request = [&HEADER[..], format!("get {key}\r\n").as_bytes()].concat();
        socket.send_to(&request, at)?;
        let mut reply = [0; 1500];
        let (len, from) = socket.recv_from(&mut reply)?;
        let text = String::from_utf8_lossy(&reply[HEADER.len()..len]);
        ensure!(from == at && text == expected, "{from}: {text:?}");
        Ok(())
    })
}

/// Returns whether every node was started with this argument.
fn is_given_to_all(cluster: &Supervisor<BoxCluster>, argument: &str) -> Result<bool> {
    let nodes = cluster.status().nodes;
    let lines = nodes.iter().map(|node| {
        let path = format!("/proc/{}/cmdline", node.pid);
        fs::read(&path).context(path)
    });
    let lines = lines.collect::<Result<Vec<_>>>()?;
    let has = |line: &Vec<u8>| {
        line.split(|byte| *byte == 0)
            .any(|a| a == argument.as_bytes())
    };
    Ok(lines.len() == 3 && lines.iter().all(has))
}

#[test]
fn datagrams_read_a_node_s_own_copy_and_clients_are_counted() {
    let dir = tempfile::tempdir().expect("a directory");
    let first = loopback(free_ports(7));
    let options = Options {
        memcached_local_udp: Some(first),
        clients_max: 2,
        suspect_after_us: Some(49_999),
        ..options()
    };
    let memcached = options.memcached;
    let cluster = start(dir.path(), options).expect("a new cluster");
    set(memcached, "k", "hello").expect("stored");
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    for node in cluster.status().nodes {
        let id: u16 = node.name["node/".len()..].parse().expect("a number");
        let at = SocketAddr::new(first.ip(), first.port() + id - 1);
        assert_eq!(node.memcached_local_udp, Some(at));
        read(&socket, at, "k", "hello").expect("the node's own copy");
    }
    assert!(is_given_to_all(&cluster, "--suspect-after-us=49999").expect("command lines"));

    // The two that are connected are served, and another is not until one of them has gone.
    let mut clients: Vec<TcpStream> = Vec::new();
    retry(LIMIT, || {
        // Clients of the lines above may not have been closed yet.
        clients = connect_two(memcached)?;
        Ok(())
    })
    .expect("two clients");
    let mut third = TcpStream::connect(memcached).expect("connected");
    third.set_read_timeout(Some(LIMIT)).expect("set");
    let mut said = String::new();
    third.read_to_string(&mut said).expect("closed");
    assert_eq!(said, "ERROR Too many open connections\r\n");
    clients.pop();
    retry(LIMIT, || {
        let reply = ask(memcached, "version\r\n", 1)?;
        ensure!(
            reply.iter().all(|line| line.starts_with(VERSION)),
            "{reply:?}"
        );
        ensure!(reply.len() == 1, "{reply:?}");
        Ok(())
    })
    .expect("a place is free");
}

/// Returns two connections that are served.
fn connect_two(address: SocketAddr) -> Result<Vec<TcpStream>> {
    let served = |_| {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(LIMIT))?;
        std::io::Write::write_all(&mut stream, b"version\r\n")?;
        let mut reply = [0; 64];
        match stream.read(&mut reply)? {
            len if reply[..len].starts_with(VERSION.as_bytes()) => Ok(stream),
            _ => Err(std::io::Error::from(ErrorKind::ConnectionRefused)),
        }
    };
    (0..2)
        .map(served)
        .collect::<Result<_, _>>()
        .context("two clients")
}

/// Nodes in namespaces: another node's host reaches the port, and the packet program answers.
#[test]
fn datagrams_are_answered_in_the_kernel_for_the_network_that_is_given() {
    if !inband_testing::frame::may_load_bpf() {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let options = Options {
        dataplane: Dataplane::Xdp,
        memcached_local_udp: Some(SocketAddr::from(([0, 0, 0, 0], GETS_PORT))),
        memcached_udp_from: Some("10.77.0.0/24".parse().expect("a network")),
        ..options()
    };
    let memcached = options.memcached;
    let cluster = start(dir.path(), options).expect("a new cluster");
    set(memcached, "k", "hello").expect("stored");
    let lab = cluster.hosts().network().lab().expect("namespaces");
    let client = lab.host("node/2").expect("a node");
    let socket = client.namespace().run(|| Ok(UdpSocket::bind("0.0.0.0:0")));
    let socket = socket.expect("its namespace").expect("a socket");
    let first = lab.host("node/1").expect("a node").address();
    read(&socket, (first, GETS_PORT).into(), "k", "hello").expect("an answer");
    retry(LIMIT, || {
        let nodes = cluster.status().nodes;
        let node = nodes.iter().find(|node| node.name == "node/1");
        let hits = node.and_then(|node| node.counters.get("gets_hit"));
        ensure!(hits.is_some_and(|hits| *hits > 0), "{hits:?}");
        Ok(())
    })
    .expect("the packet program has answered");
}

/// `inband top` finds the box, and counts what its clients do.
#[test]
fn top_shows_what_each_node_does() {
    let dir = tempfile::tempdir().expect("a directory");
    let options = options();
    let memcached = options.memcached;
    let _cluster = start(dir.path(), options).expect("a new cluster");
    let top = |more: &[&str]| -> String {
        let mut command = Command::new(inband_testing::build("inband"));
        command.args(["top", "--count=1", "--interval-ms=1000", "--data"]);
        let output = command
            .arg(dir.path())
            .args(more)
            .output()
            .expect("it runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
        String::from_utf8(output.stdout).expect("text")
    };
    let is_done = AtomicBool::new(false);
    let text = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_done.load(Ordering::Relaxed) {
                set(memcached, "k", "v").expect("stored");
            }
        });
        let text = top(&["--json"]);
        is_done.store(true, Ordering::Relaxed);
        text
    });
    let rows: serde_json::Value = serde_json::from_str(&text).expect("one line of JSON");
    assert_eq!(rows.as_array().map(Vec::len), Some(3), "{text}");
    let rate = |row: usize, what: &str| rows[row][what].as_f64().expect("a rate");
    assert!(
        rate(0, "sets_per_s") > 0.0 && rate(1, "sets_per_s") == 0.0,
        "{text}"
    );
    assert!(
        rate(0, "operations_per_s") >= rate(0, "sets_per_s"),
        "{text}"
    );
    assert!(rows[0]["memory_used_bytes"].as_u64() > Some(0), "{text}");
    assert!(rows[0]["applied"].as_u64() > Some(0), "{text}");
    let table = top(&[]);
    assert!(
        table.starts_with("node ") && table.lines().count() == 4,
        "{table}"
    );
}
