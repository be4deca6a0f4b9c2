//! The requests of a connection: which of them are answered at once, which wait, and which go to a lane.

use std::time::Instant;

use inband_host::config::ClientAddress;
use inband_resp::reply::Reply;
use inband_resp::request::Args;
use xxhash_rust::xxh3::xxh3_64;

use super::{Alone, Connection, Mode, Next, OwnedArgs, Waiting};
use crate::client_sessions;
use crate::command::{Command, Route, SessionStamp};
use crate::limit_hits::{LimitHit, LimitHits};
use crate::limits::{
    COMMAND_LEN_BYTES_MAX, KEY_LEN_BYTES_MAX, REQUEST_KEYS_MAX, STORED_VALUE_LEN_BYTES_MAX,
};
use crate::local;
use crate::parse::{parse_at, ReadMode, Request};
use crate::partition::slot;
use crate::replica::over_channel_limit;
use crate::script_cache::{Scripts, NO_SCRIPT};
use crate::table::{self, CommandId};

/// `INBAND.SESSION id seq` as declared on a connection.
#[derive(Debug, Clone, Copy)]
pub(super) struct SessionCursor {
    id: u64,
    low: u64,
    next_seq: u64,
}

impl SessionCursor {
    fn stamp(&mut self) -> SessionStamp {
        let seq = self.next_seq;
        self.next_seq += 1;
        SessionStamp {
            id: self.id,
            seq,
            low: self.low,
        }
    }
}

/// What a connection needs to know to accept requests.
#[derive(Debug, Clone, Copy)]
pub struct Intake<'a> {
    pub partitions: usize,
    /// If set, commands for the logs get this reply instead of being executed.
    pub refusal: Option<&'a Reply>,
    /// If set, commands that need disk space get this reply instead.
    pub write_refusal: Option<&'a Reply>,
    /// Commands that free disk space are exempt from `write_refusal`.
    pub has_room_to_delete: bool,
    /// The read mode of connections that have not chosen one.
    pub reads: ReadMode,
    pub now: Instant,
    /// Counters of refusals.
    pub hits: &'a LimitHits,
    /// The scripts that this replica knows.
    pub scripts: &'a Scripts,
    /// Where commands on keys are redirected.
    pub redirection: Option<&'a ClientAddress>,
}

impl Intake<'_> {
    pub(super) fn refusal_of(&self, command: &Command<'_>) -> Option<&Reply> {
        let is_refused = match self.has_room_to_delete {
            true => command.needs_room(),
            false => !command.only_reads(),
        };
        let write_refusal = self.write_refusal.filter(|_| is_refused);
        write_refusal.inspect(|_| self.hits.count(LimitHit::Disk));
        self.refusal.or(write_refusal)
    }
}

impl Connection {
    /// Processes the request just parsed; `None` if it must wait.
    pub(super) fn take_request(&mut self, intake: &Intake<'_>) -> Option<Next> {
        // Taken out so that the arguments do not borrow the rest of the connection.
        let input = std::mem::take(&mut self.input);
        let parser = std::mem::take(&mut self.parser);
        let next = self.take(parser.args(&input), intake);
        if !self.is_input_over || !self.is_closing {
            (self.input, self.parser) = (input, parser);
        }
        next
    }

    fn take(&mut self, args: Args<'_>, intake: &Intake<'_>) -> Option<Next> {
        let command = table::place(args.get(0));
        if !self.is_held {
            self.asked = self.latencies.ask(command);
        }
        if !self.is_trusted && !local::is_for_everybody(args.get(0)) {
            return Some(self.answered(Reply::error("NOAUTH Authentication required.")));
        }
        if self.alone.is_some() {
            return None;
        }
        if let Some(refused) = self.refusal_of_subscriber(args) {
            return Some(self.answered(refused));
        }
        let mut request = parse_at(command, args);
        let text;
        if let Ok(Request::EvalSha { sha1, command }) = request {
            text = intake.scripts.text(sha1);
            match &text {
                Some(text) => request = Ok(Request::Replicated(command.with_text(text))),
                // Earlier requests may load the script.
                None if !self.replies.is_empty() => return None,
                None => {}
            }
        }
        if let Ok(Request::Replicated(Command::Sample { sample, .. })) = &mut request {
            let of_request = [self.id, self.requests].map(u64::to_be_bytes);
            sample.seed = xxh3_64(&of_request.concat());
        }
        if let Ok(Request::Replicated(command)) = &request {
            if let Some(moved) = self.redirection_of(command, intake) {
                self.spoil_transaction();
                return Some(self.answered(moved));
            }
        }
        if self.transaction.is_some() {
            if let Some(next) = self.take_queued(args, request.clone(), intake) {
                return Some(next);
            }
        }
        match request {
            Err(reply) => Some(self.answered(reply)),
            Ok(Request::Local(spec)) => self.replies.is_empty().then(|| {
                if spec.id == CommandId::Quit {
                    // Requests pipelined after a QUIT are not executed.
                    self.end_input();
                    self.is_closing = true;
                }
                Next::Local(spec.id, OwnedArgs::new(args))
            }),
            Ok(Request::UseSession { id, seq }) => {
                self.session = Some(SessionCursor {
                    id,
                    low: seq,
                    next_seq: seq,
                });
                Some(self.answered(Reply::Ok))
            }
            Ok(Request::UseReads(mode)) => {
                self.reads = Some(mode);
                Some(self.answered(Reply::Ok))
            }
            Ok(Request::Scan) => self.scan(args, intake),
            Ok(Request::Export) => match intake.refusal {
                Some(refusal) => Some(self.answered(refusal.clone())),
                None => self.replies.is_empty().then_some(Next::Export),
            },
            Ok(Request::Multi) => Some(self.multi()),
            Ok(Request::Exec) => self.exec(intake),
            Ok(Request::Discard) => Some(self.discard()),
            Ok(Request::Unwatch) => Some(self.unwatch()),
            Ok(Request::Replicated(Command::SessionNew { .. })) => {
                let owner = client_sessions::owner_of(self.peer.ip());
                self.take_command(&Command::SessionNew { owner }, intake)
            }
            Ok(Request::EvalSha { command, .. }) => {
                let refusal = intake.refusal.cloned();
                Some(self.refused(&command, refusal.unwrap_or(Reply::error(NO_SCRIPT))))
            }
            Ok(Request::Replicated(command)) => match command.waits_for() {
                // In a session, each attempt would be a command of its own.
                Some(kind) if self.session.is_none() => self.take_pop(&command, kind, intake),
                _ => self.take_command(&command, intake),
            },
        }
    }

    /// Returns the redirection of a command, if it is to be executed elsewhere. Commands of sessions are not redirected:
    /// each has its number on this connection.
    fn redirection_of(&self, command: &Command<'_>, intake: &Intake<'_>) -> Option<Reply> {
        let to = intake.redirection?;
        let stays = self.session.is_some()
            || matches!(
                command,
                Command::Publish { .. } | Command::SessionNew { .. }
            )
            || (self.is_readonly && command.only_reads());
        if stays {
            return None;
        }
        let mut first = None;
        command.each_key(&mut |key| {
            first.get_or_insert_with(|| slot(key));
        });
        first.map(|slot| Reply::error(format!("MOVED {slot} {}:{}", to.host, to.port)))
    }

    /// The command's number in the client's session.
    fn stamp(&mut self, command: &Command<'_>) -> Option<SessionStamp> {
        match command {
            Command::SessionNew { .. } | Command::Watch(_) => None,
            _ => self.session.as_mut().map(SessionCursor::stamp),
        }
    }

    /// Answers a command that is not executed. It has a number in the session nevertheless: another replica, or this one
    /// later, may execute it, and the commands behind it must have the same numbers then.
    pub(super) fn refused(&mut self, command: &Command<'_>, reply: Reply) -> Next {
        self.stamp(command);
        self.answered(reply)
    }

    /// Queues a command in its lane; `None` if it must wait.
    pub(super) fn take_command(
        &mut self,
        command: &Command<'_>,
        intake: &Intake<'_>,
    ) -> Option<Next> {
        if let Some(refusal) = intake.refusal_of(command) {
            return Some(self.refused(command, refusal.clone()));
        }
        let (lane, mode) = match command.route(intake.partitions) {
            _ if matches!(command, Command::Watch(_)) && !self.replies.is_empty() => return None,
            Route::Partition(partition) => (partition, Mode::Partitions),
            Route::Several => (intake.partitions, Mode::Several),
        };
        if !self.replies.is_empty() && self.mode != mode {
            return None;
        }
        if let Some(reply) = over_limit(command) {
            intake.hits.count(LimitHit::Request);
            return Some(self.refused(command, reply));
        }
        let stamp = self.stamp(command);
        let encoded = &mut self.lanes[lane].encoded;
        let (before, memory_before_bytes) = (encoded.len(), encoded.memory_bytes());
        command.encode(stamp, encoded);
        let len_bytes = encoded.len() - before;
        encoded.grown();
        self.lanes_memory_bytes += encoded.memory_bytes() - memory_before_bytes;
        if len_bytes > COMMAND_LEN_BYTES_MAX {
            encoded.truncate(before);
            intake.hits.count(LimitHit::Request);
            return Some(self.answered(Reply::error(format!(
                "ERR command of {len_bytes} bytes is over the limit of {COMMAND_LEN_BYTES_MAX} \
                 bytes; use shorter or fewer keys and values"
            ))));
        }
        self.mode = mode;
        if let Command::Watch(keys) = command {
            self.mode = Mode::Alone;
            let keys = keys.iter().map(<[u8]>::to_vec).collect();
            self.alone = Some((Alone::Watch(keys), None));
        }
        // A session stores the replies to its commands, and `WATCH` makes the log assign versions.
        let is_read = mode == Mode::Partitions
            && stamp.is_none()
            && command.only_reads()
            && !matches!(command, Command::Watch(_))
            && self.reads.unwrap_or(intake.reads) == ReadMode::Position;
        self.encoded_len_bytes += len_bytes;
        let number = self.number();
        let lane_of = &mut self.lanes[lane];
        lane_of.waiting_writes += usize::from(!is_read);
        lane_of.waiting.push_back(Waiting {
            number,
            len_bytes,
            received: intake.now,
            is_read,
            replies_with_value: command.replies_with_value(),
        });
        Some(Next::Command(lane))
    }

    /// `SCAN`; `None` if it must wait.
    fn scan(&mut self, args: Args<'_>, intake: &Intake<'_>) -> Option<Next> {
        if !self.replies.is_empty() {
            return None;
        }
        if let Some(refusal) = intake.refusal {
            return Some(self.answered(refusal.clone()));
        }
        self.number();
        self.mode = Mode::Alone;
        self.alone = Some((Alone::Scan, None));
        Some(Next::Scan(OwnedArgs::new(args)))
    }
}

/// The error for a command with a key or value that is too long.
pub(crate) fn over_limit(command: &Command<'_>) -> Option<Reply> {
    if let Command::Publish { channel, .. } = command {
        return over_channel_limit(channel.len());
    }
    let (key_len_bytes, value_len_bytes) = command.stored_len_bytes();
    let over = |what, len_bytes, limit| {
        (len_bytes > limit).then(|| {
            Reply::error(format!(
                "ERR {what} of {len_bytes} bytes is over the limit of {limit} bytes"
            ))
        })
    };
    over("key", key_len_bytes, KEY_LEN_BYTES_MAX)
        .or_else(|| over("value", value_len_bytes, STORED_VALUE_LEN_BYTES_MAX))
        .or_else(|| too_many_keys(command.keys()))
}

/// Returns the error for a command or transaction that names too many keys.
pub(super) fn too_many_keys(keys: usize) -> Option<Reply> {
    (keys > REQUEST_KEYS_MAX).then(|| {
        Reply::error(format!(
            "ERR {keys} keys are over the limit of {REQUEST_KEYS_MAX} keys; use several commands"
        ))
    })
}
