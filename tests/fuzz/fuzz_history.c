/* SPDX-License-Identifier: Apache-2.0 */
/* The files of a run that a report reads: metrics.jsonl, a zero byte, events.jsonl, a zero byte, summary.json.
 * Properties: steps ascend; a curve has values at steps of the run only; a thinned curve keeps the first and the last
 * value, the least and the greatest. */
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <train/history.h>
#include <unistd.h>

#include "fuzz.h"

enum { NPOINTS = 8, NFILES = 3 };

static const char *const names[NFILES] = { "metrics.jsonl", "events.jsonl", "summary.json" };
static char folder[] = "/dev/shm/fsdpck-fuzz-XXXXXX";

static void remove_folder(void)
{
    char path[200];
    for (size_t i = 0; i < NFILES; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        unlink(path);
    }
    rmdir(folder);
}

static void write_file(const char *name, const uint8_t *bytes, size_t nbytes)
{
    char path[200];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    FUZZ_CHECK(fd >= 0 && write(fd, bytes, nbytes) == (ssize_t)nbytes);
    close(fd);
}

static void check_curve(const struct train_history *h, const struct train_curve *c)
{
    size_t kept[NPOINTS], at = 0, most = 0, least = 0;
    for (size_t i = 0; i < c->count; i++) {
        while (at < h->nsteps && h->steps[at] < c->steps[i])
            at++;
        FUZZ_CHECK(at < h->nsteps && h->steps[at] == c->steps[i] && (i == 0 || c->steps[i - 1] < c->steps[i]));
        FUZZ_CHECK(!isinf(c->values[i]));
        most = c->values[i] > c->values[most] || isnan(c->values[most]) ? i : most;
        least = c->values[i] < c->values[least] || isnan(c->values[least]) ? i : least;
    }
    const size_t n = train_curve_thin(c, NPOINTS, kept);
    double high = -INFINITY, low = INFINITY;
    FUZZ_CHECK(n <= NPOINTS && n <= c->count && (n > 0) == (c->count > 0));
    for (size_t i = 0; i < n; i++) {
        FUZZ_CHECK(kept[i] < c->count && (i == 0 || kept[i - 1] < kept[i]));
        high = fmax(high, c->values[kept[i]]);
        low = fmin(low, c->values[kept[i]]);
    }
    FUZZ_CHECK(!n || (kept[0] == 0 && kept[n - 1] == c->count - 1));
    FUZZ_CHECK(!n || isnan(c->values[most]) || (high == c->values[most] && low == c->values[least]));
}

static void read_metrics(const char *path, uint64_t tail)
{
    struct train_history h;
    struct fsdpck_error err = { 0 };
    const int rc = tail ? train_history_read_tail(path, tail, &h, &err) : train_history_read(path, &h, &err);
    FUZZ_CHECK(rc == err.code);
    for (size_t i = 1; i < h.nsteps; i++)
        FUZZ_CHECK(h.steps[i - 1] < h.steps[i]);
    for (size_t i = 0; i < h.ncurves; i++)
        check_curve(&h, &h.curves[i]);
    train_history_free(&h);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes)
{
    static char path[100];
    struct train_folder f;
    struct fsdpck_error err = { 0 };
    if (!*path) {
        FUZZ_CHECK(mkdtemp(folder) && atexit(remove_folder) == 0);
        snprintf(path, sizeof path, "%s/%s", folder, names[0]);
    }
    for (size_t i = 0; i < NFILES; i++) {
        const uint8_t *end = i < NFILES - 1 && nbytes ? memchr(data, 0, nbytes) : NULL;
        const size_t n = end ? (size_t)(end - data) : nbytes;
        write_file(names[i], data, n);
        data += n + (end != NULL);
        nbytes -= n + (end != NULL);
    }
    read_metrics(path, 0);
    read_metrics(path, 100);
    FUZZ_CHECK(train_folder_read(folder, 0, &f, &err) == err.code);
    FUZZ_CHECK(train_folder_state(&f));
    train_folder_free(&f);
    return 0;
}
