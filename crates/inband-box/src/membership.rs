//! The membership: which nodes are members, and how many of them must have a record. It is part of the log: the record
//! that changes it contains all of it, and a node goes by the last such record in its log, committed or not.
//! docs/box.md argues why no committed record is lost by a change.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::node::{Config, Node, Out, Quorum, State, To};
use crate::promise::{majority, Nanos};
use crate::role::{Record, Role, View};

/// Minimum number of members.
pub const MEMBERS_MIN: u8 = 3;
/// Version of the records, for later programs.
const VERSION: u8 = 1;
/// Length of a record's value.
const LEN_BYTES: usize = 6;

/// The members, and what their records need. See the [module](self).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Membership {
    /// Bit n is set if node n is a member, and counts.
    pub members: u8,
    /// The node that is joining: it gets the log, and counts once it has all of it and is a member; 0: none.
    pub joining: u8,
    /// The id of the next node that joins. Ids are never reused.
    pub next: u8,
    pub quorum: Quorum,
    /// This record, and earlier ones that are not committed yet, need no more than it says.
    pub is_forced: bool,
}

/// A change that an operator may ask for. One change at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// Changes how many members must have a record.
    Quorum { quorum: Quorum, force: bool },
    /// Lets the next node join.
    Add,
    /// Removes a member, or gives up a node that is joining.
    Remove { node: u8 },
}

/// Why a change was refused. Nothing has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ChangeError {
    #[error("this node does not lead; {}", leader_in_words(*.leader))]
    NotLeading { leader: Option<u8> },
    #[error("the leader was just elected, and its first record is not committed yet: ask again")]
    NotEstablished,
    #[error("another change is under way: wait until `inband status` shows that it is done; if the quorum is all and it waits for a node that is down, `inband quorum majority --force` lets a majority decide")]
    UnderWay,
    #[error("node/{joining} is joining: wait until it is a member, or give it up with `inband member remove node/{joining}`")]
    Joining { joining: u8 },
    #[error("there is no place for another node: {places} were configured, an id is used only once, and the next would be {next}")]
    NoPlace { places: u8, next: u8 },
    #[error("node/{node} is not a member")]
    NoMember { node: u8 },
    #[error("{MEMBERS_MIN} nodes are left, the fewest: with less no node may fail")]
    TooFew,
    #[error("only `majority` can be forced: with less than all nodes it cannot be known that all have a record")]
    ForcedAll,
    #[error("too few of the nodes that would be left have the log: wait until `inband status` says that the others follow")]
    TooFewLogs,
    #[error("the log is full of records that are not committed yet: ask again")]
    Full,
}

fn leader_in_words(leader: Option<u8>) -> String {
    match leader {
        Some(leader) => format!("node/{leader} does"),
        None => "no node that it knows does".to_owned(),
    }
}

/// Returns the nodes of a bitmap.
pub fn ids(bitmap: u8) -> impl Iterator<Item = u8> + Clone {
    (1..8).filter(move |node| bitmap >> node & 1 != 0)
}

/// Returns the bitmap of some nodes.
pub fn bitmap(nodes: impl IntoIterator<Item = u8>) -> u8 {
    nodes.into_iter().fold(0, |bits, node| bits | 1 << node)
}

/// What a record needs: this many of these nodes must have it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Needed {
    pub members: u8,
    is_all: bool,
}

impl Needed {
    pub fn count(self) -> usize {
        let members = self.members.count_ones() as u8;
        match self.is_all {
            true => members.into(),
            false => majority(members),
        }
    }

    fn of(membership: &Membership) -> Needed {
        Needed {
            members: membership.members,
            is_all: membership.quorum == Quorum::All,
        }
    }

    /// Returns what records need while `next` is not committed. Only its members count, because a node that leaves may
    /// have left already, knowing that the change is committed when a new leader does not. A majority of them
    /// intersects each majority of the former members, since there is one member more or less.
    fn until(self, next: &Membership) -> Needed {
        let next_needs = Needed::of(next);
        Needed {
            is_all: next_needs.is_all || self.is_all && !next.is_forced,
            ..next_needs
        }
    }
}

impl fmt::Display for Membership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<String> = ids(self.members).map(|id| format!("node/{id}")).collect();
        write!(f, "members: {}", names.join(", "))?;
        if self.joining != 0 {
            write!(f, ", and node/{} is joining", self.joining)?;
        }
        write!(f, "; quorum: {}", self.quorum.name())
    }
}

impl Membership {
    /// Returns the membership of the nodes from 1 on that start together.
    pub fn founding(nodes: u8, quorum: Quorum) -> Membership {
        Membership {
            members: bitmap(1..=nodes),
            joining: 0,
            next: nodes + 1,
            quorum,
            is_forced: false,
        }
    }

    /// Returns the number of members.
    pub fn count(&self) -> u8 {
        self.members.count_ones() as u8
    }

    pub fn is_member(&self, node: u8) -> bool {
        self.members >> node & 1 != 0
    }

    /// Returns whether a node was a member, or joining, and never will be again.
    pub fn has_removed(&self, node: u8) -> bool {
        node < self.next && self.reach() >> node & 1 == 0
    }

    /// Returns the nodes that get the log.
    pub fn reach(&self) -> u8 {
        // Bit 0 belongs to no node.
        (self.members | 1 << self.joining) & !1
    }

    /// Returns how many members are a majority.
    pub fn majority(&self) -> usize {
        majority(self.count())
    }

    /// Returns whether a majority of the members is among these nodes.
    pub fn has_majority(&self, nodes: u8) -> bool {
        (nodes & self.members).count_ones() as usize >= self.majority()
    }

    /// Returns the membership after a change, if it is allowed. `places`: the highest id.
    pub fn with(&self, change: Change, places: u8) -> Result<Membership, ChangeError> {
        let mut next = Membership {
            is_forced: false,
            ..*self
        };
        let joining = self.joining;
        match change {
            Change::Remove { node } if node != 0 && node == joining => next.joining = 0,
            Change::Add | Change::Remove { .. } if joining != 0 => {
                return Err(ChangeError::Joining { joining });
            }
            Change::Quorum { quorum, force } => {
                if force && quorum == Quorum::All {
                    return Err(ChangeError::ForcedAll);
                }
                (next.quorum, next.is_forced) = (quorum, force);
            }
            Change::Add if self.next > places => {
                let next = self.next;
                return Err(ChangeError::NoPlace { places, next });
            }
            Change::Add => (next.joining, next.next) = (self.next, self.next + 1),
            Change::Remove { node } if ids(self.members).all(|id| id != node) => {
                return Err(ChangeError::NoMember { node });
            }
            Change::Remove { .. } if self.count() <= MEMBERS_MIN => {
                return Err(ChangeError::TooFew);
            }
            Change::Remove { node } => next.members &= !(1 << node),
        }
        Ok(next)
    }

    /// Returns the membership after the joining node has become a member.
    pub fn with_joined(&self) -> Membership {
        Membership {
            members: self.reach(),
            joining: 0,
            is_forced: false,
            ..*self
        }
    }

    /// Returns what records need while those of `pending` are in the leader's log but not committed; `self` is
    /// committed.
    pub(crate) fn needed<'a>(&self, pending: impl Iterator<Item = &'a Membership>) -> Needed {
        pending.fold(Needed::of(self), Needed::until)
    }

    /// Returns the record of this membership.
    pub fn record(&self) -> Record {
        let bytes: [u8; LEN_BYTES] = [
            VERSION,
            self.members,
            self.joining,
            self.next,
            (self.quorum == Quorum::All).into(),
            self.is_forced.into(),
        ];
        Record {
            value: bytes.to_vec(),
            ..Record::default()
        }
    }

    /// Returns the membership that a record sets; `None` if it is a gateway's record, or sets none.
    pub fn of(record: &Record) -> Option<Membership> {
        let value: &[u8; LEN_BYTES] = record.value[..].try_into().ok()?;
        match *value {
            [VERSION, members, joining, next, is_all, is_forced] if record.origin == 0 => {
                Some(Membership {
                    members,
                    joining,
                    next,
                    quorum: match is_all {
                        0 => Quorum::Majority,
                        _ => Quorum::All,
                    },
                    is_forced: is_forced != 0,
                })
            }
            _ => None,
        }
    }
}

/// What a leader knows about the membership.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cluster {
    pub config: Config,
    /// According to its log, committed or not.
    pub membership: Membership,
    /// The other nodes that get the log.
    pub reach: u8,
}

impl Cluster {
    pub fn others(&self) -> impl Iterator<Item = u8> + Clone {
        ids(self.reach)
    }

    /// Returns whether a condition holds for a majority of the members, counting itself.
    pub fn is_majority(&self, is_so: impl Fn(u8) -> bool) -> bool {
        let own = self.config.node;
        let members = ids(self.membership.members);
        let so = members.filter(|node| *node == own || is_so(*node));
        self.membership.has_majority(bitmap(so))
    }
}

impl Node {
    /// Stores the membership in the role's registers.
    pub(crate) fn tell_role(&mut self, role: &impl Role) {
        self.has_membership_changed = false;
        let pending = self.pending();
        let needed = self.membership.needed(pending.iter().map(|(_, next)| next));
        role.set_quorum(needed.members.into(), needed.count());
        let guests = match self.state {
            State::Leading(_) => self.reach(),
            // A node that we do not know yet may lead, or have promised a higher epoch.
            _ => !1,
        };
        // A leader that is no longer a member leads until that is committed.
        let guests = (guests | 1 << self.config.node) & !needed.members;
        role.set_guests(guests.into());
    }

    /// Returns the changes in the log that are not applied yet. If leading, they are not committed, or not known to be.
    pub(crate) fn pending(&self) -> &[(u64, Membership)] {
        match &self.state {
            State::Leading(leading) => &leading.pending,
            _ => &[],
        }
    }

    /// Returns the changes in the log that are not applied.
    pub(crate) fn unapplied(&self, role: &impl Role) -> Vec<(u64, Membership)> {
        let now = role.view();
        let records = (now.applied + 1..=now.last).filter_map(|zxid| role.read(zxid));
        let said = records.filter_map(|record| Some((record.zxid, Membership::of(&record)?)));
        said.collect()
    }

    /// Returns the membership according to our log, committed or not.
    pub fn latest(&self, role: &impl Role) -> Membership {
        let last = self.unapplied(role).pop();
        last.map_or(self.membership, |(_, membership)| membership)
    }

    /// Returns the nodes that packets for all others go to.
    pub fn reach(&self) -> u8 {
        let own = 1 << self.config.node;
        let reach = match &self.state {
            State::Leading(leading) => {
                let pending = leading.pending.iter();
                let pending = pending.fold(0, |reach, (_, next)| reach | next.reach());
                self.membership.reach() | pending
            }
            // It may not know about nodes that have joined since.
            _ => Membership::founding(self.config.nodes, Quorum::All).members,
        };
        reach & !own
    }

    /// Returns the nodes that the role's packets for all others go to; only a leader's role sends such packets.
    pub fn group(&self) -> u8 {
        match self.state {
            State::Leading(_) => self.reach(),
            _ => self.membership.reach() & !(1 << self.config.node),
        }
    }

    /// Returns the membership that a leader goes by at present.
    pub(crate) fn cluster(&self) -> Cluster {
        let last = self.pending().last();
        Cluster {
            config: self.config,
            membership: last.map_or(self.membership, |(_, membership)| *membership),
            reach: self.reach(),
        }
    }

    /// Sets the membership of the records in a table that was just installed.
    pub fn on_installed(
        &mut self,
        membership: Option<Membership>,
        role: &impl Role,
        out: &mut Out,
    ) {
        self.membership = membership.unwrap_or(self.config.founding);
        self.tell_role(role);
        out.is_removed |= self.membership.has_removed(self.config.node);
    }

    /// Begins a change; only the leader can. Returns the zxid of its record and the new membership. The change is done
    /// when that record is applied, and is not done if another record is applied at that zxid.
    ///
    /// # Errors
    /// Nothing has changed.
    pub fn change(
        &mut self,
        now: Nanos,
        change: Change,
        role: &impl Role,
        out: &mut Out,
    ) -> Result<(u64, Membership), ChangeError> {
        let registers = role.view();
        let State::Leading(leading) = &self.state else {
            let leader = self.leader();
            return Err(ChangeError::NotLeading { leader });
        };
        // A forced quorum changes no members, so it is safe beside whatever change an earlier leader may have begun. It
        // must not wait: with the quorum of all, an epoch is established only once every node has its first record.
        let is_forced = matches!(change, Change::Quorum { force: true, .. });
        // Once a record of our epoch is committed, an earlier leader's change never will be.
        if registers.committed < registers.established_at && !is_forced {
            return Err(ChangeError::NotEstablished);
        }
        if !leading.pending.is_empty() && !is_forced {
            return Err(ChangeError::UnderWay);
        }
        let cluster = self.cluster();
        let next = cluster.membership.with(change, self.config.nodes)?;
        let has_other_members = next.members != cluster.membership.members;
        if has_other_members && !leading.may_lead_to(next, &cluster, &registers, now) {
            return Err(ChangeError::TooFewLogs);
        }
        let proposed = self.propose_membership(next, role, out);
        Ok((proposed.ok_or(ChangeError::Full)?, next))
    }

    /// Appends and proposes the record. Before that, what records need from now on is put in force.
    pub(crate) fn propose_membership(
        &mut self,
        next: Membership,
        role: &impl Role,
        out: &mut Out,
    ) -> Option<u64> {
        let next_zxid = role.view().last + 1;
        let State::Leading(leading) = &mut self.state else {
            return None;
        };
        leading.pending.push((next_zxid, next));
        self.tell_role(role);
        let appended = role.append(&next.record());
        let State::Leading(leading) = &mut self.state else {
            return None;
        };
        let Ok(zxid) = appended else {
            leading.pending.pop();
            self.tell_role(role);
            return None;
        };
        leading.pending.last_mut()?.0 = zxid;
        out.packets
            .extend(role.propose(zxid).map(|packet| (To::Others, packet)));
        Some(zxid)
    }

    /// Makes the joining node a member once it has caught up.
    pub(crate) fn go_on_changing(
        &mut self,
        now: Nanos,
        registers: &View,
        role: &impl Role,
        out: &mut Out,
    ) {
        let joining = self.membership.joining;
        let is_established = registers.committed >= registers.established_at;
        if joining == 0 || !is_established || !self.has_caught_up(joining) {
            return;
        }
        let State::Leading(leading) = &self.state else {
            return;
        };
        let next = self.membership.with_joined();
        if leading.pending.is_empty()
            && registers.is_heard(joining, &self.config, now)
            && leading.may_lead_to(next, &self.cluster(), registers, now)
        {
            self.propose_membership(next, role, out);
        }
    }

    /// If leading: returns the members that this record still lacks, and how many it needs.
    pub fn lacking(&self, zxid: u64, role: &impl Role) -> Option<(Vec<u8>, Quorum)> {
        let State::Leading(leading) = &self.state else {
            return None;
        };
        let needed = self
            .membership
            .needed(leading.pending.iter().map(|(_, next)| next));
        let registers = role.view();
        let lacks = |id: &u8| registers.peers[usize::from(*id)].matched < zxid;
        let lacking = ids(needed.members).filter(lacks).collect();
        let quorum = match needed.is_all {
            true => Quorum::All,
            false => Quorum::Majority,
        };
        Some((lacking, quorum))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAJORITY: Quorum = Quorum::Majority;

    fn needs(base: Membership, pending: &[Membership]) -> (u8, usize) {
        let needed = base.needed(pending.iter());
        (needed.members, needed.count())
    }

    #[test]
    fn while_the_quorum_is_switched_the_larger_counts() {
        let (few, all) = (
            Membership::founding(3, MAJORITY),
            Membership::founding(3, Quorum::All),
        );
        assert_eq!(needs(few, &[]), (0b1110, 2));
        assert_eq!(needs(few, &[all]), (0b1110, 3));
        assert_eq!(needs(all, &[few]), (0b1110, 3));
        // A change that was never committed must not shorten what follows.
        assert_eq!(needs(few, &[all, few]), (0b1110, 3));
        let forced = Membership {
            is_forced: true,
            ..few
        };
        assert_eq!(needs(all, &[few, forced]), (0b1110, 2));
        assert_eq!(needs(all, &[forced, all]), (0b1110, 3));
    }

    #[test]
    fn while_members_change_the_new_ones_count() {
        for (quorum, added, removed) in [
            (MAJORITY, (0b11110, 3), (0b1110, 2)),
            (Quorum::All, (0b11110, 4), (0b1110, 3)),
        ] {
            let three = Membership::founding(3, quorum);
            let four = Membership::founding(4, quorum);
            assert_eq!(needs(three, &[four]), added, "{quorum:?}");
            assert_eq!(needs(four, &[three]), removed, "{quorum:?}");
        }
    }

    #[test]
    fn an_id_is_given_once_and_three_members_are_left() {
        let three = Membership::founding(3, MAJORITY);
        let joining = three.with(Change::Add, 7).unwrap();
        assert_eq!((joining.joining, joining.next), (4, 5));
        assert_eq!((joining.members, joining.reach()), (0b1110, 0b11110));
        let under_way = Err(ChangeError::Joining { joining: 4 });
        assert_eq!(joining.with(Change::Add, 7), under_way);
        assert_eq!(joining.with(Change::Remove { node: 1 }, 7), under_way);
        let given_up = joining.with(Change::Remove { node: 4 }, 7).unwrap();
        assert_eq!((given_up.joining, given_up.next), (0, 5));
        assert!(given_up.has_removed(4) && !given_up.has_removed(5));
        let four = joining.with_joined();
        assert_eq!((four.members, four.joining), (0b11110, 0));
        let left = four.with(Change::Remove { node: 1 }, 7).unwrap();
        assert_eq!((left.members, left.next), (0b11100, 5));
        let too_few = left.with(Change::Remove { node: 2 }, 7);
        assert_eq!(too_few, Err(ChangeError::TooFew));
        let gone = left.with(Change::Remove { node: 1 }, 7);
        assert_eq!(gone, Err(ChangeError::NoMember { node: 1 }));
        let full = left.with(Change::Add, 4);
        assert_eq!(full, Err(ChangeError::NoPlace { places: 4, next: 5 }));
        let forced = Change::Quorum {
            quorum: Quorum::All,
            force: true,
        };
        assert_eq!(left.with(forced, 7), Err(ChangeError::ForcedAll));
    }

    #[test]
    fn a_record_says_it_and_a_gateway_s_record_does_not() {
        let membership = Membership {
            joining: 5,
            is_forced: true,
            ..Membership::founding(4, Quorum::All)
        };
        let record = membership.record();
        assert_eq!(Membership::of(&record), Some(membership));
        let of_gateway = Record {
            origin: 1,
            ..record
        };
        assert_eq!(Membership::of(&of_gateway), None);
        assert_eq!(Membership::of(&Record::default()), None);
    }
}
