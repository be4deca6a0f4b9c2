//! A load over memcached's UDP protocol. Each client has one request in flight; requests and replies are one datagram
//! each.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::{ensure, Result};
use hdrhistogram::Histogram;
use inband_box::memcached::udp::{DATAGRAM_BYTES_MAX, HEADER_BYTES};
use mio::net::UdpSocket;
use mio::{Events, Interest, Poll, Token};

use super::memcached::Memcached;
use crate::load::{Operation, Protocol};
use crate::stats::Distribution;

/// Timeout after which a request is retransmitted.
const RESEND_AFTER: Duration = Duration::from_millis(200);
const EVENTS_MAX: usize = 256;

/// The parameters of a load.
#[derive(Debug, Clone, Copy)]
pub struct UdpLoad {
    pub address: SocketAddr,
    /// Requests in flight, each on its own socket.
    pub clients: usize,
    pub operation: Operation,
    pub value_len_bytes: usize,
    pub keys: u64,
}

/// The results of the measured time.
#[derive(Debug, Clone)]
pub struct UdpReport {
    pub per_s: f64,
    pub latency: Distribution,
    pub errors: usize,
    pub resent: usize,
}

struct Client {
    socket: UdpSocket,
    request: u16,
    sent: Instant,
}

impl UdpLoad {
    /// Sends for this long, and counts what is answered after the warm-up.
    pub fn run(&self, warm_up: Duration, duration: Duration) -> Result<UdpReport> {
        let mut poll = Poll::new()?;
        let mut clients = Vec::new();
        for number in 0..self.clients {
            let mut socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0).into())?;
            socket.connect(self.address)?;
            let registry = poll.registry();
            registry.register(&mut socket, Token(number), Interest::READABLE)?;
            clients.push(Client {
                socket,
                request: 0,
                sent: Instant::now(),
            });
        }
        let mut random = 0x9e37_79b9_7f4a_7c15;
        for client in &mut clients {
            self.send(client, &mut random)?;
        }
        let (started, end) = (Instant::now(), warm_up + duration);
        let mut latency_ns = Histogram::<u64>::new_with_bounds(1, 60_000_000_000, 3)?;
        let (mut good, mut errors, mut resent) = (0, 0, 0);
        let mut events = Events::with_capacity(EVENTS_MAX);
        let mut buffer = [0; DATAGRAM_BYTES_MAX + 1];
        let mut looked = started;
        while started.elapsed() < end {
            match poll.poll(&mut events, Some(RESEND_AFTER)) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                other => other?,
            }
            for event in &events {
                let client = &mut clients[event.token().0];
                loop {
                    let len = match client.socket.recv(&mut buffer) {
                        Ok(len) => len,
                        Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                        Err(error) => return Err(error.into()),
                    };
                    let request = client.request.to_be_bytes();
                    if len < HEADER_BYTES || buffer[..2] != request {
                        continue; // the reply to an earlier transmission
                    }
                    let answers = Memcached.answers(&buffer[HEADER_BYTES..len])?;
                    let now = started.elapsed();
                    if (warm_up..end).contains(&now) {
                        good += answers.good;
                        errors += answers.errors;
                        latency_ns.saturating_record(client.sent.elapsed().as_nanos() as u64);
                    }
                    self.send(client, &mut random)?;
                }
            }
            if looked.elapsed() >= RESEND_AFTER {
                looked = Instant::now();
                let late = |client: &&mut Client| client.sent.elapsed() >= RESEND_AFTER;
                for client in clients.iter_mut().filter(late) {
                    resent += usize::from(started.elapsed() >= warm_up);
                    self.send(client, &mut random)?;
                }
            }
        }
        ensure!(good > 0, "{} does not answer over UDP", self.address);
        Ok(UdpReport {
            per_s: good as f64 / duration.as_secs_f64(),
            latency: Distribution::of(&latency_ns),
            errors,
            resent,
        })
    }

    fn send(&self, client: &mut Client, random: &mut u64) -> Result<()> {
        *random ^= *random << 13;
        *random ^= *random >> 7;
        *random ^= *random << 17;
        client.request = client.request.wrapping_add(1);
        let mut datagram = client.request.to_be_bytes().to_vec();
        datagram.extend_from_slice(&[0, 0, 0, 1, 0, 0]);
        let key = *random % self.keys;
        Memcached.command(&mut datagram, self.operation, key, self.value_len_bytes);
        client.sent = Instant::now();
        match client.socket.send(&datagram) {
            // It will be retransmitted.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            other => Ok(other.map(drop)?),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_loaded_and_lost_requests_are_sent_again() {
        let server = std::net::UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let address = server.local_addr().expect("an address");
        let limit = Some(Duration::from_secs(2));
        server.set_read_timeout(limit).expect("set");
        let thread = std::thread::spawn(move || {
            let (mut buffer, mut count) = ([0; 64], 0);
            while let Ok((_, from)) = server.recv_from(&mut buffer) {
                count += 1;
                if count == 3 {
                    continue; // lost
                }
                let mut reply = buffer[..HEADER_BYTES].to_vec();
                reply.extend_from_slice(b"STORED\r\n");
                server.send_to(&reply, from).expect("sent");
            }
        });
        let load = UdpLoad {
            address,
            clients: 1,
            operation: Operation::Set,
            value_len_bytes: 5,
            keys: 10,
        };
        let report = load.run(Duration::ZERO, Duration::from_millis(1500));
        let report = report.expect("a run");
        assert!(report.per_s > 0.0 && report.errors == 0, "{report:?}");
        assert!(report.resent >= 1, "{report:?}");
        thread.join().expect("it ends");
    }
}
