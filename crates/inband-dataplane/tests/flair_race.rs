//! FLAIR's invariants under several CPUs that write, answer, read, renew and install (schedules.md, 14 and 15). The
//! same test must fail on deliberately faulty builds.

use crate::common::objects::object;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use crate::common::flair::{spec, INCARNATION};
use crate::common::{self, stay_on_cpu, Prng, FRAME_LEN_BYTES, HERE, NODE, THERE, XDP_DROP};
use inband_flair::dataplane::rig::{Destination, FlairRig};
use inband_flair::dataplane::wire::{emit, flag, key_hash, parse, Header, Type};
use inband_flair::dataplane::{FlairGeometry, FlairRegisters, FlairSwitch, Verdict};
use inband_ground::xdp::rig::udp_frame;
use inband_paxos::dataplane::wire::PACKET_LEN_MAX_BYTES;

const GEOMETRY: FlairGeometry = FlairGeometry { sets: 1, groups: 2 };
const KEYS: [&str; 4] = ["a", "b", "c", "d"];
/// Threads that write and read.
const CLIENTS: usize = 2;
/// A correct build is watched for this long; a faulty one must be caught within `CATCH_WITHIN`.
const WATCH: Duration = Duration::from_secs(2);
const CATCH_WITHIN: Duration = Duration::from_secs(120);
/// Maximum number of sequence numbers in a run.
const SEQ_MAX: usize = 1 << 22;
const STEP_DOWN_NS: u64 = 60_000_000_000;
/// Steps of the control thread between two sessions.
const STEPS_OF_A_SESSION: usize = 100;
/// Maximum number of unanswered requests of a client.
const OUTSTANDING_MAX: usize = 4;
const FOLLOWERS: u8 = 0b111;
const REPLICA: u16 = 9;

/// Passes a packet through the switch. Returns the header of the output.
type Handle<'a> = dyn Fn(&[u8]) -> Option<Header> + Sync + 'a;

/// Orders the writes of a group: later ones are larger.
type Stamp = u64;

fn stamp(session: u64, seq: u64) -> Stamp {
    session << 40 | seq
}

/// The log index in the reply to a write. It is a function of the write, so that a torn read is noticed.
fn log_index_of(session: u64, seq: u64) -> u64 {
    match seq {
        0 => 1 << 50 | session,
        seq => 3 * seq + 1,
    }
}

/// Shared by all threads.
struct World<'a> {
    handle: &'a Handle<'a>,
    registers: &'a FlairRegisters,
    /// By sequence number: whether it was assigned to a write, and whether its reply was sent.
    given: Vec<AtomicBool>,
    replied: Vec<AtomicBool>,
    /// For each group, the latest write that the switch has passed.
    written: Vec<AtomicU64>,
    /// The latest session that all threads know of.
    session: AtomicU64,
    stop: AtomicBool,
    failure: Mutex<Option<String>>,
}

fn bools(count: usize) -> Vec<AtomicBool> {
    (0..count).map(|_| AtomicBool::new(false)).collect()
}

impl<'a> World<'a> {
    fn new(handle: &'a Handle<'a>, registers: &'a FlairRegisters) -> World<'a> {
        World {
            handle,
            registers,
            given: bools(SEQ_MAX),
            replied: bools(SEQ_MAX),
            written: (0..GEOMETRY.groups).map(|_| AtomicU64::new(0)).collect(),
            session: AtomicU64::new(0),
            stop: AtomicBool::new(false),
            failure: Mutex::new(None),
        }
    }

    fn send(&self, header: &Header, key: &str) -> Option<Header> {
        let mut packet = Vec::new();
        emit(header, key.as_bytes(), b"", &mut packet);
        common::tag(&mut packet);
        (self.handle)(&packet)
    }

    fn written(&self, group: usize) -> Stamp {
        self.written[group].load(Ordering::SeqCst)
    }

    fn write(&self, key: &str) -> Result<Option<Header>, String> {
        let (group, header) = about(Type::Write, key);
        let before = self.written(group);
        let Some(sent) = self.send(&header, key).filter(|h| h.kind == Type::Write) else {
            return Ok(None);
        };
        let new = stamp(sent.session, sent.seq);
        if new <= before {
            return Err(format!("a write got {new:x} after {before:x}"));
        }
        if self.given[sent.seq as usize].swap(true, Ordering::SeqCst) {
            return Err(format!("{} was given twice", sent.seq));
        }
        self.written[group].fetch_max(new, Ordering::SeqCst);
        if sent.seq as usize + 1000 > SEQ_MAX {
            self.stop.store(true, Ordering::SeqCst);
        }
        Ok(Some(sent))
    }

    fn write_reply(&self, mut header: Header, key: &str) {
        self.replied[header.seq as usize].store(true, Ordering::SeqCst);
        (header.kind, header.node) = (Type::WriteReply, REPLICA);
        header.log_index = log_index_of(header.session, header.seq);
        header.followers = FOLLOWERS;
        self.send(&header, key);
    }

    /// Sends a read. Returns the output if a follower is to answer it.
    fn read(&self, key: &str) -> Result<Option<Header>, String> {
        let (group, header) = about(Type::Read, key);
        let (before, session) = (self.written(group), self.session.load(Ordering::SeqCst));
        let Some(sent) = self.send(&header, key).filter(|h| h.kind == Type::Read) else {
            return Ok(None);
        };
        if sent.session < session || (sent.seq != 0 && stamp(sent.session, sent.seq) < before) {
            return Err(format!("{sent:?} is older than {before:x} of {session}"));
        }
        if !sent.has(flag::STABLE) {
            return Ok(None);
        }
        self.is_stable(sent.session, sent.seq, sent.log_index, before)?;
        Ok(Some(sent))
    }

    fn read_reply(&self, mut header: Header, key: &str) -> Result<(), String> {
        let (group, _) = about(Type::Read, key);
        (header.kind, header.node) = (Type::ReadReply, REPLICA);
        let (before, session) = (self.written(group), self.session.load(Ordering::SeqCst));
        let passed = self.send(&header, key);
        if passed.is_none_or(|h| h.kind != Type::ReadReply) {
            return Ok(());
        }
        if stamp(header.session, header.seq) < before || header.session < session {
            return Err(format!("{header:?} passed after {before:x} of {session}"));
        }
        Ok(())
    }

    /// A group may become stable only by the reply to its last write.
    fn is_stable(
        &self,
        session: u64,
        seq: u64,
        log_index: u64,
        before: Stamp,
    ) -> Result<(), String> {
        if stamp(session, seq) < before {
            return Err(format!("stable at {session}.{seq} after write {before:x}"));
        }
        if seq != 0 && !self.replied[seq as usize].load(Ordering::SeqCst) {
            return Err(format!("stable at {seq}, which nobody answered"));
        }
        if log_index != log_index_of(session, seq) {
            return Err(format!("{session}.{seq} with log index {log_index}: torn"));
        }
        Ok(())
    }

    /// Checks the registers; `last` is their previous state.
    fn look(&self, group: usize, last: &mut Stamp) -> Result<(), String> {
        let before = self.written(group);
        let view = self.registers.groups.group(group);
        let view = view.ok_or("a group stayed taken")?;
        let now = stamp(view.session, view.seq);
        if now < before.max(*last) {
            return Err(format!("group {group}: {now:x} after {before:x}, {last:x}"));
        }
        *last = now;
        if view.stable && view.seq != 0 {
            self.is_stable(view.session, view.seq, view.log_index, before)?;
        }
        Ok(())
    }

    fn client(&self, seed: u64) -> Result<(), String> {
        let mut prng = Prng(seed);
        let mut writes: Vec<(Header, &str)> = Vec::new();
        let mut reads: Vec<(Header, &str)> = Vec::new();
        let mut last = [0; GEOMETRY.groups];
        while !self.stop.load(Ordering::SeqCst) {
            let key = KEYS[prng.below(KEYS.len() as u64) as usize];
            let pick = |list: &Vec<(Header, &str)>, prng: &mut Prng| {
                (!list.is_empty()).then(|| prng.below(list.len() as u64) as usize)
            };
            match prng.below(8) {
                0 | 1 if writes.len() < OUTSTANDING_MAX => {
                    writes.extend(self.write(key)?.map(|header| (header, key)));
                }
                2..=4 => {
                    if let Some(at) = pick(&writes, &mut prng) {
                        let (header, key) = writes.swap_remove(at);
                        self.write_reply(header, key);
                    }
                }
                5 if reads.len() < OUTSTANDING_MAX => {
                    reads.extend(self.read(key)?.map(|header| (header, key)));
                }
                6 => {
                    if let Some(at) = pick(&reads, &mut prng) {
                        let (header, key) = reads.swap_remove(at);
                        self.read_reply(header, key)?;
                    }
                }
                _ => {
                    let group = prng.below(GEOMETRY.groups as u64) as usize;
                    self.look(group, &mut last[group])?;
                }
            }
        }
        Ok(())
    }

    /// Sends a heartbeat. Returns the switch's time.
    fn renew(&self, session: u64, told_ns: u64) -> u64 {
        let mut heartbeat = Header::new(Type::Heartbeat, 0, REPLICA);
        (heartbeat.session, heartbeat.seq) = (session, INCARNATION);
        heartbeat.client_seq = told_ns;
        (heartbeat.followers, heartbeat.window) = (FOLLOWERS, FOLLOWERS.into());
        heartbeat.set_weights([0, 1, 1, 0, 0, 0, 0, 0]);
        let answer = self.send(&heartbeat, "");
        answer.map_or(told_ns, |answer| answer.switch_time_ns())
    }

    /// A leader that keeps sending heartbeats of the last session it knows of.
    fn old_leader(&self) {
        let mut told_ns = 0;
        while !self.stop.load(Ordering::SeqCst) {
            told_ns = self.renew(self.session.load(Ordering::SeqCst), told_ns);
        }
    }

    /// Begins one session after another. None may be active before its own leader activates it.
    fn control(&self, time: Duration) -> Result<u64, String> {
        let start = Instant::now();
        let mut session = 0;
        while start.elapsed() < time && !self.stop.load(Ordering::SeqCst) {
            session += 1;
            let mut install = Header::new(Type::Install, 0, REPLICA);
            (install.session, install.seq) = (session, INCARNATION);
            install.log_index = log_index_of(session, 0);
            (install.followers, install.window) = (FOLLOWERS, FOLLOWERS.into());
            install.client_id = STEP_DOWN_NS;
            let told_ns = loop {
                // A packet that collides with others too often is dropped.
                if let Some(answer) = self.send(&install, "") {
                    break answer.switch_time_ns();
                }
            };
            for _ in 0..STEPS_OF_A_SESSION / 10 {
                let (_, read) = about(Type::Read, KEYS[0]);
                let answer = self.send(&read, KEYS[0]);
                if let Some(served) = answer.filter(|h| h.kind != Type::Nack) {
                    return Err(format!(
                        "active before a heartbeat of {session}: {served:?}"
                    ));
                }
            }
            self.session.store(session, Ordering::SeqCst);
            for _ in 0..STEPS_OF_A_SESSION {
                self.renew(session, told_ns);
            }
        }
        Ok(session)
    }

    /// Runs all threads until `time` is over or an invariant is violated.
    fn race(&self, time: Duration) -> Result<u64, String> {
        let start = Instant::now();
        let noted = |result: Result<u64, String>| {
            self.stop.store(true, Ordering::SeqCst);
            match result {
                Ok(count) => count,
                Err(what) => {
                    self.failure.lock().unwrap().get_or_insert(what);
                    0
                }
            }
        };
        let sessions = thread::scope(|scope| {
            for seed in 0..CLIENTS as u64 {
                let noted = &noted;
                scope.spawn(move || {
                    stay_on_cpu(seed as usize);
                    noted(self.client(seed + 1).map(|()| 0))
                });
            }
            scope.spawn(|| {
                stay_on_cpu(0);
                self.old_leader();
            });
            let control = scope.spawn(|| {
                stay_on_cpu(1);
                noted(self.control(time))
            });
            control.join().unwrap()
        });
        match self.failure.lock().unwrap().take() {
            Some(what) => Err(format!("after {:?}: {what}", start.elapsed())),
            None => Ok(sessions),
        }
    }
}

/// A client's packet, and its group.
fn about(kind: Type, key: &str) -> (usize, Header) {
    let mut header = Header::new(kind, 0, 0);
    header.key_hash = key_hash(key.as_bytes());
    (GEOMETRY.group_of(header.key_hash), header)
}

fn race_kernel(object: Option<&[u8]>, time: Duration) -> Result<u64, String> {
    let mut spec = spec(None);
    (spec.geometry, spec.replicas) = (GEOMETRY, vec![Vec::new()]);
    let rig = match object {
        Some(object) => FlairRig::load_object(object, spec),
        None => FlairRig::load(spec),
    };
    let rig = rig.unwrap();
    for replica in 0..3 {
        let to = Destination {
            address: THERE,
            mac: [2, 0, 0, 0, 0, 9],
            ifindex: 1,
        };
        rig.set_replica(0, replica, Some(to)).unwrap();
    }
    let handle = |packet: &[u8]| {
        let run = rig.run(&udp_frame(THERE, HERE, packet), 1).unwrap();
        (run.action != XDP_DROP).then(|| parse(&run.frame[FRAME_LEN_BYTES..]).unwrap().0)
    };
    let result = World::new(&handle, rig.registers()).race(time);
    eprintln!("{result:?} {:?}", rig.counters().unwrap());
    result
}

macro_rules! variant {
    ($name:literal) => {
        Some(object(concat!("flair_", $name)))
    };
}

/// One test, so that the parts do not run concurrently and disturb the timing.
#[test]
fn the_kernel_keeps_the_order_and_the_mutants_do_not() {
    if !common::may_load_bpf() {
        return;
    }
    for (name, build) in [("as deployed", None), ("with delays", variant!("slow"))] {
        eprint!("{name}: ");
        let sessions = race_kernel(build, WATCH).unwrap();
        assert!(sessions > 2, "{sessions} sessions show little");
    }
    for (name, build) in [
        ("seq outside of the group", variant!("seq_outside_group")),
        ("torn copies", variant!("torn_copies")),
        (
            "heartbeat takes nothing",
            variant!("heartbeat_takes_nothing"),
        ),
    ] {
        eprint!("{name}: ");
        // A race also ends when the sequence numbers are used up.
        let start = Instant::now();
        let mut caught = false;
        while !caught && start.elapsed() < CATCH_WITHIN {
            caught = race_kernel(build, CATCH_WITHIN - start.elapsed()).is_err();
        }
        assert!(caught, "{name} was not caught");
    }
}

/// The same with the native build on threads. Preemption within a role causes other interleavings.
#[test]
fn the_soft_switch_keeps_the_order() {
    let switch = FlairSwitch::new(NODE, GEOMETRY, INCARNATION);
    let start = Instant::now();
    let handle = |packet: &[u8]| {
        let mut buffer = [0u8; PACKET_LEN_MAX_BYTES];
        buffer[..packet.len()].copy_from_slice(packet);
        let now_ns = start.elapsed().as_nanos() as u64 + 1;
        let (verdict, _, len) = switch.handle(&mut buffer, packet.len(), THERE, now_ns, now_ns);
        (verdict != Verdict::Drop).then(|| parse(&buffer[..len]).unwrap().0)
    };
    let result = World::new(&handle, switch.registers()).race(WATCH);
    eprintln!("native: {result:?} {:?}", switch.counters());
    assert!(result.unwrap() > 2);
}
