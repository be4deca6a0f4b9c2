//! A whole cluster of stand-ins for `inband run`, on loopback and (with root) in namespaces.

#[path = "common/fake_host.rs"]
mod fake_host;

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use inband_cluster::paxos::supervisor::{remote, ProcessState};
use inband_cluster::paxos::{ClusterSpec, ClusterStatus, MemberKind, NetworkChoice, Supervisor};
use inband_lab::{Lab, LabSpec, LinkFaults};
use inband_paxos::config::{Dataplane, Role};

const TIMEOUT: Duration = Duration::from_secs(5);

/// Not a test: the program of every host in the other tests.
#[test]
fn fake_host() {
    fake_host::main_if_asked();
}

fn spec(dir: &Path, network: NetworkChoice) -> ClusterSpec {
    // Each cluster and each test run has its own ports, so that runs do not collide.
    const PORTS_PER_CLUSTER: u16 = 8;
    const CLUSTERS_PER_RUN: u16 = 25;
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let cluster = NEXT.fetch_add(1, Ordering::Relaxed) % CLUSTERS_PER_RUN;
    let run = (std::process::id() % 40) as u16;
    let mut spec = ClusterSpec::new(fake_host::program(dir), dir.join("data"));
    spec.dataplane = Dataplane::Udp;
    spec.network = network;
    spec.resp
        .set_port(10_000 + (run * CLUSTERS_PER_RUN + cluster) * PORTS_PER_CLUSTER);
    spec.metrics_port = 19_464;
    loop {
        // Another process may have taken a port.
        let free = (0..PORTS_PER_CLUSTER)
            .all(|i| TcpListener::bind((Ipv4Addr::LOCALHOST, spec.resp.port() + i)).is_ok());
        if free {
            return spec;
        }
        spec.resp.set_port(spec.resp.port() + 1009);
    }
}

/// Returns whether namespaces can be created here. If not, the test is reported as not run.
fn privileged() -> bool {
    let root = nix::unistd::geteuid().is_root();
    if !root {
        inband_testing::not_run("it needs root to make network namespaces");
    }
    root
}

fn networks() -> Vec<NetworkChoice> {
    let mut networks = vec![NetworkChoice::Loopback];
    if privileged() {
        networks.push(NetworkChoice::Namespaces);
    }
    networks
}

fn put(address: SocketAddr) -> std::io::Result<String> {
    let stream = TcpStream::connect_timeout(&address, TIMEOUT)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    (&stream).write_all(b"put\n")?;
    let mut line = String::new();
    BufReader::new(&stream).read_line(&mut line)?;
    Ok(line.trim().to_owned())
}

fn applied(status: &ClusterStatus) -> Vec<Option<u64>> {
    let replicas = status
        .hosts
        .iter()
        .filter(|h| h.name.starts_with("replica"));
    replicas
        .map(|h| Some(h.status.as_ref()?.replica.as_ref()?.applied[0]))
        .collect()
}

fn until(supervisor: &Supervisor, what: &str, reached: impl Fn(&ClusterStatus) -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let status = supervisor.status();
        if reached(&status) {
            return;
        }
        assert!(Instant::now() < deadline, "{what}: {status:#?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn state_of(status: &ClusterStatus, host: &str) -> ProcessState {
    status
        .hosts
        .iter()
        .find(|h| h.name == host)
        .expect("host")
        .process
        .clone()
}

#[test]
fn hosts_are_killed_restarted_paused_and_resumed() {
    for network in networks() {
        let dir = tempfile::tempdir().expect("a directory");
        let started = Instant::now();
        let supervisor = Supervisor::start(spec(dir.path(), network)).expect("up");
        println!("{network:?}: 7 hosts serve after {:?}", started.elapsed());
        let status = supervisor.status();
        assert_eq!((status.epoch, &status.first_instances[..]), (1, &[1][..]));
        assert_eq!(status.leader(0), Some("leader"));
        assert!(status
            .hosts
            .iter()
            .all(|h| h.status.is_some() && h.metrics.is_some()));
        assert_eq!(
            supervisor.lab().is_some(),
            network == NetworkChoice::Namespaces
        );

        let by = put(supervisor.resp()).expect("the client address serves");
        assert!(by.starts_with("replica/"), "{by}");
        until(&supervisor, "all apply it", |s| applied(s) == [Some(1); 3]);
        let own_listener = status.hosts[5]
            .resp
            .expect("replica/1 has a port of its own");
        assert_eq!(put(own_listener).expect("serves"), "replica/1");
        until(&supervisor, "all apply it", |s| applied(s) == [Some(2); 3]);

        assert_eq!(supervisor.kill("replica/1").expect("kill"), "replica/1");
        assert_eq!(
            state_of(&supervisor.status(), "replica/1"),
            ProcessState::Killed
        );
        put(own_listener).expect_err("the port of a dead replica refuses");
        put(supervisor.resp()).expect("others serve the client address");
        let error = supervisor
            .kill("replica/1")
            .expect_err("it is dead")
            .to_string();
        assert!(error.contains("not running"), "{error}");
        supervisor.restart("replica/1").expect("restart");
        assert_eq!(put(own_listener).expect("serves again"), "replica/1");

        assert_eq!(supervisor.kill("leader").expect("kill"), "leader");
        until(&supervisor, "a backup leads", |s| {
            s.leader(0) == Some("replica/0")
        });
        assert_eq!(supervisor.kill("leader").expect("kill"), "replica/0");
        until(&supervisor, "the next leads", |s| {
            s.leader(0) == Some("replica/1")
        });
        assert_eq!(
            supervisor.restart("leader").expect("the last killed"),
            "replica/0"
        );

        supervisor.pause("replica/2").expect("pause");
        assert_eq!(
            state_of(&supervisor.status(), "replica/2"),
            ProcessState::Paused
        );
        supervisor.pause("replica/2").expect_err("it is paused");
        let before = applied(&supervisor.status());
        put(own_listener).expect("others serve");
        supervisor.resume("replica/2").expect("resume");
        supervisor
            .resume("replica/2")
            .expect_err("it is not paused");
        until(&supervisor, "what was held arrives", |s| {
            applied(s)[2].is_some() && applied(s)[2] > before[1] && applied(s)[2] == applied(s)[1]
        });
        let error = supervisor
            .pause("acceptor/9")
            .expect_err("unknown")
            .to_string();
        assert!(error.contains("acceptor/0, acceptor/1"), "{error}");
    }
}

#[test]
fn a_clean_stop_is_continued() {
    for network in networks() {
        let dir = tempfile::tempdir().expect("a directory");
        let spec = spec(dir.path(), network);
        let supervisor = Supervisor::start(spec.clone()).expect("up");
        for _ in 0..5 {
            let by = put(supervisor.resp()).expect("put");
            // The stand-ins do not agree, they follow: let them catch up before counting at another one.
            until(&supervisor, &by, |s| {
                applied(s).windows(2).all(|w| w[0] == w[1])
            });
        }
        let report = supervisor.down();
        assert_eq!(
            (&report.clean_at, &report.unclean_because),
            (&Some(vec![5]), &None)
        );
        assert_eq!(supervisor.wait_for_end(TIMEOUT), Some(report));
        drop(supervisor);
        TcpListener::bind(spec.resp).expect("the port is free again");

        let supervisor = Supervisor::start(spec.clone()).expect("up again");
        let status = supervisor.status();
        assert_eq!((status.epoch, &status.first_instances[..]), (2, &[6][..]));
        assert_eq!(applied(&status), [Some(5); 3]);
        drop(supervisor);

        let mut spec = spec;
        let error = Supervisor::start(spec.clone())
            .expect_err("unclean")
            .to_string();
        assert!(
            error.contains("epoch 2") && error.contains("--accept-loss"),
            "{error}"
        );
        spec.accept_loss = true;
        let supervisor = Supervisor::start(spec.clone()).expect("loss is accepted");
        assert!(
            supervisor.notices()[1].contains("from instance 5"),
            "{:?}",
            supervisor.notices()
        );
        assert_eq!(supervisor.status().epoch, 3);
        supervisor.kill("acceptor/0").expect("a minority");
        assert_eq!(
            supervisor.down().clean_at,
            Some(vec![5]),
            "a majority knows what was decided"
        );
        drop(supervisor);
        spec.replicas = 2;
        let error = Supervisor::start(spec)
            .expect_err("another layout")
            .to_string();
        assert!(error.contains("has 3 replicas"), "{error}");
    }
}

#[test]
fn several_partitions_have_leaders_and_directories_of_their_own() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut spec = spec(dir.path(), NetworkChoice::Loopback);
    spec.partitions = 2;
    spec.more_data = vec![dir.path().join("disk")];
    let supervisor = Supervisor::start(spec.clone()).expect("up");
    let status = supervisor.status();
    assert_eq!(
        (status.partitions, &status.first_instances[..]),
        (2, &[1, 1, 1][..])
    );
    assert_eq!(status.leaders, vec![Some("leader".to_owned()); 3]);
    for replica in 0..3 {
        assert!(dir.path().join(format!("disk/replica-{replica}")).is_dir());
    }
    assert_eq!(supervisor.kill("leader:M").expect("kill"), "leader");
    until(&supervisor, "a backup leads all", |s| {
        s.leaders == vec![Some("replica/0".to_owned()); 3]
    });
    assert_eq!(supervisor.kill("leader:1").expect("kill"), "replica/0");
    assert_eq!(
        supervisor.restart("leader:1").expect("it is known"),
        "replica/0"
    );
    assert_eq!(
        supervisor.restart("leader:M").expect("it is known"),
        "leader"
    );
    let error = supervisor
        .kill("leader:2")
        .expect_err("unknown")
        .to_string();
    assert!(
        error.contains("leader:0 to leader:1 and leader:M"),
        "{error}"
    );

    put(supervisor.resp()).expect("put");
    until(&supervisor, "all apply it", |s| applied(s) == [Some(1); 3]);
    assert_eq!(supervisor.down().clean_at, Some(vec![1, 0, 0]));
    drop(supervisor);
    let supervisor = Supervisor::start(spec.clone()).expect("up again");
    assert_eq!(supervisor.status().first_instances, [2, 1, 1]);
    drop(supervisor);
    spec.accept_loss = true;
    let supervisor = Supervisor::start(spec.clone()).expect("up after a crash");
    assert_eq!(supervisor.status().first_instances, [2, 1, 1]);
    drop(supervisor);
    spec.partitions = 4;
    let error = Supervisor::start(spec).expect_err("other keys").to_string();
    assert!(
        error.contains("has 2 partitions and --partitions 4"),
        "{error}"
    );
}

#[test]
fn hosts_are_rolled_as_long_as_they_can_be_spared() {
    let dir = tempfile::tempdir().expect("a directory");
    let spec = spec(dir.path(), NetworkChoice::Loopback);
    let supervisor = Supervisor::start(spec.clone()).expect("up");
    let pids = || -> Vec<Option<u32>> { supervisor.status().hosts.iter().map(|h| h.pid).collect() };
    put(supervisor.resp()).expect("put");
    until(&supervisor, "all apply it", |s| applied(s) == [Some(1); 3]);
    let before = pids();
    for host in supervisor.status().hosts {
        supervisor.roll(&host.name, TIMEOUT).expect("roll");
    }
    assert!(before.iter().zip(pids()).all(|(old, new)| *old != new));

    let limit = Duration::from_millis(100);
    let marker = spec.data.join("hosts/acceptor-0/recovering");
    fs::write(&marker, "").expect("marker");
    let error = supervisor.roll("acceptor/0", limit).expect_err("it forgot");
    assert!(error.to_string().contains("it does not vote"), "{error}");
    let error = supervisor
        .roll("acceptor/1", limit)
        .expect_err("a majority");
    let says = "only 1 other acceptors vote in partition 0, and 2 decide";
    assert!(error.to_string().contains(says), "{error}");
    supervisor
        .roll("replica/1", TIMEOUT)
        .expect("the others serve");
    supervisor.kill("replica/0").expect("kill");
    supervisor.kill("replica/2").expect("kill");
    let error = supervisor.roll("replica/1", limit).expect_err("the last");
    assert!(error.to_string().contains("no other replica"), "{error}");
}

#[test]
fn another_process_can_ask() {
    let dir = tempfile::tempdir().expect("a directory");
    let spec = spec(dir.path(), NetworkChoice::Loopback);
    let error = remote::status(&spec.data)
        .expect_err("nothing runs")
        .to_string();
    assert!(error.starts_with("no cluster is running in"), "{error}");
    let supervisor = Supervisor::start(spec.clone()).expect("up");
    let ask = |request| remote::ask(&spec.data, &request);
    let status = remote::status(&spec.data).expect("status");
    assert_eq!(status.hosts.len(), 7);
    let plane = remote::plane_status(&spec.data).expect("the control plane answers");
    assert_eq!(plane.opened.expect("founded").members.len(), 7);
    let role = || "acceptor/2".to_owned();
    let done = ask(remote::SupervisorRequest::Kill { role: role() }).expect("kill");
    assert_eq!(done, remote::SupervisorReply::Done { host: role() });
    assert_eq!(
        state_of(&supervisor.status(), "acceptor/2"),
        ProcessState::Killed
    );
    ask(remote::SupervisorRequest::Restart { role: role() }).expect("restart");
    ask(remote::SupervisorRequest::Pause { role: role() }).expect("pause");
    ask(remote::SupervisorRequest::Resume { role: role() }).expect("resume");
    let error = ask(remote::SupervisorRequest::Kill { role: "x".into() }).expect_err("unknown");
    assert!(error.to_string().contains("no role \"x\""), "{error}");

    let error = Supervisor::start(spec.clone())
        .expect_err("it runs")
        .to_string();
    assert!(error.contains("is running already"), "{error}");
    assert_eq!(
        remote::down(&spec.data).expect("down").clean_at,
        Some(vec![0])
    );
    assert!(supervisor.wait_for_end(TIMEOUT).is_some());
    drop(supervisor);
    remote::status(&spec.data).expect_err("nothing runs");
}

#[test]
fn a_port_in_use_is_one_clear_line_and_changes_nothing() {
    let dir = tempfile::tempdir().expect("a directory");
    let spec = spec(dir.path(), NetworkChoice::Loopback);
    let taken = TcpListener::bind(spec.resp).expect("take the client address");
    let error = Supervisor::start(spec.clone())
        .expect_err("in use")
        .to_string();
    let port = spec.resp.port();
    assert!(
        error.starts_with(&format!("port {port} on 127.0.0.1 is in use")),
        "{error}"
    );
    assert!(error.contains("--resp") && !error.contains('\n'), "{error}");
    drop(taken);
    let next = TcpListener::bind((Ipv4Addr::LOCALHOST, port + 2)).expect("take replica/1's");
    let error = Supervisor::start(spec.clone())
        .expect_err("in use")
        .to_string();
    assert!(error.contains(&format!("port {} ", port + 2)), "{error}");
    drop(next);
    let supervisor = Supervisor::start(spec).expect("nothing had begun");
    assert_eq!(supervisor.status().epoch, 1);
}

#[test]
fn a_host_that_fails_at_its_start_is_reported_with_its_log() {
    let dir = tempfile::tempdir().expect("a directory");
    let spec = spec(dir.path(), NetworkChoice::Loopback);
    for broken in ["acceptor-1", "replica-2"] {
        let marker = spec.data.join("hosts").join(broken).join("fail");
        fs::create_dir_all(marker.parent().expect("parent")).expect("directory");
        fs::write(&marker, "").expect("marker");
        let error = Supervisor::start(spec.clone())
            .expect_err("it fails")
            .to_string();
        let host = broken.replace('-', "/");
        assert!(
            error.starts_with(&format!("{host} stopped at its start")),
            "{error}"
        );
        assert!(error.contains("error: broken on purpose"), "{error}");
        fs::remove_file(&marker).expect("mend");
    }
    let supervisor = Supervisor::start(spec).expect("no loss has to be accepted");
    let status = supervisor.status();
    assert_eq!((status.epoch, &status.first_instances[..]), (3, &[1][..]));
}

#[test]
fn auto_chooses_xdp_where_it_works() {
    if !privileged() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut spec = spec(dir.path(), NetworkChoice::Auto);
        spec.dataplane = Dataplane::Auto;
        let supervisor = Supervisor::start(spec.clone()).expect("up without privileges");
        let why = &supervisor.notices()[0];
        assert!(why.starts_with("dataplane udp: no privileges"), "{why}");
        drop(supervisor);
        spec.acceptors = "xdp:3".parse().expect("acceptors");
        spec.data = dir.path().join("other");
        let error = Supervisor::start(spec)
            .expect_err("xdp was asked for")
            .to_string();
        assert!(error.starts_with("no privileges"), "{error}");
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let mut spec = spec(dir.path(), NetworkChoice::Auto);
    spec.dataplane = Dataplane::Auto;
    spec.acceptors = "xdp:1,udp:2".parse().expect("acceptors");
    let supervisor = Supervisor::start(spec).expect("up");
    assert_eq!(
        supervisor.notices()[0],
        "dataplane xdp: native XDP works here"
    );
    let status = supervisor.status();
    let backends: Vec<Dataplane> = status.hosts[..4].iter().map(|h| h.dataplane).collect();
    assert_eq!(
        backends,
        [
            Dataplane::Xdp,
            Dataplane::Xdp,
            Dataplane::Udp,
            Dataplane::Udp
        ]
    );
    // A host in the kernel is paused only by holding its link: its process continues.
    supervisor.pause("acceptor/0").expect("pause");
    assert!(
        supervisor
            .lab()
            .expect("lab")
            .link("acceptor/0")
            .expect("link")
            .held
    );
    supervisor.resume("acceptor/0").expect("resume");
    let lab = supervisor.lab().expect("lab");
    assert_eq!(lab.link("acceptor/0").expect("link"), LinkFaults::default());
}

// ---- Members that join and leave ----

fn names(status: &ClusterStatus) -> Vec<(u8, String)> {
    let hosts = status.hosts.iter();
    hosts.map(|host| (host.id, host.name.clone())).collect()
}

/// Makes the stand-ins' control plane behave differently from now on.
fn mark(spec: &ClusterSpec, marker: &str) -> PathBuf {
    let path = spec.data.join(marker);
    fs::write(&path, "").expect("marker");
    path
}

#[test]
fn members_come_and_go_and_the_next_start_has_those_of_now() {
    for network in networks() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut spec = spec(dir.path(), network);
        let supervisor = Supervisor::start(spec.clone()).expect("up");
        put(supervisor.resp()).expect("put");
        until(&supervisor, "all apply it", |s| applied(s) == [Some(1); 3]);

        assert_eq!(
            supervisor.add_member(MemberKind::Acceptor).expect("add"),
            "acceptor/3"
        );
        let gone = supervisor.status().hosts[2].clone();
        assert_eq!(gone.name, "acceptor/1");
        supervisor.remove_member("acceptor/1").expect("remove");
        let process = format!("/proc/{}", gone.pid.expect("it ran"));
        assert!(!Path::new(&process).exists());
        supervisor.restart("acceptor/1").expect_err("it is gone");
        // Two of its three controllers are left.
        assert_eq!(
            supervisor.add_member(MemberKind::Acceptor).expect("add"),
            "acceptor/4"
        );
        supervisor.kill("replica/1").expect("kill");
        assert_eq!(
            supervisor.replace_member("replica/1").expect("replace"),
            "replica/3"
        );
        let status = supervisor.status();
        let members = [
            (1, "leader"),
            (2, "acceptor/0"),
            (4, "acceptor/2"),
            (5, "replica/0"),
            (7, "replica/2"),
            (8, "acceptor/3"),
            (9, "acceptor/4"),
            (10, "replica/3"),
        ]
        .map(|(id, name)| (id, name.to_owned()));
        assert_eq!(names(&status), members);
        assert_eq!(status.epoch, 5);
        assert_eq!(status.hosts[5].roles, [Role::Acceptor]);
        assert_eq!(status.hosts[6].roles, [Role::Acceptor, Role::Controller]);
        let own_listener = status.hosts[7].resp.expect("a port of its own");
        assert_eq!(own_listener.port(), spec.resp.port() + 4);
        assert_eq!(put(own_listener).expect("it serves"), "replica/3");
        assert_eq!(
            supervisor.move_leader(None, "replica/2").expect("move"),
            "replica/2"
        );
        assert_eq!(supervisor.status().leader(0), Some("replica/2"));
        let error = supervisor.remove_member("acceptor/9").expect_err("unknown");
        assert!(
            error.to_string().contains("acceptor/3, acceptor/4"),
            "{error}"
        );

        until(&supervisor, "all apply it", |s| {
            let applied = applied(s);
            applied[0].is_some() && applied.iter().all(|a| *a == applied[0])
        });
        let at = applied(&supervisor.status())[0].expect("a replica");
        assert_eq!(supervisor.down().clean_at, Some(vec![at]));
        drop(supervisor);

        // Acceptors that have lost their votes begin after what replicas have applied.
        mark(&spec, "lost");
        let supervisor = Supervisor::start(spec.clone()).expect("up again");
        let status = supervisor.status();
        assert_eq!(names(&status), members);
        assert_eq!(status.epoch, 6);
        assert_eq!(status.first_instances, [at + 1]);
        let addresses = |s: &ClusterStatus| s.hosts.iter().map(|h| h.address).collect::<Vec<_>>();
        let before = addresses(&status);
        supervisor.remove_member("replica/3").expect("remove");
        supervisor.remove_member("replica/2").expect("remove");
        let error = supervisor.remove_member("replica/0").expect_err("the last");
        assert!(error.to_string().contains("last replica"), "{error}");
        assert_eq!(addresses(&supervisor.status())[..4], before[..4]);
        assert!(supervisor.down().clean_at.is_some());
        drop(supervisor);
        spec.acceptors = "5".parse().expect("acceptors");
        let error = Supervisor::start(spec).expect_err("by no such way");
        assert!(error.to_string().contains("inband member"), "{error}");
    }
}

#[test]
fn of_a_host_that_is_not_taken_in_nothing_is_left() {
    for network in networks() {
        let dir = tempfile::tempdir().expect("a directory");
        let spec = spec(dir.path(), network);
        let supervisor = Supervisor::start(spec.clone()).expect("up");
        let before = names(&supervisor.status());
        let marker = mark(&spec, "refuse");
        let error = supervisor
            .add_member(MemberKind::Replica)
            .expect_err("refused");
        assert!(error.to_string().contains("refused on purpose"), "{error}");
        let error = supervisor
            .replace_member("acceptor/1")
            .expect_err("refused");
        assert!(error.to_string().contains("refused on purpose"), "{error}");
        supervisor.remove_member("acceptor/1").expect_err("refused");
        assert_eq!(names(&supervisor.status()), before);
        assert!(!spec.data.join("hosts/replica-3").exists());
        assert!(!spec.data.join("hosts/acceptor-3").exists());
        if network == NetworkChoice::Namespaces {
            assert_eq!(namespaces_of(&supervisor.status().name).len(), 8);
        }
        fs::remove_file(marker).expect("mend");
        // Their ids and names are used up nevertheless.
        let name = supervisor.add_member(MemberKind::Replica).expect("add");
        assert_eq!(name, "replica/4");
        assert_eq!(names(&supervisor.status())[7].0, 10);

        let broken = spec.data.join("hosts/replica-5");
        fs::create_dir_all(&broken).expect("directory");
        fs::write(broken.join("fail"), "").expect("marker");
        let error = supervisor
            .add_member(MemberKind::Replica)
            .expect_err("it fails")
            .to_string();
        assert!(
            error.starts_with("replica/5 stopped at its start"),
            "{error}"
        );
        assert_eq!(supervisor.status().hosts.len(), 8);
    }
}

#[test]
fn a_change_that_the_supervisor_does_not_see_the_end_of_is_settled_by_the_next_one() {
    for taken_in in [true, false] {
        let dir = tempfile::tempdir().expect("a directory");
        let spec = spec(dir.path(), NetworkChoice::Loopback);
        let supervisor = Supervisor::start(spec.clone()).expect("up");
        mark(&spec, "pending");
        std::thread::scope(|scope| {
            let add = scope.spawn(|| supervisor.add_member(MemberKind::Replica));
            let deadline = Instant::now() + TIMEOUT;
            let doing = || match remote::ask(&spec.data, &remote::SupervisorRequest::Progress) {
                Ok(remote::SupervisorReply::Progress { doing }) => doing.unwrap_or_default(),
                other => panic!("{other:?}"),
            };
            while !doing().contains("epoch 2") {
                assert!(Instant::now() < deadline, "{}", doing());
                std::thread::sleep(Duration::from_millis(5));
            }
            let error = supervisor
                .remove_member("leader")
                .expect_err("one at a time");
            assert!(error.to_string().contains("another change"), "{error}");
            supervisor.down();
            let error = add.join().expect("no panic").expect_err("broken off");
            assert!(error.to_string().contains("broken off"), "{error}");
        });
        drop(supervisor);
        let record = fs::read_to_string(spec.data.join("cluster.json")).expect("record");
        assert!(record.contains("replica/3"), "{record}");

        let path = spec.data.join("plane.json");
        let text = fs::read_to_string(&path).expect("plane");
        let mut plane: inband_control::state::State = serde_json::from_str(&text).expect("JSON");
        let pending = plane.pending.take().expect("a pending change");
        if taken_in {
            plane.opened = Some(pending.target);
        }
        fs::write(&path, serde_json::to_string(&plane).expect("JSON")).expect("write");
        let mut again = spec.clone();
        again.accept_loss = true;
        let supervisor = Supervisor::start(again).expect("up");
        let hosts = names(&supervisor.status());
        assert_eq!(hosts.len(), if taken_in { 8 } else { 7 }, "{hosts:?}");
        let record = fs::read_to_string(spec.data.join("cluster.json")).expect("record");
        assert_eq!(record.contains("replica/3"), taken_in, "{record}");
        assert!(!record.contains("\"changing\": true"), "{record}");
    }
}

// ---- A supervisor that outlives the command that started it ----

const DETACHED_ENV: &str = "TEST_DETACHED_DIR";

/// Not a test: what `inband up --detach` starts.
#[test]
fn detached() {
    let Some(dir) = std::env::var_os(DETACHED_ENV).map(PathBuf::from) else {
        return;
    };
    inband_cluster::background::leave_terminal();
    let mut spec = spec(&dir, NetworkChoice::Loopback);
    let port = fs::read_to_string(dir.join("port")).expect("port");
    spec.resp.set_port(port.parse().expect("port"));
    match Supervisor::start(spec) {
        Ok(supervisor) => {
            assert!(supervisor.wait_for_end(Duration::from_secs(60)).is_some());
        }
        Err(error) => {
            eprintln!("inband: {error}");
            // Not through the test harness, which would write more.
            std::process::exit(1);
        }
    }
}

#[test]
fn a_detached_supervisor_is_waited_for_and_its_error_is_passed_on() {
    let dir = tempfile::tempdir().expect("a directory");
    let spec = spec(dir.path(), NetworkChoice::Loopback);
    fs::write(dir.path().join("port"), spec.resp.port().to_string()).expect("port");
    let command = || {
        let mut command = Command::new(std::env::current_exe().expect("own path"));
        command
            .args(["--exact", "detached", "--nocapture"])
            .env(DETACHED_ENV, dir.path());
        command
    };
    let taken = TcpListener::bind(spec.resp).expect("take the port");
    let error = remote::spawn_detached(command(), &spec.data)
        .expect_err("in use")
        .to_string();
    assert!(
        error.starts_with("port ") && error.contains("is in use"),
        "{error}"
    );
    drop(taken);
    let status = remote::spawn_detached(command(), &spec.data).expect("up");
    assert_eq!(status.leader(0), Some("leader"));
    let error = remote::spawn_detached(command(), &spec.data)
        .expect_err("it runs")
        .to_string();
    assert!(error.contains("is running already"), "{error}");
    assert_eq!(
        remote::down(&spec.data).expect("down").clean_at,
        Some(vec![0])
    );
}

// ---- An owner that is killed ----

const OWNER_ENV: &str = "TEST_OWNER_DIR";

/// Not a test: runs a cluster in another process until that is killed.
#[test]
fn owner() {
    let Some(dir) = std::env::var_os(OWNER_ENV).map(PathBuf::from) else {
        return;
    };
    let network = if privileged() {
        NetworkChoice::Namespaces
    } else {
        NetworkChoice::Loopback
    };
    let mut spec = spec(&dir, network);
    let port = fs::read_to_string(dir.join("port")).expect("port");
    spec.resp.set_port(port.parse().expect("port"));
    let _supervisor = Supervisor::start(spec).expect("up");
    fs::write(dir.join("ready"), "").expect("ready");
    loop {
        std::thread::park();
    }
}

fn start_owner(dir: &Path) -> Child {
    let child = Command::new(std::env::current_exe().expect("own path"))
        .args(["--exact", "owner", "--nocapture"])
        .env(OWNER_ENV, dir)
        .stdout(Stdio::null())
        .spawn()
        .expect("start the owner");
    let deadline = Instant::now() + Duration::from_secs(30);
    while !dir.join("ready").exists() {
        assert!(Instant::now() < deadline, "the owner comes up");
        std::thread::sleep(Duration::from_millis(10));
    }
    child
}

fn namespaces_of(cluster: &str) -> Vec<String> {
    let Ok(names) = fs::read_dir("/run/netns") else {
        return Vec::new();
    };
    names
        .flatten()
        .filter_map(|n| n.file_name().into_string().ok())
        .filter(|n| n.starts_with(&format!("ib-{cluster}.")))
        .collect()
}

#[test]
fn what_a_killed_owner_leaves_is_removed() {
    let privileged = privileged();
    let dir = tempfile::tempdir().expect("a directory");
    let network = if privileged {
        NetworkChoice::Namespaces
    } else {
        NetworkChoice::Loopback
    };
    let mut spec = spec(dir.path(), network);
    fs::write(dir.path().join("port"), spec.resp.port().to_string()).expect("port");
    let mut owner = start_owner(dir.path());
    let before = remote::status(&spec.data).expect("it runs");
    assert_eq!(before.supervisor_pid, owner.id());
    let alive = |pid: u32| {
        // A process that has not been waited for yet is dead all the same.
        fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|s| !s.contains(") Z "))
    };
    let pids: Vec<u32> = before.hosts.iter().map(|h| h.pid.expect("pid")).collect();
    assert!(pids.iter().all(|&p| alive(p)));
    put(before.resp).expect("it serves");
    owner.kill().expect("kill -9");
    owner.wait().expect("dead");
    let deadline = Instant::now() + TIMEOUT;
    while pids.iter().any(|&p| alive(p)) {
        assert!(
            Instant::now() < deadline,
            "hosts end when their supervisor is gone"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(
        namespaces_of(&before.name).len(),
        if privileged { 8 } else { 0 }
    );

    let error = Supervisor::start(spec.clone())
        .expect_err("unclean")
        .to_string();
    assert!(error.contains("--accept-loss"), "{error}");
    if privileged {
        // The next lab to be created, whatever its name, cleans up.
        let sweep = LabSpec {
            name: format!("t{}-sweep", std::process::id()),
            hosts: vec!["a".into()],
            seed: 1,
        };
        drop(Lab::create(&sweep).expect("a lab"));
        assert_eq!(namespaces_of(&before.name), Vec::<String>::new());
    }
    spec.accept_loss = true;
    let supervisor = Supervisor::start(spec).expect("up after the crash");
    let status = supervisor.status();
    assert_eq!((status.epoch, &status.first_instances[..]), (2, &[2][..]));
    drop(supervisor);
    assert_eq!(namespaces_of(&before.name), Vec::<String>::new());
}
