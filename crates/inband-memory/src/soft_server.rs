//! The memory server, run in this process.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::Arc;

use inband_ground::wire::PACKET_LEN_MAX_BYTES;
use inband_ground::Counters;

use crate::registers::ServerRegisters;
use crate::soft_switch::Handled;
use crate::{c, Memory, SERVERS};

/// A build of the role in C.
pub type ServerBuild =
    unsafe extern "C" fn(*const c::ib_memory_soft_server, *mut u8, *mut u32) -> c::ib_result;

/// A server in this process. Any number of threads may pass packets to it concurrently.
pub struct SoftServer {
    registers: Arc<ServerRegisters>,
    counters: Counters,
    raw: c::ib_memory_soft_server,
    build: ServerBuild,
}

// SAFETY: `raw` points into `registers` and `counters`, which live as long as it does and are shared memory by design:
// ib_memory_server_handle accesses them only with the atomic operations of shell.h.
unsafe impl Send for SoftServer {}
// SAFETY: as above; `raw` itself is only read.
unsafe impl Sync for SoftServer {}

impl SoftServer {
    /// Creates a server with empty memory, which answers nobody yet.
    ///
    /// # Panics
    /// If `node` is not in [`SERVERS`].
    pub fn new(node: u8, chunks: usize) -> SoftServer {
        // SAFETY: this is the build that the crate links.
        unsafe { SoftServer::with_build(node, chunks, c::ib_memory_server_handle) }
    }

    /// Creates a server with another build of the role, for tests.
    ///
    /// # Safety
    /// The function must do with memory only what `ib_memory_server_handle` is documented to do.
    pub unsafe fn with_build(node: u8, chunks: usize, build: ServerBuild) -> SoftServer {
        assert!(SERVERS.contains(&usize::from(node)), "node {node}");
        let registers = Arc::new(ServerRegisters::zeroed(chunks));
        let counters = Counters::default();
        let raw = c::ib_memory_soft_server {
            node: u32::from(node),
            reserved: 0,
            chunks: chunks as u64,
            registers: registers.server.as_ptr(),
            chunk: registers.chunks.as_ptr(),
            counters: counters.as_ptr(),
        };
        SoftServer {
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
    pub fn handle(&self, buffer: &mut [u8; PACKET_LEN_MAX_BYTES], len_bytes: usize) -> Handled {
        assert!(len_bytes <= buffer.len(), "a packet fits the buffer");
        let mut len_bytes = len_bytes as u32;
        // SAFETY: the payload is within the buffer, which has room for any packet; the registers that `raw` points to
        // live as long as self, and their sizes are those in `raw`.
        let result =
            unsafe { (self.build)(&raw const self.raw, buffer.as_mut_ptr(), &raw mut len_bytes) };
        let nobody = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0);
        Handled::new(result, len_bytes, nobody)
    }

    pub fn registers(&self) -> &Arc<ServerRegisters> {
        &self.registers
    }

    /// Returns the counters that are not zero, by name.
    pub fn counters(&self) -> BTreeMap<&'static str, u64> {
        self.counters.by_name::<Memory>()
    }
}
