//! Packets of Falcon: the header of `falcon/wire.h` in host order, and the tasks after it.

use std::net::{Ipv4Addr, SocketAddrV4};

use super::c;
use inband_ground::auth::Digest;
use inband_ground::wire::{u16_at, u32_at, u64_at, Message, HEADER_LEN_BYTES};

pub use inband_ground::wire::ParseError;

/// Length of a task on the wire.
pub const TASK_LEN_BYTES: usize = c::IB_FALCON_TASK_LEN_BYTES as usize;
/// Maximum length of a task's description.
pub const DESC_LEN_MAX_BYTES: usize = c::IB_FALCON_DESC_LEN_BYTES as usize;
/// Maximum tasks per SUBMIT.
pub const TASKS_MAX: usize = c::IB_FALCON_TASKS_MAX as usize;
/// Number of priorities; 0 goes first.
pub const PRIORITIES: u8 = c::IB_FALCON_PRIORITIES as u8;
/// Number of resources; 0 means none.
pub const RESOURCES: u8 = c::IB_FALCON_QUEUES_MAX as u8;
/// Maximum executors per worker.
pub const EXECUTORS: u32 = c::IB_FALCON_EXECUTORS;

inband_ground::message_types!(
    /// Message types; see `falcon/wire.h` for who sends which to whom.
    Type {
        Submit = c::IB_FALCON_SUBMIT,
        SubmitReply = c::IB_FALCON_SUBMIT_REPLY,
        Pull = c::IB_FALCON_PULL,
        Task = c::IB_FALCON_TASK,
        NoTask = c::IB_FALCON_NO_TASK,
        Nack = c::IB_FALCON_NACK,
        Host = c::IB_FALCON_HOST,
    }
);

impl Type {
    /// Returns whether the packet has room for a task even without one: the answer is the same packet, rewritten.
    fn has_room(self) -> bool {
        matches!(self, Type::Submit | Type::Pull)
    }
}

inband_ground::flag_bits!(
    /// Flag bits; see `falcon/wire.h`.
    flag {
        PARK = c::IB_FALCON_F_PARK,
        REPEATED = c::IB_FALCON_F_REPEATED,
        ORIGIN = c::IB_FALCON_F_ORIGIN,
        FULL = c::IB_FALCON_F_FULL,
        USER_FULL = c::IB_FALCON_F_USER_FULL,
        PARKED = c::IB_FALCON_F_PARKED,
    }
);

/// The client address before the scheduler has filled it in.
pub const NO_CLIENT: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0);

inband_ground::header!(
    /// The header in host order. For the meaning of fields see `struct ib_falcon_header`; `count` and the digest are
    /// computed from the tasks on emission.
    Header of c::ib_falcon_header, Type, set {
        incarnation: u64,
        user: u32,
        job: u32,
        client: SocketAddrV4 = client_address client_port,
        queue: u8,
        executor: u32,
        worker_incarnation: u32,
        pull_seq: u64,
        taken: u64,
        submit_seq: u64,
        tail: u32,
        head: u32,
    }
);

impl Header {
    /// Creates a header with everything else zero.
    pub fn new(kind: Type, set: u16, node: u16) -> Header {
        Header {
            set,
            node,
            ..Header::of(kind)
        }
    }
}

/// A task's description: up to 64 bytes that its executor interprets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Description {
    len_bytes: u8,
    bytes: [u8; DESC_LEN_MAX_BYTES],
}

impl Description {
    /// `None` if the text is too long; it must then be fetched from the client.
    pub fn new(text: &[u8]) -> Option<Description> {
        let mut bytes = [0; DESC_LEN_MAX_BYTES];
        bytes.get_mut(..text.len())?.copy_from_slice(text);
        Some(Description {
            len_bytes: text.len() as u8,
            bytes,
        })
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len_bytes).min(DESC_LEN_MAX_BYTES)]
    }
}

/// A task in host order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Task {
    pub user: u32,
    pub job: u32,
    pub task: u32,
    /// The address that the executor reports to; filled in by the scheduler.
    pub client: SocketAddrV4,
    pub priority: u8,
    /// The resource that it needs; 0: none.
    pub resource: u8,
    /// The worker that it prefers.
    pub worker: Option<u16>,
    pub attempt: u8,
    pub digest: u64,
    pub desc: Description,
}

macro_rules! offset {
    ($field:ident) => {
        std::mem::offset_of!(c::ib_falcon_header, $field)
    };
}

macro_rules! task_offset {
    ($field:ident) => {
        std::mem::offset_of!(c::ib_falcon_task, $field)
    };
}

impl Task {
    /// Creates a task without preferred worker, resource and digest.
    pub fn new(user: u32, job: u32, task: u32, desc: Description) -> Task {
        Task {
            user,
            job,
            task,
            client: NO_CLIENT,
            priority: 0,
            resource: 0,
            worker: None,
            attempt: 0,
            digest: 0,
            desc,
        }
    }

    /// Computes the digest over everything but the digest itself and the client's address.
    pub fn digest(&self, digest: &Digest) -> u64 {
        let bare = Task {
            client: NO_CLIENT,
            digest: 0,
            ..*self
        };
        digest.of(&bare.to_bytes())
    }

    /// Returns the task with its correct digest.
    pub fn sealed(self, digest: &Digest) -> Task {
        Task {
            digest: self.digest(digest),
            ..self
        }
    }

    /// Returns whether the digest is correct.
    pub fn is_whole(&self, digest: &Digest) -> bool {
        self.digest == self.digest(digest)
    }

    /// Encodes the task as in a packet.
    pub fn to_bytes(&self) -> [u8; TASK_LEN_BYTES] {
        let mut out = [0; TASK_LEN_BYTES];
        let mut put = |at: usize, bytes: &[u8]| out[at..at + bytes.len()].copy_from_slice(bytes);
        put(task_offset!(user), &self.user.to_be_bytes());
        put(task_offset!(job), &self.job.to_be_bytes());
        put(task_offset!(task), &self.task.to_be_bytes());
        put(task_offset!(client_address), &self.client.ip().octets());
        put(task_offset!(client_port), &self.client.port().to_be_bytes());
        put(task_offset!(priority), &[self.priority]);
        put(task_offset!(resource), &[self.resource]);
        let worker = self.worker.unwrap_or(c::IB_FALCON_NO_WORKER as u16);
        put(task_offset!(worker), &worker.to_be_bytes());
        put(task_offset!(attempt), &[self.attempt]);
        put(task_offset!(desc_len_bytes), &[self.desc.len_bytes]);
        put(task_offset!(digest), &self.digest.to_be_bytes());
        put(task_offset!(desc), &self.desc.bytes);
        out
    }

    /// Decodes a task of a packet.
    pub fn from_bytes(bytes: &[u8; TASK_LEN_BYTES]) -> Task {
        let client = Ipv4Addr::from(u32_at(bytes, task_offset!(client_address)));
        let worker = u16_at(bytes, task_offset!(worker));
        let mut desc = [0; DESC_LEN_MAX_BYTES];
        desc.copy_from_slice(&bytes[task_offset!(desc)..]);
        Task {
            user: u32_at(bytes, task_offset!(user)),
            job: u32_at(bytes, task_offset!(job)),
            task: u32_at(bytes, task_offset!(task)),
            client: SocketAddrV4::new(client, u16_at(bytes, task_offset!(client_port))),
            priority: bytes[task_offset!(priority)],
            resource: bytes[task_offset!(resource)],
            worker: (u32::from(worker) != c::IB_FALCON_NO_WORKER).then_some(worker),
            attempt: bytes[task_offset!(attempt)],
            digest: u64_at(bytes, task_offset!(digest)),
            desc: Description {
                len_bytes: bytes[task_offset!(desc_len_bytes)],
                bytes: desc,
            },
        }
    }
}

/// The tasks after a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tasks<'a>(&'a [u8]);

impl<'a> Tasks<'a> {
    pub fn count(&self) -> usize {
        self.0.len() / TASK_LEN_BYTES
    }

    /// Returns the first task, which is the only one of a TASK.
    pub fn first(&self) -> Option<Task> {
        let bytes = self.0.first_chunk::<TASK_LEN_BYTES>();
        bytes.map(Task::from_bytes)
    }

    pub fn iter(&self) -> impl Iterator<Item = Task> + 'a {
        let chunks = self.0.chunks_exact(TASK_LEN_BYTES);
        chunks.map(|bytes| Task::from_bytes(bytes.try_into().expect("exact")))
    }
}

/// Splits a UDP payload into header and tasks. Makes the same checks as `ib_falcon_check`, except those of numbers that
/// depend on the scheduler.
pub fn parse(packet: &[u8]) -> Result<(Header, Tasks<'_>), ParseError> {
    let (header, value) = Header::split(packet)?;
    let count = match header.kind {
        Type::Pull => 0,
        _ => usize::from(packet[offset!(count)]),
    };
    let room = if header.kind.has_room() {
        count.max(1)
    } else {
        count
    };
    let length = ParseError::Length {
        claimed: room * TASK_LEN_BYTES,
        packet: packet.len(),
    };
    if count > TASKS_MAX || value.len() != room * TASK_LEN_BYTES {
        return Err(length);
    }
    let tasks = Tasks(&value[..count * TASK_LEN_BYTES]);
    Ok((header, tasks))
}

/// Splits a packet between processes into its value and the value's digest. `None` if it is no such packet.
pub fn parse_host(packet: &[u8]) -> Option<(&[u8], u64)> {
    let (header, value) = Header::split(packet).ok()?;
    (header.kind == Type::Host).then(|| (value, u64_at(packet, offset!(digest))))
}

/// Clears these flags of a packet of the role. Returns those that were set.
pub fn take_flags(packet: &mut [u8], flags: u16) -> u16 {
    let at = offset!(flags);
    let set = u16_at(packet, at);
    packet[at..at + 2].copy_from_slice(&(set & !flags).to_be_bytes());
    set & flags
}

/// Appends a packet between processes to `out`.
///
/// # Panics
/// If the value is longer than a packet.
pub fn emit_host(set: u16, node: u16, value: &[u8], digest: u64, out: &mut Vec<u8>) {
    let packet = Header::new(Type::Host, set, node).append(&[value], out);
    packet[offset!(digest)..][..8].copy_from_slice(&digest.to_be_bytes());
}

/// Appends the packet to `out`.
///
/// # Panics
/// If there are more than [`TASKS_MAX`] tasks.
pub fn emit(header: &Header, tasks: &[Task], out: &mut Vec<u8>) {
    assert!(tasks.len() <= TASKS_MAX, "the tasks fit one packet");
    let room = if header.kind.has_room() { 1 } else { 0 };
    let value_len_bytes = tasks.len().max(room) * TASK_LEN_BYTES;
    let start = out.len();
    out.resize(start + HEADER_LEN_BYTES + value_len_bytes, 0);
    let (h, value) = out[start..].split_at_mut(HEADER_LEN_BYTES);
    header.write(h, value_len_bytes);
    h[offset!(count)] = tasks.len() as u8;
    let digest = tasks.iter().fold(0, |digest, task| digest ^ task.digest);
    h[offset!(digest)..][..8].copy_from_slice(&digest.to_be_bytes());
    for (bytes, task) in value.chunks_exact_mut(TASK_LEN_BYTES).zip(tasks) {
        bytes.copy_from_slice(&task.to_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use inband_ground::auth::Secret;

    fn header(kind: Type) -> Header {
        Header {
            kind,
            flags: flag::PARK | flag::PARKED,
            set: 3,
            node: 9,
            incarnation: u64::MAX - 1,
            user: 77,
            job: 78,
            client: SocketAddrV4::new(Ipv4Addr::new(10, 1, 2, 3), 4567),
            queue: 63,
            executor: 65_535,
            worker_incarnation: 11,
            pull_seq: 1 << 40,
            taken: 0b101,
            submit_seq: 13,
            tail: u32::MAX,
            head: 5,
        }
    }

    fn task() -> Task {
        Task {
            client: SocketAddrV4::new(Ipv4Addr::new(10, 1, 2, 4), 80),
            priority: 7,
            resource: 63,
            worker: Some(513),
            attempt: 2,
            ..Task::new(1, 2, 3, Description::new(b"what to do").unwrap())
        }
    }

    #[test]
    fn every_type_survives_the_wire() {
        for kind in Type::ALL {
            for count in [0, 1, TASKS_MAX] {
                let count = if kind == Type::Pull { 0 } else { count };
                let mut packet = Vec::new();
                emit(&header(kind), &vec![task(); count], &mut packet);
                let (parsed, tasks) = parse(&packet).unwrap();
                assert_eq!(parsed, header(kind));
                assert!(tasks.iter().eq(vec![task(); count]));
            }
        }
    }

    #[test]
    fn malformed_packets_are_named() {
        let mut packet = Vec::new();
        emit(&header(Type::Submit), &[task(), task()], &mut packet);
        assert_eq!(parse(&packet[..95]), Err(ParseError::Truncated(95)));
        for count in [0, 1, 3, 15, 255] {
            let mut other = packet.clone();
            other[offset!(count)] = count;
            assert!(
                matches!(parse(&other), Err(ParseError::Length { .. })),
                "{count}"
            );
        }
        let mut flair = packet.clone();
        flair[5] = 38;
        assert_eq!(parse(&flair), Err(ParseError::Type(38)));
        packet.push(0);
        assert!(matches!(parse(&packet), Err(ParseError::Length { .. })));
    }

    #[test]
    fn a_digest_holds_all_but_the_address() {
        for digest in [Digest::PLAIN, Digest::keyed(Secret([7; 16]))] {
            let whole = task().sealed(&digest);
            let moved = Task {
                client: NO_CLIENT,
                ..whole
            };
            assert!(whole.is_whole(&digest) && moved.is_whole(&digest));
            for bit in 0..8 * TASK_LEN_BYTES {
                let mut bytes = whole.to_bytes();
                bytes[bit / 8] ^= 1 << (bit % 8);
                let address = task_offset!(client_address)..task_offset!(priority);
                let whole = Task::from_bytes(&bytes).is_whole(&digest);
                assert_eq!(whole, address.contains(&(bit / 8)), "bit {bit}");
            }
        }
        assert!(Description::new(&[0; 65]).is_none());
    }
}
