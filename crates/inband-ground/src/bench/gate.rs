//! The cost of a gate's packets, compared with a program that passes them unread.

use std::os::fd::AsRawFd;

use super::{address, check_counted, driver_of, in_turns, keys, time};
use crate::c;
use crate::objects::{BARE, BENCH_GATE};
use crate::wire::HEADER_LEN_BYTES;
use crate::xdp::gate::{Program, Side};
use crate::xdp::programs::{load_object, Loaded};
use crate::xdp::rig::udp_frame;
use crate::xdp::XdpError;

/// A gate reads no value, so its length makes no difference.
const VALUE_LEN_BYTES: usize = 64;

/// The interface of test runs.
const TEST_RUNS_IFINDEX: u32 = 1;

/// The cost of a packet that enters on one side.
#[derive(Debug, Clone, Copy)]
pub struct GateCost {
    pub side: Side,
    /// Time to check and replace its tag in ns, without the overhead of the test.
    pub ns: f64,
    /// Time of a program that passes it unread in ns, in the same run.
    pub bare_ns: f64,
}

fn frame() -> Vec<u8> {
    let mut packet = vec![0; HEADER_LEN_BYTES + VALUE_LEN_BYTES];
    packet[..4].copy_from_slice(&c::IB_MAGIC.to_be_bytes());
    (packet[4], packet[5]) = (c::IB_VERSION as u8, 1);
    packet[12..14].copy_from_slice(&(VALUE_LEN_BYTES as u16).to_be_bytes());
    udp_frame(address(1), address(2), &packet)
}

/// Measures both sides.
pub fn gate_costs() -> Result<[GateCost; 2], XdpError> {
    Ok([cost(Side::Keyed)?, cost(Side::Keyless)?])
}

fn cost(side: Side) -> Result<GateCost, XdpError> {
    let keys = keys()?;
    let program = Program::load(side, &keys, TEST_RUNS_IFINDEX)?;
    let bare = load_object("bare", BARE, None, &[], &[])?;
    let frame = frame();
    let driving = |measured: Option<&Loaded>| {
        let driver = program.load_beside("bench_gate", BENCH_GATE)?;
        let driver = driver_of(driver, &frame, 1, 3)?;
        if let Some(measured) = measured {
            let program = measured.program.as_raw_fd().to_ne_bytes();
            driver.set_bytes("ib_measured_map", 0, &program)?;
        }
        Ok::<Loaded, XdpError>(driver)
    };
    let alone = driving(None)?;
    let passed = driving(Some(program.loaded()))?;
    let [driver_ns, passed_ns, bare_ns] = in_turns([
        &mut || time(&alone, &frame),
        &mut || time(&passed, &frame),
        &mut || time(&bare, &frame),
    ])?;
    let counted = match side {
        Side::Keyed => "tag_removed",
        Side::Keyless | Side::Unchecked => "tag_made",
    };
    check_counted(&program.counters()?, &[counted], "a gate")?;
    Ok(GateCost {
        side,
        ns: passed_ns - driver_ns,
        bare_ns,
    })
}
