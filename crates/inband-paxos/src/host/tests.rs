use super::*;
use crate::dataplane::soft::{Geometry, Roles};
use crate::dataplane::wire::{self, flag, Header, Type, PACKET_LEN_MAX_BYTES};
use crate::partition::process_id;
use crate::timing::Timing;
use inband_ground::auth::Digest;
use inband_ground::auth::Secret;

const DIGEST_KEY: Secret = Secret([9; 16]);

/// Acceptor and replica; its peers are 1 and 3.
fn host() -> Host {
    let all = vec![1, 2, 3];
    let config = HostConfig {
        node: 2,
        epoch: 1,
        logs: vec![LogStart {
            first_instance: 1,
            applied: 0,
        }],
        acceptors: all.clone(),
        replicas: all.clone(),
        leaders: vec![all],
        soft_roles: Roles {
            leader: false,
            acceptor: true,
            quorum: true,
        },
        kernel_roles: Roles::default(),
        geometry: Geometry {
            partitions: 1,
            ring_slots: 64,
        },
        timing: Timing::default(),
        log_values_max: 1,
        packet_len_max_bytes: PACKET_LEN_MAX_BYTES,
        incarnation: 1,
        digest: Digest::keyed(DIGEST_KEY),
        voting: true,
    };
    Host::new(0, config)
}

fn receive(host: &mut Host, header: &Header, value: &[u8]) {
    let mut packet = Vec::new();
    wire::emit(header, value, &mut packet);
    if host.admits(&packet) {
        host.on_packet(1, &packet, &mut Outbox::new());
    }
}

#[test]
fn an_acceptor_in_user_space_votes_for_no_value_that_nobody_could_read() {
    let mut host = host();
    let mut header = Header::new(Type::Phase2A, 1, 1);
    (header.instance, header.round) = (1, 257);
    // Changed on the way, or sent without the digest key.
    for digest in [
        Digest::keyed(DIGEST_KEY).of(b"other"),
        wire::digest(b"value"),
    ] {
        header.digest = digest;
        receive(&mut host, &header, b"value");
    }
    let voted = |host: &Host| {
        host.switch()
            .unwrap()
            .registers()
            .ring
            .slot(1)
            .unwrap()
            .vround
    };
    assert_eq!((voted(&host), host.bad_packets()), (0, 2));
    header.digest = Digest::keyed(DIGEST_KEY).of(b"value");
    receive(&mut host, &header, b"value");
    assert_eq!((voted(&host), host.bad_packets()), (257, 2));
}

/// In the kernel's ring since before this host entered its epoch: the epoch may decide that instance differently.
#[test]
fn what_was_decided_in_another_epoch_is_not_delivered() {
    let mut host = host();
    let mut delivered = |epoch| {
        let mut header = Header::new(Type::Phase2B, 1, epoch);
        (header.instance, header.round) = (1, 257);
        header.digest = Digest::keyed(DIGEST_KEY).of(b"value");
        let (mut packet, mut bursts) = (Vec::new(), [Burst::default()]);
        wire::emit(&header, b"value", &mut packet);
        host.on_decided(1, &packet, &mut Outbox::new());
        host.take_bursts(&mut bursts);
        let count = bursts[0].decided().len();
        count
    };
    assert_eq!((delivered(2), delivered(1)), (0, 1));
}

#[test]
fn before_the_cluster_is_founded_a_read_is_told_so() {
    let mut config = host().config().clone();
    (config.epoch, config.acceptors, config.replicas) = (0, vec![], vec![]);
    let mut host = Host::new(0, config);
    let ticket = host.confirm_read(1, 0);
    let mut bursts = [Burst::default()];
    host.take_bursts(&mut bursts);
    let [(failed, why)] = bursts[0].reads_failed[..] else {
        panic!("{:?}", bursts[0].reads_failed);
    };
    assert_eq!(failed, ticket);
    assert!(
        why.to_string()
            .contains("founded once all its controllers are up"),
        "{why}"
    );
}

#[test]
fn a_log_that_is_paused_delivers_afterwards_what_came_meanwhile() {
    let mut host = host();
    let mut out = Outbox::new();
    let mut delivered = |host: &mut Host, instance| {
        let mut header = Header::new(Type::Phase2B, 1, 1);
        (header.instance, header.round) = (instance, 257);
        header.digest = Digest::keyed(DIGEST_KEY).of(b"value");
        let (mut packet, mut bursts) = (Vec::new(), [Burst::default()]);
        wire::emit(&header, b"value", &mut packet);
        host.on_decided(1, &packet, &mut out);
        host.take_bursts(&mut bursts);
        let count = bursts[0].decided().len();
        count
    };
    assert_eq!(delivered(&mut host, 1), 1);
    host.pause(1, 0, true, &mut Outbox::new());
    assert_eq!(delivered(&mut host, 2), 0);
    assert_eq!(delivered(&mut host, 3), 0);
    // It has no hole: the next instance is there.
    let learner = host.partition(0).learner().expect("a replica");
    assert_eq!((learner.due(), learner.next()), (Micros::MAX, 2));
    assert_eq!(learner.decided(), 3, "its leader need not take over");
    assert!(learner.is_paused());
    host.pause(1, 0, false, &mut Outbox::new());
    assert_eq!(delivered(&mut host, 4), 3);
}

/// What the operator is told about a stuck log.
#[test]
fn acceptors_with_a_value_that_nobody_can_read_are_named() {
    let mut host = host();
    for node in [1, 3, 1] {
        let mut header = Header::new(Type::Phase2B, node, 1);
        header.flags = flag::REPEAT;
        (header.instance, header.round) = (1, 257);
        header.digest = Digest::keyed(DIGEST_KEY).of(b"value");
        receive(&mut host, &header, b"other");
    }
    let unreadable_at = |host: &Host| {
        let learner = host.partition(0).learner().expect("a replica");
        learner.unreadable_at().to_vec()
    };
    assert_eq!(unreadable_at(&host), [1, 3]);
    let mut reply = Header::new(Type::Reply, 1, 1);
    (reply.instance, reply.round) = (1, 257);
    reply.digest = Digest::keyed(DIGEST_KEY).of(b"value");
    receive(&mut host, &reply, b"value");
    assert!(unreadable_at(&host).is_empty(), "another replica had it");
}

#[test]
fn a_question_to_a_replicas_log_is_answered_once_and_to_whom_it_names() {
    let mut host = host();
    let mut reply = Header::new(Type::Reply, 1, 1);
    (reply.instance, reply.round) = (1, 257);
    reply.digest = Digest::keyed(DIGEST_KEY).of(b"value");
    receive(&mut host, &reply, b"value");
    let ask = |host: &mut Host, incarnation, number| {
        let mut header = Header::new(Type::Learn, 3, 1);
        header.flags = flag::PEER;
        (header.instance, header.client_seq) = (1, 128);
        header.client_id = process_id(3, incarnation);
        header.client_low = number;
        let (mut packet, mut out) = (Vec::new(), Outbox::new());
        wire::emit(&header, &[], &mut packet);
        host.on_packet(1, &packet, &mut out);
        out.iter().map(|(dest, _)| dest).collect::<Vec<Dest>>()
    };
    let to_the_asker = vec![Dest::Node(3)];
    assert_eq!(ask(&mut host, 4, 1), to_the_asker, "wherever it came from");
    assert_eq!(ask(&mut host, 4, 1), [], "sent again");
    assert_eq!(ask(&mut host, 4, 3), to_the_asker);
    assert_eq!(ask(&mut host, 4, 2), [], "overtaken");
    assert_eq!(ask(&mut host, 3, 9), [], "of the process before");
    assert_eq!(ask(&mut host, 5, 1), to_the_asker, "of the next process");
}

#[test]
fn an_alive_that_was_changed_repeated_or_overtaken_says_nothing() {
    let mut host = host();
    let held = |host: &Host| host.partition(0).trim().peers().get(&1).copied();
    let alive = |incarnation, number, applied| {
        let mut header = Header::new(Type::Alive, 1, 1);
        header.client_id = process_id(1, incarnation);
        header.client_seq = number;
        header.instance = applied;
        header
    };
    receive(&mut host, &alive(4, 1, 7), b"");
    assert_eq!((held(&host), host.bad_packets()), (None, 1), "no digest");
    let right = |mut header: Header| {
        header.digest = Digest::keyed(DIGEST_KEY).of(b"");
        header
    };
    let said = |host: &mut Host, incarnation, number, applied| {
        receive(host, &right(alive(incarnation, number, applied)), b"");
        held(host)
    };
    assert_eq!(said(&mut host, 4, 2, 7), Some(7));
    // No host sends any of these twice, so the result shows whether each is accepted.
    assert_eq!(said(&mut host, 4, 2, 8), Some(7), "repeated");
    assert_eq!(said(&mut host, 4, 1, 8), Some(7), "overtaken");
    assert_eq!(said(&mut host, 3, 9, 8), Some(7), "of the process before");
    assert_eq!(said(&mut host, 4, 3, 9), Some(9));
    assert_eq!(said(&mut host, 5, 1, 10), Some(10), "of the next process");
}
