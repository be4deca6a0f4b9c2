//! Checks that common kernels accept every program in every mode. Each of Debian's kernels boots in QEMU, without disk
//! and network, with this executable as its init. It loads all programs and reports the verifier's figures, which are
//! compared with `dataplane/verifier.toml`.
//!
//! What cannot be tested here (no QEMU, no kernel package) is listed as NOT RUN and ignored; with
//! `INBAND_REQUIRE_ALL=1` it fails. `make test` tests the oldest kernel and the one in the backports of the same Debian
//! release, with the largest and the default settings; `make verifier-matrix` tests all kernels in all modes.

#[path = "common/verifier.rs"]
mod figures;

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use figures::{Modes, OfKernel};
use libtest_mimic::{Arguments, Completion, Failed, Trial};
use nix::mount::{mount, MsFlags};
use nix::sys::reboot::{reboot, RebootMode};
use serde::Deserialize;

struct Kernel {
    /// Also its name in the record.
    suite: &'static str,
    in_make_test: bool,
}

const KERNELS: [Kernel; 4] = [
    Kernel {
        suite: "bookworm",
        in_make_test: true,
    },
    Kernel {
        suite: "bookworm-backports",
        in_make_test: true,
    },
    Kernel {
        suite: "trixie",
        in_make_test: false,
    },
    Kernel {
        suite: "trixie-backports",
        in_make_test: false,
    },
];

/// Programs that `inband up` uses in addition to the hosts' own.
const LAB_PROGRAMS: [&str; 2] = ["switch", "pass"];
/// Time limit for one kernel, emulated on a busy machine.
const GUEST_TIME_MAX: Duration = Duration::from_secs(900);
/// Lines of the guest's console to show on failure.
const CONSOLE_LINES: usize = 60;
const GUEST_MEMORY_MIB: usize = 1024;
/// The only supported guest architecture. Where it is not available, the test reports NOT RUN.
const QEMU: &str = "qemu-system-x86_64";
/// How often a kernel may fail before our program says anything.
const BOOTS_MAX: usize = 3;
/// no_timer_check: without it the kernel panics if an emulated timer is late, which happens on a busy machine.
const KERNEL_OPTIONS: &str = "console=ttyS0 quiet panic=-1 no_timer_check rdinit=/init";
/// The device for the guest's report: its second serial port.
const REPORT: &str = "/dev/ttyS1";

fn main() {
    if std::process::id() == 1 {
        guest();
    }
    let arguments = Arguments::from_args();
    let trials = KERNELS
        .iter()
        .map(|kernel| {
            let trial = Trial::ignorable_test(kernel.suite, || try_kernel(kernel));
            trial.with_ignored_flag(!kernel.in_make_test)
        })
        .collect();
    libtest_mimic::run(&arguments, trials).exit();
}

fn try_kernel(kernel: &Kernel) -> Result<Completion, Failed> {
    let image = match kernel_image(kernel.suite) {
        Ok(image) => image,
        Err(why) => return not_run(kernel.suite, &why),
    };
    let folder = tempfile::tempdir()?;
    let initramfs = folder.path().join("initramfs");
    write_initramfs(&initramfs)?;
    let report = folder.path().join("report");
    let console = folder.path().join("console");
    let mut boots = 0;
    let (ended, text) = loop {
        let mut qemu = match boot(&image, &initramfs, &console, &report) {
            Ok(qemu) => qemu,
            Err(why) => return not_run(kernel.suite, &why),
        };
        boots += 1;
        let ended = wait(&mut qemu, GUEST_TIME_MAX)?;
        let text = fs::read_to_string(&report).unwrap_or_default();
        // On a busy machine an emulated kernel may crash before it starts our program.
        if !text.is_empty() || boots == BOOTS_MAX {
            break (ended, text);
        }
    };
    let report: Report = toml::from_str(&text.replace('\r', ""))
        .map_err(|error| format!("the guest's report: {error}\n{text}"))?;
    if !report.done {
        let console = fs::read_to_string(&console).unwrap_or_default();
        let console: Vec<&str> = console.lines().collect();
        return Err(format!(
            "the guest {} after {} programs; its console:\n{}",
            if ended { "ended" } else { "took too long" },
            report.program.len() + report.refused.len(),
            console[console.len().saturating_sub(CONSOLE_LINES)..].join("\n")
        )
        .into());
    }
    let mut faults: Vec<String> = report
        .refused
        .iter()
        .map(|(name, reason)| format!("{name} is refused: {reason}"))
        .collect();
    let now = OfKernel {
        release: report.release,
        program: report.program,
    };
    eprintln!(
        "{}: kernel {}, {} programs and modes, {} refused",
        kernel.suite,
        now.release,
        now.program.len() + faults.len(),
        faults.len()
    );
    let modes = figures::modes_in_guest();
    if let Err(jumps) = figures::hold_to_record(kernel.suite, now, modes, true) {
        faults.push(jumps);
    }
    if faults.is_empty() {
        return Ok(Completion::Completed);
    }
    Err(faults.join("\n").into())
}

/// What could not be tested must not count as passed.
fn not_run(kernel: &str, why: &str) -> Result<Completion, Failed> {
    let line = inband_testing::note(kernel, why)?;
    Ok(Completion::ignored_with(line))
}

/// The kernel's image, downloaded from the archive the first time.
fn kernel_image(suite: &str) -> Result<PathBuf, String> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/debian-kernel");
    let output = Command::new(&script).arg(suite).output();
    let output = output.map_err(|error| format!("{}: {error}", script.display()))?;
    let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if !output.status.success() {
        let said = said(&output.stderr);
        return Err(said.lines().last().unwrap_or("no kernel").to_owned());
    }
    Ok(PathBuf::from(said(&output.stdout)))
}

fn boot(image: &Path, initramfs: &Path, console: &Path, report: &Path) -> Result<Child, String> {
    let serial = |file: &Path| format!("file:{}", file.display());
    // The kernel passes unknown parameters to process 1 in its environment.
    let only = figures::only().map_or(String::new(), |only| format!("{}={only}", figures::ONLY));
    let all = match figures::modes_in_guest() {
        Modes::All => format!("{}=1", figures::ALL),
        Modes::Short => String::new(),
    };
    Command::new(QEMU)
        // Emulated: KVM is often advertised where it does not work. On the CPU `max` the kernel copies by instructions
        // that are slow in emulation, and the verifier takes half as long again.
        .args(["-accel", "tcg", "-cpu", "qemu64", "-smp", "1"])
        .args(["-m", &GUEST_MEMORY_MIB.to_string()])
        .args(["-nodefaults", "-no-user-config", "-display", "none"])
        .arg("-no-reboot")
        .arg("-kernel")
        .arg(image)
        .arg("-initrd")
        .arg(initramfs)
        .arg("-append")
        .arg(format!("{KERNEL_OPTIONS} {only} {all}"))
        .args(["-serial", &serial(console), "-serial", &serial(report)])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| format!("{QEMU}: {error} (scripts/setup --test installs it)"))
}

/// Returns whether it exited by itself.
fn wait(child: &mut Child, longest: Duration) -> std::io::Result<bool> {
    let end = Instant::now() + longest;
    while child.try_wait()?.is_none() {
        if Instant::now() > end {
            child.kill()?;
            child.wait()?;
            return Ok(false);
        }
        thread::sleep(Duration::from_millis(100));
    }
    Ok(true)
}

/// Writes this executable as /init, with the libraries it needs, as a cpio archive.
fn write_initramfs(path: &Path) -> std::io::Result<()> {
    let this = std::env::current_exe()?;
    let ldd = Command::new("ldd").arg(&this).output()?;
    let mut archive = Archive(File::create(path)?);
    for folder in ["dev", "proc", "sys"] {
        archive.folder(folder)?;
    }
    for word in String::from_utf8_lossy(&ldd.stdout).split_whitespace() {
        if let Some(name) = word.strip_prefix('/') {
            archive.file(name, &fs::read(word)?)?;
        }
    }
    archive.file("init", &fs::read(this)?)?;
    for program in LAB_PROGRAMS {
        archive.file(&lab_object(program)[1..], &compile_lab(program)?)?;
    }
    archive.end()
}

/// The path of a lab program in the guest.
fn lab_object(program: &str) -> String {
    format!("/lab/{program}.bpf.o")
}

/// Compiles like inband-lab's build, whose output this crate cannot access.
fn compile_lab(program: &str) -> std::io::Result<Vec<u8>> {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../inband-lab/bpf");
    let clang = std::env::var("CLANG").unwrap_or("clang-19".into());
    let output = Command::new(clang)
        .args(["-O2", "-g", "-target", "bpf", "-mcpu=v3"])
        .arg(format!(
            "-I/usr/include/{}-linux-gnu",
            std::env::consts::ARCH
        ))
        .arg("-c")
        .arg(sources.join(format!("{program}.bpf.c")))
        .args(["-o", "-"])
        .output()?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(std::io::Error::other(said));
    }
    Ok(output.stdout)
}

/// The kernel's format for an initramfs: cpio, "newc".
struct Archive(File);

impl Archive {
    fn entry(&mut self, name: &str, mode: u32, bytes: &[u8]) -> std::io::Result<()> {
        let (zero, links) = (0, 1);
        let mut header = String::from("070701");
        for field in [
            zero, // inode
            mode,
            zero, // user
            zero, // group
            links,
            zero, // time
            bytes.len() as u32,
            zero, // device
            zero,
            zero, // device it represents
            zero,
            name.len() as u32 + 1,
            zero, // checksum
        ] {
            header += &format!("{field:08x}");
        }
        header += name;
        header.push('\0');
        let padding = |len: usize| vec![0u8; len.next_multiple_of(4) - len];
        self.0.write_all(header.as_bytes())?;
        self.0.write_all(&padding(header.len()))?;
        self.0.write_all(bytes)?;
        self.0.write_all(&padding(bytes.len()))
    }

    fn folder(&mut self, name: &str) -> std::io::Result<()> {
        self.entry(name, libc::S_IFDIR | 0o755, &[])
    }

    /// Adds a file, and the directories above it.
    fn file(&mut self, name: &str, bytes: &[u8]) -> std::io::Result<()> {
        let ends = name.match_indices('/').map(|(at, _)| at);
        for end in ends.collect::<Vec<_>>() {
            self.folder(&name[..end])?;
        }
        self.entry(name, libc::S_IFREG | 0o755, bytes)
    }

    fn end(&mut self) -> std::io::Result<()> {
        self.entry("TRAILER!!!", 0, &[])
    }
}

/// The guest's output, one line at a time.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Report {
    #[serde(default)]
    release: String,
    #[serde(default)]
    program: std::collections::BTreeMap<String, figures::Figures>,
    #[serde(default)]
    refused: std::collections::BTreeMap<String, String>,
    #[serde(default)]
    done: bool,
}

/// Processes 1 of the guest.
fn guest() -> ! {
    if let Err(error) = measure_all() {
        eprintln!("guest: {error}");
    }
    let _ = reboot(RebootMode::RB_POWER_OFF);
    let _ = reboot(RebootMode::RB_AUTOBOOT);
    panic!("the guest cannot be switched off");
}

fn measure_all() -> std::io::Result<()> {
    for (kind, at) in [("devtmpfs", "/dev"), ("proc", "/proc"), ("sysfs", "/sys")] {
        mount(Some(kind), at, Some(kind), MsFlags::empty(), None::<&str>)?;
    }
    let mut report = OpenOptions::new().write(true).open(REPORT)?;
    writeln!(report, "release = {:?}", figures::running_release())?;
    let mut cases = figures::cases(figures::modes_in_guest());
    for program in LAB_PROGRAMS {
        let object = fs::read(lab_object(program))?;
        cases.push(figures::Case::plain(format!("lab_{program}"), object));
    }
    for case in cases {
        match figures::measure(&case) {
            Ok(figures) => writeln!(
                report,
                "program.{} = {}",
                case.name,
                figures::line(&figures)
            )?,
            Err(reason) => writeln!(report, "refused.{} = {reason:?}", case.name)?,
        }
    }
    writeln!(report, "done = true")
}
