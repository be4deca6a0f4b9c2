//! What a process may do with its node's role, wherever that runs.

use std::collections::BTreeMap;

use inband_ground::wire::PACKET_LEN_MAX_BYTES;

/// A record of the log.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Record {
    /// Its place in the log, from 1.
    pub zxid: u64,
    /// In which it was proposed first.
    pub epoch: u64,
    /// When, by the clock of that leader.
    pub time_ms: u64,
    /// Node of the gateway that submitted it; 0: none, a no-op.
    pub origin: u8,
    /// The gateway's session.
    pub origin_session: u64,
    /// Its place in the session, from 1.
    pub origin_seq: u64,
    /// At most [`crate::RECORD_LEN_MAX_BYTES`].
    pub value: Vec<u8>,
}

/// What a node takes part in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// In no broadcast: it elects, or recovers.
    #[default]
    Idle,
    Following,
    Leading,
}

/// What a leader knows of a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Peer {
    /// It has our log up to here, and its acknowledgement counts. Of the leader itself: likewise.
    pub matched: u64,
    /// While it recovers: it has our log up to here, which does not count.
    pub recovered: u64,
    /// The highest `committed` that it has said.
    pub committed: u64,
    /// The last round that it has answered.
    pub round: u64,
    /// When it was last heard, by the role's clock.
    pub heard_ns: u64,
}

/// The registers of one moment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct View {
    /// Packets of an earlier one are refused.
    pub epoch: u64,
    /// What it takes part in.
    pub mode: Mode,
    /// Who leads; 0: unknown.
    pub leader: u8,
    /// The oldest zxid in the ring.
    pub first: u64,
    /// The newest zxid of the log; `first - 1`: the ring is empty.
    pub last: u64,
    /// Epoch of the newest record, 0: there is none.
    pub last_epoch: u64,
    /// Time of the newest record.
    pub last_time_ms: u64,
    /// Following: the leader's log and ours are equal up to here.
    pub matched: u64,
    /// All up to here is committed.
    pub committed: u64,
    /// Leading: the first zxid of the epoch. It is established once that is committed.
    pub established_at: u64,
    /// Bit n is node n.
    pub members: u64,
    /// How many members must have a record.
    pub quorum: usize,
    /// Leading: so many records may be uncommitted.
    pub window: u64,
    /// Following: our acknowledgements do not count.
    pub recovering: bool,
    /// The process acknowledges, once records are durable.
    pub acks_by_process: bool,
    /// Following: when the leader was last heard, by the role's clock.
    pub heard_ns: u64,
    /// The highest epoch of another that a packet had.
    pub higher_epoch: u64,
    /// What the process has applied.
    pub applied: u64,
    /// The process's clock.
    pub time_ms: u64,
    /// How often the process was to be woken.
    pub advances: u64,
    /// Leading: by node id.
    pub peers: [Peer; 8],
}

/// What becomes of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Forget it.
    Drop,
    /// It is for the process, as it came.
    Pass,
    /// Rewritten, to whoever sent it.
    Reply,
    /// Rewritten, to all other nodes.
    ToOthers,
}

/// What the role has done with a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Handled {
    pub verdict: Verdict,
    /// Why: a name is [`inband_ground::System::reason_name`].
    pub reason: u32,
    /// Its length now. If it leaves, it is to be signed.
    pub len_bytes: usize,
}

/// Why a record is not appended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// We do not lead.
    NotLeading,
    /// The epoch is not established, the window is full, or the ring is full of records that are not applied.
    Busy,
}

/// What became of a record that was put.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Put {
    /// It is in the log, which now matches up to it.
    Taken,
    /// The log matched up to it already.
    Had,
    /// It does not follow what is matched: that is needed first.
    Gap,
    /// The ring is full of records that are not applied.
    Full,
    /// The node is in another epoch or not idle, or the record is not one.
    Refused,
}

/// A node's role. All methods may be called while it handles packets; each is one step.
pub trait Role {
    fn node(&self) -> u8;

    /// Records that the ring holds.
    fn capacity(&self) -> u64;

    /// The registers of one moment.
    fn view(&self) -> View;

    /// All up to here is committed.
    fn committed(&self) -> u64;

    /// How often `committed` or a peer's `round` has advanced by a packet: cheap to look at.
    fn advances(&self) -> u64;

    /// Become idle in this epoch. Packets of earlier ones are refused from now on: the view is what may be promised, since
    /// nothing that it does not have is acknowledged any more. In a later epoch than this, nothing happens but the view.
    fn raise_epoch(&self, epoch: u64) -> View;

    /// Idle in our own epoch: lead it. The first record appended establishes it. False: the node is not idle in it.
    fn lead(&self, epoch: u64) -> bool;

    /// Follow the leader of this epoch, in which our log matches up to what we know to be committed. If we follow it already,
    /// only `recovering` changes. False: there is a later epoch, or it is our own.
    fn follow(&self, epoch: u64, recovering: bool, now_ns: u64) -> bool;

    /// Following: our acknowledgements count, or do not.
    fn set_recovering(&self, recovering: bool);

    /// Leading: append a record, of which zxid, epoch and time are ignored. Returns its zxid; the caller sends it to the other
    /// nodes ([`Role::propose`]).
    fn append(&self, record: &Record) -> Result<u64, Refused>;

    /// The PROPOSE of a record in the log, in the present epoch; to be signed.
    fn propose(&self, zxid: u64) -> Option<Vec<u8>>;

    /// Idle in this epoch: take a record of another log, as a follower takes one of its leader's. `committed`: what is known
    /// there to be committed.
    fn put(&self, epoch: u64, record: &Record, committed: u64) -> Put;

    /// A record of the log.
    fn read(&self, zxid: u64) -> Option<Record>;

    /// Everything up to here is applied: slots of the ring may be used again.
    fn set_applied(&self, zxid: u64);

    /// The time by which records are stamped.
    fn set_time_ms(&self, time_ms: u64);

    /// Who is a member, and how many of them must have a record. Leading, more may be committed by it.
    fn set_quorum(&self, members: u64, quorum: usize);

    /// Leading: how many records may be uncommitted.
    fn set_window(&self, window: u64);

    /// The process acknowledges, once records are durable; also its own, by [`Role::ack_own`].
    fn set_acks_by_process(&self, yes: bool);

    /// Leading: our own log is durable up to here. True: `committed` has advanced.
    fn ack_own(&self, zxid: u64) -> bool;

    /// Leading: a follower has joined, with our log up to here.
    fn set_joined(&self, node: u8, matched: u64, recovering: bool);

    /// The process has a table of everything up to this record, which is committed. The log continues behind it. False: so
    /// much is known to be committed already, or we lead.
    fn install(&self, zxid: u64, epoch: u64, time_ms: u64) -> bool;

    /// Handle the UDP payload `buffer[..len_bytes]`, which has passed the gate.
    fn handle_packet(
        &self,
        buffer: &mut [u8; PACKET_LEN_MAX_BYTES],
        len_bytes: usize,
        now_ns: u64,
    ) -> Handled;

    /// What packets have met, by reason: those handled in this process.
    fn counters_by_name(&self) -> BTreeMap<&'static str, u64>;

    /// As [`Role::handle_packet`]; returns the packet that leaves, to be signed, or that passes.
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
