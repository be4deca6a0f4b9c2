//! `MULTI` to `EXEC`: the queued commands, and the versions of the watched keys.
//!
//! `WATCH` reads the versions of its keys through the log, and `EXEC` carries them back: they are compared when the
//! transaction is executed. A record's version changes with every write, so this matches what Redis calls a touched
//! key, with one difference: a key that did not exist counts as unchanged if it does not exist at `EXEC`, even if it
//! existed in between.

use bytes::BytesMut;
use inband_resp::reply::Reply;
use inband_resp::request::Args;

use super::requests::{over_limit, too_many_keys};
use super::{Alone, Connection, Intake, Mode, Next, OwnedArgs};
use crate::command::{Command, Queue, Watched};
use crate::limit_hits::LimitHit;
use crate::limits::{
    COMMAND_LEN_BYTES_MAX, TRANSACTION_COMMANDS_MAX, WATCHED_BYTES_MAX, WATCHED_KEYS_MAX,
};
use crate::parse::Request;
use crate::script_cache::NO_SCRIPT;
use crate::table::{self, CommandId};

#[derive(Debug)]
pub enum Item {
    /// It goes through the log.
    Replicated,
    /// This replica answers it.
    Local(CommandId, OwnedArgs),
    /// It has been answered.
    Answered(Reply),
}

/// The commands queued since `MULTI`.
#[derive(Debug, Default)]
pub(super) struct Transaction {
    items: Vec<Item>,
    /// How many go through the log.
    commands: usize,
    encoded: BytesMut,
    /// Memory of those that do not.
    local_bytes: usize,
    /// Keys of all commands that go through the log.
    keys: usize,
    /// A command could not be queued: `EXEC` will fail.
    has_errors: bool,
}

impl Transaction {
    /// Total length, including the commands that this replica answers.
    fn len_bytes(&self) -> usize {
        self.encoded.len() + self.local_bytes
    }

    /// Approximate memory.
    pub(super) fn memory_bytes(&self) -> usize {
        self.len_bytes() + self.items.len() * size_of::<Item>()
    }
}

/// The watched keys, with their versions.
#[derive(Debug, Default)]
pub(super) struct Watches {
    keys: Vec<Vec<u8>>,
    encoded: BytesMut,
}

impl Watches {
    /// Approximate memory.
    pub(super) fn memory_bytes(&self) -> usize {
        2 * self.encoded.len()
    }

    /// Watches `keys`, whose versions are in `versions`, the log's reply. Returns the reply to the client.
    pub(super) fn add(&mut self, keys: Vec<Vec<u8>>, versions: Reply) -> Reply {
        let Reply::Array(versions) = versions else {
            return versions;
        };
        if self.keys.len() + keys.len() > WATCHED_KEYS_MAX {
            return Reply::error(format!(
                "ERR more than {WATCHED_KEYS_MAX} keys would be watched; UNWATCH or watch fewer"
            ));
        }
        let len_bytes = self.encoded.len() + keys.iter().map(Vec::len).sum::<usize>();
        if len_bytes > WATCHED_BYTES_MAX {
            return Reply::error(format!(
                "ERR more than {WATCHED_BYTES_MAX} bytes of keys would be watched; UNWATCH or watch \
                 shorter ones"
            ));
        }
        for (key, version) in keys.into_iter().zip(versions) {
            // A key that is already watched keeps its earlier version.
            if let (Reply::Integer(version), false) = (version, self.keys.contains(&key)) {
                Watched::push(&mut self.encoded, &key, version as u64);
                self.keys.push(key);
            }
        }
        Reply::Ok
    }
}

fn refuse_in_transaction(name: &str) -> Reply {
    Reply::error(format!("ERR {name} is not allowed inside a transaction"))
}

impl Connection {
    pub(super) fn multi(&mut self) -> Next {
        self.transaction = Some(Transaction::default());
        self.answered(Reply::Ok)
    }

    /// A command could not be queued.
    pub(super) fn spoil_transaction(&mut self) {
        if let Some(transaction) = &mut self.transaction {
            transaction.has_errors = true;
        }
    }

    pub(super) fn discard(&mut self) -> Next {
        if self.transaction.take().is_none() {
            return self.answered(Reply::error("ERR DISCARD without MULTI"));
        }
        self.watches = Watches::default();
        self.answered(Reply::Ok)
    }

    pub(super) fn unwatch(&mut self) -> Next {
        self.watches = Watches::default();
        self.answered(Reply::Ok)
    }

    /// Queues a parsed request in a transaction; `None` if it is one of those that end the transaction.
    pub(super) fn take_queued(
        &mut self,
        args: Args<'_>,
        request: Result<Request<'_>, Reply>,
        intake: &Intake<'_>,
    ) -> Option<Next> {
        let spec = table::find(args.get(0));
        // As in Redis, these errors are detected when the command is queued, all others when it is executed.
        let is_callable = spec.is_some_and(|spec| spec.takes(args.len()));
        let transaction = self.transaction.as_mut()?;
        let item = match request {
            Ok(Request::Exec | Request::Discard) => return None,
            Err(Reply::Error(why)) if spec.is_some_and(|spec| spec.id == CommandId::Exec) => {
                (self.transaction, self.watches) = (None, Watches::default());
                let why = why.trim_start_matches("ERR ");
                let text = format!("EXECABORT Transaction discarded because of: {why}");
                return Some(self.answered(Reply::error(text)));
            }
            Ok(Request::Multi) => {
                let reply = Reply::error("ERR MULTI calls can not be nested");
                return Some(self.answered(reply));
            }
            Ok(Request::Replicated(Command::Watch(_))) => {
                let reply = Reply::error("ERR WATCH inside MULTI is not allowed");
                return Some(self.answered(reply));
            }
            Ok(Request::Local(spec)) if matches!(spec.id, CommandId::Quit | CommandId::Reset) => {
                return None;
            }
            Err(reply) if !is_callable => Err(reply),
            Err(reply) => Ok(Item::Answered(reply)),
            Ok(Request::Unwatch) => Ok(Item::Answered(Reply::Ok)),
            Ok(Request::UseSession { .. } | Request::Replicated(Command::SessionNew { .. })) => {
                Err(refuse_in_transaction("INBAND.SESSION"))
            }
            Ok(Request::UseReads(_)) => Err(refuse_in_transaction("INBAND.READS")),
            Ok(Request::Scan) => Err(refuse_in_transaction("SCAN")),
            Ok(Request::Export) => Err(refuse_in_transaction("INBAND.EXPORT")),
            Ok(Request::Local(spec)) if spec.id.is_subscription() => {
                Err(refuse_in_transaction(spec.name))
            }
            Ok(Request::Local(spec)) => {
                let args = OwnedArgs::new(args);
                transaction.local_bytes += args.memory_bytes();
                Ok(Item::Local(spec.id, args))
            }
            Ok(Request::EvalSha { .. }) => Err(Reply::error(NO_SCRIPT)),
            Ok(Request::Replicated(command)) => match intake
                .refusal_of(&command)
                .cloned()
                .or_else(|| over_limit(&command))
            {
                Some(reply) => Err(reply),
                None => {
                    transaction.commands += 1;
                    transaction.keys += command.keys();
                    Queue::push(&mut transaction.encoded, &command);
                    Ok(Item::Replicated)
                }
            },
        };
        let limit = COMMAND_LEN_BYTES_MAX;
        let item = match item {
            Ok(_) if transaction.items.len() >= TRANSACTION_COMMANDS_MAX => Err(Reply::error(
                format!("ERR transaction is over the limit of {TRANSACTION_COMMANDS_MAX} commands"),
            )),
            Ok(_) if transaction.len_bytes() > limit => Err(Reply::error(format!(
                "ERR transaction of {} bytes is over the limit of {limit} bytes",
                transaction.len_bytes()
            ))),
            Ok(item) => too_many_keys(transaction.keys).map_or(Ok(item), Err),
            item => item,
        };
        Some(match item {
            Ok(item) => {
                transaction.items.push(item);
                self.answered(Reply::Status("QUEUED".into()))
            }
            Err(reply) => {
                if is_callable {
                    intake.hits.count(LimitHit::Request);
                }
                // It will not be executed, so its memory is freed.
                *transaction = Transaction {
                    has_errors: true,
                    ..Transaction::default()
                };
                self.answered(reply)
            }
        })
    }

    /// `EXEC`; `None` if it must wait.
    pub(super) fn exec(&mut self, intake: &Intake<'_>) -> Option<Next> {
        let Some(transaction) = &self.transaction else {
            return Some(self.answered(Reply::error("ERR EXEC without MULTI")));
        };
        let only_replicated = transaction
            .items
            .iter()
            .all(|item| matches!(item, Item::Replicated));
        let goes_alone = !only_replicated || transaction.commands == 0;
        if goes_alone && !transaction.has_errors && !self.replies.is_empty() {
            return None;
        }
        let transaction = self.transaction.take().unwrap_or_default();
        let watches = std::mem::take(&mut self.watches);
        if transaction.has_errors {
            let text = "EXECABORT Transaction discarded because of previous errors.";
            let nothing = Command::Exec {
                watched: Watched::new(0, &[]),
                commands: Queue::new(0, &[]),
            };
            return Some(self.refused(&nothing, Reply::error(text)));
        }
        if transaction.commands == 0 && watches.keys.is_empty() {
            return Some(Next::LocalTransaction(transaction.items));
        }
        let command = Command::Exec {
            watched: Watched::new(watches.keys.len(), &watches.encoded),
            commands: Queue::new(transaction.commands, &transaction.encoded),
        };
        let next = self.take_command(&command, intake);
        match next {
            None => {
                (self.transaction, self.watches) = (Some(transaction), watches);
            }
            Some(Next::Command(_)) if !only_replicated => {
                self.mode = Mode::Alone;
                self.alone = Some((Alone::Exec(transaction.items), None));
            }
            Some(_) => {}
        }
        next
    }
}
