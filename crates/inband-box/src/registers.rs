//! Registers as the process accesses them while packets are handled: memory of this process, or the mapped maps of the
//! program. The node's registers are protected by its lock, as in the shell; records are read under their sequence
//! number.

use std::mem::offset_of;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::atomic::{fence, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::SeqCst};

use inband_ground::registers::{field, registers, Shared};
use inband_ground::wire::checksum;

use crate::c;
use crate::role::{Mode, Peer, Record, View};
use crate::{NODES, RECORD_LEN_MAX_BYTES};

/// The origin of records that a leader's role makes from SETs; their session is its epoch.
pub const ORIGIN_ROLE: u8 = c::IB_BOX_ORIGIN_ROLE as u8;
/// Default number of records that may be uncommitted.
pub const WINDOW_DEFAULT: u64 = 1024;
/// Attempts to take a lock before yielding the CPU to its holder.
const LOCK_SPINS: u32 = 1_000;

registers!(
    /// A node's only struct.
    NodeWords of c::ib_box_node
);
registers!(
    Records of c::ib_box_record
);

registers!(
    /// The clients of the records that the role has made from SETs, by slot.
    Clients of c::ib_box_client
);

/// A client that waits for the result of its SET.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Client {
    pub address: SocketAddrV4,
    /// The request's id.
    pub request: u16,
    /// It sent the SET to the port whose GETs are linearizable.
    pub is_strong: bool,
}

impl From<&Client> for c::ib_box_client {
    fn from(client: &Client) -> c::ib_box_client {
        c::ib_box_client {
            zxid: 0,
            epoch: 0,
            address: u32::from_ne_bytes(client.address.ip().octets()),
            port: client.address.port().to_be(),
            request: client.request.to_be(),
            is_strong: client.is_strong.into(),
        }
    }
}

impl Clients {
    /// Returns the client of a record, if the role here made the record. Ask before its slot may be used again.
    pub fn of(&self, record: &Record) -> Option<Client> {
        let slot = record.zxid as usize % self.count();
        let word = |at: usize| self.word(slot, at).load(SeqCst);
        let zxid = word(offset_of!(c::ib_box_client, zxid));
        let epoch = word(offset_of!(c::ib_box_client, epoch));
        if record.origin != ORIGIN_ROLE || (zxid, epoch) != (record.zxid, record.epoch) {
            return None;
        }
        // Address, port and request, in network order.
        let [a, b, c, d, port @ .., high, low] =
            word(offset_of!(c::ib_box_client, address)).to_ne_bytes();
        Some(Client {
            address: SocketAddrV4::new(Ipv4Addr::new(a, b, c, d), u16::from_be_bytes(port)),
            request: u16::from_be_bytes([high, low]),
            is_strong: word(offset_of!(c::ib_box_client, is_strong)) != 0,
        })
    }
}

/// All registers of a node.
pub struct Registers {
    pub(crate) node: NodeWords,
    pub(crate) records: Records,
    /// `None`: no client's SET comes to the role in this process.
    pub(crate) clients: Option<Clients>,
}

/// A word of the node's registers.
macro_rules! word {
    ($registers:expr, $($field:tt)+) => {
        inband_ground::field!($registers.node, 0, c::ib_box_node, $($field)+)
    };
}
pub(crate) use word;

/// The node's lock, released on drop.
pub(crate) struct Held<'a> {
    sequence: &'a AtomicU64,
    odd: u64,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.sequence.store(self.odd + 1, SeqCst);
    }
}

/// Repeats an attempt until it succeeds. What it waits for is short.
fn until<R>(mut attempt: impl FnMut() -> Option<R>) -> R {
    for tries in 1u32.. {
        if let Some(result) = attempt() {
            return result;
        }
        if tries % LOCK_SPINS == 0 {
            std::thread::yield_now();
        }
        std::hint::spin_loop();
    }
    unreachable!("it tries until it works")
}

impl Registers {
    /// Creates the registers of a node that has just started, in memory of this process.
    pub fn zeroed(capacity: usize) -> Registers {
        Registers::started(Shared::zeroed(1).into(), Shared::zeroed(capacity).into())
    }

    /// As [`Registers::zeroed`], for a role that also gets clients' SETs.
    pub(crate) fn with_clients(capacity: usize) -> Registers {
        Registers {
            clients: Some(Shared::zeroed(capacity).into()),
            ..Registers::zeroed(capacity)
        }
    }

    /// Returns the client of a record, if the role here made the record of a SET. Ask before its slot may be used
    /// again.
    pub fn client_of(&self, record: &Record) -> Option<Client> {
        self.clients.as_ref()?.of(record)
    }

    /// Initializes zeroed words for a node that has just started, with an empty log.
    pub(crate) fn started(node: NodeWords, records: Records) -> Registers {
        let registers = Registers {
            node,
            records,
            clients: None,
        };
        word!(registers, first).store(1, SeqCst);
        word!(registers, window).store(WINDOW_DEFAULT, SeqCst);
        registers
    }

    /// Takes the node's lock.
    pub(crate) fn hold(&self) -> Held<'_> {
        let sequence = word!(self, sequence);
        let odd = until(|| {
            let even = sequence.load(SeqCst);
            let taken = even % 2 == 0
                && sequence
                    .compare_exchange(even, even + 1, SeqCst, SeqCst)
                    .is_ok();
            taken.then_some(even + 1)
        });
        Held { sequence, odd }
    }

    /// Reads while nobody writes; `None` if there was a concurrent write.
    fn undisturbed<R>(sequence: &AtomicU64, read: impl Fn() -> R) -> Option<R> {
        let before = sequence.load(Acquire);
        if before % 2 == 1 {
            return None;
        }
        let result = read();
        fence(Acquire);
        (sequence.load(Relaxed) == before).then_some(result)
    }

    /// Returns a consistent copy of the registers.
    pub fn view(&self) -> View {
        until(|| Registers::undisturbed(word!(self, sequence), || self.view_held()))
    }

    /// Like [`Registers::view`], for a caller that holds the lock.
    pub(crate) fn view_held(&self) -> View {
        macro_rules! get {
            ($($field:tt)+) => { word!(self, $($field)+).load(SeqCst) };
        }
        let mut peers = [Peer::default(); 8];
        for node in NODES.map(usize::from) {
            let peer = |at: usize| {
                let start = offset_of!(c::ib_box_node, peer);
                let at = start + node * size_of::<c::ib_box_peer>() + at;
                self.node.word(0, at).load(SeqCst)
            };
            peers[node] = Peer {
                matched: peer(offset_of!(c::ib_box_peer, matched)),
                recovered: peer(offset_of!(c::ib_box_peer, recovered)),
                committed: peer(offset_of!(c::ib_box_peer, committed)),
                round: peer(offset_of!(c::ib_box_peer, round)),
                heard_ns: peer(offset_of!(c::ib_box_peer, heard_ns)),
            };
        }
        View {
            epoch: get!(epoch),
            mode: match get!(mode) as u32 {
                c::IB_BOX_FOLLOWING => Mode::Following,
                c::IB_BOX_LEADING => Mode::Leading,
                _ => Mode::Idle,
            },
            leader: get!(leader) as u8,
            first: get!(first),
            last: get!(last),
            last_epoch: get!(last_epoch),
            last_time_ms: get!(last_time_ms),
            matched: get!(matched),
            committed: get!(committed),
            established_at: get!(established_at),
            members: get!(members),
            guests: get!(guests),
            quorum: get!(quorum) as usize,
            window: get!(window),
            recovering: get!(recovering) != 0,
            acks_by_process: get!(acks_by_process) != 0,
            heard_ns: get!(heard_ns),
            process_heard_ns: get!(process_heard_ns),
            higher_epoch: get!(higher_epoch),
            applied: get!(applied),
            time_ms: get!(time_ms),
            advances: get!(advances),
            peers,
        }
    }

    /// Returns a word of the data about a member.
    pub(crate) fn peer_word(&self, node: u8, offset_bytes: usize) -> &AtomicU64 {
        let start = offset_of!(c::ib_box_node, peer);
        let at = start + usize::from(node) * size_of::<c::ib_box_peer>();
        self.node.word(0, at + offset_bytes)
    }

    /// Returns the slot's record if it is this one, whether truncated or not.
    pub fn record(&self, zxid: u64) -> Option<Record> {
        let slot = zxid as usize % self.records.count();
        let sequence = field!(self.records, slot, c::ib_box_record, sequence);
        until(|| Registers::undisturbed(sequence, || self.record_in(slot, zxid)))
    }

    fn record_in(&self, slot: usize, zxid: u64) -> Option<Record> {
        macro_rules! get {
            ($field:ident) => {
                field!(self.records, slot, c::ib_box_record, $field).load(SeqCst)
            };
        }
        if zxid == 0 || get!(zxid) != zxid {
            return None;
        }
        // The low half of the word; the digest is in the high half.
        let value_len_bytes = get!(value_len_bytes) as u32 as usize;
        let value_len_bytes = value_len_bytes.min(RECORD_LEN_MAX_BYTES);
        let start = offset_of!(c::ib_box_record, value);
        let mut value = Vec::with_capacity(value_len_bytes + 8);
        for at in (0..value_len_bytes).step_by(8) {
            let word = self.records.word(slot, start + at).load(SeqCst);
            value.extend_from_slice(&word.to_ne_bytes());
        }
        value.truncate(value_len_bytes);
        let origin = self
            .records
            .word(slot, offset_of!(c::ib_box_record, origin));
        Some(Record {
            zxid,
            epoch: get!(epoch),
            time_ms: get!(time_ms),
            origin: origin.load(SeqCst) as u32 as u8,
            origin_session: get!(origin_session),
            origin_seq: get!(origin_seq),
            value,
        })
    }

    /// Sets all registers except the ring. For tests; nobody else may use the node meanwhile.
    pub fn restore(&self, view: &View) {
        macro_rules! set {
            ($($field:ident),+) => {
                $(word!(self, $field).store(view.$field as u64, SeqCst);)+
            };
        }
        set!(
            epoch,
            leader,
            first,
            last,
            last_epoch,
            last_time_ms,
            matched,
            committed,
            established_at
        );
        set!(
            members,
            guests,
            quorum,
            window,
            recovering,
            acks_by_process,
            heard_ns,
            process_heard_ns,
            higher_epoch,
            applied
        );
        set!(time_ms, advances);
        let mode = match view.mode {
            Mode::Idle => c::IB_BOX_IDLE,
            Mode::Following => c::IB_BOX_FOLLOWING,
            Mode::Leading => c::IB_BOX_LEADING,
        };
        word!(self, mode).store(mode.into(), SeqCst);
        for node in NODES {
            let peer = &view.peers[usize::from(node)];
            for (at, value) in [
                (offset_of!(c::ib_box_peer, matched), peer.matched),
                (offset_of!(c::ib_box_peer, recovered), peer.recovered),
                (offset_of!(c::ib_box_peer, committed), peer.committed),
                (offset_of!(c::ib_box_peer, round), peer.round),
                (offset_of!(c::ib_box_peer, heard_ns), peer.heard_ns),
            ] {
                self.peer_word(node, at).store(value, SeqCst);
            }
        }
    }

    /// Writes a slot. For tests, like [`Registers::restore`].
    pub fn restore_record(&self, record: &Record) {
        let slot = record.zxid as usize % self.records.count();
        let words: [(usize, u64); 5] = [
            (offset_of!(c::ib_box_record, zxid), record.zxid),
            (offset_of!(c::ib_box_record, epoch), record.epoch),
            (offset_of!(c::ib_box_record, time_ms), record.time_ms),
            (
                offset_of!(c::ib_box_record, origin_session),
                record.origin_session,
            ),
            (offset_of!(c::ib_box_record, origin_seq), record.origin_seq),
        ];
        for (at, word) in words {
            self.records.word(slot, at).store(word, SeqCst);
        }
        let digest = if record.value.is_empty() {
            0
        } else {
            checksum(&record.value)
        };
        let pair = |low: u32, high: u32| u64::from(high) << 32 | u64::from(low);
        let lens = pair(record.value.len() as u32, digest);
        let at = offset_of!(c::ib_box_record, value_len_bytes);
        self.records.word(slot, at).store(lens, SeqCst);
        let at = offset_of!(c::ib_box_record, origin);
        self.records
            .word(slot, at)
            .store(record.origin.into(), SeqCst);
        let start = offset_of!(c::ib_box_record, value);
        for (n, chunk) in record.value.chunks(8).enumerate() {
            let mut bytes = [0; 8];
            bytes[..chunk.len()].copy_from_slice(chunk);
            let word = u64::from_ne_bytes(bytes);
            self.records.word(slot, start + 8 * n).store(word, SeqCst);
        }
    }

    /// Returns every word of the node and of each slot. The node must handle no packet meanwhile.
    pub fn words(&self) -> Vec<(String, Vec<u64>)> {
        let slots = (0..self.records.count())
            .map(|slot| (format!("slot {slot}"), self.records.words(slot)));
        let node = ("node".to_owned(), self.node.words(0));
        std::iter::once(node).chain(slots).collect()
    }

    /// Resets the registers as at a start. Nobody else may use the node meanwhile.
    pub fn restart(&self) {
        self.node.clear();
        self.records.clear();
        word!(self, first).store(1, SeqCst);
        word!(self, window).store(WINDOW_DEFAULT, SeqCst);
    }

    pub fn memory_bytes(&self) -> usize {
        self.node.memory_bytes() + self.records.memory_bytes()
    }
}
