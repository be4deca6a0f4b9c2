//! `inband run` by hand, as on a real machine: one host with all roles, over UDP.

#![allow(missing_docs)]

mod common;

use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::{Client, PROGRAM};
use nix::fcntl::{fcntl, FcntlArg, FdFlag};

const PATIENCE: Duration = Duration::from_secs(20);

/// A process that is killed in any case.
struct Host(Child);

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn config(dir: &Path) -> PathBuf {
    let free = UdpSocket::bind("127.0.0.1:0").expect("a port");
    let address = free.local_addr().expect("its address");
    let text = format!(
        r#"
        cluster = {{ name = "one", epoch = 1, first_instance = 1 }}
        host = {{ node = 1, state_dir = {dir:?}, dataplane = "udp" }}
        [[node]]
        id = 1
        name = "one"
        address = "{address}"
        roles = ["leader", "acceptor", "replica"]
        "#
    );
    let path = dir.join("config.toml");
    std::fs::write(&path, text).expect("the configuration");
    path
}

fn wait_until_it_answers(address: SocketAddr, command: &[&str], answer: &str) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let reply = Client::try_connect(address).and_then(|mut c| c.try_call(command));
        if reply.as_deref() == Some(answer) {
            return;
        }
        assert!(Instant::now() < deadline, "{command:?} answered {reply:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// What systemd does: descriptor 3 is the socket, and the variables name this very process.
fn run_as_systemd_does(config: &Path, socket: &TcpListener) -> Host {
    fcntl(socket, FcntlArg::F_SETFD(FdFlag::empty())).expect("handed down");
    let script = format!(
        "exec 3<&{}; LISTEN_FDS=1 LISTEN_PID=$$ LISTEN_FDNAMES=inband.socket exec \"$0\" run --config \"$1\"",
        socket.as_raw_fd()
    );
    let child = Command::new("bash")
        .arg("-c")
        .arg(script)
        .arg(PROGRAM)
        .arg(config)
        .spawn()
        .expect("bash runs");
    fcntl(socket, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC)).expect("private again");
    Host(child)
}

#[test]
fn a_socket_of_systemd_serves_and_a_state_directory_has_one_process() {
    let dir = tempfile::tempdir().expect("a directory");
    let config = config(dir.path());
    let socket = TcpListener::bind("127.0.0.1:0").expect("a socket");
    let address = socket.local_addr().expect("its address");
    let first = run_as_systemd_does(&config, &socket);
    wait_until_it_answers(address, &["SET", "a", "1"], "+OK");

    let second = Command::new(PROGRAM)
        .args(["run", "--config"])
        .arg(&config)
        .stdin(Stdio::null())
        .output()
        .expect("it runs");
    let said = String::from_utf8_lossy(&second.stderr).into_owned();
    let expected = format!("in use by process {};", first.0.id());
    assert!(
        !second.status.success() && said.contains(&expected),
        "{said}"
    );

    // A killed one leaves the directory free. Its acceptor has forgotten its votes, so that the
    // next one answers only what needs no agreement.
    drop(first);
    let _again = run_as_systemd_does(&config, &socket);
    wait_until_it_answers(address, &["PING"], "+PONG");
}
