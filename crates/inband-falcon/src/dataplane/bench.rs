//! The cost of a Falcon scheduler's decisions, compared with forwarding the same packets unread.

use std::os::fd::AsRawFd;

use super::objects;
use crate::dataplane::rig::FalconRig;
use crate::dataplane::wire::{emit, Description, Header, Task, Type, TASKS_MAX};
use crate::dataplane::xdp::FalconXdpSpec;
use crate::dataplane::{FalconConfig, Policy, EXECUTORS, SLOTS_DEFAULT};
use inband_ground::auth::Digest;
use inband_ground::bench::{address, driver_of, forwarding, in_turns, time};
use inband_ground::xdp::error::Doing;
use inband_ground::xdp::programs::{test_run, Loaded};
use inband_ground::xdp::rig::udp_frame;
use inband_ground::xdp::{XdpError, XdpMode};

const INCARNATION: u64 = 1;
/// SUBMITs that prefill the queue before pulls are measured: more tasks than a batch takes.
const PREFILLED_PACKETS: u32 = inband_ground::bench::REPEAT / TASKS_MAX as u32 + 1;

/// The cost of a decision.
#[derive(Debug, Clone, PartialEq)]
pub struct FalconCost {
    /// "submit", "submit to a full queue", "pull", "pull from an empty queue".
    pub packet: &'static str,
    /// Tasks in the SUBMIT; 1 for a PULL.
    pub tasks: usize,
    pub policy: Policy,
    /// Nanoseconds per packet, without the test's own work.
    pub ns: f64,
    /// Nanoseconds per packet that is forwarded unread to a neighbour, in the same run.
    pub forward_ns: f64,
}

impl FalconCost {
    /// Tasks that one CPU can accept or give out (or refuse) per second.
    pub fn decisions_per_s(&self) -> f64 {
        self.tasks as f64 * 1e9 / self.ns
    }
}

struct Case {
    packet: &'static str,
    tasks: usize,
    kind: Type,
    /// Slots per queue.
    slots: usize,
    /// The queue is filled before each batch.
    prefilled: bool,
    ordinary: &'static [&'static str],
}

const CASES: [Case; 5] = [
    Case {
        packet: "submit",
        tasks: 1,
        kind: Type::Submit,
        slots: SLOTS_DEFAULT,
        prefilled: false,
        ordinary: &["falcon_queued"],
    },
    Case {
        packet: "submit",
        tasks: TASKS_MAX,
        kind: Type::Submit,
        slots: SLOTS_DEFAULT,
        prefilled: false,
        ordinary: &["falcon_queued"],
    },
    Case {
        packet: "submit to a full queue",
        tasks: 1,
        kind: Type::Submit,
        slots: 2,
        prefilled: false,
        ordinary: &["falcon_queued", "falcon_queue_full"],
    },
    Case {
        packet: "pull",
        tasks: 1,
        kind: Type::Pull,
        slots: SLOTS_DEFAULT,
        prefilled: true,
        ordinary: &["falcon_queued", "falcon_given"],
    },
    Case {
        packet: "pull from an empty queue",
        tasks: 1,
        kind: Type::Pull,
        slots: SLOTS_DEFAULT,
        prefilled: false,
        ordinary: &["falcon_empty"],
    },
];

/// Measures decisions with these policies; with policies other than FIFO, only the ordinary ones.
pub fn falcon_costs(policies: &[Policy]) -> Result<Vec<FalconCost>, XdpError> {
    let mut costs = Vec::new();
    for &policy in policies {
        for case in &CASES {
            let one = case.tasks == 1 && case.slots == SLOTS_DEFAULT;
            if policy == Policy::Fifo || one {
                costs.push(cost(case, policy)?);
            }
        }
    }
    Ok(costs)
}

fn cost(case: &Case, policy: Policy) -> Result<FalconCost, XdpError> {
    let rig = rig(case, policy)?;
    let (measured, full) = (frame(case.kind, case.tasks), frame(Type::Submit, TASKS_MAX));
    let forward = rig.load_beside("bench_forward", inband_ground::objects::BENCH_FORWARD)?;
    let forward = forwarding(forward)?;
    let driving = |frame: &[u8], measured: Option<&Loaded>| {
        let driver = rig.load_beside("bench_falcon", objects::BENCH_FALCON)?;
        let driver = driver_of(driver, frame, 1, 3)?;
        if let Some(measured) = measured {
            let program = measured.program.as_raw_fd().to_ne_bytes();
            driver.set_bytes("ib_measured_map", 0, &program)?;
        }
        Ok::<Loaded, XdpError>(driver)
    };
    let alone = driving(&measured, None)?;
    let scheduled = driving(&measured, Some(rig.loaded()))?;
    let forwarded = driving(&measured, Some(&forward))?;
    let filling = driving(&full, Some(rig.loaded()))?;
    let [driver_ns, scheduled_ns, forwarded_ns] = in_turns([
        &mut || time(&alone, &measured),
        &mut || {
            empty(&rig);
            if case.prefilled {
                test_run(&filling.program, &full, PREFILLED_PACKETS).doing("filling the queue")?;
            }
            time(&scheduled, &measured)
        },
        &mut || time(&forwarded, &measured),
    ])?;
    let counters = rig.counters()?;
    if let Some(other) = counters.keys().find(|name| !case.ordinary.contains(name)) {
        return Err(XdpError::Spec(format!(
            "a {} was measured on packets that took another way: {other}",
            case.packet
        )));
    }
    Ok(FalconCost {
        packet: case.packet,
        tasks: case.tasks,
        policy,
        ns: scheduled_ns - driver_ns,
        forward_ns: forwarded_ns - driver_ns,
    })
}

fn rig(case: &Case, policy: Policy) -> Result<FalconRig, XdpError> {
    let config = FalconConfig {
        slots: case.slots.max(2 * policy.queues()),
        policy,
        user_tasks_max: u32::MAX,
        ..FalconConfig::default()
    };
    let rig = FalconRig::load(FalconXdpSpec {
        node: 2,
        config,
        incarnation: INCARNATION,
        address: address(2),
        interface: String::new(),
        mode: XdpMode::Native,
        keys: None,
    })?;
    rig.registers().register(0, 0, 1, 0);
    Ok(rig)
}

/// Empties the one queue that is used here: the first of each policy.
fn empty(rig: &FalconRig) {
    rig.registers().start_at(0, 0, 0);
}

fn frame(kind: Type, tasks: usize) -> Vec<u8> {
    let mut header = Header::new(kind, 0, 0);
    let mut list = Vec::new();
    if kind == Type::Pull {
        (header.incarnation, header.worker_incarnation) = (INCARNATION, 1);
        header.executor = EXECUTORS as u32 - 1;
    } else {
        let desc = Description::new(&[7; 64]).expect("it fits");
        list = (0..tasks)
            .map(|n| Task::new(0, 0, n as u32, desc).sealed(&Digest::PLAIN))
            .collect();
    }
    let mut packet = Vec::new();
    emit(&header, &list, &mut packet);
    udp_frame(address(9), address(2), &packet)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Prints the figures. Checks only that there are figures, because machines are noisy.
    #[test]
    fn costs_are_measured() {
        let costs = match falcon_costs(&[Policy::Fifo]) {
            Err(XdpError::Privilege { what }) => {
                return eprintln!("cannot be measured: {what} is not allowed");
            }
            other => other.unwrap(),
        };
        assert!(!costs.is_empty());
        for cost in costs {
            eprintln!("{cost:?}");
            assert!(cost.ns >= 1.0 && cost.ns < 100_000.0);
        }
    }
}
