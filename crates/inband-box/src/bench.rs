//! Measures what a round costs in the kernel, at the leader and at a follower, compared with forwarding the same
//! packets unread. It uses BPF test runs, so links and copies are not included, and assumes a process that polls.

use std::os::fd::AsRawFd;

use inband_ground::bench::{address, check_counted, keys, Step, Steps};
use inband_ground::registers::Shared;
use inband_ground::xdp::rig::udp_frame;
use inband_ground::xdp::{XdpError, XdpMode};

use crate::role::{Mode, View};
use crate::wire::{emit, Header, Type};
use crate::xdp::Spec;
use crate::{objects, owner_of};

/// The node that is measured, and its leader's epoch.
const NODE: u8 = 2;
const OWN_EPOCH: u64 = 34;
const EPOCH_OF_1: u64 = 33;
const CAPACITY: usize = 8192;

/// A node's part in a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// SUBMIT, and the acknowledgements of all followers.
    Leader,
    /// PROPOSE and COMMIT.
    Follower,
}

/// The cost of one record.
#[derive(Debug, Clone, PartialEq)]
pub struct RoundCost {
    pub part: Part,
    pub nodes: usize,
    pub value_len_bytes: usize,
    /// Whether packets are tagged with a key.
    pub authenticated: bool,
    /// Packets that the node receives per record.
    pub packets: usize,
    /// Nanoseconds for all of them together, without the test's own overhead.
    pub ns: f64,
    /// Nanoseconds for forwarding the same packets unread to one neighbour, in the same run.
    pub forward_ns: f64,
}

/// Returns the packets of a round, each with how far its sender's `committed` is behind the round's record, and the
/// counters that they increment.
fn steps(part: Part, nodes: usize, value: &[u8]) -> (Vec<Step>, &'static [&'static str]) {
    let packet = |header: Header, value: &[u8], behind| {
        let packet = emit(&header, value);
        (udp_frame(address(9), address(NODE), &packet), behind)
    };
    if part == Part::Follower {
        let of = |kind| Header {
            node: 1,
            epoch: EPOCH_OF_1,
            record_epoch: EPOCH_OF_1,
            ..Header::of(kind)
        };
        let steps = vec![
            packet(of(Type::Propose), value, 1),
            packet(of(Type::Commit), &[], 0),
        ];
        return (steps, &["box_appended", "box_commit_learned"]);
    }
    let submit = Header {
        node: 1,
        origin: 1,
        ..Header::of(Type::Submit)
    };
    let mut steps = vec![packet(submit, value, 0)];
    for node in (1..=nodes as u16).filter(|node| *node != u16::from(NODE)) {
        let ack = Header {
            node,
            epoch: OWN_EPOCH,
            ..Header::of(Type::Ack)
        };
        steps.push(packet(ack, &[], 1));
    }
    let counted: &[&str] = match nodes {
        3 => &["box_submitted", "box_committed", "box_ack_late"],
        _ => &[
            "box_submitted",
            "box_ack_counted",
            "box_committed",
            "box_ack_late",
        ],
    };
    (steps, counted)
}

/// Returns the registers of a node in steady state.
fn view_of(part: Part, nodes: usize) -> View {
    let (mode, epoch) = match part {
        Part::Leader => (Mode::Leading, OWN_EPOCH),
        Part::Follower => (Mode::Following, EPOCH_OF_1),
    };
    View {
        mode,
        epoch,
        leader: owner_of(epoch),
        first: 1,
        // 0: as if the leader's own no-op had been committed.
        established_at: 0,
        members: (2 << nodes) - 2,
        quorum: nodes / 2 + 1,
        window: CAPACITY as u64,
        // The process applies at once.
        applied: u64::MAX,
        ..View::default()
    }
}

/// Measures the cost of a record with this many bytes.
pub fn round_cost(
    part: Part,
    nodes: usize,
    value_len_bytes: usize,
    authenticated: bool,
) -> Result<RoundCost, XdpError> {
    let program = Spec {
        node: NODE,
        capacity: CAPACITY,
        address: address(NODE),
        mode: XdpMode::Native,
        keys: authenticated.then(keys).transpose()?,
        clients: None,
    }
    .load()?;
    program.registers().restore(&view_of(part, nodes));
    let polling: Shared<u64> = program.loaded().registers("ib_polling_map")?;
    polling.set(0, 1);
    let (steps, counted) = steps(part, nodes, &vec![7; value_len_bytes]);
    let round = Steps {
        driver: ("bench_box", objects::BENCH_BOX),
        steps: &steps,
        own: [0; 4],
    };
    let [ns, forward_ns] = round.round_ns(
        |name, object| program.load_beside(name, object),
        program.loaded().program.as_raw_fd(),
    )?;
    let what = format_args!("a round at the {part:?}");
    check_counted(&program.counters()?, counted, what)?;
    Ok(RoundCost {
        part,
        nodes,
        value_len_bytes,
        authenticated,
        packets: steps.len(),
        ns,
        forward_ns,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Prints the figures and asserts only that they are plausible numbers, since machines are noisy.
    #[test]
    fn costs_are_measured() {
        // A subset: some of the programs take long to load.
        for (part, nodes, value_len_bytes, authenticated) in [
            (Part::Leader, 3, 64, false),
            (Part::Leader, 5, 1248, true),
            (Part::Follower, 3, 64, true),
            (Part::Follower, 3, 1248, false),
        ] {
            let cost = match round_cost(part, nodes, value_len_bytes, authenticated) {
                Err(XdpError::Privilege { what }) => {
                    return inband_testing::not_run(format!("{what} is not allowed"));
                }
                other => other.unwrap(),
            };
            eprintln!("{cost:?}");
            assert!(cost.ns > cost.forward_ns.max(0.0) && cost.ns < 1_000_000.0);
        }
    }
}
