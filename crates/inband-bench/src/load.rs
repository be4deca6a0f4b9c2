//! A load generator: many connections with several commands in flight each, in one thread, for any protocol in which a
//! server answers in order. Unlike redis-benchmark it warms up before measuring, counts per time interval, and has
//! nanosecond resolution.

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context, Result};
use hdrhistogram::Histogram;
use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};

use super::stats::{Buckets, Distribution};

/// How long a server may be silent with a command in flight.
const SILENCE_MAX: Duration = Duration::from_secs(20);
const CONNECT_LIMIT: Duration = Duration::from_secs(5);
const READ_LEN_BYTES: usize = 64 << 10;
const EVENTS_MAX: usize = 256;
const BUCKET: Duration = Duration::from_millis(50);

/// The command to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// SET of a random key.
    Set,
    /// GET of a random key.
    Get,
}

pub trait Protocol: std::fmt::Debug {
    /// Opens a connection that is ready for commands.
    fn connect(&self, address: SocketAddr) -> Result<std::net::TcpStream>;

    /// Appends a command. Keys are numbers; all protocols should send them as `key:%012d`.
    fn command(&self, to: &mut Vec<u8>, operation: Operation, key: u64, value_len_bytes: usize);

    /// Parses the complete answers at the start of `bytes`.
    fn answers(&self, bytes: &[u8]) -> Result<Answers>;
}

/// The parameters of a load.
#[derive(Debug, Clone)]
pub struct Load<'a> {
    pub protocol: &'a dyn Protocol,
    /// Connections are spread over these addresses.
    pub addresses: &'a [SocketAddr],
    pub connections: usize,
    /// Commands per batch on each connection; the next batch is sent when all answers have arrived.
    pub pipeline: usize,
    /// Percentage of commands that are SETs, chosen at random.
    pub sets_percent: u64,
    pub value_len_bytes: usize,
    /// Number of different keys.
    pub keys: u64,
    /// Busy-poll the sockets instead of sleeping until they are readable.
    pub spins: bool,
}

/// The parameters of a load on a RESP server.
#[derive(Debug, Clone)]
pub struct RespLoad {
    pub address: SocketAddr,
    pub connections: usize,
    /// Commands per batch on each connection; the next batch is sent when all answers have arrived.
    pub pipeline: usize,
    pub operation: Operation,
    pub value_len_bytes: usize,
    /// Number of different keys.
    pub keys: u64,
    /// Sent first on each connection; the answer must not be an error.
    pub first: Option<&'static [&'static str]>,
    /// Busy-poll the sockets instead of sleeping until they are readable.
    pub spins: bool,
}

/// The results of a load.
#[derive(Debug, Clone)]
pub struct LoadReport {
    /// Successful answers per second in the counted time.
    pub per_s: f64,
    /// From sending a batch to its last answer.
    pub latency: Distribution,
    /// Successful answers since the start of the counted time.
    pub buckets: Buckets,
    /// When the counted time began.
    pub counted_from: Instant,
    pub errors: u64,
}

impl RespLoad {
    /// SETs of 64 B values with 100,000 keys, one at a time.
    pub fn sets(address: SocketAddr) -> RespLoad {
        RespLoad {
            address,
            connections: 1,
            pipeline: 1,
            operation: Operation::Set,
            value_len_bytes: 64,
            keys: 100_000,
            first: None,
            spins: false,
        }
    }

    /// Sends for this long, and counts what is answered after the warm-up.
    pub fn run(&self, warm_up: Duration, duration: Duration) -> Result<LoadReport> {
        let protocol = Resp { first: self.first };
        let load = Load {
            protocol: &protocol,
            addresses: &[self.address],
            connections: self.connections,
            pipeline: self.pipeline,
            sets_percent: match self.operation {
                Operation::Set => 100,
                Operation::Get => 0,
            },
            value_len_bytes: self.value_len_bytes,
            keys: self.keys,
            spins: self.spins,
        };
        load.run(warm_up, duration)
    }
}

impl Load<'_> {
    /// Sends for this long, and counts what is answered after the warm-up.
    pub fn run(&self, warm_up: Duration, duration: Duration) -> Result<LoadReport> {
        let some = [self.connections, self.pipeline, self.addresses.len()];
        ensure!(!some.contains(&0) && self.keys >= 1, "no load: {self:?}");
        let mut poll = Poll::new()?;
        let mut connections = (0..self.connections)
            .map(|number| self.connect(&poll, number))
            .collect::<Result<Vec<_>>>()?;
        let mut run = Run {
            load: self,
            started: Instant::now(),
            warm_up,
            end: warm_up + duration,
            latency_ns: Histogram::new_with_bounds(1, 60_000_000_000, 3)?,
            buckets: Buckets::new(BUCKET),
            good: 0,
            errors: 0,
            random: 0x9e37_79b9_7f4a_7c15,
            scratch: vec![0; READ_LEN_BYTES],
        };
        for connection in &mut connections {
            run.send(connection)?;
        }
        let mut events = Events::with_capacity(EVENTS_MAX);
        let mut heard = Instant::now();
        while run.started.elapsed() < run.end {
            let timeout = if self.spins { Duration::ZERO } else { BUCKET };
            match poll.poll(&mut events, Some(timeout)) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                other => other?,
            }
            for event in &events {
                run.handle(&mut connections[event.token().0])?;
                heard = Instant::now();
            }
            ensure!(
                heard.elapsed() < SILENCE_MAX,
                "{} has been silent for {SILENCE_MAX:?}",
                self.addresses[0]
            );
        }
        Ok(LoadReport {
            per_s: run.good as f64 / duration.as_secs_f64(),
            latency: Distribution::of(&run.latency_ns),
            buckets: run.buckets,
            counted_from: run.started + warm_up,
            errors: run.errors,
        })
    }

    fn connect(&self, poll: &Poll, number: usize) -> Result<Connection> {
        let address = self.addresses[number % self.addresses.len()];
        let stream = self.protocol.connect(address)?;
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        let mut stream = TcpStream::from_std(stream);
        let interest = Interest::READABLE | Interest::WRITABLE;
        poll.registry()
            .register(&mut stream, Token(number), interest)?;
        Ok(Connection {
            stream,
            to_send: Vec::new(),
            received: Vec::new(),
            outstanding: 0,
            sent: Instant::now(),
        })
    }
}

#[derive(Debug)]
struct Resp {
    first: Option<&'static [&'static str]>,
}

impl Protocol for Resp {
    fn connect(&self, address: SocketAddr) -> Result<std::net::TcpStream> {
        let mut client = inband_cluster::client::Client::connect(address, CONNECT_LIMIT)?;
        if let Some(first) = self.first {
            let reply = client.call(first)?;
            ensure!(!reply.starts_with('-'), "{first:?} was answered {reply:?}");
        }
        client.into_stream()
    }

    fn command(&self, to: &mut Vec<u8>, operation: Operation, key: u64, value_len_bytes: usize) {
        let key = format!("key:{key:012}");
        let head = match operation {
            Operation::Set => format!(
                "*3\r\n$3\r\nSET\r\n${}\r\n{key}\r\n${value_len_bytes}\r\n",
                key.len()
            ),
            Operation::Get => format!("*2\r\n$3\r\nGET\r\n${}\r\n{key}\r\n", key.len()),
        };
        to.extend_from_slice(head.as_bytes());
        if operation == Operation::Set {
            to.resize(to.len() + value_len_bytes, b'x');
            to.extend_from_slice(b"\r\n");
        }
    }

    fn answers(&self, bytes: &[u8]) -> Result<Answers> {
        answers(bytes)
    }
}

struct Connection {
    stream: TcpStream,
    to_send: Vec<u8>,
    received: Vec<u8>,
    outstanding: usize,
    sent: Instant,
}

struct Run<'a> {
    load: &'a Load<'a>,
    started: Instant,
    warm_up: Duration,
    end: Duration,
    latency_ns: Histogram<u64>,
    buckets: Buckets,
    good: u64,
    errors: u64,
    random: u64,
    scratch: Vec<u8>,
}

impl Run<'_> {
    fn send(&mut self, to: &mut Connection) -> Result<()> {
        let value_len_bytes = self.load.value_len_bytes;
        for _ in 0..self.load.pipeline {
            self.random ^= self.random << 13;
            self.random ^= self.random >> 7;
            self.random ^= self.random << 17;
            let key = self.random % self.load.keys;
            let operation = match (self.random >> 32) % 100 < self.load.sets_percent {
                true => Operation::Set,
                false => Operation::Get,
            };
            let protocol = self.load.protocol;
            protocol.command(&mut to.to_send, operation, key, value_len_bytes);
        }
        to.outstanding = self.load.pipeline;
        to.sent = Instant::now();
        flush(to)
    }

    fn handle(&mut self, from: &mut Connection) -> Result<()> {
        flush(from)?;
        loop {
            match from.stream.read(&mut self.scratch) {
                Ok(0) => bail!("a server closed a connection"),
                Ok(len) => from.received.extend_from_slice(&self.scratch[..len]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error).context("reading answers"),
            }
            self.take(from)?;
        }
    }

    fn take(&mut self, from: &mut Connection) -> Result<()> {
        let answers = self.load.protocol.answers(&from.received)?;
        from.received.drain(..answers.len_bytes);
        from.outstanding = from
            .outstanding
            .checked_sub(answers.good + answers.errors)
            .context("more answers than commands")?;
        let now = self.started.elapsed();
        if (self.warm_up..self.end).contains(&now) {
            self.good += answers.good as u64;
            self.errors += answers.errors as u64;
            self.buckets.add(now - self.warm_up, answers.good as u64);
        }
        if from.outstanding == 0 {
            if now >= self.warm_up {
                let waited_ns = from.sent.elapsed().as_nanos() as u64;
                self.latency_ns.saturating_record(waited_ns);
            }
            self.send(from)?;
        }
        Ok(())
    }
}

fn flush(to: &mut Connection) -> Result<()> {
    while !to.to_send.is_empty() {
        match to.stream.write(&to.to_send) {
            Ok(sent) => drop(to.to_send.drain(..sent)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error).context("sending commands"),
        }
    }
    Ok(())
}

#[derive(Debug, Default, PartialEq, Eq)]
pub struct Answers {
    pub good: usize,
    pub errors: usize,
    /// Bytes of all of them.
    pub len_bytes: usize,
}

/// Parses the complete answers at the start of `bytes`: lines, and strings with a length.
fn answers(bytes: &[u8]) -> Result<Answers> {
    let mut found = Answers::default();
    loop {
        let rest = &bytes[found.len_bytes..];
        let Some(end) = rest.windows(2).position(|pair| pair == b"\r\n") else {
            return Ok(found);
        };
        let mut len_bytes = end + 2;
        match rest[0] {
            b'$' => {
                let length = std::str::from_utf8(&rest[1..end])?.parse::<i64>()?;
                if let Ok(length) = usize::try_from(length) {
                    len_bytes += length + 2;
                }
                if rest.len() < len_bytes {
                    return Ok(found);
                }
                found.good += 1;
            }
            b'+' | b':' => found.good += 1,
            b'-' => found.errors += 1,
            other => bail!("an answer begins with {:?}", char::from(other)),
        }
        found.len_bytes += len_bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_counted_when_they_are_whole() {
        let text = b"+OK\r\n$3\r\na\r\n\r\n$-1\r\n-ERR no\r\n:7\r\n$5\r\nhel";
        let expected = Answers {
            good: 4,
            errors: 1,
            len_bytes: text.len() - 7,
        };
        assert_eq!(answers(text).expect("good answers"), expected);
        for cut in 0..text.len() {
            let part = answers(&text[..cut]).expect("a part of good answers");
            assert!(part.len_bytes <= cut);
        }
        assert!(answers(b"?\r\n").is_err());
    }

    #[test]
    fn a_server_is_loaded_and_its_errors_are_counted() {
        use std::io::{BufRead, BufReader};
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let address = listener.local_addr().expect("its address");
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a client");
            let mut lines = BufReader::new(stream.try_clone().expect("a copy")).lines();
            let mut count = 0;
            // Refuses every third SET, after reading its seven lines.
            while (0..7).all(|_| matches!(lines.next(), Some(Ok(_)))) {
                count += 1;
                let answer = if count % 3 == 0 { "-ERR no" } else { "+OK" };
                if write!(stream, "{answer}\r\n").is_err() {
                    break;
                }
            }
        });
        let mut load = RespLoad::sets(address);
        load.pipeline = 4;
        let ms = Duration::from_millis;
        let report = load.run(ms(10), ms(200)).expect("a run");
        assert!(report.per_s > 0.0 && report.errors > 0 && report.latency.samples > 0);
        let counted: f64 = report.buckets.rates(ms(200)).iter().map(|r| r[1]).sum();
        assert!((counted / 4.0 - report.per_s).abs() < report.per_s * 0.05 + 1.0);
        server.join().expect("the server ends with its client");
    }
}
