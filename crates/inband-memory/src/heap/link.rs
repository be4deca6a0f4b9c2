//! The socket between the pager and the library in the program (`crates/inband-memory-heap/src/heap.c` is the other
//! end).

use std::io::{self, IoSliceMut};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use nix::sys::socket::{recvmsg, send, ControlMessageOwned, MsgFlags, RecvMsg};

const MESSAGE_LEN_BYTES: usize = 24;
const OP_HELLO: u32 = 1;
const OP_FLUSH: u32 = 2;
const OP_ACQUIRE: u32 = 3;
const OP_RELEASE: u32 = 4;

/// A message from the library.
#[derive(Debug)]
pub enum Message {
    /// The region is mapped and registered.
    Hello {
        /// Faults in the kernel fail there with `EFAULT`.
        user_mode_only: bool,
        /// The region's address in the program.
        base: u64,
        /// The userfaultfd that delivers the region's faults.
        uffd: OwnedFd,
    },
    /// Write everything back.
    Flush,
    /// Discard the local copy of these bytes.
    Acquire { from: u64, len: u64 },
    /// Write these bytes back.
    Release { from: u64, len: u64 },
}

/// Returns the next message, or `None` when the library is gone.
pub fn receive(socket: &OwnedFd) -> io::Result<Option<Message>> {
    let mut bytes = [0; MESSAGE_LEN_BYTES];
    let mut parts = [IoSliceMut::new(&mut bytes)];
    let mut control = nix::cmsg_space!([std::os::fd::RawFd; 1]);
    let flags = MsgFlags::MSG_CMSG_CLOEXEC;
    let got: RecvMsg<'_, '_, ()> = loop {
        match recvmsg(socket.as_raw_fd(), &mut parts, Some(&mut control), flags) {
            Err(nix::errno::Errno::EINTR) => {}
            got => break got?,
        }
    };
    let mut uffd = None;
    for message in got.cmsgs()? {
        if let ControlMessageOwned::ScmRights(fds) = message {
            for fd in fds {
                // SAFETY: the kernel has just created it for this process.
                uffd = Some(unsafe { OwnedFd::from_raw_fd(fd) });
            }
        }
    }
    match got.bytes {
        0 => return Ok(None),
        MESSAGE_LEN_BYTES => {}
        _ => return Err(io::ErrorKind::InvalidData.into()),
    }
    let word = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
    let (head, from, len) = (word(0), word(8), word(16));
    let (op, user_mode_only) = (head as u32, head >> 32 != 0);
    match (op, uffd) {
        (OP_HELLO, Some(uffd)) => Ok(Some(Message::Hello {
            user_mode_only,
            base: from,
            uffd,
        })),
        (OP_FLUSH, None) => Ok(Some(Message::Flush)),
        (OP_ACQUIRE, None) => Ok(Some(Message::Acquire { from, len })),
        (OP_RELEASE, None) => Ok(Some(Message::Release { from, len })),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Answers the last message: 0, or the value for `errno`.
pub fn answer(socket: &OwnedFd, error: i32) -> io::Result<()> {
    send(
        socket.as_raw_fd(),
        &error.to_ne_bytes(),
        MsgFlags::MSG_NOSIGNAL,
    )?;
    Ok(())
}
