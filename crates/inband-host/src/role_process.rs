//! A process with one role: its options, where the role runs, and the loop of a role in user space.

use std::io;
use std::net::SocketAddrV4;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{ensure, Result};
use clap::Args;
use inband_ground::auth::{Gate, Keys};
use inband_ground::socket::HostSocket;
use inband_ground::wire::PACKET_LEN_MAX_BYTES;
use inband_ground::xdp::{XdpError, XdpMode};

use crate::backend::{resolve, Choice, Place};
use crate::config::Dataplane;
use crate::key_file::KeyFile;
use crate::signals::StopSignals;
use crate::wait::wait;

/// How soon the process notices that it is to stop.
const STOP_POLL: Duration = Duration::from_millis(20);

/// A mode of XDP, and the interface it is for.
pub type KernelPlace<'a> = (XdpMode, &'a str);

/// Options of a process with one role.
#[derive(Debug, Clone, Args)]
pub struct RoleArgs {
    /// Where it runs: udp (in this process), xdp, xdp-generic or auto
    #[arg(long, default_value_t = Dataplane::Udp)]
    dataplane: Dataplane,
    /// The interface that has the address; xdp and xdp-generic attach to it
    #[arg(long, value_name = "NAME", required_if_eq_any = [("dataplane", "xdp"), ("dataplane", "xdp-generic")])]
    interface: Option<String>,
    /// Answer only packets with this key (`inband key new` makes one)
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
    /// Listen beyond loopback without a key
    #[arg(long, conflicts_with = "key_file")]
    no_key: bool,
}

impl RoleArgs {
    /// The keys. Beyond loopback, an error without them, unless the user has asked for that; `risk`: what strangers could do.
    pub fn keys(&self, listen: SocketAddrV4, risk: &str) -> Result<Option<Keys>> {
        let file = self.key_file.as_deref().map(KeyFile::load).transpose()?;
        ensure!(
            file.is_some() || self.no_key || listen.ip().is_loopback(),
            "--listen {listen} is beyond loopback, where {risk}; give --key-file FILE, or say --no-key to allow it"
        );
        Ok(file.map(|file| file.keys()))
    }

    /// Where the role runs; for XDP, in which mode and on which interface. `load`: see [`resolve`].
    pub fn choose(
        &self,
        listen: SocketAddrV4,
        mut load: impl FnMut(XdpMode, SocketAddrV4, &str) -> Result<(), XdpError>,
    ) -> Result<(Choice, Option<KernelPlace<'_>>), XdpError> {
        let interface = self.interface.as_deref().unwrap_or_default();
        let place = self.interface.is_some().then(|| Place {
            interface,
            address: listen,
            peers: Vec::new(),
        });
        let choice = resolve(self.dataplane, place.as_ref(), |mode, address| {
            load(mode, address, interface)
        })?;
        let mode = match choice.dataplane {
            Dataplane::Xdp => Some(XdpMode::Native),
            Dataplane::XdpGeneric => Some(XdpMode::Generic),
            Dataplane::Udp | Dataplane::Auto => None,
        };
        Ok((choice, mode.map(|mode| (mode, interface))))
    }
}

/// Until a signal comes, handle the packets that arrive in user space. `handle` gets a checked packet of so many bytes and
/// returns the length of its answer, if there is one. With the role in the kernel nothing arrives here.
pub fn serve(
    socket: &HostSocket,
    mut gate: Gate,
    signals: &StopSignals,
    mut handle: impl FnMut(&mut [u8; PACKET_LEN_MAX_BYTES], usize, SocketAddrV4) -> Option<usize>,
) -> io::Result<()> {
    let mut buffer = [0; PACKET_LEN_MAX_BYTES + 1];
    while !signals.wait(Duration::ZERO) {
        wait(&[socket.fd()], STOP_POLL);
        while let Some((len_bytes, from)) = socket.receive(&mut buffer)? {
            let packet: &mut [u8; PACKET_LEN_MAX_BYTES] =
                buffer.first_chunk_mut().expect("it is shorter by one");
            if len_bytes > packet.len() || !gate.admits(&packet[..len_bytes]) {
                continue;
            }
            if let Some(len_bytes) = handle(packet, len_bytes, from) {
                gate.sign(&mut packet[..len_bytes]);
                socket.send(&packet[..len_bytes], from);
            }
        }
    }
    Ok(())
}
