//! The packet vectors of switch and server, through the native roles and, as real frames, through the kernel's programs.
#![allow(missing_docs)]

use std::net::SocketAddrV4;

use crate::common::{
    self, buffer_of, in_the_kernel, kernel_is_there, leaves, server_cases, switch_cases,
    switch_spec, with_and_without_keys, Role, CHUNKS, EPOCH, HERE, SERVER_NODE, SESSION, THERE,
};
use inband_ground::auth::Gate;
use inband_ground::xdp::XdpMode;
use inband_ground::System as _;
use inband_memory::soft_server::SoftServer;
use inband_memory::soft_switch::{SoftSwitch, Verdict};
use inband_memory::wire::{self, Header};
use inband_memory::{xdp, Memory, SPACES};
use inband_testing::vector;

fn gate() -> Gate {
    Gate::of::<Memory>(None, SPACES)
}

#[test]
fn every_vector_of_the_switch_runs_natively() {
    for case in switch_cases() {
        let switch = SoftSwitch::new(&switch_spec());
        let mut handle = |packet: &[u8]| {
            let mut buffer = buffer_of(packet);
            let handled = switch.handle(&mut buffer, packet.len(), THERE);
            leaves(handled, &buffer, &gate())
        };
        let mut role = Role {
            handle: &mut handle,
            counters: &|| switch.counters(),
        };
        role.run_switch(&case, switch.registers(), None);
    }
}

#[test]
fn every_vector_of_the_server_runs_natively() {
    for case in server_cases() {
        let server = SoftServer::new(SERVER_NODE, CHUNKS as usize);
        let mut handle = |packet: &[u8]| {
            let mut buffer = buffer_of(packet);
            let handled = server.handle(&mut buffer, packet.len());
            leaves(handled, &buffer, &gate())
        };
        let mut role = Role {
            handle: &mut handle,
            counters: &|| server.counters(),
        };
        role.run_server(&case, server.registers(), None);
    }
}

#[test]
fn every_vector_of_the_switch_runs_in_the_kernel() {
    if !kernel_is_there() {
        return;
    }
    for keys in with_and_without_keys() {
        for case in switch_cases() {
            let program = xdp::switch::Spec {
                switch: switch_spec(),
                address: HERE,
                mode: XdpMode::Native,
                keys,
            }
            .load()
            .unwrap();
            let mut handle =
                |packet: &[u8]| in_the_kernel(packet, |frame| program.run(frame, 1).unwrap());
            let mut role = Role {
                handle: &mut handle,
                counters: &|| program.counters().unwrap(),
            };
            role.run_switch(&case, program.registers(), keys);
        }
    }
}

#[test]
fn every_vector_of_the_server_runs_in_the_kernel() {
    if !kernel_is_there() {
        return;
    }
    for keys in with_and_without_keys() {
        for case in server_cases() {
            let program = xdp::server::Spec {
                node: SERVER_NODE,
                chunks: CHUNKS as usize,
                address: HERE,
                mode: XdpMode::Native,
                keys,
            }
            .load()
            .unwrap();
            let mut handle =
                |packet: &[u8]| in_the_kernel(packet, |frame| program.run(frame, 1).unwrap());
            let mut role = Role {
                handle: &mut handle,
                counters: &|| program.counters().unwrap(),
            };
            role.run_server(&case, program.registers(), keys);
        }
    }
}

#[test]
fn every_reason_has_a_vector() {
    vector::reasons_are_known::<Memory>("memory");
    let shown = common::reasons_shown();
    let own = Memory::reasons().filter(|name| name.starts_with("memory_"));
    let missing: Vec<_> = own.filter(|name| !shown.contains(*name)).collect();
    assert!(missing.is_empty(), "no vector shows {missing:?}");
}

/// A request retransmitted by another host must not divert the answer.
#[test]
fn the_answer_goes_to_where_the_request_came_from_first() {
    let switch = SoftSwitch::new(&switch_spec());
    switch.registers().set_epoch(EPOCH);
    switch.registers().open_session(1, SESSION, 4, 4);
    let gate = gate();
    let other = SocketAddrV4::new([10, 1, 1, 1].into(), 99);
    let request = Header {
        kind: wire::READ_REQUEST,
        session: SESSION,
        request: 1,
        lines: 1,
        ..Header::default()
    };
    let mut answer = None;
    for from in [THERE, other] {
        let mut buffer = buffer_of(&common::packet(&request, &[], &gate));
        let handled = switch.handle(&mut buffer, 96, from);
        assert_eq!(handled.verdict, Verdict::ToServers);
        answer = Some(wire::parse(&buffer[..handled.len_bytes]).unwrap().0);
    }
    let verdicts = [1, 2].map(|node| {
        let answer = Header {
            kind: wire::READ_ANSWER,
            node,
            ..answer.unwrap()
        };
        let packet = common::packet(&answer, &[0; 72], &gate);
        let handled = switch.handle(&mut buffer_of(&packet), packet.len(), HERE);
        handled.verdict
    });
    assert_eq!(verdicts, [Verdict::Drop, Verdict::ToClient(THERE)]);
}
