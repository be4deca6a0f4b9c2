//! A round over a network, from the leader's proposal until a quorum has acknowledged it, with the roles in the kernel.

use std::net::SocketAddrV4;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{anyhow, ensure, Context, Result};
use hdrhistogram::Histogram;
use inband_box::role::{Record, Role};
use inband_box::xdp::{Attached, Spec};
use inband_box::{Zab, GROUPS};
use inband_ground::auth::{Gate, Keys};
use inband_ground::bench::keys;
use inband_ground::socket::HostSocket;
use inband_ground::xdp::multicast::Peer;
use inband_ground::xdp::XdpMode;
use inband_lab::lab::HOST_INTERFACE;
use inband_lab::{Lab, LabSpec};

use super::{goal_at_most, row, Run};
use crate::row::{progress, Output};
use crate::stats::Distribution;

const NODES: [u8; 2] = [3, 7];
const VALUES_LEN_BYTES: [usize; 2] = [64, 1024];
/// Capacity of the log's ring; large enough that no slot is reused.
const CAPACITY: usize = 1 << 14;
const ROUNDS: u64 = 10_000;
const ROUNDS_QUICK: u64 = 500;
const WARM_UP_ROUNDS: u64 = 200;
const PORT: u16 = 7400;
/// Owned by node 1.
const EPOCH: u64 = 33;
const LIMIT: Duration = Duration::from_secs(20);
const GOAL_US: f64 = 10.0;

struct Nodes {
    attached: Vec<Attached>,
    sockets: Vec<HostSocket>,
    addresses: Vec<SocketAddrV4>,
    gate: Gate,
    // Dropped after everything attached in it.
    _lab: Lab,
}

impl Nodes {
    /// Attaches the role on every host; the first one leads. The calling thread ends up in another namespace.
    fn start(nodes: u8, keys: Option<Keys>) -> Result<Nodes> {
        let lab = Lab::create(&LabSpec {
            name: format!("round{}x{nodes}", std::process::id()),
            hosts: (1..=nodes).map(|node| format!("node/{node}")).collect(),
            seed: 1,
        })?;
        let hosts = lab.hosts();
        let address = |node: u8| SocketAddrV4::new(hosts[usize::from(node) - 1].address(), PORT);
        let (mut attached, mut sockets) = (Vec::new(), Vec::new());
        for node in 1..=nodes {
            hosts[usize::from(node) - 1].namespace().enter()?;
            let others = (1..=nodes).filter(|other| *other != node);
            let others: Vec<Peer> = others
                .map(|node| Peer {
                    node,
                    address: address(node),
                    local: false,
                })
                .collect();
            let spec = Spec {
                node,
                capacity: CAPACITY,
                address: address(node),
                mode: XdpMode::Native,
                keys,
                clients: None,
            };
            attached.push(spec.attach(HOST_INTERFACE, &others)?);
            sockets.push(HostSocket::bind(address(node))?);
        }
        let members = (1..=nodes).fold(0, |members, node| members | 1 << node);
        let deadline = Instant::now() + LIMIT;
        for (host, attached) in hosts.iter().zip(&mut attached) {
            host.namespace().enter()?;
            while !attached.refresh_neighbours()?.is_empty() {
                ensure!(Instant::now() < deadline, "neighbours are not resolved");
                thread::sleep(Duration::from_millis(20));
            }
            let role = attached.role();
            role.set_quorum(members, usize::from(nodes) / 2 + 1);
            attached.set_polling(true);
        }
        let leader = attached[0].role();
        leader.raise_epoch(EPOCH);
        ensure!(leader.lead(EPOCH), "the first node does not lead");
        for follower in &attached[1..] {
            let follows = follower.role().follow(EPOCH, false, 0);
            ensure!(follows, "a node does not follow");
        }
        Ok(Nodes {
            attached,
            sockets,
            addresses: (1..=nodes).map(address).collect(),
            gate: Gate::of::<Zab>(keys, GROUPS),
            _lab: lab,
        })
    }

    /// Proposes a record and waits until it is committed.
    fn round(&self, record: &Record) -> Result<Duration> {
        let role = self.attached[0].role();
        let began = Instant::now();
        let zxid = role
            .append(record)
            .map_err(|why| anyhow!("the leader refuses a record: {why:?}"))?;
        let mut packet = role.propose(zxid).context("it is in the log")?;
        self.gate.sign(&mut packet);
        for to in &self.addresses[1..] {
            self.sockets[0].send(&packet, *to);
        }
        while role.committed() < zxid {
            ensure!(
                began.elapsed() < LIMIT,
                "{zxid} is not committed; the leader's counters: {:?}",
                self.attached[0].counters()
            );
            std::hint::spin_loop();
        }
        Ok(began.elapsed())
    }
}

fn rounds(
    nodes: u8,
    keys: Option<Keys>,
    value_len_bytes: usize,
    rounds: u64,
) -> Result<Distribution> {
    let nodes = Nodes::start(nodes, keys)?;
    // The no-op establishes the epoch.
    nodes.round(&Record::default())?;
    let mut latency_ns = Histogram::<u64>::new_with_bounds(1, 60_000_000_000, 3)?;
    for seq in 1..=WARM_UP_ROUNDS + rounds {
        let record = Record {
            origin: 1,
            origin_session: 1,
            origin_seq: seq,
            value: vec![7; value_len_bytes],
            ..Record::default()
        };
        let took = nodes.round(&record)?;
        if seq > WARM_UP_ROUNDS {
            latency_ns.saturating_record(took.as_nanos() as u64);
        }
    }
    Ok(Distribution::of(&latency_ns))
}

/// Measures and prints the rows.
pub fn measure(run: &Run<'_>, output: &mut Output) -> Result<()> {
    if let Err(error) = inband_lab::preflight::check_lab() {
        output.skipped(&format!("rounds over a network: {error}"));
        return Ok(());
    }
    run.note_place("in the kernel, in the interfaces' driver");
    let count = run.quick(ROUNDS_QUICK, ROUNDS);
    let keys = run.args.secure.then(keys).transpose()?;
    for nodes in NODES {
        for value_len_bytes in VALUES_LEN_BYTES {
            progress(&format!("rounds of {nodes} nodes, {value_len_bytes} B"));
            // In a separate thread, because it changes its namespace.
            let measured = thread::spawn(move || rounds(nodes, keys, value_len_bytes, count));
            let latency = measured
                .join()
                .map_err(|_| anyhow!("the measurement panicked"))??;
            let conditions = format!(
                "a process of the leader appends a record, sends it to the others, and looks at the registers until a majority has \
                 acknowledged it; the rest is packet programs on veth in namespaces; {count} rounds; {}",
                run.conditions()
            );
            let variant = format!("{nodes} nodes, {value_len_bytes} B");
            for (metric, us) in [
                ("round_p50_us", latency.p50_us),
                ("round_p99_us", latency.p99_us),
            ] {
                output.row(&row(metric, "xdp", &*variant, (us, "us"), &*conditions))?;
            }
            if nodes == NODES[0] {
                let what = format!("a round at the leader, {variant}, median");
                goal_at_most((run, output), &what, latency.p50_us, GOAL_US, "us");
            }
        }
    }
    Ok(())
}
