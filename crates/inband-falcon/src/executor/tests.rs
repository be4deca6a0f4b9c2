use super::*;
use crate::task::TaskId;
use crate::timing::MS;

/// How long clients have to answer.
const CLIENT_TIMEOUT_NS: Nanos = 300 * MS;

fn attempt(task: u32) -> Attempt {
    let (user, job) = (1, 1);
    Attempt {
        id: TaskId { user, job, task },
        attempt: 1,
    }
}

fn entry(task: u32, desc: &[u8]) -> Entry {
    Entry {
        attempt: attempt(task),
        priority: 0,
        resource: 0,
        worker: None,
        desc: desc.to_vec(),
    }
}

fn new() -> Executor<&'static str> {
    let timing = ExecutorTiming {
        client_silent_ns: CLIENT_TIMEOUT_NS,
        lease_ns: 100 * MS,
        ..ExecutorTiming::default()
    };
    let mut executor = Executor::new(timing, 0);
    assert_eq!(executor.actions(), [Action::Pull { pull_seq: 1 }]);
    executor
}

fn output() -> Outcome {
    Outcome::Output(Payload::Inline(b"42".to_vec()))
}

#[test]
fn a_task_that_brings_its_work_runs_at_once_and_the_next_is_pulled() {
    let mut executor = new();
    executor.on_task(MS, 1, "client", entry(0, b"work"), CLIENT_TIMEOUT_NS);
    let run = Action::Run(attempt(0), Payload::Inline(b"work".to_vec()));
    let started = Action::Tell("client", ToClient::Started(attempt(0)));
    assert_eq!(executor.actions(), [run, started]);
    // The second answer to the PULL that was sent twice.
    executor.on_task(MS, 1, "client", entry(0, b"work"), CLIENT_TIMEOUT_NS);
    assert_eq!(executor.actions(), []);
    executor.tick(101 * MS);
    let lease = Action::Tell("client", ToClient::Lease(attempt(0)));
    assert_eq!(executor.actions(), [lease]);
    executor.finished(150 * MS, output(), true);
    let keep = Action::Keep("client", attempt(0), output());
    assert_eq!(executor.actions(), [Action::Pull { pull_seq: 2 }, keep]);
    executor.on_task(151 * MS, 1, "client", entry(0, b"work"), CLIENT_TIMEOUT_NS);
    assert_eq!(executor.actions(), [], "that one was of the last PULL");
}

#[test]
fn kept_work_is_asked_for_until_it_comes() {
    let mut executor = new();
    executor.on_task(0, 1, "client", entry(0, b""), CLIENT_TIMEOUT_NS);
    let started = Action::Tell("client", ToClient::Started(attempt(0)));
    assert_eq!(executor.actions(), std::slice::from_ref(&started));
    executor.tick(10 * MS);
    assert_eq!(executor.actions(), [started]);
    let go = |task| ToExecutor::Go(attempt(task), Payload::Inline(b"w".to_vec()));
    executor.on_client(11 * MS, &"stranger", go(0));
    executor.on_client(11 * MS, &"client", go(1));
    assert_eq!(executor.actions(), [], "of another client, of another task");
    executor.on_client(11 * MS, &"client", go(0));
    let run = Action::Run(attempt(0), Payload::Inline(b"w".to_vec()));
    assert_eq!(executor.actions(), [run]);
    executor.on_client(12 * MS, &"client", go(0));
    assert_eq!(executor.actions(), [], "it runs");
}

#[test]
fn a_silent_client_gets_nothing_done() {
    let mut executor = new();
    executor.on_task(0, 1, "client", entry(0, b""), CLIENT_TIMEOUT_NS);
    let mut now = 0;
    while executor.counters().clients_silent == 0 {
        now = executor.due();
        executor.tick(now);
    }
    assert_eq!(now, 300 * MS);
    let last = [Action::Pull { pull_seq: 2 }, Action::Silent("client")];
    assert!(executor.actions().ends_with(&last));
    executor.on_task(now, 2, "client", entry(1, b""), 0);
    let next = [Action::Pull { pull_seq: 3 }];
    assert_eq!(executor.actions(), next, "it is not asked");
    executor.on_task(now, 3, "client", entry(2, b"work"), 0);
    let run = Action::Run(attempt(2), Payload::Inline(b"work".to_vec()));
    assert_eq!(executor.actions()[0], run, "there is nothing to ask for");
}

#[test]
fn a_client_that_asks_to_be_waited_for_is_for_a_while() {
    let mut executor = new();
    executor.on_task(0, 1, "client", entry(0, b""), CLIENT_TIMEOUT_NS);
    let mut now = 0;
    while executor.asks().is_some() {
        now = executor.due();
        executor.tick(now);
        executor.on_client(now, &"client", ToExecutor::NotYet(attempt(0)));
    }
    assert_eq!(now, CLIENT_TIMEOUTS_MAX * CLIENT_TIMEOUT_NS);
    let counters = executor.counters();
    assert_eq!((counters.clients_silent, counters.clients_busy), (0, 1));
    assert!(!executor.actions().contains(&Action::Silent("client")));
}

#[test]
fn what_is_revoked_is_not_begun_or_stopped() {
    let mut executor = new();
    executor.on_task(0, 1, "client", entry(0, b""), CLIENT_TIMEOUT_NS);
    executor.actions();
    let revoked = |task| ToExecutor::Revoked(attempt(task));
    executor.on_client(1, &"client", revoked(0));
    assert_eq!(executor.actions(), [Action::Pull { pull_seq: 2 }]);

    executor.on_task(2, 2, "client", entry(1, b"work"), CLIENT_TIMEOUT_NS);
    executor.actions();
    executor.on_client(3, &"client", revoked(0));
    assert_eq!(executor.actions(), [], "that is another one");
    executor.on_client(3, &"client", revoked(1));
    executor.on_client(3, &"client", revoked(1));
    assert_eq!(executor.actions(), [Action::Stop(attempt(1))]);
    executor.finished(4, output(), true);
    assert_eq!(executor.actions(), [Action::Pull { pull_seq: 3 }]);
    assert_eq!(executor.counters().revoked, 2);
}

#[test]
fn an_idle_executor_pulls_less_and_less_often() {
    let mut executor = new();
    let mut pulled_at_ms = Vec::new();
    while pulled_at_ms.len() < 7 {
        let now = executor.due();
        executor.tick(now);
        assert_eq!(executor.actions(), [Action::Pull { pull_seq: 1 }]);
        pulled_at_ms.push(now / MS);
    }
    assert_eq!(pulled_at_ms, [5, 15, 35, 75, 155, 255, 355]);
    executor.on_no_task(400 * MS, 1);
    assert_eq!(executor.due(), 405 * MS, "not parked: it is to ask again");
}

#[test]
fn a_pull_that_has_not_left_is_not_to_be_answered() {
    let mut executor = Executor::<&str>::new(ExecutorTiming::default(), 0);
    executor.on_registered(MS, 0);
    assert_eq!(executor.actions(), [Action::Pull { pull_seq: 2 }]);
}

#[test]
fn a_damaged_task_is_asked_for_again_once() {
    let mut executor = new();
    executor.on_damaged(0, 2, true);
    assert_eq!(executor.actions(), [], "of another PULL");
    executor.on_damaged(0, 1, false);
    assert_eq!(executor.actions(), [Action::Pull { pull_seq: 1 }]);
    executor.on_damaged(0, 1, true);
    assert_eq!(executor.actions(), [Action::Pull { pull_seq: 2 }]);
    assert_eq!(executor.counters().damaged, 2);
}
