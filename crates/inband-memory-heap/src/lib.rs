//! `libinband_memory_heap.so`, which `inband memory run` preloads into a program. All of it is in C, because it needs
//! thread-local storage that is never allocated lazily (the initial-exec model), which Rust cannot express. A Rust
//! library exports only what Rust defines, so this file gives the C functions the names that the dynamic linker looks
//! for.

use libc::{
    c_char, c_int, c_uint, c_void, pid_t, pthread_attr_t, pthread_t, size_t, termios, winsize,
};

/// Defines functions under the names that programs call; each forwards to a function in C.
macro_rules! export {
    ($($name:ident = $in_c:ident($($arg:ident: $type:ty),*) $(-> $result:ty)?;)*) => {
        extern "C" {
            $(fn $in_c($($arg: $type),*) $(-> $result)?;)*
        }
        $(
            /// See the function in C.
            ///
            /// # Safety
            /// As for C's function of this name.
            #[no_mangle]
            pub unsafe extern "C" fn $name($($arg: $type),*) $(-> $result)? {
                // SAFETY: the caller keeps to the contract of the function of this name.
                unsafe { $in_c($($arg),*) }
            }
        )*
    };
}

export! {
    malloc = inband_heap_malloc(size: size_t) -> *mut c_void;
    calloc = inband_heap_calloc(count: size_t, size: size_t) -> *mut c_void;
    realloc = inband_heap_realloc(at: *mut c_void, size: size_t) -> *mut c_void;
    reallocarray = inband_heap_reallocarray(at: *mut c_void, count: size_t, size: size_t) -> *mut c_void;
    free = inband_heap_free(at: *mut c_void);
    aligned_alloc = inband_heap_aligned_alloc(alignment: size_t, size: size_t) -> *mut c_void;
    memalign = inband_heap_memalign(alignment: size_t, size: size_t) -> *mut c_void;
    posix_memalign = inband_heap_posix_memalign(to: *mut *mut c_void, alignment: size_t, size: size_t) -> c_int;
    valloc = inband_heap_valloc(size: size_t) -> *mut c_void;
    pvalloc = inband_heap_pvalloc(size: size_t) -> *mut c_void;
    malloc_usable_size = inband_heap_malloc_usable_size(at: *mut c_void) -> size_t;
    fork = inband_heap_fork() -> pid_t;
    _Fork = inband_heap_bare_fork() -> pid_t;
    daemon = inband_heap_daemon(no_chdir: c_int, no_close: c_int) -> c_int;
    forkpty = inband_heap_forkpty(
        terminal: *mut c_int, name: *mut c_char, settings: *const termios, size: *const winsize) -> pid_t;
    pthread_create = inband_heap_pthread_create(
        thread: *mut pthread_t, attributes: *const pthread_attr_t, run: Option<extern "C" fn(*mut c_void) -> *mut c_void>,
        argument: *mut c_void) -> c_int;
    madvise = inband_heap_madvise(at: *mut c_void, len: size_t, advice: c_int) -> c_int;
    // Variadic in C; here all arguments are always declared, since they are passed in registers in any case.
    mremap = inband_heap_mremap(
        at: *mut c_void, len: size_t, new_len: size_t, flags: c_int, to: *mut c_void) -> *mut c_void;
    close = inband_heap_close(fd: c_int) -> c_int;
    close_range = inband_heap_close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int;
    closefrom = inband_heap_closefrom(from: c_int);
    inband_memory_flush = inband_heap_flush() -> c_int;
    inband_memory_acquire = inband_heap_acquire(at: *mut c_void, len: size_t) -> c_int;
    inband_memory_release = inband_heap_release(at: *mut c_void, len: size_t) -> c_int;
    inband_memory_shared = inband_heap_shared(len: *mut size_t) -> *mut c_void;
}
