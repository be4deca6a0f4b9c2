//! Sorted sets: compared with a real Redis, in scripts and transactions, after a restart, in an export.

use inband_kv::import::{import, ImportOptions};
use inband_kv::replica::ReplicaConfig;
use inband_kv::testing::MemoryCluster;

use crate::common::{scratch, show, Bench, Served};
use crate::types::{compare_with_redis, Asker};

pub const TEMPLATES: &[&str] = &[
    "SET K V",
    "DEL K",
    "RENAME K K",
    "COPY K K REPLACE",
    "TYPE K",
    "SADD K F",
    "EXPIRE K 1000",
    "ZADD K S F",
    "ZADD K S F S F S F",
    "ZADD K S F S F S F",
    "ZADD K NX S F",
    "ZADD K XX CH S F S F",
    "ZADD K gt CH S F S F",
    "ZADD K LT S F",
    "ZADD K NX GT S F",
    "ZADD K NX XX S F",
    "ZADD K GT LT S F",
    "ZADD K XX GT INCR S F",
    "ZADD K INCR S F S F",
    "ZADD K INCR S F",
    "ZADD K NX INCR S F",
    "ZADD K S",
    "ZADD K x F",
    "ZADD K 1 F nan F",
    "ZADD K CH NX",
    "ZADD K 1e400 F",
    "ZADD K 1e-400 F",
    "ZINCRBY K S F",
    "ZINCRBY K x F",
    "ZINCRBY K NX F",
    "ZSCORE K F",
    "ZMSCORE K F F F",
    "ZCARD K",
    "ZCOUNT K B B",
    "ZLEXCOUNT K X X",
    "ZRANK K F",
    "ZREVRANK K F",
    "ZREM K F F",
    "ZRANGE K I I",
    "ZRANGE K I I REV WITHSCORES",
    "ZRANGE K 0 -1 WITHSCORES",
    "ZRANGE K 0 -1 withscores",
    "ZRANGE K B B BYSCORE",
    "ZRANGE K B B BYSCORE REV LIMIT 0 2",
    "ZRANGE K B B BYSCORE LIMIT I I WITHSCORES",
    "ZRANGE K X X BYLEX",
    "ZRANGE K X X BYLEX REV LIMIT 1 2",
    "ZRANGE K X X BYLEX WITHSCORES",
    "ZRANGE K I I LIMIT 0 1",
    "ZRANGE K I I LIMIT 0 -1",
    "ZRANGE K I I LIMIT x 1",
    "ZRANGE K I I BYLEX BYSCORE",
    "ZRANGE K I I LIMIT 1",
    "ZRANGE K x 1",
    "ZRANGEBYSCORE K B B",
    "ZRANGEBYSCORE K B B WITHSCORES LIMIT 1 I",
    "ZRANGEBYSCORE K B B REV",
    "ZREVRANGEBYSCORE K B B WITHSCORES",
    "ZREVRANGEBYSCORE K B B LIMIT I 3",
    "ZREVRANGE K I I",
    "ZREVRANGE K I I WITHSCORES",
    "ZREVRANGE K x 1",
    "ZRANGEBYLEX K X X",
    "ZREVRANGEBYLEX K X X LIMIT 0 1",
    "ZREMRANGEBYRANK K I I",
    "ZREMRANGEBYRANK K x I",
    "ZREMRANGEBYSCORE K B B",
    "ZREMRANGEBYLEX K X X",
    "ZPOPMIN K",
    "ZPOPMAX K",
    "ZPOPMIN K 2",
    "ZPOPMAX K 0",
    "ZPOPMAX K -1",
    "ZPOPMIN K 1 2",
    "ZUNION 2 K K",
    "ZUNION 3 K K K WITHSCORES",
    "ZUNION 2 K K WEIGHTS 2 0.5 WITHSCORES",
    "ZUNION 2 K K withscores aggregate min",
    "ZUNION 2 K K AGGREGATE MAX WEIGHTS 1 3 WITHSCORES",
    "ZUNION 2 K K WEIGHTS inf 1 WITHSCORES",
    "ZUNION 2 K K WEIGHTS 1",
    "ZUNION 2 K K WEIGHTS 1 x",
    "ZUNION 2 K K WEIGHTS 1 1e400",
    "ZUNION 2 K K AGGREGATE",
    "ZUNION 2 K K AGGREGATE AVG",
    "ZUNION 2 K K LIMIT 1",
    "ZUNION 3 K K",
    "ZUNION 0 K",
    "ZUNION -1 K K",
    "ZUNION x K",
    "ZINTER 2 K K",
    "ZINTER 2 K K WITHSCORES",
    "ZINTER 3 K K K WITHSCORES",
    "ZINTER 2 K K WEIGHTS 2 0.5 AGGREGATE SUM WITHSCORES",
    "ZINTER 2 K K AGGREGATE MIN WITHSCORES",
    "ZINTER 2 K K AGGREGATE MAX WITHSCORES WITHSCORES",
    "ZDIFF 1 K",
    "ZDIFF 2 K K WITHSCORES",
    "ZDIFF 3 K K K",
    "ZDIFF 2 K K WEIGHTS 1 1",
    "ZDIFF 0 K",
    "ZINTERCARD 2 K K",
    "ZINTERCARD 2 K K LIMIT 1",
    "ZINTERCARD 2 K K LIMIT -1",
    "ZINTERCARD 2 K K WITHSCORES",
    "ZUNIONSTORE K 2 K K",
    "ZUNIONSTORE K 2 K K WEIGHTS 2 0.5 AGGREGATE MAX",
    "ZUNIONSTORE K 2 K K WITHSCORES",
    "ZINTERSTORE K 2 K K",
    "ZINTERSTORE K 2 K K AGGREGATE MIN",
    "ZINTERSTORE K 0 K",
    "ZDIFFSTORE K 2 K K",
    "ZDIFFSTORE K 3 K K",
    "ZRANDMEMBER K 100",
    "ZRANDMEMBER K 0 WITHSCORES",
    "ZRANDMEMBER K 1 WITHVALUES",
    "ZRANDMEMBER K x",
    "ZSCAN K 0",
    "ZSCAN K 0 MATCH f[0-3]",
    "ZSCAN K x",
];

#[test]
fn a_real_redis_answers_the_same() {
    compare_with_redis(TEMPLATES, "HELLO 2");
}

#[test]
fn a_real_redis_answers_the_same_in_resp3() {
    compare_with_redis(TEMPLATES, "HELLO 3");
}

#[test]
fn a_rank_with_its_score_as_redis_7_2() {
    let mut bench = Bench::default();
    bench.script(
        "ZADD z 1.5 a 2 b -> 2
         ZRANK z b WITHSCORE -> [1 2]
         ZREVRANK z a withscore -> [1 1.5]
         ZRANK z c WITHSCORE -> nilarray
         ZRANK z a SCORE -> -ERR syntax error
         ZRANK z a WITHSCORE x -> -ERR wrong number of arguments for 'zrank' command",
    );
}

#[test]
fn they_expire_and_survive_a_restart() {
    let mut bench = Bench::default();
    bench.script(
        "ZADD z 2 b 1 a inf c -> 3
         TYPE z -> zset
         PEXPIRE z 500 -> 1
         ZADD z 0.1 d -> 1
         PTTL z -> 500",
    );
    bench.reopen();
    bench.script(
        "ZRANGE z 0 -1 WITHSCORES -> {'d':0.10000000000000001 'a':1 'b':2 'c':inf}
         PTTL z -> 500
         ZREM z a b c d -> 4
         EXISTS z -> 0
         ZADD z 1 a -> 1
         PEXPIRE z 500 -> 1
         @500
         ZCARD z -> 0
         ZADD z -0 a -> 1
         ZSCORE z a -> 0
         ZINCRBY z inf a -> inf
         ZINCRBY z -inf a -> -ERR resulting score is not a number (NaN)
         GET z -> -WRONGTYPE Operation against a key holding the wrong kind of value",
    );
}

const SLIDING_WINDOW: &str =
    "local now, window, limit = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
    redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - window)
    if redis.call('ZCARD', KEYS[1]) >= limit then
        local oldest = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
        return {0, tonumber(oldest[2]) + window - now}
    end
    redis.call('ZADD', KEYS[1], now, ARGV[4])
    redis.call('PEXPIRE', KEYS[1], window)
    return {1, 0}";

#[test]
fn a_rate_limiter() {
    let mut bench = Bench::default();
    let mut ask = |now: u64, id: &str| {
        let now = now.to_string();
        let words = [
            "EVAL",
            SLIDING_WINDOW,
            "1",
            "limit:user",
            &now,
            "1000",
            "3",
            id,
        ];
        let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
        show(&bench.run_words(&words, None))
    };
    for (now, id, expected) in [
        (10_000, "a", "[1 0]"),
        (10_100, "b", "[1 0]"),
        (10_200, "c", "[1 0]"),
        (10_300, "d", "[0 700]"),
        (10_999, "e", "[0 1]"),
        (11_000, "f", "[1 0]"),
        (11_001, "g", "[0 99]"),
        (13_000, "h", "[1 0]"),
    ] {
        assert_eq!(ask(now, id), expected, "at {now}");
    }
    bench.script("ZCARD limit:user -> 1");
}

#[test]
fn a_leaderboard() {
    let mut bench = Bench::default();
    for (player, points) in [
        ("ann", 10),
        ("bob", 30),
        ("cid", 20),
        ("ann", 15),
        ("dan", 5),
    ] {
        bench.run(&format!("ZINCRBY board {points} {player}"));
    }
    bench.script(
        "ZREVRANGE board 0 2 WITHSCORES -> {'bob':30 'ann':25 'cid':20}
         ZREVRANK board ann -> 1
         ZCOUNT board (20 +inf -> 2
         ZRANGE board +inf (5 BYSCORE REV LIMIT 1 2 -> ['ann' 'cid']
         ZMSCORE board dan eve -> [5 nil]
         ZREMRANGEBYRANK board 0 -3 -> 2
         ZPOPMAX board -> ['bob' 30]
         ZCARD board -> 1",
    );
}

#[test]
fn a_malformed_one_is_not_restored() {
    let mut bench = Bench::default();
    let row = |score: f64, member: &[u8]| {
        // Positive scores only.
        [&(score.to_bits() | 1 << 63).to_be_bytes()[..], member].concat()
    };
    let pack = |rows: &[Vec<u8>]| {
        let mut value = (rows.len() as u32).to_be_bytes().to_vec();
        let mut end = 0;
        for row in rows {
            end += row.len() as u32;
            value.extend_from_slice(&end.to_be_bytes());
        }
        [value, rows.concat()].concat()
    };
    let mut restore = |rows: &[Vec<u8>]| {
        let words = [&b"INBAND.RESTORE"[..], b"z", b"zset", b"0", &pack(rows)];
        show(&bench.run_words(&words, None))
    };
    let refused = "-ERR this is not a collection of an export";
    assert_eq!(restore(&[row(2.0, b"a"), row(1.0, b"b")]), refused);
    assert_eq!(restore(&[row(1.0, b"a"), row(2.0, b"a")]), refused);
    assert_eq!(restore(&[row(f64::NAN, b"a")]), refused);
    assert_eq!(restore(&[b"short".to_vec()]), refused);
    assert_eq!(restore(&[row(1.0, b"b"), row(2.0, b"a")]), "OK");
    bench.script("ZRANGE z 0 -1 WITHSCORES -> {'b':1 'a':2}");
}

#[test]
fn they_are_exported() {
    let (cluster, dir) = (MemoryCluster::with_partitions(3), scratch());
    let served = Served::start(&cluster, dir.path(), ReplicaConfig::default());
    let mut asker = Asker::connect(served.address);
    assert_eq!(asker.ask("ZADD z 1.5 a -inf b 1e17 c"), ":3");
    assert_eq!(asker.ask("PEXPIREAT z 4000000000000"), ":1");
    assert_eq!(asker.ask("SET s x"), "+OK");
    let mut stream = Vec::new();
    served.control.export(&mut stream).unwrap();
    assert_eq!(&stream[..8], b"IBEXPT3\n");
    let (other, dir) = (MemoryCluster::with_partitions(1), scratch());
    let target = Served::start(&other, dir.path(), ReplicaConfig::default());
    import(
        &stream[..],
        target.address,
        ImportOptions::default(),
        &mut |_| {},
    )
    .unwrap();
    let mut imported = Asker::connect(target.address);
    for line in [
        "ZRANGE z 0 -1 WITHSCORES",
        "EXPIRE z 1 LT",
        "TYPE z",
        "DBSIZE",
    ] {
        assert_eq!(imported.ask(line), asker.ask(line), "{line}");
    }
    let scanned = imported.ask("SCAN 0 COUNT 100 TYPE zset");
    assert!(
        scanned.contains("'z'") && !scanned.contains("'s'"),
        "{scanned}"
    );
}
