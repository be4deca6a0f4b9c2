//! Writes apart from the thread that applies.
//!
//! A [`Job`] holds a batch for each store that has something to write. The first thread to [run](Job::run) it writes it:
//! the writer's thread, or the thread that applies, when it cannot continue without it. So the latter never waits for a
//! thread that has not been scheduled.

use std::collections::VecDeque;
use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, MutexGuard};
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
    /// Not written yet, in order.
    left: VecDeque<Part>,
    has_failed: bool,
    /// Why, until it is taken.
    failure: Option<StoreError>,
}

/// Batches that are written in order, up to the first failure.
pub(crate) struct Job {
    progress: Mutex<Progress>,
    is_done: AtomicBool,
}

impl Job {
    pub(crate) fn new(parts: Vec<Part>) -> Arc<Self> {
        Arc::new(Self {
            progress: Mutex::new(Progress {
                left: parts.into(),
                ..Progress::default()
            }),
            is_done: AtomicBool::new(false),
        })
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(|poisoned| {
            // A write has panicked: nothing may be written after it.
            let mut progress = poisoned.into_inner();
            progress.left.clear();
            progress.has_failed = true;
            progress
        })
    }

    /// Returns whether everything is written, or a write has failed.
    pub(crate) fn is_done(&self) -> bool {
        self.is_done.load(Ordering::Acquire)
    }

    /// Writes what is not written yet. Returns after the end also if another thread is writing.
    pub(crate) fn run(&self) {
        let mut progress = self.progress();
        while self.write_next(&mut progress) {}
    }

    /// Writes the next batch.
    pub(crate) fn step(&self) {
        self.write_next(&mut self.progress());
    }

    fn write_next(&self, progress: &mut Progress) -> bool {
        if let Some(Err(error)) = progress.left.pop_front().map(|part| part.write(false)) {
            progress.left.clear();
            progress.has_failed = true;
            progress.failure = Some(error);
        }
        let is_over = progress.left.is_empty();
        self.is_done.store(is_over, Ordering::Release);
        !is_over
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

/// A thread that runs jobs.
pub(crate) struct Writer {
    /// Dropped to end the thread.
    jobs: Option<Sender<Arc<Job>>>,
    thread: Option<JoinHandle<()>>,
}

impl Writer {
    /// Calls `wake` after each job.
    pub(crate) fn start(wake: impl Fn() + Send + 'static) -> std::io::Result<Self> {
        let (jobs, begun) = mpsc::channel::<Arc<Job>>();
        let work = move || {
            while let Ok(job) = begun.recv() {
                let run = catch_unwind(AssertUnwindSafe(|| job.run()));
                if run.is_err() {
                    job.is_done.store(true, Ordering::Release); // its result is an error now
                }
                // It may hold the last reference to a database, which must not be closed later than the machine.
                drop(job);
                wake();
                if let Err(panic) = run {
                    resume_unwind(panic);
                }
            }
        };
        let thread = std::thread::Builder::new()
            .name("ib-write".into())
            .spawn(work)?;
        Ok(Self {
            jobs: Some(jobs),
            thread: Some(thread),
        })
    }

    pub(crate) fn begin(&self, job: Arc<Job>) {
        if let Some(jobs) = &self.jobs {
            // If the thread has panicked, the thread that applies runs the job when it waits for it.
            let _ = jobs.send(job);
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            // The thread exits after the current job; a panic in it has already been reported.
            let _ = thread.join();
        }
    }
}
