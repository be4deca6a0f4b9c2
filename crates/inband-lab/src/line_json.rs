//! One JSON object a line over a unix socket: a request, then its answer.
//!
//! Used between supervisor and hosts, and between the command line and the supervisor.

use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::Serialize;

/// Longest request or answer; a status of many hosts with all counters is far below.
pub const LINE_MAX_BYTES: u64 = 4 << 20;
/// How soon a server notices that it is to end.
const STOP_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Why a request got no answer.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// Nobody listens.
    #[error("nothing answers at {path}: {source}")]
    Unreachable {
        /// The socket.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The other side did not answer in time, or went away.
    #[error("no answer from {path} within {limit_ms} ms: {source}")]
    NoAnswer {
        /// The socket.
        path: PathBuf,
        /// How long was waited.
        limit_ms: u128,
        /// What the system said.
        source: io::Error,
    },
    /// The answer is of another shape: another version, most likely.
    #[error("{path} answered something else: {source}; do both sides run the same version?")]
    NotUnderstood {
        /// The socket.
        path: PathBuf,
        /// Where the text is wrong.
        source: serde_json::Error,
    },
}

/// Send one request and wait for its answer.
pub fn call<Q: Serialize, R: DeserializeOwned>(
    path: &Path,
    request: &Q,
    limit: Duration,
) -> Result<R, CallError> {
    let stream = UnixStream::connect(path).map_err(|source| CallError::Unreachable {
        path: path.into(),
        source,
    })?;
    let line = exchange(stream, request, limit).map_err(|source| CallError::NoAnswer {
        path: path.into(),
        limit_ms: limit.as_millis(),
        source,
    })?;
    serde_json::from_str(&line).map_err(|source| CallError::NotUnderstood {
        path: path.into(),
        source,
    })
}

fn exchange<Q: Serialize>(
    mut stream: UnixStream,
    request: &Q,
    limit: Duration,
) -> io::Result<String> {
    stream.set_read_timeout(Some(limit))?;
    stream.set_write_timeout(Some(limit))?;
    write_line(&mut stream, request)?;
    let mut line = String::new();
    let mut reader = BufReader::new(io::Read::take(&stream, LINE_MAX_BYTES));
    reader.read_line(&mut line)?;
    if line.ends_with('\n') {
        Ok(line)
    } else {
        Err(io::Error::new(
            io::ErrorKind::UnexpectedEof,
            "the connection was closed",
        ))
    }
}

fn write_line<T: Serialize>(stream: &mut UnixStream, value: &T) -> io::Result<()> {
    let mut text = serde_json::to_vec(value)?;
    text.push(b'\n');
    stream.write_all(&text)
}

/// Answers requests until dropped.
#[derive(Debug)]
pub struct Server {
    path: PathBuf,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Listen at a path and answer with `handle`, each connection on a thread of its own. A socket
    /// that a crashed process left is replaced: the caller has made sure that it is the only one.
    /// `explain` makes the answer to a request that is not understood.
    pub fn start<Q, R>(
        path: &Path,
        handle: impl Fn(Q) -> R + Send + Sync + 'static,
        explain: fn(String) -> R,
    ) -> io::Result<Self>
    where
        Q: DeserializeOwned + 'static,
        R: Serialize + 'static,
    {
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(path)?;
        listener.set_nonblocking(true)?;
        let stop = Arc::new(AtomicBool::new(false));
        let thread = {
            let stop = Arc::clone(&stop);
            let handle = Arc::new(handle);
            std::thread::Builder::new()
                .name("control".into())
                .spawn(move || {
                    let mut connections: Vec<JoinHandle<()>> = Vec::new();
                    while !stop.load(Ordering::Acquire) {
                        connections.retain(|c| !c.is_finished());
                        let Ok((stream, _)) = listener.accept() else {
                            std::thread::sleep(STOP_POLL_INTERVAL);
                            continue;
                        };
                        let (stop, handle) = (Arc::clone(&stop), Arc::clone(&handle));
                        let connection =
                            move || drop(serve_connection(stream, &stop, &*handle, explain));
                        connections.push(std::thread::spawn(connection));
                    }
                    // An answer under way (to "down", say) is still delivered.
                    connections.into_iter().for_each(|c| drop(c.join()));
                })?
        };
        Ok(Self {
            path: path.into(),
            stop,
            thread: Some(thread),
        })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        let _ = fs::remove_file(&self.path);
    }
}

fn serve_connection<Q: DeserializeOwned, R: Serialize>(
    stream: UnixStream,
    stop: &AtomicBool,
    handle: &impl Fn(Q) -> R,
    explain: fn(String) -> R,
) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(STOP_POLL_INTERVAL))?;
    let mut writer = stream.try_clone()?;
    let mut reader = BufReader::new(stream);
    let mut line = Vec::new();
    loop {
        match reader.read_until(b'\n', &mut line) {
            Ok(0) => return Ok(()),
            Ok(_) if line.ends_with(b"\n") => {
                let answer = match serde_json::from_slice(&line) {
                    Ok(request) => handle(request),
                    Err(error) => explain(format!("request not understood: {error}")),
                };
                write_line(&mut writer, &answer)?;
                line.clear();
            }
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
            // Half a line, or none within the interval: what was read stays in `line`.
            Ok(_) | Err(_) => {}
        }
        if stop.load(Ordering::Acquire) || line.len() as u64 > LINE_MAX_BYTES {
            return Ok(());
        }
    }
}
