//! Lines of replicated memory. The calls are documented in `python/inband/memory.py`.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use inband_memory::cluster::{config_of, Cluster};
use inband_memory::line_client::{Done, Line, LineClient, LineError};
use inband_memory::lines::LINE_LEN_BYTES;
use inband_memory::memory::ConnectError;
use pyo3::exceptions::{PyConnectionError, PyIndexError, PyOSError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// The result of a request: its number, the lines read, and, if it failed, whether its outcome is unknown, its lines,
/// and the message.
type Ended<'py> = (
    u64,
    Vec<Bound<'py, PyBytes>>,
    Option<(bool, Vec<u64>, String)>,
);

#[pyclass(frozen)]
pub struct Lines {
    process: u32,
    client: Mutex<Option<LineClient>>,
}

fn failed(error: LineError) -> PyErr {
    match error {
        LineError::OutOfRange { .. } => PyIndexError::new_err(error.to_string()),
        LineError::Duplicate(_) | LineError::TooMany { .. } => {
            PyValueError::new_err(error.to_string())
        }
        LineError::Socket(_) => PyOSError::new_err(error.to_string()),
        // Only results of requests; beginning a request never returns these.
        LineError::OutcomeUnknown(_) | LineError::TimedOut(_) => {
            PyRuntimeError::new_err(error.to_string())
        }
    }
}

impl Lines {
    /// Calls `use_it` without the GIL. Other threads that use this object wait.
    fn with<R: Send>(
        &self,
        py: Python<'_>,
        use_it: impl FnOnce(&mut LineClient) -> Result<R, LineError> + Send,
    ) -> PyResult<R> {
        if self.process != std::process::id() {
            return Err(PyRuntimeError::new_err(
                "this process was forked from the one that connected; connect here",
            ));
        }
        py.detach(|| {
            let mut client = self.client.lock().unwrap_or_else(PoisonError::into_inner);
            match client.as_mut() {
                Some(client) => use_it(client).map_err(failed),
                None => Err(PyRuntimeError::new_err("it is closed")),
            }
        })
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        let client = self
            .client
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        if self.process != std::process::id() {
            // The session belongs to the parent.
            if let Some(client) = client.take() {
                client.abandon();
            }
        }
    }
}

#[pymethods]
impl Lines {
    /// Connects to the cluster in a directory, or to these switches.
    #[new]
    fn new(
        py: Python<'_>,
        directory: Option<PathBuf>,
        switches: Vec<String>,
        key_file: Option<PathBuf>,
        timeout_ms: u64,
    ) -> PyResult<Lines> {
        let config = match directory {
            Some(directory) => Cluster::load(&directory).and_then(|cluster| cluster.config()),
            None => {
                let parse = |text: &String| {
                    text.parse().map_err(|_| {
                        PyValueError::new_err(format!(
                            "{text:?} is not an address; give ADDRESS:PORT"
                        ))
                    })
                };
                let addresses = switches.iter().map(parse).collect::<PyResult<Vec<_>>>()?;
                config_of(&addresses, key_file.as_deref().map(Path::new))
            }
        };
        let mut config = config.map_err(|error| PyValueError::new_err(format!("{error:#}")))?;
        config.deadline = Duration::from_millis(timeout_ms);
        let connected = py.detach(|| LineClient::connect(config));
        let client = connected.map_err(|error| match error {
            ConnectError::NoSwitches => PyValueError::new_err(error.to_string()),
            error => PyConnectionError::new_err(error.to_string()),
        })?;
        Ok(Lines {
            process: std::process::id(),
            client: Mutex::new(Some(client)),
        })
    }

    /// The number of lines.
    fn count(&self, py: Python<'_>) -> PyResult<u64> {
        self.with(py, |client| Ok(client.lines()))
    }

    /// Sends a read.
    fn begin_read(&self, py: Python<'_>, lines: Vec<u64>) -> PyResult<u64> {
        self.with(py, |client| client.begin_read(&lines))
    }

    /// Sends a write.
    fn begin_write(&self, py: Python<'_>, values: Vec<(u64, Vec<u8>)>) -> PyResult<u64> {
        let padded = |(line, bytes): (u64, Vec<u8>)| -> PyResult<(u64, Line)> {
            let mut value = [0; LINE_LEN_BYTES];
            match value.get_mut(..bytes.len()) {
                Some(start) => start.copy_from_slice(&bytes),
                None => {
                    return Err(PyValueError::new_err(format!(
                        "line {line}: {} bytes; a line has {LINE_LEN_BYTES}",
                        bytes.len()
                    )))
                }
            }
            Ok((line, value))
        };
        let values = values
            .into_iter()
            .map(padded)
            .collect::<PyResult<Vec<_>>>()?;
        self.with(py, |client| client.begin_write(&values))
    }

    /// The next request that ends within this time.
    fn wait<'py>(&self, py: Python<'py>, timeout_ms: u64) -> PyResult<Option<Ended<'py>>> {
        let timeout = Duration::from_millis(timeout_ms);
        let done = self.with(py, |client| client.wait(Some(timeout)))?;
        Ok(done.map(|Done { request, result }| match result {
            Ok(lines) => {
                let lines = lines.iter().map(|line| PyBytes::new(py, line));
                (request, lines.collect(), None)
            }
            Err(error) => {
                let text = error.to_string();
                let failed = match error {
                    LineError::OutcomeUnknown(lines) => (true, lines, text),
                    LineError::TimedOut(lines) => (false, lines, text),
                    _ => (false, Vec::new(), text),
                };
                (request, Vec::new(), Some(failed))
            }
        }))
    }

    /// Closes the session.
    fn close(&self, py: Python<'_>) {
        if self.process == std::process::id() {
            py.detach(|| {
                let mut client = self.client.lock().unwrap_or_else(PoisonError::into_inner);
                drop(client.take());
            });
        }
    }
}
