//! memcached's protocol as the box's gateway reads it: requests in a stream however it is cut, datagrams, and the
//! commands and sessions that a node decodes from records and snapshots of others.

use inband_box::command::{decode, Command};
use inband_box::limits::{KEY_LEN_BYTES_MAX, LINE_LEN_BYTES_MAX, VALUE_LEN_BYTES_MAX};
use inband_box::memcached::{parse, udp, Parsed, Request};
use inband_box::sessions::Sessions;

use crate::input::Input;

/// A byte that says what the rest is, and for a stream one that says how to cut it.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    match input.below(4) {
        0 => datagram(input.rest()),
        1 => commands(input.rest()),
        2 => sessions(input.rest()),
        _ => {
            let cut = 1 + usize::from(input.byte());
            stream(input.rest(), cut);
        }
    }
}

fn stream(stream: &[u8], cut: usize) {
    let whole = in_pieces(stream, stream.len().max(1));
    // Of a longer one, a line that has not ended may already be too long.
    if stream.len() <= LINE_LEN_BYTES_MAX {
        assert_eq!(whole, in_pieces(stream, cut), "cut into pieces of {cut}");
    }
}

/// The requests of a stream, in words; the last one says if it is none.
fn in_pieces(stream: &[u8], piece_len_bytes: usize) -> Vec<String> {
    let (mut buffer, mut skip) = (Vec::new(), 0);
    let mut found = Vec::new();
    for piece in stream.chunks(piece_len_bytes) {
        buffer.extend_from_slice(piece);
        loop {
            let skipped = buffer
                .len()
                .min(usize::try_from(skip).unwrap_or(usize::MAX));
            buffer.drain(..skipped);
            skip -= skipped as u64;
            if skip > 0 || buffer.is_empty() {
                break;
            }
            let used = match parse(&buffer) {
                Parsed::Incomplete => break,
                Parsed::Hopeless => {
                    found.push("hopeless".to_owned());
                    return found;
                }
                Parsed::Whole {
                    len_bytes,
                    skip_bytes,
                    request,
                } => {
                    assert!((1..=buffer.len()).contains(&len_bytes), "{request:?}");
                    check(&request);
                    found.push(format!("{request:?}"));
                    skip = skip_bytes;
                    len_bytes
                }
            };
            buffer.drain(..used);
        }
    }
    found
}

/// Keys and values are within their limits, and a command for the log survives its encoding.
fn check(request: &Request<'_>) {
    match request {
        Request::Get { keys, .. } | Request::GetAndTouch { keys, .. } => {
            assert!(keys.iter().all(|key| key.len() <= KEY_LEN_BYTES_MAX));
        }
        Request::Store { key, value, .. } => {
            assert!(key.len() <= KEY_LEN_BYTES_MAX && value.len() <= VALUE_LEN_BYTES_MAX);
        }
        Request::Meta(meta) => {
            assert!(meta.key.len() <= KEY_LEN_BYTES_MAX && meta.value.len() <= VALUE_LEN_BYTES_MAX);
            again(&meta.command());
        }
        _ => {}
    }
}

fn again(command: &Command<'_>) {
    let mut stream = Vec::new();
    command.encode(&mut stream);
    let (read, len_bytes) = decode(&stream).expect("one command").expect("a whole one");
    assert_eq!(
        (format!("{read:?}"), len_bytes),
        (format!("{command:?}"), stream.len())
    );
}

fn datagram(bytes: &[u8]) {
    if let Some((frame, request)) = udp::parse(bytes) {
        stream(request, request.len().max(1));
        let parts = udp::datagrams(frame.request, request);
        assert!(parts
            .iter()
            .all(|part| part.len() <= udp::DATAGRAM_BYTES_MAX));
        let whole: Vec<u8> = parts
            .iter()
            .flat_map(|part| &part[udp::HEADER_BYTES..])
            .copied()
            .collect();
        assert_eq!(whole, request);
    }
}

fn commands(mut stream: &[u8]) {
    while let Ok(Some((command, len_bytes))) = decode(stream) {
        again(&command);
        stream = &stream[len_bytes..];
    }
}

fn sessions(bytes: &[u8]) {
    if let Some(sessions) = Sessions::decode(bytes) {
        let read = Sessions::decode(&sessions.encode());
        assert_eq!(read.map(|read| read.encode()), Some(sessions.encode()));
    }
}
