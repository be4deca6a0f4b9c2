//! The stream of events to the pages that are open.

use std::collections::VecDeque;
use std::sync::mpsc::{sync_channel, Receiver, SyncSender};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;

use crate::load::Bucket;
use crate::topology::Topology;

/// Buckets that a new page gets: the last minute.
const BUCKETS_KEPT: usize = 1200;
const MARKS_KEPT: usize = 100;
/// Events that a page may fall behind by; then it is closed, and connects again.
const EVENTS_QUEUED_MAX: usize = 256;
/// Pages that may be open at the same time.
pub const PAGES_MAX: usize = 16;

/// Something that happened, for the list of events and the charts.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Mark {
    /// Since 1970.
    pub at_ms: u64,
    pub text: String,
    /// Whether it is a fault or a failure.
    pub is_fault: bool,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "event", content = "body", rename_all = "lowercase")]
pub enum Event {
    Topology(Topology),
    Load(Vec<Bucket>),
    Mark(Mark),
}

#[derive(Debug, Default)]
struct State {
    topology: Option<Topology>,
    buckets: VecDeque<Bucket>,
    marks: VecDeque<Mark>,
    pages: Vec<SyncSender<String>>,
}

/// The events, and the pages that want them.
#[derive(Debug, Default)]
pub struct Feed {
    state: Mutex<State>,
}

/// Milliseconds since 1970.
pub fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| {
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    })
}

fn keep<T>(list: &mut VecDeque<T>, item: T, max: usize) {
    list.push_back(item);
    while list.len() > max {
        list.pop_front();
    }
}

impl Feed {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends an event to all pages, and keeps it for those that open later.
    pub fn send(&self, event: &Event) {
        let text = serde_json::to_string(event).unwrap_or_default();
        let mut state = self.state();
        match event {
            Event::Topology(topology) => state.topology = Some(topology.clone()),
            Event::Load(buckets) => {
                for bucket in buckets {
                    keep(&mut state.buckets, bucket.clone(), BUCKETS_KEPT);
                }
            }
            Event::Mark(mark) => keep(&mut state.marks, mark.clone(), MARKS_KEPT),
        }
        state
            .pages
            .retain(|page| page.try_send(text.clone()).is_ok());
    }

    /// Notes something that happened now.
    pub fn mark(&self, text: String, is_fault: bool) {
        let at_ms = now_ms();
        self.send(&Event::Mark(Mark {
            at_ms,
            text,
            is_fault,
        }));
    }

    /// Whether a page is open, as far as is known.
    pub fn has_pages(&self) -> bool {
        !self.state().pages.is_empty()
    }

    /// The events of the last minute, and those from now on. `None`: too many pages are open.
    pub fn open(&self) -> Option<(Vec<String>, Receiver<String>)> {
        let mut state = self.state();
        if state.pages.len() >= PAGES_MAX {
            return None;
        }
        let (page, events) = sync_channel(EVENTS_QUEUED_MAX);
        state.pages.push(page);
        let topology = state.topology.clone().map(Event::Topology);
        let buckets = Event::Load(state.buckets.iter().cloned().collect());
        let marks = state.marks.iter().cloned().map(Event::Mark);
        let before = topology.into_iter().chain([buckets]).chain(marks);
        let before = before.filter_map(|event| serde_json::to_string(&event).ok());
        Some((before.collect(), events))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_gets_what_was_before_and_what_comes() {
        let feed = Feed::default();
        feed.mark("kill node/1".into(), true);
        let (before, events) = feed.open().expect("room");
        assert!(
            before.iter().any(|event| event.contains("kill node/1")),
            "{before:?}"
        );
        feed.mark("restart node/1".into(), false);
        assert!(events.recv().expect("an event").contains("restart node/1"));
    }

    #[test]
    fn a_page_that_does_not_read_is_closed_and_makes_room() {
        let feed = Feed::default();
        let pages: Vec<_> = (0..PAGES_MAX).map(|_| feed.open().expect("room")).collect();
        assert!(feed.open().is_none());
        for at in 0..=EVENTS_QUEUED_MAX {
            feed.mark(format!("{at}"), false);
        }
        assert!(feed.open().is_some());
        let (_, events) = &pages[0];
        assert_eq!(events.iter().count(), EVENTS_QUEUED_MAX);
    }
}
