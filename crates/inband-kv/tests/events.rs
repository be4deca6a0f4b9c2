//! Keyspace events: compared with a real Redis, and the same at all replicas.

use inband_kv::limit_hits::LimitHit;
use inband_kv::replica::ReplicaConfig;
use inband_kv::testing::MemoryCluster;

use crate::common::{key_of_each, scratch, wait_for, Bench, Served};
use crate::types::{by_checkpoint, command, Asker, Random, RealRedis, KEYS};
use crate::{sorted_sets, types};

const SET: &str = "CONFIG SET notify-keyspace-events";

/// A client that gets all events, and what is published to `sync`.
fn subscriber(address: std::net::SocketAddr) -> Asker {
    let mut client = Asker::connect(address);
    client.send(&[["PSUBSCRIBE", "__key*@0__:*", "sync"]
        .map(str::to_owned)
        .to_vec()]);
    (0..2).for_each(|_| drop(client.reply(false)));
    client
}

/// What a subscriber gets until this is published.
fn until(subscribed: &mut Asker, said: &str) -> Vec<String> {
    let end = format!("'sync' '{said}']");
    let next = || Some(subscribed.reply(false)).filter(|message| !message.ends_with(&end));
    std::iter::from_fn(next).collect()
}

/// The messages about one key, in order. Those to `__keyevent` name it, too.
fn about(messages: &[String], key: &str) -> Vec<String> {
    let (name, payload) = (format!("__keyspace@0__:{key}'"), format!(" '{key}']"));
    let is_about = |m: &&String| m.contains(&name) || m.ends_with(&payload);
    messages.iter().filter(is_about).cloned().collect()
}

/// Commands whose effects or events are not always those of Redis, with the reason in docs/kv.md.
fn differs(words: &[String], has_new: bool) -> bool {
    has_new && words[0] == "SMOVE"
}

#[test]
fn a_real_redis_publishes_the_same() {
    let Some(redis) = RealRedis::start() else {
        return;
    };
    let templates: Vec<&str> = [types::TEMPLATES, sorted_sets::TEMPLATES, MORE].concat();
    let runs = [
        (1, 1, "KEA"),
        (2, 1, "AKEn"),
        (3, 3, "AKEn"),
        (4, 1, "Eg$"),
        (5, 1, "Klshz"),
    ];
    let mut total = 0;
    for (seed, partitions, classes) in runs {
        let (cluster, dir) = (MemoryCluster::with_partitions(partitions), scratch());
        let served = Served::start(&cluster, dir.path(), ReplicaConfig::default());
        let addresses = [redis.address, served.address];
        let mut clients = addresses.map(Asker::connect);
        assert_eq!(clients[0].ask("FLUSHALL"), "+OK");
        for client in &mut clients {
            assert_eq!(client.ask(&format!("{SET} {classes}")), "+OK");
        }
        let mut subscribed = addresses.map(subscriber);
        let mut random = Random(seed);
        let has_new = classes.contains('n');
        for round in 0..60 {
            let mut requests = Vec::new();
            while requests.len() < 30 {
                let words = command(&mut random, &templates);
                if differs(&words, has_new) {
                    continue;
                }
                match random.below(10) {
                    0 => {
                        requests.push(vec!["MULTI".to_owned()]);
                        requests.push(words);
                        requests.push(vec!["EXEC".to_owned()]);
                    }
                    1 => {
                        let mut script = vec!["EVAL", "return redis.pcall(unpack(ARGV))", "6"];
                        script.extend(KEYS);
                        script.extend(words.iter().map(String::as_str));
                        requests.push(script.into_iter().map(str::to_owned).collect());
                    }
                    _ => requests.push(words),
                }
            }
            for client in &mut clients {
                client.send(&requests);
                requests.iter().for_each(|_| drop(client.reply(true)));
                client.ask(&format!("PUBLISH sync {round}"));
            }
            let [expected, got] = subscribed
                .each_mut()
                .map(|client| until(client, &round.to_string()));
            total += expected.len();
            if partitions == 1 {
                assert_eq!(got, expected, "seed {seed}: {requests:?}");
            }
            for key in KEYS {
                let (got, expected) = (about(&got, key), about(&expected, key));
                assert_eq!(got, expected, "seed {seed}, {key}: {requests:?}");
            }
        }
    }
    assert!(total > 1_500, "{total} messages");
}

/// The random comparison may contain no move between two lists.
#[test]
fn a_real_redis_publishes_moves_in_the_same_order() {
    let Some(redis) = RealRedis::start() else {
        return;
    };
    let (cluster, dir) = (MemoryCluster::with_partitions(1), scratch());
    let served = Served::start(&cluster, dir.path(), ReplicaConfig::default());
    let [expected, got] = [redis.address, served.address].map(|address| {
        let mut client = Asker::connect(address);
        assert_eq!(client.ask(&format!("{SET} KEA")), "+OK");
        let mut subscribed = subscriber(address);
        for command in [
            "RPUSH s a b c",
            "LMOVE s d LEFT RIGHT",
            "RPOPLPUSH s d",
            "BLMOVE s d LEFT LEFT 0",
            "PUBLISH sync end",
        ] {
            client.ask(command);
        }
        until(&mut subscribed, "end")
    });
    // To both channels: a push, three times a push and a pop, and the end of the list that is empty.
    assert_eq!(expected.len(), 16, "{expected:?}");
    assert_eq!(got, expected);
}

/// Beyond those of the other comparisons.
const MORE: &[&str] = &[
    "SET K V EX 1000",
    "SET K V PX 1000000 GET",
    "SET K V KEEPTTL",
    "SET K V XX",
    "SETEX K 1000 V",
    "SETNX K V",
    "MSET K V K V",
    "GETEX K",
    "GETEX K EX 1000",
    "GETEX K PXAT 4000000000000",
    "GETEX K PXAT 1000",
    "GETEX K PERSIST",
    "SETRANGE K 3 V",
    "INCR K",
    "UNLINK K K",
    "EXPIRE K -1",
    "EXPIRE K 500 NX",
    "EXPIREAT K 1000",
    "PEXPIREAT K 4000000000000 GT",
    "HINCRBY K F I",
    "HINCRBYFLOAT K F D",
    "HSETNX K F V",
    "HDEL K F F F",
    "BLPOP K K 0.01",
    "BRPOP K 0.01",
    "BLMOVE K K LEFT LEFT 0.01",
    "BZPOPMIN K K 0.01",
    "BZPOPMAX K 0.01",
    "LMPOP 2 K K LEFT COUNT 2",
    "BLMPOP 0.01 2 K K RIGHT",
    "ZMPOP 2 K K MIN COUNT 2",
    "BZMPOP 0.01 2 K K MAX COUNT 9",
    "LTRIM K 0 -1",
    "LTRIM K 1 0",
    "LREM K 0 V",
];

#[test]
fn the_setting_is_written_as_redis_does() {
    let Some(redis) = RealRedis::start() else {
        return;
    };
    let (cluster, dir) = (MemoryCluster::new(), scratch());
    let served = Served::start(&cluster, dir.path(), ReplicaConfig::default());
    let mut clients = [redis.address, served.address].map(Asker::connect);
    for classes in [
        "KEA",
        "AKE",
        "Ex",
        "g$lshzxetdKE",
        "Kn",
        "EKzls",
        "x",
        "A",
        "q",
        "K E",
    ] {
        for line in ["GET notify-keyspace-events", "GET notify*"] {
            let [expected, got] = clients.each_mut().map(|client| {
                let words = ["CONFIG", "SET", "notify-keyspace-events", classes];
                client.send(&[words.map(str::to_owned).to_vec()]);
                let set = client.reply(false);
                (set, client.ask(&format!("CONFIG {line}")))
            });
            assert_eq!(got, expected, "{classes}");
        }
    }
    let [real, ours] = clients.each_mut().map(|client| {
        assert_eq!(client.ask("MULTI"), "+OK");
        client.ask(&format!("{SET} Kg"));
        client.ask("EXEC")
    });
    assert_eq!(ours, real);
    let mut ours = Asker::connect(served.address);
    assert!(ours
        .ask(&format!("{SET} KEAm"))
        .contains("'m' is not supported"));
    assert!(ours
        .ask("CONFIG SET save x")
        .starts_with("-ERR CONFIG SET can only set"));
    let script = "return redis.call('config', 'set', 'notify-keyspace-events', 'KEA')";
    ours.send(&[["EVAL", script, "0"].map(str::to_owned).to_vec()]);
    assert!(ours.reply(false).contains("not allowed from script"));
    assert_eq!(
        ours.ask("CONFIG GET notify-keyspace-events"),
        "['notify-keyspace-events' 'gK']"
    );
}

/// Keys that expire: at their time, when they are overwritten late, and with a time that has passed.
#[test]
fn expired_keys() {
    let Some(redis) = RealRedis::start() else {
        return;
    };
    let (cluster, dir) = (MemoryCluster::new(), scratch());
    let served = Served::start(&cluster, dir.path(), ReplicaConfig::default());
    let [expected, got] = [redis.address, served.address].map(|address| {
        let mut client = Asker::connect(address);
        client.ask(&format!("{SET} EAn"));
        let mut subscribed = subscriber(address);
        let mut seen = Vec::new();
        for (line, events) in [
            ("SET a 1 PX 30", 3),
            ("", 1),
            ("SET b 1 PXAT 1000", 4),
            ("INCR b", 2),
            ("RPUSH l x", 2),
            ("PEXPIRE l 20", 1),
            ("", 1),
            ("RPUSH l y", 2),
        ] {
            if !line.is_empty() {
                client.ask(line);
            }
            (0..events).for_each(|_| seen.push(subscribed.reply(false)));
        }
        seen
    });
    assert_eq!(got, expected);
}

/// Clients of two replicas write; subscribers at both get the same events, in one order for each partition.
#[test]
fn one_order_on_all_replicas() {
    for partitions in [1, 3] {
        let cluster = MemoryCluster::with_partitions(partitions);
        let dirs = [scratch(), scratch()];
        let served = Served::start_all(&cluster, &dirs);
        let mut clients = served.each_ref().map(|s| Asker::connect(s.address));
        assert_eq!(clients[0].ask(&format!("{SET} KA")), "+OK");
        // Known at the other replica before it executes anything behind it.
        clients[1].ask("SET sync 1");
        let setting = clients[1].ask("CONFIG GET notify-keyspace-events");
        assert_eq!(setting, "['notify-keyspace-events' 'AK']");
        // A subscriber may get what its replica has not executed yet.
        clients[0].ask("GET sync");
        let mut subscribed = served.each_ref().map(|s| subscriber(s.address));
        let keys = key_of_each("k", 3);
        let writers: Vec<_> = (0..4)
            .map(|at| {
                let mut client = Asker::connect(served[at % 2].address);
                let keys = keys.clone();
                std::thread::spawn(move || {
                    for n in 0..100 {
                        let key = &keys[n % 3];
                        let line = match (n + at) % 5 {
                            0 => format!("SET {key} {at}"),
                            1 => format!("INCR {key}"),
                            2 => format!("DEL {key}"),
                            3 => format!("MSET {} 1 {} 2", keys[0], keys[1]),
                            _ => format!("EXPIRE {key} 100"),
                        };
                        client.ask(&line);
                    }
                })
            })
            .collect();
        writers
            .into_iter()
            .for_each(|w| w.join().expect("no panic"));
        clients[0].ask("MGET x1 x2 x3 x4 x5 x6");
        clients[0].ask("PUBLISH sync end");
        let seen = subscribed.each_mut().map(|client| until(client, "end"));
        for key in &keys {
            let [first, second] = seen.each_ref().map(|messages| about(messages, key));
            assert!(first.len() > 50);
            assert_eq!(first, second, "{partitions}");
        }
        if partitions == 1 {
            assert_eq!(seen[0], seen[1]);
        }
    }
}

#[test]
fn what_a_limit_undoes_is_not_published() {
    let (cluster, dir) = (MemoryCluster::new(), scratch());
    let served = Served::start(&cluster, dir.path(), ReplicaConfig::default());
    let mut client = Asker::connect(served.address);
    client.ask(&format!("{SET} EAn"));
    client.ask("SET old 1");
    let mut subscribed = subscriber(served.address);
    let mut eval = |script: &str| {
        client.send(&[["EVAL", script, "2", "k", "old"]
            .map(str::to_owned)
            .to_vec()]);
        client.reply(false)
    };
    let writes = "redis.call('set', KEYS[1], 1) redis.call('del', KEYS[2]) redis.call('publish', 'sync', 'x') ";
    let reply = eval(&format!("{writes} while true do end"));
    assert!(
        reply.starts_with("-ERR script is over the limit"),
        "{reply}"
    );
    assert_eq!(
        eval(&format!("{writes} redis.call('incr', KEYS[1])")),
        "$-1"
    );
    // In the order in which the script made them.
    let event = |name: &str, key: &str| {
        format!("['pmessage' '__key*@0__:*' '__keyevent@0__:{name}' '{key}']")
    };
    for (name, key) in [("new", "k"), ("set", "k"), ("del", "old")] {
        assert_eq!(subscribed.reply(false), event(name, key));
    }
    assert_eq!(subscribed.reply(false), "['pmessage' 'sync' 'sync' 'x']");
    assert_eq!(subscribed.reply(false), event("incrby", "k"));
}

/// The setting is part of the state: it survives a restart and is in checkpoints.
#[test]
fn the_setting_is_replicated_state() {
    let mut bench = Bench::default();
    bench.script("SET k 1 -> OK\nCONFIG SET notify-keyspace-events Ex -> OK");
    assert_eq!(bench.store().events().to_string(), "xE");
    bench.reopen();
    assert_eq!(bench.store().events().to_string(), "xE");
    bench.script("ZADD z 1 a -> 1");
    bench.run_words(&[b"CONFIG", b"SET", b"notify-keyspace-events", b""], None);
    bench.reopen();
    assert_eq!(bench.store().events().to_string(), "");
    bench.script("ZCARD z -> 1");

    let cluster = MemoryCluster::new();
    let dirs = [scratch(), scratch()];
    let served = Served::start_all(&cluster, &dirs);
    let mut late = subscriber(served[1].address);
    let mut client = by_checkpoint(&cluster, &served[0], |client| {
        assert_eq!(client.ask(&format!("{SET} KEA")), "+OK");
    });
    // It was disconnected, because it might have missed messages.
    assert!(late.is_over());
    assert_eq!(served[1].control.status().hits(LimitHit::LostMessages), 1);
    let mut late = subscriber(served[1].address);
    client.ask("SET a 1");
    let event = "['pmessage' '__key*@0__:*' '__keyspace@0__:a' 'set']";
    assert_eq!(late.reply(false), event);
    wait_for("both replicas are equal", || {
        served[0].control.digest().unwrap().1 == served[1].control.digest().unwrap().1
    });
}
