//! Queueing and executing the entries of the log of cross-partition commands.

use inband_resp::reply::Reply;
use rocksdb::WriteBatch;

use super::across::Across;
use super::queue::{Entry, Queue};
use super::{empty_batches, Machine};
use crate::command::Command;
use crate::cut::Cut;
use crate::engine;
use crate::store::{execute_stamped, BatchRecords, Outcomes, StoreError, Work};

impl Machine {
    pub(super) fn take_queued(&mut self, outcomes: &mut Outcomes) {
        let partitions = self.config.partitions;
        for queued in self.log_states[partitions].store.take_queued() {
            outcomes.commands += 1;
            let number = queued.number;
            let Some(entry) = Entry::new(queued, partitions) else {
                let reply = Reply::error("ERR malformed command in a value");
                outcomes.entries.push((number, reply));
                self.log_states[partitions].store.forget_entry(number, &[]);
                continue;
            };
            self.push_entry(number, entry);
        }
        self.queue.delivered = self.log_states[partitions].store.last_entry();
    }

    /// Queues an entry for the partitions that have not executed it.
    pub(super) fn push_entry(&mut self, number: u64, entry: Entry) {
        let log_states = &self.log_states;
        let waiting: Vec<usize> = entry
            .involved
            .iter()
            .copied()
            .filter(|partition| log_states[*partition].store.done_entry() < number)
            .collect();
        if waiting.is_empty() {
            return self.forget(number, &entry);
        }
        self.queue.push(number, entry, &waiting);
    }

    /// An entry has been executed in all its partitions.
    pub(super) fn forget(&mut self, number: u64, entry: &Entry) {
        let queue = &mut self.log_states[self.config.partitions].store;
        queue.forget_entry(number, &entry.involved);
        if !entry.is_free {
            return self.log_states[entry.involved[0]].store.forget_redo(number);
        }
        for partition in &entry.involved {
            self.log_states[*partition].store.forget_time(number);
        }
    }

    /// Executes what this partition waits for, as far as possible.
    pub(super) fn execute_at(
        &mut self,
        partition: usize,
        outcomes: &mut Outcomes,
    ) -> Result<bool, StoreError> {
        let mut has_progress = false;
        while let Some(number) = self.next_entry_at(partition) {
            let entry = &self.queue.entries[&number];
            let is_done = |p: &usize| self.log_states[*p].store.done_entry() >= number;
            // Before a crash, or by the peer whose checkpoint was installed in some of the stores.
            let was_executed = match entry.is_free {
                true => entry.involved.iter().any(is_done),
                false => is_done(&entry.involved[0]),
            };
            if was_executed && entry.is_free {
                self.pass_read(number, partition)?;
            } else if was_executed {
                self.redo(number, partition)?;
            } else if entry.involved.iter().any(is_done) {
                // Only a power failure without `sync` leaves this; the others would wait for it forever.
                return Err(StoreError::Torn { entry: number });
            } else {
                let is_ready = |p: &usize| self.next_entry_at(*p) == Some(number);
                if !entry.involved.iter().all(is_ready) {
                    return Ok(has_progress);
                }
                self.execute(number, outcomes)?;
            }
            has_progress = true;
        }
        Ok(has_progress)
    }

    /// Returns the entry that this partition executes next at its current marker.
    pub(super) fn next_entry_at(&self, partition: usize) -> Option<u64> {
        let marker = self.log_states[partition].standing?;
        if marker > self.queue.delivered {
            return None;
        }
        self.queue.next(partition).filter(|entry| *entry <= marker)
    }

    pub(super) fn done_at(&mut self, number: u64, partition: usize) {
        if let Some(entry) = self.queue.done(number, partition) {
            self.forget(number, &entry);
        }
    }

    /// Applies this partition's part of an entry from its redo record.
    pub(super) fn redo(&mut self, number: u64, partition: usize) -> Result<(), StoreError> {
        let lowest = self.queue.entries[&number].involved[0];
        let redo = self.log_states[lowest].store.redo(number, partition)?;
        let batch = redo.ok_or(StoreError::Torn { entry: number })?;
        tracing::info!(partition, entry = number, "redone after a crash");
        let log_state = &mut self.log_states[partition];
        log_state.store.restore(batch)?;
        self.leave_marker(partition);
        self.done_at(number, partition);
        Ok(())
    }

    /// Skips an entry that only reads and that others of its partitions have passed. All its partitions have markers
    /// for it, or the others could not have passed it.
    pub(super) fn pass_read(&mut self, number: u64, partition: usize) -> Result<(), StoreError> {
        let entry = &self.queue.entries[&number];
        let mut now_ms = entry.time_ms;
        for other in &entry.involved {
            let noted_ms = self.log_states[*other].store.noted_time_ms(number)?;
            now_ms = now_ms.max(noted_ms.unwrap_or(0));
        }
        self.log_states[partition].store.entry_done(number, now_ms);
        self.done_at(number, partition);
        Ok(())
    }

    /// The store may have passed its current marker: recompute where it stands.
    pub(super) fn leave_marker(&mut self, partition: usize) {
        let (log_state, burst) = (&mut self.log_states[partition], &self.bursts[partition]);
        let next = burst.get(log_state.taken).map(|decided| decided.instance);
        if next == Some(log_state.store.applied()) {
            log_state.taken += 1;
            log_state.standing = None;
        }
    }

    /// Executes an entry in all its partitions, each of which stands at a marker that covers it.
    pub(super) fn execute(
        &mut self,
        number: u64,
        outcomes: &mut Outcomes,
    ) -> Result<(), StoreError> {
        let entry = self.queue.take(number);
        let now_ms = self.time_of(&entry);
        if entry.is_free {
            self.read(&entry, number, now_ms, outcomes)?;
        } else {
            self.change(&entry, number, now_ms, outcomes)?;
        }
        for partition in &entry.involved {
            self.done_at(number, *partition);
        }
        Ok(())
    }

    /// Executes an entry that only reads, if this process waits for its reply.
    pub(super) fn read(
        &mut self,
        entry: &Entry,
        number: u64,
        now_ms: u64,
        outcomes: &mut Outcomes,
    ) -> Result<(), StoreError> {
        if entry.is_own() {
            let mut nothing = empty_batches(entry);
            let reply = self.execute_in(entry, number, now_ms, &mut nothing)?;
            outcomes.entries.push((number, reply));
        }
        for partition in &entry.involved {
            let store = &mut self.log_states[*partition].store;
            if now_ms > entry.time_ms {
                store.note_time(number, now_ms)?;
            }
            store.entry_done(number, now_ms);
        }
        let cut = entry.ticket.and_then(|ticket| self.cuts.remove(&ticket));
        cut.map_or(Ok(()), |cut| self.show(cut))
    }

    /// Shows the current stores to a waiting reader.
    pub(super) fn show(&mut self, cut: Cut) -> Result<(), StoreError> {
        for log_state in &mut self.log_states {
            log_state.store.flush()?;
        }
        let dbs = self
            .log_states
            .iter()
            .map(|log_state| log_state.store.db().clone());
        cut.show(dbs.collect());
        Ok(())
    }

    pub(super) fn change(
        &mut self,
        entry: &Entry,
        number: u64,
        now_ms: u64,
        outcomes: &mut Outcomes,
    ) -> Result<(), StoreError> {
        for partition in &entry.involved {
            self.log_states[*partition].store.flush()?;
        }
        let mut batches = empty_batches(entry);
        let reply = self.execute_in(entry, number, now_ms, &mut batches)?;
        if entry.is_own() {
            outcomes.entries.push((number, reply));
        }
        for partition in &entry.involved {
            self.log_states[*partition].store.entry_done(number, now_ms);
        }
        self.write(entry, number, batches, outcomes)
    }

    /// Replicated time of an entry's execution: the latest of all partitions involved.
    pub(super) fn time_of(&self, entry: &Entry) -> u64 {
        let times = entry
            .involved
            .iter()
            .map(|p| self.log_states[*p].store.time_ms());
        times.max().unwrap_or(0).max(entry.time_ms)
    }

    pub(super) fn execute_in(
        &mut self,
        entry: &Entry,
        number: u64,
        now_ms: u64,
        batches: &mut [WriteBatch],
    ) -> Result<Reply, StoreError> {
        let Some((command, stamp)) = Command::decode(&entry.command) else {
            return Ok(Reply::error("ERR malformed command in a value"));
        };
        let mut across = Across::new(self.config.partitions);
        let mut clients = Vec::new();
        for (partition, log_state) in self.log_states.iter_mut().enumerate() {
            if entry.involved.binary_search(&partition).is_ok() {
                log_state.store.start()?;
                let Work {
                    view,
                    clients: c,
                    meta,
                } = log_state.store.work(number, now_ms)?;
                across.put(partition, view);
                clients.push((c, meta));
            }
        }
        let mut parts = clients.into_iter().zip(batches);
        let reply = match (&command, stamp) {
            (Command::SessionNew { owner }, _) => {
                for ((clients, meta), batch) in parts {
                    clients.open_as(number, *owner, now_ms, &mut BatchRecords { batch, meta });
                }
                Reply::Integer(number as i64)
            }
            (command, Some(stamp)) => {
                let Some(((clients, meta), batch)) = parts.next() else {
                    return Ok(Reply::Nil);
                };
                let mut records = BatchRecords { batch, meta };
                clients.expire(now_ms, &mut records);
                execute_stamped(&mut across, clients, &mut records, command, stamp)?
            }
            (command, None) => engine::execute(&mut across, command)?,
        };
        if entry.is_free {
            for partition in &entry.involved {
                self.log_states[*partition].store.finish();
            }
        }
        Ok(reply)
    }

    /// Writes the effects of an entry: those on the lowest partition together with the redo record for the others, then
    /// the others.
    pub(super) fn write(
        &mut self,
        entry: &Entry,
        number: u64,
        mut batches: Vec<WriteBatch>,
        outcomes: &mut Outcomes,
    ) -> Result<(), StoreError> {
        for (partition, batch) in entry.involved.iter().zip(&mut batches) {
            let is_last = self
                .queue
                .is_last_at(*partition, self.log_states[*partition].standing);
            let log_state = &mut self.log_states[*partition];
            if let Some(marker) = self.bursts[*partition]
                .get(log_state.taken)
                .filter(|_| is_last)
            {
                log_state.store.pass_marker(&marker, outcomes)?;
            }
            log_state.store.fill(batch)?;
        }
        let (lowest, others) = batches.split_at_mut(1);
        let logs = entry.involved[1..].iter().copied();
        let store = &self.log_states[entry.involved[0]].store;
        store.put_redo(number, logs.zip(others.iter()), &mut lowest[0])?;
        for (at, (partition, batch)) in entry.involved.iter().zip(batches).enumerate() {
            let sync = self.config.sync && at == 0;
            let store = &mut self.log_states[*partition].store;
            store.write(batch, sync)?;
            store.finish();
            self.leave_marker(*partition);
        }
        Ok(())
    }

    /// Loads the queue from its store, at start and after installing a checkpoint.
    pub(super) fn load_queue(&mut self) -> Result<(), StoreError> {
        let Some(log) = self.queue_log() else {
            return Ok(());
        };
        self.queue = Queue::new(self.config.partitions);
        let queue = &self.log_states[log].store;
        self.queue.delivered = queue.last_entry();
        for (log_state, removed) in self.log_states.iter().zip(queue.last_removed()) {
            if log_state.store.done_entry() < *removed {
                return Err(StoreError::Torn { entry: *removed });
            }
        }
        for queued in queue.queue()? {
            let number = queued.number;
            match Entry::new(queued, self.config.partitions) {
                Some(entry) => self.push_entry(number, entry),
                None => self.log_states[log].store.forget_entry(number, &[]),
            }
        }
        for partition in 0..self.config.partitions {
            let store = &mut self.log_states[partition].store;
            // A power failure may have lost entries of the queue whose effects are in the stores: the log delivers them
            // again.
            let delivered = self.queue.delivered;
            let is_over =
                |number: &u64| *number <= delivered && !self.queue.entries.contains_key(number);
            for number in store.redo_entries()?.into_iter().filter(is_over) {
                store.forget_redo(number);
            }
            for number in store.noted_times()?.into_iter().filter(is_over) {
                store.forget_time(number);
            }
        }
        Ok(())
    }
}
