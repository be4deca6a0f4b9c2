//! Memory of 64-bit words that processes can share.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use inband_ground::registers::Shared;
use nix::sys::memfd::{memfd_create, MFdFlags};

use super::CHUNK_WORDS;
use crate::c;

/// The words of a memory file, or of a BPF map. Each is accessed only by atomic instructions, so there are no data races.
pub struct Region {
    words: NonNull<AtomicU64>,
    len_words: usize,
    memory: Memory,
}

enum Memory {
    /// Our own mapping of a file.
    File(OwnedFd),
    /// A mapped array, which the packet program also reads.
    Map { _owner: Shared<c::ib_box_chunk> },
}

// SAFETY: the memory is accessed only through atomics (by the packet program: through whole words that it does not
// trust before it has checked the sequence), and unmapped when the region is dropped.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// Creates a region of zeros.
    pub fn zeroed(len_words: usize) -> io::Result<Region> {
        let file = memfd_create(c"inband-box-store", MFdFlags::MFD_CLOEXEC)?;
        let len_bytes = len_words * size_of::<u64>();
        nix::unistd::ftruncate(&file, len_bytes as i64)?;
        Region::map(file, len_words)
    }

    /// Maps a memory file that another process, or this one, has created.
    pub fn map(file: OwnedFd, len_words: usize) -> io::Result<Region> {
        let size = nix::sys::stat::fstat(&file)?.st_size as u64;
        let len_bytes = len_words.checked_mul(size_of::<u64>());
        let len_bytes = len_bytes.filter(|len| (1..=size).contains(&(*len as u64)));
        let Some(len_bytes) = len_bytes else {
            let what = format!("a store of {len_words} words in {size} bytes");
            return Err(io::Error::other(what));
        };
        // SAFETY: a new mapping at an address that the kernel chooses. The file is at least as long.
        let at = unsafe {
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            let null = std::ptr::null_mut();
            libc::mmap(
                null,
                len_bytes,
                protection,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let Some(at) = NonNull::new(at) else {
            return Err(io::Error::other("the kernel maps to address 0"));
        };
        Ok(Region {
            words: at.cast(),
            len_words,
            memory: Memory::File(file),
        })
    }

    /// Uses the memory of a map (`IB_REGISTERS`).
    ///
    /// # Panics
    /// If the map has no element.
    pub fn of_map(chunks: Shared<c::ib_box_chunk>) -> Region {
        assert!(chunks.count() > 0, "an empty map");
        Region {
            words: NonNull::new(chunks.as_ptr().cast()).expect("mapped"),
            len_words: chunks.count() * CHUNK_WORDS,
            memory: Memory::Map { _owner: chunks },
        }
    }

    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping has this many words, is page-aligned, and lives as long as self.
        unsafe { std::slice::from_raw_parts(self.words.as_ptr(), self.len_words) }
    }

    /// Returns the file, for other processes; `None` if it is a map.
    pub fn file(&self) -> Option<&OwnedFd> {
        match &self.memory {
            Memory::File(file) => Some(file),
            Memory::Map { .. } => None,
        }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        let Memory::File(_) = self.memory else {
            return; // a map's owner unmaps it
        };
        // SAFETY: the mapping is ours and of this length, and no reference outlives self.
        unsafe {
            libc::munmap(
                self.words.as_ptr().cast(),
                self.len_words * size_of::<u64>(),
            )
        };
    }
}
