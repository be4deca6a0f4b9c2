//! Requests as received: RESP arrays of strings, or inline commands.
//!
//! The frames themselves are decoded by `redis-protocol`. The array around them is walked here, one
//! argument at a time, for three reasons: the crate recurses into nested arrays without a bound, so
//! a hostile client could overflow the stack; a request that arrives in pieces is not parsed from
//! its beginning again; and an over-long one can be skipped without keeping it in memory.

use bytes::{Buf, BytesMut};
use redis_protocol::resp2::decode::decode_range;
use redis_protocol::resp2::types::RangeFrame;

use crate::limits::{
    BULK_LEN_BYTES_MAX, IDLE_ARGUMENTS_MAX, INLINE_LEN_BYTES_MAX, REQUEST_ARGUMENTS_MAX,
    REQUEST_LEN_BYTES_MAX, UNTRUSTED_ARGUMENTS_MAX, UNTRUSTED_BULK_LEN_BYTES_MAX,
};

/// Longest line that holds a length, its CRLF included.
const LENGTH_LINE_BYTES_MAX: usize = 32;

/// A protocol error; it is reported to the client and the connection is closed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// `*` was followed by an invalid count.
    #[error("Protocol error: invalid multibulk length")]
    MultibulkLength,
    /// `$` was followed by an invalid length.
    #[error("Protocol error: invalid bulk length")]
    BulkLength,
    /// An argument was not a string.
    #[error("Protocol error: expected '$', got '{0}'")]
    ExpectedBulk(char),
    /// A string was longer than announced.
    #[error("Protocol error: a string did not end where its length said")]
    BulkEnd,
    /// An inline command did not end.
    #[error("Protocol error: too big inline request")]
    InlineTooLong,
    /// Quotes of an inline command did not match.
    #[error("Protocol error: unbalanced quotes in request")]
    UnbalancedQuotes,
    /// Too many arguments for an unauthenticated client.
    #[error("Protocol error: unauthenticated multibulk length")]
    UntrustedCount,
    /// Too long an argument for an unauthenticated client.
    #[error("Protocol error: unauthenticated bulk length")]
    UntrustedBulk,
    /// An HTTP request: a web page was made to send requests to this port.
    #[error("Protocol error: HTTP is not spoken here; use a Redis client")]
    Http,
}

/// The arguments of one request, borrowed from the connection's input.
#[derive(Debug, Clone, Copy)]
pub struct Args<'a> {
    bytes: &'a [u8],
    ranges: &'a [(usize, usize)],
}

impl<'a> Args<'a> {
    /// Arguments at `ranges` of `bytes`.
    pub fn new(bytes: &'a [u8], ranges: &'a [(usize, usize)]) -> Self {
        Self { bytes, ranges }
    }

    /// Returns the number of arguments, the command's name included.
    pub fn len(&self) -> usize {
        self.ranges.len()
    }

    /// There is not even a command name.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Returns the argument at `index`; empty if there is none.
    pub fn get(&self, index: usize) -> &'a [u8] {
        self.ranges
            .get(index)
            .map_or(&[], |(start, end)| &self.bytes[*start..*end])
    }

    /// Up to `count` arguments from `first` on.
    pub fn part(&self, first: usize, count: usize) -> Self {
        let from = self.ranges.get(first..).unwrap_or_default();
        Self {
            bytes: self.bytes,
            ranges: &from[..count.min(from.len())],
        }
    }

    /// The arguments from `first` on.
    pub fn from(&self, first: usize) -> impl ExactSizeIterator<Item = &'a [u8]> + use<'a> {
        let (bytes, ranges) = (self.bytes, self.ranges.get(first..).unwrap_or(&[]));
        ranges.iter().map(move |(start, end)| &bytes[*start..*end])
    }
}

/// The result of [`RequestParser::next`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// Nothing complete: read more.
    Incomplete,
    /// A request; see [`RequestParser::args`].
    Request,
    /// A request of this many bytes was skipped, because it exceeds [`REQUEST_LEN_BYTES_MAX`].
    Oversize(usize),
    /// An empty request, which is not answered.
    Empty,
}

/// Finds requests in a connection's input, resuming where the last call stopped.
#[derive(Debug, Default)]
pub struct RequestParser {
    /// Number of arguments of the current array still to come.
    remaining: usize,
    /// Where to continue in the input.
    pos: usize,
    ranges: Vec<(usize, usize)>,
    /// Bytes of a request that is being skipped; 0 if there is none.
    oversize: usize,
    /// Bytes of a skipped argument still to come.
    skip: usize,
    /// Unquoted arguments of an inline command.
    inline: Vec<u8>,
    is_inline: bool,
    /// Bytes of an unfinished line that are known to contain no end.
    line_scanned: usize,
    /// Only short requests are accepted: the client is not authenticated.
    is_untrusted: bool,
}

impl RequestParser {
    /// The arguments of the request just found. `input` is the buffer given to `next`.
    pub fn args<'a>(&'a self, input: &'a BytesMut) -> Args<'a> {
        Args::new(
            if self.is_inline { &self.inline } else { input },
            &self.ranges,
        )
    }

    /// Drops the request just found from the input.
    pub fn consume(&mut self, input: &mut BytesMut) {
        input.advance(self.pos);
        self.pos = 0;
        self.ranges.clear();
        if self.ranges.capacity() > IDLE_ARGUMENTS_MAX {
            self.ranges = Vec::new();
        }
        self.oversize = 0;
        self.is_inline = false;
    }

    /// Returns whether part of a request has been parsed.
    pub fn is_inside_request(&self) -> bool {
        self.remaining > 0
    }

    /// Approximate memory held in addition to the input.
    pub fn memory_bytes(&self) -> usize {
        self.inline.capacity() + self.ranges.capacity() * size_of::<(usize, usize)>()
    }

    /// Sets whether only short requests are accepted.
    pub fn set_untrusted(&mut self, is_untrusted: bool) {
        self.is_untrusted = is_untrusted;
    }

    /// Finds the next request. After any result but [`Found::Incomplete`], call [`consume`](Self::consume).
    pub fn next(&mut self, input: &mut BytesMut) -> Result<Found, ProtocolError> {
        if self.remaining == 0 {
            match input.get(self.pos) {
                None => return Ok(Found::Incomplete),
                Some(b'*') => {}
                Some(_) => return self.next_inline(input),
            }
            let Some((count, line_len)) =
                length_line(&input[self.pos..]).map_err(|()| ProtocolError::MultibulkLength)?
            else {
                return Ok(Found::Incomplete);
            };
            if count > REQUEST_ARGUMENTS_MAX as i64 {
                return Err(ProtocolError::MultibulkLength);
            }
            if self.is_untrusted && count > UNTRUSTED_ARGUMENTS_MAX as i64 {
                return Err(ProtocolError::UntrustedCount);
            }
            self.pos += line_len;
            if count <= 0 {
                return Ok(Found::Empty);
            }
            self.remaining = count as usize;
        }
        while self.remaining > 0 {
            if !self.next_argument(input)? {
                return Ok(Found::Incomplete);
            }
        }
        Ok(if self.oversize > 0 {
            Found::Oversize(self.oversize)
        } else {
            Found::Request
        })
    }

    /// Parses one argument; `false` if it is incomplete.
    fn next_argument(&mut self, input: &mut BytesMut) -> Result<bool, ProtocolError> {
        if self.skip > 0 {
            let now = self.skip.min(input.len());
            input.advance(now);
            self.skip -= now;
            if self.skip > 0 {
                return Ok(false);
            }
            self.remaining -= 1;
            return Ok(true);
        }
        let rest = &input[self.pos..];
        match rest.first() {
            None => return Ok(false),
            Some(b'$') => {}
            Some(other) => return Err(ProtocolError::ExpectedBulk(*other as char)),
        }
        let Some((len, line_len)) = length_line(rest).map_err(|()| ProtocolError::BulkLength)?
        else {
            return Ok(false);
        };
        if !(0..=BULK_LEN_BYTES_MAX as i64).contains(&len) {
            return Err(ProtocolError::BulkLength);
        }
        let len = len as usize;
        if self.is_untrusted && len > UNTRUSTED_BULK_LEN_BYTES_MAX {
            return Err(ProtocolError::UntrustedBulk);
        }
        if self.oversize > 0 || self.pos + len > REQUEST_LEN_BYTES_MAX {
            // From here on the request is only counted. What was kept of it is let go.
            self.oversize += self.pos + len;
            input.advance(self.pos + line_len);
            self.pos = 0;
            self.ranges.clear();
            self.skip = len + 2;
            return self.next_argument(input);
        }
        if rest.len() < line_len + len + 2 {
            return Ok(false);
        }
        if &rest[line_len + len..line_len + len + 2] != b"\r\n" {
            return Err(ProtocolError::BulkEnd);
        }
        match decode_range(rest) {
            Ok(Some((RangeFrame::BulkString((start, end)), used))) => {
                self.ranges.push((self.pos + start, self.pos + end));
                self.pos += used;
                self.remaining -= 1;
                Ok(true)
            }
            Ok(None) => Ok(false),
            _ => Err(ProtocolError::BulkLength),
        }
    }

    fn next_inline(&mut self, input: &mut BytesMut) -> Result<Found, ProtocolError> {
        let scanned = std::mem::take(&mut self.line_scanned);
        let unscanned = &input[scanned..input.len().min(INLINE_LEN_BYTES_MAX).max(scanned)];
        let Some(line_len) = unscanned
            .iter()
            .position(|b| *b == b'\n')
            .map(|at| scanned + at)
        else {
            if input.len() >= INLINE_LEN_BYTES_MAX {
                return Err(ProtocolError::InlineTooLong);
            }
            self.line_scanned = input.len();
            return Ok(Found::Incomplete);
        };
        let line = input[..line_len]
            .strip_suffix(b"\r")
            .unwrap_or(&input[..line_len]);
        self.inline.clear();
        self.ranges.clear();
        split_line(line, &mut self.inline, &mut self.ranges)?;
        self.pos = line_len + 1;
        self.is_inline = true;
        let Some((start, end)) = self.ranges.first() else {
            return Ok(Found::Empty);
        };
        let name = &self.inline[*start..*end];
        if name.eq_ignore_ascii_case(b"post") || name.eq_ignore_ascii_case(b"host:") {
            return Err(ProtocolError::Http);
        }
        Ok(Found::Request)
    }
}

/// Reads `?<number>\r\n`: the number and the length of the line. `Ok(None)`: not all there.
fn length_line(bytes: &[u8]) -> Result<Option<(i64, usize)>, ()> {
    let line = &bytes[..bytes.len().min(LENGTH_LINE_BYTES_MAX)];
    let Some(end) = line.iter().position(|b| *b == b'\r') else {
        return if line.len() == LENGTH_LINE_BYTES_MAX {
            Err(())
        } else {
            Ok(None)
        };
    };
    match bytes.get(end + 1) {
        None => return Ok(None),
        Some(b'\n') => {}
        Some(_) => return Err(()),
    }
    let digits = std::str::from_utf8(&line[1..end]).map_err(|_| ())?;
    if digits.starts_with('+') {
        return Err(());
    }
    Ok(Some((digits.parse().map_err(|_| ())?, end + 2)))
}

/// Splits a line into arguments with the quoting rules of Redis (`"a\x41\n"`, `'it\'s'`).
fn split_line(
    line: &[u8],
    out: &mut Vec<u8>,
    ranges: &mut Vec<(usize, usize)>,
) -> Result<(), ProtocolError> {
    let mut rest = line.iter().copied().peekable();
    loop {
        while rest.peek().is_some_and(u8::is_ascii_whitespace) {
            rest.next();
        }
        if rest.peek().is_none() {
            return Ok(());
        }
        let start = out.len();
        while let Some(byte) = rest.next_if(|b| !b.is_ascii_whitespace()) {
            match byte {
                b'"' | b'\'' => {
                    quoted(&mut rest, byte, out)?;
                    // A closing quote must be followed by a space or nothing.
                    if rest.peek().is_some_and(|b| !b.is_ascii_whitespace()) {
                        return Err(ProtocolError::UnbalancedQuotes);
                    }
                }
                other => out.push(other),
            }
        }
        ranges.push((start, out.len()));
    }
}

fn quoted(
    rest: &mut std::iter::Peekable<impl Iterator<Item = u8> + Clone>,
    quote: u8,
    out: &mut Vec<u8>,
) -> Result<(), ProtocolError> {
    loop {
        match rest.next().ok_or(ProtocolError::UnbalancedQuotes)? {
            byte if byte == quote => return Ok(()),
            b'\\' if quote == b'\'' => {
                out.push(if rest.next_if_eq(&b'\'').is_some() {
                    b'\''
                } else {
                    b'\\'
                });
            }
            b'\\' => {
                let escaped = rest.next().ok_or(ProtocolError::UnbalancedQuotes)?;
                let mut hex = rest.clone();
                let digit = |b: Option<u8>| b.and_then(|b| (b as char).to_digit(16));
                match (escaped, digit(hex.next()), digit(hex.next())) {
                    (b'x', Some(high), Some(low)) => {
                        out.push((high * 16 + low) as u8);
                        rest.next();
                        rest.next();
                    }
                    _ => out.push(match escaped {
                        b'n' => b'\n',
                        b'r' => b'\r',
                        b't' => b'\t',
                        b'b' => 8,
                        b'a' => 7,
                        other => other,
                    }),
                }
            }
            other => out.push(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Feed `bytes` in pieces of `piece_len`. Returns the requests found, and the error if there was one.
    fn requests(bytes: &[u8], piece_len: usize) -> (Vec<Vec<Vec<u8>>>, Option<ProtocolError>) {
        let (mut parser, mut input, mut found) =
            (RequestParser::default(), BytesMut::new(), Vec::new());
        for piece in bytes.chunks(piece_len) {
            input.extend_from_slice(piece);
            loop {
                match parser.next(&mut input) {
                    Err(error) => return (found, Some(error)),
                    Ok(Found::Incomplete) => break,
                    Ok(Found::Request) => {
                        found.push(parser.args(&input).from(0).map(<[u8]>::to_vec).collect());
                    }
                    Ok(Found::Oversize(len)) => found.push(vec![format!("over {len}").into()]),
                    Ok(Found::Empty) => {}
                }
                parser.consume(&mut input);
            }
            assert!(input.len() <= REQUEST_LEN_BYTES_MAX + piece_len + LENGTH_LINE_BYTES_MAX);
        }
        (found, None)
    }

    fn words(request: &[&str]) -> Vec<Vec<u8>> {
        request.iter().map(|w| w.as_bytes().to_vec()).collect()
    }

    #[test]
    fn requests_in_pieces_of_any_length() {
        let bytes =
            b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n*0\r\n*-1\r\nPING\r\n\r\nECHO \"a b\\x41\" 'c'\n\
            *3\r\n$3\r\nSET\r\n$0\r\n\r\n$4\r\n\r\n\r\n\r\n";
        let expected = vec![
            words(&["GET", "k"]),
            words(&["PING"]),
            words(&["ECHO", "a bA", "c"]),
            words(&["SET", "", "\r\n\r\n"]),
        ];
        for piece_len in 1..=bytes.len() {
            assert_eq!(
                requests(bytes, piece_len),
                (expected.clone(), None),
                "{piece_len}"
            );
        }
    }

    #[test]
    fn malformed_requests_are_told_apart() {
        use ProtocolError::*;
        let cases: Vec<(Vec<u8>, ProtocolError)> = vec![
            (b"*x\r\n".to_vec(), MultibulkLength),
            (b"*+1\r\n".to_vec(), MultibulkLength),
            (b"*1048577\r\n".to_vec(), MultibulkLength),
            (
                b"*99999999999999999999999999999999999\r\n".to_vec(),
                MultibulkLength,
            ),
            (b"*1\r\r".to_vec(), MultibulkLength),
            (b"*1\r\n*1\r\n".to_vec(), ExpectedBulk('*')),
            (b"*1\r\n:1\r\n".to_vec(), ExpectedBulk(':')),
            (b"*1\r\n$-1\r\n".to_vec(), BulkLength),
            (b"*1\r\n$536870913\r\n".to_vec(), BulkLength),
            (b"*1\r\n$1\r\nabc\r\n".to_vec(), BulkEnd),
            (b"SET a \"b\r\n".to_vec(), UnbalancedQuotes),
            (b"SET a \"b\"c\r\n".to_vec(), UnbalancedQuotes),
            (b"SET a 'b\r\n".to_vec(), UnbalancedQuotes),
            (vec![b'a'; INLINE_LEN_BYTES_MAX], InlineTooLong),
            (b"POST / HTTP/1.1\r\n".to_vec(), Http),
        ];
        for (bytes, error) in cases {
            for piece_len in [1, 7, bytes.len()] {
                let (_, got) = requests(&bytes, piece_len);
                assert_eq!(
                    got.as_ref(),
                    Some(&error),
                    "{:?}",
                    String::from_utf8_lossy(&bytes)
                );
            }
        }
    }

    #[test]
    fn over_long_requests_are_skipped_in_bounded_memory() {
        let len = REQUEST_LEN_BYTES_MAX * 3;
        let mut bytes = format!("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n${len}\r\n").into_bytes();
        bytes.extend(vec![b'v'; len]);
        let count = REQUEST_LEN_BYTES_MAX / 5;
        bytes.extend(format!("\r\nPING\r\n*{count}\r\n").into_bytes());
        for _ in 0..count {
            bytes.extend(b"$5\r\nabcde\r\n");
        }
        bytes.extend(b"PING\r\n");
        let (found, error) = requests(&bytes, 1000);
        assert_eq!(error, None);
        assert_eq!(found.len(), 4);
        assert!(found[0][0].starts_with(format!("over {}", len / 1000).as_bytes()));
        assert_eq!(found[1], words(&["PING"]));
        assert!(found[2][0].starts_with(b"over "));
        assert_eq!(found[3], words(&["PING"]));
    }
}
