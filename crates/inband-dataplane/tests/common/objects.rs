//! Programs by name.
#![allow(dead_code, missing_docs)]

/// A program of the ground or of any system.
pub fn object(name: &str) -> &'static [u8] {
    let all = [
        inband_ground::objects::ALL,
        inband_paxos::dataplane::objects::ALL,
        inband_flair::dataplane::objects::ALL,
        inband_falcon::dataplane::objects::ALL,
    ];
    let mut all = all.into_iter().flatten();
    let found = all.find(|(known, _)| *known == name);
    found.unwrap_or_else(|| panic!("no program {name}")).1
}
