//! What a process may do with its node's role, wherever that runs.

use std::collections::BTreeMap;

use inband_ground::wire::PACKET_LEN_MAX_BYTES;

/// A record of the log.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Record {
    /// Its position in the log, from 1.
    pub zxid: u64,
    /// The epoch in which it was first proposed.
    pub epoch: u64,
    /// When, by that leader's clock.
    pub time_ms: u64,
    /// Node of the gateway that submitted it; 0 for a no-op, which has none.
    pub origin: u8,
    /// The gateway's session.
    pub origin_session: u64,
    /// Its position in the session, from 1.
    pub origin_seq: u64,
    /// At most [`crate::RECORD_LEN_MAX_BYTES`].
    pub value: Vec<u8>,
}

/// A node's part in the broadcast.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// None: the node elects, or recovers.
    #[default]
    Idle,
    Following,
    Leading,
}

/// What a leader knows about a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Peer {
    /// It has our log up to here, and its acknowledgement counts. Also kept for the leader itself.
    pub matched: u64,
    /// While it recovers: it has our log up to here, which does not count.
    pub recovered: u64,
    /// The highest `committed` that it has reported.
    pub committed: u64,
    /// The last round that it has answered.
    pub round: u64,
    /// When it was last heard from, by the role's clock.
    pub heard_ns: u64,
}

/// A consistent copy of the registers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct View {
    /// Packets of an earlier epoch are refused.
    pub epoch: u64,
    /// The node's part in the broadcast.
    pub mode: Mode,
    /// The leader; 0: unknown.
    pub leader: u8,
    /// The oldest zxid in the ring.
    pub first: u64,
    /// The newest zxid of the log; `first - 1`: the ring is empty.
    pub last: u64,
    /// Epoch of the newest record; 0: there is none.
    pub last_epoch: u64,
    /// Time of the newest record.
    pub last_time_ms: u64,
    /// If following: the leader's log and ours are equal up to here.
    pub matched: u64,
    /// Everything up to here is committed.
    pub committed: u64,
    /// If leading: the first zxid of the epoch, which is established once that is committed.
    pub established_at: u64,
    /// Bit n is set if node n is a member.
    pub members: u64,
    /// Nodes whose packets are handled although they are not members.
    pub guests: u64,
    /// How many members must have a record.
    pub quorum: usize,
    /// If leading: how many records may be uncommitted.
    pub window: u64,
    /// If following: our acknowledgements do not count.
    pub recovering: bool,
    /// The process acknowledges, once records are durable.
    pub acks_by_process: bool,
    /// If following: when the leader was last heard from, by the role's clock.
    pub heard_ns: u64,
    /// If following: when the leader's process was last heard from, and not only its role.
    pub process_heard_ns: u64,
    /// The highest foreign epoch seen in a packet.
    pub higher_epoch: u64,
    /// Zxid up to which the process has applied records.
    pub applied: u64,
    /// The process's clock.
    pub time_ms: u64,
    /// How often the process was to be woken.
    pub advances: u64,
    /// If leading: the members by node id.
    pub peers: [Peer; 8],
}

/// What to do with a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    Drop,
    /// Pass it unchanged to the process.
    Pass,
    /// Rewritten: send it back to its sender.
    Reply,
    /// Rewritten: send it to all other nodes.
    ToOthers,
}

/// The result of handling a packet in the role.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Handled {
    pub verdict: Verdict,
    /// The reason; its name is given by [`inband_ground::System::reason_name`].
    pub reason: u32,
    /// The packet's new length. If it leaves, it must be signed first.
    pub len_bytes: usize,
}

/// Why a record was not appended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// We do not lead.
    NotLeading,
    /// The epoch is not established, the window is full, or the ring is full of records that are not applied.
    Busy,
}

/// The result of [`Role::put`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Put {
    /// The record is in the log, which now matches up to it.
    Taken,
    /// The log already matched up to it.
    Had,
    /// The record does not follow what matches: earlier ones are needed first.
    Gap,
    /// The ring is full of records that are not applied.
    Full,
    /// The node is in another epoch or not idle, or the record is invalid.
    Refused,
}

/// A node's role. All methods may be called while it handles packets; each is atomic.
pub trait Role {
    fn node(&self) -> u8;

    /// Returns the number of records that the ring holds.
    fn capacity(&self) -> u64;

    /// Returns a consistent copy of the registers.
    fn view(&self) -> View;

    /// Returns the zxid up to which everything is committed.
    fn committed(&self) -> u64;

    /// Returns how often a packet has advanced `committed` or a peer's `round`. Cheap to call.
    fn advances(&self) -> u64;

    /// Makes the node idle in this epoch. Packets of earlier epochs are refused from now on, so the returned view is
    /// what may be promised: nothing beyond it is acknowledged any more. If the node is in a later epoch, only returns
    /// the view.
    fn raise_epoch(&self, epoch: u64) -> View;

    /// If idle in our own epoch: leads it. The first record appended establishes it. Returns false if the node is not
    /// idle in it.
    fn lead(&self, epoch: u64) -> bool;

    /// Follows the leader of this epoch, in which our log matches up to what we know to be committed. If we follow it
    /// already, only `recovering` changes. Returns false if there is a later epoch, or the epoch is our own.
    fn follow(&self, epoch: u64, recovering: bool, now_ns: u64) -> bool;

    /// If following: sets whether our acknowledgements do not count.
    fn set_recovering(&self, recovering: bool);

    /// If leading: appends a record, whose zxid, epoch and time are ignored. Returns its zxid; the caller sends it to
    /// the other nodes ([`Role::propose`]).
    fn append(&self, record: &Record) -> Result<u64, Refused>;

    /// Returns the PROPOSE of a record in the log, in the current epoch and still unsigned.
    fn propose(&self, zxid: u64) -> Option<Vec<u8>>;

    /// If idle in this epoch: takes a record of another log, as a follower takes one of its leader's. `committed`: what
    /// is known there to be committed.
    fn put(&self, epoch: u64, record: &Record, committed: u64) -> Put;

    /// Returns a record of the log.
    fn read(&self, zxid: u64) -> Option<Record>;

    /// Records that everything up to here is applied, so that slots of the ring may be reused.
    fn set_applied(&self, zxid: u64);

    /// Sets the time by which records are stamped.
    fn set_time_ms(&self, time_ms: u64);

    /// Sets the members, and how many of them must have a record. If leading, more may become committed.
    fn set_quorum(&self, members: u64, quorum: usize);

    /// Sets the nodes whose packets are handled although they do not count.
    fn set_guests(&self, guests: u64);

    /// If leading: sets how many records may be uncommitted.
    fn set_window(&self, window: u64);

    /// Makes the process acknowledge records once they are durable; also its own, by [`Role::ack_own`].
    fn set_acks_by_process(&self, yes: bool);

    /// If leading: records that our own log is durable up to here. Returns whether `committed` has advanced.
    fn ack_own(&self, zxid: u64) -> bool;

    /// If leading: records that a follower has joined, with our log up to here.
    fn set_joined(&self, node: u8, matched: u64, recovering: bool);

    /// Records that the process has a table of everything up to this record, which is committed. The log continues
    /// after it. Returns false if that much is known to be committed already, or if we lead.
    fn install(&self, zxid: u64, epoch: u64, time_ms: u64) -> bool;

    /// Handles the UDP payload `buffer[..len_bytes]`, which has passed the gate.
    fn handle_packet(
        &self,
        buffer: &mut [u8; PACKET_LEN_MAX_BYTES],
        len_bytes: usize,
        now_ns: u64,
    ) -> Handled;

    /// Returns the counters, by reason, of packets handled in this process.
    fn counters_by_name(&self) -> BTreeMap<&'static str, u64>;

    /// Like [`Role::handle_packet`]; returns the packet that leaves, still unsigned, or the one that passes.
    fn handled(&self, packet: &[u8], now_ns: u64) -> (Verdict, Vec<u8>) {
        let mut buffer = [0; PACKET_LEN_MAX_BYTES];
        buffer[..packet.len()].copy_from_slice(packet);
        let handled = self.handle_packet(&mut buffer, packet.len(), now_ns);
        let mut left = Vec::new();
        if handled.verdict != Verdict::Drop {
            left.extend_from_slice(&buffer[..handled.len_bytes]);
        }
        (handled.verdict, left)
    }
}
