//! `inband bench agreement --fed`: whole agreement, from a frame that a client in the data plane sends
//! to the learners' application, as fast as the network takes it. What the papers' DPDK client does.

use std::net::{SocketAddrV4, UdpSocket};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};
use inband_dataplane::bench::feeder::{End, Feeder};
use inband_lab::lab::{Host, HOST_INTERFACE};
use inband_paxos::config::{Dataplane, DEFAULT_PORT};
use nix::ifaddrs::getifaddrs;
use nix::net::if_::if_nametoindex;

use super::bed::{Bed, BedSpec, Job, FEEDER};
use super::node::Load;
use super::row::{machine, median, progress, Baseline, Output, Quoted, Row};

const VALUE_LEN_BYTES: usize = 64;
const LEARNERS: [usize; 2] = [1, 3];
const EPOCH: u32 = 1;
/// Sent first, to see how fast it goes: one system call then sends all that follow.
const TRIAL_FRAMES: u32 = 50_000;
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
struct Fed {
    delivered_per_s: f64,
    delivered: u64,
    sent: u64,
    sent_per_s: f64,
}

/// Run the benchmark and print its rows.
pub fn run(options: &Options, output: &mut Output) -> Result<()> {
    let machine = machine();
    for learners in LEARNERS {
        let mut bed = Bed::create(BedSpec {
            learners,
            has_feeder: true,
            keep: options.keep.clone(),
        })?;
        let mut rounds = Vec::new();
        let mut by_socket = Vec::new();
        for round in 1..=options.rounds {
            progress(&format!(
                "round {round}/{}, {learners} learners",
                options.rounds
            ));
            rounds.push(fed(&mut bed, options)?);
            let socket = bed.run(&Job {
                window: SOCKET_WINDOW,
                proposers: SOCKET_PROPOSERS.min(learners),
                ring_slots: options.ring_slots,
                ..Job::new(Dataplane::Xdp, Load::Saturate, options.duration)
            })?;
            by_socket.push(socket.delivered_per_s());
        }
        progress("");
        let of = |pick: fn(&Fed) -> f64| median(&mut rounds.iter().map(pick).collect::<Vec<_>>());
        let baseline = Baseline {
            name: "proposed over sockets in the same run".into(),
            value: median(&mut by_socket),
        };
        let conditions = format!(
            "{VALUE_LEN_BYTES} B unbatched, all alike, live frames at {:.0} /s from a host of its own, \
             {:.0}% of them delivered in order at the slowest of {learners} learners, the others \
             refused (BUSY) or lost; 3 acceptors, veth namespaces, ring {} slots, durability memory, \
             median of {} x {} ms; {machine}",
            of(|fed| fed.sent_per_s),
            of(|fed| fed.delivered as f64 / fed.sent as f64 * 100.0),
            options.ring_slots,
            options.rounds,
            options.duration.as_millis(),
        );
        let row = Row::new(
            ("agreement", "fed_delivered_per_s"),
            "xdp",
            format!("{learners} learners"),
            (of(|fed| fed.delivered_per_s), "values/s"),
            conditions,
        );
        output.row(&row.beside(Some(baseline)).quoting(PAPER))?;
    }
    Ok(())
}

fn fed(bed: &mut Bed, options: &Options) -> Result<Fed> {
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
        feeder.send(ifindex, TRIAL_FRAMES)?;
        let trial_per_s = f64::from(TRIAL_FRAMES) / started.elapsed().as_secs_f64();
        let count = (trial_per_s * options.duration.as_secs_f64()) as u32;
        let started = Instant::now();
        feeder.send(ifindex, count)?;
        let per_s = f64::from(count) / started.elapsed().as_secs_f64();
        Ok((u64::from(count) + u64::from(TRIAL_FRAMES), per_s))
    };
    let in_thread = || {
        std::thread::scope(|scope| match scope.spawn(feed).join() {
            Ok(fed) => fed,
            Err(panic) => std::panic::resume_unwind(panic),
        })
    };
    let (outcome, (sent, sent_per_s)) = bed.run_beside(&job, in_thread)?;
    let delivered = outcome.reports.iter().map(|r| r.delivered).min();
    let delivered = delivered.unwrap_or(0);
    ensure!(delivered > 0, "nothing that was fed was delivered");
    Ok(Fed {
        delivered_per_s: outcome.delivered_per_s(),
        delivered,
        sent,
        sent_per_s,
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
