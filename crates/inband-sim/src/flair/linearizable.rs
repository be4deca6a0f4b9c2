//! Is a history of one key linearizable? All orders are tried (Wing and Gong), each position once (Lowe).

use std::collections::{BTreeSet, HashSet};

use inband_flair::timing::Nanos;

use super::history::Act;

/// Events that may begin while one is under way.
const WINDOW: usize = 64 * WORDS;
const WORDS: usize = 32;
/// Writes of one key whose outcome is unknown and may matter.
const UNKNOWN_MAX: usize = 64;

/// A request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Event {
    pub from: Nanos,
    /// [`Nanos::MAX`]: its outcome is unknown.
    pub until: Nanos,
    pub act: Act,
    /// What a get saw.
    pub saw: Option<u64>,
}

/// A set of numbers below [`WINDOW`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
struct Bits([u64; WORDS]);

impl Bits {
    fn has(&self, at: usize) -> bool {
        self.0[at / 64] >> (at % 64) & 1 == 1
    }

    fn set(&mut self, at: usize) {
        self.0[at / 64] |= 1 << (at % 64);
    }

    /// Take away the numbers from 0 up to the first that is not there. How many they are.
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

/// A point of the search: which events have had their turn, and the value after them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Point {
    /// All before this one have had their turn.
    first: usize,
    /// Of those from `first` on.
    later: Bits,
    unknown: u64,
    value: Option<u64>,
}

struct Search {
    /// Those that have ended, by their beginning.
    events: Vec<Event>,
    unknown: Vec<Event>,
}

/// See the module. The error says how far an order was found.
pub(super) fn check(mut events: Vec<Event>) -> Result<(), String> {
    events.sort_by_key(|event| (event.from, event.until));
    let seen: BTreeSet<u64> = events.iter().filter_map(|event| event.saw).collect();
    let (unknown, events): (Vec<_>, Vec<_>) =
        events.into_iter().partition(|e| e.until == Nanos::MAX);
    // A put that nobody saw may come last of all.
    let matters = |event: &Event| match event.act {
        Act::Put(value) => seen.contains(&value),
        _ => true,
    };
    let unknown: Vec<Event> = unknown.into_iter().filter(matters).collect();
    if unknown.len() > UNKNOWN_MAX {
        return Err(format!("{} unknown outcomes are too many", unknown.len()));
    }
    Search { events, unknown }.run()
}

impl Search {
    fn run(&self) -> Result<(), String> {
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
                return Ok(());
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

    /// Events that may have their turn at a point: those begun before any other that is left ends.
    fn next(&self, point: Point, points: &mut Vec<Point>) -> Result<(), String> {
        let mut ends = Nanos::MAX;
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
        for offset in candidates {
            let event = &self.events[point.first + offset];
            if event.from > ends {
                continue;
            }
            match event.act {
                Act::Get if event.saw == point.value => {
                    // A read that fits takes nothing from the others.
                    points.push(point.done(offset, point.value));
                    return Ok(());
                }
                Act::Get => {}
                Act::Put(value) => points.push(point.done(offset, Some(value))),
                Act::Delete => points.push(point.done(offset, None)),
            }
        }
        for (number, event) in self.unknown.iter().enumerate() {
            if event.from <= ends && point.unknown >> number & 1 == 0 {
                let value = match event.act {
                    Act::Put(value) => Some(value),
                    _ => None,
                };
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

    fn event(from: Nanos, until: Nanos, act: Act) -> Event {
        Event {
            from,
            until,
            act,
            saw: None,
        }
    }

    fn get(from: Nanos, until: Nanos, saw: Option<u64>) -> Event {
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
            event(70, Nanos::MAX, Act::Put(4)),
            event(70, Nanos::MAX, Act::Put(5)),
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
        let unknown = vec![event(10, Nanos::MAX, Act::Put(9)), get(0, 5, Some(9))];
        assert!(check(unknown).is_err(), "before it was begun");
    }
}
