/*
 * Calls of a program that would damage a heap whose pages come and go, or that would hang on it: refused with an errno
 * for which programs are prepared, or done in another way.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/close_range.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pty.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "heap.h"

/* fork is refused, because the child would write to the parent's heap. In a child that gets around this the region
 * is not mapped (MADV_DONTFORK), so it ends with SIGSEGV instead. vfork, posix_spawn, system and popen work as
 * usual: their child shares the parent's memory until it executes a program, which runs in local memory. */

static bool refuse_fork(const char *name) {
    if (!atomic_load(&heap.is_ready)) {
        return false;
    }
    say("inband memory: ");
    say(name);
    say("() refused (ENOSYS): parent and child would write to one heap; posix_spawn, vfork, system "
        "and popen "
        "work\n");
    errno = ENOSYS;
    return true;
}

/* glibc's own function, which this library's names hide. */
extern pid_t __fork(void);

pid_t inband_heap_fork(void) {
    return refuse_fork("fork") ? -1 : __fork();
}

pid_t inband_heap_bare_fork(void) {
    return refuse_fork("_Fork") ? -1 : __fork();
}

int inband_heap_daemon(int no_chdir, int no_close) {
    (void)no_chdir;
    (void)no_close;
    if (!refuse_fork("daemon")) {
        errno = ENOSYS;
    }
    return -1;
}

pid_t inband_heap_forkpty(int *terminal, char *name, const struct termios *settings,
                          const struct winsize *size) {
    (void)terminal;
    (void)name;
    (void)settings;
    (void)size;
    if (!refuse_fork("forkpty")) {
        errno = ENOSYS;
    }
    return -1;
}

/* Returns whether any of these bytes is in the region. */
static bool is_in_region(const void *at, size_t len) {
    uintptr_t from = (uintptr_t)at, base = (uintptr_t)heap.base;
    return atomic_load(&heap.is_ready) && from < base + heap.len &&
           (len > base || from > base - len);
}

/* When a thread ends, the kernel writes to a block on its stack, and fails if that page is missing: pthread_join
 * would then wait forever. So stacks in the region are refused. */
int inband_heap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
                               void *(*run)(void *), void *argument) {
    void *stack = NULL;
    size_t len = 0;
    if (attributes != NULL && pthread_attr_getstack(attributes, &stack, &len) == 0 &&
        stack != NULL && is_in_region(stack, len)) {
        say("inband memory: pthread_create() refused (EINVAL): the stack is in the heap; allocate "
            "stacks "
            "with mmap\n");
        return EINVAL;
    }
    if (heap.pthread_create == NULL) {
        *(void **)&heap.pthread_create = dlsym(RTLD_NEXT, "pthread_create");
    }
    return heap.pthread_create(thread, attributes, run, argument);
}

/* Does what madvise does to anonymous memory, which is what programs take their heap for. */
int inband_heap_madvise(void *at, size_t len, int advice) {
    if (is_in_region(at, len)) {
        switch (advice) {
        case MADV_DONTNEED:
        case MADV_FREE:
            memset(at, 0, len);
            return 0;
        case MADV_REMOVE:
        case MADV_DOFORK:
            errno = EINVAL;
            return -1;
        default:
            break;
        }
    }
    return (int)syscall(SYS_madvise, at, len, advice);
}

/* Refuses to move pages of the region, or to move others over them: the pager would not find them where it looks,
 * and they would read as zeros. The kernel reads `to` only if the flags say that it is given. */
void *inband_heap_mremap(void *at, size_t len, size_t new_len, int flags, void *to) {
    /* A length of 0 maps the same pages a second time. */
    if (is_in_region(at, len > 0 ? len : 1) ||
        (flags & MREMAP_FIXED && is_in_region(to, new_len))) {
        say("inband memory: mremap() refused (EINVAL): the pages are in the heap; allocate what is "
            "to be moved with mmap\n");
        errno = EINVAL;
        return MAP_FAILED;
    }
    return (void *)syscall(SYS_mremap, at, len, new_len, flags, to);
}

/* Protects this library's two files from programs that close what they have not opened. */

static bool is_ours(int fd) {
    return fd >= 0 && (fd == heap.socket || fd == heap.uffd);
}

int inband_heap_close(int fd) {
    extern int __close(int);
    if (__builtin_expect(is_ours(fd), 0)) {
        errno = EBADF;
        return -1;
    }
    return __close(fd);
}

int inband_heap_close_range(unsigned first, unsigned last, int flags) {
    if (first > last) {
        errno = EINVAL;
        return -1;
    }
    unsigned a = (unsigned)heap.socket, b = (unsigned)heap.uffd;
    /* As an unsigned number, -1 sorts last. */
    unsigned spared[2] = {a < b ? a : b, a < b ? b : a};
    for (int n = 0; n < 2; ++n) {
        if (spared[n] < first || spared[n] > last) {
            continue;
        }
        if (spared[n] > first && syscall(SYS_close_range, first, spared[n] - 1, flags) != 0) {
            return -1;
        }
        if (spared[n] == last) {
            return 0;
        }
        first = spared[n] + 1;
    }
    return (int)syscall(SYS_close_range, first, last, flags);
}

void inband_heap_closefrom(int from) {
    inband_heap_close_range(from < 0 ? 0 : (unsigned)from, ~0U, 0);
}

/* A device that writes to a page of the heap while the page is evicted would write to a freed frame, so direct I/O,
 * io_uring and aio are refused, as on systems without them. Programs then fall back to ordinary reads and writes.
 * Children inherit the filter. */
void refuse_direct_io(void) {
#define LOAD(field) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field))
#define IF(what, then, otherwise) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, what, then, otherwise)
#define RETURN(what) BPF_STMT(BPF_RET | BPF_K, what)
    static struct sock_filter filter[] = {
        LOAD(arch),
        IF(AUDIT_ARCH_X86_64, 0, 14), /* else 16 */
        LOAD(nr),
        IF(SYS_io_uring_setup, 13, 0), /* 17 */
        IF(SYS_io_setup, 12, 0),       /* 17 */
        IF(SYS_openat2, 11, 0),        /* 17: its flags are behind a pointer */
        IF(SYS_open, 3, 0),            /* 10 */
        IF(SYS_openat, 6, 0),          /* 14 */
        IF(SYS_fcntl, 3, 0),           /* 12 */
        RETURN(SECCOMP_RET_ALLOW),
        /* 10: open */ LOAD(args[1]),
        BPF_STMT(BPF_JMP | BPF_JA, 3), /* 15 */
        /* 12: fcntl */ LOAD(args[1]),
        IF(F_SETFL, 0, 2), /* else 16 */
        /* 14: openat, and F_SETFL */ LOAD(args[2]),
        /* 15 */ BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, O_DIRECT, 2, 0), /* 18 */
        /* 16 */ RETURN(SECCOMP_RET_ALLOW),
        /* 17 */ RETURN(SECCOMP_RET_ERRNO | ENOSYS),
        /* 18 */ RETURN(SECCOMP_RET_ERRNO | EINVAL),
    };
    struct sock_fprog program = {.len = sizeof(filter) / sizeof(filter[0]), .filter = filter};
    unsigned flags = SECCOMP_FILTER_FLAG_SPEC_ALLOW;
    if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &program) == 0) {
        return;
    }
    /* Unprivileged processes may install a filter only with NO_NEW_PRIVS. */
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
        syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &program) != 0) {
        cannot("refusing direct I/O (seccomp)", errno);
    }
}
