//! Falcon's invariants under several threads that submit and pull, and with duplicated packets (docs/falcon.md). The
//! same test must fail on deliberately faulty builds.

use std::collections::{BTreeMap, VecDeque};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::falcon::{bytes, pull, spec, task, INCARNATION};
use crate::common::{self, Prng, FRAME_LEN_BYTES, HERE, NODE, XDP_DROP, XDP_TX};
use inband_falcon::dataplane::registers::ExecutorState;
use inband_falcon::dataplane::rig::FalconRig;
use inband_falcon::dataplane::wire::{flag, parse, Header, Task, Type, TASKS_MAX};
use inband_falcon::dataplane::xdp::forward_of;
use inband_falcon::dataplane::{Build, FalconConfig, FalconRegisters, FalconSwitch, Verdict};
use inband_ground::auth::Digest;
use inband_ground::xdp::rig::udp_frame;
use inband_paxos::dataplane::wire::PACKET_LEN_MAX_BYTES;
use inband_testing::race::rounds;

/// Small enough that the queue is often full and often empty.
const SLOTS: usize = 4;
const SUBMITTERS: u32 = 2;
const EXECUTORS: u32 = 3;
/// Maximum number of tasks per submitter and round.
const TASKS_OF_A_ROUND_MAX: u64 = 12;
/// A correct build is watched for this long, and for more than `ROUNDS_MIN` rounds if the machine is busy. A faulty one
/// must be caught within `CATCH_WITHIN`.
const WATCH: Duration = Duration::from_secs(2);
const ROUNDS_MIN: u64 = 20;
const CATCH_WITHIN: Duration = Duration::from_secs(120);
/// Time limit for a packet that must come.
const TIMEOUT: Duration = Duration::from_secs(5);
const LOOK_EVERY: Duration = Duration::from_micros(200);

/// Passes a packet through the scheduler. Returns whether the output goes to a waiting executor, and the output.
type Handle<'a> = dyn Fn(&[u8], SocketAddrV4) -> Option<(bool, Vec<u8>)> + Sync + 'a;
type Failure = String;

/// The address of an executor, which contains its number.
fn address(executor: u32) -> SocketAddrV4 {
    SocketAddrV4::new(Ipv4Addr::new(10, 9, 8, 100), 5000 + executor as u16)
}

/// Packets for an executor.
#[derive(Default)]
struct Inbox {
    packets: Mutex<VecDeque<Vec<u8>>>,
    came: Condvar,
}

impl Inbox {
    fn put(&self, packet: Vec<u8>) {
        self.packets.lock().unwrap().push_back(packet);
        self.came.notify_one();
    }

    fn take(&self, timeout: Duration) -> Option<Vec<u8>> {
        let packets = self.packets.lock().unwrap();
        let (mut packets, _) = self
            .came
            .wait_timeout_while(packets, timeout, |packets| packets.is_empty())
            .unwrap();
        packets.pop_front()
    }
}

/// Every task that was assigned, and every PULL that was answered with one.
#[derive(Default)]
struct Given {
    /// By (user, number): the executor and its PULL.
    to: BTreeMap<(u32, u32), (u32, u64)>,
    /// The inverse.
    what: BTreeMap<(u32, u64), (u32, u32)>,
}

/// Shared by all threads.
struct World<'a> {
    handle: &'a Handle<'a>,
    registers: &'a FalconRegisters,
    inboxes: Vec<Inbox>,
    /// For each executor, the last PULL sent; for the thread that duplicates packets.
    pulls: Vec<AtomicU64>,
    given: Mutex<Given>,
    /// No more submissions in this round.
    quiet: AtomicBool,
    failure: Mutex<Option<Failure>>,
}

impl<'a> World<'a> {
    fn new(handle: &'a Handle<'a>, registers: &'a FalconRegisters) -> World<'a> {
        registers.register(0, 0, 1, 0);
        World {
            handle,
            registers,
            inboxes: (0..EXECUTORS).map(|_| Inbox::default()).collect(),
            pulls: (0..EXECUTORS).map(|_| AtomicU64::new(0)).collect(),
            given: Mutex::default(),
            quiet: AtomicBool::new(false),
            failure: Mutex::new(None),
        }
    }

    fn failed(&self) -> bool {
        self.failure.lock().unwrap().is_some()
    }

    fn note(&self, result: Result<(), Failure>) {
        if let Err(what) = result {
            self.failure.lock().unwrap().get_or_insert(what);
        }
    }

    /// Sends a SUBMIT. Returns the header of the output. If that goes to a waiting executor, puts it into its inbox.
    fn submit(&self, user: u32, tasks: &[Task]) -> Result<Header, Failure> {
        let mut header = Header::new(Type::Submit, 0, 0);
        header.user = user;
        let from = SocketAddrV4::new(Ipv4Addr::new(10, 9, 8, 1), user as u16);
        let answer = (self.handle)(&bytes(&header, tasks), from);
        let (wakes, packet) = answer.ok_or("a SUBMIT was dropped")?;
        let (reply, _) = parse(&packet).map_err(|e| e.to_string())?;
        if wakes {
            self.inboxes[reply.executor as usize].put(packet);
        }
        Ok(reply)
    }

    /// Submits tasks in order until all are accepted, and delivers the packets that wake executors.
    fn submitter(
        &self,
        user: u32,
        numbers: std::ops::Range<u32>,
        prng: &mut Prng,
    ) -> Result<(), Failure> {
        let start = Instant::now();
        let mut left: VecDeque<Task> = numbers.map(|n| task(user, 0, n, "what to do")).collect();
        while !left.is_empty() && !self.failed() {
            let count = 1 + prng.below(3.min(TASKS_MAX as u64)) as usize;
            let tasks: Vec<Task> = left.iter().take(count).copied().collect();
            let mut reply = self.submit(user, &tasks)?;
            let taken = reply.taken.trailing_ones() as usize;
            if reply.taken >> taken != 0 {
                return Err(format!("taken out of order: {reply:?}"));
            }
            left.drain(..taken);
            if taken == 0 {
                thread::yield_now();
            }
            while reply.has(flag::PARKED) && !self.failed() {
                reply = self.submit(user, &[])?;
                if start.elapsed() > TIMEOUT {
                    return Err(
                        "an executor waits forever although there is a task, and is not woken"
                            .into(),
                    );
                }
            }
            if start.elapsed() > TIMEOUT {
                return Err(format!("{} tasks of {user} are never taken", left.len()));
            }
        }
        Ok(())
    }

    /// Checks a TASK that an executor received: it must answer this PULL, be intact, and not be assigned to another
    /// one.
    fn got(&self, executor: u32, header: &Header, task: &Task) -> Result<(), Failure> {
        if !task.is_whole(&Digest::PLAIN) {
            return Err(format!("torn: task {} of {}", task.task, task.user));
        }
        let to = (executor, header.pull_seq);
        let name = (task.user, task.task);
        let mut given = self.given.lock().unwrap();
        if let Some(before) = given.what.insert(to, name).filter(|before| *before != name) {
            return Err(format!("{to:?} got {before:?} and {name:?}"));
        }
        match given.to.insert(name, to) {
            Some(before) if before != to => {
                Err(format!("{name:?} was given twice: {before:?} {to:?}"))
            }
            _ => Ok(()),
        }
    }

    /// Pulls until `quota` tasks have arrived, or the round is quiet and the executor waits. Returns whether it waits.
    fn executor(&self, executor: u32, quota: u64, numbers: &mut [i64]) -> Result<bool, Failure> {
        let inbox = &self.inboxes[executor as usize];
        let (mut got, mut last, mut send_pull) = (0, None, false);
        // The PULL of the previous round may still be waiting; then this one is a retransmission.
        let mut seq = self.pulls[executor as usize].load(Ordering::SeqCst);
        if seq == 0 || self.record(executor) != ExecutorState::Waits {
            seq += 1;
            send_pull = true;
        }
        let start = Instant::now();
        while !self.failed() {
            if start.elapsed() > TIMEOUT {
                return Err(format!("executor {executor} gets nowhere"));
            }
            self.pulls[executor as usize].store(seq, Ordering::SeqCst);
            let answer = if std::mem::take(&mut send_pull) {
                let mut header = pull(0, executor, 1, seq);
                header.flags = flag::PARK;
                (self.handle)(&bytes(&header, &[]), address(executor)).map(|(_, packet)| packet)
            } else {
                None
            };
            let was_quiet = self.quiet.load(Ordering::SeqCst);
            let Some(packet) = answer.or_else(|| inbox.take(LOOK_EVERY)) else {
                if self.record(executor) != ExecutorState::Waits {
                    send_pull = true; // dropped, or the answer is in flight
                } else if was_quiet {
                    return Ok(true);
                }
                continue;
            };
            let (header, tasks) = parse(&packet).map_err(|e| e.to_string())?;
            if header.pull_seq > seq {
                return Err(format!("{header:?} answers what was never asked"));
            }
            let Some(task) = tasks.first() else {
                if header.pull_seq == seq {
                    (seq, send_pull) = (seq + 1, true);
                }
                continue;
            };
            self.got(executor, &header, &task)?;
            if header.pull_seq < seq || last == Some(header.pull_seq) {
                continue; // a duplicate
            }
            let before = &mut numbers[task.user as usize];
            if i64::from(task.task) <= *before {
                return Err(format!("{} after {before} of the same user", task.task));
            }
            *before = task.task.into();
            last = Some(header.pull_seq);
            got += 1;
            if got == quota {
                return Ok(false);
            }
            (seq, send_pull) = (seq + 1, true);
        }
        Ok(false)
    }

    fn record(&self, executor: u32) -> ExecutorState {
        self.registers.executor(0, executor as usize).state
    }

    /// Duplicates packets, as a network does.
    fn repeater(&self, mut prng: Prng) {
        while !self.quiet.load(Ordering::SeqCst) && !self.failed() {
            let executor = prng.below(EXECUTORS.into()) as u32;
            let seq = self.pulls[executor as usize].load(Ordering::SeqCst);
            if seq == 0 {
                thread::yield_now();
                continue;
            }
            let mut header = pull(0, executor, 1, seq);
            header.flags = flag::PARK;
            if let Some((_, packet)) = (self.handle)(&bytes(&header, &[]), address(executor)) {
                self.inboxes[executor as usize].put(packet);
            }
            thread::yield_now();
        }
    }

    /// Runs submitters, executors and the thread that duplicates packets, until everything is quiet.
    fn round(&self, prng: &mut Prng, next: &mut u32, seen: &mut [Vec<i64>]) -> Result<(), Failure> {
        self.quiet.store(false, Ordering::SeqCst);
        let numbers = *next..*next + 1 + prng.below(TASKS_OF_A_ROUND_MAX) as u32;
        *next = numbers.end;
        // Either all tasks are assigned, or all executors wait, or some of both.
        let tasks = u64::from(numbers.end - numbers.start) * u64::from(SUBMITTERS);
        let in_queue = self.registers.tasks(0);
        let quota = (in_queue + tasks).div_ceil(EXECUTORS.into()) + prng.below(2);
        let waits: Vec<bool> = thread::scope(|scope| {
            let executors: Vec<_> = (0..EXECUTORS)
                .zip(seen.iter_mut())
                .map(|(executor, seen)| {
                    scope.spawn(move || match self.executor(executor, quota, seen) {
                        Ok(waits) => waits,
                        Err(what) => {
                            self.note(Err(what));
                            false
                        }
                    })
                })
                .collect();
            let seed = prng.next();
            let repeater = scope.spawn(move || self.repeater(Prng(seed)));
            let submitters: Vec<_> = (0..SUBMITTERS)
                .map(|user| {
                    let (mut prng, numbers) = (Prng(prng.next()), numbers.clone());
                    scope.spawn(move || self.note(self.submitter(user, numbers, &mut prng)))
                })
                .collect();
            for submitter in submitters {
                submitter.join().unwrap();
            }
            self.quiet.store(true, Ordering::SeqCst);
            repeater.join().unwrap();
            let executors = executors.into_iter();
            executors.map(|executor| executor.join().unwrap()).collect()
        });
        if let Some(what) = self.failure.lock().unwrap().take() {
            return Err(what);
        }
        self.is_quiet(&waits)
    }

    /// No executor may wait while tasks are queued. An executor with a packet in its inbox is not waiting.
    fn is_quiet(&self, waits: &[bool]) -> Result<(), Failure> {
        let tasks = self.registers.tasks(0);
        let still = (0..EXECUTORS).filter(|executor| {
            let inbox = &self.inboxes[*executor as usize];
            waits[*executor as usize]
                && self.record(*executor) == ExecutorState::Waits
                && inbox.packets.lock().unwrap().is_empty()
        });
        match still.count() {
            waiting @ 1.. if tasks > 0 => Err(format!(
                "{waiting} wait beside {tasks} tasks when all is quiet"
            )),
            _ => Ok(()),
        }
    }

    /// Takes out all remaining tasks and checks that none is missing.
    fn all_were_given(&self, next: u32) -> Result<(), Failure> {
        for executor in 0..EXECUTORS {
            while let Some(packet) = self.inboxes[executor as usize].take(Duration::ZERO) {
                let (header, tasks) = parse(&packet).map_err(|e| e.to_string())?;
                if let Some(task) = tasks.first() {
                    self.got(executor, &header, &task)?;
                }
            }
        }
        let executor = EXECUTORS;
        for seq in 1..=SLOTS as u64 + 1 {
            let packet = bytes(&pull(0, executor, 1, seq), &[]);
            let (_, packet) = (self.handle)(&packet, address(executor)).ok_or("dropped")?;
            let (header, tasks) = parse(&packet).map_err(|e| e.to_string())?;
            if let Some(task) = tasks.first() {
                self.got(executor, &header, &task)?;
            }
        }
        let given = self.given.lock().unwrap();
        let all = (0..SUBMITTERS).flat_map(|user| (0..next).map(move |number| (user, number)));
        let lost: Vec<_> = all.filter(|task| !given.to.contains_key(task)).collect();
        match lost.is_empty() {
            true => Ok(()),
            false => Err(format!(
                "lost: {} of {}, {:?}",
                lost.len(),
                given.to.len(),
                lost[0]
            )),
        }
    }

    /// Runs rounds until `time` is over and there were more than `ROUNDS_MIN`, or an invariant is violated.
    fn race(&self, time: Duration, seed: u64) -> Result<u64, Failure> {
        let start = Instant::now();
        let (mut prng, mut next) = (Prng(seed), 0);
        let mut seen = vec![vec![-1; SUBMITTERS as usize]; EXECUTORS as usize];
        let rounds = rounds(time, ROUNDS_MIN, |_| {
            let done = self.round(&mut prng, &mut next, &mut seen);
            done.map_err(|what| format!("after {:?}: {what}", start.elapsed()))
        })?;
        self.all_were_given(next).map(|()| rounds)
    }
}

fn config() -> FalconConfig {
    FalconConfig {
        slots: SLOTS,
        workers: 1,
        ..FalconConfig::default()
    }
}

fn race_native(build: Option<Build>, time: Duration) -> Result<u64, Failure> {
    let seed = common::seed();
    let switch = FalconSwitch::new(NODE, config(), INCARNATION);
    switch.registers().start_at(0, 0, u32::MAX - 1000);
    let handle = |packet: &[u8], from| {
        let mut buffer = [0u8; PACKET_LEN_MAX_BYTES];
        buffer[..packet.len()].copy_from_slice(packet);
        let (verdict, _, len) = match build {
            None => switch.handle(&mut buffer, packet.len(), from, 0),
            // SAFETY: one of the builds below.
            Some(build) => unsafe { switch.handle_by(build, &mut buffer, packet.len(), from, 0) },
        };
        let wakes = matches!(verdict, Verdict::ToExecutor(_));
        (verdict != Verdict::Drop).then(|| (wakes, buffer[..len].to_vec()))
    };
    let result = World::new(&handle, switch.registers()).race(time, seed);
    eprintln!("{result:?} INBAND_SEED={seed} {:?}", switch.counters());
    result
}

macro_rules! builds {
    ($($name:ident),*) => {
        extern "C" {
            $(fn $name(
                switch: *const inband_falcon::dataplane::c::ib_falcon_switch,
                buffer: *mut u8,
                len_bytes: *mut u32,
                arrival: *const inband_falcon::dataplane::c::ib_falcon_arrival,
            ) -> inband_falcon::dataplane::c::ib_falcon_result;)*
        }
    };
}

// native/falcon.c with race windows; all but the first have a fault (build.rs).
builds!(
    ib_falcon_handle_slow,
    ib_falcon_handle_pop_before_filled,
    ib_falcon_handle_push_without_sequence,
    ib_falcon_handle_park_without_look,
    ib_falcon_handle_released_before_task,
    ib_falcon_handle_repeated_pops_again,
    ib_falcon_handle_bit_not_taken
);

/// One test, so that the parts do not run concurrently and disturb the timing.
#[test]
fn nothing_is_lost_or_given_twice_and_the_mutants_are_caught() {
    let right: [(&str, Option<Build>); 2] = [
        ("as deployed", None),
        ("with delays", Some(ib_falcon_handle_slow)),
    ];
    for (name, build) in right {
        eprint!("{name}: ");
        let rounds = race_native(build, WATCH).unwrap();
        assert!(rounds > ROUNDS_MIN, "{rounds} rounds show little");
    }
    let wrong: [(&str, Build); 6] = [
        ("pop before filled", ib_falcon_handle_pop_before_filled),
        (
            "push without sequence",
            ib_falcon_handle_push_without_sequence,
        ),
        ("park without a look", ib_falcon_handle_park_without_look),
        (
            "released before the task",
            ib_falcon_handle_released_before_task,
        ),
        (
            "a repeated PULL pops again",
            ib_falcon_handle_repeated_pops_again,
        ),
        ("bit not taken", ib_falcon_handle_bit_not_taken),
    ];
    for (name, build) in wrong {
        eprint!("{name}: ");
        let result = race_native(Some(build), CATCH_WITHIN);
        assert!(result.is_err(), "{name} was not caught");
    }
    race_kernel();
}

/// The same with the program in the kernel, executed by the threads' test runs.
fn race_kernel() {
    if !common::may_load_bpf() {
        return;
    }
    let rig = FalconRig::load(spec(config(), None)).unwrap();
    let handle = |packet: &[u8], from| {
        let run = rig.run(&udp_frame(from, HERE, packet), 1).unwrap();
        let packet = || run.frame[FRAME_LEN_BYTES..].to_vec();
        match run.action {
            XDP_DROP => None,
            XDP_TX => Some((false, packet())),
            _ => {
                let packet = packet();
                assert!(forward_of(&packet, NODE, rig.registers()).is_some());
                Some((true, packet))
            }
        }
    };
    let seed = common::seed();
    let result = World::new(&handle, rig.registers()).race(WATCH, seed);
    eprintln!(
        "in the kernel: {result:?} INBAND_SEED={seed} {:?}",
        rig.counters().unwrap()
    );
    assert!(result.unwrap() > 5);
}
