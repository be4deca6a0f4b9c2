//! Roles that only answer: how to start one, and its clients.

use std::ops::Deref;
use std::time::Duration;

use crate::auth::Gate;
use crate::c::{ib_answering, ib_arrival, ib_result, IB_ANSWERING_OWN_WORDS};
use crate::registers::Shared;
use crate::soft::{Native, Soft};
use crate::wire::{Message, PARTITIONS};
use crate::xdp::alone::{HostSpec, Program};
use crate::xdp::XdpError;

/// What [`Role`] asks of a system. Implement it by [`answering!`](crate::answering!).
///
/// # Safety
/// The native build takes its registers for an array of `Register`, and its settings for `Settings`.
pub unsafe trait Answering:
    Native<
    Switch = ib_answering,
    Arrival = ib_arrival,
    Answer = ib_result,
    Registers: From<Shared<Self::Register>> + Deref<Target = Shared<Self::Register>>,
>
{
    /// Of a partition.
    type Register;
    /// What the loader tells the program, besides the common settings. Plain words.
    type Settings: Copy;
    /// Its program and the map with its registers.
    const PROGRAM: &'static str;
    const OBJECT: &'static [u8];
    const MAP: &'static str;
}

/// A role that only answers, with its sizes. It runs in this process or in the kernel.
pub trait Role: Answering + Sized {
    /// How many partitions, or what else it has several of, its packets may name.
    fn partitions(&self) -> usize;

    fn settings(&self) -> Self::Settings;

    /// The role in this process, on node `node`. Its registers are zero.
    ///
    /// # Panics
    /// If the partitions are not [`PARTITIONS`].
    fn soft(&self, node: u8) -> Soft<Self> {
        let partitions = self.partitions();
        assert!(PARTITIONS.contains(&partitions), "{partitions} partitions");
        let settings = self.settings();
        let mut own = [0; IB_ANSWERING_OWN_WORDS as usize];
        assert!(size_of_val(&settings) <= size_of_val(&own));
        // SAFETY: plain words, and there is room for them.
        unsafe { own.as_mut_ptr().cast::<Self::Settings>().write(settings) };
        let switch = |registers: &Self::Registers, counters| ib_answering {
            node: u32::from(node),
            partitions: partitions as u32,
            own,
            registers: registers.as_ptr().cast(),
            counters,
        };
        // SAFETY: there is a register for each partition.
        unsafe { Soft::new(Shared::zeroed(partitions).into(), switch) }
    }

    /// The role as an XDP program. Its registers are zero.
    fn program(&self, host: &HostSpec) -> Result<Program<Self, Self::Registers>, XdpError> {
        let settings = host.settings(self.partitions(), &self.settings())?;
        let sizes = [(Self::MAP, self.partitions())];
        Program::load(
            Self::PROGRAM,
            Self::OBJECT,
            host,
            settings,
            &sizes,
            |loaded| loaded.registers(Self::MAP),
        )
    }
}

/// `answering!(Name, PROGRAM, OBJECT, MAP, Registers of REGISTER, SETTINGS, CHECK, REASON_NAME, HANDLE)`: the system is
/// [`Answering`]; the last three are what IB_ANSWERING declares in its `native.h`. Defines the type `Registers`.
#[macro_export]
macro_rules! answering {
    ($name:ty, $program:literal, $object:path, $map:literal, $registers:ident of $register:ty, $settings:ty,
     $check:path, $reason_name:path, $handle:path $(,)?) => {
        $crate::registers!($registers of $register);
        $crate::system!(for $name, $check, $reason_name);
        $crate::native!(
            $name,
            $crate::c::ib_answering,
            $registers,
            $crate::c::ib_arrival,
            $crate::c::ib_result,
            $handle
        );

        // SAFETY: as IB_ANSWERING_IS in its `native.c` says.
        unsafe impl $crate::answering::Answering for $name {
            type Register = $register;
            type Settings = $settings;
            const PROGRAM: &'static str = $program;
            const OBJECT: &'static [u8] = $object;
            const MAP: &'static str = $map;
        }
    };
}

/// A role whose clients send a request again until it is answered.
pub trait Asked: Role {
    type Header: Message;

    /// The field that a client numbers its requests by. The role leaves it as it is.
    fn request_mut(header: &mut Self::Header) -> &mut u64;

    /// Is this an answer?
    fn is_answer(header: &Self::Header) -> bool;
}

/// `asked!(Name, Header, ANSWER, request)`: the system is [`Asked`]; answers are of type ANSWER, and clients number their
/// requests by the field `request`.
#[macro_export]
macro_rules! asked {
    ($name:ty, $header:ty, $answer:path, $request:ident) => {
        impl $crate::answering::Asked for $name {
            type Header = $header;

            fn request_mut(header: &mut $header) -> &mut u64 {
                &mut header.$request
            }

            fn is_answer(header: &$header) -> bool {
                header.kind == $answer
            }
        }
    };
}

/// How long an answer may take before the client asks again.
pub const RETRY: Duration = Duration::from_millis(20);

/// A client, sans-I/O: it has one request at a time.
pub struct Client<R: Asked> {
    gate: Gate,
    request: u64,
    packet: Vec<u8>,
    system: std::marker::PhantomData<R>,
}

impl<R: Asked> Client<R> {
    /// `first_request` is drawn at the client's start, so that it does not take answers to an earlier client at its
    /// address for its own.
    pub fn new(gate: Gate, first_request: u64) -> Client<R> {
        Client {
            gate,
            request: first_request,
            packet: Vec::new(),
            system: std::marker::PhantomData,
        }
    }

    /// The next request. An answer to the one before is no longer accepted.
    pub fn ask(&mut self, mut header: R::Header) {
        self.request = self.request.wrapping_add(1);
        *R::request_mut(&mut header) = self.request;
        self.packet.clear();
        let packet = header.append(&[], &mut self.packet);
        self.gate.sign(packet);
    }

    /// The packet to send, again after each [`RETRY`] without an answer. Empty before the first [`Client::ask`].
    pub fn packet(&self) -> &[u8] {
        &self.packet
    }

    /// A packet has arrived. Returns it if it answers the present request.
    pub fn on_packet(&mut self, packet: &[u8]) -> Option<R::Header> {
        if !self.gate.admits(packet) {
            return None;
        }
        let (mut answer, _) = R::Header::split(packet).ok()?;
        let is_ours = R::is_answer(&answer) && *R::request_mut(&mut answer) == self.request;
        is_ours.then_some(answer)
    }
}
