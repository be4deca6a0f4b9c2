//! A whole cluster of stand-ins for `inband run`, on loopback and (with root) in namespaces.

#[path = "common/fake_host.rs"]
mod fake_host;
#[path = "paxos/members.rs"]
mod members;
#[path = "paxos/owners.rs"]
mod owners;

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use inband_cluster::paxos::supervisor::{remote, HostEntry, ProcessState};
use inband_cluster::paxos::{ClusterSpec, ClusterStatus, NetworkChoice, Supervisor};
use inband_lab::LinkFaults;
use inband_paxos::config::Dataplane;
use inband_testing::port::free_ports;
use nix::sys::signal::{self, Signal};
use nix::unistd::Pid;

const TIMEOUT: Duration = Duration::from_secs(60);

/// Not a test: the program of every host in the other tests.
#[test]
fn fake_host() {
    fake_host::main_if_asked();
}

fn spec(dir: &Path, network: NetworkChoice) -> ClusterSpec {
    const PORTS: u16 = 8;
    let mut spec = ClusterSpec::new(fake_host::program(dir), dir.join("data"));
    spec.dataplane = Dataplane::Udp;
    spec.network = network;
    spec.resp.set_port(free_ports(PORTS));
    spec.metrics_port = free_ports(PORTS);
    spec
}

/// Returns whether namespaces can be created here. If not, the test is reported as not run.
fn privileged() -> bool {
    let root = nix::unistd::geteuid().is_root();
    if !root {
        inband_testing::not_run("it needs root to make network namespaces");
    }
    root
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

fn until(supervisor: &Supervisor, what: &str, mut reached: impl FnMut(&ClusterStatus) -> bool) {
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
        // A host that waits for a CPU does not answer in time.
        until(&supervisor, "all answer", |s| {
            let mut hosts = s.hosts.iter();
            s.leader(0) == Some("leader/0")
                && hosts.all(|h| h.status.is_some() && h.metrics.is_some())
        });
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

        assert_eq!(supervisor.kill("leader").expect("kill"), "leader/0");
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
        assert_eq!(
            supervisor.restart("leader").expect("that before it"),
            "leader/0"
        );

        supervisor.pause("replica/2").expect("pause");
        assert_eq!(
            state_of(&supervisor.status(), "replica/2"),
            ProcessState::Paused
        );
        supervisor.pause("replica/2").expect_err("it is paused");
        let mut before = None;
        until(&supervisor, "replica/1 answers", |s| {
            before = applied(s)[1];
            before.is_some()
        });
        put(own_listener).expect("others serve");
        supervisor.resume("replica/2").expect("resume");
        supervisor
            .resume("replica/2")
            .expect_err("it is not paused");
        until(&supervisor, "what was held arrives", |s| {
            applied(s)[2].is_some() && applied(s)[2] > before && applied(s)[2] == applied(s)[1]
        });
        let error = supervisor
            .pause("acceptor/9")
            .expect_err("unknown")
            .to_string();
        assert!(error.contains("acceptor/0, acceptor/1"), "{error}");
    }
}

#[test]
fn a_leader_is_no_host_and_every_host_has_a_name() {
    let dir = tempfile::tempdir().expect("a directory");
    let supervisor = Supervisor::start(spec(dir.path(), NetworkChoice::Loopback)).expect("up");
    let leads = |host: &str| {
        let what = format!("{host} leads");
        until(&supervisor, &what, |s| s.leader(0) == Some(host));
    };
    leads("leader/0");
    assert_eq!(supervisor.kill("leader").expect("kill"), "leader/0");
    leads("replica/0");
    assert_eq!(supervisor.pause("leader").expect("pause"), "replica/0");
    // The first one has a name that means no other host.
    assert_eq!(supervisor.restart("leader/0").expect("restart"), "leader/0");
    leads("leader/0");
    assert_eq!(supervisor.resume("leader").expect("resume"), "replica/0");
    // None is paused under this name now.
    let error = supervisor.resume("leader").expect_err("it leads");
    assert_eq!(error.to_string(), "leader/0 is not paused");
    let error = supervisor.remove_member("leader").expect_err("no host");
    let error = error.to_string();
    assert!(
        error.contains("no host \"leader\"; there are leader/0, acceptor/0"),
        "{error}"
    );
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
        let report = supervisor.down().expect("down");
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
        until(&supervisor, "all have it", |s| applied(s) == [Some(5); 3]);
        drop(supervisor);

        let mut spec = spec;
        let error = Supervisor::start(spec.clone())
            .expect_err("unclean")
            .to_string();
        assert!(
            error.contains("not stopped cleanly") && error.contains("--accept-loss"),
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
            supervisor.down().expect("down").clean_at,
            Some(vec![5]),
            "a majority knows what was decided"
        );
        drop(supervisor);
        spec.replicas = 2;
        let error = Supervisor::start(spec)
            .expect_err("another layout")
            .to_string();
        assert!(error.contains("has --replicas 3"), "{error}");
    }
}

/// In memory, the acceptors hold the only copy of what a replica cannot write.
#[test]
fn a_cluster_stays_up_while_a_replica_cannot_write_what_it_has_acknowledged() {
    let dir = tempfile::tempdir().expect("a directory");
    let spec = spec(dir.path(), NetworkChoice::Loopback);
    let supervisor = Supervisor::start(spec.clone()).expect("up");
    let refused = || {
        let refused = supervisor.down().expect_err("a loss").to_string();
        assert!(refused.contains("--accept-loss"), "{refused}");
        let hosts = supervisor.status().hosts;
        let is_running = |host: &HostEntry| host.process == ProcessState::Running;
        assert!(hosts.iter().all(is_running));
        refused
    };
    let is_full = spec.data.join("hosts/replica-1/full");
    fs::write(&is_full, "").expect("written");
    let said = refused();
    assert!(
        said.contains("replica/1: the disk is full; make room"),
        "{said}"
    );
    assert!(said.contains("served as before"), "{said}");
    let by = put(supervisor.resp()).expect("its clients are served");
    until(&supervisor, &by, |s| applied(s) == [Some(1); 3]);
    let error = remote::down(&spec.data, false).expect_err("the same");
    assert!(error.to_string().contains("not stopped"), "{error}");
    // It becomes full while the cluster drains.
    fs::write(&is_full, "drained").expect("written");
    let said = refused();
    assert!(said.contains("no more commands"), "{said}");
    // Everything is written, but not everything is applied.
    fs::write(&is_full, "waits").expect("written");
    let said = refused();
    assert!(said.contains("1 values are outstanding"), "{said}");
    assert!(
        said.contains("replica/1 refuses writes: the disk is full"),
        "{said}"
    );
    fs::remove_file(&is_full).expect("removed");
    let report = supervisor.down().expect("there is room");
    assert_eq!(report.clean_at, Some(vec![1]));
    drop(supervisor);

    let supervisor = Supervisor::start(spec.clone()).expect("up again");
    fs::write(&is_full, "").expect("written");
    let report = remote::down(&spec.data, true).expect("loss is accepted");
    let why = report.unclean_because.expect("a reason");
    assert!(why.contains("replica/1 (Sync): the disk is full"), "{why}");
    drop(supervisor);
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
    until(&supervisor, "one leads all", |s| {
        s.leaders == vec![Some("leader/0".to_owned()); 3]
    });
    for replica in 0..3 {
        assert!(dir.path().join(format!("disk/replica-{replica}")).is_dir());
    }
    assert_eq!(supervisor.kill("leader:M").expect("kill"), "leader/0");
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
        "leader/0"
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
    assert_eq!(
        supervisor.down().expect("down").clean_at,
        Some(vec![1, 0, 0])
    );
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
        error.contains("has --partitions 2, and --partitions 4"),
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

    let limit = Duration::from_secs(2);
    let marker = spec.data.join("hosts/acceptor-0/recovering");
    fs::write(&marker, "").expect("marker");
    // On a busy machine it may not answer by then.
    let does_not_vote = |_| {
        let error = supervisor.roll("acceptor/0", limit).expect_err("it forgot");
        println!("{error}");
        error.to_string().contains("it does not vote")
    };
    assert!((0..20).any(does_not_vote));
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
    assert!(
        error.to_string().contains("no role or host \"x\""),
        "{error}"
    );

    let error = Supervisor::start(spec.clone())
        .expect_err("it runs")
        .to_string();
    assert!(error.contains("is running already"), "{error}");
    assert_eq!(
        remote::down(&spec.data, false).expect("down").clean_at,
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
fn a_start_without_the_protection_of_the_last_one_says_so() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut spec = spec(dir.path(), NetworkChoice::Loopback);
    let password = dir.path().join("password");
    fs::write(&password, "secret").expect("written");
    spec.password_file = Some(password);
    let supervisor = Supervisor::start(spec.clone()).expect("up");
    let lacks = |supervisor: &Supervisor| {
        let mut notices = supervisor.notices().iter();
        notices.any(|line| line.contains("without --password-file"))
    };
    assert!(!lacks(&supervisor));
    supervisor.down().expect("down");
    drop(supervisor);
    spec.password_file = None;
    for is_said in [true, false] {
        let supervisor = Supervisor::start(spec.clone()).expect("up");
        assert_eq!(lacks(&supervisor), is_said, "{:?}", supervisor.notices());
        supervisor.down().expect("down");
    }
}

#[test]
fn a_start_that_is_interrupted_stops_what_it_has_started() {
    let dir = tempfile::tempdir().expect("a directory");
    let spec = spec(dir.path(), NetworkChoice::Loopback);
    // While it waits for the first acceptor, and for the last replica or for a leader.
    for host in ["acceptor-1", "replica-2"] {
        let log = spec.data.join("hosts").join(host).join("log");
        let error = Supervisor::start_unless(spec.clone(), &|| log.exists())
            .expect_err("interrupted")
            .to_string();
        assert!(error.starts_with("interrupted"), "{error}");
        assert_eq!(hosts_of(&spec.data), Vec::<String>::new());
        let _ = fs::remove_file(&log);
    }
    let supervisor = Supervisor::start(spec).expect("no loss has to be accepted");
    assert_eq!(supervisor.status().first_instances, [1]);
}

/// Processes that have the configuration of a host of this cluster on their command line.
fn hosts_of(data: &Path) -> Vec<String> {
    let hosts = data.join("hosts");
    let hosts = hosts.to_str().expect("text");
    let processes = fs::read_dir("/proc").expect("processes").flatten();
    let lines = processes.filter_map(|process| fs::read(process.path().join("cmdline")).ok());
    let lines = lines.map(|line| String::from_utf8_lossy(&line).replace('\0', " "));
    lines.filter(|line| line.contains(hosts)).collect()
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
    let lab = supervisor.lab().expect("lab");
    let is_held = || lab.link("acceptor/0").expect("link") != LinkFaults::default();
    supervisor.pause("acceptor/0").expect("pause");
    assert!(is_held());
    supervisor.resume("acceptor/0").expect("resume");
    assert!(!is_held());
    supervisor.pause("acceptor/0").expect("pause");
    supervisor.roll("acceptor/0", TIMEOUT).expect("roll");
    assert!(!is_held(), "a host that was restarted is not paused");
    // It ends while it is paused.
    supervisor.pause("acceptor/0").expect("pause");
    let pid = supervisor.status().hosts.iter().find_map(|host| {
        let is_it = host.name == "acceptor/0";
        is_it.then_some(host.pid).flatten()
    });
    let pid = Pid::from_raw(pid.expect("it runs") as i32);
    signal::kill(pid, Signal::SIGKILL).expect("killed");
    until(&supervisor, "it has ended", |s| {
        s.hosts
            .iter()
            .any(|host| host.name == "acceptor/0" && host.pid.is_none())
    });
    supervisor.restart("acceptor/0").expect("restart");
    assert!(!is_held(), "a host that was restarted is not paused");
}
