//! Named client sessions (`INBAND.SESSION`): the stored replies with which retries are answered.
//!
//! Not to be confused with `inband_host::session`, which makes the *values* of a proposer exactly-once; this module
//! makes the *commands* of a client exactly-once across lost connections and replicas (protocol.md, 8). It is part of
//! the replicated state, driven only by the log and its time.
//!
//! With several partitions, each partition keeps the records of the commands that it executes; the lowest partition
//! involved keeps those of a cross-partition command. The partition follows from the command alone, so a retry finds
//! the record of the first attempt. (A transaction with `WATCH` also involves the watched keys: a client that retries
//! its `EXEC` must have watched the same keys.) When there is no room for a new session, the address with the most
//! sessions loses the one that has been idle longest. So opening many sessions never evicts those of an address that
//! holds fewer.
//!
//! `INBAND.SESSION NEW` opens the session in all partitions at once; its id is the number of that command among
//! cross-partition commands. Each partition expires it by its own time and use: a session that has been idle in one
//! partition for too long is refused there, and nothing is applied.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use inband_resp::reply::Reply;

use crate::command::SessionStamp;
use crate::limits::{
    CLIENT_SESSIONS_EXPIRED_PER_ENTRY_MAX, CLIENT_SESSIONS_MAX, CLIENT_SESSIONS_REPLY_BYTES_MAX,
    CLIENT_SESSION_IDLE_MS_MAX, CLIENT_SESSION_READ_REPLY_BYTES_MAX, CLIENT_SESSION_REPLIES_MAX,
    CLIENT_SESSION_REPLY_BYTES_MAX,
};

/// First byte of the stored key of a session.
pub const SESSION_KEY: u8 = b'c';
/// First byte of the stored key of a reply.
pub const REPLY_KEY: u8 = b'r';

const STORED_REPLY: u8 = 0;
const STORED_READ_AGAIN: u8 = 1;

/// Where records are stored: in the same batch as the data.
pub trait Records {
    fn put(&mut self, key: &[u8], value: &[u8]);
    fn delete(&mut self, key: &[u8]);
}

/// What to do with a session's command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Admission {
    /// Not seen before: execute it, then call [`ClientSessions::store_reply`].
    Execute,
    /// Already executed. It only reads and its reply was too long to keep: execute it again.
    ReadAgain,
    /// Do not execute it; send this reply.
    Answer(Reply),
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Session {
    owner: u64,
    low: u64,
    last_ms: u64,
    /// Replies by sequence, as stored.
    replies: BTreeMap<u64, Vec<u8>>,
    reply_bytes: usize,
}

/// The sessions of one address.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Owned {
    /// `(last_ms, id)`: longest idle first.
    by_age: BTreeSet<(u64, u64)>,
    reply_bytes: usize,
}

/// Returns the owner of sessions opened from `address`: the IPv4 address, or the upper half (network part) of an IPv6
/// address. Never 0, which means unknown.
pub fn owner_of(address: IpAddr) -> u64 {
    const V4: u64 = 0xffff << 32;
    let owner = match address.to_canonical() {
        IpAddr::V4(v4) => V4 | u64::from(v4.to_bits()),
        IpAddr::V6(v6) => (v6.to_bits() >> 64) as u64,
    };
    owner.max(1)
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientSessions {
    sessions: BTreeMap<u64, Session>,
    /// `(last_ms, id)`: longest idle first.
    by_age: BTreeSet<(u64, u64)>,
    by_owner: BTreeMap<u64, Owned>,
    /// Of all sessions together.
    reply_bytes: usize,
    next_id: u64,
}

impl ClientSessions {
    /// No sessions; the first one opened gets the id `next_id`.
    pub fn new(next_id: u64) -> Self {
        Self {
            sessions: BTreeMap::new(),
            by_age: BTreeSet::new(),
            by_owner: BTreeMap::new(),
            reply_bytes: 0,
            next_id,
        }
    }

    /// Returns the id that the next session gets. Part of the replicated state: ids are never reused.
    pub fn next_id(&self) -> u64 {
        self.next_id
    }

    pub fn len(&self) -> usize {
        self.sessions.len()
    }

    pub fn is_empty(&self) -> bool {
        self.sessions.is_empty()
    }

    /// Opens a session with the next id.
    pub fn open(&mut self, owner: u64, now_ms: u64, records: &mut dyn Records) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        self.open_as(id, owner, now_ms, records);
        id
    }

    /// Opens a session with an id that has never been used.
    pub fn open_as(&mut self, id: u64, owner: u64, now_ms: u64, records: &mut dyn Records) {
        if self.sessions.len() >= CLIENT_SESSIONS_MAX {
            if let Some(oldest) = self.oldest_of_most(|owned| owned.by_age.len(), 0) {
                self.remove(oldest, records);
            }
        }
        let session = Session {
            owner,
            low: 1,
            last_ms: now_ms,
            ..Session::default()
        };
        self.insert(id, session);
        self.put_session(id, records);
    }

    fn insert(&mut self, id: u64, session: Session) {
        let age = (session.last_ms, id);
        self.by_age.insert(age);
        let owned = self.by_owner.entry(session.owner).or_default();
        owned.by_age.insert(age);
        self.sessions.insert(id, session);
    }

    /// Among the addresses with the largest `most`, the longest-idle session, excluding session `but`.
    fn oldest_of_most(&self, most: impl Fn(&Owned) -> usize, but: u64) -> Option<u64> {
        let oldest = |owned: &Owned| owned.by_age.iter().find(|(_, id)| *id != but).copied();
        let candidates = self.by_owner.values().filter_map(|owned| {
            let oldest = oldest(owned)?;
            Some((most(owned), std::cmp::Reverse(oldest)))
        });
        candidates.max().map(|(_, oldest)| oldest.0 .1)
    }

    /// Expires sessions that have been idle for too long; the number per call is bounded.
    pub fn expire(&mut self, now_ms: u64, records: &mut dyn Records) {
        for _ in 0..CLIENT_SESSIONS_EXPIRED_PER_ENTRY_MAX {
            match self.by_age.first() {
                Some((last_ms, id)) if now_ms - last_ms > CLIENT_SESSION_IDLE_MS_MAX => {
                    self.remove(*id, records);
                }
                _ => return,
            }
        }
    }

    pub fn admit(
        &mut self,
        stamp: SessionStamp,
        now_ms: u64,
        records: &mut dyn Records,
    ) -> Admission {
        let SessionStamp { id, seq, low } = stamp;
        let Some(session) = self.sessions.get_mut(&id) else {
            return Admission::Answer(Reply::error(format!(
                "NOSESSION session {id} is unknown or expired; the command was not applied now, but may have \
                 been if it was sent before; INBAND.SESSION NEW opens a session"
            )));
        };
        let owned = self.by_owner.entry(session.owner).or_default();
        for by_age in [&mut self.by_age, &mut owned.by_age] {
            by_age.remove(&(session.last_ms, id));
            by_age.insert((now_ms, id));
        }
        session.last_ms = now_ms;
        let before = session.reply_bytes;
        session.raise_low(id, low.min(seq), records);
        self.reply_bytes -= before - session.reply_bytes;
        owned.reply_bytes -= before - session.reply_bytes;
        let low = session.low;
        let admission = match session.replies.get(&seq) {
            _ if seq < low => Admission::Answer(Reply::error(format!(
                "FORGOTTEN sequence {seq} of session {id} is below {low}, up to which replies were \
                 forgotten; the command was not applied now"
            ))),
            None => Admission::Execute,
            Some(stored) => match stored.split_first() {
                Some((&STORED_REPLY, reply)) => Admission::Answer(
                    Reply::decode(reply).unwrap_or_else(|| Reply::error("ERR stored reply lost")),
                ),
                _ => Admission::ReadAgain,
            },
        };
        self.put_session(id, records);
        admission
    }

    /// Stores the reply of a command that was just executed.
    pub fn store_reply(
        &mut self,
        stamp: SessionStamp,
        reply: &Reply,
        only_reads: bool,
        records: &mut dyn Records,
    ) {
        let Some(session) = self.sessions.get_mut(&stamp.id) else {
            return;
        };
        let mut stored = vec![STORED_REPLY];
        reply.encode(&mut stored);
        if only_reads && stored.len() > CLIENT_SESSION_READ_REPLY_BYTES_MAX {
            stored = vec![STORED_READ_AGAIN];
        }
        records.put(&reply_key(stamp.id, stamp.seq), &stored);
        let before = session.reply_bytes;
        session.reply_bytes += stored.len();
        session.replies.insert(stamp.seq, stored);
        while session.replies.len() > CLIENT_SESSION_REPLIES_MAX
            || (session.reply_bytes > CLIENT_SESSION_REPLY_BYTES_MAX && session.replies.len() > 1)
        {
            let Some(oldest) = session.replies.keys().next().copied() else {
                break;
            };
            session.raise_low(stamp.id, oldest + 1, records);
        }
        self.reply_bytes = self.reply_bytes + session.reply_bytes - before;
        let owned = self.by_owner.entry(session.owner).or_default();
        owned.reply_bytes = owned.reply_bytes + session.reply_bytes - before;
        self.put_session(stamp.id, records);
        while self.reply_bytes > CLIENT_SESSIONS_REPLY_BYTES_MAX {
            let Some(oldest) = self.oldest_of_most(|owned| owned.reply_bytes, stamp.id) else {
                break;
            };
            self.remove(oldest, records);
        }
    }

    /// Loads a stored session; `false` if the record is malformed.
    pub fn load_session(&mut self, key: &[u8], record: &[u8]) -> bool {
        let (Some(id), [Some(low), Some(last_ms)]) =
            (number(key, 1), [number(record, 0), number(record, 8)])
        else {
            return false;
        };
        let session = Session {
            owner: number(record, 16).unwrap_or(0),
            low,
            last_ms,
            ..Session::default()
        };
        self.insert(id, session);
        true
    }

    /// Loads a stored reply, after its session; `false` if the record is malformed.
    pub fn load_reply(&mut self, key: &[u8], record: &[u8]) -> bool {
        let (Some(id), Some(seq)) = (number(key, 1), number(key, 9)) else {
            return false;
        };
        let Some(session) = self.sessions.get_mut(&id) else {
            return false;
        };
        session.reply_bytes += record.len();
        self.reply_bytes += record.len();
        let owned = self.by_owner.entry(session.owner).or_default();
        owned.reply_bytes += record.len();
        session.replies.insert(seq, record.to_vec());
        true
    }

    fn put_session(&self, id: u64, records: &mut dyn Records) {
        if let Some(session) = self.sessions.get(&id) {
            let mut record = [0u8; 24];
            record[..8].copy_from_slice(&session.low.to_be_bytes());
            record[8..16].copy_from_slice(&session.last_ms.to_be_bytes());
            record[16..].copy_from_slice(&session.owner.to_be_bytes());
            // The format of programs that do not know owners: replicas compare their records.
            let len = if session.owner == 0 { 16 } else { 24 };
            records.put(&session_key(id), &record[..len]);
        }
    }

    fn remove(&mut self, id: u64, records: &mut dyn Records) {
        if let Some(session) = self.sessions.remove(&id) {
            let age = (session.last_ms, id);
            self.by_age.remove(&age);
            self.reply_bytes -= session.reply_bytes;
            if let Some(owned) = self.by_owner.get_mut(&session.owner) {
                owned.by_age.remove(&age);
                owned.reply_bytes -= session.reply_bytes;
                if owned.by_age.is_empty() {
                    self.by_owner.remove(&session.owner);
                }
            }
            session
                .replies
                .keys()
                .for_each(|seq| records.delete(&reply_key(id, *seq)));
            records.delete(&session_key(id));
        }
    }
}

impl Session {
    /// Drops the replies below `low`.
    fn raise_low(&mut self, id: u64, low: u64, records: &mut dyn Records) {
        if low <= self.low {
            return;
        }
        self.low = low;
        let kept = self.replies.split_off(&low);
        for (seq, stored) in std::mem::replace(&mut self.replies, kept) {
            self.reply_bytes -= stored.len();
            records.delete(&reply_key(id, seq));
        }
    }
}

fn session_key(id: u64) -> [u8; 9] {
    let mut key = [SESSION_KEY; 9];
    key[1..].copy_from_slice(&id.to_be_bytes());
    key
}

fn reply_key(id: u64, seq: u64) -> [u8; 17] {
    let mut key = [REPLY_KEY; 17];
    key[1..9].copy_from_slice(&id.to_be_bytes());
    key[9..].copy_from_slice(&seq.to_be_bytes());
    key
}

fn number(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_be_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Stored(BTreeMap<Vec<u8>, Vec<u8>>);

    impl Records for Stored {
        fn put(&mut self, key: &[u8], value: &[u8]) {
            self.0.insert(key.to_vec(), value.to_vec());
        }
        fn delete(&mut self, key: &[u8]) {
            self.0.remove(key);
        }
    }

    fn stamp(id: u64, seq: u64, low: u64) -> SessionStamp {
        SessionStamp { id, seq, low }
    }

    fn run(all: &mut ClientSessions, stamp: SessionStamp, reply: Reply, to: &mut Stored) -> bool {
        match all.admit(stamp, 5, to) {
            Admission::Execute => {
                all.store_reply(stamp, &reply, false, to);
                true
            }
            Admission::Answer(answer) => {
                assert!(answer.is_error() || answer == reply);
                false
            }
            Admission::ReadAgain => false,
        }
    }

    fn reloaded(stored: &Stored, next_id: u64) -> ClientSessions {
        let mut all = ClientSessions::new(next_id);
        for (key, record) in &stored.0 {
            assert!(match key[0] {
                SESSION_KEY => all.load_session(key, record),
                _ => all.load_reply(key, record),
            });
        }
        all
    }

    #[test]
    fn each_sequence_is_executed_once() {
        let (mut all, mut stored) = (ClientSessions::new(1), Stored::default());
        let id = all.open(0, 0, &mut stored);
        assert!(run(
            &mut all,
            stamp(id, 1, 1),
            Reply::Integer(1),
            &mut stored
        ));
        assert!(run(
            &mut all,
            stamp(id, 3, 1),
            Reply::Integer(3),
            &mut stored
        ));
        assert!(!run(
            &mut all,
            stamp(id, 1, 1),
            Reply::Integer(1),
            &mut stored
        ));
        assert!(run(
            &mut all,
            stamp(id, 2, 1),
            Reply::Integer(2),
            &mut stored
        ));
        assert_eq!(reloaded(&stored, 2), all);
        // `low` moves up: 1 is dropped and never executed again.
        assert!(run(
            &mut all,
            stamp(id, 4, 3),
            Reply::Integer(4),
            &mut stored
        ));
        assert!(!run(&mut all, stamp(id, 1, 1), Reply::Nil, &mut stored));
        assert!(!run(
            &mut all,
            stamp(id, 3, 1),
            Reply::Integer(3),
            &mut stored
        ));
        assert!(!run(&mut all, stamp(77, 1, 1), Reply::Nil, &mut stored));
        assert_eq!(reloaded(&stored, 2), all);
    }

    #[test]
    fn replies_are_bounded_by_count_and_bytes() {
        let (mut all, mut stored) = (ClientSessions::new(1), Stored::default());
        let id = all.open(0, 0, &mut stored);
        for seq in 1..=CLIENT_SESSION_REPLIES_MAX as u64 + 10 {
            assert!(run(&mut all, stamp(id, seq, 1), Reply::Ok, &mut stored));
        }
        assert_eq!(stored.0.len(), 1 + CLIENT_SESSION_REPLIES_MAX);
        assert!(!run(&mut all, stamp(id, 10, 1), Reply::Nil, &mut stored));
        let big = Reply::Bulk(vec![0; CLIENT_SESSION_REPLY_BYTES_MAX + 1]);
        assert!(run(&mut all, stamp(id, 5000, 1), big.clone(), &mut stored));
        assert_eq!(stored.0.len(), 2);
        assert!(!run(&mut all, stamp(id, 5000, 1), big.clone(), &mut stored));
        all.store_reply(stamp(id, 5001, 1), &big, true, &mut stored);
        assert_eq!(
            all.admit(stamp(id, 5001, 1), 9, &mut stored),
            Admission::ReadAgain
        );
        assert_eq!(reloaded(&stored, 2), all);
    }

    #[test]
    fn replies_of_all_sessions_are_bounded() {
        let (mut all, mut stored) = (ClientSessions::new(1), Stored::default());
        let len = 8 * 1024 * 1024;
        let big = Reply::Bulk(vec![7; len]);
        let room = CLIENT_SESSIONS_REPLY_BYTES_MAX / (len + 100);
        let ids: Vec<u64> = (0..=room)
            .map(|at| all.open(0, at as u64, &mut stored))
            .collect();
        for id in &ids {
            assert!(run(&mut all, stamp(*id, 1, 1), big.clone(), &mut stored));
        }
        // The longest-idle one was evicted.
        assert_eq!(all.len(), room);
        assert!(all.reply_bytes <= CLIENT_SESSIONS_REPLY_BYTES_MAX);
        assert_eq!(reloaded(&stored, all.next_id()), all);
        let is_refused = |all: &mut ClientSessions, stored: &mut Stored, id| matches!(all.admit(stamp(id, 1, 1), 5, stored), Admission::Answer(r) if r.is_error());
        assert!(is_refused(&mut all, &mut stored, ids[0]));
        assert!(!is_refused(&mut all, &mut stored, ids[1]));
        // Raising `low` frees the room.
        for id in &ids[1..] {
            assert!(run(&mut all, stamp(*id, 2, 2), Reply::Ok, &mut stored));
        }
        assert!(all.reply_bytes < len);
        assert_eq!(all.len(), room);
        while !all.is_empty() {
            let before = all.len();
            all.expire(u64::MAX, &mut stored);
            assert!(all.len() < before);
        }
        assert_eq!(all.reply_bytes, 0);
    }

    #[test]
    fn sessions_expire_by_count_and_by_time() {
        let (mut all, mut stored) = (ClientSessions::new(1), Stored::default());
        for i in 0..=CLIENT_SESSIONS_MAX as u64 {
            assert_eq!(all.open(0, i, &mut stored), i + 1);
        }
        assert_eq!(all.len(), CLIENT_SESSIONS_MAX);
        assert!(!run(&mut all, stamp(1, 1, 1), Reply::Nil, &mut stored));
        let later = CLIENT_SESSION_IDLE_MS_MAX + 4;
        all.expire(later, &mut stored);
        assert_eq!(all.len(), CLIENT_SESSIONS_MAX - 3);
        all.expire(u64::MAX, &mut stored);
        let left = CLIENT_SESSIONS_MAX - 3 - CLIENT_SESSIONS_EXPIRED_PER_ENTRY_MAX;
        assert_eq!((all.len(), stored.0.len()), (left, left));
        assert_eq!(all.next_id(), CLIENT_SESSIONS_MAX as u64 + 2);
    }

    #[test]
    fn who_opens_too_many_loses_his_own() {
        let (mut all, mut stored) = (ClientSessions::new(1), Stored::default());
        let owner = |ip: &str| owner_of(ip.parse().expect("an address"));
        let (mine, theirs) = (owner("10.0.0.1"), owner("10.0.0.2"));
        let my_ids: Vec<u64> = (0..10).map(|at| all.open(mine, at, &mut stored)).collect();
        let many = 3 * CLIENT_SESSIONS_MAX as u64;
        let their_ids: Vec<u64> = (0..many)
            .map(|at| all.open(theirs, 10 + at, &mut stored))
            .collect();
        assert_eq!(all.len(), CLIENT_SESSIONS_MAX);
        let now_ms = 20 + many;
        let is_known = |all: &mut ClientSessions, stored: &mut Stored, id| {
            all.admit(stamp(id, 1, 1), now_ms, stored) == Admission::Execute
        };
        for id in &my_ids {
            assert!(is_known(&mut all, &mut stored, *id));
        }
        let their_room = CLIENT_SESSIONS_MAX - my_ids.len();
        let (gone, kept) = their_ids.split_at(their_ids.len() - their_room);
        assert!(!is_known(&mut all, &mut stored, gone[gone.len() - 1]));
        assert!(is_known(&mut all, &mut stored, kept[0]));
        assert_eq!(reloaded(&stored, all.next_id()), all);

        // Their replies do not evict mine either.
        let long = Reply::Bulk(vec![7; 8 << 20]);
        assert!(run(
            &mut all,
            stamp(my_ids[0], 1, 1),
            Reply::Ok,
            &mut stored
        ));
        for id in kept.iter().take(40) {
            assert!(run(&mut all, stamp(*id, 1, 1), long.clone(), &mut stored));
        }
        assert!(all.len() < CLIENT_SESSIONS_MAX);
        for id in &my_ids[1..] {
            assert!(is_known(&mut all, &mut stored, *id));
        }
        assert_eq!(reloaded(&stored, all.next_id()), all);
    }

    #[test]
    fn addresses_of_one_network_are_one_owner() {
        let owner = |ip: &str| owner_of(ip.parse().expect("an address"));
        assert_eq!(owner("::ffff:10.0.0.1"), owner("10.0.0.1"));
        assert_ne!(owner("10.0.0.1"), owner("10.0.0.2"));
        assert_eq!(owner("2001:db8:1:2::3"), owner("2001:db8:1:2:3::4"));
        assert_ne!(owner("2001:db8:1:2::3"), owner("2001:db8:1:3::3"));
        assert_ne!(owner("::"), 0);
    }
}
