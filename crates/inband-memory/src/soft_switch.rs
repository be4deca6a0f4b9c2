//! The switch in this process.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::Arc;

use inband_ground::wire::PACKET_LEN_MAX_BYTES;
use inband_ground::Counters;

use crate::registers::{SwitchRegisters, SwitchSizes};
use crate::{c, Memory, SERVERS, SWITCH_NODES};

/// What becomes of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Forget it.
    Drop,
    /// It is for the host's process, unchanged.
    Pass,
    /// Rewritten, to whoever sent it.
    Reply,
    /// Rewritten, to all servers.
    ToServers,
    /// Rewritten, to this client.
    ToClient(SocketAddrV4),
}

/// What a role has done with a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Handled {
    /// What becomes of it.
    pub verdict: Verdict,
    /// Why.
    pub reason: u32,
    /// Its length now. If it leaves, it is to be signed.
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

/// What a switch is to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SwitchSpec {
    /// Its node id, of [`SWITCH_NODES`].
    pub node: u8,
    /// How many servers there are: nodes 1 to this.
    pub servers: usize,
    /// Chunks of the memory.
    pub chunks: u64,
    /// Lines that share a counter of writes: a power of two, at least a chunk's.
    pub block_lines: u64,
    /// Most sessions at once.
    pub sessions: usize,
    /// Most outstanding requests, of all sessions.
    pub slots: usize,
}

impl SwitchSpec {
    /// The sizes of its registers.
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

/// A switch in this process, which any number of threads may hand packets to.
pub struct SoftSwitch {
    registers: Arc<SwitchRegisters>,
    counters: Counters,
    raw: c::ib_memory_soft_switch,
    build: SwitchBuild,
}

// SAFETY: `raw` points into `registers` and `counters`, which live as long as it does and are shared memory by design:
// ib_memory_switch_handle touches them by the atomic steps of shell.h only.
unsafe impl Send for SoftSwitch {}
// SAFETY: as above; `raw` itself is only read.
unsafe impl Sync for SoftSwitch {}

impl SoftSwitch {
    /// A switch that has just started: not active, and without sessions.
    ///
    /// # Panics
    /// If node, servers or the block's lines are not what they may be.
    pub fn new(spec: &SwitchSpec) -> SoftSwitch {
        // SAFETY: it is this build that the crate links.
        unsafe { SoftSwitch::with_build(spec, c::ib_memory_switch_handle) }
    }

    /// A switch of another build, for tests.
    ///
    /// # Safety
    /// The function does what `ib_memory_switch_handle` is documented to do with memory.
    pub unsafe fn with_build(spec: &SwitchSpec, build: SwitchBuild) -> SoftSwitch {
        let registers = Arc::new(SwitchRegisters::zeroed(&spec.sizes()));
        let SwitchSpec { node, servers, .. } = *spec;
        assert!(SWITCH_NODES.contains(&node), "node {node} is no switch's");
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

    /// Handle the UDP payload `buffer[..len_bytes]`, which has passed the gate.
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
        // SAFETY: the payload is within the buffer, which has room for any packet; the registers that `raw` points to live
        // as long as self, and there are as many as it says.
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

    /// Its registers.
    pub fn registers(&self) -> &Arc<SwitchRegisters> {
        &self.registers
    }

    /// Counters by name, those that are not zero.
    pub fn counters(&self) -> BTreeMap<&'static str, u64> {
        self.counters.by_name::<Memory>()
    }
}
