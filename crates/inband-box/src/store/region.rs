//! Memory of 64-bit words that processes can share.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use nix::sys::memfd::{memfd_create, MFdFlags};

/// The words of a memory file. Each is accessed only by atomic instructions, so there are no data races.
pub struct Region {
    words: NonNull<AtomicU64>,
    len_words: usize,
    file: OwnedFd,
}

// SAFETY: the memory is accessed only through atomics, and unmapped once nobody has the region any more.
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
            file,
        })
    }

    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping has this many words, is page-aligned, and lives as long as self.
        unsafe { std::slice::from_raw_parts(self.words.as_ptr(), self.len_words) }
    }

    /// Returns the file, for other processes.
    pub fn file(&self) -> &OwnedFd {
        &self.file
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and of this length, and no reference outlives self.
        unsafe {
            libc::munmap(
                self.words.as_ptr().cast(),
                self.len_words * size_of::<u64>(),
            )
        };
    }
}
