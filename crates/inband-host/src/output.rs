//! Output for users. Its reader may be gone (`inband up --detach | head -2`): that does not end a cluster or abort a
//! start. The standard macros would panic; the ones here replace them in every program that has `#[macro_use] extern
//! crate inband_host;` at its root.

use std::fmt::Arguments;
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};

/// Set if something could not be printed although there may be a reader: a file on a full disk.
static IS_LOST: AtomicBool = AtomicBool::new(false);

/// Like the standard macro, but does not panic.
#[macro_export]
macro_rules! print {
    ($($arg:tt)*) => { $crate::output::out(format_args!($($arg)*)) };
}

/// Like the standard macro, but does not panic.
#[macro_export]
macro_rules! println {
    () => { $crate::output::out(format_args!("\n")) };
    ($($arg:tt)*) => { $crate::output::out(format_args!("{}\n", format_args!($($arg)*))) };
}

/// Like the standard macro, but does not panic.
#[macro_export]
macro_rules! eprint {
    ($($arg:tt)*) => { $crate::output::error(format_args!($($arg)*)) };
}

/// Like the standard macro, but does not panic.
#[macro_export]
macro_rules! eprintln {
    ($($arg:tt)*) => { $crate::output::error(format_args!("{}\n", format_args!($($arg)*))) };
}

/// Prints to standard output.
pub fn out(text: Arguments<'_>) {
    // Write the whole text under one lock: other threads print too.
    is_good(io::stdout().lock().write_fmt(text));
}

/// Returns whether something was written to standard output, or nobody reads it. The first failure is printed.
pub(crate) fn is_good(written: io::Result<()>) -> bool {
    let failed = written.err();
    let Some(failure) = failed.filter(|e| e.kind() != io::ErrorKind::BrokenPipe) else {
        return true;
    };
    if !IS_LOST.swap(true, Ordering::Relaxed) {
        error(format_args!(
            "inband: writing to standard output: {failure}\n"
        ));
    }
    false
}

/// Prints to standard error. Errors are ignored: there is nowhere to report them.
pub fn error(text: Arguments<'_>) {
    let _ = io::stderr().lock().write_fmt(text);
}

/// Returns whether everything was printed, except for closed outputs.
pub fn is_complete() -> bool {
    !IS_LOST.load(Ordering::Relaxed)
}

/// Returns a path, quoted as a word of a shell command line.
pub fn quoted(path: &std::path::Path) -> String {
    let text = path.display().to_string();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+:,@%".contains(c);
    match !text.is_empty() && text.chars().all(is_plain) {
        true => text,
        false => format!("'{}'", text.replace('\'', "'\\''")),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn paths_are_one_word_of_a_shell() {
        assert_eq!(quoted(Path::new("/var/lib/a-1.b")), "/var/lib/a-1.b");
        assert_eq!(quoted(Path::new("my data")), "'my data'");
        assert_eq!(quoted(Path::new("it's")), "'it'\\''s'");
        assert_eq!(quoted(Path::new("$HOME")), "'$HOME'");
    }
}
