//! Runs programs.

use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Stdio};
use std::thread;

use inband_ground::child::end_with_thread;

use super::process::{status_of, Stop};
use crate::limits::OUTPUT_LEN_BYTES_MAX;
use crate::work::{Command, CommandOutput};

/// Runs a program to its end. The error says what is wrong with the task.
pub fn run(command: &Command, stop: &Stop) -> Result<CommandOutput, String> {
    let (program, arguments) = match &command.argv[..] {
        [] => return Err("a command without a program; give at least its name".into()),
        [program, arguments @ ..] => (program, arguments),
    };
    let mut process = std::process::Command::new(program);
    process
        .args(arguments)
        .envs(command.env.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0);
    if let Some(dir) = &command.dir {
        process.current_dir(dir);
    }
    // The runner stops the program before its thread ends; this is for when the worker is killed.
    let child = end_with_thread(&mut process).spawn();
    let mut child = child.map_err(|error| format!("cannot run {program}: {error}"))?;
    stop.watch(&child);
    let output = communicate(&mut child, &command.stdin, stop);
    output.map_err(|error| format!("running {program}: {error}"))
}

/// Writes its stdin, reads its output, and waits for its end.
fn communicate(child: &mut Child, stdin: &[u8], stop: &Stop) -> io::Result<CommandOutput> {
    let input = child.stdin.take();
    let (out, err) = (child.stdout.take(), child.stderr.take());
    thread::scope(|scope| {
        scope.spawn(|| feed(input, stdin));
        let stdout = scope.spawn(|| read_up_to_limit(out));
        let stderr = scope.spawn(|| read_up_to_limit(err));
        let read = |reader: thread::ScopedJoinHandle<'_, (Vec<u8>, bool)>| {
            reader.join().expect("reading does not panic")
        };
        // Children that it left running may still write, and can be stopped until it is reaped.
        let ((stdout, is_cut), (stderr, is_cut_too)) = (read(stdout), read(stderr));
        let status = stop.reap(child)?;
        Ok(CommandOutput {
            status: status_of(status),
            stdout,
            stderr,
            is_cut: is_cut || is_cut_too,
        })
    })
}

fn feed(input: Option<ChildStdin>, bytes: &[u8]) {
    if let Some(mut input) = input {
        // Fails if the program does not read its stdin, which is no error.
        let _ = input.write_all(bytes);
    }
}

/// Reads everything, so that the program does not block, but keeps only up to the limit.
fn read_up_to_limit(from: Option<impl Read>) -> (Vec<u8>, bool) {
    let Some(mut from) = from else {
        return (Vec::new(), false);
    };
    let mut kept = Vec::new();
    let limit = OUTPUT_LEN_BYTES_MAX as u64;
    // After an error, what was read so far is kept.
    let _ = (&mut from).take(limit).read_to_end(&mut kept);
    let more = io::copy(&mut from, &mut io::sink()).unwrap_or_default();
    (kept, more > 0)
}
