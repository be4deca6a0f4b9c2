//! The interface of a system, and its counters.

use std::collections::BTreeMap;
use std::ffi::{c_char, CStr};

use crate::auth::Keys;
use crate::c;
use crate::registers::Shared;

/// A system in the data plane. Implement it with [`system!`](crate::system!).
pub trait System {
    /// Checks a packet (UDP payload): complete, a partition below `partitions`, and a tag made with one of the keys
    /// (without keys, a valid checksum). Returns `IB_R_none`, or the number of the reason to drop it.
    fn check(keys: Option<&Keys>, packet: &[u8], partitions: usize) -> u32;

    /// Returns the name of one of the system's own reasons.
    fn own_reason_name(reason: u32) -> Option<&'static str>;

    /// Returns the name of a reason, which is also the name of its counter. Covers the ground's and the system's
    /// reasons; `None` if the number is unknown.
    fn reason_name(reason: u32) -> Option<&'static str> {
        // SAFETY: the function takes any number.
        let raw = unsafe { c::ib_ground_reason_name(reason) };
        // SAFETY: NULL, or a static string.
        unsafe { static_name(raw) }.or_else(|| Self::own_reason_name(reason))
    }

    /// Returns the names of all reasons that the system may count.
    fn reasons() -> impl Iterator<Item = &'static str> {
        (0..c::IB_REASONS_MAX).filter_map(Self::reason_name)
    }
}

/// Converts a name returned by native code.
///
/// # Safety
/// `raw` is NULL or a static, NUL-terminated string.
pub unsafe fn static_name(raw: *const c_char) -> Option<&'static str> {
    if raw.is_null() {
        return None;
    }
    // SAFETY: not NULL, static (see above).
    unsafe { CStr::from_ptr(raw) }.to_str().ok()
}

/// `system!(Name, check, reason_name)` defines a type that is a [`System`], with two functions of its native build.
/// `system!(for Name, ...)` implements it for an existing type.
#[macro_export]
macro_rules! system {
    ($(#[$doc:meta])* $name:ident, $check:path, $reason_name:path) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy)]
        pub enum $name {}

        $crate::system!(for $name, $check, $reason_name);
    };
    (for $name:ty, $check:path, $reason_name:path) => {
        impl $crate::System for $name {
            fn check(keys: Option<&$crate::auth::Keys>, packet: &[u8], partitions: usize) -> u32 {
                let keys = $crate::auth::raw(keys);
                // SAFETY: the function reads at most the packet's bytes, and the keys if there are any.
                unsafe { $check(keys, packet.as_ptr(), packet.len() as u32, partitions as u32) }
            }

            fn own_reason_name(reason: u32) -> Option<&'static str> {
                // SAFETY: the function takes any number, and returns NULL or a static, NUL-terminated string.
                unsafe { $crate::static_name($reason_name(reason)) }
            }
        }
    };
}

/// `bindings!("NAME")` defines two modules: `c`, the bindings for the C headers of `dataplane/NAME` and of the ground,
/// and `objects`, the compiled programs of that folder. For crates whose build script builds the folder.
#[macro_export]
macro_rules! bindings {
    ($name:literal) => {
        #[allow(
            missing_docs,
            non_camel_case_types,
            non_upper_case_globals,
            clippy::all
        )]
        pub mod c {
            pub use $crate::c::*;
            include!(concat!(env!("OUT_DIR"), "/", $name, ".rs"));
        }

        #[allow(missing_docs)]
        pub mod objects {
            include!(concat!(env!("OUT_DIR"), "/", $name, "_objects.rs"));
        }
    };
}

/// Counters of a soft switch, by reason.
pub struct Counters(Shared<u64>);

impl Default for Counters {
    fn default() -> Counters {
        Counters(Shared::zeroed(c::IB_REASONS_MAX as usize))
    }
}

impl Counters {
    /// For the native roles.
    pub fn as_ptr(&self) -> *mut u64 {
        self.0.as_ptr()
    }

    /// By name, without those that are zero.
    pub fn by_name<S: System>(&self) -> BTreeMap<&'static str, u64> {
        (0..c::IB_REASONS_MAX)
            .filter_map(|i| Some((S::reason_name(i)?, self.0.get(i as usize))))
            .filter(|(_, count)| *count != 0)
            .collect()
    }
}
