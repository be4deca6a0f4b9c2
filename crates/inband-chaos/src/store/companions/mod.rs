//! Clients that check something of their own while faults are injected: locks and their fencing tokens
//! (`INBAND.LOCK`), and watches that miss nothing (`INBAND.WATCH`). What they do is not part of the history.

mod changes;
mod locks;
mod subscription;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use anyhow::{bail, ensure, Context, Result};
use inband_cluster::client::{Answer as Reply, Client};
use inband_cluster::scratch::retry;
use inband_sim::Rng;

use self::changes::{Changes, Checked, Write};
use self::locks::{Answer, Call, Locks, Op};
use self::subscription::{Sent, Subscription};
use super::client::Addresses;
use super::keys::in_partition;
use crate::history::{Clock, Outcome};
use crate::workload::{Client as AnyClient, Operate, ANSWER_LIMIT};

/// Watchers watch the keys with this prefix, and all keys here have it.
const PREFIX: &str = "watched:";
const WATCHERS: usize = 2;
const WRITERS: usize = 2;
/// Clients that want the locks, of which there is one per partition.
const LOCKERS: usize = 4;
/// Keys that a writer writes.
const KEYS_PER_WRITER: u64 = 6;
/// Leases, in milliseconds: longer than the clocks' margin, and shorter than many faults.
const TTL_MS: (u64, u64) = (800, 2_500);
/// How long a key lives that expires, in milliseconds.
const EXPIRING_MS: &str = "200";
/// How long a client waits for pushes before it looks whether the run is over.
const PUSH_WAIT: Duration = Duration::from_millis(50);
/// A watcher reconnects after this many waits for pushes, so that watchers move between replicas.
const WAITS_PER_CONNECTION: u64 = 60;
/// How long the last changes may take to reach all watchers. Requests of unknown outcome may have an effect until then.
const LAST_CHANGES_LIMIT: Duration = Duration::from_secs(30);

/// What the clients of one cluster have seen.
#[derive(Debug)]
struct Seen {
    changes: Changes,
    locks: Locks,
    partitions: usize,
    addresses: Addresses,
    clock: Clock,
}

/// All of these clients of one cluster.
#[derive(Debug)]
pub struct Companions(Arc<Seen>);

impl Companions {
    pub fn new(partitions: usize, addresses: Addresses, clock: Clock) -> Companions {
        Companions(Arc::new(Seen {
            changes: Changes::new(partitions),
            locks: Locks::default(),
            partitions,
            addresses,
            clock,
        }))
    }

    pub fn clients(&self, seed: u64) -> Vec<AnyClient> {
        let rng = |number: usize| Rng::new(seed, 200_000 + number as u64);
        let mut clients: Vec<AnyClient> = Vec::new();
        for number in 0..WATCHERS {
            clients.push(Box::new(Watcher::new(&self.0, number, rng(number))));
        }
        for number in 0..WRITERS {
            clients.push(Box::new(Writer::new(&self.0, number, rng(100 + number))));
        }
        for number in 0..LOCKERS {
            clients.push(Box::new(Locker::new(&self.0, number, rng(200 + number))));
        }
        clients
    }

    /// Checks what the clients have seen, once they have stopped and the cluster serves. Prints how much that was.
    pub fn check(&self) -> Result<()> {
        let seen = &self.0;
        let mut round = 0;
        let checked = retry(LAST_CHANGES_LIMIT, || {
            round += 1;
            self.catch_up(round)?;
            seen.changes.check(&self.values()?)
        })?;
        let Checked {
            changes,
            resumed,
            gone,
        } = checked;
        let granted = seen.locks.check(|key| seen.changes.of_key(key))?;
        println!(
            "{changes} changes pushed to {WATCHERS} watchers, which resumed {resumed} times and were told {gone} times that \
             changes are gone; {granted} locks granted"
        );
        ensure!(
            changes > 0 && granted > 0,
            "watchers have seen {changes} changes, and {granted} locks were granted: nothing was tested"
        );
        Ok(())
    }

    /// Deletes what would expire, writes a last value in each partition, and waits until every watcher has seen it.
    fn catch_up(&self, round: u64) -> Result<()> {
        let seen = &self.0;
        let mut client = seen.connect(&mut Rng::new(round, 0))?;
        let expiring = (0..seen.partitions).flat_map(|p| [seen.lock(p), seen.expiring(p)]);
        for key in expiring {
            let deleted = client.call(&["DEL", &key])?;
            ensure!(deleted.starts_with(':'), "DEL answered {deleted:?}");
        }
        let mut last = Vec::new();
        for partition in 0..seen.partitions {
            let key = seen.key("end", partition);
            last.push(format!("end-{round}-{partition}"));
            let value = &last[partition];
            let call_ns = seen.clock.now_ns();
            let set = client.call(&["SET", &key, value])?;
            ensure!(set == "+OK", "SET answered {set:?}");
            seen.changes.wrote(Write {
                key,
                value: value.clone(),
                call_ns,
                return_ns: seen.clock.now_ns(),
                outcome: Outcome::Ok,
            });
        }
        for number in 0..WATCHERS {
            let mut watcher = Watcher::new(seen, number, Rng::new(round, 1 + number as u64));
            retry(ANSWER_LIMIT, || {
                watcher.operate();
                ensure!(
                    seen.changes.has_seen(number, &last),
                    "watcher {number} does not see the last changes"
                );
                Ok(())
            })?;
        }
        Ok(())
    }

    /// What all keys hold.
    fn values(&self) -> Result<BTreeMap<String, Option<String>>> {
        let seen = &self.0;
        let mut client = seen.connect(&mut Rng::new(0, 0))?;
        let partitions = 0..seen.partitions;
        let mut keys: Vec<String> = partitions
            .flat_map(|p| [seen.lock(p), seen.expiring(p), seen.key("end", p)])
            .collect();
        for writer in 0..WRITERS {
            keys.extend((0..KEYS_PER_WRITER).map(|key| seen.value_key(writer, key)));
        }
        let mut values = BTreeMap::new();
        for key in keys {
            let held = match client.ask(&["GET", &key])? {
                Reply::Nil => None,
                Reply::Text(text) => Some(text),
                other => bail!("GET answered {other:?}"),
            };
            values.insert(key, held);
        }
        Ok(values)
    }
}

impl Seen {
    fn address(&self, rng: &mut Rng) -> Option<SocketAddr> {
        let addresses = self.addresses.read();
        let addresses = addresses.unwrap_or_else(PoisonError::into_inner);
        rng.pick(&addresses).copied()
    }

    fn connect(&self, rng: &mut Rng) -> Result<Client> {
        let address = self.address(rng).context("there is no replica")?;
        Client::connect(address, ANSWER_LIMIT)
    }

    fn key(&self, what: &str, partition: usize) -> String {
        in_partition(&format!("{PREFIX}{what}"), partition, self.partitions)
    }

    fn lock(&self, partition: usize) -> String {
        self.key("lock", partition)
    }

    fn expiring(&self, partition: usize) -> String {
        self.key("expiring", partition)
    }

    fn value_key(&self, writer: usize, key: u64) -> String {
        format!("{PREFIX}{writer}-{key}")
    }
}

/// Watches the keys, at one replica after the other.
struct Watcher {
    seen: Arc<Seen>,
    number: usize,
    rng: Rng,
    subscription: Option<Subscription>,
    waits: u64,
    /// Replicas that do not have the changes behind its revision.
    without: BTreeSet<SocketAddr>,
}

impl Watcher {
    fn new(seen: &Arc<Seen>, number: usize, rng: Rng) -> Watcher {
        Watcher {
            seen: Arc::clone(seen),
            number,
            rng,
            subscription: None,
            waits: 0,
            without: BTreeSet::new(),
        }
    }

    /// Watches at a replica, behind what it has seen.
    fn watch(&mut self) -> Result<Subscription> {
        let address = self.seen.address(&mut self.rng);
        let address = address.context("there is no replica")?;
        let mut subscription = Subscription::connect(address, ANSWER_LIMIT)?;
        let revision = self.seen.changes.seen(self.number);
        let mut request = vec!["INBAND.WATCH", PREFIX];
        request.extend(revision.as_deref());
        subscription.send(&["HELLO", "3"])?;
        subscription.send(&request)?;
        let mut reply = || subscription.next(ANSWER_LIMIT)?.context("no answer");
        ensure!(
            matches!(reply()?, Sent::Many(_)),
            "HELLO 3 was not answered by a map"
        );
        match (reply()?, revision) {
            (Sent::Text(Some(first)), None) => {
                let now_ns = self.seen.clock.now_ns();
                self.seen.changes.begin(self.number, &first, now_ns)?;
            }
            (Sent::Text(Some(_)), Some(_)) => self.seen.changes.resume(),
            (Sent::Error(why), Some(_)) if why.starts_with("GONE") => {
                self.without.insert(address);
                if self.is_gone_everywhere() {
                    self.seen.changes.lose(self.number);
                    self.without.clear();
                }
                bail!("{why}");
            }
            (other, _) => bail!("INBAND.WATCH was answered {other:?}"),
        }
        self.without.clear();
        self.waits = 0;
        Ok(subscription)
    }

    fn is_gone_everywhere(&self) -> bool {
        let addresses = self.seen.addresses.read();
        let addresses = addresses.unwrap_or_else(PoisonError::into_inner);
        addresses
            .iter()
            .all(|address| self.without.contains(address))
    }

    /// Takes what is pushed until there is nothing more for now.
    fn take(&self, subscription: &mut Subscription) -> Result<()> {
        while let Some(sent) = subscription.next(PUSH_WAIT)? {
            let Sent::Many(parts) = sent else {
                bail!("{sent:?} was pushed");
            };
            let texts = parts.into_iter().map(|part| match part {
                Sent::Text(text) => Ok(text),
                other => bail!("{other:?} is a part of a push"),
            });
            let push = texts.collect::<Result<_>>()?;
            self.seen.changes.pushed(self.number, push);
        }
        Ok(())
    }
}

impl Operate for Watcher {
    fn operate(&mut self) -> bool {
        let subscription = match self.subscription.take() {
            Some(subscription) => Ok(subscription),
            None => self.watch(),
        };
        let Ok(mut subscription) = subscription else {
            return false;
        };
        self.waits += 1;
        let taken = self.take(&mut subscription);
        if taken.is_ok() && self.waits < WAITS_PER_CONNECTION {
            self.subscription = Some(subscription);
        }
        true
    }
}

/// Writes keys that are watched; every value is written once.
struct Writer {
    seen: Arc<Seen>,
    number: usize,
    rng: Rng,
    client: Option<Client>,
    values: u64,
}

impl Writer {
    fn new(seen: &Arc<Seen>, number: usize, rng: Rng) -> Writer {
        Writer {
            seen: Arc::clone(seen),
            number,
            rng,
            client: None,
            values: 0,
        }
    }
}

impl Operate for Writer {
    fn operate(&mut self) -> bool {
        let kept = self.client.take().map(Ok);
        let Ok(mut client) = kept.unwrap_or_else(|| self.seen.connect(&mut self.rng)) else {
            return false;
        };
        let (seen, rng) = (&self.seen, &mut self.rng);
        let key = seen.value_key(self.number, rng.below(KEYS_PER_WRITER));
        let partition = rng.below(seen.partitions as u64) as usize;
        self.values += 1;
        let value = format!("{}-{}", self.number, self.values);
        let call_ns = seen.clock.now_ns();
        let (key, written) = match rng.below(10) {
            0 => {
                let deleted = client.ask(&["DEL", &key]);
                // Which delete was pushed cannot be told.
                self.client = deleted.is_ok().then_some(client);
                return true;
            }
            1..=2 => {
                let key = seen.expiring(partition);
                let set = client.ask(&["SET", &key, &value, "PX", EXPIRING_MS]);
                (key, set)
            }
            _ => {
                let set = client.ask(&["SET", &key, &value]);
                (key, set)
            }
        };
        let outcome = outcome_of(&written);
        seen.changes.wrote(Write {
            key,
            value,
            call_ns,
            return_ns: seen.clock.now_ns(),
            outcome,
        });
        // Sometimes to another replica.
        if outcome == Outcome::Ok && !self.rng.chance_ppm(20_000) {
            self.client = Some(client);
        }
        true
    }
}

fn outcome_of(reply: &Result<Reply>) -> Outcome {
    match reply {
        // All messages of the store for an unknown outcome contain this.
        Ok(Reply::Error(text)) if text.contains("outcome unknown") => Outcome::Unknown,
        Ok(Reply::Error(_)) => Outcome::Failed,
        Ok(_) => Outcome::Ok,
        Err(_) => Outcome::Unknown,
    }
}

/// A lock that a client has.
struct Held {
    key: String,
    owner: String,
}

/// Takes, keeps and releases locks, or lets a lease end.
struct Locker {
    seen: Arc<Seen>,
    number: usize,
    rng: Rng,
    client: Option<Client>,
    owners: u64,
    held: Option<Held>,
}

impl Locker {
    fn new(seen: &Arc<Seen>, number: usize, rng: Rng) -> Locker {
        Locker {
            seen: Arc::clone(seen),
            number,
            rng,
            client: None,
            owners: 0,
            held: None,
        }
    }

    /// The next request, and whether the client has the lock after it was answered as expected.
    fn choose(&mut self) -> (Op, Held) {
        let choice = self.rng.below(100);
        match self.held.take() {
            // Its lease ends, or has ended.
            Some(_) if choice < 3 => self.choose(),
            Some(held) if choice < 25 => (Op::Release, held),
            Some(held) if choice < 90 => (Op::Renew, held),
            Some(held) => (Op::Acquire, held),
            None => {
                let partition = self.rng.below(self.seen.partitions as u64) as usize;
                let key = self.seen.lock(partition);
                self.owners += 1;
                let owner = format!("owner-{}-{}", self.number, self.owners);
                let op = if choice < 20 { Op::Get } else { Op::Acquire };
                (op, Held { key, owner })
            }
        }
    }
}

impl Operate for Locker {
    fn operate(&mut self) -> bool {
        let kept = self.client.take().map(Ok);
        let Ok(mut client) = kept.unwrap_or_else(|| self.seen.connect(&mut self.rng)) else {
            return false;
        };
        let (op, Held { key, mut owner }) = self.choose();
        let ttl_ms = self.rng.between(TTL_MS.0, TTL_MS.1);
        let ttl = ttl_ms.to_string();
        let call_ns = self.seen.clock.now_ns();
        let reply = match op {
            Op::Acquire => client.ask(&["INBAND.LOCK", "ACQUIRE", &key, &owner, &ttl]),
            Op::Renew => client.ask(&["INBAND.LOCK", "RENEW", &key, &owner, &ttl]),
            Op::Release => client.ask(&["INBAND.LOCK", "RELEASE", &key, &owner]),
            Op::Get => {
                owner.clear();
                client.ask(&["INBAND.LOCK", "GET", &key])
            }
        };
        let return_ns = self.seen.clock.now_ns();
        let outcome = outcome_of(&reply);
        let answer = match (op, outcome, reply) {
            (_, Outcome::Failed, _) => Answer::Failed,
            (Op::Acquire | Op::Renew, _, Ok(Reply::Integer(token))) => Answer::Token(token as u64),
            (Op::Acquire | Op::Renew, _, Ok(Reply::Nil)) => Answer::Refused,
            (Op::Release, _, Ok(Reply::Integer(0))) => Answer::Refused,
            (Op::Release, _, Ok(Reply::Integer(_))) => Answer::Released,
            (Op::Get, _, Ok(Reply::Nil)) => Answer::Holder(None),
            (Op::Get, _, Ok(Reply::Array(parts))) => match &parts[..] {
                [Reply::Text(holder), Reply::Integer(token)] => {
                    Answer::Holder(Some((holder.clone(), *token as u64)))
                }
                _ => Answer::Unknown,
            },
            _ => Answer::Unknown,
        };
        let has_it = matches!(answer, Answer::Token(_));
        let may_retry = answer == Answer::Failed && op == Op::Renew;
        self.seen.locks.called(Call {
            op,
            key: key.clone(),
            owner: owner.clone(),
            ttl_ms,
            call_ns,
            return_ns,
            answer,
        });
        if has_it || may_retry {
            self.held = Some(Held { key, owner });
        }
        if outcome == Outcome::Ok && !self.rng.chance_ppm(20_000) {
            self.client = Some(client);
        }
        true
    }
}
