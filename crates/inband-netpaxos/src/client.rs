//! A proposer that runs over a socket.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};
use inband_ground::auth::Gate;
use inband_ground::socket::HostSocket;
use inband_ground::wire::PACKET_LEN_MAX_BYTES;
use inband_host::namespace::enter;
use inband_host::wait::wait;

use crate::cluster::Cluster;
use crate::proposer::{Out, Outcome, Proposer};
use crate::wire::{log_id_of, packed, set_log_id};

/// A client of a cluster, with its own session.
pub struct Client {
    socket: HostSocket,
    gate: Gate,
    log_id: u64,
    serializers: Vec<SocketAddrV4>,
    proposer: Proposer,
    started: Instant,
}

impl Client {
    /// Opens a session. If the cluster has its own network, the calling thread is moved into it for good.
    pub fn connect(cluster: &Cluster, timeout: Duration) -> Result<Client> {
        ensure!(
            cluster.resp.is_empty(),
            "the log is a store's: use a Redis client, `redis-cli -p {}`; `inband up netpaxos --log-only` starts a log alone",
            cluster.resp[0].port()
        );
        let address = match &cluster.client {
            Some((address, namespace)) => {
                enter(namespace)?;
                *address
            }
            None => route_to(cluster.serializers[0])?,
        };
        let socket = HostSocket::bind(SocketAddrV4::new(address, 0))?;
        let reply_to = packed(socket.local_address()?);
        let mut client = Client {
            gate: cluster.gate()?,
            log_id: cluster.log_id,
            serializers: cluster.serializers.clone(),
            proposer: Proposer::new(cluster.serializers.len(), reply_to, rand::random()),
            socket,
            started: Instant::now(),
        };
        let until = client.now() + timeout.as_nanos() as u64;
        client.run(until, |proposer| proposer.is_ready())?;
        ensure!(
            client.proposer.is_ready(),
            "no answer within {} ms, and nothing was submitted: do a serializer, a quorum of storage servers and a learner run, with the same cluster.json and key?",
            timeout.as_millis()
        );
        Ok(client)
    }

    fn now(&self) -> u64 {
        self.started.elapsed().as_nanos() as u64 + 1
    }

    /// Signs packets, and sends them with the next flush.
    fn queue(&self, out: Out) {
        for (serializer, mut packet) in out {
            set_log_id(&mut packet, self.log_id);
            self.gate.sign(&mut packet);
            self.socket.queue(&packet, self.serializers[serializer]);
        }
    }

    /// Runs until this time, or until `done` holds.
    fn run(&mut self, until: u64, done: impl Fn(&Proposer) -> bool) -> Result<()> {
        let mut buffer = [0; PACKET_LEN_MAX_BYTES + 1];
        self.socket.flush();
        while !done(&self.proposer) && self.now() < until {
            if self.proposer.has_expired() {
                self.proposer.renew(rand::random());
            }
            let mut out = Out::new();
            self.proposer.tick(self.now(), &mut out);
            self.queue(out);
            self.socket.flush();
            let due = self.proposer.due().min(until);
            let left = Duration::from_nanos(due.saturating_sub(self.now()));
            wait(&[self.socket.fd()], self.socket.sleep_time(left));
            let now = self.now();
            self.socket
                .receive_some(&mut buffer, |buffer, len_bytes, _| {
                    let packet = &buffer[..len_bytes.min(PACKET_LEN_MAX_BYTES)];
                    if self.gate.admits(packet) && log_id_of(packet) == Some(self.log_id) {
                        self.proposer.on_packet(now, packet);
                    }
                })?;
        }
        Ok(())
    }

    /// Returns the serializer that requests go to, from 0.
    pub fn serializer(&self) -> usize {
        self.proposer.serializer()
    }

    /// Returns whether a value may be submitted. If not, too many requests are in flight.
    pub fn is_ready(&self) -> bool {
        self.proposer.is_ready()
    }

    /// Submits a value without waiting. It leaves with the next [`Client::poll`] or [`Client::flush`], in one system call
    /// with what else was submitted until then. Returns its number, for which [`Client::poll`] reports the outcome within
    /// the timeout.
    ///
    /// # Panics
    /// If it is not [`Client::is_ready`].
    pub fn submit(&mut self, value: &[u8], timeout: Duration) -> u64 {
        let now = self.now();
        let mut out = Out::new();
        let deadline = now + timeout.as_nanos() as u64;
        let number = self.proposer.submit(now, value, deadline, &mut out);
        self.queue(out);
        number
    }

    /// Sends what was submitted.
    pub fn flush(&self) {
        self.socket.flush();
    }

    /// Returns completed requests; waits at most this long for the first one.
    pub fn poll(&mut self, limit: Duration) -> Result<Vec<(u64, Outcome)>> {
        let until = self.now() + limit.as_nanos() as u64;
        self.run(until, Proposer::has_done)?;
        Ok(self.proposer.take_done())
    }

    /// Submits values, with as many in flight as the window allows, and returns their outcomes in order.
    pub fn submit_all<'a>(
        &mut self,
        values: impl IntoIterator<Item = &'a [u8]>,
        timeout: Duration,
    ) -> Result<Vec<Outcome>> {
        let started = Instant::now();
        let until = self.now() + timeout.as_nanos() as u64;
        let mut numbers = Vec::new();
        for value in values {
            self.run(until, Proposer::is_ready)?;
            let left = timeout.saturating_sub(started.elapsed());
            numbers.push(self.is_ready().then(|| self.submit(value, left)));
        }
        self.run(until, |proposer| proposer.outstanding() == 0)?;
        let done: std::collections::BTreeMap<u64, Outcome> =
            self.proposer.take_done().into_iter().collect();
        let outcome = |number: Option<u64>| number.and_then(|number| done.get(&number).copied());
        let outcomes = numbers.into_iter().map(outcome);
        Ok(outcomes
            .map(|outcome| outcome.unwrap_or(Outcome::Unknown))
            .collect())
    }
}

/// Returns the address of this machine that packets to another one carry.
fn route_to(address: SocketAddrV4) -> Result<Ipv4Addr> {
    let socket = std::net::UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    socket
        .connect(address)
        .with_context(|| format!("there is no route to {address}"))?;
    match socket.local_addr()? {
        std::net::SocketAddr::V4(own) => Ok(*own.ip()),
        std::net::SocketAddr::V6(own) => anyhow::bail!("{own} is not an IPv4 address"),
    }
}
