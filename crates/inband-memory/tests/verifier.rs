//! How many instructions this machine's kernel walks to verify the programs, in every mode: at most a third of its
//! limit, since every kernel version counts differently (protocol.md, 15).
#![allow(missing_docs)]

use crate::common::{kernel_is_there, switch_spec, HERE, SERVER_NODE};
use inband_ground::auth::{Keys, Secret};
use inband_ground::xdp::XdpMode;
use inband_memory::soft_switch::SwitchSpec;
use inband_memory::xdp;

const VERIFIED_INSNS_MAX: u32 = 1_000_000 / 3;

#[test]
fn the_verifier_walks_a_third_of_its_limit_at_most() {
    if !kernel_is_there() {
        return;
    }
    let keys = Keys::new(1, &[(1, Secret([7; 16]))]).unwrap();
    let mut walked = Vec::new();
    for mode in [XdpMode::Native, XdpMode::Generic] {
        for keys in [None, Some(keys)] {
            let with = format!("{mode:?}, keys {}", keys.is_some());
            for servers in [1, 3, 7] {
                let switch = SwitchSpec {
                    servers,
                    ..switch_spec()
                };
                let spec = xdp::switch::Spec {
                    switch,
                    address: HERE,
                    mode,
                    keys,
                };
                let program = spec.load().unwrap();
                let what = format!("switch of {servers}, {with}");
                walked.push((what, program.verified_insns().unwrap()));
            }
            let spec = xdp::server::Spec {
                node: SERVER_NODE,
                chunks: 1 << 16,
                address: HERE,
                mode,
                keys,
            };
            let program = spec.load().unwrap();
            walked.push((format!("server, {with}"), program.verified_insns().unwrap()));
        }
    }
    for (what, insns) in walked {
        eprintln!("{what}: {insns}");
        assert!(
            (1..=VERIFIED_INSNS_MAX).contains(&insns),
            "{what}: {insns} instructions walked, {VERIFIED_INSNS_MAX} are allowed"
        );
    }
}
