//! memcached's protocol, and an unreplicated memcached.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{ensure, Context, Result};
use inband_cluster::scratch::{retry, Server};
use inband_testing::port::{free_ports, loopback};

use crate::load::{Answers, Operation, Protocol};

const CONNECT_LIMIT: Duration = Duration::from_secs(5);
const ANSWER_LIMIT: Duration = Duration::from_secs(20);
const READY_LIMIT: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub struct Memcached;

impl Protocol for Memcached {
    fn connect(&self, address: SocketAddr) -> Result<TcpStream> {
        let stream = TcpStream::connect_timeout(&address, CONNECT_LIMIT);
        stream.with_context(|| format!("connecting to {address}"))
    }

    fn command(&self, to: &mut Vec<u8>, operation: Operation, key: u64, value_len_bytes: usize) {
        let head = match operation {
            Operation::Set => format!("set key:{key:012} 0 0 {value_len_bytes}\r\n"),
            Operation::Get => format!("get key:{key:012}\r\n"),
        };
        to.extend_from_slice(head.as_bytes());
        if operation == Operation::Set {
            to.resize(to.len() + value_len_bytes, b'x');
            to.extend_from_slice(b"\r\n");
        }
    }

    /// A missing value counts as an error, because all keys were set before.
    fn answers(&self, bytes: &[u8]) -> Result<Answers> {
        let mut found = Answers::default();
        loop {
            let rest = &bytes[found.len_bytes..];
            let Some(end) = rest.windows(2).position(|pair| pair == b"\r\n") else {
                return Ok(found);
            };
            let mut len_bytes = end + 2;
            let line = std::str::from_utf8(&rest[..end])?;
            if line.starts_with("VALUE ") {
                let len = line.rsplit(' ').next().context("no length")?;
                len_bytes += len.parse::<usize>()? + "\r\nEND\r\n".len();
                if rest.len() < len_bytes {
                    return Ok(found);
                }
            }
            match line {
                "STORED" => found.good += 1,
                line if line.starts_with("VALUE ") => found.good += 1,
                _ => found.errors += 1,
            }
            found.len_bytes += len_bytes;
        }
    }
}

/// Sends one command on its own connection and checks the answer.
pub fn ask(protocol: &dyn Protocol, stream: &mut TcpStream, command: &[u8]) -> Result<()> {
    stream.set_read_timeout(Some(ANSWER_LIMIT))?;
    stream.write_all(command)?;
    let (mut received, mut some) = (Vec::new(), [0; 4096]);
    loop {
        let len = stream
            .read(&mut some)
            .with_context(|| format!("no answer within {} s", ANSWER_LIMIT.as_secs()))?;
        ensure!(len > 0, "the server closed the connection");
        received.extend_from_slice(&some[..len]);
        let answers = protocol.answers(&received)?;
        ensure!(
            answers.errors == 0,
            "an answer: {:?}",
            String::from_utf8_lossy(&received)
        );
        if answers.good > 0 {
            return Ok(());
        }
    }
}

/// Sets all keys.
pub fn fill(
    protocol: &dyn Protocol,
    address: SocketAddr,
    keys: u64,
    value_len_bytes: usize,
) -> Result<()> {
    let mut stream = protocol.connect(address)?;
    stream.set_nodelay(true)?;
    let mut command = Vec::new();
    for key in 0..keys {
        command.clear();
        protocol.command(&mut command, Operation::Set, key, value_len_bytes);
        ask(protocol, &mut stream, &command).with_context(|| format!("setting key {key}"))?;
    }
    Ok(())
}

/// memcached's version string. The error says how to install it.
pub fn version() -> Result<String> {
    let output = Command::new("memcached")
        .arg("-V")
        .output()
        .context("memcached cannot be run; install it: apt-get install memcached")?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Starts a memcached with one thread, over TCP and UDP at the same port. It may not listen yet.
pub fn spawn(address: Ipv4Addr, port: u16) -> Result<Server> {
    let port = port.to_string();
    let mut command = Command::new("memcached");
    command.args(["-l", &address.to_string(), "-t", "1", "-m", "64"]);
    command.args(["-U", &port, "-p", &port]);
    if nix::unistd::Uid::current().is_root() {
        command.args(["-u", "root"]);
    }
    let child = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .context("running memcached")?;
    Ok(Server::new("memcached", child))
}

/// A memcached with one thread, like each of our gateways; it also serves UDP at the same port.
pub struct Alone {
    pub address: SocketAddr,
    _server: Server,
}

impl Alone {
    pub fn start() -> Result<Alone> {
        let address = loopback(free_ports(1));
        let mut server = spawn(Ipv4Addr::LOCALHOST, address.port())?;
        retry(READY_LIMIT, || {
            server.check()?;
            Ok(TcpStream::connect_timeout(&address, CONNECT_LIMIT)?)
        })
        .context("memcached does not serve")?;
        Ok(Alone {
            address,
            _server: server,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_counted_when_they_are_whole() {
        let text = b"STORED\r\nVALUE key:1 0 4\r\na\r\nb\r\nEND\r\nEND\r\nSERVER_ERROR no\r\nVALUE k 0 9\r\nhel";
        let found = Memcached.answers(text).expect("good answers");
        let whole = text.len() - b"VALUE k 0 9\r\nhel".len();
        assert_eq!((found.good, found.errors, found.len_bytes), (2, 2, whole));
    }
}
