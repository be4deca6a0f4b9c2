//! Every program that a host may load, and the modes in which it may be loaded: with or without keys, natively or in
//! generic mode, and with the settings of `modes/NAME.toml`:
//!
//! ```toml
//! partitions_max = 64              # by default IB_PARTITIONS_MAX
//!
//! [every]                          # the system's own settings (section .rodata.own), by the names in its struct,
//! incarnation = 5
//! [sizes]                          # ... and in each size, which the verifier treats as constants
//! smallest = { groups = 1 }
//! default = { groups = "IB_FLAIR_GROUPS" }
//! largest = { groups = "IB_FLAIR_GROUPS_MAX" }
//! [variants.fifo]                  # ... and in each variant: `every` and the sizes, as above
//! every = { policy = 0 }
//! [other_sizes]                    # checked only natively and with keys, of these programs
//! programs = ["leader"]
//! sizes.ring_128.ring_slots = 128
//! [only]                           # programs that are loaded in fewer modes
//! copies = ["native"]
//! ```
//!
//! A value is a number, the name of a constant of the system's or the ground's headers, or a list of bytes. Settings
//! called `reserved` are 0.

use std::collections::BTreeMap;

use inband_ground::c;
use libbpf_rs::btf::types::{DataSec, Int, MemberAttr, Struct, Var};
use libbpf_rs::btf::{Btf, BtfType};
use libbpf_rs::HasSize as _;
use serde::Deserialize;

/// A program that a host may load.
#[derive(Clone, Copy)]
pub struct Loaded {
    /// Of `dataplane/`.
    pub folder: &'static str,
    pub name: &'static str,
    pub object: &'static [u8],
    modes: &'static str,
}

/// Every program that a host may load.
pub const LOADED: &[Loaded] = include!(concat!(env!("OUT_DIR"), "/loaded.rs"));

const SMALLEST: &str = "smallest";
const DEFAULT: &str = "default";
const LARGEST: &str = "largest";
const PARTITIONS_DEFAULT: u32 = 4;
const OWN_SETTINGS: &str = ".rodata.own";

type Fields = BTreeMap<String, Value>;

#[derive(Clone, Deserialize)]
#[serde(untagged)]
enum Value {
    Number(u64),
    Bytes(Vec<u8>),
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct OfFolder {
    partitions_max: Option<u32>,
    every: Fields,
    sizes: BTreeMap<String, Fields>,
    variants: BTreeMap<String, BTreeMap<String, Fields>>,
    other_sizes: OtherSizes,
    only: BTreeMap<String, Vec<String>>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct OtherSizes {
    programs: Vec<String>,
    sizes: BTreeMap<String, Fields>,
}

/// How a program is loaded: in each mode the verifier removes different branches.
pub struct Mode {
    /// Follows the program's name: `-native-keys-largest`.
    pub name: String,
    /// Has the most work for the verifier, or is what a host loads by default.
    pub is_in_short_form: bool,
    /// The common settings, and the system's own.
    pub settings: [Vec<u8>; 2],
}

/// The modes of a program.
pub fn modes_of(program: &Loaded) -> Vec<Mode> {
    let of_folder: OfFolder = toml::from_str(program.modes)
        .unwrap_or_else(|error| panic!("modes/{}.toml: {error}", program.folder));
    let mut modes = Vec::new();
    let variants = of_folder.variants.keys().map(|name| Some(name.as_str()));
    let variants: Vec<Option<&str>> = variants.collect();
    let variants = match variants[..] {
        [] => &[None][..],
        _ => &variants,
    };
    for variant in variants {
        for size in [SMALLEST, DEFAULT, LARGEST] {
            for (generic, keys) in [(false, false), (true, false), (false, true), (true, true)] {
                modes.push(of_folder.mode(program, *variant, size, generic, keys));
            }
        }
    }
    let mut has_others = of_folder.other_sizes.programs.iter();
    if has_others.any(|name| name == program.name) {
        let others = of_folder.other_sizes.sizes.keys();
        modes.extend(others.map(|size| of_folder.mode(program, None, size, false, true)));
    }
    if let Some(only) = of_folder.only.get(program.name) {
        modes.retain(|mode| only.iter().any(|name| mode.name == format!("-{name}")));
        assert_eq!(modes.len(), only.len(), "{}: only {only:?}", program.name);
    }
    if let [only] = &mut modes[..] {
        only.is_in_short_form = true;
    }
    modes
}

impl OfFolder {
    fn mode(
        &self,
        program: &Loaded,
        variant: Option<&str>,
        size: &str,
        generic: bool,
        keys: bool,
    ) -> Mode {
        let mut fields = self.every.clone();
        let in_size = [&self.sizes, &self.other_sizes.sizes];
        let mut more: Vec<&Fields> = in_size
            .iter()
            .filter_map(|in_size| in_size.get(size))
            .collect();
        if let Some(variant) = variant.map(|variant| &self.variants[variant]) {
            more.extend(["every", size].iter().filter_map(|key| variant.get(*key)));
        }
        fields.extend(
            more.into_iter()
                .flatten()
                .map(|(name, value)| (name.clone(), value.clone())),
        );
        let mut name = variant.map_or(String::new(), |variant| format!("-{variant}"));
        name += if generic { "-generic" } else { "-native" };
        name += if keys { "-keys" } else { "" };
        if size != DEFAULT {
            name += &format!("-{size}");
        }
        let common = c::ib_settings {
            node: 2,
            partitions: match size {
                SMALLEST => 1,
                LARGEST => self.partitions_max.unwrap_or(c::IB_PARTITIONS_MAX),
                _ => PARTITIONS_DEFAULT,
            },
            address: u32::from_be_bytes([10, 0, 0, 2]).to_be(),
            loop_ifindex: 7,
            generic: u32::from(generic),
            port: 4900u16.to_be(),
            authenticated: u16::from(keys),
        };
        Mode {
            is_in_short_form: size == LARGEST || (size == DEFAULT && keys && !generic),
            settings: [bytes_of(&common), own_settings(program, &fields)],
            name,
        }
    }
}

/// A program's own settings, laid out as its BTF says; empty if it has none.
fn own_settings(program: &Loaded, fields: &Fields) -> Vec<u8> {
    let btf = Btf::from_raw(program.name, program.object).unwrap();
    let btf = btf.expect("clang writes BTF");
    let Some(section) = btf.type_by_name::<DataSec<'_>>(OWN_SETTINGS) else {
        return Vec::new();
    };
    let variable = section.iter().next().expect("a section has a variable");
    let variable: Var<'_> = btf.type_by_id(variable.ty).expect("a variable");
    let settings = variable.next_type().expect("its type");
    let settings = Struct::try_from(settings.skip_mods_and_typedefs()).expect("a struct");
    let mut bytes = vec![0; settings.size()];
    let place = format!("modes/{}.toml", program.folder);
    let mut known = Vec::new();
    for member in settings.iter() {
        let name = member.name.expect("members have names").to_string_lossy();
        let MemberAttr::Normal { offset } = member.attr else {
            panic!("{place}: {name} is a bit field");
        };
        if name == "reserved" {
            continue;
        }
        let value = fields.get(&*name);
        let value = value.unwrap_or_else(|| panic!("{place} has no value of {name}"));
        let of_type: BtfType<'_> = btf.type_by_id(member.ty).expect("a type");
        let number = Int::try_from(of_type.skip_mods_and_typedefs()).expect("an integer");
        let len = usize::from(number.bits) / 8;
        let value = match value {
            Value::Bytes(bytes) => bytes.clone(),
            Value::Number(number) => {
                let number = number.to_le_bytes();
                let (low, high) = number.split_at(len);
                assert!(
                    high.iter().all(|byte| *byte == 0),
                    "{place}: {name} has {len} bytes"
                );
                low.to_vec()
            }
        };
        assert_eq!(value.len(), len, "{place}: {name}");
        let at = offset as usize / 8;
        bytes[at..at + len].copy_from_slice(&value);
        known.push(name.into_owned());
    }
    let unknown = fields.keys().find(|name| !known.contains(name));
    assert_eq!(unknown, None, "{place}: no such setting");
    bytes
}

fn bytes_of<T: Copy>(settings: &T) -> Vec<u8> {
    // SAFETY: plain integers without padding (checked by bindgen's layout test).
    let bytes =
        unsafe { std::slice::from_raw_parts((&raw const *settings).cast::<u8>(), size_of::<T>()) };
    bytes.to_vec()
}
