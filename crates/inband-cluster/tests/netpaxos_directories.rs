//! Tests of the directories of a NetPaxos cluster: what they keep, and what may begin in them.
#![allow(missing_docs)]

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use inband_cluster::client::Answer;
use inband_cluster::netpaxos::{NetPaxos, Options};
use inband_cluster::supervisor::{host_dir, is_in};
use inband_host::config::Durability;
use inband_netpaxos::client::Client;
use inband_netpaxos::cluster::Cluster;
use inband_netpaxos::status::status_at;
use inband_testing::process::text;

use super::netpaxos::{
    all_serve, get, logs, options, program, refused_by_hand, set, start, start_store, start_with,
    store_of, submit, LEARNERS, LIMIT,
};

/// A log on disk of 4 minions is not continued with 7.
fn refuses_other_minions(data: &Path) {
    let other = Options {
        minions: 7,
        ..options(Durability::Sync, false)
    };
    let other = start_with(data, &other).map(drop);
    let other = format!("{:#}", other.expect_err("its quorums differ"));
    assert!(other.contains("--minions 7"), "{other}");
}

/// Directories keep what they were used for: otherwise a log in memory would be continued from a journal of an earlier
/// one.
#[test]
fn a_log_on_disk_is_not_mixed_with_one_in_memory() {
    let dir = tempfile::tempdir().expect("a directory");
    let refused = |durability, accept_loss| {
        let refused = start(dir.path(), durability, accept_loss).map(drop);
        format!("{:#}", refused.expect_err("it would mix two logs"))
    };
    drop(start(dir.path(), Durability::Sync, false).expect("a new log"));
    refuses_other_minions(dir.path());
    let cluster = start(dir.path(), Durability::Sync, false).expect("the same log");
    submit(&cluster, &["first log"]);
    drop(cluster);
    assert!(refused(Durability::Memory, false).contains("give --durability sync"));
    assert!(refused(Durability::Sync, true).contains("not lost"));
    let cluster = start(dir.path(), Durability::Memory, true).expect("told to lose the log");
    submit(&cluster, &["second log"]);
    drop(cluster);
    assert!(refused(Durability::Memory, false).contains("--accept-loss"));
    assert!(refused(Durability::Sync, false).contains("--accept-loss"));
    let cluster = start(dir.path(), Durability::Sync, true).expect("told to begin again");
    submit(&cluster, &["third log"]);
    for log in logs(&cluster, 1) {
        assert_eq!(log[0].1, b"third log");
    }
}

/// A learner that was left out when a new log began must not bring back the table of the former one.
#[test]
fn a_learner_that_was_left_out_has_nothing_of_a_former_log() {
    let dir = tempfile::tempdir().expect("a directory");
    let cluster = start_store(dir.path(), Durability::Memory, 3).expect("a new log");
    for key in ["former", "former 2", "former 3"] {
        set(&mut store_of(&cluster, 3), key, "value");
    }
    drop(cluster);
    let two = Options {
        learners: 2,
        log_only: false,
        ..options(Durability::Sync, true)
    };
    let cluster = start_with(dir.path(), &two).expect("told to begin again");
    set(&mut store_of(&cluster, 1), "key", "value");
    drop(cluster);
    let cluster = start_store(dir.path(), Durability::Sync, 3).expect("one learner more");
    let value = || Answer::Text("value".into());
    for learner in [3, 1] {
        let mut store = store_of(&cluster, learner);
        assert_eq!(get(&mut store, "key"), value(), "learner {learner}");
        let former = get(&mut store, "former");
        assert_ne!(former, value(), "learner {learner}");
    }
}

/// A unit file that still says `--new` must not remove a log.
#[test]
fn new_is_refused_in_a_directory_that_has_a_log() {
    let dir = tempfile::tempdir().expect("a directory");
    let cluster = start_store(dir.path(), Durability::Sync, LEARNERS).expect("a new store");
    set(&mut store_of(&cluster, 1), "key", "value");
    drop(cluster);
    for kind in ["storage", "learner"] {
        let own = host_dir(dir.path(), &format!("{kind}/1"));
        let args = [kind, "--number=1", "--durability=sync", "--new"];
        let said = refused_by_hand(dir.path(), &own, &args);
        let names = said.contains(&own.display().to_string());
        assert!(names && said.contains("leave out --new"), "{said}");
    }
    let cluster = start_store(dir.path(), Durability::Sync, LEARNERS).expect("it goes on");
    let value = get(&mut store_of(&cluster, 1), "key");
    assert_eq!(value, Answer::Text("value".into()));
}

/// A vote must not become that of another server, or be left out because a process was started with the wrong option.
#[test]
fn a_directory_is_that_of_one_process_and_one_durability() {
    let dir = tempfile::tempdir().expect("a directory");
    drop(start(dir.path(), Durability::Sync, false).expect("a new log"));
    let own = host_dir(dir.path(), "storage/1");
    for (number, durability, refusal) in [
        (
            "--number=2",
            "--durability=sync",
            "this is the directory of storage/1",
        ),
        (
            "--number=1",
            "--durability=memory",
            "give --durability sync",
        ),
    ] {
        let said = refused_by_hand(dir.path(), &own, &["storage", number, durability]);
        assert!(said.contains(refusal), "{said}");
    }
}

/// At whatever point it is interrupted, the next `up` has the former log or an empty one.
#[test]
fn a_loss_that_was_accepted_may_be_interrupted() {
    let dir = tempfile::tempdir().expect("a directory");
    let begin = || start(dir.path(), Durability::Sync, false).expect("it starts");
    let cluster = begin();
    submit(&cluster, &["former"]);
    drop(cluster);
    let hosts = dir.path().join("hosts");
    let moved = dir.path().join("hosts.removed");
    // While the directories are being removed.
    std::fs::rename(&hosts, &moved).expect("moved");
    std::fs::remove_dir_all(moved.join("storage-1")).expect("removed");
    let cluster = begin();
    submit(&cluster, &["first"]);
    assert_eq!(logs(&cluster, 1)[0][0].1, b"first");
    drop(cluster);

    // Before any storage server has begun.
    let file = dir.path().join("cluster.json");
    std::fs::remove_file(&file).expect("removed");
    std::fs::remove_dir_all(&hosts).expect("removed");
    std::fs::create_dir_all(host_dir(dir.path(), "storage/1")).expect("made");
    std::fs::write(host_dir(dir.path(), "storage/1").join("new"), "").expect("marked");
    drop(begin());

    // Before all storage servers have begun.
    let own = host_dir(dir.path(), "storage/2");
    std::fs::remove_dir_all(&own).expect("removed");
    std::fs::create_dir(&own).expect("made");
    std::fs::write(own.join("new"), "").expect("marked");
    let cluster = begin();
    all_serve(&cluster);
    submit(&cluster, &["second"]);
    assert!(!own.join("new").exists());
    drop(cluster);

    // A directory that was lost is not new.
    std::fs::remove_dir_all(&own).expect("removed");
    let cluster = begin();
    all_serve(&cluster);
    let socket = &cluster.status().cluster.sockets["storage/2"];
    let generation = status_at(socket).expect("it answers").counters["generation"];
    assert_eq!(generation, 1);
    assert_eq!(logs(&cluster, 1)[0][0].1, b"second");
}

#[test]
fn a_directory_without_readable_options_can_be_used() {
    let dir = tempfile::tempdir().expect("a directory");
    let cluster = start(dir.path(), Durability::Sync, false).expect("a new log");
    submit(&cluster, &["a"]);
    drop(cluster);
    let path = dir.path().join("options.json");
    std::fs::remove_file(&path).expect("written by an earlier version");
    let refused = start(dir.path(), Durability::Memory, false).map(drop);
    let refused = format!("{:#}", refused.expect_err("the log is on disk"));
    assert!(refused.contains("give --durability sync"), "{refused}");
    let cluster = start(dir.path(), Durability::Sync, false).expect("it goes on");
    assert_eq!(logs(&cluster, 1)[0][0].1, b"a");
    drop(cluster);
    std::fs::write(
        &path,
        r#"{"minions": 4, "learners": 2, "durability": "sync"}"#,
    )
    .expect("written");
    drop(start(dir.path(), Durability::Sync, false).expect("the rest has defaults"));
    std::fs::write(&path, r#"{"minions": 4, "lear"#).expect("written");
    let refused = start(dir.path(), Durability::Sync, false).map(drop);
    let refused = format!("{:#}", refused.expect_err("nobody can read it"));
    assert!(
        refused.contains("delete it") && refused.contains("--accept-loss"),
        "{refused}"
    );
    let cluster = start(dir.path(), Durability::Sync, true).expect("told to begin again");
    submit(&cluster, &["b"]);
    assert_eq!(logs(&cluster, 1)[0][0].1, b"b");
}

/// The directories say which log they belong to.
#[test]
fn a_cluster_file_that_was_lost_is_written_again() {
    let dir = tempfile::tempdir().expect("a directory");
    let begin = || start(dir.path(), Durability::Sync, false);
    let cluster = begin().expect("a new log");
    submit(&cluster, &["a"]);
    let log_id = cluster.status().cluster.log_id;
    // What is printed of a value is one line.
    let mut by_hand = Command::new(program());
    by_hand
        .args(["submit", "b\n99 fake", "--data"])
        .arg(dir.path());
    let said = text(&by_hand.output().expect("it runs"));
    assert!(said.trim_end().ends_with(r" b\n99 fake"), "{said}");
    drop(cluster);
    let file = dir.path().join("cluster.json");
    std::fs::remove_file(&file).expect("removed");
    refuses_other_minions(dir.path());
    let refusal = || format!("{:#}", begin().map(drop).expect_err("it may lack values"));
    let set_aside = |name: &str| {
        let (there, aside) = (host_dir(dir.path(), name), dir.path().join("aside"));
        std::fs::create_dir_all(&aside).expect("made");
        std::fs::rename(there, aside.join(name.replace('/', "-"))).expect("moved");
    };
    let put_back = |name: &str| {
        let aside = dir.path().join("aside").join(name.replace('/', "-"));
        std::fs::rename(aside, host_dir(dir.path(), name)).expect("moved");
    };
    // Storage servers that have lost their votes are not new ones.
    set_aside("storage/1");
    set_aside("storage/2");
    assert!(
        refusal().contains("only 2 of 4 storage servers"),
        "{}",
        refusal()
    );
    put_back("storage/1");
    put_back("storage/2");
    // Nobody knows how many minions voted, and where.
    let how = dir.path().join("options.json");
    let text_of_it = std::fs::read(&how).expect("it is there");
    std::fs::remove_file(&how).expect("removed");
    assert!(refusal().contains("lost both"), "{}", refusal());
    assert!(!how.exists() && !file.exists());
    std::fs::write(&how, text_of_it).expect("written");
    let cluster = begin().expect("it goes on");
    assert_eq!(cluster.status().cluster.log_id, log_id);
    assert_eq!(logs(&cluster, 2)[0][0].1, b"a");
    drop(cluster);

    std::fs::remove_file(&file).expect("removed");
    let own = host_dir(dir.path(), "storage/2").join("log-id");
    std::fs::write(&own, "5").expect("written");
    let refused = format!("{:#}", begin().map(drop).expect_err("two logs"));
    for part in ["5 (storage/2)", &format!("{log_id} (storage/1, storage/3")] {
        assert!(refused.contains(part), "{refused}");
    }
    assert!(!file.exists());
    std::fs::write(&own, log_id.to_string()).expect("written");
    let cluster = begin().expect("one log");
    assert_eq!(logs(&cluster, 2)[0][0].1, b"a");
}

#[test]
fn what_to_do_about_damaged_files_works() {
    let dir = tempfile::tempdir().expect("a directory");
    let begin = || start(dir.path(), Durability::Sync, false).expect("it starts");
    let cluster = begin();
    submit(&cluster, &["a"]);
    drop(cluster);
    for (kind, what) in [
        ("storage", "journal"),
        ("learner", "journal"),
        ("minion", "incarnation"),
    ] {
        let data = host_dir(dir.path(), &format!("{kind}/1"));
        let path = data.join(what);
        let files = match path.is_dir() {
            true => {
                let entries = std::fs::read_dir(&path).expect("there is one");
                entries
                    .map(|entry| entry.expect("an entry").path())
                    .collect()
            }
            false => vec![path],
        };
        for file in files {
            std::fs::write(file, "damage").expect("written");
        }
        let all = [kind, "--number=1", "--durability=sync"];
        let said = refused_by_hand(dir.path(), &data, &all);
        assert!(
            said.contains("remove it, and start this process again"),
            "{said}"
        );
        for wrong in ["epoch", "new id"] {
            assert!(!said.contains(wrong), "{said}");
        }
        std::fs::remove_dir_all(&data).expect("removed");
        let cluster = begin();
        all_serve(&cluster);
        assert_eq!(logs(&cluster, 1)[0][0].1, b"a");
    }
}

/// Packets of processes that were not stopped must not be taken for those of the new log.
#[test]
fn another_log_on_the_same_addresses_has_another_id() {
    let dir = tempfile::tempdir().expect("a directory");
    let cluster = start(dir.path(), Durability::Sync, false).expect("a new log");
    submit(&cluster, &["a"]);
    let own = cluster.status().cluster;
    let other = Cluster {
        log_id: own.log_id + 1,
        ..own.clone()
    };
    let refused = Client::connect(&other, Duration::from_millis(500)).map(drop);
    let refused = format!("{:#}", refused.expect_err("nobody answers"));
    assert!(refused.contains("no answer"), "{refused}");
    Client::connect(&own, LIMIT).expect("all answer");
    drop(cluster);
    let again = start(dir.path(), Durability::Sync, false).expect("the same log");
    assert_eq!(again.status().cluster.log_id, own.log_id);
    drop(again);

    // `inband status` finds out what is in the directories of processes that were started by hand.
    let by_hand = tempfile::tempdir().expect("a directory");
    assert!(!is_in::<NetPaxos>(by_hand.path()));
    own.store(by_hand.path()).expect("written");
    for its in [by_hand.path(), &host_dir(dir.path(), "learner/1")] {
        assert!(is_in::<NetPaxos>(its), "{}", its.display());
    }

    let by_hand = |kind: &str, args: &[&str]| {
        let data = host_dir(dir.path(), &format!("{kind}/1"));
        let all = [&[kind, "--number=1", "--durability=sync"], args].concat();
        refused_by_hand(dir.path(), &data, &all)
    };
    for kind in ["storage", "learner"] {
        let said = by_hand(kind, &["--new", "--accept-loss"]);
        assert!(said.contains("write another number there"), "{said}");
    }
    other.store(dir.path()).expect("written");
    for kind in ["storage", "learner"] {
        let said = by_hand(kind, &[]);
        assert!(said.contains("this directory has the log"), "{said}");
    }
    let refused = start(dir.path(), Durability::Sync, false).map(drop);
    let refused = format!("{:#}", refused.expect_err("storage servers end"));
    assert!(refused.contains("this directory has the log"), "{refused}");
    own.store(dir.path()).expect("written");
    let cluster = start(dir.path(), Durability::Sync, false).expect("the same log");
    assert_eq!(logs(&cluster, 1)[0][0].1, b"a");
}

/// Nothing is lost with a cluster in memory of which no storage server has run.
#[test]
fn a_cluster_in_memory_may_be_interrupted_before_it_has_begun() {
    let dir = tempfile::tempdir().expect("a directory");
    let begin = || start(dir.path(), Durability::Memory, false);
    drop(begin().expect("a new log"));
    std::fs::remove_dir_all(dir.path().join("hosts")).expect("removed");
    let mark = |number: u8| {
        let own = host_dir(dir.path(), &format!("storage/{number}"));
        std::fs::create_dir_all(&own).expect("made");
        std::fs::write(own.join("new"), "").expect("marked");
    };
    (1..=3).for_each(mark);
    let refused = begin().map(drop).expect_err("one may have run");
    assert!(format!("{refused:#}").contains("--accept-loss"));
    mark(4);
    submit(&begin().expect("it has not begun"), &["a"]);
}
