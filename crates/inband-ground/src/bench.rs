//! Measures programs with test runs; shared by the systems' measurements.

pub mod gate;

use std::collections::BTreeMap;
use std::fmt::Display;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsRawFd, RawFd};

use crate::auth::{Keys, Secret};
use crate::c;
use crate::objects::BENCH_FORWARD;
use crate::xdp::error::Doing;
use crate::xdp::maps::update;
use crate::xdp::programs::{test_run, Loaded};
use crate::xdp::rig::run;
use crate::xdp::{wire_address, wire_port, XdpError};

/// Runs per system call. Few enough that a burst of decided values fits in the ring buffer and a leader's window does
/// not fill up.
pub const REPEAT: u32 = 1_000;
/// System calls per figure; the figure is their median.
pub const BATCHES: usize = 21;
/// Batches before measuring, to warm caches and fill rings.
pub const WARM_UP_BATCHES: usize = 4;
/// Space for a frame in `struct ib_bench` and `struct ib_step`.
const FRAME_LEN_BYTES: usize = 1520;
/// Maximum steps in `struct ib_steps`.
pub const STEPS_MAX: usize = 8;
/// The XDP return code for sending a packet back out.
const XDP_TX: u32 = 3;

pub const fn address(last: u8) -> SocketAddrV4 {
    SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, last), 7707)
}

pub fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 2]
}

/// A measurement that can be repeated.
pub type Measurement<'a> = &'a mut dyn FnMut() -> Result<f64, XdpError>;

/// Medians of several measurements, interleaved so that all see the same noise.
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

/// Nanoseconds per run.
pub fn time(program: &Loaded, frame: &[u8]) -> Result<f64, XdpError> {
    let run = loop {
        match test_run(&program.program, frame, REPEAT) {
            // The process was stopped for a moment.
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            run => break run,
        }
    };
    let run = run.map_err(|source| XdpError::System {
        what: "a test run".into(),
        source,
    })?;
    Ok(run.time.as_nanos() as f64)
}

/// Arbitrary keys.
pub fn keys() -> Result<Keys, XdpError> {
    let keys = Keys::new(1, &[(1, Secret([7; 16]))]);
    keys.map_err(|error| XdpError::Spec(error.to_string()))
}

/// Gives a loaded driver (`ground/xdp/bench.h`) its frame (`struct ib_bench`).
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
    bench.resize(header_len_bytes + FRAME_LEN_BYTES, 0);
    driver.set_bytes("ib_bench_map", 0, &bench)?;
    Ok(driver)
}

/// Sets up the loaded baseline to forward to a neighbour behind the interface of test runs.
pub fn forwarding(forward: Loaded) -> Result<Loaded, XdpError> {
    let member = c::ib_member {
        known: 1,
        ifindex: 1, // the interface of test runs
        to_address: wire_address(address(3)),
        from_address: wire_address(address(2)),
        to_port: wire_port(address(3)),
        from_port: wire_port(address(2)),
        to_mac: [2, 0, 0, 0, 0, 3],
        from_mac: [2, 0, 0, 0, 0, 2],
    };
    let map = forward.map("ib_target_map")?;
    update(&map, &0u32, &member).doing("setting where packets are forwarded to")?;
    Ok(forward)
}

/// A packet of a round: its frame, and the system's number for it (`ground/xdp/steps.h`).
pub type Step = (Vec<u8>, u32);

/// The packets of a round, replayed by a driver that includes `ground/xdp/steps.h`.
#[derive(Debug)]
pub struct Steps<'a> {
    /// Name and object of the driver.
    pub driver: (&'static str, &'a [u8]),
    /// The packets, at most [`STEPS_MAX`].
    pub steps: &'a [Step],
    /// Numbers for the system's use.
    pub own: [u64; 4],
}

impl Steps<'_> {
    /// As `struct ib_steps`.
    fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for word in [0, self.steps.len() as u64].into_iter().chain(self.own) {
            bytes.extend_from_slice(&word.to_ne_bytes());
        }
        for at in 0..STEPS_MAX {
            let (frame, own) = self.steps.get(at).cloned().unwrap_or_default();
            bytes.extend_from_slice(&(frame.len() as u32).to_ne_bytes());
            bytes.extend_from_slice(&own.to_ne_bytes());
            let end = bytes.len() + FRAME_LEN_BYTES;
            bytes.extend_from_slice(&frame);
            bytes.resize(end, 0);
        }
        bytes
    }

    /// Returns the total time for the packets of one round in ns, without the driver's overhead: in the program
    /// `measured`, and when forwarded unparsed to one neighbour. `load_beside` loads a program that shares the settings
    /// and keys of the measured one.
    ///
    /// # Panics
    /// If there are more steps than [`STEPS_MAX`].
    pub fn round_ns(
        &self,
        load_beside: impl Fn(&'static str, &[u8]) -> Result<Loaded, XdpError>,
        measured: RawFd,
    ) -> Result<[f64; 2], XdpError> {
        let count = self.steps.len();
        assert!(count <= STEPS_MAX, "{count} steps");
        let frame = &self.steps[0].0;
        let forward = forwarding(load_beside("bench_forward", BENCH_FORWARD)?)?;
        if run(&forward.program, frame, 1)?.action != XDP_TX {
            return Err(XdpError::Spec(
                "the baseline did not forward: rebuild inband".into(),
            ));
        }
        let driving = |measured: Option<RawFd>| {
            let (name, object) = self.driver;
            let driver = load_beside(name, object)?;
            driver.set_bytes("ib_bench_map", 0, &self.bytes())?;
            if let Some(measured) = measured {
                driver.set_bytes("ib_measured_map", 0, &measured.to_ne_bytes())?;
            }
            Ok::<Loaded, XdpError>(driver)
        };
        let alone = driving(None)?;
        let handled = driving(Some(measured))?;
        let forwarded = driving(Some(forward.program.as_raw_fd()))?;
        let [driver_ns, handled_ns, forwarded_ns] = in_turns([
            &mut || time(&alone, frame),
            &mut || time(&handled, frame),
            &mut || time(&forwarded, frame),
        ])?;
        Ok([handled_ns, forwarded_ns].map(|ns| (ns - driver_ns) * count as f64))
    }
}

/// Checks that the packets took the intended path: each of these counters was incremented, and no other.
pub fn check_counted(
    counters: &BTreeMap<&'static str, u64>,
    counted: &[&str],
    what: impl Display,
) -> Result<(), XdpError> {
    let is_all = counted.iter().all(|name| counters.contains_key(name));
    if is_all && counters.len() == counted.len() {
        return Ok(());
    }
    Err(XdpError::Spec(format!(
        "{what} was measured on packets that took another way: {counters:?}"
    )))
}
