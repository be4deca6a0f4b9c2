//! The supervisor, with a system whose hosts only sleep.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{ensure, Result};
use clap::Args;
use inband_cluster::command::{ClusterCommand, Entry, Registered, SystemCommand};
use inband_cluster::host_process::{HostProcess, Process, ProcessStatus};
use inband_cluster::network::Network;
use inband_cluster::socket::{self, Request};
use inband_cluster::supervisor::{is_in, Hosts, Supervisor};
use inband_cluster::system::{HostPlan, NoRequest, Plan, System};
use inband_host::config::Dataplane;
use inband_lab::preflight;
use nix::sys::signal::{kill, Signal};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

const TIMEOUT: Duration = Duration::from_secs(60);

struct Sleepers {
    spec: Spec,
}

#[derive(Debug, Clone)]
struct Spec {
    data: PathBuf,
    hosts: usize,
    /// A script for `sh`.
    script: String,
    /// The host is ready once this file exists.
    sign: Option<PathBuf>,
    /// A host can be spared only while the other two run.
    majority: bool,
    dataplane: Dataplane,
}

#[derive(Debug, Serialize, Deserialize)]
struct Status {
    processes: Vec<ProcessStatus>,
    /// Numbers as keys: JSON turns them into strings, and they must be read back as numbers.
    by_number: BTreeMap<u8, String>,
}

#[derive(Debug, Args)]
struct Options {
    /// How many
    #[arg(long, default_value_t = 3)]
    hosts: usize,
}

impl System for Sleepers {
    const NAME: &'static str = "Sleepers";
    const COMMAND: &'static str = "sleepers";
    const DEFAULT_DATA: &'static str = ".inband-sleepers";

    type Spec = Spec;
    type Status = Status;
    type Request = NoRequest;
    type Reply = NoRequest;

    fn data(spec: &mut Spec) -> &mut PathBuf {
        &mut spec.data
    }

    fn plan(spec: Spec) -> Result<(Sleepers, Plan)> {
        let plan = Plan {
            hosts: (0..spec.hosts).map(|n| format!("sleeper/{n}")).collect(),
            dataplane: spec.dataplane,
            listener_ports: Vec::new(),
        };
        Ok((Sleepers { spec }, plan))
    }

    fn configure(&mut self, network: &Network) -> Result<Vec<HostPlan>> {
        let script = self.spec.script.as_str();
        let plan = |n: usize| {
            let name = format!("sleeper/{n}");
            network.address(&name)?;
            let mut plan = HostPlan::new(name, "sh").args(["-c", script, "again"]);
            plan.first_args.push("first".into());
            Ok(plan)
        };
        (0..self.spec.hosts).map(plan).collect()
    }

    fn ready(&self, hosts: &Hosts) -> Result<(), String> {
        let all = hosts.iter().all(|host| host.state().0 == Process::Running);
        let sign = self.spec.sign.as_ref().is_none_or(|sign| sign.exists());
        (all && sign).then_some(()).ok_or("not all sleep".into())
    }

    fn status(&self, hosts: &Hosts) -> Status {
        Status {
            processes: hosts.iter().map(HostProcess::status).collect(),
            by_number: (0..)
                .zip(hosts.iter().map(|h| h.name().to_owned()))
                .collect(),
        }
    }

    fn host_of(&self, role: &str, _hosts: &Hosts) -> Result<Option<String>> {
        Ok((role == "last").then(|| format!("sleeper/{}", self.spec.hosts - 1)))
    }

    fn roles(&self) -> &'static str {
        "last"
    }

    fn check_spare(&self, host: &str) -> Result<()> {
        if !self.spec.majority {
            return Ok(());
        }
        let processes = socket::status::<Sleepers>(&self.spec.data)?.processes;
        let others = processes.iter().filter(|process| process.name != host);
        let running = others.filter(|process| process.process == Process::Running);
        ensure!(running.count() >= 2, "the others are no majority");
        // What was found out must still hold when the process is killed.
        std::thread::sleep(Duration::from_millis(200));
        Ok(())
    }

    fn request(&self, request: NoRequest, _hosts: &Hosts) -> Result<NoRequest> {
        match request {}
    }
}

impl SystemCommand for Sleepers {
    const ABOUT: &'static str = "Processes that sleep";
    const ABOUT_UP: &'static str = "Start them";
    const ABOUT_ROLES: &'static str = "last, sleeper/0";
    type Options = Options;

    fn spec(options: &Options, data: &Path) -> Result<Spec> {
        Ok(Spec {
            data: data.to_owned(),
            hosts: options.hosts,
            script: "exec sleep 600".into(),
            sign: None,
            majority: false,
            dataplane: Dataplane::Udp,
        })
    }

    fn in_words(status: &Status) -> String {
        format!("{} sleep\n", status.processes.len())
    }

    fn counters(_: &Status) -> Vec<(&str, &str, u64)> {
        Vec::new()
    }

    fn self_check(_: &Options, _: &Status) -> Result<Option<String>> {
        Ok(None)
    }

    fn notice(_: &Status) -> String {
        "in user space".into()
    }

    fn next_steps(_: &Options, _: &Status, _: &Path) -> String {
        String::new()
    }

    fn what_stayed(_: &Status) -> &'static str {
        "nothing stays"
    }
}

fn spec(dir: &Path, script: &str) -> Spec {
    Spec {
        data: dir.join("data"),
        hosts: 3,
        script: script.into(),
        sign: None,
        majority: false,
        dataplane: Dataplane::Udp,
    }
}

fn eventually(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !is_so() {
        assert!(Instant::now() < deadline, "never {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn process(data: &Path, n: usize) -> ProcessStatus {
    let status = socket::status::<Sleepers>(data).expect("it answers");
    status.processes[n].clone()
}

#[test]
fn other_processes_see_kill_restart_and_pause_hosts_and_end_the_cluster() {
    let dir = tempfile::tempdir().expect("a directory");
    let spec = spec(dir.path(), "exec sleep 600");
    let data = spec.data.clone();
    let cluster = Supervisor::<Sleepers>::start(spec.clone()).expect("it starts");
    let done = |request| socket::done::<Sleepers>(&data, &request);
    let role = |role: &str| role.to_owned();
    let status = socket::status::<Sleepers>(&data).expect("it answers");
    assert_eq!(status.by_number[&2], "sleeper/2");
    let first = status.processes[2].pid;

    let killed = done(Request::Kill {
        role: role("last"),
        force: false,
    })
    .expect("killed");
    assert_eq!(killed, "sleeper/2");
    assert_eq!(process(&data, 2).process, Process::Killed);
    let error = done(Request::Kill {
        role: role("last"),
        force: false,
    })
    .expect_err("it does not run");
    assert!(
        error.to_string().contains("inband restart sleeper/2"),
        "{error}"
    );
    let error = done(Request::Kill {
        role: role("x"),
        force: false,
    })
    .expect_err("no such host");
    assert!(
        error
            .to_string()
            .contains("there are last, sleeper/0, sleeper/1, sleeper/2"),
        "{error}"
    );
    let error = done(Request::Pause { role: role("last") }).expect_err("it does not run");
    assert!(error.to_string().contains("does not run"), "{error}");
    done(Request::Restart {
        role: role("last"),
        force: false,
    })
    .expect("restarted");
    assert_eq!(process(&data, 2).process, Process::Running);
    assert_ne!(process(&data, 2).pid, first);

    done(Request::Pause {
        role: role("sleeper/0"),
    })
    .expect("paused");
    assert_eq!(process(&data, 0).process, Process::Paused);
    let error = done(Request::Resume {
        role: role("sleeper/1"),
    })
    .expect_err("it is not paused");
    assert!(
        error.to_string().contains("sleeper/1 is not paused"),
        "{error}"
    );
    done(Request::Resume {
        role: role("sleeper/0"),
    })
    .expect("resumed");
    assert_eq!(process(&data, 0).process, Process::Running);
    done(Request::Pause {
        role: role("sleeper/0"),
    })
    .expect("paused");
    done(Request::Kill {
        role: role("sleeper/0"),
        force: false,
    })
    .expect("one that is paused can be killed");
    done(Request::Restart {
        role: role("sleeper/0"),
        force: false,
    })
    .expect("restarted");
    assert_eq!(process(&data, 0).process, Process::Running);

    let supervisor = socket::supervisor::<Sleepers>(&data).expect("it answers");
    assert_eq!(
        (supervisor.pid, &*supervisor.system),
        (std::process::id(), "sleepers")
    );
    let Err(other) = Supervisor::<Sleepers>::start(spec) else {
        panic!("two clusters in one directory");
    };
    assert!(
        format!("{other:#}").contains("does another `inband up` run"),
        "{other:#}"
    );
    assert!(!cluster.wait_for_end(Duration::ZERO));
    done(Request::Down).expect("it ends");
    assert!(cluster.wait_for_end(TIMEOUT));
    let pid = process(&data, 1).pid.expect("it runs");
    drop(cluster);
    assert!(!Path::new(&format!("/proc/{pid}")).exists());
    let error = socket::status::<Sleepers>(&data).expect_err("nobody answers");
    assert!(
        error.to_string().contains("start one: inband up sleepers"),
        "{error}"
    );
}

#[test]
fn two_kills_at_once_leave_the_majority_that_one_would_leave() {
    let dir = tempfile::tempdir().expect("a directory");
    let spec = Spec {
        majority: true,
        ..spec(dir.path(), "exec sleep 600")
    };
    let data = spec.data.clone();
    let _cluster = Supervisor::<Sleepers>::start(spec).expect("it starts");
    let force = false;
    let kill = |role: &str| {
        let role = role.to_owned();
        socket::done::<Sleepers>(&data, &Request::Kill { role, force })
    };
    let killed = std::thread::scope(|scope| {
        let kills = ["sleeper/0", "sleeper/1"].map(|role| scope.spawn(move || kill(role)));
        kills.map(|kill| kill.join().expect("an answer"))
    });
    assert_eq!(
        killed.iter().filter(|kill| kill.is_ok()).count(),
        1,
        "{killed:?}"
    );
    let restart = |role: &str| {
        let role = role.to_owned();
        socket::done::<Sleepers>(&data, &Request::Restart { role, force })
    };
    let refused = restart("sleeper/2").expect_err("the last but one");
    let refused = format!("{refused:#}");
    assert!(
        refused.contains("sleeper/2 cannot be spared: the others are no majority"),
        "{refused}"
    );
}

#[test]
fn a_host_that_ends_by_itself_is_started_again_and_not_as_in_the_beginning() {
    let dir = tempfile::tempdir().expect("a directory");
    let spec = spec(dir.path(), "echo \"$0 $1\"; exec sleep 600");
    let data = spec.data.clone();
    let cluster = Supervisor::<Sleepers>::start(spec).expect("it starts");
    let log = data.join("hosts/sleeper-1/log");
    let says = |lines: &str| fs::read_to_string(&log).is_ok_and(|log| log == lines);
    // If it were killed before its first line, it would never report that it was the first.
    eventually("one start in its log", || says("again first\n"));
    let pid = process(&data, 1).pid.expect("it runs");
    kill(Pid::from_raw(pid as i32), Signal::SIGKILL).expect("killed");
    eventually("restarted", || process(&data, 1).restarts == 1);
    let status = process(&data, 1);
    assert_eq!(status.last_exit.as_deref(), Some("signal: 9 (SIGKILL)"));
    eventually("two starts in its log", || says("again first\nagain \n"));
    drop(cluster);
}

#[test]
fn a_cluster_whose_host_ends_does_not_start() {
    let dir = tempfile::tempdir().expect("a directory");
    let spec = Spec {
        sign: Some(dir.path().join("never")),
        ..spec(dir.path(), "echo no room; exit 78")
    };
    let Err(error) = Supervisor::<Sleepers>::start(spec) else {
        panic!("it starts");
    };
    assert!(error.to_string().contains("no room"), "{error}");
}

#[test]
fn a_directory_is_of_one_system() {
    let dir = tempfile::tempdir().expect("a directory");
    let spec = spec(dir.path(), "exec sleep 600");
    assert!(!is_in::<Sleepers>(&spec.data));
    drop(Supervisor::<Sleepers>::start(spec.clone()).expect("it starts"));
    assert!(is_in::<Sleepers>(&spec.data));
    fs::write(spec.data.join("system"), "others\n").expect("written");
    assert!(!is_in::<Sleepers>(&spec.data));
    let error = socket::status::<Sleepers>(&spec.data).expect_err("it is another's");
    assert!(error.to_string().contains("`inband up others`"), "{error}");
    let Err(error) = Supervisor::<Sleepers>::start(spec) else {
        panic!("it starts in another system's directory");
    };
    assert!(
        error
            .to_string()
            .contains("a cluster of `inband up others`"),
        "{error}"
    );
}

#[test]
fn links_get_faults_and_lose_them_while_a_host_is_paused() {
    if let Err(error) = preflight::check_lab() {
        return inband_testing::not_run(error);
    }
    let dir = tempfile::tempdir().expect("a directory");
    let mut spec = spec(dir.path(), "exec sleep 600");
    spec.dataplane = Dataplane::Auto;
    let data = spec.data.clone();
    let cluster = Supervisor::<Sleepers>::start(spec).expect("it starts");
    let lab = cluster.hosts().network().lab().expect("namespaces");
    let change = |role: &str, change: &str| {
        let change = serde_json::from_str(change).expect("a change");
        let role = role.to_owned();
        socket::done::<Sleepers>(&data, &Request::Link { role, change })
    };
    assert_eq!(
        change("last", r#"{"delay_us": 300, "loss_ppm": 5000}"#).expect("changed"),
        "sleeper/2"
    );
    let faults = lab.link("sleeper/2").expect("a link");
    assert_eq!(
        (
            faults.delay_us,
            faults.loss_from_host_ppm,
            faults.loss_to_host_ppm
        ),
        (300, 5000, 5000)
    );
    cluster.pause("sleeper/2").expect("paused");
    change("sleeper/2", "{}").expect("changed");
    let faults = lab.link("sleeper/2").expect("a link");
    assert_eq!((faults.held, faults.delay_us), (true, 0));
    cluster.resume("sleeper/2").expect("resumed");

    change("sleeper/0", r#"{"cut": true, "to": "sleeper/1"}"#).expect("cut");
    for (bad, why) in [
        (r#"{"delay_us": 1, "to": "sleeper/1"}"#, "--cut"),
        (r#"{"cut": true, "to": "sleeper/0"}"#, "both ends"),
        (r#"{"delay_us": 10000001}"#, "10000001 us"),
        (r#"{"cut": true, "to": "sleeper/9"}"#, "sleeper/9"),
    ] {
        let error = change("sleeper/0", bad).expect_err(bad).to_string();
        assert!(error.contains(why), "{bad}: {error}");
    }
}

#[test]
fn a_system_has_all_commands() {
    static ENTRY: Entry<ClusterCommand<Sleepers>> = Entry::new();
    assert_eq!(ENTRY.name(), "sleepers");
    let mut command = ENTRY.command();
    for name in [
        "up", "down", "status", "kill", "restart", "pause", "resume", "link",
    ] {
        assert!(command.find_subcommand(name).is_some(), "{name}");
    }
    command.build();
    command.clone().debug_assert();
    let up = command.find_subcommand_mut("up").expect("up");
    let help = up.render_help().to_string();
    for option in [
        "Usage: inband up sleepers [OPTIONS]",
        "--hosts",
        "--data",
        "--detach",
        ".inband-sleepers",
    ] {
        assert!(help.contains(option), "{help}");
    }
    assert!(!help.contains("--detached"), "{help}");
}
