//! Tests of the processes' options and files.
#![allow(missing_docs)]

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::path::Path;
use std::process::Command;

use inband_netpaxos::cluster::Cluster;

const PROGRAM: &str = env!("CARGO_BIN_EXE_inband-netpaxos");
/// Another machine's address (RFC 5737).
const ELSEWHERE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);

fn cluster(namespace: &str, resp: Vec<SocketAddr>) -> Cluster {
    let addresses = |port: u16| -> Vec<SocketAddrV4> {
        let ports = port..port + 4;
        ports
            .map(|port| SocketAddrV4::new(ELSEWHERE, port))
            .collect()
    };
    Cluster {
        serializers: addresses(7000),
        minions: addresses(7010),
        storages: addresses(7020),
        learners: addresses(7030),
        log_id: 1,
        key_file: None,
        client: Some((ELSEWHERE, namespace.into())),
        resp,
        sockets: BTreeMap::new(),
    }
}

/// What a process of this kind says, started by this command.
fn said(mut command: Command, kind: &str, dir: &Path) -> String {
    let output = command
        .args([kind, "--number=1", "--cluster"])
        .arg(dir)
        .arg("--data")
        .arg(dir.join(kind))
        .output()
        .unwrap();
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A cluster's file that was copied from a machine with namespaces says nothing about this one.
#[test]
fn nothing_listens_beyond_loopback_without_a_key_because_of_the_clients_address() {
    let dir = tempfile::tempdir().unwrap();
    for namespace in ["/run/netns/there-is-none", "/proc/self/ns/net"] {
        cluster(namespace, Vec::new()).store(dir.path()).unwrap();
        for kind in ["serializer", "minion", "storage", "learner"] {
            let said = said(Command::new(PROGRAM), kind, dir.path());
            assert!(said.contains("is beyond loopback"), "{kind}: {said}");
        }
    }
}

fn ip(args: &str) -> bool {
    let status = Command::new("ip").args(args.split(' ')).status();
    status.is_ok_and(|status| status.success())
}

/// Network namespaces that are removed at the end.
struct Namespaces(Vec<String>);

impl Drop for Namespaces {
    fn drop(&mut self) {
        for name in &self.0 {
            ip(&format!("netns del {name}"));
        }
    }
}

/// Only those of the cluster's own lab are cut off from other machines, as long as nobody moves an interface there.
#[test]
fn a_named_namespace_is_not_enough_to_listen_without_a_key() {
    let lab = format!("ib-t{}", std::process::id());
    let names = ["client", "storage-1"].map(|host| format!("{lab}.{host}"));
    let [client, own] = &names;
    let office = &format!("office-{}", std::process::id());
    let all = Namespaces(vec![client.clone(), own.clone(), office.clone()]);
    if !all.0.iter().all(|name| ip(&format!("netns add {name}"))) {
        return inband_testing::not_run("it cannot make network namespaces");
    }
    let dir = tempfile::tempdir().unwrap();
    let namespace = format!("/run/netns/{client}");
    cluster(&namespace, Vec::new()).store(dir.path()).unwrap();
    let said_in = |name: &str| {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", name, "timeout", "2", PROGRAM]);
        said(command, "storage", dir.path())
    };
    let refused = "is beyond loopback";
    assert!(said_in(office).contains(refused));
    // It may, if there is such an address.
    let may = said_in(own);
    assert!(!may.contains(refused), "{may}");
    assert!(ip(&format!(
        "-n {own} link add eth1 type veth peer name eth2"
    )));
    assert!(said_in(own).contains(refused));
}
