//! The switch, run in this process.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::Arc;

use inband_ground::wire::PACKET_LEN_MAX_BYTES;
use inband_ground::Counters;

use crate::registers::{SwitchRegisters, SwitchSizes};
use crate::{c, Memory, SERVERS, SWITCH_NODES};

/// What to do with a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    Drop,
    /// Pass it unchanged to the host's process.
    Pass,
    /// Rewritten: send it back to its sender.
    Reply,
    /// Rewritten: send it to all servers.
    ToServers,
    /// Rewritten: send it to this client.
    ToClient(SocketAddrV4),
}

/// The result of handling a packet in a role.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Handled {
    /// What to do with the packet.
    pub verdict: Verdict,
    /// The reason, as the index of a counter.
    pub reason: u32,
    /// The packet's new length. If it leaves, it must be signed first.
    pub len_bytes: usize,
}

impl Handled {
    pub(crate) fn new(result: c::ib_result, len_bytes: u32, to: SocketAddrV4) -> Handled {
        Handled {
            verdict: match result.verdict {
                c::IB_PASS => Verdict::Pass,
                c::IB_REPLY => Verdict::Reply,
                c::IB_MEMORY_TO_SERVERS => Verdict::ToServers,
                c::IB_MEMORY_TO_CLIENT => Verdict::ToClient(to),
                _ => Verdict::Drop,
            },
            reason: result.reason,
            len_bytes: len_bytes as usize,
        }
    }
}

/// Configuration of a switch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SwitchSpec {
    /// Its node id, of [`SWITCH_NODES`].
    pub node: u8,
    /// Number of servers; their node ids start at 1.
    pub servers: usize,
    /// Chunks of the memory.
    pub chunks: u64,
    /// Lines that share a write counter: a power of two, at least the lines of a chunk.
    pub block_lines: u64,
    /// Maximum number of concurrent sessions.
    pub sessions: usize,
    /// Maximum number of requests in flight, over all sessions.
    pub slots: usize,
}

impl SwitchSpec {
    /// Returns the sizes of its registers.
    pub fn sizes(&self) -> SwitchSizes {
        SwitchSizes {
            chunks: self.chunks,
            block_lines: self.block_lines,
            sessions: self.sessions,
            slots: self.slots,
        }
    }
}

/// A build of the role in C.
pub type SwitchBuild = unsafe extern "C" fn(
    *const c::ib_memory_soft_switch,
    *mut u8,
    *mut u32,
    *mut c::ib_memory_client,
) -> c::ib_result;

/// A switch in this process. Any number of threads may pass packets to it concurrently.
pub struct SoftSwitch {
    registers: Arc<SwitchRegisters>,
    counters: Counters,
    raw: c::ib_memory_soft_switch,
    build: SwitchBuild,
}

// SAFETY: `raw` points into `registers` and `counters`, which live as long as it does and are shared memory by design:
// ib_memory_switch_handle accesses them only with the atomic operations of shell.h.
unsafe impl Send for SoftSwitch {}
// SAFETY: as above; `raw` itself is only read.
unsafe impl Sync for SoftSwitch {}

impl SoftSwitch {
    /// Creates a switch that has just started: not active, and without sessions.
    ///
    /// # Panics
    /// If the node id, the number of servers or the block size is out of range.
    pub fn new(spec: &SwitchSpec) -> SoftSwitch {
        // SAFETY: this is the build that the crate links.
        unsafe { SoftSwitch::with_build(spec, c::ib_memory_switch_handle) }
    }

    /// Creates a switch with another build of the role, for tests.
    ///
    /// # Safety
    /// The function must do with memory only what `ib_memory_switch_handle` is documented to do.
    pub unsafe fn with_build(spec: &SwitchSpec, build: SwitchBuild) -> SoftSwitch {
        let registers = Arc::new(SwitchRegisters::zeroed(&spec.sizes()));
        let SwitchSpec { node, servers, .. } = *spec;
        assert!(SWITCH_NODES.contains(&node), "node {node} is not a switch");
        assert!(SERVERS.contains(&servers), "{servers} servers");
        let counters = Counters::default();
        let raw = c::ib_memory_soft_switch {
            node: u32::from(node),
            servers: servers as u32,
            sessions: registers.sessions.count() as u32,
            slots: registers.slots.count() as u32,
            chunks: spec.chunks,
            block_shift: spec.sizes().block_shift(),
            reserved: 0,
            registers: registers.switch.as_ptr(),
            block: registers.blocks.as_ptr(),
            session: registers.sessions.as_ptr(),
            slot: registers.slots.as_ptr(),
            counters: counters.as_ptr(),
        };
        SoftSwitch {
            registers,
            counters,
            raw,
            build,
        }
    }

    /// Handles the UDP payload `buffer[..len_bytes]`, which has passed the gate.
    ///
    /// # Panics
    /// If it is longer than the buffer.
    pub fn handle(
        &self,
        buffer: &mut [u8; PACKET_LEN_MAX_BYTES],
        len_bytes: usize,
        from: SocketAddrV4,
    ) -> Handled {
        assert!(len_bytes <= buffer.len(), "a packet fits the buffer");
        let mut len_bytes = len_bytes as u32;
        let mut client = c::ib_memory_client {
            address: from.ip().to_bits(),
            port: from.port(),
            mac: [0; 6],
            own_mac: [0; 6],
            reserved: 0,
            ifindex: 0,
        };
        // SAFETY: the payload is within the buffer, which has room for any packet; the registers that `raw` points to
        // live as long as self, and their sizes are those in `raw`.
        let result = unsafe {
            (self.build)(
                &raw const self.raw,
                buffer.as_mut_ptr(),
                &raw mut len_bytes,
                &raw mut client,
            )
        };
        let to = SocketAddrV4::new(Ipv4Addr::from_bits(client.address), client.port);
        Handled::new(result, len_bytes, to)
    }

    pub fn registers(&self) -> &Arc<SwitchRegisters> {
        &self.registers
    }

    /// Returns the counters that are not zero, by name.
    pub fn counters(&self) -> BTreeMap<&'static str, u64> {
        self.counters.by_name::<Memory>()
    }
}
