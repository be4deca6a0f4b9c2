//! The leader's order of writes, per key group, within one FLAIR session.
//!
//! The switch numbers the writes. The leader accepts a write only if its number is higher than any before it in that
//! group. So when it answers the last one, every write that it has ever accepted in the group is applied.

use std::collections::BTreeMap;

use crate::timing::Nanos;

/// One group. Groups that have not been written have no entry.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Group {
    /// The last write accepted or given up. No other write up to this number is accepted.
    last_seq: u64,
    /// Writes accepted and not yet applied.
    pending: u32,
    /// The index in the last answer, and the replicas that it named as holding it.
    answered: Option<(u64, u8)>,
    answered_at: Nanos,
    /// A higher number than the last, reported by a read, and when it was first seen.
    unseen: Option<(u64, Nanos)>,
}

/// A reply for no client, which makes the group stable at the switch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refresh {
    /// The write that it answers.
    pub seq: u64,
    /// Everything in the group is applied up to this index.
    pub log_index: u64,
    /// Bitmap of the replicas that hold that entry.
    pub followers: u8,
}

#[derive(Debug, Default)]
pub struct Groups {
    session: u64,
    groups: BTreeMap<usize, Group>,
}

impl Groups {
    /// Begins a session. Writes of an earlier session no longer matter: the switch does not ask about them.
    pub fn begin(&mut self, session: u64) {
        self.session = session;
        self.groups.clear();
    }

    /// Accepts a write if it is in order. Returns whether it did.
    pub fn take(&mut self, group: usize, seq: u64) -> bool {
        let group = self.groups.entry(group).or_default();
        if seq <= group.last_seq {
            return false;
        }
        group.last_seq = seq;
        group.pending += 1;
        group.answered = None;
        true
    }

    /// An accepted write is applied and answered: (sequence number, index, replicas named as holding it).
    pub fn applied(&mut self, now: Nanos, session: u64, group: usize, answer: (u64, u64, u8)) {
        let (seq, index, followers) = answer;
        let Some(group) = self
            .groups
            .get_mut(&group)
            .filter(|_| session == self.session)
        else {
            return; // from an earlier session
        };
        group.pending -= 1;
        if seq == group.last_seq {
            group.answered = Some((index, followers));
            group.answered_at = now;
        }
    }

    /// An accepted write could not be proposed; treat it as lost.
    pub fn give_up(&mut self, group: usize) {
        if let Some(group) = self.groups.get_mut(&group) {
            group.pending -= 1;
        }
    }

    /// Handles a read at the leader, which carries the sequence number and the index that the switch has for the group.
    /// `applied` is the leader's applied index; `holding` returns which replicas hold an entry.
    pub fn on_read(
        &mut self,
        now: Nanos,
        (group, seq, log_index): (usize, u64, u64),
        applied: u64,
        holding: impl Fn(u64) -> u8,
        after_ns: Nanos,
    ) -> Option<Refresh> {
        if seq == 0 {
            return None; // not written in this session: stable
        }
        let group = self.groups.entry(group).or_default();
        if seq < group.last_seq || group.pending > 0 {
            return None; // the answer to a later write will come
        }
        if seq > group.last_seq {
            group.wait_for(now, seq, after_ns)?;
            group.answered = None;
        }
        if group.answered.is_none() {
            group.answered_at = now.saturating_sub(after_ns);
        }
        let (index, named) = *group.answered.get_or_insert((applied, 0));
        let is_unstable = log_index != index;
        let holds_now = holding(index);
        if !(is_unstable || holds_now & !named != 0) || now < group.answered_at + after_ns {
            return None; // the switch knows already, or the answer may be in flight
        }
        group.answered = Some((index, holds_now));
        group.answered_at = now;
        Some(Refresh {
            seq,
            log_index: index,
            followers: holds_now,
        })
    }
}

impl Group {
    /// The switch numbered a write that has not arrived. Gives it up after `after_ns` if nothing is pending.
    fn wait_for(&mut self, now: Nanos, seq: u64, after_ns: Nanos) -> Option<()> {
        match self.unseen {
            Some((unseen, since)) if unseen == seq => {
                if now < since + after_ns {
                    return None;
                }
                self.last_seq = seq;
                self.unseen = None;
                Some(())
            }
            _ => {
                self.unseen = Some((seq, now));
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: u8 = 0b111;

    fn read(groups: &mut Groups, now: Nanos, seq: u64, log_index: u64) -> Option<Refresh> {
        groups.on_read(now, (1, seq, log_index), 50, |_| ALL, 20)
    }

    fn begun() -> Groups {
        let mut groups = Groups::default();
        groups.begin(9);
        groups
    }

    #[test]
    fn order_is_kept_within_a_group_only() {
        let mut groups = begun();
        assert!(groups.take(1, 7));
        assert!(!groups.take(1, 7), "it came twice");
        assert!(!groups.take(1, 6), "it was overtaken");
        assert!(groups.take(2, 6), "another group");
        assert!(groups.take(1, 8));
        groups.begin(10);
        assert!(groups.take(1, 1));
    }

    #[test]
    fn a_lost_reply_is_sent_again_once_all_is_applied() {
        let mut groups = begun();
        groups.take(1, 3);
        groups.take(1, 5);
        assert_eq!(read(&mut groups, 100, 5, 0), None, "both are pending");
        groups.applied(110, 9, 1, (5, 41, ALL));
        assert_eq!(read(&mut groups, 200, 5, 0), None, "3 is");
        groups.applied(210, 9, 1, (3, 40, ALL));
        let refresh = Refresh {
            seq: 5,
            log_index: 41,
            followers: ALL,
        };
        assert_eq!(read(&mut groups, 220, 3, 0), None, "that is known");
        assert_eq!(read(&mut groups, 220, 5, 0), Some(refresh));
        assert_eq!(read(&mut groups, 230, 5, 0), None, "not at once again");
        assert_eq!(read(&mut groups, 240, 5, 0), Some(refresh));
        assert_eq!(read(&mut groups, 300, 5, 41), None, "the switch has it");
    }

    #[test]
    fn a_lost_write_is_given_up_and_then_refused() {
        let mut groups = begun();
        groups.take(1, 3);
        assert_eq!(read(&mut groups, 100, 4, 0), None);
        assert_eq!(read(&mut groups, 140, 4, 0), None, "3 is still pending");
        groups.applied(150, 9, 1, (3, 40, ALL));
        assert_eq!(read(&mut groups, 160, 4, 40), None);
        let refresh = Refresh {
            seq: 4,
            log_index: 50,
            followers: ALL,
        };
        assert_eq!(read(&mut groups, 180, 4, 40), Some(refresh));
        assert!(!groups.take(1, 4), "too late");
        assert!(groups.take(1, 5));
        groups.applied(190, 8, 1, (5, 60, ALL));
        assert_eq!(read(&mut groups, 300, 5, 0), None, "of another session");
    }

    #[test]
    fn a_follower_that_has_caught_up_is_named() {
        let mut groups = begun();
        groups.take(1, 3);
        groups.applied(100, 9, 1, (3, 40, 0b011));
        let refresh = Refresh {
            seq: 3,
            log_index: 40,
            followers: ALL,
        };
        assert_eq!(read(&mut groups, 110, 3, 40), None, "not at once");
        assert_eq!(read(&mut groups, 130, 3, 40), Some(refresh));
        assert_eq!(read(&mut groups, 160, 3, 40), None, "all are named");
    }
}
