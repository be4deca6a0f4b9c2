//! Directed schedules of Falcon that break a careless implementation (docs/falcon.md).

use std::cell::Cell;
use std::rc::Rc;

use inband_falcon::dataplane::wire::Type;
use inband_falcon::dataplane::Policy;
use inband_falcon::task::{TaskId, TaskSpec, Work};
use inband_falcon::timing::{Nanos, MS};
use inband_sim::falcon::{Ends, Host, Layout, Passing, Plan, World};
use inband_sim::Fate;

/// Long enough for every executor to register and park.
const START_NS: Nanos = 20 * MS;
const CLIENT: u8 = 0;

fn work(number: u64, takes_ns: Nanos, ends: Ends) -> Vec<u8> {
    let plan = Plan {
        number,
        takes_ns,
        ends,
    };
    plan.work(0)
}

/// Tasks that carry their work and run for this long.
fn tasks(count: u64, takes_ns: Nanos) -> Vec<TaskSpec> {
    let spec = |n| TaskSpec::new(Work::Inline(work(n, takes_ns, Ends::Output(8))));
    (0..count).map(spec).collect()
}

/// A world without random events in which all executors wait.
fn world(layout: Layout) -> World {
    let mut world = World::new(1, layout);
    world.set_load(false);
    world.keep_trace(300);
    world.run_for(START_NS);
    world
}

/// The same; executors may be given up.
fn hard_world(layout: Layout) -> World {
    world(Layout {
        is_calm: false,
        ..layout
    })
}

fn plain(executors: u8) -> Layout {
    Layout::plain(Policy::Fifo, executors)
}

#[track_caller]
fn submit(world: &mut World, specs: Vec<TaskSpec>) -> Vec<TaskId> {
    submit_after(world, specs, &[])
}

#[track_caller]
fn submit_after(world: &mut World, specs: Vec<TaskSpec>, after: &[u32]) -> Vec<TaskId> {
    let count = specs.len() as u32;
    let job = world.submit(CLIENT, specs, after, None);
    let job = job.expect("the client is up");
    (0..count).map(|n| world.task(CLIENT, job, n)).collect()
}

/// Runs until all tasks have ended; returns their outcomes.
#[track_caller]
fn must_end(world: &mut World, within_ns: Nanos, ids: &[TaskId], how: &str) {
    let all_ended = |world: &World| ids.iter().all(|id| world.ended(*id).is_some());
    let until = world.now + within_ns;
    let is_over = world.run_until(until, all_ended);
    let ends: Vec<_> = ids.iter().map(|id| world.ended(*id)).collect();
    let trace = || world.trace().join("\n");
    assert_eq!(world.violation, None, "{}", trace());
    assert!(
        is_over && ends.iter().all(|end| *end == Some(how)),
        "{ends:?}\n{}",
        trace()
    );
}

fn lost(world: &World) -> u64 {
    world.client_counters(CLIENT).expect("it is up").lost
}

/// Applies this fate to the first packet of a type; returns how many packets of that type it has seen.
fn first(world: &mut World, kind: Type, fate: Fate) -> Rc<Cell<u32>> {
    let met = Rc::new(Cell::new(0));
    let count = met.clone();
    let filter = move |passing: &Passing<'_>| {
        if !passing.is(kind) {
            return Fate::Pass;
        }
        count.set(count.get() + 1);
        match count.get() {
            1 => fate,
            _ => Fate::Pass,
        }
    };
    world.set_filter(Some(Box::new(filter)));
    met
}

#[test]
fn a_pull_that_is_repeated_gets_the_same_task() {
    let mut world = world(plain(1));
    let met = first(&mut world, Type::Task, Fate::Lose);
    let ids = submit(&mut world, tasks(1, MS));
    must_end(&mut world, 150 * MS, &ids, "done");
    assert!(met.get() >= 2, "it was given again");
    assert_eq!((lost(&world), world.tasks_run(0)), (0, 1));
}

#[test]
fn one_submit_wakes_all_that_wait_and_its_client_need_not_ask() {
    let layout = Layout {
        tasks_per_submit: 8,
        wakes: true,
        ..plain(3)
    };
    let mut world = world(layout);
    let submits = first(&mut world, Type::Submit, Fate::Pass);
    let ids = submit(&mut world, tasks(3, MS));
    must_end(&mut world, 2 * MS, &ids, "done");
    assert_eq!((submits.get(), lost(&world)), (1, 0));
}

#[test]
fn a_submit_that_nothing_was_heard_of_is_repeated_and_its_result_taken_once() {
    let mut world = world(plain(2));
    // No executor waits any more, so the answer is a SUBMIT_REPLY.
    let busy = submit(&mut world, tasks(2, 10 * MS));
    world.run_for(5 * MS);
    let met = first(&mut world, Type::SubmitReply, Fate::Lose);
    let work = Work::Kept(work(9, MS, Ends::Output(8)));
    let ids = submit(&mut world, vec![TaskSpec::new(work)]);
    must_end(&mut world, 100 * MS, &ids, "done");
    must_end(&mut world, 100 * MS, &busy, "done");
    world.run_for(100 * MS);
    assert!(met.get() >= 2);
    assert_eq!((world.queued(), world.busy()), (0, 0));
    assert_eq!(
        world.tasks_run(0),
        3,
        "the second copy was revoked, not begun"
    );
}

#[test]
fn a_scheduler_that_dies_takes_its_queue_with_it_and_clients_put_it_back() {
    let mut world = hard_world(plain(1));
    let ids = submit(&mut world, tasks(6, 10 * MS));
    world.run_for(15 * MS);
    assert!(world.queued() >= 3);
    world.stop_scheduler(0);
    world.run_for(30 * MS);
    world.start_scheduler(0);
    must_end(&mut world, 400 * MS, &ids, "done");
    assert_eq!(lost(&world), 0, "nobody was given up");
    let counters = world.client_counters(CLIENT).expect("it is up");
    assert_eq!(counters.schedulers_lost, 1);
}

#[test]
fn who_dies_with_a_task_is_missed_and_another_gets_it() {
    let mut world = hard_world(Layout {
        workers: 2,
        ..plain(1)
    });
    let ids = submit(&mut world, tasks(2, 30 * MS));
    world.run_for(10 * MS);
    assert_eq!(world.busy(), 2);
    world.stop_worker(0);
    must_end(&mut world, 300 * MS, &ids, "done");
    assert_eq!((lost(&world), world.tasks_run(1)), (1, 2));
}

#[test]
fn a_task_given_to_the_dead_is_missed_too() {
    let mut world = hard_world(Layout {
        workers: 2,
        ..plain(1)
    });
    // It was parked, and the scheduler does not know that it has gone.
    world.stop_worker(0);
    let ids = submit(&mut world, tasks(2, MS));
    must_end(&mut world, 400 * MS, &ids, "done");
}

#[test]
fn a_client_that_dies_leaves_nobody_busy() {
    let mut world = hard_world(plain(2));
    let kept = |n| TaskSpec::new(Work::Kept(work(n, 5 * MS, Ends::Output(3000))));
    submit(&mut world, (0..5).map(kept).collect());
    world.run_for(3 * MS);
    assert_eq!(world.busy(), 2);
    world.stop_client(CLIENT);
    world.run_for(600 * MS);
    assert_eq!((world.busy(), world.queued()), (0, 0));
    assert_eq!(world.parked(), 2, "they wait for others");
    assert_eq!(world.violation, None);
}

/// A result is kept for a client that is paused, however long its task ran, and nothing runs twice.
#[test]
fn a_client_that_stands_still_gets_the_results_of_before() {
    let mut world = hard_world(plain(1));
    let kept = |n| TaskSpec::new(Work::Kept(work(n, 20 * MS, Ends::Output(3000))));
    let ids = submit(&mut world, vec![kept(1)]);
    world.run_for(5 * MS);
    assert_eq!(world.busy(), 1);
    let stands_still_ns = world.system.layout.executor.result_keep_ns - 100 * MS;
    world.pause(Host::Client(CLIENT), world.now + stands_still_ns);
    must_end(&mut world, stands_still_ns + 100 * MS, &ids, "done");
    assert_eq!((lost(&world), world.tasks_run(0)), (0, 1));
}

/// Executors whose results find no room wait, and pull no more tasks.
#[test]
fn a_client_that_is_slow_to_fetch_gets_results_and_no_errors() {
    let mut layout = plain(2);
    layout.results_len_bytes_max = 7_000;
    let mut world = world(layout);
    let long = |n| TaskSpec::new(Work::Inline(work(n, MS / 10, Ends::Output(3000))));
    // Until then it receives no result.
    let until = START_NS + 80 * MS;
    world.set_filter(Some(Box::new(move |passing: &Passing<'_>| {
        let is_told = matches!(passing.from, Host::Client(_)) && passing.is(Type::Host);
        match is_told && passing.now < until {
            true => Fate::Lose,
            false => Fate::Pass,
        }
    })));
    let ids = submit(&mut world, (0..8).map(long).collect());
    must_end(&mut world, 500 * MS, &ids, "done");
    assert_eq!((lost(&world), world.tasks_run(0)), (0, 8));
}

/// Two clients. The second one dies and leaves a full queue of tasks whose work executors must request from it.
fn world_after_a_death() -> World {
    let mut layout = Layout {
        clients: 2,
        ..plain(2)
    };
    layout.falcon.slots = 64;
    let mut world = hard_world(layout);
    let kept = |n| TaskSpec::new(Work::Kept(work(n, 5 * MS, Ends::Output(8))));
    let left = (0..50).map(kept).collect();
    world.submit(1, left, &[], None).expect("the client is up");
    world.run_for(3 * MS);
    assert_eq!((world.busy(), world.queued()), (2, 48));
    world.stop_client(1);
    world
}

#[test]
fn a_dead_client_takes_up_little_of_its_executors() {
    let mut world = world_after_a_death();
    let silent_ns = world.system.layout.executor.client_silent_ns;
    world.run_for(10 * silent_ns);
    assert_eq!(world.violation, None);
    assert_eq!(world.queued(), 0);
}

#[test]
fn what_a_dead_client_has_left_in_the_queue_holds_nobody_up() {
    let mut world = world_after_a_death();
    let ids = submit(&mut world, tasks(10, MS));
    // One client is found silent, once; after that no dead client's task is ahead of these.
    let silent_ns = world.system.layout.executor.client_silent_ns;
    must_end(&mut world, silent_ns + 50 * MS, &ids, "done");
    assert_eq!(world.queued(), 0);
}

#[test]
fn a_worker_that_gets_another_number_goes_on_with_its_tasks() {
    let mut world = hard_world(Layout {
        workers: 2,
        ..plain(2)
    });
    let ids = submit(&mut world, tasks(2, 80 * MS));
    world.run_for(10 * MS);
    assert_eq!(world.busy(), 2);
    // With the next scheduler the second worker registers first.
    world.stop_scheduler(0);
    world.pause(Host::Worker(0), world.now + 30 * MS);
    world.start_scheduler(0);
    must_end(&mut world, 150 * MS, &ids, "done");
    assert_eq!(lost(&world), 0, "it was there all the while");
    assert_eq!(world.tasks_run(0) + world.tasks_run(1), 2);
}

#[test]
fn a_worker_that_was_silent_registers_again_and_nothing_stays_with_its_former_self() {
    let mut world = hard_world(plain(1));
    let lease_ns = world.system.layout.worker_lease_ns;
    world.pause(Host::Worker(0), world.now + 2 * lease_ns);
    world.run_for(lease_ns + 50 * MS);
    let ids = submit(&mut world, tasks(1, MS));
    must_end(&mut world, lease_ns + 300 * MS, &ids, "done");
    assert_eq!(lost(&world), 0, "nobody was woken who was not registered");
}

#[test]
fn workers_that_drain_end_their_tasks_and_one_that_was_given_just_before() {
    let mut world = world(Layout {
        workers: 3,
        ..plain(1)
    });
    let mut ids = submit(&mut world, tasks(2, 80 * MS));
    world.run_for(10 * MS);
    // The scheduler does not learn of it at once, and wakes the executor that waits.
    let said = Rc::new(Cell::new(0));
    let count = said.clone();
    world.set_filter(Some(Box::new(move |passing| {
        let is_said = passing.is(Type::Host) && passing.to == Host::Scheduler(0);
        count.set(count.get() + u32::from(is_said));
        match count.get() {
            1..=3 if is_said => Fate::Lose,
            _ => Fate::Pass,
        }
    })));
    (0..3).for_each(|worker| world.drain_worker(worker));
    assert_eq!(said.get(), 3, "each says that it leaves");
    ids.extend(submit(&mut world, tasks(1, 80 * MS)));
    world.run_for(5 * MS);
    assert_eq!(world.busy(), 3);
    // By then the workers have left: this task waits for the next one.
    world.run_for(60 * MS);
    let later = submit(&mut world, tasks(1, MS));
    must_end(&mut world, 100 * MS, &ids, "done");
    assert_eq!(world.ended(later[0]), None);
    must_end(&mut world, 200 * MS, &later, "done");
    assert_eq!(lost(&world), 0, "nothing went with them");
}

#[test]
fn a_task_that_ran_twice_with_one_worker_leaves_nothing_there() {
    let mut world = hard_world(plain(2));
    // The scheduler has it twice, because its answer to the first SUBMIT was lost.
    let busy = submit(&mut world, tasks(2, 10 * MS));
    world.run_for(5 * MS);
    let met = first(&mut world, Type::SubmitReply, Fate::Lose);
    let long = work(9, MS / 100, Ends::Output(3000));
    let ids = submit(&mut world, vec![TaskSpec::new(Work::Inline(long))]);
    must_end(&mut world, 100 * MS, &[busy, ids].concat(), "done");
    world.run_for(100 * MS);
    assert!(met.get() >= 2);
    assert_eq!(world.tasks_run(0), 4);
    world.stop_worker(0);
    assert_eq!(world.violation, None);
}

#[test]
fn a_task_that_was_damaged_keeps_nobody() {
    let mut world = hard_world(plain(1));
    // Damaged before it reached the scheduler, so every executor gets it damaged, again and again.
    let met = first(&mut world, Type::Submit, Fate::Damage);
    let ids = submit(&mut world, tasks(1, MS));
    must_end(&mut world, 400 * MS, &ids, "done");
    assert!(met.get() >= 2);
    let more = submit(&mut world, tasks(4, MS));
    must_end(&mut world, 50 * MS, &more, "done");
}

#[test]
fn a_task_damaged_on_its_way_to_its_executor_comes_again() {
    let mut world = world(plain(1));
    first(&mut world, Type::Task, Fate::Damage);
    let ids = submit(&mut world, tasks(1, MS));
    must_end(&mut world, 50 * MS, &ids, "done");
    assert_eq!(lost(&world), 0);
}

#[test]
fn a_job_that_is_to_come_after_a_failed_one_fails_whenever_it_is_submitted() {
    let mut world = world(plain(2));
    let failing = TaskSpec::new(Work::Inline(work(1, 5 * MS, Ends::Error)));
    let first = submit(&mut world, vec![failing]);
    let job = first[0].job;
    let early = submit_after(&mut world, tasks(2, MS), &[job]);
    must_end(&mut world, 50 * MS, &first, "failed by itself");
    must_end(&mut world, 50 * MS, &early, "one before failed");
    let late = submit_after(&mut world, tasks(2, MS), &[job]);
    must_end(&mut world, 50 * MS, &late, "one before failed");
    assert_eq!(world.tasks_run(0), 1);
    let chain = submit_after(&mut world, tasks(1, MS), &[late[0].job]);
    must_end(&mut world, 50 * MS, &chain, "one before failed");
}

#[test]
fn jobs_run_after_those_that_they_wait_for() {
    let mut world = world(plain(2));
    let first = submit(&mut world, tasks(3, 10 * MS));
    let second = submit_after(&mut world, tasks(2, MS), &[first[0].job]);
    let third = submit_after(&mut world, tasks(2, MS), &[first[0].job, second[0].job]);
    world.run_for(15 * MS);
    assert!(third.iter().all(|id| world.ended(*id).is_none()));
    must_end(&mut world, 100 * MS, &third, "done");
    must_end(&mut world, 0, &second, "done");
}

/// The reply to a SUBMIT carries one position: a task that went to another queue would be given up while it still waits
/// there.
#[test]
fn a_task_of_a_slow_queue_is_not_missed_with_those_of_a_fast_one() {
    let layout = Layout {
        tasks_per_submit: 14,
        ..Layout::plain(Policy::Priority, 1)
    };
    let mut world = world(layout);
    let mut specs = tasks(12, 30 * MS);
    for (n, spec) in specs.iter_mut().enumerate() {
        spec.priority = if n < 8 { 7 } else { 0 };
    }
    let ids = submit(&mut world, specs);
    must_end(&mut world, 500 * MS, &ids, "done");
    assert_eq!((lost(&world), world.tasks_run(0)), (0, 12));
}

#[test]
fn a_task_that_kills_its_workers_fails_in_the_end() {
    let mut world = hard_world(Layout {
        workers: 2,
        ..plain(1)
    });
    let killer = TaskSpec::new(Work::Inline(work(1, MS, Ends::Kills)));
    let ids = submit(&mut world, vec![killer]);
    let others = submit(&mut world, tasks(3, MS));
    must_end(&mut world, 2_000 * MS, &ids, "executors lost");
    must_end(&mut world, 2_000 * MS, &others, "done");
}

#[test]
fn what_is_cancelled_while_it_waits_is_not_begun() {
    let mut world = world(plain(1));
    let busy = submit(&mut world, tasks(1, 20 * MS));
    world.run_for(MS);
    let kept = |n| TaskSpec::new(Work::Kept(work(n, MS, Ends::Output(8))));
    let ids = submit(&mut world, (0..3).map(kept).collect());
    world.run_for(5 * MS);
    world.give_up(CLIENT, ids[1], false);
    must_end(&mut world, 0, &ids[1..2], "cancelled");
    world.give_up(CLIENT, busy[0], false);
    must_end(&mut world, 50 * MS, &busy, "done");
    must_end(&mut world, 50 * MS, &[ids[0], ids[2]], "done");
    assert_eq!(world.tasks_run(0), 3);
}

#[test]
fn what_is_killed_while_it_runs_is_stopped() {
    let mut world = world(plain(1));
    let busy = submit(&mut world, tasks(1, 500 * MS));
    world.run_for(5 * MS);
    world.give_up(CLIENT, busy[0], true);
    must_end(&mut world, 0, &busy, "cancelled");
    let next = submit(&mut world, tasks(1, MS));
    must_end(&mut world, 20 * MS, &next, "done");
}

#[test]
fn what_a_full_queue_does_not_take_is_tried_until_it_does() {
    let mut layout = plain(1);
    layout.falcon.slots = 2;
    layout.tasks_per_submit = 14;
    let mut world = world(layout);
    let ids = submit(&mut world, tasks(20, MS));
    must_end(&mut world, 1_000 * MS, &ids, "done");
    let counters = world.client_counters(CLIENT).expect("it is up");
    assert!(counters.refused > 0);
    assert_eq!((counters.lost, world.tasks_run(0)), (0, 20));
}

#[test]
fn a_task_goes_elsewhere_when_the_worker_it_prefers_is_busy_for_long() {
    let mut world = world(Layout {
        workers: 2,
        ..Layout::plain(Policy::Locality, 1)
    });
    let mut specs = tasks(2, 40 * MS);
    specs.iter_mut().for_each(|spec| spec.worker = Some(0));
    let ids = submit(&mut world, specs);
    must_end(&mut world, 70 * MS, &ids, "done");
    assert_eq!((world.tasks_run(0), world.tasks_run(1)), (1, 1));
}

#[test]
fn a_result_that_was_lost_is_sent_again_and_taken_once() {
    let mut world = world(plain(1));
    let lose_results = |passing: &Passing<'_>| {
        let is_to_client = matches!(passing.to, Host::Client(_)) && passing.is(Type::Host);
        match is_to_client && passing.now < START_NS + 30 * MS {
            true => Fate::Lose,
            false => Fate::Twice(10 * MS),
        }
    };
    world.set_filter(Some(Box::new(lose_results)));
    let ids = submit(&mut world, tasks(2, MS));
    must_end(&mut world, 150 * MS, &ids, "done");
    world.run_for(100 * MS);
    let counters = world.client_counters(CLIENT).expect("it is up");
    assert_eq!(counters.done, 2);
    assert!(counters.results_twice > 0);
}
