//! Clients that watch keys, and clients that hold locks, while replicas are killed with SIGKILL and started again.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::common::{Client, Cluster};
use inband_kv::limits::{CLOCKS_APART_MS_MAX, CLOCK_SLEW};
use inband_paxos::config::Dataplane;

const TIMEOUT: Duration = Duration::from_secs(300);
const REPLICAS: u16 = 3;
/// How often each replica is killed.
const ROUNDS: u16 = 2;
const WATCHERS: usize = 2;
/// The test goes on until each watcher has had more connections, the lock more owners, and each key more changes.
const CONNECTIONS_MIN: usize = 20;
const OWNERS_MIN: usize = 20;
const CHANGES_MIN: u64 = 100;
/// Each is in one of two partitions.
const KEYS: [&str; 4] = ["w:a", "w:b", "w:c", "w:d"];

struct Push {
    revision: String,
    kind: String,
    key: String,
    value: String,
}

/// A client that watches `w:` at one replica.
struct Watcher(BufReader<TcpStream>);

impl Watcher {
    /// Also returns the revision that it begins with. `None`: this replica cannot serve it now.
    fn start(address: SocketAddr, from: Option<&str>) -> Option<(Self, String)> {
        let stream = TcpStream::connect_timeout(&address, Duration::from_secs(2)).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(2))).ok()?;
        let mut watcher = Self(BufReader::new(stream));
        watcher.send(&["HELLO", "3"])?;
        watcher.reply()?;
        let mut request = vec!["INBAND.WATCH", "w:"];
        request.extend(from);
        watcher.send(&request)?;
        let revision = watcher.reply()?.remove(0);
        // LOADING, or GONE: it was started after this revision.
        (!revision.starts_with('-')).then_some((watcher, revision))
    }

    fn send(&mut self, words: &[&str]) -> Option<()> {
        let mut request = format!("*{}\r\n", words.len());
        for word in words {
            request += &format!("${}\r\n{word}\r\n", word.len());
        }
        self.0.get_mut().write_all(request.as_bytes()).ok()
    }

    /// The strings of a reply or push; `None` if there is none within the timeout, or the connection has ended.
    fn reply(&mut self) -> Option<Vec<String>> {
        let mut line = String::new();
        if self.0.read_line(&mut line).ok()? == 0 {
            return None;
        }
        let line = line.trim_end();
        let number = || line[1..].parse::<usize>().ok();
        Some(match line.as_bytes()[0] {
            b'*' | b'>' => self.replies(number()?)?,
            b'%' => self.replies(2 * number()?)?,
            b'$' => {
                let mut bytes = vec![0; number()? + 2];
                self.0.read_exact(&mut bytes).ok()?;
                bytes.truncate(bytes.len() - 2);
                vec![String::from_utf8(bytes).ok()?]
            }
            b'_' => vec![String::new()],
            b'-' => vec![line.to_owned()],
            _ => vec![line[1..].to_owned()],
        })
    }

    fn replies(&mut self, count: usize) -> Option<Vec<String>> {
        let mut all = Vec::new();
        for _ in 0..count {
            all.extend(self.reply()?);
        }
        Some(all)
    }

    fn push(&mut self) -> Option<Push> {
        let [what, prefix, revision, kind, key, value] = self.reply()?.try_into().ok()?;
        assert_eq!((&*what, &*prefix), ("inband.watch", "w:"));
        Some(Push {
            revision,
            kind,
            key,
            value,
        })
    }
}

/// What a watcher has seen, over all its connections.
#[derive(Default)]
struct Seen {
    /// The values of each key, in order.
    values: BTreeMap<String, Vec<u64>>,
    connections: usize,
}

/// Watches from now on until `goal` is set and reached. The connection is changed after some pushes, also within the
/// changes of one transaction, and whenever it breaks.
fn watch(replicas: &[SocketAddr], first: usize, goal: &Goal) -> (Seen, bool) {
    let (mut seen, mut at, mut from) = (Seen::default(), first, None::<String>);
    let deadline = Instant::now() + TIMEOUT;
    while Instant::now() < deadline {
        at += 1;
        let started = Watcher::start(replicas[at % replicas.len()], from.as_deref());
        let Some((mut watcher, revision)) = started else {
            thread::sleep(Duration::from_millis(20));
            continue;
        };
        seen.connections += 1;
        from.get_or_insert(revision);
        goal.connections[first].store(seen.connections, Ordering::Release);
        for _ in 0..1 + (7 * seen.connections + first) % 40 {
            let Some(push) = watcher.push() else {
                break;
            };
            from = Some(push.revision);
            if push.kind == "put" {
                let value = push.value.parse().expect("a number");
                seen.values.entry(push.key).or_default().push(value);
            }
        }
        if goal.is_reached(&seen.values) {
            return (seen, true);
        }
    }
    (seen, false)
}

#[derive(Default)]
struct Goal {
    /// Of each watcher.
    connections: [AtomicUsize; WATCHERS],
    /// The last values.
    last: Mutex<Option<BTreeMap<String, u64>>>,
}

impl Goal {
    fn have_more_than(&self, connections: usize) -> bool {
        let mut each = self.connections.iter();
        each.all(|count| count.load(Ordering::Acquire) > connections)
    }

    fn is_reached(&self, values: &BTreeMap<String, Vec<u64>>) -> bool {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.as_ref().is_some_and(|last| {
            let mut each = last.iter();
            each.all(|(key, last)| values.get(key).and_then(|v| v.last()) >= Some(last))
        })
    }
}

/// Increments all keys, by single commands and by transactions with several changes of a key, whatever becomes of them.
fn increment(replicas: Vec<SocketAddr>, first: usize, stop: Arc<AtomicBool>) -> JoinHandle<()> {
    thread::spawn(move || {
        let (mut at, mut n) = (first, first);
        while !stop.load(Ordering::Acquire) {
            at += 1;
            let Some(mut client) = Client::try_connect(replicas[at % replicas.len()]) else {
                thread::sleep(Duration::from_millis(20));
                continue;
            };
            while !stop.load(Ordering::Acquire) {
                n += 1;
                let key = KEYS[n % KEYS.len()];
                let requests = match n % 3 {
                    0 => vec![
                        vec!["MULTI"],
                        vec!["INCR", key],
                        vec!["INCR", key],
                        vec!["EXEC"],
                    ],
                    _ => vec![vec!["INCR", key]],
                };
                let mut replies = requests.iter().map(|words| client.try_call(words));
                if replies.any(|reply| reply.is_none_or(|r| r.starts_with('-'))) {
                    break;
                }
                thread::sleep(Duration::from_millis(3));
            }
        }
    })
}

/// Who held the lock, as far as clients can tell: from the reply until [`SAFE`] after the request was sent.
struct Hold {
    token: u64,
    owner: String,
    from: Instant,
    until: Instant,
}

impl Hold {
    fn is_known(&self) -> bool {
        self.from < self.until
    }
}

const TTL: Duration = Duration::from_millis(600);

/// A lease ends in cluster time, and the replica of the next holder may be ahead of this one's.
const SAFE: Duration = Duration::from_millis(
    TTL.as_millis() as u64 * (CLOCK_SLEW - 1) / CLOCK_SLEW - CLOCKS_APART_MS_MAX,
);

/// Takes the lock again and again, keeps it for a while, and gives it back or lets it expire.
fn lock(
    replicas: Vec<SocketAddr>,
    id: usize,
    stop: Arc<AtomicBool>,
    owners: Arc<AtomicUsize>,
) -> JoinHandle<Vec<Hold>> {
    thread::spawn(move || {
        let (mut holds, mut n) = (Vec::new(), 0);
        let ttl_ms = TTL.as_millis().to_string();
        while !stop.load(Ordering::Acquire) {
            n += 1;
            let owner = format!("{id}-{n}");
            let address = replicas[(id + n) % replicas.len()];
            let Some(mut client) = Client::try_connect(address) else {
                thread::sleep(Duration::from_millis(20));
                continue;
            };
            let mut own = 0;
            // Acquired, then renewed.
            for what in ["ACQUIRE", "RENEW", "RENEW"] {
                let sent = Instant::now();
                let request = ["INBAND.LOCK", what, "lock", &owner, &ttl_ms];
                let reply = client.try_call(&request).unwrap_or_default();
                let Some(token) = reply.strip_prefix(':').and_then(|t| t.parse().ok()) else {
                    break;
                };
                own += 1;
                holds.push(Hold {
                    token,
                    owner: owner.clone(),
                    from: Instant::now(),
                    until: sent + SAFE,
                });
                thread::sleep(Duration::from_millis(5));
            }
            let counts = holds.iter().rev().take(own).any(Hold::is_known);
            owners.fetch_add(usize::from(counts), Ordering::Relaxed);
            if own > 0 && n % 3 != 0 {
                // It has not the lock any more from when it asks.
                let until = Instant::now();
                for hold in holds.iter_mut().rev().take(own) {
                    hold.until = hold.until.min(until);
                }
                client.try_call(&["INBAND.LOCK", "RELEASE", "lock", &owner]);
            }
            thread::sleep(Duration::from_millis(2));
        }
        holds
    })
}

fn check_holds(mut holds: Vec<Hold>) {
    holds.retain(Hold::is_known);
    holds.sort_by_key(|hold| hold.from);
    let owners: std::collections::BTreeSet<_> = holds.iter().map(|h| &h.owner).collect();
    assert!(
        owners.len() > OWNERS_MIN,
        "only {} had the lock",
        owners.len()
    );
    for (at, one) in holds.iter().enumerate() {
        for other in &holds[at + 1..] {
            if one.owner == other.owner {
                assert_eq!(one.token, other.token, "{}", one.owner);
                continue;
            }
            assert!(
                other.from >= one.until,
                "{} and {} held the lock at the same time",
                one.owner,
                other.owner
            );
            assert!(
                other.token > one.token,
                "{} got token {}, before it {} had {}",
                other.owner,
                other.token,
                one.owner,
                one.token
            );
        }
    }
}

#[test]
fn replicas_are_killed_under_watchers_and_locks() {
    let cluster = Cluster::start("watches", Dataplane::Udp, |spec| spec.partitions = 2);
    let replicas: Vec<SocketAddr> = (0..REPLICAS).map(|i| cluster.replica(i)).collect();
    let goal = Arc::new(Goal::default());
    let watchers: Vec<_> = (0..WATCHERS)
        .map(|first| {
            let (replicas, goal) = (replicas.clone(), goal.clone());
            thread::spawn(move || watch(&replicas, first, &goal))
        })
        .collect();
    let deadline = Instant::now() + TIMEOUT;
    let until = |what: &str, is_so: &mut dyn FnMut() -> bool| {
        while !is_so() {
            assert!(Instant::now() < deadline, "{what}: it is not so");
            thread::sleep(Duration::from_millis(20));
        }
    };
    until("all watch", &mut || goal.have_more_than(0));
    let (stop, owners) = (Arc::new(AtomicBool::new(false)), Arc::default());
    let writers: Vec<_> = (0..3)
        .map(|first| increment(replicas.clone(), first, stop.clone()))
        .collect();
    let lockers: Vec<_> = (0..3)
        .map(|id| lock(replicas.clone(), id, stop.clone(), Arc::clone(&owners)))
        .collect();
    for victim in (0..ROUNDS * REPLICAS).map(|n| n % REPLICAS) {
        thread::sleep(Duration::from_millis(600));
        let name = format!("replica/{victim}");
        cluster.supervisor.kill(&name).expect("it is killed");
        thread::sleep(Duration::from_millis(600));
        cluster.supervisor.restart(&name).expect("it starts");
        let address = cluster.replica(victim);
        let serves = || Client::try_connect(address)?.try_call(&["GET", "w:a"]);
        until(&format!("{name} serves"), &mut || {
            serves().is_some_and(|reply| !reply.starts_with('-'))
        });
    }
    let changes_of = |key: &&str| {
        let reply = Client::try_connect(replicas[0])?.try_call(&["GET", key]);
        reply?.parse::<u64>().ok()
    };
    until("enough happens", &mut || {
        goal.have_more_than(CONNECTIONS_MIN)
            // What a client took for its own may be found to have been too short in the end.
            && owners.load(Ordering::Relaxed) > 2 * OWNERS_MIN
            && KEYS.iter().all(|key| changes_of(key) > Some(CHANGES_MIN))
    });
    stop.store(true, Ordering::Release);
    writers
        .into_iter()
        .for_each(|w| w.join().expect("no panic"));
    let holds = lockers
        .into_iter()
        .flat_map(|l| l.join().expect("no panic"));
    check_holds(holds.collect());

    let mut client = Client::connect(replicas[0]);
    let last = KEYS.map(|key| {
        let value = client.call(&["GET", key]).parse().expect("a number");
        (key.to_owned(), value)
    });
    let last: BTreeMap<String, u64> = last.into();
    *goal.last.lock().expect("no panic") = Some(last.clone());
    for watcher in watchers {
        let (seen, is_complete) = watcher.join().expect("no panic");
        for (key, last) in &last {
            let values = &seen.values[key];
            let expected: Vec<u64> = (1..=*last).collect();
            let wrong = values.iter().zip(&expected).position(|(v, e)| v != e);
            let around = wrong.map(|at| &values[at.saturating_sub(3)..(at + 3).min(values.len())]);
            assert_eq!(
                wrong, None,
                "{key}: not each change once and in order: {around:?}"
            );
            assert_eq!(values.len(), expected.len(), "{key}");
            assert!(*last > CHANGES_MIN, "{key}: {last}");
        }
        assert!(is_complete);
        assert!(
            seen.connections > CONNECTIONS_MIN,
            "{} connections",
            seen.connections
        );
    }
    cluster.down_and_compare();
}
