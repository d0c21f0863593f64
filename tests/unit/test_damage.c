/* SPDX-License-Identifier: Apache-2.0 */
/* Damage to a good checkpoint, nearly exhaustive: one bit changed in every byte of every file, and every file truncated
 * at many lengths. `verify` must name the file each time. Reading must name it too, or give the right bytes if it does
 * not read the damaged ones. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fsdpck/check.h>
#include <fsdpck/convert.h>

#include "format/source_fsdpck.h"
#include "sanitized.h"
#include "tree.h"

enum { NRANKS = 3, MAX_DATA = 8192, MAX_TENSORS = 8 };

static const char *const file_names[] = { "index.json",   ".metadata",          "__0_0.distcp",    "__1_0.distcp",
                                          "__2_0.distcp", "assets/config.json", "assets/sub/words" };
enum { NFILES = sizeof file_names / sizeof file_names[0] };
static bool compress; /* the checkpoint of the current tests is compressed, so it has no .metadata */

/* All data that reading returns, concatenated. */
struct data {
    uint8_t bytes[MAX_DATA];
    size_t nbytes;
};

struct world {
    char *root, *ckpt;
    struct fsdpck_options opt;
    struct data truth;
    uint64_t payload[NRANKS][8][2]; /* [begin, end) of every payload of a rank */
    unsigned npayload[NRANKS];
    uint64_t table[NRANKS];
};

/* ---- the checkpoint: values and tensors of a PyTorch checkpoint, and assets ---- */

static char *fixture(const char *name)
{
    const char *fixtures = getenv("FSDPCK_FIXTURES");
    return fixtures ? tree_path(fixtures, name) : NULL;
}

static int read_all(struct world *w, struct data *out, struct fsdpck_error *err)
{
    struct fsdpck_source *src;
    out->nbytes = 0;
    int r = fsdpck_source_open(w->ckpt, NULL, &w->opt, &src, err);
    struct fsdpck_read reads[MAX_TENSORS] = { { 0 } };
    size_t n = r == 0 ? fsdpck_source_ntensors(src) : 0;
    assert_true(n <= MAX_TENSORS);
    for (size_t i = 0; i < n; i++) {
        reads[i] = (struct fsdpck_read){ .tensor = fsdpck_source_tensor(src, i), .dst = out->bytes + out->nbytes };
        out->nbytes += reads[i].tensor->nbytes;
        assert_true(out->nbytes <= sizeof out->bytes);
    }
    if (r == 0)
        r = fsdpck_source_read(src, reads, n, err);
    for (size_t i = 0; r == 0 && i < fsdpck_source_nitems(src); i++) {
        uint64_t nbytes = fsdpck_source_item(src, i)->nbytes;
        assert_true(out->nbytes + nbytes <= sizeof out->bytes);
        r = fsdpck_source_read_item(src, i, out->bytes + out->nbytes, err);
        out->nbytes += nbytes;
    }
    fsdpck_source_close(src);
    return r;
}

static void note_payloads(struct world *w)
{
    struct fsdpck_source *src;
    assert_int_equal(fsdpck_source_open(w->ckpt, "fsdpck", &w->opt, &src, NULL), 0);
    assert_int_equal(src->files.count, NRANKS);
    for (uint32_t r = 0; r < NRANKS; r++) {
        const struct fsdpck_table *t;
        assert_int_equal(fsdpck_index_table(src, r, &t, NULL), 0);
        assert_true(t->nentries <= 8);
        w->npayload[r] = (unsigned)t->nentries;
        w->table[r] = ((const struct index_file *)((const struct fsdpck_index *)src->impl)->files.data)[r].table;
        for (unsigned i = 0; i < t->nentries; i++) {
            w->payload[r][i][0] = t->entries[i].payload;
            w->payload[r][i][1] = t->entries[i].payload + t->entries[i].nbytes;
        }
    }
    fsdpck_source_close(src);
}

static int setup(void **state)
{
    struct world *w = calloc(1, sizeof *w);
    struct fsdpck_source *src;
    struct fsdpck_error err = { 0 };
    char *from = fixture("dcp/torch-2.15/ckpt");
    assert_non_null(w);
    if (!from) {
        print_message("FSDPCK_FIXTURES is not set\n");
        return 1;
    }
    w->root = tree_new();
    w->ckpt = tree_path(w->root, "ckpt");
    w->opt.nthreads = 1;
    tree_file(w->root, "assets/config.json", "{\"hidden_size\": 4}");
    tree_file(w->root, "assets/sub/words", "words");
    char *assets = tree_path(w->root, "assets");
    struct fsdpck_convert_request req = { .out = w->ckpt,
                                          .mesh = { .ndim = 1, .names = { "shard" }, .sizes = { NRANKS } },
                                          .assets = assets,
                                          .compress = compress };
    int r = fsdpck_source_open(from, NULL, &w->opt, &src, &err);
    if (r == 0)
        r = fsdpck_convert(src, &req, NULL, NULL, &err);
    if (r != 0)
        fail_msg("%s: %s", err.file, err.message);
    fsdpck_source_close(src);
    assert_int_equal(read_all(w, &w->truth, &err), 0);
    note_payloads(w);
    free(assets);
    free(from);
    *state = w;
    return 0;
}

static int setup_compressed(void **state)
{
    compress = true;
    return setup(state);
}

static int teardown(void **state)
{
    struct world *w = *state;
    tree_remove(w->root);
    free(w->root);
    free(w->ckpt);
    free(w);
    return 0;
}

/* ---- the reports of the damage ---- */

struct found {
    const char *file; /* expected */
    uint64_t offset;  /* of the damage */
    unsigned nproblems, nwrong;
    bool in_range; /* a problem names a damaged range of a tensor that contains the offset */
    char wrong[256];
};

static void on_problem(void *ctx, const struct fsdpck_problem *p)
{
    struct found *f = ctx;
    f->nproblems++;
    f->in_range |=
        p->nbytes && f->offset >= p->offset && f->offset < p->offset + p->nbytes && p->tensor && p->rank >= 0;
    if (strcmp(p->file, f->file) == 0)
        return;
    f->nwrong++;
    snprintf(f->wrong, sizeof f->wrong, "%s: %s", p->file, p->what);
}

static struct found verify(struct world *w, const char *file, uint64_t offset)
{
    struct found f = { .file = file, .offset = offset };
    struct fsdpck_verify_result result;
    struct fsdpck_error err = { 0 };
    int r = fsdpck_verify(w->ckpt, NULL, false, &w->opt, on_problem, &f, &result, &err);
    if (r != 0)
        fail_msg("%s, byte %llu: verify gives up: %s: %s", file, (unsigned long long)offset, err.file, err.message);
    assert_int_equal(result.nproblems, f.nproblems);
    if (f.nproblems == 0)
        fail_msg("%s, byte %llu: verify finds nothing", file, (unsigned long long)offset);
    if (f.nwrong)
        fail_msg("%s, byte %llu: verify blames another file: %s", file, (unsigned long long)offset, f.wrong);
    return f;
}

static int rank_of(const char *file)
{
    unsigned rank;
    return sscanf(file, "__%u_0.distcp", &rank) == 1 ? (int)rank : -1;
}

enum where { PAYLOAD, ENVELOPE, TABLE, INDEX, UNREAD };

static enum where where_is(const struct world *w, const char *file, uint64_t at)
{
    int rank = rank_of(file);
    if (rank < 0)
        return strcmp(file, "index.json") == 0 ? INDEX : UNREAD;
    if (at >= w->table[rank])
        return TABLE;
    for (unsigned i = 0; i < w->npayload[rank]; i++)
        if (at >= w->payload[rank][i][0] && at < w->payload[rank][i][1])
            return PAYLOAD;
    return ENVELOPE;
}

static bool is_read(enum where where)
{
    return where != ENVELOPE && where != UNREAD;
}

static bool names_file(const struct fsdpck_error *err, const char *file)
{
    size_t n = strlen(err->file), k = strlen(file);
    return n > k && strcmp(err->file + n - k, file) == 0;
}

static void check_read(struct world *w, const char *file, uint64_t at, bool may_succeed)
{
    static struct data got;
    struct fsdpck_error err = { 0 };
    int r = read_all(w, &got, &err);
    if (may_succeed ? r != 0 || memcmp(got.bytes, w->truth.bytes, got.nbytes) != 0 : r == 0)
        fail_msg("%s, byte %llu: reading gives %d (%s)", file, (unsigned long long)at, r, err.message);
    if (!may_succeed && (fsdpck_error_exit_code(r) != 3 || !names_file(&err, file)))
        fail_msg("%s, byte %llu: reading blames '%s': %s", file, (unsigned long long)at, err.file, err.message);
}

/* ---- the damage ---- */

static int open_damaged(struct world *w, const char *file, uint64_t *nbytes)
{
    struct stat st;
    char *path = tree_path(w->ckpt, file);
    int fd = open(path, O_RDWR);
    assert_true(fd >= 0 && fstat(fd, &st) == 0);
    *nbytes = (uint64_t)st.st_size;
    free(path);
    return fd;
}

static void flip(int fd, uint64_t at)
{
    uint8_t byte;
    assert_int_equal(pread(fd, &byte, 1, (off_t)at), 1);
    byte ^= (uint8_t)(1u << at % 8);
    assert_int_equal(pwrite(fd, &byte, 1, (off_t)at), 1);
}

/* Threads do the same wherever the damage is, so ThreadSanitizer sees few of the places. Odd, so that bits vary. */
enum { ONE_IN = UNDER_TSAN ? 11 : UNDER_ASAN ? 3 : 1 };

static void flips_in_every_byte_are_found(void **state)
{
    struct world *w = *state;
    for (unsigned i = 0; i < NFILES; i++) {
        uint64_t nbytes;
        if (compress && strcmp(file_names[i], ".metadata") == 0)
            continue;
        int fd = open_damaged(w, file_names[i], &nbytes);
        for (uint64_t at = 0; at < nbytes; at += ONE_IN) {
            enum where where = where_is(w, file_names[i], at);
            flip(fd, at);
            struct found f = verify(w, file_names[i], at);
            if (where == PAYLOAD && !f.in_range)
                fail_msg("%s, byte %llu: verify does not name the range", file_names[i], (unsigned long long)at);
            if (is_read(where) || at % 8 == 0) /* of the changes without effect, one in eight is enough */
                check_read(w, file_names[i], at, !is_read(where));
            flip(fd, at);
        }
        close(fd);
    }
    check_read(w, "all is well again", 0, true);
}

/* Every length near the beginning, and around table and trailer; otherwise one in 29. */
static void cuts_are_found(void **state)
{
    enum { DENSE = 250, STEP = 29 };
    struct world *w = *state;
    for (unsigned i = 0; i < NFILES; i++) {
        uint64_t nbytes;
        int fd = open_damaged(w, file_names[i], &nbytes);
        uint8_t *bytes = malloc(nbytes);
        assert_true(bytes && pread(fd, bytes, nbytes, 0) == (ssize_t)nbytes);
        for (uint64_t n = nbytes; n-- > 0;) {
            if ((n > DENSE && nbytes - n > DENSE && n % STEP != 0) || n % ONE_IN != 0)
                continue;
            assert_int_equal(ftruncate(fd, (off_t)n), 0);
            verify(w, file_names[i], n);
            check_read(w, file_names[i], n, where_is(w, file_names[i], n) == UNREAD);
        }
        assert_int_equal(pwrite(fd, bytes, nbytes, 0), (ssize_t)nbytes);
        free(bytes);
        close(fd);
    }
    check_read(w, "all is well again", 0, true);
}

/* One file missing and another damaged: both are reported, and nothing else. */
static void two_problems_are_both_found(void **state)
{
    struct world *w = *state;
    uint64_t nbytes;
    struct fsdpck_verify_result result;
    struct found f = { .file = "__1_0.distcp", .offset = w->payload[1][0][0] };
    char *path = tree_path(w->ckpt, "__0_0.distcp"), *away = tree_path(w->root, "away");
    int fd = open_damaged(w, "__1_0.distcp", &nbytes);
    flip(fd, f.offset);
    assert_int_equal(rename(path, away), 0);
    assert_int_equal(fsdpck_verify(w->ckpt, NULL, false, &w->opt, on_problem, &f, &result, NULL), 0);
    assert_int_equal(f.nproblems, 2);
    assert_int_equal(f.nwrong, 1);
    assert_true(f.in_range);
    assert_non_null(strstr(f.wrong, "__0_0.distcp: "));
    assert_int_equal(rename(away, path), 0);
    flip(fd, f.offset);
    close(fd);
    free(path);
    free(away);
    check_read(w, "all is well again", 0, true);
}

/* ---- a file that ends early during reading */

static bool ends_early[1024]; /* descriptors of that file */
static uint64_t early_until;  /* reads that begin before this return end of file */

static int open_ending(void *ctx, const char *path, int flags, unsigned mode)
{
    int fd = fsdpck_io_posix.open(ctx, path, flags, mode);
    assert_true(fd < (int)(sizeof ends_early / sizeof *ends_early));
    if (fd >= 0)
        ends_early[fd] = strstr(path, "__1_0.distcp") != NULL;
    return fd;
}

static int64_t pread_ending(void *ctx, int fd, void *buf, uint64_t nbytes, uint64_t offset)
{
    return ends_early[fd] && offset < early_until ? 0 : fsdpck_io_posix.pread(ctx, fd, buf, nbytes, offset);
}

static int64_t pread_cached_ending(void *ctx, int fd, void *buf, uint64_t nbytes, uint64_t offset)
{
    return ends_early[fd] ? -EAGAIN : fsdpck_io_posix.pread_cached(ctx, fd, buf, nbytes, offset);
}

/* An unreadable range is reported once, and not as damaged too. */
static void what_cannot_be_read_is_said_once(void **state)
{
    struct world *w = *state;
    struct fsdpck_io io = fsdpck_io_posix;
    struct fsdpck_options opt = w->opt;
    struct fsdpck_verify_result result;
    struct found f = { .file = "__1_0.distcp" };
    io.open = open_ending;
    io.pread = pread_ending;
    io.pread_cached = pread_cached_ending;
    opt.io = &io;
    early_until = w->payload[1][0][1];
    assert_int_equal(fsdpck_verify(w->ckpt, NULL, false, &opt, on_problem, &f, &result, NULL), 0);
    assert_int_equal(f.nproblems, 1);
    assert_int_equal(f.nwrong, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(flips_in_every_byte_are_found),
        cmocka_unit_test(cuts_are_found),
        cmocka_unit_test(two_problems_are_both_found),
        cmocka_unit_test(what_cannot_be_read_is_said_once),
    };
    const struct CMUnitTest compressed[] = { cmocka_unit_test(flips_in_every_byte_are_found) };
    int nfailed = cmocka_run_group_tests_name("plain", tests, setup, teardown);
    return nfailed + cmocka_run_group_tests_name("compressed", compressed, setup_compressed, teardown);
}
