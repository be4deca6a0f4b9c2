//! A cluster of consensus in a box, through memcached's protocol: nothing that was acknowledged is lost with the leader.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context, Result};
use inband_box::durable::Durability;
use inband_box::wire::{parse, Type};
use inband_cluster::box_cluster::{BoxCluster, Options};
use inband_cluster::command::SystemCommand;
use inband_cluster::scratch::retry;
use inband_cluster::socket::{self, Request};
use inband_cluster::supervisor::Supervisor;
use inband_ground::raw_link::RawLink;
use inband_ground::wire::PACKET_LEN_MAX_BYTES;
use inband_host::config::Dataplane;
use inband_host::namespace;
use inband_lab::netns::NETNS_DIR;
use inband_lab::Host;

use crate::boxes::{self, ask, get, options, set, start, until_states_are, KEYS, LIMIT};

/// The sum of a counter over the nodes, once it has moved.
fn moved(cluster: &Supervisor<BoxCluster>, counter: &str) {
    let moved = retry(LIMIT, || {
        let nodes = cluster.status().nodes;
        let counts = nodes.iter().filter_map(|node| node.counters.get(counter));
        ensure!(counts.sum::<u64>() > 0, "{nodes:?}");
        Ok(())
    });
    moved.expect(counter);
}

/// What the role does with packets while it serves clients, by the counters that say so.
const BROADCAST: [&str; 4] = [
    "box_submitted",
    "box_appended",
    "box_committed",
    "box_commit_learned",
];

#[test]
fn nothing_acknowledged_is_lost_with_the_leader() {
    lose_the_leader(options());
}

#[test]
fn nothing_acknowledged_is_lost_with_the_leader_in_the_kernel() {
    if !inband_testing::frame::may_load_bpf() {
        return;
    }
    for no_key in [false, true] {
        lose_the_leader(Options {
            dataplane: Dataplane::Xdp,
            no_key,
            ..options()
        });
    }
}

/// Prometheus finds the same at every node that runs: there is one leader, and all have applied its log.
fn metrics_agree(cluster: &Supervisor<BoxCluster>) {
    let scrape = |at: SocketAddr| -> Result<String> {
        let mut socket = TcpStream::connect(at)?;
        socket.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")?;
        let mut text = String::new();
        socket.read_to_string(&mut text)?;
        Ok(text)
    };
    let agree = retry(LIMIT, || {
        let status = cluster.status();
        let mut seen = Vec::new();
        for node in &status.nodes {
            let text = scrape(status.metrics[&node.name])?;
            let value = |name: &str| -> Result<u64> {
                let line = format!("inband_box_{name}{{node=\"{}\"}} ", node.name);
                let value = text.lines().find_map(|text| text.strip_prefix(&line));
                Ok(value
                    .with_context(|| format!("no {line} in {text}"))?
                    .parse()?)
            };
            ensure!(
                value("members")? == 3 && value("zxid_last")? > KEYS as u64,
                "{text}"
            );
            let committed = format!("event=\"box_appended\",node=\"{}\"", node.name);
            ensure!(text.contains(&committed), "{text}");
            seen.push((value("leading")?, value("zxid_applied")?));
        }
        ensure!(
            seen.iter().map(|(leads, _)| leads).sum::<u64>() == 1,
            "{seen:?}"
        );
        ensure!(seen.iter().all(|(_, zxid)| *zxid == seen[0].1), "{seen:?}");
        Ok(())
    });
    agree.expect("metrics");
}

fn lose_the_leader(options: Options) {
    let dir = tempfile::tempdir().expect("a directory");
    let cluster = start(dir.path(), options.clone()).expect("a new cluster");
    let nodes = cluster.status().nodes;
    assert!(nodes.iter().all(|node| node.dataplane == options.dataplane));
    let request = |request: Request<_>| socket::done::<BoxCluster>(dir.path(), &request);
    let role = || "leader".to_owned();
    until_states_are(&cluster, &["following", "following", "leading"]);
    let all = cluster.status().memcached;
    for n in 0..KEYS {
        set(all[n % 3], &format!("k{n}"), &format!("v{n}")).expect("stored");
    }

    // In the kernel, the process's own role counts under another name.
    BROADCAST
        .iter()
        .for_each(|counter| moved(&cluster, counter));

    let kill = |force| Request::Kill {
        role: role(),
        force,
    };
    // The leader may change before it is killed.
    let leader = retry(LIMIT, || request(kill(false))).expect("two others have the log");
    until_states_are(&cluster, &["following", "leading"]);
    // Two of three are left: one more is refused.
    // A node that waits for a CPU does not answer in time, which is another reason.
    let is_refused = retry(LIMIT, || {
        let refused = format!("{:#}", request(kill(false)).expect_err("a majority"));
        ensure!(
            refused.contains("2 of 3 nodes have the log") && refused.contains("--force"),
            "{refused}"
        );
        Ok(())
    });
    is_refused.expect("the reason");
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
    metrics_agree(&cluster);
}

#[test]
fn a_cluster_that_was_stopped_is_lost_only_when_told() {
    let dir = tempfile::tempdir().expect("a directory");
    let given = options();
    let memcached = given.memcached;
    let cluster = start(dir.path(), given.clone()).expect("a new cluster");
    set(memcached, "k", "v").expect("stored");
    BoxCluster::self_check(&given, &cluster.status()).expect("it works");
    drop(cluster);

    let error = start(dir.path(), given.clone()).map(drop).unwrap_err();
    let said = format!("{error:#}");
    assert!(
        said.contains("was lost") && said.contains("--accept-loss"),
        "{said}"
    );

    let accept = Options {
        accept_loss: true,
        ..given
    };
    let held = TcpListener::bind(memcached).expect("the port is free");
    let error = start(dir.path(), accept.clone()).map(drop).unwrap_err();
    let said = format!("{error:#}");
    assert!(
        said.contains("in use") && said.contains("--memcached"),
        "{said}"
    );
    drop(held);

    let cluster = start(dir.path(), accept).expect("told to begin with an empty table");
    assert_eq!(ask(memcached, "get k\r\n", 1).expect("a reply"), ["END"]);
    drop(cluster);
}

fn set_link(cluster: &Supervisor<BoxCluster>, host: &str, interface: &str, state: &str) {
    let lab = cluster.hosts().network().lab().expect("namespaces");
    let host = lab.host(host).expect("a node");
    let set = host.namespace().run(|| {
        let mut ip = Command::new("ip");
        Ok(ip.args(["link", "set", interface, state]).status())
    });
    assert!(set.expect("its namespace").expect("ip runs").success());
}

fn until_notes(cluster: &Supervisor<BoxCluster>, node: &str, words: &str) {
    let noted = retry(LIMIT, || {
        let nodes = cluster.status().nodes;
        let noted = nodes
            .iter()
            .any(|n| n.name == node && n.notes.iter().any(|note| note.contains(words)));
        ensure!(noted, "{node}: {words}: {nodes:?}");
        Ok(())
    });
    noted.expect("what a node says");
}

/// Frames that nodes have sent to the network.
fn sent(cluster: &Supervisor<BoxCluster>) -> u64 {
    let lab = cluster.hosts().network().lab().expect("namespaces");
    let of = |host: &Arc<Host>| lab.counters(host.name()).expect("its port").from_host;
    lab.hosts().iter().map(of).sum()
}

/// PROPOSEs arrive right behind the Ethernet header.
fn frames_are_raw(cluster: &Supervisor<BoxCluster>) {
    let nodes = cluster.status().nodes;
    let is = |state: &'static str| nodes.iter().find(|node| node.state == state);
    let (leader, follower) = (is("leading").expect("one"), is("following").expect("one"));
    let lab = cluster.hosts().network().lab().expect("namespaces");
    let interface = format!("direct-{}", &leader.name["node/".len()..]);
    let host = lab.host(&follower.name).expect("a node");
    let namespace = Path::new(NETNS_DIR).join(host.namespace().name());
    let (ready, is_ready) = std::sync::mpsc::channel();
    let watch = move || -> Result<()> {
        namespace::enter(&namespace)?;
        let link = RawLink::open(&interface, 9)?;
        ready.send(())?;
        retry(LIMIT, || {
            let mut buffer = [0; PACKET_LEN_MAX_BYTES + 1];
            let mut kinds = Vec::new();
            while let Some(len_bytes) = link.receive(&mut buffer)? {
                let (header, value) = parse(&buffer[..len_bytes])?;
                let has_key = value.windows(3).any(|bytes| bytes == b"raw");
                if header.kind == Type::Propose && has_key {
                    return Ok(());
                }
                kinds.push(header.kind);
            }
            bail!("no PROPOSE among {kinds:?}")
        })
    };
    let watching = std::thread::spawn(watch);
    is_ready.recv().expect("it watches its link");
    set(leader.memcached[0], "raw", "frames").expect("stored");
    let watched = watching.join().expect("it does not panic");
    watched.expect("a frame");
}

#[test]
fn nodes_use_links_of_their_own_and_the_network_while_one_is_down() {
    if !inband_testing::frame::may_load_bpf() {
        return;
    }
    for dataplane in [Dataplane::Xdp, Dataplane::XdpGeneric] {
        let dir = tempfile::tempdir().expect("a directory");
        let options = Options {
            dataplane,
            direct: true,
            ..options()
        };
        let cluster = start(dir.path(), options).expect("a new cluster");
        let names = ["node/1", "node/2", "node/3"];
        names
            .iter()
            .for_each(|node| until_notes(&cluster, node, "direct links"));
        let all = cluster.status().memcached;
        let before = sent(&cluster);
        let stored = |round: usize| {
            for n in 0..KEYS {
                set(all[n % 3], &format!("k{n}"), &format!("{round}.{n}")).expect("stored");
            }
            for n in 0..KEYS {
                let value = get(all[(n + 1) % 3], &format!("k{n}")).expect("found");
                assert_eq!(value, format!("{round}.{n}"));
            }
        };
        stored(1);
        let frames = sent(&cluster) - before;
        // Nothing but the kernels' own: who has which address.
        assert!(frames < KEYS as u64, "{frames} frames by the network");
        match dataplane {
            // The program takes them before anyone else sees them.
            Dataplane::Xdp => BROADCAST
                .iter()
                .for_each(|counter| moved(&cluster, counter)),
            _ => frames_are_raw(&cluster),
        }

        set_link(&cluster, "node/1", "direct-2", "down");
        until_notes(&cluster, "node/1", "the link to node 2 is down");
        until_notes(&cluster, "node/2", "the link to node 1 is down");
        stored(2);
        set_link(&cluster, "node/1", "direct-2", "up");
        names
            .iter()
            .for_each(|node| until_notes(&cluster, node, "direct links"));
        // A link that changes may have had its leader suspected.
        until_states_are(&cluster, &["following", "following", "leading"]);
        retry(LIMIT, || cluster.kill("leader")).expect("it leads");
        until_states_are(&cluster, &["following", "leading"]);
        let again = cluster.restart("leader").expect("restarted");
        until_states_are(&cluster, &["following", "following", "leading"]);
        until_notes(&cluster, &again, "direct links");
        stored(3);
    }
}

fn change_link(data: &Path, role: &str, change: &str) {
    let change = serde_json::from_str(change).expect("a change");
    let role = role.to_owned();
    let request = Request::Link { role, change };
    socket::done::<BoxCluster>(data, &request).expect("changed");
}

#[test]
fn faults_of_a_node_reach_its_links_to_single_nodes() {
    if !inband_testing::frame::may_load_bpf() {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let options = Options {
        dataplane: Dataplane::Xdp,
        direct: true,
        ..options()
    };
    let cluster = start(dir.path(), options).expect("a new cluster");
    let names = ["node/1", "node/2", "node/3"];
    let until_direct = || {
        until_states_are(&cluster, &["following", "following", "leading"]);
        let all = names.iter();
        all.for_each(|node| until_notes(&cluster, node, "direct links"));
    };
    until_direct();
    let leader = || boxes::leader(&cluster);
    let follower = names.into_iter().find(|node| **node != *leader());
    let follower = follower.expect("one follows");

    change_link(dir.path(), follower, r#"{"cut": true}"#);
    until_notes(&cluster, follower, "the network is used");
    let serving = names.iter().position(|node| **node == *leader());
    let memcached = cluster.status().memcached;
    set(memcached[serving.expect("it has a place")], "k", "cut").expect("stored by two");
    // Nobody reaches it: no record, and no heartbeat that says what it lacks.
    std::thread::sleep(Duration::from_millis(500));
    let is_behind = retry(LIMIT, || {
        let nodes = cluster.status().nodes;
        let node = nodes.iter().find(|node| node.name == follower);
        let applied = node.context("it does not answer")?.applied;
        let mut others = nodes.iter().filter(|node| node.name != follower);
        let are_ahead = nodes.len() == 3 && others.all(|other| other.applied > applied);
        ensure!(are_ahead, "{nodes:?}");
        Ok(())
    });
    is_behind.expect("it is behind");
    change_link(dir.path(), follower, "{}");
    until_direct();

    // A majority needs one of these two under any leader, and the delay of one direction is this.
    let leader = leader();
    for node in names.into_iter().filter(|node| **node != *leader) {
        change_link(dir.path(), node, r#"{"delay_us": 20000}"#);
    }
    until_states_are(&cluster, &["following", "following", "leading"]);
    let began = Instant::now();
    set(cluster.status().memcached[0], "k", "slow").expect("stored");
    let took = began.elapsed();
    assert!(took >= Duration::from_millis(40), "stored in {took:?}");
    for node in names {
        change_link(dir.path(), node, "{}");
    }
    until_direct();
}

#[test]
fn with_sync_a_cluster_that_was_stopped_goes_on() {
    let dir = tempfile::tempdir().expect("a directory");
    let sync = Options {
        durability: Durability::Sync,
        dataplane: Dataplane::Auto,
        ..options()
    };
    let refused = |changed: Options, says: &str| {
        let error = start(dir.path(), changed).map(drop).unwrap_err();
        assert!(format!("{error:#}").contains(says), "{error:#}");
    };
    let in_kernel = Options {
        dataplane: Dataplane::Xdp,
        ..sync.clone()
    };
    refused(
        in_kernel,
        "--dataplane xdp: with --durability sync the process acknowledges",
    );
    let direct = Options {
        direct: true,
        ..sync.clone()
    };
    refused(direct, "--direct");
    let memcached = sync.memcached;
    let cluster = start(dir.path(), sync.clone()).expect("a new cluster");
    let notice = BoxCluster::notice(&cluster.status());
    assert!(
        notice.contains("in user space: with --durability sync"),
        "{notice}"
    );
    set(memcached, "k", "v").expect("stored");
    drop(cluster);
    let cluster = start(dir.path(), sync.clone()).expect("it goes on");
    assert_eq!(get(memcached, "k").expect("found"), "v");
    drop(cluster);
    let memory = Options {
        durability: Durability::Memory,
        ..sync
    };
    refused(memory, "is on disk");
}
