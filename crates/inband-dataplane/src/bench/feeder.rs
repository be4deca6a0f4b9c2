//! A client in the data plane: REQUESTs as live frames at an even pace. What comes of them is for the
//! cluster's own learners to say.

use std::mem::offset_of;
use std::net::SocketAddrV4;
use std::os::fd::AsFd;

use super::live;
use crate::c;
use crate::registers::Shared;
use crate::wire::{digest, emit, Header, Type};
use crate::xdp::error::Doing;
use crate::xdp::maps::map_array;
use crate::xdp::programs::{load_object, objects, Loaded};
use crate::xdp::rig::udp_frame;
use crate::xdp::XdpError;

/// One end of the way to the leader: hardware address, then IP address and port.
pub type End = ([u8; 6], SocketAddrV4);

const NS_PER_S: u64 = 1_000_000_000;
/// Of no member of any cluster that is fed.
const NODE: u16 = 254;

/// A program that sends, and what it sends. All requests are the same; a leader stamps each anew.
pub struct Feeder {
    program: Loaded,
    words: Shared<c::ib_feed>,
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
        let words = map_array(program.map("ib_feed_map")?.as_fd(), 1)?;
        Ok(Feeder {
            program,
            words,
            frame,
        })
    }

    /// Make `tries` to send out of an interface of the calling thread's namespace, of which those go
    /// that are due at so many a second; returns how many have gone. The interface must have a program
    /// attached.
    pub fn send(&self, ifindex: u32, rate_per_s: u32, tries: u32) -> Result<u64, XdpError> {
        let interval_ns = NS_PER_S / u64::from(rate_per_s.max(1));
        let start = words(&self.frame, interval_ns);
        self.program.set_bytes("ib_feed_map", 0, &start)?;
        live::send(&self.program.program, &self.frame, ifindex, tries)
            .doing("sending live frames")?;
        let packets = offset_of!(c::ib_feed, packets) / size_of::<u64>();
        Ok(self.words.words(0)[packets])
    }
}

/// `struct ib_feed`: headers to write anew and a pace, but neither clock nor floors.
fn words(frame: &[u8], interval_ns: u64) -> Vec<u8> {
    const NEVER: u64 = 1 << 62;
    let mut bytes = vec![0u8; size_of::<c::ib_feed>()];
    let mut put =
        |offset: usize, from: &[u8]| bytes[offset..offset + from.len()].copy_from_slice(from);
    put(offset_of!(c::ib_feed, window_packets), &NEVER.to_ne_bytes());
    put(offset_of!(c::ib_feed, floor_packets), &NEVER.to_ne_bytes());
    put(
        offset_of!(c::ib_feed, interval_ns),
        &interval_ns.to_ne_bytes(),
    );
    put(
        offset_of!(c::ib_feed, headers),
        &frame[..c::IB_BENCH_HEADERS_LEN_BYTES as usize],
    );
    bytes
}
