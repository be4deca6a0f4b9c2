//! `inband bench agreement --fed`: whole agreement, from a frame that a client in the data plane sends
//! to the learners' application, at several rates. What the papers' DPDK client does.

use std::net::{SocketAddrV4, UdpSocket};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use inband_dataplane::bench::feeder::{End, Feeder};
use inband_lab::lab::{Host, HOST_INTERFACE};
use inband_paxos::config::{Dataplane, DEFAULT_PORT};
use nix::ifaddrs::getifaddrs;
use nix::net::if_::if_nametoindex;

use super::bed::{Bed, BedSpec, Job, FEEDER};
use super::node::Load;
use super::plot::{Chart, Series};
use super::row::{machine, median, progress, Baseline, Output, Quoted, Row};

const VALUE_LEN_BYTES: usize = 64;
const LEARNERS: [usize; 2] = [1, 3];
const EPOCH: u32 = 1;
/// Frames a second that are offered.
const RATES_PER_S: [u32; 6] = [50_000, 100_000, 200_000, 300_000, 450_000, 600_000];
/// A rate is sustained if this share of what is offered is delivered.
const SUSTAINED_SHARE: f64 = 0.99;
/// Tries made first, to see how long one takes: one system call then makes all that follow.
const TRIAL_TRIES: u32 = 200_000;
/// A client that proposes over sockets, to stand beside.
const SOCKET_WINDOW: usize = 64;
const SOCKET_PROPOSERS: usize = 2;

const PAPER: Quoted = Quoted {
    place: "Partitioned Paxos, section 5.3, figure 8a",
    what: "DPDK client, delivered by replicas that then answer",
    value: 447_000.0,
};

/// How to run.
pub struct Options {
    /// The median of so many is reported.
    pub rounds: usize,
    /// Time of each.
    pub duration: Duration,
    /// Slots of the acceptors' rings.
    pub ring_slots: u32,
    /// Keep the hosts' logs in this directory.
    pub keep: Option<PathBuf>,
}

/// What a round gave.
#[derive(Debug, Clone, Copy)]
struct Fed {
    delivered_per_s: f64,
    offered_per_s: f64,
    delivered_share: f64,
}

/// Run the benchmark and print its rows.
pub fn run(options: &Options, output: &mut Output) -> Result<()> {
    let machine = machine();
    let mut series = Vec::new();
    for learners in LEARNERS {
        let mut bed = Bed::create(BedSpec {
            learners,
            has_feeder: true,
            keep: options.keep.clone(),
        })?;
        let mut by_rate = RATES_PER_S.map(|_| Vec::new());
        let mut by_socket = Vec::new();
        for round in 1..=options.rounds {
            let show = |what: &str| {
                progress(&format!(
                    "round {round}/{}, {learners} learners, {what}",
                    options.rounds
                ));
            };
            for (rate_per_s, rounds) in RATES_PER_S.into_iter().zip(&mut by_rate) {
                show(&format!("{rate_per_s} /s"));
                rounds.push(fed(&mut bed, options, rate_per_s)?);
            }
            show("over sockets");
            let socket = bed.run(&Job {
                window: SOCKET_WINDOW,
                proposers: SOCKET_PROPOSERS.min(learners),
                ring_slots: options.ring_slots,
                ..Job::new(Dataplane::Xdp, Load::Saturate, options.duration)
            })?;
            by_socket.push(socket.delivered_per_s());
        }
        progress("");
        let medians = by_rate.map(|rounds| middle(&rounds));
        series.push(Series {
            name: format!("{learners} learners"),
            points: medians
                .iter()
                .map(|fed| [fed.offered_per_s, fed.delivered_per_s])
                .collect(),
            is_quoted: false,
        });
        let socket = Baseline {
            name: "proposed over sockets in the same run".into(),
            value: median(&mut by_socket),
        };
        rows(options, learners, &medians, socket, &machine, output)?;
    }
    output.chart(Chart::Lines {
        title: "delivered in order at the slowest learner, over what is offered".into(),
        x: "offered, values/s".into(),
        y: "delivered, values/s".into(),
        series,
        events: Vec::new(),
    });
    Ok(())
}

/// The one with the middle of what was delivered.
fn middle(rounds: &[Fed]) -> Fed {
    let mut sorted = rounds.to_vec();
    sorted.sort_by(|a, b| a.delivered_per_s.total_cmp(&b.delivered_per_s));
    sorted[(sorted.len() - 1) / 2]
}

fn rows(
    options: &Options,
    learners: usize,
    medians: &[Fed],
    socket: Baseline,
    machine: &str,
    output: &mut Output,
) -> Result<()> {
    let best = |all: &[&Fed]| {
        let best = all
            .iter()
            .max_by(|a, b| a.delivered_per_s.total_cmp(&b.delivered_per_s));
        best.map(|fed| **fed)
    };
    let sustained = medians
        .iter()
        .filter(|fed| fed.delivered_share >= SUSTAINED_SHARE);
    let figures = [
        ("fed_sustained_per_s", best(&sustained.collect::<Vec<_>>())),
        (
            "fed_delivered_per_s",
            best(&medians.iter().collect::<Vec<_>>()),
        ),
    ];
    for (metric, fed) in figures {
        let Some(fed) = fed else {
            output.skipped(&format!(
                "{metric}, {learners} learners: no rate was delivered to {:.0}%",
                SUSTAINED_SHARE * 100.0
            ));
            continue;
        };
        let conditions = format!(
            "{VALUE_LEN_BYTES} B unbatched, all alike, live frames offered at {:.0} /s by a host of its \
             own, {:.1}% of them delivered in order at the slowest of {learners} learners, the others \
             refused (BUSY) or lost; 3 acceptors, veth namespaces, ring {} slots, durability memory, \
             median of {} x {} ms; {machine}",
            fed.offered_per_s,
            fed.delivered_share * 100.0,
            options.ring_slots,
            options.rounds,
            options.duration.as_millis(),
        );
        let variant = format!("{learners} learners");
        let figure = (fed.delivered_per_s, "values/s");
        let row = Row::new(("agreement", metric), "xdp", variant, figure, conditions);
        output.row(&row.beside(Some(socket.clone())).quoting(PAPER))?;
    }
    Ok(())
}

fn fed(bed: &mut Bed, options: &Options, rate_per_s: u32) -> Result<Fed> {
    let host = bed.lab.host(FEEDER)?;
    let namespace = host.namespace().handle()?;
    let _pass = host.attach_pass()?;
    let (ifindex, from) = host.namespace().run(|| Ok(end_of(&host)))??;
    let leader = bed.lab.host("leader")?;
    let (_, to) = leader.namespace().run(|| Ok(end_of(&leader)))??;
    let feeder = Feeder::load(from, to, EPOCH, &[7; VALUE_LEN_BYTES])?;
    let job = Job {
        ring_slots: options.ring_slots,
        // It ends when the feeder has long ended.
        duration: options.duration * 2 + Duration::from_secs(1),
        ..Job::new(Dataplane::Xdp, Load::Count, options.duration)
    };
    let feed = || -> Result<(u64, f64)> {
        namespace.enter()?;
        // Refusals end here, and not in answers of the host that nobody listens there.
        let _refusals = UdpSocket::bind(from.1).context("a socket for refusals")?;
        let started = Instant::now();
        let first = feeder.send(ifindex, rate_per_s, TRIAL_TRIES)?;
        let tries_per_s = f64::from(TRIAL_TRIES) / started.elapsed().as_secs_f64();
        let tries = (tries_per_s * options.duration.as_secs_f64()) as u32;
        let started = Instant::now();
        let sent = feeder.send(ifindex, rate_per_s, tries)?;
        Ok((first + sent, sent as f64 / started.elapsed().as_secs_f64()))
    };
    let in_thread = || {
        std::thread::scope(|scope| match scope.spawn(feed).join() {
            Ok(fed) => fed,
            Err(panic) => std::panic::resume_unwind(panic),
        })
    };
    let (outcome, (sent, offered_per_s)) = bed.run_beside(&job, in_thread)?;
    let delivered = outcome.reports.iter().map(|r| r.delivered).min();
    Ok(Fed {
        delivered_per_s: outcome.delivered_per_s(),
        offered_per_s,
        delivered_share: delivered.unwrap_or(0) as f64 / sent as f64,
    })
}

/// In the host's namespace: the index of its interface, and its addresses.
fn end_of(host: &Host) -> Result<(u32, End)> {
    let ifindex = if_nametoindex(HOST_INTERFACE).context("finding the interface")?;
    let mut addresses = getifaddrs().context("listing interfaces")?;
    let mac = addresses.find_map(|address| {
        let is_it = address.interface_name == HOST_INTERFACE;
        address.address.filter(|_| is_it)?.as_link_addr()?.addr()
    });
    let address = SocketAddrV4::new(host.address(), DEFAULT_PORT);
    Ok((ifindex, (mac.unwrap_or_default(), address)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_round_counts() {
        let fed = |delivered_per_s| Fed {
            delivered_per_s,
            offered_per_s: 1.0,
            delivered_share: 1.0,
        };
        assert_eq!(middle(&[fed(3.0), fed(1.0), fed(2.0)]).delivered_per_s, 2.0);
    }
}
