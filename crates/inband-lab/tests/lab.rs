//! Packets between hosts through the switch, with and without faults. Needs root.

mod common;

use std::cell::Cell;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::process::Command;
use std::time::{Duration, Instant};

use common::*;
use inband_lab::{DropRule, Lab, LinkFaults};

fn address(lab: &Lab, host: &str) -> SocketAddr {
    (lab.host(host).expect("host").address(), PORT).into()
}

/// Both directions, small and full frames.
fn udp_works(lab: &Lab) {
    let (a, b) = (udp(lab, "a"), udp(lab, "b"));
    let mut bytes = [0; 2048];
    for size in [1, 64, 1472] {
        a.send_to(&vec![7; size], address(lab, "b")).expect("send");
        let (length, from) = b
            .recv_from(&mut bytes)
            .expect("datagram through the switch");
        assert_eq!((length, from), (size, address(lab, "a")));
        b.send_to(&bytes[..length], from).expect("send back");
        assert_eq!(a.recv(&mut bytes).expect("the way back"), size);
    }
}

fn tcp_works(lab: &Lab) {
    const BYTES: usize = 4 << 20;
    let (mut client, mut server) = tcp_pair(lab, "a", "b");
    let sender = std::thread::spawn(move || {
        let block: Vec<u8> = (0..BYTES).map(|i| (i % 251) as u8).collect();
        client.write_all(&block).expect("write");
    });
    let mut got = Vec::new();
    server.set_read_timeout(Some(TIMEOUT)).expect("timeout");
    server.read_to_end(&mut got).expect("everything arrives");
    sender.join().expect("sender");
    assert_eq!(got.len(), BYTES);
    assert!(
        got.iter().enumerate().all(|(i, &b)| b == (i % 251) as u8),
        "bytes are intact"
    );
}

#[test]
fn udp_and_tcp_pass_whatever_hosts_have_attached() {
    if !privileged() {
        return;
    }
    let started = Instant::now();
    let lab = lab("pass", &["a", "b", "c"]);
    println!("lab of 3 hosts up in {:?}", started.elapsed());
    udp_works(&lab);
    tcp_works(&lab);
    let one = lab
        .host("a")
        .expect("a")
        .attach_pass()
        .expect("XDP_PASS on a");
    udp_works(&lab);
    tcp_works(&lab);
    let other = lab
        .host("b")
        .expect("b")
        .attach_pass()
        .expect("XDP_PASS on b");
    udp_works(&lab);
    tcp_works(&lab);
    drop((one, other));
    udp_works(&lab);
    let counters = lab.counters("a").expect("counters");
    assert!(
        counters.from_host > 0 && counters.to_host > 0 && counters.lost == 0,
        "{counters:?}"
    );
}

#[test]
fn a_lab_of_eight_hosts_is_up_quickly() {
    if !privileged() {
        return;
    }
    let is_quick = |_| {
        let started = Instant::now();
        let lab = lab("quick", &["a", "b", "c", "d", "e", "f", "g", "h"]);
        let took = started.elapsed();
        println!("lab of 8 hosts up in {took:?}");
        udp_works(&lab);
        let started = Instant::now();
        drop(lab);
        println!("and down in {:?}", started.elapsed());
        took < Duration::from_secs(3)
    };
    // A stall of the machine spoils a trial, but not each of them.
    assert!((0..4).any(is_quick));
}

#[test]
fn random_loss_loses_about_as_many_as_asked() {
    if !privileged() {
        return;
    }
    const SENT: u32 = 4000;
    let lab = lab("loss", &["a", "b"]);
    let (a, b) = (udp(&lab, "a"), udp(&lab, "b"));
    a.send_to(&message(1, 0), address(&lab, "b"))
        .expect("resolve the neighbour first");
    b.recv(&mut [0; 64]).expect("first");
    lab.set_link(
        "a",
        LinkFaults {
            loss_from_host_ppm: 100_000,
            ..LinkFaults::default()
        },
    )
    .expect("loss");
    let mut received = 0;
    for tag in 0..SENT {
        a.send_to(&message(1, tag), address(&lab, "b"))
            .expect("send");
        if tag % 100 == 99 {
            received += tags_until_silence(&b).len();
        }
    }
    let lost = lab.counters("a").expect("counters").lost;
    received += tags(&b, SENT as usize - lost as usize - received).len();
    assert_eq!(received as u64 + lost, u64::from(SENT));
    assert!(
        (250..=600).contains(&lost),
        "10% of {SENT} is 400, lost {lost}"
    );
    lab.heal().expect("heal");
    udp_like_before(&lab, &a, &b);
}

fn udp_like_before(lab: &Lab, a: &std::net::UdpSocket, b: &std::net::UdpSocket) {
    for tag in 0..50 {
        a.send_to(&message(1, tag), address(lab, "b"))
            .expect("send");
    }
    assert_eq!(tags(b, 50), (0..50).collect::<Vec<_>>());
}

#[test]
fn cuts_are_one_way_two_way_and_pairwise() {
    if !privileged() {
        return;
    }
    let lab = lab("cut", &["a", "b", "c"]);
    let (a, b, c) = (udp(&lab, "a"), udp(&lab, "b"), udp(&lab, "c"));
    let passes = |from: &std::net::UdpSocket, to: &std::net::UdpSocket, host: &str| {
        from.send_to(&message(1, 9), address(&lab, host))
            .expect("send");
        tags(to, 1) == [9]
    };
    let is_cut = |from: &std::net::UdpSocket, to: &std::net::UdpSocket, host: &str| {
        from.send_to(&message(1, 9), address(&lab, host))
            .expect("send");
        tags_until_silence(to).is_empty()
    };
    // The first exchange with a neighbour includes its ARP resolution.
    let sockets = [("a", &a), ("b", &b), ("c", &c)];
    for (from, sender) in sockets {
        for (to, receiver) in sockets.iter().filter(|(to, _)| *to != from) {
            let sent = sender.send_to(&message(1, 9), address(&lab, to));
            sent.expect("send");
            let received = receiver.recv(&mut [0; 64]);
            received.unwrap_or_else(|error| panic!("from {from} to {to}: {error}"));
        }
    }
    lab.cut_one_way("a", "b", true).expect("cut");
    assert!(is_cut(&a, &b, "b") && passes(&b, &a, "a") && passes(&a, &c, "c"));
    lab.cut_between("a", "b", true).expect("cut");
    assert!(is_cut(&a, &b, "b") && is_cut(&b, &a, "a") && passes(&c, &a, "a"));
    lab.cut_between("a", "b", false).expect("mend");
    assert!(passes(&a, &b, "b") && passes(&b, &a, "a"));

    lab.set_link(
        "a",
        LinkFaults {
            cut_to_host: true,
            ..LinkFaults::default()
        },
    )
    .expect("cut");
    assert!(passes(&a, &b, "b") && is_cut(&b, &a, "a"));
    lab.set_link("a", LinkFaults::cut()).expect("cut");
    assert!(is_cut(&a, &b, "b") && is_cut(&b, &a, "a") && passes(&b, &c, "c"));
    assert!(lab.counters("a").expect("counters").cut >= 3);
    lab.heal().expect("heal");
    assert!(passes(&a, &b, "b") && passes(&b, &a, "a"));
}

#[test]
fn a_held_link_releases_in_order() {
    if !privileged() {
        return;
    }
    let lab = lab("hold", &["a", "b", "c"]);
    let (a, b) = (udp(&lab, "a"), udp(&lab, "b"));
    udp_like_before(&lab, &a, &b);
    for round in 0..5 {
        lab.hold("b").expect("hold");
        for tag in 0..200 {
            a.send_to(&message(1, tag), address(&lab, "b"))
                .expect("send");
        }
        b.send_to(&message(1, 77), address(&lab, "a"))
            .expect("send");
        assert!(tags_until_silence(&b).is_empty(), "held, round {round}");
        assert!(
            tags_until_silence(&a).is_empty(),
            "what the host sends is held too"
        );
        lab.release("b").expect("release");
        assert_eq!(tags(&b, 200), (0..200).collect::<Vec<_>>(), "round {round}");
        assert_eq!(tags(&a, 1), [77]);
        // The direct path is used again.
        let before = lab.counters("a").expect("counters").queued;
        udp_like_before(&lab, &a, &b);
        assert_eq!(lab.counters("a").expect("counters").queued, before);
    }
    assert_eq!(lab.counters("b").expect("counters").overflowed, 0);
}

#[test]
fn neighbours_are_resolved_over_a_held_link_later() {
    if !privileged() {
        return;
    }
    let lab = lab("arp", &["a", "b", "c"]);
    let (a, b) = (udp(&lab, "a"), udp(&lab, "b"));
    lab.hold("b").expect("hold");
    a.send_to(&message(1, 5), address(&lab, "b")).expect("send");
    assert!(tags_until_silence(&b).is_empty());
    lab.release("b").expect("release");
    assert_eq!(tags(&b, 1), [5], "the broadcast had waited as well");
}

#[test]
fn nothing_overtakes_while_frames_flow_through_a_release() {
    if !privileged() {
        return;
    }
    const SENT: u32 = 3000;
    /// Frames that the kernel processes in one poll.
    const NAPI_BUDGET: u32 = 64;
    let lab = lab("flow", &["a", "b"]);
    let (a, b) = (udp(&lab, "a"), udp(&lab, "b"));
    udp_like_before(&lab, &a, &b);
    let to = address(&lab, "b");
    lab.hold("b").expect("hold");
    let tags = std::thread::scope(|scope| {
        scope.spawn(|| {
            for tag in 0..SENT {
                a.send_to(&message(1, tag), to).expect("send");
                std::thread::sleep(Duration::from_micros(20));
            }
        });
        // Received concurrently, or the socket's buffer overflows at the release.
        let receiver = scope.spawn(|| {
            let mut tags = Vec::new();
            let mut bytes = [0; 64];
            while tags.last() != Some(&(SENT - 1)) {
                b.recv(&mut bytes).expect("a frame");
                tags.push(tag_of(&bytes));
            }
            tags
        });
        std::thread::sleep(Duration::from_millis(50));
        lab.release("b").expect("release");
        receiver.join().expect("receiver")
    });
    assert_eq!(tags.len(), SENT as usize);
    let mut newest = 0;
    let mut overtaken = 0;
    for tag in tags {
        overtaken += u32::from(tag < newest);
        newest = newest.max(tag);
    }
    // Frames that are on two CPUs when the link becomes direct may be reordered, as on any NIC with several queues:
    // those that the kernel has polled but not delivered. Hundreds wait in the switch at that moment.
    assert!(
        overtaken <= NAPI_BUDGET,
        "{overtaken} frames were overtaken"
    );
}

#[test]
fn a_slow_link_delays_and_jitter_reorders() {
    if !privileged() {
        return;
    }
    let lab = lab("delay", &["a", "b"]);
    let (a, b) = (udp(&lab, "a"), udp(&lab, "b"));
    udp_like_before(&lab, &a, &b);
    lab.set_link("a", LinkFaults::delay(20_000, 0))
        .expect("delay");
    let sent = Instant::now();
    a.send_to(&message(1, 1), address(&lab, "b")).expect("send");
    let (length, from) = b.recv_from(&mut [0; 64]).expect("arrives");
    let there = sent.elapsed();
    b.send_to(&message(1, 2), from).expect("send back");
    a.recv(&mut [0; 64]).expect("arrives");
    let back = sent.elapsed();
    assert_eq!(length, 16);
    assert!(there >= Duration::from_millis(20), "{there:?}");
    assert!(back >= Duration::from_millis(40), "{back:?}");

    lab.set_link("a", LinkFaults::delay(5000, 5000))
        .expect("jitter");
    // A sender that gets little of the CPU sends packets further apart than jitter.
    let is_reordered = |_| {
        for tag in 0..100 {
            a.send_to(&message(1, tag), address(&lab, "b"))
                .expect("send");
        }
        let mut tags = tags(&b, 100);
        let is_reordered = !tags.is_sorted();
        tags.sort_unstable();
        assert_eq!(tags, (0..100).collect::<Vec<_>>(), "it loses nothing");
        is_reordered
    };
    assert!((0..10).any(is_reordered), "jitter reorders");
}

#[test]
fn a_drop_rule_loses_one_type_of_message_only() {
    if !privileged() {
        return;
    }
    const TYPE_LOST: u8 = 4;
    let lab = lab("rule", &["a", "b", "c"]);
    let (a, b, c) = (udp(&lab, "a"), udp(&lab, "b"), udp(&lab, "c"));
    let mut rule = DropRule {
        udp_port: PORT,
        message_type: TYPE_LOST,
        from_hosts: vec!["a".into()],
        to_hosts: Vec::new(),
    };
    let everything = |a: &std::net::UdpSocket, host: &str| {
        for tag in 0..10 {
            a.send_to(&message(tag as u8, tag), address(&lab, host))
                .expect("send");
        }
    };
    let without: Vec<u32> = (0..10).filter(|&t| t != u32::from(TYPE_LOST)).collect();
    let all: Vec<u32> = (0..10).collect();
    let id = lab.add_drop_rule(&rule).expect("rule");
    everything(&a, "b");
    assert_eq!(tags(&b, without.len()), without);
    everything(&c, "b");
    assert_eq!(tags(&b, all.len()), all, "from c nothing is lost");
    lab.remove_drop_rule(id).expect("remove");
    everything(&a, "b");
    assert_eq!(tags(&b, all.len()), all);

    rule.to_hosts = vec!["c".into()];
    rule.from_hosts.clear();
    lab.add_drop_rule(&rule).expect("rule");
    everything(&a, "b");
    assert_eq!(tags(&b, all.len()), all);
    everything(&a, "c");
    assert_eq!(tags(&c, without.len()), without);
    assert_eq!(lab.counters("a").expect("counters").ruled_out, 2);
    rule.udp_port = PORT + 1;
    lab.heal().expect("heal");
    lab.add_drop_rule(&rule).expect("rule");
    everything(&a, "c");
    assert_eq!(tags(&c, all.len()), all, "another port is not concerned");
}

#[test]
fn hosts_come_and_go() {
    if !common::privileged() {
        return;
    }
    let lab = common::lab("grow", &["a", "b"]);
    for turn in 0..3u8 {
        let address = Ipv4Addr::new(10, 77, 0, 10 + turn);
        lab.add_host("c", address).expect("a third host");
        lab.add_host("c", Ipv4Addr::new(10, 77, 0, 99))
            .expect_err("the name is taken");
        lab.add_host("d", address)
            .expect_err("the address is taken");
        let (mut client, mut server) = common::tcp_pair(&lab, "a", "c");
        client.write_all(b"there").expect("write");
        let mut got = [0; 5];
        server.read_exact(&mut got).expect("read");
        assert_eq!(&got, b"there");
        // Faults belong to the new host, not to the previous one at its port.
        lab.hold("c").expect("hold");
        client.write_all(b"later").expect("write");
        server
            .set_read_timeout(Some(common::SILENCE))
            .expect("timeout");
        server.read_exact(&mut got).expect_err("it is held");
        drop((client, server));
        lab.remove_host("c").expect("it goes");
        lab.host("c").expect_err("it is gone");
        lab.remove_host("c").expect_err("it is gone");
    }
    udp_works(&lab);
    // More often than there are ports.
    for turn in 0..70 {
        let name = format!("h{turn}");
        lab.add_host(&name, Ipv4Addr::new(10, 77, 1, turn))
            .expect("a free port");
        lab.remove_host(&name).expect("it goes");
    }
}

#[test]
fn two_labs_with_the_same_addresses_do_not_meet() {
    if !privileged() {
        return;
    }
    let (one, other) = (lab("one", &["a", "b"]), lab("other", &["a", "b"]));
    let (a, b) = (udp(&one, "a"), udp(&other, "b"));
    assert_eq!(address(&one, "b"), address(&other, "b"));
    a.send_to(&message(1, 1), address(&one, "b")).expect("send");
    assert!(tags_until_silence(&b).is_empty());
    drop((a, b));
    udp_works(&one);
}

#[test]
fn faults_of_hosts_reach_their_direct_links() {
    if !privileged() {
        return;
    }
    let lab = lab("joint", &["a", "b", "c"]);
    lab.join(("a", "to-b"), ("b", "to-a")).expect("a link");
    lab.join(("b", "to-c"), ("c", "to-b")).expect("a link");
    let bind = |host: &str, interface: &str, address: Ipv4Addr| {
        let host = lab.host(host).expect("host");
        let add = ["addr", "add", &format!("{address}/24"), "dev", interface];
        let added = in_host(&host, || Command::new("ip").args(add).status());
        assert!(added.success());
        in_host(&host, || UdpSocket::bind((address, PORT)))
    };
    let a = bind("a", "to-b", Ipv4Addr::new(10, 99, 0, 1));
    let b = bind("b", "to-a", Ipv4Addr::new(10, 99, 0, 2));
    let c = bind("c", "to-b", Ipv4Addr::new(10, 98, 0, 1));
    let from_b = bind("b", "to-c", Ipv4Addr::new(10, 98, 0, 2));
    let tag = Cell::new(0);
    let passes_within = |limit: Duration, from: &UdpSocket, to: &UdpSocket| {
        let to_address = to.local_addr().expect("its address");
        let until = Instant::now() + limit;
        // Packets of earlier calls may arrive late.
        tag.set(tag.get() + 1);
        while Instant::now() < until {
            let is_sent = from.send_to(&message(1, tag.get()), to_address).is_ok();
            if is_sent && tags_until_silence(to).contains(&tag.get()) {
                return true;
            }
        }
        false
    };
    // A link that comes up loses packets until the kernel has seen its carrier and resolved the neighbour, which may
    // take more than a second.
    let is_as_expected = |from: &UdpSocket, to: &UdpSocket, expected: bool| {
        let limit = if expected { TIMEOUT } else { 5 * SILENCE };
        passes_within(limit, from, to) == expected
    };
    let expect = |what: &str, of_a: bool, of_c: bool| {
        assert!(is_as_expected(&a, &b, of_a), "{what}: a to b is not {of_a}");
        assert!(is_as_expected(&b, &a, of_a), "{what}: b to a is not {of_a}");
        assert!(
            is_as_expected(&c, &from_b, of_c),
            "{what}: c to b is not {of_c}"
        );
    };
    expect("at first", true, true);
    lab.set_link("a", LinkFaults::loss(1)).expect("loss");
    expect("a loses packets", false, true);
    lab.set_link("b", LinkFaults::delay(1, 0)).expect("delay");
    expect("a and b have faults", false, false);
    lab.set_link("a", LinkFaults::default()).expect("healed");
    expect("b is slow", false, false);
    lab.heal().expect("healed");
    expect("healed", true, true);
    lab.cut_one_way("b", "c", true).expect("cut");
    expect("b is cut off from c", true, false);
    lab.hold("a").expect("held");
    expect("a is held, too", false, false);
    lab.cut_one_way("b", "c", false).expect("restored");
    expect("a is held", false, true);
    lab.release("a").expect("released");
    expect("released", true, true);
    lab.remove_host("c").expect("removed");
    lab.set_link("b", LinkFaults::cut()).expect("cut");
    assert!(is_as_expected(&a, &b, false), "b is cut");
}

#[test]
fn mistakes_are_explained() {
    if !privileged() {
        return;
    }
    let made = lab("wrong", &["a", "b"]);
    let error = made.hold("x").expect_err("no such host").to_string();
    assert_eq!(error, "no host \"x\" in the lab; there are a, b");
    let loss = LinkFaults::loss(1_000_001);
    assert!(made.set_link("a", loss).is_err());
    let spec = |hosts: &[&str]| inband_lab::LabSpec {
        name: format!("t{}-wrong", std::process::id()),
        hosts: hosts.iter().map(|&h| h.to_owned()).collect(),
        seed: 1,
    };
    let error = Lab::create(&spec(&["a"])).expect_err("in use").to_string();
    assert!(error.contains("is running already"), "{error}");
    drop(made);
    for hosts in [&["a/b", "a-b"][..], &["a b"], &[]] {
        Lab::create(&spec(hosts)).expect_err("bad layout");
    }
    Lab::create(&spec(&["a"])).expect("the name is free again");
}
