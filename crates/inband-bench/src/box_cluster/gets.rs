//! GETs over UDP that a node's packet program answers, beside memcached over UDP: the same clients, on a host of their
//! own, reach both over the same network of namespaces. And what one GET costs the program, by test runs.

use std::net::{SocketAddrV4, UdpSocket};
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};
use inband_box::memcached::udp::HEADER_BYTES;
use inband_box::store::{chunks_in, Meta, Table};
use inband_box::xdp::{table_of, Spec, UdpClients};
use inband_ground::socket::{wait_readable, HostSocket};
use inband_ground::wire::PACKET_LEN_MAX_BYTES;
use inband_ground::xdp::rig::udp_frame;
use inband_ground::xdp::{XdpError, XdpMode};
use inband_lab::lab::HOST_INTERFACE;
use inband_lab::{Lab, LabSpec};

use super::memcached::{self, Memcached};
use super::{goal_at_least, row, Run};
use crate::load::{Operation, Protocol};
use crate::row::{median, progress, Baseline, Output};

const VALUES_LEN_BYTES: [usize; 2] = [32, 128];
const COSTS_LEN_BYTES: [usize; 4] = [32, 128, 512, 1024];
/// The clients' threads; the better number counts, for each system by itself.
const THREADS: [usize; 2] = [1, 2];
const KEYS: u64 = 1_000;
const TABLE_BYTES: u64 = 8 << 20;
const PORT: u16 = 7400;
const GETS_PORT: u16 = 11211;
const CAPACITY: usize = 1024;
const WARM_UP: Duration = Duration::from_millis(200);
const DURATION: Duration = Duration::from_secs(1);
const DURATION_QUICK: Duration = Duration::from_millis(200);
/// Requests without a reply are lost, and sent again, after this time.
const LOST_AFTER: Duration = Duration::from_millis(100);
const READY_LIMIT: Duration = Duration::from_secs(10);
const COST_RUNS: usize = 20_000;
const COST_RUNS_QUICK: usize = 1_000;
const GOAL: f64 = 5.0;
const XDP_TX: u32 = 3;

fn request(number: u16, operation: Operation, key: u64, value_len_bytes: usize) -> Vec<u8> {
    let mut datagram = number.to_be_bytes().to_vec();
    datagram.extend_from_slice(&[0, 0, 0, 1, 0, 0]);
    Memcached.command(&mut datagram, operation, key, value_len_bytes);
    datagram
}

fn key_of(number: u64) -> Vec<u8> {
    let text = request(0, Operation::Get, number, 0);
    text[HEADER_BYTES + 4..text.len() - 2].to_vec()
}

/// Fills the table of a program.
fn fill(table: &mut Table, value_len_bytes: usize) -> Result<()> {
    let value = vec![b'x'; value_len_bytes];
    for number in 0..KEYS {
        table.put(&key_of(number), &value, &Meta::default())?;
    }
    Ok(())
}

fn spec(address: SocketAddrV4, gets: SocketAddrV4, from: SocketAddrV4) -> Spec {
    Spec {
        node: 1,
        capacity: CAPACITY,
        address,
        mode: XdpMode::Native,
        keys: None,
        clients: Some(UdpClients {
            from: (*from.ip(), std::net::Ipv4Addr::BROADCAST),
            local: Some(gets),
            strong: None,
            chunks: chunks_in(TABLE_BYTES),
        }),
    }
}

/// What the clients got in the measured time.
#[derive(Debug, Default, Clone, Copy)]
struct Got {
    good: u64,
    errors: u64,
    lost: u64,
}

/// One thread of clients, with this many requests in flight.
fn client(
    socket: &HostSocket,
    to: SocketAddrV4,
    in_flight: usize,
    duration: Duration,
    seed: u64,
) -> Result<Got> {
    let mut random = seed;
    let mut next_key = || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % KEYS
    };
    let requests: Vec<Vec<u8>> = (0..KEYS)
        .map(|key| request(0, Operation::Get, key, 0))
        .collect();
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
            datagram.clone_from(&requests[next_key() as usize]);
            datagram[..2].copy_from_slice(&number.to_be_bytes());
            socket.queue(&datagram, to);
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
            if from != to || len <= HEADER_BYTES || !std::mem::take(&mut waits[id]) {
                continue;
            }
            waiting -= 1;
            match buffer[HEADER_BYTES..len].starts_with(b"VALUE ") {
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

/// The network, with its three hosts.
struct Network {
    lab: Lab,
    _pass: Vec<inband_lab::PassProgram>,
}

impl Network {
    fn start() -> Result<Network> {
        let lab = Lab::create(&LabSpec {
            name: format!("gets{}", std::process::id()),
            hosts: ["node/1", "memcached", "clients"].map(str::to_owned).into(),
            seed: 1,
        })?;
        let passes = ["memcached", "clients"].map(|host| Ok(lab.host(host)?.attach_pass()?));
        let _pass = passes.into_iter().collect::<Result<_>>()?;
        Ok(Network { lab, _pass })
    }

    fn address(&self, host: &str, port: u16) -> Result<SocketAddrV4> {
        Ok(SocketAddrV4::new(self.lab.host(host)?.address(), port))
    }

    /// Runs `f` in the namespace of a host, on a thread of its own.
    fn on<T: Send>(&self, host: &str, f: impl FnOnce() -> Result<T> + Send) -> Result<T> {
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
    fn rate(&self, to: SocketAddrV4, threads: usize, run: &Run<'_>) -> Result<(f64, Got)> {
        let duration = run.quick(DURATION_QUICK, DURATION);
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
                        to,
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
        ensure!(all.errors == 0, "{} replies had no value", all.errors);
        ensure!(all.good > 0, "{to} does not answer");
        Ok((all.good as f64 / duration.as_secs_f64(), all))
    }
}

/// Sets all keys of a memcached over UDP.
fn fill_memcached(socket: &UdpSocket, to: SocketAddrV4, value_len_bytes: usize) -> Result<()> {
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

/// Measures and prints the rows.
pub fn measure(run: &Run<'_>, output: &mut Output) -> Result<()> {
    run.note_place("in the kernel: native XDP");
    if let Err(error) = costs(run, output) {
        let Some(XdpError::Privilege { what }) = error.downcast_ref() else {
            return Err(error);
        };
        output.skipped(&format!("GETs in the kernel: {what} is not allowed"));
        return Ok(());
    }
    let network = Network::start()?;
    let to_ours = network.address("node/1", GETS_PORT)?;
    let to_theirs = network.address("memcached", GETS_PORT)?;
    let from = network.address("clients", 0)?;
    let (attached, mut table) = network.on("node/1", || {
        let spec = spec(network.address("node/1", PORT)?, to_ours, from);
        let attached = spec.attach(HOST_INTERFACE, &[])?;
        let region = attached.table()?.context("the program answers GETs")?;
        Ok((attached, Table::in_region(region, chunks_in(TABLE_BYTES))))
    })?;
    let peer = match run.args.alone {
        true => None,
        false => Some(network.on("memcached", || memcached::spawn(*to_theirs.ip(), GETS_PORT))?),
    };
    let socket = network.on("clients", || Ok(UdpSocket::bind(from)?))?;
    socket.set_read_timeout(Some(LOST_AFTER))?;
    let rounds = run.quick(1, run.args.rounds);
    for value_len_bytes in VALUES_LEN_BYTES {
        fill(&mut table, value_len_bytes)?;
        if peer.is_some() {
            fill_memcached(&socket, to_theirs, value_len_bytes)?;
        }
        let mut samples = THREADS.map(|_| [Vec::new(), Vec::new()]);
        let mut lost = 0;
        for round in 1..=rounds {
            progress(&format!("UDP GETs, {value_len_bytes} B, round {round}"));
            for (samples, threads) in samples.iter_mut().zip(THREADS) {
                let (rate, got) = network.rate(to_ours, threads, run)?;
                samples[0].push(rate);
                lost += got.lost;
                if peer.is_some() {
                    samples[1].push(network.rate(to_theirs, threads, run)?.0);
                }
            }
        }
        let best = |who: usize| {
            let medians = samples
                .iter()
                .map(|samples| median(&mut samples[who].clone()));
            medians.fold(0.0, f64::max)
        };
        let each = |who: usize| {
            let medians = samples
                .iter()
                .map(|samples| median(&mut samples[who].clone()));
            let thousands = medians.map(|rate| format!("{:.0}", rate / 1000.0));
            thousands.collect::<Vec<_>>().join(" and ")
        };
        let theirs = peer.as_ref().map(|_| (best(1), each(1)));
        let conditions = format!(
            "one node's packet program, {} requests in flight from 1 and 2 threads ({} thousand/s), the better counts; {lost} lost; \
             hosts are namespaces joined by veth and a switch in XDP; {rounds} rounds of {:?}; {}",
            run.args.clients,
            each(0),
            run.quick(DURATION_QUICK, DURATION),
            run.conditions()
        );
        let baseline = theirs.as_ref().map(|(rate, each)| Baseline {
            name: format!(
                "memcached, one thread, the same clients and network ({each} thousand/s)"
            ),
            value: *rate,
        });
        let variant = format!("UDP GETs in the kernel, {value_len_bytes} B");
        let ours = best(0);
        let row = row(
            "kernel_gets_per_s",
            "xdp",
            variant,
            (ours, "1/s"),
            conditions,
        );
        output.row(&row.beside(baseline))?;
        if let Some((theirs, _)) = theirs {
            let what = format!("UDP GETs of {value_len_bytes} B in the kernel beside memcached's");
            goal_at_least((run, output), &what, ours / theirs, GOAL, "times");
        }
    }
    let hits = attached.counters()?.get("gets_hit").copied();
    ensure!(hits.unwrap_or(0) > 0, "the program has answered nothing");
    Ok(())
}

/// Measures what one GET costs the program.
fn costs(run: &Run<'_>, output: &mut Output) -> Result<()> {
    let here = SocketAddrV4::new([10, 9, 8, 2].into(), PORT);
    let there = SocketAddrV4::new([10, 9, 8, 9].into(), 1234);
    let gets = SocketAddrV4::new(*here.ip(), GETS_PORT);
    let spec = spec(here, gets, there);
    let program = spec.load()?;
    let mut table = Table::in_region(table_of(&program)?, chunks_in(TABLE_BYTES));
    let runs = run.quick(COST_RUNS_QUICK, COST_RUNS);
    for value_len_bytes in COSTS_LEN_BYTES {
        progress(&format!("the cost of a GET, {value_len_bytes} B"));
        fill(&mut table, value_len_bytes)?;
        let frames: Vec<_> = (0..KEYS)
            .map(|key| udp_frame(there, gets, &request(1, Operation::Get, key, 0)))
            .collect();
        // The same frame to another port is passed unread.
        let other = SocketAddrV4::new(*here.ip(), GETS_PORT + 1);
        let unread = udp_frame(there, other, &request(1, Operation::Get, 0, 0));
        let (mut answered, mut passed) = (Vec::new(), Vec::new());
        for n in 0..runs {
            let one = program.run(&frames[n % frames.len()], 1)?;
            ensure!(one.action == XDP_TX, "a GET is not answered");
            answered.push(one.time.as_nanos() as f64);
            passed.push(program.run(&unread, 1)?.time.as_nanos() as f64);
        }
        let (answered, passed) = (median(&mut answered), median(&mut passed));
        let conditions = format!(
            "median of {runs} test runs of one frame each, without links; the test's own {passed:.0} ns, for a frame that passes \
             unread, are subtracted; {}",
            run.conditions()
        );
        let variant = format!("GET in the kernel, {value_len_bytes} B");
        let cost = (answered - passed, "ns");
        output.row(&row("get_kernel_ns", "xdp", variant, cost, conditions))?;
    }
    Ok(())
}
