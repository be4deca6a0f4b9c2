//! Measures what lines cost in the kernel: reads and writes at the switch and at a server, compared with forwarding the
//! same packets unread. It uses BPF test runs, so links and copies are not included.

use std::collections::BTreeMap;
use std::os::fd::AsRawFd;

use inband_ground::bench::{address, check_counted, keys, Step, Steps, REPEAT};
use inband_ground::xdp::programs::Loaded;
use inband_ground::xdp::rig::udp_frame;
use inband_ground::xdp::{XdpError, XdpMode};

use crate::lines::CHUNK_LINES;
use crate::registers::COUNT_BITS;
use crate::soft_switch::SwitchSpec;
use crate::wire::{self, Header};
use crate::{c, objects, xdp};

const SERVERS: usize = 3;
const EPOCH: u64 = 48;
const SESSION: u64 = 1 << 16;
/// Sizes of the memory in chunks, which are accessed in random order: 64 MiB of lines, and few enough to stay in a
/// processor's cache.
const CHUNKS: [u64; 2] = [1 << 16, 1 << 4];
const SLOTS: usize = 256;

/// The cost of one request for lines of a chunk.
#[derive(Debug, Clone, PartialEq)]
pub struct MemoryCost {
    /// "switch" or "server".
    pub role: &'static str,
    /// "read" or "write".
    pub operation: &'static str,
    /// Lines per request.
    pub lines: u32,
    /// Chunks of the memory, accessed in random order.
    pub chunks: u64,
    /// Whether packets are tagged with a key.
    pub authenticated: bool,
    /// Packets that the role receives per request.
    pub packets: usize,
    /// Nanoseconds for all of them together, without the test's own overhead.
    pub ns: f64,
    /// Nanoseconds for forwarding the same packets unread to one neighbour, in the same run.
    pub forward_ns: f64,
}

/// Measures the cost of one line and of a whole chunk, with and without a key.
pub fn memory_costs() -> Result<Vec<MemoryCost>, XdpError> {
    let mut costs = Vec::new();
    for role in ["switch", "server"] {
        for operation in ["read", "write"] {
            for lines in [1, CHUNK_LINES as u32] {
                for authenticated in [false, true] {
                    // A switch holds no lines, so the number of chunks does not matter.
                    for chunks in CHUNKS
                        .into_iter()
                        .filter(|n| role == "server" || *n > 1 << 4)
                    {
                        costs.push(cost(role, operation, lines, chunks, authenticated)?);
                    }
                }
            }
        }
    }
    Ok(costs)
}

enum Role {
    Switch(Box<xdp::switch::Program>),
    Server(Box<xdp::server::Program>),
}

impl Role {
    fn load(role: &str, chunks: u64, authenticated: bool) -> Result<Role, XdpError> {
        let keys = authenticated.then(keys).transpose()?;
        let address = address(2);
        if role == "server" {
            let program = xdp::server::Spec {
                node: 2,
                chunks: chunks as usize,
                address,
                mode: XdpMode::Native,
                keys,
            }
            .load()?;
            program.registers().set_serving(true);
            return Ok(Role::Server(Box::new(program)));
        }
        let program = xdp::switch::Spec {
            switch: SwitchSpec {
                node: 16,
                servers: SERVERS,
                chunks,
                block_lines: CHUNK_LINES as u64,
                sessions: 1,
                slots: SLOTS,
            },
            address,
            mode: XdpMode::Native,
            keys,
        }
        .load()?;
        program.registers().set_epoch(EPOCH);
        let window = SLOTS as u64;
        program.registers().open_session(0, SESSION, 0, window);
        Ok(Role::Switch(Box::new(program)))
    }

    /// Loads another program, which shares maps of the same name with this one.
    fn load_beside(&self, name: &'static str, object: &[u8]) -> Result<Loaded, XdpError> {
        match self {
            Role::Switch(program) => program.load_beside(name, object),
            Role::Server(program) => program.load_beside(name, object),
        }
    }

    fn descriptor(&self) -> i32 {
        match self {
            Role::Switch(program) => program.loaded().program.as_raw_fd(),
            Role::Server(program) => program.loaded().program.as_raw_fd(),
        }
    }

    fn counters(&self) -> Result<BTreeMap<&'static str, u64>, XdpError> {
        match self {
            Role::Switch(program) => program.counters(),
            Role::Server(program) => program.counters(),
        }
    }

    /// Returns the packets of a request, and the counters that they increment.
    fn steps(&self, operation: &str, lines: u32) -> (Vec<Step>, &'static [&'static str]) {
        let reads = operation == "read";
        let header = |kind, node| Header {
            kind,
            node,
            epoch: EPOCH,
            session: SESSION,
            lines: (1 << lines) - 1,
            ..Header::default()
        };
        let line_bytes = vec![7; 64 * lines as usize];
        let both = [vec![0; 8 * lines as usize], line_bytes.clone()].concat();
        let packet = |header: Header, value: &[u8], kind| {
            let mut packet = Vec::new();
            wire::emit(&header, value, &mut packet);
            let frame = udp_frame(address(9), address(2), &packet);
            (frame, kind)
        };
        match (self, reads) {
            (Role::Server(_), true) => (
                vec![packet(header(wire::READ, 16), &[], 0)],
                &["memory_read"],
            ),
            (Role::Server(_), false) => (
                vec![packet(header(wire::WRITE, 16), &line_bytes, 0)],
                &["memory_written"],
            ),
            (Role::Switch(_), reads) => {
                let (request, answer, phase) = match reads {
                    true => (wire::READ_REQUEST, wire::READ_ANSWER, c::IB_MEMORY_READING),
                    false => (wire::WRITE_REQUEST, wire::ACK, c::IB_MEMORY_WRITING),
                };
                let [asked, answered] = match reads {
                    true => [&[][..], &both[..]],
                    false => [&line_bytes[..], &[][..]],
                };
                let mut steps = vec![packet(header(request, 0), asked, 0)];
                let nodes = 1..=SERVERS as u16;
                steps.extend(nodes.map(|node| packet(header(answer, node), answered, phase)));
                let counted: &[&str] = match reads {
                    true => &[
                        "memory_read_begun",
                        "memory_read_counted",
                        "memory_read_done",
                        "memory_answer_late",
                    ],
                    false => &[
                        "memory_write_begun",
                        "memory_ack_counted",
                        "memory_write_done",
                        "memory_answer_late",
                    ],
                };
                (steps, counted)
            }
        }
    }
}

fn cost(
    role: &'static str,
    operation: &'static str,
    lines: u32,
    chunks: u64,
    authenticated: bool,
) -> Result<MemoryCost, XdpError> {
    let loaded = Role::load(role, chunks, authenticated)?;
    let (steps, counted) = loaded.steps(operation, lines);
    assert!(
        REPEAT as usize % steps.len() == 0,
        "whole requests in a batch"
    );
    let round = Steps {
        driver: ("bench_memory", objects::BENCH_MEMORY),
        steps: &steps,
        // Same layout as in dataplane/memory/bench_memory.bpf.c.
        own: [EPOCH << COUNT_BITS, chunks - 1, SLOTS as u64, 0],
    };
    let load_beside = |name, object: &[u8]| loaded.load_beside(name, object);
    let [ns, forward_ns] = round.round_ns(load_beside, loaded.descriptor())?;
    let what = format_args!("a {operation} at the {role}");
    check_counted(&loaded.counters()?, counted, what)?;
    Ok(MemoryCost {
        role,
        operation,
        lines,
        chunks,
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
        let [_, few] = CHUNKS;
        let some = [
            ("switch", "read", 16, true),
            ("switch", "write", 1, false),
            ("server", "read", 1, true),
            ("server", "write", 16, false),
        ];
        let costs =
            some.map(|(role, operation, lines, key)| cost(role, operation, lines, few, key));
        let costs = match costs.into_iter().collect::<Result<Vec<MemoryCost>, _>>() {
            Err(XdpError::Privilege { what }) => {
                return inband_testing::not_run(format!("{what} is not allowed"));
            }
            other => other.unwrap(),
        };
        for cost in costs {
            eprintln!("{cost:?}");
            assert!(cost.ns > cost.forward_ns.max(0.0) && cost.ns < 1_000_000.0);
        }
    }
}
