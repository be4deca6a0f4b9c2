//! Clients that watch keys: `INBAND.WATCH`, and pushing them the changes.
//!
//! Nothing waits for a client that does not read: what is pushed to it are the changes that the replica keeps anyway, and
//! once they are dropped, it is disconnected.

use std::collections::BTreeMap;

use inband_resp::reply::{push_header, write_bulk, Protocol, Reply};
use inband_resp::request::Args;

use super::Replica;
use crate::changes::{Change, Changes, Kept, Point, Revision};
use crate::connection::Connection;
use crate::limit_hits::LimitHit;
use crate::limits::{
    CHANGES_AT_ONCE_MAX, CHANGES_PER_PROGRESS, KEY_LEN_BYTES_MAX, WATCHERS_MAX,
    WATCHERS_PER_CLIENT_MAX,
};
use crate::table::CommandId;

/// Approximate memory of a watcher besides its prefix and its points.
const WATCHER_BYTES: usize = 256;
/// What a client is told about instead of a change.
const PROGRESS: &str = "progress";

const NEEDS_RESP3: &str = "ERR INBAND.WATCH needs RESP3; send HELLO 3 first";
const WATCHES_IT: &str = "ERR this client watches the prefix already; end that with INBAND.UNWATCH";
const NO_REVISION: &str =
    "ERR invalid revision; use one that INBAND.WATCH has returned or pushed in this cluster";

/// A client that watches the keys with a prefix.
#[derive(Debug)]
struct Watcher {
    /// How far it has seen the changes.
    seen: Revision,
    /// Number of the next change to compare with the prefix.
    next: u64,
    /// Bytes of changes since the last revision was sent.
    untold_bytes: usize,
}

/// All of them.
#[derive(Debug)]
pub(super) struct Watchers {
    changes: Changes,
    /// By slot and prefix.
    all: BTreeMap<(usize, Vec<u8>), Watcher>,
    /// Some have not seen all changes.
    is_any_behind: bool,
    /// There may be something to push.
    is_due: bool,
}

impl Watchers {
    pub(super) fn new(changes: Changes) -> Self {
        Self {
            changes,
            all: BTreeMap::new(),
            is_any_behind: false,
            is_due: false,
        }
    }

    pub(super) fn is_due(&self) -> bool {
        self.is_due
    }

    /// A client has read some of its output.
    pub(super) fn note_room(&mut self, client: &Connection) {
        self.is_due |= self.is_any_behind && client.watchers > 0 && client.has_reply_room();
    }

    /// Ends what a client watches. Returns how many there were.
    fn end(&mut self, slot: usize, client: &mut Connection, prefix: Option<&[u8]>) -> usize {
        if client.watchers == 0 {
            return 0;
        }
        let ended: Vec<_> = match prefix {
            Some(prefix) => vec![(slot, prefix.to_vec())],
            None => {
                let of_client = self.all.range((slot, Vec::new())..(slot + 1, Vec::new()));
                of_client.map(|(key, _)| key.clone()).collect()
            }
        };
        let mut count = 0;
        for key in ended {
            if let Some(watcher) = self.all.remove(&key) {
                client.watchers -= 1;
                client.watchers_bytes -= memory_bytes(&key.1, &watcher);
                count += 1;
            }
        }
        count
    }

    /// The client in this slot is gone.
    pub(super) fn close(&mut self, slot: usize, client: &mut Connection) {
        self.end(slot, client, None);
    }
}

fn memory_bytes(prefix: &[u8], watcher: &Watcher) -> usize {
    WATCHER_BYTES + prefix.len() + watcher.seen.0.len() * size_of::<Point>()
}

/// Pushes a change, or how far a client has seen the changes.
fn push(client: &mut Connection, prefix: &[u8], seen: &Revision, change: Option<&Change<'_>>) {
    let (protocol, out) = (client.protocol, &mut client.output);
    push_header(out, 6, protocol);
    write_bulk(out, b"inband.watch");
    write_bulk(out, prefix);
    write_bulk(out, seen.to_string().as_bytes());
    write_bulk(out, change.map_or(PROGRESS, |c| c.kind.name()).as_bytes());
    let key = change.map(|c| c.key).filter(|key| !key.is_empty());
    for part in [key, change.and_then(|c| c.value)] {
        match part {
            Some(bytes) => write_bulk(out, bytes),
            None => Reply::Nil.write_resp(out, protocol),
        }
    }
    client.output.grown();
}

impl Watcher {
    /// Pushes what there is and for which there is room. Returns false if changes that it has not seen were dropped.
    fn advance(&mut self, prefix: &[u8], kept: &Kept, client: &mut Connection) -> bool {
        if self.next < kept.first() {
            return false;
        }
        for change in kept.from(self.next).take(CHANGES_AT_ONCE_MAX) {
            if !client.has_reply_room() {
                break;
            }
            self.next += 1;
            let seen = &mut self.seen.0[change.partition];
            if change.point <= *seen {
                continue;
            }
            *seen = change.point;
            self.untold_bytes += change.len_bytes();
            if change.concerns(prefix) {
                push(client, prefix, &self.seen, Some(&change));
                self.untold_bytes = 0;
            } else if self.untold_bytes > kept.bytes_max() / CHANGES_PER_PROGRESS {
                push(client, prefix, &self.seen, None);
                self.untold_bytes = 0;
            }
        }
        true
    }
}

impl Replica {
    /// Answers a request if it is about watching; there is no other one in progress.
    pub(super) fn change_watchers(&mut self, slot: usize, id: CommandId, args: Args<'_>) -> bool {
        let reply = match id {
            CommandId::WatchPrefix => self.watch(slot, args).unwrap_or_else(|refused| {
                self.control.limit_hits.count(LimitHit::Request);
                refused
            }),
            CommandId::UnwatchPrefix => {
                let prefix = (args.len() > 1).then(|| args.get(1));
                let client = self.front.connections.get_mut(slot);
                let ended = client.map_or(0, |client| self.watchers.end(slot, client, prefix));
                Reply::Integer(ended as i64)
            }
            CommandId::Reset => {
                if let Some(client) = self.front.connections.get_mut(slot) {
                    self.watchers.close(slot, client);
                }
                return false;
            }
            _ => return false,
        };
        self.answer_local(slot, reply);
        true
    }

    /// `INBAND.WATCH`. The error if it is over a limit.
    fn watch(&mut self, slot: usize, args: Args<'_>) -> Result<Reply, Reply> {
        if let Some(refusal) = self.refusal() {
            return Ok(refusal);
        }
        let Some(client) = self.front.connections.get_mut(slot) else {
            return Ok(Reply::Nil);
        };
        if client.protocol != Protocol::Resp3 {
            return Ok(Reply::error(NEEDS_RESP3));
        }
        let prefix = args.get(1);
        let key = (slot, prefix.to_vec());
        if self.watchers.all.contains_key(&key) {
            return Ok(Reply::error(WATCHES_IT));
        }
        if prefix.len() > KEY_LEN_BYTES_MAX {
            let len_bytes = prefix.len();
            return Err(Reply::error(format!(
                "ERR prefix of {len_bytes} bytes is over the limit of {KEY_LEN_BYTES_MAX} bytes"
            )));
        }
        if client.watchers >= WATCHERS_PER_CLIENT_MAX {
            return Err(Reply::error(format!(
                "ERR a client watches at most {WATCHERS_PER_CLIENT_MAX} prefixes"
            )));
        }
        if self.watchers.all.len() >= WATCHERS_MAX {
            return Err(Reply::error(format!(
                "ERR {WATCHERS_MAX} prefixes are watched at this replica, which is the limit; use another replica"
            )));
        }
        let changes = self.watchers.changes.clone();
        let kept = changes.kept();
        let (seen, next) = if args.len() > 2 {
            let text = String::from_utf8_lossy(args.get(2));
            let seen: Option<Revision> = text.parse().ok();
            let partitions = self.machine.partitions();
            let Some(seen) = seen.filter(|seen| seen.0.len() == partitions) else {
                return Ok(Reply::error(NO_REVISION));
            };
            let oldest = kept.oldest();
            if seen.0.iter().zip(&oldest.0).any(|(seen, gone)| seen < gone) {
                return Ok(Reply::error(format!(
                    "GONE the changes behind revision {seen} are not kept here, only those behind {oldest}; try \
                     another replica, or watch without a revision and read the keys again"
                )));
            }
            (seen, kept.first())
        } else {
            let positions = self.machine.stores().map(|store| store.position());
            (Revision(positions.map(Point::after).collect()), kept.next())
        };
        let reply = Reply::bulk(seen.to_string());
        let watcher = Watcher {
            seen,
            next,
            untold_bytes: 0,
        };
        client.watchers += 1;
        client.watchers_bytes += memory_bytes(prefix, &watcher);
        self.watchers.all.insert(key, watcher);
        self.watchers.is_due = true;
        Ok(reply)
    }

    /// Pushes changes to those who watch the keys.
    pub(super) fn push_changes(&mut self) {
        let watchers = &mut self.watchers;
        (watchers.is_due, watchers.is_any_behind) = (false, false);
        let changes = watchers.changes.clone();
        let mut kept = changes.kept();
        if kept.take_gap() {
            drop(kept);
            return self.close_watchers();
        }
        let mut lost = Vec::new();
        for ((slot, prefix), watcher) in &mut watchers.all {
            if watcher.next == kept.next() {
                continue;
            }
            let Some(client) = self.front.connections.get_mut(*slot) else {
                continue;
            };
            let before = client.output.len();
            if !watcher.advance(prefix, &kept, client) {
                lost.push(*slot);
            }
            if client.output.len() > before {
                self.dirty.push(*slot);
            }
            if watcher.next != kept.next() {
                watchers.is_any_behind = true;
                watchers.is_due |= client.has_reply_room();
            }
        }
        drop(kept);
        for slot in lost {
            self.close_for(slot, LimitHit::Subscriber);
        }
    }

    /// Disconnects all that watch keys, so that they know that changes are missing.
    pub(super) fn close_watchers(&mut self) {
        self.watchers.changes.kept().take_gap();
        let mut slots: Vec<_> = self.watchers.all.keys().map(|(slot, _)| *slot).collect();
        slots.dedup();
        for slot in slots {
            self.close_for(slot, LimitHit::LostMessages);
        }
    }
}
