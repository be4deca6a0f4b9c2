//! SIGHUP: a process reads its files again while it goes on working. A file that is no good is logged, and what was read
//! before stays in use.

use std::fmt;
use std::io;
use std::thread;
use std::time::Duration;

use anyhow::Result;

use crate::notify::Notifier;
use crate::program::in_words;
use crate::signals::StopRequest;

/// How soon the thread notices that its process is over.
const OVER_POLL: Duration = Duration::from_secs(1);

/// Reads one file again. Returns what it did; `None`: there was nothing to do, or it was logged already.
type Step = Box<dyn Fn() -> Result<Option<String>> + Send>;

/// What a process reads again.
#[derive(Default)]
pub struct Reload {
    steps: Vec<(&'static str, Step)>,
}

impl Reload {
    pub fn new() -> Reload {
        Reload::default()
    }

    /// Adds a file, by the name of its setting.
    pub fn with(
        mut self,
        what: &'static str,
        step: impl Fn() -> Result<Option<String>> + Send + 'static,
    ) -> Reload {
        self.steps.push((what, Box::new(step)));
        self
    }

    /// Starts the thread that waits for the signal until `is_over`.
    pub fn start(
        self,
        request: StopRequest,
        notifier: Notifier,
        is_over: impl Fn() -> bool + Send + 'static,
    ) -> io::Result<()> {
        let thread = thread::Builder::new().name("reload".into());
        thread.spawn(move || {
            while !is_over() {
                if request.wait_for_reload(OVER_POLL) {
                    notifier.reloading(|| self.run());
                }
            }
        })?;
        Ok(())
    }

    /// Carries out all steps, for a main loop that does so itself ([`StopSignals::reloading`]).
    ///
    /// [`StopSignals::reloading`]: crate::signals::StopSignals::reloading
    pub(crate) fn run(&self) {
        for (what, step) in &self.steps {
            match step() {
                Ok(Some(done)) => tracing::info!("SIGHUP: {what}: {done}"),
                Ok(None) => {}
                Err(error) => tracing::error!(
                    "SIGHUP: {what}: {}; what was read before stays in use",
                    in_words(&error)
                ),
            }
        }
        tracing::info!("SIGHUP: done");
    }
}

impl fmt::Debug for Reload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let steps = self.steps.iter().map(|(what, _)| what);
        f.debug_list().entries(steps).finish()
    }
}
