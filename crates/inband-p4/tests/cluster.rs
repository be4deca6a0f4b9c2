//! A cluster with one acceptor in a switch (bmv2) and two in XDP, on veths between network namespaces.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use inband_bmv2::Client;
use inband_ground::xdp::PassThrough;
use inband_ground::System;
use inband_host::key_file::KeyFile;
use inband_lab::{preflight, Lab, LabSpec, LinkFaults, PassProgram};
use inband_paxos::dataplane::Paxos;
use inband_testing::p4;

/// For what takes seconds on an idle machine.
const TIMEOUT: Duration = Duration::from_secs(120);
/// Longer than a submission's deadline.
const REDIS_TIMEOUT: Duration = Duration::from_secs(30);
const RING_SLOTS: usize = 64;
const DEADLINE_MS: u64 = 2000;
/// Reasons have lower numbers: IB_REASONS_MAX.
const REASONS_MAX: u32 = 1024;
const THRIFT: &str = "127.0.0.1:9090";
/// The switch's host: its control service.
const SWITCH_HOST: &str = "10.77.0.13";
/// The gate's interface to the switch, and the switch's to it.
const KEYLESS: &str = "keyless";
const BEHIND_GATE: &str = "sw0";
/// The lab forwards by the last byte.
const SWITCH_MAC: &str = "02:49:42:00:01:02";

/// Nodes 1 to 4, at ports 0 to 3 of the lab. The leader is on the first.
const HOSTS: [(&str, &str); 4] = [
    ("one", r#"["leader", "acceptor", "replica", "controller"]"#),
    ("two", r#"["acceptor", "controller"]"#),
    (SWITCH, r#"["acceptor"]"#),
    ("four", r#"["replica", "controller"]"#),
];
pub const SWITCH: &str = "three";
/// The process of the switch, beside its name for `simple_switch`.
pub const CONTROL: &str = "control of three";
/// The gate before the switch.
pub const GATE: &str = "gate before three";

/// How the switch is connected to the other hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Segment {
    /// No host has a key.
    Keyless,
    /// The other hosts have keys, and the switch is behind a gate.
    BehindGate,
}

/// What lets a veth take frames from XDP, until it is dropped.
#[allow(dead_code)]
enum Pass {
    OfLab(PassProgram),
    BehindGate(PassThrough),
}

pub struct Cluster {
    running: BTreeMap<&'static str, Child>,
    simple_switch: PathBuf,
    program: PathBuf,
    inband: PathBuf,
    dir: tempfile::TempDir,
    segment: Segment,
    _pass: Pass,
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
pub fn wait_for(what: &str, mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + TIMEOUT;
    while !holds() {
        assert!(Instant::now() < until, "{what}: not within {TIMEOUT:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn on(lab: &Lab, host: &str) -> Command {
    let host = lab.host(host).expect("it is there");
    let mut command = Command::new("ip");
    command.args(["netns", "exec", host.namespace().name()]);
    command.stdin(Stdio::null());
    command
}

fn shell(lab: &Lab, host: &str, script: &str) {
    let output = on(lab, host).args(["sh", "-ec", script]).output();
    let output = output.expect("sh runs");
    assert!(output.status.success(), "{script}: {}", said(output));
}

/// Puts the switch between the lab and its host. Only the switch may answer at its port to the lab.
fn connect_the_switch(lab: &Lab, segment: Segment) {
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
    if segment == Segment::BehindGate {
        script += &format!(
            "ip link add {KEYLESS} type veth peer name {BEHIND_GATE}
             for i in {KEYLESS} {BEHIND_GATE}; do ip link set $i up; ethtool -K $i tx off gro off; done
             echo 1 >/proc/sys/net/ipv4/conf/{BEHIND_GATE}/arp_ignore\n"
        );
    }
    for port in [0, 1, 3] {
        script += &format!(
            "ip neigh replace 10.77.0.{} lladdr 02:49:42:00:00:0{port} dev host0 nud permanent\n",
            port + 1
        );
    }
    shell(lab, SWITCH, &script);
    for (host, _) in HOSTS.iter().filter(|(host, _)| *host != SWITCH) {
        let neighbours = ["10.77.0.3", SWITCH_HOST].map(|address| {
            format!("ip neigh replace {address} lladdr {SWITCH_MAC} dev eth0 nud permanent\n")
        });
        shell(lab, host, &neighbours.concat());
    }
}

impl Cluster {
    /// A network with nothing running yet. `None`: the test cannot run here, and has reported it.
    pub fn new(name: &str, segment: Segment) -> Option<Cluster> {
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
        connect_the_switch(&lab, segment);
        let pass = match segment {
            Segment::Keyless => host.attach_pass().map(Pass::OfLab).expect("attached"),
            Segment::BehindGate => {
                let attach = || Ok(PassThrough::attach(BEHIND_GATE).expect("attached"));
                Pass::BehindGate(host.namespace().run(attach).expect("it can be entered"))
            }
        };
        let cluster = Cluster {
            running: BTreeMap::new(),
            simple_switch,
            program,
            inband: inband_testing::build("inband"),
            dir: tempfile::tempdir().expect("a directory"),
            segment,
            _pass: pass,
            lab,
        };
        cluster.configure();
        Some(cluster)
    }

    fn configure(&self) {
        let key_file = self.dir.path().join("keys.toml");
        let keys = KeyFile::generate().expect("keys");
        keys.save(&key_file).expect("saved");
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
            let keys = match self.segment {
                Segment::BehindGate if name != SWITCH => format!("key_file = {key_file:?}\n"),
                _ => String::new(),
            };
            let mut text = format!(
                "[cluster]\nname = \"mixed\"\nepoch = 1\nfirst_instance = 1\nring_slots = {RING_SLOTS}\n\
                 durability = \"memory\"\n{keys}[host]\nnode = {id}\nstate_dir = {state:?}\n\
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

    fn run(&mut self, name: &'static str, mut command: Command) {
        let log = self.dir.path().join(format!("{name}.log"));
        let log = File::options().create(true).append(true).open(log);
        let log = log.expect("a log");
        command.stdout(log.try_clone().expect("cloned")).stderr(log);
        let child = command.spawn().expect("it starts");
        assert!(self.running.insert(name, child).is_none(), "{name} runs");
    }

    pub fn start(&mut self, name: &'static str) {
        let mut command = on(&self.lab, name);
        command.arg(&self.inband).args(["run", "--config"]);
        command.arg(self.file(name));
        self.run(name, command);
    }

    pub fn start_switch(&mut self) {
        let mut command = on(&self.lab, SWITCH);
        command.arg(&self.simple_switch);
        let uplink = match self.segment {
            Segment::Keyless => "0@eth0".into(),
            Segment::BehindGate => format!("0@{BEHIND_GATE}"),
        };
        command.args(["-i", &uplink, "-i", "1@sw1", "--log-level", "off"]);
        command.args(["--thrift-port", "9090"]).arg(&self.program);
        self.run(SWITCH, command);
        wait_for("the switch starts", || self.try_client().is_some());
    }

    pub fn start_gate(&mut self) {
        let mut command = on(&self.lab, SWITCH);
        command.arg(inband_testing::build("inband-gate"));
        command.args(["up", "--keyed", "eth0", "--keyless", KEYLESS, "--key-file"]);
        command.arg(self.dir.path().join("keys.toml"));
        command.arg("--data").arg(self.dir.path().join("gate"));
        self.run(GATE, command);
        wait_for("the gate starts", || self.gate_status().contains(KEYLESS));
    }

    pub fn gate_status(&self) -> String {
        let mut command = Command::new(inband_testing::build("inband-gate"));
        command
            .args(["status", "--data"])
            .arg(self.dir.path().join("gate"));
        said(command.output().expect("it runs"))
    }

    /// The acceptor's process, with these options besides the configuration.
    fn control(&self, options: &[&str]) -> Command {
        let mut command = on(&self.lab, SWITCH);
        command.arg(env!("CARGO_BIN_EXE_inband-p4"));
        command.args(["acceptor", "--thrift", THRIFT]).args(options);
        command.arg("--config").arg(self.file(SWITCH));
        command
    }

    pub fn start_control(&mut self) {
        let command = self.control(&["--interface", "host0"]);
        self.run(CONTROL, command);
    }

    /// What it says if it refuses to start with these options.
    pub fn control_refuses(&self, options: &[&str]) -> String {
        let mut command = self.control(options);
        let output = command.output().expect("it runs");
        assert!(!output.status.success(), "{}", said(output));
        said(output)
    }

    /// `inband status` of the acceptor's process.
    pub fn status(&self) -> String {
        let mut command = on(&self.lab, SWITCH);
        command
            .arg(&self.inband)
            .args(["status", "--counters", "--config"]);
        command.arg(self.file(SWITCH));
        said(command.output().expect("it runs"))
    }

    pub fn start_all(&mut self) {
        if self.segment == Segment::BehindGate {
            self.start_gate();
        }
        self.start_switch();
        self.start_control();
        for name in ["one", "two", "four"] {
            self.start(name);
        }
        wait_for("a SET", || self.set("a", "0") == "OK");
        wait_for("the switch votes", || self.register("voting") == 1);
    }

    /// Sends a signal to a process.
    pub fn signal(&self, name: &str, signal: &str) {
        let id = self.running[name].id().to_string();
        let sent = Command::new("kill").args([signal, &id]).status();
        assert!(sent.expect("kill runs").success());
    }

    pub fn kill(&mut self, name: &str) {
        let mut child = self.running.remove(name).expect("it runs");
        child.kill().expect("killed");
        child.wait().expect("ended");
    }

    /// Waits until a process has ended by itself, with an error. Returns its log.
    pub fn wait_for_the_end(&mut self, name: &str) -> String {
        let mut child = self.running.remove(name).expect("it runs");
        let mut status = None;
        wait_for("it ends", || {
            status = child.try_wait().expect("it can be asked");
            status.is_some()
        });
        assert!(!status.expect("it has ended").success(), "{name}");
        self.log(name)
    }

    pub fn redis(&self, host: &str, words: &[&str]) -> String {
        let mut command = on(&self.lab, host);
        let timeout = REDIS_TIMEOUT.as_secs().to_string();
        command.args(["timeout", &timeout, "redis-cli"]).args(words);
        said(command.output().expect("redis-cli runs"))
    }

    pub fn set(&self, key: &str, value: &str) -> String {
        self.redis("one", &["SET", key, value])
    }

    /// Sets keys, and reads them at the other replica.
    pub fn serves(&self, value: &str) {
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

    pub fn register(&self, array: &str) -> u64 {
        self.client().register(array, 0).expect("it has it")
    }

    /// Packets of the switch that were counted for this reason.
    pub fn counted(&self, reason: &str) -> u64 {
        let mut numbers = 0..REASONS_MAX;
        let number = numbers.find(|number| Paxos::reason_name(*number) == Some(reason));
        let number = number.expect("a reason") as usize;
        self.client().packets("reasons", number).expect("counted")
    }

    pub fn cut(&self, host: &str, cut: bool) {
        let faults = LinkFaults {
            cut_from_host: cut,
            cut_to_host: cut,
            ..LinkFaults::default()
        };
        self.lab.set_link(host, faults).expect("a link");
    }
}
