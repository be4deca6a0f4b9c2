//! Runs the examples.

#[path = "../examples/primes.rs"]
mod primes;

use std::net::{Ipv4Addr, SocketAddrV4};

use inband_falcon::scheduler_node::{Config, SchedulerNode};
use inband_host::key_file::KeyFile;

const SAID: &str = "78498 primes below 1000000";

#[test]
fn primes_in_one_process() {
    assert_eq!(primes::run(&[]).expect("it works"), SAID);
    assert!(primes::run(&["help"]).is_err());
}

#[test]
fn primes_over_a_cluster() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("keys.toml");
    let keys = KeyFile::generate().expect("random bytes");
    keys.save(&path).expect("saved");
    let mut scheduler = SchedulerNode::open(Config {
        keys: Some(keys.keys()),
        digest: keys.digest(),
        ..Config::new(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0))
    })
    .expect("a scheduler");
    let address = scheduler.address().to_string();
    let path = path.to_str().expect("of letters").to_owned();
    let (for_worker, path_for_worker) = (address.clone(), path.clone());
    // Both run until this process ends.
    std::thread::spawn(move || while scheduler.turn().is_ok() {});
    std::thread::spawn(move || {
        let ended = primes::run(&["worker", &for_worker, &path_for_worker]);
        panic!(
            "the worker ended: {:?}",
            ended.map_err(|error| error.to_string())
        );
    });
    assert_eq!(
        primes::run(&["map", &address, &path]).expect("it works"),
        SAID
    );
}
