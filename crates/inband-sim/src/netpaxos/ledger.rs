//! The one log on which all learners must agree, recorded as they deliver it, and the votes of the storage servers.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use inband_netpaxos::learner::Delivered;
use inband_netpaxos::request::{Identity, Request, Value};
use inband_netpaxos::storage::Record;

use super::Invariant;
use crate::Broken;

type Result = std::result::Result<(), Broken<Invariant>>;

/// A storage server's votes in an instance, in one generation.
#[derive(Default)]
struct Acted {
    fast: Option<Request>,
    is_promised: bool,
}

#[derive(Default)]
pub(super) struct Ledger {
    decided: BTreeMap<u64, Value>,
    applies: BTreeMap<u64, bool>,
    applied: BTreeMap<Identity, u64>,
    submitted: BTreeMap<Identity, Vec<u8>>,
    /// By instance, minion and generation.
    acted: BTreeMap<(u64, u8, u16), Acted>,
    position: BTreeMap<u8, u64>,
    /// What each read must see.
    reads: Vec<u64>,
}

fn broken(invariant: Invariant, what: String) -> Result {
    Err(Broken { invariant, what })
}

impl Ledger {
    pub fn submit(&mut self, identity: Identity, value: Vec<u8>) {
        self.submitted.insert(identity, value);
    }

    /// A learner starts after this many instances.
    pub fn restart(&mut self, learner: u8, position: u64) {
        self.position.insert(learner, position);
    }

    /// Returns the number of decided instances, as far as learners have delivered them.
    pub fn len(&self) -> u64 {
        self.applies.len() as u64
    }

    /// Returns the number of applied requests.
    pub fn applied(&self) -> u64 {
        self.applied.len() as u64
    }

    pub fn decide(&mut self, learner: u8, instance: u64, value: &Value) -> Result {
        let known = match self.decided.entry(instance) {
            Entry::Vacant(vacant) => {
                vacant.insert(value.clone());
                return Ok(());
            }
            Entry::Occupied(known) => known.into_mut(),
        };
        if known != value {
            let what = format!(
                "learner {learner} finds {value:?} in instance {instance}, another found {known:?}"
            );
            return broken(Invariant::Agreement, what);
        }
        Ok(())
    }

    pub fn deliver(&mut self, learner: u8, delivered: &Delivered) -> Result {
        let Delivered {
            instance,
            value,
            applies,
        } = delivered;
        self.decide(learner, *instance, value)?;
        let position = self.position.entry(learner).or_default();
        if *instance != *position + 1 {
            let what = format!("learner {learner} delivers {instance} after {position}");
            return broken(Invariant::Order, what);
        }
        *position = *instance;
        if *self.applies.entry(*instance).or_insert(*applies) != *applies {
            let what = format!("learners do not agree whether {instance} is applied");
            return broken(Invariant::Order, what);
        }
        let Some(request) = value.as_ref().filter(|_| *applies) else {
            return Ok(());
        };
        if self.submitted.get(&request.identity()) != Some(&request.value) {
            let what = format!("{request:?} was not submitted");
            return broken(Invariant::ExactlyOnce, what);
        }
        let first = *self.applied.entry(request.identity()).or_insert(*instance);
        if first != *instance {
            let what = format!("{request:?} is applied in {first} and {instance}");
            return broken(Invariant::ExactlyOnce, what);
        }
        Ok(())
    }

    /// A read begins. Returns its number.
    pub fn begin_read(&mut self) -> u64 {
        self.reads.push(self.len());
        self.reads.len() as u64 - 1
    }

    /// A learner that has delivered `position` instances answers a read that sees those up to `seen`.
    pub fn end_read(&self, read: u64, seen: u64, position: u64) -> Result {
        let must_see = self.reads[read as usize];
        if seen >= must_see && position >= seen {
            return Ok(());
        }
        let what =
            format!("a read sees {seen} of {must_see} instances, its learner has {position}");
        broken(Invariant::ReadsSeeAll, what)
    }

    /// A proposer was told that its request was delivered.
    pub fn acknowledge(&self, identity: Identity) -> Result {
        if self.applied.contains_key(&identity) {
            return Ok(());
        }
        broken(
            Invariant::NothingLost,
            format!("{identity:?} was acknowledged"),
        )
    }

    /// A storage server has made a record durable.
    pub fn record(&mut self, minion: u8, generation: u16, record: &Record) -> Result {
        match record {
            Record::Fast {
                instance, request, ..
            } => {
                let acted = self
                    .acted
                    .entry((*instance, minion, generation))
                    .or_default();
                if acted.is_promised || acted.fast.is_some() {
                    let what = format!("storage/{minion} votes for {request:?} in {instance}");
                    return broken(Invariant::OneVote, what);
                }
                acted.fast = Some(Request::clone(request));
            }
            Record::Promised { instance, .. } | Record::Classic { instance, .. } => {
                let acted = self
                    .acted
                    .entry((*instance, minion, generation))
                    .or_default();
                acted.is_promised = true;
            }
            _ => {}
        }
        Ok(())
    }

    /// A learner has decided in fast mode.
    pub fn decide_fast(&self, instance: u64, request: &Request, quorum: usize) -> Result {
        let votes = self.acted.range((instance, 0, 0)..(instance + 1, 0, 0));
        let votes = votes.filter(|(_, acted)| acted.fast.as_ref() == Some(request));
        let minions: BTreeSet<u8> = votes.map(|((_, minion, _), _)| *minion).collect();
        if minions.len() < quorum {
            let what = format!("{request:?} in {instance} is stored by {minions:?} only");
            return broken(Invariant::Stored, what);
        }
        Ok(())
    }
}
