//! The latest changes of the keys of this replica, kept in memory for clients that watch them.
//!
//! Every replica applies the same changes of a partition in the same order, and a change has the same [`Point`] on all
//! of them, because points come from the log. So a client that has seen the changes up to some point at one replica can
//! continue behind it at any other. Nothing of this is stored: a replica that has just started has no changes.

use std::collections::VecDeque;
use std::fmt;
use std::str::FromStr;
#[cfg(any(test, feature = "testing"))]
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::limits::{CHANGES_BYTES_MAX, CHANGE_VALUE_LEN_BYTES_MAX};
use crate::store::Position;

/// Changes are dropped by segments, one of this many of the limit at a time.
const SEGMENTS: usize = 64;

/// What has happened to a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChangeKind {
    /// Its value or expiry time was written.
    Put,
    Delete,
    /// It was removed because its time was over.
    Expire,
    /// All keys of the partition were deleted.
    Flush,
}

impl ChangeKind {
    pub fn name(self) -> &'static str {
        match self {
            ChangeKind::Put => "put",
            ChangeKind::Delete => "delete",
            ChangeKind::Expire => "expire",
            ChangeKind::Flush => "flush",
        }
    }
}

/// A place in the sequence of a partition's changes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Point {
    position: Position,
    /// Which change at this position, from 1; [`ALL`]: behind all of them.
    index: u32,
}

const ALL: u32 = u32::MAX;

impl Point {
    /// Behind all changes of this position.
    pub fn after(position: Position) -> Self {
        Self {
            position,
            index: ALL,
        }
    }
}

/// How far a client has seen the changes: one point per partition. Clients treat its text as opaque.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Revision(pub Vec<Point>);

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, Point { position, index }) in self.0.iter().enumerate() {
            let separator = if at == 0 { "" } else { "," };
            write!(f, "{separator}{}", position.applied)?;
            if position.entry != 0 {
                write!(f, ".{}", position.entry)?;
            }
            if *index != ALL {
                write!(f, "-{index}")?;
            }
        }
        Ok(())
    }
}

/// It is not the text of a revision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoRevision;

impl FromStr for Revision {
    type Err = NoRevision;

    fn from_str(text: &str) -> Result<Self, NoRevision> {
        fn number<T: FromStr>(text: &str) -> Result<T, NoRevision> {
            let is_plain = text.bytes().all(|b| b.is_ascii_digit());
            text.parse().ok().filter(|_| is_plain).ok_or(NoRevision)
        }
        let point = |text: &str| {
            let (position, index) = match text.split_once('-') {
                Some((position, index)) => (position, number(index)?),
                None => (text, ALL),
            };
            let (applied, entry) = match position.split_once('.') {
                Some((applied, entry)) => (applied, number(entry)?),
                None => (position, 0),
            };
            let applied = number(applied)?;
            let position = Position { applied, entry };
            Ok(Point { position, index })
        };
        text.split(',')
            .map(point)
            .collect::<Result<_, _>>()
            .map(Self)
    }
}

/// One change that is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Change<'c> {
    pub partition: usize,
    pub point: Point,
    pub kind: ChangeKind,
    /// Empty after a flush.
    pub key: &'c [u8],
    /// The new value, if it is a string that is not too long.
    pub value: Option<&'c [u8]>,
}

impl Change<'_> {
    /// Whether it concerns keys with this prefix.
    pub fn concerns(&self, prefix: &[u8]) -> bool {
        self.kind == ChangeKind::Flush || self.key.starts_with(prefix)
    }

    /// How much of the limit it takes.
    pub fn len_bytes(&self) -> usize {
        size_of::<Head>() + self.key.len() + self.value.map_or(0, <[u8]>::len)
    }
}

#[derive(Debug)]
struct Head {
    point: Point,
    partition: u32,
    kind: ChangeKind,
    /// Where its key begins in the segment.
    start: u32,
    key_len: u32,
    value_len: Option<u32>,
}

/// Consecutive changes.
#[derive(Debug, Default)]
struct Segment {
    heads: Vec<Head>,
    bytes: Vec<u8>,
}

impl Segment {
    fn len_bytes(&self) -> usize {
        self.heads.len() * size_of::<Head>() + self.bytes.len()
    }

    fn change(&self, head: &Head) -> Change<'_> {
        let rest = &self.bytes[head.start as usize..];
        let (key, rest) = rest.split_at(head.key_len as usize);
        Change {
            partition: head.partition as usize,
            point: head.point,
            kind: head.kind,
            key,
            value: head.value_len.map(|len| &rest[..len as usize]),
        }
    }
}

/// The changes that are kept, in the order in which this replica applied them.
#[derive(Debug)]
pub struct Kept {
    segments: VecDeque<Segment>,
    /// Number of the first change that is kept; the first of all has 0.
    first: u64,
    /// Number of the next change.
    next: u64,
    len_bytes: usize,
    bytes_max: usize,
    /// By partition: changes up to here are not kept. `None`: its store is not open yet.
    gone: Vec<Option<Point>>,
    /// By partition: the last change.
    last: Vec<Point>,
    has_gap: bool,
}

impl Kept {
    fn new(bytes_max: usize) -> Self {
        Self {
            segments: VecDeque::new(),
            first: 0,
            next: 0,
            len_bytes: 0,
            bytes_max,
            gone: Vec::new(),
            last: Vec::new(),
            has_gap: false,
        }
    }

    /// Number of the first change that is kept.
    pub fn first(&self) -> u64 {
        self.first
    }

    /// Number of the next change.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Most bytes of changes that are kept.
    pub fn bytes_max(&self) -> usize {
        self.bytes_max
    }

    /// The oldest revision behind which all changes are kept.
    pub fn oldest(&self) -> Revision {
        Revision(self.gone.iter().map(|p| p.unwrap_or_default()).collect())
    }

    /// Takes the note that changes of a partition were skipped since the last call.
    pub fn take_gap(&mut self) -> bool {
        std::mem::take(&mut self.has_gap)
    }

    /// The changes from this number on, which must not be less than [`first`](Self::first).
    pub fn from(&self, number: u64) -> impl Iterator<Item = Change<'_>> {
        let mut skip = number.saturating_sub(self.first) as usize;
        let mut segments = self.segments.iter();
        let mut current = segments.next();
        while let Some(segment) = current.filter(|s| skip >= s.heads.len()) {
            skip -= segment.heads.len();
            current = segments.next();
        }
        let rest = current.into_iter().chain(segments);
        let changes = rest.flat_map(|s| s.heads.iter().map(|head| s.change(head)));
        changes.skip(skip)
    }

    fn push(&mut self, partition: usize, point: Point, kind: ChangeKind, parts: Parts<'_>) {
        let segment_bytes = self.bytes_max / SEGMENTS;
        if self
            .segments
            .back()
            .is_none_or(|s| s.len_bytes() >= segment_bytes)
        {
            self.segments.push_back(Segment::default());
        }
        let segment = self.segments.back_mut().expect("one was just pushed");
        let before = segment.len_bytes();
        let value = parts.value.unwrap_or(&[]);
        segment.heads.push(Head {
            point,
            partition: partition as u32,
            kind,
            start: segment.bytes.len() as u32,
            key_len: parts.key.len() as u32,
            value_len: parts.value.map(|value| value.len() as u32),
        });
        segment.bytes.extend_from_slice(parts.key);
        segment.bytes.extend_from_slice(value);
        self.len_bytes += segment.len_bytes() - before;
        self.next += 1;
        while self.len_bytes > self.bytes_max {
            self.drop_oldest();
        }
    }

    fn drop_oldest(&mut self) {
        let Some(segment) = self.segments.pop_front() else {
            return;
        };
        self.first += segment.heads.len() as u64;
        self.len_bytes -= segment.len_bytes();
        for head in &segment.heads {
            let gone = &mut self.gone[head.partition as usize];
            *gone = (*gone).max(Some(head.point));
        }
    }
}

#[derive(Clone, Copy)]
struct Parts<'p> {
    key: &'p [u8],
    value: Option<&'p [u8]>,
}

/// The changes of all partitions of a replica.
#[derive(Debug, Clone)]
pub struct Changes {
    kept: Arc<Mutex<Kept>>,
    #[cfg(any(test, feature = "testing"))]
    is_off: Arc<AtomicBool>,
}

impl Default for Changes {
    fn default() -> Self {
        Self {
            kept: Arc::new(Mutex::new(Kept::new(CHANGES_BYTES_MAX))),
            #[cfg(any(test, feature = "testing"))]
            is_off: Arc::default(),
        }
    }
}

impl Changes {
    pub fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps at most this many bytes from now on.
    pub fn set_bytes_max(&self, bytes_max: usize) {
        self.kept().bytes_max = bytes_max;
    }

    /// Keeps nothing, to show what keeping costs.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn set_off(&self, is_off: bool) {
        self.is_off.store(is_off, Ordering::Relaxed);
    }

    /// The store of a partition was opened at this position: nothing before it is known.
    pub(crate) fn begin(&self, partition: usize, partitions: usize, position: Position) {
        let mut kept = self.kept();
        kept.gone.resize(partitions, None);
        kept.last.resize(partitions, Point::default());
        let at = Point::after(position);
        kept.has_gap |= kept.gone[partition].is_some();
        (kept.gone[partition], kept.last[partition]) = (Some(at), at);
    }

    /// Keeps a change that was made at this position of a partition.
    pub(crate) fn note(
        &self,
        partition: usize,
        position: Position,
        kind: ChangeKind,
        key: &[u8],
        value: Option<&[u8]>,
    ) {
        #[cfg(any(test, feature = "testing"))]
        if self.is_off.load(Ordering::Relaxed) {
            return;
        }
        let mut kept = self.kept();
        let last = kept.last[partition];
        let index = match last.position == position {
            true => last.index.saturating_add(1),
            false => 1,
        };
        let point = Point { position, index };
        kept.last[partition] = point;
        let value = value.filter(|value| value.len() <= CHANGE_VALUE_LEN_BYTES_MAX);
        kept.push(partition, point, kind, Parts { key, value });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(applied: u64, entry: u64) -> Position {
        Position { applied, entry }
    }

    fn keys(kept: &Kept, from: u64) -> Vec<String> {
        let key = |c: Change<'_>| String::from_utf8_lossy(c.key).into_owned();
        kept.from(from).map(key).collect()
    }

    #[test]
    fn revisions_are_read_as_they_are_written() {
        let points = [
            (at(7, 0), ALL),
            (at(u64::MAX, 3), 1),
            (at(0, 0), 12),
            (at(9, 4), ALL),
        ];
        let points = points.map(|(position, index)| Point { position, index });
        let revision = Revision(points.to_vec());
        let text = "7,18446744073709551615.3-1,0-12,9.4";
        assert_eq!(revision.to_string(), text);
        assert_eq!(text.parse(), Ok(revision));
        for wrong in [
            "",
            "x",
            "1,",
            "1-",
            "-1",
            "1.2.3",
            "+1",
            "1-4294967296",
            "1 ",
        ] {
            assert_eq!(wrong.parse::<Revision>(), Err(NoRevision), "{wrong:?}");
        }
    }

    #[test]
    fn points_are_in_the_order_of_the_log() {
        let changes = Changes::default();
        changes.begin(0, 1, at(4, 0));
        // Two changes of one value, two entries at the marker after it, the value after that.
        for position in [at(5, 0), at(5, 0), at(5, 8), at(5, 9), at(7, 9)] {
            changes.note(0, position, ChangeKind::Put, b"k", None);
        }
        let kept = changes.kept();
        let points: Vec<Point> = kept.from(0).map(|c| c.point).collect();
        assert!(points.is_sorted_by(|a, b| a < b), "{points:?}");
        let between = [at(4, 0), at(5, 0), at(5, 8), at(6, 9), at(7, 9)];
        let after = |p: Position| points.iter().filter(|q| **q > Point::after(p)).count();
        assert_eq!(between.map(after), [5, 3, 2, 1, 0]);
        assert_eq!(kept.oldest().to_string(), "4");
    }

    #[test]
    fn the_oldest_are_dropped() {
        let changes = Changes::default();
        changes.set_bytes_max(64 * 1024);
        (0..2).for_each(|p| changes.begin(p, 2, at(p as u64, 0)));
        assert_eq!(changes.kept().oldest().to_string(), "0,1");
        let value = [b'v'; 100];
        for n in 0..10_000u64 {
            let partition = usize::from(n % 3 == 0);
            let key = n.to_string();
            changes.note(
                partition,
                at(n + 2, 0),
                ChangeKind::Put,
                key.as_bytes(),
                Some(&value),
            );
            assert!(changes.kept().len_bytes <= 64 * 1024);
        }
        let kept = changes.kept();
        assert!(kept.next() - kept.first() > 300);
        let first = kept.from(kept.first()).next().unwrap();
        assert_eq!(first.key, kept.first().to_string().as_bytes());
        assert_eq!(first.value, Some(&value[..]));
        for change in kept.from(kept.first()) {
            assert!(change.point > kept.oldest().0[change.partition]);
        }
        // The last ones that were dropped.
        let mut gone: Vec<u64> = kept
            .oldest()
            .0
            .iter()
            .map(|p| p.position.applied - 2)
            .collect();
        gone.sort_unstable();
        assert_eq!(gone[1], kept.first() - 1);
        assert!(gone[0] < gone[1] && gone[0] + 3 > gone[1]);
        let middle = kept.first() + 150;
        assert_eq!(keys(&kept, middle)[0], middle.to_string());
        assert_eq!(keys(&kept, 9_999), ["9999"]);
        assert_eq!(keys(&kept, 10_000), [""; 0]);
    }

    #[test]
    fn long_values_are_left_out() {
        let changes = Changes::default();
        changes.begin(0, 1, at(0, 0));
        for len in [
            0,
            CHANGE_VALUE_LEN_BYTES_MAX,
            CHANGE_VALUE_LEN_BYTES_MAX + 1,
        ] {
            changes.note(0, at(1, 0), ChangeKind::Put, b"k", Some(&vec![0; len]));
        }
        let kept = changes.kept();
        let lens: Vec<_> = kept.from(0).map(|c| c.value.map(<[u8]>::len)).collect();
        assert_eq!(lens, [Some(0), Some(CHANGE_VALUE_LEN_BYTES_MAX), None]);
    }

    #[test]
    fn a_store_that_is_opened_again_leaves_a_gap() {
        let changes = Changes::default();
        changes.begin(0, 2, at(0, 0));
        changes.begin(1, 2, at(0, 0));
        assert!(!changes.kept().take_gap());
        changes.note(1, at(3, 0), ChangeKind::Delete, b"k", None);
        changes.begin(1, 2, at(9, 4));
        assert!(changes.kept().take_gap());
        assert!(!changes.kept().take_gap());
        assert_eq!(changes.kept().oldest().to_string(), "0,9.4");
    }
}
