//! Programs whose heap is in a real cluster on 127.0.0.1, while its servers and switches fail.

mod common;

use std::net::UdpSocket;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use common::workloads::{python, sort, Redis, Sqlite, Workload};
use common::{end, inband, library, memory, output};
use inband_memory::heap::stats::programs;
use tempfile::TempDir;

/// How long a cluster may take to start, or a program to reach a certain point.
const TIMEOUT: Duration = Duration::from_secs(60);

struct Cluster {
    up: Child,
    dir: TempDir,
    _alone: MutexGuard<'static, ()>,
}

/// Runs one cluster at a time, since they share processors.
fn alone() -> MutexGuard<'static, ()> {
    static CLUSTER: Mutex<()> = Mutex::new(());
    CLUSTER.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Cluster {
    fn start() -> Cluster {
        let alone = alone();
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().to_str().unwrap();
        let options = ["--dataplane", "udp", "--no-key", "--space", "64MiB"];
        let mut command = inband(&["up", "memory", "--data", data]);
        let up = command
            .args(options)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn();
        let cluster = Cluster {
            up: up.expect("it starts"),
            dir,
            _alone: alone,
        };
        let since = Instant::now();
        while cluster.status().matches(" serving ").count() < 3 {
            assert!(since.elapsed() < TIMEOUT, "{}", cluster.status());
            std::thread::sleep(Duration::from_millis(50));
        }
        cluster
    }

    fn data(&self) -> &str {
        self.dir.path().to_str().unwrap()
    }

    fn status(&self) -> String {
        let status = end(inband(&["status", "--data", self.data()]), Stdio::null());
        String::from_utf8_lossy(&status.stdout).into_owned()
    }

    fn kill(&self, node: &str) {
        output(
            inband(&["kill", "--force", "--data", self.data(), node]),
            Stdio::null(),
        );
    }

    fn active_switch(&self) -> String {
        let since = Instant::now();
        loop {
            let status = self.status();
            let active = status.lines().find(|line| line.contains(" active "));
            if let Some(name) = active.and_then(|line| line.split(' ').next()) {
                return name.to_owned();
            }
            // It takes over, or waits for a CPU and does not answer.
            assert!(since.elapsed() < TIMEOUT, "no switch is active: {status}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn run(&self, options: &[&str]) -> Command {
        let mut command = memory(&["run", "--data", self.data(), "--library"]);
        command.arg(library()).args(options).arg("--");
        command
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let pid = self.up.id().to_string();
        // `inband` ends its processes.
        let _ = Command::new("kill").arg(&pid).status();
        let _ = self.up.wait();
    }
}

/// Waits until the running program's pager has fetched this many more pages; false if the program has ended before.
fn fetches(dir: &Path, more: u64, has_ended: impl Fn() -> bool) -> bool {
    let since = Instant::now();
    let mut goal = None;
    while !has_ended() {
        assert!(since.elapsed() < TIMEOUT, "no program runs, or fetches");
        // A pager that waits for a CPU does not answer in time.
        let programs = programs(dir);
        if let Some(fetched) = programs.first().map(|program| program.figures.fetched) {
            if fetched >= *goal.get_or_insert(fetched + more) {
                return true;
            }
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    false
}

/// Kills a server and then the active switch, each time when the program needs its memory; false if the program has ended before it
/// needed its memory from the other switch.
fn kill_a_server_and_a_switch(cluster: &Cluster, pages: u64, has_ended: impl Fn() -> bool) -> bool {
    let fetches = || fetches(cluster.dir.path(), pages, &has_ended);
    if !fetches() {
        return false;
    }
    cluster.kill("server/2");
    if !fetches() {
        return false;
    }
    cluster.kill(&cluster.active_switch());
    fetches()
}

/// Runs a test with more and more work until the program does not end before the failures are over: how fast it is compared to the
/// commands that cause them depends on the machine.
fn with_enough_work(test: impl Fn(u64) -> bool) {
    const FACTORS: [u64; 3] = [1, 3, 9];
    let was_enough = FACTORS.into_iter().any(test);
    assert!(
        was_enough,
        "the program ended before the failures were over"
    );
}

/// Checks that the result is the same although a server is killed half way, and then the switch; returns whether the program ran
/// until then.
fn survives(workload: Option<Workload>, buffer: &str) -> bool {
    let Some(workload) = workload else {
        return true;
    };
    let expected = workload.result(None);
    let cluster = Cluster::start();
    let runner = cluster.run(&["--buffer", buffer]);
    let (result, is_over) = std::thread::scope(|scope| {
        let running = scope.spawn(|| workload.result(Some(runner)));
        let is_over = kill_a_server_and_a_switch(&cluster, 200, || running.is_finished());
        (running.join().expect("it runs"), is_over)
    });
    assert!(result == expected, "another result");
    is_over
}

#[test]
fn sqlite_survives_a_killed_server_and_a_killed_switch() {
    const BATCHES_MAX: u64 = 100;
    let cluster = Cluster::start();
    let runner = cluster.run(&["--buffer", "1MiB"]);
    let Some(mut sqlite) = Sqlite::start(Some(runner)) else {
        return;
    };
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // It inserts rows until the failures are over, on a fast machine and on a busy one.
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) && sqlite.batches() < BATCHES_MAX {
                sqlite.insert();
            }
        });
        kill_a_server_and_a_switch(&cluster, 200, || false);
        is_over.store(true, Ordering::Relaxed);
    });
    let batches = sqlite.batches();
    println!("{batches} batches");
    assert!(batches < BATCHES_MAX, "it was not busy until the end");
    let result = sqlite.result();
    let mut alone = Sqlite::start(None).expect("it was here before");
    while alone.batches() < batches {
        alone.insert();
    }
    assert!(result == alone.result(), "another result");
}

#[test]
fn sort_survives_a_killed_server_and_a_killed_switch() {
    with_enough_work(|factor| survives(sort(200_000 * factor), "2MiB"));
}

#[test]
fn python_survives_a_killed_server_and_a_killed_switch() {
    with_enough_work(|factor| survives(python(100_000, factor), "4MiB"));
}

#[test]
fn redis_survives_a_killed_server_and_a_killed_switch() {
    with_enough_work(|factor| redis_survives(5_000 * factor));
}

fn redis_survives(keys: u64) -> bool {
    let Some(redis) = Redis::start(None) else {
        return true;
    };
    let expected = redis.fill(keys);
    redis.end();
    let cluster = Cluster::start();
    let runner = cluster.run(&["--buffer", "2MiB"]);
    let redis = Redis::start(Some(runner)).expect("it was here before");
    let (digest, is_over) = std::thread::scope(|scope| {
        let filling = scope.spawn(|| redis.fill(keys));
        let is_over = kill_a_server_and_a_switch(&cluster, 20, || filling.is_finished());
        (filling.join().expect("it is filled"), is_over)
    });
    let words = [
        "top",
        "--data",
        cluster.data(),
        "--count",
        "1",
        "--every-ms",
        "200",
    ];
    let top = output(memory(&words), Stdio::null());
    assert!(
        top.contains("  redis-server (") && top.contains(" faults/s"),
        "{top}"
    );
    redis.benchmark(2_000);
    redis.end();
    assert_eq!(digest, expected);
    is_over
}

#[test]
fn without_a_majority_the_program_is_ended_with_an_error() {
    let Some(workload) = python(300_000, 1) else {
        return;
    };
    let cluster = Cluster::start();
    let mut command = cluster.run(&["--buffer", "4MiB", "--give-up-after-s", "5"]);
    command.args(workload.words());
    let failed = std::thread::scope(|scope| {
        let running = scope.spawn(|| end(command, Stdio::null()));
        assert!(fetches(cluster.dir.path(), 100, || running.is_finished()));
        cluster.kill("server/1");
        cluster.kill("server/2");
        running.join().expect("it runs")
    });
    let message = String::from_utf8_lossy(&failed.stderr);
    assert_eq!(failed.status.code(), Some(1), "{message}");
    assert!(
        message.contains("was ended: the memory failed for"),
        "{message}"
    );
}

/// No switch answers, so there is no program yet to pass signals on to.
#[test]
fn a_signal_ends_what_waits_for_a_memory() {
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let mut command = memory(&["run", "--switches", &address, "--library"]);
    let mut child = command
        .arg(library())
        .args(["--", "true"])
        .stdin(Stdio::null())
        .spawn()
        .expect("it starts");
    silent.set_read_timeout(Some(TIMEOUT)).unwrap();
    silent.recv_from(&mut [0; 2048]).expect("it asks");
    let mut kill = Command::new("kill");
    // A shell's background jobs ignore SIGINT.
    let killed = kill.args(["-TERM", &child.id().to_string()]).status();
    assert!(killed.expect("it runs").success());
    let status = child.wait().expect("it is a child");
    assert_eq!(status.signal(), Some(15), "{status}");
}
