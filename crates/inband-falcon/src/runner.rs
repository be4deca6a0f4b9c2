//! Runs the tasks of one executor, one at a time, in a separate thread.

mod command;
mod process;
mod python;

use std::collections::HashMap;
use std::io;
use std::net::SocketAddrV4;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{channel, Receiver, Sender};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::message::{Outcome, Payload};
use crate::work::Call;
use process::Stop;
use python::Python;

/// A function that tasks can name. It takes an argument, and returns a result or an error.
pub type Function = Box<dyn Fn(&[u8]) -> Result<Vec<u8>, String> + Send + Sync>;

/// Where the work comes from.
type Fetch = Box<dyn FnMut() -> io::Result<Vec<u8>> + Send>;

/// The process that holds the work may be busy and close the connection: retry for this long, with pauses.
const FETCH_LIMIT: Duration = Duration::from_secs(20);
const FETCH_PAUSE_MIN: Duration = Duration::from_millis(20);
const FETCH_PAUSE_MAX: Duration = Duration::from_secs(1);

/// Shared by the runners of a worker.
#[derive(Default)]
pub struct Tools {
    pub functions: HashMap<String, Function>,
    /// The interpreter for Python tasks; `None`: this worker accepts none.
    pub python: Option<Interpreter>,
}

/// Environment variable from which the package `inband` learns the cluster that runs it: `inband.current()`.
pub const CURRENT_SCHEDULER: &str = "INBAND_CURRENT_SCHEDULER";
/// Environment variable for the cluster's key file, if it has keys.
pub const CURRENT_KEY_FILE: &str = "INBAND_CURRENT_KEY_FILE";

/// How to run Python.
#[derive(Debug, Clone)]
pub struct Interpreter {
    /// The program, which must be able to import the package `inband`.
    pub program: PathBuf,
    /// Added to its environment.
    pub env: Vec<(String, String)>,
}

impl Interpreter {
    /// Lets tasks submit more tasks to this cluster.
    pub fn of_cluster(mut self, scheduler: SocketAddrV4, key_file: Option<&Path>) -> Interpreter {
        let key_file = key_file.map(|path| path.display().to_string());
        self.env
            .push((CURRENT_SCHEDULER.into(), scheduler.to_string()));
        self.env
            .push((CURRENT_KEY_FILE.into(), key_file.unwrap_or_default()));
        self
    }
}

/// Dropping it stops what runs, and waits for that.
pub struct Runner {
    work: Option<Sender<Fetch>>,
    stop: Arc<Stop>,
    thread: Option<JoinHandle<()>>,
}

impl Runner {
    /// Creates a runner without work. `done` is called in its thread when a task has ended.
    pub fn new(
        tools: Arc<Tools>,
        name: String,
        mut done: impl FnMut(Outcome) + Send + 'static,
    ) -> io::Result<Runner> {
        let (work, received) = channel();
        let stop = Arc::new(Stop::default());
        let mut bench = Bench {
            python: None,
            tools,
            stop: Arc::clone(&stop),
        };
        let thread = std::thread::Builder::new().name(name).spawn(move || {
            serve(&mut bench, &received, &mut done);
        })?;
        Ok(Runner {
            work: Some(work),
            stop,
            thread: Some(thread),
        })
    }

    /// Runs an encoded [`Call`]. The previous one must have ended.
    pub fn start(&self, mut work: Vec<u8>) {
        self.start_fetched(move || Ok(std::mem::take(&mut work)));
    }

    /// Runs the work that `fetch` returns. `fetch` may be slow, and is retried when it fails.
    pub fn start_fetched(&self, fetch: impl FnMut() -> io::Result<Vec<u8>> + Send + 'static) {
        self.stop.begin();
        if let Some(sender) = &self.work {
            // The thread outlives this sender.
            let _ = sender.send(Box::new(fetch));
        }
    }

    /// Ends what runs, if possible; `done` is called in any case, once.
    pub fn stop(&self) {
        self.stop.stop();
    }
}

impl Drop for Runner {
    fn drop(&mut self) {
        self.work = None;
        self.stop.stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn serve(bench: &mut Bench, work: &Receiver<Fetch>, done: &mut dyn FnMut(Outcome)) {
    while let Ok(mut fetch) = work.recv() {
        let fetched = fetched(&mut fetch, &bench.stop)
            .map_err(|error| format!("cannot fetch the work: {error}"));
        let work = fetched.map_err(String::into_bytes);
        done(match work.and_then(|work| bench.run(&work)) {
            Ok(output) => Outcome::Output(Payload::Inline(output)),
            Err(error) => Outcome::Error(Payload::Inline(error)),
        });
    }
}

/// Retries `fetch` until it succeeds; returns its last error.
fn fetched(fetch: &mut Fetch, stop: &Stop) -> io::Result<Vec<u8>> {
    let until = Instant::now() + FETCH_LIMIT;
    let mut pause = FETCH_PAUSE_MIN;
    loop {
        let fetched = fetch();
        if fetched.is_ok() || Instant::now() + pause > until || stop.sleep(pause) {
            return fetched;
        }
        pause = (2 * pause).min(FETCH_PAUSE_MAX);
    }
}

/// A runner's state.
struct Bench {
    tools: Arc<Tools>,
    stop: Arc<Stop>,
    /// Started for the first Python task.
    python: Option<Python>,
}

impl Bench {
    /// Runs the work and returns its output or its error.
    fn run(&mut self, work: &[u8]) -> Result<Vec<u8>, Vec<u8>> {
        let said = |error: String| error.into_bytes();
        match Call::decode(work).map_err(|error| said(error.to_string()))? {
            Call::Sleep { micros } => {
                self.stop.sleep(Duration::from_micros(micros));
                Ok(Vec::new())
            }
            Call::Function { name, argument } => {
                let function = self.tools.functions.get(&name);
                let function = function.ok_or_else(|| said(no_function(&name, &self.tools)))?;
                guarded(|| function(&argument)).map_err(said)
            }
            Call::Command(command) => {
                let output = command::run(&command, &self.stop);
                output.map(|output| output.encode()).map_err(said)
            }
            Call::Python(pickled) => self.run_python(&pickled),
        }
    }

    fn run_python(&mut self, pickled: &[u8]) -> Result<Vec<u8>, Vec<u8>> {
        let Some(interpreter) = &self.tools.python else {
            return Err(python::as_error(
                "this worker runs no Python; start one with an interpreter (`Tools::python`)",
            ));
        };
        let python = match self.python.take() {
            Some(python) => python,
            None => Python::start(interpreter).map_err(|error| {
                let interpreter = interpreter.program.display();
                python::as_error(&format!("cannot run {interpreter}: {error}"))
            })?,
        };
        let (outcome, python) = python.call(pickled, &self.stop);
        self.python = python;
        outcome
    }
}

fn no_function(name: &str, tools: &Tools) -> String {
    let mut names: Vec<&str> = tools.functions.keys().map(String::as_str).collect();
    names.sort_unstable();
    format!("this worker has no function {name:?}; it has {names:?}")
}

/// A function that panics fails its task, not the worker.
fn guarded(function: impl Fn() -> Result<Vec<u8>, String>) -> Result<Vec<u8>, String> {
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(function));
    caught.unwrap_or_else(|panic| {
        let said = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
        let said = said.or_else(|| panic.downcast_ref::<String>().cloned());
        Err(format!("it panicked: {}", said.unwrap_or_default()))
    })
}

#[cfg(test)]
mod tests;
