//! Measuring programs by test runs: what systems' measurements have in common.

use std::net::{Ipv4Addr, SocketAddrV4};

use crate::auth::{Keys, Secret};
use crate::xdp::programs::{test_run, Loaded};
use crate::xdp::XdpError;

/// Runs in one system call; few enough that a burst of decided values fits the ring buffer, and that a
/// leader's window is not full before the end.
pub const REPEAT: u32 = 1_000;
/// System calls a figure; their median counts.
pub const BATCHES: usize = 21;
/// Batches before measuring, to warm caches and fill rings.
pub const WARM_UP_BATCHES: usize = 4;
/// Room for a frame in `struct ib_bench`.
pub const BENCH_FRAME_LEN_BYTES: usize = 1520;
pub const fn address(last: u8) -> SocketAddrV4 {
    SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, last), 7707)
}

pub fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 2]
}

/// One measurement, to be taken many times.
pub type Measurement<'a> = &'a mut dyn FnMut() -> Result<f64, XdpError>;

/// Medians of several measurements, taken in turns so that all see the same noise.
pub fn in_turns<const N: usize>(mut all: [Measurement<'_>; N]) -> Result<[f64; N], XdpError> {
    let mut samples = [const { Vec::new() }; N];
    for batch in 0..WARM_UP_BATCHES + BATCHES {
        for (measure, samples) in all.iter_mut().zip(&mut samples) {
            let sample = measure()?;
            if batch >= WARM_UP_BATCHES {
                samples.push(sample);
            }
        }
    }
    Ok(samples.map(median))
}

/// Nanoseconds a run.
pub fn time(program: &Loaded, frame: &[u8]) -> Result<f64, XdpError> {
    let run = test_run(&program.program, frame, REPEAT);
    let run = run.map_err(|source| XdpError::System {
        what: "a test run".into(),
        source,
    })?;
    Ok(run.time.as_nanos() as f64)
}

/// Any key.
pub fn keys() -> Result<Keys, XdpError> {
    let keys = Keys::new(1, &[(1, Secret([7; 16]))]);
    keys.map_err(|error| XdpError::Spec(error.to_string()))
}

/// Give a loaded driver (`ground/xdp/bench.h`) its frame (`struct ib_bench`).
pub fn driver_of(
    driver: Loaded,
    frame: &[u8],
    per_number: usize,
    first_node: u8,
) -> Result<Loaded, XdpError> {
    let mut bench = 0u64.to_ne_bytes().to_vec();
    for word in [
        per_number as u32,
        u32::from(first_node),
        frame.len() as u32,
        0,
    ] {
        bench.extend_from_slice(&word.to_ne_bytes());
    }
    let header_len_bytes = bench.len();
    bench.extend_from_slice(frame);
    bench.resize(header_len_bytes + BENCH_FRAME_LEN_BYTES, 0);
    driver.set_bytes("ib_bench_map", 0, &bench)?;
    Ok(driver)
}
