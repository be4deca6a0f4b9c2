//! Programs whose heap is paged from a memory. The memory is local: these tests are about the pager and the allocator.

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::OnceLock;

use common::{beside, end, library, output, read, run};

/// Builds program.c and returns its path.
fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("program");
        let status = Command::new("cc")
            .args([
                "-std=gnu11",
                "-Wall",
                "-Wextra",
                "-Werror",
                "-O2",
                "-pthread",
            ])
            .args(["-I", env!("CARGO_MANIFEST_DIR")])
            .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/program.c"))
            .arg("-o")
            .arg(&program)
            .status();
        assert!(status.expect("cc is on the PATH").success());
        program
    })
}

/// Checks that a test of program.c succeeds.
fn passes(options: &[&str], test: &[&str]) {
    let mut command = run(options);
    command.arg(program()).args(test);
    let printed = output(command, Stdio::null());
    assert!(printed.ends_with("ok\n"), "{printed}");
}

const SMALL: [&str; 2] = ["--buffer", "8MiB"];

#[test]
fn a_heap_much_larger_than_the_buffer() {
    passes(&SMALL, &["random", "48"]);
}

#[test]
fn settings_of_the_programs_own_jemalloc_are_not_read() {
    let mut command = run(&SMALL);
    // jemalloc prints its settings with the first, and ends the program at the second.
    command.env("MALLOC_CONF", "confirm_conf:true,abort_conf:true,none:such");
    command.arg(program()).args(["random", "2"]);
    let ended = end(command, Stdio::null());
    let errors = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success(), "{}: {errors}", ended.status);
    assert!(!errors.contains("jemalloc"), "{errors}");
}

#[test]
fn as_little_buffer_as_there_may_be() {
    passes(&["--buffer", "256KiB"], &["random", "2"]);
    let mut command = run(&["--buffer", "252KiB"]);
    command.arg("true");
    let refused = end(command, Stdio::null());
    assert!(!refused.status.success());
    let message = String::from_utf8_lossy(&refused.stderr);
    assert!(
        message.contains("--buffer 252KiB is too small: at least 256KiB"),
        "{message}"
    );
}

#[test]
fn threads_have_blocks_of_their_own() {
    passes(&SMALL, &["threads", "4"]);
}

#[test]
fn threads_write_to_the_same_pages() {
    passes(&["--buffer", "512KiB"], &["same-pages", "130"]);
}

#[test]
fn blocks_of_all_sizes_are_resized_and_freed() {
    passes(&SMALL, &["churn", "60000"]);
}

#[test]
fn alignments_are_kept_and_wrong_sizes_refused() {
    passes(&SMALL, &["alignment"]);
}

#[test]
fn faults_are_interrupted_by_signals_whose_handlers_fault() {
    passes(&SMALL, &["signals"]);
}

#[test]
fn system_calls_find_pages_that_are_not_in_the_buffer() {
    passes(&SMALL, &["system-calls"]);
}

#[test]
fn children_are_programs_of_their_own_and_fork_is_refused() {
    let mut command = run(&SMALL);
    command.arg(program()).arg("children");
    let output = end(command, Stdio::null());
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{message}");
    assert!(
        message.contains("inband memory: fork() refused (ENOSYS)"),
        "{message}"
    );
}

#[test]
fn the_calls_of_the_header_work_without_shared_memory() {
    passes(&SMALL, &["calls"]);
}

#[test]
fn a_full_memory_is_enomem_and_said_once() {
    let mut command = run(&["--buffer", "8MiB", "--local-size", "32MiB"]);
    command.arg(program()).arg("used-up");
    let output = end(command, Stdio::null());
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{message}");
    assert_eq!(
        message
            .matches("no free piece of the heap (33554432 bytes)")
            .count(),
        1,
        "{message}"
    );
    let printed = String::from_utf8_lossy(&output.stdout);
    let mib = printed
        .split(' ')
        .next()
        .and_then(|word| word.parse::<u32>().ok());
    // jemalloc uses some of it.
    assert!((16..=32).contains(&mib.unwrap()), "{printed}");
}

/// A heap of 64 MiB.
const HEAP_64_MIB: [&str; 4] = ["--buffer", "16MiB", "--local-size", "64MiB"];

#[test]
fn freed_memory_serves_other_sizes() {
    passes(&HEAP_64_MIB, &["reuse", "1000000", "4000"]);
    passes(&HEAP_64_MIB, &["reuse", "4000", "20000000"]);
    passes(&HEAP_64_MIB, &["grow"]);
}

#[test]
fn freed_memory_serves_other_threads() {
    passes(&HEAP_64_MIB, &["reuse-threads"]);
}

#[test]
fn the_exit_status_and_the_signal_are_the_programs() {
    use std::os::unix::process::ExitStatusExt;
    let status = |test: [&str; 2]| {
        let mut command = run(&SMALL);
        command.arg(program()).args(test);
        end(command, Stdio::null()).status
    };
    assert_eq!(status(["exit", "0"]).code(), Some(0));
    assert_eq!(status(["exit", "42"]).code(), Some(42));
    assert_eq!(status(["signal", "15"]).signal(), Some(15));
    assert_eq!(status(["signal", "9"]).signal(), Some(9));
}

#[test]
fn a_program_that_cannot_be_started_is_named() {
    let mut command = run(&SMALL);
    command.arg("/no/such/program");
    let output = end(command, Stdio::null());
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(message.contains("/no/such/program"), "{message}");
}

/// A program that exchanges lines with the test.
struct Talking {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Talking {
    fn start(mut command: Command) -> Talking {
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().expect("it starts");
        Talking {
            input: child.stdin.take().unwrap(),
            output: BufReader::new(child.stdout.take().unwrap()),
            child,
        }
    }

    fn says(&mut self, expected: &str) {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("it is text");
        if line.trim_end() != expected {
            let errors = read(self.child.stderr.as_mut().unwrap());
            panic!(
                "{line:?} instead of {expected:?}: {}",
                String::from_utf8_lossy(&errors)
            );
        }
    }

    fn go_on(&mut self) {
        self.input.write_all(b"\n").expect("it reads");
    }
}

/// The rule of the twin: of a page, exactly the lines that a program has written are written back.
#[test]
fn programs_that_write_different_lines_of_a_page_do_not_disturb_each_other() {
    let memory = tempfile::NamedTempFile::new().unwrap();
    memory.as_file().set_len(16 << 20).unwrap();
    let path = memory.path().to_str().unwrap();
    let part = |part: &str, line: &str| {
        let options = [
            "--buffer",
            "1MiB",
            "--shared",
            "1MiB",
            "--local-file",
            path,
            "--part",
            part,
        ];
        let mut command = run(&options);
        command.arg(program()).args(["shared", line]);
        command
    };
    let mut programs = [("1/2", "1"), ("2/2", "2")].map(|(number, line)| {
        let command = part(number, line);
        Talking::start(command)
    });
    // Both have fetched and written all pages; then both write them back; then both read the result.
    for stage in ["written", "released"] {
        for program in &mut programs {
            program.says(stage);
        }
        // No other program gets a part that overlaps with theirs.
        for taken in ["1/2", "2/2", "1/1", "2/3"] {
            let refused = end(part(taken, "1"), Stdio::null());
            let message = String::from_utf8_lossy(&refused.stderr);
            let why = "another program on this machine has its heap";
            assert!(message.contains(why), "{message}");
        }
        for program in &mut programs {
            program.go_on();
        }
    }
    for program in &mut programs {
        program.says("ok");
        assert!(program.child.wait().unwrap().success());
    }
}

#[test]
fn signals_to_the_pager_are_for_the_program() {
    use std::os::unix::process::ExitStatusExt;
    let mut command = run(&["--buffer", "4MiB"]);
    command.arg(program()).args(["go-on", "16"]);
    let mut running = Talking::start(command);
    running.says("ready");
    let pid = running.child.id().to_string();
    let status = Command::new("kill").args(["-TERM", &pid]).status();
    assert!(status.expect("kill is on the PATH").success());
    assert_eq!(running.child.wait().unwrap().signal(), Some(15));
    // The guard has ended as well, without printing anything.
    let message = read(running.child.stderr.as_mut().unwrap());
    assert_eq!(String::from_utf8_lossy(&message), "");
}

#[test]
fn without_the_privilege_it_says_what_does_not_work() {
    let allowed = std::fs::read_to_string("/proc/sys/vm/unprivileged_userfaultfd");
    if allowed.is_ok_and(|value| value.trim() != "0") {
        return inband_testing::not_run("vm.unprivileged_userfaultfd is not 0 here");
    }
    // A process with the right file descriptor may read and execute a file that another user cannot even see.
    let dir = tempfile::Builder::new()
        .prefix("inband-heap")
        .tempdir_in("/tmp")
        .unwrap();
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(dir.path(), open).unwrap();
    let _ = run(&[]);
    // A file that this process has just written cannot always be executed while other threads start programs.
    let files = [&beside("inband-memory"), &library(), program()];
    let copied = Command::new("cp").args(files).arg(dir.path()).status();
    assert!(copied.expect("cp is on the PATH").success());
    let unprivileged = |options: &[&str], test: &[&str]| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]);
        command.args(["--inh-caps=-all", "--bounding-set=-all"]);
        command.arg(dir.path().join("inband-memory"));
        command.args(["run", "--local", "--buffer", "8MiB"]);
        command.args(options).arg("--");
        command.arg(dir.path().join("program")).args(test);
        end(command, Stdio::null())
    };
    let refused = unprivileged(&[], &["random", "1"]);
    let message = String::from_utf8_lossy(&refused.stderr);
    if message.contains("setpriv:") {
        return inband_testing::not_run(format!("setpriv cannot drop privileges: {message}"));
    }
    assert!(!refused.status.success(), "{message}");
    assert!(
        message.contains("no privilege for page faults in the kernel"),
        "{message}"
    );
    assert!(
        message.contains("sysctl vm.unprivileged_userfaultfd=1"),
        "{message}"
    );
    assert!(message.contains("--user-faults-only"), "{message}");
    let nevertheless = ["--user-faults-only"];
    let works = unprivileged(&nevertheless, &["random", "16"]);
    let message = String::from_utf8_lossy(&works.stderr);
    assert!(works.status.success(), "{message}");
    assert_eq!(message.matches("fails (EFAULT)").count(), 1, "{message}");
    let prints = unprivileged(&nevertheless, &["printed-at-exit"]);
    assert_eq!(
        String::from_utf8_lossy(&prints.stdout),
        "kept until the end\n"
    );
    // And system calls on the heap do fail, as announced.
    let fails = unprivileged(&nevertheless, &["system-calls"]);
    let message = String::from_utf8_lossy(&fails.stderr);
    assert!(
        !fails.status.success() && message.contains("(errno 14)"),
        "{message}"
    );
}

#[test]
fn a_program_that_executes_another_is_told_about() {
    let mut command = run(&SMALL);
    command.args(["sh", "-c", "exec sleep 0.5"]);
    let output = end(command, Stdio::null());
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{message}");
    assert!(
        message.contains("sleep (exec), whose heap is in local memory"),
        "{message}"
    );
}

/// Creates a memory of this many MiB in a file, filled with a byte.
fn memory_file(mib: usize, byte: u8) -> tempfile::NamedTempFile {
    let mut memory = tempfile::NamedTempFile::new().unwrap();
    memory.write_all(&vec![byte; mib << 20]).unwrap();
    memory
}

#[test]
fn a_program_that_ends_while_pages_come_damages_nothing() {
    let memory = memory_file(16, 0xAA);
    let path = memory.path().to_str().unwrap();
    for page in 10..40 {
        let options = ["--buffer", "1MiB", "--shared", "8MiB", "--local-file", path];
        let mut command = run(&options);
        command
            .arg(program())
            .args(["shared-exit", &page.to_string()]);
        output(command, Stdio::null());
        let now = std::fs::read(path).unwrap();
        let damaged = now[..8 << 20].iter().position(|byte| *byte != 0xAA);
        assert_eq!(damaged, None, "page {page}");
    }
}

#[test]
fn a_program_may_close_what_it_did_not_open() {
    let memory = memory_file(16, 0);
    let path = memory.path().to_str().unwrap();
    let mut command = run(&["--buffer", "1MiB", "--shared", "8MiB", "--local-file", path]);
    command.arg(program()).arg("close-all");
    let output = end(command, Stdio::null());
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && message.is_empty(), "{message}");
    let now = std::fs::read(path).unwrap();
    assert_eq!([now[0], now[4096], now[2 * 4096]], [1, 2, 3]);
}

#[test]
fn devices_do_not_write_to_the_heap() {
    passes(&SMALL, &["direct-io"]);
}

#[test]
fn stacks_in_the_heap_are_refused() {
    let mut command = run(&SMALL);
    command.arg(program()).arg("stacks");
    let output = end(command, Stdio::null());
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{message}");
    assert!(
        message.contains("pthread_create() refused (EINVAL)"),
        "{message}"
    );
}

#[test]
fn a_heap_of_several_mappings_loses_nothing() {
    passes(&["--buffer", "512KiB"], &["split", "200"]);
}

#[test]
fn advice_does_what_it_does_elsewhere() {
    passes(&SMALL, &["advice"]);
}

#[test]
fn pages_of_the_heap_are_not_moved() {
    let mut command = run(&SMALL);
    command.arg(program()).arg("moves");
    let output = end(command, Stdio::null());
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{message}");
    assert!(message.contains("mremap() refused (EINVAL)"), "{message}");
}

#[test]
fn a_thread_that_is_cancelled_in_a_call_leaves_nothing_behind() {
    passes(&SMALL, &["cancelled"]);
}

#[test]
fn shells_have_functions_of_their_own_for_the_environment() {
    let mut command = run(&SMALL);
    let script = "x=1; echo $((x + 1)) ${LD_PRELOAD:-none} ${INBAND_MEMORY_HEAP:-none}; exec env";
    command.args(["bash", "-c", script]).env("LD_PRELOAD", "");
    let printed = output(command, Stdio::null());
    assert!(printed.starts_with("2 none none\n"), "{printed}");
    assert!(
        !printed.contains("LD_PRELOAD=") && !printed.contains("INBAND_MEMORY"),
        "{printed}"
    );
}

#[test]
fn a_library_that_was_preloaded_before_stays() {
    // Any library will do.
    let former = library();
    let mut command = run(&SMALL);
    command
        .args(["sh", "-c", "exec env"])
        .env("LD_PRELOAD", &former);
    let printed = output(command, Stdio::null());
    let expected = format!("LD_PRELOAD={}\n", former.display());
    assert!(printed.contains(&expected), "{printed}");
}

#[test]
fn a_static_program_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("static.c");
    std::fs::write(&source, "int main(void) { return 0; }").unwrap();
    let program = dir.path().join("static");
    let mut compile = Command::new("cc");
    compile.arg("-static").arg(&source).arg("-o").arg(&program);
    if !compile.status().unwrap().success() {
        return inband_testing::not_run("cc links nothing statically here");
    }
    let mut command = run(&SMALL);
    command.arg(&program);
    let refused = end(command, Stdio::null());
    let message = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(1));
    assert!(message.contains("static is linked statically"), "{message}");
}

#[test]
fn a_killed_pager_ends_the_program_with_an_error() {
    let mut command = run(&["--buffer", "4MiB"]);
    command.arg(program()).args(["go-on", "16"]);
    let mut running = Talking::start(command);
    running.says("ready");
    running.child.kill().unwrap();
    running.child.wait().unwrap();
    // The program has ended, and so has the guard: both held this pipe.
    let message = read(running.child.stderr.as_mut().unwrap());
    let message = String::from_utf8_lossy(&message);
    assert!(message.contains("the pager was killed"), "{message}");
    let mut rest = String::new();
    running.output.read_to_string(&mut rest).unwrap();
}
