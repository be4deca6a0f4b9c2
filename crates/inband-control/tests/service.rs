//! Control services of several hosts on loopback, each with a soft acceptor.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::Deref;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use inband_control::configuration::{Beginning, Configuration, Epoch, Member, NodeId, Parts};
use inband_control::coordinator::Waiting;
use inband_control::message::{ReplicaPositions, StoppedLog};
use inband_control::registers::RegisterState;
use inband_control::service::{
    call, CallError, Hooks, Request, Response, Service, ServiceConfig, Status,
};
use inband_control::state::Refusal;
use inband_control::timing::Timing;
use inband_paxos::dataplane::soft::{Geometry, Registers, Roles, SoftSwitch, Verdict};
use inband_paxos::dataplane::wire::{digest, emit, flag, Header, Type, PACKET_LEN_MAX_BYTES};
use inband_paxos::host::spread_leaders;
use inband_testing::port::free_address;
use inband_transport::certificates::{Authority, CertificateFiles};
use inband_transport::tls::Transport;
use tempfile::TempDir;

const CLUSTER: &str = "test";
const PARTITIONS: usize = 2;
const GEOMETRY: Geometry = Geometry {
    partitions: PARTITIONS,
    ring_slots: 64,
};
const FIRST: [NodeId; 3] = [1, 2, 3];
/// As many may run.
const NODES: NodeId = 5;
/// Times that the leader of the control plane is stopped.
const NEW_LEADERS: usize = 5;
/// Generous: other programs may use the machine.
const TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Clone)]
struct Switch(Arc<SoftSwitch>);

impl Deref for Switch {
    type Target = Registers;
    fn deref(&self) -> &Registers {
        self.0.registers()
    }
}

#[derive(Clone, Default)]
struct Noted {
    entered: Arc<Mutex<Option<Configuration>>>,
    refused: Arc<Mutex<Option<Refusal>>>,
    stopped: Arc<Mutex<Vec<StoppedLog>>>,
}

impl Hooks for Noted {
    fn entered(&mut self, configuration: &Configuration) {
        *self.entered.lock().expect("not poisoned") = Some(configuration.clone());
    }

    fn refused(&mut self, refusal: &Refusal) {
        *self.refused.lock().expect("not poisoned") = Some(refusal.clone());
    }

    fn positions(&mut self) -> Option<ReplicaPositions> {
        let positions = ReplicaPositions {
            applied: vec![0; PARTITIONS],
            durable: vec![0; PARTITIONS],
        };
        Some(positions)
    }

    fn stopped(&mut self) -> Vec<StoppedLog> {
        self.stopped.lock().expect("not poisoned").clone()
    }
}

struct Host {
    switch: Switch,
    noted: Noted,
    service: Service,
}

struct Cluster {
    is_secure: bool,
    dir: TempDir,
    addresses: BTreeMap<NodeId, SocketAddr>,
    hosts: BTreeMap<NodeId, Host>,
    lives: u64,
}

/// The transport of a host in the cluster whose CA is in this directory.
fn certified(dir: &Path, node: NodeId) -> Transport {
    let authority = Authority::open_or_make(&dir.join("authority"), CLUSTER).expect("made");
    let file = |name: &str| dir.join(format!("{node}-{name}"));
    let files = CertificateFiles {
        ca: file("ca.pem"),
        certificate: file("certificate.pem"),
        key: file("key.pem"),
    };
    authority.issue(node, &[], &files).expect("issued");
    Transport::mutual(&files).expect("usable")
}

fn timing() -> Timing {
    Timing {
        report_us: 30_000,
        alive_us: 400_000,
        retry_us: 30_000,
        stall_us: 100_000,
        settle_us: 50_000,
        open_wait_us: 300_000,
        give_up_us: 2_000_000,
        backoff_us: 50_000,
        backoff_max_us: 1_000_000,
    }
}

impl Cluster {
    fn new() -> Cluster {
        Cluster::start_all(false)
    }

    fn start_all(is_secure: bool) -> Cluster {
        let mut cluster = Cluster::stopped(is_secure);
        FIRST.into_iter().for_each(|node| cluster.start(node));
        cluster.wait("all vote", |c| c.all_vote());
        cluster
    }

    fn stopped(is_secure: bool) -> Cluster {
        Cluster {
            is_secure,
            dir: tempfile::tempdir().expect("a directory"),
            addresses: (1..=NODES).map(|node| (node, free_address())).collect(),
            hosts: BTreeMap::new(),
            lives: 0,
        }
    }

    fn transport(&self, node: NodeId) -> Transport {
        match self.is_secure {
            true => certified(self.dir.path(), node),
            false => Transport::plain(),
        }
    }

    /// The command line's transport on a host.
    fn client(&self) -> Transport {
        self.transport(1)
    }

    fn member(&self, node: NodeId) -> Member {
        Member {
            node,
            name: format!("node/{node}"),
            data: "10.0.0.1:7400".parse().expect("an address"),
            control: self.addresses[&node],
            parts: Parts {
                acceptor: true,
                replica: true,
                leader: true,
                controller: true,
            },
            identity: None,
        }
    }

    fn first(&self, nodes: &[NodeId]) -> Configuration {
        let members = nodes.iter().map(|node| (*node, self.member(*node)));
        Configuration {
            epoch: 1,
            revision: 0,
            members: members.collect(),
            leaders: spread_leaders(nodes, PARTITIONS),
            beginning: Beginning::Fresh(vec![1; PARTITIONS]),
        }
    }

    /// Starts a host with an empty acceptor.
    fn start(&mut self, node: NodeId) {
        self.start_with(node, "mtu = 1500");
    }

    fn start_with(&mut self, node: NodeId, settings: &str) {
        let mut nodes = FIRST.to_vec();
        if !nodes.contains(&node) {
            nodes.push(node); // in its own file it is a member
        }
        self.lives += 1;
        let config = ServiceConfig {
            cluster: CLUSTER.into(),
            node,
            life: self.lives,
            control: self.addresses[&node],
            dir: self.dir.path().join(node.to_string()),
            entered: 0,
            first: self.first(&nodes),
            settings: settings.into(),
            timing: timing(),
            transport: self.transport(node),
        };
        let roles = Roles {
            acceptor: true,
            ..Roles::default()
        };
        let switch = Switch(Arc::new(SoftSwitch::new(node, roles, GEOMETRY)));
        let noted = Noted::default();
        let hooks = Box::new(noted.clone());
        let acceptor = RegisterState::new(switch.clone(), GEOMETRY);
        let service = Service::start(config, Some(acceptor), hooks).expect("it starts");
        let host = Host {
            switch,
            noted,
            service,
        };
        self.hosts.insert(node, host);
    }

    fn stop(&mut self, node: NodeId) {
        self.hosts.remove(&node).expect("it runs");
    }

    fn wait(&self, what: &str, done: impl Fn(&Cluster) -> bool) {
        let until = Instant::now() + TIMEOUT;
        while !done(self) {
            assert!(Instant::now() < until, "{what}: {:?}", self.status());
            thread::sleep(Duration::from_millis(10));
        }
    }

    fn ask(&self, request: &Request) -> Result<Response, CallError> {
        let services: Vec<SocketAddr> = self.hosts.keys().map(|n| self.addresses[n]).collect();
        call(
            CLUSTER,
            &services,
            request,
            Duration::from_secs(10),
            &self.client(),
        )
    }

    /// Retries while another reconfiguration is in progress.
    fn change(&self, request: &Request) -> Epoch {
        let until = Instant::now() + TIMEOUT;
        loop {
            match self.ask(request) {
                Ok(Response::Accepted { epoch }) => return epoch,
                Err(CallError::Refused(Refusal::Busy(_) | Refusal::NotHeard(_)))
                    if Instant::now() < until => {}
                Err(CallError::Refused(Refusal::TooFewHealthy { .. }))
                    if Instant::now() < until => {}
                other => panic!("{request:?}: {other:?}"),
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn status(&self) -> Option<Status> {
        match self.ask(&Request::Status) {
            Ok(Response::Status(status)) => Some(*status),
            _ => None,
        }
    }

    fn epoch(&self) -> Epoch {
        let status = self.status().expect("somebody answers");
        status.opened.expect("founded").epoch
    }

    /// Returns whether all running members vote, in the epoch of which they were told.
    fn all_vote(&self) -> bool {
        let epochs: Vec<Option<u64>> = self
            .hosts
            .iter()
            .filter_map(|(node, host)| {
                let entered = host.noted.entered.lock().expect("not poisoned");
                let known = entered.as_ref().map(|c| c.epoch)?;
                let is_member = entered.as_ref().is_some_and(|c| c.is_acceptor(*node));
                let views = (0..PARTITIONS).map(|p| host.switch.acceptor.acceptor(p));
                let mut epochs = views.map(|v| v.voting.then_some(v.epoch));
                let first = epochs.next().flatten();
                let equal = epochs.all(|e| e == first) && first == Some(u64::from(known));
                is_member.then_some(first.filter(|_| equal))
            })
            .collect();
        !epochs.is_empty() && epochs[0].is_some() && epochs.iter().all(|e| *e == epochs[0])
    }

    fn votes_in(&self, epoch: Epoch) -> bool {
        let at_least = self.hosts.values().all(|host| {
            let entered = host.noted.entered.lock().expect("not poisoned");
            entered.as_ref().is_some_and(|c| c.epoch >= epoch)
        });
        at_least && self.all_vote()
    }

    /// Makes an acceptor vote for a value. On a busy machine it may be entering another epoch.
    fn vote(&self, node: NodeId, instance: u64, round: u64, value: &[u8]) {
        let switch = &self.hosts[&node].switch.0;
        self.wait("it votes", |_| {
            let epoch = switch.registers().acceptor.acceptor(1).epoch as u32;
            let mut header = Header::new(Type::Phase2A, 1, epoch);
            header.partition = 1;
            header.flags = flag::RECOVERY;
            (header.instance, header.round) = (instance, round);
            header.digest = digest(value);
            let mut packet = Vec::new();
            emit(&header, value, &mut packet);
            let mut buffer = [0; PACKET_LEN_MAX_BYTES];
            buffer[..packet.len()].copy_from_slice(&packet);
            switch.handle(&mut buffer, packet.len()).0 == Verdict::Reply
        });
    }

    fn holds(&self, node: NodeId, instance: u64) -> Vec<u8> {
        let index = GEOMETRY.ring_slots + instance as usize;
        let slot = self.hosts[&node].switch.ring.slot(index);
        slot.filter(|s| s.instance == instance)
            .map_or(vec![], |s| s.value)
    }
}

#[test]
fn an_empty_acceptor_rejoins_by_itself_and_another_can_then_be_lost() {
    let mut cluster = Cluster::new();
    // Chosen by 1 and 2; then 3 does not take part in another one.
    cluster.vote(1, 1, 256 + 1, b"chosen");
    cluster.vote(2, 1, 256 + 1, b"chosen");
    for lost in [1, 2, 3] {
        let epoch = cluster.epoch();
        cluster.stop(lost);
        cluster.start(lost);
        cluster.wait("it votes again", |c| c.votes_in(epoch + 1));
        for node in FIRST {
            assert_eq!(cluster.holds(node, 1), b"chosen", "at {node} after {lost}");
        }
    }
}

#[test]
fn members_change_while_the_leading_controller_dies() {
    let mut cluster = Cluster::new();
    cluster.vote(1, 1, 256 + 1, b"chosen");
    cluster.vote(3, 1, 256 + 1, b"chosen");
    let status = cluster.status().expect("somebody leads");
    assert_eq!(status.waiting, Waiting::Nothing);
    cluster.start(4);
    let epoch = cluster.change(&Request::Add(cluster.member(4)));
    cluster.wait("four vote", |c| c.votes_in(epoch) && c.hosts.len() == 4);
    let leader = status.leader;
    cluster.stop(leader);
    cluster.wait("another leads", |c| {
        c.status().is_some_and(|s| s.leader != leader)
    });
    // The dead one is replaced.
    cluster.start(5);
    let new = cluster.member(5);
    let epoch = cluster.change(&Request::Replace { old: leader, new });
    cluster.wait("the new one votes", |c| c.votes_in(epoch));
    assert_eq!(cluster.holds(5, 1), b"chosen");
    let epoch = cluster.change(&Request::Remove(4));
    cluster.wait("three vote", |c| c.votes_in(epoch));
    assert!(!cluster.hosts[&4].switch.acceptor.acceptor(0).voting);
    let to = 5;
    cluster.change(&Request::MoveLeader {
        partition: Some(0),
        to,
    });
    let moved = |c: &Cluster| {
        let entered = c.hosts[&to].noted.entered.lock().expect("not poisoned");
        entered.as_ref().is_some_and(|e| e.leaders[0][0] == to)
    };
    cluster.wait("the host knows that it is preferred", moved);
    let refused = cluster.ask(&Request::Remove(77));
    assert!(matches!(
        refused,
        Err(CallError::Refused(Refusal::NotMember(77)))
    ));
}

/// Each leader begins without a report. With five hosts, of which one is missing, it never hears from all.
#[test]
fn a_new_leader_of_the_control_plane_calls_no_host_silent_that_is_up() {
    let mut cluster = Cluster::new();
    cluster.start(4);
    cluster.change(&Request::Add(cluster.member(4)));
    cluster.start(5);
    cluster.change(&Request::Add(cluster.member(5)));
    cluster.wait("all vote", |c| c.all_vote());
    cluster.stop(5);
    for _ in 0..NEW_LEADERS {
        let leader = cluster.status().expect("somebody answers").leader;
        cluster.stop(leader);
        let until = Instant::now() + TIMEOUT;
        let status = loop {
            match cluster.status() {
                Some(status) if status.leader != leader => break status,
                _ => assert!(Instant::now() < until, "no other leader"),
            }
        };
        let heard: Vec<NodeId> = status.hosts.iter().map(|host| host.node).collect();
        for node in cluster.hosts.keys() {
            assert!(heard.contains(node), "{node} is up; heard: {heard:?}");
        }
        cluster.start(leader);
        let votes = |status: &Status| {
            let mut hosts = status.hosts.iter().filter(|host| host.node == leader);
            hosts.any(|host| host.acceptor.as_ref().is_some_and(|a| a.voting))
        };
        cluster.wait("it votes", |c| {
            c.status().is_some_and(|status| votes(&status))
        });
    }
}

#[test]
fn a_wiped_host_is_refused_and_returns_under_a_new_id() {
    let mut cluster = Cluster::new();
    let epoch = cluster.epoch();
    cluster.stop(2);
    let dir = cluster.dir.path().join("2");
    std::fs::remove_dir_all(&dir).expect("it is there");
    cluster.start(2);
    let refused = |c: &Cluster| {
        let refused = c.hosts[&2].noted.refused.lock().expect("not poisoned");
        matches!(*refused, Some(Refusal::OtherIdentity { node: 2, .. }))
    };
    cluster.wait("it is refused", refused);
    assert!(!cluster.hosts[&2].switch.acceptor.acceptor(0).voting);
    assert_eq!(cluster.epoch(), epoch);
    cluster.stop(2);
    cluster.start(4);
    let new = cluster.member(4);
    let epoch = cluster.change(&Request::Replace { old: 2, new });
    cluster.wait("three vote", |c| c.votes_in(epoch));
}

#[test]
fn hosts_that_are_configured_differently_found_nothing() {
    let mut cluster = Cluster::stopped(false);
    // The founder is the one with wrong settings.
    cluster.start_with(1, "mtu = 1450");
    cluster.start(2);
    cluster.start(3);
    // Several times as long as founding takes.
    thread::sleep(Duration::from_secs(3));
    assert!(cluster
        .status()
        .is_none_or(|status| status.opened.is_none()));
    cluster.stop(1);
    cluster.start(1);
    cluster.wait("all vote", Cluster::all_vote);
}

#[test]
fn a_host_with_other_settings_is_refused() {
    let mut cluster = Cluster::new();
    let epoch = cluster.epoch();
    cluster.stop(2);
    cluster.start_with(2, "mtu = 1450");
    let refused = |c: &Cluster| {
        let refused = c.hosts[&2].noted.refused.lock().expect("not poisoned");
        matches!(&*refused, Some(Refusal::OtherSettings { node: 2, given, expected })
            if given == "mtu = 1450" && expected == "mtu = 1500")
    };
    cluster.wait("it is refused", refused);
    assert!(!cluster.hosts[&2].switch.acceptor.acceptor(0).voting);
    assert_eq!(cluster.epoch(), epoch);
    // Nor does it refuse the others, which are correct.
    thread::sleep(Duration::from_secs(1));
    for node in [1, 3] {
        let refused = cluster.hosts[&node].noted.refused.lock();
        assert_eq!(*refused.expect("not poisoned"), None);
    }
    cluster.stop(2);
    cluster.start(2);
    cluster.wait("it votes", Cluster::all_vote);
}

#[test]
fn everything_stops_and_the_configuration_is_still_there() {
    let mut cluster = Cluster::new();
    cluster.start(4);
    let epoch = cluster.change(&Request::Add(cluster.member(4)));
    cluster.wait("four vote", |c| c.votes_in(epoch));
    let nodes = [1, 2, 3, 4];
    nodes.into_iter().for_each(|node| cluster.stop(node));
    nodes.into_iter().for_each(|node| cluster.start(node));
    let lost = |c: &Cluster| {
        let waiting = c.status().map(|s| s.waiting);
        matches!(waiting, Some(Waiting::MajorityLost(nodes)) if nodes.len() > 2)
    };
    cluster.wait("a majority is lost", lost);
    assert_eq!(cluster.epoch(), epoch);
    let restart_at = |first_instances| Request::Restart {
        at_least: 0,
        first_instances,
    };
    // The replicas have applied nothing, and report that. A coordinator that was just elected has not received their
    // reports yet and gives another reason.
    cluster.wait("what replicas contradict is refused", |c| {
        match c.ask(&restart_at(vec![7, 9])) {
            Err(CallError::Refused(Refusal::AppliedOtherwise { .. })) => true,
            Ok(response) => panic!("{response:?}"),
            Err(_) => false,
        }
    });
    let restart = restart_at(vec![]);
    let epoch = cluster.change(&restart);
    cluster.wait("four vote", |c| c.votes_in(epoch));
    assert_eq!(cluster.hosts[&4].switch.acceptor.acceptor(1).floor, 1);
    let refused = cluster.ask(&restart);
    assert!(matches!(
        refused,
        Err(CallError::Refused(Refusal::NothingLost))
    ));
}

/// Each command of a restart gets its own answer: the first one only halts the cluster.
#[test]
fn a_halt_is_not_answered_as_the_restart() {
    let cluster = Cluster::new();
    for host in cluster.hosts.values() {
        let stopped = StoppedLog {
            log: 0,
            instance: 1,
            for_ms: 7_000,
            unreadable_at: Vec::new(),
        };
        *host.noted.stopped.lock().expect("not poisoned") = vec![stopped];
    }
    let restart = Request::Restart {
        at_least: 0,
        first_instances: Vec::new(),
    };
    let answers = std::cell::RefCell::new(Vec::new());
    cluster.wait("it begins anew", |c| match c.ask(&restart) {
        Ok(response) => {
            let is_done = matches!(response, Response::Accepted { .. });
            answers.borrow_mut().push(response);
            is_done
        }
        Err(_) => false,
    });
    let answers = answers.into_inner();
    assert!(
        matches!(answers[..], [Response::Halted { epoch: halted }, Response::Accepted { epoch }] if halted < epoch),
        "{answers:?}"
    );
}

#[test]
fn strangers_are_hung_up_on() {
    use std::io::{Read, Write};
    let cluster = Cluster::new();
    for garbage in [
        &b"GET / HTTP/1.1\r\n\r\n"[..],
        &[0, 0, 0, 2, 255, 255],
        &[255; 64],
    ] {
        let to = cluster.addresses[&1];
        let mut stream = std::net::TcpStream::connect(to).expect("it listens");
        stream.write_all(garbage).expect("it takes some bytes");
        // Fails if the connection is closed already. A reset closes it as well.
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        assert!(answer.is_empty());
    }
    let to = [cluster.addresses[&1]];
    let other = call(
        "another",
        &to,
        &Request::Status,
        Duration::from_secs(1),
        &cluster.client(),
    );
    assert!(matches!(other, Err(CallError::NoAnswer(_))));
    assert!(cluster.status().is_some());
    assert!(Path::new(cluster.dir.path()).exists());
}

#[test]
fn strangers_cannot_fill_the_control_listener() {
    use std::io::{Read, Write};
    use std::net::TcpStream;
    let cluster = Cluster::new();
    let to = cluster.addresses[&2];
    let counter = |name: &str| {
        let counters = cluster.hosts[&2].service.counters().all();
        let of_name = counters.iter().find(|(n, _)| *n == name);
        of_name.expect("a counter of this name").1
    };
    let wait = |what: &str, name: &str, at_least: u64| {
        let deadline = Instant::now() + TIMEOUT;
        while counter(name) < at_least {
            assert!(Instant::now() < deadline, "{what}: {}", counter(name));
            thread::sleep(Duration::from_millis(10));
        }
    };
    // Unfinished long frames: only a limited number at a time, whatever lengths they announce.
    let begun: Vec<TcpStream> = (0..20)
        .map(|_| {
            let mut stream = TcpStream::connect(to).expect("it listens");
            stream.write_all(&[0, 0x80, 0, 0, 1]).expect("sends");
            stream
        })
        .collect();
    wait("too much", "control_closed_memory", 12);
    // A frame that exceeds the length limit.
    let mut long = TcpStream::connect(to).expect("it listens");
    long.write_all(&[1, 0, 0, 0]).expect("sends");
    wait("too long", "control_closed_protocol", 1);
    // More silent connections than are served at a time.
    let mut silent: Vec<TcpStream> = (0..300)
        .filter_map(|_| TcpStream::connect(to).ok())
        .collect();
    wait("a flood", "control_connections_refused", 40);
    // Connections that are silent are closed, also within a frame.
    wait("the silent", "control_closed_slow", 200);
    for stream in &mut silent {
        stream.set_read_timeout(Some(TIMEOUT)).expect("set");
        assert!(!matches!(stream.read(&mut [0]), Ok(1)));
    }
    drop((silent, begun, long));
    let answer = call(CLUSTER, &[to], &Request::Status, TIMEOUT, &cluster.client());
    assert!(matches!(answer, Ok(Response::Status(_))), "{answer:?}");
    cluster.wait("all vote", |c| c.all_vote());
}

/// A host that hangs, whose kernel still accepts connections, and one that has gone: neither delays what others answer.
#[test]
fn services_that_do_not_answer_delay_no_call() {
    let cluster = Cluster::new();
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let gone: SocketAddr = "192.0.2.1:7500".parse().expect("an address");
    let mut services = vec![silent.local_addr().expect("an address"), gone];
    services.extend(cluster.addresses.values());
    let deadline = Duration::from_secs(5);
    for _ in 0..3 {
        let answer = call(
            CLUSTER,
            &services,
            &Request::Status,
            deadline,
            &cluster.client(),
        );
        assert!(matches!(answer, Ok(Response::Status(_))), "{answer:?}");
    }
    let to = Request::MoveLeader {
        partition: None,
        to: 2,
    };
    let answer = call(CLUSTER, &services, &to, deadline, &cluster.client());
    assert!(
        matches!(answer, Ok(_) | Err(CallError::Refused(_))),
        "{answer:?}"
    );
}

#[test]
fn services_with_certificates_listen_to_each_other_only() {
    use std::io::{Read, Write};
    let mut cluster = Cluster::start_all(true);
    let to = [cluster.addresses[&1]];
    let second = Duration::from_secs(1);
    // Without a certificate, or with one from another CA, there is no answer.
    let elsewhere = tempfile::tempdir().expect("a directory");
    for stranger in [Transport::plain(), certified(elsewhere.path(), 1)] {
        let answer = call(CLUSTER, &to, &Request::Status, second, &stranger);
        assert!(matches!(answer, Err(CallError::NoAnswer(_))), "{answer:?}");
    }
    let mut stream = std::net::TcpStream::connect(to[0]).expect("it listens");
    stream.write_all(b"GET / HTTP/1.1\r\n\r\n").expect("sends");
    let mut got = Vec::new();
    let _ = stream.read_to_end(&mut got);
    assert!(got.len() < 16, "{got:?}");
    // A member leaves and returns as usual, in spite of them.
    cluster.hosts.remove(&3);
    cluster.start(3);
    cluster.wait("all vote", |c| c.all_vote());
}
