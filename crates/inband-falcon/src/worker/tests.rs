use super::*;
use crate::message::SubmitReply;
use crate::task::{Entry, TaskId};
use crate::timing::{DRAIN_MIN_NS, REGISTER_NS};

/// Lease of a registration, in ms.
const LEASE_MS: u32 = 1000;
const SCHEDULER: u64 = 77;

fn address(n: u16) -> SocketAddrV4 {
    SocketAddrV4::new([10, 0, 0, 1].into(), n)
}

fn client() -> SocketAddrV4 {
    address(1)
}

fn attempt(task: u32) -> Attempt {
    let (user, job) = (1, 1);
    let id = TaskId { user, job, task };
    Attempt { id, attempt: 1 }
}

fn output(len_bytes: usize) -> Outcome {
    Outcome::Output(Payload::Inline(vec![7; len_bytes]))
}

fn place() -> Place {
    Place {
        address: address(9).into(),
        token: 5,
        len_bytes: 2000,
        digest: 6,
    }
}

fn register(leaves: bool) -> Register {
    Register {
        token: 3,
        name: "name".into(),
        executors: 2,
        resources: 0b11,
        leaves,
    }
}

/// A worker that has asked to be registered.
fn unknown() -> Worker {
    let config = Config {
        token: 3,
        name: "name".into(),
        executors: 2,
        resources: 0b11,
        results_len_bytes_max: 3000,
        timing: ExecutorTiming::default(),
    };
    let mut worker = Worker::new(config, 0);
    worker.tick(0);
    assert_eq!(worker.actions(), [Action::Register(register(false))]);
    worker
}

fn registered(number: u16, incarnation: u32) -> Incoming {
    registered_for(LEASE_MS, number, incarnation)
}

fn registered_for(lease_ms: u32, number: u16, incarnation: u32) -> Incoming {
    let answer = Registered::As {
        worker: number,
        worker_incarnation: incarnation,
        lease_ms,
        pull_ms: 0,
    };
    Incoming::Host(0, HostMessage::Registered(SCHEDULER, answer))
}

fn pull(executor: u32, worker_incarnation: u32, pull_seq: u64) -> Action {
    Action::Pull(Pull {
        scheduler: SCHEDULER,
        executor,
        worker_incarnation,
        pull_seq,
    })
}

/// A worker with number 3 and incarnation 8, whose executors have pulled.
fn known() -> Worker {
    let mut worker = unknown();
    worker.on_incoming(1, address(2), registered(3, 8));
    assert_eq!(worker.actions(), [pull(192, 8, 2), pull(193, 8, 2)]);
    worker
}

fn given(executor: u32, pull_seq: u64, task: u32) -> Incoming {
    Incoming::Given(Given {
        executor,
        pull_seq,
        client: client(),
        entry: Entry {
            attempt: attempt(task),
            priority: 0,
            resource: 0,
            worker: None,
            desc: b"work".to_vec(),
        },
        relay: None,
    })
}

fn tell(executor: u32, message: ToClient) -> Action {
    let client = client();
    Action::Tell {
        client,
        executor,
        message,
    }
}

fn run(executor: usize, task: u32) -> Action {
    Action::Run {
        executor,
        attempt: attempt(task),
        work: Payload::Inline(b"work".to_vec()),
    }
}

fn says(executor: u32, message: ToExecutor) -> Incoming {
    Incoming::Host(executor, HostMessage::ToExecutor(message))
}

fn not_registered(executor: u32, worker_incarnation: u32) -> Incoming {
    Incoming::NotRegistered {
        executor,
        worker_incarnation,
    }
}

/// A registered worker whose second executor runs task 0.
fn busy() -> Worker {
    let mut worker = known();
    worker.on_incoming(2, address(2), given(193, 2, 0));
    let started = tell(1, ToClient::Started(attempt(0)));
    assert_eq!(worker.actions(), [run(1, 0), started]);
    worker
}

fn reply() -> SubmitReply {
    SubmitReply {
        incarnation: SCHEDULER,
        submit_seq: 1,
        taken: 1,
        queue: 0,
        tail: 1,
        head: 1,
        parked: false,
    }
}

/// A task whose work stays with its client.
fn given_kept(pull_seq: u64, task: u32, of_try: u8) -> Incoming {
    let Incoming::Given(mut given) = given(193, pull_seq, task) else {
        unreachable!("it is a TASK");
    };
    given.entry.desc.clear();
    given.entry.attempt.attempt = of_try;
    Incoming::Given(given)
}

/// Returns how long the second executor asks for the work of this task; afterwards it has pulled the next one.
fn asks_for(worker: &mut Worker, now: &mut Nanos, pull_seq: u64, of_try: u8) -> Nanos {
    let since = *now;
    worker.on_incoming(
        since,
        address(2),
        given_kept(pull_seq, pull_seq as u32, of_try),
    );
    while worker.executors()[1].asks().is_some() {
        *now = worker.executors()[1].due();
        worker.tick(*now);
    }
    assert!(worker.actions().contains(&pull(193, 8, pull_seq + 1)));
    *now - since
}

#[test]
fn a_client_that_was_found_silent_is_not_waited_for_again_and_again() {
    let timing = ExecutorTiming::default();
    let mut worker = known();
    let mut now = 2;
    assert_eq!(
        asks_for(&mut worker, &mut now, 2, 1),
        timing.client_silent_ns
    );
    assert_eq!(asks_for(&mut worker, &mut now, 3, 1), 0, "just now");
    now += timing.client_skip_ns;
    assert_eq!(
        asks_for(&mut worker, &mut now, 4, 1),
        timing.client_probe_ns
    );
    assert_eq!(asks_for(&mut worker, &mut now, 5, 1), 0);
    // It has resubmitted this task, so it is alive: only this worker cannot reach it.
    assert_eq!(
        asks_for(&mut worker, &mut now, 6, 2),
        timing.client_silent_ns
    );
    // Late, but it is alive.
    let late = ToExecutor::Revoked(attempt(3));
    worker.on_incoming(now, client(), says(1, late));
    assert_eq!(
        asks_for(&mut worker, &mut now, 7, 1),
        timing.client_silent_ns
    );
    let mut again = given_kept(8, 8, 1);
    if let Incoming::Given(given) = &mut again {
        given.relay = Some((client(), reply()));
    }
    worker.on_incoming(now, address(2), again);
    assert!(
        worker.executors()[1].asks().is_some(),
        "its SUBMIT just came"
    );
}

#[test]
fn who_is_not_known_asks_again_and_takes_no_task() {
    let mut worker = unknown();
    assert!(!worker.is_registered());
    worker.on_incoming(1, address(2), given(0, 1, 0));
    worker.tick(REGISTER_NS - 1);
    assert_eq!(worker.actions(), [], "its executors' PULLs do not leave");
    worker.tick(REGISTER_NS);
    assert_eq!(worker.actions(), [Action::Register(register(false))]);
}

#[test]
fn who_is_known_says_it_again_before_its_lease_ends() {
    let mut worker = known();
    assert!(worker.is_registered());
    let again = |worker: &mut Worker, now| {
        worker.tick(now);
        let actions = worker.actions();
        actions.contains(&Action::Register(register(false)))
    };
    assert!(again(&mut worker, REGISTER_NS), "due before it was known");
    let lease_ns = Nanos::from(LEASE_MS) * MS;
    let next = REGISTER_NS + lease_ns / 5;
    assert!(!again(&mut worker, next - 1));
    assert!(again(&mut worker, next));
    worker.on_incoming(next, address(2), registered(3, 8));
    assert_eq!(worker.actions(), [], "the same as before: nobody pulls");
}

#[test]
fn a_lease_that_is_short_is_renewed_in_time_from_the_first_one_on() {
    let mut worker = unknown();
    let lease_ms = (REGISTER_NS / MS) as u32;
    worker.on_incoming(1, address(2), registered_for(lease_ms, 3, 8));
    worker.actions();
    let next = 1 + REGISTER_NS / 5;
    worker.tick(next - 1);
    assert!(!worker
        .actions()
        .contains(&Action::Register(register(false))));
    worker.tick(next);
    assert!(worker
        .actions()
        .contains(&Action::Register(register(false))));
}

#[test]
fn who_was_silent_registers_again_at_once_and_once() {
    let mut worker = known();
    worker.on_incoming(10, address(2), not_registered(192, 7));
    worker.on_incoming(10, address(2), not_registered(64, 8));
    assert!(worker.is_registered(), "of another turn, of another number");
    worker.on_incoming(11, address(2), not_registered(192, 8));
    assert!(!worker.is_registered());
    assert_eq!(worker.due(), 11);
    worker.tick(11);
    assert_eq!(worker.actions(), [Action::Register(register(false))]);
    worker.on_incoming(12, address(2), not_registered(193, 8));
    worker.tick(12);
    assert_eq!(worker.actions(), [], "of its other executor");
    worker.on_incoming(13, address(2), registered(3, 9));
    assert!(worker.is_registered());
    assert_eq!(worker.actions(), [pull(192, 9, 3), pull(193, 9, 3)]);
}

#[test]
fn another_number_while_a_task_runs_changes_nothing_for_its_client() {
    let mut worker = busy();
    worker.on_incoming(10, address(2), registered(0, 1));
    assert_eq!(worker.actions(), [pull(0, 1, 3)], "the other one is idle");
    worker.on_incoming(11, address(2), given(192, 3, 1));
    assert_eq!(worker.actions(), [], "it was given to the former number");
    worker.finished(20, 1, output(1));
    let result = tell(1, ToClient::Result(attempt(0), output(1)));
    assert_eq!(worker.actions(), [pull(1, 1, 3), result]);
    let acknowledged = says(1, ToExecutor::Acknowledged(attempt(0)));
    worker.on_incoming(21, client(), acknowledged);
    assert_eq!(worker.results_kept(), 0);
}

#[test]
fn answers_go_to_the_executor_that_they_are_for() {
    let mut worker = known();
    let damaged = Incoming::Damaged {
        executor: 193,
        pull_seq: 2,
        is_repeated: false,
    };
    worker.on_incoming(2, address(2), damaged.clone());
    assert_eq!(worker.actions(), [pull(193, 8, 2)]);
    let (executor, pull_seq) = (192, 2);
    worker.on_incoming(3, address(2), Incoming::NoTask { executor, pull_seq });
    let timing = ExecutorTiming::default();
    assert_eq!(worker.executors()[0].due(), 3 + timing.pull_ns);
    for executor in [191, 194, u32::MAX] {
        worker.on_incoming(4, address(2), given(executor, 2, 0));
    }
    assert_eq!((worker.actions(), worker.idle()), (vec![], 2));
}

#[test]
fn a_client_whose_submit_was_spent_is_told_whoever_gets_the_task() {
    let mut worker = known();
    let reply = reply();
    let Incoming::Given(late) = given(0, 2, 0) else {
        unreachable!("it is a task");
    };
    let relay = Some((client(), reply));
    let late = Incoming::Given(Given { relay, ..late });
    worker.on_incoming(2, address(2), late);
    assert_eq!(worker.actions(), [tell(0, ToClient::Reply(reply))]);
}

#[test]
fn who_drains_takes_no_more_and_ends_what_it_has() {
    let mut worker = busy();
    worker.drain(10);
    worker.tick(10);
    assert_eq!(worker.actions(), [Action::Register(register(true))]);
    // Given just before, and received late.
    worker.on_incoming(11, address(2), given(192, 2, 1));
    let started = tell(0, ToClient::Started(attempt(1)));
    assert_eq!(worker.actions(), [run(0, 1), started]);
    worker.on_incoming(12, address(2), registered(3, 8));
    worker.on_incoming(12, address(2), not_registered(192, 8));
    worker.finished(13, 0, output(1));
    let result = |task| ToClient::Result(attempt(task), output(1));
    assert_eq!(worker.actions(), [tell(0, result(1))], "and no PULL");
    let acknowledged = |task| ToExecutor::Acknowledged(attempt(task));
    worker.on_incoming(14, client(), says(0, acknowledged(1)));
    let over = 10 + DRAIN_MIN_NS;
    worker.tick(over);
    assert!(worker.actions().contains(&Action::Register(register(true))));
    assert!(!worker.is_drained(over), "a task runs");
    worker.finished(over, 1, output(1));
    assert!(!worker.is_drained(over), "its client has no result");
    let silent_ns = ExecutorTiming::default().result_silent_ns;
    assert!(worker.is_drained(over + silent_ns), "nor asks for it");
    worker.on_incoming(over, client(), says(1, acknowledged(0)));
    assert!(worker.is_drained(over));
    assert!(!worker.is_drained(over - 1), "one may be on its way");
}

#[test]
fn who_is_refused_gives_up_and_who_drains_does_not_care() {
    let refusal = Refusal::TooManyWorkers(1);
    let answer = Registered::Refused(refusal.clone());
    let refused = Incoming::Host(0, HostMessage::Registered(SCHEDULER, answer));
    let mut worker = unknown();
    worker.on_incoming(1, address(2), refused.clone());
    assert_eq!(worker.actions(), [Action::GiveUp(refusal)]);
    let mut worker = busy();
    worker.drain(10);
    worker.on_incoming(11, address(2), refused);
    assert_eq!(worker.actions(), []);
}

#[test]
fn a_long_result_is_put_where_it_can_be_fetched_until_its_client_has_it() {
    let mut worker = busy();
    let long = output(INLINE_LEN_BYTES_MAX + 1);
    worker.finished(10, 1, long.clone());
    let ended = Ended {
        client: client(),
        executor: 1,
        attempt: attempt(0),
        outcome: long.clone(),
    };
    // It is stored after the PULL, because others wait for that.
    let store = Action::Store(ended.clone());
    assert_eq!(worker.actions(), [pull(193, 8, 3), store]);
    worker.stored(11, ended, Ok(place()));
    let outcome = long.with(Payload::At(place()));
    let result = tell(1, ToClient::Result(attempt(0), outcome));
    assert_eq!(worker.actions(), [result]);
    let acknowledged = says(1, ToExecutor::Acknowledged(attempt(0)));
    worker.on_incoming(12, address(66), acknowledged.clone());
    worker.on_incoming(12, client(), says(0, ToExecutor::Acknowledged(attempt(0))));
    assert_eq!(worker.actions(), [], "by who has none, to who had none");
    worker.on_incoming(12, client(), acknowledged);
    assert_eq!(worker.actions(), [Action::Forget(place())]);
}

#[test]
fn a_long_result_that_cannot_be_stored_is_an_error() {
    let mut worker = busy();
    worker.finished(10, 1, output(2000));
    let stored = worker
        .actions()
        .into_iter()
        .find_map(|action| match action {
            Action::Store(ended) => Some(ended),
            _ => None,
        });
    let ended = stored.expect("it is long");
    worker.stored(11, ended, Err("full".into()));
    let outcome = Outcome::Error(Payload::Inline(b"full".to_vec()));
    let result = tell(1, ToClient::Result(attempt(0), outcome));
    assert_eq!(worker.actions(), [result]);
}

#[test]
fn a_result_is_repeated_and_forgotten_when_its_client_is_gone_for_long() {
    let mut worker = busy();
    worker.finished(10, 1, output(2000));
    worker.actions();
    let ended = Ended {
        client: client(),
        executor: 1,
        attempt: attempt(0),
        outcome: output(2000),
    };
    worker.stored(10, ended, Ok(place()));
    let told = worker.actions();
    let timing = ExecutorTiming::default();
    worker.tick(10 + timing.result_ns);
    assert!(worker.actions().contains(&told[0]), "once more");
    worker.tick(10 + timing.result_keep_ns);
    let actions = worker.actions();
    assert!(actions.contains(&Action::Forget(place())));
    assert!(!actions.contains(&told[0]), "nobody is there");
    assert_eq!(worker.results_thrown_away(), 1);
}

/// A worker whose second executor has a long result that its client has not fetched, while the first one runs task 1.
fn full() -> Worker {
    let mut worker = busy();
    worker.finished(10, 1, output(2000));
    worker.stored(10, ended(1, 0), Ok(place()));
    worker.on_incoming(11, address(2), given(192, 2, 1));
    worker.actions();
    worker
}

fn ended(executor: u32, task: u32) -> Ended {
    Ended {
        client: client(),
        executor,
        attempt: attempt(task),
        outcome: output(2000),
    }
}

#[test]
fn an_executor_whose_result_finds_no_room_waits_with_it_and_takes_no_more() {
    let lease_ns = ExecutorTiming::default().lease_ns;
    let mut worker = full();
    worker.finished(20, 0, output(2000));
    assert_eq!(worker.actions(), [], "neither a PULL nor an error");
    assert_eq!((worker.tasks_run(), worker.idle()), (2, 1));
    worker.tick(20 + lease_ns);
    let lease = tell(0, ToClient::Lease(attempt(1)));
    assert!(worker.actions().contains(&lease), "its client waits on");
    let acknowledged = says(1, ToExecutor::Acknowledged(attempt(0)));
    worker.on_incoming(30 + lease_ns, client(), acknowledged);
    let store = Action::Store(ended(0, 1));
    let then = [Action::Forget(place()), pull(192, 8, 3), store];
    assert_eq!(worker.actions(), then);

    // It is no longer wanted.
    let mut worker = full();
    worker.finished(20, 0, output(2000));
    let revoked = ToExecutor::Revoked(attempt(1));
    worker.on_incoming(21, client(), says(0, revoked));
    assert_eq!(worker.actions(), [pull(192, 8, 3)]);

    // A client that is silent for long has to make room.
    let mut worker = full();
    worker.finished(20, 0, output(2000));
    let silent_at = 10 + ExecutorTiming::default().result_silent_ns;
    let mut now = 20;
    while now < silent_at {
        assert!(worker.executors()[0].holds().is_some());
        now = worker.due();
        worker.tick(now);
    }
    let actions = worker.actions();
    let store = Action::Store(ended(0, 1));
    assert!(actions.contains(&store) && actions.contains(&Action::Forget(place())));
    assert_eq!((now, worker.results_thrown_away()), (silent_at, 1));
}

/// As with Ctrl-Z, or a debugger.
#[test]
fn a_client_that_stands_still_for_a_minute_finds_its_result() {
    let mut worker = full();
    let mut now = 11;
    while now < 60_000 * MS {
        now = worker.due();
        worker.tick(now);
        assert!(!worker.actions().contains(&Action::Forget(place())));
    }
    assert_eq!(worker.results_kept(), 1);
}

#[test]
fn results_of_a_client_that_fetches_others_are_kept() {
    let mut worker = full();
    worker.finished(20, 0, output(1));
    let timing = ExecutorTiming::default();
    let mut now = 20;
    while now < 2 * timing.result_keep_ns {
        now = worker.due();
        worker.tick(now);
        worker.actions();
        for (executor, task) in [(1, 0), (0, 1)] {
            worker.on_incoming(
                now,
                client(),
                says(executor, ToExecutor::NotYet(attempt(task))),
            );
        }
    }
    assert_eq!(
        (worker.results_kept(), worker.results_thrown_away()),
        (2, 0)
    );
}

#[test]
fn what_nobody_wants_any_more_is_stopped_and_not_kept() {
    let mut worker = busy();
    let revoked = ToExecutor::Revoked(attempt(0));
    worker.on_incoming(10, client(), says(0, revoked.clone()));
    worker.on_incoming(10, client(), says(2, revoked.clone()));
    assert_eq!(worker.actions(), [], "those do not run it");
    worker.on_incoming(11, client(), says(1, revoked));
    let (executor, attempt) = (1, attempt(0));
    assert_eq!(worker.actions(), [Action::Stop { executor, attempt }]);
    worker.finished(12, 1, output(2000));
    assert_eq!(worker.actions(), [pull(193, 8, 3)]);
}
