//! Roles that only answer requests: how to start them, and their clients.

use std::ops::Deref;
use std::time::Duration;

use crate::auth::Gate;
use crate::c::{ib_answering, ib_arrival, ib_result, IB_ANSWERING_OWN_WORDS};
use crate::registers::Shared;
use crate::soft::{Native, Soft};
use crate::wire::{Message, PARTITIONS};
use crate::xdp::alone::{HostSpec, Program};
use crate::xdp::XdpError;

/// What [`Role`] requires of a system. Implement it with [`answering!`](crate::answering!).
///
/// # Safety
/// The native build must treat its registers as an array of `Register` and its settings as `Settings`.
pub unsafe trait Answering:
    Native<
    Switch = ib_answering,
    Arrival = ib_arrival,
    Answer = ib_result,
    Registers: From<Shared<Self::Register>> + Deref<Target = Shared<Self::Register>>,
>
{
    /// The register of one partition.
    type Register;
    /// The settings that the loader passes to the program, besides the common ones. Plain words only.
    type Settings: Copy;
    /// The program and the map that holds its registers.
    const PROGRAM: &'static str;
    const OBJECT: &'static [u8];
    const MAP: &'static str;
}

/// A role that only answers requests, with its sizes. It runs in this process or in the kernel.
pub trait Role: Answering + Sized {
    /// Returns the number of partitions (or the system's equivalent). Packets for a higher one are dropped.
    fn partitions(&self) -> usize;

    fn settings(&self) -> Self::Settings;

    /// Creates the role in this process, as node `node`. Its registers are zero.
    ///
    /// # Panics
    /// If the number of partitions is not in [`PARTITIONS`].
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

    /// Loads the role as an XDP program. Its registers are zero.
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

/// `answering!(Name, PROGRAM, OBJECT, MAP, Registers of REGISTER, SETTINGS, CHECK, REASON_NAME, HANDLE)` implements
/// [`Answering`] for the system. The last three are what IB_ANSWERING declares in its `native.h`. Also defines the type
/// `Registers`.
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

/// A role whose clients retransmit a request until it is answered.
pub trait Asked: Role {
    type Header: Message;

    /// Returns the field in which a client numbers its requests. The role must not change it.
    fn request_mut(header: &mut Self::Header) -> &mut u64;

    /// Returns whether this is an answer.
    fn is_answer(header: &Self::Header) -> bool;
}

/// `asked!(Name, Header, ANSWER, request)` implements [`Asked`] for the system: answers have type ANSWER, and the field
/// `request` numbers requests.
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

/// Timeout after which a client retransmits.
pub const RETRY: Duration = Duration::from_millis(20);

/// A client, sans-I/O. It has at most one request in flight.
pub struct Client<R: Asked> {
    gate: Gate,
    request: u64,
    packet: Vec<u8>,
    system: std::marker::PhantomData<R>,
}

impl<R: Asked> Client<R> {
    /// `first_request` must be chosen at random, so that the client ignores answers to an earlier client at the same
    /// address.
    pub fn new(gate: Gate, first_request: u64) -> Client<R> {
        Client {
            gate,
            request: first_request,
            packet: Vec::new(),
            system: std::marker::PhantomData,
        }
    }

    /// Begins the next request. Answers to the previous one are ignored from now on.
    pub fn ask(&mut self, mut header: R::Header) {
        self.request = self.request.wrapping_add(1);
        *R::request_mut(&mut header) = self.request;
        self.packet.clear();
        let packet = header.append(&[], &mut self.packet);
        self.gate.sign(packet);
    }

    /// Returns the packet to send now, and again after each [`RETRY`] without an answer. Empty before the first
    /// [`Client::ask`].
    pub fn packet(&self) -> &[u8] {
        &self.packet
    }

    /// Handles a received packet. Returns its header if it answers the current request.
    pub fn on_packet(&mut self, packet: &[u8]) -> Option<R::Header> {
        if !self.gate.admits(packet) {
            return None;
        }
        let (mut answer, _) = R::Header::split(packet).ok()?;
        let is_ours = R::is_answer(&answer) && *R::request_mut(&mut answer) == self.request;
        is_ours.then_some(answer)
    }
}
