//! The history of a run: client operations and faults, as lines of JSON that `inband-checker` reads.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::mpsc::{sync_channel, Receiver, SyncSender};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use anyhow::{anyhow, Context, Result};
use serde::Serialize;

/// Lines queued for the writer.
const LINES_WAITING_MAX: usize = 10_000;
/// Distinct error texts to count; the rest are counted as "others".
const ERRORS_COUNTED_MAX: usize = 20;

/// Monotonic time since the start of the run, shared by all clients.
#[derive(Debug, Clone, Copy)]
pub struct Clock(Instant);

impl Clock {
    pub fn start() -> Clock {
        Clock(Instant::now())
    }

    pub fn now_ns(self) -> u64 {
        self.0.elapsed().as_nanos() as u64
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Verb {
    Get,
    Set,
    /// SET if the key has no value. Replies with the number of values written.
    Add,
    /// Appends to the value if there is one. Replies with the number of values changed.
    Append,
    Incr,
    /// INCR if there is a value. Replies with an error if the value is not a number.
    #[serde(rename = "INCR-EXISTING")]
    IncrExisting,
    /// Replies with the number of keys deleted.
    Del,
    /// The operation takes effect only if the key holds the value (WATCH).
    Check,
}

/// One part of an operation. All commands of an operation take effect atomically.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Command {
    pub verb: Verb,
    pub key: String,
    /// The value to set or to compare with; `None` is no value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    Ok,
    /// It had no effect and never will.
    Failed,
    /// It may take effect at any time after its call, or never.
    Unknown,
}

#[derive(Debug, Clone, Serialize)]
pub struct Operation {
    pub id: u64,
    /// The client. It gets a new number after each operation of unknown outcome, because that one may still be in
    /// flight.
    pub process: u64,
    pub client: usize,
    /// Operations of different groups have no key in common.
    pub group: String,
    pub call_ns: u64,
    pub return_ns: u64,
    pub outcome: Outcome,
    pub commands: Vec<Command>,
    /// Of a successful operation, one per command; `None` is no value.
    pub replies: Vec<Option<String>>,
    pub replica: String,
    /// How its connection reads: `position` or `log`.
    pub reads: &'static str,
    /// Why it failed, or why its outcome is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// A fault that was injected.
#[derive(Debug, Clone, Serialize)]
pub struct Fault {
    pub fault: &'static str,
    pub what: String,
    pub from_ns: u64,
    pub to_ns: u64,
    /// Why it was not possible, if it was not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// The first line of a history: the settings of the run.
#[derive(Debug, Clone, Serialize)]
pub struct About {
    pub seed: u64,
    pub version: &'static str,
    pub minutes: f64,
    pub faults: Vec<&'static str>,
    pub cluster: String,
    pub clients: usize,
    pub operations_per_s: u64,
}

#[derive(Debug, Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
enum Line {
    About(About),
    Operation(Operation),
    Fault(Fault),
}

/// An operation as the report shows it.
#[derive(Debug, Clone, Copy)]
pub struct Seen {
    pub client: usize,
    pub call_ns: u64,
    pub return_ns: u64,
    pub outcome: Outcome,
}

/// A summary of the history, for the report.
#[derive(Debug, Default)]
pub struct Summary {
    pub operations: Vec<Seen>,
    pub faults: Vec<Fault>,
    /// How often each error occurred.
    pub errors: BTreeMap<String, u64>,
}

impl Summary {
    fn add(&mut self, line: &Line) {
        match line {
            Line::About(_) => {}
            Line::Fault(fault) => self.faults.push(fault.clone()),
            Line::Operation(operation) => {
                self.operations.push(Seen {
                    client: operation.client,
                    call_ns: operation.call_ns,
                    return_ns: operation.return_ns,
                    outcome: operation.outcome,
                });
                if let Some(error) = &operation.error {
                    let is_new = !self.errors.contains_key(error);
                    let text = match error {
                        _ if is_new && self.errors.len() >= ERRORS_COUNTED_MAX => "others",
                        error => error,
                    };
                    *self.errors.entry(text.to_owned()).or_default() += 1;
                }
            }
        }
    }

    pub fn count(&self, outcome: Outcome) -> usize {
        let operations = self.operations.iter();
        operations.filter(|seen| seen.outcome == outcome).count()
    }
}

/// What clients and the nemesis write to. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Recorder {
    pub clock: Clock,
    lines: SyncSender<Line>,
}

impl Recorder {
    pub fn operation(&self, operation: Operation) {
        self.line(Line::Operation(operation));
    }

    pub fn fault(&self, fault: Fault) {
        self.line(Line::Fault(fault));
    }

    fn line(&self, line: Line) {
        // The writer exits early only on an error, which `Writer::finish` returns.
        let _ = self.lines.send(line);
    }
}

/// The thread that writes the history. It exits when the last recorder is dropped.
#[derive(Debug)]
pub struct Writer(JoinHandle<Result<Summary>>);

impl Writer {
    pub fn start(path: &Path, clock: Clock, about: About) -> Result<(Writer, Recorder)> {
        let file = File::create(path).with_context(|| format!("creating {}", path.display()))?;
        let (lines, waiting) = sync_channel(LINES_WAITING_MAX);
        let recorder = Recorder { clock, lines };
        recorder.line(Line::About(about));
        let writer = thread::spawn(move || write_all(BufWriter::new(file), &waiting));
        Ok((Writer(writer), recorder))
    }

    pub fn finish(self) -> Result<Summary> {
        let panicked = |_| Err(anyhow!("the writer of the history panicked"));
        self.0.join().unwrap_or_else(panicked)
    }
}

fn write_all(mut file: BufWriter<File>, lines: &Receiver<Line>) -> Result<Summary> {
    let mut summary = Summary::default();
    for line in lines {
        serde_json::to_writer(&mut file, &line).context("writing the history")?;
        file.write_all(b"\n").context("writing the history")?;
        summary.add(&line);
    }
    file.flush().context("writing the history")?;
    Ok(summary)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_what_the_checker_reads() {
        let operation = Operation {
            id: 3,
            process: 1,
            client: 1,
            group: "single0-1".into(),
            call_ns: 5,
            return_ns: 9,
            outcome: Outcome::Ok,
            commands: vec![
                Command {
                    verb: Verb::Check,
                    key: "a".into(),
                    value: None,
                },
                Command {
                    verb: Verb::Set,
                    key: "a".into(),
                    value: Some("7".into()),
                },
            ],
            replies: vec![None, Some("OK".into())],
            replica: "127.0.0.1:1".into(),
            reads: "log",
            error: None,
        };
        let text = serde_json::to_string(&Line::Operation(operation)).expect("JSON");
        assert_eq!(
            text,
            r#"{"kind":"operation","id":3,"process":1,"client":1,"group":"single0-1","call_ns":5,"return_ns":9,"outcome":"ok","commands":[{"verb":"CHECK","key":"a"},{"verb":"SET","key":"a","value":"7"}],"replies":[null,"OK"],"replica":"127.0.0.1:1","reads":"log"}"#
        );
    }
}
