//! A scheduler, workers and clients with real sockets, in one process.

use std::collections::BTreeMap;
use std::net::SocketAddrV4;
use std::time::{Duration, Instant};

use inband_falcon::client_node::{self, ClientError, ClientNode, Event};
use inband_falcon::local::{Access, LocalCluster, LocalError};
use inband_falcon::runner::{Function, Tools};
use inband_falcon::task::{Failure, JobId, TaskId, TaskSpec, Work};
use inband_falcon::work::Call;
use inband_ground::auth::{Digest, Keys, Secret};

const LIMIT: Duration = Duration::from_secs(30);

fn access() -> Access {
    let keys = Keys::new(1, &[(1, Secret(rand::random()))]);
    Access {
        keys: Some(keys.expect("a key")),
        digest: Digest::keyed(Secret(rand::random())),
    }
}

fn tools(_: SocketAddrV4) -> Tools {
    let mut tools = Tools::default();
    let reverse: Function = Box::new(|bytes| Ok(bytes.iter().rev().copied().collect()));
    let fail: Function = Box::new(|_| Err("it is Monday".into()));
    tools.functions.insert("reverse".into(), reverse);
    tools.functions.insert("fail".into(), fail);
    tools
}

fn cluster(executors: usize) -> LocalCluster {
    LocalCluster::start(executors, access(), tools).expect("a cluster")
}

fn call(name: &str, argument: &[u8]) -> Vec<u8> {
    let (name, argument) = (name.to_owned(), argument.to_vec());
    Call::Function { name, argument }.encode()
}

fn sleep(micros: u64) -> TaskSpec {
    TaskSpec::new(Work::Inline(Call::Sleep { micros }.encode()))
}

type Outcome = Result<Result<Vec<u8>, Vec<u8>>, Failure>;

/// Waits until this many tasks are done. Panics if one is reported twice.
fn outcomes(client: &ClientNode, count: usize) -> BTreeMap<TaskId, Outcome> {
    let until = Instant::now() + LIMIT;
    let mut outcomes = BTreeMap::new();
    while outcomes.len() < count {
        assert!(
            Instant::now() < until,
            "{} of {count} are done",
            outcomes.len()
        );
        for event in client.wait(Duration::from_millis(100)) {
            if let Event::Done(id, outcome) = event {
                assert_eq!(outcomes.insert(id, outcome), None, "{id:?} is done twice");
            }
        }
    }
    outcomes
}

fn id(client: &ClientNode, JobId(job): JobId, task: u32) -> TaskId {
    let user = client.user();
    TaskId { user, job, task }
}

#[test]
fn every_task_is_done_once_and_long_ones_go_round_the_packets() {
    let cluster = cluster(4);
    let client = cluster.client().expect("a client");
    assert_eq!(client.executors(LIMIT).expect("it answers"), 4);
    let argument = |n: usize| -> Vec<u8> { (0..n * n * 37).map(|i| (i + n) as u8).collect() };
    let specs = (0..150).map(|n| TaskSpec::new(Work::Kept(call("reverse", &argument(n)))));
    let job = client
        .submit(specs.collect(), &[], None)
        .expect("it is taken");
    let outcomes = outcomes(&client, 150);
    for n in 0..150 {
        let mut expected = argument(n);
        expected.reverse();
        let outcome = outcomes[&id(&client, job, n as u32)]
            .as_ref()
            .expect("it is done");
        assert_eq!(outcome.as_ref().expect("it worked"), &expected);
    }
    assert_eq!(client.tasks_left(), 0);
}

#[test]
fn idle_executors_get_tasks_at_once_and_jobs_wait_for_jobs() {
    let cluster = cluster(70);
    let client = cluster.client().expect("a client");
    assert_eq!(
        client.executors(LIMIT).expect("it answers"),
        70,
        "two workers"
    );
    let begun = Instant::now();
    let first = client
        .submit(vec![sleep(500_000); 70], &[], None)
        .expect("it is taken");
    let second = client
        .submit(vec![sleep(1)], &[first], None)
        .expect("it is taken");
    let done = outcomes(&client, 71);
    // In sequence they would take 35 s; in parallel 0.5 s, or more on a busy machine.
    assert!(
        begun.elapsed() < Duration::from_secs(25),
        "{:?}",
        begun.elapsed()
    );
    assert!(begun.elapsed() >= Duration::from_millis(500));
    assert_eq!(done[&id(&client, second, 0)], Ok(Ok(vec![])));
}

#[test]
fn failures_are_told_and_what_has_not_begun_can_be_cancelled() {
    let cluster = cluster(1);
    let client = cluster.client().expect("a client");
    let failing = TaskSpec::new(Work::Kept(call("fail", b"")));
    let failing = client
        .submit(vec![failing], &[], None)
        .expect("it is taken");
    let done = outcomes(&client, 1);
    assert_eq!(
        done[&id(&client, failing, 0)],
        Ok(Err(b"it is Monday".to_vec()))
    );

    let long = client
        .submit(vec![sleep(60_000_000)], &[], None)
        .expect("it is taken");
    let started = Event::Started(id(&client, long, 0));
    let until = Instant::now() + LIMIT;
    while !client.wait(Duration::from_millis(100)).contains(&started) {
        assert!(Instant::now() < until, "it does not begin");
    }
    let waits = client.submit(
        vec![TaskSpec::new(Work::Kept(call("reverse", b"ab")))],
        &[],
        None,
    );
    let waits = waits.expect("it is taken");
    assert!(!client.cancel(id(&client, long, 0)), "it runs");
    assert!(client.cancel(id(&client, waits, 0)));
    let limit = Some(Duration::from_millis(50));
    let late = client
        .submit(vec![sleep(1)], &[], limit)
        .expect("it is taken");
    let done = outcomes(&client, 2);
    assert_eq!(done[&id(&client, waits, 0)], Err(Failure::Cancelled));
    assert!(matches!(
        done[&id(&client, late, 0)],
        Err(Failure::Deadline(49..=50))
    ));
    assert!(client.kill(id(&client, long, 0)));
    // The executor is free again.
    let next = client.submit(
        vec![TaskSpec::new(Work::Kept(call("reverse", b"ab")))],
        &[],
        None,
    );
    let done = outcomes(&client, 2);
    assert_eq!(done[&id(&client, long, 0)], Err(Failure::Cancelled));
    assert_eq!(
        done[&id(&client, next.expect("it is taken"), 0)],
        Ok(Ok(b"ba".to_vec()))
    );
}

#[test]
fn who_has_no_key_gets_no_answer() {
    let cluster = cluster(1);
    let config = client_node::Config::new(cluster.scheduler());
    let stranger = ClientNode::open(config).expect("a client");
    let answer = stranger.executors(Duration::from_millis(300));
    assert!(matches!(answer, Err(ClientError::NoScheduler(_))));
    stranger
        .submit(vec![sleep(1)], &[], None)
        .expect("it is kept");
    assert!(stranger.wait(Duration::from_millis(300)).is_empty());
    let client = cluster.client().expect("a client");
    client
        .submit(vec![sleep(1)], &[], None)
        .expect("it is taken");
    assert_eq!(outcomes(&client, 1).len(), 1);
}

#[test]
fn two_clients_share_the_executors() {
    let cluster = cluster(3);
    let clients = [cluster.client().unwrap(), cluster.client().unwrap()];
    for client in &clients {
        for _ in 0..50 {
            client
                .submit(vec![sleep(500); 4], &[], None)
                .expect("it is taken");
        }
    }
    for client in &clients {
        assert!(outcomes(client, 200)
            .values()
            .all(|outcome| *outcome == Ok(Ok(vec![]))));
    }
}

#[test]
fn as_many_executors_as_there_can_be() {
    let refused = LocalCluster::start(0, access(), tools).err();
    assert!(matches!(refused, Some(LocalError::Executors(0))));
    let refused = LocalCluster::start(1025, access(), tools).err();
    assert!(matches!(refused, Some(LocalError::Executors(1025))));
}
