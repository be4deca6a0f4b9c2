//! Checks whether an interface sends what XDP sends, and what is counted if it does not.

use crate::common;
use std::net::Ipv4Addr;
use std::thread;
use std::time::{Duration, Instant};

use crate::common::net::{address, Net, PORT, TIMEOUT};
use inband_ground::xdp::lost::Lost;
use inband_ground::xdp::{sends, Proof, XdpError, XdpMode};
use inband_paxos::dataplane::soft::{Geometry, Roles};
use inband_paxos::dataplane::wire::{emit, Header, Type};
use inband_paxos::dataplane::xdp::{Peer, XdpHost, XdpSpec};

fn on_1(net: &Net, mode: XdpMode, peers: &[Ipv4Addr]) -> Result<Proof, XdpError> {
    net.on(1, || sends("eth0", mode, *address(1).ip(), peers))
}

#[test]
fn a_neighbour_answers_what_xdp_sends() {
    let net = Net::new();
    let peers = [*address(2).ip()];
    for mode in [XdpMode::Native, XdpMode::Generic] {
        assert_eq!(on_1(&net, mode, &peers).unwrap(), Proof::Sent, "{mode}");
    }
    // If no neighbour answers, there is neither a proof nor an error.
    let absent = [Ipv4Addr::new(10, 77, 0, 99)];
    let proof = on_1(&net, XdpMode::Native, &absent).unwrap();
    assert_eq!(proof, Proof::NobodyAnswers);
}

#[test]
fn an_interface_that_loses_what_xdp_sends_is_found_out() {
    let mut net = Net::new();
    net.lose_what_xdp_sends();
    let peers = [*address(2).ip()];
    let error = on_1(&net, XdpMode::Native, &peers).unwrap_err();
    assert!(matches!(error, XdpError::Loses { .. }), "{error}");
    assert!(error.to_string().contains("redirected on CPU"), "{error}");
    assert!(error.is_lasting());
    // In generic mode, sending does not depend on it.
    assert_eq!(on_1(&net, XdpMode::Generic, &peers).unwrap(), Proof::Sent);
}

/// Loads a leader at host 1 with two acceptors, and sends it a request.
fn lead(net: &Net, roles: Roles) -> XdpHost {
    let peer = |n: usize| Peer {
        node: n as u8,
        address: address(n),
        local: false,
    };
    let spec = XdpSpec {
        node: 1,
        roles,
        geometry: Geometry {
            partitions: 1,
            ring_slots: 64,
        },
        address: address(1),
        interface: "eth0".into(),
        mode: XdpMode::Native,
        acceptors: vec![peer(2), peer(3)],
        learners: vec![],
        ring_buffer_bytes: 64 * 1024,
        loopback: true,
        keys: None,
    };
    let mut host = net.on(1, || XdpHost::load(spec)).unwrap();
    let end = Instant::now() + TIMEOUT;
    while !host.refresh_neighbours().unwrap().is_empty() {
        assert!(Instant::now() < end);
        thread::sleep(Duration::from_millis(20));
    }
    host
}

fn wait_for(host: &XdpHost, counter: &str, count: u64) {
    let end = Instant::now() + TIMEOUT;
    loop {
        let counters = host.counters().unwrap();
        if counters.get(counter) == Some(&count) {
            return;
        }
        assert!(Instant::now() < end, "{counter}: {counters:?}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Addresses chosen by the kernel would be replaced by udev's policy `persistent`, and answers of the roles to their
/// own host would be dropped. udev also sets `rp_filter` again according to the machine's configuration.
#[test]
fn the_pair_to_own_roles_has_addresses_that_stay() {
    let net = Net::new();
    let leader = Roles {
        leader: true,
        ..Roles::default()
    };
    let mut host = lead(&net, leader);
    let links = net.on(1, || {
        let output = std::process::Command::new("ip")
            .args(["-o", "link", "show"])
            .output();
        String::from_utf8(output.unwrap().stdout).unwrap()
    });
    for mac in ["02:69:62:00:00:01", "02:69:62:00:01:01"] {
        assert!(links.contains(mac), "{mac}: {links}");
    }
    let filter = "/proc/sys/net/ipv4/conf/ib1-loop0/rp_filter";
    net.on(1, || {
        std::fs::write(filter, "2").unwrap();
        host.refresh_neighbours().unwrap();
        assert_eq!(std::fs::read_to_string(filter).unwrap().trim(), "0");
    });
}

#[test]
fn what_does_not_leave_is_counted() {
    let mut net = Net::new();
    let leader = Roles {
        leader: true,
        ..Roles::default()
    };
    // Hosts share the programs that count; the first one may end.
    let first = net.on(5, || Lost::count(&[1]).unwrap());
    let host = lead(&net, leader);
    drop(first);
    // Another host on this machine, whose interface has the same number.
    let other = net
        .on(4, || {
            XdpHost::load(XdpSpec {
                node: 4,
                address: address(4),
                ..host.spec().clone()
            })
        })
        .unwrap();
    let view = inband_paxos::dataplane::registers::LeaderView {
        round: inband_paxos::dataplane::round::round(1, 1, 1).unwrap(),
        next: 1,
        floor: 1,
        epoch: 3,
    };
    host.registers().leader.activate(0, view);
    let request = |seq| {
        let mut header = Header::new(Type::Request, 99, 3);
        header.client_id = 7;
        header.client_seq = seq;
        header.digest = inband_paxos::dataplane::wire::digest(b"x");
        let mut packet = Vec::new();
        emit(&header, b"x", &mut packet);
        common::tag(&mut packet);
        packet
    };
    let client = net.socket(5, PORT);
    client.send_to(&request(1), address(1)).unwrap();
    let end = Instant::now() + TIMEOUT;
    while host.registers().leader.leader(0).next < 2 {
        assert!(Instant::now() < end, "{:?}", host.counters());
        thread::sleep(Duration::from_millis(5));
    }
    assert!(!host
        .counters()
        .unwrap()
        .keys()
        .any(|name| name.ends_with("_lost")));
    // Both copies are lost if the cable is cut.
    net.cable(1, "down");
    host.send_local(&request(2)).unwrap();
    wait_for(&host, "xdp_copies_lost", 2);
    // An answer to the sender is lost: that of a host that does not lead.
    net.cable(1, "up");
    net.lose_what_xdp_sends();
    host.registers().leader.deactivate(0);
    client.send_to(&request(3), address(1)).unwrap();
    wait_for(&host, "xdp_transmits_lost", 1);
    assert_eq!(host.counters().unwrap()["xdp_copies_lost"], 2);
    let others = other.counters().unwrap();
    assert!(
        !others.keys().any(|name| name.ends_with("_lost")),
        "{others:?}"
    );
}
