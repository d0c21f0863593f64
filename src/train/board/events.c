/* SPDX-License-Identifier: Apache-2.0 */
/* A record is its length (8 bytes), a CRC of the length, the message, and a CRC of the message, all little-endian.
 * There is no fsync: metrics.jsonl is the record of a run, and readers skip a torn record. */
#include "board/events.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "board/crc32c.h"

#define PREFIX "events.out.tfevents."
#define WRITER "fsdptrain" /* of source_metadata: which files are ours */

enum { EVENT_WALL_TIME = 1, EVENT_STEP = 2, EVENT_FILE_VERSION = 3, EVENT_SOURCE = 10, SOURCE_WRITER = 1 };
enum { HEAD = 12, TAIL = 4, HEAD_OF_EVENT = 9 }; /* HEAD_OF_EVENT: key and value of the wall time */

static double wall_time(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void put_le(unsigned char *out, uint64_t value, size_t nbytes)
{
    for (size_t i = 0; i < nbytes; i++)
        out[i] = (unsigned char)(value >> 8 * i);
}

static uint64_t get_le(const unsigned char *bytes, size_t nbytes)
{
    uint64_t value = 0;
    for (size_t i = 0; i < nbytes; i++)
        value |= (uint64_t)bytes[i] << 8 * i;
    return value;
}

static int write_all(const struct events *e, const unsigned char *bytes, size_t nbytes, struct fsdpck_error *err)
{
    while (nbytes) {
        const ssize_t n = write(e->fd, bytes, nbytes);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return fsdpck_error_sys(err, n ? errno : EIO, e->path, "write");
        bytes += n;
        nbytes -= (size_t)n;
    }
    return 0;
}

struct proto *events_begin(struct events *e, uint64_t step)
{
    proto_clear(&e->message);
    proto_put_double(&e->message, EVENT_WALL_TIME, wall_time());
    proto_put_varint(&e->message, EVENT_STEP, step);
    return &e->message;
}

int events_end(struct events *e, struct fsdpck_error *err)
{
    const struct proto *m = &e->message;
    unsigned char *record = m->failed ? NULL : malloc(HEAD + m->nbytes + TAIL);
    if (!record)
        return fsdpck_error_nomem(err, HEAD + m->nbytes + TAIL);
    put_le(record, m->nbytes, 8);
    put_le(record + 8, crc32c_masked(record, 8), 4);
    memcpy(record + HEAD, m->bytes, m->nbytes);
    put_le(record + HEAD + m->nbytes, crc32c_masked(m->bytes, m->nbytes), TAIL);
    int rc = write_all(e, record, HEAD + m->nbytes + TAIL, err);
    free(record);
    return rc;
}

static bool is_event_file(const char *name)
{
    return strncmp(name, PREFIX, strlen(PREFIX)) == 0;
}

/* The greatest time in a name: files are read in the order of their names. */
static int64_t newest(const char *folder)
{
    int64_t found = 0;
    DIR *dir = opendir(folder);
    for (struct dirent *e; dir && (e = readdir(dir)) != NULL;) {
        const int64_t at = is_event_file(e->d_name) ? strtoll(e->d_name + strlen(PREFIX), NULL, 10) : 0;
        found = at > found && at < INT64_C(9999999999) ? at : found;
    }
    if (dir)
        closedir(dir);
    return found;
}

static int create(const char *folder, struct events *out, struct fsdpck_error *err)
{
    const int64_t last = newest(folder), now = (int64_t)time(NULL);
    char host[65] = "";
    if (gethostname(host, sizeof host - 1) || !*host)
        snprintf(host, sizeof host, "localhost");
    const int n = snprintf(out->path, sizeof out->path, "%s/" PREFIX "%010" PRId64 ".%s.%ld.0", folder,
                           last < now ? now : last + 1, host, (long)getpid());
    if (n < 0 || (size_t)n >= sizeof out->path)
        return fsdpck_error_set(err, FSDPCK_ERR_USAGE, folder, "the path of an event file is too long");
    out->fd = open(out->path, O_WRONLY | O_APPEND | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    return out->fd < 0 ? fsdpck_error_sys(err, errno, out->path, "create") : 0;
}

int events_open(const char *folder, struct events *out, struct fsdpck_error *err)
{
    *out = (struct events){ .fd = -1 };
    int rc = create(folder, out, err);
    if (!rc) {
        struct proto *m = events_begin(out, 0);
        proto_put_text(m, EVENT_FILE_VERSION, "brain.Event:2");
        const size_t source = proto_begin(m, EVENT_SOURCE);
        proto_put_text(m, SOURCE_WRITER, WRITER);
        proto_end(m, source);
        rc = events_end(out, err);
    }
    if (rc)
        events_close(out);
    return rc;
}

void events_close(struct events *e)
{
    if (e->fd >= 0)
        close(e->fd);
    e->fd = -1;
    proto_free(&e->message);
}

/* ---- what a resumed run does again */

/* The step of an event of ours: its second field. 0: it is no such event. */
static uint64_t step_of(const unsigned char *event, size_t nbytes)
{
    uint64_t step = 0;
    if (nbytes < HEAD_OF_EVENT + 2 || event[0] != (EVENT_WALL_TIME << 3 | 1) || event[HEAD_OF_EVENT] != EVENT_STEP << 3)
        return 0;
    for (size_t i = HEAD_OF_EVENT + 1, shift = 0; i < nbytes && shift < 64; i++, shift += 7) {
        step |= (uint64_t)(event[i] & 0x7f) << shift;
        if (!(event[i] & 0x80))
            break;
    }
    return step;
}

/* Reads what step_of() and is_ours() need of a record. False: the file ends here, or what follows is no record. */
static bool read_record(int fd, off_t at, unsigned char begin[128], size_t *nbytes, off_t *next)
{
    unsigned char head[HEAD];
    if (pread(fd, head, HEAD, at) != HEAD || get_le(head + 8, 4) != crc32c_masked(head, 8))
        return false;
    const uint64_t length = get_le(head, 8);
    const ssize_t n = pread(fd, begin, length < 128 ? (size_t)length : 128, at + HEAD);
    if (n < 0 || length > INT32_MAX)
        return false;
    *nbytes = (size_t)n;
    *next = at + HEAD + (off_t)length + TAIL;
    return true;
}

static bool is_ours(const unsigned char *event, size_t nbytes)
{
    return memmem(event, nbytes, WRITER, strlen(WRITER)) != NULL;
}

static int forget_in(const char *path, uint64_t step, bool *any, struct fsdpck_error *err)
{
    unsigned char begin[128];
    size_t nbytes;
    off_t at = 0, next;
    int rc = 0, fd = open(path, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return errno == ENOENT || errno == ELOOP || errno == ENXIO ? 0 : fsdpck_error_sys(err, errno, path, "open");
    bool cut = false;
    while (!cut && read_record(fd, at, begin, &nbytes, &next)) {
        if (at == 0 && !is_ours(begin, nbytes))
            break;
        cut = step_of(begin, nbytes) > step;
        at = cut ? at : next;
    }
    if (cut && ftruncate(fd, at))
        rc = fsdpck_error_sys(err, errno, path, "truncate");
    *any |= cut;
    close(fd);
    return rc;
}

int events_forget(const char *folder, uint64_t step, bool *cut, struct fsdpck_error *err)
{
    char path[4096];
    int rc = 0;
    *cut = false;
    DIR *dir = opendir(folder);
    if (!dir)
        return errno == ENOENT ? 0 : fsdpck_error_sys(err, errno, folder, "opendir");
    for (struct dirent *e; !rc && (e = readdir(dir)) != NULL;) {
        if (!is_event_file(e->d_name))
            continue;
        const int n = snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        if (n > 0 && (size_t)n < sizeof path)
            rc = forget_in(path, step, cut, err);
    }
    closedir(dir);
    return rc;
}
