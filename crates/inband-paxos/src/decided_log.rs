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

/// Consecutive decided instances, bounded by count and bytes.
#[derive(Debug)]
pub struct DecidedLog {
    first: u64,
    limit: LogLimit,
    entries: VecDeque<(Header, Vec<u8>)>,
    bytes: usize,
    /// Kept longer, for a peer that installs a checkpoint.
    is_held: bool,
}

impl DecidedLog {
    /// Returns an empty log that continues at `first`.
    pub fn starting_at(first: u64, limit: LogLimit) -> DecidedLog {
        DecidedLog {
            first,
            limit,
            entries: VecDeque::new(),
            bytes: 0,
            is_held: false,
        }
    }

    /// From now on keeps values up to the limits for a held log, or, again, only as many as usual.
    pub fn set_held(&mut self, is_held: bool) {
        self.is_held = is_held;
        let (values_max, bytes_max) = self.limits();
        while self.entries.len() > values_max || self.bytes > bytes_max {
            self.drop_first();
        }
    }

    /// Most values, and bytes of values, that are kept now.
    fn limits(&self) -> (usize, usize) {
        match self.is_held {
            true => (self.limit.held_values_max, self.limit.held_bytes_max),
            false => (self.limit.values_max, self.limit.bytes_max),
        }
    }

    /// Returns whether `instance` would have been dropped if this log were not held.
    pub fn is_only_held(&self, instance: u64) -> bool {
        let next = self.first + self.entries.len() as u64;
        self.is_held && instance >= self.first && instance + (self.limit.values_max as u64) < next
    }

    /// Returns the lowest instance held; equal to the next one if empty.
    pub fn first(&self) -> u64 {
        self.first
    }

    /// Appends the next instance.
    pub fn push(&mut self, header: Header, value: &[u8]) {
        assert_eq!(
            header.instance,
            self.first + self.entries.len() as u64,
            "log has no holes"
        );
        self.bytes += value.len();
        let (values_max, bytes_max) = self.limits();
        let entry = if self.entries.len() >= values_max {
            self.drop_first()
        } else {
            None
        };
        let mut memory = entry.unwrap_or_default();
        memory.clear();
        memory.extend_from_slice(value);
        self.entries.push_back((header, memory));
        while self.bytes > bytes_max {
            self.drop_first();
        }
    }

    fn drop_first(&mut self) -> Option<Vec<u8>> {
        let (_, value) = self.entries.pop_front()?;
        self.first += 1;
        self.bytes -= value.len();
        Some(value)
    }

    /// Returns the decided value of `instance`, if still held.
    pub fn get(&self, instance: u64) -> Option<(&Header, &[u8])> {
        let at = usize::try_from(instance.checked_sub(self.first)?).ok()?;
        self.entries
            .get(at)
            .map(|(header, value)| (header, value.as_slice()))
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
        assert_eq!((log.first(), log.memory_bytes()), (301, 800));
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
