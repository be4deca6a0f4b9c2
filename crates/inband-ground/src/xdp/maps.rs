//! Maps of loaded programs: arrays mapped into this process, elements, the ring buffer.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{fence, AtomicU32, AtomicU64, Ordering};

use super::error::{Doing, XdpError};
use crate::registers::Shared;
use crate::wire::{HEADER_LEN_BYTES, PACKET_LEN_MAX_BYTES};

/// Bytes of a page, as the kernel has it.
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

/// Map an MMAPABLE array of `count` values.
pub fn map_array<T>(fd: BorrowedFd<'_>, count: usize) -> Result<Shared<T>, XdpError> {
    const {
        assert!(
            size_of::<T>() % 8 == 0,
            "the kernel rounds values up to 8 bytes"
        )
    };
    let len_bytes = (count * size_of::<T>()).next_multiple_of(page_bytes());
    let mapping = Mapping::new(fd, len_bytes, 0, true).doing("mapping registers")?;
    let base = mapping.base.cast::<T>();
    // SAFETY: the mapping is page-aligned, holds `count` values of T and lives in the owner.
    Ok(unsafe { Shared::from_raw(base, count, Box::new(mapping)) })
}

/// Set an element of a map.
pub fn update<K, V>(map: &OwnedFd, key: &K, value: &V) -> io::Result<()> {
    // SAFETY: K and V are the map's key and value types: plain structs of the size it was made with.
    let result = unsafe {
        libbpf_sys::bpf_map_update_elem(
            map.as_raw_fd(),
            (&raw const *key).cast(),
            (&raw const *value).cast(),
            0,
        )
    };
    if result < 0 {
        return Err(io::Error::from_raw_os_error(-result));
    }
    Ok(())
}

/// An element of a map that has one for every key.
pub fn lookup<K, V>(map: &OwnedFd, key: &K) -> io::Result<V> {
    let mut value = std::mem::MaybeUninit::<V>::uninit();
    // SAFETY: K and V are the map's key and value types: plain structs of the size it was made with.
    let result = unsafe {
        libbpf_sys::bpf_map_lookup_elem(
            map.as_raw_fd(),
            (&raw const *key).cast(),
            value.as_mut_ptr().cast(),
        )
    };
    if result < 0 {
        return Err(io::Error::from_raw_os_error(-result));
    }
    // SAFETY: the kernel has written the whole value.
    Ok(unsafe { value.assume_init() })
}

/// Empty an element of a map that may be empty already.
pub fn delete<K>(map: &OwnedFd, key: &K) -> io::Result<()> {
    // SAFETY: K is the map's key type: a plain struct of the size it was made with.
    let result =
        unsafe { libbpf_sys::bpf_map_delete_elem(map.as_raw_fd(), (&raw const *key).cast()) };
    if result < 0 && -result != libc::ENOENT {
        return Err(io::Error::from_raw_os_error(-result));
    }
    Ok(())
}

/// Set an element of an array whose value size is checked.
pub fn update_bytes(map: &OwnedFd, index: u32, value: &[u8]) -> io::Result<()> {
    // SAFETY: all zero is a valid value of this plain C struct.
    let mut info: libbpf_sys::bpf_map_info = unsafe { std::mem::zeroed() };
    let mut len = size_of::<libbpf_sys::bpf_map_info>() as u32;
    // SAFETY: the kernel writes at most `len` bytes of the struct.
    let result =
        unsafe { libbpf_sys::bpf_map_get_info_by_fd(map.as_raw_fd(), &raw mut info, &raw mut len) };
    if result < 0 {
        return Err(io::Error::from_raw_os_error(-result));
    }
    if info.value_size as usize != value.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: an index is the key of an array, and the value has the size that the kernel reads.
    let result = unsafe {
        libbpf_sys::bpf_map_update_elem(
            map.as_raw_fd(),
            (&raw const index).cast(),
            value.as_ptr().cast(),
            0,
        )
    };
    if result < 0 {
        return Err(io::Error::from_raw_os_error(-result));
    }
    Ok(())
}

/// A per-CPU counter summed over the CPUs.
pub fn sum_per_cpu(map: &OwnedFd, key: u32) -> io::Result<u64> {
    // SAFETY: plain query.
    let cpus = unsafe { libbpf_sys::libbpf_num_possible_cpus() };
    if cpus < 0 {
        return Err(io::Error::from_raw_os_error(-cpus));
    }
    let mut values = vec![0u64; cpus as usize];
    // SAFETY: the kernel writes one u64 per possible CPU.
    let result = unsafe {
        libbpf_sys::bpf_map_lookup_elem(
            map.as_raw_fd(),
            (&raw const key).cast(),
            values.as_mut_ptr().cast(),
        )
    };
    if result < 0 {
        return Err(io::Error::from_raw_os_error(-result));
    }
    Ok(values.iter().sum())
}

/// Bit of a record's header: not committed yet.
const RECORD_BUSY: u32 = 1 << 31;
/// Bit of a record's header: to be skipped.
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
        // Producer's page, then the data twice, so that a record never wraps.
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

    /// Bytes of memory.
    pub fn memory_bytes(&self) -> usize {
        self.size_bytes as usize + 2 * page_bytes()
    }

    /// Is a record there, committed or about to be?
    pub fn has_record(&self) -> bool {
        // SAFETY: as in `poll`.
        let consumer = unsafe { AtomicU64::from_ptr(self.consumer.base.cast()) };
        // SAFETY: as in `poll`.
        let producer = unsafe { AtomicU64::from_ptr(self.producer.base.cast()) };
        fence(Ordering::SeqCst);
        consumer.load(Ordering::Relaxed) < producer.load(Ordering::Acquire)
    }

    /// Hand every committed record to `deliver`, without waiting. Returns how many.
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
            // The kernel wakes us only if it sees that we had caught up: our position must be
            // visible before we look whether it has gone on.
            fence(Ordering::SeqCst);
        }
    }
}

/// The packet at the start of a record's room, which is one of a few sizes.
fn packet_in(room: &[u8]) -> &[u8] {
    let at = std::mem::offset_of!(crate::c::ib_header, value_len_bytes);
    let value_len_bytes = usize::from(u16::from_be_bytes([room[at], room[at + 1]]));
    let len_bytes = HEADER_LEN_BYTES + value_len_bytes;
    &room[..len_bytes.min(room.len()).min(PACKET_LEN_MAX_BYTES)]
}
