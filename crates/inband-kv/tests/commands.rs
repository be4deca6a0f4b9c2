//! Every replicated command, as one store executes it.

mod common;

use common::{show, Bench, T0_MS};

/// Run `line` and compare; lines are `command -> reply`, `@ms` sets the clock to `T0 + ms`.
#[track_caller]
fn script(text: &str) {
    let mut bench = Bench::default();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        if let Some(ms) = line.strip_prefix('@') {
            bench.now_ms = T0_MS + ms.parse::<u64>().expect("a number");
            continue;
        }
        let (command, expected) = line.split_once(" -> ").expect("an arrow");
        assert_eq!(show(&bench.run(command)), expected, "{line}");
    }
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
fn append_is_bounded() {
    let mut bench = Bench::default();
    let piece = "x".repeat(1024);
    for i in 1..=64 {
        assert_eq!(
            show(&bench.run(&format!("APPEND a {piece}"))),
            (i * 1024).to_string()
        );
    }
    let reply = show(&bench.run("APPEND a y"));
    assert_eq!(
        reply,
        "-ERR value of 65537 bytes is over the limit of 65536 bytes"
    );
    assert_eq!(show(&bench.run("STRLEN a")), "65536");
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
