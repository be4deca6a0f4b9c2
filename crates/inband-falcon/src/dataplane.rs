//! Falcon (docs/falcon.md): the scheduler that queues tasks and gives them to executors, in this process or in the
//! kernel.

// Calls into the native role, registers shared with the packet program, BPF maps.
#![allow(unsafe_code)]
#![warn(clippy::undocumented_unsafe_blocks)]

inband_ground::bindings!("falcon");

inband_ground::system!(
    /// Its partitions are the sets.
    Falcon,
    c::ib_falcon_keys_check,
    c::ib_falcon_reason_name
);

use std::fmt;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::ops::Deref;
use std::str::FromStr;

use inband_ground::soft::{Arrival, Handle, Native, Soft};
use inband_ground::wire::PACKET_LEN_MAX_BYTES;

pub mod bench;
pub mod registers;
pub mod rig;
pub mod wire;
pub mod xdp;

pub use registers::FalconRegisters;

/// Default number of slots of all queues of a scheduler.
pub const SLOTS_DEFAULT: usize = c::IB_FALCON_SLOTS as usize;
/// Executors per worker.
pub const EXECUTORS: usize = c::IB_FALCON_EXECUTORS as usize;
/// Maximum number of workers per scheduler.
pub const WORKERS_MAX: usize = c::IB_FALCON_WORKERS_MAX as usize;
/// Workers per group.
const GROUP_WORKERS: usize = c::IB_FALCON_GROUP_WORKERS as usize;

/// Which queue a task goes to, and in which order the queues are served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
#[repr(u32)]
pub enum Policy {
    /// One queue, first come first served.
    #[default]
    Fifo = c::IB_FALCON_FIFO,
    /// Classes 0 to 7; every 16th task is taken from the classes in turn.
    Priority = c::IB_FALCON_PRIORITY,
    /// A task goes to a worker that has the resource it needs.
    Resources = c::IB_FALCON_RESOURCES,
    /// Users take turns.
    Fair = c::IB_FALCON_FAIR,
    /// A task goes to its preferred worker; after a time, to any.
    Locality = c::IB_FALCON_LOCALITY,
}

impl Policy {
    pub const ALL: [Policy; 5] = [
        Policy::Fifo,
        Policy::Priority,
        Policy::Resources,
        Policy::Fair,
        Policy::Locality,
    ];

    /// Returns the number of queues; the slots are divided among them.
    pub fn queues(self) -> usize {
        // SAFETY: a pure function of a number.
        unsafe { c::ib_falcon_queues_of(self as u32) as usize }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Policy::Fifo => "fifo",
            Policy::Priority => "priority",
            Policy::Resources => "resources",
            Policy::Fair => "fair",
            Policy::Locality => "locality",
        })
    }
}

impl FromStr for Policy {
    type Err = String;

    fn from_str(text: &str) -> Result<Policy, String> {
        let named = Policy::ALL.into_iter().find(|p| p.to_string() == text);
        named.ok_or_else(|| {
            let all = Policy::ALL.map(|policy| policy.to_string());
            format!("{text:?} is not a policy; there are {}", all.join(", "))
        })
    }
}

/// Sizes and policy of a Falcon scheduler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FalconConfig {
    /// Schedulers, 1..=16, each with its own queues and workers.
    pub sets: usize,
    /// Slots of all queues of each scheduler: a power of two, at least two per queue, up to 4,194,304.
    pub slots: usize,
    /// Maximum workers per scheduler, 1..=1024.
    pub workers: usize,
    pub policy: Policy,
    /// Maximum queued tasks per user. Must be less than a queue's slots, or one user could fill it.
    pub user_tasks_max: u32,
    /// [`Policy::Locality`]: how long a task waits for its preferred worker, in nanoseconds.
    pub locality_wait_ns: u64,
}

impl Default for FalconConfig {
    fn default() -> FalconConfig {
        FalconConfig::of(Policy::Fifo)
    }
}

impl FalconConfig {
    /// One scheduler for 64 workers; a user may fill half of a queue.
    pub fn of(policy: Policy) -> FalconConfig {
        FalconConfig {
            sets: 1,
            slots: SLOTS_DEFAULT,
            workers: GROUP_WORKERS,
            policy,
            user_tasks_max: (SLOTS_DEFAULT / policy.queues() / 2) as u32,
            locality_wait_ns: 5_000_000,
        }
    }

    /// Checks that the sizes are within the limits. The error names one that is not.
    pub fn validate(self) -> Result<(), String> {
        let limits = [
            ("schedulers", self.sets, c::IB_FALCON_SETS_MAX as usize),
            ("workers", self.workers, WORKERS_MAX),
        ];
        for (name, count, max) in limits {
            if !(1..=max).contains(&count) {
                return Err(format!("{count} {name} are not 1 to {max}"));
            }
        }
        let slots = 2 * self.policy.queues()..=c::IB_FALCON_SLOTS_MAX as usize;
        if !self.slots.is_power_of_two() || !slots.contains(&self.slots) {
            let count = self.slots;
            return Err(format!("{count} slots are not a power of two in {slots:?}"));
        }
        if self.user_tasks_max == 0 {
            return Err("a user who may have 0 tasks in the queues can submit none".into());
        }
        Ok(())
    }

    pub fn queue_slots(self) -> usize {
        self.slots / self.policy.queues()
    }

    /// Groups of workers per set.
    pub(crate) fn groups(self) -> usize {
        self.workers.div_ceil(GROUP_WORKERS)
    }

    pub(crate) fn raw(self, incarnation: u64) -> c::ib_falcon_config {
        c::ib_falcon_config {
            policy: self.policy as u32,
            slots_log2: self.queue_slots().ilog2(),
            workers: self.workers as u32,
            user_tasks_max: self.user_tasks_max,
            locality_wait_ns: self.locality_wait_ns,
            incarnation,
        }
    }
}

/// What to do with a packet that was handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Drop it. (Also the verdict for a PULL that is parked.)
    Drop,
    /// Pass it unchanged to the host's process.
    Pass,
    /// Rewritten: send it to its source.
    Reply,
    /// Rewritten: send it to this executor, which was parked.
    ToExecutor(SocketAddrV4),
}

impl Verdict {
    fn of(result: &c::ib_falcon_result) -> Verdict {
        match result.verdict {
            v if v == c::IB_REPLY => Verdict::Reply,
            v if v == c::IB_TO_EXECUTOR => {
                let address = Ipv4Addr::from(result.to_address);
                Verdict::ToExecutor(SocketAddrV4::new(address, result.to_port as u16))
            }
            v if v == c::IB_PASS => Verdict::Pass,
            _ => Verdict::Drop,
        }
    }
}

inband_ground::native!(
    Falcon,
    c::ib_falcon_switch,
    FalconRegisters,
    c::ib_falcon_arrival,
    c::ib_falcon_result,
    c::ib_falcon_switch_handle
);

impl From<Arrival> for c::ib_falcon_arrival {
    fn from(arrival: Arrival) -> c::ib_falcon_arrival {
        c::ib_falcon_arrival {
            now_ns: arrival.now_ns,
            from_address: u32::from(*arrival.from.ip()),
            from_port: arrival.from.port(),
        }
    }
}

/// A Falcon scheduler in this process: the role, its registers and counters.
pub struct FalconSwitch(Soft<Falcon>);

/// A build of the role in C.
pub type Build = Handle<c::ib_falcon_switch, c::ib_falcon_arrival, c::ib_falcon_result>;

impl FalconSwitch {
    /// Creates a scheduler without tasks and workers. `incarnation` is a number drawn at its start, unique among all
    /// starts.
    pub fn new(node: u8, config: FalconConfig, incarnation: u64) -> FalconSwitch {
        config.validate().expect("sizes are within the limits");
        let switch = |registers: &FalconRegisters, counters| c::ib_falcon_switch {
            node: u32::from(node),
            sets: config.sets as u32,
            config: config.raw(incarnation),
            regs: registers.sets.as_ptr(),
            slots: registers.slots.as_ptr(),
            groups: registers.groups.as_ptr(),
            executors: registers.executors.as_ptr(),
            counters,
        };
        // SAFETY: the registers have the sizes of the configuration.
        FalconSwitch(unsafe { Soft::new(FalconRegisters::zeroed(config), switch) })
    }

    /// Handles the UDP payload `buffer[..len_bytes]` from `from`. `now_ns` is from a monotonic clock; only
    /// [`Policy::Locality`] uses it. Returns the verdict, the reason's number and the length of the packet now in the
    /// buffer.
    pub fn handle(
        &self,
        buffer: &mut [u8; PACKET_LEN_MAX_BYTES],
        len_bytes: usize,
        from: SocketAddrV4,
        now_ns: u64,
    ) -> (Verdict, u32, usize) {
        // SAFETY: the build of the role that this crate is made with.
        unsafe { self.handle_by(Falcon::HANDLE, buffer, len_bytes, from, now_ns) }
    }

    /// Like [`FalconSwitch::handle`] with another build, for tests that must catch faulty ones.
    ///
    /// # Safety
    /// `build` is one of `falcon/native.c`.
    pub unsafe fn handle_by(
        &self,
        build: Build,
        buffer: &mut [u8; PACKET_LEN_MAX_BYTES],
        len_bytes: usize,
        from: SocketAddrV4,
        now_ns: u64,
    ) -> (Verdict, u32, usize) {
        let arrival = Arrival {
            from,
            now_ns,
            random: 0,
        };
        // SAFETY: the caller's.
        let (result, len_bytes) = unsafe { self.0.handle_by(build, buffer, len_bytes, arrival) };
        (Verdict::of(&result), result.reason, len_bytes)
    }

    pub fn incarnation(&self) -> u64 {
        self.0.switch().config.incarnation
    }
}

impl Deref for FalconSwitch {
    type Target = Soft<Falcon>;

    fn deref(&self) -> &Soft<Falcon> {
        &self.0
    }
}
