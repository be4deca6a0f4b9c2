//! Compiled programs by name, of the systems that are tested side by side here.
#![allow(missing_docs)]

type Objects = &'static [(&'static str, &'static [u8])];

const OF_SYSTEMS: [Objects; 3] = [
    inband_paxos::dataplane::objects::ALL,
    inband_flair::dataplane::objects::ALL,
    inband_falcon::dataplane::objects::ALL,
];

/// The first program with this name.
pub fn object(name: &str) -> &'static [u8] {
    let mut all = OF_SYSTEMS.into_iter().flatten();
    let found = all.find(|(known, _)| *known == name);
    found.unwrap_or_else(|| panic!("no program {name}")).1
}
