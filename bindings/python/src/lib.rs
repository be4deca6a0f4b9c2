//! `inband._native`: Falcon's client, a cluster in this process, lines of replicated memory, and the C library. See `python/inband/_native.pyi`.

mod memory;

// The C library's functions are exported from this library too; `inband.log` calls them with ctypes.
use inband as _;

use std::collections::HashSet;
use std::fmt::Display;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, ToSocketAddrs};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use inband_falcon::client_node::{self, ClientNode, Event};
use inband_falcon::limits::{EXECUTORS_MAX, PRIORITY_MAX, RESOURCE_MAX};
use inband_falcon::local;
use inband_falcon::runner::{Interpreter, Tools};
use inband_falcon::task::{Failure, JobId, TaskId, TaskSpec, Work};
use inband_falcon::timing::ExecutorTiming;
use inband_falcon::work::Call;
use inband_falcon::worker_node::{self, WorkerNode};
use inband_ground::auth::Digest;
use inband_host::key_file::KeyFile;
use pyo3::exceptions::{PyConnectionError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// Time limit for a scheduler to answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);

/// A call up to this length is submitted without releasing the GIL: getting it back takes longer.
const SHORT_CALL_LEN_BYTES: usize = 16 << 10;

/// The kinds of events from `Client.wait`; must match `executor.py`.
#[derive(Clone, Copy)]
enum Kind {
    Started = 0,
    Output = 1,
    Error = 2,
    Late = 3,
    Cancelled = 4,
    Lost = 5,
    Before = 6,
}

fn value_error(error: impl ToString) -> PyErr {
    PyValueError::new_err(error.to_string())
}

fn runtime_error(error: impl ToString) -> PyErr {
    PyRuntimeError::new_err(error.to_string())
}

const FORKED: &str =
    "this process was forked from the one that has made this executor; make another one here";

/// An object that only the process that created it may use. A forked process has none of its threads, and would wait
/// for them forever.
struct OfThisProcess<T> {
    process: u32,
    what: Mutex<Option<T>>,
}

impl<T> OfThisProcess<T> {
    fn new(what: T) -> OfThisProcess<T> {
        OfThisProcess {
            process: std::process::id(),
            what: Mutex::new(Some(what)),
        }
    }

    fn is_here(&self) -> bool {
        self.process == std::process::id()
    }

    /// Calls `use_it`. Fails if the object is closed.
    fn with<R>(&self, use_it: impl FnOnce(&T) -> R) -> PyResult<R> {
        if !self.is_here() {
            return Err(runtime_error(FORKED));
        }
        let what = self.what.lock().map_err(runtime_error)?;
        let what = what.as_ref().ok_or_else(|| runtime_error("it is closed"))?;
        Ok(use_it(what))
    }

    /// The same with mutable access.
    fn with_mut<R>(&self, use_it: impl FnOnce(&mut T) -> R) -> PyResult<R> {
        if !self.is_here() {
            return Err(runtime_error(FORKED));
        }
        let mut what = self.what.lock().map_err(runtime_error)?;
        let what = what.as_mut().ok_or_else(|| runtime_error("it is closed"))?;
        Ok(use_it(what))
    }

    /// Takes the object to close it; `None` if it is closed or belongs to another process.
    fn take(&self) -> Option<T> {
        let lock = || self.what.lock().unwrap_or_else(PoisonError::into_inner);
        self.is_here().then(lock)?.take()
    }
}

impl<T> Drop for OfThisProcess<T> {
    fn drop(&mut self) {
        if !self.is_here() {
            let what = self.what.get_mut().unwrap_or_else(PoisonError::into_inner);
            std::mem::forget(what.take());
        }
    }
}

/// A client of a scheduler.
#[pyclass(frozen)]
struct Client(OfThisProcess<Arc<ClientNode>>);

impl Client {
    fn of(node: ClientNode) -> Client {
        Client(OfThisProcess::new(Arc::new(node)))
    }

    fn node(&self) -> PyResult<Arc<ClientNode>> {
        self.0.with(Arc::clone)
    }
}

#[pymethods]
impl Client {
    #[new]
    fn new(address: &str, key_file: Option<PathBuf>) -> PyResult<Client> {
        let mut config = client_node::Config::new(resolve(address)?);
        if let Some(path) = key_file {
            let file = KeyFile::load(&path).map_err(value_error)?;
            (config.keys, config.digest) = (Some(file.keys()), file.digest());
            config.key_file = Some(std::path::absolute(path)?);
        }
        ClientNode::open(config)
            .map(Client::of)
            .map_err(runtime_error)
    }

    /// The number of executors.
    fn executors(&self, py: Python<'_>) -> PyResult<u32> {
        let node = self.node()?;
        let asked = py.detach(|| node.executors(ANSWER_LIMIT));
        asked.map_err(|error| PyConnectionError::new_err(error.to_string()))
    }

    /// Submits a pickled call as a separate job, to run after those jobs.
    fn submit(
        &self,
        py: Python<'_>,
        call: &[u8],
        wishes: Wishes,
        after: Vec<u32>,
    ) -> PyResult<(u32, u32)> {
        let node = self.node()?;
        let (priority, resource, worker, timeout_ms) = wishes;
        let priority = number("priority", priority, PRIORITY_MAX)?;
        let resource = number("resource", resource, RESOURCE_MAX)?;
        let worker = worker.map(|worker| number("worker", worker, u16::MAX));
        let worker = worker.transpose()?;
        let limit = timeout_ms.map(Duration::from_millis);
        let submit = || {
            let spec = TaskSpec {
                priority,
                resource,
                worker,
                ..TaskSpec::new(Work::Kept(Call::Python(call.to_vec()).encode()))
            };
            let after: Vec<JobId> = after.into_iter().map(JobId).collect();
            node.submit(vec![spec], &after, limit)
        };
        let submitted = if call.len() <= SHORT_CALL_LEN_BYTES {
            submit()
        } else {
            py.detach(submit)
        };
        let JobId(job) = submitted.map_err(value_error)?;
        Ok((job, 0))
    }

    /// Cancels a task unless an executor has begun it.
    fn cancel(&self, py: Python<'_>, job: u32, task: u32) -> PyResult<bool> {
        let node = self.node()?;
        let user = node.user();
        Ok(py.detach(|| node.cancel(TaskId { user, job, task })))
    }

    /// Cancels a task even if it is running.
    fn kill(&self, py: Python<'_>, job: u32, task: u32) -> PyResult<bool> {
        let node = self.node()?;
        let user = node.user();
        Ok(py.detach(|| node.kill(TaskId { user, job, task })))
    }

    /// Waits for events: job, task, kind, and bytes. Of a task that is done, only its end.
    fn wait<'py>(&self, py: Python<'py>, timeout_ms: u64) -> PyResult<Vec<EventTuple<'py>>> {
        let node = self.node()?;
        let events = py.detach(|| without_past(node.wait(Duration::from_millis(timeout_ms))));
        let told = events.into_iter().map(|event| {
            let (id, kind, said) = told(event);
            (id.job, id.task, kind as u8, PyBytes::new(py, &said))
        });
        Ok(told.collect())
    }

    /// Closes the client.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let node = self.0.take();
        py.detach(|| drop(node));
        Ok(())
    }
}

/// Priority, resource, worker, and timeout in ms.
type Wishes = (i64, i64, Option<i64>, Option<u64>);

/// Returns an option's value, from 0 to `most`.
fn number<T: TryFrom<i64> + PartialOrd + Display>(name: &str, value: i64, most: T) -> PyResult<T> {
    let number = T::try_from(value).ok().filter(|number| *number <= most);
    number.ok_or_else(|| value_error(format!("{name} {value}: give a number from 0 to {most}")))
}

/// Job, task, kind, and bytes.
type EventTuple<'py> = (u32, u32, u8, Bound<'py, PyBytes>);

/// Leaves out the starts of tasks whose ends are there too.
fn without_past(mut events: Vec<Event>) -> Vec<Event> {
    let ended: HashSet<TaskId> = events
        .iter()
        .filter_map(|event| match event {
            Event::Done(id, _) => Some(*id),
            Event::Started(_) => None,
        })
        .collect();
    events.retain(|event| !matches!(event, Event::Started(id) if ended.contains(id)));
    events
}

fn told(event: Event) -> (TaskId, Kind, Vec<u8>) {
    let text = |failure: &Failure| failure.to_string().into_bytes();
    match event {
        Event::Started(id) => (id, Kind::Started, Vec::new()),
        Event::Done(id, Ok(Ok(output))) => (id, Kind::Output, output),
        Event::Done(id, Ok(Err(error))) => (id, Kind::Error, error),
        Event::Done(id, Err(failure @ Failure::Deadline(_))) => (id, Kind::Late, text(&failure)),
        Event::Done(id, Err(failure @ Failure::ExecutorsLost(_))) => {
            (id, Kind::Lost, text(&failure))
        }
        Event::Done(id, Err(failure @ Failure::Before(_))) => (id, Kind::Before, text(&failure)),
        Event::Done(id, Err(failure @ Failure::Cancelled)) => (id, Kind::Cancelled, text(&failure)),
    }
}

fn resolve(address: &str) -> PyResult<SocketAddrV4> {
    let found = address.to_socket_addrs().map_err(|error| {
        value_error(format!(
            "{address:?} is not an address: {error}; give host:port"
        ))
    })?;
    let mut v4 = found.filter_map(|address| match address {
        SocketAddr::V4(address) => Some(address),
        SocketAddr::V6(_) => None,
    });
    v4.next().ok_or_else(|| {
        value_error(format!(
            "{address:?} has no IPv4 address, which Falcon needs"
        ))
    })
}

/// A scheduler and executors in this process.
#[pyclass(frozen)]
struct LocalCluster(OfThisProcess<local::LocalCluster>);

#[pymethods]
impl LocalCluster {
    /// Creates the key file, which its tasks need.
    #[new]
    fn new(
        py: Python<'_>,
        executors: usize,
        python: String,
        python_path: String,
        key_file: PathBuf,
    ) -> PyResult<LocalCluster> {
        let keys = KeyFile::generate().map_err(runtime_error)?;
        keys.save(&key_file).map_err(runtime_error)?;
        let access = local::Access {
            keys: Some(keys.keys()),
            digest: keys.digest(),
        };
        let interpreter = Interpreter {
            program: python.into(),
            env: vec![("PYTHONPATH".into(), python_path)],
        };
        let tools = |scheduler| Tools {
            python: Some(interpreter.clone().of_cluster(scheduler, Some(&key_file))),
            ..Tools::default()
        };
        let started = py.detach(|| local::LocalCluster::start(executors, access, tools));
        let started = started.map_err(runtime_error)?;
        Ok(LocalCluster(OfThisProcess::new(started)))
    }

    /// A client of it; other processes need the key file.
    fn client(&self) -> PyResult<Client> {
        let client = self.0.with(local::LocalCluster::client)?;
        client.map(Client::of).map_err(runtime_error)
    }

    /// Stops everything, including running tasks.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let cluster = self.0.take();
        py.detach(|| drop(cluster));
        Ok(())
    }
}

/// A worker: executors of a cluster, in this process.
#[pyclass(frozen)]
struct Worker(OfThisProcess<WorkerNode>);

#[pymethods]
impl Worker {
    /// `key_file` is the cluster's. Without one, anyone who can send packets to this process can run commands here, so
    /// that is refused beyond loopback unless `no_key` is set.
    #[new]
    fn new(
        scheduler: &str,
        key_file: Option<PathBuf>,
        no_key: bool,
        executors: u8,
        name: String,
        python: PathBuf,
        listen: Option<&str>,
    ) -> PyResult<Worker> {
        let scheduler = resolve(scheduler)?;
        let file = key_file.as_deref().map(KeyFile::load).transpose();
        let file = file.map_err(value_error)?;
        let here = match listen {
            Some(address) => address
                .parse::<Ipv4Addr>()
                .map_err(|_| value_error(format!("--listen {address} is not an IPv4 address")))?,
            None => client_node::local_address(scheduler)?,
        };
        if let (None, false, Some(outside)) = (
            &file,
            no_key,
            [*scheduler.ip(), here].iter().find(|a| !a.is_loopback()),
        ) {
            return Err(value_error(format!(
                "without a key, anyone who can send packets to {outside} can run commands here; give --key-file, or --no-key to allow it"
            )));
        }
        if !(1..=EXECUTORS_MAX).contains(&executors) {
            return Err(value_error(format!(
                "{executors} executors are not 1 to {EXECUTORS_MAX}; start several workers"
            )));
        }
        let interpreter = Interpreter {
            program: python,
            env: Vec::new(),
        };
        let key_file = key_file.map(std::path::absolute).transpose()?;
        let node = WorkerNode::open(worker_node::Config {
            scheduler,
            address: SocketAddrV4::new(here, 0),
            name,
            executors,
            resources: 1,
            tools: Tools {
                python: Some(interpreter.of_cluster(scheduler, key_file.as_deref())),
                ..Tools::default()
            },
            keys: file.as_ref().map(KeyFile::keys),
            digest: file.as_ref().map_or(Digest::PLAIN, KeyFile::digest),
            timing: ExecutorTiming::default(),
        });
        let node = node.map_err(runtime_error)?;
        Ok(Worker(OfThisProcess::new(node)))
    }

    /// Works for this long. Returns whether the scheduler knows this worker.
    fn run(&self, py: Python<'_>, for_ms: u64) -> PyResult<bool> {
        py.detach(|| {
            self.0.with_mut(|node| {
                let until = Instant::now() + Duration::from_millis(for_ms);
                while Instant::now() < until {
                    node.turn().map_err(runtime_error)?;
                }
                Ok(node.is_registered())
            })
        })?
    }

    /// Accepts no more tasks. Returns whether all have ended.
    fn drain(&self) -> PyResult<bool> {
        self.0.with_mut(|node| {
            node.drain();
            node.is_drained()
        })
    }

    /// Stops running tasks, and notifies the scheduler.
    fn close(&self, py: Python<'_>) {
        let node = self.0.take();
        py.detach(|| {
            if let Some(mut node) = node {
                node.leave();
            }
        });
    }
}

/// Makes the kernel kill this process when its parent exits.
#[pyfunction]
fn end_with_parent() -> PyResult<()> {
    Ok(inband_ground::child::end_with_parent()?)
}

#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Client>()?;
    module.add_class::<LocalCluster>()?;
    module.add_class::<Worker>()?;
    module.add_class::<memory::Lines>()?;
    module.add_function(wrap_pyfunction!(end_with_parent, module)?)
}
