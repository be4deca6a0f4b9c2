//! Numbers that no correct peer sends and no intact disk holds. Found by the fuzzer (targets `host` and `records`).

use inband_ground::auth::Digest;
use inband_paxos::dataplane::soft::{Geometry, Roles};
use inband_paxos::dataplane::wire::{emit, flag, Header, Type, VALUE_LEN_MAX_BYTES};
use inband_paxos::host::{Host, HostConfig, LogStart};
use inband_paxos::journal::Restored;
use inband_paxos::outbox::Outbox;
use inband_paxos::timing::Timing;

const GEOMETRY: Geometry = Geometry {
    partitions: 2,
    ring_slots: 64,
};

fn replica() -> Host {
    let start = LogStart {
        first_instance: 1,
        applied: 0,
    };
    let config = HostConfig {
        node: 1,
        epoch: 1,
        logs: vec![start; 2],
        acceptors: vec![2, 3, 4],
        replicas: vec![1, 2],
        leaders: vec![vec![2]; 2],
        soft_roles: Roles::default(),
        kernel_roles: Roles::default(),
        geometry: GEOMETRY,
        timing: Timing::default(),
        log_values_max: 128,
        packet_len_max_bytes: inband_paxos::dataplane::wire::PACKET_LEN_MAX_BYTES,
        incarnation: 1,
        voting: false,
        digest: Digest::PLAIN,
    };
    Host::new(1, config)
}

fn packet(kind: Type, set: impl FnOnce(&mut Header), value: &[u8]) -> Vec<u8> {
    let mut header = Header::new(kind, 2, 1);
    header.digest = Digest::PLAIN.of(value);
    set(&mut header);
    let mut packet = Vec::new();
    emit(&header, value, &mut packet);
    packet
}

#[test]
fn a_packet_about_an_instance_that_cannot_be_is_refused() {
    let far = [u64::MAX, u64::MAX - 1, 1 << 62];
    for far in far {
        let alive_of_the_second_log = [far.to_be_bytes(), [0; 8]].concat();
        let packets = [
            packet(
                Type::Phase2B,
                |h| (h.instance, h.flags) = (far, flag::REPEAT),
                b"v",
            ),
            packet(Type::Reply, |h| h.instance = far, b"v"),
            packet(
                Type::Learn,
                |h| (h.instance, h.flags) = (far, flag::PEER),
                b"",
            ),
            packet(
                Type::Nack,
                |h| (h.floor, h.flags) = (far, flag::BELOW_FLOOR),
                b"",
            ),
            packet(Type::Alive, |h| (h.instance, h.client_seq) = (far, 1), b""),
            packet(Type::Alive, |h| h.client_seq = 2, &alive_of_the_second_log),
        ];
        let (mut host, mut out) = (replica(), Outbox::new());
        for (number, packet) in packets.iter().enumerate() {
            host.on_packet(2, packet, &mut out);
            assert_eq!(
                host.bad_packets(),
                number as u64 + 1,
                "packet {number}, {far}"
            );
        }
        // No host waits for it.
        out.clear();
        for now in 1..200 {
            host.on_tick(now * 10_000, &mut out);
        }
        let asks = out.iter().any(|(_, packet)| packet[5] == Type::Learn as u8);
        assert!(!asks, "{far}");
    }
}

#[test]
fn a_packet_in_a_round_that_cannot_be_is_refused() {
    let far = 1 << 63;
    let alive_of_the_second_log = [[0; 8], u64::to_be_bytes(far)].concat();
    let packets = [
        packet(Type::Nack, |h| h.round = far, b""),
        packet(Type::Phase1B, |h| h.round = far, b""),
        packet(Type::Alive, |h| (h.round, h.client_seq) = (far, 1), b""),
        packet(Type::Alive, |h| h.client_seq = 2, &alive_of_the_second_log),
    ];
    let (mut host, mut out) = (replica(), Outbox::new());
    for (number, packet) in packets.iter().enumerate() {
        host.on_packet(2, packet, &mut out);
        assert_eq!(host.bad_packets(), number as u64 + 1, "packet {number}");
    }
}

fn partition_record(floor: u64) -> Vec<u8> {
    let words = [3u64, 100, floor, floor].map(u64::to_le_bytes).concat();
    [&[1, 0, 0][..], &words, &[1]].concat()
}

fn slot_record(instance: u64, value_len_bytes: usize) -> Vec<u8> {
    let words = [instance, 100, 100, 1, 2, 3, 4]
        .map(u64::to_le_bytes)
        .concat();
    [&[2, 0, 0][..], &words, &[0, 0], &vec![7; value_len_bytes]].concat()
}

#[test]
fn a_floor_at_the_end_of_all_numbers_is_restored() {
    let mut restored = Restored::default();
    for record in [partition_record(u64::MAX - 3), slot_record(u64::MAX - 1, 5)] {
        restored.replay(&record).expect("a record");
    }
    assert_eq!(restored.check(GEOMETRY), Ok(()));
}

#[test]
fn a_record_of_a_value_that_fits_no_slot_is_none() {
    let mut restored = Restored::default();
    assert!(restored
        .replay(&slot_record(1, VALUE_LEN_MAX_BYTES))
        .is_some());
    assert!(restored
        .replay(&slot_record(1, VALUE_LEN_MAX_BYTES + 1))
        .is_none());
}
