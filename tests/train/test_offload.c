/* SPDX-License-Identifier: Apache-2.0 */
/* Optimizer state in a file: the elements of a plain array after random updates and kept states, and the errors of a
 * disk that is full, fails, or gives back other bytes. Runs under TSan. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "rank/offload.h"
#include "disk_folder.h"

enum { NPARAMS = 9, NSTEPS = 7 };

/* What the disk does. Set before an offload is opened. */
static struct {
    int fail_read, fail_write; /* the read or write with this number fails; -1: none */
    int read_errno;            /* 0: the file ends before */
    bool flips, no_room, no_reserve, no_direct, no_unnamed, short_transfers;
    int nread, nwritten;
} disk;

static bool is_hit(int *count, int which)
{
    return __atomic_fetch_add(count, 1, __ATOMIC_RELAXED) == which;
}

static uint64_t shorten(uint64_t nbytes)
{
    return disk.short_transfers && nbytes > 8192 ? nbytes / 2 : nbytes;
}

static int64_t disk_pread(void *ctx, int fd, void *buf, uint64_t nbytes, uint64_t offset)
{
    bool hit = is_hit(&disk.nread, disk.fail_read);
    if (hit && !disk.flips)
        return -disk.read_errno;
    int64_t n = fsdpck_io_posix.pread(ctx, fd, buf, shorten(nbytes), offset);
    if (hit)
        *(unsigned char *)buf ^= 1;
    return n;
}

static int64_t disk_pwrite(void *ctx, int fd, const void *buf, uint64_t nbytes, uint64_t offset)
{
    return disk.no_room && offset + nbytes > 1 << 20 ? -ENOSPC
           : is_hit(&disk.nwritten, disk.fail_write) ? -EIO
                                                     : fsdpck_io_posix.pwrite(ctx, fd, buf, shorten(nbytes), offset);
}

static int disk_open(void *ctx, const char *path, int flags, unsigned mode)
{
    if (disk.no_direct && (flags & FSDPCK_OPEN_DIRECT))
        return -EINVAL;
    if (disk.no_unnamed && (flags & FSDPCK_OPEN_UNNAMED))
        return -EOPNOTSUPP;
    return fsdpck_io_posix.open(ctx, path, flags, mode);
}

static int disk_allocate(void *ctx, int fd, uint64_t nbytes)
{
    return disk.no_reserve ? -EOPNOTSUPP : disk.no_room ? -ENOSPC : fsdpck_io_posix.allocate(ctx, fd, nbytes);
}

static struct fsdpck_io disk_io(void)
{
    struct fsdpck_io io = fsdpck_io_posix;
    io.pread = disk_pread;
    io.pwrite = disk_pwrite;
    io.open = disk_open;
    io.allocate = disk_allocate;
    return io;
}

struct small {
    struct param params[NPARAMS];
    struct layout layout;
    struct train_config config;
};

/* Rows of odd lengths, frozen parameters between trained ones. */
static void make_model(struct small *m, bool masters, uint64_t memory_nbytes)
{
    static const int64_t nrow[NPARAMS] = { 700, 1, 33, 0, 4096, 17, 2, 900, 5 },
                         ncol[NPARAMS] = { 37, 1, 900, 64, 1, 555, 1021, 3, 800 };
    *m = (struct small){ .layout = { .nparams = NPARAMS, .masters = masters } };
    m->config.fsdp.offload = folder;
    m->config.fsdp.offload_memory = memory_nbytes;
    m->layout.params = m->params;
    for (size_t i = 0; i < NPARAMS; i++) {
        m->params[i] = (struct param){
            .nrow = nrow[i], .ncol = ncol[i], .chunk = nrow[i], .trainable = i != 2, .own_at = m->layout.own_nelem
        };
        m->layout.own_nelem += i == 2 ? 0 : (nrow[i] * ncol[i] + 15) / 16 * 16;
    }
}

struct opened {
    struct small model;
    struct fsdpck_io io;
    struct offload_sizes sizes;
    void *memory;
    struct offload *offload;
    struct fsdpck_error err;
};

static int open_state(struct opened *o, bool masters, uint64_t memory_nbytes)
{
    *o = (struct opened){ .io = disk_io() };
    make_model(&o->model, masters, memory_nbytes);
    int rc = offload_count(&o->model.config, &o->model.layout, false, &o->sizes, &o->err);
    if (rc)
        return rc;
    assert_true(o->sizes.memory_nbytes <= memory_nbytes);
    o->memory = aligned_alloc(4096, o->sizes.memory_nbytes);
    memset(o->memory, 0x55, o->sizes.memory_nbytes);
    return offload_new(&o->model.layout, &o->sizes, 3, folder, &o->io, o->memory, &o->offload, &o->err);
}

static void close_state(struct opened *o)
{
    offload_free(o->offload);
    free(o->memory);
}

/* The same state in plain arrays. */
struct plain {
    float *trees[OFFLOAD_TREES];
};

static struct plain plain_new(const struct small *m)
{
    struct plain p;
    for (int t = 0; t < OFFLOAD_TREES; t++)
        p.trees[t] = calloc((size_t)m->layout.own_nelem, sizeof(float));
    return p;
}

static void plain_free(struct plain *p)
{
    for (int t = 0; t < OFFLOAD_TREES; t++)
        free(p->trees[t]);
}

static bool is_state(const struct opened *o, const struct param *p, int tree)
{
    return p->trainable && p->nrow > 0 && (tree > 0 || o->sizes.values);
}

static float next(float before, int64_t at, int step)
{
    return before * 0.5f + (float)((at * 2654435761u + (unsigned)step * 97u) % 1009u);
}

static void load(struct opened *o, struct plain *plain)
{
    for (int tree = 0; tree < OFFLOAD_TREES; tree++)
        for (size_t i = 0; i < NPARAMS; i++) {
            const struct param *p = &o->model.params[i];
            int64_t room, all = p->nrow * p->ncol;
            float *data;
            for (int64_t at = p->own_at, end = at + all; is_state(o, p, tree) && at < end; at += room) {
                assert_int_equal(offload_open(o->offload, tree, at, &data, &room, &o->err), 0);
                room = room < end - at ? room : end - at;
                assert_int_equal((int)(room % p->ncol), 0); /* chunks end between rows */
                for (int64_t k = 0; k < room; k++)
                    plain->trees[tree][at + k] = data[k] = next(0, at + k, tree);
            }
        }
    assert_int_equal(offload_close(o->offload, &o->err), 0);
}

static int update(struct opened *o, struct plain *plain, int step)
{
    struct offload_view view;
    int rc = 0;
    offload_begin(o->offload);
    for (uint64_t i = 0; i < o->sizes.nchunks && !rc; i++) {
        rc = offload_take(o->offload, &view, &o->err);
        for (int tree = 0; tree < OFFLOAD_TREES && !rc; tree++)
            for (int64_t k = 0; view.trees[tree] && k < view.chunk.nelem; k++)
                view.trees[tree][k] = next(view.trees[tree][k], view.chunk.at + k, step);
        if (!rc)
            offload_give(o->offload);
    }
    for (int tree = 0; tree < OFFLOAD_TREES; tree++)
        for (int64_t k = 0; k < o->model.layout.own_nelem; k++)
            plain->trees[tree][k] = next(plain->trees[tree][k], k, step);
    return rc;
}

static int compare(struct opened *o, const struct plain *plain)
{
    float *got = malloc((size_t)o->model.layout.own_nelem * sizeof *got);
    int rc = 0;
    for (int tree = 0; tree < OFFLOAD_TREES; tree++)
        for (size_t i = 0; i < NPARAMS && !rc; i++) {
            const struct param *p = &o->model.params[i];
            const int64_t nelem = p->nrow * p->ncol, half = nelem / 3;
            if (!is_state(o, p, tree))
                continue;
            rc = offload_read_kept(o->offload, tree, p->own_at, half, got, &o->err);
            if (!rc)
                rc = offload_read_kept(o->offload, tree, p->own_at + half, nelem - half, got + half, &o->err);
            if (!rc)
                assert_memory_equal(got, plain->trees[tree] + p->own_at, (size_t)nelem * sizeof *got);
        }
    free(got);
    return rc;
}

/* Updates go on while the kept state is read, and once nothing was updated between two kept states. */
static void run(bool masters, uint64_t memory_nbytes)
{
    struct opened o;
    assert_int_equal(open_state(&o, masters, memory_nbytes), 0);
    struct plain plain = plain_new(&o.model), kept = plain_new(&o.model);
    load(&o, &plain);
    for (int step = 0; step < NSTEPS; step++) {
        if (step % 3 != 1) {
            offload_keep(o.offload);
            for (int t = 0; t < OFFLOAD_TREES; t++)
                memcpy(kept.trees[t], plain.trees[t], (size_t)o.model.layout.own_nelem * sizeof(float));
        }
        if (step == 3)
            assert_int_equal(compare(&o, &kept), 0);
        if (step == 3)
            offload_keep(o.offload);
        assert_int_equal(update(&o, &plain, step), 0);
        assert_int_equal(compare(&o, &kept), 0);
    }
    const struct offload_times times = offload_times(o.offload);
    assert_true(times.nbytes > 0 && times.busy_ns > 0);
    plain_free(&kept);
    plain_free(&plain);
    close_state(&o);
}

static void well(void)
{
    memset(&disk, 0, sizeof disk);
    disk.fail_read = disk.fail_write = -1;
}

static void same_elements(void **state)
{
    (void)state;
    for (int masters = 0; masters < 2; masters++) {
        static const uint64_t memory[] = { 65536, 100000, 300000, 1 << 20, 64 << 20 };
        for (size_t i = 0; i < sizeof memory / sizeof memory[0]; i++) {
            well();
            run(masters, memory[i]);
            disk.short_transfers = disk.no_direct = disk.no_unnamed = true;
            run(masters, memory[i]);
        }
    }
}

static void direct_or_not(void **state)
{
    struct opened o;
    (void)state;
    well();
    disk.no_direct = true;
    assert_int_equal(open_state(&o, true, 1 << 20), 0);
    assert_false(offload_is_direct(o.offload));
    close_state(&o);
}

static void full_disk(void **state)
{
    struct opened o;
    (void)state;
    well();
    for (int i = 0; i < 2; i++) {
        disk.no_room = true;
        disk.no_reserve = i > 0; /* room is reserved by writing */
        assert_int_equal(open_state(&o, true, 1 << 20), FSDPCK_ERR_IO);
        assert_non_null(strstr(o.err.message, "rank 3: no room for"));
        assert_non_null(strstr(o.err.message, strerror(ENOSPC)));
        assert_null(o.offload);
        close_state(&o);
        well();
    }
    disk.no_reserve = disk.short_transfers = true;
    assert_int_equal(open_state(&o, true, 1 << 20), 0);
    close_state(&o);
    well();
    assert_int_equal(open_state(&o, true, 20000), FSDPCK_ERR_USAGE);
    assert_non_null(strstr(o.err.message, "the rows of this model need 40960"));
}

/* An operation that fails is an error of a later update or of a checkpoint, and never a hang. */
static void failing_disk(void **state)
{
    (void)state;
    for (int which = 0; which < 60; which += 7) {
        for (int how = 0; how < 4; how++) {
            struct opened o;
            well();
            assert_int_equal(open_state(&o, true, 65536), 0);
            struct plain plain = plain_new(&o.model);
            load(&o, &plain);
            *(how < 3 ? &disk.fail_read : &disk.fail_write) = which;
            disk.nread = disk.nwritten = 0;
            disk.read_errno = how == 0 ? EIO : 0;
            disk.flips = how == 2;
            int rc = 0;
            for (int step = 0; step < NSTEPS && !rc; step++)
                rc = update(&o, &plain, step);
            offload_keep(o.offload);
            if (!rc)
                rc = compare(&o, &plain);
            assert_int_equal(rc, FSDPCK_ERR_IO);
            static const char *const words[] = { "Input/output error", "the file ends before",
                                                 "the bytes are not those that were written", "write of" };
            assert_non_null(strstr(o.err.message, "rank 3: the optimizer state in a file of this folder"));
            assert_non_null(strstr(o.err.message, words[how]));
            assert_int_equal(o.err.sys_errno, 0); /* a resume takes EIO for a damaged checkpoint */
            plain_free(&plain);
            close_state(&o);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_elements),
        cmocka_unit_test(direct_or_not),
        cmocka_unit_test(full_disk),
        cmocka_unit_test(failing_disk),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
