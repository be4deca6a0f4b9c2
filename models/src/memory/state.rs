//! The model's state.

use std::collections::{BTreeMap, BTreeSet};

use super::{Slots, SERVERS, SWITCHES};

/// A timestamp, and the operation that wrote with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Version {
    /// The epoch of the switch that assigned it.
    pub epoch: u8,
    /// Its number within the epoch.
    pub count: u8,
    /// The operation that wrote it.
    pub op: u8,
}

/// Never written.
pub const NONE: Version = Version {
    epoch: 0,
    count: 0,
    op: u8::MAX,
};

impl Default for Version {
    fn default() -> Version {
        NONE
    }
}

/// What a request waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum Phase {
    Reading,
    WritingBack,
    Writing,
}

/// A packet to all servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs)]
pub struct Packet {
    pub switch: usize,
    pub op: usize,
    pub phase: Phase,
    pub number: u8,
    pub epoch: u8,
    pub version: Version,
}

/// A request at a switch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub struct Slot {
    pub phase: Phase,
    pub number: u8,
    pub epoch: u8,
    pub version: Version,
    pub answered: u8,
    /// For the mutant that counts packets.
    pub packets: u8,
    pub holders: u8,
}

impl Slot {
    pub(super) fn packet(&self, switch: usize, op: usize) -> Packet {
        let version = match self.phase {
            Phase::Reading => NONE,
            Phase::WritingBack | Phase::Writing => self.version,
        };
        Packet {
            switch,
            op,
            phase: self.phase,
            number: self.number,
            epoch: self.epoch,
            version,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[allow(missing_docs)]
pub struct Server {
    pub epoch: u8,
    pub switch_epoch: u8,
    pub version: Version,
    pub is_serving: bool,
    /// During recovery: the epoch, and the bitmaps of servers that were fenced and copied.
    pub fencing: u8,
    pub fenced: u8,
    pub copied: u8,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
#[allow(missing_docs)]
pub struct Switch {
    /// 0: none.
    pub epoch: u8,
    /// Survives a crash.
    pub proposed: u8,
    pub count: u8,
    /// How often it has lost its clients' sessions.
    pub sessions: u8,
    pub slots: Slots,
    /// The epoch, the bitmap of servers that granted it, and the highest epoch that a switch had there before.
    pub asking: Option<(u8, u8, u8)>,
}

impl Switch {
    pub(super) fn is_active(&self) -> bool {
        self.epoch != 0
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub struct State {
    pub servers: [Server; SERVERS],
    pub switches: [Switch; SWITCHES],
    pub packets: BTreeSet<Packet>,
    /// By operation: the switch where it began, and the highest version that was finished then.
    pub begun: Vec<Option<(usize, Version)>>,
    /// By operation: the operation whose version it wrote or read.
    pub finished: Vec<Option<u8>>,
    /// The version of each operation that was written or read.
    pub written: BTreeMap<u8, Version>,
    /// The highest finished version.
    pub floor: Version,
    pub is_broken: bool,
    pub activations: u8,
    pub switch_crashes: u8,
    pub server_crashes: u8,
    pub resends: u8,
}

impl State {
    /// Removes packets that change no server and whose answers no switch counts.
    pub(super) fn forget_what_does_nothing(&mut self) {
        let State {
            switches,
            servers,
            packets,
            ..
        } = self;
        packets.retain(|packet| {
            let slot = switches[packet.switch].slots.get(&packet.op);
            let is_awaited =
                slot.is_some_and(|slot| slot.number == packet.number && slot.phase == packet.phase);
            is_awaited || servers.iter().any(|server| server.version < packet.version)
        });
    }
}
