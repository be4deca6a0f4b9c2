//! What is there of a cluster whose supervisor does not answer: it is starting, or it was killed.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use inband_host::file_lock;
use inband_host::output::quoted;
use inband_host::text::counted;
use nix::unistd::Pid;

use crate::network::{namespace_prefix, NETNS_DIR};

/// What is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Remains {
    /// A process holds the directory: it starts or stops the cluster.
    Supervisor { pid: String },
    /// Nobody supervises these. Processes of hosts end by themselves when their supervisor is gone.
    Hosts { processes: u64, namespaces: u64 },
}

impl Remains {
    /// Looks for what is left of the cluster in a directory, given its lock file and the name of its network. `None`: nothing.
    pub(crate) fn find(
        data: &Path,
        lock: &str,
        lab: impl FnOnce(&Path) -> String,
    ) -> Option<Remains> {
        let data = fs::canonicalize(data).ok()?;
        if let Some(pid) = file_lock::holder(&data.join(lock)) {
            return Some(Remains::Supervisor { pid });
        }
        let (processes, namespaces) = (processes_of(&data), namespaces_of(&lab(&data)));
        let is_there = processes > 0 || namespaces > 0;
        is_there.then_some(Remains::Hosts {
            processes,
            namespaces,
        })
    }

    /// Says what is there and what to do. `up`: the command that starts the cluster.
    pub(crate) fn in_words(&self, data: &Path, up: &str) -> String {
        let (shown, data) = (data.display(), quoted(data));
        match self {
            Remains::Supervisor { pid } => format!(
                "the cluster in {shown} does not answer: process {pid} is starting, stopping or exporting it; try again once \
                 that is done, or end the process: kill {pid}"
            ),
            Remains::Hosts { processes, namespaces } => {
                let left = match (processes, namespaces) {
                    (_, 0) => processes_in_words(*processes),
                    (0, _) => counted(*namespaces, "network namespace"),
                    _ => format!(
                        "{} and {}",
                        processes_in_words(*processes),
                        counted(*namespaces, "network namespace")
                    ),
                };
                let ends = if *processes > 0 { "processes end within seconds, and " } else { "" };
                format!(
                    "no cluster is running in {shown}: `inband up` was killed, and left {left}; {ends}the next start removes what \
                     is left: {up} --data {data}"
                )
            }
        }
    }
}

fn processes_in_words(processes: u64) -> String {
    match processes {
        1 => "1 process".to_owned(),
        _ => format!("{processes} processes"),
    }
}

/// Returns how many processes of hosts use the directory: those of our programs with a path in it on their command line.
fn processes_of(data: &Path) -> u64 {
    let hosts: PathBuf = data.join("hosts");
    let own = Pid::this().to_string();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let is_host = |entry: &fs::DirEntry| {
        let name = entry.file_name();
        let is_process = name.as_bytes().iter().all(u8::is_ascii_digit);
        let command = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let mut words = command.split(|byte| *byte == 0);
        let program = words
            .next()
            .and_then(|path| path.rsplit(|byte| *byte == b'/').next());
        is_process
            && name != *own
            && program.is_some_and(|name| name.starts_with(b"inband"))
            && words.any(|word| contains(word, hosts.as_os_str().as_bytes()))
    };
    entries.filter(is_host).count() as u64
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|at| at == part)
}

fn namespaces_of(lab: &str) -> u64 {
    let prefix = namespace_prefix(lab);
    let entries = fs::read_dir(NETNS_DIR).into_iter().flatten().flatten();
    let is_ours =
        |entry: &fs::DirEntry| entry.file_name().as_bytes().starts_with(prefix.as_bytes());
    entries.filter(is_ours).count() as u64
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::process::{Command, Stdio};

    use inband_host::file_lock::FileLock;

    use super::*;

    #[test]
    fn a_supervisor_that_starts_and_hosts_of_one_that_was_killed_are_found() {
        let dir = tempfile::tempdir().expect("a directory");
        let data = dir.path();
        let find = || Remains::find(data, "lock", |_| "no-such-lab".to_owned());
        assert_eq!(find(), None);
        assert_eq!(
            Remains::find(&data.join("none"), "lock", |_| "x".to_owned()),
            None
        );

        let lock = FileLock::take(&data.join("lock")).expect("locked");
        let pid = std::process::id().to_string();
        let found = find().expect("it is locked");
        assert_eq!(found, Remains::Supervisor { pid: pid.clone() });
        let said = found.in_words(data, "inband up");
        assert!(
            said.contains(&format!("process {pid} is starting")),
            "{said}"
        );
        drop(lock);

        let program = data.join("inband-host");
        symlink("/bin/sh", &program).expect("a link");
        let config = data.join("hosts/leader-0/config.toml");
        let mut host = Command::new(&program)
            .args(["-c", "read line"])
            .arg(config.canonicalize().unwrap_or(config))
            .stdin(Stdio::piped())
            .spawn()
            .expect("it starts");
        // Until then it is a copy of this process.
        while find().is_none() {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        let said = find().expect("a host").in_words(data, "inband up");
        assert!(
            said.contains("`inband up` was killed, and left 1 process;"),
            "{said}"
        );
        assert!(said.contains("inband up --data /"), "{said}");
        drop(host.stdin.take());
        host.wait().expect("it ends");
        assert_eq!(find(), None);
    }

    #[test]
    fn what_is_left_is_in_words() {
        let said = |processes, namespaces| {
            let left = Remains::Hosts {
                processes,
                namespaces,
            };
            left.in_words(Path::new("d"), "inband up box")
        };
        assert_eq!(
            said(2, 3),
            "no cluster is running in d: `inband up` was killed, and left 2 processes and 3 network namespaces; processes end \
             within seconds, and the next start removes what is left: inband up box --data d"
        );
        assert!(said(0, 1).contains("left 1 network namespace; the next start"));
    }
}
