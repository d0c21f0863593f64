/* SPDX-License-Identifier: Apache-2.0 */
/* A data file, with lines or an array, plain, gzip, Zstandard, or broken; read by lines and by parts. Properties: the
 * parts give the same lines in order, whether all parts are read or only some; both ways fail on the same files. */
#include <string.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <train/lines.h>
#include <unistd.h>
#include <xxhash.h>

#include "data/data_parts.h"
#include "fuzz.h"

enum { MOST = 1 << 24 }; /* unpacked bytes; inputs that unpack to more are skipped */

/* Hashes all lines with their ends; *nbytes: their size. */
static int hash_lines(const char *path, uint64_t *hash, size_t *nbytes)
{
    struct fsdpck_error err = { 0 };
    struct train_lines *lines;
    const char *line;
    size_t n;
    uint64_t number, wanted = 1;
    int rc = train_lines_open(path, &lines, &err);
    while (!rc && *nbytes < MOST && !(rc = train_lines_next(lines, &line, &n, &number, &err)) && line) {
        FUZZ_CHECK(number == wanted++ && !memchr(line, '\n', n));
        *hash = XXH3_64bits_withSeed(line, n, *hash);
        *nbytes += n + 1;
    }
    FUZZ_CHECK(rc == err.code);
    train_lines_close(lines);
    return rc;
}

static void hash_part(const struct data_part *part, uint64_t *hash)
{
    const char *at = part->text, *end = at + part->nbytes, *stop;
    for (; at < end; at = stop + 1) {
        stop = memchr(at, '\n', (size_t)(end - at));
        stop = stop ? stop : end;
        *hash = XXH3_64bits_withSeed(at, (size_t)(stop - at), *hash);
    }
}

static int hash_parts(const struct train_config *config, size_t every, uint64_t *hash)
{
    struct fsdpck_error err = { 0 };
    struct data_parts *parts;
    struct data_part part = { 0 };
    size_t number, wanted = 0;
    bool end = false;
    int rc = data_parts_open(config, &parts, &err);
    while (!rc && !(rc = data_parts_step(parts, &number, &end, &err)) && !end) {
        FUZZ_CHECK(number == wanted++);
        rc = number % every == 0 ? data_parts_take(parts, &part, &err) : 0;
        if (!rc && number % every == 0)
            hash_part(&part, hash);
    }
    FUZZ_CHECK(rc == err.code);
    data_parts_close(parts);
    free(part.text);
    return rc;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes)
{
    static int fd = -1;
    static char path[40];
    if (fd < 0) {
        fd = memfd_create("data", MFD_CLOEXEC);
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    }
    const struct train_data_file file = { path, 1 };
    const struct train_config config = { .data = { .train = path, .files = &file, .nfiles = 1 } };
    uint64_t a = 1, b = 1, c = 1;
    size_t unpacked = 0;
    FUZZ_CHECK(fd >= 0 && ftruncate(fd, 0) == 0 && pwrite(fd, data, nbytes, 0) == (ssize_t)nbytes);
    int lines = hash_lines(path, &a, &unpacked);
    if (unpacked >= MOST)
        return 0;
    int parts = hash_parts(&config, 1, &b), some = hash_parts(&config, 3, &c);
    /* an empty file is not data, and has no lines */
    FUZZ_CHECK(lines ? parts != 0 : parts == 0 || parts == FSDPCK_ERR_FORMAT);
    FUZZ_CHECK(parts != 0 || (a == b && some == 0));
    return 0;
}
