//! The cost of a round's packets in the kernel, with test runs.

use anyhow::Result;
use inband_box::bench::{round_cost, Part};
use inband_ground::xdp::XdpError;

use super::{row, Run};
use crate::row::{median, progress, Baseline, Output};

const NODES: [usize; 2] = [3, 7];
const VALUES_LEN_BYTES: [usize; 2] = [64, 1024];

/// Measures and prints the rows.
pub fn measure(run: &Run<'_>, output: &mut Output) -> Result<()> {
    let rounds = run.quick(1, run.args.rounds);
    for nodes in NODES {
        for value_len_bytes in VALUES_LEN_BYTES {
            for (part, name) in [(Part::Leader, "leader"), (Part::Follower, "follower")] {
                // A follower's work depends only on its leader, not on the number of nodes.
                if part == Part::Follower && nodes != NODES[0] {
                    continue;
                }
                progress(&format!("{name} of {nodes} nodes, {value_len_bytes} B"));
                let mut costs = Vec::new();
                for _ in 0..rounds {
                    match round_cost(part, nodes, value_len_bytes, run.args.secure) {
                        Ok(cost) => costs.push(cost),
                        Err(XdpError::Privilege { what }) => {
                            output.skipped(&format!("the kernel: {what} is not allowed"));
                            return Ok(());
                        }
                        Err(error) => return Err(error.into()),
                    }
                }
                let ns = median(&mut costs.iter().map(|cost| cost.ns).collect::<Vec<_>>());
                let forward =
                    median(&mut costs.iter().map(|cost| cost.forward_ns).collect::<Vec<_>>());
                let packets = costs[0].packets;
                let conditions = format!(
                    "a record's {packets} packets at the {name} of {nodes} nodes, by test runs in the kernel: without links and \
                     copies, and with a process that polls; {rounds} rounds; {}",
                    run.conditions()
                );
                let variant = format!("{name}, {nodes} nodes, {value_len_bytes} B");
                let baseline = Baseline {
                    name: "the same packets forwarded unread".into(),
                    value: forward,
                };
                let row = row("round_kernel_ns", "xdp", variant, (ns, "ns"), conditions);
                output.row(&row.beside(Some(baseline)))?;
            }
        }
    }
    Ok(())
}
