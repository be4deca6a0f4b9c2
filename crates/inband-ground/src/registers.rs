//! Access to registers from user space, while packet programs use them on other CPUs. Every access is one atomic 64-bit
//! word.

use std::sync::atomic::{fence, AtomicU64, Ordering};

/// Memory for `count` values of `T`, shared with packet programs. `T` is one of the register structs: plain words, for
/// which every bit pattern is valid.
pub struct Shared<T> {
    base: *mut T,
    count: usize,
    /// Keeps the memory alive: an allocation of ours, or a mapping of a BPF map.
    _owner: Box<dyn Send + Sync>,
}

// SAFETY: the memory is owned by `_owner` (Send + Sync) and is only accessed through atomic words
// (here) or through the atomic steps of shell.h (native roles, packet programs).
unsafe impl<T> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Shared<T> {}

impl<T> Shared<T> {
    /// Zeroed memory of this process.
    pub fn zeroed(count: usize) -> Shared<T> {
        let words = (count * size_of::<T>()).div_ceil(8).max(1);
        let memory: Box<[AtomicU64]> = (0..words).map(|_| AtomicU64::new(0)).collect();
        let base = memory.as_ptr() as *mut T;
        Shared {
            base,
            count,
            _owner: Box::new(memory),
        }
    }

    /// Memory owned by something else, such as a mapped BPF map.
    ///
    /// # Safety
    /// `base` points to `count` values of `T`, 8-byte aligned and valid for reads and writes for as
    /// long as `owner` lives.
    pub unsafe fn from_raw(base: *mut T, count: usize, owner: Box<dyn Send + Sync>) -> Shared<T> {
        assert!(
            base as usize % 8 == 0,
            "register memory is aligned to 8 bytes"
        );
        Shared {
            base,
            count,
            _owner: owner,
        }
    }

    /// Returns a pointer to the first value, for the native roles.
    pub fn as_ptr(&self) -> *mut T {
        self.base
    }

    /// Returns the number of values.
    pub fn count(&self) -> usize {
        self.count
    }

    pub fn memory_bytes(&self) -> usize {
        self.count * size_of::<T>()
    }

    /// Returns the words of value `index`, each read atomically. They are consistent with each other only if there is
    /// no concurrent writer.
    pub fn words(&self, index: usize) -> Vec<u64> {
        let words = (0..size_of::<T>()).step_by(8);
        words
            .map(|at| self.word(index, at).load(Ordering::SeqCst))
            .collect()
    }

    /// Zeroes every word. Only for memory that nothing else is using.
    pub fn clear(&self) {
        for index in 0..self.count {
            for at in (0..size_of::<T>()).step_by(8) {
                self.word(index, at).store(0, Ordering::SeqCst);
            }
        }
    }

    /// Returns the word at `offset_bytes` of value `index`.
    pub fn word(&self, index: usize, offset_bytes: usize) -> &AtomicU64 {
        assert!(index < self.count && offset_bytes % 8 == 0 && offset_bytes + 8 <= size_of::<T>());
        // SAFETY: in bounds and aligned (asserted); the memory lives as long as self and is never
        // accessed other than atomically.
        unsafe { AtomicU64::from_ptr(self.base.add(index).cast::<u8>().add(offset_bytes).cast()) }
    }
}

/// The word of a field of a value: `field!(registers, index, struct, field)`.
#[macro_export]
macro_rules! field {
    ($shared:expr, $index:expr, $type:ty, $($path:tt)+) => {
        $shared.word($index, std::mem::offset_of!($type, $($path)+))
    };
}
pub use crate::field;

/// Defines types over [`Shared`] for a system's register structs; the system adds methods.
#[macro_export]
macro_rules! registers {
    ($(#[$doc:meta])* $name:ident of $struct:ty) => {
        $(#[$doc])*
        pub struct $name($crate::registers::Shared<$struct>);

        impl From<$crate::registers::Shared<$struct>> for $name {
            fn from(shared: $crate::registers::Shared<$struct>) -> $name {
                $name(shared)
            }
        }

        impl std::ops::Deref for $name {
            type Target = $crate::registers::Shared<$struct>;
            fn deref(&self) -> &Self::Target {
                &self.0
            }
        }
    };
}
pub use crate::registers;

impl Shared<u64> {
    /// Sets word `index`, sequentially consistent: this thread's later reads happen after it.
    pub fn set(&self, index: usize, value: u64) {
        self.word(index, 0).store(value, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// Reads word `index` without ordering it against other accesses.
    pub fn get(&self, index: usize) -> u64 {
        self.word(index, 0).load(Ordering::Relaxed)
    }
}
