//! The threads that serve a program's page faults.

use std::any::Any;
use std::io::{self, Write};
use std::os::fd::BorrowedFd;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::poll::{poll, PollFd, PollFlags, PollTimeout};

use super::buffer::{Buffer, Cleaning, OnCleaned, OnFault};
use super::diff::changed_lines;
use super::region::Region;
use super::stats::{add, Stats};
use super::uffd::Uffd;
use super::{Page, PAGE_CHUNKS, ZERO_PAGE};
use crate::lines::{Lines, MemoryError, Transfer};

/// Faults that one thread handles together.
const FAULTS_AT_ONCE: usize = 8;
/// Pages that are evicted, flushed or acquired together.
const BATCH_PAGES: usize = 64;
/// How long a thread polls for the next fault before it sleeps. A busy program faults again within this time, and
/// waking a thread takes as long as handling the fault.
const SPIN: Duration = Duration::from_micros(50);
/// A thread that waits for another thread's work checks at least this often.
const LOOK_AGAIN: Duration = Duration::from_millis(1);
/// Pause between two attempts to reach the memory.
const RETRY_PAUSE: Duration = Duration::from_millis(50);
/// How often the user is told that the memory does not answer.
const REPORT_EVERY: Duration = Duration::from_secs(5);

/// Opens the memory, once for each thread.
pub type Connect = dyn Fn() -> Result<Box<dyn Lines + Send>, MemoryError> + Send + Sync;
/// Ends the program for the given reason.
pub type OnFailure = dyn Fn(String) + Send + Sync;

/// The state shared by a pager's threads.
pub struct Pager {
    uffd: Uffd,
    region: Region,
    buffer: Mutex<Buffer>,
    /// Signalled when the buffer is short of room.
    short: Condvar,
    /// Signalled when a page has left the buffer or has been written back.
    progress: Condvar,
    pub stats: Stats,
    give_up_after: Duration,
    on_failure: Box<OnFailure>,
    /// Why a thread is waiting for the memory.
    outage: Mutex<Option<MemoryError>>,
}

impl Pager {
    /// Creates a pager without threads.
    pub fn new(
        uffd: Uffd,
        region: Region,
        buffer: Buffer,
        give_up_after: Duration,
        on_failure: Box<OnFailure>,
    ) -> Pager {
        Pager {
            uffd,
            region,
            buffer: Mutex::new(buffer),
            short: Condvar::new(),
            progress: Condvar::new(),
            stats: Stats::default(),
            give_up_after,
            on_failure,
            outage: Mutex::new(None),
        }
    }

    /// Starts `threads` threads that handle faults, and the evictor. They run until the process ends.
    pub fn start(self: &Arc<Self>, threads: usize, connect: &Connect) -> Result<(), MemoryError> {
        for n in 0..threads {
            let lines = connect()?;
            self.spawn(&format!("fault-{n}"), lines, Pager::answer_faults);
        }
        let lines = connect()?;
        self.spawn("evict", lines, Pager::evict);
        let pager = Arc::clone(self);
        std::thread::spawn(move || pager.report());
        Ok(())
    }

    fn spawn(
        self: &Arc<Self>,
        name: &str,
        mut lines: Box<dyn Lines + Send>,
        run: impl FnOnce(&Pager, &mut dyn Lines) -> io::Result<()> + Send + 'static,
    ) {
        let pager = Arc::clone(self);
        let body = move || {
            let run = AssertUnwindSafe(|| run(&pager, &mut *lines));
            match catch_unwind(run) {
                Ok(done) => pager.or_fail(done),
                Err(panic) => {
                    pager.fail(format!("the pager has a defect: {}", message_of(&*panic)))
                }
            }
        };
        let thread = std::thread::Builder::new().name(name.to_owned());
        thread.spawn(body).expect("threads can be started");
    }

    fn lock(&self) -> MutexGuard<'_, Buffer> {
        self.buffer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(on: &Condvar, buffer: MutexGuard<'a, Buffer>) -> MutexGuard<'a, Buffer> {
        let waited = on.wait_timeout(buffer, LOOK_AGAIN);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Ends the program, for an error that the pager cannot recover from. The calling thread sleeps from then on.
    fn fail(&self, why: String) -> ! {
        (self.on_failure)(why);
        loop {
            std::thread::park();
        }
    }

    fn or_fail(&self, done: io::Result<()>) {
        if let Err(error) = done {
            self.fail(format!("userfaultfd: {error}"));
        }
    }

    /// Performs the transfers, and retries until they succeed. A program that waits for its heap cannot be told of an
    /// error; it waits, and is ended when the memory has not answered for too long.
    fn transfer(&self, lines: &mut dyn Lines, transfers: &mut [Transfer<'_>]) {
        if transfers.is_empty() {
            return;
        }
        let since = Instant::now();
        loop {
            let error = match lines.transfer(transfers) {
                Ok(()) => break,
                Err(error) => error,
            };
            add(&self.stats.retries, 1);
            let silent = since.elapsed();
            if matches!(error, MemoryError::OutOfRange { .. }) || silent >= self.give_up_after {
                self.fail(format!(
                    "the memory failed for {:.0} s: {error}",
                    silent.as_secs_f64()
                ));
            }
            *self.outage() = Some(error);
            std::thread::sleep(RETRY_PAUSE);
        }
        if since.elapsed() >= RETRY_PAUSE {
            *self.outage() = None;
        }
    }

    fn outage(&self) -> MutexGuard<'_, Option<MemoryError>> {
        self.outage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells the user about outages. It runs in a thread of its own, because the reader of standard error may itself
    /// wait for a page of the program.
    fn report(&self) {
        loop {
            std::thread::sleep(REPORT_EVERY);
            let outage = self.outage().clone();
            if let Some(error) = outage {
                // Nobody may be reading it.
                let _ = writeln!(
                    io::stderr(),
                    "inband memory: waiting for the memory: {error}"
                );
            }
        }
    }

    fn answer_faults(&self, lines: &mut dyn Lines) -> io::Result<()> {
        let mut pages = Vec::new();
        let mut idle_since = Instant::now();
        loop {
            pages.clear();
            self.uffd.read(&mut pages, FAULTS_AT_ONCE)?;
            if pages.is_empty() {
                match idle_since.elapsed() < SPIN {
                    true => std::hint::spin_loop(),
                    false => wait_readable(self.uffd.as_fd())?,
                }
                continue;
            }
            self.answer(&pages, lines)?;
            idle_since = Instant::now();
        }
    }

    fn answer(&self, pages: &[u64], lines: &mut dyn Lines) -> io::Result<()> {
        let begun = Instant::now();
        let mut todo = Vec::with_capacity(pages.len());
        let mut without_room = Vec::new();
        let mut missed = Vec::new();
        {
            let mut buffer = self.lock();
            for &page in pages {
                match buffer.fault(page) {
                    OnFault::Nothing => {}
                    OnFault::Full => without_room.push(page),
                    action => todo.push((page, action)),
                }
            }
            if buffer.is_short() {
                self.short.notify_one();
            }
        }
        self.count(&todo, &mut missed);
        self.perform(todo, lines, Some(begun))?;
        for page in without_room {
            let mut buffer = self.lock();
            let action = loop {
                match buffer.fault(page) {
                    OnFault::Full => {
                        self.short.notify_one();
                        buffer = Pager::wait(&self.progress, buffer);
                    }
                    action => break action,
                }
            };
            drop(buffer);
            let todo = Vec::from_iter((action != OnFault::Nothing).then_some((page, action)));
            self.count(&todo, &mut missed);
            self.perform(todo, lines, Some(begun))?;
        }
        for page in missed {
            let ahead = self.lock().read_ahead(page);
            add(&self.stats.read_ahead, ahead.len() as u64);
            self.perform(ahead, lines, None)?;
        }
        Ok(())
    }

    fn count(&self, todo: &[(u64, OnFault)], missed: &mut Vec<u64>) {
        for (page, action) in todo {
            let counter = match action {
                OnFault::Fetch => &self.stats.fetched,
                OnFault::Zero => &self.stats.zeros,
                _ => {
                    add(&self.stats.hits, 1);
                    continue;
                }
            };
            missed.push(*page);
            add(counter, 1);
        }
    }

    /// Carries out what the buffer decided.
    fn perform(
        &self,
        todo: Vec<(u64, OnFault)>,
        lines: &mut dyn Lines,
        begun: Option<Instant>,
    ) -> io::Result<()> {
        if todo.is_empty() {
            return Ok(());
        }
        let fetch = todo.iter().filter(|(_, action)| *action == OnFault::Fetch);
        let mut fetched: Vec<_> = fetch
            .map(|(page, _)| (*page, Arc::new(ZERO_PAGE)))
            .collect();
        let mut transfers = Vec::with_capacity(fetched.len() * PAGE_CHUNKS);
        for (page, content) in &mut fetched {
            let content = Arc::get_mut(content).expect("it is new");
            for (chunk, into) in (*page * PAGE_CHUNKS as u64..).zip(content) {
                transfers.push(Transfer::Read {
                    chunk,
                    lines: u16::MAX,
                    into,
                });
            }
        }
        self.transfer(lines, &mut transfers);
        drop(transfers);
        add(&self.stats.pages_read, fetched.len() as u64);
        let mut fetched = fetched.into_iter();
        let mut shown = Vec::with_capacity(todo.len());
        for (page, action) in todo {
            let (content, twin, is_shown) = match action {
                OnFault::Nothing | OnFault::Full => continue,
                OnFault::Wake => {
                    self.uffd.wake(page)?;
                    continue;
                }
                OnFault::Zero => (None, None, self.uffd.zero(page)?),
                OnFault::Map(content) => {
                    let is_shown = self.uffd.copy(page, &content)?;
                    (Some(content), None, is_shown)
                }
                OnFault::Fetch => {
                    let (_, content) = fetched.next().expect("one for each");
                    let is_shown = self.uffd.copy(page, &content)?;
                    (Some(Arc::clone(&content)), Some(content), is_shown)
                }
            };
            shown.push((page, content, twin, is_shown));
            if let Some(begun) = begun {
                self.stats.resolved(begun.elapsed());
            }
        }
        let mut buffer = self.lock();
        for (page, content, twin, is_shown) in shown {
            match is_shown {
                true => buffer.mapped(page, twin),
                // The page is missing from the region, and reading it there would allocate it.
                false => {
                    let content = content.unwrap_or_else(|| Arc::new(ZERO_PAGE));
                    buffer.not_shown(page, content, twin);
                }
            }
        }
        Ok(())
    }

    fn evict(&self, lines: &mut dyn Lines) -> io::Result<()> {
        loop {
            let mut buffer = self.lock();
            if buffer.wanted() == 0 {
                while !buffer.is_short() {
                    let waited = self.short.wait(buffer);
                    buffer = waited.unwrap_or_else(PoisonError::into_inner);
                }
            }
            let pages = buffer.take_to_unmap(BATCH_PAGES);
            drop(buffer);
            self.unmap(&pages)?;
            let cleanings = self.lock().take_to_evict(BATCH_PAGES);
            if pages.is_empty() && cleanings.is_empty() {
                // Other threads are working on all of the pages.
                drop(Pager::wait(&self.progress, self.lock()));
            }
            let evicted = self.clean(cleanings, true, lines);
            add(&self.stats.evicted, evicted);
        }
    }

    /// Unmaps these pages from the program. Their unmapping has begun in the buffer.
    fn unmap(&self, pages: &[u64]) -> io::Result<()> {
        let mut todo = runs(pages);
        while let Some((from, len)) = todo.pop() {
            if !self.uffd.write_protect(from, len)? {
                match len {
                    1 => {
                        // The program could still write to the page, so it stays mapped.
                        if self.lock().still_mapped(from) {
                            self.uffd.wake(from)?;
                        }
                    }
                    _ => todo.extend((from..from + len).map(|page| (page, 1))),
                }
                continue;
            }
            // From here on the program cannot write to them.
            let contents: Vec<_> = (from..from + len)
                .map(|page| self.region.page(page))
                .collect();
            self.region.punch(from, len)?;
            let mut wanted = Vec::new();
            let mut buffer = self.lock();
            for (page, content) in (from..).zip(contents) {
                if buffer.unmapped(page, content) {
                    wanted.push(page);
                }
            }
            drop(buffer);
            for page in wanted {
                self.uffd.wake(page)?;
            }
        }
        Ok(())
    }

    /// Writes these pages back and, with `evict`, evicts them. Returns how many left the buffer.
    fn clean(&self, mut cleanings: Vec<Cleaning>, evict: bool, lines: &mut dyn Lines) -> u64 {
        for cleaning in &mut cleanings {
            let content = cleaning.content.take();
            let content = content.unwrap_or_else(|| self.region.page(cleaning.page));
            cleaning.content = Some(content);
        }
        let mut transfers = Vec::new();
        for cleaning in cleanings.iter().filter(|cleaning| !cleaning.is_untouched()) {
            let content: &Page = cleaning.content.as_ref().expect("it was just set");
            let first = cleaning.page * PAGE_CHUNKS as u64;
            let changed = changed_lines(content, cleaning.twin.as_deref());
            for ((chunk, from), lines) in (first..).zip(content).zip(changed) {
                if lines != 0 {
                    add(&self.stats.lines_written, u64::from(lines.count_ones()));
                    transfers.push(Transfer::Write {
                        chunk,
                        lines,
                        from,
                        sole_writer: true,
                    });
                }
            }
            add(
                &self.stats.pages_written,
                u64::from(changed != [0; PAGE_CHUNKS]),
            );
        }
        self.transfer(lines, &mut transfers);
        drop(transfers);
        let mut evicted = 0;
        let mut wanted = Vec::new();
        let mut buffer = self.lock();
        for cleaning in cleanings {
            let page = cleaning.page;
            match buffer.cleaned(cleaning, evict) {
                OnCleaned::Stays => continue,
                OnCleaned::Left => {}
                OnCleaned::LeftWanted => wanted.push(page),
            }
            evicted += 1;
        }
        drop(buffer);
        self.progress.notify_all();
        for page in wanted {
            self.or_fail(self.uffd.wake(page));
        }
        evicted
    }

    /// Writes back everything that the program has written in these pages.
    pub fn release(&self, from: u64, to: u64, lines: &mut dyn Lines) {
        let mut left = self.lock().resident(from, to);
        while !left.is_empty() {
            let mut cleanings = Vec::new();
            let mut buffer = self.lock();
            left.retain(|&page| match cleanings.len() < BATCH_PAGES {
                true => {
                    let begun = buffer.begin_cleaning(page);
                    let is_busy = begun.is_none() && buffer.contains(page);
                    cleanings.extend(begun);
                    is_busy
                }
                false => true,
            });
            if cleanings.is_empty() && !left.is_empty() {
                drop(Pager::wait(&self.progress, buffer));
                continue;
            }
            drop(buffer);
            self.clean(cleanings, false, lines);
        }
    }

    /// Writes these pages back and discards them: the next access fetches them again. A thread that needs one of them
    /// meanwhile waits until it has left; otherwise the page would be mapped again with its old content, as often as
    /// that thread uses it.
    pub fn acquire(&self, from: u64, to: u64, lines: &mut dyn Lines) {
        let pages = self.lock().resident(from, to);
        for batch in pages.chunks(BATCH_PAGES) {
            let mut buffer = self.lock();
            for page in batch {
                buffer.begin_leaving(*page);
            }
            drop(buffer);
            self.let_leave(batch, lines);
        }
    }

    /// Waits until all of these pages that are marked as leaving have left.
    fn let_leave(&self, pages: &[u64], lines: &mut dyn Lines) {
        let mut left = pages.to_vec();
        loop {
            let mut buffer = self.lock();
            left.retain(|&page| buffer.is_leaving(page));
            if left.is_empty() {
                return;
            }
            let unmapping = left.iter().copied();
            let unmapping: Vec<u64> = unmapping
                .filter(|&page| buffer.begin_unmapping(page))
                .collect();
            drop(buffer);
            self.or_fail(self.unmap(&unmapping));
            let mut buffer = self.lock();
            let begun = left.iter().filter_map(|&page| buffer.begin_cleaning(page));
            let cleanings: Vec<Cleaning> = begun.collect();
            drop(buffer);
            if self.clean(cleanings, true, lines) == 0 {
                // Other threads are working on them.
                drop(Pager::wait(&self.progress, self.lock()));
            }
        }
    }
}

fn message_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| "a panic".to_owned())
}

fn wait_readable(fd: BorrowedFd<'_>) -> io::Result<()> {
    let mut fds = [PollFd::new(fd, PollFlags::POLLIN)];
    match poll(&mut fds, PollTimeout::NONE) {
        Ok(_) | Err(nix::errno::Errno::EINTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Groups sorted pages into runs of neighbours, as pairs of first page and length.
fn runs(pages: &[u64]) -> Vec<(u64, u64)> {
    let neighbours = pages.chunk_by(|a, b| a + 1 == *b);
    neighbours.map(|run| (run[0], run.len() as u64)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_defect_in_a_thread_ends_the_program() {
        let file = std::fs::File::open("/dev/null").unwrap();
        let (said, why) = std::sync::mpsc::channel();
        let pager = Arc::new(Pager::new(
            Uffd::new(file.into(), 0),
            Region::new(1).unwrap(),
            Buffer::new(64, 1, 0),
            Duration::from_secs(1),
            Box::new(move |why| said.send(why).unwrap()),
        ));
        let lines = Box::new(super::super::LocalSpace::new(4));
        pager.spawn("defect", lines, |_, _| panic!("out of order"));
        let why = why.recv_timeout(Duration::from_secs(10)).unwrap();
        assert_eq!(why, "the pager has a defect: out of order");
    }

    #[test]
    fn neighbours_are_taken_together() {
        assert_eq!(runs(&[1, 2, 3, 7, 9, 10]), [(1, 3), (7, 1), (9, 2)]);
        assert!(runs(&[]).is_empty());
    }
}
