//! Applying the values of a log.

use inband_host::log::{Decided, Ticket, ValueKind};
use inband_host::session::Verdict;
use inband_resp::reply::Reply;
use rocksdb::{WriteBatch, DB};

use super::{BatchRecords, ChunkFate, Outcome, Outcomes, Position, Store, StoreError};
use crate::client_sessions::{Admission, ClientSessions, Records};
use crate::command::{Command, SessionStamp};
use crate::db::Columns;
use crate::engine;
use crate::keyspace::{Keys, View};
use crate::limits::{EXPIRED_KEYS_PER_ENTRY_MAX, EXPIRED_KEYS_PER_TICK_MAX, UNWRITTEN_BYTES_MAX};
use crate::value::{self, Chunk, ValueError, ValueReader};

/// The reply to a read through the log when there is no room for its result.
const TOO_MUCH_READ: &str = "TRYAGAIN not read: too much is read at once";

/// Where applied values go.
struct Target<'a> {
    db: &'a DB,
    columns: Columns<'a>,
    batch: &'a mut WriteBatch,
}

impl Store {
    /// Applies a burst up to the first marker that must not be passed yet. Returns how many of its instances are now
    /// applied. Instances at or below the applied one are skipped: they are covered by a checkpoint that was installed
    /// after they were delivered. After an error the store is stopped: memory and disk may differ.
    pub fn apply<'d>(
        &mut self,
        decided: impl IntoIterator<Item = Decided<'d>>,
        may_pass: &dyn Fn(u64) -> bool,
        outcomes: &mut Outcomes,
    ) -> Result<usize, StoreError> {
        self.start()?;
        let db = self.db.clone();
        let (mut batch, mut taken) = (std::mem::take(&mut self.unwritten), 0);
        let mut to = Target {
            db: &db,
            columns: Columns::of(&db)?,
            batch: &mut batch,
        };
        for decided in decided {
            if decided.instance > self.state.applied {
                self.check_order(&decided)?;
                if value::marker_entry(decided.value).is_some_and(|entry| !may_pass(entry)) {
                    break;
                }
                self.apply_one(&mut to, &decided, outcomes)?;
                self.state.applied = decided.instance;
                if self.keyspace.unwritten_bytes() >= UNWRITTEN_BYTES_MAX as u64 {
                    let mut batch = std::mem::take(to.batch);
                    self.fill(&mut batch)?;
                    self.write(batch, false)?;
                }
            } else if let Some(ticket) = decided.ticket {
                outcomes.values.push(Outcome::skipped(ticket, &decided));
            }
            taken += 1;
        }
        self.unwritten = batch;
        self.is_stopped = false;
        self.keyspace.trim_cache();
        if !self.is_deferring {
            self.flush()?;
        }
        Ok(taken)
    }

    fn apply_one(
        &mut self,
        to: &mut Target<'_>,
        decided: &Decided<'_>,
        outcomes: &mut Outcomes,
    ) -> Result<(), StoreError> {
        let verdict = self.admit(decided, to);
        self.keyspace.at = Position {
            applied: decided.instance,
            entry: self.state.done_entry,
        };
        let (first_reply, next_entry) = (outcomes.replies.len(), self.state.next_id);
        let mut fate = None;
        if verdict == Verdict::Apply && value::marker_entry(decided.value).is_none() {
            let chunk = Chunk::of_value(decided.value);
            fate = match chunk {
                Some(chunk) => Some(self.apply_chunk(to, decided, chunk, outcomes)?),
                None => None,
            };
            match ValueReader::new(decided.value) {
                _ if chunk.is_some() => {}
                Ok(value) => {
                    self.state.has_versions |= value.is_version_2;
                    let commands = &mut value.commands();
                    self.apply_commands(to, value.time_ms, decided.ticket, commands, outcomes)?;
                }
                Err(ValueError::Malformed) => {
                    tracing::warn!(instance = decided.instance, "{}", ValueError::Malformed);
                }
                Err(source) => {
                    return Err(StoreError::Value {
                        instance: decided.instance,
                        source,
                    });
                }
            }
        }
        if let Some(ticket) = decided.ticket {
            outcomes.values.push(Outcome {
                ticket,
                session_id: decided.origin.client_id,
                verdict,
                first_reply,
                reply_count: outcomes.replies.len() - first_reply,
                first_entry: self.role.is_queue().then_some(next_entry),
                chunk: fate,
            });
        }
        Ok(())
    }

    fn advance_time(&mut self, to: &mut Target<'_>, time_ms: u64) {
        self.state.time_ms = self.state.time_ms.max(time_ms);
        self.transfers
            .expire(self.state.time_ms, to.columns.meta, to.batch);
    }

    /// Stores a chunk, and applies its command if it was the last one.
    fn apply_chunk(
        &mut self,
        to: &mut Target<'_>,
        decided: &Decided<'_>,
        chunk: Chunk<'_>,
        outcomes: &mut Outcomes,
    ) -> Result<ChunkFate, StoreError> {
        self.state.has_versions = true;
        self.advance_time(to, chunk.time_ms);
        let session = decided.origin.client_id;
        let now = (decided.instance, self.state.time_ms);
        let (transfers, meta) = (&mut self.transfers, to.columns.meta);
        let (fate, command) = transfers.take(session, &chunk, now, meta, to.batch);
        if let Some(command) = command {
            let commands = &mut std::iter::once(&command[..]);
            self.apply_commands(to, chunk.time_ms, decided.ticket, commands, outcomes)?;
        }
        Ok(fate)
    }

    /// Passes a marker whose entries have been executed; must be written together with their changes.
    pub(crate) fn pass_marker(
        &mut self,
        decided: &Decided<'_>,
        outcomes: &mut Outcomes,
    ) -> Result<(), StoreError> {
        self.check_order(decided)?;
        let db = self.db.clone();
        let mut nothing = Target {
            db: &db,
            columns: Columns::of(&db)?,
            batch: &mut WriteBatch::default(),
        };
        self.apply_one(&mut nothing, decided, outcomes)?;
        self.state.applied = decided.instance;
        Ok(())
    }

    /// Looks the value up in the proposers' session table, and notes which of its records change.
    fn admit(&mut self, decided: &Decided<'_>, to: &mut Target<'_>) -> Verdict {
        let touched = match decided.origin.kind {
            ValueKind::Noop => return Verdict::Nothing,
            ValueKind::Command => decided.origin.client_id,
            ValueKind::OpenSession => decided.instance,
        };
        let ids_before: Option<Vec<u64>> =
            (decided.origin.kind == ValueKind::OpenSession).then(|| self.proposers.ids().collect());
        let verdict = self.proposers.admit(decided.instance, &decided.origin);
        if let Some(ids) = ids_before.filter(|ids| ids.len() == self.proposers.len()) {
            // Opening a session has expired another one.
            let gone = ids
                .into_iter()
                .find(|id| self.proposers.ids().all(|open| open != *id));
            if let Some(gone) = gone {
                self.touched.push(gone);
                self.transfers.end_session(gone, to.columns.meta, to.batch);
            }
        }
        if !self.touched.contains(&touched) && (verdict != Verdict::Refused) {
            self.touched.push(touched);
        }
        verdict
    }

    /// Executes commands, or appends them to the queue.
    fn apply_commands(
        &mut self,
        to: &mut Target<'_>,
        time_ms: u64,
        ticket: Option<Ticket>,
        commands: &mut dyn Iterator<Item = &[u8]>,
        outcomes: &mut Outcomes,
    ) -> Result<(), StoreError> {
        self.advance_time(to, time_ms);
        self.keyspace.has_versions = self.state.has_versions;
        if self.role.is_queue() {
            commands.for_each(|command| {
                self.queue_command(to.columns, to.batch, command, ticket);
            });
            return Ok(());
        }
        let is_own = ticket.is_some();
        let now_ms = self.state.time_ms;
        let mut records = BatchRecords {
            batch: to.batch,
            meta: to.columns.meta,
        };
        self.clients.expire(now_ms, &mut records);
        let keyspace = &mut self.keyspace;
        let mut view = View {
            db: to.db,
            columns: to.columns,
            keyspace,
            now_ms,
            clock_ms: 0,
            is_doubtful: false,
        };
        let mut commands = commands.peekable();
        let is_tick = commands.peek().is_none();
        view.delete_expired(if is_tick {
            EXPIRED_KEYS_PER_TICK_MAX
        } else {
            EXPIRED_KEYS_PER_ENTRY_MAX
        })?;
        for bytes in commands {
            outcomes.commands += 1;
            let reply = match Command::decode(bytes) {
                None => Some(Reply::error("ERR malformed command in a value")),
                Some((command, Some(stamp))) => {
                    let clients = &mut self.clients;
                    Some(execute_stamped(
                        &mut view,
                        clients,
                        &mut records,
                        &command,
                        stamp,
                    )?)
                }
                Some((Command::SessionNew { owner }, None)) if self.role.partitions == 1 => Some(
                    Reply::Integer(self.clients.open(owner, now_ms, &mut records) as i64),
                ),
                Some((command, None)) if !is_own && command.only_reads() => None,
                Some((command, None)) if !outcomes.has_room() && command.only_reads() => {
                    Some(Reply::error(TOO_MUCH_READ))
                }
                Some((command, None)) => Some(engine::execute(&mut view, &command)?),
            };
            if let Some(reply) = reply.filter(|_| is_own) {
                outcomes.take_room(reply.len_bytes());
                outcomes.replies.push(reply);
            }
        }
        Ok(())
    }
}

/// Executes a command of a named client session exactly once.
pub(crate) fn execute_stamped(
    keys: &mut dyn Keys,
    clients: &mut ClientSessions,
    records: &mut dyn Records,
    command: &Command<'_>,
    stamp: SessionStamp,
) -> Result<Reply, StoreError> {
    let reply = match clients.admit(stamp, keys.now_ms(), records) {
        Admission::Answer(reply) => return Ok(reply),
        Admission::ReadAgain => return Ok(engine::execute(keys, command)?),
        Admission::Execute => command.replicated_reply(engine::execute(keys, command)?),
    };
    clients.store_reply(stamp, &reply, command.only_reads(), records);
    Ok(reply)
}
