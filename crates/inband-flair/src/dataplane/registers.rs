//! The registers of a FLAIR switch, for status and tests.

use std::sync::atomic::{fence, AtomicU64, Ordering};

use super::c;
use super::FlairGeometry;
use inband_ground::registers::{field, registers, Shared};

/// Attempts to read a consistent copy.
const COPY_TRIES_MAX: u32 = 1_000_000;
/// Yield the CPU after this many attempts.
const COPY_SPINS: u32 = 1_000;

/// A consistent copy of a set's session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[allow(missing_docs)]
pub struct SessionView {
    /// 0 if there has been none.
    pub session: u64,
    pub term: u32,
    pub leader: u8,
    pub log_index: u64,
    pub followers: u8,
    pub replicas: u8,
    pub weights: [u8; 8],
    /// Flags of `flair/wire.h`.
    pub policy: u8,
    pub step_down_ns: u64,
    /// The session is active until then, by the switch's clock.
    pub deadline_ns: u64,
    /// The last sequence number assigned.
    pub seq: u64,
    /// The highest sequence number answered.
    pub replied: u64,
}

impl SessionView {
    /// Returns whether the session is active at this time of the switch's clock.
    pub fn is_active(&self, now_ns: u64) -> bool {
        now_ns < self.deadline_ns
    }
}

/// A consistent copy of a key group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[allow(missing_docs)]
pub struct GroupView {
    /// The session in which it was last written. If that is not the set's current session, the group is still as it was
    /// when that session began.
    pub session: u64,
    pub seq: u64,
    pub stable: bool,
    pub log_index: u64,
    pub followers: u8,
}

/// All registers of a FLAIR switch: a soft switch's own memory, or a view of an XDP program's maps.
pub struct FlairRegisters {
    /// Indexed by set.
    pub sessions: SessionRegisters,
    /// Indexed by set * groups + group.
    pub groups: GroupRegisters,
}

impl FlairRegisters {
    /// Zeroed registers in this process's memory.
    pub fn zeroed(geometry: FlairGeometry) -> FlairRegisters {
        FlairRegisters {
            sessions: Shared::zeroed(geometry.sets).into(),
            groups: Shared::zeroed(geometry.sets * geometry.groups).into(),
        }
    }

    /// Zeroes everything. For tests only: the switch must not be handling packets.
    pub fn clear(&self) {
        self.sessions.clear();
        self.groups.clear();
    }

    pub fn memory_bytes(&self) -> usize {
        self.sessions.memory_bytes() + self.groups.memory_bytes()
    }
}

/// Repeats `copy` until the sequence word is even and unchanged by the end.
fn of_one_moment<T>(sequence: &AtomicU64, copy: impl Fn() -> T) -> Option<T> {
    for attempt in 0..COPY_TRIES_MAX {
        let before = sequence.load(Ordering::Acquire);
        if before & 1 == 0 {
            let copied = copy();
            fence(Ordering::Acquire);
            if sequence.load(Ordering::Relaxed) == before {
                return Some(copied);
            }
        }
        if attempt < COPY_SPINS {
            std::hint::spin_loop();
        } else {
            std::thread::yield_now();
        }
    }
    None
}

registers!(
    /// Sessions, indexed by set.
    SessionRegisters of c::ib_flair_session
);

impl SessionRegisters {
    /// Returns a consistent copy of a set's session, or `None` if concurrent writes prevented every attempt.
    pub fn session(&self, set: usize) -> Option<SessionView> {
        let read = |word: &AtomicU64| word.load(Ordering::Relaxed);
        of_one_moment(field!(self, set, c::ib_flair_session, sequence), || {
            let route = read(field!(self, set, c::ib_flair_session, route));
            let [policy, replicas, followers, leader, ..] = route.to_le_bytes();
            SessionView {
                session: read(field!(self, set, c::ib_flair_session, session)),
                term: (route >> 32) as u32,
                leader,
                log_index: read(field!(self, set, c::ib_flair_session, log_index)),
                followers,
                replicas,
                weights: read(field!(self, set, c::ib_flair_session, weights)).to_le_bytes(),
                policy,
                step_down_ns: read(field!(self, set, c::ib_flair_session, step_down_ns)),
                deadline_ns: read(field!(self, set, c::ib_flair_session, deadline_ns)),
                seq: read(field!(self, set, c::ib_flair_session, seq)),
                replied: read(field!(self, set, c::ib_flair_session, replied)),
            }
        })
    }

    /// Overwrites a session. For tests only: the switch must not be handling packets.
    pub fn restore(&self, set: usize, view: SessionView) {
        let write = |word: &AtomicU64, value| word.store(value, Ordering::SeqCst);
        let [a, b, d, e] = view.term.to_le_bytes();
        let places = [view.policy, view.replicas, view.followers, view.leader];
        let [p, r, f, l] = places;
        let route = u64::from_le_bytes([p, r, f, l, a, b, d, e]);
        write(
            field!(self, set, c::ib_flair_session, session),
            view.session,
        );
        write(field!(self, set, c::ib_flair_session, route), route);
        write(
            field!(self, set, c::ib_flair_session, log_index),
            view.log_index,
        );
        let weights = u64::from_le_bytes(view.weights);
        write(field!(self, set, c::ib_flair_session, weights), weights);
        write(
            field!(self, set, c::ib_flair_session, step_down_ns),
            view.step_down_ns,
        );
        write(
            field!(self, set, c::ib_flair_session, deadline_ns),
            view.deadline_ns,
        );
        write(field!(self, set, c::ib_flair_session, seq), view.seq);
        write(
            field!(self, set, c::ib_flair_session, replied),
            view.replied,
        );
    }
}

registers!(
    /// Key groups.
    GroupRegisters of c::ib_flair_group
);

impl GroupRegisters {
    /// Returns a consistent copy of a group, or `None` if concurrent writes prevented every attempt.
    pub fn group(&self, index: usize) -> Option<GroupView> {
        let read = |word: &AtomicU64| word.load(Ordering::Relaxed);
        of_one_moment(field!(self, index, c::ib_flair_group, sequence), || {
            GroupView {
                session: read(field!(self, index, c::ib_flair_group, session)),
                seq: read(field!(self, index, c::ib_flair_group, seq)),
                stable: read(field!(self, index, c::ib_flair_group, stable)) != 0,
                log_index: read(field!(self, index, c::ib_flair_group, log_index)),
                followers: read(field!(self, index, c::ib_flair_group, followers)) as u8,
            }
        })
    }

    /// Overwrites a group. For tests only: the switch must not be handling packets.
    pub fn restore(&self, index: usize, view: GroupView) {
        let write = |word: &AtomicU64, value| word.store(value, Ordering::SeqCst);
        write(
            field!(self, index, c::ib_flair_group, session),
            view.session,
        );
        write(field!(self, index, c::ib_flair_group, seq), view.seq);
        let stable = u64::from(view.stable);
        write(field!(self, index, c::ib_flair_group, stable), stable);
        write(
            field!(self, index, c::ib_flair_group, log_index),
            view.log_index,
        );
        let followers = u64::from(view.followers);
        write(field!(self, index, c::ib_flair_group, followers), followers);
    }
}
