//! Writes apart from the thread that applies.
//!
//! A [`Job`] holds a batch for each store that has something to write. Whichever threads [run](Job::run) it write it, a
//! batch at a time: those of the writer, and the thread that applies, when it cannot continue without it. So the latter
//! never waits for a thread that has not been scheduled.

use std::collections::VecDeque;
use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use rocksdb::{WriteBatch, WriteOptions, DB};

use super::{SharedDbs, StoreError};

/// What is written to the database of one log, in one step.
pub(crate) struct Part {
    pub(super) db: Arc<DB>,
    #[cfg_attr(not(any(test, feature = "testing")), expect(dead_code))]
    pub(super) path: PathBuf,
    #[cfg_attr(not(any(test, feature = "testing")), expect(dead_code))]
    pub(super) shared: SharedDbs,
    pub(super) batch: WriteBatch,
}

impl Part {
    /// Writes it; with `sync`, it survives a power failure.
    pub(super) fn write(self, sync: bool) -> Result<(), StoreError> {
        #[cfg(any(test, feature = "testing"))]
        self.shared.faults().pass()?;
        let mut options = WriteOptions::default();
        options.set_sync(sync);
        #[cfg(any(test, feature = "testing"))]
        let noted = self.batch.data().to_vec();
        self.db.write_opt(self.batch, &options)?;
        #[cfg(any(test, feature = "testing"))]
        self.shared.faults().written(&self.path, &noted, sync);
        Ok(())
    }
}

#[derive(Default)]
struct Progress {
    /// No thread has begun to write these.
    left: VecDeque<Part>,
    /// Number of those that threads are writing.
    under_way: usize,
    has_failed: bool,
    /// Why, until it is taken.
    failure: Option<StoreError>,
}

/// Batches for different databases. They are begun in order; after a failure no more are.
pub(crate) struct Job {
    progress: Mutex<Progress>,
    is_done: AtomicBool,
    done: Condvar,
}

/// A batch that is being written.
struct UnderWay<'j> {
    job: &'j Job,
    /// `None` at its end: the write has panicked.
    result: Option<Result<(), StoreError>>,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        let mut progress = self.job.progress();
        progress.under_way -= 1;
        if !matches!(self.result, Some(Ok(()))) {
            progress.left.clear();
            progress.has_failed = true;
        }
        if let Some(Err(error)) = self.result.take() {
            progress.failure.get_or_insert(error);
        }
        if progress.left.is_empty() && progress.under_way == 0 {
            self.job.is_done.store(true, Ordering::Release);
            self.job.done.notify_all();
        }
    }
}

impl Job {
    /// There is at least one part.
    pub(crate) fn new(parts: Vec<Part>) -> Arc<Self> {
        Arc::new(Self {
            progress: Mutex::new(Progress {
                left: parts.into(),
                ..Progress::default()
            }),
            is_done: AtomicBool::new(false),
            done: Condvar::new(),
        })
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether everything is written, or a write has failed.
    pub(crate) fn is_done(&self) -> bool {
        self.is_done.load(Ordering::Acquire)
    }

    /// Writes what no other thread writes. Returns after the end of all of it.
    pub(crate) fn run(&self) {
        while self.write_one(VecDeque::pop_front) {}
        let mut progress = self.progress();
        while progress.under_way > 0 {
            let waited = self.done.wait(progress);
            progress = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Writes the batch that is taken. Returns whether there was one.
    pub(crate) fn write_one(&self, take: fn(&mut VecDeque<Part>) -> Option<Part>) -> bool {
        let mut progress = self.progress();
        let Some(part) = take(&mut progress.left) else {
            return false;
        };
        progress.under_way += 1;
        drop(progress);
        let mut under_way = UnderWay {
            job: self,
            result: None,
        };
        under_way.result = Some(part.write(false));
        true
    }

    /// Returns the result of a job that is done. Only the first one to ask for it learns why it has failed.
    pub(super) fn result(&self) -> Result<(), StoreError> {
        let mut progress = self.progress();
        match progress.has_failed {
            true => Err(progress.failure.take().unwrap_or(StoreError::Stopped)),
            false => Ok(()),
        }
    }
}

/// Threads that run jobs, all of them the same one.
pub(crate) struct Writer {
    /// Dropped to end the threads.
    jobs: Vec<Sender<Arc<Job>>>,
    threads: Vec<JoinHandle<()>>,
}

impl Writer {
    /// Each thread calls `wake` when a job is done.
    pub(crate) fn start(
        threads: usize,
        wake: impl Fn() + Send + Sync + 'static,
    ) -> std::io::Result<Self> {
        let wake = Arc::new(wake);
        let mut writer = Self {
            jobs: Vec::new(),
            threads: Vec::new(),
        };
        for number in 0..threads {
            let (jobs, begun) = mpsc::channel::<Arc<Job>>();
            let wake = wake.clone();
            let work = move || {
                while let Ok(job) = begun.recv() {
                    let run = catch_unwind(AssertUnwindSafe(|| job.run()));
                    // It may hold the last reference to a database, which must not be closed later than the machine.
                    drop(job);
                    wake();
                    if let Err(panic) = run {
                        resume_unwind(panic);
                    }
                }
            };
            let name = match number {
                0 => "ib-write".to_owned(),
                _ => format!("ib-write{number}"),
            };
            let thread = std::thread::Builder::new().name(name).spawn(work)?;
            writer.jobs.push(jobs);
            writer.threads.push(thread);
        }
        Ok(writer)
    }

    pub(crate) fn begin(&self, job: &Arc<Job>) {
        for jobs in &self.jobs {
            // If the thread has panicked, the thread that applies runs the job when it waits for it.
            let _ = jobs.send(job.clone());
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.jobs.clear();
        for thread in self.threads.drain(..) {
            // The thread exits after the current job; a panic in it has already been reported.
            let _ = thread.join();
        }
    }
}
