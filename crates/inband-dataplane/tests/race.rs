//! protocol.md, 1: packets of one partition on several CPUs, concurrently with promises and reads from user space. The
//! same test must fail on deliberately faulty builds.

use crate::common::objects::object;

use std::collections::BTreeSet;
use std::mem::offset_of;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{self, stay_on_cpu, Prng, EPOCH};
use inband_ground::xdp::rig::udp_frame;
use inband_paxos::dataplane::registers::{LeaderView, SlotView};
use inband_paxos::dataplane::soft::{Geometry, Registers, Roles, SoftSwitch};
use inband_paxos::dataplane::wire::{
    digest, emit, flag, parse, Header, Type, PACKET_LEN_MAX_BYTES, VALUE_LEN_MAX_BYTES,
};
use inband_paxos::dataplane::xdp::rig::{Beside, Rig};
use inband_paxos::dataplane::{c, objects};

const GEOMETRY: Geometry = Geometry {
    partitions: 1,
    ring_slots: 64,
};
const ROLES: Roles = Roles {
    leader: false,
    acceptor: true,
    quorum: false,
};
const FRAME_LEN_BYTES: usize = 42;
/// Packets that the driver chooses from (race.bpf.c).
const PACKETS: usize = 64;
/// Runs of the driver per system call: too few to fill the ring before the next trim.
const REPEAT: u32 = 100;
const PACKET_THREADS: usize = 2;
const OBSERVERS: usize = 2;
/// A correct build is watched for this long; a faulty one must be caught within `CATCH_WITHIN`.
const WATCH: Duration = Duration::from_secs(4);
/// Most are caught within seconds; it takes longer where other programs use the CPUs.
const CATCH_WITHIN: Duration = Duration::from_secs(120);
/// Promises that an observer remembers.
const RAISES_KEPT: usize = 32;
/// A slot that is locked for this long is considered never to be released.
const SLOT_TAKEN_AT_MOST: Duration = Duration::from_secs(10);
/// Slots around the end of the log that an observer reads after a promise.
const HOT_SLOTS: u64 = 10;

/// Large values take long to copy; a few small ones vary the timing.
fn packets() -> Vec<Vec<u8>> {
    (0..PACKETS)
        .map(|i| {
            let len = if i % 4 == 0 {
                8 * i
            } else {
                VALUE_LEN_MAX_BYTES - i
            };
            let value = vec![i as u8 + 1; len];
            let mut header = Header::new(Type::Phase2A, 9, EPOCH);
            header.client_id = i as u64;
            header.digest = digest(&value);
            let mut packet = Vec::new();
            emit(&header, &value, &mut packet);
            packet
        })
        .collect()
}

fn vote(view: &SlotView) -> (u64, u64, u64) {
    (view.instance, view.vround, view.digest)
}

/// A promise that was raised, and the registers seen afterwards.
#[derive(Clone, Copy)]
struct Raise {
    promise: u64,
    highest: u64,
}

/// Requests a promise of the partition with a packet. Returns the contents of the PHASE1B if it was promised.
type PromiseByPacket<'a> = &'a (dyn Fn(u64) -> Option<Raise> + Sync);

/// An observer's knowledge of a slot.
#[derive(Clone, Default)]
struct Known {
    /// The slot was read after `promise` had been raised, and contained `view`.
    promise: u64,
    view: SlotView,
    last: SlotView,
}

/// A user-space thread that raises promises, trims, reads slots and checks what it sees.
struct Observer<'a> {
    registers: &'a Registers,
    promise_by_packet: PromiseByPacket<'a>,
    known: Vec<Known>,
    raises: Vec<Raise>,
    prng: Prng,
    reads: u64,
}

impl<'a> Observer<'a> {
    fn new(
        registers: &'a Registers,
        promise_by_packet: PromiseByPacket<'a>,
        seed: u64,
    ) -> Observer<'a> {
        Observer {
            registers,
            promise_by_packet,
            known: vec![Known::default(); GEOMETRY.ring_slots],
            raises: Vec::new(),
            prng: Prng(seed),
            reads: 0,
        }
    }

    /// Reads a slot and checks it against everything known.
    fn read(&mut self, index: usize) -> Result<(), String> {
        let start = Instant::now();
        let view = loop {
            if let Some(view) = self.registers.ring.slot(index) {
                break view;
            }
            // A holder in user space may wait long for a CPU of a busy machine, but not forever.
            if start.elapsed() > SLOT_TAKEN_AT_MOST {
                return Err(format!("slot {index} stayed taken"));
            }
        };
        self.reads += 1;
        let known = &mut self.known[index];
        if view.vround != 0 && digest(&view.value) != view.digest {
            return Err(format!(
                "torn: slot {index} holds a value that is not its digest's"
            ));
        }
        if view.instance < known.last.instance {
            return Err(format!(
                "slot {index} moved from instance {} to {}",
                known.last.instance, view.instance
            ));
        }
        if (view.instance, view.vround) == (known.last.instance, known.last.vround)
            && view.vround != 0
            && (view.digest, &view.value) != (known.last.digest, &known.last.value)
        {
            return Err(format!(
                "slot {index} replaced the value of round {:#x}",
                view.vround
            ));
        }
        if view.vround != 0 && view.vround < known.promise && vote(&view) != vote(&known.view) {
            return Err(format!(
                "slot {index} took a vote of round {} after round {} was promised and the slot read",
                view.vround, known.promise
            ));
        }
        for raise in &self.raises {
            if view.vround != 0 && view.vround < raise.promise && view.instance > raise.highest {
                return Err(format!(
                    "a vote of round {} at instance {} after round {} was promised with {} as the \
                     highest instance",
                    view.vround, view.instance, raise.promise, raise.highest
                ));
            }
        }
        known.last = view;
        Ok(())
    }

    fn step(&mut self) -> Result<(), String> {
        let acceptor = &self.registers.acceptor;
        if self.prng.below(4) == 0 {
            let wanted = acceptor.acceptor(0).promise + 1 + self.prng.below(3);
            let raise = if self.prng.below(4) == 0 {
                let Some(raise) = (self.promise_by_packet)(wanted) else {
                    return Ok(());
                };
                raise
            } else {
                let promise = acceptor.raise_promise(0, wanted);
                Raise {
                    promise,
                    highest: acceptor.acceptor(0).highest,
                }
            };
            if self.raises.len() == RAISES_KEPT {
                self.raises.remove(0);
            }
            self.raises.push(raise);
            let from = raise.highest.saturating_sub(HOT_SLOTS - 2);
            for instance in from..from + HOT_SLOTS {
                let index = (instance % GEOMETRY.ring_slots as u64) as usize;
                self.read(index)?;
                let known = &mut self.known[index];
                known.promise = raise.promise;
                known.view = known.last.clone();
            }
        } else {
            let highest = acceptor.acceptor(0).highest;
            let back = self.prng.below(HOT_SLOTS);
            self.read(((highest + 2).saturating_sub(back) % GEOMETRY.ring_slots as u64) as usize)?;
        }
        Ok(())
    }
}

/// Runs `packets` on several threads, together with observers, until `time` is over or an observer sees a violation.
/// `trim` moves the floor.
fn race(
    registers: &Registers,
    packets: impl Fn() + Sync,
    trim: impl Fn(u64) + Sync,
    promise_by_packet: PromiseByPacket<'_>,
    time: Duration,
) -> Result<u64, String> {
    let stop = AtomicBool::new(false);
    let failure = Mutex::new(None);
    let reads = AtomicU64::new(0);
    let start = Instant::now();
    thread::scope(|scope| {
        for index in 0..PACKET_THREADS {
            let (stop, packets, trim) = (&stop, &packets, &trim);
            scope.spawn(move || {
                stay_on_cpu(index);
                while !stop.load(Ordering::Relaxed) {
                    packets();
                    let highest = registers.acceptor.acceptor(0).highest;
                    trim(highest.saturating_sub(16).max(1));
                }
            });
        }
        for seed in 0..OBSERVERS as u64 {
            let (stop, failure, reads) = (&stop, &failure, &reads);
            scope.spawn(move || {
                stay_on_cpu(seed as usize);
                let mut observer = Observer::new(registers, promise_by_packet, seed + 1);
                while !stop.load(Ordering::Relaxed) && start.elapsed() < time {
                    if let Err(what) = observer.step() {
                        *failure.lock().unwrap() = Some(what);
                        break;
                    }
                }
                reads.fetch_add(observer.reads, Ordering::Relaxed);
                stop.store(true, Ordering::Relaxed);
            });
        }
    });
    match failure.into_inner().unwrap() {
        Some(what) => Err(format!("after {:?}: {what}", start.elapsed())),
        None => Ok(reads.into_inner()),
    }
}

fn here() -> SocketAddrV4 {
    SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 1), 7707)
}

/// The programs with a build of the acceptor, and the driver.
fn kernel(acceptor: Option<&[u8]>) -> (Rig, Beside) {
    let rig = Rig::load(1, here(), ROLES, GEOMETRY, acceptor).unwrap();
    let driver = rig.beside(objects::RACE).unwrap();
    for (i, packet) in packets().iter().enumerate() {
        // struct ib_race_packet
        let mut element = (packet.len() as u64).to_ne_bytes().to_vec();
        element.extend_from_slice(packet);
        element.resize(8 + PACKET_LEN_MAX_BYTES, 0);
        driver.set("ib_packets_map", i as u32, &element).unwrap();
    }
    rig.registers().acceptor.start(0, u64::from(EPOCH), 1, true);
    rig.registers().acceptor.raise_promise(0, 10);
    (rig, driver)
}

fn race_kernel(acceptor: Option<&[u8]>, time: Duration) -> Result<u64, String> {
    let (rig, driver) = kernel(acceptor);
    let frame = udp_frame(here(), here(), &packets()[1]);
    let result = race(
        rig.registers(),
        || drop(driver.run(&frame, REPEAT).unwrap()),
        |floor| {
            drop(
                rig.run(&udp_frame(here(), here(), &trim_packet(floor)), 1)
                    .unwrap(),
            )
        },
        &|round| {
            let run = rig
                .run(&udp_frame(here(), here(), &promise_packet(round)), 1)
                .unwrap();
            promised(run.frame.get(FRAME_LEN_BYTES..)?)
        },
        time,
    );
    eprintln!(
        "{result:?} {:?} {:?}",
        rig.counters().unwrap(),
        rig.registers().acceptor.acceptor(0)
    );
    result
}

fn promise_packet(round: u64) -> Vec<u8> {
    let mut header = Header::new(Type::Phase1A, 9, EPOCH);
    header.round = round;
    let mut packet = Vec::new();
    emit(&header, b"", &mut packet);
    common::tag(&mut packet);
    packet
}

/// The promise in the answer to a `promise_packet`.
fn promised(answer: &[u8]) -> Option<Raise> {
    let (header, _) = parse(answer).ok()?;
    let raise = Raise {
        promise: header.round,
        highest: header.instance,
    };
    (header.kind == Type::Phase1B).then_some(raise)
}

fn trim_packet(floor: u64) -> Vec<u8> {
    let mut header = Header::new(Type::Trim, 9, EPOCH);
    header.floor = floor;
    let mut packet = Vec::new();
    emit(&header, b"", &mut packet);
    common::tag(&mut packet);
    packet
}

macro_rules! variant {
    ($name:literal) => {
        variant!("acceptor_", $name)
    };
    ($role:literal, $name:literal) => {
        Some(object(concat!($role, $name)))
    };
}

/// In the race below, a leader has this round only in this epoch.
fn epoch_of(round: u64) -> u64 {
    round * 3 + 1
}

/// Stamps requests on several CPUs while another thread activates the leaders of successive epochs. Round and epoch of
/// a stamp must belong together, and no instance may be stamped twice in a round.
fn race_stamping(leader: Option<&[u8]>, time: Duration) -> Result<u64, String> {
    let roles = Roles {
        leader: true,
        acceptor: false,
        quorum: false,
    };
    let rig = Rig::load(1, here(), roles, GEOMETRY, leader).unwrap();
    let mut header = Header::new(Type::Request, 9, EPOCH);
    header.digest = digest(b"value");
    let mut packet = Vec::new();
    emit(&header, b"value", &mut packet);
    common::tag(&mut packet);
    let frame = udp_frame(here(), here(), &packet);
    let (start, stop) = (Instant::now(), AtomicBool::new(false));
    let (failure, stamped) = (Mutex::new(None), AtomicU64::new(0));
    let instances = Mutex::new(BTreeSet::new());
    thread::scope(|scope| {
        for index in 0..PACKET_THREADS {
            let (rig, frame, stop) = (&rig, &frame, &stop);
            let (failure, stamped, instances) = (&failure, &stamped, &instances);
            scope.spawn(move || {
                stay_on_cpu(index);
                while !stop.load(Ordering::Relaxed) {
                    let run = rig.run(frame, 1).unwrap();
                    let (header, _) = parse(&run.frame[FRAME_LEN_BYTES..]).unwrap();
                    if header.kind != Type::Phase2A {
                        continue;
                    }
                    stamped.fetch_add(1, Ordering::Relaxed);
                    let Header {
                        round,
                        epoch,
                        instance,
                        ..
                    } = header;
                    let what = if u64::from(epoch) != epoch_of(round) {
                        format!("round {round} stamped in epoch {epoch}")
                    } else if !instances.lock().unwrap().insert((round, instance)) {
                        format!("instance {instance} stamped twice in round {round}")
                    } else {
                        continue;
                    };
                    *failure.lock().unwrap() = Some(what);
                    stop.store(true, Ordering::Relaxed);
                }
            });
        }
        for round in 1.. {
            if stop.load(Ordering::Relaxed) || start.elapsed() > time {
                break;
            }
            let view = LeaderView {
                round,
                next: 1 + round % 32,
                floor: 1,
                epoch: epoch_of(round),
            };
            rig.registers().leader.activate(0, view);
            // Sometimes long enough for stamping, sometimes not.
            for _ in 0..round % 512 {
                std::hint::spin_loop();
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    match failure.into_inner().unwrap() {
        Some(what) => Err(format!("after {:?}: {what}", start.elapsed())),
        None => Ok(stamped.into_inner()),
    }
}

#[test]
fn a_leader_stamps_round_and_epoch_of_one_moment_and_the_mutant_does_not() {
    if !common::may_load_bpf() {
        return;
    }
    for (name, build) in [
        ("as deployed", None),
        ("with delays", variant!("leader_", "slow")),
    ] {
        let stamped = race_stamping(build, WATCH);
        eprintln!("stamping {name}: {stamped:?}");
        assert!(stamped.unwrap() > 1_000, "too few stamps show little");
    }
    let wrong = race_stamping(variant!("leader_", "round_read_once"), CATCH_WITHIN);
    eprintln!("stamping with the round read once: {wrong:?}");
    assert!(wrong.is_err(), "it was not caught");
}

/// One test, so that the parts do not run concurrently and disturb the timing.
#[test]
fn the_kernel_keeps_its_promises_and_the_mutants_do_not() {
    if !common::may_load_bpf() {
        return;
    }
    for (name, build) in [("as deployed", None), ("with delays", variant!("slow"))] {
        eprint!("{name}: ");
        assert!(race_kernel(build, WATCH).is_ok());
    }
    for (name, build) in [
        ("no exclusivity", variant!("no_exclusivity")),
        ("promise before slot", variant!("promise_before_slot")),
        ("no second read", variant!("no_second_read")),
    ] {
        eprint!("{name}: ");
        assert!(
            race_kernel(build, CATCH_WITHIN).is_err(),
            "{name} was not caught"
        );
    }
}

/// The same with the native build on threads. Preemption within a role causes other interleavings.
#[test]
fn the_soft_switch_keeps_its_promises() {
    let switch = SoftSwitch::new(1, ROLES, GEOMETRY);
    switch
        .registers()
        .acceptor
        .start(0, u64::from(EPOCH), 1, true);
    switch.registers().acceptor.raise_promise(0, 10);
    let made = packets();
    let at = |offset: usize, len: usize| offset..offset + len;
    let seed = AtomicU64::new(1);
    let handle = |packet: &[u8]| {
        let mut buffer = [0u8; PACKET_LEN_MAX_BYTES];
        buffer[..packet.len()].copy_from_slice(packet);
        let (_, _, len) = switch.handle(&mut buffer, packet.len());
        buffer[..len].to_vec()
    };
    let some = || {
        let mut prng = Prng(seed.fetch_add(1, Ordering::Relaxed) << 8 | 1);
        for _ in 0..REPEAT {
            let now = switch.registers().acceptor.acceptor(0);
            let mut packet = made[prng.below(PACKETS as u64) as usize].clone();
            let mut instance = now.highest + 1;
            if prng.below(2) == 0 {
                instance = instance.saturating_sub(prng.below(8));
            }
            let round = now.promise + prng.below(4) - 1;
            if prng.below(16) == 0 {
                packet[offset_of!(c::ib_paxos_header, type_)] = Type::Phase1A as u8;
                if prng.below(4) != 0 {
                    packet[at(offset_of!(c::ib_paxos_header, flags), 2)]
                        .copy_from_slice(&flag::SLOT.to_be_bytes());
                }
            }
            packet[at(offset_of!(c::ib_paxos_header, instance), 8)]
                .copy_from_slice(&instance.to_be_bytes());
            packet[at(offset_of!(c::ib_paxos_header, round), 8)]
                .copy_from_slice(&round.to_be_bytes());
            handle(&packet);
        }
    };
    let trim = |floor| drop(handle(&trim_packet(floor)));
    let promise = |round| promised(&handle(&promise_packet(round)));
    let result = race(switch.registers(), some, trim, &promise, WATCH);
    eprintln!("native: {result:?} {:?}", switch.counters());
    assert!(result.is_ok());
}
