//! A supervisor that outlives the command that started it, and one whose process is killed.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use inband_lab::{Lab, LabSpec};

use super::*;

// ---- A supervisor that outlives the command that started it ----

const DETACHED_ENV: &str = "TEST_DETACHED_DIR";

/// Not a test: what `inband up --detach` starts.
#[test]
fn detached() {
    let Some(dir) = std::env::var_os(DETACHED_ENV).map(PathBuf::from) else {
        return;
    };
    inband_cluster::background::leave_terminal();
    let mut spec = spec(&dir, NetworkChoice::Loopback);
    let port = fs::read_to_string(dir.join("port")).expect("port");
    spec.resp.set_port(port.parse().expect("port"));
    match Supervisor::start(spec) {
        Ok(supervisor) => {
            assert!(supervisor.wait_for_end(Duration::from_secs(60)).is_some());
        }
        Err(error) => {
            eprintln!("inband: {error}");
            // Not through the test harness, which would write more.
            std::process::exit(1);
        }
    }
}

#[test]
fn a_detached_supervisor_is_waited_for_and_its_error_is_passed_on() {
    let dir = tempfile::tempdir().expect("a directory");
    let spec = spec(dir.path(), NetworkChoice::Loopback);
    fs::write(dir.path().join("port"), spec.resp.port().to_string()).expect("port");
    let command = || {
        let mut command = Command::new(std::env::current_exe().expect("own path"));
        command
            .args(["--exact", "owners::detached", "--nocapture"])
            .env(DETACHED_ENV, dir.path());
        command
    };
    let taken = TcpListener::bind(spec.resp).expect("take the port");
    let error = remote::spawn_detached(command(), &spec.data)
        .expect_err("in use")
        .to_string();
    // The test harness may have written something before it.
    let expected = format!("port {} on 127.0.0.1 is in use", spec.resp.port());
    assert!(error.contains(&expected), "{error}");
    drop(taken);
    let started = remote::spawn_detached(command(), &spec.data).expect("up");
    assert_eq!(started.answer.leader(0), Some("leader/0"));
    let error = remote::spawn_detached(command(), &spec.data)
        .expect_err("it runs")
        .to_string();
    assert!(error.contains("is running already"), "{error}");
    assert_eq!(
        remote::down(&spec.data, false).expect("down").clean_at,
        Some(vec![0])
    );
}

// ---- An owner that is killed ----

const OWNER_ENV: &str = "TEST_OWNER_DIR";

/// Not a test: runs a cluster in another process until that is killed.
#[test]
fn owner() {
    let Some(dir) = std::env::var_os(OWNER_ENV).map(PathBuf::from) else {
        return;
    };
    let network = if privileged() {
        NetworkChoice::Namespaces
    } else {
        NetworkChoice::Loopback
    };
    let mut spec = spec(&dir, network);
    let port = fs::read_to_string(dir.join("port")).expect("port");
    spec.resp.set_port(port.parse().expect("port"));
    let _supervisor = Supervisor::start(spec).expect("up");
    fs::write(dir.join("ready"), "").expect("ready");
    loop {
        std::thread::park();
    }
}

fn start_owner(dir: &Path) -> Child {
    let child = Command::new(std::env::current_exe().expect("own path"))
        .args(["--exact", "owners::owner", "--nocapture"])
        .env(OWNER_ENV, dir)
        .stdout(Stdio::null())
        .spawn()
        .expect("start the owner");
    let deadline = Instant::now() + Duration::from_secs(30);
    while !dir.join("ready").exists() {
        assert!(Instant::now() < deadline, "the owner comes up");
        std::thread::sleep(Duration::from_millis(10));
    }
    child
}

#[test]
fn what_a_killed_owner_leaves_is_removed() {
    let privileged = privileged();
    let dir = tempfile::tempdir().expect("a directory");
    let network = if privileged {
        NetworkChoice::Namespaces
    } else {
        NetworkChoice::Loopback
    };
    let mut spec = spec(dir.path(), network);
    fs::write(dir.path().join("port"), spec.resp.port().to_string()).expect("port");
    let mut owner = start_owner(dir.path());
    let before = remote::status(&spec.data).expect("it runs");
    assert_eq!(before.supervisor_pid, owner.id());
    let alive = |pid: u32| {
        // A process that has not been waited for yet is dead all the same.
        fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|s| !s.contains(") Z "))
    };
    let pids: Vec<u32> = before.hosts.iter().map(|h| h.pid.expect("pid")).collect();
    assert!(pids.iter().all(|&p| alive(p)));
    put(before.resp).expect("it serves");
    owner.kill().expect("kill -9");
    owner.wait().expect("dead");
    let deadline = Instant::now() + TIMEOUT;
    while pids.iter().any(|&p| alive(p)) {
        assert!(
            Instant::now() < deadline,
            "hosts end when their supervisor is gone"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(
        namespaces_of(&before.name).len(),
        if privileged { 8 } else { 0 }
    );

    let error = Supervisor::start(spec.clone())
        .expect_err("unclean")
        .to_string();
    assert!(error.contains("--accept-loss"), "{error}");
    if privileged {
        // The next lab to be created, whatever its name, cleans up.
        let sweep = LabSpec {
            name: format!("t{}-sweep", std::process::id()),
            hosts: vec!["a".into()],
            seed: 1,
        };
        drop(Lab::create(&sweep).expect("a lab"));
        assert_eq!(namespaces_of(&before.name), Vec::<String>::new());
    }
    spec.accept_loss = true;
    let supervisor = Supervisor::start(spec).expect("up after the crash");
    let status = supervisor.status();
    assert_eq!((status.epoch, &status.first_instances[..]), (2, &[2][..]));
    drop(supervisor);
    assert_eq!(namespaces_of(&before.name), Vec::<String>::new());
}
