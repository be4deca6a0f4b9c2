//! Maps of loaded programs: arrays mapped into this process, single elements, and the ring buffer.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{fence, AtomicU32, AtomicU64, Ordering};

use super::error::{Doing, XdpError};
use crate::c;
use crate::registers::Shared;
use crate::wire::{HEADER_LEN_BYTES, PACKET_LEN_MAX_BYTES};

/// Returns the kernel's page size.
pub fn page_bytes() -> usize {
    // SAFETY: plain query; a page size always exists.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) as usize }
}

/// A mapping of a map's memory.
struct Mapping {
    base: *mut libc::c_void,
    len_bytes: usize,
}

// SAFETY: the mapping is shared memory; what may be done with it is up to its users.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(
        fd: BorrowedFd<'_>,
        len_bytes: usize,
        offset_bytes: usize,
        writable: bool,
    ) -> io::Result<Mapping> {
        let protection = libc::PROT_READ | if writable { libc::PROT_WRITE } else { 0 };
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory of ours.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len_bytes,
                protection,
                libc::MAP_SHARED,
                fd.as_raw_fd(),
                offset_bytes as libc::off_t,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Mapping { base, len_bytes })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: our own mapping, unmapped once.
        unsafe { libc::munmap(self.base, self.len_bytes) };
    }
}

/// Maps an array that was created with BPF_F_MMAPABLE.
pub(super) fn map_array<T>(fd: BorrowedFd<'_>) -> Result<Shared<T>, XdpError> {
    const {
        assert!(
            size_of::<T>() % 8 == 0,
            "the kernel rounds values up to 8 bytes"
        )
    };
    let info = info(fd).doing("asking for the size of registers")?;
    let (count, value_bytes) = (info.max_entries as usize, info.value_size as usize);
    if value_bytes != size_of::<T>() {
        let expected = size_of::<T>();
        return Err(XdpError::Spec(format!(
            "a register has {value_bytes} bytes instead of {expected}: rebuild inband"
        )));
    }
    let len_bytes = (count * size_of::<T>()).next_multiple_of(page_bytes());
    let mapping = Mapping::new(fd, len_bytes, 0, true).doing("mapping registers")?;
    let base = mapping.base.cast::<T>();
    // SAFETY: the mapping is page-aligned, holds `count` values of T and lives in the owner.
    Ok(unsafe { Shared::from_raw(base, count, Box::new(mapping)) })
}

/// Types that can be keys or values of maps.
///
/// # Safety
/// The type has no padding, and every bit pattern is a valid value.
pub unsafe trait Plain: Copy {}

/// `plain!(TYPE, ...)` implements [`Plain`] for bindgen's structs of integers whose C headers have explicit padding
/// fields.
#[macro_export]
macro_rules! plain {
    ($($type:ty),+ $(,)?) => {
        // SAFETY: integers and arrays of them, and padding is by fields (checked by `tests/layout.rs`).
        $(unsafe impl $crate::xdp::maps::Plain for $type {})+
    };
}
pub use crate::plain;

plain!(
    u32,
    u64,
    i32,
    [u32; 2],
    c::ib_keys,
    c::ib_given,
    c::ib_member,
    c::ib_group,
    c::ib_trial
);

/// Returns the kernel's description of a map.
fn info(map: BorrowedFd<'_>) -> io::Result<libbpf_sys::bpf_map_info> {
    // SAFETY: all zero is a valid value of this plain C struct.
    let mut info: libbpf_sys::bpf_map_info = unsafe { std::mem::zeroed() };
    let mut len = size_of::<libbpf_sys::bpf_map_info>() as u32;
    // SAFETY: the kernel writes at most `len` bytes of the struct.
    let result =
        unsafe { libbpf_sys::bpf_map_get_info_by_fd(map.as_raw_fd(), &raw mut info, &raw mut len) };
    if result < 0 {
        return Err(io::Error::from_raw_os_error(-result));
    }
    Ok(info)
}

/// Checks the sizes of the map's keys and values. (The value of a per-CPU map takes more memory than its description
/// says.)
fn check_sizes(map: &OwnedFd, key_bytes: usize, value_bytes: usize) -> io::Result<()> {
    let info = info(map.as_fd())?;
    let per_cpu = [
        libbpf_sys::BPF_MAP_TYPE_PERCPU_HASH,
        libbpf_sys::BPF_MAP_TYPE_PERCPU_ARRAY,
        libbpf_sys::BPF_MAP_TYPE_LRU_PERCPU_HASH,
        libbpf_sys::BPF_MAP_TYPE_PERCPU_CGROUP_STORAGE,
    ];
    let sizes = (info.key_size as usize, info.value_size as usize);
    if sizes == (key_bytes, value_bytes) && !per_cpu.contains(&info.type_) {
        return Ok(());
    }
    let what = format!(
        "a map of type {} with keys of {} and values of {} bytes is used with {key_bytes} and {value_bytes}",
        info.type_, sizes.0, sizes.1
    );
    Err(io::Error::new(io::ErrorKind::InvalidInput, what))
}

fn done(result: i32) -> io::Result<()> {
    if result < 0 {
        return Err(io::Error::from_raw_os_error(-result));
    }
    Ok(())
}

/// Sets an element of a map.
pub fn update<K: Plain, V: Plain>(map: &OwnedFd, key: &K, value: &V) -> io::Result<()> {
    check_sizes(map, size_of::<K>(), size_of::<V>())?;
    // SAFETY: the kernel reads a key and a value of the sizes that were just checked.
    done(unsafe {
        libbpf_sys::bpf_map_update_elem(
            map.as_raw_fd(),
            (&raw const *key).cast(),
            (&raw const *value).cast(),
            0,
        )
    })
}

/// Reads an element of a map that has one for every key.
pub fn lookup<K: Plain, V: Plain>(map: &OwnedFd, key: &K) -> io::Result<V> {
    check_sizes(map, size_of::<K>(), size_of::<V>())?;
    let mut value = std::mem::MaybeUninit::<V>::uninit();
    // SAFETY: the kernel reads a key and writes a value of the sizes that were just checked.
    done(unsafe {
        libbpf_sys::bpf_map_lookup_elem(
            map.as_raw_fd(),
            (&raw const *key).cast(),
            value.as_mut_ptr().cast(),
        )
    })?;
    // SAFETY: the kernel has written the whole value, and every bit pattern is one.
    Ok(unsafe { value.assume_init() })
}

/// Deletes an element of a map; it is not an error if there is none.
pub fn delete<K: Plain>(map: &OwnedFd, key: &K) -> io::Result<()> {
    check_sizes(map, size_of::<K>(), info(map.as_fd())?.value_size as usize)?;
    // SAFETY: the kernel reads a key of the size that was just checked.
    let result =
        unsafe { libbpf_sys::bpf_map_delete_elem(map.as_raw_fd(), (&raw const *key).cast()) };
    if -result == libc::ENOENT {
        return Ok(());
    }
    done(result)
}

/// Sets an element of an array to these bytes.
pub fn update_bytes(map: &OwnedFd, index: u32, value: &[u8]) -> io::Result<()> {
    check_sizes(map, size_of::<u32>(), value.len())?;
    // SAFETY: the kernel reads a key and a value of the sizes that were just checked.
    done(unsafe {
        libbpf_sys::bpf_map_update_elem(
            map.as_raw_fd(),
            (&raw const index).cast(),
            value.as_ptr().cast(),
            0,
        )
    })
}

/// Reads per-CPU counters, each summed over the CPUs, in one system call (Linux 5.13).
pub fn sums_per_cpu(map: &OwnedFd, keys: Range<u32>) -> io::Result<Vec<u64>> {
    // SAFETY: plain query.
    let cpus = unsafe { libbpf_sys::libbpf_num_possible_cpus() };
    if cpus < 0 {
        return Err(io::Error::from_raw_os_error(-cpus));
    }
    let info = info(map.as_fd())?;
    let expected = (
        libbpf_sys::BPF_MAP_TYPE_PERCPU_ARRAY,
        size_of::<u64>() as u32,
    );
    if (info.type_, info.value_size) != expected || keys.end > info.max_entries {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    if keys.is_empty() {
        return Ok(Vec::new());
    }
    let mut count = keys.end - keys.start;
    let mut read = vec![0u32; count as usize];
    let mut values = vec![0u64; count as usize * cpus as usize];
    // A batch continues after a key.
    let before = keys.start.checked_sub(1);
    let in_batch = before.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    let mut out_batch = 0u32;
    // SAFETY: the map is an array with a word per CPU (just checked), and the kernel writes at most `count` keys, and for each
    // the word of each possible CPU. It reads one key at `in_batch`, if there is one, and writes one at `out_batch`.
    let result = unsafe {
        libbpf_sys::bpf_map_lookup_batch(
            map.as_raw_fd(),
            in_batch.cast_mut().cast(),
            (&raw mut out_batch).cast(),
            read.as_mut_ptr().cast(),
            values.as_mut_ptr().cast(),
            &raw mut count,
            std::ptr::null(),
        )
    };
    match done(result) {
        // All keys of the map have been read.
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {}
        read => read?,
    }
    if !read.into_iter().eq(keys) {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let per_key = values.chunks_exact(cpus as usize);
    Ok(per_key.map(|of_cpus| of_cpus.iter().sum()).collect())
}

/// Bit of a record's header: not committed yet.
const RECORD_BUSY: u32 = 1 << 31;
/// Bit of a record's header: discarded; skip it.
const RECORD_DISCARD: u32 = 1 << 30;
const RECORD_HEADER_LEN_BYTES: u64 = 8;

/// The consumer's side of a BPF ring buffer.
pub struct UpRing {
    fd: OwnedFd,
    consumer: Mapping,
    producer: Mapping,
    size_bytes: u64,
}

impl UpRing {
    /// `size_bytes` is the map's max_entries.
    pub fn new(fd: OwnedFd, size_bytes: usize) -> Result<UpRing, XdpError> {
        let page = page_bytes();
        let consumer = Mapping::new(fd.as_fd(), page, 0, true).doing("mapping the ring buffer")?;
        // The producer's page, then the data mapped twice, so that a record never wraps.
        let producer = Mapping::new(fd.as_fd(), page + 2 * size_bytes, page, false)
            .doing("mapping the ring buffer")?;
        Ok(UpRing {
            fd,
            consumer,
            producer,
            size_bytes: size_bytes as u64,
        })
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    pub fn memory_bytes(&self) -> usize {
        self.size_bytes as usize + 2 * page_bytes()
    }

    /// Returns whether there is a record, committed or not.
    pub fn has_record(&self) -> bool {
        // SAFETY: as in `poll`.
        let consumer = unsafe { AtomicU64::from_ptr(self.consumer.base.cast()) };
        // SAFETY: as in `poll`.
        let producer = unsafe { AtomicU64::from_ptr(self.producer.base.cast()) };
        fence(Ordering::SeqCst);
        consumer.load(Ordering::Relaxed) < producer.load(Ordering::Acquire)
    }

    /// Passes every committed record to `deliver`, without blocking. Returns their number.
    pub fn poll(&mut self, mut deliver: impl FnMut(&[u8])) -> usize {
        // SAFETY: the kernel keeps the two positions as aligned words at the start of the pages.
        let consumer = unsafe { AtomicU64::from_ptr(self.consumer.base.cast()) };
        // SAFETY: as above; never written through this reference.
        let producer = unsafe { AtomicU64::from_ptr(self.producer.base.cast()) };
        let mut delivered = 0;
        let mut position = consumer.load(Ordering::Relaxed);
        loop {
            let end = producer.load(Ordering::Acquire);
            if position >= end {
                return delivered;
            }
            while position < end {
                let at = page_bytes() + (position & (self.size_bytes - 1)) as usize;
                // SAFETY: `at` lies within the data, which is mapped twice in a row.
                let record = unsafe { self.producer.base.cast::<u8>().add(at) };
                // SAFETY: a record begins with an aligned 32-bit header that the kernel commits
                // atomically.
                let header = unsafe { AtomicU32::from_ptr(record.cast()) }.load(Ordering::Acquire);
                if header & RECORD_BUSY != 0 {
                    return delivered;
                }
                let room_bytes = (header & !RECORD_DISCARD) as usize;
                if header & RECORD_DISCARD == 0 {
                    // SAFETY: the record is committed, so nobody writes it until the consumer's
                    // position passes it, which happens after `deliver` returned.
                    let room = unsafe {
                        std::slice::from_raw_parts(
                            record.add(RECORD_HEADER_LEN_BYTES as usize),
                            room_bytes,
                        )
                    };
                    deliver(packet_in(room));
                    delivered += 1;
                }
                position += (room_bytes as u64 + RECORD_HEADER_LEN_BYTES).next_multiple_of(8);
                consumer.store(position, Ordering::Release);
            }
            // The kernel wakes us only if it sees that we had caught up: our position must be visible before we check
            // whether there is more.
            fence(Ordering::SeqCst);
        }
    }
}

/// Returns the packet at the start of a record; records have a few fixed sizes.
fn packet_in(room: &[u8]) -> &[u8] {
    let at = std::mem::offset_of!(crate::c::ib_header, value_len_bytes);
    let value_len_bytes = usize::from(u16::from_be_bytes([room[at], room[at + 1]]));
    let len_bytes = HEADER_LEN_BYTES + value_len_bytes;
    &room[..len_bytes.min(room.len()).min(PACKET_LEN_MAX_BYTES)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::xdp::programs::load_object;

    /// The kernel reads and writes as many bytes as the map's sizes say, regardless of the caller's buffer.
    #[test]
    fn a_map_takes_only_keys_and_values_of_its_size() {
        let trial = match load_object("trial", crate::objects::TRIAL, None, &[], &[]) {
            Err(error @ XdpError::Privilege { .. }) => return inband_testing::not_run(error),
            other => other.unwrap(),
        };
        let state = trial.map("ib_trial_map").unwrap();
        let generic = load_object("generic", crate::objects::GENERIC, None, &[], &[]).unwrap();
        let counters = generic.map("ib_counters_map").unwrap();
        let known: c::ib_trial = lookup(&state, &0u32).unwrap();
        update(&state, &0u32, &known).unwrap();
        let refused = [
            update(&state, &0u32, &7u32),
            update(&state, &0u64, &known),
            lookup::<u32, u64>(&state, &0).map(drop),
            delete(&state, &0u64),
            update_bytes(&state, 0, &[0; 7]),
            // A per-CPU map has one word for every CPU.
            lookup::<u32, u64>(&counters, &0).map(drop),
            sums_per_cpu(&state, 0..1).map(drop),
            sums_per_cpu(&counters, 0..c::IB_REASONS_MAX + 1).map(drop),
        ];
        for (at, result) in refused.into_iter().enumerate() {
            let kind = result.map_err(|error| error.kind());
            assert_eq!(kind, Err(io::ErrorKind::InvalidInput), "use {at}");
        }
        let max = c::IB_REASONS_MAX;
        for keys in [0..max, 0..1, 1..max - 1, max - 1..max, 7..7] {
            let sums = sums_per_cpu(&counters, keys.clone()).unwrap();
            assert_eq!(sums, vec![0; keys.len()], "{keys:?}");
        }
        let few: Result<Shared<u64>, _> = map_array(state.as_fd());
        assert!(few.is_err());
    }
}
