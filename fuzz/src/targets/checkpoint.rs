//! A checkpoint from a peer that sends arbitrary data: it is refused or complete, and nothing is written outside its
//! directories.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::mpsc::{channel, Sender};

use inband_kv::checkpoint::{file_hash, END_MAGIC, MAGIC};
use inband_kv::checkpoint_client::Fetch;
use inband_kv::store::Position;
use inband_transport::tls::Transport;
use xxhash_rust::xxh3::Xxh3;

use crate::input::Input;

const LOGS: usize = 2;
/// The client's hello: its magic, a count, and a position for each log.
const HELLO_LEN_BYTES: usize = 8 + 8 + LOGS * 16;

struct Peer {
    address: SocketAddr,
    answers: Sender<Vec<u8>>,
    dir: tempfile::TempDir,
}

thread_local! {
    static PEER: Peer = start();
}

/// A peer that answers each connection with the bytes it is given.
fn start() -> Peer {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("it is bound");
    let (answers, given) = channel::<Vec<u8>>();
    std::thread::spawn(move || {
        while let Ok(answer) = given.recv() {
            let Ok((mut stream, _)) = listener.accept() else {
                return;
            };
            // The client may close the connection before it has read everything.
            let _ = stream.read_exact(&mut [0; HELLO_LEN_BYTES]);
            let _ = stream.write_all(&answer);
        }
    });
    let dir = crate::scratch();
    Peer {
        address,
        answers,
        dir,
    }
}

/// First byte even: raw bytes from the peer. Odd: files with correct hashes.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let (answer, is_whole) = match input.byte() % 2 {
        0 => (input.rest().to_vec(), None),
        _ => hashed(&mut input),
    };
    let result = PEER.with(|peer| fetch(peer, answer));
    if let Some(is_whole) = is_whole {
        assert_eq!(result, is_whole);
    }
}

fn fetch(peer: &Peer, answer: Vec<u8>) -> bool {
    peer.answers.send(answer).expect("the peer is there");
    let into = [0, 1].map(|log| peer.dir.path().join(format!("in/{log}")));
    std::fs::create_dir_all(peer.dir.path().join("in")).expect("a directory");
    let (received_bytes, total_bytes) = (AtomicU64::new(0), AtomicU64::new(0));
    let fetch = Fetch {
        peers: &[peer.address],
        transport: &Transport::plain(),
        positions: &[Position::default(); LOGS],
        into: &into,
        received_bytes: &received_bytes,
        total_bytes: &total_bytes,
        stop: &AtomicBool::new(false),
    };
    let is_whole = fetch.run().is_ok();
    let outside = std::fs::read_dir(peer.dir.path())
        .expect("it is there")
        .count();
    assert_eq!(outside, 1, "something was written elsewhere");
    is_whole
}

/// An answer with correct hashes, and whether it must be accepted.
fn hashed(input: &mut Input<'_>) -> (Vec<u8>, Option<bool>) {
    let mut answer = [&MAGIC[..], &[0]].concat();
    let number = |answer: &mut Vec<u8>, n: u64| answer.extend_from_slice(&n.to_be_bytes());
    number(&mut answer, LOGS as u64);
    for _ in 0..2 * LOGS {
        number(&mut answer, 1);
    }
    let files = input.below(4);
    let total_at = answer.len() + 8;
    number(&mut answer, files as u64);
    number(&mut answer, 0);
    let (mut total, mut all, mut good) = (0, Xxh3::new(), true);
    let mut seen = std::collections::HashSet::new();
    for _ in 0..files {
        let log = input.below(4) as u64;
        let len_bytes = input.below(32);
        let name = String::from_utf8_lossy(input.piece(len_bytes)).into_owned();
        let len_bytes = input.below(256);
        let contents = input.piece(len_bytes);
        let plain = name
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b));
        good &= log < LOGS as u64 && plain && !name.is_empty() && !name.starts_with('.');
        good &= seen.insert((log, name.clone()));
        number(&mut answer, log);
        answer.extend_from_slice(&(name.len() as u16).to_be_bytes());
        answer.extend_from_slice(name.as_bytes());
        number(&mut answer, contents.len() as u64);
        answer.extend_from_slice(contents);
        let mut hash = file_hash(log, &name);
        hash.update(contents);
        number(&mut answer, hash.digest());
        all.update(&hash.digest().to_be_bytes());
        total += contents.len() as u64;
    }
    answer[total_at..total_at + 8].copy_from_slice(&total.to_be_bytes());
    answer.extend_from_slice(&END_MAGIC);
    number(&mut answer, all.digest());
    (answer, Some(good))
}
