//! userfaultfd(2): reading and resolving faults. (The crate `userfaultfd` would add a second `nix` and its own
//! `bindgen` run, for four calls.)

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use super::{Page, PAGE_LEN_BYTES};

/// `struct uffd_msg`.
const MESSAGE_LEN_BYTES: usize = 32;
const EVENT_PAGEFAULT: u8 = 0x12;
/// `UFFDIO_WRITEPROTECT_MODE_WP`
const PROTECT: u64 = 1;

/// `_IOWR(0xAA, number, struct of so many bytes)`
const fn ioctl_number(direction: u64, number: u64, len: usize) -> u64 {
    direction << 30 | (len as u64) << 16 | 0xAA << 8 | number
}

const WAKE: u64 = ioctl_number(2, 0x02, size_of::<Range>());
const COPY: u64 = ioctl_number(3, 0x03, size_of::<Copy>());
const ZEROPAGE: u64 = ioctl_number(3, 0x04, size_of::<ZeroPage>());
const WRITEPROTECT: u64 = ioctl_number(3, 0x06, size_of::<WriteProtect>());

#[repr(C)]
struct Range {
    start: u64,
    len: u64,
}

#[repr(C)]
struct Copy {
    to: u64,
    from: u64,
    len: u64,
    mode: u64,
    copied: i64,
}

#[repr(C)]
struct ZeroPage {
    range: Range,
    mode: u64,
    zeroed: i64,
}

#[repr(C)]
struct WriteProtect {
    range: Range,
    mode: u64,
}

/// The page faults of a program's region.
pub struct Uffd {
    fd: OwnedFd,
    /// The region's address in the program.
    base: u64,
}

impl Uffd {
    /// Wraps the userfaultfd that the program has opened (non-blocking) and registered.
    pub fn new(fd: OwnedFd, base: u64) -> Uffd {
        Uffd { fd, base }
    }

    /// Returns the file descriptor, to poll for faults.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Appends the pages that threads of the program are waiting for, at most `limit`, without blocking.
    pub fn read(&self, pages: &mut Vec<u64>, limit: usize) -> io::Result<()> {
        let mut messages = [0; MESSAGE_LEN_BYTES * 16];
        let room = messages.len().min(limit * MESSAGE_LEN_BYTES);
        // SAFETY: `messages` has that much room.
        let got = unsafe { libc::read(self.fd.as_raw_fd(), messages.as_mut_ptr().cast(), room) };
        if got < 0 {
            return match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
                error if error.kind() == io::ErrorKind::Interrupted => Ok(()),
                error => Err(error),
            };
        }
        for message in messages[..got as usize].chunks_exact(MESSAGE_LEN_BYTES) {
            if message[0] == EVENT_PAGEFAULT {
                let address = u64::from_ne_bytes(message[16..24].try_into().expect("8 bytes"));
                pages.push((address - self.base) / PAGE_LEN_BYTES as u64);
            }
        }
        Ok(())
    }

    fn range(&self, page: u64, pages: u64) -> Range {
        Range {
            start: self.base + page * PAGE_LEN_BYTES as u64,
            len: pages * PAGE_LEN_BYTES as u64,
        }
    }

    fn ioctl<T>(&self, number: u64, argument: &mut T) -> io::Result<()> {
        loop {
            // SAFETY: `number` belongs to the type of `argument`, as the callers show.
            let status =
                unsafe { libc::ioctl(self.fd.as_raw_fd(), number as _, &raw mut *argument) };
            if status == 0 {
                return Ok(());
            }
            let error = io::Error::last_os_error();
            match error.raw_os_error() {
                // The program's mappings are being changed.
                Some(libc::EAGAIN | libc::EINTR) => std::thread::yield_now(),
                _ => return Err(error),
            }
        }
    }

    /// Evaluates the result of mapping a page. Returns whether the program now has the page.
    fn shown(&self, page: u64, done: io::Result<()>) -> io::Result<bool> {
        match done {
            Ok(()) => Ok(true),
            Err(error) => match error.raw_os_error() {
                // It was mapped already, which does not wake the program.
                Some(libc::EEXIST) => self.wake(page).map(|()| true),
                // The program has ended, executed another program or unmapped the region.
                Some(libc::ESRCH | libc::ENOENT) => Ok(false),
                _ => Err(error),
            },
        }
    }

    /// Maps this page in the program, writable, and wakes the threads that wait for it. Returns false if the program is
    /// gone.
    pub fn copy(&self, page: u64, from: &Page) -> io::Result<bool> {
        let mut copy = Copy {
            to: self.range(page, 1).start,
            from: from.as_ptr() as u64,
            len: PAGE_LEN_BYTES as u64,
            mode: 0,
            copied: 0,
        };
        let done = self.ioctl(COPY, &mut copy);
        self.shown(page, done)
    }

    /// Like [`Uffd::copy`], with a page of zeros.
    pub fn zero(&self, page: u64) -> io::Result<bool> {
        let mut zero = ZeroPage {
            range: self.range(page, 1),
            mode: 0,
            zeroed: 0,
        };
        let done = self.ioctl(ZEROPAGE, &mut zero);
        self.shown(page, done)
    }

    /// Wakes the threads that wait for this page, so that they access it again.
    pub fn wake(&self, page: u64) -> io::Result<()> {
        let mut range = self.range(page, 1);
        self.ioctl(WAKE, &mut range)
    }

    /// Write-protects these pages: from now on a thread that writes to them waits. Returns false if not all of them
    /// could be protected because they lie in several mappings (mprotect and mlock split one), which Linux before 6.3
    /// cannot do in one call.
    pub fn write_protect(&self, page: u64, pages: u64) -> io::Result<bool> {
        let mut protect = WriteProtect {
            range: self.range(page, pages),
            mode: PROTECT,
        };
        match self.ioctl(WRITEPROTECT, &mut protect) {
            Ok(()) => Ok(true),
            Err(error) => match error.raw_os_error() {
                Some(libc::ENOENT) => Ok(false),
                // Nobody is left who could write.
                Some(libc::ESRCH) => Ok(true),
                _ => Err(error),
            },
        }
    }
}
