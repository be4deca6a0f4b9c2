//! Catches panics of a run.

use std::panic::{catch_unwind, AssertUnwindSafe};

/// Runs the closure. Returns the panic's message if it panics.
pub(crate) fn panic_of(run: impl FnOnce()) -> Option<String> {
    let panic = catch_unwind(AssertUnwindSafe(run)).err()?;
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    Some(text.unwrap_or("no text").to_owned())
}
