//! Records of an acceptor's journal: a partition's registers, or one slot. The latest record of each wins.

use std::collections::BTreeMap;

use crate::dataplane::registers::{AcceptorView, SlotView};
use crate::dataplane::soft::{Geometry, Registers};
use crate::dataplane::wire::VALUE_LEN_MAX_BYTES;

use super::Holds;

const PARTITION: u8 = 1;
const SLOT: u8 = 2;
/// Discards all earlier records: the acceptor enters an epoch with an empty ring.
pub(super) const RESET: &[u8] = &[3];
const HOLDS: u8 = 4;
/// The records from here to END replace everything before; without END they are ignored.
pub(super) const BEGIN: &[u8] = &[5];
pub(super) const END: &[u8] = &[6];
/// There will be no END.
pub(super) const ABANDON: &[u8] = &[7];

/// Why a journal does not match the configuration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RestoreError {
    /// Fewer partitions than before.
    #[error("the acceptor's journal has votes in log {partition}, the configuration has {logs} logs only; has cluster.partitions been changed? data keeps the number it was made with")]
    Partitions {
        /// The partition in the journal.
        partition: usize,
        /// Number of logs in the configuration.
        logs: usize,
    },
    /// A smaller ring than before.
    #[error("the acceptor's journal has a vote for instance {instance} of log {partition}, which a ring of {ring_slots} slots from {floor} on does not reach; set cluster.ring_slots to what it was")]
    Ring {
        partition: usize,
        /// Instance of the vote.
        instance: u64,
        /// Floor of the partition.
        floor: u64,
        /// The configured ring size.
        ring_slots: usize,
    },
}

/// Appends the record of a partition's registers.
pub(super) fn append_partition(
    registers: &Registers,
    partition: usize,
    append: &mut dyn FnMut(&[u8]),
) {
    let view = registers.acceptor.acceptor(partition);
    let mut record = vec![PARTITION];
    record.extend_from_slice(&(partition as u16).to_le_bytes());
    for word in [view.epoch, view.promise, view.floor, view.highest] {
        record.extend_from_slice(&word.to_le_bytes());
    }
    record.push(u8::from(view.voting));
    append(&record);
}

/// Appends the record of one slot.
pub(super) fn append_slot(
    registers: &Registers,
    partition: usize,
    slot: usize,
    append: &mut dyn FnMut(&[u8]),
) {
    let view = registers
        .ring
        .slot(slot)
        .expect("no other thread takes slots");
    let mut record = Vec::with_capacity(64 + view.value.len());
    record.push(SLOT);
    record.extend_from_slice(&(partition as u16).to_le_bytes());
    for word in [
        view.instance,
        view.promise,
        view.vround,
        view.digest,
        view.client_id,
        view.client_seq,
        view.client_low,
    ] {
        record.extend_from_slice(&word.to_le_bytes());
    }
    record.extend_from_slice(&view.flags.to_le_bytes());
    record.extend_from_slice(&view.value);
    append(&record);
}

/// Appends the record of the acceptor's [`Holds`] after a reconfiguration.
pub(super) fn append_holds(holds: Holds, append: &mut dyn FnMut(&[u8])) {
    let Holds { epoch, base } = holds;
    let mut record = vec![HOLDS];
    record.extend_from_slice(&epoch.to_le_bytes());
    record.extend_from_slice(&base.to_le_bytes());
    append(&record);
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, tail) = self.0.split_first_chunk()?;
        self.0 = tail;
        Some(*head)
    }

    fn word(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    fn epoch(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    fn half(&mut self) -> Option<u16> {
        self.take().map(u16::from_le_bytes)
    }
}

/// An acceptor's state as restored from its journal.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Restored {
    partitions: BTreeMap<usize, AcceptorView>,
    slots: BTreeMap<(usize, u64), SlotView>,
    holds: Option<Holds>,
    /// What a reconfiguration has started to write.
    begun: Option<Box<Restored>>,
}

impl Restored {
    /// Applies a record. `None`: it is not a valid record.
    #[must_use]
    pub fn replay(&mut self, record: &[u8]) -> Option<()> {
        match record {
            RESET => *self = Restored::default(),
            BEGIN => self.begun = Some(Box::default()),
            END => *self = *self.begun.take()?,
            ABANDON => self.begun = None,
            _ => {
                return match &mut self.begun {
                    Some(begun) => begun.take(record),
                    None => self.take(record),
                }
            }
        }
        Some(())
    }

    /// Returns whether a replacement has been started and has no END.
    pub(super) fn is_begun(&self) -> bool {
        self.begun.is_some()
    }

    fn take(&mut self, record: &[u8]) -> Option<()> {
        let mut reader = Reader(record);
        let [kind] = reader.take()?;
        if kind == HOLDS {
            let (epoch, base) = (reader.epoch()?, reader.epoch()?);
            self.holds = Some(Holds { epoch, base });
            return Some(());
        }
        let partition = usize::from(reader.half()?);
        match kind {
            PARTITION => {
                let (epoch, promise) = (reader.word()?, reader.word()?);
                let (floor, highest) = (reader.word()?, reader.word()?);
                let [voting] = reader.take()?;
                let view = AcceptorView {
                    epoch,
                    promise,
                    floor,
                    highest,
                    voting: voting != 0,
                };
                self.partitions.insert(partition, view);
                self.forget_below(partition, floor);
            }
            SLOT => {
                let instance = reader.word()?;
                let slot = SlotView {
                    instance,
                    promise: reader.word()?,
                    vround: reader.word()?,
                    digest: reader.word()?,
                    client_id: reader.word()?,
                    client_seq: reader.word()?,
                    client_low: reader.word()?,
                    flags: reader.half()?,
                    value: reader.0.to_vec(),
                };
                if slot.value.len() > VALUE_LEN_MAX_BYTES {
                    return None;
                }
                self.slots.insert((partition, instance), slot);
            }
            _ => return None,
        }
        Some(())
    }

    fn forget_below(&mut self, partition: usize, floor: u64) {
        while let Some((key, _)) = self.slots.range((partition, 0)..(partition, floor)).next() {
            let key = *key;
            self.slots.remove(&key);
        }
    }

    /// Returns the epoch that the acceptor has entered; 0: none.
    pub fn epoch(&self) -> u64 {
        self.partitions.values().map(|p| p.epoch).max().unwrap_or(0)
    }

    /// Returns the epoch for which its votes are complete. Without a control plane this is not recorded; then they are
    /// complete if it voted.
    pub fn holds(&self) -> Option<Holds> {
        let epoch = u32::try_from(self.epoch()).ok()?;
        let voted = || self.voting().then_some(Holds { epoch, base: 0 });
        self.holds.or_else(voted)
    }

    /// Returns whether it was voting in every partition.
    pub fn voting(&self) -> bool {
        !self.partitions.is_empty() && self.partitions.values().all(|p| p.voting)
    }

    /// Checks that it fits these sizes.
    pub fn check(&self, geometry: Geometry) -> Result<(), RestoreError> {
        let used = self
            .partitions
            .keys()
            .chain(self.slots.keys().map(|(of, _)| of));
        if let Some(partition) = used.max().filter(|p| **p >= geometry.partitions) {
            return Err(RestoreError::Partitions {
                partition: *partition,
                logs: geometry.partitions,
            });
        }
        for (partition, instance) in self.slots.keys() {
            let floor = self.partitions.get(partition).map_or(0, |p| p.floor);
            if *instance >= floor.saturating_add(geometry.ring_slots as u64) {
                return Err(RestoreError::Ring {
                    partition: *partition,
                    instance: *instance,
                    floor,
                    ring_slots: geometry.ring_slots,
                });
            }
        }
        Ok(())
    }

    /// Sets the registers of an acceptor that receives no packets yet. The restored state must fit these sizes.
    pub fn install(&self, geometry: Geometry, registers: &Registers) {
        for (partition, view) in &self.partitions {
            let quiet = AcceptorView {
                voting: false,
                ..*view
            };
            registers.acceptor.restore(*partition, quiet);
        }
        for ((partition, instance), slot) in &self.slots {
            let at = (instance % geometry.ring_slots as u64) as usize;
            registers
                .ring
                .restore(partition * geometry.ring_slots + at, slot);
        }
        for (partition, view) in &self.partitions {
            registers.acceptor.restore(*partition, *view);
        }
    }
}
