//! The work and the replies of commands for hashes, lists and sets are bounded, the same on every replica; see
//! docs/limits.md.

use bytes::BytesMut;
use inband_kv::command::{Command, Queue, Watched};
use inband_kv::limits::{
    COLLECTION_STEPS_MAX, KEY_LEN_BYTES_MAX, STORED_VALUE_LEN_BYTES_MAX, VALUES_REPLY_BYTES_MAX,
};
use inband_kv::replica::ReplicaConfig;
use inband_kv::testing::MemoryCluster;
use inband_kv::value::ValueWriter;
use inband_resp::reply::Reply;

use crate::common::{encode, resp, scratch, show, Bench, Served};

/// Elements of the longest list and set with elements of 5 bytes.
const ELEMENTS: usize = 116_000;

/// Executes words as one transaction.
fn transaction(bench: &mut Bench, commands: &[Vec<Vec<u8>>]) -> Vec<String> {
    let mut queue = BytesMut::new();
    for words in commands {
        let words: Vec<&[u8]> = words.iter().map(|word| &word[..]).collect();
        let encoded = encode(&words, None).expect("parses");
        Queue::push(&mut queue, &Command::decode(&encoded).expect("decodes").0);
    }
    let mut out = BytesMut::new();
    let exec = Command::Exec {
        watched: Watched::new(0, &[]),
        commands: Queue::new(commands.len(), &queue),
    };
    exec.encode(None, &mut out);
    bench.log.push(bench.now_ms, &[out.to_vec()]);
    let reply = bench.log.apply(&mut bench.machine, 1).pop();
    match reply.expect("one reply") {
        Reply::Array(replies) => replies.iter().map(show).collect(),
        other => panic!("{other:?}"),
    }
}

fn words(line: &str) -> Vec<Vec<u8>> {
    line.split(' ')
        .map(|word| word.as_bytes().to_vec())
        .collect()
}

fn run(bench: &mut Bench, words: &[Vec<u8>]) -> Reply {
    let words: Vec<&[u8]> = words.iter().map(|word| &word[..]).collect();
    bench.run_words(&words, None)
}

/// A store with the set `s` and the list `l`, each nearly as long as it may be, and the hash `h` with one long field.
fn filled() -> Bench {
    let mut bench = Bench::default();
    // `APPEND` makes the log assign versions, which raises the limit of a value to 1 MiB.
    bench.script("APPEND v x -> 1");
    let elements: Vec<String> = (0..ELEMENTS).map(|at| format!("{at:05x}")).collect();
    // A value of the log has room for a command of 64 KiB.
    for part in elements.chunks(9_000) {
        for command in ["SADD s", "RPUSH l"] {
            run(&mut bench, &words(&format!("{command} {}", part.join(" "))));
        }
    }
    for part in elements[..50_000].chunks(7_000) {
        run(
            &mut bench,
            &words(&format!("ZADD z 1 {}", part.join(" 1 "))),
        );
    }
    bench.run(&format!("HSET h f {}", "x".repeat(60_000)));
    bench.script(&format!(
        "SCARD s -> {ELEMENTS}\nLLEN l -> {ELEMENTS}\nZCARD z -> 50000"
    ));
    bench
}

fn is_over_steps(reply: &str) -> bool {
    reply.starts_with("-ERR") && reply.contains(&format!("limit of {COLLECTION_STEPS_MAX} steps"))
}

#[test]
fn one_command_ends_at_its_limits() {
    let mut bench = filled();
    let mut hmget = words("HMGET h");
    hmget.resize(2 + 1_000, b"f".to_vec());
    let reply = show(&run(&mut bench, &hmget));
    let limit = format!("limit of {VALUES_REPLY_BYTES_MAX} bytes");
    assert!(
        reply.starts_with("-ERR") && reply.contains(&limit),
        "{:.200}",
        reply
    );
    for command in ["SUNION", "SINTER", "SDIFF s"] {
        let mut combine = words(command);
        let key = if command == "SDIFF s" { "nosuch" } else { "s" };
        combine.resize(200, key.as_bytes().to_vec());
        let reply = show(&run(&mut bench, &combine));
        assert!(is_over_steps(&reply), "{command}: {reply:.200}");
    }
    let mut pattern = words("SSCAN p 0 MATCH");
    pattern.push(format!("*{}b", "a".repeat(5_000)).into_bytes());
    bench.run(&format!("SADD p {}", "a".repeat(30_000)));
    let reply = show(&run(&mut bench, &pattern));
    assert!(is_over_steps(&reply), "{reply:.200}");
    // Nothing is left over for the next command.
    bench.script("SISMEMBER s 00001 -> 1\nLINDEX l 3 -> '00003'\nSCARD p -> 1");
}

#[test]
fn counting_bits_has_the_limit_of_steps() {
    let mut bench = Bench::default();
    // Records have versions from the first command of version 2 on.
    bench.script("APPEND v x -> 1\nSETBIT b 8388607 1 -> 0");
    for line in ["BITCOUNT b", "BITPOS b 1"] {
        let replies = transaction(&mut bench, &vec![words(line); 200]);
        let done = replies.iter().take_while(|reply| !is_over_steps(reply));
        let each = 1 + STORED_VALUE_LEN_BYTES_MAX as u64 / 8;
        assert_eq!(done.count() as u64, COLLECTION_STEPS_MAX / each, "{line}");
    }
}

/// What changes nothing does not copy the value: not even all commands that a transaction may have take long.
#[test]
fn bits_that_stay_are_not_written() {
    let mut bench = Bench::default();
    bench.script("APPEND v x -> 1\nSETBIT b 8388607 1 -> 0");
    let set = words("SETBIT b 8388607 0");
    for line in [
        "SETBIT b 0 0",
        "BITFIELD b SET u8 0 0",
        "BITFIELD b GET u1 0",
    ] {
        let mut commands = vec![words(line); 1_000];
        commands.push(set.clone());
        commands.push(words("SETBIT b 8388607 1"));
        let replies = transaction(&mut bench, &commands);
        let errors = replies.iter().find(|reply| reply.starts_with('-'));
        assert_eq!(errors, None, "{line}");
        let changing: Vec<_> = (0..100)
            .map(|n| words(&format!("SETBIT b 0 {}", n % 2)))
            .collect();
        let replies = transaction(&mut bench, &changing);
        assert!(
            replies.iter().any(|reply| reply.starts_with("-ERR")),
            "{line}"
        );
    }
}

/// The commands until then have taken effect, that one and all others for collections have not.
#[test]
fn a_transaction_ends_at_the_limit() {
    let mut bench = filled();
    for line in [
        "LREM l 1 nosuch",
        "LINSERT l BEFORE nosuch x",
        "SSCAN s 0 MATCH nosuch",
        "SINTER s s nosuch",
        "SDIFF nosuch s",
        "ZSCORE z nosuch",
        "ZADD z XX 1 nosuch",
        "ZREM z nosuch",
        "ZRANGEBYLEX z [x +",
    ] {
        let mut commands = vec![words("RPUSH first 1")];
        commands.resize(201, words(line));
        commands.push(words("RPUSH last 1"));
        commands.push(words("SET string 1"));
        let replies = transaction(&mut bench, &commands);
        let done = replies.iter().position(|reply| is_over_steps(reply));
        let done = done.unwrap_or_else(|| panic!("{line}: {:.200}", replies[1]));
        assert!(done > 10, "{line}: {done}");
        assert!(replies[done..202].iter().all(|reply| is_over_steps(reply)));
        assert_eq!(replies[202], "OK", "{line}");
        bench.script("LRANGE first 0 -1 -> ['1']\nEXISTS last -> 0\nDEL first -> 1");
    }
    bench.script(&format!("SCARD s -> {ELEMENTS}\nLLEN l -> {ELEMENTS}"));
}

/// A count of 0 pops nothing and costs nothing.
#[test]
fn nothing_is_popped_for_nothing() {
    let mut bench = filled();
    let mut commands = vec![words("SPOP s 0"); 2_000];
    commands.push(words("LPOP l 0"));
    let replies = transaction(&mut bench, &commands);
    assert!(replies.iter().all(|reply| reply == "[]"), "{replies:?}");
}

/// What moves an element does so in both collections or in none.
#[test]
fn a_move_at_the_limit_has_its_whole_effect_or_none() {
    let mut bench = filled();
    bench.script("SADD t x -> 1\nRPUSH m x -> 1");
    for line in ["SMOVE s t 00001", "LMOVE l m LEFT LEFT", "RPOPLPUSH l m"] {
        let (mut is_done, mut is_refused) = (false, false);
        for passes in 0..100 {
            let mut commands = vec![words("LREM l 1 nosuch"); passes];
            commands.push(words(line));
            let reply = transaction(&mut bench, &commands).pop().expect("a reply");
            let moved = match &reply[..] {
                "1" => [1, 1],
                reply if is_over_steps(reply) => [0, 0],
                _ => [1, 1],
            };
            let count = |bench: &mut Bench, key: &str| {
                let name = if key == "s" || key == "t" {
                    "SCARD"
                } else {
                    "LLEN"
                };
                show(&bench.run(&format!("{name} {key}")))
                    .parse::<usize>()
                    .expect("a number")
            };
            let [from, to] = if line.starts_with('S') {
                ["s", "t"]
            } else {
                ["l", "m"]
            };
            let counts = [
                ELEMENTS - count(&mut bench, from),
                count(&mut bench, to) - 1,
            ];
            assert_eq!(counts, moved, "{line} after {passes} passes: {reply}");
            (is_done, is_refused) = (is_done || moved[0] == 1, is_refused || moved[0] == 0);
            if is_refused {
                break;
            }
            let back = match line {
                "SMOVE s t 00001" => "SMOVE t s 00001",
                "LMOVE l m LEFT LEFT" => "LMOVE m l LEFT LEFT",
                _ => "LMOVE m l LEFT RIGHT",
            };
            bench.run(back);
        }
        assert!(is_done && is_refused, "{line}");
    }
}

#[test]
fn a_script_ends_at_the_limit() {
    let mut bench = filled();
    let text = "local done = 0
        for i = 1, 1000 do
            local reply = redis.pcall('lrem', KEYS[1], 1, 'nosuch')
            if type(reply) == 'number' then done = done + 1 else KEYS.err = reply.err end
        end
        redis.call('set', KEYS[2], 'still possible')
        return {done, KEYS.err}";
    let script: Vec<&[u8]> = vec![b"EVAL", text.as_bytes(), b"2", b"l", b"k"];
    let Reply::Array(reply) = bench.run_words(&script, None) else {
        panic!("no array");
    };
    let Reply::Integer(done) = reply[0] else {
        panic!("{reply:?}");
    };
    assert!((10..200).contains(&done), "{done}");
    assert!(
        is_over_steps(&format!("-{}", show(&reply[1]).trim_matches('\''))),
        "{reply:?}"
    );
    bench.script("GET k -> 'still possible'");
}

/// Programs that do not bound them refuse the value.
#[test]
fn commands_for_collections_and_scripts_need_a_program_that_bounds_them() {
    for line in ["HGETALL h", "EVAL return(1) 0", "EVAL_RO return(1) 0"] {
        let mut writer = ValueWriter::new();
        writer.push(
            &encode(
                &line.split(' ').map(str::as_bytes).collect::<Vec<_>>(),
                None,
            )
            .unwrap(),
        );
        assert!(writer.finish(1)[0] >= 8, "{line}: {}", writer.finish(1)[0]);
    }
}

#[test]
fn the_same_on_every_replica() {
    let mut bench = filled();
    let mut commands = vec![words("LREM l 1 nosuch"); 100];
    commands.push(words("RPUSH last 1"));
    transaction(&mut bench, &commands);
    let mut other = Bench::default();
    bench.log.apply(&mut other.machine, 7);
    assert_eq!(
        bench.machine.digest().unwrap(),
        other.machine.digest().unwrap()
    );
}

#[test]
fn the_destination_is_checked_as_a_key() {
    let (cluster, dir) = (MemoryCluster::with_partitions(1), scratch());
    let served = Served::start(&cluster, dir.path(), ReplicaConfig::default());
    let mut client = served.client();
    assert_eq!(client.ask("SADD s m"), ":1");
    assert_eq!(client.ask("RPUSH l m"), ":1");
    let long = "k".repeat(KEY_LEN_BYTES_MAX + 1);
    let refused = format!(
        "-ERR key of {} bytes is over the limit of {KEY_LEN_BYTES_MAX} bytes",
        long.len()
    );
    for line in [
        format!("SMOVE s {long} m"),
        format!("LMOVE l {long} LEFT LEFT"),
        format!("RPOPLPUSH l {long}"),
        format!("EVAL return(redis.call('rpoplpush',KEYS[1],KEYS[2])) 2 l {long}"),
    ] {
        client.send(resp(&line));
        let reply = client.line();
        assert!(reply.starts_with(&refused), "{:.20}: {reply:.200}", line);
    }
    assert_eq!(client.ask("DBSIZE"), ":2");
}

/// Redis checks these before it looks at the key, and a session does not number them.
#[test]
fn malformed_requests_have_no_number_in_a_session() {
    let (cluster, dir) = (MemoryCluster::with_partitions(1), scratch());
    let served = Served::start(&cluster, dir.path(), ReplicaConfig::default());
    let mut client = served.client();
    let session = client.ask("INBAND.SESSION NEW")[1..].to_owned();
    let lines = [
        "HSET h f v f",
        "HMSET h f v f",
        "HINCRBY h f x",
        "HINCRBYFLOAT h f x",
        "HSCAN h x",
        "LPOP l 1 2",
        "RPOP l x",
        "LRANGE l 0 x",
        "LTRIM l x 0",
        "LREM l x v",
        "LINSERT l beside v w",
        "LMOVE l l up down",
        "SPOP s 1 2",
        "SPOP s -1",
        "SSCAN s x",
        "INBAND.RESTORE k set -1 x",
        "INBAND.RESTORE k set 4611686018427387904 x",
        "ZADD z x m",
        "ZRANGE z 0 1 LIMIT 0 1",
    ];
    for (line, seq) in lines.into_iter().zip(1..) {
        let mut first = served.client();
        assert_eq!(first.ask(&format!("INBAND.SESSION {session} {seq}")), "+OK");
        let refused = first.ask(line);
        assert!(refused.starts_with("-ERR"), "{line}: {refused}");
        let reply = first.ask("INCR n");
        assert_eq!(reply, format!(":{seq}"), "{line}");
        let mut again = served.client();
        assert_eq!(again.ask(&format!("INBAND.SESSION {session} {seq}")), "+OK");
        assert_eq!(again.ask("INCR n"), reply, "{line}");
    }
}
