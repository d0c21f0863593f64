/* SPDX-License-Identifier: Apache-2.0 */
/* Looking for trouble: verify one checkpoint, compare two, clean up after writers that are gone. */
#ifndef FSDPCK_CHECK_H
#define FSDPCK_CHECK_H

#include <fsdpck/source.h>

#ifdef __cplusplus
extern "C" {
#endif

/* One problem, as data. Strings live only during the callback. */
struct fsdpck_problem {
    const char *file;   /* relative to the checkpoint, or "" */
    uint64_t offset;    /* bytes in file */
    uint64_t nbytes;    /* damaged range; 0 where it is not about a range */
    int64_t rank;       /* or -1 */
    const char *tensor; /* or NULL */
    uint64_t row_begin, row_end; /* dim-0 rows of the global tensor that the range touches; equal where not known */
    const char *what;   /* "block hash differs", … */
};
typedef void (*fsdpck_problem_fn)(void *ctx, const struct fsdpck_problem *problem);

struct fsdpck_verify_result {
    uint64_t nproblems;
    uint64_t nfiles, ntensors, nblocks;
    uint64_t read_nbytes;
    uint64_t nunread; /* files of a hashed checkpoint that are not there, or could not be read to their end: problems say which */
    double seconds;
    bool hashed; /* every byte of the checkpoint is under a hash that was checked; false for formats without them (and with quick) */
};

/* Reads everything (quick: only sizes, tables and index) and reports every problem; opening failures that are damage are reported
 * too. Returns 0 however many problems there are; an error only where the work could not be done. Problems arrive from one thread
 * at a time, in no particular order. What could not be checked is said through opt->note. */
FSDPCK_API int fsdpck_verify(const char *path, const char *from, bool quick, const struct fsdpck_options *opt, fsdpck_problem_fn report,
                             void *report_ctx, struct fsdpck_verify_result *result, struct fsdpck_error *err);

/* One tensor that differs, or is on one side only. */
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
    uint64_t nskipped; /* equal by content id, bytes not read */
    double seconds;
};

/* tolerance < 0: bit for bit. Both sides may be of any kind and sharding. Differences arrive in name order. */
FSDPCK_API int fsdpck_diff(struct fsdpck_source *a, struct fsdpck_source *b, double tolerance, const struct fsdpck_options *opt,
                           fsdpck_difference_fn report, void *report_ctx, struct fsdpck_diff_result *result, struct fsdpck_error *err);

/* Removes a checkpoint or a model folder that has been replaced or is not wanted any more: its name goes first (to path.tmp-UUID), then its files, so that a
 * crash leaves a left-over that fsdpck_leftovers() knows. FSDPCK_ERR_EXISTS, and nothing is touched, where a file in it belongs to no checkpoint or model
 * (the message names it) or path is a symbolic link; FSDPCK_ERR_BUSY while a writer is at work on the path; FSDPCK_ERR_MISSING where nothing is there. */
FSDPCK_API int fsdpck_remove(const char *path, const struct fsdpck_options *opt, struct fsdpck_error *err);

/* Gives a damaged checkpoint another name, path.damaged-UUID, so that path is free for a new one. Nothing is removed: FSDPCK_CLEAN_ALL does that. *aside:
 * the new path, malloc'ed, for the caller to free; may be NULL. Errors as above, though foreign files in it go along. */
FSDPCK_API int fsdpck_set_aside(const char *path, const struct fsdpck_options *opt, char **aside, struct fsdpck_error *err);

/* A left-over beside (or inside) a checkpoint path: a writer's temporary, a replaced old one, a damaged one that was set aside. */
struct fsdpck_leftover {
    const char *path;
    bool alive;      /* its writer may still be at work: it holds the lock, or lives on another host or boot */
    const char *why; /* "writer is gone", "locked by a writer", "made on host 'x'" */
    bool removed;    /* set when clean removed it */
    bool set_aside;  /* fsdpck_set_aside() made it */
};

enum fsdpck_clean {
    FSDPCK_CLEAN_NOTHING, /* only look */
    FSDPCK_CLEAN_DEAD,    /* remove what writers that are gone left behind */
    FSDPCK_CLEAN_ALL,     /* and what was set aside as damaged */
};
typedef void (*fsdpck_leftover_fn)(void *ctx, const struct fsdpck_leftover *leftover);

/* Left-overs of `path` itself (path.tmp-…, path.old-…) and, where path is a directory, of everything directly in it. Where the path
 * is missing but a complete old one stands beside it (killed between two renames of a replacement), cleaning moves it back. */
FSDPCK_API int fsdpck_leftovers(const char *path, enum fsdpck_clean clean, const struct fsdpck_options *opt, fsdpck_leftover_fn report,
                                void *report_ctx, struct fsdpck_error *err);

#ifdef __cplusplus
}
#endif
#endif
