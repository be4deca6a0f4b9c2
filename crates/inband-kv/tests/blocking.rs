//! Blocking pops: compared with a real Redis, over several replicas and partitions, and how waits end.

use std::collections::BTreeSet;
use std::io::Read;
use std::net::{Shutdown, SocketAddr};

use crate::common::{key_of_each, scratch, wait_for, Served};
use crate::types::{by_checkpoint, compare_with_redis, Asker, RealRedis};
use inband_kv::limit_hits::LimitHit;
use inband_kv::replica::ReplicaConfig;
use inband_kv::testing::MemoryCluster;

const TEMPLATES: &[&str] = &[
    "SET K V",
    "DEL K K",
    "TYPE K",
    "RPUSH K V V",
    "LPUSH K V",
    "LRANGE K 0 -1",
    "ZADD K S F S F",
    "ZRANGE K 0 -1 WITHSCORES",
    "BLPOP K K K 0.001",
    "BLPOP K K K 0.001",
    "BRPOP K K 0.001",
    "BLPOP K x",
    "BLPOP K -1",
    "BLPOP K",
    "BLMOVE K K LEFT RIGHT 0.001",
    "BLMOVE K K right left 0.001",
    "BLMOVE K K up RIGHT 0.001",
    "BLMOVE K K LEFT RIGHT nan",
    "BRPOPLPUSH K K 0.001",
    "BRPOPLPUSH K K -0.5",
    "BZPOPMIN K K 0.001",
    "BZPOPMAX K K 0.001",
    "LMPOP 1 K LEFT",
    "LMPOP 3 K K K right COUNT 2",
    "LMPOP 2 K K LEFT COUNT 100",
    "LMPOP 0 K LEFT",
    "LMPOP x K LEFT",
    "LMPOP -1 K LEFT",
    "LMPOP 2 K LEFT",
    "LMPOP 5 K LEFT",
    "LMPOP 1 K MIN",
    "LMPOP 1 K LEFT COUNT 0",
    "LMPOP 1 K LEFT COUNT x",
    "LMPOP 1 K LEFT COUNT",
    "LMPOP 1 K LEFT COUNT 1 COUNT 1",
    "LMPOP 1 K LEFT LIMIT 1",
    "ZMPOP 2 K K MIN",
    "ZMPOP 2 K K max COUNT 2",
    "ZMPOP 1 K LEFT",
    "ZMPOP 1 K MAX COUNT 1 x",
    "BLMPOP 0.001 2 K K LEFT",
    "BLMPOP 0.001 1 K RIGHT COUNT 3",
    "BLMPOP x 1 K RIGHT",
    "BLMPOP -1 0 K RIGHT",
    "BLMPOP 0.001 1 K",
    "BZMPOP 0.001 2 K K MIN COUNT 2",
    "BZMPOP 0.001 1 K MAX",
    "BZMPOP 0.001 1 K up",
];

#[test]
fn a_real_redis_answers_the_same() {
    compare_with_redis(TEMPLATES, "HELLO 2");
}

#[test]
fn a_real_redis_answers_the_same_in_resp3() {
    compare_with_redis(TEMPLATES, "HELLO 3");
}

fn request(line: &str) -> Vec<String> {
    line.split(' ').map(str::to_owned).collect()
}

/// A server, and what its clients were told.
struct Talk {
    address: SocketAddr,
    /// A client that does not wait.
    admin: Asker,
    waiting: usize,
    seen: Vec<String>,
}

impl Talk {
    fn new(address: SocketAddr) -> Self {
        Self {
            address,
            admin: Asker::connect(address),
            waiting: 0,
            seen: Vec::new(),
        }
    }

    fn expect_waiting(&mut self, count: usize) {
        self.waiting = count;
        let admin = &mut self.admin;
        let field = format!("blocked_clients:{count}\r\n");
        wait_for(&field, || admin.ask("INFO clients").contains(&field));
    }

    /// A client that sends these requests and then waits.
    fn wait(&mut self, lines: &[&str]) -> Asker {
        let mut client = Asker::connect(self.address);
        client.send(&lines.iter().map(|line| request(line)).collect::<Vec<_>>());
        self.expect_waiting(self.waiting + 1);
        client
    }

    fn tell(&mut self, line: &str) {
        let reply = self.admin.ask(line);
        self.seen.push(format!("{line} -> {reply}"));
    }

    /// A waiting client is answered.
    fn answered(&mut self, client: &mut Asker) {
        self.seen.push(client.reply(false));
        self.waiting -= 1;
    }
}

/// What clients see of each other.
fn converse(address: SocketAddr) -> Vec<String> {
    let mut talk = Talk::new(address);
    // In the order in which they came.
    let (mut a, mut b) = (talk.wait(&["BLPOP q 0"]), talk.wait(&["BRPOP q 100"]));
    let mut c = talk.wait(&["BLPOP other q 0"]);
    talk.tell("RPUSH q 1 2");
    talk.answered(&mut a);
    talk.answered(&mut b);
    talk.tell("RPUSH q 3 4");
    talk.answered(&mut c);
    talk.tell("LRANGE q 0 -1");
    talk.tell("BLPOP q 0");
    // A value of another type does not count.
    let mut a = talk.wait(&["BLPOP k k 0"]);
    talk.tell("SET k v");
    talk.tell("DEL k");
    talk.tell("ZADD k 1 m");
    talk.tell("DEL k");
    talk.tell("RPUSH k 1");
    talk.answered(&mut a);
    // One of the keys has another type.
    let mut a = talk.wait(&["BLPOP k l 0"]);
    talk.tell("SET k v");
    talk.tell("RPUSH l 1");
    talk.answered(&mut a);
    // Elements that were there only within a transaction.
    let mut a = talk.wait(&["BLPOP t 0"]);
    for line in ["MULTI", "RPUSH t 1", "DEL t", "EXEC", "RPUSH t 2"] {
        talk.tell(line);
    }
    talk.answered(&mut a);
    // The destination has another type.
    talk.tell("SET d s");
    let mut a = talk.wait(&["BLMOVE s d LEFT RIGHT 0"]);
    talk.tell("RPUSH s 1");
    talk.answered(&mut a);
    talk.tell("LRANGE s 0 -1");
    // From one waiting client to the next.
    let mut a = talk.wait(&["BLPOP m2 0"]);
    let mut b = talk.wait(&["BRPOPLPUSH m1 m2 0"]);
    let mut c = talk.wait(&["BLMOVE m0 m1 LEFT LEFT 0"]);
    talk.tell("RPUSH m0 9");
    talk.answered(&mut c);
    talk.answered(&mut b);
    talk.answered(&mut a);
    // Sorted sets.
    let mut a = talk.wait(&["BZPOPMIN z 0"]);
    let mut b = talk.wait(&["HELLO 3", "BZPOPMAX y z 0"]);
    talk.seen.push(b.reply(false).len().min(1).to_string());
    talk.tell("ZADD z 1 a 2.5 b 3.5 c");
    talk.answered(&mut a);
    talk.answered(&mut b);
    talk.tell("ZRANGE z 0 -1");
    // What comes in other ways.
    for lines in [["RPUSH r0 1", "RENAME r0 r"], ["RPUSH r0 1", "COPY r0 r"]] {
        let mut a = talk.wait(&["BLPOP r 0"]);
        for line in lines {
            talk.tell(line);
        }
        talk.answered(&mut a);
    }
    let mut a = talk.wait(&["BLPOP e 0"]);
    let script = "redis.call('rpush', KEYS[1], 'x') return redis.call('llen', KEYS[1])";
    let words = ["EVAL", script, "1", "e"].map(str::to_owned).to_vec();
    talk.admin.send(&[words]);
    let reply = talk.admin.reply(false);
    talk.seen.push(reply);
    talk.answered(&mut a);
    // The requests behind it wait as well.
    let mut a = talk.wait(&["BLPOP p 0", "SET after 1", "GET after"]);
    talk.tell("GET after");
    talk.tell("RPUSH p 1");
    talk.answered(&mut a);
    talk.seen.extend([a.reply(false), a.reply(false)]);
    // A client that is gone gets nothing, and the next one is served.
    let a = talk.wait(&["BLPOP g 0"]);
    let mut b = talk.wait(&["BLPOP g 0"]);
    drop(a);
    talk.expect_waiting(1);
    talk.tell("RPUSH g 1 2");
    talk.answered(&mut b);
    talk.tell("LRANGE g 0 -1");
    // So is one that has closed its side only.
    let mut a = talk.wait(&["BLPOP h 0", "PING"]);
    a.stream().shutdown(Shutdown::Write).unwrap();
    talk.expect_waiting(0);
    let mut rest = Vec::new();
    let len = a.stream().read_to_end(&mut rest).unwrap_or(0);
    talk.seen.push(format!("{len} bytes"));
    talk.seen
}

#[test]
fn clients_see_the_same_as_in_a_real_redis() {
    let Some(redis) = RealRedis::start() else {
        return;
    };
    let expected = converse(redis.address);
    for partitions in [1, 3] {
        let (cluster, dir) = (MemoryCluster::with_partitions(partitions), scratch());
        let served = Served::start(&cluster, dir.path(), ReplicaConfig::default());
        assert_eq!(converse(served.address), expected, "{partitions}");
    }
}

/// Elements are pushed and popped at two replicas, from keys of all partitions: each is popped exactly once.
#[test]
fn every_element_is_popped_once() {
    for partitions in [1, 3] {
        let cluster = MemoryCluster::with_partitions(partitions);
        let dirs = [scratch(), scratch()];
        let served = Served::start_all(&cluster, &dirs);
        let keys = key_of_each("q", 3);
        let (workers, pushes) = (8, 100);
        let worker = |at: usize| {
            let mut client = Asker::connect(served[at % 2].address);
            // Some wait for one key, some for several.
            let names = match at % 4 {
                0 | 1 => keys.join(" "),
                _ => format!("{} {}", keys[at % 3], keys[(at + 1) % 3]),
            };
            std::thread::spawn(move || {
                let mut popped = Vec::new();
                loop {
                    let reply = client.ask(&format!("BLPOP {names} 0"));
                    if reply.contains("end") {
                        return popped;
                    }
                    let element = reply.split('\'').nth(3);
                    popped.push(element.unwrap_or_else(|| panic!("{reply}")).to_owned());
                }
            })
        };
        let workers: Vec<_> = (0..workers).map(worker).collect();
        let pushers = [0, 1].map(|at| {
            let (mut client, keys) = (Asker::connect(served[at].address), keys.clone());
            std::thread::spawn(move || {
                for n in 0..pushes {
                    let key = &keys[n % 3];
                    let reply = client.ask(&format!("RPUSH {key} {at}-{n}a {at}-{n}b"));
                    assert!(reply.starts_with(':'), "{reply}");
                }
            })
        });
        for pusher in pushers {
            pusher.join().expect("no panic");
        }
        let mut client = Asker::connect(served[0].address);
        let is_empty = |client: &mut Asker| {
            keys.iter()
                .all(|key| client.ask(&format!("EXISTS {key}")) == ":0")
        };
        wait_for("all are popped", || is_empty(&mut client));
        while workers.iter().any(|worker| !worker.is_finished()) {
            for key in &keys {
                client.ask(&format!("RPUSH {key} end"));
            }
            wait_for("it is popped, or nobody waits for it", || {
                is_empty(&mut client) || workers.iter().all(|worker| worker.is_finished())
            });
        }
        let popped: Vec<_> = workers
            .into_iter()
            .flat_map(|worker| worker.join().expect("no panic"))
            .collect();
        let expected: BTreeSet<_> = (0..2)
            .flat_map(|at| {
                (0..pushes).flat_map(move |n| ["a", "b"].map(|x| format!("{at}-{n}{x}")))
            })
            .collect();
        assert_eq!(popped.len(), expected.len());
        assert_eq!(popped.into_iter().collect::<BTreeSet<_>>(), expected);
        wait_for("both replicas are equal", || {
            served[0].control.digest().unwrap().1 == served[1].control.digest().unwrap().1
        });
    }
}

/// Draining ends the wait of a client with an error, and does not wait for its attempts.
#[test]
fn a_replica_that_drains_ends_all_waits() {
    let (cluster, dir) = (MemoryCluster::new(), scratch());
    let served = Served::start(&cluster, dir.path(), ReplicaConfig::default());
    let mut talk = Talk::new(served.address);
    let mut client = talk.wait(&["BLPOP k 0", "PING"]);
    served.control.drain();
    assert!(client.reply(false).starts_with("-LOADING this replica"));
    assert_eq!(client.reply(false), "+PONG");
    wait_for("it is drained", || served.control.status().is_drained);
}

#[test]
fn waits_are_bounded() {
    let (cluster, dir) = (MemoryCluster::new(), scratch());
    let config = ReplicaConfig {
        waiting_clients_max: 2,
        ..ReplicaConfig::default()
    };
    let served = Served::start(&cluster, dir.path(), config);
    let mut talk = Talk::new(served.address);
    let (a, _b) = (talk.wait(&["BLPOP k 0"]), talk.wait(&["BLPOP k 0"]));
    let mut third = Asker::connect(served.address);
    let refused = "-ERR 2 clients of this replica wait, which is the limit";
    assert_eq!(third.ask("BLPOP k 0"), refused);
    assert_eq!(third.ask("PING"), "+PONG");
    assert_eq!(served.control.status().hits(LimitHit::Waiting), 1);
    drop(a);
    talk.expect_waiting(1);
    let keys = vec!["k"; 1025].join(" ");
    let refused = third.ask(&format!("BLPOP {keys} 0"));
    assert!(
        refused.starts_with("-ERR 1025 keys are over the limit"),
        "{refused}"
    );
    let long = "k".repeat(33_000 - 1_000);
    let refused = third.ask(&format!("BLPOP {long} {long} {long} 0"));
    assert!(
        refused.contains("bytes that a client waits for"),
        "{refused}"
    );
    // Their memory counts.
    let before = served.control.status().clients_memory_bytes;
    third.send(&[request(&format!("BLPOP {long} 0"))]);
    talk.expect_waiting(2);
    assert!(served.control.status().clients_memory_bytes > before + 3 * 32_000);
}

/// In a session every command has its number, so a pop is one attempt.
#[test]
fn in_a_session_a_pop_does_not_wait() {
    let (cluster, dir) = (MemoryCluster::new(), scratch());
    let served = Served::start(&cluster, dir.path(), ReplicaConfig::default());
    let mut client = Asker::connect(served.address);
    let id = client.ask("INBAND.SESSION NEW")[1..].to_owned();
    for _ in 0..2 {
        assert_eq!(client.ask(&format!("INBAND.SESSION {id} 1")), "+OK");
        assert_eq!(client.ask("BLPOP k 0"), "*-1");
        assert_eq!(client.ask("RPUSH k 1 2"), ":2");
        assert_eq!(client.ask("BLPOP k 0"), "['k' '1']");
    }
    assert_eq!(client.ask("LRANGE k 0 -1"), "['2']");
}

/// An element that a replica learns of by a checkpoint wakes its clients too.
#[test]
fn an_element_in_a_checkpoint_wakes_the_client() {
    let cluster = MemoryCluster::new();
    let dirs = [scratch(), scratch()];
    let served = Served::start_all(&cluster, &dirs);
    let mut talk = Talk::new(served[1].address);
    let mut waiting = talk.wait(&["BLPOP k 0"]);
    by_checkpoint(&cluster, &served[0], |client| {
        assert_eq!(client.ask("RPUSH k element"), ":1");
    });
    assert_eq!(waiting.reply(false), "['k' 'element']");
    let installed = served[1].control.status().checkpoints_installed_total;
    assert_eq!(installed, 1);
}

#[test]
fn another_client_ends_a_wait() {
    let (cluster, dir) = (MemoryCluster::new(), scratch());
    let served = Served::start(&cluster, dir.path(), ReplicaConfig::default());
    let real = RealRedis::start();
    let addresses = [Some(served.address), real.as_ref().map(|real| real.address)];
    for address in addresses.into_iter().flatten() {
        let (mut waits, mut other) = (Asker::connect(address), Asker::connect(address));
        let id = waits.ask("CLIENT ID").trim_matches(':').to_owned();
        assert_eq!(other.ask(&format!("CLIENT UNBLOCK {id}")), ":0");
        for (reason, expected) in [
            ("", "*-1"),
            (" timeout", "*-1"),
            (" ERROR", "-UNBLOCKED client unblocked via CLIENT UNBLOCK"),
        ] {
            waits.send(&[["BLPOP", "k", "0"].map(str::to_owned).to_vec()]);
            wait_for("it waits", || {
                other.ask(&format!("CLIENT UNBLOCK {id}{reason}")) == ":1"
            });
            assert_eq!(waits.reply(false), expected, "{address}{reason}");
        }
        // It has left the queue.
        assert_eq!(other.ask("RPUSH k v"), ":1");
        assert_eq!(other.ask("LLEN k"), ":1");
        assert_eq!(waits.ask("BLPOP k 0"), "['k' 'v']");
        for (wrong, expected) in [
            ("CLIENT UNBLOCK 0", ":0"),
            ("CLIENT UNBLOCK -1", ":0"),
            (
                "CLIENT UNBLOCK x",
                "-ERR value is not an integer or out of range",
            ),
            (
                "CLIENT UNBLOCK 1 maybe",
                "-ERR CLIENT UNBLOCK reason should be TIMEOUT or ERROR",
            ),
            (
                "CLIENT UNBLOCK",
                "-ERR wrong number of arguments for 'client|unblock' command",
            ),
        ] {
            assert_eq!(other.ask(wrong), expected, "{address}: {wrong}");
        }
    }
}
