//! Requests of clients: the parser finds the same requests in a stream however it is cut, and a request for the log
//! survives its encoding.

use bytes::BytesMut;
use inband_kv::parse::{parse, Request};
use inband_resp::request::{Args, Found, RequestParser};

use super::values;
use crate::input::Input;

/// The parser's results for a stream.
#[derive(Debug, PartialEq)]
enum Said {
    Request(Vec<Vec<u8>>),
    Oversize(usize),
    Empty,
    Error(String),
}

/// A byte that says how to cut, then a stream.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let cut = 1 + usize::from(input.byte());
    let stream = input.rest();
    let whole = parse_in_pieces(stream, stream.len().max(1));
    assert_eq!(
        whole,
        parse_in_pieces(stream, cut),
        "cut into pieces of {cut}"
    );
    for said in whole {
        if let Said::Request(words) = said {
            request(&words);
        }
    }
}

fn parse_in_pieces(stream: &[u8], piece_len_bytes: usize) -> Vec<Said> {
    let (mut parser, mut buffer) = (RequestParser::default(), BytesMut::new());
    let mut said = Vec::new();
    for piece in stream.chunks(piece_len_bytes) {
        buffer.extend_from_slice(piece);
        loop {
            match parser.next(&mut buffer) {
                Ok(Found::Incomplete) => break,
                Ok(Found::Empty) => said.push(Said::Empty),
                Ok(Found::Oversize(len)) => said.push(Said::Oversize(len)),
                Ok(Found::Request) => {
                    let args = parser.args(&buffer);
                    said.push(Said::Request(args.from(0).map(<[u8]>::to_vec).collect()));
                }
                Err(error) => {
                    said.push(Said::Error(error.to_string()));
                    return said;
                }
            }
            parser.consume(&mut buffer);
        }
    }
    said
}

fn request(words: &[Vec<u8>]) {
    let bytes = words.concat();
    let mut end = 0;
    let ranges: Vec<(usize, usize)> = words
        .iter()
        .map(|word| {
            end += word.len();
            (end - word.len(), end)
        })
        .collect();
    if let Ok(Request::Replicated(command)) = parse(Args::new(&bytes, &ranges)) {
        let mut encoded = BytesMut::new();
        command.encode(None, &mut encoded);
        values::command(&encoded);
    }
}
