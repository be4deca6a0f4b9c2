//! Runs programs on frames without an interface, with `BPF_PROG_TEST_RUN`. For tests and measurements.

use std::net::SocketAddrV4;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use super::error::{Doing, XdpError};
use super::loopback;
use super::programs::test_run;

/// The result of a test run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TestRun {
    /// The program's return value (`XDP_PASS`, ...).
    pub action: u32,
    /// The frame after the program.
    pub frame: Vec<u8>,
    /// Mean time per run.
    pub time: Duration,
}

/// A payload with Ethernet, IPv4 and UDP headers, between two made-up hardware addresses.
pub fn udp_frame(from: SocketAddrV4, to: SocketAddrV4, payload: &[u8]) -> Vec<u8> {
    loopback::frame([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2], from, to, payload)
}

/// Runs a program on a frame.
pub fn run(program: &OwnedFd, frame: &[u8], repeat: u32) -> Result<TestRun, XdpError> {
    test_run(program, frame, repeat).doing("running a program on a test frame")
}

/// Instructions that this kernel's verifier processed for a program, over all paths.
pub fn verified_insns(program: &OwnedFd) -> Result<u32, XdpError> {
    // SAFETY: all zero is a valid value of this plain C struct.
    let mut info: libbpf_sys::bpf_prog_info = unsafe { std::mem::zeroed() };
    let mut len_bytes = size_of::<libbpf_sys::bpf_prog_info>() as u32;
    // SAFETY: the struct is valid for the length given; with its pointers zero the kernel fills in nothing else.
    let result = unsafe {
        libbpf_sys::bpf_prog_get_info_by_fd(program.as_raw_fd(), &raw mut info, &raw mut len_bytes)
    };
    if result < 0 {
        return Err(std::io::Error::from_raw_os_error(-result)).doing("asking about a program");
    }
    Ok(info.verified_insns)
}
