//! A client that sends arbitrary data to a whole replica: the replica keeps running, answers in RESP, and does not make
//! the client wait forever. The same for a peer that asks for a checkpoint.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use bytes::Bytes;
use inband_kv::machine::{Machine, MachineConfig};
use inband_kv::replica::{Replica, ReplicaConfig};
use inband_kv::testing::MemoryCluster;
use redis_protocol::resp2::decode::decode_bytes as decode_resp2;
use redis_protocol::resp3::decode::complete::decode_bytes as decode_resp3;

use crate::input::Input;

const PARTITIONS: usize = 2;
/// Timeout for the answer once a client has sent everything.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);
/// How long one turn may sleep.
const TURN: Duration = Duration::from_millis(1);
/// A client's last request: the replies must end with its answer.
const LAST_WORDS: &[u8] = b"*2\r\n$4\r\nECHO\r\n$12\r\nthat was all\r\n";
const LAST_ANSWER: &[u8] = b"$12\r\nthat was all\r\n";

struct Server {
    replica: Replica,
    clients: SocketAddr,
    checkpoints: SocketAddr,
    /// Removed after the replica has ended.
    _dir: tempfile::TempDir,
}

thread_local! {
    /// Created once, so that an input takes microseconds. Keys persist from input to input.
    static SERVER: std::cell::RefCell<Server> = std::cell::RefCell::new(start());
}

fn start() -> Server {
    let dir = crate::scratch();
    let config = MachineConfig {
        partitions: PARTITIONS,
        ..MachineConfig::single(dir.path())
    };
    let machine = Machine::open(config).expect("it opens");
    let cluster = MemoryCluster::with_partitions(PARTITIONS);
    let log = cluster.join(&machine.applied()).expect("it joins");
    let listeners = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").expect("a port"));
    let [clients, checkpoints] = listeners;
    let address = clients.local_addr().expect("it is bound");
    let config = ReplicaConfig::default();
    let replica = Replica::new(
        config,
        machine,
        Box::new(log),
        vec![clients],
        Some(checkpoints),
    );
    let replica = replica.expect("it starts");
    Server {
        checkpoints: replica.checkpoint_address().expect("it serves them"),
        replica,
        clients: address,
        _dir: dir,
    }
}

/// A byte that selects the mode, then the client's stream.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let how = input.byte();
    SERVER.with_borrow_mut(|server| match how % 16 {
        15 => server.checkpoint(input.rest()),
        _ => server.client(usize::from(how / 16), input.rest()),
    });
}

impl Server {
    fn turn(&mut self) {
        self.replica.poll_once(TURN).expect("the replica goes on");
    }

    fn client(&mut self, pieces: usize, sent: &[u8]) {
        let mut stream = TcpStream::connect(self.clients).expect("it is let in");
        stream.set_nodelay(true).expect("an option");
        let piece_len_bytes = sent.len() / (pieces + 1) + 1;
        stream.set_nonblocking(true).expect("an option");
        let mut heard = Vec::new();
        for piece in sent.chunks(piece_len_bytes) {
            self.send(&mut stream, piece, &mut heard);
            self.turn();
        }
        self.send(&mut stream, LAST_WORDS, &mut heard);
        // The replica may have closed the connection.
        let _ = stream.shutdown(Shutdown::Write);
        let begun = Instant::now();
        while hear(&mut stream, &mut heard) {
            self.turn();
            assert!(begun.elapsed() < ANSWER_TIMEOUT, "the client waits forever");
        }
        is_resp(heard);
    }

    fn send(&mut self, stream: &mut TcpStream, mut bytes: &[u8], heard: &mut Vec<u8>) {
        while !bytes.is_empty() {
            match stream.write(bytes) {
                Ok(written) => bytes = &bytes[written..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.turn();
                    hear(stream, heard);
                }
                Err(_) => return, // connection closed
            }
        }
    }

    fn checkpoint(&mut self, sent: &[u8]) {
        let mut stream = TcpStream::connect(self.checkpoints).expect("it is let in");
        stream
            .set_read_timeout(Some(ANSWER_TIMEOUT))
            .expect("an option");
        let _ = stream.write_all(sent);
        let _ = stream.shutdown(Shutdown::Write);
        let mut heard = Vec::new();
        // A reset is an answer too.
        if let Err(error) = stream.read_to_end(&mut heard) {
            let is_late = matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut);
            assert!(!is_late, "the peer waits forever");
        }
        self.turn();
    }
}

/// Reads what is available; returns false at the end of the stream.
fn hear(stream: &mut TcpStream, heard: &mut Vec<u8>) -> bool {
    let mut buffer = [0; 16 * 1024];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return false,
            Ok(len) => heard.extend_from_slice(&buffer[..len]),
            Err(error) => return error.kind() == ErrorKind::WouldBlock,
        }
    }
}

/// Checks that everything received is replies, or replies followed by an export.
fn is_resp(heard: Vec<u8>) {
    let mut rest = Bytes::from(heard);
    while !rest.is_empty() {
        if rest.starts_with(b"IBEXPT") || rest == LAST_ANSWER {
            return;
        }
        let read = match decode_resp2(&rest) {
            Ok(Some((_, read))) => read,
            _ => match decode_resp3(&rest) {
                Ok(Some((_, read))) => read,
                other => panic!("no reply: {other:?} in {rest:?}"),
            },
        };
        rest = rest.slice(read..);
    }
}
