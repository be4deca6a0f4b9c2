//! `EVAL` and `SCRIPT`: scripts are executed by every replica in the order of the log; see [`inband_lua`].
//!
//! A script may use only the keys that it was given: they say which partitions it involves. If a limit ends it, what it
//! wrote is undone.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use inband_lua::{Ended, Host, Limits};
use inband_resp::reply::Reply;
use inband_resp::request::Args;

use crate::command::{Command, Strings, COMMANDS_VERSION};
use crate::connection::over_limit;
use crate::engine;
use crate::keyspace::Keys;
use crate::limits::{
    SCRIPT_MEMORY_BYTES_MAX, SCRIPT_STEPS_MAX, SCRIPT_UNDO_BYTES_MAX,
    TRANSACTION_WRITTEN_BYTES_MAX, VALUES_REPLY_BYTES_MAX,
};
use crate::parse::{self, integer, Request};
use crate::script_cache::Scripts;
use crate::table::{self, CommandId};
use crate::types::{Kind, Work};

const LIMITS: Limits = Limits {
    steps: SCRIPT_STEPS_MAX,
    memory_bytes: SCRIPT_MEMORY_BYTES_MAX,
    reply_bytes: VALUES_REPLY_BYTES_MAX,
};
/// What a message counts besides its contents.
const MESSAGE_OVERHEAD_BYTES: u64 = 64;
const READ_ONLY: &str = "ERR Write commands are not allowed from read-only scripts.";
const NOT_ALLOWED: &str = "ERR This Redis command is not allowed from script";
const US_PER_MS: u64 = 1000;

/// The arguments of `EVAL` and `EVALSHA`.
pub fn parse_eval(args: Args<'_>, is_read_only: bool) -> Result<Command<'_>, Reply> {
    let count = integer(args.get(2))?;
    let rest = args.len() - 3;
    let keys = match usize::try_from(count) {
        Err(_) => return Err(Reply::error("ERR Number of keys can't be negative")),
        Ok(keys) if keys > rest => {
            let why = "ERR Number of keys can't be greater than number of args";
            return Err(Reply::error(why));
        }
        Ok(keys) => keys,
    };
    Ok(Command::Eval {
        text: args.get(1),
        keys: Strings::Args(args.part(3, keys), 0),
        args: Strings::Args(args.part(3 + keys, rest - keys), 0),
        is_read_only,
        calls_version: COMMANDS_VERSION,
    })
}

/// `SCRIPT`; `None` if this replica answers it.
pub fn parse(args: Args<'_>) -> Result<Option<Command<'_>>, Reply> {
    let is = |at: usize, word: &str| args.get(at).eq_ignore_ascii_case(word.as_bytes());
    if is(1, "LOAD") && args.len() == 3 {
        inband_lua::compile(args.get(2), &LIMITS)?;
        return Ok(Some(Command::ScriptLoad(args.get(2))));
    }
    if is(1, "FLUSH") {
        return match args.len() {
            2 => Ok(Some(Command::ScriptFlush)),
            3 if is(2, "SYNC") || is(2, "ASYNC") => Ok(Some(Command::ScriptFlush)),
            _ => Err(Reply::error(
                "ERR SCRIPT FLUSH only support SYNC|ASYNC option",
            )),
        };
    }
    Ok(None)
}

/// The subcommands of `SCRIPT` that this replica answers.
pub fn local(args: Args<'_>, scripts: &Scripts) -> Reply {
    let is = |word: &str| args.get(1).eq_ignore_ascii_case(word.as_bytes());
    if is("EXISTS") && args.len() > 2 {
        let known = args.from(2).map(|sha1| scripts.knows(sha1));
        return Reply::Array(known.map(|known| Reply::Integer(known.into())).collect());
    }
    if is("KILL") && args.len() == 2 {
        return Reply::error("NOTBUSY No scripts in execution right now.");
    }
    parse::unknown_subcommand("SCRIPT", args.get(1))
}

impl<'a> Command<'a> {
    /// `EVAL` with another text.
    pub(crate) fn with_text(self, text: &'a [u8]) -> Command<'a> {
        match self {
            Command::Eval {
                keys,
                args,
                is_read_only,
                calls_version,
                ..
            } => Command::Eval {
                text,
                keys,
                args,
                is_read_only,
                calls_version,
            },
            other => other,
        }
    }
}

/// Execute `EVAL`.
pub fn execute(
    keys: &mut dyn Keys,
    work: &Work,
    command: &Command<'_>,
) -> Result<Reply, rocksdb::Error> {
    let Command::Eval {
        text,
        keys: names,
        args,
        is_read_only,
        calls_version,
    } = command
    else {
        return Ok(Reply::error(NOT_ALLOWED));
    };
    let (names, args): (Vec<&[u8]>, Vec<&[u8]>) = (names.iter().collect(), args.iter().collect());
    keys.scripts().remember(text);
    let mark = keys.subscriptions().mark();
    let mut host = ScriptHost {
        put_before: keys.put_bytes(),
        keys,
        work,
        former: Former::default(),
        declared: names.iter().copied().collect(),
        is_read_only: *is_read_only,
        calls_version: *calls_version,
        message_bytes: 0,
        published_bytes: 0,
        failure: None,
    };
    let script = inband_lua::Script {
        text,
        keys: &names,
        args: &args,
    };
    let ended = inband_lua::run(&script, &LIMITS, &mut host);
    if let Some(failure) = host.failure {
        return Err(failure);
    }
    match ended {
        Ended::Reply(reply) => {
            host.keys.count_published(host.published_bytes);
            Ok(reply)
        }
        Ended::Undo(reply) => {
            host.former.restore(host.keys)?;
            host.keys.subscriptions().withdraw(mark);
            Ok(reply)
        }
    }
}

struct ScriptHost<'a> {
    keys: &'a mut dyn Keys,
    work: &'a Work,
    former: Former,
    declared: HashSet<&'a [u8]>,
    is_read_only: bool,
    calls_version: u8,
    /// Bytes put before the script.
    put_before: u64,
    /// What its messages count.
    message_bytes: u64,
    /// Bytes of its messages, which are delivered when it has ended, unless it is undone.
    published_bytes: u64,
    /// The store failed.
    failure: Option<rocksdb::Error>,
}

impl Host for ScriptHost<'_> {
    fn call(&mut self, words: &[Vec<u8>]) -> Option<Reply> {
        let mut ranges = Vec::with_capacity(words.len());
        let mut at = 0;
        for word in words {
            ranges.push((at, at + word.len()));
            at += word.len();
        }
        let bytes = words.concat();
        match self.execute(Args::new(&bytes, &ranges)) {
            Ok(reply) => Some(reply),
            Err(failure) => {
                self.failure = Some(failure);
                None
            }
        }
    }
}

impl ScriptHost<'_> {
    fn execute(&mut self, args: Args<'_>) -> Result<Reply, rocksdb::Error> {
        let error = |why: &'static str| Ok(Reply::error(why));
        let spec = table::find(args.get(0));
        let Some(spec) = spec.filter(|spec| spec.id.version() <= self.calls_version) else {
            return error("ERR Unknown Redis command called from script");
        };
        if !spec.takes(args.len()) {
            return error("ERR Wrong number of args calling Redis command from script");
        }
        if matches!(spec.id, CommandId::Typed(op) if op.waits_for().is_some()) {
            return error(NOT_ALLOWED);
        }
        let command = match parse::parse(args) {
            Ok(Request::Replicated(command)) => command,
            Ok(Request::Local(spec)) => return Ok(self.local(spec.id, args)),
            Ok(_) => return error(NOT_ALLOWED),
            Err(reply) => return Ok(reply),
        };
        if let Command::Publish { channel, payload } = command {
            return Ok(self.publish(channel, payload));
        }
        if let Some(refusal) = self.refusal_of(&command) {
            return Ok(Reply::Error(refusal));
        }
        if !command.only_reads() && !self.former.keep(self.keys, &command)? {
            return Ok(Reply::error(format!(
                "ERR the script changes keys whose values have more than {SCRIPT_UNDO_BYTES_MAX} bytes, which is the limit"
            )));
        }
        engine::execute_simple(self.keys, self.work, &command)
    }

    fn refusal_of(&self, command: &Command<'_>) -> Option<Cow<'static, str>> {
        if matches!(
            command,
            Command::Watch(_)
                | Command::Eval { .. }
                | Command::ScriptLoad(_)
                | Command::ScriptFlush
                | Command::SessionNew { .. }
                | Command::SetEvents(_)
        ) {
            return Some(NOT_ALLOWED.into());
        }
        if self.is_read_only && !command.only_reads() {
            return Some(READ_ONLY.into());
        }
        if let Some(Reply::Error(why)) = over_limit(command) {
            return Some(why);
        }
        let mut undeclared = None;
        let names_all = command.each_key(&mut |key| {
            if !self.declared.contains(key) && undeclared.is_none() {
                undeclared = Some(String::from_utf8_lossy(key).into_owned());
            }
        });
        if !names_all {
            return Some("ERR commands over all keys are not allowed from script".into());
        }
        if let Some(key) = undeclared {
            let why = format!("ERR the script uses key '{key}', which is not among its KEYS");
            return Some(why.into());
        }
        if command.only_reads() {
            return None;
        }
        self.over_written()
    }

    /// The error for another write if it has written too much.
    fn over_written(&self) -> Option<Cow<'static, str>> {
        let put_bytes = self.keys.put_bytes() - self.put_before + self.message_bytes;
        (put_bytes >= TRANSACTION_WRITTEN_BYTES_MAX as u64).then(|| {
            let why = format!(
                "ERR the script has written {TRANSACTION_WRITTEN_BYTES_MAX} bytes, which is the limit"
            );
            why.into()
        })
    }

    /// `PUBLISH`. The reply is the same on every replica, so it does not count subscribers.
    fn publish(&mut self, channel: &[u8], payload: &[u8]) -> Reply {
        let command = Command::Publish { channel, payload };
        if self.is_read_only {
            return Reply::error(READ_ONLY);
        }
        if let Some(refusal) = over_limit(&command) {
            return refusal;
        }
        if let Some(refusal) = self.over_written() {
            return Reply::Error(refusal);
        }
        if !self.keys.has_channel(channel) {
            return Reply::error(
                "ERR the script publishes to a channel in another partition than its KEYS; give them the same \
                 hash tag, or name the channel among the KEYS",
            );
        }
        let len_bytes = (channel.len() + payload.len()) as u64;
        self.message_bytes += MESSAGE_OVERHEAD_BYTES + len_bytes;
        self.published_bytes += len_bytes;
        self.keys.subscriptions().publish(channel, payload);
        Reply::Integer(0)
    }

    /// The commands without keys that scripts use.
    fn local(&self, id: CommandId, args: Args<'_>) -> Reply {
        match id {
            CommandId::Ping if args.len() == 1 => Reply::Status("PONG".into()),
            CommandId::Ping | CommandId::Echo => Reply::bulk(args.get(1)),
            CommandId::Time => {
                // Replicated time: the same on every replica.
                let now_ms = self.keys.now_ms();
                let parts = [now_ms / 1000, now_ms % 1000 * US_PER_MS];
                Reply::Array(parts.map(|part| Reply::bulk(part.to_string())).to_vec())
            }
            _ => Reply::error(NOT_ALLOWED),
        }
    }
}

/// Expiry time, kind and value; `None`: there was no record.
type Kept = Option<(u64, Kind, Vec<u8>)>;

/// The records that a script may have changed, as they were before.
#[derive(Default)]
struct Former {
    /// By key.
    records: HashMap<Vec<u8>, Kept>,
    value_bytes: usize,
}

impl Former {
    /// Keeps what this command may change, before it does. Returns false if that is too much.
    fn keep(&mut self, keys: &mut dyn Keys, command: &Command<'_>) -> Result<bool, rocksdb::Error> {
        let mut names = Vec::new();
        command.each_key(&mut |key| names.push(key.to_vec()));
        for key in names {
            if self.records.contains_key(&key) {
                continue;
            }
            let record = keys.get(&key)?;
            let record = record.map(|r| (r.expire_at_ms, r.kind, r.value.to_vec()));
            self.value_bytes += record.as_ref().map_or(0, |(_, _, value)| value.len());
            self.records.insert(key, record);
            if self.value_bytes > SCRIPT_UNDO_BYTES_MAX {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Restores the records. In the order of their keys: every write numbers a version.
    fn restore(self, keys: &mut dyn Keys) -> Result<(), rocksdb::Error> {
        let mut records: Vec<_> = self.records.into_iter().collect();
        records.sort_unstable();
        for (key, record) in records {
            match record {
                Some((expire_at_ms, kind, value)) => {
                    keys.put_as(kind, &key, expire_at_ms, &value)?;
                }
                None => {
                    keys.delete(&key)?;
                }
            }
        }
        Ok(())
    }
}
