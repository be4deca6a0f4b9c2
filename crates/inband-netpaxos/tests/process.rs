//! Tests of the processes' options and files.
#![allow(missing_docs)]

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::process::Command;

use inband_netpaxos::cluster::Cluster;

/// Another machine's address (RFC 5737).
const ELSEWHERE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);

/// A cluster's file that was copied from a machine with namespaces says nothing about this one.
#[test]
fn nothing_listens_beyond_loopback_without_a_key_because_of_the_clients_address() {
    let dir = tempfile::tempdir().unwrap();
    let addresses = |port: u16| -> Vec<SocketAddrV4> {
        let ports = port..port + 4;
        ports
            .map(|port| SocketAddrV4::new(ELSEWHERE, port))
            .collect()
    };
    let cluster = |namespace: &str, resp: Vec<_>| Cluster {
        serializers: addresses(7000),
        minions: addresses(7010),
        storages: addresses(7020),
        learners: addresses(7030),
        key_file: None,
        client: Some((ELSEWHERE, namespace.into())),
        resp,
        sockets: BTreeMap::new(),
    };
    for namespace in ["/run/netns/there-is-none", "/proc/self/ns/net"] {
        cluster(namespace, Vec::new()).store(dir.path()).unwrap();
        for kind in ["serializer", "minion", "storage", "learner"] {
            let output = Command::new(env!("CARGO_BIN_EXE_inband-netpaxos"))
                .args([kind, "--number=1", "--cluster"])
                .arg(dir.path())
                .arg("--data")
                .arg(dir.path().join(kind))
                .output()
                .unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(said.contains("is beyond loopback"), "{kind}: {said}");
        }
    }
}
