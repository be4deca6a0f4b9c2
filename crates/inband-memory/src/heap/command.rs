//! `inband memory run`: starts a program whose heap is in replicated memory, and the pager that serves its faults.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context, Result};
use clap::Args;
use nix::errno::Errno;
use nix::fcntl::{fcntl, FcntlArg, FdFlag};
use nix::poll::{poll, PollFd, PollFlags, PollTimeout};
use nix::sys::resource::{setrlimit, Resource};
use nix::sys::signal::{
    kill, raise, sigaction, SaFlags, SigAction, SigHandler, SigSet, SigmaskHow, Signal,
};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::socket::{shutdown, socketpair, AddressFamily, Shutdown, SockFlag, SockType};
use nix::unistd::Pid;

use super::buffer::Buffer;
use super::executable::check_program;
use super::guard::Guard;
use super::link::{answer, receive, Message};
use super::pager::{Connect, Pager};
use super::region::{Region, REGION_NAME};
use super::stats::publish;
use super::uffd::Uffd;
use super::{FileSpace, LocalSpace, PAGE_CHUNKS, PAGE_LEN_BYTES};
use crate::lines::{Lines, CHUNK_LINES, LINE_LEN_BYTES};
use inband_host::output::quoted;
use inband_host::size::parse_size;

/// The library to preload, which lies beside this executable or in ../lib.
const LIBRARY: &str = "libinband_memory_heap.so";
/// Environment variables that tell `heap.c` about its region, and about the user's own LD_PRELOAD.
const ENVIRONMENT: &str = "INBAND_MEMORY_HEAP";
const FORMER_PRELOAD: &str = "INBAND_MEMORY_FORMER_LD_PRELOAD";
/// What does not work without the privilege to handle page faults in the kernel.
const USER_FAULTS_ONLY: &str =
    "a system call on memory that is not in the buffer fails (EFAULT), such as read(2) into it or write(2) of it, and stdio loses what it cannot write: only the buffers of standard input and output are in local memory";
/// The library's exit status when it cannot start; it has printed the reason itself.
const EXIT_CANNOT_START: i32 = 127;
/// How long a program may take to load the library. A statically linked one never loads it.
const START_TIMEOUT: Duration = Duration::from_secs(10);
/// How long to wait after the library's socket has closed: an exiting program closes it before its process ends.
const EXIT_GRACE: Duration = Duration::from_millis(100);
const CHUNK_LEN_BYTES: u64 = (CHUNK_LINES * LINE_LEN_BYTES) as u64;
/// Maximum number of parts of the memory.
const PARTS_MAX: u64 = 1024;
/// The file in a cluster's directory in which each program locks the byte range of its heap.
const LOCK: &str = "heaps.lock";
/// How often to check whether the last writes are done.
const END_POLL: Duration = Duration::from_millis(1);
/// With fewer pages than threads and batches need at the same time, the pager could not make progress.
const BUFFER_MIN: Size = Size(64 * PAGE_LEN_BYTES as u64);
/// `si_code` of signals from the kernel, hence from the terminal: the program has received those as well.
const SI_KERNEL: i32 = 0x80;
/// Signals that are passed on to the program.
const SIGNALS: [Signal; 6] = [
    Signal::SIGINT,
    Signal::SIGTERM,
    Signal::SIGHUP,
    Signal::SIGQUIT,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
];

/// A number of bytes, written with a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd)]
pub struct Size(pub u64);

impl std::str::FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Size, String> {
        parse_size(text).map(Size)
    }
}

impl std::fmt::Display for Size {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (unit, name) in [(1u64 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")] {
            if self.0 >= unit && self.0 % unit == 0 {
                return write!(f, "{}{name}", self.0 / unit);
            }
        }
        write!(f, "{}B", self.0)
    }
}

/// One of several equal parts of the memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// The part's number, from 1.
    pub number: u64,
    /// The number of parts.
    pub of: u64,
}

impl std::str::FromStr for Part {
    type Err = String;

    fn from_str(text: &str) -> Result<Part, String> {
        let numbers = text.split_once('/').and_then(|(number, of)| {
            Some(Part {
                number: number.parse().ok()?,
                of: of.parse().ok()?,
            })
        });
        let part = numbers.filter(|part| (1..=PARTS_MAX).contains(&part.of));
        let part = part.filter(|part| (1..=part.of).contains(&part.number));
        part.ok_or_else(|| {
            format!(
                "{text:?} is not a part; 2/3 is the second of three, and {PARTS_MAX} is the limit"
            )
        })
    }
}

impl std::fmt::Display for Part {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.number, self.of)
    }
}

/// Options of `inband memory run`.
#[derive(Debug, Clone, Args)]
pub struct RunArgs {
    /// Local memory for pages of the heap; as much again is used to track which lines were written
    #[arg(long, default_value_t = Size(64 << 20), value_name = "SIZE")]
    pub buffer: Size,
    /// Use no cluster: keep the pages in this process, to try it out or for comparison
    #[arg(long)]
    pub local: bool,
    /// Size of the memory with --local
    #[arg(long, default_value_t = Size(1 << 30), value_name = "SIZE", requires = "local")]
    pub local_size: Size,
    /// With --local: keep the pages in this file, for several programs
    #[arg(long, value_name = "FILE", requires = "local", hide = true)]
    pub local_file: Option<PathBuf>,
    /// Size of the memory's first part, which is shared with other programs (inband_memory_shared) and not used for the
    /// heap
    #[arg(long, default_value_t = Size(0), value_name = "SIZE")]
    pub shared: Size,
    /// The part of the remaining memory for this heap: 1/2 for one program and 2/2 for another that runs at the same
    /// time
    #[arg(long, default_value_t = Part { number: 1, of: 1 }, value_name = "N/OF")]
    pub part: Part,
    /// Threads that handle page faults; one thread handles many faults at a time
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64), value_name = "N")]
    pub threads: u16,
    /// End the program when the memory has not answered for this long
    #[arg(long, default_value_t = 60, value_name = "SECONDS")]
    pub give_up_after_s: u64,
    /// Start the program even if page faults in the kernel cannot be handled for it (EFAULT)
    #[arg(long)]
    pub user_faults_only: bool,
    /// Print the pager's statistics at the end
    #[arg(long)]
    pub stats: bool,
    /// The library to preload, if it is not beside this executable
    #[arg(long, value_name = "FILE", hide = true)]
    pub library: Option<PathBuf>,
    /// The program and its arguments
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "PROGRAM"
    )]
    pub program: Vec<OsString>,
}

/// Runs a program with memory on this machine.
pub fn run_local(args: &RunArgs) -> Result<()> {
    if let Some(path) = &args.local_file {
        let space = FileSpace::open(path).with_context(|| format!("opening {}", path.display()))?;
        let (from, to) = args.heap(space.chunks() * CHUNK_LEN_BYTES)?;
        let _lock = lock(path, from, to)?;
        return run(args, &move || Ok(Box::new(space.clone())), None);
    }
    let chunks = args.local_size.0 / CHUNK_LEN_BYTES;
    let space = LocalSpace::new(chunks as usize);
    run(args, &move || Ok(Box::new(space.clone())), None)
}

/// Runs a program with the memory that `connect` opens, once for each thread, and ends this process the way the program
/// ended. Must be called before any thread or connection exists. `dir`: the cluster's directory, where the pager
/// publishes its counters.
pub fn run(args: &RunArgs, connect: &Connect, dir: Option<&Path>) -> Result<()> {
    ensure!(
        args.buffer >= BUFFER_MIN,
        "--buffer {} is too small: at least {BUFFER_MIN}",
        args.buffer
    );
    let library = match &args.library {
        Some(path) => path.clone(),
        None => find_library()?,
    };
    check_program(&args.program[0])?;
    // The thread that ends the program reports the panic: printing it here could block on a page of the program.
    std::panic::set_hook(Box::new(|_| {}));
    let mut guard = Guard::start().context("starting the guard")?;
    // Until there is a program to pass them on to, signals end this process.
    let mut lines = connect().context("opening the memory")?;
    let (signals, former_mask) = take_signals()?;
    let pages = lines.chunks() / PAGE_CHUNKS as u64;
    let bytes = Size(pages * PAGE_LEN_BYTES as u64);
    let page = PAGE_LEN_BYTES as u64;
    let (heap_from, heap_to) = args.heap(bytes.0)?;
    // Held until the program has ended.
    let _lock = match dir {
        Some(dir) => Some(lock(&dir.join(LOCK), heap_from, heap_to)?),
        None => None,
    };
    let shared_pages = args.shared.0 / page;
    let region = Region::new(pages).with_context(|| format!("making a region of {bytes}"))?;
    let (here, there) = socketpair(
        AddressFamily::Unix,
        SockType::SeqPacket,
        None,
        SockFlag::SOCK_CLOEXEC,
    )?;
    let name = args.program[0].to_string_lossy().into_owned();
    let heap = format!(
        "{} {} {} {} {} {heap_from} {heap_to}",
        there.as_raw_fd(),
        region.fd().as_raw_fd(),
        region.inode()?,
        bytes.0,
        args.shared.0
    );
    let child = start(
        args,
        &library,
        &heap,
        &[there.as_fd(), region.fd()],
        former_mask,
    );
    let mut child = child.with_context(|| format!("starting {name}"))?;
    drop(there);
    let pid = Pid::from_raw(child.id() as i32);
    guard.program(child.id())?;
    let Some((uffd, user_mode_only)) = hello(&here, &mut child, &name)? else {
        let status = child.wait()?;
        drop(guard);
        ensure!(
            status.code() == Some(EXIT_CANNOT_START),
            "{name} has ended ({status}) without loading {LIBRARY}: its memory was local"
        );
        // The library has printed the reason.
        return end(status);
    };
    if user_mode_only && !args.user_faults_only {
        child.kill()?;
        child.wait()?;
        bail!("no privilege for page faults in the kernel: {USER_FAULTS_ONLY}; allow them with `sysctl vm.unprivileged_userfaultfd=1`, access to /dev/userfaultfd or CAP_SYS_PTRACE, or start the program nevertheless with --user-faults-only");
    }
    if user_mode_only {
        note(format_args!("{USER_FAULTS_ONLY}"));
    }
    let capacity = (args.buffer.0 / page).min(pages) as usize;
    let failure = Arc::new(Mutex::new(None));
    let on_failure = {
        let failure = Arc::clone(&failure);
        move |why: String| {
            let mut failure = failure.lock().unwrap_or_else(PoisonError::into_inner);
            failure.get_or_insert(why);
            // The program may have ended already.
            let _ = kill(pid, Signal::SIGKILL);
        }
    };
    let pager = Arc::new(Pager::new(
        uffd,
        region,
        Buffer::new(capacity, pages, shared_pages),
        Duration::from_secs(args.give_up_after_s),
        Box::new(on_failure),
    ));
    pager.start(usize::from(args.threads), connect)?;
    answer(&here, 0).context("the program is gone")?;
    let published = dir.map(|dir| {
        let pager = Arc::clone(&pager);
        publish(dir, name.clone(), child.id(), args.buffer.0, pager)
    });
    if let Some(Err(error)) = &published {
        note(format_args!(
            "`inband memory top` will not show this program: {error}"
        ));
    }
    let here = Arc::new(here);
    let has_ended = Arc::new(AtomicBool::new(false));
    let calls = {
        let pager = Arc::clone(&pager);
        let (name, here, has_ended) = (name.clone(), Arc::clone(&here), Arc::clone(&has_ended));
        std::thread::spawn(move || {
            serve_calls(&here, &pager, pages, &mut *lines);
            wait_for_end(pid, &name, &has_ended);
            // Write back what the program has written to shared memory and not released.
            pager.release(0, shared_pages, &mut *lines);
        })
    };
    std::thread::spawn(move || pass_on(&signals, pid));
    let status = child.wait().context("waiting for the program")?;
    has_ended.store(true, Ordering::Release);
    // A child of the program may still hold the other end.
    let _ = shutdown(here.as_raw_fd(), Shutdown::Both);
    let has_failed = || {
        failure
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .is_some()
    };
    while !calls.is_finished() && !has_failed() {
        std::thread::sleep(END_POLL);
    }
    drop(guard);
    drop(published);
    if args.stats {
        // Nobody may be reading it.
        let _ = writeln!(io::stderr(), "{}", pager.stats.figures());
    }
    let failure = failure
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .take();
    if let Some(why) = failure {
        bail!("{name} was ended: {why}");
    }
    end(status)
}

impl RunArgs {
    /// Returns the byte range of this program's heap in a memory of this size.
    fn heap(&self, bytes: u64) -> Result<(u64, u64)> {
        let page = PAGE_LEN_BYTES as u64;
        ensure!(
            self.shared.0 % page == 0,
            "--shared {} must be a multiple of {page} bytes",
            self.shared
        );
        let pages = bytes.saturating_sub(self.shared.0) / page / self.part.of;
        ensure!(
            pages > 0,
            "nothing is left for a heap: the memory has {}, --shared {}, --part {}",
            Size(bytes),
            self.shared,
            self.part
        );
        let from = self.shared.0 + (self.part.number - 1) * pages * page;
        Ok((from, from + pages * page))
    }
}

/// Locks the byte range of a heap until this process ends, so that no two programs on this machine use the same part of
/// a memory as their heap. (Programs on different machines have different directories; there the user must divide the
/// memory.)
fn lock(path: &Path, from: u64, to: u64) -> Result<File> {
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(false);
    let file = options.open(path);
    let file = file.with_context(|| format!("opening {}", path.display()))?;
    let bytes = libc::flock {
        l_type: libc::F_WRLCK as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: from as i64,
        l_len: (to - from) as i64,
        l_pid: 0,
    };
    match fcntl(&file, FcntlArg::F_OFD_SETLK(&bytes)) {
        Ok(_) => Ok(file),
        Err(Errno::EAGAIN | Errno::EACCES) => bail!(
            "another program on this machine has its heap in this part of the memory: wait for its end, or divide the memory, with --part 1/2 for one and --part 2/2 for the other"
        ),
        Err(error) => Err(error).with_context(|| format!("locking {}", path.display())),
    }
}

fn find_library() -> Result<PathBuf> {
    let this = std::env::current_exe().context("finding this program")?;
    let folder = this.parent().unwrap_or(Path::new("/"));
    let beside = folder.join(LIBRARY);
    let installed = folder.join("../lib").join(LIBRARY);
    match [beside, installed].into_iter().find(|path| path.is_file()) {
        Some(path) => Ok(path),
        None => bail!(
            "there is no {LIBRARY} in {} or its ../lib; `make build`, or `cargo build --release --locked -p inband-memory-heap`, builds it",
            folder.display()
        ),
    }
}

/// Blocks the signals that are passed on. Returns them, and the previous mask, which the program inherits.
fn take_signals() -> Result<(SignalFd, SigSet)> {
    let signals = SigSet::from_iter(SIGNALS);
    let former = signals.thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
    let fd = SignalFd::with_flags(&signals, SfdFlags::SFD_CLOEXEC)?;
    Ok((fd, former))
}

fn start(
    args: &RunArgs,
    library: &Path,
    heap: &str,
    inherited: &[std::os::fd::BorrowedFd<'_>],
    mask: SigSet,
) -> io::Result<Child> {
    let mut preload = library.as_os_str().to_owned();
    let mut command = Command::new(&args.program[0]);
    command.args(&args.program[1..]).env(ENVIRONMENT, heap);
    match std::env::var_os("LD_PRELOAD").filter(|former| !former.is_empty()) {
        Some(former) => {
            preload.push(":");
            preload.push(&former);
            command.env(FORMER_PRELOAD, former);
        }
        None => {
            command.env_remove(FORMER_PRELOAD);
        }
    }
    command.env("LD_PRELOAD", preload);
    // Python's own allocator takes small objects from mmap.
    if std::env::var_os("PYTHONMALLOC").is_none() {
        command.env("PYTHONMALLOC", "malloc");
    }
    let pager = std::process::id();
    let fds: Vec<_> = inherited.iter().map(AsRawFd::as_raw_fd).collect();
    let before_exec = move || {
        for &fd in &fds {
            // SAFETY: the caller's files stay open until the program has started.
            let fd = unsafe { std::os::fd::BorrowedFd::borrow_raw(fd) };
            fcntl(fd, FcntlArg::F_SETFD(FdFlag::empty()))?;
        }
        mask.thread_set_mask()?;
        nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)?;
        match std::os::unix::process::parent_id() == pager {
            true => Ok(()),
            // The parent died before prctl.
            false => Err(Errno::ESRCH.into()),
        }
    };
    // SAFETY: only system calls, nothing that allocates or takes a lock.
    unsafe { command.pre_exec(before_exec) };
    command.spawn()
}

/// Waits for the library's first message: the program's userfaultfd, and whether faults in the kernel are not delivered
/// to it. Returns `None` if the program has ended.
fn hello(socket: &OwnedFd, child: &mut Child, name: &str) -> Result<Option<(Uffd, bool)>> {
    let mut fds = [PollFd::new(socket.as_fd(), PollFlags::POLLIN)];
    let timeout = PollTimeout::try_from(START_TIMEOUT).expect("it is short");
    let ready = loop {
        match poll(&mut fds, timeout) {
            Err(Errno::EINTR) => {}
            ready => break ready?,
        }
    };
    if ready == 0 {
        // Running in local memory while the user believes otherwise is worse than not running at all.
        child.kill()?;
        child.wait()?;
        bail!("{name} has not loaded {LIBRARY} and was ended: is it linked statically, or setuid?");
    }
    match receive(socket)? {
        Some(Message::Hello {
            user_mode_only,
            base,
            uffd,
        }) => Ok(Some((Uffd::new(uffd, base), user_mode_only))),
        Some(message) => {
            bail!("{name} has sent {message:?} before its hello: {LIBRARY} is of another version")
        }
        None => Ok(None),
    }
}

/// Waits for the program's end after its library has closed the socket. If the program has executed another one
/// instead, tells the user.
fn wait_for_end(pid: Pid, name: &str, has_ended: &AtomicBool) {
    let since = Instant::now();
    let mut is_said = false;
    while !has_ended.load(Ordering::Acquire) {
        std::thread::sleep(END_POLL);
        if is_said || since.elapsed() < EXIT_GRACE {
            continue;
        }
        is_said = true;
        let maps = std::fs::read(format!("/proc/{pid}/maps")).unwrap_or_default();
        let has_heap = maps
            .windows(REGION_NAME.len())
            .any(|at| at == REGION_NAME.as_bytes());
        // A process that has ended has no executable.
        let program = std::fs::read_link(format!("/proc/{pid}/exe"));
        if let (false, Ok(program)) = (has_heap, program) {
            note(format_args!(
                "{name} was replaced by {} (exec), whose heap is in local memory; run that program instead: inband memory run -- {}",
                program.display(),
                quoted(&program)
            ));
        }
    }
}

fn note(what: std::fmt::Arguments<'_>) {
    // Nobody may be reading it.
    let _ = writeln!(io::stderr(), "inband memory: {what}");
}

/// Serves the library's requests until the program ends.
fn serve_calls(socket: &OwnedFd, pager: &Pager, pages: u64, lines: &mut dyn Lines) {
    let range = |from: u64, len: u64| {
        let to = from.saturating_add(len).div_ceil(PAGE_LEN_BYTES as u64);
        (from / PAGE_LEN_BYTES as u64, to.min(pages))
    };
    // On an error the library is gone, or the peer is not our library.
    while let Ok(Some(message)) = receive(socket) {
        let error = match message {
            Message::Hello { .. } => libc::EINVAL,
            Message::Flush => {
                pager.release(0, pages, lines);
                0
            }
            Message::Release { from, len } => {
                let (from, to) = range(from, len);
                pager.release(from, to, lines);
                0
            }
            Message::Acquire { from, len } => {
                let (from, to) = range(from, len);
                pager.acquire(from, to, lines);
                0
            }
        };
        if answer(socket, error).is_err() {
            break;
        }
    }
}

/// Passes signals on to the program.
fn pass_on(signals: &SignalFd, program: Pid) {
    while let Ok(signal) = signals.read_signal() {
        let Some(info) = signal else {
            continue;
        };
        let is_from_terminal = info.ssi_code == SI_KERNEL;
        if let (false, Ok(signal)) = (is_from_terminal, Signal::try_from(info.ssi_signo as i32)) {
            // It may have ended already.
            let _ = kill(program, signal);
        }
    }
}

/// Ends this process the way the program ended.
fn end(status: ExitStatus) -> Result<()> {
    if let Some(signal) = status.signal() {
        // The program's core dump is the useful one.
        setrlimit(Resource::RLIMIT_CORE, 0, 0)?;
        let signal = Signal::try_from(signal)?;
        if signal != Signal::SIGKILL {
            let default = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
            // SAFETY: no handler is installed.
            unsafe { sigaction(signal, &default) }?;
        }
        let mut only = SigSet::empty();
        only.add(signal);
        only.thread_unblock()?;
        raise(signal)?;
    }
    match status.code() {
        Some(0) => Ok(()),
        code => std::process::exit(code.unwrap_or(1)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_parts_are_read_and_printed() {
        for (text, bytes) in [
            ("4096", 4096),
            ("64MiB", 64 << 20),
            ("3GiB", 3 << 30),
            ("5KiB", 5120),
            ("64M", 64 << 20),
        ] {
            assert_eq!(text.parse(), Ok(Size(bytes)));
            assert_eq!(Size(bytes).to_string().parse(), Ok(Size(bytes)));
        }
        assert_eq!("2/3".parse(), Ok(Part { number: 2, of: 3 }));
        for wrong in ["", "2", "0/1", "3/2", "1/0", "1/1025", "a/b", "1/2/3"] {
            assert!(wrong.parse::<Part>().is_err(), "{wrong}");
        }
        for wrong in ["", "MiB", "64X", "-1", "1e3", "99999999999GiB"] {
            assert!(wrong.parse::<Size>().is_err(), "{wrong}");
        }
    }
}
