//! A role that only answers, in this process and in the kernel: its vectors, and random packets.
//!
//! A case of its vectors is a list of packets whose own fields are numbers:
//!
//! ```toml
//! [[case]]
//! name = "numbers follow each other"
//! before = [0, 0]                 # the registers before the first packet
//! after = [0, 1]                  # ... and after the last
//! packet = [{ in = [16, 0, 1], reason = "SYSTEM_numbered", out = [1] }]    # in: type, sender's node, own fields
//! ```
//!
//! Without `out` the packet is dropped.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};

use inband_ground::answering::{Asked, Role};
use inband_ground::auth::{Gate, Keys};
use inband_ground::c::{ib_header, IB_DROP, IB_REPLY};
use inband_ground::soft::{Arrival, Native, Soft};
use inband_ground::wire::Message;
use inband_ground::xdp::alone::{HostSpec, Program};
use inband_ground::xdp::XdpMode;
use serde::Deserialize;

use crate::frame::{may_load_bpf, HERE, NODE, THERE};
use crate::random::{seed, Prng};
use crate::role::{sign_at_random, two_keys, Answering, Pair};
use crate::vector::{self, Step};

/// The arrival of each packet.
pub const ARRIVAL: Arrival = Arrival {
    from: THERE,
    now_ns: 0,
    random: 0,
};

/// A role under test.
pub trait Tested {
    type Role: Asked;
    const ROLE: Self::Role;
    /// Its folder in `dataplane/`, which is also the prefix of its reasons.
    const FOLDER: &'static str;

    /// Returns the header of a request with these values in its own fields.
    fn request(own: &[u64]) -> Header<Self>;
    /// Returns the answer of [`Tested::ROLE`] on node [`NODE`], with these values in its own fields.
    fn answer(request: Header<Self>, own: &[u64]) -> Header<Self>;
    /// Every register that a packet may change.
    fn registers(of: &<Self::Role as Native>::Registers) -> Vec<&AtomicU64>;
}

/// The header of a role's packets.
pub type Header<T> = <<T as Tested>::Role as Asked>::Header;

fn rig<T: Tested>(keys: Option<Keys>) -> Box<Program<T::Role, <T::Role as Native>::Registers>> {
    let host = HostSpec {
        node: NODE,
        address: HERE,
        mode: XdpMode::Native,
        keys,
    };
    Box::new(T::ROLE.program(&host).expect("it loads"))
}

fn role<T: Tested>() -> Box<Soft<T::Role>> {
    Box::new(T::ROLE.soft(NODE))
}

fn read<T: Tested>(registers: &<T::Role as Native>::Registers) -> Vec<u64> {
    let registers = T::registers(registers).into_iter();
    registers.map(|one| one.load(Ordering::SeqCst)).collect()
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, bound = "")]
struct Case<T> {
    name: String,
    before: Vec<u64>,
    after: Vec<u64>,
    packet: Vec<Packet>,
    #[serde(skip)]
    tested: PhantomData<T>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Packet {
    r#in: Vec<u64>,
    reason: String,
    out: Option<Vec<u64>>,
}

impl<T: Tested> vector::Case for Case<T> {
    type System = Answering<T::Role>;
    type Expected = ();

    fn name(&self) -> &str {
        &self.name
    }

    fn packets(&self) -> usize {
        self.packet.len()
    }

    fn reason(&self, at: usize) -> &str {
        &self.packet[at].reason
    }

    fn step(&self, at: usize, keys: Option<&Keys>) -> Step<u32> {
        let step = &self.packet[at];
        let [kind, node, own @ ..] = &step.r#in[..] else {
            panic!("{}: `in` has a type and a node", self.name);
        };
        let gate = Gate::of::<T::Role>(keys.copied(), T::ROLE.partitions());
        let mut request = T::request(own);
        *T::Role::request_mut(&mut request) = at as u64 + 100;
        let mut packet = Vec::new();
        request.append(&[], &mut packet);
        // The type may be one that the system does not know.
        packet[std::mem::offset_of!(ib_header, type_)] = *kind as u8;
        let node_at = std::mem::offset_of!(ib_header, node);
        packet[node_at..node_at + 2].copy_from_slice(&(*node as u16).to_be_bytes());
        gate.sign(&mut packet);
        let mut out = Vec::new();
        if let Some(own) = &step.out {
            let answer = T::answer(request, own).append(&[], &mut out);
            gate.sign(answer);
        }
        Step {
            packet,
            frame: None,
            arrival: ARRIVAL,
            verdict: if out.is_empty() { IB_DROP } else { IB_REPLY },
            reason: step.reason.clone(),
            out,
        }
    }

    fn native(&self) -> (Box<Soft<T::Role>>, usize) {
        (role::<T>(), T::ROLE.partitions())
    }

    fn rig(&self, keys: Option<Keys>) -> Box<Program<T::Role, <T::Role as Native>::Registers>> {
        rig::<T>(keys)
    }

    fn prepare(&self, registers: &<T::Role as Native>::Registers) {
        let registers = T::registers(registers);
        assert_eq!(registers.len(), self.before.len(), "{}", self.name);
        for (register, before) in registers.into_iter().zip(&self.before) {
            register.store(*before, Ordering::SeqCst);
        }
    }

    fn check(&self, at: usize, registers: &<T::Role as Native>::Registers, (): &mut ()) {
        if at + 1 == self.packet.len() {
            assert_eq!(read::<T>(registers), self.after, "registers");
        }
    }
}

/// Runs every vector in this process, and in the kernel both without and with a key. Checks that every reason of the
/// role has a vector.
pub fn check_vectors<T: Tested>() {
    vector::run_natively::<Case<T>>(T::FOLDER);
    let prefix = format!("{}_", T::FOLDER);
    vector::every_reason_has_a_vector::<Case<T>>(T::FOLDER, &prefix, &[]);
    vector::run_in_kernel::<Case<T>>(T::FOLDER, None);
    vector::run_in_kernel::<Case<T>>(T::FOLDER, Some(1));
}

/// Checks that the kernel and this process treat this many random packets equally: verdicts, outgoing packets,
/// registers and counters.
pub fn check_equal<T: Tested>(packets: usize, mut packet: impl FnMut(&mut Prng) -> Header<T>) {
    if !may_load_bpf() {
        return;
    }
    let seed = seed();
    let mut random = Prng(seed);
    let keys = Some(two_keys());
    let (role, rig) = (role::<T>(), rig::<T>(keys));
    let mut pair = Pair::<Answering<T::Role>>::new(role, rig, keys, T::ROLE.partitions());
    for _ in 0..packets {
        let mut bytes = Vec::new();
        packet(&mut random).append(&[], &mut bytes);
        sign_at_random(&mut random, &mut bytes);
        pair.step(&bytes, ARRIVAL, &format_args!("INBAND_SEED={seed}"));
    }
    let [native, kernel] = pair.registers().map(read::<T>);
    assert_eq!(native, kernel, "INBAND_SEED={seed}");
    pair.compare_counters("at the end");
}

/// Returns the answers of the role in this process to threads that all send the same request at once, `each` times.
pub fn answers_to_threads<T: Tested>(
    threads: usize,
    each: usize,
    request: Header<T>,
) -> Vec<Header<T>>
where
    Header<T>: Send + Sync,
{
    let role = T::ROLE.soft(NODE);
    let ask = || {
        let mut gate = Gate::of::<T::Role>(None, T::ROLE.partitions());
        let mut packet = Vec::new();
        gate.sign(request.append(&[], &mut packet));
        let mut answer = || {
            let answer = role.answer(&mut gate, &packet, ARRIVAL);
            let answer = answer.expect("it answers");
            Header::<T>::split(&answer).expect("a packet").0
        };
        (0..each).map(|_| answer()).collect::<Vec<_>>()
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(ask)).collect();
        let joined = threads
            .into_iter()
            .flat_map(|thread| thread.join().expect("it ends"));
        joined.collect()
    })
}
