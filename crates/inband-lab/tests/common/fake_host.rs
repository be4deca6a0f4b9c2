//! Stands in for `inband run` and `inband inspect`: speaks the control protocol, serves its
//! inherited sockets, keeps a number per replica and ends with its supervisor.
//!
//! `put` on a RESP socket adds one to the number and tells the other replicas, over the cluster's
//! network. Leads if no earlier candidate's process exists.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, UdpSocket};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;

use inband_lab::control::{
    AcceptorStatus, HostReply, HostRequest, HostStatus, LeaderStatus, Position, ReplicaStatus,
};
use inband_lab::line_json::Server;
use inband_lab::process::{LISTEN_FDS_ENV, SUPERVISED_ENV};
use inband_paxos::config::{Config, Role};

const ARGS_ENV: &str = "FAKE_HOST_ARGS";

/// A program for a `ClusterSpec`, which runs the test `fake_host` of this test binary.
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
    fs::write(&path, script).expect("write");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(&path, mode).expect("executable");
    path
}

/// To be called from the test `fake_host`.
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

struct State {
    config: Config,
    /// In the first log; nothing happens in the others.
    applied: AtomicU64,
    draining: AtomicBool,
    socket: UdpSocket,
}

impl State {
    fn set(&self, applied: u64) {
        self.applied.store(applied, Ordering::SeqCst);
        let list: Vec<String> = self.positions().iter().map(u64::to_string).collect();
        let path = self.config.host.data_dirs[0].join("applied");
        fs::write(path, list.join(",")).expect("write");
    }

    fn positions(&self) -> Vec<u64> {
        let firsts = self.config.cluster.first_instances.iter();
        let mut applied: Vec<u64> = firsts.map(|first| first - 1).collect();
        applied[0] = self.applied.load(Ordering::SeqCst);
        applied
    }

    fn leads(&self) -> bool {
        let hosts = self.config.host.state_dir.parent().expect("hosts");
        let alive = |name: &str| {
            UnixStream::connect(hosts.join(name.replace('/', "-")).join("control.sock")).is_ok()
        };
        let this = self.config.this();
        let mut earlier = self.config.leaders().take_while(|n| n.id != this.id);
        this.has(Role::Leader) && !earlier.any(|n| alive(&n.name))
    }

    fn status(&self) -> HostStatus {
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
            epoch: self.config.cluster.epoch,
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
            replica: this.has(Role::Replica).then(|| ReplicaStatus {
                applied: self.positions(),
                ..ReplicaStatus::default()
            }),
            counters: BTreeMap::from([("packets".to_owned(), 1)]),
            ..HostStatus::default()
        }
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
    if is_replica {
        let dirs = &state.config.host.data_dirs;
        dirs.iter()
            .for_each(|dir| fs::create_dir_all(dir).expect("data"));
        let data = &dirs[0];
        state.set(read_number(&data.join("applied")).max(before));
        follow_peers(Arc::clone(&state));
    }
    let inherited = inband_dataplane::inherit::listeners(LISTEN_FDS_ENV);
    assert_eq!(
        inherited.len(),
        if is_replica { 3 } else { 1 },
        "metrics, and two for clients"
    );
    for (what, listener) in inherited {
        if what == "resp" {
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
                outstanding: 0,
            };
            match request {
                HostRequest::Status => HostReply::Status(Box::new(handler.status())),
                HostRequest::Drain => {
                    handler.draining.store(true, Ordering::SeqCst);
                    HostReply::Position(position)
                }
                HostRequest::Applied | HostRequest::Sync => HostReply::Position(position),
                HostRequest::Control { .. } => HostReply::Error {
                    message: "a stand-in keeps no configuration".into(),
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
    // The supervisor is gone when this ends.
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
            for peer in state
                .config
                .replicas()
                .filter(|n| n.id != state.config.host.node)
            {
                let number = state.applied.load(Ordering::SeqCst).to_be_bytes();
                // A dead peer on loopback answers with an error.
                let _ = state.socket.send_to(&number, peer.address);
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
