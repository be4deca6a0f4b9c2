use super::*;
use crate::limits::{FETCH_TRIES, INLINE_LEN_BYTES_MAX, WORK_LEN_BYTES_MAX};
use crate::message::{Payload, ToClient};

const USER: u32 = 7;

type TestClient = Client<&'static str>;

fn client(tasks_per_submit: usize) -> TestClient {
    Client::new(Config {
        user: USER,
        first_job: 1,
        tasks_per_submit,
        losses_max: 2,
        timing: ClientTiming {
            lease_ns: 300 * MS,
            ..ClientTiming::default()
        },
    })
}

fn inline(n: usize) -> Vec<TaskSpec> {
    let spec = TaskSpec::new(Work::Inline(b"work".to_vec()));
    vec![spec; n]
}

fn id(job: u32, task: u32) -> TaskId {
    let user = USER;
    TaskId { user, job, task }
}

fn attempt(job: u32, task: u32, attempt: u8) -> Attempt {
    let id = id(job, task);
    Attempt { id, attempt }
}

/// Number and attempts of each SUBMIT in the client's actions.
fn submits(client: &mut TestClient) -> Vec<(u64, Vec<Attempt>)> {
    let actions = client.actions().into_iter();
    let submits = actions.filter_map(|action| match action {
        Action::Submit {
            submit_seq,
            entries,
            ..
        } => {
            let tries = entries.iter().map(|entry| entry.attempt).collect();
            Some((submit_seq, tries))
        }
        _ => None,
    });
    submits.collect()
}

fn reply(submit_seq: u64, taken: u64, tail: u32, head: u32) -> SubmitReply {
    SubmitReply {
        incarnation: 99,
        submit_seq,
        taken,
        queue: 0,
        tail,
        head,
        parked: false,
    }
}

fn output() -> Outcome {
    Outcome::Output(Payload::Inline(b"42".to_vec()))
}

fn acknowledged(of: Attempt) -> Action<&'static str> {
    Action::Tell("executor", ToExecutor::Acknowledged(of))
}

fn finish(client: &mut TestClient, now: Nanos, of: Attempt) {
    client.on_executor(now, "executor", ToClient::Started(of));
    client.on_executor(now, "executor", ToClient::Result(of, output()));
}

#[test]
fn a_result_is_taken_once_and_acknowledged_each_time() {
    let mut client = client(1);
    client.submit(0, inline(1), &[], None).unwrap();
    assert_eq!(submits(&mut client), [(1, vec![attempt(1, 0, 1)])]);
    client.on_reply(1, reply(1, 1, 5, 4));
    client.on_executor(2, "executor", ToClient::Started(attempt(1, 0, 1)));
    assert_eq!(client.actions(), [Action::Started(id(1, 0))]);
    let result = ToClient::Result(attempt(1, 0, 1), output());
    client.on_executor(3, "executor", result.clone());
    let done = Action::Done(id(1, 0), Ok(output()));
    assert_eq!(client.actions(), [acknowledged(attempt(1, 0, 1)), done]);
    client.on_executor(4, "executor", result);
    assert_eq!(client.actions(), [acknowledged(attempt(1, 0, 1))]);
    assert_eq!(client.counters().results_twice, 1);
    assert_eq!((client.due(), client.tasks_left()), (Nanos::MAX, 0));
    assert!(client.submits.is_empty() && client.jobs.is_empty());
}

#[test]
fn silence_of_the_scheduler_is_answered_by_another_submit_of_the_same_try() {
    let mut client = client(14);
    client.submit(0, inline(3), &[], None).unwrap();
    let tries: Vec<Attempt> = (0..3).map(|task| attempt(1, task, 1)).collect();
    assert_eq!(submits(&mut client), [(1, tries.clone())]);
    client.tick(10 * MS);
    assert_eq!(submits(&mut client), [(2, tries.clone())]);
    client.on_reply(11 * MS, reply(1, 7, 3, 0));
    client.tick(30 * MS);
    assert_eq!(
        submits(&mut client),
        [(3, tries)],
        "a late reply counts no more"
    );
    client.on_reply(31 * MS, reply(3, 7, 6, 0));
    assert!(client.submits.is_empty());
    client.tick(40 * MS);
    assert_eq!(submits(&mut client), []);
    assert_eq!(client.counters().repeated, 6);
}

#[test]
fn what_a_full_queue_did_not_take_is_tried_again() {
    let mut client = client(14);
    client.submit(0, inline(3), &[], None).unwrap();
    client.actions();
    client.on_reply(0, reply(1, 0b101, 2, 0));
    client.tick(20 * MS);
    assert_eq!(submits(&mut client), [(2, vec![attempt(1, 1, 1)])]);
    assert_eq!(
        (client.counters().refused, client.counters().repeated),
        (1, 0)
    );
}

#[test]
fn a_task_that_left_its_queue_and_was_not_started_is_lost() {
    let mut client = client(1);
    client.submit(0, inline(1), &[], None).unwrap();
    client.actions();
    client.on_reply(0, reply(1, 1, 5, 3));
    client.tick(50 * MS);
    assert_eq!(
        submits(&mut client),
        [(2, vec![])],
        "it asks how far the queue is"
    );
    client.on_reply(51 * MS, reply(2, 0, 5, 5));
    client.tick(350 * MS);
    assert_eq!(submits(&mut client), [], "the executor may still tell");
    client.tick(351 * MS);
    assert_eq!(submits(&mut client), [(3, vec![attempt(1, 0, 2)])]);
    // The first executor again: no other has begun.
    client.on_executor(401 * MS, "slow", ToClient::Lease(attempt(1, 0, 1)));
    client.on_executor(402 * MS, "executor", ToClient::Started(attempt(1, 0, 2)));
    let revoked = Action::Tell("executor", ToExecutor::Revoked(attempt(1, 0, 2)));
    assert_eq!(client.actions(), [Action::Started(id(1, 0)), revoked]);
    assert_eq!(client.is_running(id(1, 0)), Some(true));
}

#[test]
fn a_task_that_kills_its_executors_fails_in_the_end() {
    let mut client = client(1);
    client.submit(0, inline(1), &[], None).unwrap();
    let mut now = 0;
    for tried in 1..=3 {
        assert_eq!(submits(&mut client).len(), 1);
        client.on_executor(now, "executor", ToClient::Started(attempt(1, 0, tried)));
        now += 299 * MS;
        client.tick(now);
        let started = Action::Started(id(1, 0));
        assert_eq!(client.actions(), [started], "it may still tell");
        client.on_executor(now, "executor", ToClient::Lease(attempt(1, 0, tried)));
        now += 300 * MS;
        client.tick(now);
    }
    let revoked = Action::Tell("executor", ToExecutor::Revoked(attempt(1, 0, 3)));
    let failed = Action::Done(id(1, 0), Err(Failure::ExecutorsLost(3)));
    assert_eq!(client.actions(), [revoked, failed]);
}

#[test]
fn kept_work_is_given_to_one_executor_at_a_time() {
    let mut client = client(1);
    let spec = TaskSpec::new(Work::Kept(b"long".to_vec()));
    client.submit(0, vec![spec], &[], None).unwrap();
    client.actions();
    client.on_executor(1, "executor", ToClient::Started(attempt(1, 0, 1)));
    let work = Payload::Inline(b"long".to_vec());
    let go = Action::Tell("executor", ToExecutor::Go(attempt(1, 0, 1), work));
    assert_eq!(client.actions(), [Action::Started(id(1, 0)), go.clone()]);
    client.on_executor(1, "executor", ToClient::Started(attempt(1, 0, 1)));
    assert_eq!(client.actions(), [go], "GO was lost");
    client.on_executor(2, "other", ToClient::Started(attempt(1, 0, 1)));
    let revoked = Action::Tell("other", ToExecutor::Revoked(attempt(1, 0, 1)));
    assert_eq!(client.actions(), [revoked]);
}

#[test]
fn long_work_is_stored_once_and_forgotten_when_it_is_done() {
    let mut client = client(1);
    let long = vec![7; INLINE_LEN_BYTES_MAX + 1];
    let spec = TaskSpec::new(Work::Kept(long.clone()));
    client.submit(0, vec![spec], &[], None).unwrap();
    client.actions();
    let of = attempt(1, 0, 1);
    client.on_executor(1, "executor", ToClient::Started(of));
    client.on_executor(1, "executor", ToClient::Started(of));
    let store = Action::Store("executor", of);
    let started = Action::Started(id(1, 0));
    assert_eq!(client.actions(), [started, store.clone(), store.clone()]);
    assert_eq!(client.kept(id(1, 0)), Some(&long[..]));
    client.stored("executor", of, None);
    let not_yet = Action::Tell("executor", ToExecutor::NotYet(of));
    assert_eq!(client.actions(), [not_yet], "it will ask again");
    let place = |token| Place {
        address: ([127, 0, 0, 1], 1).into(),
        token,
        len_bytes: long.len() as u64,
        digest: 0,
    };
    client.stored("executor", of, Some(place(1)));
    let go = Action::Tell("executor", ToExecutor::Go(of, Payload::At(place(1))));
    assert_eq!(client.actions(), std::slice::from_ref(&go));
    client.stored("executor", of, Some(place(2)));
    let forgotten = Action::Forget(place(2));
    assert_eq!(client.actions(), [forgotten, go.clone()], "the first one");
    client.on_executor(2, "executor", ToClient::Started(of));
    assert_eq!(client.actions(), [go], "it may be fetching that");
    finish(&mut client, 3, of);
    let actions = client.actions();
    assert!(
        actions.contains(&Action::Forget(place(1))),
        "{actions:?} forget nothing"
    );
    client.stored("executor", of, Some(place(3)));
    assert_eq!(client.actions(), [Action::Forget(place(3))]);
}

#[test]
fn another_scheduler_gets_everything_that_had_not_begun() {
    let mut client = client(1);
    client.submit(0, inline(3), &[], None).unwrap();
    client.actions();
    client.on_reply(0, reply(1, 1, 1, 0));
    client.on_executor(0, "executor", ToClient::Started(attempt(1, 2, 1)));
    // Of three tasks, the first is queued, the second in flight, the third has begun.
    let news = |submit_seq, taken, incarnation| SubmitReply {
        incarnation,
        ..reply(submit_seq, taken, 1, 0)
    };
    client.on_reply(1, news(2, 1, 100));
    assert_eq!(submits(&mut client), [(4, vec![attempt(1, 0, 2)])]);
    client.on_reply(2, news(4, 1, 100));
    client.on_reply(3, news(77, 0, 99));
    assert_eq!(
        submits(&mut client),
        [],
        "a late answer of the first one is no news"
    );
    client.on_reply(4, news(78, 0, 101));
    let tries = [(5, vec![attempt(1, 0, 3)]), (6, vec![attempt(1, 1, 2)])];
    assert_eq!(submits(&mut client), tries);
    assert_eq!(client.counters().schedulers_lost, 2);
}

#[test]
fn a_scheduler_that_was_thought_to_have_ended_is_heard_again_once_it_answers_something_new() {
    let mut client = client(1);
    client.submit(0, inline(3), &[], None).unwrap();
    client.on_reply(0, reply(1, 1, 1, 0));
    client.actions();
    // The incarnation is damaged in flight.
    let damaged = SubmitReply {
        incarnation: 98,
        ..reply(2, 1, 2, 0)
    };
    client.on_reply(1, damaged);
    assert_eq!(submits(&mut client), [(4, vec![attempt(1, 0, 2)])]);
    client.on_reply(2, reply(3, 1, 3, 0));
    assert_eq!(submits(&mut client), [], "that may be late");
    client.on_reply(3, reply(4, 1, 4, 0));
    let again = [(5, vec![attempt(1, 1, 2)])];
    assert_eq!(submits(&mut client), again, "of the one that there was not");
    assert_eq!(client.counters().schedulers_lost, 2);
    client.on_reply(4, reply(5, 1, 5, 0));
    assert_eq!(submits(&mut client), []);
    assert_eq!(client.counters().schedulers_lost, 2);
}

#[test]
fn jobs_wait_for_others_and_fail_with_them() {
    let mut client = client(1);
    let first = client.submit(0, inline(2), &[], None).unwrap();
    let second = client.submit(0, inline(1), &[first], None).unwrap();
    let third = client.submit(0, inline(1), &[first, second], None).unwrap();
    assert_eq!(submits(&mut client).len(), 2, "of the first job alone");
    finish(&mut client, 1, attempt(1, 0, 1));
    client.actions();
    finish(&mut client, 2, attempt(1, 1, 1));
    assert_eq!(submits(&mut client), [(3, vec![attempt(2, 0, 1)])]);
    let error = Outcome::Error(Payload::Inline(b"oops".to_vec()));
    let of = attempt(2, 0, 1);
    client.on_executor(3, "executor", ToClient::Result(of, error.clone()));
    let done = [
        Action::Done(id(2, 0), Ok(error)),
        Action::Done(id(third.0, 0), Err(Failure::Before(second.0))),
    ];
    assert_eq!(client.actions()[1..], done);
    // A job that is done is not waited for.
    client.submit(4, inline(1), &[first], None).unwrap();
    assert_eq!(submits(&mut client).len(), 1);
}

#[test]
fn only_what_has_not_begun_can_be_cancelled() {
    let mut client = client(1);
    client.submit(0, inline(3), &[], None).unwrap();
    client.actions();
    client.on_executor(1, "executor", ToClient::Started(attempt(1, 1, 1)));
    client.actions();
    assert!(client.cancel(2, id(1, 0)));
    assert!(!client.cancel(2, id(1, 0)), "it is done");
    assert!(!client.cancel(2, id(1, 1)), "it has begun");
    assert!(client.kill(3, id(1, 1)));
    let cancelled = |task| Action::Done(id(1, task), Err(Failure::Cancelled));
    let revoked = Action::Tell("executor", ToExecutor::Revoked(attempt(1, 1, 1)));
    assert_eq!(client.actions(), [cancelled(0), revoked, cancelled(1)]);
    // An executor gets the cancelled task nevertheless.
    client.on_executor(4, "executor", ToClient::Started(attempt(1, 0, 1)));
    let revoked = Action::Tell("executor", ToExecutor::Revoked(attempt(1, 0, 1)));
    assert_eq!(client.actions(), [revoked]);
}

#[test]
fn a_deadline_holds_for_waiting_tasks_too() {
    let mut client = client(1);
    let first = client.submit(0, inline(1), &[], None).unwrap();
    let later = client
        .submit(0, inline(1), &[first], Some(70 * MS))
        .unwrap();
    client.on_executor(1, "executor", ToClient::Started(attempt(1, 0, 1)));
    client.actions();
    client.tick(69 * MS);
    assert_eq!(client.actions(), []);
    client.tick(70 * MS);
    let failed = Action::Done(id(later.0, 0), Err(Failure::Deadline(70)));
    assert_eq!(client.actions(), [failed]);
    finish(&mut client, 71 * MS, attempt(1, 0, 1));
    assert_eq!(client.tasks_left(), 0);
}

#[test]
fn executors_that_wait_beside_tasks_are_woken() {
    let mut client = client(14);
    client.submit(0, inline(3), &[], None).unwrap();
    client.actions();
    let parked = true;
    client.on_reply(
        0,
        SubmitReply {
            parked,
            ..reply(1, 7, 3, 1)
        },
    );
    let wakes = submits(&mut client);
    assert_eq!(wakes.len(), 3);
    assert!(wakes.iter().all(|(_, tries)| tries.is_empty()));
}

#[test]
fn bad_jobs_are_refused_whole() {
    let mut client = client(1);
    let spec = |work| vec![TaskSpec::new(work)];
    let mut refused = |specs, after: &[JobId]| client.submit(0, specs, after, None).unwrap_err();
    assert_eq!(refused(vec![], &[]), SubmitError::NoTasks);
    assert_eq!(
        refused(spec(Work::Inline(vec![])), &[]),
        SubmitError::Desc(0)
    );
    assert_eq!(
        refused(spec(Work::Inline(vec![1; 65])), &[]),
        SubmitError::Desc(65)
    );
    let too_long = WORK_LEN_BYTES_MAX + 1;
    assert_eq!(
        refused(spec(Work::Kept(vec![0; too_long])), &[]),
        SubmitError::TooLong(too_long)
    );
    assert_eq!(refused(inline(1), &[JobId(1)]), SubmitError::NoSuchJob(1));
    let mut specs = inline(2);
    specs[1].priority = 8;
    assert_eq!(refused(specs.clone(), &[]), SubmitError::Priority(8));
    specs[1].priority = 7;
    specs[1].resource = 64;
    assert_eq!(refused(specs, &[]), SubmitError::Resource(64));
    let too_many = CLIENT_TASKS_MAX + 1;
    assert_eq!(
        refused(inline(too_many), &[]),
        SubmitError::TooMany(too_many)
    );
    assert_eq!((client.tasks_left(), client.actions().len()), (0, 0));
}

#[test]
fn a_long_result_is_acknowledged_once_it_is_here() {
    let mut client = client(1);
    client.submit(0, inline(1), &[], None).unwrap();
    let of = attempt(1, 0, 1);
    client.on_executor(1, "executor", ToClient::Started(of));
    client.actions();
    let at = Outcome::Output(Payload::At(Place {
        address: "127.0.0.1:1".parse().unwrap(),
        token: 5,
        len_bytes: 1 << 20,
        digest: 6,
    }));
    let result = ToClient::Result(of, at.clone());
    client.on_executor(2, "executor", result.clone());
    client.on_executor(3, "executor", result.clone());
    let fetch = Action::Fetch("executor", of, at.clone());
    let not_yet = Action::Tell("executor", ToExecutor::NotYet(of));
    assert_eq!(client.actions(), [fetch.clone(), not_yet]);
    client.tick(10_000 * MS);
    assert_eq!(client.actions(), [], "it takes as long as it takes");
    for _ in 1..FETCH_TRIES {
        // Its executor is alive and has the result: nothing has to be run again.
        client.fetched(10_001 * MS, "executor", of, None);
        assert_eq!(client.actions(), []);
        client.on_executor(10_001 * MS, "executor", result.clone());
        assert_eq!(client.actions(), std::slice::from_ref(&fetch));
    }
    client.fetched(10_001 * MS, "executor", of, None);
    let again = attempt(1, 0, 2);
    assert_eq!(submits(&mut client), [(2, vec![again])]);
    client.fetched(10_001 * MS, "executor", of, Some(output()));
    assert_eq!(client.actions(), [], "nobody waits for that one any more");
    client.on_executor(10_002 * MS, "executor", result);
    assert_eq!(
        client.actions(),
        [fetch],
        "the first executor tells once more"
    );
    client.fetched(10_003 * MS, "executor", of, Some(output()));
    let done = Action::Done(id(1, 0), Ok(output()));
    assert_eq!(client.actions(), [acknowledged(of), done]);
}

#[test]
fn an_executor_that_says_no_more_of_a_result_that_cannot_be_fetched_is_lost() {
    let mut client = client(1);
    client.submit(0, inline(1), &[], None).unwrap();
    let of = attempt(1, 0, 1);
    let at = Outcome::Output(Payload::At(Place {
        address: "127.0.0.1:1".parse().unwrap(),
        token: 5,
        len_bytes: 1 << 20,
        digest: 6,
    }));
    client.on_executor(2, "executor", ToClient::Result(of, at));
    client.fetched(3, "executor", of, None);
    client.actions();
    client.tick(3 + 300 * MS);
    assert_eq!(submits(&mut client), [(2, vec![attempt(1, 0, 2)])]);
}

/// The client asks about a queue, not about each task in it.
#[test]
fn many_tasks_that_wait_cost_no_more_than_one() {
    let mut client = client(1);
    const TASKS: u64 = 1000;
    for n in 0..TASKS {
        client.submit(0, inline(1), &[], None).unwrap();
        client.on_reply(1, reply(n + 1, 1, n as u32 + 1, 0));
    }
    client.actions();
    let mut looks = 0;
    let mut asked = 0;
    let mut now = 1;
    while now < 1000 * MS {
        now = client.due();
        client.tick(now);
        looks += 1;
        asked += client.actions().len();
    }
    assert!(
        (15..=25).contains(&looks) && asked == looks,
        "{looks} {asked}"
    );
    // Half of them leave the queue, and no executor begins them.
    let half = TASKS as u32 / 2;
    client.on_reply(now, reply(0, 0, half, half));
    client.tick(now + 300 * MS);
    assert_eq!(
        submits(&mut client)
            .iter()
            .filter(|(_, tries)| !tries.is_empty())
            .count(),
        half as usize
    );
    for job in 1..=TASKS as u32 {
        assert!(client.cancel(now + 301 * MS, id(job, 0)));
    }
    assert_eq!(client.due(), Nanos::MAX);
}

#[test]
fn however_many_a_full_queue_refuses_they_are_tried_again_by_and_by() {
    let mut client = client(1);
    const TASKS: u64 = 5000;
    for n in 0..TASKS {
        client.submit(0, inline(1), &[], None).unwrap();
        client.on_reply(1, reply(n + 1, 0, 0, 0));
    }
    client.actions();
    let (mut now, mut tried) = (1, 0);
    while now < 2000 * MS {
        now = client.due();
        client.tick(now);
        for (submit_seq, _) in submits(&mut client) {
            client.on_reply(now, reply(submit_seq, 0, 0, 0));
            tried += 1;
        }
    }
    assert!((TASKS..4 * TASKS).contains(&tried), "{tried}");
}

#[test]
fn tasks_that_may_go_to_different_queues_do_not_share_a_submit() {
    let mut client = client(14);
    let mut specs = inline(4);
    specs[2].priority = 3;
    client.submit(0, specs, &[], None).unwrap();
    let tries = |tasks: &[u32]| tasks.iter().map(|task| attempt(1, *task, 1)).collect();
    let expected = [(1, tries(&[0, 1])), (2, tries(&[2])), (3, tries(&[3]))];
    assert_eq!(submits(&mut client), expected);
}

#[test]
fn a_job_after_one_that_has_failed_fails() {
    let mut client = client(1);
    let first = client.submit(0, inline(1), &[], None).unwrap();
    client.cancel(0, id(1, 0));
    client.actions();
    client.submit(1, inline(2), &[first], None).unwrap();
    let failed = |task| Action::Done(id(2, task), Err(Failure::Before(1)));
    assert_eq!(client.actions(), [failed(0), failed(1)]);
    assert_eq!((client.tasks_left(), client.jobs.len()), (0, 0));
}
