//! Child processes that die with their parent.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Makes the kernel kill the child when the thread that spawns it ends, for whatever reason. This does not cover the
/// child's own children. It makes `Command` fork, so it must not be used in processes that host other libraries, which
/// may have fork handlers (`inband` as a Python package); there, the child calls [`end_with_parent`] instead.
pub fn end_with_thread(command: &mut Command) -> &mut Command {
    let parent = std::process::id();
    let in_child = move || {
        end_with_parent()?;
        // SAFETY: getppid takes nothing and cannot fail.
        let is_orphan = unsafe { libc::getppid() }.unsigned_abs() != parent;
        // The parent died before prctl.
        if is_orphan {
            return Err(io::Error::from_raw_os_error(libc::ECHILD));
        }
        Ok(())
    };
    // SAFETY: between fork and exec it makes two system calls, and neither allocates nor locks.
    unsafe { command.pre_exec(in_child) }
}

/// Makes the kernel kill this process when the thread that started it ends. Has no effect if that thread has already
/// ended.
pub fn end_with_parent() -> io::Result<()> {
    // SAFETY: prctl with PR_SET_PDEATHSIG only notes a signal's number.
    match unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use std::process::Stdio;

    use super::*;

    #[test]
    fn a_child_ends_with_its_thread() {
        let start = || {
            let mut command = Command::new("sleep");
            command.arg("600").stdout(Stdio::null());
            end_with_thread(&mut command).spawn().expect("it starts")
        };
        let started = std::thread::spawn(start).join();
        let how = started.expect("a child").wait().expect("it ends");
        assert!(!how.success(), "{how}");
    }
}
