//! A cluster with one acceptor in a switch (bmv2) and two in XDP: which votes decide, and what a switch that was
//! restarted may do. Values of up to 127 bytes fit into the switch.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use inband_bmv2::Client;
use inband_ground::System;
use inband_lab::{preflight, Lab, LabSpec, LinkFaults, PassProgram};
use inband_paxos::dataplane::Paxos;
use inband_testing::p4;

/// For what takes seconds on an idle machine.
const TIMEOUT: Duration = Duration::from_secs(120);
/// Longer than a submission's deadline.
const REDIS_TIMEOUT: Duration = Duration::from_secs(30);
const RING_SLOTS: usize = 64;
const DEADLINE_MS: u64 = 2000;
/// How long an acceptor is watched that must not vote.
const WATCHED: Duration = Duration::from_secs(3);
/// Reasons have lower numbers: IB_REASONS_MAX.
const REASONS_MAX: u32 = 1024;
const THRIFT: &str = "127.0.0.1:9090";
/// The switch's host: its control service.
const SWITCH_HOST: &str = "10.77.0.13";
/// The lab forwards by the last byte.
const SWITCH_MAC: &str = "02:49:42:00:01:02";

/// Nodes 1 to 4, at ports 0 to 3 of the lab. The leader is on the first.
const HOSTS: [(&str, &str); 4] = [
    ("one", r#"["leader", "acceptor", "replica", "controller"]"#),
    ("two", r#"["acceptor", "controller"]"#),
    (SWITCH, r#"["acceptor"]"#),
    ("four", r#"["replica", "controller"]"#),
];
const SWITCH: &str = "three";
/// The process of the switch, beside its name for `simple_switch`.
const CONTROL: &str = "control of three";

struct Cluster {
    running: BTreeMap<&'static str, Child>,
    simple_switch: PathBuf,
    program: PathBuf,
    inband: PathBuf,
    dir: tempfile::TempDir,
    _pass: PassProgram,
    lab: Lab,
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for name in self.running.keys() {
                eprintln!("--- {name}\n{}", self.log(name));
            }
        }
        for child in self.running.values_mut() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn said(output: Output) -> String {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    (text + &String::from_utf8_lossy(&output.stderr))
        .trim_end()
        .to_owned()
}

/// Waits until a condition holds.
fn wait_for(what: &str, mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + TIMEOUT;
    while !holds() {
        assert!(Instant::now() < until, "{what}: not within {TIMEOUT:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

impl Cluster {
    /// A network with nothing running yet. `None`: the test cannot run here, and has reported it.
    fn new(name: &str) -> Option<Cluster> {
        if let Err(error) = preflight::check_lab() {
            assert!(!p4::is_required(), "{error}");
            inband_testing::not_run(error);
            return None;
        }
        let sizes = [("PARTITIONS", 1), ("RING_SLOTS", RING_SLOTS)];
        // Compiled once; each test reports that it cannot be.
        static COMPILED: Mutex<Option<(PathBuf, PathBuf)>> = Mutex::new(None);
        let mut compiled = COMPILED.lock().unwrap_or_else(PoisonError::into_inner);
        if compiled.is_none() {
            *compiled = Some(p4::compiled("mixed", "paxos", "acceptor", &sizes)?);
        }
        let (simple_switch, program) = compiled.clone()?;
        drop(compiled);
        let lab = Lab::create(&LabSpec {
            name: format!("{name}-{}", std::process::id()),
            hosts: HOSTS.map(|(name, _)| name.to_owned()).to_vec(),
            seed: 1,
        });
        let lab = lab.expect("a lab");
        let host = lab.host(SWITCH).expect("it is there");
        let mut cluster = Cluster {
            running: BTreeMap::new(),
            simple_switch,
            program,
            inband: inband_testing::build("inband"),
            dir: tempfile::tempdir().expect("a directory"),
            _pass: host.attach_pass().expect("attached"),
            lab,
        };
        cluster.connect_the_switch();
        cluster.configure();
        Some(cluster)
    }

    /// Puts the switch between the lab and its host. Only the switch may answer at its port to the lab.
    fn connect_the_switch(&mut self) {
        let mut script = format!(
            "ip addr flush dev eth0
             ip link add host0 address {SWITCH_MAC} type veth peer name sw1
             echo 1 >/proc/sys/net/ipv4/conf/eth0/arp_ignore
             echo 1 >/proc/sys/net/ipv4/conf/sw1/arp_ignore
             for i in host0 sw1; do ip link set $i up; ethtool -K $i tx off gro off; done
             ethtool -K eth0 gro off
             ip addr add {SWITCH_HOST}/16 dev host0
             ip neigh replace 10.77.0.3 lladdr 02:49:42:00:00:02 dev host0 nud permanent\n"
        );
        for port in [0, 1, 3] {
            script += &format!(
                "ip neigh replace 10.77.0.{} lladdr 02:49:42:00:00:0{port} dev host0 nud permanent\n",
                port + 1
            );
        }
        self.shell(SWITCH, &script);
        for (host, _) in HOSTS.iter().filter(|(host, _)| *host != SWITCH) {
            let neighbours = ["10.77.0.3", SWITCH_HOST].map(|address| {
                format!("ip neigh replace {address} lladdr {SWITCH_MAC} dev eth0 nud permanent\n")
            });
            self.shell(host, &neighbours.concat());
        }
    }

    fn configure(&self) {
        let mut nodes = String::new();
        for (id, (name, roles)) in (1..).zip(HOSTS) {
            nodes += &format!(
                "[[node]]\nid = {id}\nname = \"{name}\"\naddress = \"10.77.0.{id}:7400\"\nroles = {roles}\n"
            );
            if name == SWITCH {
                nodes += &format!("control_plane = \"{SWITCH_HOST}:7401\"\n");
            }
        }
        for (id, (name, roles)) in (1..).zip(HOSTS) {
            let dir = self.dir.path();
            let state = dir.join(name).join("state");
            let dataplane = if name == SWITCH { "udp" } else { "xdp" };
            let mut text = format!(
                "[cluster]\nname = \"mixed\"\nepoch = 1\nfirst_instance = 1\nring_slots = {RING_SLOTS}\n\
                 durability = \"memory\"\n[host]\nnode = {id}\nstate_dir = {state:?}\n\
                 dataplane = \"{dataplane}\"\ninterface = \"eth0\"\n"
            );
            if roles.contains("replica") {
                let data = dir.join(name).join("data");
                text += &format!("data_dir = {data:?}\nresp = [\"127.0.0.1:6379\"]\n");
            }
            text += &format!("[host.timing]\nsubmit_deadline_ms = {DEADLINE_MS}\n{nodes}");
            fs::write(self.file(name), text).expect("written");
        }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(format!("{name}.toml"))
    }

    fn log(&self, name: &str) -> String {
        fs::read_to_string(self.dir.path().join(format!("{name}.log"))).unwrap_or_default()
    }

    fn on(&self, host: &str) -> Command {
        let host = self.lab.host(host).expect("it is there");
        let mut command = Command::new("ip");
        command.args(["netns", "exec", host.namespace().name()]);
        command.stdin(Stdio::null());
        command
    }

    fn shell(&self, host: &str, script: &str) {
        let output = self.on(host).args(["sh", "-ec", script]).output();
        let output = output.expect("sh runs");
        assert!(output.status.success(), "{script}: {}", said(output));
    }

    fn run(&mut self, name: &'static str, mut command: Command) {
        let log = self.dir.path().join(format!("{name}.log"));
        let log = File::options().create(true).append(true).open(log);
        let log = log.expect("a log");
        command.stdout(log.try_clone().expect("cloned")).stderr(log);
        let child = command.spawn().expect("it starts");
        assert!(self.running.insert(name, child).is_none(), "{name} runs");
    }

    fn start(&mut self, name: &'static str) {
        let mut command = self.on(name);
        command.arg(&self.inband).args(["run", "--config"]);
        command.arg(self.file(name));
        self.run(name, command);
    }

    fn start_switch(&mut self) {
        let mut command = self.on(SWITCH);
        command.arg(&self.simple_switch);
        command.args(["-i", "0@eth0", "-i", "1@sw1", "--log-level", "off"]);
        command.args(["--thrift-port", "9090"]).arg(&self.program);
        self.run(SWITCH, command);
        wait_for("the switch starts", || self.try_client().is_some());
    }

    fn start_control(&mut self) {
        let mut command = self.on(SWITCH);
        command.arg(env!("CARGO_BIN_EXE_inband-p4"));
        command.args(["acceptor", "--interface", "host0", "--thrift", THRIFT]);
        command.arg("--config").arg(self.file(SWITCH));
        self.run(CONTROL, command);
    }

    fn start_all(&mut self) {
        self.start_switch();
        self.start_control();
        for name in ["one", "two", "four"] {
            self.start(name);
        }
        wait_for("a SET", || self.set("a", "0") == "OK");
        wait_for("the switch votes", || self.register("voting") == 1);
    }

    fn kill(&mut self, name: &str) {
        let mut child = self.running.remove(name).expect("it runs");
        child.kill().expect("killed");
        child.wait().expect("ended");
    }

    /// Waits until a process has ended by itself, with an error.
    fn wait_for_the_end(&mut self, name: &str) {
        let mut child = self.running.remove(name).expect("it runs");
        let mut status = None;
        wait_for("it ends", || {
            status = child.try_wait().expect("it can be asked");
            status.is_some()
        });
        assert!(!status.expect("it has ended").success(), "{name}");
    }

    fn redis(&self, host: &str, words: &[&str]) -> String {
        let mut command = self.on(host);
        let timeout = REDIS_TIMEOUT.as_secs().to_string();
        command.args(["timeout", &timeout, "redis-cli"]).args(words);
        said(command.output().expect("redis-cli runs"))
    }

    fn set(&self, key: &str, value: &str) -> String {
        self.redis("one", &["SET", key, value])
    }

    /// Sets keys, and reads them at the other replica.
    fn serves(&self, value: &str) {
        for key in ["a", "b", "c"] {
            wait_for("a SET", || self.set(key, value) == "OK");
            wait_for("a GET", || self.redis("four", &["GET", key]) == value);
        }
    }

    fn try_client(&self) -> Option<Client> {
        let host = self.lab.host(SWITCH).expect("it is there");
        let address = THRIFT.parse().expect("an address");
        let connect = || Ok(Client::connect(address, TIMEOUT).ok());
        host.namespace().run(connect).expect("it can be entered")
    }

    fn client(&self) -> Client {
        self.try_client().expect("the switch runs")
    }

    fn register(&self, array: &str) -> u64 {
        self.client().register(array, 0).expect("it has it")
    }

    /// Packets of the switch that were counted for this reason.
    fn counted(&self, reason: &str) -> u64 {
        let mut numbers = 0..REASONS_MAX;
        let number = numbers.find(|number| Paxos::reason_name(*number) == Some(reason));
        let number = number.expect("a reason") as usize;
        self.client().packets("reasons", number).expect("counted")
    }

    fn cut(&self, host: &str, cut: bool) {
        let faults = LinkFaults {
            cut_from_host: cut,
            cut_to_host: cut,
            ..LinkFaults::default()
        };
        self.lab.set_link(host, faults).expect("a link");
    }
}

#[test]
fn the_votes_of_the_switch_complete_a_majority() {
    let Some(mut cluster) = Cluster::new("mixed-majority") else {
        return;
    };
    cluster.start_all();
    cluster.serves("1");
    assert_eq!(cluster.counted("no_room"), 0);

    // Two of three are left, and the switch is one of them.
    cluster.kill("two");
    let voted = cluster.counted("acceptor_voted");
    cluster.serves("2");
    assert!(cluster.counted("acceptor_voted") >= voted + 3);

    // The switch does not vote for a value that it has no room for.
    let long = "v".repeat(500);
    let reply = cluster.set("long", &long);
    assert!(reply.contains("outcome unknown"), "{reply}");
    assert!(cluster.counted("no_room") > 0);

    // The other acceptor has lost its votes: those of the first one and of the switch are merged. The first has a vote
    // for the long value, so the new epoch decides it.
    cluster.start("two");
    wait_for("the long value", || {
        cluster.redis("four", &["GET", "long"]) == long
    });
    cluster.serves("3");
    // As soon as the long value is trimmed, the switch takes part again.
    wait_for("the switch votes", || cluster.register("voting") == 1);
    assert!(cluster.register("epoch") > 1);
    cluster.cut("two", true);
    cluster.serves("4");
}

#[test]
fn a_switch_that_was_restarted_votes_only_once_it_is_recovered() {
    let Some(mut cluster) = Cluster::new("mixed-restart") else {
        return;
    };
    cluster.start_all();
    cluster.serves("1");

    // Of the majority that decided this, the switch forgets its votes, and the other acceptor is out of reach.
    cluster.cut("two", true);
    cluster.serves("2");
    cluster.kill(SWITCH);
    cluster.wait_for_the_end(CONTROL);
    cluster.start_switch();
    cluster.start_control();
    let until = Instant::now() + WATCHED;
    while Instant::now() < until {
        assert_ne!(cluster.set("a", "3"), "OK");
        assert_eq!(cluster.register("voting"), 0);
    }
    assert_eq!(cluster.counted("acceptor_voted"), 0);
    assert!(cluster.counted("acceptor_recovering") > 0);

    // The two with memory hand over their votes.
    cluster.cut("two", false);
    cluster.serves("4");
    wait_for("the switch votes", || cluster.register("voting") == 1);
    assert!(cluster.register("epoch") > 1);
    cluster.cut("two", true);
    cluster.serves("5");
    assert!(cluster.counted("acceptor_voted") > 0);

    // Without its process it goes on voting; a new process empties it.
    cluster.kill(CONTROL);
    cluster.serves("6");
    cluster.cut("two", false);
    let epoch = cluster.register("epoch");
    cluster.start_control();
    wait_for("another epoch", || {
        cluster.register("epoch") > epoch && cluster.register("voting") == 1
    });
    cluster.cut("two", true);
    cluster.serves("7");
}
