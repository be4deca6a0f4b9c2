//! The trace of Paxos events.

use std::fmt::Write as _;

use inband_paxos::dataplane::round;
use inband_paxos::dataplane::wire::{flag, Header};

use crate::trace::{word_of, Happening};

/// An event. It is small, and formatted only if the trace is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Happened {
    /// A host handled a packet.
    Arrived(u8, u8, Header),
    /// A packet was lost in flight.
    Lost(u8, u8, Header),
    /// A host's timers ran.
    Ticked(u8),
    /// A replica submitted a command.
    Submitted(u8, u64),
    /// A replica applied an instance of a partition; the hash of its state afterwards.
    Applied(u8, usize, u64, u64),
    /// A replica answered a read of a partition; its index.
    Read(u8, usize, u64),
    /// A submission ended: 0 success, 1 outcome unknown, 2 not applied.
    Ended(u8, u64, u8),
    /// A partition's leader changed on a host: 0 suspects, 1 active with this round, 2 stepped down.
    Leader(u8, usize, u8, u64),
    /// A host lost its memory.
    Crashed(u8),
    /// A host started, in this incarnation.
    Started(u8, u64),
    /// A replica installed a peer's state of a partition.
    Checkpoint(u8, usize, u64),
    /// A host and an epoch: the host was sealed for it, votes in it, or entered it.
    Epoch(u8, &'static str, u32),
    /// A fault began or ended: its name, and the hosts concerned.
    Fault(&'static str, u8, u8),
}

impl Happening for Happened {
    type Words = [u64; 6];

    fn words(&self) -> [u64; 6] {
        let mut words = [0u64; 6];
        match *self {
            Happened::Arrived(to, from, h) | Happened::Lost(to, from, h) => {
                let lost = u64::from(matches!(self, Happened::Lost(..)));
                words[0] = 1 + lost;
                words[1] = u64::from(h.partition) << 48
                    | u64::from(to) << 40
                    | u64::from(from) << 32
                    | u64::from(h.flags) << 16
                    | h.kind as u64;
                words[2] = h.instance ^ h.floor.rotate_left(32);
                words[3] = h.round ^ h.vround.rotate_left(17);
                words[4] = h.client_id ^ h.client_seq.rotate_left(40);
                words[5] = h.digest;
            }
            Happened::Ticked(node) => words[..2].copy_from_slice(&[3, node.into()]),
            Happened::Submitted(node, id) => words[..3].copy_from_slice(&[4, node.into(), id]),
            Happened::Applied(node, p, i, state) => {
                words[..5].copy_from_slice(&[5, node.into(), i, state, p as u64]);
            }
            Happened::Read(node, p, i) => {
                words[..4].copy_from_slice(&[12, node.into(), i, p as u64]);
            }
            Happened::Ended(node, id, how) => {
                words[..4].copy_from_slice(&[6, node.into(), id, how.into()]);
            }
            Happened::Leader(node, p, what, round) => {
                words[..5].copy_from_slice(&[7, node.into(), what.into(), round, p as u64]);
            }
            Happened::Crashed(node) => words[..2].copy_from_slice(&[8, node.into()]),
            Happened::Started(node, n) => words[..3].copy_from_slice(&[9, node.into(), n]),
            Happened::Checkpoint(node, p, i) => {
                words[..4].copy_from_slice(&[10, node.into(), i, p as u64]);
            }
            Happened::Epoch(node, what, epoch) => {
                let what = what.len() as u64; // different for each
                words[..4].copy_from_slice(&[13, node.into(), what, epoch.into()]);
            }
            Happened::Fault(name, a, b) => {
                words[..3].copy_from_slice(&[11, a.into(), b.into()]);
                words[3] = word_of(name);
            }
        }
        words
    }

    fn describe(&self) -> String {
        describe(*self)
    }
}

/// A round in readable form: counter.incarnation@node.
pub fn round_name(r: u64) -> String {
    if r == 0 {
        return "-".to_owned();
    }
    let incarnation = r >> 8 & round::INCARNATION_MAX;
    format!("{}.{}@{}", round::counter(r), incarnation, round::owner(r))
}

fn packet(h: &Header) -> String {
    let mut text = format!("{:?}", h.kind);
    for (bit, name) in [
        (flag::NOOP, "noop"),
        (flag::OPEN, "open"),
        (flag::SLOT, "slot"),
        (flag::VOTE, "vote"),
        (flag::REPEAT, "repeat"),
        (flag::RECOVERY, "recovery"),
        (flag::ANSWER, "answer"),
        (flag::LEADER, "leader/peer"),
        (flag::RECOVERING, "recovering"),
        (flag::BELOW_FLOOR, "below-floor"),
    ] {
        if h.has(bit) {
            let _ = write!(text, " {name}");
        }
    }
    if h.partition != 0 {
        let _ = write!(text, " p={}", h.partition);
    }
    let _ = write!(text, " i={} round={}", h.instance, round_name(h.round));
    if h.vround != 0 {
        let _ = write!(text, " vround={}", round_name(h.vround));
    }
    if h.floor != 0 {
        let _ = write!(text, " floor={}", h.floor);
    }
    if h.client_id != 0 || h.client_seq != 0 {
        let _ = write!(
            text,
            " client={:x}/{} low={}",
            h.client_id, h.client_seq, h.client_low
        );
    }
    text
}

fn describe(what: Happened) -> String {
    match what {
        Happened::Arrived(to, from, h) => format!("{from} -> {to}  {}", packet(&h)),
        Happened::Lost(to, from, h) => format!("{from} -x {to}  {}", packet(&h)),
        Happened::Ticked(node) => format!("{node} timers"),
        Happened::Submitted(node, id) => format!("{node} submits command {id}"),
        Happened::Applied(node, p, i, state) => {
            format!("{node} applied {i} of partition {p}, state {state:016x}")
        }
        Happened::Read(node, p, i) => format!("{node} answers a read of {i} of partition {p}"),
        Happened::Ended(node, id, how) => {
            let how = ["succeeded", "has an unknown outcome", "was not applied"][usize::from(how)];
            format!("{node} command {id} {how}")
        }
        Happened::Leader(node, p, 0, _) => {
            format!("{node} suspects the leader of partition {p}")
        }
        Happened::Leader(node, p, 1, round) => {
            format!("{node} leads partition {p} with {}", round_name(round))
        }
        Happened::Leader(node, p, _, _) => format!("{node} steps down in partition {p}"),
        Happened::Crashed(node) => format!("{node} CRASHED"),
        Happened::Started(node, n) => format!("{node} STARTED, incarnation {n}"),
        Happened::Checkpoint(node, p, i) => {
            format!("{node} installed a checkpoint of partition {p} at {i}")
        }
        Happened::Epoch(node, what, epoch) => format!("{node} {what} epoch {epoch}"),
        Happened::Fault(name, a, b) => format!("FAULT {name} {a} {b}"),
    }
}
