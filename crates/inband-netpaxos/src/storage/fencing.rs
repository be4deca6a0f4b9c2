//! How a storage server that has lost its memory keeps its earlier votes from counting, before it votes again.

use std::collections::BTreeSet;

use super::{Out, Record, Storage, RETRY_NS};
use crate::control::{Control, To};
use crate::wire::node;

/// State of a storage server that has lost its memory, and must fence the others before it serves.
#[derive(Debug)]
pub(super) struct Fencing {
    nonce: u64,
    /// 0 while it asks for generations.
    generation: u16,
    answered: BTreeSet<u8>,
    highest: u64,
    floor: u64,
    pub(super) again_at: u64,
}

impl Fencing {
    pub(super) fn new(nonce: u64) -> Fencing {
        Fencing {
            nonce,
            generation: 0,
            answered: BTreeSet::new(),
            highest: 0,
            floor: 0,
            again_at: 0,
        }
    }
}

impl Storage {
    pub(super) fn on_fence(&mut self, from: u8, nonce: u64, generation: u16, out: &mut Out) {
        let Some(minion) = node::as_storage(from, self.config.sizes.minions()) else {
            return;
        };
        if self.generations.raise(minion, generation) {
            out.records.push(Record::Generations(self.generations));
        }
        let fenced = Control::Fenced {
            nonce,
            generation,
            highest: self.highest,
            floor: self.floor,
            generations: self.generations,
            incarnations: self.enrolled.iter().map(|(n, (i, _))| (*n, *i)).collect(),
        };
        self.send(To::Node(from), &fenced, out);
    }

    pub(super) fn on_fenced(
        &mut self,
        now: u64,
        from: u8,
        (nonce, generation): (u64, u16),
        (highest, floor): (u64, u64),
        out: &mut Out,
    ) {
        let others = usize::from(self.config.sizes.failures) * 2;
        let own = self.config.minion;
        let is_storage = node::as_storage(from, self.config.sizes.minions()).is_some();
        let Some(fencing) = &mut self.fencing else {
            return;
        };
        if (nonce, generation) != (fencing.nonce, fencing.generation) || !is_storage {
            return;
        }
        fencing.answered.insert(from);
        if fencing.generation > 0 {
            fencing.highest = fencing.highest.max(highest);
            fencing.floor = fencing.floor.max(floor);
        }
        if fencing.answered.len() < others {
            return;
        }
        if fencing.generation == 0 {
            // A generation that only some have heard of has never voted.
            let Some(next) = self.generations.of(own).checked_add(1) else {
                return;
            };
            fencing.generation = next;
            fencing.answered.clear();
            self.generations.raise(own, next);
            out.records.push(Record::Generations(self.generations));
            return self.fence(now, out);
        }
        let (silent, floor) = (fencing.highest, fencing.floor);
        self.fencing = None;
        out.records.push(Record::Generations(self.generations));
        out.records.extend(self.enrolments());
        let serves = Record::Serves { silent, floor };
        self.replay(serves.clone());
        out.records.push(serves);
        self.end_silence(out);
        self.learn_at = now;
    }

    pub(super) fn fence(&mut self, now: u64, out: &mut Out) {
        let Some(fencing) = &mut self.fencing else {
            return;
        };
        if fencing.again_at == 0 {
            out.records.push(Record::Lost);
        }
        fencing.again_at = now + RETRY_NS;
        let fence = Control::Fence {
            nonce: fencing.nonce,
            generation: fencing.generation,
        };
        self.send(To::Storages, &fence, out);
    }
}
