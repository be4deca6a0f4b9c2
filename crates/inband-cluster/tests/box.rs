//! A cluster of consensus in a box, through memcached's protocol: nothing that was acknowledged is lost with the leader.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{bail, ensure, Context, Result};
use inband_box::durable::Durability;
use inband_box::membership::Change;
use inband_box::process::Status;
use inband_box::stored::PROMISED;
use inband_box::wire::{parse, Type};
use inband_cluster::box_cluster::{self, BoxCluster, Options, Quorum};
use inband_cluster::command::SystemCommand;
use inband_cluster::scratch::{free_ports, loopback, retry};
use inband_cluster::socket::{self, Request};
use inband_cluster::supervisor::Supervisor;
use inband_ground::raw_link::RawLink;
use inband_ground::wire::PACKET_LEN_MAX_BYTES;
use inband_host::config::Dataplane;
use inband_host::namespace;
use inband_lab::netns::NETNS_DIR;
use inband_lab::Host;

/// Generous: other programs may use the machine.
const LIMIT: Duration = Duration::from_secs(60);
const KEYS: usize = 30;

fn program() -> PathBuf {
    inband_testing::build("inband-box")
}

/// The first of three ports in a row that nobody uses now.
fn ports() -> SocketAddr {
    loopback(free_ports(3).expect("free ports"))
}

fn options() -> Options {
    Options {
        memcached: ports(),
        memory: 16 << 20,
        log_records: 1024,
        dataplane: Dataplane::Udp,
        ..Options::default()
    }
}

fn start(dir: &Path, options: Options) -> Result<Supervisor<BoxCluster>> {
    let mut spec = BoxCluster::spec(&options, dir)?;
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

fn lose_the_leader(options: Options) {
    let dir = tempfile::tempdir().expect("a directory");
    let cluster = start(dir.path(), options.clone()).expect("a new cluster");
    let nodes = cluster.status().nodes;
    assert!(nodes.iter().all(|node| node.dataplane == options.dataplane));
    let request = |request: Request<_>| socket::done::<BoxCluster>(dir.path(), &request);
    let role = || "leader".to_owned();
    assert_eq!(states(&cluster), ["following", "following", "leading"]);
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
        cluster.kill("leader").expect("it leads");
        until_states_are(&cluster, &["following", "leading"]);
        let again = cluster.restart("leader").expect("restarted");
        until_states_are(&cluster, &["following", "following", "leading"]);
        until_notes(&cluster, &again, "direct links");
        stored(3);
    }
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

/// Clients write at one of its nodes until told to stop. Returns how many writes were answered.
fn writes_at(address: SocketAddr) -> (Arc<AtomicBool>, JoinHandle<Result<usize>>) {
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = stop.clone();
    let writer = std::thread::spawn(move || {
        let mut n = 0;
        while !stopped.load(Ordering::Relaxed) {
            set(address, &format!("w{n}"), &format!("{n}"))?;
            n += 1;
        }
        Ok(n)
    });
    (stop, writer)
}

#[test]
fn quorum_and_members_change_while_clients_write() {
    change_everything(Dataplane::Udp);
}

#[test]
fn quorum_and_members_change_while_clients_write_and_the_kernel_serves() {
    if inband_testing::frame::may_load_bpf() {
        change_everything(Dataplane::Xdp);
    }
}

fn change_everything(dataplane: Dataplane) {
    let dir = tempfile::tempdir().expect("a directory");
    let dir = dir.path();
    let options = Options {
        memcached: loopback(free_ports(7).expect("free ports")),
        dataplane,
        ..options()
    };
    let first = options.memcached;
    let at = |id: u8| SocketAddr::new(first.ip(), first.port() + u16::from(id) - 1);
    let cluster = start(dir, options).expect("a new cluster");
    let state_of = |name: &str| {
        let nodes = cluster.status().nodes;
        let node = nodes.into_iter().find(|node| node.name == name);
        node.map(|node| node.state)
    };
    let leader = || cluster.system().leader().expect("somebody leads");
    let until_leads = || -> String {
        let leads = || cluster.system().leader().context("nobody leads");
        retry(LIMIT, leads).expect("somebody leads")
    };
    let number = |name: &str| -> u8 { name["node/".len()..].parse().expect("a number") };
    let writes_with = (1..=3).find(|id| *id != number(&leader())).expect("two");
    let (stop, writer) = writes_at(at(writes_with));
    let switch = |quorum, force| box_cluster::change(dir, Change::Quorum { quorum, force });
    // On a busy machine another node may lead by the time that the change is late, and the message says that.
    let waits_for = |dead: &str| {
        let names_it = retry(LIMIT, || {
            let late = switch(Quorum::Majority, false).unwrap_err().to_string();
            ensure!(late.contains(dead) && late.contains("--force"), "{late}");
            Ok(())
        });
        names_it.expect("the refusal names the dead node");
    };

    let now = switch(Quorum::All, false).expect("all are there");
    assert_eq!((now.quorum, now.members), (Quorum::All, 0b1110));
    // The first joins under `all`.
    for id in 4..=7 {
        let name = box_cluster::add(dir).expect("it joins");
        assert_eq!(name, format!("node/{id}"));
        assert_eq!(get(at(id), "w0").expect("found"), "0", "{name}");
        if id == 4 {
            switch(Quorum::Majority, false).expect("all are there");
        }
    }
    let full = box_cluster::add(dir).unwrap_err().to_string();
    assert!(full.contains("no place"), "{full}");
    let mut members: Vec<u8> = (1..=7).collect();
    while members.len() > 3 {
        let leads = number(&leader());
        let goes = match leads == writes_with {
            true => members.iter().copied().find(|id| *id != leads),
            false => Some(leads),
        };
        let goes = goes.expect("there are several");
        box_cluster::remove(dir, &format!("node/{goes}")).expect("it leaves");
        members.retain(|id| *id != goes);
        until_states_are_of(&cluster, &members);
    }
    let few = box_cluster::remove(dir, &leader()).unwrap_err().to_string();
    assert!(few.contains("the fewest"), "{few}");

    switch(Quorum::All, false).expect("all are there");
    stop.store(true, Ordering::Relaxed);
    let written = writer.join().expect("it does not panic");
    let written = written.expect("each write is answered");
    assert!(written > KEYS, "{written}");
    for id in &members {
        for n in 0..written {
            let value = get(at(*id), &format!("w{n}")).expect("found");
            assert_eq!(value, n.to_string(), "at node/{id}");
        }
    }
    let follows = |id: &&u8| state_of(&format!("node/{id}")).as_deref() == Some("following");
    let dies = members.iter().find(follows).expect("two follow");
    let dies = format!("node/{dies}");
    cluster.kill(&dies).expect("it runs");
    waits_for(&dies);
    let now = switch(Quorum::Majority, true).expect("two of three are there");
    assert_eq!(now.quorum, Quorum::Majority);
    let alive = number(&until_leads());
    set(at(alive), "later", "yes").expect("stored by two of three");

    // The leader dies: the next one is not established without every node.
    cluster.restart(&dies).expect("restarted");
    until_states_are_of(&cluster, &members);
    switch(Quorum::All, false).expect("all are there");
    let led = leader();
    cluster.kill(&led).expect("it runs");
    waits_for(&led);
    switch(Quorum::Majority, true).expect("two of three are there");
    let alive = number(&until_leads());
    set(at(alive), "latest", "yes").expect("stored by two of three");
}

/// With two of five nodes dead, three of the four that would be left could not commit the removal.
#[test]
fn no_member_is_removed_while_too_few_of_the_others_are_alive() {
    let dir = tempfile::tempdir().expect("a directory");
    let options = Options {
        nodes: 5,
        durability: Durability::Sync,
        memcached: loopback(free_ports(7).expect("free ports")),
        ..options()
    };
    let memcached = options.memcached;
    let cluster = start(dir.path(), options).expect("a new cluster");
    let leader = cluster.system().leader().expect("somebody leads");
    let others = (1..=5).map(|id| format!("node/{id}"));
    let followers: Vec<String> = others.filter(|name| *name != leader).collect();
    for name in &followers[..2] {
        cluster.kill(name).expect("it runs");
    }
    // Longer than the leader counts on a node that it does not hear.
    std::thread::sleep(Duration::from_secs(2));
    let refused = box_cluster::remove(dir.path(), &followers[2]).unwrap_err();
    assert!(refused.to_string().contains("too few"), "{refused}");
    let leads = || cluster.system().leader().context("nobody leads");
    let leader = retry(LIMIT, leads).expect("somebody leads");
    let id = leader["node/".len()..].parse::<u16>().expect("a number");
    let at = SocketAddr::new(memcached.ip(), memcached.port() + id - 1);
    set(at, "k", "v").expect("stored by three of five");
}

fn sync() -> Options {
    Options {
        durability: Durability::Sync,
        memcached: loopback(free_ports(7).expect("free ports")),
        ..options()
    }
}

/// Node 4 of the former cluster had a log, and a promise.
#[test]
fn after_a_loss_was_accepted_a_node_joins_from_an_empty_directory() {
    let dir = tempfile::tempdir().expect("a directory");
    let given = sync();
    let first = given.memcached;
    let fourth = SocketAddr::new(first.ip(), first.port() + 3);
    let cluster = start(dir.path(), given.clone()).expect("a new cluster");
    for round in 0..30 {
        set(first, "former", &round.to_string()).expect("stored");
    }
    assert_eq!(box_cluster::add(dir.path()).expect("it joins"), "node/4");
    assert_eq!(get(fourth, "former").expect("found"), "29");
    drop(cluster);
    let accept = Options {
        accept_loss: true,
        ..given
    };
    let cluster = start(dir.path(), accept).expect("told to begin with an empty table");
    let promised = dir.path().join("hosts/node-4").join(PROMISED);
    assert!(!promised.exists(), "it has forgotten the former cluster");
    set(first, "new", "1").expect("stored");
    assert_eq!(box_cluster::add(dir.path()).expect("it joins"), "node/4");
    assert_eq!(get(fourth, "new").expect("found"), "1");
    assert_eq!(ask(fourth, "get former\r\n", 1).expect("a reply"), ["END"]);
    drop(cluster);
}

/// It has no directory yet, or no log: nothing is lost by that.
#[test]
fn a_cluster_that_was_stopped_while_a_node_joins_goes_on() {
    let dir = tempfile::tempdir().expect("a directory");
    let given = sync();
    let cluster = start(dir.path(), given.clone()).expect("a new cluster");
    set(given.memcached, "k", "v").expect("stored");
    let now = box_cluster::change(dir.path(), Change::Add).expect("all are there");
    assert_eq!(now.joining, 4);
    drop(cluster);
    let cluster = start(dir.path(), given.clone()).expect("it goes on");
    assert_eq!(get(given.memcached, "k").expect("found"), "v");
    until_states_are_of(&cluster, &[1, 2, 3, 4]);
    let joined = retry(LIMIT, || {
        let nodes = cluster.status().nodes;
        let is_member = |node: &Status| node.membership.is_member(4);
        ensure!(nodes.iter().all(is_member), "{nodes:?}");
        Ok(())
    });
    joined.expect("node/4 is a member");
    drop(cluster);

    // As it was read by the version before.
    let members = dir.path().join("members.json");
    std::fs::write(&members, "[1,2,3,4]").expect("written");
    let cluster = start(dir.path(), given).expect("it goes on");
    until_states_are_of(&cluster, &[1, 2, 3, 4]);
}

/// A founding node, one that has joined since, and the file of an earlier moment: the others have the log.
#[test]
fn a_cluster_goes_on_without_a_node_whose_directory_was_lost() {
    let dir = tempfile::tempdir().expect("a directory");
    let given = sync();
    let at = |node: u16| SocketAddr::new(given.memcached.ip(), given.memcached.port() + node - 1);
    let lose = |node: &str| {
        std::fs::remove_dir_all(dir.path().join("hosts").join(node)).expect("it was there");
    };
    let cluster = start(dir.path(), given.clone()).expect("a new cluster");
    set(at(1), "k", "1").expect("stored");
    drop(cluster);
    lose("node-1");
    let cluster = start(dir.path(), given.clone()).expect("two of three go on");
    assert_eq!(get(at(2), "k").expect("found"), "1");
    set(at(3), "k", "2").expect("stored");
    assert_eq!(box_cluster::add(dir.path()).expect("it joins"), "node/4");
    box_cluster::remove(dir.path(), "node/1").expect("removed");
    assert_eq!(box_cluster::add(dir.path()).expect("it joins"), "node/5");
    drop(cluster);

    lose("node-5");
    let members = dir.path().join("members.json");
    // Node 1 was removed, and node 5 has become a member.
    std::fs::write(&members, r#"{"reach": [1, 2, 3, 4, 5], "joining": 5}"#).expect("written");
    let cluster = start(dir.path(), given.clone()).expect("three of four go on");
    assert_eq!(get(at(4), "k").expect("found"), "2");
    drop(cluster);

    let more = Options { nodes: 5, ..given };
    let refused = start(dir.path(), more).map(drop).unwrap_err();
    assert!(
        format!("{refused:#}").contains("give as many as then"),
        "{refused:#}"
    );
}

/// Nothing was acknowledged.
#[test]
fn a_first_start_with_sync_may_be_interrupted() {
    let dir = tempfile::tempdir().expect("a directory");
    let own = dir.path().join("hosts/node-1");
    std::fs::create_dir_all(&own).expect("made");
    for (name, number) in [
        ("new-id", "5"),
        ("session", "1"),
        ("has-log", "1"),
        ("promised", "33"),
    ] {
        std::fs::write(own.join(name), number).expect("written");
    }
    let given = sync();
    let cluster = start(dir.path(), given.clone()).expect("all nodes are new");
    set(given.memcached, "k", "1").expect("stored");
    drop(cluster);

    // An accepted loss, while the directories are being removed.
    let moved = dir.path().join("hosts.removed");
    std::fs::rename(dir.path().join("hosts"), &moved).expect("moved");
    std::fs::remove_dir_all(moved.join("node-2")).expect("removed");
    let cluster = start(dir.path(), given.clone()).expect("all nodes are new");
    assert_eq!(
        ask(given.memcached, "get k\r\n", 1).expect("a reply"),
        ["END"]
    );
    assert!(!moved.exists());
    drop(cluster);
}

/// These are the members, and all of them follow one of them.
fn until_states_are_of(cluster: &Supervisor<BoxCluster>, members: &[u8]) {
    let are = retry(LIMIT, || {
        let nodes = cluster.status().nodes;
        let serves = |node: &&Status| ["leading", "following"].contains(&&node.state[..]);
        let serving: Vec<&str> = nodes.iter().filter(serves).map(|n| &n.name[..]).collect();
        let expected: Vec<String> = members.iter().map(|id| format!("node/{id}")).collect();
        let leads = nodes.iter().filter(|node| node.state == "leading").count();
        ensure!(serving == expected && leads == 1, "{nodes:?}");
        Ok(())
    });
    are.expect("members");
}
