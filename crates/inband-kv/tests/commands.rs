//! Every replicated command, executed by a single store.

use crate::common::{show, Bench, T0_MS};

#[track_caller]
fn script(text: &str) {
    Bench::default().script(text);
}

#[test]
fn keys_are_renamed_and_copied_with_their_expiry() {
    let mut bench = Bench::default();
    bench.script(
        "HSET h f 1 -> 1
         EXPIRETIME h -> -1
         EXPIRETIME nosuch -> -2
         PEXPIREAT h 1700000010500 -> 1
         EXPIRETIME h -> 1700000011
         PEXPIRETIME h -> 1700000010500
         RENAME h i -> OK
         EXISTS h -> 0
         PEXPIRETIME i -> 1700000010500
         COPY i j -> 1
         HSET i f 2 -> 0
         HGETALL j -> {'f':'1'}
         PTTL j -> 10500
         COPY i j -> 0
         COPY i j REPLACE -> 1
         HGETALL j -> {'f':'2'}
         SET k x -> OK
         RENAMENX k j -> 0
         RENAME k j -> OK
         TTL j -> -1
         GET j -> 'x'
         RENAME nosuch j -> -ERR no such key
         RENAME j j -> OK
         RENAMENX j j -> 0
         COPY j j -> -ERR source and destination objects are the same
         COPY j k DB 1 -> -ERR DB index is out of range
         @10500
         EXISTS i -> 0",
    );
}

#[test]
fn get_set_and_variants() {
    script(
        "GET a -> nil
         SET a 1 -> OK
         GET a -> '1'
         SET a \"\" -> OK
         GET a -> ''
         SET a 2 NX -> nil
         SET a 2 XX -> OK
         SET b 2 XX -> nil
         SET b 2 NX -> OK
         SET a 3 GET -> '2'
         SET c 3 GET -> nil
         GET c -> '3'
         SET c 4 NX GET -> '3'
         GET c -> '3'
         SET d 4 NX GET -> nil
         GET d -> '4'
         GETSET d 5 -> '4'
         GETSET e 5 -> nil
         SETNX e 6 -> 0
         SETNX f 6 -> 1
         GETDEL f -> '6'
         GETDEL f -> nil
         MSET a 1 b 2 a 3 -> OK
         MGET a b nosuch a -> ['3' '2' nil '3']
         STRLEN a -> 1
         STRLEN nosuch -> 0
         APPEND a bc -> 3
         APPEND new x -> 1
         GET a -> '3bc'
         TYPE a -> string
         TYPE nosuch -> none
         EXISTS a a nosuch -> 2
         DEL a a nosuch b -> 2
         UNLINK c -> 1
         DBSIZE -> 3
         FLUSHALL -> OK
         DBSIZE -> 0
         GET d -> nil
         SET d 1 -> OK
         FLUSHDB ASYNC -> OK
         FLUSHALL SYNC -> OK
         EXISTS d -> 0",
    );
}

#[test]
fn parts_of_values() {
    script(
        "GETRANGE nosuch 0 -1 -> ''
         SET a 0123456789 -> OK
         GETRANGE a 0 -1 -> '0123456789'
         GETRANGE a 2 4 -> '234'
         SUBSTR a -3 -2 -> '78'
         GETRANGE a 8 100 -> '89'
         GETRANGE a 10 100 -> ''
         GETRANGE a 4 2 -> ''
         GETRANGE a -2 -3 -> ''
         GETRANGE a -100 0 -> '0'
         GETRANGE a -9223372036854775808 9223372036854775807 -> '0123456789'
         SETRANGE a 3 xy -> 10
         SETRANGE a 9 zz -> 11
         GET a -> '012xy5678zz'
         SETRANGE nosuch 5 \"\" -> 0
         EXISTS nosuch -> 0
         SETRANGE a 500 \"\" -> 11
         SETRANGE b 2 x -> 3
         STRLEN b -> 3
         SETRANGE b 1048575 x -> 1048576
         SETRANGE b 1048576 x -> -ERR value of 1048577 bytes is over the limit of 1048576 bytes
         SETRANGE b 9223372036854775807 x -> -ERR value of 9223372036854775808 bytes is over the limit of 1048576 bytes
         SET c 1 PX 500 -> OK
         SETRANGE c 0 2 -> 1
         PTTL c -> 500",
    );
}

/// Also with one partition and a log that contains only values of version 1.
#[test]
fn values_grow_to_their_limit() {
    let mut bench = Bench::default();
    let part = "x".repeat(30_000);
    for times in 1..=34 {
        let reply = show(&bench.run(&format!("APPEND a {part}")));
        assert_eq!(reply, (times * 30_000).to_string());
    }
    let over = "-ERR value of 1050000 bytes is over the limit of 1048576 bytes";
    assert_eq!(show(&bench.run(&format!("APPEND a {part}"))), over);
}

#[test]
fn getex_msetnx_and_touch() {
    script(
        "GETEX nosuch EX 10 -> nil
         SET a 1 -> OK
         GETEX a -> '1'
         TTL a -> -1
         GETEX a EX 10 -> '1'
         PTTL a -> 10000
         GETEX a -> '1'
         PTTL a -> 10000
         GETEX a PERSIST -> '1'
         TTL a -> -1
         GETEX a PX 70 -> '1'
         @70
         GET a -> nil
         SET a 1 -> OK
         GETEX a PXAT 1 -> '1'
         EXISTS a -> 0
         MSETNX a 1 b 2 -> 1
         MSETNX c 1 b 3 -> 0
         MGET a b c -> ['1' '2' nil]
         MSETNX d 1 d 2 -> 1
         GET d -> '2'
         TOUCH a b nosuch a -> 3",
    );
}

/// The latest accepted time, half of what 63 bits can represent, and the one after it.
#[test]
fn expiry_near_the_end_of_numbers() {
    script(
        "SET a 1 -> OK
         PEXPIREAT a 4611686018427387903 -> 1
         PTTL a -> 4611684318427387903
         TTL a -> 4611684318427388
         PEXPIREAT a 4611686018427387904 -> -ERR invalid expire time in 'pexpireat' command
         PEXPIRE a 4611686018427387903 -> 1
         PTTL a -> 4611686018427387903
         EXPIREAT a 4611686018427387 -> 1
         EXPIREAT a 4611686018427388 -> -ERR invalid expire time in 'expireat' command
         PTTL a -> 4611684318427387000
         GET a -> '1'
         PEXPIREAT a -4611686018427387903 -> 1
         GET a -> nil",
    );
}

#[test]
fn floats() {
    script(
        "SET a 10.50 -> OK
         INCRBYFLOAT a 0.1 -> '10.6'
         INCRBYFLOAT a -5 -> '5.6'
         SET a 5.0e3 PX 500 -> OK
         INCRBYFLOAT a 2.0e2 -> '5200'
         PTTL a -> 500
         INCRBYFLOAT new 0.25 -> '0.25'
         SET a x -> OK
         INCRBYFLOAT a 1 -> -ERR value is not a valid float
         SET a 1.7e308 -> OK
         INCRBYFLOAT a 1.7e308 -> -ERR increment would produce NaN or Infinity",
    );
}

#[test]
fn compared_before_it_is_changed() {
    script(
        "SET a 2 IFEQ 1 -> nil
         EXISTS a -> 0
         SET a 1 -> OK
         SET a 2 IFEQ 1 -> OK
         SET a 3 IFEQ 1 -> nil
         SET a 3 IFEQ 1 GET -> '2'
         SET a 3 GET IFEQ 2 PX 500 -> '2'
         GET a -> '3'
         PTTL a -> 500
         SET a 4 IFEQ 3 KEEPTTL -> OK
         PTTL a -> 500
         DELIFEQ a 3 -> 0
         DELIFEQ a 4 -> 1
         DELIFEQ a 4 -> 0
         SET a 1 -> OK
         DELEX a IFEQ 2 -> 0
         DELEX a IFEQ 1 -> 1
         DELEX a -> 0
         SET a 1 -> OK
         DELEX a -> 1
         DELEX a IFNE 1 -> -ERR of DELEX's conditions only IFEQ is supported",
    );
}

/// redis-py's `Lock`: release, extend and reacquire.
const LOCK_SCRIPTS: [&str; 3] = [
    "local token = redis.call('get', KEYS[1])
     if not token or token ~= ARGV[1] then
         return 0
     end
     redis.call('del', KEYS[1])
     return 1",
    "local token = redis.call('get', KEYS[1])
     if not token or token ~= ARGV[1] then
         return 0
     end
     local expiration = redis.call('pttl', KEYS[1])
     if not expiration then
         expiration = 0
     end
     if expiration < 0 then
         return 0
     end
     local newttl = ARGV[2]
     if ARGV[3] == \"0\" then
         newttl = ARGV[2] + expiration
     end
     redis.call('pexpire', KEYS[1], newttl)
     return 1",
    "local token = redis.call('get', KEYS[1])
     if not token or token ~= ARGV[1] then
         return 0
     end
     redis.call('pexpire', KEYS[1], ARGV[2])
     return 1",
];

#[test]
fn scripts_of_locks() {
    let mut bench = Bench::default();
    let mut run = |line: &str| {
        let mut words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        let script = ["release", "extend", "reacquire"];
        let script = script.iter().position(|name| words[0] == name.as_bytes());
        if let Some(script) = script {
            words.splice(..1, [&b"EVAL"[..], LOCK_SCRIPTS[script].as_bytes(), b"1"]);
        }
        show(&bench.run_words(&words, None))
    };
    for (line, expected) in [
        ("release lock t1", "0"),
        ("SET lock t1 NX PX 500", "OK"),
        ("release lock t2", "0"),
        ("extend lock t2 100 0", "0"),
        ("extend lock t1 100 0", "1"),
        ("PTTL lock", "600"),
        ("extend lock t1 100 1", "1"),
        ("PTTL lock", "100"),
        ("reacquire lock t2 900", "0"),
        ("reacquire lock t1 900", "1"),
        ("PTTL lock", "900"),
        ("release lock t1", "1"),
        ("EXISTS lock", "0"),
        ("SET lock t1", "OK"),
        ("extend lock t1 100 1", "0"),
        ("reacquire lock t1 900", "1"),
        ("PTTL lock", "900"),
        ("reacquire lock t1 0", "1"),
        ("EXISTS lock", "0"),
    ] {
        assert_eq!(run(line), expected, "{line}");
    }
}

/// What a script ended by a limit has written is undone, and its time is that of the log.
#[test]
fn scripts_are_all_or_nothing() {
    let mut bench = Bench::default();
    let mut eval = |words: &[&str]| {
        let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
        show(&bench.run_words(&words, None))
    };
    assert_eq!(eval(&["SET", "a", "1", "PX", "700"]), "OK");
    let endless = "redis.call('set', KEYS[1], 2) redis.call('set', KEYS[2], 3) \
                   redis.call('del', KEYS[1]) redis.call('set', KEYS[1], 4) while true do end";
    let over = "-ERR script is over the limit of 2000000 steps; nothing that it did took effect";
    assert_eq!(eval(&["EVAL", endless, "2", "a", "b"]), over);
    assert_eq!(eval(&["MGET", "a", "b"]), "['1' nil]");
    assert_eq!(eval(&["PTTL", "a"]), "700");
    assert_eq!(eval(&["DBSIZE"]), "1");
    // An error is not a limit: as in Redis, what was done stays.
    let fails = "redis.call('set', KEYS[1], 2) error('no')";
    assert!(eval(&["EVAL", fails, "1", "a"]).starts_with("-ERR user_script:1: no script: "));
    assert_eq!(eval(&["GET", "a"]), "'2'");
    let time = "return redis.call('time')[1]";
    let now_s = (T0_MS / 1000).to_string();
    assert_eq!(eval(&["EVAL", time, "0"]), format!("'{now_s}'"));
    let other = eval(&["EVAL", "return redis.call('get', 'b')", "1", "a"]);
    assert!(other.starts_with("-ERR the script uses key 'b', which is not among its KEYS"));
    for command in [
        "FLUSHALL",
        "DBSIZE",
        "KEYS *",
        "WATCH a",
        "EVAL x 0",
        "SCRIPT FLUSH",
    ] {
        let words: Vec<String> = command.split(' ').map(|word| format!("'{word}'")).collect();
        let text = format!("return redis.call({})", words.join(","));
        let reply = eval(&["EVAL", &text, "1", "a"]);
        assert!(
            reply.contains("not allowed from script"),
            "{command}: {reply}"
        );
    }
    let long = format!(
        "return redis.call('set', KEYS[1], ('x'):rep({}))",
        (1 << 20) + 1
    );
    let reply = eval(&["EVAL", &long, "1", "a"]);
    assert!(
        reply.starts_with("-ERR value of 1048577 bytes is over the limit"),
        "{reply}"
    );
    let much = "for i = 1, 40 do redis.call('setrange', KEYS[1], 1048575, 'x') end";
    let reply = eval(&["EVAL", much, "1", "a"]);
    assert!(
        reply.starts_with("-ERR the script has written 33554432 bytes"),
        "{reply}"
    );
    let read_only = "return redis.call('set', KEYS[1], 1)";
    let reply = eval(&["EVAL_RO", read_only, "1", "a"]);
    assert!(
        reply.starts_with("-ERR Write commands are not allowed"),
        "{reply}"
    );
    assert_eq!(
        eval(&["EVAL_RO", "return redis.call('strlen', KEYS[1])", "1", "a"]),
        "1048576"
    );
}

#[test]
fn counters() {
    script(
        "INCR n -> 1
         INCR n -> 2
         DECR n -> 1
         INCRBY n 10 -> 11
         DECRBY n 20 -> -9
         GET n -> '-9'
         SET n 9223372036854775807 -> OK
         INCR n -> -ERR increment or decrement would overflow
         DECRBY n -1 -> -ERR increment or decrement would overflow
         SET n -9223372036854775808 -> OK
         DECR n -> -ERR increment or decrement would overflow
         GET n -> '-9223372036854775808'
         SET n x -> OK
         INCR n -> -ERR value is not an integer or out of range
         SET n 01 -> OK
         INCRBY n 1 -> -ERR value is not an integer or out of range
         SET n \"\" -> OK
         INCR n -> -ERR value is not an integer or out of range
         SET n 5 EX 100 -> OK
         INCR n -> 6
         TTL n -> 100
         APPEND n 0 -> 2
         TTL n -> 100",
    );
}

#[test]
fn time_to_live() {
    script(
        "TTL a -> -2
         SET a 1 -> OK
         TTL a -> -1
         PTTL a -> -1
         EXPIRE a 10 -> 1
         TTL a -> 10
         @400
         TTL a -> 10
         PTTL a -> 9600
         @600
         TTL a -> 9
         PERSIST a -> 1
         PERSIST a -> 0
         PERSIST nosuch -> 0
         TTL a -> -1
         PEXPIRE a 100 -> 1
         @699
         GET a -> '1'
         @700
         GET a -> nil
         EXISTS a -> 0
         EXPIRE a 10 -> 0
         SET a 1 PX 50 -> OK
         SET a 2 KEEPTTL -> OK
         PTTL a -> 50
         SET a 3 -> OK
         PTTL a -> -1
         SETEX a 5 v -> OK
         TTL a -> 5
         PSETEX a 5000 v -> OK
         PTTL a -> 5000
         GETSET a w -> 'v'
         TTL a -> -1
         EXPIRE a -1 -> 1
         EXISTS a -> 0
         SET a 1 PXAT 1 -> OK
         EXISTS a -> 0
         SET a 1 -> OK
         SET a 1 EXAT 1700000010 -> OK
         PTTL a -> 9300
         EXPIREAT a 1700000020 -> 1
         PTTL a -> 19300
         PEXPIREAT a 1700000001000 -> 1
         PTTL a -> 300
         PEXPIREAT a 0 -> 1
         EXISTS a -> 0
         DBSIZE -> 0",
    );
}

#[test]
fn expire_conditions() {
    script(
        "SET a 1 -> OK
         EXPIRE a 100 XX -> 0
         EXPIRE a 100 GT -> 0
         EXPIRE a 100 XX LT -> 0
         EXPIRE a 100 LT -> 1
         EXPIRE a 50 NX -> 0
         EXPIRE a 50 GT -> 0
         EXPIRE a 200 GT -> 1
         TTL a -> 200
         EXPIRE a 300 LT -> 0
         EXPIRE a 100 LT -> 1
         EXPIRE a 50 XX GT -> 0
         EXPIRE a 50 XX -> 1
         TTL a -> 50
         PERSIST a -> 1
         EXPIRE a 50 NX -> 1
         EXPIRE a -5 NX -> 0
         EXPIRE a -5 LT -> 1
         EXISTS a -> 0",
    );
}

#[test]
fn expired_keys_are_as_good_as_gone() {
    script(
        "SET a 1 PX 10 -> OK
         SET b 1 PX 10 -> OK
         SET n 5 PX 10 -> OK
         @10
         SET a 2 XX -> nil
         SETNX a 2 -> 1
         TTL a -> -1
         DEL b -> 0
         INCR n -> 1
         TTL n -> -1
         DBSIZE -> 2",
    );
}

#[test]
fn time_does_not_go_backwards() {
    let mut bench = Bench::default();
    bench.run("SET a 1 PX 1000");
    bench.now_ms = T0_MS - 3_600_000;
    assert_eq!(show(&bench.run("PTTL a")), "1000");
    bench.run("SET b 1 PX 500");
    bench.now_ms = T0_MS + 500;
    assert_eq!(show(&bench.run("GET b")), "nil");
    assert_eq!(show(&bench.run("PTTL a")), "500");
    bench.now_ms = T0_MS;
    assert_eq!(show(&bench.run("GET b")), "nil");
    assert_eq!(bench.store().time_ms(), T0_MS + 500);
}

#[test]
fn expired_keys_are_deleted_in_bounded_steps() {
    use inband_kv::limits::{EXPIRED_KEYS_PER_ENTRY_MAX, EXPIRED_KEYS_PER_TICK_MAX};
    let keys = EXPIRED_KEYS_PER_TICK_MAX + EXPIRED_KEYS_PER_ENTRY_MAX + 10;
    let mut bench = Bench::default();
    for i in 0..keys {
        bench
            .log
            .push_lines(T0_MS, &[&format!("SET k{i} v PX {}", 10 + i % 7)]);
    }
    bench.log.apply(&mut bench.machine, 100);
    assert_eq!(bench.store().keys(), keys as u64);
    assert_eq!(bench.store().earliest_expiry_ms(), T0_MS + 10);
    bench.now_ms = T0_MS + 100;
    bench.run("GET other");
    assert_eq!(
        bench.store().keys(),
        (keys - EXPIRED_KEYS_PER_ENTRY_MAX) as u64
    );
    bench.tick();
    assert_eq!(bench.store().keys(), 10);
    assert!(bench.store().earliest_expiry_ms() <= bench.now_ms);
    assert!(bench.machine.scan(0, 100).unwrap().keys.is_empty());
    bench.tick();
    assert_eq!(
        (bench.store().keys(), bench.store().earliest_expiry_ms()),
        (0, u64::MAX)
    );
}
