//! Shared by the lab's tests.

#![allow(dead_code, reason = "every test uses a part of it")]

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use nix::sys::socket::{setsockopt, sockopt::RcvBufForce};

use inband_lab::{Host, Lab, LabError, LabSpec};

/// Longest wait for an expected frame.
pub const TIMEOUT: Duration = Duration::from_secs(5);
/// How long to listen for a frame that must not arrive.
pub const SILENCE: Duration = Duration::from_millis(60);
pub const PORT: u16 = 7400;
const RECEIVE_BUFFER_BYTES: usize = 16 << 20;

/// Returns whether namespaces can be created here. If not, the test is reported as skipped.
pub fn privileged() -> bool {
    let root = nix::unistd::geteuid().is_root();
    if !root {
        inband_testing::not_run("it needs root to make network namespaces");
    }
    root
}

pub fn lab(test: &str, hosts: &[&str]) -> Lab {
    Lab::create(&LabSpec {
        name: format!("t{}-{test}", std::process::id()),
        hosts: hosts.iter().map(|&h| h.to_owned()).collect(),
        seed: 1,
    })
    .expect("a lab")
}

pub fn in_host<T: Send>(host: &Host, f: impl FnOnce() -> io::Result<T> + Send) -> T {
    host.namespace()
        .run(|| {
            f().map_err(|source| LabError::System {
                what: "test".into(),
                source,
            })
        })
        .expect("in the host")
}

/// A process that another test is starting holds a copy of this process's sockets until it calls exec: a dropped
/// socket's address may be in use for a moment.
fn once_free<T>(bind: impl Fn() -> io::Result<T>) -> io::Result<T> {
    let until = Instant::now() + TIMEOUT;
    loop {
        match bind() {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && Instant::now() < until => {
                std::thread::sleep(Duration::from_millis(5));
            }
            bound => return bound,
        }
    }
}

pub fn udp(lab: &Lab, host: &str) -> UdpSocket {
    let host = lab.host(host).expect("host");
    let address = host.address();
    let socket = in_host(&host, || once_free(|| UdpSocket::bind((address, PORT))));
    socket.set_read_timeout(Some(TIMEOUT)).expect("timeout");
    // Room for everything that a released link delivers at once.
    setsockopt(&socket, RcvBufForce, &RECEIVE_BUFFER_BYTES).expect("receive buffer");
    socket
}

pub fn tcp_pair(lab: &Lab, from: &str, to: &str) -> (TcpStream, TcpStream) {
    let (from, to) = (lab.host(from).expect("host"), lab.host(to).expect("host"));
    let address = SocketAddr::from((to.address(), PORT));
    let listener = in_host(&to, || once_free(|| TcpListener::bind(address)));
    let client = in_host(&from, || TcpStream::connect_timeout(&address, TIMEOUT));
    let (server, _) = listener.accept().expect("accept");
    (client, server)
}

/// A datagram whose byte 5 is the message type, as in the Inband header.
pub fn message(kind: u8, tag: u32) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[5] = kind;
    bytes[12..].copy_from_slice(&tag.to_be_bytes());
    bytes
}

pub fn tag_of(bytes: &[u8]) -> u32 {
    u32::from_be_bytes(bytes[12..16].try_into().expect("four bytes"))
}

/// Returns the tags of the messages that arrive: waits for `count` of them, and for further ones until there is silence.
pub fn tags(socket: &UdpSocket, count: usize) -> Vec<u32> {
    let mut bytes = [0; 2048];
    let mut tags = Vec::new();
    while tags.len() < count {
        match socket.recv(&mut bytes) {
            Ok(length) => tags.push(tag_of(&bytes[..length])),
            Err(_) => return tags,
        }
    }
    tags.extend(tags_until_silence(socket));
    tags
}

/// Returns the tags of all messages that arrive until there is silence.
pub fn tags_until_silence(socket: &UdpSocket) -> Vec<u32> {
    socket.set_read_timeout(Some(SILENCE)).expect("timeout");
    let mut tags = Vec::new();
    let mut bytes = [0; 2048];
    while let Ok(length) = socket.recv(&mut bytes) {
        tags.push(tag_of(&bytes[..length]));
    }
    socket.set_read_timeout(Some(TIMEOUT)).expect("timeout");
    tags
}
