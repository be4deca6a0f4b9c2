//! `inband_memory.h` on [`inband_memory::line_client::LineClient`]. The functions are documented there.

use std::ffi::{c_char, c_int, c_void, CStr, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, TryLockError};
use std::time::Duration;

use inband_memory::cluster::{config_of, Cluster};
use inband_memory::line_client::{Line, LineClient, LineError};
use inband_memory::lines::LINE_LEN_BYTES;
use inband_memory::memory::{ConnectError, MemoryConfig};

use crate::error::remember_text;

/// The default timeout, selected by 0.
const TIMEOUT_DEFAULT: Duration = Duration::from_secs(10);

/// `enum inband_memory_error`, without `INBAND_MEMORY_OK`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
enum Code {
    Argument = -1,
    Config = -2,
    NoAnswer = -3,
    OutOfRange = -4,
    OutcomeUnknown = -5,
    TimedOut = -6,
    TooMany = -7,
    Busy = -8,
    Forked = -9,
    System = -10,
    Internal = -99,
}

struct Error(Code, String);

type Result<T> = std::result::Result<T, Error>;

impl From<ConnectError> for Error {
    fn from(error: ConnectError) -> Error {
        let code = match error {
            ConnectError::NoSwitches => Code::Config,
            ConnectError::NoAnswer(..) | ConnectError::Full(_) => Code::NoAnswer,
            ConnectError::Io(_) => Code::System,
        };
        Error(code, error.to_string())
    }
}

fn code_of(error: &LineError) -> Code {
    match error {
        LineError::OutOfRange { .. } => Code::OutOfRange,
        LineError::Duplicate(_) => Code::Argument,
        LineError::TooMany { .. } => Code::TooMany,
        LineError::OutcomeUnknown(_) => Code::OutcomeUnknown,
        LineError::TimedOut(_) => Code::TimedOut,
        LineError::Socket(_) => Code::System,
    }
}

impl From<LineError> for Error {
    fn from(error: LineError) -> Error {
        Error(code_of(&error), error.to_string())
    }
}

fn argument<T>(message: impl Into<String>) -> Result<T> {
    Err(Error(Code::Argument, message.into()))
}

/// `struct inband_memory`.
pub struct Connection {
    process: u32,
    inner: Mutex<Inner>,
}

struct Inner {
    client: Option<LineClient>,
    /// The memory that the last `inband_memory_wait` returned pointers to.
    values: Vec<Line>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        let inner = self.inner.get_mut().map(|inner| inner.client.take());
        if self.process != std::process::id() {
            // The session belongs to the parent, which continues to use it.
            if let Ok(Some(client)) = inner {
                client.abandon();
            }
        }
    }
}

/// `struct inband_memory_done`.
#[repr(C)]
pub struct Done {
    request: u64,
    result: c_int,
    values: *const c_void,
    count: usize,
}

/// Calls `body`, converts a panic to an error, and stores the message.
fn guarded<T>(body: impl FnOnce() -> Result<T>) -> std::result::Result<T, Code> {
    let result = catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| {
        let text = crate::panic_text(&*panic);
        Err(Error(
            Code::Internal,
            format!("fault of the library: {text}"),
        ))
    });
    result.map_err(|Error(code, message)| {
        remember_text(&message);
        code
    })
}

fn status(body: impl FnOnce() -> Result<()>) -> c_int {
    guarded(body).map_or_else(|code| code as c_int, |()| 0)
}

/// Calls `use_it` with a connection.
///
/// # Safety
/// `memory` is NULL, or was made by `inband_memory_connect` or `inband_memory_connect_to` and is not freed meanwhile.
unsafe fn with<T>(
    memory: *mut Connection,
    act: impl FnOnce(&mut LineClient, &mut Vec<Line>) -> Result<T>,
) -> Result<T> {
    // SAFETY: the caller's promise. Only shared references are made until it is freed.
    let Some(connection) = (unsafe { memory.as_ref() }) else {
        return argument("memory is NULL; connect with inband_memory_connect");
    };
    if connection.process != std::process::id() {
        let message =
            "this process was forked from the one that made the connection; make another one here";
        return Err(Error(Code::Forked, message.into()));
    }
    let mut inner = match connection.inner.try_lock() {
        Ok(inner) => inner,
        Err(TryLockError::WouldBlock) => {
            let message = "another thread is using this connection; make one for each thread";
            return Err(Error(Code::Busy, message.into()));
        }
        Err(TryLockError::Poisoned(_)) => {
            let message = "this connection has failed before; free it";
            return Err(Error(Code::Internal, message.into()));
        }
    };
    let inner = &mut *inner;
    match &mut inner.client {
        Some(client) => act(client, &mut inner.values),
        None => argument("the connection is closed"),
    }
}

/// Numbers of lines.
///
/// # Safety
/// `lines` is NULL, or `count` numbers there are readable and unchanged during `'a`.
unsafe fn numbers<'a>(lines: *const u64, count: usize) -> Result<&'a [u64]> {
    check_array("lines", lines.is_null(), count, size_of::<u64>())?;
    if count == 0 {
        return Ok(&[]);
    }
    // SAFETY: not NULL, no longer than an object can be, and readable says the caller.
    Ok(unsafe { std::slice::from_raw_parts(lines, count) })
}

fn check_array(name: &str, is_null: bool, count: usize, size_bytes: usize) -> Result<()> {
    if count > 0 && is_null {
        return argument(format!("{name} is NULL, but count is {count}"));
    }
    match count.checked_mul(size_bytes).map(isize::try_from) {
        Some(Ok(_)) => Ok(()),
        _ => argument(format!("count is {count}, which cannot be")),
    }
}

/// Lines with their values.
///
/// # Safety
/// As for [`numbers`]; and `values` is NULL, or that many lines there are readable.
unsafe fn to_write(
    lines: *const u64,
    count: usize,
    values: *const c_void,
) -> Result<Vec<(u64, Line)>> {
    // SAFETY: the caller's promise.
    let lines = unsafe { numbers(lines, count) }?;
    check_array("values", values.is_null(), count, LINE_LEN_BYTES)?;
    if count == 0 {
        return Ok(Vec::new());
    }
    // SAFETY: not NULL, no longer than an object can be, and readable says the caller. Bytes need no alignment.
    let values = unsafe { std::slice::from_raw_parts(values.cast::<Line>(), count) };
    Ok(lines.iter().copied().zip(values.iter().copied()).collect())
}

/// A string from C.
///
/// # Safety
/// `text` is NULL or NUL-terminated, and unchanged during `'a`.
unsafe fn text<'a>(name: &str, text: *const c_char) -> Result<&'a CStr> {
    if text.is_null() {
        return argument(format!("{name} is NULL"));
    }
    // SAFETY: not NULL, and terminated says the caller.
    Ok(unsafe { CStr::from_ptr(text) })
}

fn path_of(text: &CStr) -> &Path {
    Path::new(OsStr::from_bytes(text.to_bytes()))
}

/// Connects and returns the connection to C.
///
/// # Safety
/// `memory` is NULL, or a place to write a pointer to.
unsafe fn connect(
    memory: *mut *mut Connection,
    timeout_ms: c_int,
    config: impl FnOnce() -> Result<MemoryConfig>,
) -> Result<()> {
    if memory.is_null() {
        return argument("memory is NULL; give the address of a pointer to put the connection in");
    }
    // SAFETY: not NULL, and a place to write to says the caller.
    unsafe { memory.write(std::ptr::null_mut()) };
    let timeout = match u64::try_from(timeout_ms) {
        Ok(0) => TIMEOUT_DEFAULT,
        Ok(timeout_ms) => Duration::from_millis(timeout_ms),
        Err(_) => {
            return argument(format!(
                "timeout_ms is {timeout_ms}; give 0 for the default, or more"
            ))
        }
    };
    let mut config = config()?;
    config.deadline = timeout;
    let connection = Box::new(Connection {
        process: std::process::id(),
        inner: Mutex::new(Inner {
            client: Some(LineClient::connect(config)?),
            values: Vec::new(),
        }),
    });
    // SAFETY: as above.
    unsafe { memory.write(Box::into_raw(connection)) };
    Ok(())
}

#[no_mangle]
pub unsafe extern "C" fn inband_memory_connect(
    directory: *const c_char,
    timeout_ms: c_int,
    memory: *mut *mut Connection,
) -> c_int {
    let config = || {
        // SAFETY: the header asks for a terminated string.
        let directory = unsafe { text("directory", directory) }?;
        let cluster = Cluster::load(path_of(directory)).and_then(|cluster| cluster.config());
        cluster.map_err(|error| Error(Code::Config, format!("{error:#}")))
    };
    // SAFETY: the header asks for a place to write a pointer to.
    status(|| unsafe { connect(memory, timeout_ms, config) })
}

#[no_mangle]
pub unsafe extern "C" fn inband_memory_connect_to(
    switches: *const c_char,
    key_file: *const c_char,
    timeout_ms: c_int,
    memory: *mut *mut Connection,
) -> c_int {
    let config = || {
        // SAFETY: the header asks for a terminated string.
        let switches = unsafe { text("switches", switches) }?.to_string_lossy();
        let mut addresses = Vec::new();
        for switch in switches.split(',') {
            match switch.trim().parse() {
                Ok(address) => addresses.push(address),
                Err(_) => {
                    return argument(format!(
                        "switches: {switch:?} is not an address; give ADDRESS:PORT,..."
                    ))
                }
            }
        }
        let key_file: Option<PathBuf> = match key_file.is_null() {
            true => None,
            // SAFETY: not NULL, and the header asks for a terminated string.
            false => Some(path_of(unsafe { text("key_file", key_file) }?).to_owned()),
        };
        let config = config_of(&addresses, key_file.as_deref());
        config.map_err(|error| Error(Code::Config, format!("{error:#}")))
    };
    // SAFETY: the header asks for a place to write a pointer to.
    status(|| unsafe { connect(memory, timeout_ms, config) })
}

#[no_mangle]
pub unsafe extern "C" fn inband_memory_free(memory: *mut Connection) {
    // A failure can be reported only through the last error.
    let _ = status(|| {
        if !memory.is_null() {
            // SAFETY: made by Box::into_raw in connect, and freed once, says the header.
            drop(unsafe { Box::from_raw(memory) });
        }
        Ok(())
    });
}

#[no_mangle]
pub unsafe extern "C" fn inband_memory_lines(memory: *mut Connection) -> u64 {
    // SAFETY: NULL or a connection, says the header.
    guarded(|| unsafe { with(memory, |client, _| Ok(client.lines())) }).unwrap_or(0)
}

#[no_mangle]
pub unsafe extern "C" fn inband_memory_read(
    memory: *mut Connection,
    lines: *const u64,
    count: usize,
    values: *mut c_void,
) -> c_int {
    status(|| {
        // SAFETY: the header asks for that many readable numbers.
        let lines = unsafe { numbers(lines, count) }?;
        check_array("values", values.is_null(), count, LINE_LEN_BYTES)?;
        // SAFETY: NULL or a connection, says the header.
        let read = unsafe { with(memory, |client, _| Ok(client.read_lines(lines)?)) }?;
        if count > 0 {
            let from = read.as_ptr().cast::<u8>();
            // SAFETY: not NULL, as many writable bytes as `count` lines have, says the header, and `count` lines were read.
            unsafe { from.copy_to_nonoverlapping(values.cast(), count * LINE_LEN_BYTES) };
        }
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn inband_memory_write(
    memory: *mut Connection,
    lines: *const u64,
    count: usize,
    values: *const c_void,
) -> c_int {
    status(|| {
        // SAFETY: the header asks for that many readable numbers and lines.
        let values = unsafe { to_write(lines, count, values) }?;
        // SAFETY: NULL or a connection, says the header.
        unsafe { with(memory, |client, _| Ok(client.write_lines(&values)?)) }
    })
}

/// Stores the number of a request.
///
/// # Safety
/// `to` is NULL, or a place to write a number to.
unsafe fn put(to: *mut u64, begin: impl FnOnce() -> Result<u64>) -> Result<()> {
    if to.is_null() {
        return argument("request is NULL; give the address of a number");
    }
    let number = begin()?;
    // SAFETY: not NULL, and a place to write to says the caller.
    unsafe { to.write(number) };
    Ok(())
}

#[no_mangle]
pub unsafe extern "C" fn inband_memory_begin_read(
    memory: *mut Connection,
    lines: *const u64,
    count: usize,
    request: *mut u64,
) -> c_int {
    status(|| {
        // SAFETY: the header asks for that many readable numbers.
        let lines = unsafe { numbers(lines, count) }?;
        // SAFETY: NULL or a connection, says the header.
        let begin = || unsafe { with(memory, |client, _| Ok(client.begin_read(lines)?)) };
        // SAFETY: the header asks for a place to write a number to.
        unsafe { put(request, begin) }
    })
}

#[no_mangle]
pub unsafe extern "C" fn inband_memory_begin_write(
    memory: *mut Connection,
    lines: *const u64,
    count: usize,
    values: *const c_void,
    request: *mut u64,
) -> c_int {
    status(|| {
        // SAFETY: the header asks for that many readable numbers and lines.
        let values = unsafe { to_write(lines, count, values) }?;
        // SAFETY: NULL or a connection, says the header.
        let begin = || unsafe { with(memory, |client, _| Ok(client.begin_write(&values)?)) };
        // SAFETY: the header asks for a place to write a number to.
        unsafe { put(request, begin) }
    })
}

#[no_mangle]
pub unsafe extern "C" fn inband_memory_wait(
    memory: *mut Connection,
    timeout_ms: c_int,
    done: *mut Done,
) -> c_int {
    status(|| {
        if done.is_null() {
            return argument("done is NULL; give the address of a struct inband_memory_done");
        }
        let mut ended = Done {
            request: 0,
            result: 0,
            values: std::ptr::null(),
            count: 0,
        };
        // SAFETY: not NULL, and the header asks for a place to write it to.
        unsafe { done.write(Done { ..ended }) };
        let timeout = match u64::try_from(timeout_ms) {
            Ok(timeout_ms) => Some(Duration::from_millis(timeout_ms)),
            Err(_) if timeout_ms == -1 => None,
            Err(_) => {
                return argument(format!(
                    "timeout_ms is {timeout_ms}; give -1 for no limit, or 0 and more"
                ))
            }
        };
        let wait = |client: &mut LineClient, values: &mut Vec<Line>| {
            let Some(request) = client.wait(timeout)? else {
                return Ok(());
            };
            ended.request = request.request;
            match request.result {
                Ok(read) => {
                    *values = read;
                    if !values.is_empty() {
                        (ended.values, ended.count) = (values.as_ptr().cast(), values.len());
                    }
                }
                Err(error) => {
                    remember_text(&error.to_string());
                    ended.result = code_of(&error) as c_int;
                }
            }
            Ok(())
        };
        // SAFETY: NULL or a connection, says the header.
        unsafe { with(memory, wait) }?;
        // SAFETY: as above.
        unsafe { done.write(ended) };
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = include_str!("../inband_memory.h");

    fn in_header(name: &str) -> i64 {
        let after = |line: &'static str| {
            let line = line.trim().trim_start_matches("#define ");
            let rest = line.strip_prefix(name)?.trim_start_matches([' ', '=']);
            rest.trim_end_matches(',').parse().ok()
        };
        let mut lines = HEADER.lines();
        lines
            .find_map(after)
            .unwrap_or_else(|| panic!("inband_memory.h has no number {name}"))
    }

    #[test]
    fn the_header_has_the_same_numbers() {
        let limit = inband_memory::line_client::LINES_UNDER_WAY_MAX as i64;
        assert_eq!(in_header("INBAND_MEMORY_LINES_UNDER_WAY_MAX"), limit);
        assert_eq!(
            in_header("INBAND_MEMORY_LINE_LEN_BYTES"),
            LINE_LEN_BYTES as i64
        );
        let timeout_ms = TIMEOUT_DEFAULT.as_millis() as i64;
        assert_eq!(in_header("INBAND_MEMORY_TIMEOUT_DEFAULT_MS"), timeout_ms);
        let errors = [
            ("ARGUMENT", Code::Argument),
            ("CONFIG", Code::Config),
            ("NO_ANSWER", Code::NoAnswer),
            ("OUT_OF_RANGE", Code::OutOfRange),
            ("OUTCOME_UNKNOWN", Code::OutcomeUnknown),
            ("TIMED_OUT", Code::TimedOut),
            ("TOO_MANY", Code::TooMany),
            ("BUSY", Code::Busy),
            ("FORKED", Code::Forked),
            ("SYSTEM", Code::System),
            ("INTERNAL", Code::Internal),
        ];
        for (name, code) in errors {
            let number = in_header(&format!("INBAND_MEMORY_ERR_{name}"));
            assert_eq!(number, code as i64, "{name}");
        }
        let is_error = |l: &&str| l.trim().starts_with("INBAND_MEMORY_ERR_") && l.contains(" = ");
        assert_eq!(HEADER.lines().filter(is_error).count(), errors.len());
    }
}
