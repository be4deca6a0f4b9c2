//! Loads programs.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use libbpf_rs::{MapCore, ObjectBuilder};

use super::error::{Doing, XdpError};
use super::maps::{map_array, sums_per_cpu, update, update_bytes};
use super::refusal;
use super::rig::TestRun;
use crate::auth::Keys;
use crate::c;
use crate::registers::Shared;
use crate::System;

const SETTINGS_MAP: &str = ".rodata.settings";
const OWN_SETTINGS_MAP: &str = ".rodata.own";

/// The constants of a program: those of every program, and its system's own.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    pub common: c::ib_settings,
    own: [u8; OWN_SETTINGS_MAX_BYTES],
    own_len_bytes: usize,
}

const OWN_SETTINGS_MAX_BYTES: usize = 64;

impl Settings {
    /// `own` is the struct of the system's `settings.h`.
    pub fn new<T: Copy>(common: c::ib_settings, own: &T) -> Settings {
        const { assert!(size_of::<T>() <= OWN_SETTINGS_MAX_BYTES) };
        let mut bytes = [0; OWN_SETTINGS_MAX_BYTES];
        bytes[..size_of::<T>()].copy_from_slice(bytes_of(own));
        Settings {
            common,
            own: bytes,
            own_len_bytes: size_of::<T>(),
        }
    }

    fn own(&self) -> &[u8] {
        &self.own[..self.own_len_bytes]
    }
}

/// Returns the bytes of a struct of settings.
fn bytes_of<T: Copy>(settings: &T) -> &[u8] {
    // SAFETY: plain integers without padding (checked by bindgen's layout test and `tests/layout.rs`).
    unsafe { std::slice::from_raw_parts((&raw const *settings).cast::<u8>(), size_of::<T>()) }
}

/// A loaded program, and its maps by name.
pub struct Loaded {
    pub program: OwnedFd,
    maps: HashMap<String, OwnedFd>,
}

impl Loaded {
    pub fn map(&self, name: &str) -> Result<OwnedFd, XdpError> {
        let fd = self.maps.get(name).ok_or_else(|| {
            XdpError::Spec(format!(
                "the XDP programs have no map \"{name}\": rebuild inband"
            ))
        })?;
        fd.try_clone().doing("duplicating a descriptor")
    }

    /// Maps the registers in one of its maps (`IB_REGISTERS`), shared with the program.
    pub fn registers<T, R: From<Shared<T>>>(&self, map: &str) -> Result<R, XdpError> {
        Ok(map_array(self.map(map)?.as_fd())?.into())
    }

    /// Returns the same program with only one of its maps, under another name: for a program that shares maps of the
    /// same name with several others.
    pub fn renamed(&self, map: &str, name: &str) -> Result<Loaded, XdpError> {
        let program = self.program.try_clone().doing("duplicating a descriptor")?;
        Ok(Loaded {
            program,
            maps: HashMap::from([(name.to_owned(), self.map(map)?)]),
        })
    }

    /// Sets the keys that check and sign packets, in a program that was built for that.
    pub fn set_keys(&self, keys: &Keys) -> Result<(), XdpError> {
        update(&self.map("ib_keys_map")?, &0u32, keys.raw()).doing("setting the keys")
    }

    /// Sets an element of an array.
    pub fn set_bytes(&self, map: &str, index: u32, value: &[u8]) -> Result<(), XdpError> {
        update_bytes(&self.map(map)?, index, value).doing(format!("setting an element of {map}"))
    }
}

/// Loads an object with a single program. Maps that also exist in `shared`, by name, are shared.
pub fn load_object(
    name: &'static str,
    bytes: &[u8],
    settings: Option<&Settings>,
    sizes: &[(&str, usize)],
    shared: &[&Loaded],
) -> Result<Loaded, XdpError> {
    let listening = refusal::listen();
    let failed = |error: libbpf_rs::Error| listening.error(name, &error);
    let mut object = ObjectBuilder::default()
        .open_memory(bytes)
        .map_err(failed)?;
    for mut map in object.maps_mut() {
        let map_name = map.name().to_string_lossy().into_owned();
        if map_name == SETTINGS_MAP || map_name == OWN_SETTINGS_MAP {
            if let Some(settings) = settings {
                let common = map_name == SETTINGS_MAP;
                let bytes = if common {
                    bytes_of(&settings.common)
                } else {
                    settings.own()
                };
                map.set_initial_value(bytes).map_err(failed)?;
            }
        } else if let Some(fd) = shared.iter().find_map(|loaded| loaded.maps.get(&map_name)) {
            map.reuse_fd(fd.as_fd()).map_err(failed)?;
        } else if let Some((_, entries)) = sizes.iter().find(|(name, _)| *name == map_name) {
            map.set_max_entries(*entries as u32).map_err(failed)?;
        }
    }
    let object = object.load().map_err(failed)?;
    let clone = |fd: BorrowedFd<'_>| fd.try_clone_to_owned().doing("duplicating a descriptor");
    let mut maps = HashMap::new();
    for map in object.maps() {
        maps.insert(
            map.name().to_string_lossy().into_owned(),
            clone(map.as_fd())?,
        );
    }
    let program = object.progs().next().ok_or_else(|| {
        XdpError::Spec(format!(
            "the object {name} holds no program: rebuild inband"
        ))
    })?;
    Ok(Loaded {
        program: clone(program.as_fd())?,
        maps,
    })
}

/// Space for a frame after a test run.
const TEST_FRAME_LEN_MAX_BYTES: usize = 2048;

/// Runs a program on a frame `repeat` times (BPF_PROG_TEST_RUN). Each run sees the frame as the previous run left it.
pub fn test_run(program: &OwnedFd, frame: &[u8], repeat: u32) -> io::Result<TestRun> {
    let mut out = vec![0u8; TEST_FRAME_LEN_MAX_BYTES];
    // SAFETY: all zero is a valid value of this plain C struct; it is filled in below.
    let mut options: libbpf_sys::bpf_test_run_opts = unsafe { std::mem::zeroed() };
    options.sz = size_of::<libbpf_sys::bpf_test_run_opts>() as u64;
    options.data_in = frame.as_ptr().cast();
    options.data_size_in = frame.len() as u32;
    options.data_out = out.as_mut_ptr().cast();
    options.data_size_out = out.len() as u32;
    options.repeat = repeat as i32;
    // SAFETY: both buffers are valid for the sizes given.
    let result =
        unsafe { libbpf_sys::bpf_prog_test_run_opts(program.as_raw_fd(), &raw mut options) };
    if result < 0 {
        return Err(io::Error::from_raw_os_error(-result));
    }
    out.truncate(options.data_size_out as usize);
    Ok(TestRun {
        action: options.retval,
        frame: out,
        time: Duration::from_nanos(u64::from(options.duration)),
    })
}

/// Returns the counters of a program by name, without those that are zero.
pub fn counters_of<S: System>(map: &OwnedFd) -> Result<BTreeMap<&'static str, u64>, XdpError> {
    let mut counters = BTreeMap::new();
    let mut reasons =
        (0..c::IB_REASONS_MAX).filter_map(|reason| Some((reason, S::reason_name(reason)?)));
    let mut next = reasons.next();
    while let Some((first, name)) = next {
        // Reasons of one system follow each other.
        let mut names = vec![name];
        next = reasons.next();
        while let Some((_, name)) = next.filter(|(reason, _)| *reason == first + names.len() as u32)
        {
            names.push(name);
            next = reasons.next();
        }
        let counts = sums_per_cpu(map, first..first + names.len() as u32);
        let counted = names.into_iter().zip(counts.doing("reading counters")?);
        counters.extend(counted.filter(|(_, count)| *count != 0));
    }
    Ok(counters)
}
