//! `EVAL`, `EVALSHA` and `SCRIPT` over sockets: with one partition and several, in transactions and sessions, after a
//! restart, and compared with a real Redis.

use std::process::Command;

use crate::common::{key_of_each, scratch, wait_for, Bench, Client, Served};
use crate::types::RealRedis;
use bytes::BytesMut;
use inband_kv::command::{Strings, COMMANDS_VERSION};
use inband_kv::replica::ReplicaConfig;
use inband_kv::testing::MemoryCluster;
use inband_resp::request::Args;

fn request(words: &[&str]) -> String {
    let strings = words
        .iter()
        .map(|word| format!("${}\r\n{word}\r\n", word.len()));
    format!("*{}\r\n{}", words.len(), strings.collect::<String>())
}

fn ask(client: &mut Client, words: &[&str]) -> String {
    client.send(request(words));
    let first = client.line();
    let len = first[1..].parse();
    match (first.as_bytes()[0], len) {
        (b'$', Ok(0..)) => client.line(),
        (b'*', Ok(items)) => {
            let mut all = first;
            for _ in 0..items {
                let item = client.line();
                all += " ";
                all += &item;
                if item.starts_with('$') && item != "$-1" {
                    all = format!("{all} {}", client.line());
                }
            }
            all
        }
        _ => first,
    }
}

const PAIR: &str = "return {KEYS[1], ARGV[1]}";

/// What both answer; `SHA` stands for the digest of [`PAIR`].
fn conversation() -> Vec<(Vec<&'static str>, &'static str)> {
    vec![
        (vec!["SCRIPT", "EXISTS", "SHA", "abc"], "*2 :0 :0"),
        (
            vec!["EVALSHA", "SHA", "1", "k", "v"],
            "-NOSCRIPT No matching script. Please use EVAL.",
        ),
        (vec!["EVAL", PAIR, "1", "k", "v"], "*2 $1 k $1 v"),
        (vec!["EVALSHA", "SHA", "1", "k", "w"], "*2 $1 k $1 w"),
        (vec!["SCRIPT", "FLUSH"], "+OK"),
        (vec!["SCRIPT", "EXISTS", "SHA"], "*1 :0"),
        (vec!["SCRIPT", "LOAD", PAIR], "SHA"),
        (vec!["SCRIPT", "EXISTS", "SHA"], "*1 :1"),
        (vec!["EVALSHA_RO", "SHA", "1", "k", "x"], "*2 $1 k $1 x"),
        (vec!["MULTI"], "+OK"),
        (vec!["SET", "k", "1"], "+QUEUED"),
        (vec!["EVALSHA", "SHA", "1", "k", "y"], "+QUEUED"),
        (
            vec!["EVAL", "return redis.call('incr', KEYS[1])", "1", "k"],
            "+QUEUED",
        ),
        (vec!["EXEC"], "*3 +OK *2 $1 k"),
    ]
}

fn converse(client: &mut Client) {
    let sha1 = ask(client, &["SCRIPT", "LOAD", PAIR]);
    assert_eq!(ask(client, &["SCRIPT", "FLUSH", "SYNC"]), "+OK");
    for (words, expected) in conversation() {
        let words: Vec<&str> = words
            .iter()
            .map(|w| if *w == "SHA" { &sha1[..] } else { w })
            .collect();
        let expected = expected.replace("SHA", &sha1);
        assert_eq!(ask(client, &words), expected, "{words:?}");
    }
    // The rest of the nested reply.
    assert_eq!(
        [client.line(), client.line(), client.line()],
        ["$1", "y", ":2"]
    );
}

fn start(partitions: usize) -> (MemoryCluster, tempfile::TempDir, Served) {
    let (cluster, dir) = (MemoryCluster::with_partitions(partitions), scratch());
    let served = Served::start(&cluster, dir.path(), ReplicaConfig::default());
    (cluster, dir, served)
}

#[test]
fn scripts_with_one_partition_and_several() {
    for partitions in [1, 3] {
        let (_cluster, _dir, served) = start(partitions);
        converse(&mut served.client());
    }
}

#[test]
fn a_real_redis_answers_the_same() {
    let Some(redis) = RealRedis::start() else {
        return;
    };
    converse(&mut Client::connect(redis.address));
}

const TRANSFER: &str = "local from = tonumber(redis.call('get', KEYS[1]) or '0')
    if from < tonumber(ARGV[1]) then return redis.error_reply('ERR too little') end
    redis.call('set', KEYS[1], from - ARGV[1])
    return redis.call('incrby', KEYS[2], ARGV[1])";

/// A script over several partitions is atomic, equal on all replicas, and undone in all of them.
#[test]
fn a_script_over_partitions() {
    let cluster = MemoryCluster::with_partitions(3);
    let dirs = [scratch(), scratch()];
    let served = Served::start_all(&cluster, &dirs);
    let keys = key_of_each("k", 3);
    let mut client = served[0].client();
    assert_eq!(client.ask(&format!("SET {} 1000", keys[0])), "+OK");
    let workers: Vec<_> = (0..4)
        .map(|at| {
            let (mut client, keys) = (served[at % 2].client(), keys.clone());
            std::thread::spawn(move || {
                for step in 0..30 {
                    let (from, to) = (&keys[(at + step) % 3], &keys[(at + step + 1) % 3]);
                    let reply = ask(&mut client, &["EVAL", TRANSFER, "2", from, to, "7"]);
                    assert!(
                        reply.starts_with(':') || reply == "-ERR too little",
                        "{reply}"
                    );
                }
            })
        })
        .collect();
    for worker in workers {
        worker.join().expect("no panic");
    }
    let sum = "local sum = 0 for _, k in ipairs(KEYS) do sum = sum + (redis.call('get', k) or 0) end return sum";
    let mut words = vec!["EVAL", sum, "3"];
    words.extend(keys.iter().map(String::as_str));
    assert_eq!(ask(&mut client, &words), ":1000");
    let endless = "for _, k in ipairs(KEYS) do redis.call('set', k, 0) end while true do end";
    words[1] = endless;
    assert!(ask(&mut client, &words).starts_with("-ERR script is over the limit"));
    words[1] = sum;
    assert_eq!(ask(&mut client, &words), ":1000");
    wait_for("both are equal", || {
        let digests: Vec<_> = served.iter().map(|s| s.control.digest().unwrap()).collect();
        digests[0] == digests[1]
    });
    // The other replica has applied the script, so it knows it.
    let sha1 = ask(&mut client, &["SCRIPT", "LOAD", sum]);
    words.splice(..2, ["EVALSHA", &sha1]);
    wait_for("the other one knows it", || {
        ask(&mut served[1].client(), &words) == ":1000"
    });
}

/// A retry in a session does not execute a script again, and what a script has done is there after a restart.
#[test]
fn once_in_a_session_and_after_a_restart() {
    for partitions in [1, 2] {
        let (cluster, dir, served) = start(partitions);
        let mut client = served.client();
        let id = client.ask("INBAND.SESSION NEW")[1..].to_string();
        let script = "return redis.call('incr', KEYS[1])";
        for expected in [":1", ":1"] {
            assert_eq!(client.ask(&format!("INBAND.SESSION {id} 1")), "+OK");
            assert_eq!(ask(&mut client, &["EVAL", script, "1", "n"]), expected);
        }
        assert_eq!(ask(&mut client, &["EVAL", script, "1", "n"]), ":2");
        let sha1 = ask(&mut served.client(), &["SCRIPT", "LOAD", script]);
        let served = served.restart(&cluster, dir.path(), ReplicaConfig::default());
        let mut client = served.client();
        assert_eq!(client.ask("GET n"), "$1");
        assert_eq!(client.line(), "2");
        let reply = ask(&mut client, &["EVALSHA", &sha1, "1", "n"]);
        assert!(reply.starts_with("-NOSCRIPT") || reply == ":3", "{reply}");
        assert_eq!(client.ask(&format!("INBAND.SESSION {id} 1")), "+OK");
        assert_eq!(ask(&mut client, &["EVAL", script, "1", "n"]), ":1");
    }
}

/// What is refused has a number in a session: the commands behind it are not executed twice when all are sent again.
#[test]
fn a_refused_script_has_a_number() {
    let script = "return redis.call('incr', KEYS[1])";
    let sha1 = inband_lua::sha1_hex(script.as_bytes());
    let evalsha = request(&["EVALSHA", &sha1, "1", "n"]);
    let incr = request(&["INCR", "m"]);
    let exec = [request(&["MULTI"]), evalsha.clone(), request(&["EXEC"])].concat();
    for attempt in [evalsha, exec] {
        let (_cluster, _dir, served) = start(1);
        let mut client = served.client();
        let id = client.ask("INBAND.SESSION NEW")[1..].to_string();
        assert_eq!(client.ask(&format!("INBAND.SESSION {id} 1")), "+OK");
        client.send(format!("{attempt}{incr}"));
        let last = |client: &mut Client| loop {
            let line = client.line();
            if line.starts_with("-EXECABORT") || line.starts_with("-NOSCRIPT") {
                continue;
            }
            if line != "+OK" && line != "+QUEUED" && line != "*1" {
                return line;
            }
        };
        assert_eq!(last(&mut client), ":1");
        ask(&mut served.client(), &["SCRIPT", "LOAD", script]);
        assert_eq!(client.ask(&format!("INBAND.SESSION {id} 1")), "+OK");
        client.send(format!("{attempt}{incr}"));
        // The script's own reply, then that of INCR, which was executed before.
        assert_eq!(
            (last(&mut client), last(&mut client)),
            (":1".into(), ":1".into())
        );
        let mut other = served.client();
        assert_eq!(other.ask("GET m"), "$1");
        assert_eq!(other.line(), "1");
        assert_eq!(other.ask("GET n"), "$1");
        assert_eq!(other.line(), "1");
    }
}

/// A script that does not fit one value of the log is sent in chunks.
#[test]
fn a_long_script() {
    let (_cluster, _dir, served) = start(1);
    let mut client = served.client();
    let script = format!("-- {}\nreturn #ARGV[1]", "x".repeat(200_000));
    let arg = "y".repeat(300_000);
    assert_eq!(ask(&mut client, &["EVAL", &script, "0", &arg]), ":300000");
    let sha1 = ask(&mut client, &["SCRIPT", "LOAD", &script]);
    assert_eq!(ask(&mut client, &["EVALSHA", &sha1, "0", "z"]), ":1");
}

/// Former values are kept so that a script can be undone, but only so many.
#[test]
fn a_script_that_deletes_large_values() {
    let (_cluster, _dir, served) = start(1);
    let mut client = served.client();
    let value = "v".repeat(900_000);
    let keys: Vec<String> = (0..40).map(|n| format!("k{n}")).collect();
    for key in &keys {
        assert_eq!(ask(&mut client, &["SET", key, &value]), "+OK");
    }
    let mut words = vec!["EVAL", "return redis.call('del', unpack(KEYS))", "40"];
    words.extend(keys.iter().map(|key| &key[..]));
    let answer = ask(&mut client, &words);
    assert!(answer.contains("which is the limit"), "{answer}");
    assert_eq!(ask(&mut client, &["STRLEN", "k0"]), ":900000");
    (words[2], words[22]) = ("19", "not a key");
    words.truncate(22);
    assert_eq!(ask(&mut client, &words), ":19");
}

#[test]
fn a_transaction_of_many_scripts() {
    let (_cluster, _dir, served) = start(1);
    let mut client = served.client();
    assert_eq!(ask(&mut client, &["MULTI"]), "+OK");
    for _ in 0..17 {
        assert_eq!(ask(&mut client, &["EVAL", "return 1", "0"]), "+QUEUED");
    }
    let answer = ask(&mut client, &["EXEC"]);
    assert!(answer.contains("at most 16 scripts"), "{answer}");
    assert_eq!(answer.matches(":1").count(), 16, "{answer}");
}

/// The locks and scripts of redis-py, from Debian.
const REDIS_PY: &str = r#"
import sys, redis
r = redis.Redis(port=int(sys.argv[1]))
for flushes in [False, True]:
    mine, other = r.lock("lock", timeout=30), r.lock("lock", timeout=30)
    assert mine.acquire(blocking=False) and mine.owned()
    if flushes:
        r.script_flush()
    assert not other.acquire(blocking=False) and not other.owned()
    assert mine.extend(10, replace_ttl=True) and 0 < r.pttl("lock") <= 10_000
    assert mine.extend(100) and 60_000 < r.pttl("lock") <= 110_000
    assert mine.reacquire() and r.pttl("lock") <= 30_000
    other.local.token = b"not it"
    for refused in [other.release, lambda: other.extend(10), other.reacquire]:
        try:
            refused()
        except redis.exceptions.LockError:
            continue
        raise AssertionError("it is another's lock")
    mine.release()
    assert not r.exists("lock") and other.acquire(blocking=False)
    other.release()
add = r.register_script("return redis.call('incrby', KEYS[1], ARGV[1])")
assert add(keys=["n"], args=[5]) == 5
r.script_flush()
with r.pipeline() as pipe:
    add(keys=["n"], args=[2], client=pipe)
    pipe.get("n")
    assert pipe.execute() == [7, b"7"]
print("good")
"#;

#[test]
fn the_locks_of_redis_py() {
    // The interpreter that has Debian's packages.
    let python = |arguments: &[&str]| {
        let output = Command::new("/usr/bin/python3").args(arguments).output();
        output.map(|output| (output.status.success(), output))
    };
    if !matches!(python(&["-c", "import redis"]), Ok((true, _))) {
        inband_testing::not_run("python3-redis is not installed");
        return;
    }
    for partitions in [1, 3] {
        let (_cluster, _dir, served) = start(partitions);
        let port = served.address.port().to_string();
        let (is_good, output) = python(&["-c", REDIS_PY, &port]).expect("it runs");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(is_good && output.stdout == b"good\n", "{errors}");
    }
}

#[test]
fn a_script_of_a_former_program_calls_no_later_commands() {
    let text = b"local r = redis.pcall('SETBIT', KEYS[1], 1, 1) \
        return redis.call('SET', KEYS[1], type(r) == 'table' and r.err or 'called')";
    let (bytes, ranges) = (b"k", [(0, 1)]);
    let script = |calls_version| {
        let mut encoded = BytesMut::new();
        let script = inband_kv::command::Command::Eval {
            text,
            keys: Strings::Args(Args::new(bytes, &ranges), 0),
            args: Strings::Args(Args::new(&[], &[]), 0),
            is_read_only: false,
            calls_version,
        };
        script.encode(None, &mut encoded);
        encoded.to_vec()
    };
    let mut bench = Bench::default();
    // The version before those of bits.
    bench.log.push(bench.now_ms, &[script(11)]);
    bench.log.apply(&mut bench.machine, 1);
    bench.script("GET k -> 'ERR Unknown Redis command called from script'");
    bench.script("DEL k -> 1");
    bench.log.push(bench.now_ms, &[script(COMMANDS_VERSION)]);
    bench.log.apply(&mut bench.machine, 1);
    bench.script("GET k -> 'called'");
}
