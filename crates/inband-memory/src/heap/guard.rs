//! A process that outlives the pager. If the pager is killed, the program would wait for its pages forever; the guard
//! reports what happened and ends the program. (The program holds a file descriptor of its own userfaultfd, so its
//! pages do not turn into zeros in the meantime.)

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};

use nix::sys::signal::{SigSet, SigmaskHow};
use nix::unistd::{close, fork, pipe2, ForkResult};

/// Sent when the pager has finished, after the pid of the program.
const DONE: u8 = 1;

/// The pager's end of the connection to the guard.
pub struct Guard(File);

impl Guard {
    /// Starts a guard. Must be called before any thread or connection exists: the guard is a fork of this process.
    pub fn start() -> io::Result<Guard> {
        let (read, write) = pipe2(nix::fcntl::OFlag::O_CLOEXEC)?;
        // SAFETY: this process has one thread, as the contract above says; the child may do anything.
        match unsafe { fork() }? {
            ForkResult::Parent { .. } => Ok(Guard(write.into())),
            ForkResult::Child => {
                drop(write);
                watch(read)
            }
        }
    }

    /// Tells the guard which program to end.
    pub fn program(&mut self, pid: u32) -> io::Result<()> {
        self.0.write_all(&pid.to_ne_bytes())
    }
}

impl Drop for Guard {
    /// Ends the guard: the program has ended, or ends with this process.
    fn drop(&mut self) {
        // A guard that was killed need not be told.
        let _ = self.0.write_all(&[DONE]);
    }
}

fn watch(pager: OwnedFd) -> ! {
    // Ctrl-C is for the program; the guard ends when the pager does.
    let _ = nix::sys::signal::pthread_sigmask(SigmaskHow::SIG_BLOCK, Some(&SigSet::all()), None);
    for fd in 3..64 {
        if fd != pager.as_raw_fd() {
            let _ = close(fd);
        }
    }
    // A reader of the program's output would otherwise wait for the guard to close it.
    let _ = (close(0), close(1));
    let mut pager = File::from(pager);
    let mut pid = [0; 4];
    if pager.read_exact(&mut pid).is_ok() {
        let pid = i32::from_ne_bytes(pid);
        // SAFETY: no memory is passed. A pidfd, because the number may belong to another process by the time it is
        // used.
        let program = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
        let mut done = [0];
        if pager.read_exact(&mut done).is_err() {
            // SAFETY: no memory is passed.
            unsafe {
                libc::syscall(libc::SYS_pidfd_send_signal, program, libc::SIGKILL, 0, 0);
            }
            eprintln!("inband memory: the pager was killed: the program (process {pid}) has lost its heap and was ended");
        }
    }
    // SAFETY: ends the process without running the exit handlers that the pager has registered.
    unsafe { libc::_exit(0) }
}
