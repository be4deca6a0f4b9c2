//! A Python interpreter that runs pickled calls, one after another: `python -m inband.runner`, with the id of the
//! process that it is to end with.
//!
//! In both directions its pipe carries frames: length as u32, little endian, and that many bytes. An answer begins with
//! a byte: 0 for a result, 1 for an exception, plus 128 if the interpreter ends after it; the rest is a pickle.

use std::io::{self, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use nix::sys::signal::Signal;

use super::process::{status_of, Stop};
use super::Interpreter;
use crate::limits::WORK_LEN_BYTES_MAX;

/// Flag in the first byte of an answer: the interpreter accepts no more calls.
const LAST: u8 = 128;
/// How long an interpreter may take to end once its pipe is closed.
const END_LIMIT: Duration = Duration::from_secs(1);

/// The rest of an error.
const WHAT_TO_DO: &str =
    "what it printed is on the worker's standard error (its log, if `inband up falcon` started it); correct the task, or \
     submit it again";

/// Says how an interpreter ended.
fn in_words(status: ExitStatus) -> String {
    match status.signal().map(Signal::try_from) {
        Some(Ok(Signal::SIGKILL)) => {
            "killed by SIGKILL, as the kernel does for lack of memory".to_owned()
        }
        Some(Ok(signal)) => format!("killed by {signal}"),
        Some(Err(_)) | None => format!("status {}", status_of(status)),
    }
}

pub struct Python {
    child: Child,
    calls: Option<ChildStdin>,
    answers: ChildStdout,
}

/// Returns an error that is not an exception of the task: text instead of a pickle, with another first byte.
pub fn as_error(text: &str) -> Vec<u8> {
    let mut error = vec![2];
    error.extend_from_slice(text.as_bytes());
    error
}

/// A pickled result, or an error: see [`Python::call`].
type Answer = Result<Vec<u8>, Vec<u8>>;

impl Python {
    /// Starts an interpreter. It loads what it needs while the first call is in flight. It is not forked: this may be a
    /// Python process with libraries that end their threads at every fork, and deadlock if two happen at once.
    pub fn start(interpreter: &Interpreter) -> io::Result<Python> {
        let env = interpreter.env.iter();
        let mut command = Command::new(&interpreter.program);
        command
            .args(["-m", "inband.runner"])
            .arg(std::process::id().to_string())
            .envs(env.map(|(name, value)| (name, value)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .process_group(0);
        let mut child = command.spawn()?;
        let (calls, answers) = (child.stdin.take(), child.stdout.take());
        Ok(Python {
            calls,
            answers: answers.expect("it was asked for"),
            child,
        })
    }

    /// Runs a call. Returns the interpreter if it can be used again. An error's first byte is 1 if the rest is the
    /// pickled exception, 2 if it is text.
    pub fn call(mut self, pickled: &[u8], stop: &Stop) -> (Answer, Option<Python>) {
        stop.watch(&self.child);
        match self.exchange(pickled) {
            Ok((answer, is_last)) => {
                let was_killed = stop.unwatch();
                if is_last && !was_killed {
                    // Its end takes a while, and nothing needs to wait for it.
                    thread::spawn(move || drop(self));
                    return (answer, None);
                }
                (answer, (!was_killed).then_some(self))
            }
            Err(error) => {
                // No effect if it has ended by itself.
                stop.stop();
                let how = match stop.reap(&mut self.child) {
                    Ok(status) => in_words(status),
                    Err(error) => error.to_string(),
                };
                // It has closed its pipe: that says no more.
                let why = match error.kind() {
                    io::ErrorKind::UnexpectedEof | io::ErrorKind::BrokenPipe => String::new(),
                    _ => format!(": {error}"),
                };
                let said = format!(
                    "the Python interpreter that ran this task ended ({how}){why}; {WHAT_TO_DO}"
                );
                (Err(as_error(&said)), None)
            }
        }
    }

    /// Sends a call. Returns the answer, and whether it is the last one.
    fn exchange(&mut self, pickled: &[u8]) -> io::Result<(Answer, bool)> {
        let calls = self.calls.as_mut().expect("it is open until the end");
        let len_bytes = u32::try_from(pickled.len()).map_err(io::Error::other)?;
        calls.write_all(&len_bytes.to_le_bytes())?;
        calls.write_all(pickled)?;
        calls.flush()?;
        let mut len_bytes = [0; 4];
        self.answers.read_exact(&mut len_bytes)?;
        let len_bytes = u32::from_le_bytes(len_bytes) as usize;
        if !(1..=WORK_LEN_BYTES_MAX + 1).contains(&len_bytes) {
            return Err(io::Error::other(format!(
                "an answer of {len_bytes} bytes is not one of 1 to {WORK_LEN_BYTES_MAX}"
            )));
        }
        let mut answer = vec![0; len_bytes];
        self.answers.read_exact(&mut answer)?;
        let is_last = answer[0] & LAST != 0;
        answer[0] &= !LAST;
        let answer = match answer[0] {
            0 => Ok(answer.split_off(1)),
            _ => Err(answer),
        };
        Ok((answer, is_last))
    }
}

impl Drop for Python {
    /// The interpreter ends by itself once its pipe is closed.
    fn drop(&mut self) {
        self.calls = None;
        let id = self.child.id();
        let (ended, has_ended) = channel();
        thread::scope(|scope| {
            let child = &mut self.child;
            scope.spawn(move || {
                let _ = child.wait();
                let _ = ended.send(());
            });
            if has_ended.recv_timeout(END_LIMIT).is_err() {
                let group = nix::unistd::Pid::from_raw(id as i32);
                let _ = nix::sys::signal::killpg(group, nix::sys::signal::Signal::SIGKILL);
            }
        });
    }
}
