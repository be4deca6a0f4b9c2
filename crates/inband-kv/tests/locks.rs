//! `INBAND.LOCK`: one owner at a time, tokens that only grow.

use std::collections::BTreeMap;

use crate::common::{open, scratch, show, wait_for, Bench, Served};
use crate::types::{by_checkpoint, Asker, Random};
use inband_kv::import::{import, ImportOptions};
use inband_kv::replica::ReplicaConfig;
use inband_kv::testing::MemoryCluster;

#[test]
fn acquire_renew_release() {
    // T0 times 1024, plus 1024 for each millisecond.
    Bench::default().script(
        "INBAND.LOCK GET l -> nilarray
         INBAND.LOCK RELEASE l a -> 0
         INBAND.LOCK RENEW l a 1000 -> nil
         INBAND.LOCK ACQUIRE l a 1000 -> 1740800000000000
         INBAND.LOCK ACQUIRE l b 1000 -> nil
         INBAND.LOCK RENEW l b 1000 -> nil
         INBAND.LOCK RELEASE l b -> 0
         INBAND.LOCK GET l -> ['a' 1740800000000000]
         TYPE l -> string
         @500
         inband.lock acquire l a 1000 -> 1740800000000000
         PTTL l -> 1000
         @600
         INBAND.LOCK RENEW l a 900 -> 1740800000000000
         @1499
         INBAND.LOCK ACQUIRE l b 1000 -> nil
         @1500
         INBAND.LOCK RENEW l a 1000 -> nil
         INBAND.LOCK ACQUIRE l b 1000 -> 1740800001536000
         INBAND.LOCK RELEASE l a -> 0
         INBAND.LOCK RELEASE l b -> 1
         INBAND.LOCK RELEASE l b -> 0
         INBAND.LOCK ACQUIRE l a 1000 -> 1740800001536002
         DEL l -> 1
         INBAND.LOCK ACQUIRE l a 1000 -> 1740800001536004
         INBAND.LOCK ACQUIRE other a 1000 -> 1740800001536006
         FLUSHALL -> OK
         INBAND.LOCK ACQUIRE l a 1000 -> 1740800001536008",
    );
}

#[test]
fn what_is_refused() {
    let wrong = "-WRONGTYPE Operation against a key holding the wrong kind of value";
    let long = "o".repeat(257);
    let mut bench = Bench::default();
    bench.script("SET s x -> OK\nRPUSH r x -> 1");
    for (command, expected) in [
        ("INBAND.LOCK ACQUIRE s a 1", wrong),
        ("INBAND.LOCK RENEW s a 1", wrong),
        ("INBAND.LOCK RELEASE s a", wrong),
        ("INBAND.LOCK GET r", wrong),
        (
            "INBAND.LOCK ACQUIRE l a 0",
            "-ERR ttl_ms = 0 is out of range; it must be 1 to 4611686018427387903",
        ),
        (
            "INBAND.LOCK RENEW l a x",
            "-ERR value is not an integer or out of range",
        ),
        (
            "INBAND.LOCK ACQUIRE l a",
            "-ERR wrong number of arguments for 'inband.lock|acquire' command",
        ),
        (
            "INBAND.LOCK GET l a",
            "-ERR wrong number of arguments for 'inband.lock|get' command",
        ),
        (
            "INBAND.LOCK STEAL l a",
            "-ERR unknown subcommand 'STEAL'. Try INBAND.LOCK HELP.",
        ),
        (
            "INBAND.LOCK RELEASE l \"\"",
            "-ERR an owner of 0 bytes; it must have 1 to 256 bytes, such as a random UUID",
        ),
        (
            &format!("INBAND.LOCK ACQUIRE l {long} 1"),
            "-ERR an owner of 257 bytes; it must have 1 to 256 bytes, such as a random UUID",
        ),
    ] {
        assert_eq!(show(&bench.run(command)), expected, "{command}");
    }
    bench.script("GET s -> 'x'\nEXISTS l -> 0");
}

/// What the locks should be.
#[derive(Default)]
struct Model {
    /// Owner, token, end of the lease.
    locks: BTreeMap<String, (String, u64, u64)>,
    /// The last token issued.
    last: u64,
}

impl Model {
    /// Compares a reply to a lock's command.
    fn check(&mut self, words: &[String], reply: &str, now_ms: u64) {
        self.locks.retain(|_, (_, _, end_ms)| *end_ms > now_ms);
        let (op, key) = (words[1].as_str(), words[2].clone());
        let owner = words.get(3).cloned().unwrap_or_default();
        let end_ms = now_ms + words.get(4).map_or(0, |ttl| ttl.parse().unwrap());
        let held = self.locks.get(&key).cloned();
        let is_owner = held.as_ref().is_some_and(|(holder, ..)| *holder == owner);
        let expected = match (op, held) {
            ("GET", None) => "nilarray".into(),
            ("GET", Some((holder, token, _))) => format!("['{holder}' {token}]"),
            ("RELEASE", _) => {
                if is_owner {
                    self.locks.remove(&key);
                }
                u8::from(is_owner).to_string()
            }
            (_, Some((_, token, _))) if is_owner => {
                self.locks.insert(key, (owner, token, end_ms));
                token.to_string()
            }
            ("ACQUIRE", None) => {
                let token: u64 = reply.parse().unwrap_or(0);
                assert!(token > self.last, "{words:?}: {reply} after {}", self.last);
                self.last = token;
                self.locks.insert(key, (owner, token, end_ms));
                reply.into()
            }
            _ => "nil".into(),
        };
        assert_eq!(reply, expected, "{words:?} at {now_ms}");
    }
}

/// Locks are taken, expire, are deleted and flushed; the store is restarted; another replica applies the same log.
#[test]
fn no_two_owners_and_tokens_grow() {
    for seed in 0..12 {
        let mut random = Random(seed);
        let (mut bench, mut model) = (Bench::default(), Model::default());
        let mut replies = Vec::new();
        for _ in 0..200 {
            bench.now_ms += random.below(3) as u64 * random.below(60) as u64;
            let key = random.of(&["l1", "l2", "l3"]).to_owned();
            let owner = random.of(&["a", "b", "c"]);
            let ttl_ms = 1 + random.below(200);
            let line = match random.below(16) {
                0..8 => format!("INBAND.LOCK ACQUIRE {key} {owner} {ttl_ms}"),
                8..10 => format!("INBAND.LOCK RENEW {key} {owner} {ttl_ms}"),
                10..12 => format!("INBAND.LOCK RELEASE {key} {owner}"),
                12 => format!("INBAND.LOCK GET {key}"),
                13 => format!("DEL {key}"),
                14 if random.below(4) == 0 => "FLUSHALL".into(),
                14 => "SET other x".into(),
                _ if random.below(8) == 0 => {
                    bench.reopen();
                    continue;
                }
                _ => "INCR n".into(),
            };
            let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
            let reply = show(&bench.run(&line));
            match words[0].as_str() {
                "INBAND.LOCK" => model.check(&words, &reply, bench.now_ms),
                "DEL" => drop(model.locks.remove(&key)),
                "FLUSHALL" => model.locks.clear(),
                _ => {}
            }
            replies.push(reply);
        }
        let dir = scratch();
        let again = bench.log.apply(&mut open(dir.path()), 1 + seed as usize);
        let again: Vec<String> = again.iter().map(show).collect();
        assert_eq!(again, replies, "another replica, seed {seed}");
    }
}

fn number(reply: &str) -> u64 {
    let digits = reply.strip_prefix(':').unwrap_or_else(|| panic!("{reply}"));
    digits.parse().unwrap()
}

#[test]
fn tokens_grow_beyond_those_of_the_cluster_that_was_exported() {
    let mut old = Bench::default();
    for n in 0..3000 {
        old.run(&format!("SET k{n} x"));
    }
    let token = |bench: &mut Bench, owner: &str| -> u64 {
        let line = format!("INBAND.LOCK ACQUIRE l {owner} 50");
        show(&bench.run(&line)).parse().unwrap()
    };
    let first = token(&mut old, "a");
    old.script("INBAND.LOCK RELEASE l a -> 1");
    let held = token(&mut old, "b");
    assert!(held > first);
    let (cluster, dir) = (MemoryCluster::new(), scratch());
    let served = Served::start(&cluster, dir.path(), ReplicaConfig::default());
    let mut exported = Vec::new();
    old.machine.shared().export(&mut exported).unwrap();
    let options = ImportOptions::default();
    import(&exported[..], served.address, options, &mut |_| {}).unwrap();
    let mut client = Asker::connect(served.address);
    // Its time is the hosts', long after T0: the lease has ended.
    assert_eq!(client.ask("INBAND.LOCK GET l"), "*-1");
    assert!(number(&client.ask("INBAND.LOCK ACQUIRE l c 60000")) > held + 1024);
}

#[test]
fn a_replica_that_loaded_a_checkpoint_issues_the_same_tokens() {
    let (cluster, dirs) = (MemoryCluster::new(), [scratch(), scratch()]);
    let [first, second] = Served::start_all(&cluster, &dirs);
    let mut token = 0;
    let mut one = by_checkpoint(&cluster, &first, |client| {
        token = number(&client.ask("INBAND.LOCK ACQUIRE l a 60000"));
        assert_eq!(client.ask("INBAND.LOCK RELEASE l a"), ":1");
    });
    wait_for("the checkpoint is installed", || {
        second.control.status().checkpoints_installed_total == 1
    });
    let mut other = Asker::connect(second.address);
    wait_for("it serves after that", || {
        !other.ask("INBAND.LOCK GET l").starts_with("-LOADING")
    });
    let later = number(&other.ask("INBAND.LOCK ACQUIRE l b 60000"));
    assert!(later > token);
    for client in [&mut one, &mut other] {
        assert_eq!(client.ask("INBAND.LOCK GET l"), format!("['b' :{later}]"));
    }
    assert_eq!(one.ask("INBAND.LOCK RENEW l b 1000"), format!(":{later}"));
}

#[test]
fn in_transactions_and_scripts_over_partitions() {
    let (cluster, dir) = (MemoryCluster::with_partitions(3), scratch());
    let served = Served::start(&cluster, dir.path(), ReplicaConfig::default());
    let mut client = Asker::connect(served.address);
    assert_eq!(client.ask("MULTI"), "+OK");
    for key in ["l1", "l2", "l3", "l4"] {
        let line = format!("INBAND.LOCK ACQUIRE {key} a 60000");
        assert_eq!(client.ask(&line), "+QUEUED");
    }
    let tokens = client.ask("EXEC");
    assert_eq!(tokens.matches(':').count(), 4, "{tokens}");
    let script = "return{redis.call('INBAND.LOCK','ACQUIRE',KEYS[1],'b',1000),redis.call('INBAND.LOCK','RELEASE',KEYS[2],'a')}";
    let line = format!("EVAL {script} 2 l1 l2");
    assert_eq!(client.ask(&line), "[$-1 :1]");
    assert!(number(&client.ask("INBAND.LOCK ACQUIRE l2 b 1000")) > 0);
    assert!(client.ask("INBAND.LOCK GET l1").starts_with("['a' :"));
}
