//! A cluster of consensus in a box, through memcached's protocol: nothing that was acknowledged is lost with the leader.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{ensure, Context, Result};
use inband_cluster::box_cluster::{BoxCluster, Options};
use inband_cluster::command::SystemCommand;
use inband_cluster::scratch::{free_ports, loopback, retry};
use inband_cluster::socket::{self, Request};
use inband_cluster::supervisor::Supervisor;

const LIMIT: Duration = Duration::from_secs(20);
const KEYS: usize = 30;

fn program() -> PathBuf {
    inband_testing::build("inband-box");
    let test = std::env::current_exe().expect("this test is a file");
    let release = test.parent().and_then(Path::parent).expect("two parents");
    release.join("inband-box")
}

/// The first of three ports in a row that nobody uses now.
fn ports() -> SocketAddr {
    loopback(free_ports(3).expect("free ports"))
}

fn start(dir: &Path, memcached: SocketAddr, accept_loss: bool) -> Result<Supervisor<BoxCluster>> {
    let options = Options {
        memcached,
        memory: 16 << 20,
        log_records: 1024,
        accept_loss,
        ..Options::default()
    };
    start_with(dir, &options)
}

fn start_with(dir: &Path, options: &Options) -> Result<Supervisor<BoxCluster>> {
    let mut spec = BoxCluster::spec(options, dir)?;
    spec.program = Some(program());
    Supervisor::start(spec)
}

fn ask(address: SocketAddr, request: &str, lines: usize) -> Result<Vec<String>> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(LIMIT))?;
    stream.write_all(request.as_bytes())?;
    let replies = BufReader::new(stream).lines().take(lines);
    replies
        .collect::<Result<_, _>>()
        .with_context(|| format!("{address}: {request:?}"))
}

fn set(address: SocketAddr, key: &str, value: &str) -> Result<()> {
    let request = format!("set {key} 0 0 {}\r\n{value}\r\n", value.len());
    let reply = ask(address, &request, 1)?;
    ensure!(reply == ["STORED"], "{reply:?}");
    Ok(())
}

fn get(address: SocketAddr, key: &str) -> Result<String> {
    let mut reply = ask(address, &format!("get {key}\r\n"), 3)?;
    ensure!(reply.len() == 3, "{key}: {reply:?}");
    Ok(reply.swap_remove(1))
}

fn states(cluster: &Supervisor<BoxCluster>) -> Vec<String> {
    let mut states: Vec<String> = cluster
        .status()
        .nodes
        .into_iter()
        .map(|n| n.state)
        .collect();
    states.sort_unstable();
    states
}

fn until_states_are(cluster: &Supervisor<BoxCluster>, expected: &[&str]) {
    let are = retry(LIMIT, || {
        let states = states(cluster);
        ensure!(states == expected, "{states:?}");
        Ok(())
    });
    are.expect("states of the nodes");
}

#[test]
fn nothing_acknowledged_is_lost_with_the_leader() {
    let dir = tempfile::tempdir().expect("a directory");
    let cluster = start(dir.path(), ports(), false).expect("a new cluster");
    let request = |request: Request<_>| socket::done::<BoxCluster>(dir.path(), &request);
    let role = || "leader".to_owned();
    assert_eq!(states(&cluster), ["following", "following", "leading"]);
    let all = cluster.status().memcached;
    for n in 0..KEYS {
        set(all[n % 3], &format!("k{n}"), &format!("v{n}")).expect("stored");
    }

    let kill = |force| Request::Kill {
        role: role(),
        force,
    };
    let leader = request(kill(false)).expect("two others have the log");
    until_states_are(&cluster, &["following", "leading"]);
    // Two of three are left: one more is refused.
    let refused = format!("{:#}", request(kill(false)).expect_err("a majority"));
    assert!(
        refused.contains("2 of 3 nodes have the log") && refused.contains("--force"),
        "{refused}"
    );
    let dead: usize = leader["node/".len()..].parse().expect("a number");
    let alive: Vec<SocketAddr> = all
        .iter()
        .copied()
        .filter(|a| *a != all[dead - 1])
        .collect();
    for n in 0..KEYS {
        let value = get(alive[n % 2], &format!("k{n}")).expect("found");
        assert_eq!(value, format!("v{n}"));
    }
    set(alive[0], "later", "yes").expect("stored by two of three");

    // `leader` means the node that was killed under this name.
    let restart = Request::Restart {
        role: role(),
        force: false,
    };
    assert_eq!(request(restart).expect("restarted"), leader);
    until_states_are(&cluster, &["following", "following", "leading"]);
    let value = get(all[dead - 1], "later").expect("found at the node that came back");
    assert_eq!(value, "yes");
    retry(LIMIT, || {
        let nodes = cluster.status().nodes;
        let same = |node: &inband_box::process::Status| (node.applied, node.digest);
        let are_equal = nodes.iter().all(|node| same(node) == same(&nodes[0]));
        ensure!(are_equal, "{nodes:?}");
        Ok(())
    })
    .expect("equal machines");
}

#[test]
fn a_cluster_that_was_stopped_is_lost_only_when_told() {
    let dir = tempfile::tempdir().expect("a directory");
    let memcached = ports();
    let cluster = start(dir.path(), memcached, false).expect("a new cluster");
    set(memcached, "k", "v").expect("stored");
    let options = cluster.status().options;
    BoxCluster::self_check(&options, &cluster.status()).expect("it works");
    drop(cluster);

    let error = start(dir.path(), memcached, false).map(drop).unwrap_err();
    let said = format!("{error:#}");
    assert!(
        said.contains("was lost") && said.contains("--accept-loss"),
        "{said}"
    );

    let held = TcpListener::bind(memcached).expect("the port is free");
    let error = start(dir.path(), memcached, true).map(drop).unwrap_err();
    let said = format!("{error:#}");
    assert!(
        said.contains("in use") && said.contains("--memcached"),
        "{said}"
    );
    drop(held);

    let cluster = start(dir.path(), memcached, true).expect("told to begin with an empty table");
    assert_eq!(ask(memcached, "get k\r\n", 1).expect("a reply"), ["END"]);
    drop(cluster);
}
