//! Three ZooKeeper nodes with everything in memory, and the part of ZooKeeper's protocol that a load needs: setData and
//! getData of existing nodes, with a session on each connection.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{bail, ensure, Context, Result};
use inband_cluster::scratch::{retry, ScratchDir, Server};
use inband_testing::port::{free_ports, loopback};

use crate::load::{Answers, Operation, Protocol};

const NODES: u16 = 3;
/// ZooKeeper syncs its log; a disk would be even slower.
const MEMORY_DIR: &str = "/dev/shm";
/// Path of Debian's package.
const JAR: &str = "/usr/share/java/zookeeper.jar";
const READY_LIMIT: Duration = Duration::from_secs(60);
const CONNECT_LIMIT: Duration = Duration::from_secs(5);
const ANSWER_LIMIT: Duration = Duration::from_secs(20);
const SESSION_TIMEOUT_MS: i32 = 30_000;

const CREATE: i32 = 1;
const GET_DATA: i32 = 4;
const SET_DATA: i32 = 5;
/// Arbitrary, because answers arrive in order.
const XID: i32 = 1;
const ANY_VERSION: i32 = -1;
/// Everyone may do everything: permissions, scheme, id.
const ALL_PERMISSIONS: i32 = 31;
const LEN_LEN_BYTES: usize = 4;
/// xid, zxid, error.
const REPLY_HEADER_LEN_BYTES: usize = 4 + 8 + 4;

/// Returns the version of Debian's ZooKeeper. The error says how to install it.
pub fn version() -> Result<String> {
    ensure!(
        Path::new(JAR).exists(),
        "{JAR} is missing; install it: apt-get install --no-install-recommends zookeeper"
    );
    let java = Command::new("java").arg("-version").output();
    java.context("java cannot be run; install it: apt-get install default-jre-headless")?;
    ensure!(
        Path::new(MEMORY_DIR).is_dir(),
        "no tmpfs at {MEMORY_DIR} for its data"
    );
    let jar = fs::canonicalize(JAR)?;
    let name = jar
        .file_stem()
        .unwrap_or_default()
        .to_string_lossy()
        .replace('-', " ");
    Ok(name.replace("zookeeper", "ZooKeeper"))
}

#[derive(Debug)]
pub struct ZooKeeper;

fn put_buffer(to: &mut Vec<u8>, bytes: &[u8]) {
    to.extend_from_slice(&(bytes.len() as i32).to_be_bytes());
    to.extend_from_slice(bytes);
}

fn put_ints(to: &mut Vec<u8>, numbers: &[i32]) {
    numbers
        .iter()
        .for_each(|number| to.extend_from_slice(&number.to_be_bytes()));
}

/// Appends a packet: its length, and what `put` writes.
fn packet(to: &mut Vec<u8>, put: impl FnOnce(&mut Vec<u8>)) {
    let begin = to.len();
    put_ints(to, &[0]);
    put(to);
    let len = (to.len() - begin - LEN_LEN_BYTES) as i32;
    to[begin..begin + LEN_LEN_BYTES].copy_from_slice(&len.to_be_bytes());
}

fn path(key: u64) -> String {
    format!("/key:{key:012}")
}

fn int(bytes: &[u8]) -> i32 {
    bytes
        .first_chunk()
        .map_or(0, |bytes| i32::from_be_bytes(*bytes))
}

/// Returns the first complete packet, without its length.
fn first(bytes: &[u8]) -> Option<&[u8]> {
    let len = bytes.first_chunk().map(|len| u32::from_be_bytes(*len))?;
    bytes.get(LEN_LEN_BYTES..LEN_LEN_BYTES + len as usize)
}

impl Protocol for ZooKeeper {
    fn connect(&self, address: SocketAddr) -> Result<TcpStream> {
        let stream = TcpStream::connect_timeout(&address, CONNECT_LIMIT);
        let mut stream = stream.with_context(|| format!("connecting to {address}"))?;
        stream.set_read_timeout(Some(ANSWER_LIMIT))?;
        let mut hello = Vec::new();
        packet(&mut hello, |to| {
            // Protocol version; last zxid; timeout; no session yet.
            put_ints(to, &[0, 0, 0, SESSION_TIMEOUT_MS, 0, 0]);
            put_buffer(to, &[0; 16]);
        });
        stream.write_all(&hello)?;
        let mut len = [0; LEN_LEN_BYTES];
        stream.read_exact(&mut len).context("no session")?;
        let mut answer = vec![0; u32::from_be_bytes(len) as usize];
        stream.read_exact(&mut answer)?;
        ensure!(int(&answer[4..]) > 0, "ZooKeeper gives no session");
        Ok(stream)
    }

    fn command(&self, to: &mut Vec<u8>, operation: Operation, key: u64, value_len_bytes: usize) {
        packet(to, |to| match operation {
            Operation::Set => {
                put_ints(to, &[XID, SET_DATA]);
                put_buffer(to, path(key).as_bytes());
                put_buffer(to, &vec![b'x'; value_len_bytes]);
                put_ints(to, &[ANY_VERSION]);
            }
            Operation::Get => {
                put_ints(to, &[XID, GET_DATA]);
                put_buffer(to, path(key).as_bytes());
                to.push(0); // no watch
            }
        });
    }

    fn answers(&self, bytes: &[u8]) -> Result<Answers> {
        let mut found = Answers::default();
        while let Some(answer) = first(&bytes[found.len_bytes..]) {
            ensure!(
                answer.len() >= REPLY_HEADER_LEN_BYTES,
                "an answer of {} bytes",
                answer.len()
            );
            match int(&answer[REPLY_HEADER_LEN_BYTES - 4..]) {
                0 => found.good += 1,
                _ => found.errors += 1,
            }
            found.len_bytes += LEN_LEN_BYTES + answer.len();
        }
        Ok(found)
    }
}

/// A running cluster with its data in memory.
pub struct Cluster {
    /// The leading node; the others would forward requests, which is slower.
    pub leader: SocketAddr,
    // Dropped in this order.
    _nodes: Vec<Server>,
    _dir: ScratchDir,
}

impl Cluster {
    pub fn start() -> Result<Cluster> {
        let dir = ScratchDir::create(Path::new(MEMORY_DIR), "zookeeper")?;
        let first = free_ports(3 * NODES);
        let client = |node: u16| loopback(first + node);
        let servers: String = (0..NODES)
            .map(|node| {
                let (peers, election) = (first + NODES + node, first + 2 * NODES + node);
                format!("server.{}=127.0.0.1:{peers}:{election}\n", node + 1)
            })
            .collect();
        let mut nodes = Vec::new();
        for node in 0..NODES {
            let data = dir.path().join(format!("node{node}"));
            fs::create_dir_all(&data)?;
            fs::write(data.join("myid"), (node + 1).to_string())?;
            let config = data.join("zoo.cfg");
            let address = client(node);
            fs::write(
                &config,
                format!(
                    "tickTime=2000\ninitLimit=10\nsyncLimit=5\ndataDir={}\nclientPortAddress=127.0.0.1\nclientPort={}\n\
                     maxClientCnxns=0\nadmin.enableServer=false\n4lw.commands.whitelist=srvr\n{servers}",
                    data.display(),
                    address.port()
                ),
            )?;
            let log = File::create(data.join("log"))?;
            let child = Command::new("java")
                .args(["-Xmx512m", "-cp", JAR])
                .arg("org.apache.zookeeper.server.quorum.QuorumPeerMain")
                .arg(&config)
                .stdin(Stdio::null())
                .stdout(log.try_clone()?)
                .stderr(log)
                .spawn()
                .context("running java")?;
            nodes.push(Server::new(format!("ZooKeeper {node}"), child));
        }
        let leader = retry(READY_LIMIT, || {
            nodes.iter_mut().try_for_each(Server::check)?;
            let all: Vec<SocketAddr> = (0..NODES).map(client).collect();
            let modes: Vec<String> = all.iter().map(|a| mode(*a)).collect::<Result<_>>()?;
            let leads = modes.iter().position(|mode| mode == "leader");
            let following = modes.iter().filter(|mode| *mode == "follower").count();
            ensure!(following + 1 == usize::from(NODES), "{modes:?}");
            Ok(all[leads.context("there is no leader")?])
        });
        Ok(Cluster {
            leader: leader.context("ZooKeeper does not serve")?,
            _nodes: nodes,
            _dir: dir,
        })
    }

    /// Creates the nodes for this many keys.
    pub fn create_keys(&self, keys: u64) -> Result<()> {
        let mut stream = ZooKeeper.connect(self.leader)?;
        stream.set_nodelay(true)?;
        let mut command = Vec::new();
        for key in 0..keys {
            command.clear();
            packet(&mut command, |to| {
                put_ints(to, &[XID, CREATE]);
                put_buffer(to, path(key).as_bytes());
                put_buffer(to, b"x");
                put_ints(to, &[1, ALL_PERMISSIONS]);
                put_buffer(to, b"world");
                put_buffer(to, b"anyone");
                put_ints(to, &[0]); // persistent
            });
            super::memcached::ask(&ZooKeeper, &mut stream, &command)?;
        }
        Ok(())
    }
}

/// `leader` or `follower`.
fn mode(address: SocketAddr) -> Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, CONNECT_LIMIT)?;
    stream.set_read_timeout(Some(CONNECT_LIMIT))?;
    stream.write_all(b"srvr")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    match text.lines().find_map(|line| line.strip_prefix("Mode: ")) {
        Some(mode) => Ok(mode.to_owned()),
        None => bail!("ZooKeeper at {address} says {:?}", text.trim()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_have_their_length_and_answers_are_counted() {
        let mut sent = Vec::new();
        ZooKeeper.command(&mut sent, Operation::Get, 7, 0);
        assert_eq!(int(&sent) as usize, sent.len() - LEN_LEN_BYTES);
        assert_eq!(int(&sent[8..]), GET_DATA);
        let mut answers = Vec::new();
        for error in [0, -101] {
            packet(&mut answers, |to| put_ints(to, &[XID, 0, 9, error]));
        }
        let len = answers.len();
        answers.extend_from_slice(&[0, 0, 0, 16, 1]);
        let found = ZooKeeper.answers(&answers).expect("whole answers");
        assert_eq!((found.good, found.errors, found.len_bytes), (1, 1, len));
    }
}
