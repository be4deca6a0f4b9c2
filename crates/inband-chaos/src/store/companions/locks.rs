//! What clients have done with `INBAND.LOCK`, and what must hold: never two owners at once, tokens that only grow, leases
//! that end.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{ensure, Result};
use inband_kv::changes::ChangeKind;
use inband_kv::limits::{CLOCKS_APART_MS_MAX, CLOCK_SLEW};

use super::changes::Change;

/// When a request of unknown outcome has ended at the latest.
const DEADLINE_NS: u64 = 15_000_000_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    Acquire,
    Renew,
    Release,
    Get,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// The lock is the owner's.
    Token(u64),
    /// It is not.
    Refused,
    Released,
    /// To `GET`: owner and token.
    Holder(Option<(String, u64)>),
    /// It had no effect.
    Failed,
    /// It may have an effect until [`DEADLINE_NS`] later.
    Unknown,
}

/// A request for a lock. Each acquisition has its own owner.
#[derive(Debug, Clone)]
pub struct Call {
    pub op: Op,
    pub key: String,
    /// Empty for `GET`.
    pub owner: String,
    pub ttl_ms: u64,
    pub call_ns: u64,
    pub return_ns: u64,
    pub answer: Answer,
}

/// All requests. Shared by the clients.
#[derive(Debug, Default)]
pub struct Locks(Mutex<Vec<Call>>);

/// What one owner had, with one token.
#[derive(Debug)]
struct Tenure<'c> {
    owner: &'c str,
    /// `None`: it was never told.
    token: Option<u64>,
    /// The owner surely has the lock from here ...
    granted_ns: u64,
    /// ... to here. Before `granted_ns`: it never surely had it.
    sure_until_ns: u64,
    /// The owner surely does not have it any more.
    over_ns: u64,
    /// When it asked first.
    call_ns: u64,
    /// When it began to release the lock.
    released_ns: u64,
    /// It has acquired the lock again, and does not know whether as a new tenure.
    may_be_followed: bool,
}

/// The shortest and the longest time that a lease may last: one replica's clock begins it, and another's may end it.
fn lease_ns(ttl_ms: u64) -> (u64, u64) {
    let ns = ttl_ms * 1_000_000;
    let apart_ns = CLOCKS_APART_MS_MAX * 1_000_000;
    let slewed_ns = ns / (CLOCK_SLEW - 1);
    (
        ns.saturating_sub(apart_ns + slewed_ns),
        ns + apart_ns + slewed_ns,
    )
}

impl<'c> Tenure<'c> {
    fn new(owner: &'c str, call_ns: u64) -> Tenure<'c> {
        Tenure {
            owner,
            token: None,
            granted_ns: u64::MAX,
            sure_until_ns: 0,
            over_ns: 0,
            call_ns,
            released_ns: u64::MAX,
            may_be_followed: false,
        }
    }

    /// The tenures of one owner, in their order, from its calls in theirs.
    fn of_calls(owner: &'c str, calls: &[&'c Call]) -> Result<Vec<Tenure<'c>>> {
        let mut tenures: Vec<Tenure<'c>> = Vec::new();
        for call in calls {
            if tenures.is_empty() {
                tenures.push(Tenure::new(owner, call.call_ns));
            }
            if let (Some(last), Answer::Token(token)) = (tenures.last(), &call.answer) {
                if last.is_followed_by(call, *token)? {
                    tenures.push(Tenure::new(owner, call.call_ns));
                }
            }
            if let Some(last) = tenures.last_mut() {
                last.add(call);
            }
        }
        for tenure in &mut tenures {
            tenure.sure_until_ns = tenure.sure_until_ns.min(tenure.released_ns);
        }
        Ok(tenures)
    }

    /// Whether a call was answered another token, which it may be if it acquired the lock after the lease had ended.
    fn is_followed_by(&self, call: &Call, token: u64) -> Result<bool> {
        let Some(before) = self.token.filter(|before| *before != token) else {
            return Ok(false);
        };
        let may_have_ended = call.return_ns > self.sure_until_ns.min(self.released_ns);
        ensure!(
            call.op == Op::Acquire && may_have_ended && token > before,
            "{call:?}: the owner had the token {before}"
        );
        Ok(true)
    }

    fn add(&mut self, call: &Call) {
        let (shortest_ns, longest_ns) = lease_ns(call.ttl_ms);
        match (call.op, &call.answer) {
            (Op::Acquire | Op::Renew, Answer::Token(token)) => {
                self.token = Some(*token);
                self.granted_ns = self.granted_ns.min(call.return_ns);
                // It had the lock all the time. The new lease may be shorter than what was left of the last one.
                self.sure_until_ns = call.call_ns + shortest_ns;
                self.over_ns = self.over_ns.max(call.return_ns + longest_ns);
            }
            (Op::Acquire | Op::Renew, Answer::Unknown) => {
                let sure_ns = call.call_ns + shortest_ns;
                self.may_be_followed |= call.op == Op::Acquire;
                self.sure_until_ns = self.sure_until_ns.min(sure_ns);
                let ended_ns = call.call_ns + DEADLINE_NS;
                self.over_ns = self.over_ns.max(ended_ns + longest_ns);
            }
            (Op::Release, Answer::Failed) => {}
            (Op::Release, _) => self.released_ns = self.released_ns.min(call.call_ns),
            _ => {}
        }
    }

    /// Whether it surely had the lock when this call took effect.
    fn surely_covers(&self, call: &Call) -> bool {
        self.granted_ns <= call.call_ns && call.return_ns <= self.sure_until_ns
    }
}

impl Locks {
    fn lock(&self) -> MutexGuard<'_, Vec<Call>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn called(&self, call: Call) {
        self.lock().push(call);
    }

    /// Checks everything; `changes_of` returns what watchers have seen of a key, in the log's order. Returns how often a
    /// lock was granted.
    pub fn check(&self, changes_of: impl Fn(&str) -> Vec<Vec<Change>>) -> Result<usize> {
        let calls = self.lock();
        let mut by_key: BTreeMap<&str, Vec<&Call>> = BTreeMap::new();
        for call in calls.iter() {
            by_key.entry(&call.key).or_default().push(call);
        }
        let mut granted = 0;
        for (key, calls) in by_key {
            let mut by_owner: BTreeMap<&str, Vec<&Call>> = BTreeMap::new();
            for call in calls.iter().filter(|call| call.op != Op::Get) {
                by_owner.entry(&call.owner).or_default().push(call);
            }
            let mut tenures: Vec<Tenure<'_>> = Vec::new();
            for (owner, calls) in &by_owner {
                tenures.extend(Tenure::of_calls(owner, calls)?);
            }
            check_tokens(&tenures)?;
            check_answers(&calls, &tenures)?;
            for changes in changes_of(key) {
                check_order(&changes, &tenures)?;
            }
            granted += tenures.iter().filter(|t| t.token.is_some()).count();
        }
        Ok(granted)
    }
}

/// Each token is one owner's, and who asked after another one was granted the lock has a larger token.
fn check_tokens(tenures: &[Tenure<'_>]) -> Result<()> {
    let mut granted: Vec<(u64, &Tenure<'_>)> = tenures
        .iter()
        .filter_map(|tenure| Some((tenure.token?, tenure)))
        .collect();
    granted.sort_by_key(|(token, _)| *token);
    for pair in granted.windows(2) {
        let [(first, a), (second, b)] = pair else {
            continue;
        };
        ensure!(first != second, "{a:?} and {b:?} have the same token");
    }
    // In the order of the tokens nobody may have asked after one with a larger token was answered.
    let mut answered_ns = u64::MAX;
    for (_, tenure) in granted.iter().rev() {
        ensure!(
            tenure.call_ns <= answered_ns,
            "{tenure:?} asked after another owner had a larger token"
        );
        answered_ns = answered_ns.min(tenure.granted_ns);
    }
    Ok(())
}

/// No client is granted a lock that another one certainly holds, or refused one that is certainly free.
fn check_answers(calls: &[&Call], tenures: &[Tenure<'_>]) -> Result<()> {
    let mut by_grant: Vec<&Tenure<'_>> = tenures.iter().filter(|t| t.token.is_some()).collect();
    by_grant.sort_by_key(|tenure| tenure.granted_ns);
    for call in calls {
        // Those that were granted before the call.
        let earlier = by_grant.partition_point(|t| t.granted_ns <= call.call_ns);
        let covering = by_grant[..earlier].iter().find(|t| t.surely_covers(call));
        if let Some(tenure) = covering {
            let is_owner = tenure.owner == call.owner;
            let is_right = match &call.answer {
                Answer::Token(_) | Answer::Released => is_owner,
                Answer::Refused => !is_owner,
                Answer::Holder(holder) => holder.as_ref().is_some_and(|(owner, token)| {
                    owner == tenure.owner && Some(*token) == tenure.token
                }),
                Answer::Failed | Answer::Unknown => true,
            };
            ensure!(is_right, "{call:?}, while {tenure:?} had the lock");
        }
        let holder = match &call.answer {
            Answer::Holder(Some((owner, _))) => Some(owner),
            _ => None,
        };
        let is_over = |tenure: &&Tenure<'_>| tenure.over_ns < call.call_ns;
        if let Some(holder) = holder {
            let last = tenures.iter().rev().find(|t| t.owner == holder);
            ensure!(
                last.is_none_or(|last| !is_over(&last)),
                "{call:?}, but the lease of {last:?} was over"
            );
        }
        if (call.op, &call.answer) == (Op::Acquire, &Answer::Refused) {
            let others = || tenures.iter().filter(|t| t.owner != call.owner);
            let may_be_held = others().any(|t| t.call_ns <= call.return_ns && !is_over(&t));
            ensure!(may_be_held, "{call:?}, but nobody can have had the lock");
        }
    }
    Ok(())
}

/// In the log's order: who takes the lock finds it free, and has a larger token than all before.
fn check_order(changes: &[Change], tenures: &[Tenure<'_>]) -> Result<()> {
    let mut by_owner: BTreeMap<&str, Vec<&Tenure<'_>>> = BTreeMap::new();
    for tenure in tenures {
        by_owner.entry(tenure.owner).or_default().push(tenure);
    }
    let (mut holder, mut largest): (Option<(&str, u64)>, u64) = (None, 0);
    for change in changes {
        if change.kind != ChangeKind::Put {
            holder = None;
            continue;
        }
        let value = change.value.as_deref().unwrap_or_default();
        let parts = value.strip_prefix("inband.lock ");
        let parts = parts.and_then(|parts| parts.split_once(' '));
        let parts = parts.and_then(|(token, owner)| Some((owner, token.parse::<u64>().ok()?)));
        let Some((owner, token)) = parts else {
            anyhow::bail!("{change:?} is not a lock");
        };
        let told = by_owner.get(owner).map_or(&[][..], Vec::as_slice);
        let is_token = |tenure: &&Tenure<'_>| match tenure.token {
            Some(told) => told == token || tenure.may_be_followed && told < token,
            None => true,
        };
        ensure!(
            told.is_empty() || told.iter().any(is_token),
            "{change:?}, but the owner was told another token: {told:?}"
        );
        // The stream may begin in the middle of a tenure.
        let is_same = holder == Some((owner, token));
        ensure!(
            is_same || holder.is_none(),
            "{change:?}, while {holder:?} had the lock: two owners at once"
        );
        ensure!(
            is_same || token > largest,
            "{change:?}, after the token {largest}"
        );
        (holder, largest) = (Some((owner, token)), largest.max(token));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
