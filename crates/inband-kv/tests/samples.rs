//! `SRANDMEMBER`, `HRANDFIELD` and `ZRANDMEMBER`: what a real Redis cannot be compared with, because it is random.
//! `ZUNION` and its like: what differs.

use std::collections::BTreeSet;

use crate::common::{scratch, wait_for, Bench, Served};
use crate::types::Asker;
use inband_kv::replica::ReplicaConfig;
use inband_kv::testing::MemoryCluster;

const WRONG: &str = "-WRONGTYPE Operation against a key holding the wrong kind of value";

fn parts(reply: &str) -> Vec<&str> {
    let inner = reply.strip_prefix('[').and_then(|r| r.strip_suffix(']'));
    inner.unwrap_or(reply).split(' ').collect()
}

#[test]
fn elements_look_random() {
    let (cluster, dir) = (MemoryCluster::new(), scratch());
    let served = Served::start(&cluster, dir.path(), ReplicaConfig::default());
    let mut asker = Asker::connect(served.address);
    for line in [
        "SADD s a b c d e f g h i j",
        "HSET h a 1 b 2 c 3 d 4",
        "ZADD z 1 a 2 b 3 c 4 d",
    ] {
        assert!(asker.ask(line).starts_with(':'));
    }
    let members: Vec<String> = "abcdefghij".chars().map(|m| format!("'{m}'")).collect();
    for reads in ["position", "log"] {
        assert_eq!(asker.ask(&format!("INBAND.READS {reads}")), "+OK");
        let mut seen = BTreeSet::new();
        for _ in 0..200 {
            seen.insert(asker.ask("SRANDMEMBER s"));
            let three = asker.ask("SRANDMEMBER s 3");
            let three: BTreeSet<&str> = parts(&three).into_iter().collect();
            assert_eq!(three.len(), 3, "{three:?}");
            assert!(three
                .iter()
                .all(|m| members.iter().any(|member| member == m)));
        }
        assert!(seen.iter().eq(&members), "{seen:?}");
    }
    let many = asker.ask("SRANDMEMBER s -300");
    assert_eq!(parts(&many).len(), 300);
    assert_eq!(BTreeSet::from_iter(parts(&many)).len(), 10, "{many}");
    for (line, pairs) in [
        (
            "HRANDFIELD h 1 WITHVALUES",
            ["'a' '1'", "'b' '2'", "'c' '3'", "'d' '4'"],
        ),
        (
            "ZRANDMEMBER z 1 WITHSCORES",
            ["'a' '1'", "'b' '2'", "'c' '3'", "'d' '4'"],
        ),
    ] {
        let seen: BTreeSet<String> = (0..100).map(|_| asker.ask(line)).collect();
        assert!(
            seen.iter().eq(&pairs.map(|pair| format!("[{pair}]"))),
            "{seen:?}"
        );
    }
    assert_eq!(parts(&asker.ask("HRANDFIELD h -7 WITHVALUES")).len(), 14);
    assert_eq!(asker.ask("SRANDMEMBER nosuch"), "$-1");
    assert_eq!(asker.ask("SRANDMEMBER nosuch -3"), "[]");
    assert_eq!(asker.ask("HRANDFIELD s"), WRONG);
    // In a transaction each command has its own elements.
    assert_eq!(asker.ask("MULTI"), "+OK");
    for _ in 0..30 {
        assert_eq!(asker.ask("SRANDMEMBER s"), "+QUEUED");
    }
    let replies = asker.ask("EXEC");
    assert!(BTreeSet::from_iter(parts(&replies)).len() > 5, "{replies}");
}

#[test]
fn as_many_as_fit_in_a_reply() {
    let mut bench = Bench::default();
    bench.run("SADD s a");
    for command in [
        "SRANDMEMBER s -9223372036854775807",
        "SRANDMEMBER s -2000000",
    ] {
        let reply = crate::common::show(&bench.run(command));
        assert!(
            reply.starts_with("-ERR the reply is over the limit"),
            "{reply}"
        );
    }
}

/// What a script writes depends on nothing but the log.
#[test]
fn scripts_pick_the_same_elements_on_every_replica() {
    let cluster = MemoryCluster::new();
    let dirs = [scratch(), scratch()];
    let served = [0, 1].map(|index| {
        let config = ReplicaConfig {
            replica_index: index,
            ..ReplicaConfig::default()
        };
        Served::start(&cluster, dirs[index as usize].path(), config)
    });
    let mut asker = Asker::connect(served[0].address);
    let members: Vec<String> = (0..100).map(|member| member.to_string()).collect();
    asker.ask(&format!("SADD s {}", members.join(" ")));
    let script =
        "for i = 1, 5 do redis.call('RPUSH', KEYS[2], redis.call('SRANDMEMBER', KEYS[1])) end \
                  return redis.call('LLEN', KEYS[2])";
    for round in 1..=40 {
        let words = ["EVAL", script, "2", "s", "picked"].map(str::to_owned);
        asker.send(&[words.to_vec()]);
        assert_eq!(asker.reply(false), format!(":{}", 5 * round));
    }
    let picked = asker.ask("LRANGE picked 0 -1");
    assert!(BTreeSet::from_iter(parts(&picked)).len() > 50, "{picked}");
    wait_for("both replicas are equal", || {
        served[0].control.digest().unwrap().1 == served[1].control.digest().unwrap().1
    });
}

#[test]
fn unions_of_scores_that_differ_from_redis() {
    Bench::default().script(
        "ZADD a 0 x inf y -> 2
         SADD b x y -> 2
         ZUNION 1 a WEIGHTS -1 WITHSCORES -> {'y':-inf 'x':0}
         ZUNION 2 a b WEIGHTS 0 -2 WITHSCORES -> {'x':-2 'y':-2}
         ZADD c -inf y -> 1
         ZINTER 2 a c WITHSCORES -> {'y':0}
         ZUNIONSTORE a 2 a c -> 2
         ZSCORE a y -> 0
         PEXPIRE a 1000 -> 1
         ZINTERSTORE a 2 a b -> 2
         PTTL a -> -1
         ZINTERSTORE a 2 a nosuch -> 0
         EXISTS a -> 0
         SET s string -> OK
         ZDIFF 2 nosuch s -> -WRONGTYPE Operation against a key holding the wrong kind of value
         ZUNION 2 c s NONSENSE -> -WRONGTYPE Operation against a key holding the wrong kind of value
         ZDIFFSTORE s 1 c -> 1
         TYPE s -> zset",
    );
}
