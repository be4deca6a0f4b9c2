//! The control run: a proxy between clients and a replica sometimes answers a GET with an earlier value of the key. The
//! cluster is correct, so a checker that finds nothing is broken.

use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

/// One in this many answers is stale, if there is an older value.
const ANSWERS_PER_STALE_ONE: u64 = 20;

/// The replies to the GETs of each key, newest last; consecutive ones differ.
type Replies = Arc<Mutex<HashMap<Vec<u8>, Vec<Vec<u8>>>>>;

/// The same inside a client, for clusters that have no listener to put a proxy in front of.
#[derive(Debug, Default)]
pub struct StaleReplies {
    replies: Replies,
    answers: AtomicU64,
}

impl StaleReplies {
    /// Returns the value that was read, or sometimes an older one. `None` is no value.
    pub fn of(&self, key: &str, read: Option<String>) -> Option<String> {
        let count = self.answers.fetch_add(1, Ordering::Relaxed);
        let is_stale = count % ANSWERS_PER_STALE_ONE == 0;
        let read = read.unwrap_or_default().into_bytes();
        let taken = remember(&self.replies, key.into(), read, is_stale);
        let taken = String::from_utf8_lossy(&taken).into_owned();
        Some(taken).filter(|text| !text.is_empty())
    }
}

/// Listens on a free port and forwards everything to a replica, except for stale answers. Runs until the process exits.
pub fn start(replica: SocketAddr) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let address = listener.local_addr()?;
    let history = Replies::default();
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let history = Arc::clone(&history);
            // A connection ends when either side does.
            thread::spawn(move || drop(pass_on(&client, replica, &history)));
        }
    });
    Ok(address)
}

fn pass_on(client: &TcpStream, replica: SocketAddr, history: &Replies) -> io::Result<()> {
    let server = TcpStream::connect(replica)?;
    server.set_nodelay(true)?;
    client.set_nodelay(true)?;
    let (mut requests, mut replies) = (BufReader::new(client), BufReader::new(&server));
    let (mut to_client, mut to_server) = (client, &server);
    let mut count = 0;
    loop {
        let request = frame(&mut requests)?;
        to_server.write_all(&request)?;
        let mut reply = frame(&mut replies)?;
        if request.starts_with(b"*2\r\n$3\r\nGET\r\n") && reply.starts_with(b"$") {
            count += 1;
            reply = remember(history, request, reply, count % ANSWERS_PER_STALE_ONE == 0);
        }
        to_client.write_all(&reply)?;
    }
}

/// Returns the replica's reply, or the one two before it, which is stale by then.
fn remember(history: &Replies, request: Vec<u8>, reply: Vec<u8>, may_be_stale: bool) -> Vec<u8> {
    let mut history = history.lock().unwrap_or_else(PoisonError::into_inner);
    let replies = history.entry(request).or_default();
    if replies.last() != Some(&reply) {
        replies.push(reply.clone());
    }
    match replies.len().checked_sub(3) {
        Some(old) if may_be_stale => replies[old].clone(),
        _ => reply,
    }
}

/// Reads a whole request or reply.
fn frame(from: &mut impl BufRead) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut frames = 1u64;
    while frames > 0 {
        let begin = bytes.len();
        if from.read_until(b'\n', &mut bytes)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        frames -= 1;
        let line = String::from_utf8_lossy(&bytes[begin + 1..]);
        // A length of -1 is a nil: nothing follows.
        let length: u64 = line.trim_end().parse().unwrap_or(0);
        match bytes[begin] {
            b'*' => frames += length,
            b'$' if !line.starts_with('-') => {
                let text = &mut from.take(length + 2);
                text.read_to_end(&mut bytes)?;
            }
            _ => {}
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_whole() {
        let text =
            b"*2\r\n$3\r\nGET\r\n$1\r\na\r\n$-1\r\n+OK\r\n*1\r\n*2\r\n:1\r\n$2\r\n\r\n\r\n:5\r\n";
        let mut from = BufReader::new(&text[..]);
        let mut all: Vec<String> = Vec::new();
        while let Ok(bytes) = frame(&mut from) {
            all.push(String::from_utf8(bytes).expect("text"));
        }
        let expected = [
            "*2\r\n$3\r\nGET\r\n$1\r\na\r\n",
            "$-1\r\n",
            "+OK\r\n",
            "*1\r\n*2\r\n:1\r\n$2\r\n\r\n\r\n",
            ":5\r\n",
        ];
        assert_eq!(all, expected);
    }

    #[test]
    fn no_value_is_remembered_like_a_value() {
        let stale = StaleReplies::default();
        let mut taken = Vec::new();
        for n in 0..ANSWERS_PER_STALE_ONE {
            let value = (n > 0).then(|| n.to_string());
            assert_eq!(stale.of("line1", value.clone()), value);
            taken.push(value);
        }
        let old = stale.of("line1", Some("new".into()));
        assert!(old.is_some() && taken.contains(&old), "{old:?}");
    }

    #[test]
    fn stale_answers_were_once_right() {
        let history = Replies::default();
        let get = |reply: &str, may_be_stale| {
            let reply = remember(&history, b"GET a".to_vec(), reply.into(), may_be_stale);
            String::from_utf8(reply).expect("text")
        };
        assert_eq!(get("1", true), "1");
        assert_eq!(get("2", true), "2");
        assert_eq!(get("3", false), "3");
        assert_eq!(get("3", true), "1");
    }
}
