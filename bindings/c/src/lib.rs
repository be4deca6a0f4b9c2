//! The C library of Inband: `inband.h` over [`inband_paxos::library::Library`], and `inband_memory.h` in [`memory`].
//!
//! This file is the boundary: it checks the arguments from C, catches panics, and converts errors to codes. The
//! functions' behaviour is documented only in `inband.h`, so that there cannot be two different descriptions.
#![allow(unsafe_code)] // The FFI boundary; each use has its reason.
#![allow(missing_docs, clippy::missing_safety_doc)] // inband.h is the documentation.

mod abi;
mod context;
mod error;
mod memory;

use std::ffi::{c_char, c_int, c_void, CStr, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::path::Path;
use std::time::Duration;

use inband_paxos::config::Dataplane;

use abi::{Callback, Callbacks, Code, DeliverFn, Delivery, FailedFn, Failure, StateNeededFn};
use context::{Call, Context};
use error::Error;

/// Calls `body` and converts a panic to an error.
fn guarded<T>(body: impl FnOnce() -> Result<T, Error>) -> Result<T, Code> {
    // State that a panic left inconsistent is behind a lock, which the panic has poisoned.
    let result = catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| {
        let text = panic_text(&*panic);
        Err(Error::new(
            Code::Internal,
            format!("fault of the library: {text}"),
        ))
    });
    result.map_err(|error| {
        error::remember(&error);
        error.code
    })
}

/// The message of a panic.
fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("no message")
}

/// Like [`guarded`], for functions that return `INBAND_OK` or a code.
fn status(body: impl FnOnce() -> Result<(), Error>) -> c_int {
    guarded(body).map_or_else(|code| code as c_int, |()| 0)
}

/// Like [`guarded`], for functions that return a count or a code.
fn count(body: impl FnOnce() -> Result<usize, Error>) -> c_int {
    guarded(body).map_or_else(
        |code| code as c_int,
        |n| c_int::try_from(n).unwrap_or(c_int::MAX),
    )
}

fn argument<T>(message: &str) -> Result<T, Error> {
    Err(Error::new(Code::Argument, message))
}

/// The context behind a pointer from C.
///
/// # Safety
/// The pointer is NULL, or was returned by [`inband_create`] and is not freed during `'a`.
unsafe fn context<'a>(ctx: *mut Context) -> Result<&'a Context, Error> {
    // SAFETY: the caller's promise. Only shared references are ever made, until it is freed.
    match unsafe { ctx.as_ref() } {
        Some(context) => Ok(context),
        None => argument("ctx is NULL; create it with inband_create"),
    }
}

/// Bytes passed by C.
///
/// # Safety
/// `start` is NULL, or `len_bytes` bytes there are readable and unchanged during `'a`.
unsafe fn bytes<'a>(name: &str, start: *const c_void, len_bytes: usize) -> Result<&'a [u8], Error> {
    if len_bytes == 0 {
        return Ok(&[]);
    }
    if start.is_null() {
        return argument(&format!(
            "{name} is NULL, but its length is {len_bytes} bytes"
        ));
    }
    if isize::try_from(len_bytes).is_err() {
        return argument(&format!(
            "{name}: its length of {len_bytes} bytes cannot be"
        ));
    }
    // SAFETY: the caller's promise; not NULL and no longer than an object can be.
    Ok(unsafe { std::slice::from_raw_parts(start.cast(), len_bytes) })
}

fn dataplane_choice(number: c_int) -> Result<Option<Dataplane>, Error> {
    Ok(match number {
        0 => None,
        1 => Some(Dataplane::Auto),
        2 => Some(Dataplane::Xdp),
        3 => Some(Dataplane::XdpGeneric),
        4 => Some(Dataplane::Udp),
        other => {
            return argument(&format!(
                "dataplane is {other}; see enum inband_dataplane, 0 to 4"
            ))
        }
    })
}

/// Calls the application.
fn call(ctx: *mut Context, callbacks: &Callbacks, call: &Call, value: &[u8]) {
    match call {
        Call::Deliver {
            instance,
            ticket,
            kind,
        } => {
            let Some(Callback { function, user }) = callbacks.deliver else {
                return;
            };
            let delivery = Delivery {
                instance: *instance,
                ticket: *ticket,
                value: value.as_ptr().cast(),
                value_len_bytes: value.len(),
                kind: *kind as c_int,
            };
            // SAFETY: the application set this function for this; all pointers are valid meanwhile.
            unsafe { function(ctx, &delivery, user) }
        }
        Call::Failed {
            ticket,
            instance,
            outcome,
            message,
        } => {
            let Some(Callback { function, user }) = callbacks.failed else {
                return;
            };
            let failure = Failure {
                ticket: *ticket,
                instance: *instance,
                outcome: *outcome as c_int,
                message: message.as_ptr(),
            };
            // SAFETY: as above.
            unsafe { function(ctx, &failure, user) }
        }
        Call::StateNeeded => {
            let Some(Callback { function, user }) = callbacks.state_needed else {
                return;
            };
            // SAFETY: as above.
            unsafe { function(ctx, user) }
        }
    }
}

#[no_mangle]
pub unsafe extern "C" fn inband_create(
    config_path: *const c_char,
    dataplane: c_int,
    saved: *const c_void,
    saved_len_bytes: usize,
    ctx: *mut *mut Context,
) -> c_int {
    status(|| {
        if ctx.is_null() {
            return argument("ctx is NULL; give the address of a pointer to put the context in");
        }
        // SAFETY: not NULL, and the header asks for a place to write a pointer to.
        unsafe { ctx.write(std::ptr::null_mut()) };
        if config_path.is_null() {
            return argument("config_path is NULL; give the path of the host's configuration");
        }
        // SAFETY: not NULL, and the header asks for a terminated string.
        let config_path = unsafe { CStr::from_ptr(config_path) };
        let dataplane = dataplane_choice(dataplane)?;
        if saved.is_null() && saved_len_bytes > 0 {
            return argument("saved is NULL, but saved_len_bytes is not 0");
        }
        // SAFETY: the header asks for that many readable bytes.
        let saved_bytes = unsafe { bytes("saved", saved, saved_len_bytes) }?;
        let saved = (!saved.is_null()).then_some(saved_bytes);
        let path = Path::new(OsStr::from_bytes(config_path.to_bytes()));
        let context = Box::new(Context::open(path, dataplane, saved)?);
        // SAFETY: as above.
        unsafe { ctx.write(Box::into_raw(context)) };
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn inband_free(ctx: *mut Context) {
    // A failure can be reported only through the last error.
    let _ = status(|| {
        // SAFETY: NULL or a context, says the header.
        let Ok(context) = (unsafe { context(ctx) }) else {
            return Ok(());
        };
        if context.is_running() {
            // Freeing it now would make the run use freed memory; a leak is the lesser evil.
            return Err(Error::new(Code::Busy, "a running context cannot be freed"));
        }
        // SAFETY: made by Box::into_raw in inband_create, and freed once, says the header.
        drop(unsafe { Box::from_raw(ctx) });
        Ok(())
    });
}

#[no_mangle]
pub unsafe extern "C" fn inband_on_deliver(
    ctx: *mut Context,
    deliver: Option<DeliverFn>,
    user: *mut c_void,
) -> c_int {
    status(|| {
        // SAFETY: NULL or a context, says the header.
        let context = unsafe { context(ctx) }?;
        let callback = deliver.map(|function| Callback { function, user });
        context.set_callbacks(|callbacks| callbacks.deliver = callback)
    })
}

#[no_mangle]
pub unsafe extern "C" fn inband_on_failed(
    ctx: *mut Context,
    failed: Option<FailedFn>,
    user: *mut c_void,
) -> c_int {
    status(|| {
        // SAFETY: NULL or a context, says the header.
        let context = unsafe { context(ctx) }?;
        let callback = failed.map(|function| Callback { function, user });
        context.set_callbacks(|callbacks| callbacks.failed = callback)
    })
}

#[no_mangle]
pub unsafe extern "C" fn inband_on_state_needed(
    ctx: *mut Context,
    state_needed: Option<StateNeededFn>,
    user: *mut c_void,
) -> c_int {
    status(|| {
        // SAFETY: NULL or a context, says the header.
        let context = unsafe { context(ctx) }?;
        let callback = state_needed.map(|function| Callback { function, user });
        context.set_callbacks(|callbacks| callbacks.state_needed = callback)
    })
}

#[no_mangle]
pub unsafe extern "C" fn inband_submit(
    ctx: *mut Context,
    value: *const c_void,
    value_len_bytes: usize,
    ticket: *mut u64,
) -> c_int {
    status(|| {
        // SAFETY: NULL or a context, says the header.
        let context = unsafe { context(ctx) }?;
        // SAFETY: the header asks for that many readable bytes.
        let value = unsafe { bytes("value", value, value_len_bytes) }?;
        let number = context.submit(value)?;
        if !ticket.is_null() {
            // SAFETY: not NULL, and the header asks for a place to write a number to.
            unsafe { ticket.write(number) };
        }
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn inband_room(ctx: *mut Context) -> c_int {
    // SAFETY: NULL or a context, says the header.
    count(|| unsafe { context(ctx) }?.room())
}

#[no_mangle]
pub unsafe extern "C" fn inband_recover(
    ctx: *mut Context,
    instance: u64,
    noop: *const c_void,
    noop_len_bytes: usize,
) -> c_int {
    status(|| {
        // SAFETY: NULL or a context, says the header.
        let context = unsafe { context(ctx) }?;
        if instance == 0 {
            return argument("instance is 0; instances count from 1");
        }
        // SAFETY: the header asks for that many readable bytes.
        let noop = unsafe { bytes("noop", noop, noop_len_bytes) }?;
        context.recover(instance, noop)
    })
}

#[no_mangle]
pub unsafe extern "C" fn inband_run(ctx: *mut Context) -> c_int {
    status(|| {
        // SAFETY: NULL or a context, says the header.
        let context = unsafe { context(ctx) }?;
        context.run(&mut |callbacks, next, value| call(ctx, callbacks, next, value))
    })
}

#[no_mangle]
pub unsafe extern "C" fn inband_run_once(ctx: *mut Context, timeout_ms: c_int) -> c_int {
    count(|| {
        // SAFETY: NULL or a context, says the header.
        let context = unsafe { context(ctx) }?;
        let timeout = match u64::try_from(timeout_ms) {
            Ok(timeout_ms) => Some(Duration::from_millis(timeout_ms)),
            Err(_) if timeout_ms == -1 => None,
            Err(_) => {
                return argument(&format!(
                    "timeout_ms is {timeout_ms}; give -1 for no limit, or 0 and more"
                ))
            }
        };
        context.run_once(timeout, &mut |callbacks, next, value| {
            call(ctx, callbacks, next, value)
        })
    })
}

#[no_mangle]
pub unsafe extern "C" fn inband_stop(ctx: *mut Context) {
    // SAFETY: NULL or a context, says the header.
    let Some(context) = (unsafe { ctx.as_ref() }) else {
        return;
    };
    // SAFETY: it always points to this thread's errno.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above. A signal handler must leave errno as it found it.
    let before = unsafe { errno.read() };
    context.stop();
    // SAFETY: as above.
    unsafe { errno.write(before) };
}

#[no_mangle]
pub unsafe extern "C" fn inband_save(
    ctx: *mut Context,
    buffer: *mut c_void,
    capacity_bytes: usize,
) -> i64 {
    let saved = guarded(|| {
        // SAFETY: NULL or a context, says the header.
        let context = unsafe { context(ctx) }?;
        if buffer.is_null() && capacity_bytes > 0 {
            return argument("buffer is NULL, but capacity_bytes is not 0");
        }
        let saved = context.save()?;
        if saved.len() <= capacity_bytes {
            // SAFETY: not NULL, as a position is never empty, and the header asks for as many
            // writable bytes as the capacity says. Memory of ours and of the caller's are apart.
            unsafe { std::ptr::copy_nonoverlapping(saved.as_ptr(), buffer.cast(), saved.len()) };
        }
        Ok(saved.len())
    });
    saved.map_or_else(|code| code as i64, |len_bytes| len_bytes as i64)
}

#[no_mangle]
pub unsafe extern "C" fn inband_restore(
    ctx: *mut Context,
    saved: *const c_void,
    saved_len_bytes: usize,
) -> c_int {
    status(|| {
        // SAFETY: NULL or a context, says the header.
        let context = unsafe { context(ctx) }?;
        if saved.is_null() {
            return argument("saved is NULL; give what inband_save made");
        }
        // SAFETY: the header asks for that many readable bytes.
        let saved = unsafe { bytes("saved", saved, saved_len_bytes) }?;
        context.restore(saved)
    })
}

#[no_mangle]
pub unsafe extern "C" fn inband_applied(ctx: *mut Context) -> u64 {
    // SAFETY: NULL or a context, says the header.
    guarded(|| unsafe { context(ctx) }?.applied()).unwrap_or(0)
}

#[no_mangle]
pub unsafe extern "C" fn inband_dataplane_used(ctx: *mut Context) -> *const c_char {
    // SAFETY: NULL or a context, says the header.
    unsafe { ctx.as_ref() }.map_or(c"".as_ptr(), |context| context.dataplane_used().as_ptr())
}

#[no_mangle]
pub extern "C" fn inband_last_error() -> *const c_char {
    error::last()
}

#[no_mangle]
pub extern "C" fn inband_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}
