//! The role of a system with one program, in this process and in the kernel: compares what both do with a packet.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{Debug, Display};
use std::marker::PhantomData;
use std::net::SocketAddrV4;
use std::ops::Deref;

use inband_ground::auth::{Gate, Keys, Secret};
use inband_ground::c;
use inband_ground::soft::{Arrival, Native, Soft};
use inband_ground::wire::{HEADER_LEN_BYTES, PACKET_LEN_MAX_BYTES};
use inband_ground::xdp::alone::Program;
use inband_ground::xdp::rig::udp_frame;

use crate::frame::{
    check_ip, check_sizes, check_turned, tag, FRAME_LEN_BYTES, HERE, XDP_DROP, XDP_PASS,
    XDP_REDIRECT, XDP_TX,
};
use crate::random::Prng;

/// The registers of a system.
pub type Registers<T> = <<T as UnderTest>::System as Native>::Registers;

/// A system under test.
pub trait UnderTest {
    type System: Native;
    /// Its role in this process.
    type Role: Deref<Target = Soft<Self::System>>;
    /// Its program, without an interface.
    type Rig: Deref<Target = Program<Self::System, <Self::System as Native>::Registers>>;
    /// What happens to a packet.
    type Verdict: Copy + PartialEq + Debug;
    /// The packet is dropped.
    const DROP: Self::Verdict;
    /// The packet is passed unchanged to the process.
    const PASS: Self::Verdict;
    /// The packet goes back to its sender.
    const REPLY: Self::Verdict;
    /// The counter that the program increments, besides the reason, when it leaves sending to the host's process.
    const BY_HOST: Option<&'static str> = None;
    /// Whether the program is a build that takes time and random numbers as input (`IB_GIVEN_ARRIVAL`).
    const GIVEN: bool = true;

    /// Passes a packet to the role. Returns the verdict, the reason's number and the packet's new length.
    fn handle(
        role: &Self::Role,
        buffer: &mut [u8; PACKET_LEN_MAX_BYTES],
        len_bytes: usize,
        arrival: Arrival,
    ) -> (Self::Verdict, u32, usize);
    /// Returns the verdict on a packet that the program leaves to the host's process to send; `None` if it is not such
    /// a packet.
    fn by_host(_packet: &[u8], _registers: &Registers<Self>) -> Option<Self::Verdict> {
        None
    }
    /// Returns the verdict on a packet that left in this frame, with this action. `None` if it is not addressed to one
    /// of the test's hosts, and so must go back to its sender.
    fn sent_to(_packet: &[u8], _frame: &[u8], _action: u32) -> Option<Self::Verdict> {
        None
    }
}

/// The interface to which tests send what is for other hosts.
pub const LOOPBACK_INTERFACE: u32 = 1;

/// Returns a group whose only member is at this address, behind [`LOOPBACK_INTERFACE`].
pub fn group_of_one(to: SocketAddrV4) -> c::ib_group {
    let member = c::ib_member {
        known: 1,
        ifindex: LOOPBACK_INTERFACE,
        to_address: u32::from_ne_bytes(to.ip().octets()),
        from_address: u32::from_ne_bytes(HERE.ip().octets()),
        to_port: to.port().to_be(),
        from_port: HERE.port().to_be(),
        to_mac: [4; 6],
        from_mac: [2; 6],
    };
    c::ib_group {
        count: 1,
        has_local: 0,
        local: member,
        member: [member; c::IB_XDP_MEMBERS as usize],
    }
}

/// Returns whether a packet left for the member of such a group. Panics if its addresses are wrong.
pub fn is_sent_to_the_one(to: SocketAddrV4, frame: &[u8], action: u32) -> bool {
    if action != XDP_REDIRECT {
        return false;
    }
    assert_eq!(frame[30..34], to.ip().octets());
    assert_eq!(frame[26..30], HERE.ip().octets());
    check_ip(frame);
    true
}

/// [`UnderTest::handle`] of a role with the common results.
pub fn handle<N: Native<Answer = c::ib_result>>(
    role: &Soft<N>,
    buffer: &mut [u8; PACKET_LEN_MAX_BYTES],
    len_bytes: usize,
    arrival: Arrival,
) -> (u32, u32, usize) {
    let (result, len_bytes) = role.handle(buffer, len_bytes, arrival);
    (result.verdict, result.reason, len_bytes)
}

/// A system whose role only answers, with the common verdicts.
pub struct Answering<N>(PhantomData<N>);

impl<N: Native<Answer = c::ib_result>> UnderTest for Answering<N> {
    type System = N;
    type Role = Box<Soft<N>>;
    type Rig = Box<Program<N, N::Registers>>;
    type Verdict = u32;
    const DROP: u32 = c::IB_DROP;
    const PASS: u32 = c::IB_PASS;
    const REPLY: u32 = c::IB_REPLY;
    const GIVEN: bool = false;

    fn handle(
        role: &Self::Role,
        buffer: &mut [u8; PACKET_LEN_MAX_BYTES],
        len_bytes: usize,
        arrival: Arrival,
    ) -> (u32, u32, usize) {
        handle(role, buffer, len_bytes, arrival)
    }
}

/// The result of a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome<V> {
    pub verdict: V,
    /// The name of the reason; "" if nothing was counted.
    pub reason: &'static str,
    /// The UDP payload that leaves; empty for a dropped packet.
    pub packet: Vec<u8>,
}

/// Returns the names of counters that have increased by one.
fn counted<'a>(
    before: &BTreeMap<&'static str, u64>,
    after: &'a BTreeMap<&'static str, u64>,
) -> impl Iterator<Item = &'static str> + use<'a> {
    let before = before.clone();
    let grown =
        move |(name, n): &(&&'static str, &u64)| before.get(*name).copied().unwrap_or(0) + 1 == **n;
    after.iter().filter(grown).map(|(name, _)| *name)
}

/// Returns why a gate refuses a packet; `None` if it admits it.
pub fn refused_for(gate: &mut Gate, packet: &[u8]) -> Option<&'static str> {
    let before = gate.counters();
    if gate.admits(packet) {
        return None;
    }
    let after = gate.counters();
    let mut reasons = counted(&before, &after);
    Some(reasons.next().expect("a reason"))
}

/// Passes a packet through the role in this process, behind a gate as in a host.
pub fn native<T: UnderTest>(
    gate: &mut Gate,
    role: &T::Role,
    packet: &[u8],
    arrival: Arrival,
) -> Outcome<T::Verdict> {
    if let Some(reason) = refused_for(gate, packet) {
        return Outcome {
            verdict: T::DROP,
            reason,
            packet: Vec::new(),
        };
    }
    let mut buffer = [0u8; PACKET_LEN_MAX_BYTES];
    buffer[..packet.len()].copy_from_slice(packet);
    let (verdict, reason, len_bytes) = T::handle(role, &mut buffer, packet.len(), arrival);
    let mut packet = Vec::new();
    if verdict != T::DROP {
        packet.extend_from_slice(&buffer[..len_bytes]);
    }
    // A packet that is passed is unchanged.
    if verdict != T::DROP && verdict != T::PASS {
        gate.sign(&mut packet);
    }
    let reason = <T::System as inband_ground::System>::reason_name(reason);
    Outcome {
        verdict,
        reason: reason.expect("it has a name"),
        packet,
    }
}

/// The role in the kernel, run by test runs.
pub struct Kernel<T: UnderTest>(pub T::Rig);

impl<T: UnderTest> Kernel<T> {
    pub fn registers(&self) -> &Registers<T> {
        self.0.registers()
    }

    pub fn counters(&self) -> BTreeMap<&'static str, u64> {
        self.0.counters().expect("they can be read")
    }

    /// Runs a frame through the program. It carries `packet`, unless it is damaged.
    pub fn handle(&self, frame: &[u8], packet: &[u8], arrival: Arrival) -> Outcome<T::Verdict> {
        let before = self.counters();
        let (verdict, packet, by_host) = self.sent(frame, packet, arrival);
        let after = self.counters();
        let mut reasons: Vec<_> = counted(&before, &after).collect();
        let at = reasons.iter().position(|name| Some(*name) == T::BY_HOST);
        assert_eq!(at.is_some(), by_host, "left to the host: {reasons:?}");
        at.map(|at| reasons.remove(at));
        assert!(reasons.len() <= 1, "one reason a packet: {reasons:?}");
        Outcome {
            verdict,
            reason: reasons.first().copied().unwrap_or(""),
            packet,
        }
    }

    /// Like [`Kernel::handle`], without counters: verdict and packet.
    pub fn run(&self, frame: &[u8], packet: &[u8], arrival: Arrival) -> (T::Verdict, Vec<u8>) {
        let (verdict, packet, _) = self.sent(frame, packet, arrival);
        (verdict, packet)
    }

    /// Also returns whether the host's process is to send the packet.
    fn sent(&self, frame: &[u8], packet: &[u8], arrival: Arrival) -> (T::Verdict, Vec<u8>, bool) {
        if T::GIVEN {
            let given = self.0.set_given(arrival.now_ns, arrival.random);
            given.expect("the build is told");
        }
        let run = self.0.run(frame, 1).expect("it runs");
        let registers = self.registers();
        if run.action == XDP_DROP {
            return (T::DROP, Vec::new(), false);
        }
        let is_same = run.frame == frame;
        if run.action == XDP_PASS && is_same && T::by_host(packet, registers).is_none() {
            return (T::PASS, packet.to_vec(), false);
        }
        check_sizes(&run.frame);
        check_ip(&run.frame);
        let packet = run.frame[FRAME_LEN_BYTES..].to_vec();
        if run.action == XDP_PASS {
            assert_eq!(run.frame[..12], frame[..12], "still to this host");
            assert_eq!(run.frame[26..38], frame[26..38], "still to this host");
            let verdict = T::by_host(&packet, registers);
            return (verdict.expect("the host sends it"), packet, true);
        }
        assert!([XDP_TX, XDP_REDIRECT].contains(&run.action));
        let verdict = T::sent_to(&packet, &run.frame, run.action).unwrap_or_else(|| {
            assert_eq!(run.action, XDP_TX);
            check_turned(frame, &run.frame);
            T::REPLY
        });
        (verdict, packet, false)
    }
}

/// The kernel's and the native build of one role.
pub struct Pair<T: UnderTest> {
    /// In this process.
    pub native: T::Role,
    /// In front of the native role, as in a host.
    gate: Gate,
    pub kernel: Kernel<T>,
    /// Reasons that packets have had so far.
    pub met: BTreeSet<&'static str>,
}

impl<T: UnderTest> Pair<T> {
    /// Both are new and have the same keys.
    pub fn new(native: T::Role, rig: T::Rig, keys: Option<Keys>, partitions: usize) -> Pair<T> {
        Pair {
            native,
            gate: Gate::of::<T::System>(keys, partitions),
            kernel: Kernel(rig),
            met: BTreeSet::new(),
        }
    }

    /// Checks that both do the same with a packet. Returns what leaves.
    pub fn step(&mut self, packet: &[u8], arrival: Arrival, at: &dyn Display) -> Vec<u8> {
        let expected = native::<T>(&mut self.gate, &self.native, packet, arrival);
        let frame = udp_frame(arrival.from, HERE, packet);
        let (verdict, out) = self.kernel.run(&frame, packet, arrival);
        assert!(
            (expected.verdict, &expected.packet) == (verdict, &out),
            "{expected:?} is not {verdict:?} {out:?}: {packet:?} {arrival:?} {at}"
        );
        self.met.insert(expected.reason);
        out
    }

    /// Returns the registers of the native build, then the kernel's.
    pub fn registers(&self) -> [&Registers<T>; 2] {
        [self.native.registers(), self.kernel.registers()]
    }

    /// Checks that both have counted the same.
    pub fn compare_counters(&self, at: &str) -> BTreeMap<&'static str, u64> {
        let mut counters = self.native.counters();
        counters.extend(self.gate.counters());
        let mut in_kernel = self.kernel.counters();
        T::BY_HOST.map(|name| in_kernel.remove(name));
        assert_eq!(counters, in_kernel, "{at}");
        counters
    }
}

/// Sequences of packets that depend on the packets sent before.
pub trait Sequence: Default {
    type System: UnderTest;

    /// The packet of a record, and its arrival. May change both registers like the host's process does.
    fn packet(
        &mut self,
        record: &[u8; RECORD_LEN_BYTES],
        registers: [&Registers<Self::System>; 2],
    ) -> (Vec<u8>, Arrival);
    /// This packet has left; empty if the packet was dropped.
    fn answered(&mut self, _packet: &[u8]) {}
    /// Every word of the registers, by name.
    fn words(registers: &Registers<Self::System>) -> Vec<(String, Vec<u64>)>;
    fn clear(registers: &Registers<Self::System>);
}

/// Length of a record of a sequence.
pub const RECORD_LEN_BYTES: usize = 16;
/// Steps between two comparisons of all registers.
const COMPARE_EVERY: usize = 2_000;

/// A pair of roles that is given a sequence of packets.
pub struct Equal<Q: Sequence> {
    pub pair: Pair<Q::System>,
    sequence: Q,
}

impl<Q: Sequence> Equal<Q> {
    pub fn new(pair: Pair<Q::System>) -> Equal<Q> {
        Equal {
            pair,
            sequence: Q::default(),
        }
    }

    /// Checks that both do the same with the packet of a record, signed by its sender.
    pub fn step(
        &mut self,
        record: &[u8; RECORD_LEN_BYTES],
        at: &dyn Display,
        sign: &mut dyn FnMut(&mut Vec<u8>),
    ) {
        let (mut packet, arrival) = self.sequence.packet(record, self.pair.registers());
        sign(&mut packet);
        let out = self.pair.step(&packet, arrival, at);
        self.sequence.answered(&out);
    }

    /// Checks that all registers are equal.
    pub fn compare(&self, at: &dyn Display) {
        let [native, kernel] = self.pair.registers().map(Q::words);
        assert_eq!(native.len(), kernel.len());
        for (native, kernel) in native.iter().zip(&kernel) {
            assert_eq!(native, kernel, "{at}");
        }
    }

    /// Resets both to the state after a start.
    pub fn restart(&mut self) {
        self.sequence = Q::default();
        self.pair.registers().into_iter().for_each(Q::clear);
    }

    /// Runs this many random packets, with occasional restarts in between.
    pub fn random(
        &mut self,
        random: &mut Prng,
        steps: usize,
        restart_every: usize,
        what: &dyn Display,
        sign: &mut dyn FnMut(&mut Vec<u8>),
    ) {
        for i in 0..steps {
            let at = format!("in step {i} of {what}");
            self.step(&random.record(), &at, sign);
            if i % COMPARE_EVERY == 0 {
                self.compare(&at);
            }
            if i % restart_every == 0 {
                self.restart();
            }
        }
        self.compare(what);
    }

    /// Runs this many random packets, signed at random for [`two_keys`]. Checks that all of these reasons occur.
    pub fn random_with_keys(&mut self, steps: usize, reasons: &[&str]) {
        let seed = crate::random::seed();
        let what = format!("INBAND_SEED={seed}");
        let mut prng = Prng(seed);
        let mut signers = Prng(prng.next());
        let sign = &mut |packet: &mut Vec<u8>| sign_at_random(&mut signers, packet);
        self.random(&mut prng, steps, usize::MAX, &what, sign);
        let counters = self.pair.compare_counters(&what);
        for reason in reasons {
            assert!(counters.contains_key(reason), "{reason}: {counters:?}");
        }
    }

    /// Runs the records of an entry of the fuzzer's corpus.
    pub fn records(&mut self, records: &[u8], at: &dyn Display) {
        self.restart();
        for record in records.chunks_exact(RECORD_LEN_BYTES) {
            let record = record.try_into().expect("its length");
            self.step(record, at, &mut |packet| tag(packet));
        }
        self.compare(at);
    }
}

/// Returns the reasons of the system that begin with `prefix` and are neither in `elsewhere` nor in `met`. Checks that
/// those in `elsewhere` exist and do not occur.
pub fn missing<S: inband_ground::System>(
    prefix: &str,
    elsewhere: &[&str],
    met: &BTreeSet<&str>,
) -> Vec<&'static str> {
    let own: Vec<_> = S::reasons()
        .filter(|name| name.starts_with(prefix))
        .collect();
    for name in elsewhere {
        assert!(own.contains(name), "there is no reason {name}");
        assert!(!met.contains(name), "{name} is met");
    }
    let is_missing = |name: &&str| !met.contains(name) && !elsewhere.contains(name);
    own.into_iter().filter(is_missing).collect()
}

/// Keys 1 and 2; 2 is active.
pub fn two_keys() -> Keys {
    Keys::new(2, &[secret(1), secret(2)]).expect("they are keys")
}

/// A key is its id, 16 times.
pub(crate) fn secret(id: u16) -> (u16, Secret) {
    (id, Secret([id as u8; 16]))
}

/// Signs packets for a cluster with [`two_keys`]. Some are signed with a key that is not accepted, and in some a bit is
/// flipped.
pub fn sign_at_random(random: &mut Prng, packet: &mut [u8]) {
    if packet.len() < HEADER_LEN_BYTES {
        return;
    }
    let id = [1, 2, 2, 2, 2, 2, 2, 3][random.below(8) as usize];
    let keys = Keys::new(id, &[secret(id)]).expect("it is a key");
    keys.sign(packet);
    if random.below(20) == 0 {
        let at = random.below(HEADER_LEN_BYTES as u64) as usize;
        packet[at] ^= 1 << random.below(8);
    }
}
