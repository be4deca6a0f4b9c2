//! Frames for test runs of programs, and checks of the frames that leave.

use std::net::{Ipv4Addr, SocketAddrV4};

use inband_ground::auth::sign;
use inband_ground::wire::HEADER_LEN_BYTES;

/// The node id of the host under test.
pub const NODE: u8 = 2;
/// The address of the host under test.
pub const HERE: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 9, 8, 2), 7707);
/// A sender's address.
pub const THERE: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 9, 8, 9), 1234);

/// The switch's own address, which frames arrive at (`udp_frame`).
pub const OWN_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
/// The destination of copies for a group.
pub const GROUP_MAC: [u8; 6] = [1, 0, 0x5e, 1, 2, 3];
pub const GROUP: ([u8; 4], u16) = ([239, 1, 2, 3], 7708);

/// Length of the headers around a packet: Ethernet, IPv4, UDP.
pub const FRAME_LEN_BYTES: usize = 42;
/// Return codes of XDP programs.
pub const XDP_DROP: u32 = 1;
pub const XDP_PASS: u32 = 2;
pub const XDP_TX: u32 = 3;
pub const XDP_REDIRECT: u32 = 4;

/// Returns whether this process may load BPF programs. If not, the test is reported as not run.
pub fn may_load_bpf() -> bool {
    match inband_ground::xdp::probe("lo") {
        Ok(probe) if probe.privileged => return true,
        Ok(probe) => crate::not_run(probe.generic),
        Err(error) => crate::not_run(error),
    }
    false
}

/// Signs a packet as a sender without a key does. A packet shorter than a header is left unchanged.
pub fn tag(packet: &mut [u8]) {
    if packet.len() >= HEADER_LEN_BYTES {
        sign(None, packet);
    }
}

pub fn half(frame: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([frame[at], frame[at + 1]])
}

/// Checks the lengths, a fresh time to live, and that there is no UDP checksum.
pub fn check_sizes(frame: &[u8]) {
    assert!(frame.len() >= FRAME_LEN_BYTES + HEADER_LEN_BYTES);
    assert_eq!(usize::from(half(frame, 16)), frame.len() - 14, "IP length");
    assert_eq!(usize::from(half(frame, 38)), frame.len() - 34, "UDP length");
    assert_eq!((frame[22], half(frame, 40)), (64, 0), "TTL, UDP checksum");
}

/// Checks that addresses are swapped and the IP checksum is correct.
pub fn check_turned(before: &[u8], after: &[u8]) {
    for (a, b, len) in [(0, 6, 6), (26, 30, 4), (34, 36, 2)] {
        assert_eq!(before[a..a + len], after[b..b + len]);
        assert_eq!(before[b..b + len], after[a..a + len]);
    }
    check_ip(after);
}

/// Checks the IP checksum.
pub fn check_ip(after: &[u8]) {
    let words = (14..34).step_by(2);
    let mut sum: u32 = words.map(|at| u32::from(half(after, at))).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    assert_eq!(sum, 0xffff, "IP checksum");
}

/// The frame that answers `frame` with a packet, to its sender or to a group.
pub fn turned(frame: &[u8], packet: &[u8], group: Option<([u8; 4], u16)>) -> Vec<u8> {
    let mut out = [&frame[..42], packet].concat();
    out[..6].copy_from_slice(&frame[6..12]);
    out[6..12].copy_from_slice(&frame[..6]);
    out[26..30].copy_from_slice(&frame[30..34]);
    out[30..34].copy_from_slice(&frame[26..30]);
    out[34..36].copy_from_slice(&frame[36..38]);
    out[36..38].copy_from_slice(&frame[34..36]);
    if let Some((address, port)) = group {
        out[..6].copy_from_slice(&GROUP_MAC);
        out[30..34].copy_from_slice(&address);
        out[36..38].copy_from_slice(&port.to_be_bytes());
    }
    let len = out.len() as u16;
    out[16..18].copy_from_slice(&(len - 14).to_be_bytes());
    out[38..40].copy_from_slice(&(len - 34).to_be_bytes());
    (out[22], out[24], out[25], out[40], out[41]) = (64, 0, 0, 0, 0);
    let halves = out[14..34].chunks(2);
    let sum: u32 = halves
        .map(|h| u32::from(u16::from_be_bytes([h[0], h[1]])))
        .sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    out[24..26].copy_from_slice(&sum.to_be_bytes());
    check_sizes(&out);
    check_ip(&out);
    out
}
