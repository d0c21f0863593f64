/* SPDX-License-Identifier: Apache-2.0 */
/* The keeper listens on an abstract socket, whose name ends with it, and passes on a file without a name. Seals forbid
 * to cut the file, so no rank can be killed by memory beyond its end. */
#include "comm/keeper.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <train/keep.h>
#include <unistd.h>

enum { LEAVE = 0 }; /* no rank needs 0 bytes */
enum { BIND_TRIES = 100, BIND_MS = 100, ANSWER_SECONDS = 5 };

struct answer {
    uint64_t nbytes, id;
    int64_t sys_errno; /* why there is no file; 0: it comes with the answer */
};

struct keeper {
    int listener, file;
    struct answer facts;
    bool left; /* another keeper has taken the memory */
};

static int address(const char *name, struct sockaddr_un *out, socklen_t *nbytes, struct fsdpck_error *err)
{
    *out = (struct sockaddr_un){ .sun_family = AF_UNIX };
    const int n = snprintf(out->sun_path + 1, sizeof out->sun_path - 1, "fsdptrain-%s", name);
    if (n < 0 || (size_t)n >= sizeof out->sun_path - 1)
        return fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL, "the name of a keeper has %zu characters, wanted fewer",
                                strlen(name));
    *nbytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
    return 0;
}

/* Other users may connect to any abstract socket, and may listen on any. */
static bool is_ours(int fd)
{
    struct ucred peer;
    socklen_t nbytes = sizeof peer;
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &nbytes) == 0 && peer.uid == geteuid();
}

static void limit_waits(int fd)
{
    const struct timeval limit = { .tv_sec = ANSWER_SECONDS };
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
}

/* Asks the keeper of that name for its memory. nbytes: LEAVE, or what a rank needs. */
static int ask(const char *name, uint64_t nbytes, struct answer *facts, int *file, struct fsdpck_error *err);

/* --- the keeper --- */

/* Takes the memory of a keeper that has the name already: it has not noticed yet that the host was lost for a while. */
static void take_over(const char *name, struct keeper *k)
{
    struct fsdpck_error ignored = { 0 };
    struct answer facts = { 0 };
    int file = -1;
    if (ask(name, LEAVE, &facts, &file, &ignored) == 0) {
        k->facts = facts;
        k->file = file;
    } else if (file >= 0) {
        close(file);
    }
}

static int listen_as(const char *name, struct keeper *k, struct fsdpck_error *err)
{
    int *out = &k->listener;
    struct sockaddr_un at;
    socklen_t nbytes = 0;
    int rc = address(name, &at, &nbytes, err);
    if (rc)
        return rc;
    *out = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    int failed = *out < 0 ? -1 : bind(*out, (struct sockaddr *)&at, nbytes);
    for (int i = 0; failed && *out >= 0 && errno == EADDRINUSE && i < BIND_TRIES; i++) {
        if (k->file < 0)
            take_over(name, k);
        nanosleep(&(struct timespec){ 0, BIND_MS * 1000000L }, NULL);
        failed = bind(*out, (struct sockaddr *)&at, nbytes);
    }
    if (failed || listen(*out, SOMAXCONN))
        return fsdpck_error_sys(err, errno, NULL, "socket for the ranks of this host");
    return 0;
}

/* The first rank decides how much memory there is. */
static void make_file(struct keeper *k, uint64_t nbytes)
{
    const int fd = memfd_create("fsdptrain-kept", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    const off_t size = nbytes <= INT64_MAX ? (off_t)nbytes : -1; /* ftruncate refuses -1 */
    const bool made =
        fd >= 0 && ftruncate(fd, size) == 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0;
    k->facts.sys_errno = made ? 0 : errno;
    if (made) {
        k->file = fd;
        k->facts.nbytes = nbytes;
    } else if (fd >= 0) {
        close(fd);
    }
}

static void send_file(const struct keeper *k, int to)
{
    struct answer facts = k->facts;
    struct iovec data = { .iov_base = &facts, .iov_len = sizeof facts };
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr head;
    } control = { .head = { .cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS } };
    struct msghdr message = { .msg_iov = &data, .msg_iovlen = 1 };
    if (k->file >= 0) {
        memcpy(CMSG_DATA(&control.head), &k->file, sizeof k->file);
        message.msg_control = &control;
        message.msg_controllen = sizeof control;
    }
    sendmsg(to, &message, MSG_NOSIGNAL); /* a rank that is gone asks no more */
}

static void answer(struct keeper *k)
{
    uint64_t wanted = 0;
    const int fd = accept4(k->listener, NULL, NULL, SOCK_CLOEXEC);
    if (fd < 0)
        return;
    limit_waits(fd);
    if (is_ours(fd) && recv(fd, &wanted, sizeof wanted, 0) == (ssize_t)sizeof wanted) {
        k->left = wanted == LEAVE;
        if (k->file < 0 && !k->left)
            make_file(k, wanted);
        send_file(k, fd);
    }
    close(fd);
}

/* False: nobody needs the keeper any longer. */
static bool is_needed(int life)
{
    char beats[256];
    return read(life, beats, sizeof beats) > 0;
}

int train_keep(const char *name, int life, int silence_ms, void (*ready)(void), struct fsdpck_error *err)
{
    struct keeper k = { .listener = -1, .file = -1 };
    int rc = listen_as(name, &k, err);
    if (!rc && k.file < 0 && getrandom(&k.facts.id, sizeof k.facts.id, 0) != (ssize_t)sizeof k.facts.id)
        rc = fsdpck_error_sys(err, errno, NULL, "getrandom");
    if (!rc)
        ready();
    for (bool needed = !rc; needed;) {
        struct pollfd waits[] = { { .fd = life, .events = POLLIN }, { .fd = k.listener, .events = POLLIN } };
        const int n = poll(waits, 2, silence_ms);
        needed = n > 0; /* a signal ends it too */
        if (n > 0 && waits[1].revents)
            answer(&k);
        if (n > 0 && waits[0].revents)
            needed = is_needed(life);
        needed = needed && !k.left;
    }
    if (k.file >= 0)
        close(k.file);
    if (k.listener >= 0)
        close(k.listener);
    return rc;
}

/* --- ranks --- */

/* The file that came with a message; -1: none. A message may bring more than there is room for; the kernel closes the
 * others. */
static int file_of(struct msghdr *message)
{
    const struct cmsghdr *head = CMSG_FIRSTHDR(message);
    int fd = -1;
    if (head && head->cmsg_level == SOL_SOCKET && head->cmsg_type == SCM_RIGHTS &&
        head->cmsg_len == CMSG_LEN(sizeof fd))
        memcpy(&fd, CMSG_DATA(head), sizeof fd);
    return fd;
}

static int receive_file(int from, struct answer *facts, int *file, struct fsdpck_error *err)
{
    struct iovec data = { .iov_base = facts, .iov_len = sizeof *facts };
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr head;
    } control;
    struct msghdr message = {
        .msg_iov = &data, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control
    };
    const ssize_t n = recvmsg(from, &message, MSG_CMSG_CLOEXEC);
    if (n < 0)
        return fsdpck_error_sys(err, errno, NULL, "answer of the process that keeps memory on this host");
    *file = file_of(&message);
    if (n == (ssize_t)sizeof *facts && facts->sys_errno)
        return fsdpck_error_sys(err, (int)facts->sys_errno, NULL, "memory of the process that keeps it on this host");
    if (n != (ssize_t)sizeof *facts || *file < 0)
        return fsdpck_error_set(err, FSDPCK_ERR_IO, NULL,
                                "the process that keeps memory on this host gave no memory: its answer has %zd bytes, "
                                "wanted %zu and a file",
                                n, sizeof *facts);
    return 0;
}

static int ask(const char *name, uint64_t nbytes, struct answer *facts, int *file, struct fsdpck_error *err)
{
    struct sockaddr_un at;
    socklen_t n = 0;
    int rc = address(name, &at, &n, err);
    if (rc)
        return rc;
    const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&at, n))
        rc = fsdpck_error_sys(err, errno, NULL, "process that keeps memory on this host");
    if (!rc && !is_ours(fd))
        rc = fsdpck_error_set(err, FSDPCK_ERR_IO, NULL, "the process that keeps memory on this host is another user's");
    if (!rc) {
        limit_waits(fd);
        if (send(fd, &nbytes, sizeof nbytes, MSG_NOSIGNAL) != (ssize_t)sizeof nbytes)
            rc = fsdpck_error_sys(err, errno, NULL, "request to the process that keeps memory on this host");
    }
    if (!rc)
        rc = receive_file(fd, facts, file, err);
    if (fd >= 0)
        close(fd);
    return rc;
}

int keeper_map(const char *name, size_t nbytes, struct kept_memory *out, struct fsdpck_error *err)
{
    struct answer facts = { 0 };
    int file = -1;
    *out = (struct kept_memory){ 0 };
    int rc = ask(name, nbytes, &facts, &file, err);
    if (!rc && facts.nbytes != nbytes)
        rc = fsdpck_error_set(err, FSDPCK_ERR_IO, NULL, "%llu bytes are kept on this host, wanted %zu",
                              (unsigned long long)facts.nbytes, nbytes);
    const int seals = rc ? 0 : fcntl(file, F_GET_SEALS);
    if (!rc && (seals < 0 || !(seals & F_SEAL_SHRINK)))
        rc = fsdpck_error_set(err, FSDPCK_ERR_IO, NULL, "the memory that is kept on this host may be cut");
    void *memory = rc ? MAP_FAILED : mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
    if (!rc && memory == MAP_FAILED)
        rc = fsdpck_error_sys(err, errno, NULL, "memory that is kept on this host");
    if (file >= 0)
        close(file);
    if (!rc)
        *out = (struct kept_memory){ .memory = memory, .nbytes = nbytes, .id = facts.id };
    return rc;
}

void keeper_unmap(struct kept_memory *kept)
{
    if (kept->memory)
        munmap(kept->memory, kept->nbytes);
    *kept = (struct kept_memory){ 0 };
}
