//! The control run: a proxy between clients and a replica that sometimes answers a GET with what the
//! key held before. The cluster is sound; a checker that finds nothing then is not.

use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

/// One in so many answers that could be a lie is one.
const TRUTHS_PER_LIE: u64 = 20;

/// What replies to the GETs of a key were, newest last, each other than the one before.
type Told = Arc<Mutex<HashMap<Vec<u8>, Vec<Vec<u8>>>>>;

/// Listen on a free port and pass everything on to a replica, lies apart. Ends with the process.
pub fn start(replica: SocketAddr) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let address = listener.local_addr()?;
    let told = Told::default();
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let told = Arc::clone(&told);
            // A connection ends when either side does.
            thread::spawn(move || drop(pass_on(&client, replica, &told)));
        }
    });
    Ok(address)
}

fn pass_on(client: &TcpStream, replica: SocketAddr, told: &Told) -> io::Result<()> {
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
            reply = remember(told, request, reply, count % TRUTHS_PER_LIE == 0);
        }
        to_client.write_all(&reply)?;
    }
}

/// What is told: the truth, or the reply before the last one, which is old by then.
fn remember(told: &Told, request: Vec<u8>, truth: Vec<u8>, may_lie: bool) -> Vec<u8> {
    let mut told = told.lock().unwrap_or_else(PoisonError::into_inner);
    let replies = told.entry(request).or_default();
    if replies.last() != Some(&truth) {
        replies.push(truth.clone());
    }
    match replies.len().checked_sub(3) {
        Some(old) if may_lie => replies[old].clone(),
        _ => truth,
    }
}

/// A whole request or reply.
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
        // -1 is nothing, and no more follows.
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
    fn lies_are_old_truths() {
        let told = Told::default();
        let get = |reply: &str, may_lie| {
            let reply = remember(&told, b"GET a".to_vec(), reply.into(), may_lie);
            String::from_utf8(reply).expect("text")
        };
        assert_eq!(get("1", true), "1");
        assert_eq!(get("2", true), "2");
        assert_eq!(get("3", false), "3");
        assert_eq!(get("3", true), "1");
    }
}
