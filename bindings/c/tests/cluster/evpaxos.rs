//! `bindings/evpaxos`, libpaxos's API over the C library: three replicas, which are also leaders and acceptors, learners
//! and a client, each a process of its own.

use super::*;
use inband_testing::port::free_ports;

const REPLICAS: u8 = 3;
const PROPOSER: u8 = 5;
const ACCEPTOR: u8 = 6;
const LEARNERS: std::ops::RangeInclusive<u8> = 11..=12;

/// The library and its programs, and the files of a cluster.
struct Evpaxos {
    dir: tempfile::TempDir,
    config: PathBuf,
    libraries: PathBuf,
}

fn is_available() -> bool {
    let event = Command::new("pkg-config")
        .args(["--exists", "libevent_core"])
        .status();
    let is_available = event.is_ok_and(|status| status.success());
    if !is_available {
        inband_testing::not_run("libevent-dev is not installed; run scripts/setup --test");
    }
    is_available
}

/// Builds the library, with these flags too: its directory.
fn library(dir: &Path, flags: &[&str]) -> PathBuf {
    let out = dir.join("lib");
    let mut make = Command::new("make");
    make.env("CFLAGS", format!("-O2 -g {}", flags.join(" ")));
    make.env("LDFLAGS", flags.join(" "));
    make.arg("--quiet").arg("-C").arg(source("../evpaxos"));
    make.arg(format!("OUT={}", out.display()));
    make.arg(format!("INBAND={}", library_dir().display()));
    run(&mut make);
    out
}

impl Evpaxos {
    /// Builds the library and writes the configurations; `None`, and a line that says so, on a machine without libevent.
    ///
    /// With three acceptors, one may be killed; `has_more_roles`: a proposer and an acceptor of their own are there as well.
    fn new(has_more_roles: bool, flags: &[&str]) -> Option<Evpaxos> {
        if !is_available() {
            return None;
        }
        let dir = tempfile::tempdir().expect("a directory");
        let libraries = library(dir.path(), flags);
        let all_roles = r#""leader", "acceptor", "replica""#;
        let replica = r#""replica""#;
        let mut hosts: Vec<_> = (1..=REPLICAS).map(|id| (id, "host", all_roles)).collect();
        if has_more_roles {
            hosts.push((PROPOSER, "proposer", replica));
            hosts.push((ACCEPTOR, "acceptor", r#""acceptor""#));
        }
        hosts.extend(LEARNERS.map(|id| (id, "learner", replica)));
        let nodes = nodes_of(&hosts);
        for (id, ..) in hosts {
            configure(dir.path(), &nodes, id, 1, 60_000);
        }
        let config = dir.path().join("paxos.conf");
        Some(Evpaxos {
            dir,
            config,
            libraries,
        })
    }

    /// Writes the configuration; `more` are lines at its end.
    fn configure(&self, more: &str) {
        let first_port = free_ports(u16::from(REPLICAS));
        let mut text = String::from("# In libpaxos's format.\nverbosity debug\n\n");
        for id in 0..REPLICAS {
            let port = first_port + u16::from(id);
            text += &format!(
                "replica {id} 127.0.0.1 {port}\ninband-replica {id} host-{}.toml\n",
                1 + id
            );
        }
        std::fs::write(&self.config, text + more).expect("it is written");
    }

    /// Builds a program with the shared library or the static one.
    fn build(&self, name: &str, from: &str, shared: bool, flags: &[&str]) {
        let mut cc = Command::new("cc");
        cc.args(STRICT)
            .args(flags)
            .args(["-std=gnu11", "-pthread", "-I"])
            .arg(source("../evpaxos/include"))
            .arg("-I")
            .arg(source("."));
        cc.arg("-o").arg(self.dir.path().join(name));
        cc.arg(source(&format!("../evpaxos/{from}")));
        if shared {
            cc.arg("-L").arg(&self.libraries).arg("-levpaxos");
            cc.arg(format!("-Wl,-rpath,{}", self.libraries.display()));
        } else {
            cc.arg(self.libraries.join("libevpaxos.a"));
            cc.arg(library_dir().join("libinband.a")).args(STATIC_NEEDS);
        }
        run(cc.arg("-levent_core"));
    }

    /// A program; the configuration comes after the words before it.
    fn command(&self, name: &str, before: &[&str], after: &[&str]) -> Command {
        let mut command = Command::new(self.dir.path().join(name));
        command.args(before).arg(&self.config).args(after);
        command
    }

    fn replicas(&self) -> Vec<Program> {
        self.build("replica", "examples/replica.c", true, &[]);
        let start = |id: u8| {
            let mut replica = self.program("replica", &[&id.to_string()], &[]);
            replica.lines_until(&format!("replica {id} of "));
            replica
        };
        (0..REPLICAS).map(start).collect()
    }

    fn program(&self, name: &str, before: &[&str], after: &[&str]) -> Program {
        Program::start(&mut self.command(name, before, after))
    }
}

#[test]
fn the_headers_are_plain_c_and_cpp() {
    if is_available() {
        let include = source("../evpaxos/include");
        for header in [
            "evpaxos.h",
            "evpaxos/config.h",
            "evpaxos/paxos.h",
            "paxos.h",
        ] {
            check_header(&include.join(header), &include);
        }
    }
}

fn terminate(program: Program) {
    run(Command::new("kill").arg(program.child.id().to_string()));
    program.end();
}

#[test]
fn two_learners_deliver_all_values_in_the_same_order_when_the_leader_is_killed() {
    const COUNT: usize = 20_000;
    let Some(evpaxos) = Evpaxos::new(false, &[]) else {
        return;
    };
    evpaxos.build("client", "examples/client.c", true, &[]);
    evpaxos.build("learner", "examples/learner.c", false, &[]);
    evpaxos.configure("");
    let mut replicas = evpaxos.replicas();
    // One learner is a host, the other one and the client's are connected to the first replica.
    let mut with_host = evpaxos.command("learner", &[], &[]);
    with_host.env("INBAND_CONFIG", evpaxos.dir.path().join("host-11.toml"));
    let mut learners = [
        Program::start(&mut with_host),
        evpaxos.program("learner", &[], &[]),
    ];
    for learner in &mut learners {
        learner.lines_until("learning");
    }
    // The first host leads; the client's values go to another one.
    let mut client = evpaxos.program("client", &[], &["1", "value", &COUNT.to_string()]);
    let mut outputs = learners
        .each_mut()
        .map(|learner| learner.lines_until("1000 "));
    let leader = &mut replicas[0].child;
    leader.kill().expect("it is killed");
    leader.wait().expect("it ends");
    let ended = client.child.try_wait().expect("it is our child");
    assert_eq!(
        ended, None,
        "the client was done before the leader was killed"
    );
    client.lines_until(&format!("delivered {COUNT} of {COUNT}"));
    client.end();
    for (learner, lines) in learners.iter_mut().zip(&mut outputs) {
        lines.extend(learner.lines_until(&format!("{COUNT} ")));
    }

    assert_eq!(outputs[0], outputs[1], "learners differ");
    let mut submitted: std::collections::BTreeSet<String> = (1..=COUNT)
        .map(|number| format!("value {number}"))
        .collect();
    for (line, number) in outputs[0].iter().zip(1..) {
        let (iid, value) = line.split_once(' ').expect("NUMBER VALUE");
        assert_eq!(iid, number.to_string());
        assert!(
            submitted.remove(value),
            "{value} was not submitted, or is delivered twice"
        );
    }
    assert!(submitted.is_empty(), "not delivered: {submitted:?}");
    learners.into_iter().for_each(terminate);
    replicas.drain(1..).for_each(terminate);
}

/// Runs `tests/api.c`; it and the library are built with these flags.
fn check_api(flags: &[&str]) {
    let Some(evpaxos) = Evpaxos::new(true, flags) else {
        return;
    };
    evpaxos.build("api", "tests/api.c", true, flags);
    let port = free_ports(1);
    evpaxos.configure(&format!(
        "proposer 3 127.0.0.1 {port}\ninband-proposer 3 host-{PROPOSER}.toml\n\
         acceptor 4 127.0.0.1 {port}\ninband-acceptor 4 host-{ACCEPTOR}.toml\n"
    ));
    let folder = evpaxos.dir.path();
    let without_learners = folder.join("without-learners.conf");
    std::fs::copy(&evpaxos.config, &without_learners).expect("it is copied");
    let mut config = std::fs::OpenOptions::new()
        .append(true)
        .open(&evpaxos.config)
        .expect("it exists");
    writeln!(
        config,
        "inband-learner host-11.toml\ninband-learner host-12.toml position"
    )
    .expect("it is written");
    let mut command = evpaxos.command("api", &[], &[]);
    let mut api = Program::start(command.arg(folder).arg(&without_learners));
    api.lines_until("ok");
    api.end();
}

#[test]
fn the_whole_interface() {
    check_api(&[]);
}

/// Valgrind, which runs one thread at a time, is too slow for five hosts in a process.
#[test]
fn the_whole_interface_with_sanitizers() {
    check_api(&["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]);
}

/// Address sanitizers do not see what libevent, which is not built with them, reads.
#[test]
fn a_learner_may_be_freed_after_its_event_base() {
    let (Some(checker), Some(evpaxos)) = (valgrind(), Evpaxos::new(false, &[])) else {
        return;
    };
    evpaxos.build("client", "examples/client.c", true, &[]);
    evpaxos.configure("");
    let replicas = evpaxos.replicas();
    for (name, host) in [("without-host", None), ("with-host", Some("host-11.toml"))] {
        let mut command = Command::new(checker[0]);
        command
            .args(&checker[1..])
            .arg(evpaxos.dir.path().join("client"));
        command.arg(&evpaxos.config).args(["1", name, "100"]);
        if let Some(host) = host {
            command.env("INBAND_CONFIG", evpaxos.dir.path().join(host));
        }
        let mut client = Program::start(&mut command);
        client.lines_until("delivered 100 of 100");
        client.end();
    }
    replicas.into_iter().for_each(terminate);
}

#[test]
fn parts_of_long_values() {
    let Some(evpaxos) = Evpaxos::new(false, &[]) else {
        return;
    };
    evpaxos.build("parts", "tests/parts.c", false, &[]);
    run(&mut Command::new(evpaxos.dir.path().join("parts")));
}
