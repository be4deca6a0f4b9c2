//! The command line's behaviour as a Unix tool.

use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use inband_testing::port::free_ports;
use nix::sys::signal::{kill, Signal};
use nix::unistd::Pid;

#[test]
fn a_command_whose_output_nobody_reads_ends_as_other_tools_do() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_inband"))
        .arg("doctor")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it runs");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!said.contains("panicked"), "{said}");
    assert_eq!(output.status.signal(), Some(Signal::SIGPIPE as i32));
}

/// As `inband ... | head -0`: its output is closed.
fn with_output_unread(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_inband"));
    command
        .args(args)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().expect("it runs");
    drop(child.stdout.take());
    child.wait_with_output().expect("it ends")
}

#[test]
fn a_cluster_starts_and_stops_though_nobody_reads_what_is_said() {
    for service in [&[][..], &["flair"], &["falcon"]] {
        let dir = tempfile::tempdir().expect("a directory");
        let data = dir.path().join("data");
        let data = data.to_str().expect("of letters");
        let address = format!("127.0.0.1:{}", free_ports(8));
        let metrics = free_ports(16).to_string();
        let mut up = vec!["up", "--detach", "--dataplane", "udp", "--data", data];
        match service {
            ["falcon"] => up.extend(["--listen", &address, "--executors", "1"]),
            ["flair"] => up.extend(["--resp", &address]),
            _ => up.extend(["--resp", &address, "--metrics-port", &metrics]),
        }
        for args in [&up[..], &["down", "--data", data]] {
            let args = [service, args].concat();
            let output = with_output_unread(&args);
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(!said.contains("panicked"), "{args:?}: {said}");
            assert!(output.status.success(), "{args:?}: {output:?}");
        }
    }
}

#[test]
fn what_cannot_be_printed_on_a_full_disk_is_a_failure() {
    for args in [
        &["doctor"][..],
        &["--version"],
        &["--help"],
        &["flair", "up", "--help"],
    ] {
        let mut options = std::fs::OpenOptions::new();
        let full = options.write(true).open("/dev/full").expect("it is there");
        let mut inband = Command::new(env!("CARGO_BIN_EXE_inband"));
        let output = inband.args(args).stdout(full).output().expect("it runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(
            !said.contains("panicked") && output.status.code() == Some(1),
            "{args:?}: {said}"
        );
        assert!(
            said.contains("writing to standard output: No space left"),
            "{args:?}: {said}"
        );
    }
    // What is wrong goes to standard error, with the parser's status.
    let output = alone(&["status", "--no-such-option"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
}

/// Runs `inband`, alone in a directory, with programs `inband-hello` and `inband-fails` on PATH.
fn alone(arguments: &[&str]) -> Output {
    use std::os::unix::fs::symlink;
    let program = Path::new(env!("CARGO_BIN_EXE_inband"));
    let target = program.parent().expect("a directory");
    let dir = tempfile::tempdir_in(target).expect("a directory");
    // Links, because a file that was just written cannot always be executed while other threads fork.
    let alone = dir.path().join("inband");
    std::fs::hard_link(program, &alone).expect("a link");
    let path = dir.path().join("path");
    std::fs::create_dir(&path).expect("a directory");
    symlink("/bin/echo", path.join("inband-hello")).expect("a link");
    symlink("/bin/false", path.join("inband-fails")).expect("a link");
    let mut command = Command::new(alone);
    command.args(arguments).env("PATH", &path);
    command.output().expect("it runs")
}

#[test]
fn a_command_may_be_a_program_on_path() {
    let output = alone(&["hello", "--loud", "world"]);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "--loud world\n");
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(alone(&["fails"]).status.code(), Some(1));
}

#[test]
fn a_program_that_is_missing_is_named_with_what_builds_it() {
    let said = |command: &str| {
        let output = alone(&[command]);
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let bench = said("bench");
    assert!(bench.contains("there is no inband-bench in "), "{bench}");
    assert!(bench.contains("`make build`"), "{bench}");
    let torment = said("torment");
    assert!(
        torment.contains("`inband torment` is now `inband chaos`"),
        "{torment}"
    );
    assert!(
        torment.contains("there is no inband-chaos in "),
        "{torment}"
    );
    let typo = said("staus");
    assert!(typo.contains("\"staus\" is not a command"), "{typo}");
}

#[test]
fn without_a_memory_nothing_of_it_is_replaced() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut command = Command::new(env!("CARGO_BIN_EXE_inband"));
    command.args(["replace", "server/1"]).current_dir(&dir);
    let output = command.output().expect("it runs");
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(
        error.contains("no memory cluster runs in .inband-memory"),
        "{error}"
    );
}

fn said(args: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_inband"));
    let output = command.args(args).output().expect("it runs");
    assert!(output.status.success(), "{args:?}: {output:?}");
    String::from_utf8(output.stdout).expect("text")
}

/// The columns of a setting's line: name, value, default, source.
fn setting(table: &str, name: &str) -> [String; 4] {
    let lines: Vec<&str> = table.lines().collect();
    let found = lines
        .iter()
        .find(|line| line.split(' ').next() == Some(name));
    let words = found
        .unwrap_or_else(|| panic!("no {name} in {table}"))
        .split("  ");
    let words = words.map(str::trim).filter(|word| !word.is_empty());
    let words: Vec<String> = words.map(str::to_owned).collect();
    words.try_into().expect("four words")
}

#[test]
fn what_a_file_sets_is_shown_with_its_line_and_what_it_does_not_set_with_the_default() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("host.toml");
    let text = r#"
[cluster]
name = "c"
epoch = 1
first_instance = 1
durability = "memory"

[host]
node = 1
state_dir = "/var/lib/inband"

[host.timing]
suspect_after_ms = 300

[[node]]
id = 1
name = "a"
address = "127.0.0.1:7400"
roles = ["leader", "acceptor", "replica"]
"#;
    std::fs::write(&file, text).expect("written");
    let file = file.to_str().expect("text");
    let table = said(&["config", "show", "--config", file]);
    let from = format!("{file} line 13");
    assert_eq!(
        setting(&table, "host.timing.suspect_after_ms"),
        ["host.timing.suspect_after_ms", "300", "100", &from]
    );
    for (name, value) in [
        ("host.timing.probe_interval_ms", "10"),
        ("host.timing.submit_deadline_ms", "5000"),
        ("host.limits.client_request_s", "60"),
        ("cluster.ring_slots", "4096"),
    ] {
        assert_eq!(setting(&table, name)[1..], [value, value, "default"]);
    }
    // Each setting once: what the file has is not repeated in another unit.
    assert!(!table.contains("suspect_after_us"), "{table}");
    assert_eq!(setting(&table, "paxos.resend_us")[3], "built in");
    let json = said(&["config", "show", "--json", "--config", file]);
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    let settings = json.as_array().expect("a list");
    assert_eq!(settings.len(), table.lines().count() - 1);
}

#[test]
fn the_settings_of_a_cluster_are_shown_whatever_its_system() {
    type Expected = (&'static str, [&'static str; 3]);
    let systems: [(&str, &[&str], &[Expected]); 3] = [
        (
            "kv",
            &[],
            &[("host.timing.suspect_after_ms", ["100", "100", "default"])],
        ),
        (
            "flair",
            &["--step-down-ms", "80"],
            &[
                ("cluster.step_down_ms", ["80", "50", "inband up"]),
                ("cluster.heartbeat_ms", ["10", "10", "default"]),
            ],
        ),
        (
            "falcon",
            &["--executors", "1", "--locality-wait-ms", "9"],
            &[("--locality-wait-ms", ["9", "5", "inband up"])],
        ),
    ];
    for (system, options, expected) in systems {
        let dir = tempfile::tempdir().expect("a directory");
        let data = dir.path().join("data");
        let data = data.to_str().expect("text");
        let address = format!("127.0.0.1:{}", free_ports(8));
        let metrics = free_ports(16).to_string();
        let mut up = vec![
            "up",
            system,
            "--detach",
            "--dataplane",
            "udp",
            "--data",
            data,
        ];
        match system {
            "falcon" => up.extend(["--listen", &address]),
            "flair" => up.extend(["--resp", &address]),
            _ => up.extend(["--resp", &address, "--metrics-port", &metrics]),
        }
        up.extend(options);
        said(&up);
        let table = said(&["config", "show", "--data", data]);
        said(&["down", "--data", data]);
        for (name, [value, default, from]) in expected {
            assert_eq!(
                setting(&table, name)[1..],
                [*value, default, from],
                "{table}"
            );
        }
    }
}

/// What is written to it waits: its buffer is full, and nobody reads the other end, which is returned too.
fn full_output() -> (OwnedFd, UnixStream) {
    let (mut output, reader) = UnixStream::pair().expect("a pair");
    output.set_nonblocking(true).expect("set");
    while output.write(&[0; 512]).is_ok() {}
    output.set_nonblocking(false).expect("set");
    (output.into(), reader)
}

#[test]
fn a_cluster_whose_self_check_is_interrupted_does_not_stay() {
    for service in ["kv", "falcon"] {
        let dir = tempfile::tempdir().expect("a directory");
        let data = dir.path().join("data");
        let address = format!("127.0.0.1:{}", free_ports(8));
        let mut up = Command::new(env!("CARGO_BIN_EXE_inband"));
        up.args(["up", service, "--detach", "--dataplane", "udp"]);
        match service {
            "kv" => up.args([
                "--resp",
                &address,
                "--metrics-port",
                &free_ports(16).to_string(),
            ]),
            _ => up.args(["--listen", &address, "--executors", "1"]),
        };
        let (output, _reader) = full_output();
        let up = up.arg("--data").arg(&data).stdout(output);
        let up = up.stderr(Stdio::piped()).spawn().expect("it runs");

        // It has started the cluster once it waits to print something.
        let writes = format!("{} 0x1 ", nix::libc::SYS_write);
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let calls = std::fs::read_to_string(format!("/proc/{}/syscall", up.id()));
            if calls.expect("it waits").starts_with(&writes) {
                break;
            }
            assert!(Instant::now() < deadline, "{service}: it prints nothing");
            std::thread::sleep(Duration::from_millis(20));
        }
        kill(Pid::from_raw(up.id() as i32), Signal::SIGINT).expect("interrupted");
        let output = up.wait_with_output().expect("it ends");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("being started was stopped"), "{said}");
        let status = inband_in(dir.path(), &["status", "--data", "data"]);
        assert!(
            refusal(&status).contains("inband up"),
            "{service}: {status:?}"
        );
    }
}

/// The program in a directory of its own, with a umask that forbids nothing.
fn inband_in(dir: &Path, args: &[&str]) -> Output {
    let mut shell = Command::new("sh");
    shell.current_dir(dir).args(["-c", "umask 0; exec \"$@\""]);
    shell.arg("sh").arg(env!("CARGO_BIN_EXE_inband")).args(args);
    shell.output().expect("it runs")
}

fn refusal(output: &Output) -> String {
    assert!(!output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn of_several_clusters_in_one_directory_none_is_taken_by_chance() {
    let dir = tempfile::tempdir().expect("a directory");
    let run = |data: &str| {
        let data = dir.path().join(data);
        std::fs::create_dir(&data).expect("created");
        UnixListener::bind(data.join("supervisor.sock")).expect("bound")
    };
    let _running = [run(".inband-flair"), run(".inband-box")];
    // A supervisor that was killed leaves its socket.
    drop(run(".inband"));
    for command in [
        &["down"][..],
        &["status"],
        &["kill", "leader"],
        &["config", "show"],
    ] {
        let why = refusal(&inband_in(dir.path(), command));
        assert!(
            why.contains("--data .inband-flair (flair), or --data .inband-box (box)"),
            "{command:?}: {why}"
        );
    }
}

#[test]
fn a_password_file_is_read_before_anything_is_started() {
    let dir = tempfile::tempdir().expect("a directory");
    for up in [&["up"][..], &["up", "--detach"]] {
        let up = [up, &["--password-file", "nosuch"]].concat();
        let why = refusal(&inband_in(dir.path(), &up));
        assert!(why.contains("nosuch; write the password into it"), "{why}");
        assert!(!why.contains("certificate"), "{why}");
        assert!(!dir.path().join(".inband").exists());
    }
}

#[test]
fn a_directory_whose_sockets_have_too_long_paths_is_refused_before_anything_is_started() {
    let dir = tempfile::tempdir().expect("a directory");
    let data = "d".repeat(100);
    for system in ["kv", "flair", "falcon", "box", "memory", "netpaxos"] {
        let why = refusal(&inband_in(dir.path(), &["up", system, "--data", &data]));
        for part in [&data, "107", "--data"] {
            assert!(why.contains(part), "{system}: {why}");
        }
    }
}

#[test]
fn others_can_write_into_no_directory_whatever_the_umask() {
    let dir = tempfile::tempdir().expect("a directory");
    // It fails, but not before it has a directory.
    refusal(&inband_in(dir.path(), &["up", "flair", "--groups", "0"]));
    for path in [".inband-flair", ".inband-flair/system"] {
        let mode = std::fs::metadata(dir.path().join(path))
            .expect("there")
            .mode();
        assert_eq!(mode & 0o022, 0, "{path}: {mode:o}");
    }
}

#[test]
fn a_system_of_one_process_is_started_and_found_as_others_are() {
    let dir = tempfile::tempdir().expect("a directory");
    let program = dir.path().join("inband-single");
    inband_testing::write_script(&program, "#!/bin/sh\necho single \"$@\"\n");
    std::fs::create_dir(dir.path().join("d")).expect("created");
    std::fs::write(dir.path().join("d/system"), "single\n").expect("written");
    let inband = |args: &[&str]| {
        let mut inband = Command::new(env!("CARGO_BIN_EXE_inband"));
        let path = format!("{}:/usr/bin:/bin", dir.path().display());
        inband.current_dir(dir.path()).env("PATH", path).args(args);
        inband.output().expect("it runs")
    };
    for (args, expected) in [
        (&["up", "single", "--logs", "2"][..], "single up --logs 2\n"),
        (&["status", "--data", "d"], "single status --data d\n"),
    ] {
        let output = inband(args);
        assert_eq!(
            String::from_utf8_lossy(&output.stdout),
            expected,
            "{output:?}"
        );
    }
    let why = refusal(&inband(&["up", "--data", "d"]));
    assert!(why.contains("`inband up single`"), "{why}");
}
