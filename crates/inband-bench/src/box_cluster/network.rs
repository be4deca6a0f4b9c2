//! A load of datagrams, from clients on a host of their own in a network of namespaces, so that ours and memcached are
//! reached the same way.

use std::net::{SocketAddrV4, UdpSocket};
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{ensure, Result};
use inband_box::memcached::udp::HEADER_BYTES;
use inband_ground::socket::{wait_readable, HostSocket};
use inband_ground::wire::PACKET_LEN_MAX_BYTES;
use inband_lab::{Lab, LabSpec};

use super::memcached::Memcached;
use super::Run;
use crate::load::{Operation, Protocol};

/// The port of memcached and of ours.
pub(super) const CLIENTS_PORT: u16 = 11211;
/// The clients' threads; the better number counts, for each system by itself.
pub(super) const THREADS: [usize; 2] = [1, 2];
pub(super) const KEYS: u64 = 1_000;
const WARM_UP: Duration = Duration::from_millis(200);
const DURATION: Duration = Duration::from_secs(1);
const DURATION_QUICK: Duration = Duration::from_millis(200);
/// Requests without a reply are lost, and sent again, after this time.
pub(super) const LOST_AFTER: Duration = Duration::from_millis(100);
const READY_LIMIT: Duration = Duration::from_secs(10);

/// Returns the time of one measurement.
pub(super) fn duration(run: &Run<'_>) -> Duration {
    run.quick(DURATION_QUICK, DURATION)
}

pub(super) fn request(
    number: u16,
    operation: Operation,
    key: u64,
    value_len_bytes: usize,
) -> Vec<u8> {
    let mut datagram = number.to_be_bytes().to_vec();
    datagram.extend_from_slice(&[0, 0, 0, 1, 0, 0]);
    Memcached.command(&mut datagram, operation, key, value_len_bytes);
    datagram
}

/// Returns the requests of a load, one for each key.
pub(super) fn requests(operation: Operation, value_len_bytes: usize) -> Vec<Vec<u8>> {
    let keys = 0..KEYS;
    keys.map(|key| request(0, operation, key, value_len_bytes))
        .collect()
}

/// What the clients got in the measured time.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Got {
    pub good: u64,
    pub errors: u64,
    pub lost: u64,
}

/// What clients ask.
#[derive(Debug, Clone, Copy)]
pub(super) struct Load<'a> {
    /// One of them at a time, at random.
    pub requests: &'a [Vec<u8>],
    /// How a good reply begins.
    pub good: &'static [u8],
    pub to: SocketAddrV4,
}

/// One thread of clients, with this many requests in flight.
fn client(
    socket: &HostSocket,
    load: Load<'_>,
    in_flight: usize,
    duration: Duration,
    seed: u64,
) -> Result<Got> {
    let mut random = seed;
    let mut next_key = || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random as usize % load.requests.len()
    };
    let mut waits = vec![false; 1 << 16];
    let (mut number, mut waiting) = (0_u16, 0);
    let mut got = Got::default();
    let mut datagram = Vec::new();
    let mut buffer = [0; PACKET_LEN_MAX_BYTES + 1];
    let started = Instant::now();
    let mut progressed = started;
    loop {
        while waiting < in_flight {
            number = number.wrapping_add(1);
            waits[usize::from(number)] = true;
            datagram.clone_from(&load.requests[next_key()]);
            datagram[..2].copy_from_slice(&number.to_be_bytes());
            socket.queue(&datagram, load.to);
            waiting += 1;
        }
        socket.flush();
        let now = Instant::now();
        let elapsed = now - started;
        if elapsed >= WARM_UP + duration {
            return Ok(got);
        }
        let counts = u64::from(elapsed >= WARM_UP);
        let before = waiting;
        while let Some((len, from)) = socket.receive(&mut buffer)? {
            let id = usize::from(u16::from_be_bytes([buffer[0], buffer[1]]));
            if from != load.to || len <= HEADER_BYTES || !std::mem::take(&mut waits[id]) {
                continue;
            }
            waiting -= 1;
            match buffer[HEADER_BYTES..len].starts_with(load.good) {
                true => got.good += counts,
                false => got.errors += counts,
            }
        }
        if waiting < before {
            progressed = now;
        } else if now - progressed >= LOST_AFTER {
            got.lost += waiting as u64;
            waits.fill(false);
            (waiting, progressed) = (0, now);
        } else {
            wait_readable([socket.fd()], LOST_AFTER);
        }
    }
}

/// A network of namespaces, with our nodes, memcached, and the clients.
pub(super) struct Network {
    lab: Lab,
    _pass: Vec<inband_lab::PassProgram>,
}

impl Network {
    /// Creates it, with so many nodes, called node/1 and so on. `name` is unique on this machine.
    pub fn start(name: &str, nodes: usize) -> Result<Network> {
        let nodes = (1..=nodes).map(|node| format!("node/{node}"));
        let others = ["memcached", "clients"].map(str::to_owned);
        let lab = Lab::create(&LabSpec {
            name: format!("{name}{}", std::process::id()),
            hosts: nodes.chain(others).collect(),
            seed: 1,
        })?;
        let passes = ["memcached", "clients"].map(|host| Ok(lab.host(host)?.attach_pass()?));
        let _pass = passes.into_iter().collect::<Result<_>>()?;
        Ok(Network { lab, _pass })
    }

    pub fn address(&self, host: &str, port: u16) -> Result<SocketAddrV4> {
        Ok(SocketAddrV4::new(self.lab.host(host)?.address(), port))
    }

    /// Runs `f` in the namespace of a host, on a thread of its own.
    pub fn on<T: Send>(&self, host: &str, f: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        let host = self.lab.host(host)?;
        thread::scope(|scope| {
            let there = scope.spawn(|| {
                host.namespace().enter()?;
                f()
            });
            there.join().expect("it does not panic")
        })
    }

    /// Returns the replies per second that so many threads of clients get.
    pub fn rate(&self, load: Load<'_>, threads: usize, run: &Run<'_>) -> Result<(f64, Got)> {
        let duration = duration(run);
        let from = self.address("clients", 0)?;
        let in_flight = run.args.clients.div_ceil(threads);
        let ready = Barrier::new(threads);
        let gots = thread::scope(|scope| {
            let clients = (0..threads).map(|thread| {
                let ready = &ready;
                scope.spawn(move || {
                    let socket = self.on("clients", || Ok(HostSocket::bind(from)?));
                    ready.wait();
                    client(
                        &socket?,
                        load,
                        in_flight,
                        duration,
                        0x9e37_79b9 + thread as u64,
                    )
                })
            });
            let clients: Vec<_> = clients.collect();
            let gots = clients
                .into_iter()
                .map(|client| client.join().expect("it does not panic"));
            gots.collect::<Result<Vec<_>>>()
        })?;
        let all = gots.iter().fold(Got::default(), |all, got| Got {
            good: all.good + got.good,
            errors: all.errors + got.errors,
            lost: all.lost + got.lost,
        });
        ensure!(all.errors == 0, "{} replies were errors", all.errors);
        ensure!(all.good > 0, "{} does not answer", load.to);
        Ok((all.good as f64 / duration.as_secs_f64(), all))
    }
}

/// Sets all keys of a server over UDP.
pub(super) fn fill_over_udp(
    socket: &UdpSocket,
    to: SocketAddrV4,
    value_len_bytes: usize,
) -> Result<()> {
    let deadline = Instant::now() + READY_LIMIT;
    for key in 0..KEYS {
        loop {
            let datagram = request(key as u16, Operation::Set, key, value_len_bytes);
            let mut reply = [0; 64];
            let sent = socket.send_to(&datagram, to);
            if let Ok(len) = sent.and_then(|_| socket.recv(&mut reply)) {
                if reply[..2] == datagram[..2] && reply[HEADER_BYTES..len] == *b"STORED\r\n" {
                    break;
                }
            }
            ensure!(Instant::now() < deadline, "{to} does not store");
        }
    }
    Ok(())
}
