//! Stands in for `inband run` and `inband inspect`: speaks the control protocol, serves its inherited sockets, keeps a
//! number per replica, and exits with its supervisor.
//!
//! `put` on a RESP socket adds one to the number and sends it to the other replicas, over the cluster's network. A
//! stand-in leads if no earlier candidate's process exists.
//!
//! Its control plane is one file next to the hosts' directories, which all stand-ins read and write; a change takes
//! effect immediately. A marker file next to it makes the next changes fail or stay pending.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, UdpSocket};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;

use inband_cluster::paxos::change::member_of;
use inband_cluster::paxos::control::{
    AcceptorStatus, HostReply, HostRequest, HostStatus, KeyStatus, LeaderStatus, Position,
    ReplicaStatus,
};
use inband_control::configuration::{Beginning, Configuration, Identity, Member};
use inband_control::coordinator::Waiting;
use inband_control::service::{Request, Response, Status};
use inband_control::state::{Change, Command, Refusal, State as Plane};
use inband_host::key_file::KeyFile;
use inband_host::line_json::Server;
use inband_host::signals::SHARED_LISTENER;
use inband_host::signals::{LISTEN_FDS_ENV, SUPERVISED_ENV};
use inband_paxos::config::{Config, NodeConfig, Role};
use nix::fcntl::{Flock, FlockArg};

const ARGS_ENV: &str = "FAKE_HOST_ARGS";

/// A program for a `ClusterSpec` that runs the test `fake_host` of this test binary.
pub fn program(dir: &Path) -> PathBuf {
    let path = dir.join("fake-inband");
    let exe = std::env::current_exe().expect("own path");
    // The configuration stays on the command line, as with the real program.
    let script = format!(
        "#!/bin/sh\n\
         if [ \"$1\" = inspect ]; then printf '{{\"applied\":[%s]}}' \"$(cat \"$2/applied\")\"; exit; fi\n\
         {ARGS_ENV}=\"$*\" exec '{}' --exact --nocapture fake_host \"$3\"\n",
        exe.display()
    );
    inband_testing::write_script(&path, &script);
    path
}

/// The test `fake_host` must call this.
pub fn main_if_asked() {
    let Ok(args) = std::env::var(ARGS_ENV) else {
        return;
    };
    let args: Vec<&str> = args.split(' ').collect();
    match args[..] {
        ["run", "--config", config] => run(Path::new(config)),
        _ => panic!("fake host: {args:?}"),
    }
}

/// The first of a list of numbers.
fn read_number(path: &Path) -> u64 {
    fs::read_to_string(path)
        .ok()
        .and_then(|t| t.split(',').next()?.parse().ok())
        .unwrap_or(0)
}

#[derive(PartialEq)]
enum Disk {
    Roomy,
    /// What is applied cannot be written.
    Full,
    /// Nothing is applied, and all that was is written.
    Waits,
}

struct State {
    config: Config,
    /// Of the first log; the others stay empty.
    applied: AtomicU64,
    draining: AtomicBool,
    socket: UdpSocket,
}

impl State {
    fn set(&self, applied: u64) {
        self.applied.store(applied, Ordering::SeqCst);
        let list: Vec<String> = self.positions().iter().map(u64::to_string).collect();
        // As a whole, since the process may be killed at any time.
        let temporary = self.config.host.state_dir.join("applied.new");
        fs::write(&temporary, list.join(",")).expect("write");
        let path = self.config.host.data_dirs[0].join("applied");
        fs::rename(temporary, path).expect("rename");
    }

    fn positions(&self) -> Vec<u64> {
        let firsts = self.config.cluster.first_instances.iter();
        let mut applied: Vec<u64> = firsts.map(|first| first - 1).collect();
        applied[0] = self.applied.load(Ordering::SeqCst);
        applied
    }

    /// Whether the disk is full, by a file.
    fn disk(&self) -> Disk {
        let text = fs::read_to_string(self.config.host.state_dir.join("full"));
        match text.as_deref() {
            Err(_) => Disk::Roomy,
            Ok("waits") => Disk::Waits,
            Ok("drained") if !self.draining.load(Ordering::SeqCst) => Disk::Roomy,
            Ok(_) => Disk::Full,
        }
    }

    fn most_of_peers(&self) -> u64 {
        let peers = self.config.replicas().map(|node| {
            let dir = self.hosts_dir().join(node.name.replace('/', "-"));
            read_number(&dir.join("data/applied"))
        });
        peers.max().unwrap_or(0)
    }

    fn hosts_dir(&self) -> &Path {
        self.config.host.state_dir.parent().expect("hosts")
    }

    /// Changes the shared state of the control plane, under a lock.
    fn with_plane<T>(&self, change: impl FnOnce(&mut Plane) -> T) -> T {
        let path = self.hosts_dir().with_file_name("plane.json");
        let file = fs::OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .expect("the plane's file");
        let file = Flock::lock(file, FlockArg::LockExclusive).expect("lock");
        let text = fs::read_to_string(&path).expect("read");
        let mut plane: Plane = serde_json::from_str(&text).unwrap_or_default();
        let result = change(&mut plane);
        let text = serde_json::to_string(&plane).expect("JSON");
        fs::write(&path, text).expect("write");
        drop(file);
        result
    }

    /// The first controller does this once, and every host does it when it restarts.
    fn found(&self) {
        let firsts = &self.config.cluster.first_instances;
        let members = self.config.nodes.iter().map(|node| (node.id, member(node)));
        let leaders: Vec<u8> = self.config.leaders().map(|node| node.id).collect();
        let first = Configuration {
            epoch: self.config.cluster.epoch,
            revision: 0,
            members: members.collect(),
            leaders: vec![leaders; firsts.len()],
            beginning: Beginning::Fresh(firsts.clone()),
        };
        self.with_plane(|plane| {
            if plane.opened.is_none() {
                plane.apply(&Command::Found(first)).expect("founded");
            }
        });
    }

    fn control(&self, request: Request) -> Response {
        let marker = |name: &str| self.hosts_dir().with_file_name(name).exists();
        let waiting = if marker("lost") {
            Waiting::MajorityLost(vec![2, 3])
        } else {
            Waiting::Nothing
        };
        self.with_plane(|plane| {
            let Some(opened) = plane.opened.clone() else {
                return Response::Refused(Refusal::NotFounded);
            };
            let known = |mut member: Member| {
                member.identity = Some(Identity(u64::from(member.node)));
                member
            };
            let change = match request {
                Request::Status => {
                    return Response::Status(Box::new(Status {
                        leader: 2,
                        voters: opened.controllers(),
                        opened: Some(opened),
                        pending: plane.pending.clone(),
                        waiting,
                        hosts: Vec::new(),
                    }))
                }
                Request::Add(member) => Change::Add(known(member)),
                Request::Remove(node) => Change::Remove(node),
                Request::Replace { old, new } => Change::Replace {
                    old,
                    new: known(new),
                },
                Request::MoveLeader { partition, to } => {
                    let moved = plane.apply(&Command::MoveLeader { partition, to });
                    return moved.map_or_else(Response::Refused, |()| Response::Accepted {
                        epoch: opened.epoch,
                    });
                }
                Request::Restart {
                    at_least,
                    first_instances,
                } => {
                    let opened = opened.epoch;
                    let restart = Command::Restart {
                        opened,
                        at_least,
                        first_instances,
                    };
                    let done = plane.apply(&restart);
                    let _ = fs::remove_file(self.hosts_dir().with_file_name("lost"));
                    let epoch = plane.highest_epoch;
                    return done.map_or_else(Response::Refused, |()| Response::Accepted { epoch });
                }
            };
            if marker("refuse") {
                return Response::Refused(Refusal::MajorityLost("refused on purpose".into()));
            }
            let begin = Command::Begin {
                opened: opened.epoch,
                change: Some(change),
            };
            if let Err(refusal) = plane.apply(&begin) {
                return Response::Refused(refusal);
            }
            let epoch = plane.highest_epoch;
            if !marker("pending") {
                let sealed = opened.acceptors();
                let abstained = Vec::new();
                let install = Command::Install {
                    epoch,
                    sealed,
                    abstained,
                };
                plane.apply(&install).expect("installed");
                plane.apply(&Command::Open { epoch }).expect("opened");
            }
            Response::Accepted { epoch }
        })
    }

    fn leads(&self) -> bool {
        let alive = |name: &str| {
            let dir = self.hosts_dir().join(name.replace('/', "-"));
            UnixStream::connect(dir.join("control.sock")).is_ok()
        };
        let this = self.config.this().id;
        let opened = self.with_plane(|plane| plane.opened.clone());
        let Some(opened) = opened.filter(|opened| opened.leaders[0].contains(&this)) else {
            return false;
        };
        let mut earlier = opened.leaders[0].iter().take_while(|id| **id != this);
        !earlier.any(|id| alive(&opened.members[id].name))
    }

    /// The current content of the key file.
    fn keys(&self) -> Option<KeyStatus> {
        let file = KeyFile::load(self.config.cluster.key_file.as_deref()?);
        let keys = file.expect("a good key file").keys();
        Some(KeyStatus {
            active: keys.active(),
            accepted: keys.ids(),
        })
    }

    fn status(&self) -> HostStatus {
        let opened = self.with_plane(|plane| plane.opened.clone());
        let epoch = opened.map_or(self.config.cluster.epoch, |opened| opened.epoch);
        let this = self.config.this();
        let if_it_has = |role| {
            if this.has(role) {
                self.config.logs()
            } else {
                0
            }
        };
        HostStatus {
            name: this.name.clone(),
            node: this.id,
            epoch,
            dataplane_why: String::new(),
            stopping: false,
            backends: this.roles.iter().map(|&r| (r, "udp".to_owned())).collect(),
            leaders: vec![
                LeaderStatus {
                    active: self.leads(),
                    ..LeaderStatus::default()
                };
                if_it_has(Role::Leader)
            ],
            acceptors: vec![
                AcceptorStatus {
                    voting: !self.config.host.state_dir.join("recovering").exists(),
                    ..AcceptorStatus::default()
                };
                if_it_has(Role::Acceptor)
            ],
            acceptor_disk_failure: None,
            key_drops: None,
            replica: this.has(Role::Replica).then(|| ReplicaStatus {
                applied: self.positions(),
                refuses: (self.disk() != Disk::Roomy).then(|| "writes: the disk is full".into()),
                ..ReplicaStatus::default()
            }),
            counters: BTreeMap::from([("packets".to_owned(), 1)]),
            ..HostStatus::default()
        }
    }
}

fn member(node: &NodeConfig) -> Member {
    Member {
        identity: Some(Identity(u64::from(node.id))),
        ..member_of(node)
    }
}

fn run(config: &Path) {
    let config = Config::load(config).expect("a good configuration");
    assert_eq!(std::env::var(SUPERVISED_ENV).as_deref(), Ok("1"));
    if config.host.state_dir.join("fail").exists() {
        eprintln!("error: broken on purpose");
        std::process::exit(3);
    }
    let is_replica = config.this().has(Role::Replica);
    let before = config.cluster.first_instances[0] - 1;
    let state = Arc::new(State {
        applied: AtomicU64::new(before),
        draining: AtomicBool::new(false),
        socket: UdpSocket::bind(config.this().address).expect("the host's own address"),
        config,
    });
    state.found();
    if is_replica {
        let dirs = &state.config.host.data_dirs;
        dirs.iter()
            .for_each(|dir| fs::create_dir_all(dir).expect("data"));
        let data = &dirs[0];
        let own = data.join("applied");
        // A new replica copies what its peers have.
        let copied = if own.exists() {
            0
        } else {
            state.most_of_peers()
        };
        state.set(read_number(&own).max(before).max(copied));
        follow_peers(Arc::clone(&state));
    }
    let inherited = inband_ground::inherit::listeners(LISTEN_FDS_ENV);
    assert_eq!(
        inherited.len(),
        if is_replica { 3 } else { 1 },
        "metrics, and two for clients"
    );
    for (what, listener) in inherited {
        if [SHARED_LISTENER, "resp"].contains(&what.as_str()) {
            let state = Arc::clone(&state);
            std::thread::spawn(move || serve_clients(&state, &listener));
        }
    }
    let handler = Arc::clone(&state);
    let socket = state.config.host.control.clone();
    let _server = Server::start(
        &socket,
        move |request| {
            let position = Position {
                applied: handler.positions(),
                outstanding: u64::from(handler.disk() == Disk::Waits),
            };
            match request {
                HostRequest::Status => HostReply::Status(Box::new(handler.status())),
                HostRequest::Drain => {
                    handler.draining.store(true, Ordering::SeqCst);
                    HostReply::Position(position)
                }
                HostRequest::Sync if handler.disk() == Disk::Full => HostReply::Error {
                    message: "the disk is full; make room, then try again".into(),
                },
                HostRequest::Applied | HostRequest::Sync => HostReply::Position(position),
                HostRequest::Control { request } => {
                    HostReply::Control(Box::new(handler.control(request)))
                }
                HostRequest::ReloadKeys => HostReply::Keys {
                    keys: handler.keys(),
                },
                HostRequest::Stop => {
                    std::thread::spawn(|| {
                        std::thread::sleep(std::time::Duration::from_millis(20));
                        std::process::exit(0);
                    });
                    HostReply::Stopping
                }
            }
        },
        |message| HostReply::Error { message },
    )
    .expect("control socket");
    // End of file means that the supervisor is gone.
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    std::process::exit(0);
}

fn serve_clients(state: &State, listener: &TcpListener) {
    for stream in listener.incoming().flatten() {
        let mut line = String::new();
        BufReader::new(&stream)
            .read_line(&mut line)
            .expect("a request");
        assert_eq!(line, "put\n");
        let answer = if state.draining.load(Ordering::SeqCst) {
            "draining".to_owned()
        } else {
            state.set(state.applied.load(Ordering::SeqCst) + 1);
            let opened = state
                .with_plane(|plane| plane.opened.clone())
                .expect("founded");
            let own = state.config.host.node;
            for peer in opened.replicas().into_iter().filter(|id| *id != own) {
                let number = state.applied.load(Ordering::SeqCst).to_be_bytes();
                // On loopback a dead peer answers with an error.
                let _ = state.socket.send_to(&number, opened.members[&peer].data);
            }
            state.config.this().name.clone()
        };
        writeln!(&stream, "{answer}").expect("answer");
    }
}

fn follow_peers(state: Arc<State>) {
    std::thread::spawn(move || {
        let mut number = [0; 8];
        loop {
            if state.socket.recv(&mut number).is_ok() {
                let theirs = u64::from_be_bytes(number);
                state.set(state.applied.load(Ordering::SeqCst).max(theirs));
            }
        }
    });
}
