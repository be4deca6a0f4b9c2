/*
 * The library that `inband memory run` preloads: malloc and its relatives, with memory from a region whose page faults
 * are handled by another process, the pager.
 *
 * This file maps the region and connects it to the pager, before the program starts and when the program asks.
 *
 * Nothing here may allocate, and nothing here may touch the region.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "heap.h"

#ifndef UFFD_USER_MODE_ONLY
#define UFFD_USER_MODE_ONLY 1
#endif
#ifndef USERFAULTFD_IOC_NEW
#define USERFAULTFD_IOC_NEW _IO(0xAA, 0x00)
#endif

/* Set by the pager: "SOCKET MEMFD INODE BYTES SHARED HEAP_FROM HEAP_TO", and the user's own LD_PRELOAD=... entry, if
 * any, with a prefix. */
#define ENVIRONMENT "INBAND_MEMORY_HEAP="
#define FORMER_PREFIX "INBAND_MEMORY_FORMER_"
#define PRELOAD "LD_PRELOAD="
/* Above the descriptors that programs close or rely on, so that their own files keep the numbers they expect. */
#define FD_FROM 900
#define EXIT_CANNOT_START 127
/* Size of the buffers of standard input and output; stdio writes longer blocks directly from their place. */
#define STDIO_BYTES (64 << 10)

/* Messages on the socket; crates/inband-memory/src/heap/link.rs is the other end. */
enum { OP_HELLO = 1, OP_FLUSH, OP_ACQUIRE, OP_RELEASE };
struct message {
    uint32_t op;
    uint32_t user_mode_only;
    uint64_t from;
    uint64_t len;
};

struct heap heap = {
    .socket = -1,
    .uffd = -1,
    .calls = PTHREAD_MUTEX_INITIALIZER,
    .extents = PTHREAD_MUTEX_INITIALIZER,
};

void say(const char *text) {
    ssize_t written = write(2, text, strlen(text));
    (void)written;
}

void say_number(uint64_t number) {
    char digits[24];
    char *at = digits + sizeof(digits) - 1;
    *at = '\0';
    do {
        *--at = (char)('0' + number % 10);
        number /= 10;
    } while (number > 0);
    say(at);
}

void cannot(const char *what, int error) {
    say("inband memory: cannot start the program: ");
    say(what);
    say(": error ");
    say_number((uint64_t)error);
    say(" (");
    /* Not strerror: translations allocate. */
    const char *name = strerrordesc_np(error);
    say(name != NULL ? name : "unknown");
    say(")\n");
    _exit(EXIT_CANNOT_START);
}

/* Sends a request to the pager and waits for the answer. One call at a time. */
static int call(uint32_t op, uint64_t from, uint64_t len) {
    struct stat now;
    /* The program may have closed the socket (by a direct system call), and another file may have its number now. */
    if (!atomic_load(&heap.is_ready) || fstat(heap.socket, &now) != 0 ||
        now.st_ino != heap.socket_inode) {
        errno = ENOSYS;
        return -1;
    }
    struct message message = {.op = op, .from = from, .len = len};
    int32_t error = EIO;
    ssize_t done;
    pthread_testcancel();
    /* A thread cancelled in here, or a signal handler that calls this again, would leave the lock taken. */
    sigset_t all, before;
    int cancelled;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancelled);
    pthread_mutex_lock(&heap.calls);
    do {
        done = send(heap.socket, &message, sizeof(message), MSG_NOSIGNAL);
    } while (done < 0 && errno == EINTR);
    if (done >= 0) {
        do {
            done = recv(heap.socket, &error, sizeof(error), 0);
        } while (done < 0 && errno == EINTR);
        if (done != (ssize_t)sizeof(error)) {
            error = EIO;
        }
    }
    pthread_mutex_unlock(&heap.calls);
    pthread_setcancelstate(cancelled, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    errno = error;
    return error == 0 ? 0 : -1;
}

static int call_range(uint32_t op, const void *at, size_t len) {
    uintptr_t from = (uintptr_t)at - (uintptr_t)heap.base;
    if (atomic_load(&heap.is_ready) &&
        ((uintptr_t)at < (uintptr_t)heap.base || from > heap.len || len > heap.len - from)) {
        errno = EINVAL;
        return -1;
    }
    return call(op, from, len);
}

int inband_heap_flush(void) {
    return call(OP_FLUSH, 0, heap.len);
}

int inband_heap_acquire(void *at, size_t len) {
    return call_range(OP_ACQUIRE, at, len);
}

int inband_heap_release(void *at, size_t len) {
    return call_range(OP_RELEASE, at, len);
}

void *inband_heap_shared(size_t *len) {
    bool is_shared = atomic_load(&heap.is_ready) && heap.shared > 0;
    if (len != NULL) {
        *len = is_shared ? heap.shared : 0;
    }
    return is_shared ? heap.base : NULL;
}

/* Start. */

static uint64_t next_number(const char **text) {
    uint64_t number = 0;
    while (**text == ' ') {
        ++*text;
    }
    for (; **text >= '0' && **text <= '9'; ++*text) {
        number = number * 10 + (uint64_t)(**text - '0');
    }
    return number;
}

/* Opens a userfaultfd, which also handles faults in the kernel if that is allowed. */
static int open_uffd(uint32_t *user_mode_only) {
    int flags = O_CLOEXEC | O_NONBLOCK;
    *user_mode_only = 0;
    int fd = (int)syscall(SYS_userfaultfd, flags);
    if (fd >= 0) {
        return fd;
    }
    int device = open("/dev/userfaultfd", O_RDWR | O_CLOEXEC);
    if (device >= 0) {
        fd = ioctl(device, USERFAULTFD_IOC_NEW, flags);
        close(device);
        if (fd >= 0) {
            return fd;
        }
    }
    *user_mode_only = 1;
    return (int)syscall(SYS_userfaultfd, flags | UFFD_USER_MODE_ONLY);
}

static void send_hello(int socket, int uffd, uint32_t user_mode_only) {
    struct message message = {
        .op = OP_HELLO,
        .user_mode_only = user_mode_only,
        .from = (uint64_t)(uintptr_t)heap.base,
        .len = heap.len,
    };
    struct iovec part = {.iov_base = &message, .iov_len = sizeof(message)};
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct msghdr header = {
        .msg_iov = &part,
        .msg_iovlen = 1,
        .msg_control = control.bytes,
        .msg_controllen = sizeof(control.bytes),
    };
    struct cmsghdr *rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(rights), &uffd, sizeof(int));
    int32_t answer;
    if (sendmsg(socket, &header, MSG_NOSIGNAL) < 0) {
        cannot("the pager does not listen", errno);
    }
    ssize_t got;
    do {
        got = recv(socket, &answer, sizeof(answer), 0);
    } while (got < 0 && errno == EINTR);
    if (got != (ssize_t)sizeof(answer) || answer != 0) {
        cannot("the pager does not answer", got < 0 ? errno : EIO);
    }
}

static int move_up(int fd) {
    int moved = fcntl(fd, F_DUPFD_CLOEXEC, FD_FROM);
    if (moved < 0) {
        /* The limit on open files may be low. */
        moved = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    }
    if (moved < 0) {
        cannot("fcntl", errno);
    }
    close(fd);
    return moved;
}

/* Returns what the pager has passed, or NULL. It is removed from the environment, so programs started by this one
 * use local memory. getenv and the like are avoided, because shells define functions of these names. */
static const char *take_environment(void) {
    extern char **environ;
    const char *found = NULL;
    char *former = NULL;
    if (environ == NULL) {
        return NULL;
    }
    for (char **at = environ; *at != NULL; ++at) {
        if (strncmp(*at, ENVIRONMENT, strlen(ENVIRONMENT)) == 0) {
            found = *at + strlen(ENVIRONMENT);
        }
    }
    if (found == NULL || *found == '\0') {
        return NULL;
    }
    char **to = environ;
    for (char **at = environ; *at != NULL; ++at) {
        if (strncmp(*at, FORMER_PREFIX PRELOAD, strlen(FORMER_PREFIX PRELOAD)) == 0) {
            former = *at + strlen(FORMER_PREFIX);
        } else if (strncmp(*at, ENVIRONMENT, strlen(ENVIRONMENT)) != 0 &&
                   strncmp(*at, PRELOAD, strlen(PRELOAD)) != 0) {
            *to++ = *at;
        }
    }
    if (former != NULL) {
        *to++ = former;
    }
    *to = NULL;
    return found;
}

/* For programs without fault handling in the kernel: write(2) of a buffer in the heap may fail when the program
 * ends, and nobody would check that. */
static void keep_stdio_local(void) {
    static char in[STDIO_BYTES], out[STDIO_BYTES];
    setvbuf(stdin, in, _IOFBF, sizeof(in));
    setvbuf(stdout, out, isatty(STDOUT_FILENO) ? _IOLBF : _IOFBF, sizeof(out));
}

__attribute__((constructor)) static void start(void) {
    const char *text = take_environment();
    if (text == NULL) {
        return;
    }
    int socket = (int)next_number(&text);
    int memfd = (int)next_number(&text);
    ino_t inode = (ino_t)next_number(&text);
    heap.len = next_number(&text);
    heap.shared = next_number(&text);
    heap.heap_from = next_number(&text);
    heap.heap_to = next_number(&text);
    heap.used = heap.heap_from;
    struct stat now;
    if (fstat(memfd, &now) != 0 || now.st_ino != inode || now.st_size != (off_t)heap.len) {
        /* Not the program that was started, but one that has inherited its environment. */
        return;
    }
    heap.base = mmap(NULL, heap.len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, memfd, 0);
    if (heap.base == MAP_FAILED) {
        cannot("mapping the heap", errno);
    }
    close(memfd);
    if (syscall(SYS_madvise, heap.base, heap.len, MADV_DONTFORK) != 0 ||
        syscall(SYS_madvise, heap.base, heap.len, MADV_DONTDUMP) != 0) {
        cannot("madvise", errno);
    }
    uint32_t user_mode_only;
    int uffd = open_uffd(&user_mode_only);
    if (uffd < 0) {
        cannot("userfaultfd (a container's seccomp profile may forbid it; Docker: --device "
               "/dev/userfaultfd)",
               errno);
    }
    struct uffdio_api api = {
        .api = UFFD_API,
        .features = UFFD_FEATURE_MISSING_SHMEM | UFFD_FEATURE_PAGEFAULT_FLAG_WP |
                    UFFD_FEATURE_WP_HUGETLBFS_SHMEM,
    };
    if (ioctl(uffd, UFFDIO_API, &api) != 0) {
        cannot(
            "userfaultfd without write protection of shared memory: Linux 5.19 or newer is needed",
            errno);
    }
    struct uffdio_register range = {
        .range = {.start = (uintptr_t)heap.base, .len = heap.len},
        .mode = UFFDIO_REGISTER_MODE_MISSING | UFFDIO_REGISTER_MODE_WP,
    };
    if (ioctl(uffd, UFFDIO_REGISTER, &range) != 0) {
        cannot("registering the heap with userfaultfd", errno);
    }
    send_hello(socket, uffd, user_mode_only);
    if (user_mode_only) {
        keep_stdio_local();
    }
    /* Keep this end open: if the pager held the only one and died, pages would read as zeros. */
    heap.uffd = move_up(uffd);
    heap.socket = move_up(socket);
    if (fstat(heap.socket, &now) != 0) {
        cannot("fstat", errno);
    }
    heap.socket_inode = now.st_ino;

    refuse_direct_io();
    create_arenas();
    atomic_store_explicit(&heap.is_ready, true, memory_order_release);
}
