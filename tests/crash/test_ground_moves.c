/* SPDX-License-Identifier: Apache-2.0 */
/* Files change under a verb: source files shrink, grow or are replaced while it reads them; the output's folder is not
 * writable, or is full. Either the output is correct, or the error names the file and nothing is left over. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "sweep.h"
#include "tree.h"
#include "verbs.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- files that change during reading */

enum change { SHRINK_A_LITTLE, SHRINK_TO_HALF, SHRINK_TO_NOTHING, GROW, REPLACE, REMOVE, NCHANGES };
static const char *const change_names[NCHANGES] = { "shrinks a little",   "shrinks to half",
                                                    "shrinks to nothing", "grows",
                                                    "is replaced",        "is removed" };

/* An I/O table that changes a file before its operation n. */
struct meddler {
    struct fsdpck_io io;
    unsigned nops, at;
    enum change change;
    const char *path, *spare; /* spare: another file of the same name and size, to replace it with */
};

static void change_file(const struct meddler *m)
{
    struct stat st;
    FILE *f;
    if (stat(m->path, &st) != 0)
        abort();
    switch (m->change) {
    case SHRINK_A_LITTLE: st.st_size -= 1; break;
    case SHRINK_TO_HALF: st.st_size /= 2; break;
    case SHRINK_TO_NOTHING: st.st_size = 0; break;
    case GROW:
        if ((f = fopen(m->path, "ab")) == NULL || fputs("more", f) < 0 || fclose(f) != 0)
            abort();
        return;
    case REPLACE:
        if (rename(m->spare, m->path) != 0)
            abort();
        return;
    default: unlink(m->path); return;
    }
    if (truncate(m->path, st.st_size) != 0)
        abort();
}

static void meddle(void *ctx)
{
    struct meddler *m = ctx;
    if (m->nops++ == m->at)
        change_file(m);
}

static int m_open(void *ctx, const char *path, int flags, unsigned mode)
{
    meddle(ctx);
    return fsdpck_io_posix.open(NULL, path, flags, mode);
}

static int64_t m_pread(void *ctx, int fd, void *buf, uint64_t nbytes, uint64_t offset)
{
    meddle(ctx);
    return fsdpck_io_posix.pread(NULL, fd, buf, nbytes, offset);
}

static int64_t m_pread_cached(void *ctx, int fd, void *buf, uint64_t nbytes, uint64_t offset)
{
    meddle(ctx);
    return fsdpck_io_posix.pread_cached(NULL, fd, buf, nbytes, offset);
}

static void meddler_begin(struct meddler *m, enum change change, unsigned at, const char *path, const char *spare)
{
    *m = (struct meddler){ .io = model_fast_io(), .change = change, .at = at, .path = path, .spare = spare };
    m->io.ctx = m;
    m->io.open = m_open;
    m->io.pread = m_pread;
    m->io.pread_cached = m_pread_cached;
}

static bool names_file(const struct fsdpck_error *err, const char *path)
{
    return strcmp(err->file, path) == 0 || strstr(err->message, strrchr(path, '/') + 1) != NULL;
}

static unsigned nrefused; /* runs that failed; if there are none, the test tested nothing */

/* Runs a verb while a source file changes. Recreates the sources first, as the change spoils them. Returns false if the
 * verb ended before the change. */
static bool run_changing(const struct verb *v, const char *file, enum change change, unsigned at)
{
    struct meddler m;
    struct verb_how how = { .force = v->old };
    struct verb_result r;
    const char *why;
    char *spoiled = tree_path(ground.top, "spoiled"), *kept = tree_path(ground.top, "kept"), *path, *spare;
    char **source = v->kind == VERB_CONVERT ? &ground.folder : &ground.checkpoint, *true_source = *source;
    tree_copy(true_source, spoiled);
    tree_copy(true_source, kept);
    path = tree_path(spoiled, file);
    spare = tree_path(kept, file);
    *source = spoiled;
    ground_reset(&ground, v);
    meddler_begin(&m, change, at, path, spare);
    how.io[0] = &m.io;
    verb_run(v, &ground, &how, &r);
    *source = true_source;
    const struct fsdpck_error *err = &r.err[0];
    nrefused += r.code[0] != 0;
    if (r.code[0] == 0 && verb_state(v, &ground, ground.root, true, &why) != STATE_NEW)
        verb_fail(v, ground.root, "'%s' %s before operation %u: it succeeds, and the output is not right (%s)", file,
                  change_names[change], at, why);
    if (r.code[0] != 0 && !verb_is_exactly(&ground, ground.root, STATE_OLD))
        verb_fail(v, ground.root, "'%s' %s before operation %u: something is left", file, change_names[change], at);
    if (r.code[0] != 0 && (!names_file(err, path) || err->code == FSDPCK_ERR_USAGE || err->code == FSDPCK_ERR_NOMEM))
        verb_fail(v, ground.root, "'%s' %s before operation %u: the error does not say so (%d: '%s': %s)", file,
                  change_names[change], at, err->code, err->file, err->message);
    tree_remove(spoiled);
    tree_remove(kept);
    free(path);
    free(spare);
    free(spoiled);
    free(kept);
    return m.nops > at;
}

static void each_moment(const struct verb *v, const char *file)
{
    ground_set_up(&ground, v);
    nrefused = 0;
    for (enum change change = 0; change < NCHANGES; change++)
        for (unsigned at = 0; run_changing(v, file, change, at); at = sweep_next(at))
            continue;
    assert_true(nrefused > 0);
}

static void test_source_changes(void **state)
{
    (void)state;
    each_moment(&(const struct verb){ .name = "convert", .kind = VERB_CONVERT, .nranks = 2 }, "model.safetensors");
    each_moment(&(const struct verb){ .name = "convert", .kind = VERB_CONVERT, .nranks = 2 }, "config.json");
    each_moment(&(const struct verb){ .name = "reshard", .kind = VERB_RESHARD, .nranks = 2 }, "__1_0.distcp");
    each_moment(&(const struct verb){ .name = "export", .kind = VERB_EXPORT_FOLDER, .nranks = 1 }, "__0_0.distcp");
    each_moment(&(const struct verb){ .name = "export", .kind = VERB_EXPORT_FOLDER, .nranks = 1 }, "index.json");
}

/* ---- places that are not writable */

static void test_read_only_directory(void **state)
{
    (void)state;
    for (size_t i = 0; i < nverbs; i++) {
        const struct verb *v = &verbs[i];
        struct faulty *f[VERB_MAX_RANKS];
        struct verb_how how = { .force = v->old };
        struct verb_result r;
        if (v->old && v->kind != VERB_EXPORT_FILE)
            continue; /* an existing output directory is still writable */
        ground_set_up(&ground, v);
        ground_reset(&ground, v);
        verb_tables(v, &ground, f, &how);
        for (uint32_t rank = 0; rank < verb_writers(v); rank++)
            faulty_read_only(f[rank], ground.root);
        verb_run(v, &ground, &how, &r);
        verb_tables_free(f);
        if (r.code[0] != FSDPCK_ERR_IO || r.err[0].sys_errno != EACCES || strstr(r.err[0].file, ground.root) == NULL)
            verb_fail(v, ground.root, "a read-only directory: %d, errno %d: '%s': %s", r.code[0], r.err[0].sys_errno,
                      r.err[0].file, r.err[0].message);
        if (!verb_is_exactly(&ground, ground.root, STATE_OLD))
            verb_fail(v, ground.root, "a read-only directory, and something is left");
    }
}

/* Writes of more than this size are payload. */
enum { PAYLOAD_NBYTES = 16 << 10 };
static unsigned npayloads;

static int64_t counting_pwrite(void *ctx, int fd, const void *buf, uint64_t nbytes, uint64_t offset)
{
    npayloads += nbytes >= PAYLOAD_NBYTES;
    return fsdpck_io_posix.pwrite(ctx, fd, buf, nbytes, offset);
}

static void run_full(const struct verb *v)
{
    struct fsdpck_io io = fsdpck_io_posix;
    struct verb_how how = { .io = { &io }, .force = v->old };
    struct verb_result r;
    io.pwrite = counting_pwrite;
    npayloads = 0;
    verb_run(v, &ground, &how, &r);
    if (r.code[0] != FSDPCK_ERR_IO || r.err[0].sys_errno != ENOSPC || strstr(r.err[0].message, "space") == NULL ||
        r.err[0].file[0] == '\0')
        verb_fail(v, ground.root, "a full disk: %d, errno %d: '%s': %s", r.code[0], r.err[0].sys_errno, r.err[0].file,
                  r.err[0].message);
    if (npayloads > 0)
        verb_fail(v, ground.root, "a full disk was found after %u writes", npayloads);
    if (!verb_is_exactly(&ground, ground.root, STATE_OLD))
        verb_fail(v, ground.root, "a full disk, and something is left");
}

/* A separate small file system, if this user may mount one. */
static void test_full_disk(void **state)
{
    (void)state;
    for (size_t i = 0; i < nverbs; i++) {
        const struct verb *v = &verbs[i];
        if (v->old || v->kind == VERB_SAVE || v->kind == VERB_EXPORT_LORA) /* the adapter is small enough to fit */
            continue;
        ground_set_up(&ground, v);
        ground_reset(&ground, v);
        if (mount("fsdpck-test", ground.root, "tmpfs", MS_NOSUID | MS_NODEV, "size=200k") != 0) {
            print_message("SKIP a full disk, in one process: a file system of 200 KiB cannot be mounted (%s)\n",
                          strerror(errno));
            skip();
        }
        run_full(v);
        if (umount2(ground.root, MNT_DETACH) != 0)
            abort();
    }
}

static int tear_down(void **state)
{
    (void)state;
    umount2(ground.root, MNT_DETACH); /* left over from a failed test */
    ground_free(&ground);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_source_changes),
        cmocka_unit_test(test_read_only_directory),
        cmocka_unit_test(test_full_disk),
    };
    return cmocka_run_group_tests(tests, group_set_up, tear_down);
}
