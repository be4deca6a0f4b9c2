//! Live frames: a program's frames are actually sent, received and handled, all within one system call.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

/// Frames to make before the network handles them: a veth's ring takes 256, and a leader turns one into three.
const BATCH_FRAMES: u32 = 64;

/// Runs a program on `count` copies of a frame, as if each had arrived at the interface, and executes its verdicts in
/// the network namespace of the calling thread. The frames' memory is reused as later programs left it.
pub fn send(program: &OwnedFd, frame: &[u8], ifindex: u32, count: u32) -> io::Result<()> {
    // SAFETY: all zero is a valid value of this plain C struct; it is filled in below.
    let mut arrival: libbpf_sys::xdp_md = unsafe { std::mem::zeroed() };
    arrival.data_end = frame.len() as u32;
    arrival.ingress_ifindex = ifindex;
    // SAFETY: as above.
    let mut options: libbpf_sys::bpf_test_run_opts = unsafe { std::mem::zeroed() };
    options.sz = size_of::<libbpf_sys::bpf_test_run_opts>() as u64;
    options.data_in = frame.as_ptr().cast();
    options.data_size_in = frame.len() as u32;
    options.ctx_in = (&raw const arrival).cast();
    options.ctx_size_in = size_of::<libbpf_sys::xdp_md>() as u32;
    options.repeat = count as i32;
    options.flags = libbpf_sys::BPF_F_TEST_XDP_LIVE_FRAMES;
    options.batch_size = BATCH_FRAMES;
    // SAFETY: frame and context are valid for the sizes given, which the kernel only reads.
    let result =
        unsafe { libbpf_sys::bpf_prog_test_run_opts(program.as_raw_fd(), &raw mut options) };
    if result < 0 {
        return Err(io::Error::from_raw_os_error(-result));
    }
    Ok(())
}
