//! The region as this process sees it: a memfd shared with the program.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use nix::sys::memfd::{memfd_create, MFdFlags};

use super::{Page, PAGE_LEN_BYTES, ZERO_PAGE};

/// The region's name in /proc/PID/maps.
pub const REGION_NAME: &str = "inband-memory";

/// A memfd, mapped read-only.
pub struct Region {
    fd: OwnedFd,
    base: NonNull<Page>,
    pages: u64,
}

// SAFETY: the mapping is only read, by copying (`page`); the buffer decides which thread may read which page.
unsafe impl Send for Region {}
// SAFETY: the same.
unsafe impl Sync for Region {}

impl Region {
    /// Creates a region of `pages` pages, none of which takes memory yet.
    pub fn new(pages: u64) -> io::Result<Region> {
        let fd = memfd_create(c"inband-memory", MFdFlags::MFD_CLOEXEC)?;
        let len = usize::try_from(pages)
            .ok()
            .and_then(|n| n.checked_mul(PAGE_LEN_BYTES));
        let len = len.ok_or(io::ErrorKind::InvalidInput)?;
        let file = File::from(fd);
        file.set_len(len as u64)?;
        let fd = OwnedFd::from(file);
        let flags = libc::MAP_SHARED | libc::MAP_NORESERVE;
        // SAFETY: a new mapping, of a file that is at least as long.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_READ,
                flags,
                fd.as_raw_fd(),
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Region { fd, base, pages })
    }

    /// Returns the file descriptor to pass to the program.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Returns the inode, by which the program checks that it was given the right file.
    pub fn inode(&self) -> io::Result<u64> {
        Ok(nix::sys::stat::fstat(&self.fd)?.st_ino)
    }

    /// Returns the current content of a page. Only for mapped pages: reading another one would allocate a frame for it.
    pub fn page(&self, page: u64) -> Arc<Page> {
        assert!(page < self.pages);
        let mut copy = Arc::new(ZERO_PAGE);
        let to: *mut Page = Arc::get_mut(&mut copy).expect("it is new");
        // SAFETY: the page lies in the mapping. The program may write to it concurrently, as another process may write
        // to any shared mapping, and any bytes are a valid page. Where it matters the page is write-protected.
        unsafe { std::ptr::copy_nonoverlapping(self.base.as_ptr().add(page as usize), to, 1) };
        copy
    }

    /// Frees the frames of these pages: the program's next access faults.
    pub fn punch(&self, page: u64, pages: u64) -> io::Result<()> {
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        let (at, len) = (page * PAGE_LEN_BYTES as u64, pages * PAGE_LEN_BYTES as u64);
        // SAFETY: no memory is passed.
        let status = unsafe { libc::fallocate(self.fd.as_raw_fd(), mode, at as i64, len as i64) };
        match status {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        let len = self.pages as usize * PAGE_LEN_BYTES;
        // SAFETY: mapped in `new` with this length, and nothing refers to it any more.
        unsafe { libc::munmap(self.base.as_ptr().cast(), len) };
    }
}
