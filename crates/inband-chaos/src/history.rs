//! What clients did and what was done to the cluster, as lines of JSON that `inband-checker` reads.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::mpsc::{sync_channel, Receiver, SyncSender};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use anyhow::{anyhow, Context, Result};
use serde::Serialize;

/// Lines that may wait to be written.
const LINES_WAITING_MAX: usize = 10_000;
/// Different error texts that are counted.
const ERRORS_COUNTED_MAX: usize = 20;

/// Time since the begin of the run. Monotonic, and one for all clients.
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
    /// As a SET, if there is no value. Says how many values it has written.
    Add,
    /// At the end of a value, if there is one. Says how many it has changed.
    Append,
    Incr,
    /// As INCR, if there is a value. Says so if that is not a number.
    #[serde(rename = "INCR-EXISTING")]
    IncrExisting,
    /// Says how many keys there were.
    Del,
    /// The operation has an effect only if the key holds the value (WATCH).
    Check,
}

/// One part of an operation. Several in one operation take effect at once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Command {
    pub verb: Verb,
    pub key: String,
    /// What is set, or compared with; `None` is no value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    Ok,
    /// It certainly had and will have no effect.
    Failed,
    /// It may take effect at any time after its call, or never.
    Unknown,
}

#[derive(Debug, Clone, Serialize)]
pub struct Operation {
    pub id: u64,
    /// A client; another number after each operation of unknown outcome, which may still be under way.
    pub process: u64,
    pub client: usize,
    /// Operations of different groups have no key in common.
    pub group: String,
    pub call_ns: u64,
    pub return_ns: u64,
    pub outcome: Outcome,
    pub commands: Vec<Command>,
    /// Of an operation that ended well, one a command; `None` is no value.
    pub replies: Vec<Option<String>>,
    pub replica: String,
    /// How its connection reads: `position` or `log`.
    pub reads: &'static str,
    /// Why it failed, or why nobody knows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Something that was done to the cluster.
#[derive(Debug, Clone, Serialize)]
pub struct Fault {
    pub fault: &'static str,
    pub what: String,
    pub from_ns: u64,
    pub to_ns: u64,
    /// How it went, if there is something to say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// The first line: what this is a history of.
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

/// What was written, in short.
#[derive(Debug, Default)]
pub struct Summary {
    pub operations: Vec<Seen>,
    pub faults: Vec<Fault>,
    /// How often what was answered instead of a result.
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

/// Where clients and the nemesis write. Cheap to clone.
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
        // The writer ends early only on an error, which it returns to whoever waits for it.
        let _ = self.lines.send(line);
    }
}

/// The thread that writes. It ends when the last recorder is dropped.
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
