//! A cluster of replicated memory, from its first start to its loss: no part of it ever starts with zeros by itself.

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{ensure, Context, Result};
use inband_cluster::command::SystemCommand;
use inband_cluster::memory::{grow, replace, Memory, Options};
use inband_cluster::scratch::retry;
use inband_cluster::socket::{self, Request};
use inband_cluster::supervisor::host_dir;
use inband_cluster::supervisor::Supervisor;
use inband_host::config::Dataplane;
use inband_host::state_dir::{read_number, write_number};
use inband_memory::cluster::{PROMISED, REPLACES, SPACE};
use inband_memory::epoch::REPLACE_SKIPS;
use inband_memory::line_client::LineClient;
use inband_memory::status::Status;

/// Time limit on a loaded machine.
const SERVING_LIMIT: Duration = Duration::from_secs(60);
const LINE: u64 = 5;
const VALUE: [u8; 64] = [7; 64];

fn program() -> PathBuf {
    inband_testing::build("inband-memory")
}

pub fn start(dir: &Path, accept_loss: bool) -> Result<Supervisor<Memory>> {
    start_with(dir, accept_loss, Dataplane::Udp, program())
}

fn start_with(
    dir: &Path,
    accept_loss: bool,
    dataplane: Dataplane,
    program: PathBuf,
) -> Result<Supervisor<Memory>> {
    let options = Options {
        servers: 3,
        switches: 2,
        space: 4 << 20,
        block: 16,
        dataplane,
        no_key: false,
        accept_loss,
    };
    let mut spec = Memory::spec(&options, dir)?;
    spec.program = Some(program);
    Supervisor::start(spec)
}

pub fn connect(cluster: &Supervisor<Memory>) -> LineClient {
    let mut config = cluster.status().cluster.config().expect("its key");
    config.deadline = SERVING_LIMIT;
    LineClient::connect(config).expect("a switch")
}

fn all_serve(cluster: &Supervisor<Memory>) -> Result<()> {
    retry(SERVING_LIMIT, || {
        let nodes = cluster.status().nodes;
        let serving = nodes.iter().filter(|node| node.state == "serving").count();
        ensure!(serving == 3, "{serving} servers serve");
        Ok(())
    })
}

/// The outcome of a write is unknown if a switch takes over meanwhile.
pub fn write(client: &mut LineClient, line: u64, value: &[u8; 64]) {
    retry(SERVING_LIMIT, || Ok(client.write(line, value)?)).expect("written");
}

fn node(cluster: &Supervisor<Memory>, name: &str) -> Status {
    let answers = || {
        let mut nodes = cluster.status().nodes.into_iter();
        let node = nodes.find(|node| node.name == name);
        node.context("it does not answer")
    };
    retry(SERVING_LIMIT, answers).expect("it answers")
}

/// A process that hangs until this is dropped.
struct Hung(u32);

impl Hung {
    fn process(pid: u32) -> Hung {
        signal("STOP", pid);
        Hung(pid)
    }
}

impl Drop for Hung {
    fn drop(&mut self) {
        signal("CONT", self.0);
    }
}

fn signal(name: &str, pid: u32) {
    let mut kill = Command::new("sh");
    kill.args(["-c", &format!("kill -{name} {pid}")]);
    assert!(kill.status().expect("a shell").success());
}

#[test]
fn a_memory_is_lost_only_when_told() {
    let dir = tempfile::tempdir().expect("a directory");
    let cluster = start(dir.path(), false).expect("a new memory");
    write(&mut connect(&cluster), LINE, &VALUE);

    // Another supervisor started meanwhile changes nothing, even if it accepts the loss.
    for accept_loss in [false, true] {
        let error = start(dir.path(), accept_loss).map(drop).unwrap_err();
        let said = format!("{error:#}");
        assert!(said.contains("another `inband up`"), "{said}");
    }

    // Each server in turn loses its memory and copies it back.
    for server in ["server/1", "server/2", "server/3"] {
        cluster.kill(server).expect("killed");
        cluster.restart(server).expect("restarted");
        all_serve(&cluster).expect("recovered");
        assert_eq!(connect(&cluster).read(LINE).expect("read"), VALUE);
    }

    // Without --force, the command line does not stop a majority.
    let ask = |server: &str, force| {
        let role = server.to_owned();
        socket::done::<Memory>(dir.path(), &Request::Restart { role, force })
    };
    cluster.kill("server/1").expect("killed");
    let refused = format!("{:#}", ask("server/2", false).expect_err("only two serve"));
    assert!(
        refused.contains("server/2 cannot be spared") && refused.contains("--force"),
        "{refused}"
    );
    // A paused server still has its memory, although it does not answer.
    cluster.pause("server/2").expect("paused");
    let refused = format!("{:#}", ask("server/2", false).expect_err("it is needed"));
    assert!(refused.contains("server/2 cannot be spared"), "{refused}");
    cluster.resume("server/2").expect("resumed");
    ask("server/1", false).expect("it is not there, so it is not missed");
    all_serve(&cluster).expect("recovered");
    ask("server/2", false).expect("the two others serve");
    all_serve(&cluster).expect("recovered");
    assert_eq!(connect(&cluster).read(LINE).expect("read"), VALUE);

    // If all lose it at the same time it is gone, and no restart serves zeros.
    for server in ["server/1", "server/2", "server/3"] {
        cluster.kill(server).expect("killed");
    }
    for server in ["server/1", "server/2", "server/3"] {
        cluster.restart(server).expect("restarted");
    }
    let servers_in = |state: &str| {
        let nodes = cluster.status().nodes.into_iter();
        let servers = nodes.filter(|node| node.name.starts_with("server"));
        servers.filter(|node| node.state == state).count()
    };
    retry(SERVING_LIMIT, || {
        let recovering = servers_in("recovering");
        ensure!(recovering == 3, "{recovering} servers recover");
        Ok(())
    })
    .expect("all three wait for each other");
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(servers_in("serving"), 0);
    drop(cluster);

    let error = start(dir.path(), false).map(drop).unwrap_err();
    let said = format!("{error:#}");
    assert!(
        said.contains("was lost when its servers stopped") && said.contains("--accept-loss"),
        "{said}"
    );
    let cluster = start(dir.path(), true).expect("told to begin with zeros");
    assert_eq!(connect(&cluster).read(LINE).expect("read"), [0; 64]);
}

#[test]
fn it_grows_and_a_server_is_replaced_while_a_client_uses_it() {
    let dir = tempfile::tempdir().expect("a directory");
    let cluster = start(dir.path(), false).expect("a new memory");
    let lines = |space: u64| space / VALUE.len() as u64;
    let (small, large) = (4 << 20, 12 << 20);
    let mut client = connect(&cluster);
    write(&mut client, LINE, &VALUE);

    let is_over = &std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let mut other = connect(&cluster);
        // Each line is written only by this thread, and must always be read as it was written.
        let user = scope.spawn(move || {
            let mut count = 0u64;
            while !is_over.load(std::sync::atomic::Ordering::Acquire) {
                let (line, value) = (100 + count % 50, [count as u8; 64]);
                // A busy machine may take longer than a request waits.
                write(&mut other, line, &value);
                let read = retry(SERVING_LIMIT, || Ok(other.read(line)?));
                assert_eq!(read.expect("read"), value);
                count += 1;
            }
            count
        });
        let mut said = Vec::new();
        let error = grow(dir.path(), small, |_| ()).expect_err("it has as much");
        assert!(format!("{error:#}").contains("already has"), "{error:#}");
        grow(dir.path(), large, |what| said.push(what)).expect("grown");
        assert_eq!(said.len(), 3 + 2 + 1, "{said:?}");
        let error = grow(dir.path(), small, |_| ()).expect_err("it cannot shrink");
        assert!(format!("{error:#}").contains("cannot shrink"), "{error:#}");

        let error = replace(dir.path(), "switch/1").expect_err("no server");
        assert!(
            format!("{error:#}").contains("is not a server"),
            "{error:#}"
        );
        for server in ["server/1", "server/2", "server/3"] {
            replace(dir.path(), server).expect("replaced");
        }
        is_over.store(true, std::sync::atomic::Ordering::Release);
        assert!(user.join().expect("no error") > 0);
    });

    let mut client = connect(&cluster);
    let last = lines(large) - 1;
    assert_eq!(client.read(LINE).expect("read"), VALUE);
    assert_eq!(client.read(last).expect("a new line"), [0; 64]);
    write(&mut client, last, &VALUE);
    assert!(client.read(last + 1).is_err(), "behind the end");
    for server in ["server/1", "server/2"] {
        cluster.kill(server).expect("killed");
        cluster.restart(server).expect("restarted");
        all_serve(&cluster).expect("recovered");
    }
    assert_eq!(connect(&cluster).read(last).expect("read"), VALUE);
    let config = Memory::settings(dir.path()).expect("settings");
    let space = config.iter().find(|it| it.name == "--space").expect("it");
    assert_eq!(space.value, large.to_string());
}

/// A program that starts the nodes, but refuses to start server/2 with this many bytes while a file `full` exists.
fn program_of_a_small_host(dir: &Path, space: u64) -> PathBuf {
    let path = dir.join("inband-memory");
    let (full, program) = (dir.join("full"), program());
    let script = format!(
        "#!/bin/sh\nfor word; do case $word in */server-2)\n  [ -e {full} ] && grep -q {space} $word/space && exit 1;;\nesac; done\nexec {program} \"$@\"\n",
        full = full.display(),
        program = program.display()
    );
    inband_testing::write_script(&path, &script);
    std::fs::write(full, "").expect("a file");
    path
}

#[test]
fn a_growth_that_fails_or_is_interrupted_is_undone_or_repeated() {
    let (scripts, dir) = (tempfile::tempdir(), tempfile::tempdir());
    let (scripts, dir) = (scripts.expect("one"), dir.expect("another"));
    let lines = |space: u64| space / VALUE.len() as u64;
    let (small, middle, large) = (4 << 20, 8 << 20, 12 << 20);
    let program = program_of_a_small_host(scripts.path(), large);
    let cluster = start_with(dir.path(), false, Dataplane::Udp, program).expect("a new memory");
    write(&mut connect(&cluster), LINE, &VALUE);
    let space_of = |name: &str| {
        let path = host_dir(dir.path(), name).join(SPACE);
        read_number(&path).expect("its size")
    };
    // A node that waits for a CPU does not answer in time, which is another reason.
    let refused = |space: u64, why: &str| {
        let is_why = retry(SERVING_LIMIT, || {
            let error = grow(dir.path(), space, |_| ()).expect_err("refused");
            let error = format!("{error:#}");
            ensure!(error.contains(why), "{error}");
            Ok(())
        });
        is_why.expect("the reason");
    };

    // The host of server/2 cannot hold it: that server is restarted with its former size.
    let mut said = Vec::new();
    let error = grow(dir.path(), large, |what| said.push(what)).expect_err("too much");
    let error = format!("{error:#}");
    assert!(
        error.contains("server/2 does not serve with 12 MiB"),
        "{error}"
    );
    assert_eq!(said.len(), 1, "{said:?}");
    all_serve(&cluster).expect("undone");
    let spaces = ["server/1", "server/2", "server/3"].map(space_of);
    assert_eq!(spaces, [large, small, small]);
    let mut client = connect(&cluster);
    assert_eq!(client.lines(), lines(small));
    assert_eq!(client.read(LINE).expect("read"), VALUE);

    // The enlarged server keeps its size when it restarts, and a smaller size is refused.
    cluster.restart("server/1").expect("restarted");
    all_serve(&cluster).expect("recovered");
    assert_eq!(space_of("server/1"), large);
    refused(middle, "an interrupted growth has begun");

    // Growing is interrupted between two servers.
    std::fs::remove_file(scripts.path().join("full")).expect("the host has room");
    let stop_at_two = |what: String| assert!(!what.contains("server/2"), "interrupted");
    catch_unwind(AssertUnwindSafe(|| grow(dir.path(), large, stop_at_two)))
        .expect_err("interrupted");
    assert_eq!(connect(&cluster).lines(), lines(small));

    // A switch that is silent at the beginning blocks it; one that falls silent later learns the size when it restarts.
    cluster.kill("switch/1").expect("killed");
    refused(large, "switch/1 does not answer");
    cluster.restart("switch/1").expect("restarted");
    let mut said = Vec::new();
    grow(dir.path(), large, |what| {
        if what.contains("server/3") {
            cluster.kill("switch/2").expect("killed");
        }
        said.push(what);
    })
    .expect("grown");
    assert_eq!(said.len(), 3 + 2 + 1, "{said:?}");
    for other in ["switch/1", "switch/2"] {
        cluster.kill(other).expect("killed");
        let mut client = connect(&cluster);
        assert_eq!(client.lines(), lines(large), "without {other}");
        write(&mut client, lines(large) - 1, &VALUE);
        assert_eq!(client.read(LINE).expect("read"), VALUE);
        cluster.restart(other).expect("restarted");
    }
}

#[test]
fn a_server_that_is_replaced_is_still_that_after_it_is_killed() {
    let dir = tempfile::tempdir().expect("a directory");
    let cluster = start(dir.path(), false).expect("a new memory");
    write(&mut connect(&cluster), LINE, &VALUE);
    let own = host_dir(dir.path(), "server/1");
    let is_marked = || own.join(REPLACES).exists();
    assert!(node(&cluster, "server/1").epoch < REPLACE_SKIPS);

    // Without the second server it cannot recover. It is killed after it has made a promise of its own.
    let hung = Hung::process(node(&cluster, "server/2").pid);
    cluster.kill("server/1").expect("killed");
    write_number(&own, REPLACES, 1).expect("its mark");
    std::fs::remove_file(own.join(PROMISED)).expect("its promise");
    cluster.restart("server/1").expect("restarted");
    retry(SERVING_LIMIT, || {
        let promised = read_number(&own.join(PROMISED))?;
        ensure!(promised > 0, "it has promised nothing");
        Ok(())
    })
    .expect("a promise");
    cluster.kill("server/1").expect("killed");
    assert!(is_marked());

    cluster.restart("server/1").expect("restarted");
    drop(hung);
    all_serve(&cluster).expect("recovered");
    let epoch = node(&cluster, "server/1").epoch;
    assert!(epoch > REPLACE_SKIPS, "{epoch}");
    retry(SERVING_LIMIT, || {
        ensure!(!is_marked(), "it is marked");
        Ok(())
    })
    .expect("it is a server as the others");
    assert_eq!(connect(&cluster).read(LINE).expect("read"), VALUE);
}

#[test]
fn a_switch_whose_process_hangs_is_left_though_its_role_answers() {
    if let Err(error) = inband_lab::preflight::check_lab() {
        return inband_testing::not_run(error);
    }
    let dir = tempfile::tempdir().expect("a directory");
    let cluster = start_with(dir.path(), false, Dataplane::Xdp, program()).expect("a new memory");
    let mut client = connect(&cluster);
    write(&mut client, LINE, &VALUE);
    let active = || {
        retry(SERVING_LIMIT, || {
            let nodes = cluster.status().nodes.into_iter();
            let active = nodes.filter(|node| node.state == "active");
            active
                .max_by_key(|node| node.epoch)
                .context("no switch is active")
        })
        .expect("one is active")
    };
    let before = active();
    let hung = Hung::process(before.pid);

    // A client with a session continues; one without a session activates the other switch.
    assert_eq!(client.read(LINE).expect("read"), VALUE);
    write(&mut client, LINE + 1, &VALUE);
    let mut other = connect(&cluster);
    assert_eq!(other.read(LINE + 1).expect("read"), VALUE);
    write(&mut other, LINE, &[8; 64]);
    assert_eq!(client.read(LINE).expect("read"), [8; 64]);

    drop(hung);
    let after = active();
    assert_ne!(after.name, before.name);
    assert!(after.epoch > before.epoch);
    assert_eq!(client.read(LINE + 1).expect("read"), VALUE);
}
