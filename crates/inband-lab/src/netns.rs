//! Network namespaces: create, enter, remove.
//!
//! Only a thread enters a namespace, never the whole process: the thread runs a closure there and ends. Child processes
//! that it starts inherit the namespace. So no code between fork and exec is needed, and the rest of the process stays
//! where it is.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::mount::{mount, umount2, MntFlags, MsFlags};
use nix::sched::{setns, unshare, CloneFlags};
use nix::sys::signal::{kill, Signal};
use nix::unistd::Pid;

use crate::error::LabError;

/// Directory of named namespaces, as used by `ip netns`.
pub const NETNS_DIR: &str = "/run/netns";

/// A named network namespace. Removed on drop.
#[derive(Debug)]
pub struct Netns {
    name: String,
    file: File,
}

impl Netns {
    /// Creates a namespace. It is visible to `ip netns` under the same name.
    pub fn create(name: &str) -> Result<Self, LabError> {
        share_netns_dir()?;
        let path = path_of(name);
        OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(&path)
            .map_err(LabError::file("create", &path))?;
        let made = in_new_thread(|| -> Result<File, LabError> {
            unshare(CloneFlags::CLONE_NEWNET).map_err(|errno| match errno {
                Errno::EINVAL => LabError::NoNamespaces,
                other => LabError::system("make a network namespace")(other),
            })?;
            // Only IPv4 addresses are used, and router and multicast traffic is unwanted on links whose frames tests
            // count. A kernel without IPv6 has no such file.
            for which in ["all", "default"] {
                let _ = fs::write(format!("/proc/sys/net/ipv6/conf/{which}/disable_ipv6"), "1");
            }
            mount(
                Some("/proc/thread-self/ns/net"),
                &path,
                None::<&str>,
                MsFlags::MS_BIND,
                None::<&str>,
            )
            .map_err(LabError::system(format!("mount namespace {name}")))?;
            File::open(&path).map_err(LabError::file("open", &path))
        });
        match made {
            Ok(file) => Ok(Self {
                name: name.to_owned(),
                file,
            }),
            Err(error) => {
                let _ = umount2(&path, MntFlags::MNT_DETACH);
                let _ = fs::remove_file(&path);
                Err(error)
            }
        }
    }

    /// Returns the name, for `ip netns exec`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Runs a closure in the namespace, on a separate thread, and waitss for it.
    pub fn run<T: Send>(
        &self,
        f: impl FnOnce() -> Result<T, LabError> + Send,
    ) -> Result<T, LabError> {
        in_new_thread(|| {
            self.enter()?;
            f()
        })
    }

    /// Moves the calling thread into the namespace permanently.
    pub fn enter(&self) -> Result<(), LabError> {
        setns(&self.file, CloneFlags::CLONE_NEWNET)
            .map_err(LabError::system(format!("enter namespace {}", self.name)))
    }

    /// Returns a second handle to the same namespace, which removes nothing on drop.
    pub fn handle(&self) -> Result<NetnsHandle, LabError> {
        let file = self
            .file
            .try_clone()
            .map_err(LabError::system("copy a namespace handle"))?;
        Ok(NetnsHandle { file })
    }
}

impl Drop for Netns {
    fn drop(&mut self) {
        unname(&self.name);
    }
}

/// Lets a thread enter a namespace that another handle owns.
#[derive(Debug)]
pub struct NetnsHandle {
    file: File,
}

impl NetnsHandle {
    /// Moves the calling thread into the namespace permanently.
    pub fn enter(&self) -> Result<(), LabError> {
        setns(&self.file, CloneFlags::CLONE_NEWNET).map_err(LabError::system("enter a namespace"))
    }
}

/// Removes a crashed owner's namespace: the processes in it and its name.
pub fn remove_leftover(name: &str) {
    let path = path_of(name);
    if let Ok(namespace) = fs::metadata(&path) {
        for pid in processes_in(namespace.dev(), namespace.ino()) {
            tracing::info!(namespace = name, %pid, "killing a process left by a crashed lab");
            let _ = kill(pid, Signal::SIGKILL);
        }
    }
    unname(name);
}

fn path_of(name: &str) -> PathBuf {
    Path::new(NETNS_DIR).join(name)
}

fn unname(name: &str) {
    let path = path_of(name);
    // Both fail harmlessly if the namespace has already been removed.
    let _ = umount2(&path, MntFlags::MNT_DETACH);
    let _ = fs::remove_file(&path);
}

fn processes_in(dev: u64, ino: u64) -> Vec<Pid> {
    let Ok(proc) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    proc.flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok())
        .filter(|pid| {
            fs::metadata(format!("/proc/{pid}/ns/net"))
                .is_ok_and(|m| m.dev() == dev && m.ino() == ino)
        })
        .map(Pid::from_raw)
        .collect()
}

/// Makes /run/netns a shared mount, as `ip netns` does: a namespace removed here is then also removed in all mount
/// namespaces that `ip netns exec` created. Done under a lock, because concurrent callers would mount it twice.
fn share_netns_dir() -> Result<(), LabError> {
    fs::create_dir_all(NETNS_DIR).map_err(|source| {
        if source.kind() == std::io::ErrorKind::PermissionDenied {
            LabError::NotPrivileged {
                what: "make network namespaces".into(),
            }
        } else {
            LabError::File {
                what: "create",
                path: NETNS_DIR.into(),
                source,
            }
        }
    })?;
    let dir = File::open(NETNS_DIR).map_err(LabError::file("open", NETNS_DIR))?;
    let _lock = Flock::lock(dir, FlockArg::LockExclusive)
        .map_err(|(_, errno)| LabError::system("lock /run/netns")(errno))?;
    let share = || {
        let flags = MsFlags::MS_SHARED | MsFlags::MS_REC;
        mount(None::<&str>, NETNS_DIR, None::<&str>, flags, None::<&str>)
    };
    match share() {
        Err(Errno::EINVAL) => {
            let bind = MsFlags::MS_BIND | MsFlags::MS_REC;
            mount(Some(NETNS_DIR), NETNS_DIR, None::<&str>, bind, None::<&str>)
                .and_then(|()| share())
                .map_err(LabError::system("mount /run/netns"))
        }
        other => other.map_err(LabError::system("share /run/netns")),
    }
}

fn in_new_thread<T: Send>(f: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| match scope.spawn(f).join() {
        Ok(value) => value,
        Err(panic) => std::panic::resume_unwind(panic),
    })
}

/// Runs a tool in the calling thread's namespace, with `input` as its standard input.
pub(crate) fn run_tool(
    tool: &'static str,
    package: &'static str,
    args: &[&str],
    input: &str,
) -> Result<(), LabError> {
    let command = || format!("{tool} {}", args.join(" "));
    let mut child = Command::new(tool)
        .args(args)
        // Administration tools are often missing from a user's PATH.
        .env("PATH", search_path())
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|source| match source.kind() {
            std::io::ErrorKind::NotFound => LabError::ToolMissing { tool, package },
            _ => LabError::System {
                what: format!("run `{}`", command()),
                source,
            },
        })?;
    if let Some(mut stdin) = child.stdin.take() {
        // A tool that fails early closes its input; its exit status is more informative than EPIPE.
        let _ = stdin.write_all(input.as_bytes());
    }
    let output = child
        .wait_with_output()
        .map_err(LabError::system(format!("run `{}`", command())))?;
    if output.status.success() {
        return Ok(());
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    let stderr = stderr.lines().map(str::trim).collect::<Vec<_>>().join("; ");
    if stderr.contains("Operation not permitted") {
        return Err(LabError::NotPrivileged {
            what: format!("run `{}`", command()),
        });
    }
    Err(LabError::Command {
        command: command(),
        stderr,
    })
}

pub(crate) fn search_path() -> String {
    let path = std::env::var("PATH").unwrap_or_default();
    format!("{path}:/usr/sbin:/sbin:/usr/bin:/bin")
}
