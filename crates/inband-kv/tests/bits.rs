//! Bit operations, compared with a real Redis.

use inband_kv::limits::{COLLECTION_STEPS_MAX, STORED_VALUE_LEN_BYTES_MAX};

use crate::common::Bench;
use crate::types::compare_with_redis;

/// Placeholders as in [`crate::types::TEMPLATES`]. No replies that Lua's numbers cannot hold.
const TEMPLATES: &[&str] = &[
    "SET K V",
    "SET K D",
    "APPEND K V",
    "DEL K",
    "SADD K F",
    "STRLEN K",
    "GETBIT K 0",
    "GETBIT K 7",
    "GETBIT K 100",
    "GETBIT K I",
    "GETBIT K 4294967296",
    "GETBIT K #1",
    "SETBIT K 0 1",
    "SETBIT K 9 1",
    "SETBIT K 30 0",
    "SETBIT K 2 0",
    "SETBIT K I 1",
    "SETBIT K 1 2",
    "SETBIT K 1 01",
    "BITCOUNT K",
    "BITCOUNT K I I",
    "BITCOUNT K I I BIT",
    "BITCOUNT K I I byte",
    "BITCOUNT K I I BITS",
    "BITCOUNT K -1 -2 BITS",
    "BITCOUNT K I",
    "BITCOUNT K x I",
    "BITCOUNT K 5 30 BIT",
    "BITCOUNT K -20 -3 BIT",
    "BITPOS K 0",
    "BITPOS K 1",
    "BITPOS K 2",
    "BITPOS K x",
    "BITPOS K 1 I",
    "BITPOS K 0 I",
    "BITPOS K 0 I I",
    "BITPOS K 1 I I BYTE",
    "BITPOS K 1 I I BIT",
    "BITPOS K 0 I I bit",
    "BITPOS K 0 3 9 BIT",
    "BITPOS K 1 3 -2 BIT",
    "BITPOS K 0 0 -1",
    "BITPOS K 1 x",
    "BITPOS K 1 0 1 BITS",
    "BITOP AND K K K",
    "BITOP or K K K",
    "BITOP XOR K K K K",
    "BITOP NOT K K",
    "BITOP AND K K",
    "BITOP NOT K K K",
    "BITOP NAND K K K",
    "BITOP OR K",
    "GET K",
    "PTTL K",
    "BITFIELD K",
    "BITFIELD K GET u8 0",
    "BITFIELD K SET u8 #1 I GET i8 #1",
    "BITFIELD K SET u4 2 -9223372036854775808",
    "BITFIELD K SET i13 5 4096 GET i13 5",
    "BITFIELD K INCRBY u2 100 1 OVERFLOW SAT INCRBY u2 102 1",
    "BITFIELD K OVERFLOW FAIL INCRBY u2 102 1 INCRBY i3 7 I",
    "BITFIELD K OVERFLOW fail SET u4 0 20",
    "BITFIELD K OVERFLOW SAT INCRBY i8 0 I INCRBY i8 0 100",
    "BITFIELD K OVERFLOW WRAP INCRBY i8 0 I INCRBY i8 0 100",
    "BITFIELD K GET i5 3 GET u40 #1",
    "BITFIELD K INCRBY i50 0 562949953421311",
    "BITFIELD K OVERFLOW SAT INCRBY i50 0 -562949953421311",
    "BITFIELD K OVERFLOW SAT SET u50 8 -1",
    "BITFIELD K OVERFLOW HOW GET u8 0",
    "BITFIELD K GET u64 0",
    "BITFIELD K GET i65 0",
    "BITFIELD K GET x8 0",
    "BITFIELD K GET u08 0",
    "BITFIELD K GET u8 -1",
    "BITFIELD K GET u8",
    "BITFIELD K SET u8 0",
    "BITFIELD K SET u8 0 x",
    "BITFIELD K FETCH u8 0",
    "BITFIELD_RO K GET u8 4",
    "BITFIELD_RO K SET u8 0 1",
];

#[test]
fn a_real_redis_answers_the_same() {
    compare_with_redis(TEMPLATES, "HELLO 2");
}

#[test]
fn the_longest_fields() {
    Bench::default().script(
        "BITFIELD a INCRBY i64 0 9223372036854775807 INCRBY i64 0 1 -> [9223372036854775807 -9223372036854775808]
         BITFIELD a OVERFLOW SAT INCRBY i64 0 -1 OVERFLOW FAIL INCRBY i64 0 -1 -> [-9223372036854775808 nil]
         BITFIELD b OVERFLOW SAT SET u63 8 -1 GET u63 8 -> [0 9223372036854775807]
         BITFIELD b SET u63 8 -1 INCRBY u63 8 1 -> [9223372036854775807 0]
         BITFIELD c SET i64 #1 -1 GET u63 #1 GET i64 64 -> [0 4611686018427387903 -1]",
    );
}

#[test]
fn strings_are_combined() {
    Bench::default().script(
        "SET a ab PX 1000 -> OK
         SET b a -> OK
         BITOP OR a a b -> 2
         PTTL a -> -1
         GET a -> 'ab'
         BITOP AND c a b nothing -> 2
         BITCOUNT c -> 0
         BITOP XOR a a b -> 2
         BITPOS a 1 -> 9
         BITOP AND a nothing nothing -> 0
         EXISTS a -> 0",
    );
}

#[test]
fn combining_strings_has_the_limit_of_steps() {
    let mut bench = Bench::default();
    bench.script(
        "APPEND v x -> 1
         SETBIT b 8388607 1 -> 0",
    );
    let keys = " b".repeat(COLLECTION_STEPS_MAX as usize / (STORED_VALUE_LEN_BYTES_MAX / 8) + 1);
    let limit = COLLECTION_STEPS_MAX;
    bench.script(&format!(
        "BITOP OR t{keys} -> -ERR a command, transaction or script is over the limit of {limit} steps on collections; this \
         command had no effect. Use fewer commands or shorter collections
         EXISTS t -> 0
         BITOP OR t b b -> 1048576"
    ));
}

#[test]
fn a_bit_has_the_limit_of_a_string() {
    let mut bench = Bench::default();
    // Records have versions from the first command of version 2 on.
    bench.script(
        "APPEND v x -> 1
         SETBIT b 8388607 1 -> 0
         STRLEN b -> 1048576
         BITCOUNT b -> 1
         BITPOS b 1 -> 8388607
         SETBIT b 8388608 1 -> -ERR value of 1048577 bytes is over the limit of 1048576 bytes
         BITFIELD b SET u8 8388604 1 -> -ERR value of 1048577 bytes is over the limit of 1048576 bytes
         GETBIT b 8388608 -> 0
         PEXPIRE b 1000 -> 1
         SETBIT b 0 1 -> 0
         PTTL b -> 1000",
    );
}
