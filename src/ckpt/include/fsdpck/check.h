/* SPDX-License-Identifier: Apache-2.0 */
/* Verifies one checkpoint, compares two, and removes the left-overs of dead writers. */
#ifndef FSDPCK_CHECK_H
#define FSDPCK_CHECK_H

#include <fsdpck/source.h>

#ifdef __cplusplus
extern "C" {
#endif

/* One problem, as data. Strings live only during the callback. */
struct fsdpck_problem {
    const char *file;            /* relative to the checkpoint, or "" */
    uint64_t offset;             /* bytes in file */
    uint64_t nbytes;             /* length of the damaged range; 0: the problem has no range */
    int64_t rank;                /* or -1 */
    const char *tensor;          /* or NULL */
    uint64_t row_begin, row_end; /* dim-0 rows of the global tensor that the range touches; equal if unknown */
    const char *what;            /* "block hash differs", … */
};
typedef void (*fsdpck_problem_fn)(void *ctx, const struct fsdpck_problem *problem);

struct fsdpck_verify_result {
    uint64_t nproblems;
    uint64_t nfiles, ntensors, nblocks;
    uint64_t read_nbytes;
    uint64_t nunread; /* files of a hashed checkpoint that are missing or could not be read to the end; each is also a
                         problem */
    double seconds;
    bool hashed; /* every byte of the checkpoint was checked against a hash; false for formats without hashes, and with
                    quick */
};

/* Reads everything (quick: only sizes, tables and index) and reports every problem. Damage that keeps the checkpoint
 * from opening is a problem too. Returns 0 however many problems there are, and an error only if the work could not be
 * done. The callback runs in one thread at a time; problems come in no particular order. opt->note names the parts that
 * could not be checked. */
FSDPCK_API int fsdpck_verify(const char *path, const char *from, bool quick, const struct fsdpck_options *opt,
                             fsdpck_problem_fn report, void *report_ctx, struct fsdpck_verify_result *result,
                             struct fsdpck_error *err);

/* One tensor that differs, or exists on one side only. */
struct fsdpck_difference {
    const char *tensor;
    const struct fsdpck_tensor *a, *b; /* NULL: missing there */
    bool same_dtype, same_shape;
    uint64_t ndifferent; /* elements whose bits differ (with tolerance: whose values differ by more) */
    double max_abs;      /* largest absolute difference; infinity where one is NaN and the other not */
};
typedef void (*fsdpck_difference_fn)(void *ctx, const struct fsdpck_difference *difference);

struct fsdpck_diff_result {
    uint64_t ntensors; /* compared */
    uint64_t ndifferent;
    uint64_t nskipped; /* equal by content id: their bytes were not read */
    double seconds;
};

/* Compares a and b, which may have any kind and sharding. tolerance < 0: bit for bit. Reports differences in name
 * order. */
FSDPCK_API int fsdpck_diff(struct fsdpck_source *a, struct fsdpck_source *b, double tolerance,
                           const struct fsdpck_options *opt, fsdpck_difference_fn report, void *report_ctx,
                           struct fsdpck_diff_result *result, struct fsdpck_error *err);

/* Removes a checkpoint or a model folder. Renames it first (to path.tmp-UUID), then removes its files:
 * fsdpck_leftovers() recognises the remains of a crash. Returns FSDPCK_ERR_EXISTS and removes nothing if path is a
 * symbolic link or holds a file that belongs to no checkpoint or model (the message names the file); FSDPCK_ERR_BUSY
 * while a writer uses the path; FSDPCK_ERR_MISSING if nothing is there. */
FSDPCK_API int fsdpck_remove(const char *path, const struct fsdpck_options *opt, struct fsdpck_error *err);

/* Renames a damaged checkpoint to path.damaged-UUID, so that path is free for a new one. Removes nothing:
 * FSDPCK_CLEAN_ALL does that. *aside gets the new path, malloc'ed, for the caller to free; aside may be NULL. Errors as
 * for fsdpck_remove(), but foreign files are allowed and move along. */
FSDPCK_API int fsdpck_set_aside(const char *path, const struct fsdpck_options *opt, char **aside,
                                struct fsdpck_error *err);

/* A left-over beside or inside a checkpoint path: a writer's temporary, a replaced checkpoint, or a damaged checkpoint
 * that was set aside. */
struct fsdpck_leftover {
    const char *path;
    bool alive;      /* its writer may still be running: it holds the lock, or runs on another host or boot */
    const char *why; /* "writer is gone", "locked by a writer", "made on host 'x'" */
    bool removed;    /* the clean-up removed it */
    bool set_aside;  /* fsdpck_set_aside() made it */
};

enum fsdpck_clean {
    FSDPCK_CLEAN_NOTHING, /* list only */
    FSDPCK_CLEAN_DEAD,    /* remove the left-overs of dead writers */
    FSDPCK_CLEAN_ALL,     /* also remove damaged checkpoints that were set aside */
};
typedef void (*fsdpck_leftover_fn)(void *ctx, const struct fsdpck_leftover *leftover);

/* Lists the left-overs of `path` itself (path.tmp-…, path.old-…) and, if path is a directory, of every entry directly
 * in it. If a replacement was killed between its two renames, path is missing and path.old-… is complete: cleaning then
 * renames it back to path. */
FSDPCK_API int fsdpck_leftovers(const char *path, enum fsdpck_clean clean, const struct fsdpck_options *opt,
                                fsdpck_leftover_fn report, void *report_ctx, struct fsdpck_error *err);

#ifdef __cplusplus
}
#endif
#endif
