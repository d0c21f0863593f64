/* SPDX-License-Identifier: Apache-2.0 */
/* Runs the verbs of the library on a model of a few tensors: each starts from its old state, through an I/O table of
 * the test, and its result is judged. Shared by the tests that kill, lose power and inject faults. All functions abort
 * on a system error. */
#ifndef TESTS_VERBS_H
#define TESTS_VERBS_H

#include <fsdpck/base.h>

#include "faulty_io.h"
#include "model.h"

#define VERB_MAX_RANKS 3

enum verb_kind {
    VERB_CONVERT,
    VERB_RESHARD,
    VERB_EXPORT_FOLDER,
    VERB_EXPORT_FILE,
    VERB_EXPORT_LORA,
    VERB_MERGE_LORA,
    VERB_SAVE
};

struct verb {
    const char *name;
    enum verb_kind kind;
    uint32_t nranks;      /* of the output; VERB_SAVE has as many writers */
    bool old;             /* an output exists, and is replaced with force */
    bool mount;           /* the output cannot be renamed, so it is written in place */
    bool no_exchange;     /* the file system cannot exchange names */
    bool compress;        /* for convert, reshard and save */
    bool phases;          /* for save: begin, parts, commit */
    bool whole;           /* for an export: not split into files */
    const char *old_from; /* source of the replaced output, below the ground's top; NULL: of the same kind */
    bool old_is_adapter, old_is_folder; /* kind of the replaced output, if not a checkpoint */
    bool reference;                     /* the output names the new model's folder as its frozen base */
    uint32_t spare_fsyncs;              /* bit k: no crash needs fsync k (from 0) */
};
extern const struct verb verbs[];
extern const size_t nverbs;

/* The sources, and the directory `root` that receives the output, named verb_out(). */
struct ground {
    char *top, *root, *crash;  /* crash: path for a second root, not created */
    char *boot;                /* a boot id of another boot */
    char *folder, *checkpoint; /* sources: the new model as a Hugging Face folder, and sharded over 3 ranks */
    char *referring;           /* source: like checkpoint, with the folder as its base */
    struct fsdpck_base base;
    struct fsdpck_base_tensor base_tensor; /* the first of the new model */
    struct model was, is;                  /* models of the old and the new output */
    char *adapter, *no_change;             /* sources: the new adapter, and one that merges without effect */
    struct model adapter_was, adapter_is;
    char *out;                   /* for the verb that was set up, like all that follows: path of its output in root */
    char *old_names, *new_names; /* names in root before and after, save ids masked */
    unsigned nops[VERB_MAX_RANKS];
};
void ground_new(struct ground *g);
void ground_free(struct ground *g);
/* The ground of a test program, and cmocka's group fixtures. */
extern struct ground ground;
int group_set_up(void **state);
int group_tear_down(void **state);
/* Runs the verb once without faults, and fills names and nops. Fails the test if the verb fails. */
void ground_set_up(struct ground *g, const struct verb *v);
void ground_reset(const struct ground *g, const struct verb *v); /* restores root to the state before the verb */

/* How to run a verb: an I/O table for each rank (only VERB_SAVE has several). A rank with `mortal` counts as dead once
 * that table has killed it, and the barrier then fails. */
struct verb_how {
    const struct fsdpck_io *io[VERB_MAX_RANKS];
    const struct faulty *mortal[VERB_MAX_RANKS];
    unsigned nthreads; /* per rank; 0: one */
    bool force;
};
struct verb_result {
    int code[VERB_MAX_RANKS];
    struct fsdpck_error err[VERB_MAX_RANKS];
};
/* Runs the verb. Makes no allocation of its own. */
void verb_run(const struct verb *v, const struct ground *g, const struct verb_how *how, struct verb_result *result);
/* Runs the verb with tables of its own; that of `rank` dies at operation n. Returns true if operation n was reached. */
bool verb_run_killed(const struct verb *v, const struct ground *g, uint32_t rank, unsigned n, unsigned nthreads,
                     bool force);
uint32_t verb_writers(const struct verb *v); /* number of tables for verb_run() */
/* Makes one table, or one per writer, with the verb's simulated limits. f: (VERB_MAX_RANKS) */
void verb_tables(const struct verb *v, const struct ground *g, struct faulty **f, struct verb_how *how);
void verb_tables_free(struct faulty **f);
const char *verb_out(const struct verb *v); /* name in root */

enum verb_state { STATE_NONE, STATE_OLD, STATE_NEW, STATE_BROKEN };
/* Judges the output: wholly old, wholly new, missing, or anything else, which *why (static storage) then explains.
 * Left-overs beside it are ignored. Left-overs inside it (written in place) may hide files of the right state, unless
 * `cleaned` is true. */
enum verb_state verb_state(const struct verb *v, const struct ground *g, const char *root, bool cleaned,
                           const char **why);
/* Returns true if root holds the output in this state and nothing else. */
bool verb_is_exactly(const struct ground *g, const char *root, enum verb_state state);

/* fsdpck_leftovers(); rebooted: as seen after a reboot. The counts are those reported. */
struct verb_leftovers {
    unsigned nfound, nalive, nremoved;
};
int verb_clean(const struct verb *v, const struct ground *g, const char *root, bool remove, bool rebooted,
               struct verb_leftovers *seen, struct fsdpck_error *err);

/* Ends the test with a message and the names in root. */
void verb_fail(const struct verb *v, const char *root, const char *fmt, ...) FSDPCK_PRINTF(3, 4);

#endif
