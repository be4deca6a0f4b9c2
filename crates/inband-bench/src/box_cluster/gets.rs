//! GETs over UDP that a node's packet program answers, beside memcached over UDP: the same clients, on a host of their
//! own, reach both over the same network of namespaces. And what one GET costs the program, by test runs.

use std::net::{SocketAddrV4, UdpSocket};

use anyhow::{ensure, Context, Result};
use inband_box::memcached::udp::HEADER_BYTES;
use inband_box::store::{chunks_in, Meta, Table};
use inband_box::xdp::{table_of, Spec, UdpClients};
use inband_ground::xdp::rig::udp_frame;
use inband_ground::xdp::{XdpError, XdpMode};
use inband_lab::lab::HOST_INTERFACE;

use super::network::{
    duration, fill_over_udp, request, requests, Load, Network, CLIENTS_PORT, KEYS, LOST_AFTER,
    THREADS,
};
use super::{goal_at_least, memcached, row, Run};
use crate::load::Operation;
use crate::row::{median, progress, Baseline, Output};

const VALUES_LEN_BYTES: [usize; 2] = [32, 128];
const COSTS_LEN_BYTES: [usize; 4] = [32, 128, 512, 1024];
const TABLE_BYTES: u64 = 8 << 20;
const PORT: u16 = 7400;
const CAPACITY: usize = 1024;
const COST_RUNS: usize = 20_000;
const COST_RUNS_QUICK: usize = 1_000;
const GOAL: f64 = 5.0;
const XDP_TX: u32 = 3;

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
    let network = Network::start("gets", 1)?;
    let to_ours = network.address("node/1", CLIENTS_PORT)?;
    let to_theirs = network.address("memcached", CLIENTS_PORT)?;
    let from = network.address("clients", 0)?;
    let (attached, mut table) = network.on("node/1", || {
        let spec = spec(network.address("node/1", PORT)?, to_ours, from);
        let attached = spec.attach(HOST_INTERFACE, &[])?;
        let region = attached.table()?.context("the program answers GETs")?;
        Ok((attached, Table::in_region(region, chunks_in(TABLE_BYTES))))
    })?;
    let peer = match run.args.alone {
        true => None,
        false => Some(network.on("memcached", || {
            memcached::spawn(*to_theirs.ip(), CLIENTS_PORT)
        })?),
    };
    let socket = network.on("clients", || Ok(UdpSocket::bind(from)?))?;
    socket.set_read_timeout(Some(LOST_AFTER))?;
    let rounds = run.quick(1, run.args.rounds);
    for value_len_bytes in VALUES_LEN_BYTES {
        fill(&mut table, value_len_bytes)?;
        if peer.is_some() {
            fill_over_udp(&socket, to_theirs, value_len_bytes)?;
        }
        let requests = requests(Operation::Get, value_len_bytes);
        let load = |to| Load {
            requests: &requests,
            good: b"VALUE ",
            to,
        };
        let mut samples = THREADS.map(|_| [Vec::new(), Vec::new()]);
        let mut lost = 0;
        for round in 1..=rounds {
            progress(&format!("UDP GETs, {value_len_bytes} B, round {round}"));
            for (samples, threads) in samples.iter_mut().zip(THREADS) {
                let (rate, got) = network.rate(load(to_ours), threads, run)?;
                samples[0].push(rate);
                lost += got.lost;
                if peer.is_some() {
                    samples[1].push(network.rate(load(to_theirs), threads, run)?.0);
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
            duration(run),
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
    let gets = SocketAddrV4::new(*here.ip(), CLIENTS_PORT);
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
        let other = SocketAddrV4::new(*here.ip(), CLIENTS_PORT + 1);
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
