//! A client in the data plane: REQUESTs as live frames, as fast as the network takes them. What comes
//! of them is for the cluster's own learners to say.

use std::mem::offset_of;
use std::net::SocketAddrV4;

use super::live;
use crate::c;
use crate::wire::{digest, emit, Header, Type};
use crate::xdp::programs::{load_object, objects, Loaded};
use crate::xdp::rig::udp_frame;
use crate::xdp::XdpError;

/// One end of the way to the leader: hardware address, then IP address and port.
pub type End = ([u8; 6], SocketAddrV4);

/// Of no member of any cluster that is fed.
const NODE: u16 = 254;

/// A program that sends, and what it sends. All requests are the same; a leader stamps each anew.
pub struct Feeder {
    program: Loaded,
    frame: Vec<u8>,
}

impl Feeder {
    /// Requests from one end to the other in a configuration epoch.
    pub fn load(from: End, to: End, epoch: u32, value: &[u8]) -> Result<Feeder, XdpError> {
        let mut header = Header::new(Type::Request, NODE, epoch);
        (header.client_id, header.client_seq, header.digest) = (1, 1, digest(value));
        let mut packet = Vec::new();
        emit(&header, value, &mut packet);
        let mut frame = udp_frame(from.1, to.1, &packet);
        frame[..6].copy_from_slice(&to.0);
        frame[6..12].copy_from_slice(&from.0);
        // The registers it looks for are its own and empty: it raises no floor.
        let program = load_object("bench_feed", objects::BENCH_FEED, None, &[], &[])?;
        program.set_bytes("ib_feed_map", 0, &words(&frame))?;
        Ok(Feeder { program, frame })
    }

    /// Send so many out of an interface of the calling thread's namespace; returns when all are sent.
    /// The interface must have a program attached.
    pub fn send(&self, ifindex: u32, count: u32) -> Result<(), XdpError> {
        use crate::xdp::error::Doing;
        live::send(&self.program.program, &self.frame, ifindex, count).doing("sending live frames")
    }
}

/// `struct ib_feed`: headers to write anew, and neither clock nor floors.
fn words(frame: &[u8]) -> Vec<u8> {
    const NEVER: u64 = 1 << 62;
    let mut bytes = vec![0u8; size_of::<c::ib_feed>()];
    let mut put =
        |offset: usize, from: &[u8]| bytes[offset..offset + from.len()].copy_from_slice(from);
    put(offset_of!(c::ib_feed, window_packets), &NEVER.to_ne_bytes());
    put(offset_of!(c::ib_feed, floor_packets), &NEVER.to_ne_bytes());
    put(
        offset_of!(c::ib_feed, headers),
        &frame[..c::IB_BENCH_HEADERS_LEN_BYTES as usize],
    );
    bytes
}
