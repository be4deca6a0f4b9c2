//! ALIVE packets: what each host has applied, and who leads.

use crate::dataplane::round;
use crate::dataplane::wire::Header;

use super::packets::{INSTANCE_END, ROUND_COUNTER_END};
use super::{Host, NODES};
use crate::outbox::Outbox;
use crate::timing::Micros;

/// Length of the part of an ALIVE's value for one log: applied instance and round of the leader.
const ALIVE_LOG_LEN_BYTES: usize = 16;

impl Host {
    /// Tells peers what this host has applied and who leads: one packet for all logs, because otherwise many idle logs
    /// would cost more than a busy one.
    pub(super) fn tell_alive(&mut self, out: &mut Outbox) {
        let (mut own, mut value) = (
            std::mem::take(&mut self.own),
            std::mem::take(&mut self.value),
        );
        own.clear();
        value.clear();
        let mut first = (0, 0);
        for partition in 0..self.partitions.len() {
            let (applied, round) = self.partitions[partition].alive();
            if partition == 0 {
                first = (applied, round);
            } else {
                value.extend_from_slice(&applied.to_be_bytes());
                value.extend_from_slice(&round.to_be_bytes());
            }
            self.due_again(partition);
        }
        let (applied, round) = first;
        self.shared.tell_alive(0, applied, round, &value, &mut own);
        for (dest, packet) in own.iter() {
            self.route_one(dest, packet, out);
        }
        (self.own, self.value) = (own, value);
    }

    /// An ALIVE: the header describes its partition, the value the partitions after it, if any.
    pub(super) fn on_alive(
        &mut self,
        now: Micros,
        header: &Header,
        value: &[u8],
        out: &mut Outbox,
    ) {
        if self.shared.config.digest.of(value) != header.digest {
            self.shared.bad_packets += 1;
            return;
        }
        if header.epoch != self.shared.config.epoch || !self.is_news(header) {
            return;
        }
        let said = value.chunks_exact(ALIVE_LOG_LEN_BYTES).map(|said| {
            let word = |at: usize| {
                let mut word = [0; 8];
                word.copy_from_slice(&said[at..at + 8]);
                u64::from_be_bytes(word)
            };
            (word(0), word(8))
        });
        let first = usize::from(header.partition);
        let all = std::iter::once((header.instance, header.round)).chain(said);
        for (partition, (applied, round)) in (first..self.partitions.len()).zip(all) {
            if applied >= INSTANCE_END || round::counter(round) >= ROUND_COUNTER_END {
                self.shared.bad_packets += 1;
                continue;
            }
            self.act(partition, false, out, |p, shared, own| {
                p.on_alive(now, header.node, applied, round, shared, own);
            });
        }
    }

    /// Returns whether an ALIVE is later than all known ones of its sender.
    fn is_news(&mut self, header: &Header) -> bool {
        let heard = &mut self.alives_heard[usize::from(header.node) % NODES];
        let number = (header.client_id, header.client_seq);
        let is_news = *heard < number;
        *heard = number.max(*heard);
        is_news
    }
}
