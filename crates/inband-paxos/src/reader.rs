//! Linearizable reads that do not go through the log (protocol.md, 11).
//!
//! The index of a read is the highest instance voted at a majority of the acceptors that vote in this epoch, queried
//! after the read arrived: everything decided before is at or below it, because an acceptor raises that register before
//! it sends its vote. The leader could not tell: it knows what it stamped, not what was decided.
//!
//! A round of queries serves all reads that arrived before it was sent, and one round is in flight at a time: however
//! many reads there are, the acceptors answer once per round trip.

use std::collections::VecDeque;

use crate::dataplane::wire::{flag, Header, Type};

use crate::log::{Burst, ReadTicket, SubmitFailure};
use crate::outbox::{Dest, Outbox};
use crate::partition::process_id;
use crate::quorum::Votes;
use crate::timing::{Micros, Timing};

/// Initial retransmission interval of a round's queries; doubles up to the longest interval between retransmissions of
/// a request.
const RETRY_US: Micros = 2_000;

/// The reader's identity, and the acceptors that it queries.
#[derive(Debug, Clone)]
pub struct ReaderConfig {
    pub node: u8,
    pub partition: u16,
    pub epoch: u32,
    pub acceptors: Vec<u8>,
    /// Number of this process run, never reused by this node: answers to an earlier process do not count.
    pub incarnation: u64,
    pub timing: Timing,
}

#[derive(Debug, Clone, Copy)]
struct Read {
    ticket: ReadTicket,
    deadline: Micros,
}

/// A round of queries in flight.
#[derive(Debug)]
struct Round {
    voters: Votes,
    highest: u64,
    retry_at: Micros,
    retry_after: Micros,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReaderStats {
    /// Number of reads requested.
    pub reads: u64,
    /// Number of rounds of queries that served them.
    pub rounds: u64,
}

#[derive(Debug)]
pub struct Reader {
    config: ReaderConfig,
    next_ticket: u64,
    /// Identifies the round in flight, or the last one; answers carry it back.
    nonce: u64,
    round: Option<Round>,
    /// Served by the round in flight.
    asked: VecDeque<Read>,
    /// Arrived after it was sent: served by the next one.
    waiting: VecDeque<Read>,
    /// With their index, ascending: reported once everything up to it is delivered.
    indexed: VecDeque<(u64, Read)>,
    failed: Vec<(ReadTicket, SubmitFailure)>,
    stats: ReaderStats,
}

impl Reader {
    /// A reader without pending reads.
    pub fn new(config: ReaderConfig) -> Reader {
        Reader {
            config,
            next_ticket: 1,
            nonce: 0,
            round: None,
            asked: VecDeque::new(),
            waiting: VecDeque::new(),
            indexed: VecDeque::new(),
            failed: Vec::new(),
            stats: ReaderStats::default(),
        }
    }

    /// Requests a read; the next `on_tick` queries its index, or the round after the one in flight.
    pub fn confirm(&mut self, now: Micros) -> ReadTicket {
        let ticket = ReadTicket::new(usize::from(self.config.partition), self.next_ticket);
        self.next_ticket += 1;
        self.stats.reads += 1;
        self.waiting.push_back(Read {
            ticket,
            deadline: now + self.config.timing.submit_deadline_us,
        });
        ticket
    }

    /// Returns the same on a host without a learner, where no read can be answered.
    pub fn refuse(&mut self, why: &'static str) -> ReadTicket {
        let ticket = self.confirm(0);
        self.waiting.clear();
        self.failed.push((ticket, SubmitFailure::NotApplied(why)));
        ticket
    }

    /// Enters a later epoch: its acceptors are queried for whatever those of the earlier one were asked. Known indices
    /// stay valid.
    pub fn enter_epoch(&mut self, epoch: u32, acceptors: &[u8]) {
        self.config.epoch = epoch;
        self.config.acceptors = acceptors.to_vec();
        self.round = None;
        self.asked.append(&mut self.waiting);
        std::mem::swap(&mut self.asked, &mut self.waiting);
    }

    /// Begins a round for the waiting reads, if none is in flight.
    fn begin(&mut self, now: Micros, out: &mut Outbox) {
        if self.round.is_some() || self.waiting.is_empty() {
            return;
        }
        std::mem::swap(&mut self.asked, &mut self.waiting);
        self.nonce += 1;
        self.stats.rounds += 1;
        self.round = Some(Round {
            voters: Votes::default(),
            highest: 0,
            retry_at: now + RETRY_US,
            retry_after: RETRY_US,
        });
        self.ask(out);
    }

    /// Identifies the sender of queries. An answer meant for another process, which may use the same round numbers, may
    /// be older than the query.
    fn asker(&self) -> u64 {
        process_id(self.config.node, self.config.incarnation)
    }

    fn ask(&self, out: &mut Outbox) {
        let config = &self.config;
        let mut header = Header::new(Type::Position, u16::from(config.node), config.epoch);
        header.partition = config.partition;
        header.client_id = self.asker();
        header.client_seq = self.nonce;
        out.send(Dest::Acceptors, &header, &[]);
    }

    /// An acceptor of this epoch reports how high it has voted. Returns the index of the reads that the round served,
    /// once a majority has answered.
    pub fn on_position(&mut self, now: Micros, header: &Header, out: &mut Outbox) -> Option<u64> {
        let asker = self.asker();
        let round = self.round.as_mut()?;
        // An acceptor that does not vote may have lost its votes.
        let is_answer = header.client_seq == self.nonce && header.client_id == asker;
        if !is_answer || header.has(flag::RECOVERING) || header.epoch != self.config.epoch {
            return None;
        }
        round.voters.add(&self.config.acceptors, header.node);
        if self
            .config
            .acceptors
            .iter()
            .any(|a| u16::from(*a) == header.node)
        {
            round.highest = round.highest.max(header.instance);
        }
        if !round.voters.is_majority(&self.config.acceptors) {
            return None;
        }
        let last = self.indexed.back().map_or(0, |(index, _)| *index);
        let index = round.highest.max(last);
        self.round = None;
        self.indexed
            .extend(self.asked.drain(..).map(|read| (index, read)));
        self.begin(now, out);
        Some(index)
    }

    /// Reports the reads whose index is below `next`, the next instance to be delivered, and those that failed.
    pub fn take(&mut self, next: u64, burst: &mut Burst) {
        while let Some((index, read)) = self.indexed.front().filter(|(index, _)| *index < next) {
            burst.confirmed.push((read.ticket, *index));
            self.indexed.pop_front();
        }
        burst.reads_failed.append(&mut self.failed);
    }

    /// Begins a round, retransmit its queries, and gives up reads that have passed their deadline.
    pub fn on_tick(&mut self, now: Micros, out: &mut Outbox) {
        self.give_up(now);
        if self.asked.is_empty() {
            self.round = None; // nobody waits for its end any more
        }
        self.begin(now, out);
        let longest = self.config.timing.resend_max_us;
        if let Some(round) = self.round.as_mut().filter(|round| now >= round.retry_at) {
            round.retry_after = (round.retry_after * 2).min(longest);
            round.retry_at = now + round.retry_after;
            self.ask(out);
        }
    }

    fn give_up(&mut self, now: Micros) {
        let failed = &mut self.failed;
        let mut over = |read: &Read, why| {
            let is_over = now >= read.deadline;
            if is_over {
                failed.push((read.ticket, SubmitFailure::NotApplied(why)));
            }
            is_over
        };
        // Deadlines ascend from queue to queue and within each.
        let why = "what was decided before did not arrive in time; try again or at another replica";
        while self.indexed.front().is_some_and(|(_, r)| over(r, why)) {
            self.indexed.pop_front();
        }
        let why = "no majority of acceptors answered in time; nothing was read";
        for reads in [&mut self.asked, &mut self.waiting] {
            while reads.front().is_some_and(|r| over(r, why)) {
                reads.pop_front();
            }
        }
    }

    /// Returns when `on_tick` is next due.
    pub fn due(&self) -> Micros {
        let Some(round) = &self.round else {
            if !self.waiting.is_empty() {
                return 0;
            }
            let first = self.indexed.front();
            return first.map_or(Micros::MAX, |(_, read)| read.deadline);
        };
        let first = self.indexed.front().map(|(_, read)| read);
        let first = first.or(self.asked.front());
        first.map_or(0, |read| read.deadline.min(round.retry_at))
    }

    /// Returns the number of unanswered reads.
    pub fn outstanding(&self) -> usize {
        self.asked.len() + self.waiting.len() + self.indexed.len()
    }

    pub fn stats(&self) -> ReaderStats {
        self.stats
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataplane::wire;

    const EPOCH: u32 = 3;
    const INCARNATION: u64 = 8;
    const ASKER: u64 = INCARNATION << 8 | 9;

    fn reader() -> Reader {
        Reader::new(ReaderConfig {
            node: 9,
            partition: 2,
            epoch: EPOCH,
            acceptors: vec![1, 2, 3],
            incarnation: INCARNATION,
            timing: Timing::default(),
        })
    }

    fn asked(out: &mut Outbox) -> Vec<u64> {
        let nonce = |(dest, packet)| {
            assert_eq!(dest, Dest::Acceptors);
            let (header, _) = wire::parse(packet).unwrap();
            assert_eq!((header.kind, header.partition), (Type::Position, 2));
            assert_eq!(header.client_id, ASKER);
            header.client_seq
        };
        let nonces = out.iter().map(nonce).collect();
        out.clear();
        nonces
    }

    fn answer(node: u16, nonce: u64, highest: u64) -> Header {
        let mut header = Header::new(Type::Position, node, EPOCH);
        header.flags = flag::ANSWER;
        header.client_id = ASKER;
        header.client_seq = nonce;
        header.instance = highest;
        header
    }

    fn taken(reader: &mut Reader, next: u64) -> Vec<(ReadTicket, u64)> {
        let mut burst = Burst::new();
        reader.take(next, &mut burst);
        assert!(burst.reads_failed.is_empty());
        burst.confirmed
    }

    #[test]
    fn a_round_serves_the_reads_that_came_before_it() {
        let (mut r, mut out) = (reader(), Outbox::new());
        let (a, b) = (r.confirm(0), r.confirm(0));
        assert_eq!((a.partition(), r.due()), (2, 0));
        r.on_tick(0, &mut out);
        let c = r.confirm(1);
        r.on_tick(1, &mut out);
        assert_eq!(
            asked(&mut out),
            [1],
            "the third read waits for the next round"
        );
        assert_eq!(r.on_position(2, &answer(1, 1, 7), &mut out), None);
        assert_eq!(r.on_position(2, &answer(2, 1, 5), &mut out), Some(7));
        assert_eq!(asked(&mut out), [2], "which begins at once");
        assert_eq!(taken(&mut r, 7), []);
        assert_eq!(taken(&mut r, 8), [(a, 7), (b, 7)]);
        assert_eq!(r.on_position(3, &answer(3, 1, 9), &mut out), None, "late");
        assert_eq!(r.on_position(3, &answer(3, 2, 8), &mut out), None);
        assert_eq!(r.on_position(3, &answer(1, 2, 6), &mut out), Some(8));
        assert_eq!(taken(&mut r, 9), [(c, 8)]);
        assert_eq!((r.due(), r.outstanding()), (Micros::MAX, 0));
        assert_eq!(
            r.stats(),
            ReaderStats {
                reads: 3,
                rounds: 2
            }
        );
    }

    #[test]
    fn only_members_that_vote_in_this_epoch_and_answer_this_round_count_each_once() {
        let (mut r, mut out) = (reader(), Outbox::new());
        r.confirm(0);
        r.on_tick(0, &mut out);
        let mut recovering = answer(2, 1, 0);
        recovering.flags |= flag::RECOVERING;
        let mut other_epoch = answer(2, 1, 0);
        other_epoch.epoch += 1;
        let mut other_process = answer(2, 1, 0);
        other_process.client_id -= 1 << 8;
        // From a host whose first process also sends its first query.
        let mut other_host = answer(2, 1, 0);
        other_host.client_id -= 1;
        for header in [
            other_process,
            other_host,
            answer(1, 1, 4),
            answer(1, 1, 4),
            recovering,
            other_epoch,
            answer(4, 1, 100),
        ] {
            assert_eq!(r.on_position(1, &header, &mut out), None);
        }
        assert_eq!(r.on_position(1, &answer(3, 1, 6), &mut out), Some(6));
    }

    #[test]
    fn a_new_epochs_acceptors_are_asked_again() {
        let (mut r, mut out) = (reader(), Outbox::new());
        let a = r.confirm(0);
        r.on_tick(0, &mut out);
        let b = r.confirm(0);
        assert_eq!(asked(&mut out), [1]);
        assert_eq!(r.on_position(1, &answer(1, 1, 4), &mut out), None);
        r.enter_epoch(EPOCH + 1, &[3, 4, 5]);
        assert_eq!(r.due(), 0);
        r.on_tick(2, &mut out);
        assert_eq!(asked(&mut out), [2]);
        let of_new = |node, nonce, highest| Header {
            epoch: EPOCH + 1,
            ..answer(node, nonce, highest)
        };
        for header in [
            answer(4, 2, 3),
            of_new(3, 1, 3),
            of_new(1, 2, 3),
            of_new(5, 2, 6),
        ] {
            assert_eq!(r.on_position(3, &header, &mut out), None);
        }
        assert_eq!(r.on_position(3, &of_new(3, 2, 5), &mut out), Some(6));
        assert_eq!(taken(&mut r, 7), [(a, 6), (b, 6)]);
    }

    #[test]
    fn questions_are_repeated_until_the_deadline() {
        let (mut r, mut out) = (reader(), Outbox::new());
        let deadline = Timing::default().submit_deadline_us;
        let a = r.confirm(0);
        r.on_tick(0, &mut out);
        assert_eq!(asked(&mut out), [1]);
        let mut now = 0;
        let mut times = Vec::new();
        while r.outstanding() > 0 {
            now = r.due();
            assert!(now <= deadline);
            r.on_tick(now, &mut out);
            times.extend(asked(&mut out).iter().map(|_| now));
        }
        assert_eq!(times[..3], [RETRY_US, 3 * RETRY_US, 7 * RETRY_US]);
        assert!(times.len() < 40, "{times:?}");
        assert_eq!(now, deadline);
        let mut burst = Burst::new();
        r.take(1, &mut burst);
        assert!(matches!(burst.reads_failed[..], [(t, SubmitFailure::NotApplied(_))] if t == a));
        // An answer to an abandoned round does not count for the next one.
        r.confirm(now);
        r.on_tick(now, &mut out);
        assert_eq!(asked(&mut out), [2]);
        for node in 1..=3 {
            assert_eq!(r.on_position(now, &answer(node, 1, 9), &mut out), None);
        }
    }
}
