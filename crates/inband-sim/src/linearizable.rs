//! Checks that a history of one key is linearizable: searches all orders (Wing and Gong), visiting each state once
//! (Lowe).

use std::collections::{BTreeMap, BTreeSet, HashSet};

use crate::queue::Time;

/// What a request does to its key. Every put writes a unique value, unless it is executed several times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    Get,
    Put(u64),
    Delete,
}

/// Maximum number of events that overlap one event.
const WINDOW: usize = 64 * WORDS;
const WORDS: usize = 32;
/// Maximum writes of one key whose outcome is unknown and may matter.
const UNKNOWN_MAX: usize = 64;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Event {
    pub from: Time,
    /// [`Time::MAX`]: its outcome is unknown.
    pub until: Time,
    pub act: Act,
    /// The value that a get returned.
    pub saw: Option<u64>,
}

/// A set of numbers below [`WINDOW`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
struct Bits([u64; WORDS]);

impl Bits {
    fn has(&self, at: usize) -> bool {
        at < WINDOW && self.0[at / 64] >> (at % 64) & 1 == 1
    }

    fn set(&mut self, at: usize) {
        self.0[at / 64] |= 1 << (at % 64);
    }

    /// Removes the run of consecutive numbers from 0 on. Returns its length.
    fn drop_run(&mut self) -> usize {
        let full = self.0.iter().take_while(|word| **word == u64::MAX).count();
        let rest = self.0.get(full).map_or(0, |word| word.trailing_ones());
        self.0.rotate_left(full);
        self.0[WORDS - full..].fill(0);
        for at in 0..WORDS {
            let above = self.0.get(at + 1).copied().unwrap_or(0);
            self.0[at] = match rest {
                0 => self.0[at],
                rest => self.0[at] >> rest | above << (64 - rest),
            };
        }
        full * 64 + rest as usize
    }
}

/// A state of the search: the events already ordered, and the value after them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Point {
    /// All events before this one are ordered.
    first: usize,
    /// Ordered events, as offsets from `first`.
    later: Bits,
    unknown: u64,
    value: Option<u64>,
}

struct Search {
    /// Events with a known outcome, by start time.
    events: Vec<Event>,
    unknown: Vec<Event>,
    /// By value: when the last read that saw it began.
    last_seen: BTreeMap<u64, Time>,
    /// Values that are put several times.
    repeated: BTreeSet<u64>,
    /// When the last read that saw no value ended.
    nothing_until: Option<Time>,
}

/// Checks a history. The error shows where the search got stuck.
pub(crate) fn check(mut events: Vec<Event>) -> Result<(), String> {
    events.sort_by_key(|event| (event.from, event.until));
    let seen: BTreeSet<u64> = events.iter().filter_map(|event| event.saw).collect();
    let (unknown, events): (Vec<_>, Vec<_>) =
        events.into_iter().partition(|e| e.until == Time::MAX);
    // A write of unknown outcome that nobody saw can be ordered last.
    let saw_nothing = events.iter().any(Event::saw_nothing);
    let matters = |event: &Event| match event.act {
        Act::Put(value) => seen.contains(&value),
        _ => saw_nothing,
    };
    let unknown: Vec<Event> = unknown.into_iter().filter(matters).collect();
    if unknown.len() > UNKNOWN_MAX {
        return Err(format!("{} unknown outcomes are too many", unknown.len()));
    }
    Search::new(events, unknown).run().map(drop)
}

impl Event {
    /// Returns whether this is a get of a missing key.
    fn saw_nothing(&self) -> bool {
        self.act == Act::Get && self.saw.is_none()
    }

    /// Returns the value after this write.
    fn written(&self) -> Option<u64> {
        match self.act {
            Act::Put(value) => Some(value),
            Act::Delete | Act::Get => None,
        }
    }
}

impl Search {
    fn new(events: Vec<Event>, unknown: Vec<Event>) -> Search {
        let mut last_seen = BTreeMap::new();
        for event in &events {
            if let (Act::Get, Some(value)) = (event.act, event.saw) {
                let last = last_seen.entry(value).or_insert(event.from);
                *last = event.from.max(*last);
            }
        }
        let nothing = events.iter().filter(|event| event.saw_nothing());
        let (mut put, mut repeated) = (BTreeSet::new(), BTreeSet::new());
        for value in events.iter().chain(&unknown).filter_map(Event::written) {
            if !put.insert(value) {
                repeated.insert(value);
            }
        }
        Search {
            repeated,
            nothing_until: nothing.map(|event| event.until).max(),
            events,
            unknown,
            last_seen,
        }
    }

    /// Returns whether a read may have seen the effect of this write.
    fn is_seen(&self, event: &Event) -> bool {
        match event.act {
            Act::Put(value) => self.last_seen.contains_key(&value),
            _ => self.nothing_until.is_some_and(|until| event.from <= until),
        }
    }

    /// Returns whether this value may be put now: all reads that saw it must come before any other event, if it is not
    /// put again.
    fn may_be_put(&self, point: Point, value: u64) -> bool {
        if self.repeated.contains(&value) {
            return true;
        }
        let last = self.last_seen.get(&value).copied().unwrap_or(0);
        let is_of_it = |event: &Event| match event.act {
            Act::Get => event.saw == Some(value),
            act => act == Act::Put(value),
        };
        let left = self.events[point.first..].iter().enumerate();
        let mut before = left.take_while(|(_, event)| event.from < last);
        let is_between = |(offset, event): (usize, &Event)| {
            event.until < last && !is_of_it(event) && !point.later.has(offset)
        };
        !before.any(is_between)
    }

    /// Returns the number of states visited until an order was found.
    fn run(&self) -> Result<usize, String> {
        let mut points = vec![Point {
            first: 0,
            later: Bits::default(),
            unknown: 0,
            value: None,
        }];
        let mut visited = HashSet::new();
        let mut furthest = 0;
        while let Some(point) = points.pop() {
            if point.first == self.events.len() {
                return Ok(visited.len());
            }
            furthest = furthest.max(point.first);
            if visited.insert(point) {
                self.next(point, &mut points)?;
            }
        }
        let near = furthest.saturating_sub(6)..(furthest + 6).min(self.events.len());
        Err(format!(
            "no order explains it; stuck at {:#?}",
            &self.events[near]
        ))
    }

    /// Pushes the states that can follow this one. Candidates are the events that begin before any other remaining
    /// event ends.
    fn next(&self, point: Point, points: &mut Vec<Point>) -> Result<(), String> {
        let mut ends = Time::MAX;
        let mut candidates = Vec::new();
        for (offset, event) in self.events[point.first..].iter().enumerate() {
            if event.from > ends {
                break;
            }
            if offset >= WINDOW {
                return Err(format!("more than {WINDOW} requests at a time"));
            }
            if !point.later.has(offset) {
                ends = ends.min(event.until);
                candidates.push(offset);
            }
        }
        let candidates = candidates
            .into_iter()
            .map(|offset| (offset, &self.events[point.first + offset]))
            .filter(|(_, event)| event.from <= ends);
        // A read that matches the value excludes no other order, so it can be taken at once. Otherwise a write comes
        // next, and an unseen write in turn excludes nothing.
        let takes_nothing = |(_, event): &(usize, &Event)| match event.act {
            Act::Get => event.saw == point.value,
            _ => false,
        };
        let is_unseen =
            |(_, event): &(usize, &Event)| event.act != Act::Get && !self.is_seen(event);
        let free = candidates.clone().find(takes_nothing);
        if let Some((offset, event)) = free.or_else(|| candidates.clone().find(is_unseen)) {
            let value = match event.act {
                Act::Get => point.value,
                _ => event.written(),
            };
            points.push(point.done(offset, value));
            return Ok(());
        }
        for (offset, event) in candidates.clone() {
            match event.act {
                Act::Put(value) if self.may_be_put(point, value) => {
                    points.push(point.done(offset, Some(value)));
                }
                Act::Delete => points.push(point.done(offset, None)),
                Act::Get | Act::Put(_) => {}
            }
        }
        // A write of unknown outcome matters only if a read follows it directly. Of several such deletes the one that
        // began first is enough: from here on they are interchangeable.
        let is_free = |number: &usize| {
            let event = &self.unknown[*number];
            event.from <= ends && point.unknown >> number & 1 == 0
        };
        let reads = candidates.filter(|(_, event)| event.act == Act::Get);
        let seen: BTreeSet<Option<u64>> = reads.map(|(_, event)| event.saw).collect();
        for value in seen {
            let leaves_it = |number: &usize| self.unknown[*number].written() == value;
            let all = 0..self.unknown.len();
            if let Some(number) = all.filter(is_free).find(leaves_it) {
                points.push(Point {
                    unknown: point.unknown | 1 << number,
                    value,
                    ..point
                });
            }
        }
        Ok(())
    }
}

impl Point {
    fn done(mut self, offset: usize, value: Option<u64>) -> Point {
        self.later.set(offset);
        self.first += self.later.drop_run();
        self.value = value;
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    fn event(from: Time, until: Time, act: Act) -> Event {
        Event {
            from,
            until,
            act,
            saw: None,
        }
    }

    fn get(from: Time, until: Time, saw: Option<u64>) -> Event {
        Event {
            saw,
            ..event(from, until, Act::Get)
        }
    }

    #[test]
    fn a_run_of_any_length_is_dropped() {
        for run in [0, 1, 63, 64, 65, 200] {
            let mut bits = Bits::default();
            let later = [run + 1, run + 70, run + 400];
            (0..run).chain(later).for_each(|at| bits.set(at));
            assert_eq!(bits.drop_run(), run);
            let left: Vec<usize> = (0..WINDOW).filter(|at| bits.has(*at)).collect();
            assert_eq!(left, [1, 70, 400]);
        }
    }

    #[test]
    fn what_is_linearizable_is_accepted() {
        let put = |from, until, value| event(from, until, Act::Put(value));
        let history = vec![
            put(0, 10, 1),
            get(5, 6, None),
            get(5, 20, Some(1)),
            put(30, 60, 2),
            put(31, 61, 3),
            get(35, 40, Some(3)),
            get(41, 50, Some(2)),
            event(70, Time::MAX, Act::Put(4)),
            event(70, Time::MAX, Act::Put(5)),
            get(80, 90, Some(2)),
            get(100, 110, Some(4)),
            event(120, 130, Act::Delete),
            get(140, 150, None),
        ];
        assert_eq!(check(history), Ok(()));
        assert_eq!(check(vec![]), Ok(()));
    }

    #[test]
    fn what_is_not_is_refused() {
        let put = |from, until, value| event(from, until, Act::Put(value));
        let old = vec![put(0, 10, 1), put(20, 30, 2), get(40, 50, Some(1))];
        assert!(check(old).is_err(), "an old value");
        let back = vec![
            put(0, 10, 1),
            put(20, 90, 2),
            get(40, 50, Some(2)),
            get(60, 70, Some(1)),
        ];
        assert!(check(back).is_err(), "back again");
        let twice = vec![
            put(0, 10, 1),
            put(20, 30, 2),
            get(40, 50, Some(2)),
            get(60, 70, Some(1)),
        ];
        assert!(check(twice).is_err(), "applied again");
        let early = vec![get(0, 5, Some(1)), put(10, 20, 1)];
        assert!(check(early).is_err(), "before it was written");
        let lost = vec![put(0, 10, 1), get(20, 30, None)];
        assert!(check(lost).is_err(), "lost");
        let unknown = vec![event(10, Time::MAX, Act::Put(9)), get(0, 5, Some(9))];
        assert!(check(unknown).is_err(), "before it was begun");
    }

    /// Tries every order by brute force.
    fn has_order(left: &[Event], value: Option<u64>) -> bool {
        if left.iter().all(|event| event.until == Time::MAX) {
            return true;
        }
        let ends = left.iter().map(|event| event.until).min();
        let may_be_next = |event: &Event| {
            let fits = event.act != Act::Get || event.saw == value;
            fits && Some(event.from) <= ends
        };
        (0..left.len()).any(|at| {
            let event = left[at];
            let after = match event.act {
                Act::Get => value,
                _ => event.written(),
            };
            let rest = [&left[..at], &left[at + 1..]].concat();
            may_be_next(&event) && has_order(&rest, after)
        })
    }

    #[test]
    fn it_says_what_a_search_of_all_orders_says() {
        let mut rng = Rng::new(7, 1);
        let mut counts = [0; 2];
        for _ in 0..20_000 {
            let mut values = 0;
            let history: Vec<Event> = (0..2 + rng.below(6))
                .map(|_| {
                    let from = rng.below(12);
                    let until = match rng.below(3) {
                        0 => Time::MAX,
                        _ => from + 1 + rng.below(8),
                    };
                    // Some values are put twice.
                    values += u64::from(rng.below(8) > 0);
                    match rng.below(5) {
                        0 | 1 => event(from, until, Act::Put(values)),
                        2 => event(from, until, Act::Delete),
                        // The value of a read that never ended is unknown.
                        _ => get(
                            from,
                            from + 1 + rng.below(8),
                            Some(rng.below(4)).filter(|v| *v > 0),
                        ),
                    }
                })
                .collect();
            let is_one = has_order(&history, None);
            counts[usize::from(is_one)] += 1;
            assert_eq!(check(history.clone()).is_ok(), is_one, "{history:#?}");
        }
        assert!(counts.iter().all(|count| *count > 2_000), "{counts:?}");
    }

    #[test]
    fn unknown_outcomes_do_not_multiply_the_search() {
        let mut events = Vec::new();
        for number in 1..=30 {
            let at = 100 * number;
            events.push(event(at, at + 50, Act::Put(number)));
            events.push(get(at + 60, at + 70, Some(number)));
            events.push(get(at + 80, at + 90, Some(number)));
        }
        // Their effect is not seen until the end.
        events.push(get(10_000, 10_001, None));
        let unknown = (0..60).map(|at| event(at, Time::MAX, Act::Delete));
        let search = Search::new(events, unknown.collect());
        let points = search.run().expect("there is an order");
        assert!(points < 200, "{points}");
    }

    #[test]
    fn writes_at_the_same_time_do_not_multiply_the_search() {
        let mut events = Vec::new();
        for number in 1..=60 {
            events.push(event(number, 10_000 + number, Act::Put(number)));
            if number % 2 == 0 {
                let at = 100 * number;
                events.push(get(at, at + 150, Some(number)));
                events.push(get(at + 20, at + 30, Some(number)));
            }
        }
        events.sort_by_key(|event| (event.from, event.until));
        let points = Search::new(events, Vec::new()).run();
        let points = points.expect("there is an order");
        assert!(points < 2_000, "{points}");
    }
}
