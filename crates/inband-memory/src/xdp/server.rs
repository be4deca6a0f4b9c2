//! The memory server as an XDP program.

use std::net::SocketAddrV4;

use inband_ground::auth::Keys;
use inband_ground::xdp::alone::{self, HostSpec};
use inband_ground::xdp::{XdpError, XdpMode};

use crate::registers::ServerRegisters;
use crate::{c, objects, Memory, SERVERS, SPACES};

/// The loaded program. It answers nobody until its registers say that it serves.
pub type Program = alone::Program<Memory, ServerRegisters>;
/// The program, attached to an interface.
pub type Attached = alone::Attached<Memory, ServerRegisters>;

/// Configuration of the program.
#[derive(Debug, Clone)]
pub struct Spec {
    /// This host's node id, one of [`SERVERS`].
    pub node: u8,
    /// Chunks of the memory.
    pub chunks: usize,
    /// This host's address as switches know it.
    pub address: SocketAddrV4,
    /// Native or generic.
    pub mode: XdpMode,
    /// With keys, packets without a valid tag are dropped, and outgoing packets are tagged.
    pub keys: Option<Keys>,
}

impl Spec {
    fn check(&self) -> Result<(), XdpError> {
        if !SERVERS.contains(&usize::from(self.node)) {
            return Err(XdpError::Spec(format!(
                "server {} is not one of {SERVERS:?}",
                self.node
            )));
        }
        super::check_count("chunks", self.chunks)
    }

    pub fn load(&self) -> Result<Program, XdpError> {
        self.load_object(objects::SERVER)
    }

    /// Loads another build of the program, for tests.
    pub fn load_object(&self, object: &[u8]) -> Result<Program, XdpError> {
        self.check()?;
        let host = HostSpec {
            node: self.node,
            address: self.address,
            mode: self.mode,
            keys: self.keys,
        };
        let own = c::ib_memory_settings {
            chunks: self.chunks as u64,
            servers: 0,
            block_shift: 0,
        };
        let settings = host.settings(SPACES, &own)?;
        let sizes = [("ib_chunks_map", self.chunks)];
        Program::load("server", object, &host, settings, &sizes, |loaded| {
            Ok(ServerRegisters {
                server: loaded.registers("ib_server_map")?,
                chunks: loaded.registers("ib_chunks_map")?,
            })
        })
    }

    /// Loads the program and attaches it to the interface that has its address.
    pub fn attach(&self, interface: &str) -> Result<Attached, XdpError> {
        self.load()?.attach(interface)
    }
}
