//! What is printed for people. Nobody may be left to read it (`inband up --detach | head -2`): a cluster does not end for
//! that, and a start goes on. The standard macros would panic; those here take their place in every program that has
//! `#[macro_use] extern crate inband_host;` at its root.

use std::fmt::Arguments;
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};

/// Something could not be printed although somebody may want to read it: a file on a full disk.
static IS_LOST: AtomicBool = AtomicBool::new(false);

/// As the standard one, but without a panic.
#[macro_export]
macro_rules! print {
    ($($arg:tt)*) => { $crate::output::out(format_args!($($arg)*)) };
}

/// As the standard one, but without a panic.
#[macro_export]
macro_rules! println {
    () => { $crate::output::out(format_args!("\n")) };
    ($($arg:tt)*) => { $crate::output::out(format_args!("{}\n", format_args!($($arg)*))) };
}

/// As the standard one, but without a panic.
#[macro_export]
macro_rules! eprint {
    ($($arg:tt)*) => { $crate::output::error(format_args!($($arg)*)) };
}

/// As the standard one, but without a panic.
#[macro_export]
macro_rules! eprintln {
    ($($arg:tt)*) => { $crate::output::error(format_args!("{}\n", format_args!($($arg)*))) };
}

/// To standard output.
pub fn out(text: Arguments<'_>) {
    // Everything of a text at once: other threads print, too.
    let written = io::stdout().lock().write_fmt(text);
    let failed = written.err();
    let Some(failure) = failed.filter(|e| e.kind() != io::ErrorKind::BrokenPipe) else {
        return;
    };
    if !IS_LOST.swap(true, Ordering::Relaxed) {
        error(format_args!(
            "inband: writing to standard output: {failure}\n"
        ));
    }
}

/// To standard error; what cannot be written there can be told nobody.
pub fn error(text: Arguments<'_>) {
    let _ = io::stderr().lock().write_fmt(text);
}

/// Was everything printed, as far as somebody reads it?
pub fn is_complete() -> bool {
    !IS_LOST.load(Ordering::Relaxed)
}

/// A path as a word of a shell's command line.
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
