//! Taking requests and writing replies together with the workers.

use std::cell::RefCell;

use super::Replica;
use crate::control::add;
use crate::limits::READ_BUDGET_BYTES;

thread_local! {
    static SCRATCH: RefCell<Vec<u8>> = RefCell::new(vec![0; READ_BUDGET_BYTES]);
}

impl Replica {
    /// Takes the requests of these connections, if they are many. [`serve`](Self::serve) continues behind them.
    pub(super) fn take_ahead(&mut self, slots: &[usize]) {
        let Some(ascending) = self.many(slots) else {
            return;
        };
        let terms = self.terms();
        let intake = terms.intake(&self.config, &self.control, &self.machine);
        let mut connections = self.front.connections.each_mut(&ascending);
        self.workers.each(&mut connections, |connection| {
            SCRATCH.with_borrow_mut(|scratch| connection.take_ahead(&intake, scratch));
        });
        // For all of them before anything is done with one: it may close another.
        for slot in slots {
            let connection = self.front.connections.get_mut(*slot);
            let Some((connection, taken)) = connection.and_then(|c| c.taken().map(|t| (c, t)))
            else {
                continue;
            };
            add(&self.control.counters.requests_total, taken.requests);
            self.waiting_commands += taken.commands;
            for lane in taken.lanes {
                self.lanes[lane].packer.push_ready(*slot, connection);
            }
        }
    }

    /// Writes to these connections, if they are many.
    pub(super) fn write_ahead(&mut self, slots: &[usize]) {
        let Some(slots) = self.many(slots) else {
            return;
        };
        let mut connections = self.front.connections.each_mut(&slots);
        let now = self.now;
        self.workers
            .each(&mut connections, |connection| connection.write_ahead(now));
    }

    /// Each of these slots once, ascending, if there are enough to wake the workers.
    fn many(&self, slots: &[usize]) -> Option<Vec<usize>> {
        let connections_min = self.workers.config.connections_min;
        if !self.workers.is_any() || slots.len() < connections_min {
            return None;
        }
        let mut slots = slots.to_vec();
        slots.sort_unstable();
        slots.dedup();
        (slots.len() >= connections_min).then_some(slots)
    }
}
