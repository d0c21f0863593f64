/* SPDX-License-Identifier: Apache-2.0 */
/* The files of a run, for programs that look at it while it trains or afterwards. Nothing is written or locked. */
#ifndef TRAIN_HISTORY_H
#define TRAIN_HISTORY_H

#include <fsdpck/error.h>

struct json_t;

#ifdef __cplusplus
extern "C" {
#endif

/* The values of a key of metrics.jsonl, over the lines that have it. An element of a list has a curve of its own:
 * "rank_busy_seconds[3]". */
struct train_curve {
    char *name;
    uint64_t *steps; /* (count) ascending */
    double *values;  /* (count) NaN: null in the file, a number that was not finite */
    size_t count, steps_capacity, values_capacity;
};

struct train_history {
    uint64_t *steps; /* (nsteps) of all lines, ascending */
    size_t nsteps, steps_capacity;
    struct train_curve *curves; /* (ncurves) in the order of their first lines */
    size_t ncurves, curves_capacity;
    uint64_t nbad; /* lines that are no metrics; the line that a running or killed run has not finished is one */
};

/* Reads metrics.jsonl. A step that comes again replaces all later ones, as in the run that wrote it. On failure *out is
 * empty. */
FSDPCK_API int train_history_read(const char *path, struct train_history *out, struct fsdpck_error *err);
/* Reads the whole lines among the last max_nbytes. */
FSDPCK_API int train_history_read_tail(const char *path, uint64_t max_nbytes, struct train_history *out,
                                       struct fsdpck_error *err);
FSDPCK_API void train_history_free(struct train_history *h);

/* Chooses at most npoints (from 6) values that show a curve: of each stretch the least, the greatest and the first NaN,
 * and the first and last value of all. Fills kept (npoints) with ascending indices; returns their number. */
FSDPCK_API size_t train_curve_thin(const struct train_curve *curve, size_t npoints, size_t *kept);

/* A checkpoint of a run. */
struct train_saved {
    uint64_t step, nbytes, nfiles;
};

/* A file of samples. */
struct train_sampled {
    uint64_t step;
    char *text; /* owned; it may be no UTF-8 */
    size_t nbytes;
};

/* A picture in samples/. */
struct train_drawn {
    uint64_t step, prompt; /* prompt: its place in sample.prompts, from 1 */
    uint64_t nbytes;
};

struct train_folder {
    struct train_saved *saved; /* (nsaved) by step */
    size_t nsaved, saved_capacity;
    struct train_sampled *sampled; /* (nsampled) by step */
    size_t nsampled, sampled_capacity;
    uint64_t nsampled_all;     /* with those that are left out */
    struct train_drawn *drawn; /* (ndrawn) by step and prompt, of some steps */
    size_t ndrawn, drawn_capacity;
    uint64_t ndrawn_all;        /* of all steps */
    struct json_t *events;      /* the objects of events.jsonl; an array, owned. All starts but the last are without
                                   their config; of the notes there are the last 200 */
    bool trains;                /* a run holds the folder's lock */
    bool ended, finished;       /* its last start has ended; with the last step done */
    uint64_t nsteps;            /* of the whole run; 0: no file tells */
    uint64_t ntrained, nfrozen; /* parameters; 0: unknown */
};

/* Reads the rest of output_dir: at most max_samples files of samples, spread over the steps, and the names of pictures
 * of at most as many steps (fewer if their files are large). A missing file is not an error. On failure *out is empty.
 */
FSDPCK_API int train_folder_read(const char *path, size_t max_samples, struct train_folder *out,
                                 struct fsdpck_error *err);
enum { TRAIN_DRAWN_NAME = 64 };
/* The name of a picture in samples/. */
FSDPCK_API void train_drawn_name(const struct train_drawn *d, char name[TRAIN_DRAWN_NAME]);
/* "under way", "finished", "stopped", or "interrupted": it neither ended nor trains. */
FSDPCK_API const char *train_folder_state(const struct train_folder *f);
FSDPCK_API void train_folder_free(struct train_folder *f);

#ifdef __cplusplus
}
#endif
#endif
