//! A gate between two hosts: real packets, the program, and its end. Needs root.

use std::net::{SocketAddr, UdpSocket};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use inband_ground::auth::{sign, Keys, Secret};
use inband_ground::c;
use inband_ground::wire::HEADER_LEN_BYTES;
use inband_ground::xdp::gate::Gate;
use inband_ground::System;
use inband_host::key_file::KeyFile;
use inband_host::state_dir::StateLock;
use inband_lab::netns::Netns;
use inband_testing::process::text;
use tempfile::TempDir;

const PROGRAM: &str = env!("CARGO_BIN_EXE_inband-gate");
const PARTITIONS: usize = c::IB_PARTITIONS_MAX as usize;
const KEY_ID_AT: usize = std::mem::offset_of!(c::ib_header, key_id);
const TAG_AT: usize = std::mem::offset_of!(c::ib_header, tag);
const KEY_FILE: &str = "keys.toml";
const TIMEOUT: Duration = Duration::from_secs(20);
const RETRY: Duration = Duration::from_millis(50);
const HOSTS: [&str; 2] = ["10.99.0.1:7000", "10.99.0.2:7000"];
/// The gate's interfaces, and the addresses of the hosts behind them.
const PORTS: [(&str, &str); 2] = [("keyed", "10.99.0.1"), ("keyless", "10.99.0.2")];

/// Two hosts, and between them the gate's machine.
struct Segments {
    hosts: [Netns; 2],
    gate: Netns,
}

/// Waits for the end of a process that has failed, and returns what it said.
fn failed(mut child: Child) -> String {
    let deadline = Instant::now() + TIMEOUT;
    while child.try_wait().expect("it can be asked").is_none() {
        if Instant::now() >= deadline {
            let _ = child.kill();
            panic!(
                "it goes on: {}",
                text(&child.wait_with_output().expect("it ends"))
            );
        }
        std::thread::sleep(RETRY);
    }
    let output = child.wait_with_output().expect("it has ended");
    let said = text(&output);
    assert!(!output.status.success(), "{said}");
    said
}

fn ip(arguments: &str) {
    let done = Command::new("ip").args(arguments.split(' ')).output();
    let done = done.expect("ip runs");
    assert!(done.status.success(), "ip {arguments}: {}", text(&done));
}

impl Segments {
    fn create(label: &str) -> Segments {
        let name = |what| format!("gate-{label}-{what}-{}", std::process::id());
        let create = |what| Netns::create(&name(what)).expect("a namespace");
        let segments = Segments {
            hosts: [create("keyed"), create("keyless")],
            gate: create("gate"),
        };
        for (host, (port, address)) in segments.hosts.iter().zip(PORTS) {
            segments.join(host.name(), port, address);
        }
        segments
    }

    fn join(&self, host: &str, port: &str, address: &str) {
        let gate = self.gate.name();
        ip(&format!(
            "-n {gate} link add {port} type veth peer name host netns {host}"
        ));
        // Between two machines, packets leave with complete checksums. A veth takes frames from XDP if its peer has GRO on.
        let offloads = "tx off gro on";
        ip(&format!("netns exec {host} ethtool -K host {offloads}"));
        ip(&format!("-n {host} address add {address}/24 dev host"));
        ip(&format!("-n {host} link set host up"));
        ip(&format!("-n {gate} link set {port} up"));
        let ipv6 = format!("net.ipv6.conf.{port}.disable_ipv6=0");
        ip(&format!("netns exec {gate} sysctl -qw {ipv6}"));
    }

    fn socket(&self, host: usize) -> UdpSocket {
        let bind = || Ok(UdpSocket::bind(HOSTS[host]).expect("a port"));
        let socket = self.hosts[host].run(bind).expect("in the namespace");
        socket.set_read_timeout(Some(RETRY)).expect("set");
        socket
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", self.gate.name(), PROGRAM]);
        command.args(arguments);
        command
    }
}

/// A gate's process.
struct Running {
    child: Option<Child>,
    data: PathBuf,
}

impl Running {
    fn up(segments: &Segments, key_file: &Path, data: &Path) -> Running {
        Running::up_with(segments, key_file, data, &[])
    }

    fn up_with(segments: &Segments, key_file: &Path, data: &Path, options: &[&str]) -> Running {
        let [key_file, data_argument] = [key_file, data].map(|path| path.display().to_string());
        let mut command = segments.command(&["up", "--keyed", "keyed", "--keyless", "keyless"]);
        command.args(["--key-file", &key_file, "--data", &data_argument]);
        command.args(options);
        command.process_group(0).stderr(Stdio::piped());
        let running = Running {
            child: Some(command.spawn().expect("it starts")),
            data: data.to_owned(),
        };
        let deadline = Instant::now() + TIMEOUT;
        while !running.status().status.success() {
            assert!(Instant::now() < deadline, "{}", text(&running.status()));
            std::thread::sleep(RETRY);
        }
        running
    }

    fn status(&self) -> Output {
        let mut command = Command::new(PROGRAM);
        command.args(["status", "--data"]).arg(&self.data);
        command.output().expect("it runs")
    }

    fn signal(&self, name: &str) {
        let pid = self.child.as_ref().expect("it runs").id().to_string();
        let sent = Command::new("kill").args([name, &pid]).status();
        assert!(sent.expect("kill runs").success());
    }

    /// Returns whether it ended with success.
    fn wait(mut self) -> bool {
        let mut child = self.child.take().expect("it runs");
        child.wait().expect("it ends").success()
    }

    /// Waits until it has failed by itself, and returns what it said.
    fn failed(mut self) -> String {
        failed(self.child.take().expect("it runs"))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn packet(value: &[u8], keys: Option<&Keys>) -> Vec<u8> {
    let mut packet = vec![0; HEADER_LEN_BYTES];
    packet[..4].copy_from_slice(&c::IB_MAGIC.to_be_bytes());
    (packet[4], packet[5], packet[11]) = (c::IB_VERSION as u8, 1, 3);
    packet[12..14].copy_from_slice(&(value.len() as u16).to_be_bytes());
    packet.extend(value);
    sign(keys, &mut packet);
    packet
}

/// The bytes that a gate does not change.
fn body(packet: &[u8]) -> Vec<u8> {
    let mut body = packet.to_vec();
    if body.len() >= HEADER_LEN_BYTES {
        body[KEY_ID_AT..KEY_ID_AT + 2].fill(0);
        body[TAG_AT..TAG_AT + 8].fill(0);
    }
    body
}

/// Sends `packets` in this order, again and again, until the last of them arrives. Returns those that arrived in one
/// turn. Packets of earlier calls may still arrive.
fn arrived(from: &UdpSocket, to: &UdpSocket, packets: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let address: SocketAddr = to.local_addr().expect("its address");
    let bodies: Vec<_> = packets.iter().map(|packet| body(packet)).collect();
    let deadline = Instant::now() + TIMEOUT;
    let mut buffer = [0; 2048];
    loop {
        assert!(Instant::now() < deadline, "nothing arrives");
        for packet in packets {
            from.send_to(packet, address).expect("sends");
        }
        let mut there = Vec::new();
        while let Ok(len) = to.recv(&mut buffer) {
            let arrived = body(&buffer[..len]);
            if bodies.contains(&arrived) {
                there.push(buffer[..len].to_vec());
            }
            if bodies.last() == Some(&arrived) {
                return there;
            }
        }
    }
}

/// The hosts and the gate's machine, and a directory with a key file; `None`: the test is reported as not run.
fn with_keys(label: &str) -> Option<(Segments, TempDir, KeyFile)> {
    if let Err(error) = inband_lab::preflight::check_lab() {
        inband_testing::not_run(error);
        return None;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let keys = KeyFile::generate().expect("keys");
    keys.save(&dir.path().join(KEY_FILE)).expect("saved");
    Some((Segments::create(label), dir, keys))
}

/// Whether any of these packets arrives within a while.
fn arrives(from: &UdpSocket, to: &UdpSocket, packets: &[Vec<u8>]) -> bool {
    let address: SocketAddr = to.local_addr().expect("its address");
    let bodies: Vec<_> = packets.iter().map(|packet| body(packet)).collect();
    let mut buffer = [0; 2048];
    for _ in 0..5 {
        for packet in packets {
            from.send_to(packet, address).expect("sends");
        }
        while let Ok(len) = to.recv(&mut buffer) {
            if bodies.contains(&body(&buffer[..len])) {
                return true;
            }
        }
    }
    false
}

#[test]
fn packets_get_tags_and_lose_them_and_nothing_passes_a_gate_that_has_ended() {
    let Some((segments, dir, first)) = with_keys("tags") else {
        return;
    };
    let key_file = dir.path().join(KEY_FILE);
    let keys = first.keys();
    let foreign = Keys::new(keys.active(), &[(keys.active(), Secret([9; 16]))]).expect("a key");
    let sockets = [segments.socket(0), segments.socket(1)];
    let [keyed, keyless] = &sockets;
    let gate = Running::up(&segments, &key_file, &dir.path().join("gate"));

    // Those before the last are refused.
    let sent = [
        packet(b"a", None),
        packet(b"ab", Some(&foreign)),
        packet(b"abc", Some(&keys)),
    ];
    assert_eq!(arrived(keyed, keyless, &sent), [packet(b"abc", None)]);
    let sent = [packet(b"a", Some(&keys)), packet(b"ab", None)];
    assert_eq!(arrived(keyless, keyed, &sent), [packet(b"ab", Some(&keys))]);
    let other = [b"no packet of Inband".to_vec()];
    assert_eq!(arrived(keyed, keyless, &other), other);
    assert_eq!(arrived(keyless, keyed, &other), other);
    let status = text(&gate.status());
    for counted in ["tag_removed", "tag_made", "bad_key", "bad_tag"] {
        assert!(status.contains(counted), "{status}");
    }
    assert!(!status.contains("lost"), "{status}");

    // Another key signs after SIGHUP, and the old one is still accepted.
    let mut second = first.clone();
    let id = second.add().expect("a second key");
    second.activate(id).expect("it signs");
    second.save(&key_file).expect("saved");
    gate.signal("-HUP");
    let new = second.keys();
    let deadline = Instant::now() + TIMEOUT;
    while arrived(keyless, keyed, &[packet(b"abcd", None)]) != [packet(b"abcd", Some(&new))] {
        assert!(Instant::now() < deadline, "{}", text(&gate.status()));
    }
    let sent = [packet(b"abcde", Some(&keys))];
    assert_eq!(arrived(keyed, keyless, &sent), [packet(b"abcde", None)]);

    // A stranger's packet would be valid in the keyless segment.
    let strangers = [packet(b"stranger", None), packet(b"member", Some(&new))];
    assert_eq!(Gate::check(None, &strangers[0], PARTITIONS), c::IB_R_none);
    gate.signal("-KILL");
    assert!(!gate.wait());
    assert!(!arrives(keyed, keyless, &strangers));
    assert!(!arrives(keyless, keyed, &strangers));

    let gate = Running::up(&segments, &key_file, &dir.path().join("gate"));
    let sent = [packet(b"abcdef", Some(&new))];
    assert_eq!(arrived(keyed, keyless, &sent), [packet(b"abcdef", None)]);
    gate.signal("-TERM");
    assert!(gate.wait());
    assert!(!arrives(keyed, keyless, &strangers));
}

/// The host in the keyless segment stands for a switch that changes packets and leaves their checksum as it was.
#[test]
fn a_gate_makes_tags_for_a_switch_that_cannot() {
    let Some((segments, dir, keys)) = with_keys("switch") else {
        return;
    };
    let key_file = dir.path().join(KEY_FILE);
    let keys = keys.keys();
    let [keyed, switch] = [segments.socket(0), segments.socket(1)];
    let renumbered = |packet: &[u8]| {
        let mut packet = packet.to_vec();
        (packet[5], packet[11]) = (2, 7);
        packet
    };
    let mut expected = renumbered(&packet(b"abc", None));
    sign(Some(&keys), &mut expected);
    let data = dir.path().join("gate");

    // Otherwise it drops them.
    let gate = Running::up(&segments, &key_file, &data);
    let sent = [
        renumbered(&packet(b"abc", None)),
        packet(b"unchanged", None),
    ];
    let unchanged = [packet(b"unchanged", Some(&keys))];
    assert_eq!(arrived(&switch, &keyed, &sent), unchanged);
    let status = text(&gate.status());
    assert!(status.contains("bad_tag"), "{status}");
    gate.signal("-TERM");
    assert!(gate.wait());

    let gate = Running::up_with(&segments, &key_file, &data, &["--skip-keyless-checksum"]);
    // From the other side, a tag is checked as ever.
    let sent = [packet(b"ab", None), packet(b"abc", Some(&keys))];
    let there = arrived(&keyed, &switch, &sent);
    assert_eq!(there, [packet(b"abc", None)]);
    let sent = [packet(b"ab", Some(&keys)), renumbered(&there[0])];
    assert_eq!(arrived(&switch, &keyed, &sent), [expected]);
    let status = text(&gate.status());
    let expected = [
        "checksums not checked",
        "tag_made",
        "tag_removed",
        "bad_key",
    ];
    for said in expected {
        assert!(status.contains(said), "{said}: {status}");
    }
    assert!(!status.contains("bad_tag"), "{status}");
}

#[test]
fn a_gate_whose_interface_is_replaced_passes_nothing_and_ends() {
    let Some((segments, dir, keys)) = with_keys("replaced") else {
        return;
    };
    let key_file = dir.path().join(KEY_FILE);
    let gate = Running::up(&segments, &key_file, &dir.path().join("gate"));
    let keyless = segments.socket(1);
    ip(&format!("-n {} link del keyed", segments.gate.name()));
    segments.join(segments.hosts[0].name(), PORTS[0].0, PORTS[0].1);
    let keyed = segments.socket(0);
    let sent = [packet(b"a", None), packet(b"ab", Some(&keys.keys()))];
    assert!(!arrives(&keyed, &keyless, &sent));
    let said = gate.failed();
    assert!(said.contains("the interface keyed is gone"), "{said}");
}

/// As soon as the programs are gone, a bridge would forward what they have dropped.
#[test]
fn a_gate_beside_which_packets_may_pass_ends_and_leaves_no_way() {
    let Some((segments, dir, keys)) = with_keys("beside") else {
        return;
    };
    let key_file = dir.path().join(KEY_FILE);
    let machine = segments.gate.name();
    let sockets = [segments.socket(0), segments.socket(1)];
    let expected = packet(b"member", None);
    let bridge = [
        "link add bridge type bridge",
        "link set bridge up",
        "link set keyless master bridge",
        "link set keyed master bridge",
    ];
    for (what, changes, back, told) in [
        ("a bridge", &bridge[..], "link del bridge", "nomaster"),
        (
            "an address",
            &["address add 10.99.0.3/24 dev keyed"],
            "address flush dev keyed",
            "keyed has the address 10.99.0.3",
        ),
        (
            "an address of IPv6",
            &["address add fd00::3/64 dev keyless nodad"],
            "address flush dev keyless",
            "keyless has the address fd00::3",
        ),
        (
            "a macvlan",
            &["link add link keyed name above type macvlan mode passthru"],
            "link del above",
            "keyed has above on top of it",
        ),
    ] {
        let gate = Running::up(&segments, &key_file, &dir.path().join("gate"));
        let member = [packet(b"member", Some(&keys.keys()))];
        assert_eq!(arrived(&sockets[0], &sockets[1], &member), [&expected[..]]);
        for change in changes {
            ip(&format!("-n {machine} {change}"));
        }
        let said = gate.failed();
        // Those of another turn may wait at their host, and pass the next gate into the keyed segment.
        let strangers = [packet(what.as_bytes(), None)];
        assert!(
            said.contains(told) && said.contains("nothing passes"),
            "{what}: {said}"
        );
        assert!(!arrives(&sockets[0], &sockets[1], &strangers), "{what}");
        assert!(!arrives(&sockets[1], &sockets[0], &strangers), "{what}");
        // What it says to do helps.
        ip(&format!("-n {machine} {back}"));
        for (port, _) in PORTS {
            ip(&format!("-n {machine} link set {port} up"));
        }
    }
}

/// Whoever changes both MTUs changes one first, so the gate goes on.
#[test]
fn different_mtus_are_reported_until_they_are_the_same_again() {
    let Some((segments, dir, _keys)) = with_keys("mtu") else {
        return;
    };
    let machine = segments.gate.name();
    let gate = Running::up(
        &segments,
        &dir.path().join(KEY_FILE),
        &dir.path().join("gate"),
    );
    let warns =
        || text(&gate.status()).contains("the MTU of keyed is 1500 and that of keyless 1300");
    assert!(!warns());
    ip(&format!("-n {machine} link set keyless mtu 1300"));
    assert!(warns(), "{}", text(&gate.status()));
    ip(&format!("-n {machine} link set keyed mtu 1300"));
    let status = text(&gate.status());
    assert!(!status.contains("MTU"), "{status}");
    gate.signal("-TERM");
    assert!(gate.wait());
}

#[test]
fn mistakes_are_explained() {
    let Some((segments, dir, _keys)) = with_keys("mistakes") else {
        return;
    };
    let gate = segments.gate.name();
    let key_file = dir.path().join(KEY_FILE);
    let up_with = |keyed: &str, keyless: &str, key_file: &Path, data: &Path| {
        let mut command = segments.command(&["up", "--keyed", keyed, "--keyless", keyless]);
        command.arg("--key-file").arg(key_file);
        command.arg("--data").arg(data).stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let said = failed(command.spawn().expect("it starts"));
        // A gate's user has none of these.
        for foreign in ["cluster.", "host.", "dataplane"] {
            assert!(!said.contains(foreign), "{said}");
        }
        said
    };
    let data = dir.path().join("gate");
    let up = |keyed: &str, keyless: &str| up_with(keyed, keyless, &key_file, &data);
    let no_keys = up_with("keyed", "keyless", Path::new("/nowhere/keys"), &data);
    assert!(
        no_keys.contains("--key-file") && no_keys.contains("/nowhere/keys"),
        "{no_keys}"
    );
    let file = up_with("keyed", "keyless", &key_file, &key_file);
    assert!(
        file.contains("--data: ") && file.contains(KEY_FILE),
        "{file}"
    );
    {
        let _lock = StateLock::take(&data).expect("it is free");
        let own = format!("in use by process {};", std::process::id());
        let in_use = up("keyed", "keyless");
        assert!(
            in_use.contains("--data: ") && in_use.contains(&own),
            "{in_use}"
        );
    }
    let nowhere = up("nowhere-0", "keyless");
    assert!(
        nowhere.contains("no network interface \"nowhere-0\""),
        "{nowhere}"
    );
    let same = up("keyed", "keyed");
    assert!(same.contains("the same interface"), "{same}");
    ip(&format!("-n {gate} address add 10.99.0.3/24 dev keyed"));
    let address = up("keyed", "keyless");
    assert!(address.contains("ip address flush dev keyed"), "{address}");
    ip(&format!("-n {gate} address flush dev keyed"));
    ip(&format!("-n {gate} link add bridge type bridge"));
    ip(&format!("-n {gate} link set keyless master bridge"));
    let master = up("keyed", "keyless");
    assert!(master.contains("ip link set keyless nomaster"), "{master}");
    ip(&format!("-n {gate} link del bridge"));
    ip(&format!(
        "-n {gate} address add fd00::3/64 dev keyless nodad"
    ));
    let address = up("keyed", "keyless");
    assert!(
        address.contains("ip address flush dev keyless"),
        "{address}"
    );
    ip(&format!("-n {gate} address flush dev keyless"));
    for kind in ["macvlan mode passthru", "macvlan mode bridge"] {
        ip(&format!(
            "-n {gate} link add link keyless name above type {kind}"
        ));
        let upper = up("keyed", "keyless");
        assert!(upper.contains("ip link del above"), "{kind}: {upper}");
        ip(&format!("-n {gate} link del above"));
    }
    ip(&format!("-n {gate} link set keyless mtu 1300"));
    let mtu = up("keyed", "keyless");
    for part in ["keyed is 1500", "keyless 1300", "ip link set keyless mtu"] {
        assert!(mtu.contains(part), "{mtu}");
    }
    ip(&format!("-n {gate} link set keyless mtu 1500"));
    let long = up(&"x".repeat(300), "keyless");
    assert!(
        long.contains("has 300 bytes") && long.contains("15"),
        "{long}"
    );
    let deep = dir.path().join("d".repeat(120));
    let deep = up_with("keyed", "keyless", &key_file, &deep);
    assert!(!deep.contains("gate between"), "{deep}");
}
