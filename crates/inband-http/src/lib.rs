//! A small HTTP/1.1 server: one request per connection, then it is closed.
//!
//! It is for addresses that strangers may reach. tiny_http, which was used before, allocates what a request's
//! `Content-Length` says, waits without a time limit for a body, and stops accepting after the first failure. Here a
//! client can make the server hold one connection, a head of [`HEAD_LEN_MAX`] bytes and a body of the limit, for
//! [`REQUEST_TIMEOUT`]; further connections are answered with status 503.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// Longest head of a request.
pub const HEAD_LEN_MAX: usize = 8 << 10;
const HEADERS_MAX: usize = 64;
/// Time limit for a request to arrive.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Time limit for a client to take a part of the answer.
pub const WRITE_TIMEOUT: Duration = Duration::from_secs(5);
/// Wait after an accept that failed, for instance because no descriptor is free.
const ACCEPT_RETRY_INTERVAL: Duration = Duration::from_millis(50);
/// What is read and thrown away before a connection is closed, so that the client gets the answer instead of a reset.
const DRAINED_LEN_MAX: usize = 64 << 10;
const DRAIN_TIMEOUT: Duration = Duration::from_millis(200);

/// Bounds of a server.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Connections that are served at the same time.
    pub connections: usize,
    /// Longest body of a request.
    pub body_len: usize,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Request {
    pub method: String,
    /// Without the query.
    pub path: String,
    headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Request {
    /// Returns a header's value, if it has one that is text.
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self
            .headers
            .iter()
            .find(|(other, _)| other.eq_ignore_ascii_case(name));
        found.map(|(_, value)| &value[..])
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Response {
    pub status: u16,
    pub content_type: &'static str,
    /// Further headers.
    pub headers: &'static [(&'static str, &'static str)],
    pub body: Vec<u8>,
}

impl Response {
    pub fn new(status: u16, content_type: &'static str, body: impl Into<Vec<u8>>) -> Response {
        Response {
            status,
            content_type,
            headers: &[],
            body: body.into(),
        }
    }
}

/// What a handler makes of a request.
pub enum Answer {
    Whole(Response),
    /// Writes the answer, head included, and keeps the connection's place until it returns. Writes end with an error
    /// after [`WRITE_TIMEOUT`].
    Stream(Box<dyn FnOnce(&mut TcpStream) + Send>),
}

/// Serves on threads of its own, until `is_over` at the next connection, or the process ends. `handler` runs on several
/// threads at the same time.
pub fn serve(
    listener: TcpListener,
    name: &'static str,
    limits: Limits,
    is_over: impl Fn() -> bool + Send + 'static,
    handler: impl Fn(&Request) -> Answer + Send + Sync + 'static,
) -> io::Result<()> {
    let handler = Arc::new(handler);
    let served = Arc::new(AtomicUsize::new(0));
    let accept = move || loop {
        let accepted = listener.accept();
        if is_over() {
            return;
        }
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::debug!("{name}: {error}");
                thread::sleep(ACCEPT_RETRY_INTERVAL);
                continue;
            }
        };
        let Some(place) = Place::take(&served, limits.connections) else {
            refuse(stream);
            continue;
        };
        let handler = Arc::clone(&handler);
        let run = move || {
            let _place = place;
            if let Err(error) = answer(stream, limits, &*handler) {
                tracing::debug!("{name}: {error}");
            }
        };
        if let Err(error) = thread::Builder::new().name(name.into()).spawn(run) {
            tracing::warn!("{name}: {error}");
        }
    };
    thread::Builder::new().name(name.into()).spawn(accept)?;
    Ok(())
}

/// The place of a connection, given back when dropped.
struct Place(Arc<AtomicUsize>);

impl Place {
    fn take(served: &Arc<AtomicUsize>, max: usize) -> Option<Place> {
        let place = Place(Arc::clone(served));
        (served.fetch_add(1, Ordering::SeqCst) < max).then_some(place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Refuses a connection beyond the limit, without waiting for the client.
fn refuse(mut stream: TcpStream) {
    let response = Response::new(503, "text/plain", "too many requests at the same time\n");
    let _ = stream.set_nonblocking(true);
    let _ = stream.write_all(&bytes_of(&response, true));
}

fn answer(
    mut stream: TcpStream,
    limits: Limits,
    handler: &dyn Fn(&Request) -> Answer,
) -> io::Result<()> {
    stream.set_write_timeout(Some(WRITE_TIMEOUT))?;
    let (response, has_body) = match read(&mut stream, limits.body_len)? {
        Ok(request) => match handler(&request) {
            Answer::Whole(response) => (response, request.method != "HEAD"),
            Answer::Stream(write) => {
                write(&mut stream);
                return stream.shutdown(Shutdown::Both);
            }
        },
        Err((status, why)) => (
            Response::new(status, "text/plain", format!("{why}\n")),
            true,
        ),
    };
    stream.write_all(&bytes_of(&response, has_body))?;
    close(stream)
}

/// Closes a connection after the client has got the answer: unread bytes would reset it.
fn close(mut stream: TcpStream) -> io::Result<()> {
    stream.shutdown(Shutdown::Write)?;
    let deadline = Instant::now() + DRAIN_TIMEOUT;
    let (mut scratch, mut drained) = ([0; 4096], 0);
    while drained < DRAINED_LEN_MAX {
        match read_until(&mut stream, &mut scratch, deadline) {
            Ok(0) | Err(_) => break,
            Ok(len) => drained += len,
        }
    }
    Ok(())
}

/// Reads what is available. Fails at the deadline.
fn read_until(stream: &mut TcpStream, into: &mut [u8], deadline: Instant) -> io::Result<usize> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(ErrorKind::TimedOut.into());
    }
    stream.set_read_timeout(Some(left))?;
    stream.read(into)
}

/// Status and message for a request that is refused.
type Refusal = (u16, String);

/// Reads a request. The outer error: the client has gone, or was too slow.
fn read(stream: &mut TcpStream, body_len_max: usize) -> io::Result<Result<Request, Refusal>> {
    let deadline = Instant::now() + REQUEST_TIMEOUT;
    let mut bytes = Vec::new();
    let mut scratch = [0; 4096];
    let (mut request, head_len, body_len) = loop {
        match parse(&bytes, body_len_max) {
            Ok(Some(parsed)) => break parsed,
            Err(refusal) => return Ok(Err(refusal)),
            Ok(None) if bytes.len() >= HEAD_LEN_MAX => {
                return Ok(Err((
                    431,
                    format!("the head is longer than {HEAD_LEN_MAX} bytes"),
                )));
            }
            Ok(None) => match read_until(stream, &mut scratch, deadline)? {
                0 => return Err(ErrorKind::UnexpectedEof.into()),
                len => bytes.extend_from_slice(&scratch[..len]),
            },
        }
    };
    request.body = bytes.split_off(head_len);
    while request.body.len() < body_len {
        match read_until(stream, &mut scratch, deadline)? {
            0 => return Err(ErrorKind::UnexpectedEof.into()),
            len => request.body.extend_from_slice(&scratch[..len]),
        }
    }
    request.body.truncate(body_len);
    Ok(Ok(request))
}

/// Parses a head. Returns the request, the head's length and the body's; `None`: the head is incomplete.
fn parse(bytes: &[u8], body_len_max: usize) -> Result<Option<(Request, usize, usize)>, Refusal> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut head = httparse::Request::new(&mut headers);
    let status = head
        .parse(bytes)
        .map_err(|error| (400, format!("no HTTP request: {error}")))?;
    let httparse::Status::Complete(head_len) = status else {
        return Ok(None);
    };
    let path = head
        .path
        .unwrap_or_default()
        .split('?')
        .next()
        .unwrap_or_default();
    let headers = head.headers.iter().filter_map(|header| {
        Some((
            header.name.to_owned(),
            std::str::from_utf8(header.value).ok()?.to_owned(),
        ))
    });
    let request = Request {
        method: head.method.unwrap_or_default().into(),
        path: path.into(),
        headers: headers.collect(),
        body: Vec::new(),
    };
    if request.header("Transfer-Encoding").is_some() {
        return Err((501, "a body must have a Content-Length".into()));
    }
    let body_len = match request.header("Content-Length") {
        None => 0,
        Some(text) => text
            .parse::<u64>()
            .map_err(|_| (400, "Content-Length is not a number".to_owned()))?,
    };
    match usize::try_from(body_len) {
        Ok(body_len) if body_len <= body_len_max => Ok(Some((request, head_len, body_len))),
        _ => Err((
            413,
            format!("a body of {body_len} bytes; at most {body_len_max} are allowed"),
        )),
    }
}

fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        409 => "Conflict",
        413 => "Content Too Large",
        431 => "Request Header Fields Too Large",
        500 => "Internal Server Error",
        501 => "Not Implemented",
        503 => "Service Unavailable",
        _ => "",
    }
}

fn bytes_of(response: &Response, has_body: bool) -> Vec<u8> {
    let Response {
        status,
        content_type,
        headers,
        body,
    } = response;
    let mut text = format!(
        "HTTP/1.1 {status} {}\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\nConnection: close\r\n",
        reason(*status),
        body.len()
    );
    for (name, value) in *headers {
        text += &format!("{name}: {value}\r\n");
    }
    let mut bytes = (text + "\r\n").into_bytes();
    if has_body {
        bytes.extend_from_slice(body);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    const LIMITS: Limits = Limits {
        connections: 2,
        body_len: 16,
    };

    const REQUEST: &str = "GET / HTTP/1.1\r\n\r\n";

    /// A server that answers with what it was asked.
    fn start() -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("bound");
        let handler = |request: &Request| {
            let said = format!("{} {} {:?}", request.method, request.path, request.body);
            Answer::Whole(Response::new(200, "text/plain", said))
        };
        serve(listener, "http", LIMITS, || false, handler).expect("it serves");
        address
    }

    /// Asks again while earlier connections still have the places.
    fn ask(address: SocketAddr, request: &str) -> String {
        loop {
            let said = ask_or_nothing(address, request);
            if !said.is_empty() && !said.starts_with("HTTP/1.1 503 ") {
                return said;
            }
        }
    }

    #[test]
    fn a_request_and_its_answer() {
        let address = start();
        let said = ask(address, "GET /metrics?a=b HTTP/1.1\r\nHost: x\r\n\r\n");
        assert!(
            said.starts_with("HTTP/1.1 200 OK\r\n") && said.ends_with("\r\n\r\nGET /metrics []"),
            "{said}"
        );
        let said = ask(
            address,
            "POST / HTTP/1.1\r\ncontent-length: 2\r\n\r\nhi and more",
        );
        assert!(said.ends_with("POST / [104, 105]"), "{said}");
        assert!(ask(address, "HEAD / HTTP/1.1\r\n\r\n").ends_with("\r\n\r\n"));
    }

    /// Each of these stopped or ended a process that served with tiny_http.
    #[test]
    fn a_length_that_is_not_kept_harms_nobody() {
        let address = start();
        for (length, status) in [
            ("1000000000000000", "413"),
            ("18446744073709551615", "413"),
            ("18446744073709551616", "400"),
            ("-1", "400"),
            ("17", "413"),
        ] {
            let said = ask(
                address,
                &format!("GET / HTTP/1.1\r\nContent-Length: {length}\r\n\r\n"),
            );
            assert!(
                said.starts_with(&format!("HTTP/1.1 {status} ")),
                "{length}: {said}"
            );
        }
        let said = ask(
            address,
            "GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n",
        );
        assert!(said.starts_with("HTTP/1.1 501 "), "{said}");
        let said = ask(
            address,
            &format!("GET / HTTP/1.1\r\nX: {}", "x".repeat(HEAD_LEN_MAX)),
        );
        assert!(said.starts_with("HTTP/1.1 431 "), "{said}");
        assert!(ask(address, "nonsense\r\n\r\n").starts_with("HTTP/1.1 400 "));
        assert!(ask(address, "GET / HTTP/1.1\r\n\r\n").ends_with("GET / []"));
    }

    #[test]
    fn clients_that_send_nothing_keep_their_places_for_a_while_only() {
        let address = start();
        let silent: Vec<_> = (0..LIMITS.connections)
            .map(|_| TcpStream::connect(address).expect("accepted"))
            .collect();
        let refused = loop {
            let said = ask_or_nothing(address, REQUEST);
            if said.starts_with("HTTP/1.1 503 ") {
                break said;
            }
        };
        assert!(refused.contains("too many"), "{refused}");
        drop(silent);
        while !ask_or_nothing(address, REQUEST).ends_with("GET / []") {}
    }

    /// A connection that is refused may be reset before it has sent its request.
    /// A connection that is refused may be reset before its answer is read.
    fn ask_or_nothing(address: SocketAddr, request: &str) -> String {
        let mut stream = TcpStream::connect(address).expect("it listens");
        let mut said = String::new();
        let _ = stream.write_all(request.as_bytes());
        let _ = stream.read_to_string(&mut said);
        said
    }
}
