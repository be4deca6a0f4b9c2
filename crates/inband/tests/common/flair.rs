//! A FLAIR cluster, started with the command line.

use std::fs::File;
use std::net::{SocketAddr, SocketAddrV4};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use nix::sched::{setns, CloneFlags};
use nix::sys::signal::{kill, Signal};
use nix::unistd::Pid;
use serde_json::Value;

use super::{Client, PROGRAM};
use inband_testing::port::free_ports;

/// Time limit for recovery; far longer than it takes.
pub const TIMEOUT: Duration = Duration::from_secs(60);

pub struct Flair {
    pub data: PathBuf,
    pub resp: SocketAddr,
}

impl Flair {
    pub fn up(name: &str, options: &[&str]) -> Flair {
        let data = std::env::temp_dir().join(format!("ib-flair-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&data);
        let resp = SocketAddr::from(([127, 0, 0, 1], free_ports(1)));
        let flair = Flair { data, resp };
        flair.up_again(options);
        flair
    }

    pub fn up_again(&self, options: &[&str]) -> String {
        let resp = self.resp.to_string();
        let said = self.succeeds(&[&["up", "--detach", "--resp", &resp], options].concat());
        assert!(said.contains("self-check: SET and GET agree"), "{said}");
        assert!(said.contains(&format!("-p {}", self.resp.port())), "{said}");
        said
    }

    /// Kills every process. The supervisor first: it would restart a host.
    pub fn kill_all(&self) {
        let status = self.status();
        let pids = hosts(&status).iter().map(|host| &host["pid"]);
        for pid in [&status["supervisor_pid"]].into_iter().chain(pids) {
            let pid = pid.as_u64().expect("it runs") as i32;
            // A host exits with its supervisor.
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
    }

    pub fn run(&self, args: &[&str]) -> (bool, String) {
        let (command, options) = args.split_first().expect("a command");
        let system = if *command == "up" {
            &["flair"][..]
        } else {
            &[]
        };
        let output = Command::new(PROGRAM)
            .arg(command)
            .args(system)
            .args(options)
            .arg("--data")
            .arg(&self.data)
            .output()
            .expect("it runs");
        let said = String::from_utf8_lossy(&output.stdout).into_owned()
            + &String::from_utf8_lossy(&output.stderr);
        (output.status.success(), said)
    }

    pub fn succeeds(&self, args: &[&str]) -> String {
        let (succeeded, said) = self.run(args);
        assert!(succeeded, "{args:?}: {said}");
        said
    }

    pub fn status(&self) -> Value {
        serde_json::from_str(&self.succeeds(&["status", "--json"])).expect("it is JSON")
    }

    /// The sum of a counter over all hosts.
    pub fn count(&self, name: &str) -> u64 {
        let status = self.status();
        let hosts = status["hosts"].as_array().expect("there are hosts");
        let of = |host: &Value| host["status"]["counters"][name].as_u64().unwrap_or(0);
        hosts.iter().map(of).sum()
    }

    /// Hosts publish their counters at intervals.
    pub fn wait_until_counted(&self, name: &str) {
        let deadline = Instant::now() + TIMEOUT;
        while self.count(name) == 0 {
            assert!(Instant::now() < deadline, "{name} is not counted");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Sets and gets keys, each with its own value.
    pub fn check(&self, client: &mut Client, round: u32) {
        for key in 0..100 {
            let (key, value) = (format!("key{key}"), format!("{round}.{key}"));
            assert_eq!(client.call(&["SET", &key, &value]), "+OK");
            assert_eq!(client.call(&["GET", &key]), value);
        }
    }

    /// Waits until all three replicas of each set are voters and have applied the same entries.
    pub fn wait_until_whole(&self) {
        self.wait_for("whole", |status| {
            let sets = status["sets"].as_u64().expect("a number");
            (0..sets).all(|set| {
                let replicas: Vec<&Value> = members(status, set)
                    .map(|host| &host["status"]["replica"])
                    .filter(|replica| !replica.is_null())
                    .collect();
                let voters = |r: &&Value| r["voters"].as_array().map_or(0, Vec::len);
                let applied = |r: &&Value| r["applied"].as_u64();
                replicas.len() == 3
                    && replicas.iter().all(|r| voters(r) == 3)
                    && replicas.iter().all(|r| applied(r) == applied(&replicas[0]))
            })
        });
    }

    /// Waits until a condition on the status holds.
    pub fn wait_for(&self, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let status = self.status();
            if is_so(&status) {
                return status;
            }
            assert!(Instant::now() < deadline, "not {what}: {status}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Runs a closure on the gateway's host.
    pub fn beside_gateway<T: Send>(&self, act: impl FnOnce() -> T + Send) -> T {
        let status = self.status();
        let in_lab = status["network"] == "namespaces";
        let host = hosts(&status).iter().find(|host| host["name"] == "gateway");
        let pid = host.expect("there is one")["pid"]
            .as_u64()
            .expect("it runs");
        let there = move || {
            if in_lab {
                let network = File::open(format!("/proc/{pid}/ns/net")).expect("its network");
                setns(network, CloneFlags::CLONE_NEWNET).expect("it can be entered");
            }
            act()
        };
        std::thread::scope(|scope| scope.spawn(there).join().expect("it ends"))
    }
}

pub fn hosts(status: &Value) -> &Vec<Value> {
    status["hosts"].as_array().expect("there are hosts")
}

/// The replicas of a set.
pub fn members(status: &Value, set: u64) -> impl Iterator<Item = &Value> {
    hosts(status).iter().filter(move |host| host["set"] == set)
}

pub fn addresses(status: &Value, kind: &str) -> Vec<SocketAddrV4> {
    let of_kind = |host: &&Value| host["name"].as_str().is_some_and(|n| n.starts_with(kind));
    let address = |host: &Value| host["address"].as_str().and_then(|a| a.parse().ok());
    let hosts = hosts(status).iter().filter(of_kind);
    hosts
        .map(|host| address(host).expect("an address"))
        .collect()
}

impl Drop for Flair {
    fn drop(&mut self) {
        let (_, said) = self.run(&["down"]);
        println!("{said}");
        let _ = std::fs::remove_dir_all(&self.data);
    }
}
