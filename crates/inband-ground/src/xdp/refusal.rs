//! Programs that the kernel refuses: the verifier's output is long, so it is written to a file.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};

use super::error::XdpError;

/// libbpf's markers around the verifier's log.
const LOG_BEGIN: &str = "-- BEGIN PROG LOAD LOG --";
const LOG_END: &str = "-- END PROG LOAD LOG --";
/// Start of the statistics line at the end of the verifier's log.
const STATISTICS: &str = "processed ";
/// Only the last bytes of libbpf's messages are kept: the verifier may write 16 MiB.
const MESSAGES_MAX_BYTES: usize = 4 << 20;
/// Maximum length of the reason in an error.
const REASON_MAX_BYTES: usize = 200;

/// libbpf's messages since the last clear. libbpf has one print callback per process.
static MESSAGES: Mutex<String> = Mutex::new(String::new());
/// Serializes loading, so that the messages belong to one object.
static LOADING: Mutex<()> = Mutex::new(());
static DIR: Mutex<Option<PathBuf>> = Mutex::new(None);

/// Writes the verifier's logs into this directory from now on, instead of the temporary directory.
pub fn keep_refusals_in(dir: &Path) {
    *lock(&DIR) = Some(dir.to_owned());
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Captures libbpf's messages while it lives.
pub struct Listening {
    _alone: MutexGuard<'static, ()>,
}

pub fn listen() -> Listening {
    let alone = lock(&LOADING);
    lock(&MESSAGES).clear();
    libbpf_rs::set_print(Some((libbpf_rs::PrintLevel::Info, remember)));
    Listening { _alone: alone }
}

fn remember(_level: libbpf_rs::PrintLevel, message: String) {
    tracing::debug!(target: "libbpf", "{}", message.trim_end());
    let mut all = lock(&MESSAGES);
    all.push_str(&message);
    if let Some(over) = all.len().checked_sub(MESSAGES_MAX_BYTES) {
        let from = (over..all.len()).find(|at| all.is_char_boundary(*at));
        all.drain(..from.unwrap_or(0));
    }
}

impl Listening {
    /// Returns the error for a program that could not be loaded.
    pub fn error(&self, program: &'static str, error: &libbpf_rs::Error) -> XdpError {
        let messages = lock(&MESSAGES).clone();
        // A refusal by the verifier is also a permission error, but comes with a log.
        let by_verifier = messages.contains(LOG_BEGIN) || messages.contains(LOG_END);
        if error.kind() == libbpf_rs::ErrorKind::PermissionDenied && !by_verifier {
            return XdpError::Privilege {
                what: "loading BPF programs",
            };
        }
        let kernel = nix::sys::utsname::uname()
            .map(|name| name.release().to_string_lossy().into_owned())
            .unwrap_or_default();
        let text = format!("kernel {kernel}, program {program}: {error}\n{messages}");
        XdpError::Load {
            program,
            kernel,
            reason: reason_in(&messages).unwrap_or_else(|| error.to_string()),
            log: match save(program, &text) {
                Ok(path) => Some(path),
                Err(error) => {
                    tracing::warn!("the verifier's log could not be written: {error}");
                    None
                }
            },
        }
    }
}

/// Returns the verifier's last message before its statistics.
fn reason_in(messages: &str) -> Option<String> {
    let log = messages.split(LOG_END).next()?;
    let mut lines = log.lines().rev().map(str::trim);
    let line = lines.find(|line| {
        !line.is_empty() && !line.starts_with(STATISTICS) && !line.starts_with("libbpf:")
    })?;
    let end = (0..=REASON_MAX_BYTES.min(line.len())).rev();
    let end = end.into_iter().find(|at| line.is_char_boundary(*at))?;
    Some(line[..end].to_owned())
}

/// Creates a file, or replaces an earlier one of our own. Never follows a link.
fn save(program: &str, text: &str) -> io::Result<PathBuf> {
    let path = match &*lock(&DIR) {
        Some(dir) => {
            let path = dir.join(format!("refused-{program}.log"));
            match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => path,
            }
        }
        None => std::env::temp_dir().join(format!(
            "inband-refused-{program}-{}-{:x}.log",
            std::process::id(),
            rand_suffix()
        )),
    };
    let mut options = OpenOptions::new();
    let mut file = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&path)?;
    file.write_all(text.as_bytes())?;
    Ok(path)
}

fn rand_suffix() -> u128 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |since| since.as_nanos())
}

#[cfg(test)]
mod tests {
    use super::super::programs::load_object;
    use super::*;
    use crate::objects;

    /// `w0 = 2`, the bare program's first instruction, and `r0 = r2`, which reads an uninitialized register.
    const FIRST_STEP: [u8; 8] = [0xb4, 0, 0, 0, 2, 0, 0, 0];
    const REFUSED_STEP: [u8; 8] = [0xbf, 0x20, 0, 0, 0, 0, 0, 0];

    #[test]
    fn a_refused_program_is_three_lines_and_a_file() {
        let mut object = objects::BARE.to_vec();
        let at = object.windows(8).position(|step| step == FIRST_STEP);
        let at = at.expect("the bare program returns XDP_PASS");
        object[at..at + 8].copy_from_slice(&REFUSED_STEP);
        let dir = tempfile::tempdir().unwrap();
        keep_refusals_in(dir.path());
        let Err(error) = load_object("bare", &object, None, &[], &[]) else {
            panic!("it was loaded");
        };
        if matches!(error, XdpError::Privilege { .. }) {
            panic!("this test needs the right to load BPF programs");
        }
        let text = error.to_string();
        let lines: Vec<&str> = text.lines().collect();
        let release = nix::sys::utsname::uname().unwrap();
        let release = release.release().to_string_lossy();
        assert_eq!(lines.len(), 3, "{text}");
        assert_eq!(
            lines[0],
            format!("kernel {release} refuses the XDP program bare: R2 !read_ok")
        );
        let log = dir.path().join("refused-bare.log");
        assert!(lines[1].contains(&log.display().to_string()), "{text}");
        assert!(lines[2].contains("dataplane = \"udp\""), "{text}");
        assert!(fs::read_to_string(&log).unwrap().contains("processed "));
        assert!(error.is_lasting() && error.in_short().lines().count() == 1);
        // A second refusal goes to the same file.
        assert!(load_object("bare", &object, None, &[], &[]).is_err());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn the_reason_is_the_line_before_the_statistics() {
        let said = "libbpf: prog 'x': BPF program load failed: Permission denied\n\
                    libbpf: prog 'x': -- BEGIN PROG LOAD LOG --\n0: (b7) r0 = 2\n\
                    R1 unbounded memory access\nprocessed 12 insns (limit 1000000)\n\
                    -- END PROG LOAD LOG --\nlibbpf: prog 'x': failed to load: -13\n";
        assert_eq!(reason_in(said).unwrap(), "R1 unbounded memory access");
        assert_eq!(reason_in(""), None);
    }
}
