//! A follower that misses more than the leader's log still has gets a snapshot of the leader's machine, and then the
//! log after it. It pulls the snapshot in parts, so a lost part costs one request; nobody else waits meanwhile.

use std::collections::{BTreeMap, VecDeque};

use crate::control::Control;
use crate::node::{Node, Out, State, To};
use crate::promise::Nanos;
use crate::role::{Record, Role};
use crate::sync::Leading;
use crate::RECORD_LEN_MAX_BYTES;

/// Parts sent per request, so that the leader's heartbeats and clients do not wait longer.
const PARTS_MAX: usize = 64;
/// Parts in flight to a follower: a round trip on a busy machine takes milliseconds.
const PARTS_WINDOW: usize = 512;
const QUESTION_BYTES: usize = PARTS_MAX * RECORD_LEN_MAX_BYTES;
const WINDOW_BYTES: usize = PARTS_WINDOW * RECORD_LEN_MAX_BYTES;
/// A leader drops a snapshot that no follower has used for this long.
const KEPT_NS: Nanos = 10_000_000_000;
/// Maximum size of the records after a snapshot; beyond that a new snapshot is made.
const RETAINED_BYTES_MAX: usize = 256 << 20;

/// A machine's state at the record `zxid`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// The last record in the snapshot, which is committed.
    pub zxid: u64,
    /// Written and read by the host's machine.
    pub bytes: Vec<u8>,
}

/// A snapshot that a leader sends to its followers.
pub(crate) struct Serving {
    /// Increases within the epoch.
    id: u64,
    /// `None` while the host is making it.
    snapshot: Option<Snapshot>,
    /// All records applied since the host was asked for the snapshot.
    retained: VecDeque<Record>,
    retained_bytes: usize,
    /// Size of those since the host was asked for this snapshot; earlier ones are for nodes that have the one before.
    since_bytes: usize,
    used_at: Nanos,
}

impl Serving {
    fn retain(&mut self, record: &Record) {
        let len_bytes = size_of::<Record>() + record.value.len();
        self.retained_bytes += len_bytes;
        self.since_bytes += len_bytes;
        self.retained.push_back(record.clone());
    }

    /// Returns whether a new snapshot would be shorter than the records since this one.
    fn is_outgrown(&self) -> bool {
        let snapshot = self.snapshot.as_ref();
        snapshot.is_some_and(|snapshot| self.since_bytes > snapshot.bytes.len())
    }

    fn record(&self, zxid: u64) -> Option<&Record> {
        let at = zxid.checked_sub(self.retained.front()?.zxid)?;
        self.retained.get(at as usize)
    }
}

/// A snapshot that a follower pulls.
pub(crate) struct Fetch {
    id: u64,
    /// Length of the whole snapshot; 0: unknown.
    len_bytes: usize,
    bytes: Vec<u8>,
    /// Parts that arrived early, by offset.
    early: BTreeMap<usize, Vec<u8>>,
    /// Requested up to here.
    asked_to: usize,
    pub again_at: Nanos,
}

impl Fetch {
    fn new(id: u64) -> Fetch {
        Fetch {
            id,
            len_bytes: 0,
            bytes: Vec::new(),
            early: BTreeMap::new(),
            asked_to: 0,
            again_at: 0,
        }
    }

    /// Returns the length of what has arrived without a gap.
    pub fn pulled_bytes(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn take(&mut self, offset: usize, part: Vec<u8>) {
        if offset >= self.bytes.len() && self.early.len() < PARTS_WINDOW {
            self.early.insert(offset, part);
        }
        while let Some(part) = self.early.remove(&self.bytes.len()) {
            self.bytes.extend_from_slice(&part);
        }
        self.early = self.early.split_off(&self.bytes.len());
    }
}

impl Leading {
    /// Returns a record after the snapshot, which followers may still need and only this list has.
    pub fn retained(&mut self, zxid: u64, now: Nanos) -> Option<&Record> {
        let serving = self.serving.as_mut()?;
        serving.used_at = now;
        serving.record(zxid)
    }

    /// Drops a snapshot that nobody needs any more.
    pub fn forget_snapshot(&mut self, now: Nanos) {
        self.serving.take_if(|serving| {
            now > serving.used_at + KEPT_NS || serving.retained_bytes > RETAINED_BYTES_MAX
        });
    }
}

impl Node {
    /// Keeps a record that was applied while we lead.
    pub(crate) fn retain(&mut self, record: &Record) {
        if let State::Leading(leading) = &mut self.state {
            if let Some(serving) = &mut leading.serving {
                serving.retain(record);
            }
        }
    }

    /// Takes the snapshot that [`Out::takes_snapshot`] asked for.
    pub fn on_snapshot(&mut self, snapshot: Snapshot) {
        let State::Leading(leading) = &mut self.state else {
            return;
        };
        if let Some(serving) = &mut leading.serving {
            serving.snapshot.get_or_insert(snapshot);
        }
    }

    /// Handles the news that the leader's log begins at `first`.
    pub(crate) fn on_behind(
        &mut self,
        now: Nanos,
        from: u8,
        epoch: u64,
        first: u64,
        role: &impl Role,
        out: &mut Out,
    ) {
        let is_led = from == self.hint && epoch == self.epoch();
        let registers = role.view();
        let led_at = self.led_at.max(registers.led_ns(&self.config));
        // The leader that said so may be gone, and may have had one of the few logs left: discarding ours would leave
        // one fewer.
        let is_late = now > led_at + 2 * self.config.heartbeat_ns();
        let lacks_records = self.lacks_records();
        let State::Following { fetch, .. } = &mut self.state else {
            return;
        };
        if !is_led || fetch.is_some() {
            return;
        }
        if registers.matched + 1 >= first {
            // The leader does not know what we have; it may have missed that we have recovered.
            return self.say_joined(role, out);
        }
        if !lacks_records && is_late {
            return; // a live leader says it again
        }
        if !lacks_records {
            // Its gateway waits for outcomes of records that a snapshot would merely contain.
            out.begins_again = true;
            return;
        }
        *fetch = Some(Fetch::new(0));
        self.pull_again(now, out);
    }

    /// Repeats the request after no part has arrived for a while, from the first missing byte. Later parts may still be
    /// in flight.
    pub(crate) fn pull_again(&mut self, now: Nanos, out: &mut Out) {
        let again_at = now + self.config.resend_after_ns();
        let State::Following {
            fetch: Some(fetch), ..
        } = &mut self.state
        else {
            return;
        };
        fetch.again_at = again_at;
        let (id, offset) = (fetch.id, fetch.bytes.len());
        fetch.asked_to = fetch.asked_to.max(offset + QUESTION_BYTES);
        self.ask_for_parts(id, offset, out);
    }

    /// Requests the parts that follow, as long as the window has room.
    fn pull_on(&mut self, out: &mut Out) {
        loop {
            let State::Following {
                fetch: Some(fetch), ..
            } = &mut self.state
            else {
                return;
            };
            let (id, offset) = (fetch.id, fetch.asked_to);
            let is_full = offset + QUESTION_BYTES > fetch.bytes.len() + WINDOW_BYTES;
            if is_full || offset >= fetch.len_bytes {
                return;
            }
            fetch.asked_to += QUESTION_BYTES;
            self.ask_for_parts(id, offset, out);
        }
    }

    fn ask_for_parts(&self, id: u64, offset: usize, out: &mut Out) {
        let pull = Control::PullSnapshot {
            id,
            offset: offset as u64,
        };
        self.say(To::Node(self.hint), self.epoch(), &pull, out);
    }

    /// Handles a follower's request for parts of the snapshot `id`; 0: of any snapshot.
    pub(crate) fn on_pull_snapshot(
        &mut self,
        now: Nanos,
        from: u8,
        epoch: u64,
        (id, offset): (u64, u64),
        out: &mut Out,
    ) {
        let own_epoch = self.epoch();
        let State::Leading(leading) = &mut self.state else {
            return;
        };
        if epoch != own_epoch {
            return;
        }
        if leading.serving.is_none() {
            leading.snapshots += 1;
            leading.serving = Some(Serving {
                id: leading.snapshots,
                snapshot: None,
                retained: VecDeque::new(),
                retained_bytes: 0,
                since_bytes: 0,
                used_at: now,
            });
            out.takes_snapshot = true;
        }
        let serving = leading.serving.as_mut().expect("it is there now");
        serving.used_at = now;
        let begins = id == 0 && leading.followers[usize::from(from)].snapshot != serving.id;
        if begins {
            if serving.is_outgrown() {
                leading.snapshots += 1;
                (serving.id, serving.snapshot) = (leading.snapshots, None);
                serving.since_bytes = 0;
                out.takes_snapshot = true;
            }
            // It asks again, and is not to wait for yet another one.
            leading.followers[usize::from(from)].snapshot = serving.id;
        }
        let Some(snapshot) = &serving.snapshot else {
            return; // it asks again
        };
        let offset = if id == serving.id { offset } else { 0 };
        let len_bytes = snapshot.bytes.len();
        let from_offset = usize::try_from(offset).unwrap_or(len_bytes).min(len_bytes);
        let parts = snapshot.bytes[from_offset..].chunks(RECORD_LEN_MAX_BYTES);
        let mut offset = offset;
        for part in parts.take(PARTS_MAX) {
            let part = Control::SnapshotPart {
                id: serving.id,
                zxid: snapshot.zxid,
                len_bytes: len_bytes as u64,
                offset,
                bytes: part.to_vec(),
            };
            offset += RECORD_LEN_MAX_BYTES as u64;
            let (header, value) = part.encode(self.config.node, epoch);
            out.packet(To::Node(from), &header, &value);
        }
    }

    /// Handles a part of the leader's snapshot `id`, which has `len_bytes` bytes.
    pub(crate) fn on_snapshot_part(
        &mut self,
        now: Nanos,
        from: u8,
        epoch: u64,
        (id, zxid, len_bytes): (u64, u64, u64),
        (offset, part): (u64, Vec<u8>),
        out: &mut Out,
    ) {
        let is_led = from == self.hint && epoch == self.epoch();
        let State::Following { fetch: slot, .. } = &mut self.state else {
            return;
        };
        let Some(fetch) = slot.as_mut().filter(|fetch| is_led && id >= fetch.id) else {
            return;
        };
        if id > fetch.id {
            // The answer to the first request brings its first parts.
            *fetch = Fetch::new(id);
            fetch.asked_to = QUESTION_BYTES;
            fetch.len_bytes = len_bytes as usize;
        }
        let before = fetch.bytes.len();
        fetch.take(offset as usize, part);
        let has = fetch.bytes.len();
        if has as u64 >= len_bytes {
            let bytes = std::mem::take(&mut fetch.bytes);
            *slot = None;
            out.snapshot = Some(Snapshot { zxid, bytes });
        } else if has > before {
            fetch.again_at = now + self.config.resend_after_ns();
            self.pull_on(out);
        }
    }
}
