//! Strangers at every listener of a host: Redis port, checkpoints, control service, control socket, metrics, packets.
//! Whatever they send, the host keeps serving, within its memory limit. See docs/limits.md; the limits themselves are
//! tested elsewhere.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::{Client, PROGRAM};
use inband_cluster::paxos::control;
use inband_testing::port::free_address;

const TIMEOUT: Duration = Duration::from_secs(30);
/// For `bash -c`, with the program and the configuration as arguments. The host is that process.
const RUN: &str = "exec \"$0\" run --config \"$1\"";
/// The minimum that may be configured.
const CLIENTS_MEMORY_MIB: u64 = 64;

/// One host with all roles and a limit on open files.
struct Host {
    process: Option<Child>,
    dir: tempfile::TempDir,
    /// Packets, checkpoints.
    address: SocketAddr,
    control: SocketAddr,
    resp: SocketAddr,
    metrics: SocketAddr,
}

impl Drop for Host {
    fn drop(&mut self) {
        if let Some(process) = &mut self.process {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

impl Host {
    fn start(open_files_max: u64) -> Host {
        let host = Host::prepare("");
        let host = host.run(open_files_max);
        host.wait_until(|| host.try_set().is_some());
        host
    }

    /// A host that does not run yet; `more` is added to `[host]`.
    fn prepare(more: &str) -> Host {
        let dir = tempfile::tempdir().expect("a directory");
        let [address, control, resp, metrics] = [(); 4].map(|()| free_address());
        let text = format!(
            r#"
            cluster = {{ name = "listeners", epoch = 1, first_instance = 1, durability = "memory" }}
            [host]
            node = 1
            state_dir = {:?}
            dataplane = "udp"
            resp = ["{resp}"]
            metrics = "{metrics}"
            limits = {{ clients_memory_mib = {CLIENTS_MEMORY_MIB} }}
            {}
            [[node]]
            id = 1
            name = "one"
            address = "{address}"
            control_plane = "{control}"
            roles = ["leader", "acceptor", "replica", "controller"]
            "#,
            dir.path(),
            more.replace("DIR", &dir.path().display().to_string())
        );
        fs::write(dir.path().join("config.toml"), text).expect("the configuration");
        Host {
            process: None,
            dir,
            address,
            control,
            resp,
            metrics,
        }
    }

    fn run(self, open_files_max: u64) -> Host {
        let mut bash = Command::new("bash");
        bash.args(["-c", &format!("ulimit -n {open_files_max}; {RUN}")]);
        self.run_by(bash)
    }

    /// In a network namespace of its own, which has only a loopback interface.
    fn run_in_namespace(self) -> Host {
        let mut unshare = Command::new("unshare");
        unshare.args(["--net", "bash", "-c"]);
        unshare.arg(format!("ip link set lo up && {RUN}"));
        self.run_by(unshare)
    }

    fn run_by(mut self, mut command: Command) -> Host {
        let log = fs::File::create(self.dir.path().join("log")).expect("a log");
        let process = command
            .arg(PROGRAM)
            .arg(self.config())
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("cloned"))
            .stderr(log)
            .spawn()
            .expect("it runs");
        self.process = Some(process);
        self
    }

    fn wait_until(&self, mut holds: impl FnMut() -> bool) {
        let begun = Instant::now();
        while !holds() {
            assert!(begun.elapsed() < TIMEOUT, "{}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn config(&self) -> PathBuf {
        self.dir.path().join("config.toml")
    }

    fn id(&self) -> u32 {
        self.process.as_ref().expect("it runs").id()
    }

    fn try_set(&self) -> Option<()> {
        let mut client = Client::try_connect(self.resp)?;
        (client.try_call(&["SET", "a", "1"])? == "+OK").then_some(())
    }

    fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).expect("the log")
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("control.sock")
    }

    fn counter(&self, name: &str) -> u64 {
        let status = control::status(&self.socket(), TIMEOUT).expect("a status");
        let counter = status.counters.get(name);
        *counter.unwrap_or_else(|| panic!("no counter {name} in {:?}", status.counters.keys()))
    }

    /// A line of a file of `/proc`, as a number.
    fn proc(&self, file: &str, name: &str) -> u64 {
        let path = format!("/proc/{}/{file}", self.id());
        let text = fs::read_to_string(path).expect("it lives");
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        let number = line.and_then(|line| line.split_whitespace().next());
        number.and_then(|n| n.parse().ok()).expect("a number")
    }

    /// Peak memory of the process.
    fn memory_peak_mib(&self) -> u64 {
        self.proc("status", "VmHWM:") >> 10
    }

    /// CPU time so far.
    fn cpu(&self) -> Duration {
        let path = format!("/proc/{}/stat", self.id());
        let text = fs::read_to_string(path).expect("it lives");
        let fields: Vec<&str> = text
            .rsplit(')')
            .next()
            .expect("fields")
            .split(' ')
            .collect();
        // utime and stime, in hundredths of a second.
        let ticks: u64 = [fields[12], fields[13]]
            .map(|f| f.parse::<u64>().expect("ticks"))
            .iter()
            .sum();
        Duration::from_millis(ticks * 10)
    }

    fn open_files(&self) -> u64 {
        let path = format!("/proc/{}/fd", self.id());
        fs::read_dir(path).expect("it lives").count() as u64
    }

    fn allow_open_files(&self, max: u64) {
        let done = Command::new("prlimit")
            .args(["--pid", &self.id().to_string()])
            .arg(format!("--nofile={max}:")) // the soft limit only
            .status();
        assert!(done.expect("prlimit runs").success());
    }

    fn connect(&self, to: SocketAddr) -> TcpStream {
        let stream = TcpStream::connect(to).expect("connects");
        let limit = Some(Duration::from_secs(10));
        stream.set_read_timeout(limit).expect("set");
        stream.set_write_timeout(limit).expect("set");
        stream
    }
}

/// Random bytes, the same in every run.
fn nonsense(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..len).map(|_| next()).collect()
}

fn wait_for(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < TIMEOUT, "{what} did not come true");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Its listeners cannot be woken by a connection.
#[test]
fn a_host_whose_address_is_gone_stops() {
    if !nix::unistd::geteuid().is_root() {
        return inband_testing::not_run("namespaces need root");
    }
    let mut host = Host::prepare("").run_in_namespace();
    host.wait_until(|| control::status(&host.socket(), TIMEOUT).is_ok());
    let pid = host.id().to_string();
    for command in [
        &[
            "nsenter", "--net", "--target", &pid, "ip", "link", "set", "lo", "down",
        ][..],
        &["kill", "-TERM", &pid],
    ] {
        let done = Command::new(command[0]).args(&command[1..]).status();
        assert!(done.expect("it runs").success(), "{command:?}");
    }
    let mut process = host.process.take().expect("it runs");
    host.wait_until(|| process.try_wait().expect("its status").is_some());
}

#[test]
fn nonsense_at_every_listener() {
    let host = Host::start(4096);
    let mut client = Client::connect(host.resp);
    let listeners = [host.resp, host.address, host.control, host.metrics];
    for seed in 1..40 {
        for to in listeners {
            let mut stream = host.connect(to);
            // It may be disconnected before everything is sent.
            let _ = stream.write_all(&nonsense(seed, 3000));
            let _ = stream.shutdown(std::net::Shutdown::Write);
            let _ = stream.read(&mut [0; 64]);
        }
        let mut stream = UnixStream::connect(host.socket()).expect("connects");
        let _ = stream.write_all(&nonsense(seed, 3000));
        let _ = stream.write_all(b"\n{\"cmd\":\"nonsense\"}\n");
        let _ = stream.read(&mut [0; 64]);
        assert_eq!(client.call(&["SET", "a", "1"]), "+OK");
    }
    assert!(host.counter("control_closed_protocol") >= 30);
    assert!(host.counter("kv_closed_protocol") >= 30);
    assert!(host.counter("kv_checkpoint_protocol_errors") >= 39);

    // Packets: of every length, then ones with a valid start.
    let status = || {
        control::status(&host.socket(), TIMEOUT)
            .expect("a status")
            .counters
    };
    let before = status();
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    for seed in 1..2000 {
        let mut packet = nonsense(seed, seed as usize % 1472);
        if seed % 2 == 0 && packet.len() > 8 {
            packet[..4].copy_from_slice(b"INBD");
        }
        socket.send_to(&packet, host.address).expect("sends");
        if seed % 100 == 0 {
            assert_eq!(client.call(&["SET", "a", "1"]), "+OK");
        }
    }
    wait_for("at least 500 of 2000 are counted", || {
        let grown: u64 = status()
            .iter()
            .filter(|(name, _)| name.contains("bad") || name.contains("truncated"))
            .map(|(name, value)| value - before.get(name).unwrap_or(&0))
            .sum();
        grown > 500
    });
    assert_eq!(client.call(&["GET", "a"]), "1");
    let log = host.log();
    assert!(log.lines().count() < 60, "{log}");
}

#[test]
fn a_flood_of_clients_takes_neither_files_nor_memory() {
    // What a host with one log reserves for itself, and room for a hundred clients.
    let host = Host::start(512 + 128 + 100);
    assert!(
        host.log().contains("there is room for 100"),
        "{}",
        host.log()
    );
    let mut client = Client::connect(host.resp);
    let memory_before_mib = host.memory_peak_mib();
    let value = "v".repeat(1 << 20);
    assert_eq!(client.call(&["SET", "k", &value]), "+OK");

    // Four hundred silent clients.
    let mut flood: Vec<TcpStream> = (0..400).map(|_| host.connect(host.resp)).collect();
    wait_for("most are refused", || {
        host.counter("kv_connections_refused") >= 300
    });
    assert_eq!(client.call(&["GET", "k"]), value);
    // Accepted clients send long incomplete requests, and do not read long replies.
    let half = format!(
        "*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$1048576\r\n{}",
        &value[..1_000_000]
    );
    let gets = format!("*31\r\n$4\r\nMGET\r\n{}", "$1\r\nk\r\n".repeat(30));
    for (at, stream) in flood.iter_mut().enumerate() {
        let bytes = if at % 2 == 0 { &half } else { &gets };
        // Most are disconnected.
        let _ = stream.write_all(bytes.as_bytes());
    }
    wait_for("some are closed", || host.counter("kv_closed_memory") > 10);
    wait_for("it fits", || {
        host.counter("kv_clients_memory_bytes") <= CLIENTS_MEMORY_MIB << 20
    });
    assert_eq!(client.call(&["SET", "b", "1"]), "+OK");
    drop(flood);
    // What clients hold, what is read for them in one turn, the reply being written, and what the allocator and the
    // store retain.
    let grown_mib = host.memory_peak_mib() - memory_before_mib;
    let bound_mib = CLIENTS_MEMORY_MIB + 64 + 32 + 150;
    println!("memory: {memory_before_mib} MiB, and {grown_mib} MiB more at the peak");
    assert!(grown_mib < bound_mib, "{grown_mib} MiB over {bound_mib}");
    let log = host.log();
    assert!(log.lines().count() < 60, "{log}");
}

#[test]
fn without_a_file_left_clients_wait_and_nothing_spins() {
    let host = Host::start(4096);
    let mut client = Client::connect(host.resp);
    assert_eq!(client.call(&["SET", "a", "1"]), "+OK");
    // Fewer than it planned for: the system may run out for other reasons.
    host.allow_open_files(host.open_files() + 3);
    let listeners = [host.resp, host.address, host.control];
    let waiting: Vec<TcpStream> = listeners
        .into_iter()
        .flat_map(|to| (0..10).map(move |_| to))
        .map(|to| host.connect(to))
        .collect();
    std::thread::sleep(Duration::from_millis(300));
    let cpu = host.cpu();
    for _ in 0..10 {
        assert_eq!(client.call(&["SET", "a", "2"]), "+OK");
        std::thread::sleep(Duration::from_millis(100));
    }
    let spent = host.cpu() - cpu;
    assert!(spent < Duration::from_millis(500), "{spent:?} in a second");
    host.allow_open_files(4096);
    assert_eq!(Client::connect(host.resp).call(&["GET", "a"]), "2");
    assert!(host.counter("kv_accepts_failed") > 0);
    drop(waiting);
    wait_for("the control plane answers", || {
        let request = inband_control::service::Request::Status;
        control::control(&host.socket(), request, TIMEOUT).is_ok()
    });
    let log = host.log();
    assert!(log.lines().count() < 60, "{log}");
}

const SECOND_NODE: &str = r#"
            [[node]]
            id = 2
            name = "two"
            address = "127.0.0.1:1"
            roles = ["replica"]
"#;

/// Runs a program. Returns whether it succeeded, and its output.
fn said(program: &str, args: &[&str]) -> (bool, String) {
    let output = Command::new(program).args(args).output().expect("it runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    (output.status.success(), text)
}

#[test]
fn a_host_with_certificates_and_a_password() {
    let host = Host::prepare(
        r#"
            password_file = "DIR/password"
            [host.tls]
            ca = "DIR/tls/ca.pem"
            certificate = "DIR/tls/certificate.pem"
            key = "DIR/tls/key.pem"
            resp = true
        "#,
    );
    let at = |name: &str| host.dir.path().join(name).display().to_string();
    let (config, authority, password) = (at("config.toml"), at("authority"), at("password"));
    fs::write(&password, "open sesame\n").expect("written");
    let doctor = ["doctor", "--config", &config];
    assert!(said(PROGRAM, &doctor).1.contains("inband certificate new"));
    let new = [
        "certificate",
        "new",
        "--config",
        &config,
        "--authority",
        &authority,
    ];
    let (good, says) = said(PROGRAM, &new);
    assert!(
        good && says.contains("one: ") && says.contains("is valid for 3649 more days"),
        "{says}"
    );
    assert!(said(PROGRAM, &doctor)
        .1
        .contains("is valid for 3649 more days"));

    // Another host's certificate is neither overwritten nor taken for this host's.
    let other = at("other.toml");
    let text = fs::read_to_string(&config).expect("read");
    let as_other = text.replace("name = \"listeners\"", "name = \"another\"");
    assert_ne!(text, as_other, "{text}");
    fs::write(&other, as_other).expect("written");
    let own = fs::read(at("tls/certificate.pem")).expect("read");
    let new_in = |config: &str, more: &[&str]| {
        let args = [
            "certificate",
            "new",
            "--config",
            config,
            "--authority",
            &authority,
        ];
        said(PROGRAM, &[&args[..], more].concat())
    };
    let (good, says) = new_in(&other, &[]);
    assert!(
        !good && says.contains("node 1 of cluster \"listeners\"") && says.contains("--out"),
        "{says}"
    );
    assert_eq!(fs::read(at("tls/certificate.pem")).expect("read"), own);
    let node_2 = at("node-2.toml");
    fs::write(
        &node_2,
        text.replacen("node = 1", "node = 2", 1) + SECOND_NODE,
    )
    .expect("written");
    let (good, says) = new_in(&node_2, &[]);
    assert!(!good && says.contains("not of node 2"), "{says}");
    let (good, says) = new_in(&node_2, &["--out", &at("for-2")]);
    assert!(good, "{says}");
    assert!(fs::exists(at("for-2/key.pem")).expect("looked"));
    let (good, says) = new_in(&config, &[]);
    assert!(good, "its own is made anew: {says}");
    // Nor is the CA that it trusts changed.
    let (own, elsewhere) = (fs::read(at("tls/ca.pem")).expect("read"), at("elsewhere"));
    let from_another = [
        "certificate",
        "new",
        "--config",
        &config,
        "--authority",
        &elsewhere,
    ];
    let (good, says) = said(PROGRAM, &from_another);
    assert!(
        !good && says.contains("another authority") && says.contains("--replace-authority"),
        "{says}"
    );
    assert_eq!(fs::read(at("tls/ca.pem")).expect("read"), own);
    assert!(!fs::exists(&elsewhere).expect("looked"));
    let show = ["certificate", "show", "--config", &config];
    assert!(said(PROGRAM, &show).1.contains("node 1 of cluster"));
    let (good, says) = said(PROGRAM, &["run", "--config", &node_2]);
    assert!(
        !good && says.contains("is the certificate of node 1") && says.contains("node 2"),
        "{says}"
    );

    // Nor is the certificate of another cluster.
    let (good, says) = said(PROGRAM, &["run", "--config", &other]);
    assert!(
        !good && says.contains("is a certificate of cluster") && says.contains("another"),
        "{says}"
    );

    // A password file that others can read is refused.
    let (good, says) = said(PROGRAM, &["run", "--config", &config]);
    assert!(!good && says.contains("chmod 600"), "{says}");
    let owner_only = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    fs::set_permissions(&password, owner_only).expect("set");
    let host = host.run(4096);
    let (port, ca) = (host.resp.port().to_string(), at_of(&host, "tls/ca.pem"));
    let cli = |args: &[&str]| {
        let open = [
            "-p",
            &port,
            "--no-auth-warning",
            "-a",
            "open sesame",
            "--tls",
            "--cacert",
            &ca,
        ];
        said("redis-cli", &[&open[..], args].concat())
            .1
            .trim_end()
            .to_owned()
    };
    host.wait_until(|| cli(&["SET", "a", "1"]) == "OK");
    assert_eq!(cli(&["GET", "a"]), "1");

    // Peers without TLS or a certificate are refused at every port, and counted.
    for to in [host.address, host.control] {
        let mut stream = host.connect(to);
        stream
            .write_all(b"IBCKPT2\n\0\0\0\0\0\0\0\x01")
            .expect("sends");
        let mut got = Vec::new();
        let _ = stream.read_to_end(&mut got);
        assert!(got.len() < 16, "{got:?}");
    }
    let mut stream = host.connect(host.resp);
    stream.write_all(b"PING\r\n").expect("sends");
    let mut got = Vec::new();
    let _ = stream.read_to_end(&mut got);
    assert!(!got.starts_with(b"+PONG") && got.len() < 16, "{got:?}");
    assert_eq!(host.counter("tls_refused_plain"), 2);
    assert_eq!(host.counter("kv_closed_tls"), 1);
    assert_eq!(host.counter("tls_certificate_days_left"), 3649);
    let status = control::status(&host.socket(), TIMEOUT).expect("a status");
    assert_eq!(status.transport, "TLS");

    // The project's own clients, and the command line through the control service.
    let (file, resp) = (at_of(&host, "file"), host.resp.to_string());
    let access = [
        "--host",
        &resp,
        "--password-file",
        &password,
        "--tls-ca",
        &ca,
        &file,
    ];
    let (good, says) = said(PROGRAM, &[&["export"], &access[..]].concat());
    assert!(good && says.contains("exported 1 key"), "{says}");
    let (good, says) = said(PROGRAM, &[&["import", "--overwrite"], &access[..]].concat());
    assert!(good && says.contains("imported 1 key"), "{says}");
    let (good, says) = said(
        PROGRAM,
        &["export", "--host", &resp, "--tls-ca", &ca, &file],
    );
    assert!(!good && says.contains("--password-file"), "{says}");
    let (good, says) = said(PROGRAM, &["member", "list", "--config", &config]);
    assert!(good && says.contains("votes"), "{says}");
}

fn at_of(host: &Host, name: &str) -> String {
    host.dir.path().join(name).display().to_string()
}
