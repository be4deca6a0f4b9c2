//! Processes that do not outlive whoever started them.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Have the system kill what this starts once the thread that starts it ends, however that happens. Not what it
/// starts in turn. It is forked, so not for processes of others, whose libraries may have something to do at a fork
/// (`inband` as a package of Python): there, what is started calls [`end_with_parent`].
pub fn end_with_thread(command: &mut Command) -> &mut Command {
    let parent = std::process::id();
    let in_child = move || {
        end_with_parent()?;
        // SAFETY: getppid takes nothing and cannot fail.
        let is_orphan = unsafe { libc::getppid() }.unsigned_abs() != parent;
        // It ended before the signal was noted.
        if is_orphan {
            return Err(io::Error::from_raw_os_error(libc::ECHILD));
        }
        Ok(())
    };
    // SAFETY: between fork and exec it makes two system calls, and neither allocates nor locks.
    unsafe { command.pre_exec(in_child) }
}

/// Have the system kill this process once the thread that has started it ends; one that has ended already is not noticed.
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
