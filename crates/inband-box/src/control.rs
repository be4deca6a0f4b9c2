//! Messages between processes: election, discovery, joining and reads. The value of a CONTROL packet begins with the
//! kind; numbers are in the packet's header.

use inband_ground::wire::checksum;

use crate::node::IDS;
use crate::promise::Founders;
use crate::role::Record;
use crate::wire::{self, Header, Type};

/// A message between processes. The header's epoch is the one it refers to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Control {
    /// Asks who leads. Sent by a node that waits for a leader.
    Hello {
        /// The sender's [`new_id`](crate::promise::Stored::new_id).
        new_id: u64,
    },
    /// Answers the Hello of a node that is one of them.
    Founders(Founders),
    /// Asks whether the receiver would vote for the sender. Sent by a node that waits for a leader and suspects that
    /// there is none.
    PreElect {
        /// Identifies the question.
        id: u64,
    },
    /// Answers PreElect: the sender has not heard from a leader either.
    Willing {
        /// The question's id.
        id: u64,
        /// As in Hello.
        new_id: u64,
    },
    /// The sender wants to lead the epoch.
    Elect {
        /// As in Hello.
        candidate: u64,
    },
    /// The sender will take part in no earlier epoch; describes its log.
    Promise {
        /// Epoch of the last record.
        last_epoch: u64,
        /// Zxid of the last record.
        last: u64,
        /// Zxid up to which records are known to be committed.
        committed: u64,
        /// Zxid of the oldest record in the ring.
        first: u64,
        /// As in Hello.
        new_id: u64,
        /// That of the [`Control::Elect`].
        candidate: u64,
    },
    /// The sender has promised the header's epoch, which is higher than that of the message it answers.
    Denied,
    /// Asks for the records from `from` on.
    Pull { from: u64 },
    /// A record of the sender's log.
    Record {
        record: Record,
        /// Zxid up to which records are known to be committed.
        committed: u64,
    },
    /// The sender leads the epoch.
    Lead { founders: Founders },
    /// The sender follows the leader of the epoch.
    Joined(Joined),
    /// Answers Joined: the sender's first start is known to be long past, so its directory was lost.
    Lost {
        /// The nonce of the [`Control::Joined`].
        nonce: u64,
    },
    /// Answers Joined: a recovering node counts again once it has all records up to `zxid`.
    Target {
        /// The nonce of the [`Control::Joined`].
        nonce: u64,
        /// Zxid of the leader's last record.
        zxid: u64,
    },
    /// Asks up to which zxid records must be applied before a read may be answered.
    Ask {
        /// Identifies the question.
        id: u64,
    },
    Index {
        /// The question's id.
        id: u64,
        /// Zxid of everything that was committed when the question was asked.
        index: u64,
    },
    /// The sender leads and is about to stop: the receiver is to lead instead.
    TakeOver,
    /// The sender's log begins at `first`, and the receiver lacks records before that: it needs a snapshot.
    Behind { first: u64 },
    /// Asks for parts of the snapshot `id` from this byte on; id 0: of any snapshot, from its beginning.
    PullSnapshot { id: u64, offset: u64 },
    SnapshotPart {
        /// The snapshot's id, which increases within the epoch.
        id: u64,
        /// Zxid of the last record in the snapshot.
        zxid: u64,
        /// Length of the whole snapshot.
        len_bytes: u64,
        /// Offset of the part in the snapshot.
        offset: u64,
        /// At most [`crate::RECORD_LEN_MAX_BYTES`].
        bytes: Vec<u8>,
    },
}

/// The state of a node that follows, in [`Control::Joined`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Joined {
    /// Its log equals the leader's up to this zxid.
    pub matched: u64,
    /// Identifies the start of its process.
    pub nonce: u64,
    /// It has lost its log, so its acknowledgements do not count yet.
    pub recovering: bool,
    /// Its log is on disk.
    pub durable: bool,
    /// As in [`Control::Hello`].
    pub new_id: u64,
}

const HELLO: u8 = 1;
const ELECT: u8 = 2;
const PROMISE: u8 = 3;
const DENIED: u8 = 4;
const PULL: u8 = 5;
const RECORD: u8 = 6;
const LEAD: u8 = 7;
const JOINED: u8 = 8;
const TARGET: u8 = 9;
const ASK: u8 = 10;
const INDEX: u8 = 11;
const BEHIND: u8 = 12;
const PULL_SNAPSHOT: u8 = 13;
const SNAPSHOT_PART: u8 = 14;
const PRE_ELECT: u8 = 15;
const WILLING: u8 = 16;
const LOST: u8 = 17;
const FOUNDERS: u8 = 18;
const TAKE_OVER: u8 = 19;

impl Control {
    pub fn name(&self) -> &'static str {
        match self {
            Control::Hello { .. } => "HELLO",
            Control::Founders(_) => "FOUNDERS",
            Control::PreElect { .. } => "PRE_ELECT",
            Control::Willing { .. } => "WILLING",
            Control::Elect { .. } => "ELECT",
            Control::Promise { .. } => "PROMISE",
            Control::Denied => "DENIED",
            Control::Pull { .. } => "PULL",
            Control::Record { .. } => "RECORD",
            Control::Lead { .. } => "LEAD",
            Control::Joined(_) => "JOINED",
            Control::Lost { .. } => "LOST",
            Control::Target { .. } => "TARGET",
            Control::Ask { .. } => "ASK",
            Control::Index { .. } => "INDEX",
            Control::TakeOver => "TAKE_OVER",
            Control::Behind { .. } => "BEHIND",
            Control::PullSnapshot { .. } => "PULL_SNAPSHOT",
            Control::SnapshotPart { .. } => "SNAPSHOT_PART",
        }
    }

    /// Returns the packet's header and value.
    pub fn encode(&self, node: u8, epoch: u64) -> (Header, Vec<u8>) {
        let mut h = Header {
            node: node.into(),
            epoch,
            ..Header::of(Type::Control)
        };
        let kind = match self {
            Control::Hello { new_id } => {
                h.origin_session = *new_id;
                HELLO
            }
            Control::Founders(_) => FOUNDERS,
            Control::PreElect { id } => {
                h.round = *id;
                PRE_ELECT
            }
            Control::Willing { id, new_id } => {
                (h.round, h.origin_session) = (*id, *new_id);
                WILLING
            }
            Control::Elect { candidate } => {
                h.origin_session = *candidate;
                ELECT
            }
            Control::Promise {
                last_epoch,
                last,
                committed,
                first,
                new_id,
                candidate,
            } => {
                (h.origin_session, h.origin_seq) = (*new_id, *candidate);
                (h.record_epoch, h.zxid, h.committed, h.round) =
                    (*last_epoch, *last, *committed, *first);
                PROMISE
            }
            Control::Denied => DENIED,
            Control::Pull { from } => {
                h.zxid = *from;
                PULL
            }
            Control::Record { record, committed } => {
                h.zxid = record.zxid;
                h.record_epoch = record.epoch;
                h.time_ms = record.time_ms;
                h.origin = record.origin.into();
                h.origin_session = record.origin_session;
                h.origin_seq = record.origin_seq;
                h.committed = *committed;
                RECORD
            }
            Control::Lead { .. } => LEAD,
            Control::Joined(joined) => {
                (h.zxid, h.round) = (joined.matched, joined.nonce);
                h.origin_session = joined.new_id;
                h.leader = u16::from(joined.recovering) | u16::from(joined.durable) << 1;
                JOINED
            }
            Control::Lost { nonce } => {
                h.round = *nonce;
                LOST
            }
            Control::Target { nonce, zxid } => {
                (h.zxid, h.round) = (*zxid, *nonce);
                TARGET
            }
            Control::Ask { id } => {
                h.round = *id;
                ASK
            }
            Control::Index { id, index } => {
                (h.zxid, h.round) = (*index, *id);
                INDEX
            }
            Control::TakeOver => TAKE_OVER,
            Control::Behind { first } => {
                h.zxid = *first;
                BEHIND
            }
            Control::PullSnapshot { id, offset } => {
                (h.zxid, h.round) = (*offset, *id);
                PULL_SNAPSHOT
            }
            Control::SnapshotPart {
                id,
                zxid,
                len_bytes,
                offset,
                ..
            } => {
                (h.zxid, h.round, h.time_ms, h.origin_seq) = (*zxid, *id, *len_bytes, *offset);
                SNAPSHOT_PART
            }
        };
        let mut value = vec![kind];
        match self {
            Control::Record { record, .. } => value.extend_from_slice(&record.value),
            Control::SnapshotPart { bytes, .. } => value.extend_from_slice(bytes),
            Control::Founders(founders) | Control::Lead { founders } => {
                value.extend(founders.iter().flat_map(|id| id.to_be_bytes()));
            }
            _ => {}
        }
        (h, value)
    }

    /// Decodes a CONTROL packet. Returns `None` if it is damaged or of an unknown kind. (The role does not look into
    /// its value, and without a key the packet's checksum covers only the header.)
    pub fn decode(h: &Header, value: &[u8]) -> Option<Control> {
        if checksum(value) != h.digest {
            return None;
        }
        let (kind, value) = value.split_first()?;
        Some(match *kind {
            HELLO => Control::Hello {
                new_id: h.origin_session,
            },
            FOUNDERS => Control::Founders(founders_of(value)?),
            PRE_ELECT => Control::PreElect { id: h.round },
            WILLING => Control::Willing {
                id: h.round,
                new_id: h.origin_session,
            },
            ELECT => Control::Elect {
                candidate: h.origin_session,
            },
            PROMISE => Control::Promise {
                last_epoch: h.record_epoch,
                last: h.zxid,
                committed: h.committed,
                first: h.round,
                new_id: h.origin_session,
                candidate: h.origin_seq,
            },
            DENIED => Control::Denied,
            PULL => Control::Pull { from: h.zxid },
            RECORD => Control::Record {
                record: wire::record_of(h, value),
                committed: h.committed,
            },
            LEAD => Control::Lead {
                founders: founders_of(value)?,
            },
            JOINED => Control::Joined(Joined {
                matched: h.zxid,
                nonce: h.round,
                recovering: h.leader & 1 != 0,
                durable: h.leader & 2 != 0,
                new_id: h.origin_session,
            }),
            LOST => Control::Lost { nonce: h.round },
            TARGET => Control::Target {
                nonce: h.round,
                zxid: h.zxid,
            },
            ASK => Control::Ask { id: h.round },
            INDEX => Control::Index {
                id: h.round,
                index: h.zxid,
            },
            TAKE_OVER => Control::TakeOver,
            BEHIND => Control::Behind { first: h.zxid },
            PULL_SNAPSHOT => Control::PullSnapshot {
                id: h.round,
                offset: h.zxid,
            },
            SNAPSHOT_PART => Control::SnapshotPart {
                id: h.round,
                zxid: h.zxid,
                len_bytes: h.time_ms,
                offset: h.origin_seq,
                bytes: value.to_vec(),
            },
            _ => return None,
        })
    }
}

/// A node of an earlier version knows of no founders, and says nothing.
fn founders_of(value: &[u8]) -> Option<Founders> {
    if value.is_empty() {
        return Some(Founders::default());
    }
    let bytes: &[u8; 8 * IDS] = value.try_into().ok()?;
    let id_at = |n: usize| bytes[8 * n..8 * n + 8].try_into().map(u64::from_be_bytes);
    Some(std::array::from_fn(|n| id_at(n).expect("8 bytes")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Vec<Control> {
        let record = Record {
            zxid: 5,
            epoch: 33,
            time_ms: 9,
            origin: 2,
            origin_session: 3,
            origin_seq: 4,
            value: vec![1; 1248],
        };
        vec![
            Control::Hello { new_id: 5 },
            Control::Founders([0, 1, 2, 3, 4, 5, 6, 7]),
            Control::PreElect { id: 3 },
            Control::Willing { id: 3, new_id: 5 },
            Control::Elect { candidate: 6 },
            Control::Promise {
                last_epoch: 1,
                last: 2,
                committed: 3,
                first: 4,
                new_id: 5,
                candidate: 6,
            },
            Control::Denied,
            Control::Pull { from: 7 },
            Control::Record {
                record,
                committed: 4,
            },
            Control::Lead {
                founders: [0, 7, 6, 5, 4, 3, 2, 1],
            },
            Control::Joined(Joined {
                matched: 1,
                nonce: 2,
                recovering: true,
                durable: false,
                new_id: 3,
            }),
            Control::Joined(Joined {
                matched: 1,
                nonce: 2,
                recovering: false,
                durable: true,
                new_id: 0,
            }),
            Control::Lost { nonce: 3 },
            Control::Target { nonce: 1, zxid: 2 },
            Control::Ask { id: 1 },
            Control::Index { id: 1, index: 2 },
            Control::TakeOver,
            Control::Behind { first: 9 },
            Control::PullSnapshot { id: 1, offset: 2 },
            Control::SnapshotPart {
                id: 1,
                zxid: 2,
                len_bytes: 3,
                offset: 4,
                bytes: vec![6; 1248],
            },
        ]
    }

    #[test]
    fn a_message_comes_back_as_it_was_and_a_damaged_one_does_not() {
        for control in all() {
            let (header, value) = control.encode(3, 65);
            let mut packet = wire::emit(&header, &value);
            let (header, value) = wire::parse(&packet).expect("a packet");
            assert_eq!((header.node, header.epoch), (3, 65));
            assert_eq!(Control::decode(&header, value), Some(control));
            *packet.last_mut().expect("a value") ^= 8;
            let (header, value) = wire::parse(&packet).expect("a packet");
            assert_eq!(Control::decode(&header, value), None);
        }
    }

    #[test]
    fn a_leader_of_an_earlier_version_is_followed() {
        let founders = Founders::default();
        let (mut header, value) = Control::Lead { founders }.encode(3, 65);
        let value = &value[..1];
        header.digest = checksum(value);
        let lead = Control::decode(&header, value);
        assert_eq!(lead, Some(Control::Lead { founders }));
    }
}
