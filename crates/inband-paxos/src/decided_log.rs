//! The last decided values, kept in memory for peers that missed them (protocol.md, 7).

use std::collections::VecDeque;

use crate::dataplane::wire::Header;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogLimit {
    pub values_max: usize,
    /// Total length of values in bytes.
    pub bytes_max: usize,
}

/// Consecutive decided instances, bounded by count and bytes.
#[derive(Debug)]
pub struct DecidedLog {
    first: u64,
    limit: LogLimit,
    entries: VecDeque<(Header, Vec<u8>)>,
    bytes: usize,
}

impl DecidedLog {
    /// Returns an empty log that continues at `first`.
    pub fn starting_at(first: u64, limit: LogLimit) -> DecidedLog {
        DecidedLog {
            first,
            limit,
            entries: VecDeque::new(),
            bytes: 0,
        }
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
        let entry = if self.entries.len() >= self.limit.values_max {
            self.drop_first()
        } else {
            None
        };
        let mut memory = entry.unwrap_or_default();
        memory.clear();
        memory.extend_from_slice(value);
        self.entries.push_back((header, memory));
        while self.bytes > self.limit.bytes_max {
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

    #[test]
    fn the_oldest_go_first() {
        let limit = LogLimit {
            values_max: 100,
            bytes_max: 1 << 20,
        };
        let mut log = DecidedLog::starting_at(5, limit);
        let mut header = Header::new(Type::Phase2B, 1, 1);
        for i in 5..5 + 100 + 2 {
            header.instance = i;
            log.push(header, &i.to_be_bytes());
        }
        assert_eq!(log.first(), 7);
        assert!(log.get(6).is_none());
        assert_eq!(log.get(7).unwrap().1, 7u64.to_be_bytes());
    }
}
