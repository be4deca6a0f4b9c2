//! Three hosts of `inband run` in network namespaces, as in docs/deploy.md: which data plane they choose, and how they
//! report it.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::common::PROGRAM;
use inband_ground::xdp::PassThrough;

const TIMEOUT: Duration = Duration::from_secs(60);
/// `EX_CONFIG`: systemd must not restart it.
const CONFIGURATION: i32 = 78;
const HOSTS: usize = 3;

struct Hosts {
    prefix: String,
    dir: tempfile::TempDir,
    running: Vec<Option<Child>>,
    far_ends: Vec<PassThrough>,
}

fn shell(command: &str) {
    let output = Command::new("sh")
        .args(["-ec", command])
        .output()
        .expect("sh runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command}: {said}");
}

impl Hosts {
    /// Namespaces on a bridge, with nothing running yet. `mtu`: of the links. `takes_xdp`: the far ends of the links
    /// accept frames sent by XDP. A veth does if it has a program itself.
    fn new(mtu: u32, takes_xdp: bool) -> Hosts {
        static SERIAL: AtomicU32 = AtomicU32::new(0);
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        let mut hosts = Hosts {
            prefix: format!("ibh{}-{serial}", std::process::id()),
            dir: tempfile::tempdir().expect("a directory"),
            running: (0..HOSTS).map(|_| None).collect(),
            far_ends: Vec::new(),
        };
        let p = &hosts.prefix;
        shell(&format!(
            "ip netns add {p}-sw; ip -n {p}-sw link add br0 type bridge; ip -n {p}-sw link set br0 up"
        ));
        for id in 1..=HOSTS {
            shell(&format!(
                "ip netns add {p}-{id}
                 ip -n {p}-{id} link add eth0 type veth peer name p{id} netns {p}-sw
                 ip -n {p}-sw link set p{id} mtu {mtu} master br0 up
                 ip netns exec {p}-sw ethtool -K p{id} gro off
                 ip -n {p}-{id} addr add 10.99.0.{id}/24 dev eth0
                 ip -n {p}-{id} link set eth0 mtu {mtu} up
                 ip -n {p}-{id} link set lo up"
            ));
        }
        if takes_xdp {
            let switch = format!("/run/netns/{p}-sw");
            let attach = || {
                let namespace = fs::File::open(switch).expect("the switch's namespace");
                nix::sched::setns(namespace, nix::sched::CloneFlags::CLONE_NEWNET)
                    .expect("entered");
                let attach = |id| PassThrough::attach(&format!("p{id}")).expect("attached");
                (1..=HOSTS).map(attach).collect()
            };
            hosts.far_ends =
                std::thread::scope(|scope| scope.spawn(attach).join().expect("attached"));
        }
        hosts
    }

    fn file(&self, id: usize) -> PathBuf {
        self.dir.path().join(format!("host-{id}.toml"))
    }

    fn configure(&self, dataplane: &str, durability: &str, cluster: &str) {
        for id in 1..=HOSTS {
            let state = self.dir.path().join(format!("state-{id}"));
            let mut text = format!(
                "[cluster]\nname = \"hosts\"\nepoch = 1\nfirst_instance = 1\nring_slots = 256\n\
                 durability = \"{durability}\"\n{cluster}\n[host]\nnode = {id}\nstate_dir = {state:?}\n\
                 dataplane = \"{dataplane}\"\ninterface = \"eth0\"\nresp = [\"127.0.0.1:6379\"]\n"
            );
            for other in 1..=HOSTS {
                text += &format!(
                    "[[node]]\nid = {other}\nname = \"host-{other}\"\naddress = \"10.99.0.{other}:7400\"\n\
                     roles = [\"acceptor\", \"replica\", \"leader\", \"controller\"]\n"
                );
            }
            fs::write(self.file(id), text).expect("written");
        }
    }

    /// Runs a program in a host's namespace.
    fn on(&self, id: usize, program: &str, args: &[&str]) -> Command {
        let mut command = Command::new("ip");
        let namespace = format!("{}-{id}", self.prefix);
        command
            .args(["netns", "exec", &namespace, program])
            .args(args);
        command.stdin(Stdio::null());
        command
    }

    fn inband(&self, id: usize, args: &[&str]) -> (Option<i32>, String) {
        let file = self.file(id).display().to_string();
        let args = [args, &["--config", &file]].concat();
        said(self.on(id, PROGRAM, &args).output().expect("it runs"))
    }

    fn log(&self, id: usize) -> String {
        fs::read_to_string(self.dir.path().join(format!("log-{id}"))).unwrap_or_default()
    }

    fn start(&mut self, id: usize) {
        let log = self.dir.path().join(format!("log-{id}"));
        let log = fs::File::options()
            .create(true)
            .append(true)
            .open(log)
            .expect("a log");
        let file = self.file(id).display().to_string();
        let child = self
            .on(id, PROGRAM, &["run", "--config", &file])
            .stdout(log.try_clone().expect("cloned"))
            .stderr(log)
            .spawn();
        self.running[id - 1] = Some(child.expect("it starts"));
    }

    fn start_all(&mut self) {
        (1..=HOSTS).for_each(|id| self.start(id));
    }

    fn redis(&self, id: usize, args: &[&str]) -> String {
        let (_, said) = said(self.on(id, "redis-cli", args).output().expect("it runs"));
        said.trim_end().to_owned()
    }

    fn wait_for(&self, what: &str, mut holds: impl FnMut() -> bool) {
        let begun = Instant::now();
        while !holds() {
            let logs: Vec<String> = (1..=HOSTS).map(|id| self.log(id)).collect();
            assert!(
                begun.elapsed() < TIMEOUT,
                "{what}: {}",
                logs.join("\n---\n")
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn serves(&self) {
        self.wait_for("a SET", || self.redis(1, &["SET", "a", "1"]) == "OK");
        for id in 1..=HOSTS {
            self.wait_for("a GET", || self.redis(id, &["GET", "a"]) == "1");
        }
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for child in self.running.iter_mut().flatten() {
            let _ = child.kill();
            let _ = child.wait();
        }
        self.far_ends.clear();
        let names = (1..=HOSTS).map(|id| id.to_string()).chain(["sw".into()]);
        for name in names {
            let name = format!("{}-{name}", self.prefix);
            let _ = Command::new("ip").args(["netns", "del", &name]).status();
        }
    }
}

fn said(output: Output) -> (Option<i32>, String) {
    let text = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    (output.status.code(), text)
}

#[test]
fn auto_takes_native_xdp_once_a_neighbour_has_answered_it() {
    let mut hosts = Hosts::new(1500, true);
    hosts.configure("auto", "memory", "");
    let (status, text) = hosts.inband(1, &["doctor"]);
    assert_eq!(status, Some(0), "{text}");
    assert!(
        text.contains("data plane             xdp (native XDP works on eth0)"),
        "{text}"
    );
    assert!(
        !text.contains("namespaces"),
        "of this host, not of a lab: {text}"
    );
    let (status, text) = hosts.inband(1, &["status"]);
    assert!(
        status != Some(0) && text.contains("host-1 does not answer"),
        "{text}"
    );
    // One of three: the cluster has not been founded, and clients are told so.
    hosts.start(1);
    hosts.wait_for("an answer", || {
        hosts
            .redis(1, &["SET", "a", "0"])
            .contains("no configuration yet")
    });
    hosts.start(2);
    hosts.start(3);
    hosts.serves();
    let (status, text) = hosts.inband(1, &["status"]);
    assert_eq!(status, Some(0), "{text}");
    for part in [
        "host-1  running",
        "acceptor xdp",
        "native XDP works on eth0",
        "host-3",
        "votes",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    // On a running host doctor tries nothing, and reports no problem.
    let (status, text) = hosts.inband(1, &["doctor"]);
    assert!(
        status == Some(0) && text.contains("it is running, with"),
        "{text}"
    );
    // A neighbour with a different network card.
    shell(&format!(
        "ip -n {}-2 link set eth0 address 02:00:00:00:99:02",
        hosts.prefix
    ));
    hosts.serves();
}

#[test]
fn auto_takes_generic_xdp_on_an_interface_that_loses_what_native_xdp_sends() {
    let mut hosts = Hosts::new(1500, false);
    hosts.configure("auto", "memory", "");
    hosts.start_all();
    hosts.serves();
    let (_, text) = hosts.inband(2, &["status"]);
    for part in [
        "acceptor xdp-generic",
        "generic XDP works on eth0; not native XDP: eth0 loses",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    // Requested explicitly it is an error, after which systemd does not restart the host.
    hosts.configure("xdp", "memory", "");
    drop(hosts.running[2].take().map(|mut child| child.kill()));
    hosts.wait_for("exit status 78", || {
        let (status, text) = hosts.inband(3, &["run"]);
        assert!(!text.contains("panicked"), "{text}");
        status == Some(CONFIGURATION) && text.contains("loses what XDP sends")
    });
}

#[test]
fn with_sync_acceptors_are_in_user_space_and_the_others_in_the_kernel() {
    let mut hosts = Hosts::new(1500, true);
    hosts.configure("auto", "sync", "");
    hosts.start_all();
    hosts.serves();
    let (_, text) = hosts.inband(2, &["status"]);
    assert!(text.contains("acceptor udp, replica xdp"), "{text}");
}

#[test]
fn an_mtu_below_1500_is_said_or_refused() {
    let mut hosts = Hosts::new(1450, true);
    hosts.configure("auto", "memory", "");
    for command in ["run", "doctor"] {
        let (status, text) = hosts.inband(1, &[command]);
        assert_eq!(status, Some(CONFIGURATION), "{text}");
        assert!(text.contains("eth0 has an MTU of 1450"), "{text}");
        assert!(text.contains("`mtu = 1450`"), "{text}");
    }
    hosts.configure("auto", "memory", "mtu = 1450");
    hosts.start_all();
    hosts.serves();
    // Over many full packets, and through another leader.
    let large = "x".repeat(60_000);
    assert_eq!(hosts.redis(1, &["SET", "large", &large]), "OK");
    let mut first = hosts.running[0].take().expect("it runs");
    first.kill().and_then(|()| first.wait()).expect("killed");
    hosts.wait_for("a SET by the next leader", || {
        hosts.redis(2, &["SET", "b", "2"]) == "OK"
    });
    assert_eq!(hosts.redis(3, &["STRLEN", "large"]), "60000");
    let (_, text) = hosts.inband(2, &["status", "--counters"]);
    assert!(text.contains("acceptor xdp"), "{text}");
    assert!(!text.contains("host_missed_by_kernel"), "{text}");
}
