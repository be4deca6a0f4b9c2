//! How a replica answers reads and writes.

use crate::dataplane::wire::{self, flag, Header, Type};

use super::{Out, Replica};
use crate::groups::Refresh;
use crate::reads::Reads;
use crate::store::Done;
use crate::timing::Nanos;

/// The answering replica: set, node id, number.
pub(super) type Identity = (u16, u16, u8);

/// Where to send the answer to a write once it is applied.
#[derive(Debug, Clone, Copy)]
pub(super) struct Answer {
    pub switch: u8,
    pub group: usize,
    pub session: u64,
    pub seq: u64,
    request: Header,
}

impl Answer {
    pub fn to(request: &Header, switch: u8, group: usize) -> Answer {
        Answer {
            switch,
            group,
            session: request.session,
            seq: request.seq,
            request: *request,
        }
    }

    /// Returns the reply to a write that was applied at `index`; `followers` hold that entry.
    pub fn written(&self, done: Done, index: u64, followers: u8, own: Identity) -> Header {
        let mut header = reply(Type::WriteReply, &self.request, own);
        header.log_index = index;
        header.followers = followers;
        match done {
            Done::Opened => header.client_id = index,
            Done::Refused => header.flags |= flag::REFUSED,
            Done::Missing => header.flags |= flag::MISSING,
            Done::Written | Done::Session => {}
        }
        header
    }
}

/// A read that the leader cannot answer immediately.
#[derive(Debug)]
pub(super) struct WaitingRead {
    pub switch: u8,
    pub request: Header,
    pub key: Box<[u8]>,
}

/// A reply to a read that must be held back.
#[derive(Debug)]
pub(super) struct HeldReply {
    pub switch: u8,
    pub header: Header,
    pub key: Box<[u8]>,
    pub data: Box<[u8]>,
}

/// Returns an empty reply: it identifies the session, the operation and the client of the request.
fn reply(kind: Type, request: &Header, (set, node, replica): Identity) -> Header {
    Header {
        term: request.term,
        client: request.client,
        session: request.session,
        seq: request.seq,
        log_index: request.log_index,
        key_hash: request.key_hash,
        client_id: request.client_id,
        client_seq: request.client_seq,
        replica,
        ..Header::new(kind, set, node)
    }
}

impl Replica {
    pub(super) fn identity(&self) -> Identity {
        (self.config.set, self.config.node, self.config.replica)
    }

    pub(super) fn on_read(
        &mut self,
        now: Nanos,
        switch: u8,
        request: &Header,
        key: &[u8],
        out: &mut Out,
    ) {
        if request.has(flag::STABLE) {
            return self.read_as_follower(now, switch, request, key, out);
        }
        if self.lflair.serving() != Some((request.session, switch)) {
            return; // the switch would drop the answer
        }
        match self.config.reads {
            Reads::Majority => self.read_with_majority(WaitingRead {
                switch,
                request: *request,
                key: key.into(),
            }),
            Reads::FollowerLeases => self.read_with_leases(switch, request, key, out),
            Reads::Flair | Reads::Leader => {
                self.counters.reads_leader += 1;
                self.answer_read(switch, request, key, out);
            }
        }
        if self.config.reads == Reads::Flair {
            self.refresh(now, switch, request, out);
        }
    }

    pub(super) fn answer_waiting(&mut self, read: &WaitingRead, out: &mut Out) {
        self.counters.reads_leader += 1;
        self.answer_read(read.switch, &read.request, &read.key, out);
    }

    /// Tells the switch that the group is stable, if the switch does not know that.
    fn refresh(&mut self, now: Nanos, switch: u8, request: &Header, out: &mut Out) {
        if let Some(refresh) = self.refresh_of(now, request) {
            self.counters.refreshes += 1;
            let mut header = reply(Type::WriteReply, request, self.identity());
            header.flags = flag::REFRESH;
            (header.client_id, header.client_seq) = (0, 0);
            header.log_index = refresh.log_index;
            header.followers = refresh.followers;
            out.packets.push(switch, &header, &[], &[]);
        }
    }

    fn refresh_of(&mut self, now: Nanos, request: &Header) -> Option<Refresh> {
        let group = wire::group_of(request.key_hash, self.config.groups);
        self.groups.on_read(
            now,
            (group, request.seq, request.log_index),
            self.raft.applied(),
            |index| self.peers.holding(index),
            self.config.timing.refresh_after_ns,
        )
    }

    fn read_as_follower(
        &mut self,
        now: Nanos,
        switch: u8,
        request: &Header,
        key: &[u8],
        out: &mut Out,
    ) {
        let may_read = match self.config.reads {
            _ if self.is_session_over(request) => false,
            Reads::FollowerLeases => self.has_lease(now, request),
            _ => self.advance_to(now, request, out),
        };
        if may_read {
            self.counters.reads_follower += 1;
            return self.answer_read(switch, request, key, out);
        }
        self.counters.reads_refused += 1;
        let mut header = reply(Type::ReadReply, request, self.identity());
        header.flags = flag::STABLE | flag::REFUSED;
        out.packets.push(switch, &header, key, &[]);
    }

    /// `advance_then_read`: applies the entries up to the index in the request if they are in the log. Returns whether
    /// they are applied.
    fn advance_to(&mut self, now: Nanos, request: &Header, out: &mut Out) -> bool {
        if self.raft.applied() < request.log_index {
            let term = u64::from(request.term);
            let is_there = self.raft.commit_to(request.log_index, term);
            // Ignore an error: the driver's next call returns it again.
            if is_there && self.advance(now, out).is_ok() {
                self.counters.reads_advanced += 1;
            }
        }
        self.raft.applied() >= request.log_index
    }

    pub(super) fn answer_read(&self, switch: u8, request: &Header, key: &[u8], out: &mut Out) {
        let (header, data) = self.read_reply(request, key);
        out.packets.push(switch, &header, key, data);
    }

    /// Returns the reply to a read, from the current state.
    pub(super) fn read_reply(&self, request: &Header, key: &[u8]) -> (Header, &[u8]) {
        let mut header = reply(Type::ReadReply, request, self.identity());
        header.flags = request.flags & flag::STABLE;
        let data = self.raft.state().get(key);
        match data {
            Some(data) => header.digest = self.digests.of_data(data),
            None => header.flags |= flag::MISSING,
        }
        (header, data.unwrap_or_default())
    }
}
