//! An operator, who changes the quorum, adds nodes and removes them while faults happen, and what must be true then.

use inband_box::control::{Control, Joined};
use inband_box::journal::LogOnDisk;
use inband_box::membership::{bitmap, Change, Membership};
use inband_box::node::{Out, Quorum, Start};
use inband_box::role::{Mode, Role};
use inband_box::wire::{self, flag, Type};

use super::{Event, Host, Invariant, Process, Zab};
use crate::World;

impl World<Zab> {
    /// Ask for a change at a node that leads, as far as it knows.
    pub(super) fn operate(&mut self) {
        let Some(wait) = self.system.operates_ns else {
            return;
        };
        let change = match self.rng.hosts.below(8) {
            0 | 1 => Change::Quorum {
                quorum: Quorum::All,
                force: false,
            },
            2 | 3 => Change::Quorum {
                quorum: Quorum::Majority,
                force: self.rng.hosts.below(4) == 0,
            },
            4..=6 => Change::Add,
            _ => Change::Remove {
                node: 1 + self.rng.hosts.below(7) as u8,
            },
        };
        self.asks_for(change);
        let wait = 1 + self.rng.hosts.wait(wait);
        self.after(wait, Event::Operator);
    }

    /// Asks the current leader for a change. Returns whether the change begins.
    pub fn asks_for(&mut self, change: Change) -> bool {
        let hosts = self.system.node.iter();
        let leads = hosts.filter(|(id, host)| {
            let leader = host.as_ref().and_then(|host| host.node.leader());
            leader == Some(**id) && !self.is_paused(Host(**id))
        });
        let leading: Vec<u8> = leads.map(|(id, _)| *id).collect();
        let Some(id) = self.rng.hosts.pick(&leading).copied() else {
            return false;
        };
        if !self.leaves_logs(id, change) {
            return false;
        }
        let now = self.local(Host(id));
        let node = self.system.node.get_mut(&id).expect("it is there");
        let host = node.as_mut().expect("it runs");
        let mut out = Out::default();
        let begun = host.node.change(now, change, &host.role, &mut out);
        self.note(&[8, id.into()], || {
            format!("node/{id} is asked for {change:?}: {begun:?}")
        });
        self.perform(id, out);
        let Ok((zxid, membership)) = begun else {
            return false;
        };
        self.system.changes = Some((zxid, membership));
        let name = match change {
            Change::Quorum { force: true, .. } => "quorums forced",
            Change::Quorum { .. } => "quorums asked for",
            Change::Add => "nodes added",
            Change::Remove { .. } => "nodes removed",
        };
        self.stats.count(name, 1);
        // Its id may have been given before, by a record that got lost: then it is there.
        let joining = membership.joining;
        if change == Change::Add && !self.system.node.contains_key(&joining) {
            self.start_node(joining, Start::Recovering);
        }
        self.process_acts(id, Process::Ticks);
        true
    }

    /// Whether a majority of the members that are left keeps its log, as far as logs are in memory. The operator sees what a
    /// leader may not know yet: that a node has lost its memory.
    fn leaves_logs(&self, leader: u8, change: Change) -> bool {
        let Some(Some(host)) = self.system.node.get(&leader) else {
            return false;
        };
        let next = host.node.latest(&host.role).with(change, 7);
        let keep = self.with_logs();
        self.system.is_durable || next.is_err() || next.is_ok_and(|next| next.has_majority(keep))
    }

    /// A node that is no member any more ends.
    pub(super) fn leaves(&mut self, id: u8) {
        self.stats.count("nodes that left", 1);
        if !self.system.membership().has_removed(id) {
            let what = format!(
                "node {id} leaves, and is one of {:?}",
                self.system.membership()
            );
            self.broken(Invariant::OneChange, what);
        }
        self.stop_node(id);
        self.system.left.insert(id);
    }

    /// What a node says in a packet that it has.
    pub(super) fn remember_acknowledged(&mut self, packet: &[u8]) {
        let Ok((header, value)) = wire::parse(packet) else {
            return;
        };
        let said = match header.kind {
            Type::Ack if header.flags & flag::RECOVERING == 0 => Some(header.zxid),
            Type::Control => match Control::decode(&header, value) {
                Some(Control::Joined(Joined {
                    matched,
                    recovering: false,
                    ..
                })) => Some(matched),
                _ => None,
            },
            _ => None,
        };
        if let Some(zxid) = said {
            let of_epoch = self.system.acknowledged.entry(header.epoch).or_default();
            let has = &mut of_epoch[usize::from(header.node) % 8];
            *has = zxid.max(*has);
        }
    }

    /// Whatever a leader commits, enough members have.
    pub(super) fn check_commits(&mut self, id: u8) {
        let Some(Some(host)) = self.system.node.get_mut(&id) else {
            return;
        };
        let view = host.role.view();
        let led = match view.mode {
            Mode::Leading => view.epoch,
            _ => 0,
        };
        let (led_before, from) = std::mem::replace(&mut host.checked, (led, view.committed));
        let from = from + 1;
        // What it has learned before it led, others have committed.
        if led == 0 || led != led_before || from > view.committed {
            return;
        }
        let own = host.log.as_ref().map_or(view.last, LogOnDisk::durable);
        let mut has = self
            .system
            .acknowledged
            .get(&view.epoch)
            .copied()
            .unwrap_or_default();
        has[usize::from(id)] = own;
        // What its log says that nobody has applied yet, or that is committed only now.
        let scanned = from.min(self.system.ledger.len() + 1);
        let said = |zxid| Membership::of(&host.role.read(zxid)?).map(|of| (zxid, of));
        let said: Vec<(u64, Membership)> = (scanned..=view.last).filter_map(said).collect();
        let founding = Membership::founding(self.system.nodes, self.system.quorum);
        let before = self.system.ledger.membership_before(scanned);
        let before = before.unwrap_or(founding);
        let mut missed = None;
        for zxid in from..=view.committed {
            let who = bitmap((1..8).filter(|node| has[usize::from(*node)] >= zxid));
            let earlier = said.iter().rev().find(|(at, _)| *at < zxid);
            let by = earlier.map_or(before, |(_, membership)| *membership);
            let later = || said.iter().filter(|(at, _)| *at >= zxid).map(|(_, of)| of);
            let is_forced = later().any(|membership| membership.is_forced);
            let here = said.iter().find(|(at, _)| *at == zxid).map(|(_, of)| of);
            let mut governing = std::iter::once(&by).chain(here);
            // Without those that are to leave.
            let stay = later().fold(!0, |stay, membership| stay & membership.members);
            let lacks = governing.find(|membership| {
                let needed = membership.members & stay;
                membership.quorum == Quorum::All && who & needed != needed
            });
            let is_majority = std::iter::once(&by)
                .chain(later())
                .any(|membership| membership.has_majority(who));
            if !is_majority || lacks.is_some() && !is_forced {
                missed = Some(format!(
                    "node {id} has committed {zxid}, which the nodes {who:#b} have: {by:?}, then {said:?}"
                ));
                break;
            }
        }
        if let Some(what) = missed {
            self.broken(Invariant::Quorum, what);
        }
    }
}
