//! Applying what the partitions' logs have delivered, by one thread or by several.

use inband_host::log::Burst;

use super::queue::Queue;
use super::{LogState, Machine};
use crate::store::{Outcomes, StoreError};

/// A partition that has something to apply.
struct Part<'m> {
    partition: usize,
    log_state: &'m mut LogState,
    burst: &'m mut Burst,
    outcomes: &'m mut Outcomes,
    result: Result<bool, StoreError>,
}

impl LogState {
    /// Scans and applies what was delivered, as far as the queue allows.
    fn advance_within(
        &mut self,
        partition: usize,
        burst: &mut Burst,
        queue: &Queue,
        outcomes: &mut Outcomes,
    ) -> Result<bool, StoreError> {
        self.scan(burst);
        let may_pass = |entry| queue.may_pass(partition, entry);
        self.advance(burst, &may_pass, outcomes)
    }

    /// Returns whether [`advance`](Self::advance) would apply anything.
    fn can_advance(&self, burst: &Burst, may_pass: impl Fn(u64) -> bool) -> bool {
        burst.decided().len() > self.taken && self.standing.is_none_or(may_pass)
    }
}

impl Machine {
    /// Lets each partition apply what its log has delivered, up to the first marker that must not be passed yet. Returns
    /// whether anything was applied.
    pub(super) fn advance_partitions(
        &mut self,
        outcomes: &mut Outcomes,
    ) -> Result<bool, StoreError> {
        if self.are_workers_needed() {
            return self.advance_together(outcomes);
        }
        let mut has_progress = false;
        let partitions = self.config.partitions;
        let each = self.log_states[..partitions].iter_mut();
        for (partition, (log_state, burst)) in each.zip(&mut self.bursts).enumerate() {
            has_progress |= log_state.advance_within(partition, burst, &self.queue, outcomes)?;
        }
        Ok(has_progress)
    }

    fn are_workers_needed(&self) -> bool {
        // A script that fails withdraws all messages published since it began, also those of other partitions.
        if !self.workers.is_any() || self.shared.transient().subscriptions.is_any() {
            return false;
        }
        let each = self.log_states[..self.config.partitions].iter();
        let busy = each
            .zip(&self.bursts)
            .enumerate()
            .filter(|(partition, (log_state, burst))| {
                log_state.can_advance(burst, |marker| self.queue.may_pass(*partition, marker))
            });
        let (count, bytes) = busy.fold((0, 0), |(count, bytes), (_, (_, burst))| {
            (count + 1, bytes + burst.len_bytes())
        });
        count > 1 && bytes >= self.workers.config.values_bytes_min
    }

    /// The same with the workers. The outcomes are in the same order.
    fn advance_together(&mut self, outcomes: &mut Outcomes) -> Result<bool, StoreError> {
        let partitions = self.config.partitions;
        self.spare.resize_with(partitions, Outcomes::default);
        outcomes.share_room(&mut self.spare);
        let (queue, log_states) = (&self.queue, &mut self.log_states[..partitions]);
        let each = log_states.iter_mut().zip(&mut self.bursts);
        let mut parts: Vec<Part<'_>> = each
            .zip(&mut self.spare)
            .enumerate()
            .map(|(partition, ((log_state, burst), outcomes))| Part {
                partition,
                log_state,
                burst,
                outcomes,
                result: Ok(false),
            })
            .collect();
        self.workers.each(&mut parts, |part| {
            let Part {
                partition, burst, ..
            } = part;
            part.result = part
                .log_state
                .advance_within(*partition, burst, queue, part.outcomes);
        });
        let mut has_progress = false;
        for part in parts {
            outcomes.append(part.outcomes);
            has_progress |= part.result?;
        }
        Ok(has_progress)
    }
}
