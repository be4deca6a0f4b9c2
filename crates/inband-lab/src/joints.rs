//! Direct links between two hosts, which bypass the switch.
//!
//! A frame that a packet program sends passes none of the kernel's queues, so nothing on such a link could lose or delay
//! it. A link is therefore down while one of its hosts has a fault, or the two are cut off from each other: what the hosts
//! then send to each other takes the network, where the switch applies the fault.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::direct::ip;
use crate::error::LabError;
use crate::lab::{lock, Lab};

/// A link; each end is a host's name and its interface there.
#[derive(Debug)]
pub(crate) struct Joint {
    ends: [(String, String); 2],
    is_down: bool,
}

impl Joint {
    fn is_of(&self, host: &str) -> bool {
        self.ends.iter().any(|(name, _)| name == host)
    }
}

impl Lab {
    /// Connects two hosts by a direct link that bypasses the switch; each end is given by the host's name and an
    /// interface name. It has no address. It is down while one of the hosts has a fault or is held, or the two are cut off
    /// from each other in any direction.
    pub fn join(&self, one: (&str, &str), other: (&str, &str)) -> Result<(), LabError> {
        let ((one, one_interface), (other, other_interface)) = (one, other);
        let (here, there) = (self.host(one)?, self.host(other)?);
        let up = |interface: &str| {
            format!("link set {interface} addrgenmode none\nlink set {interface} up\n")
        };
        let make = format!(
            "link add name {one_interface} type veth peer name {other_interface} netns {}\n",
            there.namespace().name()
        );
        here.namespace().run(|| ip(&(make + &up(one_interface))))?;
        there.namespace().run(|| ip(&up(other_interface)))?;
        let ends = [(one, one_interface), (other, other_interface)];
        lock(&self.joints).push(Joint {
            ends: ends.map(|(host, interface)| (host.to_owned(), interface.to_owned())),
            is_down: false,
        });
        self.set_joints()
    }

    /// Sets each link up or down, as the faults now are. Call it after each change of them: a new fault is in force before
    /// packets take the network, and packets take the network until an old one is removed.
    pub(crate) fn set_joints(&self) -> Result<(), LabError> {
        let mut joints = lock(&self.joints);
        let mut batches: BTreeMap<String, String> = BTreeMap::new();
        let mut changed = Vec::new();
        for joint in joints.iter_mut() {
            let [(one, interface), (other, _)] = &joint.ends;
            let is_down = self.is_faulty_between(one, other)?;
            if is_down == joint.is_down {
                continue;
            }
            let state = if is_down { "down" } else { "up" };
            // The other end follows.
            let batch = batches.entry(one.clone()).or_default();
            let _ = writeln!(batch, "link set {interface} {state}");
            changed.push((joint, is_down));
        }
        for (host, batch) in batches {
            self.host(&host)?.namespace().run(|| ip(&batch))?;
        }
        for (joint, is_down) in changed {
            joint.is_down = is_down;
        }
        Ok(())
    }

    /// A host has left, and its interfaces with it.
    pub(crate) fn forget_joints(&self, host: &str) {
        lock(&self.joints).retain(|joint| !joint.is_of(host));
    }
}
