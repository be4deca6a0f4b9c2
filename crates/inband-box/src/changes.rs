//! Membership changes: an operator asks for one, and waits until it is done.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::mpsc::{channel, Sender};
use std::time::Duration;

use anyhow::Result;
use inband_host::line_json::call;
use serde::{Deserialize, Serialize};

use crate::membership::{Change, ChangeError, Membership};
use crate::node::Quorum;
use crate::process::Asked;
use crate::promise::{Nanos, MS};
use crate::role::Record;

/// After this time the leader reports what a change is waiting for.
const TIMEOUT_NS: Nanos = 5_000 * MS;
/// Must be longer than that.
const CALL_TIMEOUT: Duration = Duration::from_secs(15);

/// The outcome of a change.
pub type Changed = Result<Membership, Failed>;

/// Why a change is not done, or not done yet.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[error("{message}")]
pub struct Failed {
    pub message: String,
    /// The change is not done and never will be; asking again, perhaps at another node, may help.
    pub may_ask_again: bool,
}

impl From<ChangeError> for Failed {
    fn from(error: ChangeError) -> Failed {
        Failed {
            message: error.to_string(),
            may_ask_again: matches!(
                error,
                ChangeError::NotLeading { .. } | ChangeError::NotEstablished | ChangeError::Full
            ),
        }
    }
}

fn for_good(message: String) -> Failed {
    Failed {
        message,
        may_ask_again: false,
    }
}

/// Asks a node, which must lead, and waits until the change is committed. The inner error says whether it may still be.
///
/// # Errors
/// If the node does not answer.
pub fn change_at(socket: &Path, change: Change) -> Result<Changed> {
    let answer: Result<Changed, String> = call(socket, &Some(change), CALL_TIMEOUT)?;
    answer.map_err(anyhow::Error::msg)
}

/// Asks the node of this process, from any thread.
pub struct Changer {
    pub(crate) asked: Sender<Asked>,
    /// A byte here wakes the node's thread.
    pub(crate) waker: UnixStream,
}

impl Changer {
    /// As [`change_at`].
    pub fn change(&self, change: Change) -> Changed {
        let (to, answer) = channel();
        let ended = |_| for_good("the node has ended".to_owned());
        self.asked
            .send(Asked::Change(change, to))
            .map_err(|_| ended(()))?;
        // If the pipe is full the node wakes up as well.
        let _ = (&self.waker).write(&[0]);
        answer.recv().map_err(|_| ended(()))?
    }
}

struct Waiting {
    zxid: u64,
    membership: Membership,
    until: Nanos,
    to: Sender<Changed>,
}

/// The changes that wait at this node.
#[derive(Default)]
pub(crate) struct Changes(Vec<Waiting>);

impl Changes {
    /// Records that a change has begun, or why it has not.
    pub fn begun(
        &mut self,
        begun: Result<(u64, Membership), ChangeError>,
        to: Sender<Changed>,
        now: Nanos,
    ) {
        match begun {
            Ok((zxid, membership)) => self.0.push(Waiting {
                zxid,
                membership,
                until: now + TIMEOUT_NS,
                to,
            }),
            Err(error) => {
                let _ = to.send(Err(error.into()));
            }
        }
    }

    /// Records that a record was applied.
    pub fn on_applied(&mut self, record: &Record) {
        self.0.retain(|waiting| {
            let is_it = record.zxid == waiting.zxid;
            if is_it {
                let is_done = Membership::of(record) == Some(waiting.membership);
                let _ = waiting.to.send(match is_done {
                    true => Ok(waiting.membership),
                    false => Err(Failed {
                        message: "another node leads by now, and the change is not done: ask again"
                            .to_owned(),
                        may_ask_again: true,
                    }),
                });
            }
            !is_it
        });
    }

    /// Ends changes that have waited too long. `lacking`: the nodes that a record still needs.
    pub fn tell_late(&mut self, now: Nanos, lacking: impl Fn(u64) -> Option<(Vec<u8>, Quorum)>) {
        self.0.retain(|waiting| {
            if now < waiting.until {
                return true;
            }
            let _ = waiting
                .to
                .send(Err(for_good(late_in_words(lacking(waiting.zxid)))));
            false
        });
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

fn late_in_words(lacking: Option<(Vec<u8>, Quorum)>) -> String {
    let seconds = TIMEOUT_NS / 1000 / MS;
    let Some((nodes, quorum)) = lacking else {
        return format!(
            "the node does not lead any more, and the change is not done after {seconds} s; it may still be: look at `inband status`"
        );
    };
    let nodes: Vec<String> = nodes.iter().map(|node| format!("node/{node}")).collect();
    let nodes = nodes.join(", ");
    let why = match quorum {
        Quorum::All => "the quorum of all needs every node for it, as for each write: start them again, or let a majority decide with `inband quorum majority --force`, and writes that wait are answered without them",
        Quorum::Majority => "a majority is needed: start them again",
    };
    format!("not done after {seconds} s: {nodes} did not get it, and {why}; it is done as soon as they have it")
}
