//! The last decided values, kept in memory for peers that missed them (protocol.md, 7).

use std::collections::VecDeque;

use crate::dataplane::wire::Header;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogLimit {
    pub values_max: usize,
    /// Total length of values in bytes.
    pub bytes_max: usize,
    /// The limits of a log that is [held](DecidedLog::set_held).
    pub held_values_max: usize,
    pub held_bytes_max: usize,
}

/// Instances per segment.
const SEGMENT_LEN: u64 = 1024;
/// Values that [`DecidedLog::push`] and [`DecidedLog::release`] drop at most: about 0.2 ms, less than any timeout.
const RELEASED_MAX: usize = 4096;

/// Consecutive instances, and none of another segment.
type Segment = VecDeque<(Header, Vec<u8>)>;

/// Consecutive decided instances, bounded by count and bytes. In segments, so that no call copies or frees all of it: a held
/// log has 200 MB, and to grow or to free it at once stopped the host for 50 ms.
#[derive(Debug)]
pub struct DecidedLog {
    first: u64,
    next: u64,
    limit: LogLimit,
    /// Segment `i` has instances of `first / SEGMENT_LEN + i`. All but the first and the last are full.
    segments: VecDeque<Segment>,
    /// Memory for the next segment.
    spare: Option<Segment>,
    bytes: usize,
    /// Kept longer, for a peer that installs a checkpoint.
    is_held: bool,
}

impl DecidedLog {
    /// Returns an empty log that continues at `first`.
    pub fn starting_at(first: u64, limit: LogLimit) -> DecidedLog {
        DecidedLog {
            first,
            next: first,
            limit,
            segments: VecDeque::new(),
            spare: None,
            bytes: 0,
            is_held: false,
        }
    }

    /// From now on keeps values up to the limits for a held log, or, again, only as many as usual: then
    /// [`release`](DecidedLog::release) drops the others.
    pub fn set_held(&mut self, is_held: bool) {
        self.is_held = is_held;
    }

    /// Most values, and bytes of values, that are kept now.
    fn limits(&self) -> (usize, usize) {
        match self.is_held {
            true => (self.limit.held_values_max, self.limit.held_bytes_max),
            false => (self.limit.values_max, self.limit.bytes_max),
        }
    }

    fn len(&self) -> usize {
        (self.next - self.first) as usize
    }

    /// Returns whether there are more values, or bytes, than may be kept.
    pub fn is_over(&self) -> bool {
        let (values_max, bytes_max) = self.limits();
        self.len() > values_max || self.bytes > bytes_max
    }

    /// Drops the oldest values that may not be kept, some of them per call: call it until it [is not over](DecidedLog::is_over).
    pub fn release(&mut self) {
        for _ in 0..RELEASED_MAX {
            if !self.is_over() {
                return;
            }
            self.drop_first();
        }
    }

    /// Returns whether `instance` would have been dropped if this log were not held.
    pub fn is_only_held(&self, instance: u64) -> bool {
        self.is_held
            && instance >= self.first
            && instance + (self.limit.values_max as u64) < self.next
    }

    /// Returns the lowest instance held; equal to the next one if empty.
    pub fn first(&self) -> u64 {
        self.first
    }

    /// Appends the next instance.
    pub fn push(&mut self, header: Header, value: &[u8]) {
        assert_eq!(header.instance, self.next, "log has no holes");
        self.bytes += value.len();
        let (values_max, _) = self.limits();
        let entry = if self.len() >= values_max {
            self.drop_first()
        } else {
            None
        };
        let mut memory = entry.unwrap_or_default();
        memory.clear();
        memory.extend_from_slice(value);
        if self.segments.is_empty() || self.next % SEGMENT_LEN == 0 {
            let spare = self.spare.take();
            let segment = spare.unwrap_or_else(|| Segment::with_capacity(SEGMENT_LEN as usize));
            self.segments.push_back(segment);
        }
        let last = self.segments.back_mut().expect("one was added");
        last.push_back((header, memory));
        self.next += 1;
        self.release();
    }

    fn drop_first(&mut self) -> Option<Vec<u8>> {
        let segment = self.segments.front_mut()?;
        let (_, value) = segment.pop_front().expect("a segment is not empty");
        if segment.is_empty() {
            self.spare = self.segments.pop_front();
        }
        self.first += 1;
        self.bytes -= value.len();
        Some(value)
    }

    /// Returns the decided value of `instance`, if still held.
    pub fn get(&self, instance: u64) -> Option<(&Header, &[u8])> {
        if !(self.first..self.next).contains(&instance) {
            return None;
        }
        let segment = (instance / SEGMENT_LEN - self.first / SEGMENT_LEN) as usize;
        let start = self.first.max(instance - instance % SEGMENT_LEN);
        let (header, value) = &self.segments[segment][(instance - start) as usize];
        Some((header, value))
    }

    /// Bytes of values held.
    pub fn memory_bytes(&self) -> usize {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataplane::wire::Type;

    fn push(log: &mut DecidedLog, instances: std::ops::Range<u64>) {
        let mut header = Header::new(Type::Phase2B, 1, 1);
        for i in instances {
            header.instance = i;
            log.push(header, &i.to_be_bytes());
        }
    }

    #[test]
    fn what_is_held_is_bounded_too_and_goes_when_it_is_held_no_longer() {
        let limit = LogLimit {
            values_max: 100,
            bytes_max: 1 << 20,
            held_values_max: 300,
            held_bytes_max: 250 * 8,
        };
        let mut log = DecidedLog::starting_at(1, limit);
        push(&mut log, 1..101);
        log.set_held(true);
        push(&mut log, 101..201);
        assert_eq!(log.first(), 1);
        assert!(log.is_only_held(100) && !log.is_only_held(101));
        push(&mut log, 201..401);
        assert_eq!(
            log.first(),
            151,
            "250 values are as many bytes as may be held"
        );
        log.set_held(false);
        log.release();
        assert_eq!((log.first(), log.memory_bytes()), (301, 800));
    }

    #[test]
    fn what_was_held_is_released_in_steps_and_its_memory_is_freed() {
        const HELD: u64 = 10 * RELEASED_MAX as u64;
        let limit = LogLimit {
            values_max: 100,
            bytes_max: 1 << 20,
            held_values_max: HELD as usize,
            held_bytes_max: 1 << 30,
        };
        let mut log = DecidedLog::starting_at(1, limit);
        log.set_held(true);
        push(&mut log, 1..HELD + 1);
        log.set_held(false);
        let mut first = log.first();
        let mut steps = 0;
        while log.is_over() {
            log.release();
            assert!(log.first() - first <= RELEASED_MAX as u64);
            first = log.first();
            steps += 1;
        }
        assert_eq!((first, steps), (HELD - 99, 10));
        assert!(log.segments.len() <= 2, "{}", log.segments.len());
        for instance in first..=HELD {
            assert_eq!(log.get(instance).unwrap().1, instance.to_be_bytes());
        }
        assert!(log.get(first - 1).is_none() && log.get(HELD + 1).is_none());
    }

    #[test]
    fn values_are_found_across_segments() {
        let limit = LogLimit {
            values_max: SEGMENT_LEN as usize + 10,
            bytes_max: 1 << 20,
            held_values_max: 0,
            held_bytes_max: 0,
        };
        for start in [1, SEGMENT_LEN - 1, SEGMENT_LEN, SEGMENT_LEN + 1] {
            let mut log = DecidedLog::starting_at(start, limit);
            for next in start..start + 3 * SEGMENT_LEN {
                push(&mut log, next..next + 1);
                let values = log.first()..=next;
                assert!(values.clone().count() <= limit.values_max);
                for instance in [*values.start(), values.start().midpoint(next), next] {
                    assert_eq!(log.get(instance).unwrap().1, instance.to_be_bytes());
                }
                assert!(log.get(values.start() - 1).is_none() && log.get(next + 1).is_none());
            }
        }
    }

    #[test]
    fn the_oldest_go_first() {
        let limit = LogLimit {
            values_max: 100,
            bytes_max: 1 << 20,
            held_values_max: 300,
            held_bytes_max: 1 << 20,
        };
        let mut log = DecidedLog::starting_at(5, limit);
        push(&mut log, 5..5 + 100 + 2);
        assert_eq!(log.first(), 7);
        assert!(log.get(6).is_none());
        assert_eq!(log.get(7).unwrap().1, 7u64.to_be_bytes());
    }
}
