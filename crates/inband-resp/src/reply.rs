//! Replies to commands, independent of the protocol version.
//!
//! A reply is written to a client as RESP2 or RESP3, and is stored in a client session in a compact form, because a
//! retry may come over a connection with the other version.

use std::borrow::Cow;

use bytes::BytesMut;
use redis_protocol::resp2::encode::extend_encode_borrowed;
use redis_protocol::resp2::types::BorrowedFrame;

/// Version of the RESP protocol that a connection speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// RESP2, the initial version of every connection.
    Resp2,
    /// RESP3, after `HELLO 3`.
    Resp3,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// `+OK`.
    Ok,
    /// A status other than OK.
    Status(Cow<'static, str>),
    Integer(i64),
    /// A missing value.
    Nil,
    Bulk(Vec<u8>),
    /// An error, its code included (`ERR ...`).
    Error(Cow<'static, str>),
    Array(Vec<Reply>),
    /// Pairs; a flat array in RESP2.
    Map(Vec<(Reply, Reply)>),
    /// The same as an array of arrays in RESP3.
    Pairs(Vec<(Reply, Reply)>),
    /// A number that is not an integer, as text; a bulk string in RESP2.
    Double(String),
    /// A null array (`EXEC` that was not executed).
    NilArray,
}

const TAG_OK: u8 = 0;
const TAG_STATUS: u8 = 1;
const TAG_INTEGER: u8 = 2;
const TAG_NIL: u8 = 3;
const TAG_BULK: u8 = 4;
const TAG_ERROR: u8 = 5;
const TAG_ARRAY: u8 = 6;
const TAG_MAP: u8 = 7;
const TAG_NIL_ARRAY: u8 = 8;
const TAG_PAIRS: u8 = 9;
const TAG_DOUBLE: u8 = 10;

impl Reply {
    /// Creates an error with dynamic text.
    pub fn error(text: impl Into<Cow<'static, str>>) -> Self {
        Reply::Error(text.into())
    }

    pub fn bulk(text: impl AsRef<[u8]>) -> Self {
        Reply::Bulk(text.as_ref().to_vec())
    }

    pub fn is_error(&self) -> bool {
        matches!(self, Reply::Error(_))
    }

    /// Approximate memory.
    pub fn len_bytes(&self) -> usize {
        let content = match self {
            Reply::Bulk(bytes) => bytes.len(),
            Reply::Status(text) | Reply::Error(text) => text.len(),
            Reply::Array(items) => items.iter().map(Reply::len_bytes).sum(),
            Reply::Double(text) => text.len(),
            Reply::Map(pairs) | Reply::Pairs(pairs) => pairs
                .iter()
                .map(|(k, v)| k.len_bytes() + v.len_bytes())
                .sum(),
            _ => 0,
        };
        size_of::<Reply>() + content
    }

    /// Appends the reply as RESP to `out`.
    pub fn write_resp(&self, out: &mut BytesMut, protocol: Protocol) {
        match self {
            Reply::Ok => out.extend_from_slice(b"+OK\r\n"),
            Reply::Status(text) => leaf(out, &BorrowedFrame::SimpleString(text.as_bytes())),
            Reply::Integer(number) => leaf(out, &BorrowedFrame::Integer(*number)),
            Reply::Nil => out.extend_from_slice(match protocol {
                Protocol::Resp2 => b"$-1\r\n",
                Protocol::Resp3 => b"_\r\n",
            }),
            Reply::NilArray => out.extend_from_slice(match protocol {
                Protocol::Resp2 => b"*-1\r\n",
                Protocol::Resp3 => b"_\r\n",
            }),
            Reply::Bulk(bytes) => leaf(out, &BorrowedFrame::BulkString(bytes)),
            // A line break in an error would end it early and forge a reply after it.
            Reply::Error(text) if text.contains(['\r', '\n']) => {
                leaf(out, &BorrowedFrame::Error(&text.replace(['\r', '\n'], " ")));
            }
            Reply::Error(text) => leaf(out, &BorrowedFrame::Error(text)),
            Reply::Array(items) => {
                aggregate(out, b'*', items.len());
                for item in items {
                    item.write_resp(out, protocol);
                }
            }
            Reply::Map(pairs) => {
                match protocol {
                    Protocol::Resp2 => aggregate(out, b'*', pairs.len() * 2),
                    Protocol::Resp3 => aggregate(out, b'%', pairs.len()),
                }
                for (key, value) in pairs {
                    key.write_resp(out, protocol);
                    value.write_resp(out, protocol);
                }
            }
            Reply::Pairs(pairs) => {
                match protocol {
                    Protocol::Resp2 => aggregate(out, b'*', pairs.len() * 2),
                    Protocol::Resp3 => aggregate(out, b'*', pairs.len()),
                }
                for (key, value) in pairs {
                    if protocol == Protocol::Resp3 {
                        aggregate(out, b'*', 2);
                    }
                    key.write_resp(out, protocol);
                    value.write_resp(out, protocol);
                }
            }
            Reply::Double(text) => match protocol {
                Protocol::Resp2 => leaf(out, &BorrowedFrame::BulkString(text.as_bytes())),
                Protocol::Resp3 => out.extend_from_slice(format!(",{text}\r\n").as_bytes()),
            },
        }
    }

    /// Appends the compact form, decoded by [`Reply::decode`].
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Reply::Ok => out.push(TAG_OK),
            Reply::Status(text) => encode_bytes(out, TAG_STATUS, text.as_bytes()),
            Reply::Integer(number) => {
                out.push(TAG_INTEGER);
                out.extend_from_slice(&number.to_be_bytes());
            }
            Reply::Nil => out.push(TAG_NIL),
            Reply::NilArray => out.push(TAG_NIL_ARRAY),
            Reply::Bulk(bytes) => encode_bytes(out, TAG_BULK, bytes),
            Reply::Error(text) => encode_bytes(out, TAG_ERROR, text.as_bytes()),
            Reply::Array(items) => {
                out.push(TAG_ARRAY);
                out.extend_from_slice(&(items.len() as u32).to_be_bytes());
                items.iter().for_each(|item| item.encode(out));
            }
            Reply::Map(pairs) => encode_pairs(out, TAG_MAP, pairs),
            Reply::Pairs(pairs) => encode_pairs(out, TAG_PAIRS, pairs),
            Reply::Double(text) => encode_bytes(out, TAG_DOUBLE, text.as_bytes()),
        }
    }

    /// Decodes a compact form; `None` if it is malformed.
    pub fn decode(bytes: &[u8]) -> Option<Reply> {
        let mut rest = bytes;
        let reply = decode_one(&mut rest)?;
        rest.is_empty().then_some(reply)
    }
}

/// Begins a push of `len` parts, which is not a reply; in RESP2 it is an array.
pub fn push_header(out: &mut BytesMut, len: usize, protocol: Protocol) {
    let kind = match protocol {
        Protocol::Resp2 => b'*',
        Protocol::Resp3 => b'>',
    };
    aggregate(out, kind, len);
}

/// Appends a bulk string.
pub fn write_bulk(out: &mut BytesMut, bytes: &[u8]) {
    leaf(out, &BorrowedFrame::BulkString(bytes));
}

fn leaf(out: &mut BytesMut, frame: &BorrowedFrame<'_>) {
    // Encoding a leaf frame into a growing buffer cannot fail: lengths are computed beforehand.
    let written = extend_encode_borrowed(out, frame, false);
    debug_assert!(written.is_ok(), "leaf frame did not encode: {written:?}");
}

fn aggregate(out: &mut BytesMut, kind: u8, len: usize) {
    out.extend_from_slice(&[kind]);
    out.extend_from_slice(len.to_string().as_bytes());
    out.extend_from_slice(b"\r\n");
}

fn encode_bytes(out: &mut Vec<u8>, tag: u8, bytes: &[u8]) {
    out.push(tag);
    out.extend_from_slice(&(bytes.len() as u32).to_be_bytes());
    out.extend_from_slice(bytes);
}

fn encode_pairs(out: &mut Vec<u8>, tag: u8, pairs: &[(Reply, Reply)]) {
    out.push(tag);
    out.extend_from_slice(&(pairs.len() as u32).to_be_bytes());
    for (key, value) in pairs {
        key.encode(out);
        value.encode(out);
    }
}

fn take<'a>(rest: &mut &'a [u8], len: usize) -> Option<&'a [u8]> {
    let (head, tail) = rest.split_at_checked(len)?;
    *rest = tail;
    Some(head)
}

fn take_len(rest: &mut &[u8]) -> Option<usize> {
    Some(u32::from_be_bytes(take(rest, 4)?.try_into().ok()?) as usize)
}

fn take_bytes<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let len = take_len(rest)?;
    take(rest, len)
}

fn take_text(rest: &mut &[u8]) -> Option<Cow<'static, str>> {
    Some(Cow::Owned(
        String::from_utf8(take_bytes(rest)?.to_vec()).ok()?,
    ))
}

fn decode_one(rest: &mut &[u8]) -> Option<Reply> {
    Some(match take(rest, 1)?[0] {
        TAG_OK => Reply::Ok,
        TAG_STATUS => Reply::Status(take_text(rest)?),
        TAG_INTEGER => Reply::Integer(i64::from_be_bytes(take(rest, 8)?.try_into().ok()?)),
        TAG_NIL => Reply::Nil,
        TAG_NIL_ARRAY => Reply::NilArray,
        TAG_BULK => Reply::Bulk(take_bytes(rest)?.to_vec()),
        TAG_ERROR => Reply::Error(take_text(rest)?),
        TAG_ARRAY => {
            let len = take_len(rest)?;
            Reply::Array((0..len).map(|_| decode_one(rest)).collect::<Option<_>>()?)
        }
        tag @ (TAG_MAP | TAG_PAIRS) => {
            let len = take_len(rest)?;
            let pair = |rest: &mut &[u8]| Some((decode_one(rest)?, decode_one(rest)?));
            let pairs = (0..len).map(|_| pair(rest)).collect::<Option<_>>()?;
            match tag {
                TAG_MAP => Reply::Map(pairs),
                _ => Reply::Pairs(pairs),
            }
        }
        TAG_DOUBLE => Reply::Double(take_text(rest)?.into_owned()),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resp(reply: &Reply, protocol: Protocol) -> String {
        let mut out = BytesMut::new();
        reply.write_resp(&mut out, protocol);
        String::from_utf8(out.to_vec()).unwrap()
    }

    #[test]
    fn resp_forms() {
        let cases: Vec<(Reply, &str, &str)> = vec![
            (Reply::Ok, "+OK\r\n", "+OK\r\n"),
            (Reply::Status("PONG".into()), "+PONG\r\n", "+PONG\r\n"),
            (Reply::Integer(-7), ":-7\r\n", ":-7\r\n"),
            (Reply::Nil, "$-1\r\n", "_\r\n"),
            (Reply::NilArray, "*-1\r\n", "_\r\n"),
            (Reply::bulk(""), "$0\r\n\r\n", "$0\r\n\r\n"),
            (
                Reply::bulk("ab\r\n"),
                "$4\r\nab\r\n\r\n",
                "$4\r\nab\r\n\r\n",
            ),
            (
                Reply::error("ERR a\r\n+OK"),
                "-ERR a  +OK\r\n",
                "-ERR a  +OK\r\n",
            ),
            (
                Reply::Array(vec![Reply::Nil, Reply::Integer(1)]),
                "*2\r\n$-1\r\n:1\r\n",
                "*2\r\n_\r\n:1\r\n",
            ),
            (
                Reply::Map(vec![(Reply::bulk("k"), Reply::Ok)]),
                "*2\r\n$1\r\nk\r\n+OK\r\n",
                "%1\r\n$1\r\nk\r\n+OK\r\n",
            ),
            (
                Reply::Pairs(vec![(Reply::bulk("m"), Reply::Double("1.5".into()))]),
                "*2\r\n$1\r\nm\r\n$3\r\n1.5\r\n",
                "*1\r\n*2\r\n$1\r\nm\r\n,1.5\r\n",
            ),
        ];
        for (reply, resp2, resp3) in cases {
            assert_eq!(resp(&reply, Protocol::Resp2), resp2);
            assert_eq!(resp(&reply, Protocol::Resp3), resp3);
            let mut compact = Vec::new();
            reply.encode(&mut compact);
            assert_eq!(Reply::decode(&compact).as_ref(), Some(&reply));
            for len in 0..compact.len() {
                assert_eq!(
                    Reply::decode(&compact[..len]),
                    None,
                    "cut at {len}: {reply:?}"
                );
            }
        }
    }
}
