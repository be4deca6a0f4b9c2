//! PUBLISH and SUBSCRIBE: compared with a real Redis, over several replicas and partitions, in scripts and sessions, and
//! what happens to subscribers that cannot get their messages.

use std::io::{Read, Write};
use std::net::SocketAddr;

use crate::common::{key_of_each, scratch, wait_for, Served};
use crate::types::{by_checkpoint, Asker, RealRedis};
use inband_kv::limit_hits::LimitHit;
use inband_kv::replica::ReplicaConfig;
use inband_kv::testing::MemoryCluster;

/// A conversation of two clients: their requests (`>`) and what they receive (`<`).
fn converse(address: SocketAddr, hello: &str) -> Vec<String> {
    let mut seen = Vec::new();
    let (mut client, mut admin) = (Asker::connect(address), Asker::connect(address));
    client.ask(hello);
    let mut say = |client: &mut Asker, line: &str, replies: usize| {
        seen.push(format!("> {line}"));
        if !line.is_empty() {
            client.send(&[line.split(' ').map(str::to_owned).collect()]);
        }
        for _ in 0..replies {
            seen.push(format!("< {}", client.reply(false)));
        }
    };
    say(&mut client, "SUBSCRIBE", 1);
    say(&mut client, "UNSUBSCRIBE", 1);
    say(&mut client, "PUNSUBSCRIBE x y", 2);
    say(&mut client, "PING", 1);
    say(&mut client, "SUBSCRIBE news", 1);
    say(&mut client, "SUBSCRIBE news other", 2);
    say(&mut client, "PSUBSCRIBE n* h[ae]llo", 2);
    say(&mut admin, "PUBSUB NUMSUB news other third", 1);
    say(&mut admin, "PUBSUB NUMSUB", 1);
    say(&mut admin, "PUBSUB NUMPAT", 1);
    say(&mut admin, "PUBSUB NUMPAT x", 1);
    say(&mut admin, "PUBSUB CHANNELS o*", 1);
    say(&mut admin, "PUBSUB CHANNELS z*", 1);
    say(&mut admin, "PUBSUB", 1);
    say(&mut admin, "PUBSUB NOSUCH", 1);
    say(&mut admin, "PUBLISH news", 1);
    say(&mut admin, "PUBLISH nobody.is.there 1", 1);
    say(&mut admin, "PUBLISH third 1", 1);
    say(&mut admin, "PUBLISH news 2", 1);
    say(&mut client, "", 3);
    say(&mut admin, "PUBLISH hallo 3", 1);
    say(&mut client, "", 1);
    // The order in a transaction.
    for line in [
        "MULTI",
        "PUBLISH other 4",
        "INCR n",
        "PUBLISH third 5",
        "PUBLISH other 6",
    ] {
        say(&mut admin, line, 1);
    }
    say(&mut admin, "EXEC", 1);
    say(&mut client, "", 2);
    // What a subscriber may send depends on the protocol.
    for line in [
        "PING",
        "PING x",
        "PING x y",
        "GET n",
        "NOSUCH",
        "GET",
        "MULTI",
        "DISCARD",
        "PUBSUB NUMPAT",
    ] {
        say(&mut client, line, 1);
    }
    say(&mut client, "UNSUBSCRIBE other third", 2);
    say(&mut admin, "PUBLISH other 7", 1);
    say(&mut client, "PUNSUBSCRIBE n*", 1);
    say(&mut client, "UNSUBSCRIBE", 1);
    say(&mut client, "UNSUBSCRIBE", 1);
    say(&mut admin, "PUBLISH news 8", 1);
    say(&mut client, "PUNSUBSCRIBE", 1);
    say(&mut client, "GET n", 1);
    say(&mut client, "SUBSCRIBE news", 1);
    say(&mut client, "RESET", 1);
    say(&mut client, "GET n", 1);
    say(&mut admin, "PUBLISH news 9", 1);
    say(&mut client, "SUBSCRIBE news", 1);
    client.send(&[vec!["QUIT".to_owned()]]);
    let mut rest = Vec::new();
    client.stream().read_to_end(&mut rest).unwrap();
    seen.push(String::from_utf8(rest).unwrap());
    wait_for("its subscriptions have ended", || {
        admin.ask("PUBSUB CHANNELS") == "[]"
    });
    seen
}

#[test]
fn clients_see_the_same_as_in_a_real_redis() {
    let Some(redis) = RealRedis::start() else {
        return;
    };
    for hello in ["HELLO 2", "HELLO 3"] {
        Asker::connect(redis.address).ask("FLUSHALL");
        let expected = converse(redis.address, hello);
        for partitions in [1, 3] {
            let (cluster, dir) = (MemoryCluster::with_partitions(partitions), scratch());
            let served = Served::start(&cluster, dir.path(), ReplicaConfig::default());
            let seen = converse(served.address, hello);
            for (at, (ours, real)) in seen.iter().zip(&expected).enumerate() {
                assert_eq!(
                    ours,
                    real,
                    "{hello}, {partitions}: {:?}",
                    &expected[at.saturating_sub(3)..at]
                );
            }
            assert_eq!(seen.len(), expected.len());
        }
    }
}

/// Clients of two replicas publish to channels of all partitions. Subscribers at both get every message once, and in one
/// order for each channel.
#[test]
fn one_order_on_all_replicas() {
    for partitions in [1, 3] {
        let cluster = MemoryCluster::with_partitions(partitions);
        let dirs = [scratch(), scratch()];
        let served = Served::start_all(&cluster, &dirs);
        let channels = key_of_each("c", 3);
        let (publishers, messages) = (4, 60);
        let subscribers: Vec<_> = (0..4)
            .map(|at| {
                let mut client = Asker::connect(served[at % 2].address);
                client.ask("HELLO 3");
                let line = match at < 2 {
                    true => format!("SUBSCRIBE {}", channels.join(" ")),
                    false => "PSUBSCRIBE c* x* y*".to_owned(),
                };
                client.send(&[line.split(' ').map(str::to_owned).collect()]);
                (0..3).for_each(|_| drop(client.reply(false)));
                std::thread::spawn(move || {
                    let pushes = (0..publishers * messages).map(|_| client.reply(false));
                    let pushes: Vec<String> = pushes.collect();
                    // Without the pattern, which only some have subscribed to.
                    pushes
                        .iter()
                        .map(|p| p.replace("p", "").replace("'c*' ", ""))
                        .collect::<Vec<_>>()
                })
            })
            .collect();
        let publishers: Vec<_> = (0..publishers)
            .map(|at| {
                let (mut client, channels) =
                    (Asker::connect(served[at % 2].address), channels.clone());
                std::thread::spawn(move || {
                    for n in 0..messages {
                        let reply = client.ask(&format!("PUBLISH {} {at}-{n}", channels[n % 3]));
                        assert_eq!(reply, ":2", "the subscribers of one replica");
                    }
                })
            })
            .collect();
        for publisher in publishers {
            publisher.join().expect("no panic");
        }
        let mut seen = subscribers.into_iter().map(|s| s.join().expect("no panic"));
        let of = |all: &[String], channel: &String| -> Vec<String> {
            let name = format!("'{channel}'");
            all.iter().filter(|m| m.contains(&name)).cloned().collect()
        };
        let first = seen.next().unwrap();
        let mut each = first.clone();
        each.sort();
        each.dedup();
        assert_eq!(each.len(), 4 * messages);
        for other in seen {
            for channel in &channels {
                assert_eq!(of(&other, channel), of(&first, channel));
            }
        }
    }
}

fn subscriber(served: &Served, channel: &str) -> Asker {
    let mut client = Asker::connect(served.address);
    let reply = client.ask(&format!("SUBSCRIBE {channel}"));
    assert_eq!(reply, format!("['subscribe' '{channel}' :1]"));
    client
}

fn eval(client: &mut Asker, script: &str, rest: &[&str]) -> String {
    let mut words = vec!["EVAL", script];
    words.extend(rest);
    client.send(&[words.into_iter().map(str::to_owned).collect()]);
    client.reply(false)
}

/// The number of subscribers is not the same on all replicas, so nothing that is stored may depend on it.
#[test]
fn replicas_are_equal_whatever_their_subscribers() {
    let cluster = MemoryCluster::new();
    let dirs = [scratch(), scratch()];
    let served = Served::start_all(&cluster, &dirs);
    let mut subscribed = subscriber(&served[1], "c");
    for replica in &served {
        let mut client = Asker::connect(replica.address);
        let store = "return redis.call('set', KEYS[1], redis.call('publish', 'c', 'm'))";
        assert_eq!(eval(&mut client, store, &["1", "k"]), "+OK");
        assert_eq!(client.ask("GET k"), "'0'");
        assert_eq!(subscribed.reply(false), "['message' 'c' 'm']");
        // The replies of a session are stored, and sent again to a client that asks again.
        let id = client.ask("INBAND.SESSION NEW")[1..].to_owned();
        for _ in 0..2 {
            assert_eq!(client.ask(&format!("INBAND.SESSION {id} 1")), "+OK");
            assert_eq!(client.ask("PUBLISH c once"), ":0");
            for line in ["MULTI", "PUBLISH c twice", "GET k"] {
                client.ask(line);
            }
            assert_eq!(client.ask("EXEC"), "[:0 '0']");
        }
        assert_eq!(subscribed.reply(false), "['message' 'c' 'once']");
        assert_eq!(subscribed.reply(false), "['message' 'c' 'twice']");
    }
    assert_eq!(subscribed.ask("PING"), "['pong' '']");
    wait_for("both replicas are equal", || {
        served[0].control.digest().unwrap().1 == served[1].control.digest().unwrap().1
    });
}

#[test]
fn messages_of_scripts() {
    let (cluster, dir) = (MemoryCluster::with_partitions(3), scratch());
    let served = Served::start(&cluster, dir.path(), ReplicaConfig::default());
    let names = key_of_each("n", 3);
    let mut subscribed = subscriber(&served, &names[0]);
    let mut client = Asker::connect(served.address);
    let publish = "redis.call('publish', ARGV[1], ARGV[2]) ";
    let said = |text: &str| format!("['message' '{}' '{text}']", names[0]);
    // After an error its effects stay, as in Redis.
    let fails = format!("{publish} return redis.call('incr', KEYS[1], 1)");
    let reply = eval(&mut client, &fails, &["1", &names[0], &names[0], "fails"]);
    assert!(reply.starts_with("-ERR Wrong number"), "{reply}");
    assert_eq!(subscribed.reply(false), said("fails"));
    // A limit undoes them.
    let endless = format!("{publish} while true do end");
    let reply = eval(
        &mut client,
        &endless,
        &["1", &names[0], &names[0], "endless"],
    );
    assert!(
        reply.starts_with("-ERR script is over the limit"),
        "{reply}"
    );
    let endless = "for i = 1, 100000 do redis.call('publish', ARGV[1], ARGV[2]) end";
    let long = "x".repeat(500_000);
    let reply = eval(&mut client, endless, &["1", &names[0], &names[1], &long]);
    assert!(reply.contains("channel in another partition"), "{reply}");
    // Messages and values have a common limit.
    let written =
        format!("for i = 1, 32 do redis.call('setrange', KEYS[1], 1048575, 'x') end {publish}");
    let reply = eval(&mut client, &written, &["1", &names[1], &names[1], "much"]);
    assert!(reply.contains("has written 33554432 bytes"), "{reply}");
    // A channel may be among the keys.
    let reply = eval(
        &mut client,
        publish,
        &["2", &names[1], &names[0], &names[0], "both"],
    );
    assert_eq!(reply, "$-1");
    assert_eq!(subscribed.reply(false), said("both"));
    client.send(&[["EVAL_RO", publish, "1", &names[0], &names[0], "no"]
        .map(str::to_owned)
        .to_vec()]);
    assert!(client
        .reply(false)
        .starts_with("-ERR Write commands are not allowed"));
    let reply = eval(&mut client, "return redis.call('subscribe', 'c')", &["0"]);
    assert!(
        reply.starts_with("-ERR This Redis command is not allowed"),
        "{reply}"
    );
}

/// A message that does not fit one value of the log, and a subscriber that does not read: it is disconnected, and the
/// others get everything.
#[test]
fn a_slow_subscriber_is_disconnected() {
    let (cluster, dir) = (MemoryCluster::new(), scratch());
    let config = ReplicaConfig {
        subscriber_output_bytes_max: 2 << 20,
        ..ReplicaConfig::default()
    };
    let served = Served::start(&cluster, dir.path(), config);
    let (mut slow, mut fast) = (subscriber(&served, "c"), subscriber(&served, "c"));
    let reader = std::thread::spawn(move || {
        let mut count = 0;
        while !fast.reply(false).contains("end") {
            count += 1;
        }
        count
    });
    let mut client = Asker::connect(served.address);
    let (payload, mut sent) = ("x".repeat(1_000_000), 0);
    while served.control.status().hits(LimitHit::Subscriber) == 0 {
        let reply = client.ask(&format!("PUBLISH c {payload}"));
        assert!([":1", ":2"].contains(&&*reply), "{reply}");
        sent += 1;
        assert!(sent < 1000, "it would be disconnected");
    }
    assert_eq!(client.ask("PUBLISH c end"), ":1");
    assert_eq!(reader.join().unwrap(), sent);
    let mut rest = Vec::new();
    // It gets whole messages, and then the end or a reset.
    let _ = slow.stream().read_to_end(&mut rest);
    assert!(rest.len() < sent * (payload.len() + 100));
    assert_eq!(served.control.status().hits(LimitHit::Subscriber), 1);
}

#[test]
fn subscriptions_are_bounded() {
    let (cluster, dir) = (MemoryCluster::new(), scratch());
    let served = Served::start(&cluster, dir.path(), ReplicaConfig::default());
    let mut client = Asker::connect(served.address);
    client.ask("HELLO 3");
    let long = "c".repeat(4097);
    let refused = "-ERR channel of 4097 bytes is over the limit of 4096 bytes";
    for command in ["SUBSCRIBE", "PSUBSCRIBE"] {
        assert_eq!(client.ask(&format!("{command} a {long}")), refused);
    }
    assert_eq!(client.ask(&format!("PUBLISH {long} x")), refused);
    assert_eq!(client.ask("PUBSUB CHANNELS"), "[]");
    let names: Vec<_> = (0..1025).map(|n| format!("c{n}")).collect();
    let refused = "-ERR a client has at most 1024 subscriptions";
    assert_eq!(
        client.ask(&format!("SUBSCRIBE {}", names.join(" "))),
        refused
    );
    let before = served.control.status().clients_memory_bytes;
    client.ask(&format!("SUBSCRIBE {}", names[1..].join(" ")));
    (1..1024).for_each(|_| drop(client.reply(false)));
    assert_eq!(client.ask("PSUBSCRIBE c*"), refused);
    wait_for("its memory is counted", || {
        served.control.status().clients_memory_bytes > before + 200 * 1024
    });
    drop(client);
    // In a transaction they are refused.
    let mut client = Asker::connect(served.address);
    assert_eq!(client.ask("MULTI"), "+OK");
    assert_eq!(
        client.ask("SUBSCRIBE c"),
        "-ERR SUBSCRIBE is not allowed inside a transaction"
    );
    assert!(client.ask("EXEC").starts_with("-EXECABORT"));
}

/// One client's patterns must not stop a replica.
#[test]
fn a_pattern_that_takes_too_long_ends_its_subscription_only() {
    let cluster = MemoryCluster::new();
    let dirs = [scratch(), scratch()];
    let served = Served::start_all(&cluster, &dirs);
    let mut other = subscriber(&served[1], "c");
    let mut hostile = Asker::connect(served[1].address);
    let stem = "a".repeat(2000);
    for n in 0..300 {
        assert!(hostile
            .ask(&format!("PSUBSCRIBE *{stem}b{n}"))
            .contains("psubscribe"));
    }
    let mut client = Asker::connect(served[0].address);
    client.ask(&format!("PUBLISH {} x", "a".repeat(4000)));
    let mut rest = Vec::new();
    let _ = hostile.stream().read_to_end(&mut rest);
    assert_eq!(rest, b"");
    client.ask("PUBLISH c heard");
    assert_eq!(other.reply(false), "['message' 'c' 'heard']");
}

/// A replica that skips instances cannot know which messages were there: its subscribers must notice.
#[test]
fn a_replica_that_loads_a_checkpoint_disconnects_its_subscribers() {
    let cluster = MemoryCluster::new();
    let dirs = [scratch(), scratch()];
    let served = Served::start_all(&cluster, &dirs);
    let mut subscribed = subscriber(&served[1], "c");
    let mut client = by_checkpoint(&cluster, &served[0], |client| {
        assert_eq!(client.ask("PUBLISH c missed"), ":0");
    });
    let mut rest = Vec::new();
    let _ = subscribed.stream().read_to_end(&mut rest);
    assert_eq!(rest, b"");
    let hits = served[1].control.status().hits(LimitHit::LostMessages);
    assert_eq!(hits, 1);
    // A client that comes back gets what is published from then on.
    let mut subscribed = subscriber(&served[1], "c");
    assert_eq!(client.ask("PUBLISH c heard"), ":0");
    assert_eq!(subscribed.reply(false), "['message' 'c' 'heard']");
    subscribed.stream().write_all(b"QUIT\r\n").unwrap();
    assert_eq!(subscribed.reply(false), "+OK");
}
