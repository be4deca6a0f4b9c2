use std::net::SocketAddrV4;

use inband_paxos::config::{Durability, Role};
use inband_paxos::node::JOURNAL_DIR;

use super::record::RECORD_FORMAT;
use super::*;
use crate::paxos::layout::{kind_of, ClusterSpec};

fn setup() -> (tempfile::TempDir, ClusterDir, ClusterSpec) {
    let temporary = tempfile::tempdir().expect("a directory");
    let dir = ClusterDir::open(&temporary.path().join("c"), &[]).expect("lock");
    let spec = ClusterSpec::new("inband", dir.path());
    (temporary, dir, spec)
}

fn add_data(dir: &ClusterDir, replicas: std::ops::Range<usize>) {
    let dirs = replicas.flat_map(|i| dir.replica_data(&format!("replica/{i}")));
    dirs.for_each(|dir| fs::create_dir_all(dir).expect("data"));
}

/// The record of a start once its hosts have addresses.
fn started(plan: StartPlan) -> ClusterRecord {
    let mut record = plan.record;
    for host in plan.hosts {
        record.add_host(HostRecord {
            id: host.id,
            name: host.plan.name,
            roles: host.plan.roles,
            address: SocketAddrV4::new([10, 77, 0, host.id].into(), 7400),
            changing: false,
        });
    }
    record
}

/// Replica i has applied 100 + 10 i.
fn applied(name: &str, _: &[PathBuf]) -> Result<Vec<u64>, SupervisorError> {
    Ok(vec![100 + 10 * u64::from(kind_of(name).1)])
}

fn never(_: &str, _: &[PathBuf]) -> Result<Vec<u64>, SupervisorError> {
    panic!("nothing to inspect")
}

#[test]
fn a_directory_of_another_system_is_refused() {
    let temporary = tempfile::tempdir().expect("a directory");
    fs::write(temporary.path().join("system"), "flair\n").expect("written");
    let refused = ClusterDir::open(temporary.path(), &[]).expect_err("it is of FLAIR");
    let refused = refused.to_string();
    assert!(
        refused.contains("a cluster of `inband up flair`"),
        "{refused}"
    );
}

#[test]
fn a_fresh_directory_starts_with_epoch_1() {
    let (_t, dir, spec) = setup();
    let plan = dir.plan(&spec, &never).expect("plan");
    assert_eq!(plan.record.epoch, 1);
    assert_eq!(plan.record.first_instances, [1]);
    assert!(plan.record.name.starts_with("c-") && plan.record.name.len() == 8);
}

#[test]
fn a_clean_stop_is_continued_in_the_next_epoch() {
    let (_t, dir, spec) = setup();
    let mut record = dir.plan(&spec, &never).expect("plan").record;
    record.clean_at = Some(vec![41]);
    dir.write_record(&record).expect("write");
    add_data(&dir, 0..2);
    let plan = dir.plan(&spec, &never).expect("plan");
    assert_eq!(plan.record.epoch, 2);
    assert_eq!(plan.record.first_instances, [42]);
    assert_eq!(
        plan.record.clean_at, None,
        "the marker goes before anything starts"
    );
    assert!(
        plan.notices[0].contains("replica/2 starts empty"),
        "{:?}",
        plan.notices
    );
}

#[test]
fn a_clean_stop_without_any_data_is_not_continued() {
    let (_t, dir, spec) = setup();
    let mut record = dir.plan(&spec, &never).expect("plan").record;
    record.clean_at = Some(vec![41]);
    dir.write_record(&record).expect("write");
    let error = dir
        .plan(&spec, &never)
        .expect_err("nothing left")
        .to_string();
    assert!(
        error.contains("replica/0, replica/1, replica/2 are missing"),
        "{error}"
    );
}

#[test]
fn an_unclean_stop_is_refused_unless_loss_is_accepted() {
    let (_t, dir, mut spec) = setup();
    let record = dir.plan(&spec, &never).expect("plan").record;
    dir.write_record(&record).expect("write");
    add_data(&dir, 0..2);
    let error = dir.plan(&spec, &never).expect_err("unclean").to_string();
    assert!(
        error.contains("not stopped cleanly") && error.contains("--accept-loss"),
        "{error}"
    );
    spec.accept_loss = true;
    let error = dir.plan(&spec, &applied).expect_err("missing").to_string();
    assert!(error.contains("data of replica/2 are missing"), "{error}");
    spec.accept_missing_replicas = true;
    let plan = dir.plan(&spec, &applied).expect("plan");
    assert_eq!(plan.record.epoch, 2);
    assert_eq!(plan.record.first_instances, [111]);
    let found = "replica/0 up to instance 100, replica/1 up to instance 110";
    assert!(plan.notices[0].contains(found), "{}", plan.notices[0]);
    assert!(plan.notices[1].contains("after instance 110"));
    assert!(plan.notices[2].contains("replica/2"));
}

#[test]
fn an_unclean_stop_in_sync_mode_goes_on_in_its_epoch() {
    let (_t, dir, mut spec) = setup();
    spec.durability = Durability::Sync;
    let mut record = started(dir.plan(&spec, &never).expect("plan"));
    (record.epoch, record.first_instances) = (4, vec![500]);
    dir.write_record(&record).expect("write");
    add_data(&dir, 1..3);
    let plan = dir.plan(&spec, &never).expect("plan");
    assert_eq!(plan.record, record);
    assert!(plan.notices[0].contains("epoch 4"), "{:?}", plan.notices);
    assert!(!plan.may_begin_empty);

    let mut memory = spec.clone();
    memory.durability = Durability::Memory;
    let error = dir.plan(&memory, &never).expect_err("mode").to_string();
    assert!(error.contains("--durability sync"), "{error}");
    let mut other = spec.clone();
    other.leader = crate::paxos::layout::LeaderLayout::WithAcceptor;
    let error = dir.plan(&other, &never).expect_err("hosts").to_string();
    assert!(error.contains("has --leaders 1"), "{error}");

    // With journals that may have been trimmed, a majority of the replicas is needed.
    fs::remove_dir_all(dir.host("replica-1")).expect("remove");
    dir.plan(&spec, &never)
        .expect("no acceptor has ever started");
    fs::create_dir_all(dir.host("acceptor-0").join(JOURNAL_DIR)).expect("create");
    let error = dir.plan(&spec, &never).expect_err("data").to_string();
    assert!(error.contains("replica/0, replica/1"), "{error}");

    // After a clean stop the mode may change; otherwise the acceptors continue.
    record.clean_at = Some(vec![600]);
    dir.write_record(&record).expect("write");
    let plan = dir.plan(&spec, &never).expect("plan");
    assert_eq!((plan.record.epoch, plan.may_begin_empty), (4, true));
    let plan = dir.plan(&memory, &never).expect("plan");
    assert_eq!(
        (plan.record.epoch, &plan.record.first_instances[..]),
        (5, &[601][..])
    );
    assert_eq!(plan.record.durability, Durability::Memory);
}

#[test]
fn members_of_now_are_started_whatever_the_first_start_was_asked_for() {
    let (_t, dir, mut spec) = setup();
    let mut record = started(dir.plan(&spec, &never).expect("plan"));
    assert_eq!(
        record.next_host("acceptor").expect("next"),
        (8, "acceptor/3".into())
    );
    record.add_host(HostRecord {
        id: 8,
        name: "acceptor/3".into(),
        roles: vec![Role::Acceptor],
        address: "10.77.0.8:7400".parse().expect("address"),
        changing: true,
    });
    record.hosts.retain(|host| host.name != "acceptor/1");
    assert_eq!(
        record.next_host("acceptor").expect("next"),
        (9, "acceptor/4".into())
    );
    record.clean_at = Some(vec![0]);
    dir.write_record(&record).expect("write");
    for acceptors in ["3", "udp:3"] {
        spec.acceptors = acceptors.parse().expect("acceptors");
        let plan = dir.plan(&spec, &never).expect("plan");
        assert_eq!(plan.record.hosts, record.hosts);
        let names: Vec<&str> = plan.hosts.iter().map(|h| h.plan.name.as_str()).collect();
        assert_eq!(names[1..3], ["acceptor/0", "acceptor/2"]);
        assert_eq!(names[6], "acceptor/3");
        assert_eq!(plan.hosts[6].address, Some(record.hosts[6].address));
    }
    spec.acceptors = "5".parse().expect("acceptors");
    let error = dir.plan(&spec, &never).expect_err("five").to_string();
    assert!(
        error.contains("has --acceptors 3, and --acceptors 5"),
        "{error}"
    );
    assert!(error.contains("inband member"), "{error}");

    record.next_id = 255;
    let error = record
        .next_host("replica")
        .expect_err("used up")
        .to_string();
    assert!(error.contains("up to 254"), "{error}");
}

#[test]
fn a_record_of_the_time_of_fixed_members_is_read() {
    let (_t, dir, mut spec) = setup();
    let old = r#"{"format": 2, "name": "c", "epoch": 3, "first_instances": [7], "partitions": 1,
        "data_dirs": 1, "replicas": 3, "acceptors": 3, "durability": "sync",
        "hosts": ["leader", "acceptor/0"], "clean_at": CLEAN}"#;
    let path = dir.path().join("cluster.json");
    fs::write(&path, old.replace("CLEAN", "[41]")).expect("write");
    add_data(&dir, 0..3);
    spec.durability = Durability::Sync;
    let plan = dir.plan(&spec, &never).expect("plan");
    assert_eq!((plan.record.epoch, plan.hosts.len()), (4, 7));
    assert!(plan.hosts.iter().all(|host| host.address.is_none()));
    fs::write(&path, old.replace("CLEAN", "null")).expect("write");
    let error = dir.plan(&spec, &never).expect_err("unclean").to_string();
    assert!(
        error.contains("a version without a control plane"),
        "{error}"
    );
}

#[test]
fn a_host_of_a_former_version_gets_the_name_that_is_no_role() {
    let (_t, dir, spec) = setup();
    let mut record = started(dir.plan(&spec, &never).expect("plan"));
    record.clean_at = Some(vec![0]);
    dir.write_record(&record).expect("write");
    let path = dir.path().join("cluster.json");
    let text = fs::read_to_string(&path).expect("read");
    fs::write(&path, text.replace("leader/0", "leader")).expect("write");
    fs::create_dir_all(dir.host("leader").join("state")).expect("create");

    dir.rename_former().expect("renamed");
    let plan = dir.plan(&spec, &never).expect("plan");
    assert_eq!(plan.record.hosts, record.hosts);
    assert_eq!(plan.record.asked, record.asked);
    assert_eq!(plan.hosts[0].plan.name, "leader/0");
    assert!(dir.host("leader-0").join("state").is_dir());
    dir.rename_former().expect("it was done before");
}

#[test]
fn a_directory_that_is_named_twice_is_not_made() {
    let temporary = tempfile::tempdir().expect("a directory");
    let data = temporary.path().join("c");
    let error = ClusterDir::open(&data, std::slice::from_ref(&data)).expect_err("twice");
    assert!(error.to_string().contains("twice"), "{error}");
    assert!(!data.exists());
}

#[test]
fn instances_are_never_given_out_twice() {
    let (_t, dir, mut spec) = setup();
    let mut record = dir.plan(&spec, &never).expect("plan").record;
    record.first_instances = vec![500];
    dir.write_record(&record).expect("write");
    add_data(&dir, 0..3);
    spec.accept_loss = true;
    let plan = dir.plan(&spec, &applied).expect("plan");
    assert_eq!(plan.record.first_instances, [500]);
}

#[test]
fn each_log_continues_from_the_replica_that_is_most_advanced_in_it() {
    let (_t, dir, mut spec) = setup();
    spec.partitions = 2;
    let mut record = dir.plan(&spec, &never).expect("plan").record;
    assert_eq!(record.first_instances, [1, 1, 1]);
    record.first_instances = vec![1, 1, 31];
    dir.write_record(&record).expect("write");
    add_data(&dir, 0..3);
    spec.accept_loss = true;
    let at = |name: &str, _: &[PathBuf]| {
        let number = kind_of(name).1 as usize;
        Ok([vec![7, 20, 30], vec![9, 4, 30], vec![8, 5, 29]][number].clone())
    };
    let plan = dir.plan(&spec, &at).expect("plan");
    assert_eq!(plan.record.first_instances, [10, 21, 31]);
    assert!(plan.notices[0].contains("from instances 9, 20, 30"));
    let error = dir.plan(&spec, &applied).expect_err("too few").to_string();
    assert!(
        error.contains("tells of 1 logs, the cluster has 3"),
        "{error}"
    );
}

#[test]
fn a_record_of_the_time_of_one_log_is_read() {
    let (_t, dir, mut spec) = setup();
    let old = r#"{"format": 1, "name": "old-c0ffee", "epoch": 3, "first_instance": 7,
        "replicas": 3, "acceptors": 3, "clean_at": 41}"#;
    fs::write(dir.path().join("cluster.json"), old).expect("write");
    add_data(&dir, 0..3);
    let record = dir.record().expect("read").expect("there");
    assert_eq!(record.first_instances, [7]);
    assert_eq!(record.clean_at, Some(vec![41]));
    let plan = dir.plan(&spec, &never).expect("plan");
    assert_eq!((plan.record.epoch, plan.record.format), (4, RECORD_FORMAT));
    assert_eq!(plan.record.first_instances, [42]);
    spec.partitions = 4;
    let error = dir.plan(&spec, &never).expect_err("layout").to_string();
    assert!(
        error.contains("has --partitions 1, and --partitions 4"),
        "{error}"
    );
}

#[test]
fn another_number_of_replicas_is_refused() {
    let (_t, dir, mut spec) = setup();
    let mut record = dir.plan(&spec, &never).expect("plan").record;
    record.clean_at = Some(vec![0]);
    dir.write_record(&record).expect("write");
    spec.replicas = 5;
    let error = dir.plan(&spec, &never).expect_err("layout").to_string();
    assert!(
        error.contains("has --replicas 3, and --replicas 5"),
        "{error}"
    );
}

#[test]
fn partitions_are_spread_over_directories_and_found_again() {
    let (temporary, dir, mut spec) = setup();
    drop(dir);
    spec.partitions = 4;
    let disk = temporary.path().join("disk");
    let open = |more: &[PathBuf]| ClusterDir::open(&temporary.path().join("c"), more);
    let dir = open(std::slice::from_ref(&disk)).expect("lock");
    let error = ClusterDir::open(&temporary.path().join("other"), std::slice::from_ref(&disk));
    let error = error.expect_err("another cluster's").to_string();
    assert!(error.contains("disk is running already"), "{error}");
    let mut record = dir.plan(&spec, &never).expect("plan").record;
    record.clean_at = Some(vec![9; 5]);
    dir.write_record(&record).expect("write");
    add_data(&dir, 0..3);
    dir.plan(&spec, &never).expect("all there");

    // As if a disk were not mounted.
    fs::remove_dir_all(disk.join("replica-1")).expect("remove");
    let error = dir.plan(&spec, &never).expect_err("in pieces").to_string();
    assert!(error.contains("disk/replica-1 is gone"), "{error}");
    fs::remove_dir_all(&dir.replica_data("replica/1")[0]).expect("remove");
    let plan = dir.plan(&spec, &never).expect("copies");
    assert!(plan.notices[0].contains("replica/1 starts empty"));

    drop(dir);
    let fewer = open(&[]).expect("lock");
    let error = fewer.plan(&spec, &never).expect_err("fewer").to_string();
    assert!(
        error.contains("in 2 directories and --data names 1"),
        "{error}"
    );
    drop(fewer);
    let error = open(&[disk.clone(), disk]).expect_err("twice").to_string();
    assert!(error.contains("twice"), "{error}");
}

#[test]
fn damage_is_named() {
    let (_t, dir, spec) = setup();
    fs::write(dir.path().join("cluster.json"), "{").expect("write");
    let error = dir.plan(&spec, &never).expect_err("damaged").to_string();
    assert!(error.contains("cluster.json is damaged"), "{error}");
    let record = dir.path().join("cluster.json");
    for (text, says) in [
        (r#"{"format": 4}"#, "format 4, this is 3"),
        (
            r#"{"format": 2, "name": "c", "epoch": 1, "first_instances": [1, 1], "partitions": 1,
                "data_dirs": 1, "replicas": 3, "acceptors": 3, "clean_at": null}"#,
            "1 partitions have 1 logs",
        ),
    ] {
        fs::write(&record, text).expect("write");
        let error = dir.plan(&spec, &never).expect_err("damaged").to_string();
        assert!(error.contains(says), "{error}");
    }
    fs::remove_file(record).expect("remove");
    add_data(&dir, 0..1);
    let error = dir.plan(&spec, &never).expect_err("gone").to_string();
    assert!(error.contains("replica/0 has data"), "{error}");
}

#[test]
fn a_directory_has_one_supervisor() {
    let (_t, dir, _) = setup();
    let error = ClusterDir::open(dir.path(), &[])
        .expect_err("locked")
        .to_string();
    assert!(
        error.contains(&format!("process {}", std::process::id())),
        "{error}"
    );
}
