//! Tracks which pages are in the local buffer, and in which state. It does no I/O: the pager's threads ask it what to
//! do, do it without holding its lock, and report back when done.
//!
//! ```text
//!             fault                    copied              oldest, room needed
//!   (absent) -------> Fetching ----------------> Mapped ------------------------> Unmapping
//!      ^                                           ^                                  |
//!      |                                           | fault: second chance             | its frame is copied and given back
//!      |   written back, oldest, room needed       |                                  v
//!      +-------------------------------------------+----------------------------- Unmapped
//! ```
//!
//! Replacement is by second chance. The accessed bits of a program's page table cannot be read from outside, so a fault
//! takes their place: the oldest mapped page is unmapped from the program, but its content stays here in a second
//! queue, a quarter of the buffer. A page that is used again comes back from there without a round trip; only one that
//! is not is evicted.

use std::collections::{HashMap, VecDeque};
use std::mem;
use std::sync::Arc;

use super::{Page, ZERO_PAGE};

/// Sequential streams that are tracked at the same time.
const STREAMS: usize = 8;
/// Maximum number of pages to read ahead in a stream.
const READ_AHEAD_MAX: u64 = 16;

/// What to do about a fault.
#[derive(Debug, PartialEq, Eq)]
pub enum OnFault {
    /// Nothing: the thread that is working on this page will wake the program.
    Nothing,
    /// Wake the program: the page is mapped.
    Wake,
    /// Wait until a page is evicted, then ask again.
    Full,
    /// Map this content, then call [`Buffer::mapped`].
    Map(Arc<Page>),
    /// Read the page, map it, then call [`Buffer::mapped`] with the twin.
    Fetch,
    /// The page has not been written yet: map zeros, then call [`Buffer::mapped`].
    Zero,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Fetching,
    Mapped,
    /// Write-protected.
    Unmapping,
    Unmapped,
}

#[derive(Debug)]
struct Frame {
    state: State,
    /// What the memory holds, if known.
    twin: Option<Arc<Page>>,
    /// The content, if the page is not mapped.
    content: Option<Arc<Page>>,
    /// A thread is writing the page back. Until it is done, the page must stay mapped or keep its content.
    is_cleaning: bool,
    /// The page must leave the buffer: once unmapped, it is not mapped again with this content.
    is_leaving: bool,
    /// The program is waiting until the page has been unmapped or has left.
    is_wanted: bool,
    /// Queue entries with another number are stale.
    turn: u64,
}

/// Result of [`Buffer::cleaned`].
#[derive(Debug, PartialEq, Eq)]
pub enum OnCleaned {
    /// The page stays in the buffer.
    Stays,
    /// The page has left the buffer.
    Left,
    /// The page has left the buffer, and the program is waiting for it: wake it.
    LeftWanted,
}

/// A page that is being written back.
#[derive(Debug)]
pub struct Cleaning {
    pub page: u64,
    /// Its content; `None` if it is mapped and the caller must copy it.
    pub content: Option<Arc<Page>>,
    /// What the memory holds, if known.
    pub twin: Option<Arc<Page>>,
    turn: u64,
}

impl Cleaning {
    /// Returns whether there is nothing to write. A page of zeros that was not written before reads as zeros anyway.
    pub fn is_untouched(&self) -> bool {
        self.twin.is_none() && self.content.as_deref() == Some(&ZERO_PAGE)
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct Stream {
    next: u64,
    len: u64,
}

/// The local buffer's pages.
pub struct Buffer {
    capacity: usize,
    /// The evictor starts when fewer pages than this are free, and stops when twice as many are, so one wake-up frees
    /// many pages.
    reserve: usize,
    second_chances: usize,
    pages: u64,
    frames: HashMap<u64, Frame>,
    mapped: VecDeque<(u64, u64)>,
    mapped_len: usize,
    unmapped: VecDeque<(u64, u64)>,
    unmapped_len: usize,
    /// A bit per page: whether to fetch it. All other pages read as zeros, whatever earlier programs have left in the
    /// memory.
    is_in_memory: Vec<u64>,
    turn: u64,
    streams: [Stream; STREAMS],
    oldest_stream: usize,
}

impl Buffer {
    /// Creates a buffer of `capacity` pages for a memory of `pages` pages, the first `shared` of which other programs
    /// may have written.
    pub fn new(capacity: usize, pages: u64, shared: u64) -> Buffer {
        let mut is_in_memory = vec![0; pages.div_ceil(64) as usize];
        for page in 0..shared {
            is_in_memory[(page / 64) as usize] |= 1 << (page % 64);
        }
        Buffer {
            capacity,
            reserve: (capacity / 16).clamp(1, 256),
            second_chances: capacity / 4,
            pages,
            frames: HashMap::with_capacity(capacity),
            mapped: VecDeque::new(),
            mapped_len: 0,
            unmapped: VecDeque::new(),
            unmapped_len: 0,
            is_in_memory,
            turn: 0,
            streams: [Stream::default(); STREAMS],
            oldest_stream: 0,
        }
    }

    /// Returns how many more pages fit.
    pub fn free(&self) -> usize {
        self.capacity - self.frames.len()
    }

    /// Returns whether the evictor should free pages.
    pub fn is_short(&self) -> bool {
        self.free() < self.reserve
    }

    /// Returns how many pages the evictor should free.
    pub fn wanted(&self) -> usize {
        (2 * self.reserve).saturating_sub(self.free())
    }

    /// Returns the pages of this range that are in the buffer, in ascending order.
    pub fn resident(&self, from: u64, to: u64) -> Vec<u64> {
        let mut pages: Vec<u64> = match to - from < self.frames.len() as u64 {
            true => (from..to)
                .filter(|page| self.frames.contains_key(page))
                .collect(),
            false => {
                let all = self.frames.keys().copied();
                all.filter(|page| (from..to).contains(page)).collect()
            }
        };
        pages.sort_unstable();
        pages
    }

    /// Handles a page fault of the program.
    pub fn fault(&mut self, page: u64) -> OnFault {
        let Some(frame) = self.frames.get_mut(&page) else {
            return self.begin(page);
        };
        match frame.state {
            State::Fetching => OnFault::Nothing,
            State::Mapped => OnFault::Wake,
            State::Unmapping => {
                frame.is_wanted = true;
                OnFault::Nothing
            }
            State::Unmapped if frame.is_leaving => {
                frame.is_wanted = true;
                OnFault::Nothing
            }
            State::Unmapped => {
                frame.state = State::Fetching;
                self.unmapped_len -= 1;
                let content = frame.content.take();
                OnFault::Map(content.expect("an unmapped page has its content"))
            }
        }
    }

    fn begin(&mut self, page: u64) -> OnFault {
        if self.free() == 0 {
            return OnFault::Full;
        }
        self.turn += 1;
        let frame = Frame {
            state: State::Fetching,
            twin: None,
            content: None,
            is_cleaning: false,
            is_leaving: false,
            is_wanted: false,
            turn: self.turn,
        };
        self.frames.insert(page, frame);
        match self.is_in_memory(page) {
            true => OnFault::Fetch,
            false => OnFault::Zero,
        }
    }

    fn is_in_memory(&self, page: u64) -> bool {
        self.is_in_memory[(page / 64) as usize] >> (page % 64) & 1 == 1
    }

    /// Records that a page had to be fetched. If it continues a sequential stream, returns the pages to read ahead,
    /// with what to do for each.
    pub fn read_ahead(&mut self, page: u64) -> Vec<(u64, OnFault)> {
        let Some(stream) = self.streams.iter_mut().find(|stream| stream.next == page) else {
            self.streams[self.oldest_stream] = Stream {
                next: page + 1,
                len: 0,
            };
            self.oldest_stream = (self.oldest_stream + 1) % STREAMS;
            return Vec::new();
        };
        stream.len = (stream.len * 2).clamp(2, READ_AHEAD_MAX);
        let to = (page + 1 + stream.len).min(self.pages);
        stream.next = to;
        let mut ahead = Vec::new();
        for page in page + 1..to {
            // The reserve is for pages that the program is waiting for.
            if self.free() <= self.reserve / 2 {
                break;
            }
            if !self.frames.contains_key(&page) {
                ahead.push((page, self.begin(page)));
            }
        }
        ahead
    }

    /// Records that the page is mapped in the program. `twin`: its content, if it was fetched.
    pub fn mapped(&mut self, page: u64, twin: Option<Arc<Page>>) {
        self.turn += 1;
        let turn = self.turn;
        let frame = self.frame(page);
        debug_assert_eq!(frame.state, State::Fetching);
        frame.state = State::Mapped;
        frame.turn = turn;
        if twin.is_some() {
            frame.twin = twin;
        }
        self.mapped.push_back((page, turn));
        self.mapped_len += 1;
        self.tidy();
    }

    /// Records that the page could not be mapped because the program is gone; it stays here with this content. `twin`
    /// as for [`Buffer::mapped`].
    pub fn not_shown(&mut self, page: u64, content: Arc<Page>, twin: Option<Arc<Page>>) {
        let frame = self.frame(page);
        debug_assert_eq!(frame.state, State::Fetching);
        frame.state = State::Unmapping;
        if twin.is_some() {
            frame.twin = twin;
        }
        self.unmapped(page, content);
    }

    /// Records that the page could not be unmapped from the program. Returns whether the program must be woken.
    pub fn still_mapped(&mut self, page: u64) -> bool {
        let frame = self.frame(page);
        let is_wanted = mem::take(&mut frame.is_wanted);
        frame.state = State::Mapped;
        let turn = frame.turn;
        self.mapped.push_back((page, turn));
        self.mapped_len += 1;
        is_wanted
    }

    /// Drops stale queue entries once a queue is longer than twice the buffer.
    fn tidy(&mut self) {
        let limit = 2 * self.capacity;
        let frames = &self.frames;
        let is_fresh = |state: State| {
            move |(page, turn): &(u64, u64)| {
                let frame = frames.get(page);
                frame.is_some_and(|frame| frame.turn == *turn && frame.state == state)
            }
        };
        if self.mapped.len() > limit {
            self.mapped.retain(is_fresh(State::Mapped));
        }
        if self.unmapped.len() > limit {
            self.unmapped.retain(is_fresh(State::Unmapped));
        }
    }

    fn frame(&mut self, page: u64) -> &mut Frame {
        let frame = self.frames.get_mut(&page);
        frame.expect("who works on a page keeps it in the buffer")
    }

    /// Returns the oldest mapped pages to unmap from the program, at most `limit`: as many as are needed to keep the
    /// queue of second chances full.
    pub fn take_to_unmap(&mut self, limit: usize) -> Vec<u64> {
        let short_by = self.wanted() + self.second_chances;
        let wanted = short_by.saturating_sub(self.unmapped_len).min(limit);
        let mut pages = Vec::new();
        for _ in 0..self.mapped.len() {
            if pages.len() == wanted {
                break;
            }
            let Some((page, turn)) = self.mapped.pop_front() else {
                break;
            };
            let Some(frame) = self.frames.get(&page) else {
                continue;
            };
            if frame.turn != turn || frame.state != State::Mapped {
                continue;
            }
            if self.begin_unmapping(page) {
                pages.push(page);
            } else {
                self.mapped.push_back((page, turn));
            }
        }
        pages.sort_unstable();
        pages
    }

    /// Starts unmapping a page, if it is mapped and no thread is working on it. Returns whether it was started.
    pub fn begin_unmapping(&mut self, page: u64) -> bool {
        let Some(frame) = self.frames.get_mut(&page) else {
            return false;
        };
        if frame.state != State::Mapped || frame.is_cleaning {
            return false;
        }
        frame.state = State::Unmapping;
        self.mapped_len -= 1;
        true
    }

    /// Records that the page has been unmapped from the program, with this content. Returns whether the program must be
    /// woken.
    pub fn unmapped(&mut self, page: u64, content: Arc<Page>) -> bool {
        self.turn += 1;
        let turn = self.turn;
        let frame = self.frame(page);
        let is_wanted = mem::take(&mut frame.is_wanted);
        // A clean page shares one copy with its twin.
        let twin = frame.twin.as_ref().filter(|twin| ***twin == *content);
        frame.content = Some(twin.cloned().unwrap_or(content));
        frame.state = State::Unmapped;
        frame.turn = turn;
        self.unmapped.push_back((page, turn));
        self.unmapped_len += 1;
        self.tidy();
        is_wanted
    }

    /// Returns the oldest unmapped pages to write back and then evict, at most `limit`.
    pub fn take_to_evict(&mut self, limit: usize) -> Vec<Cleaning> {
        let wanted = self.wanted().min(limit);
        let mut pages = Vec::new();
        for _ in 0..self.unmapped.len() {
            if pages.len() == wanted {
                break;
            }
            let Some((page, turn)) = self.unmapped.pop_front() else {
                break;
            };
            let Some(frame) = self.frames.get(&page) else {
                continue;
            };
            if frame.turn != turn || frame.state != State::Unmapped {
                continue;
            }
            match self.begin_cleaning(page) {
                Some(cleaning) => pages.push(cleaning),
                None => self.unmapped.push_back((page, turn)),
            }
        }
        pages.sort_unstable_by_key(|cleaning| cleaning.page);
        pages
    }

    /// Marks a page, if present, as leaving the buffer: once unmapped, it is not mapped again until it has left, and
    /// the program's faults on it wait. The caller must unmap and clean it.
    pub fn begin_leaving(&mut self, page: u64) {
        if let Some(frame) = self.frames.get_mut(&page) {
            frame.is_leaving = true;
        }
    }

    /// Returns whether this page has yet to leave. A page fetched again since then counts as another one.
    pub fn is_leaving(&self, page: u64) -> bool {
        self.frames.get(&page).is_some_and(|frame| frame.is_leaving)
    }

    /// Starts writing back a page, if it is present and no thread is working on it.
    pub fn begin_cleaning(&mut self, page: u64) -> Option<Cleaning> {
        let frame = self.frames.get_mut(&page)?;
        let is_at_rest = matches!(frame.state, State::Mapped | State::Unmapped);
        if frame.is_cleaning || !is_at_rest {
            return None;
        }
        frame.is_cleaning = true;
        Some(Cleaning {
            page,
            content: frame.content.clone(),
            twin: frame.twin.clone(),
            turn: frame.turn,
        })
    }

    /// Records that the memory now holds the page's content, unless the page is untouched. With `evict` the page leaves
    /// the buffer, unless the program has used it again meanwhile.
    pub fn cleaned(&mut self, cleaning: Cleaning, evict: bool) -> OnCleaned {
        let Cleaning { page, turn, .. } = cleaning;
        if !cleaning.is_untouched() {
            self.is_in_memory[(page / 64) as usize] |= 1 << (page % 64);
        }
        let is_untouched = cleaning.is_untouched();
        let frame = self.frame(page);
        frame.is_cleaning = false;
        if !is_untouched {
            frame.twin = cleaning.content;
        }
        let leaves = evict && frame.state == State::Unmapped && frame.turn == turn;
        if !leaves {
            return OnCleaned::Stays;
        }
        let is_wanted = frame.is_wanted;
        self.frames.remove(&page);
        self.unmapped_len -= 1;
        match is_wanted {
            true => OnCleaned::LeftWanted,
            false => OnCleaned::Left,
        }
    }

    /// Returns whether a page is in the buffer.
    pub fn contains(&self, page: u64) -> bool {
        self.frames.contains_key(&page)
    }

    /// Returns the number of pages mapped in the program.
    pub fn mapped_len(&self) -> usize {
        self.mapped_len
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(byte: u8) -> Arc<Page> {
        let mut page = ZERO_PAGE;
        page[0][0][0] = byte;
        Arc::new(page)
    }

    /// Maps a page in the program, with this twin.
    fn map(buffer: &mut Buffer, at: u64, twin: u8) {
        assert_eq!(buffer.fault(at), OnFault::Fetch);
        buffer.mapped(at, Some(page(twin)));
    }

    fn unmap(buffer: &mut Buffer, at: u64, content: u8) -> bool {
        assert!(buffer.begin_unmapping(at));
        buffer.unmapped(at, page(content))
    }

    #[test]
    fn a_page_used_again_comes_back_without_a_fetch() {
        let mut buffer = Buffer::new(16, 64, 64);
        map(&mut buffer, 1, 1);
        assert_eq!(buffer.fault(1), OnFault::Wake);
        assert!(!unmap(&mut buffer, 1, 2));
        assert_eq!(buffer.fault(1), OnFault::Map(page(2)));
        assert_eq!(buffer.fault(1), OnFault::Nothing);
        buffer.mapped(1, None);
        // The twin is still the fetched content.
        let cleaning = buffer.begin_cleaning(1).unwrap();
        assert_eq!(cleaning.twin, Some(page(1)));
        assert_eq!(cleaning.content, None);
    }

    #[test]
    fn who_faults_on_a_page_that_is_taken_away_is_woken_afterwards() {
        let mut buffer = Buffer::new(16, 64, 64);
        map(&mut buffer, 1, 1);
        assert!(buffer.begin_unmapping(1));
        assert_eq!(buffer.fault(1), OnFault::Nothing);
        assert!(buffer.unmapped(1, page(1)));
    }

    #[test]
    fn a_page_leaves_only_when_it_is_written_and_nobody_came_back() {
        let mut buffer = Buffer::new(16, 64, 64);
        map(&mut buffer, 1, 1);
        unmap(&mut buffer, 1, 2);
        let cleaning = buffer.begin_cleaning(1).unwrap();
        assert!(buffer.begin_cleaning(1).is_none());
        // The page is used again while it is being written back, and is not unmapped again until that is done.
        assert_eq!(buffer.fault(1), OnFault::Map(page(2)));
        buffer.mapped(1, None);
        assert!(!buffer.begin_unmapping(1));
        assert_eq!(buffer.cleaned(cleaning, true), OnCleaned::Stays);
        unmap(&mut buffer, 1, 2);
        let cleaning = buffer.begin_cleaning(1).unwrap();
        assert_eq!(cleaning.twin, Some(page(2)));
        assert_eq!(buffer.cleaned(cleaning, true), OnCleaned::Left);
        assert_eq!(buffer.fault(1), OnFault::Fetch);
    }

    #[test]
    fn a_page_that_came_back_and_went_again_is_not_evicted_by_the_former_write() {
        let mut buffer = Buffer::new(16, 64, 64);
        map(&mut buffer, 1, 1);
        let mut cleaning = buffer.begin_cleaning(1).unwrap();
        cleaning.content = Some(page(2));
        assert_eq!(buffer.cleaned(cleaning, true), OnCleaned::Stays);
        assert!(buffer.contains(1));
    }

    #[test]
    fn a_page_that_is_to_leave_does_not_come_back_however_often_it_is_used() {
        let mut buffer = Buffer::new(16, 64, 64);
        map(&mut buffer, 1, 1);
        buffer.begin_leaving(1);
        // It can be used until it is unmapped.
        assert_eq!(buffer.fault(1), OnFault::Wake);
        unmap(&mut buffer, 1, 2);
        assert_eq!(buffer.fault(1), OnFault::Nothing);
        let cleaning = buffer.begin_cleaning(1).unwrap();
        assert_eq!(cleaning.content, Some(page(2)));
        assert_eq!(buffer.fault(1), OnFault::Nothing);
        assert!(buffer.is_leaving(1));
        assert_eq!(buffer.cleaned(cleaning, true), OnCleaned::LeftWanted);
        // A page fetched from now on is a new one.
        map(&mut buffer, 1, 3);
        assert!(!buffer.is_leaving(1));
        unmap(&mut buffer, 1, 3);
        assert_eq!(buffer.fault(1), OnFault::Map(page(3)));
    }

    #[test]
    fn pages_nobody_wrote_are_not_fetched_and_not_written() {
        let mut buffer = Buffer::new(16, 64, 1);
        assert_eq!(buffer.fault(5), OnFault::Zero);
        buffer.mapped(5, None);
        unmap(&mut buffer, 5, 0);
        let cleaning = buffer.begin_cleaning(5).unwrap();
        assert!(cleaning.is_untouched());
        assert_eq!(buffer.cleaned(cleaning, true), OnCleaned::Left);
        // Once written back, it is fetched from then on.
        assert_eq!(buffer.fault(5), OnFault::Zero);
        buffer.mapped(5, None);
        unmap(&mut buffer, 5, 3);
        let cleaning = buffer.begin_cleaning(5).unwrap();
        assert!(!cleaning.is_untouched());
        assert_eq!(cleaning.twin, None);
        assert_eq!(buffer.cleaned(cleaning, true), OnCleaned::Left);
        assert_eq!(buffer.fault(5), OnFault::Fetch);
    }

    #[test]
    fn the_oldest_go_first_and_there_is_never_more_than_fits() {
        let mut buffer = Buffer::new(32, 1000, 1000);
        for at in 0..32 {
            map(&mut buffer, at * 2, 1);
        }
        assert_eq!(buffer.fault(900), OnFault::Full);
        assert!(buffer.is_short());
        let taken = buffer.take_to_unmap(100);
        // A quarter for second chances, and twice the reserve.
        assert_eq!(taken, (0..12).map(|at| at * 2).collect::<Vec<_>>());
        for at in taken {
            buffer.unmapped(at, page(1));
        }
        // Page 0 gets its second chance.
        assert_eq!(buffer.fault(0), OnFault::Map(page(1)));
        buffer.mapped(0, None);
        let evicted = buffer.take_to_evict(100);
        assert_eq!(
            evicted.iter().map(|c| c.page).collect::<Vec<_>>(),
            [2, 4, 6, 8]
        );
        for cleaning in evicted {
            assert_eq!(buffer.cleaned(cleaning, true), OnCleaned::Left);
        }
        assert!(!buffer.is_short());
        assert_eq!(buffer.fault(900), OnFault::Fetch);
    }

    #[test]
    fn a_page_that_was_not_shown_keeps_its_content() {
        let mut buffer = Buffer::new(16, 64, 64);
        assert_eq!(buffer.fault(1), OnFault::Fetch);
        buffer.not_shown(1, page(7), Some(page(7)));
        let cleaning = buffer.begin_cleaning(1).unwrap();
        assert_eq!(
            (cleaning.content, cleaning.twin),
            (Some(page(7)), Some(page(7)))
        );
    }

    #[test]
    fn a_page_that_could_not_be_taken_stays_and_is_asked_for_again() {
        let mut buffer = Buffer::new(16, 64, 64);
        map(&mut buffer, 1, 1);
        assert!(buffer.begin_unmapping(1));
        assert_eq!(buffer.fault(1), OnFault::Nothing);
        assert!(buffer.still_mapped(1));
        assert_eq!(buffer.fault(1), OnFault::Wake);
        assert!(buffer.begin_unmapping(1));
    }

    #[test]
    fn queues_do_not_grow_with_pages_that_come_and_go() {
        let mut buffer = Buffer::new(16, 64, 64);
        for _ in 0..1000 {
            map(&mut buffer, 1, 1);
            unmap(&mut buffer, 1, 1);
            let cleaning = buffer.begin_cleaning(1).unwrap();
            assert_eq!(buffer.cleaned(cleaning, true), OnCleaned::Left);
        }
        assert!(buffer.mapped.len() <= 32 && buffer.unmapped.len() <= 32);
    }

    #[test]
    fn a_sequence_is_read_ahead() {
        let mut buffer = Buffer::new(256, 1000, 1000);
        assert_eq!(buffer.fault(10), OnFault::Fetch);
        assert!(buffer.read_ahead(10).is_empty());
        assert_eq!(buffer.fault(11), OnFault::Fetch);
        let ahead = buffer.read_ahead(11);
        assert_eq!(ahead, [(12, OnFault::Fetch), (13, OnFault::Fetch)]);
        assert_eq!(buffer.fault(12), OnFault::Nothing);
        assert_eq!(buffer.fault(14), OnFault::Fetch);
        assert_eq!(buffer.read_ahead(14).len(), 4);
        // Not past the end of the memory.
        assert_eq!(buffer.fault(998), OnFault::Fetch);
        assert!(buffer.read_ahead(998).is_empty());
        assert_eq!(buffer.fault(999), OnFault::Fetch);
        assert!(buffer.read_ahead(999).is_empty());
    }
}
