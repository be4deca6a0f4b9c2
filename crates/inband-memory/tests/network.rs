//! A switch and three servers as programs on interfaces, and a client that uses a socket, across network namespaces.
#![allow(missing_docs)]

use crate::common;
use std::net::{SocketAddr, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::with_and_without_keys;
use crate::net::{address, Net, PORT, TIMEOUT};
use inband_ground::auth::{Gate, Keys};
use inband_ground::xdp::multicast::Peer;
use inband_ground::xdp::{probe, XdpMode};
use inband_memory::lines::{Chunk, CHUNK_LINES};
use inband_memory::soft_switch::SwitchSpec;
use inband_memory::wire::{self, Header};
use inband_memory::{xdp, Memory, SPACES};

/// Hosts of the network.
const SWITCH: usize = 1;
const SERVERS: [usize; 3] = [2, 3, 4];
const CLIENT: usize = 5;
const EPOCH: u64 = 48;
const SESSION: u64 = 7 << 16;
const CHUNKS: usize = 8;

struct Testbed {
    switch: xdp::switch::Attached,
    servers: Vec<xdp::server::Attached>,
    client: UdpSocket,
    gate: Gate,
    request: u64,
    /// Keeps the hosts from answering that the processes' ports are closed.
    _processes: Vec<UdpSocket>,
    net: Net,
}

impl Testbed {
    fn new(mode: XdpMode, keys: Option<Keys>) -> Testbed {
        let net = Net::new();
        let servers: Vec<_> = SERVERS
            .into_iter()
            .enumerate()
            .map(|(n, host)| {
                net.on(host, || {
                    let spec = xdp::server::Spec {
                        node: n as u8 + 1,
                        chunks: CHUNKS,
                        address: address(host),
                        mode,
                        keys,
                    };
                    let program = spec.attach("eth0").unwrap();
                    program.registers().set_serving(true);
                    program
                })
            })
            .collect();
        let mut switch = net.on(SWITCH, || {
            let spec = xdp::switch::Spec {
                switch: SwitchSpec {
                    node: 16,
                    servers: SERVERS.len(),
                    chunks: CHUNKS as u64,
                    block_lines: 16,
                    sessions: 2,
                    slots: 16,
                },
                address: address(SWITCH),
                mode,
                keys,
            };
            let peers = SERVERS.into_iter().enumerate().map(|(n, host)| Peer {
                node: n as u8 + 1,
                address: address(host),
                local: false,
            });
            spec.attach("eth0", &peers.collect::<Vec<_>>()).unwrap()
        });
        let processes = [SWITCH].into_iter().chain(SERVERS);
        let processes = processes.map(|host| net.socket(host, PORT)).collect();
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let unresolved = net.on(SWITCH, || switch.refresh_neighbours().unwrap());
            if unresolved.is_empty() {
                break;
            }
            assert!(Instant::now() < deadline, "{unresolved:?}");
            thread::sleep(Duration::from_millis(20));
        }
        switch.registers().set_epoch(EPOCH);
        switch.registers().open_session(0, SESSION, 0, 16);
        Testbed {
            switch,
            servers,
            client: net.socket(CLIENT, PORT),
            gate: Gate::of::<Memory>(keys, SPACES),
            request: 0,
            _processes: processes,
            net,
        }
    }

    /// Sends the next request and returns the answer.
    fn ask(&mut self, kind: u8, chunk: u64, lines: u32, value: &[u8]) -> (Header, Vec<u8>) {
        self.request += 1;
        let header = Header {
            kind,
            session: SESSION,
            request: self.request,
            chunk,
            lines,
            ..Header::default()
        };
        let packet = common::packet(&header, value, &self.gate);
        self.client.send_to(&packet, address(SWITCH)).unwrap();
        let mut buffer = [0; 2048];
        let (len, from) = match self.client.recv_from(&mut buffer) {
            Ok(received) => received,
            Err(error) => {
                let servers: Vec<_> = self.servers.iter().map(|s| s.counters().unwrap()).collect();
                panic!(
                    "{error}: {header:?}, switch {:?}, servers {servers:?}",
                    self.switch.counters().unwrap()
                );
            }
        };
        assert_eq!(from, SocketAddr::V4(address(SWITCH)));
        assert!(self.gate.admits(&buffer[..len]));
        let (answer, value) = wire::parse(&buffer[..len]).unwrap();
        assert_eq!((answer.request, answer.chunk), (self.request, chunk));
        (answer, value.to_vec())
    }

    fn write(&mut self, chunk: u64, lines: u32, byte: u8) -> u64 {
        let value = vec![byte; 64 * lines.count_ones() as usize];
        let (answer, _) = self.ask(wire::WRITE_REQUEST, chunk, lines, &value);
        assert_eq!(answer.kind, wire::WRITE_REPLY);
        answer.timestamp
    }

    fn read(&mut self, chunk: u64, lines: u32) -> ([u64; CHUNK_LINES], Chunk) {
        let (answer, value) = self.ask(wire::READ_REQUEST, chunk, lines, &[]);
        assert_eq!(answer.kind, wire::READ_REPLY);
        let (mut timestamps, mut into) = ([0; CHUNK_LINES], [[0; 64]; CHUNK_LINES]);
        assert!(wire::take_read(&answer, &value, &mut timestamps, &mut into));
        (timestamps, into)
    }

    fn works(&mut self) {
        let first = self.write(1, 0b1, 7);
        let (timestamps, lines) = self.read(1, 0b11);
        assert_eq!((timestamps[0], timestamps[1]), (first, 0));
        assert_eq!((lines[0], lines[1]), ([7; 64], [0; 64]));
        let all = self.write(2, 0xffff, 9);
        assert_eq!(self.read(2, 0xffff), ([all; 16], [[9; 64]; 16]));
        // One server has newer lines: they are written back before they are returned.
        let ahead = EPOCH << 39 | 1000;
        for chunk in [3, 4] {
            let mut timestamps = [0; 16];
            timestamps[5] = ahead;
            self.servers[1]
                .registers()
                .store_chunk(chunk, &timestamps, &[[5; 64]; 16]);
        }
        for (chunk, lines) in [(3, 1 << 5), (4, 0xffff)] {
            // Which two servers answer first is random; in the end the other two have the same or newer lines.
            let (timestamps, lines) = self.read(chunk, lines);
            let found = (timestamps[5], lines[5]);
            assert!(
                [(ahead, [5; 64]), (0, [0; 64])].contains(&found),
                "{found:?}"
            );
            if timestamps[5] == ahead {
                let have = self.servers.iter().filter(|server| {
                    let (timestamps, lines) = server.registers().chunk(chunk as usize);
                    (timestamps[5], lines[5]) == found
                });
                assert!(have.count() >= 2, "a majority has what was read");
            }
        }
    }
}

#[test]
fn lines_are_read_and_written_over_a_network() {
    match probe("lo") {
        Ok(probe) if probe.privileged => {}
        Ok(probe) => return inband_testing::not_run(probe.generic),
        Err(error) => return inband_testing::not_run(error),
    }
    for mode in [XdpMode::Native, XdpMode::Generic] {
        for keys in with_and_without_keys() {
            let mut testbed = Testbed::new(mode, keys);
            testbed.works();
            // Two servers are a majority, one is not.
            testbed.net.cable(SERVERS[0], "down");
            let last = testbed.write(5, 0xffff, 3);
            assert_eq!(testbed.read(5, 0xffff), ([last; 16], [[3; 64]; 16]));
            eprintln!("{mode:?}: {:?}", testbed.switch.counters().unwrap());
        }
    }
}
