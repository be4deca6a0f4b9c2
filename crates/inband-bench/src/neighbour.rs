//! `inband bench neighbour`: the overhead of our program for unrelated packets, and the cost of each role's packets,
//! with test runs of the programs.

use anyhow::{Context, Result};
use clap::Args;
use inband_falcon::dataplane::bench::falcon_costs;
use inband_falcon::dataplane::Policy;
use inband_flair::dataplane::bench::flair_costs;
use inband_ground::bench::gate::gate_costs;
use inband_ground::xdp::gate::Side;
use inband_memory::bench::memory_costs;
use inband_paxos::dataplane::bench::{passthrough_cost, role_costs};

use super::row::{machine, Baseline, Output, Row};

/// Options of `inband bench neighbour`.
#[derive(Debug, Args)]
pub struct NeighbourArgs {
    /// Only measure unrelated packets.
    #[arg(long)]
    passthrough_only: bool,
}

const XDP: &str = "xdp";
const BENCH: &str = "neighbour";
/// Packets of one instance with one learner: a request, three 2As, three 2Bs.
const PACKETS_PER_INSTANCE: [(&str, f64); 3] =
    [("leader", 1.0), ("acceptor", 3.0), ("quorum", 3.0)];
const INSTANCE_VALUE_LEN_BYTES: usize = 64;

/// Runs the benchmark and prints its rows.
pub fn run(args: &NeighbourArgs, output: &mut Output) -> Result<()> {
    let machine = format!("by test runs, median of 21 paired batches; {}", machine());
    let passthrough = passthrough_cost().context("loading the packet programs")?;
    let mut bare_ns = f64::NAN;
    for cost in passthrough {
        let metric = match cost.packet {
            "tcp" => "passthrough_tcp_ns",
            _ => "passthrough_udp_ns",
        };
        bare_ns = cost.bare_ns;
        let baseline = Baseline {
            name: "a program that passes everything".into(),
            value: cost.bare_ns,
        };
        let row = Row {
            bench: BENCH,
            metric,
            backend: XDP.into(),
            variant: String::new(),
            value: cost.dispatch_ns,
            unit: "ns/packet",
            baseline: None,
            ratio: None,
            paper: None,
            conditions: format!(
                "a {} packet to another port, all roles loaded; {machine}",
                cost.packet
            ),
        };
        output.row(&row.beside(Some(baseline)))?;
    }
    if args.passthrough_only {
        return Ok(());
    }
    let mut instance_ns = 0.0;
    for cost in role_costs().context("loading the packet programs")? {
        if cost.value_len_bytes == INSTANCE_VALUE_LEN_BYTES && !cost.authenticated {
            let packets = PACKETS_PER_INSTANCE.iter().find(|p| p.0 == cost.role);
            instance_ns += cost.ns * packets.map_or(0.0, |p| p.1);
        }
        let key = if cost.authenticated { ", key" } else { "" };
        let metric = match cost.role {
            "leader" => "leader_cost_ns",
            "acceptor" => "acceptor_cost_ns",
            _ => "quorum_cost_ns",
        };
        let row = Row {
            bench: BENCH,
            metric,
            backend: XDP.into(),
            variant: format!("{} B{key}", cost.value_len_bytes),
            value: cost.ns,
            unit: "ns/packet",
            baseline: None,
            ratio: None,
            paper: None,
            conditions: format!(
                "{} B values, ring {} slots, dispatch included, without the test's own {:.0} ns; \
                 {machine}",
                cost.value_len_bytes, cost.ring_slots, cost.driver_ns
            ),
        };
        let name = "a program that passes everything".into();
        output.row(&row.beside(Some(Baseline {
            name,
            value: bare_ns,
        })))?;
    }
    flair_rows(output, &machine)?;
    falcon_rows(output, &machine)?;
    memory_rows(output, &machine)?;
    gate_rows(output, &machine)?;
    let packets: f64 = PACKETS_PER_INSTANCE.iter().map(|p| p.1).sum();
    let row = Row {
        bench: BENCH,
        metric: "instance_cost_ns",
        backend: XDP.into(),
        variant: String::new(),
        value: instance_ns,
        unit: "ns/instance",
        baseline: None,
        ratio: None,
        paper: None,
        conditions: format!(
            "{INSTANCE_VALUE_LEN_BYTES} B value: the programs of a request, three 2As and three 2Bs \
             added up, without links and copies; {machine}"
        ),
    };
    let name = format!("{packets} packets through a program that passes everything");
    output.row(&row.beside(Some(Baseline {
        name,
        value: packets * bare_ns,
    })))
}

/// The cost of the Falcon scheduler's decisions, compared with forwarding the packets unparsed.
fn falcon_rows(output: &mut Output, machine: &str) -> Result<()> {
    for cost in falcon_costs(&Policy::ALL).context("loading the packet programs")? {
        let tasks = match cost.tasks {
            1 => String::new(),
            tasks => format!(", {tasks} tasks"),
        };
        let policy = format!("{:?}", cost.policy).to_lowercase();
        let row = Row {
            bench: BENCH,
            metric: "falcon_cost_ns",
            backend: XDP.into(),
            variant: format!("{}{tasks}, {policy}", cost.packet),
            value: cost.ns,
            unit: "ns/packet",
            baseline: None,
            ratio: None,
            paper: None,
            conditions: format!(
                "{:.2} million decisions a second, without the test's own work; {machine}",
                cost.decisions_per_s() / 1e6
            ),
        };
        output.row(&row.beside(Some(Baseline {
            name: "forwarded unread to one neighbour".into(),
            value: cost.forward_ns,
        })))?;
    }
    Ok(())
}

/// The cost of reads and writes of replicated memory at its switch and a server, compared with forwarding the packets
/// unparsed.
fn memory_rows(output: &mut Output, machine: &str) -> Result<()> {
    for cost in memory_costs().context("loading the packet programs")? {
        let key = if cost.authenticated { ", key" } else { "" };
        let lines = match cost.lines {
            1 => "1 line".to_owned(),
            lines => format!("{lines} lines"),
        };
        let memory = match cost.role {
            "switch" => String::new(),
            _ => format!(" of {} KiB", cost.chunks),
        };
        let row = Row {
            bench: BENCH,
            metric: "memory_cost_ns",
            backend: XDP.into(),
            variant: format!("{} {} {lines}{memory}{key}", cost.role, cost.operation),
            value: cost.ns,
            unit: "ns/request",
            baseline: None,
            ratio: None,
            paper: None,
            conditions: format!(
                "{} packets a request, of 3 servers; {:.2} million lines a second on one CPU, without links and copies; {machine}",
                cost.packets,
                f64::from(cost.lines) * 1e3 / cost.ns
            ),
        };
        output.row(&row.beside(Some(Baseline {
            name: "the same packets forwarded unread".into(),
            value: cost.forward_ns,
        })))?;
    }
    Ok(())
}

/// The cost of a gate's packets, compared with passing them unread.
fn gate_rows(output: &mut Output, machine: &str) -> Result<()> {
    for cost in gate_costs().context("loading the packet programs")? {
        let side = match cost.side {
            Side::Keyed => "tag checked and removed",
            Side::Keyless | Side::Unchecked => "tag made",
        };
        let row = Row {
            bench: BENCH,
            metric: "gate_cost_ns",
            backend: XDP.into(),
            variant: side.into(),
            value: cost.ns,
            unit: "ns/packet",
            baseline: None,
            ratio: None,
            paper: None,
            conditions: format!("any length of value, without the test's own work; {machine}"),
        };
        output.row(&row.beside(Some(Baseline {
            name: "a program that passes everything".into(),
            value: cost.bare_ns,
        })))?;
    }
    Ok(())
}

/// The cost of the FLAIR switch's packets, compared with forwarding them unparsed.
fn flair_rows(output: &mut Output, machine: &str) -> Result<()> {
    for cost in flair_costs().context("loading the packet programs")? {
        let key = if cost.authenticated { ", key" } else { "" };
        let row = Row {
            bench: BENCH,
            metric: "flair_cost_ns",
            backend: XDP.into(),
            variant: format!("{}{key}", cost.packet),
            value: cost.ns,
            unit: "ns/packet",
            baseline: None,
            ratio: None,
            paper: None,
            conditions: format!(
                "keys of 24 B, values of 1 KiB, 4096 groups, without the test's own work; {machine}"
            ),
        };
        output.row(&row.beside(Some(Baseline {
            name: "forwarded unread to one neighbour".into(),
            value: cost.forward_ns,
        })))?;
    }
    Ok(())
}
