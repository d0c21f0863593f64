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
    uint32_t nranks;                    /* of what is written; VERB_SAVE has as many writers */
    bool old;                           /* there is an output to be replaced, with force */
    bool mount;                         /* the output cannot be renamed: it is written in place */
    bool no_exchange;                   /* names cannot be exchanged */
    bool compress;                      /* of convert and reshard */
    bool whole;                         /* of an export: cut into no pieces */
    const char *old_from;               /* what is replaced, below the ground's top; NULL: one of the same kind */
    bool old_is_adapter, old_is_folder; /* what that one is, where it is no checkpoint */
    bool reference;                     /* what is written names the new model's folder as its frozen base */
    uint32_t spare_fsyncs;              /* bit k: no crash needs fsync k (from 0) */
};
extern const struct verb verbs[];
extern const size_t nverbs;

/* The sources, and a directory `root` that the output is written in, under the name verb_out(). */
struct ground {
    char *top, *root, *crash;  /* crash: for a second root beside the first, not made */
    char *boot;                /* a boot id of another start of the machine */
    char *folder, *checkpoint; /* sources: the new model as a Hugging Face folder, and sharded over 3 ranks */
    char *referring;           /* source: as checkpoint, and with the folder as its base */
    struct fsdpck_base base;
    struct fsdpck_base_tensor base_tensor; /* the new model's first */
    struct model was, is;                  /* the old output is of one, the new one of the other */
    char *adapter, *no_change;             /* sources: the new adapter, and one that merges without changing a thing */
    struct model adapter_was, adapter_is;
    char *out;                   /* of the verb that was set up, as is what follows: path of its output in root */
    char *old_names, *new_names; /* what is in root before and after, save ids masked */
    unsigned nops[VERB_MAX_RANKS];
};
void ground_new(struct ground *g);
void ground_free(struct ground *g);
/* The one of a test program, and what cmocka calls around all of its tests. */
extern struct ground ground;
int group_set_up(void **state);
int group_tear_down(void **state);
/* Runs the verb once without faults: fills names and nops. The test fails where it does not work. */
void ground_set_up(struct ground *g, const struct verb *v);
void ground_reset(const struct ground *g, const struct verb *v); /* root as before the verb */

/* How to run: a table for each rank (only VERB_SAVE has several). A rank with `mortal` is gone once that table has
 * killed it, and the barrier gives up. */
struct verb_how {
    const struct fsdpck_io *io[VERB_MAX_RANKS];
    const struct faulty *mortal[VERB_MAX_RANKS];
    unsigned nthreads; /* of each rank; 0: one */
    bool force;
};
struct verb_result {
    int code[VERB_MAX_RANKS];
    struct fsdpck_error err[VERB_MAX_RANKS];
};
/* Allocates nothing itself. */
void verb_run(const struct verb *v, const struct ground *g, const struct verb_how *how, struct verb_result *result);
/* With tables of its own, of which that of one rank dies at operation n; true when it came to that. */
bool verb_run_killed(const struct verb *v, const struct ground *g, uint32_t rank, unsigned n, unsigned nthreads,
                     bool force);
uint32_t verb_writers(const struct verb *v); /* tables that verb_run() wants */
/* One table, or one for each writer, with the verb's lies told. f: (VERB_MAX_RANKS) */
void verb_tables(const struct verb *v, const struct ground *g, struct faulty **f, struct verb_how *how);
void verb_tables_free(struct faulty **f);
const char *verb_out(const struct verb *v); /* name in root */

enum verb_state { STATE_NONE, STATE_OLD, STATE_NEW, STATE_BROKEN };
/* What stands under the output's name: wholly the old one, wholly the new one, nothing, or something else; then why (of
 * static storage) says what. Left-overs beside it do not count. Those in it, in place, may hide files of the right
 * state until they are cleaned up: cleaned tells that no such excuse is taken. */
enum verb_state verb_state(const struct verb *v, const struct ground *g, const char *root, bool cleaned,
                           const char **why);
/* Whether root holds the output in this state and nothing else. */
bool verb_is_exactly(const struct ground *g, const char *root, enum verb_state state);

/* fsdpck_leftovers(); rebooted: as seen after the machine was started anew. The counts are of what was reported. */
struct verb_leftovers {
    unsigned nfound, nalive, nremoved;
};
int verb_clean(const struct verb *v, const struct ground *g, const char *root, bool remove, bool rebooted,
               struct verb_leftovers *seen, struct fsdpck_error *err);

/* Ends the test with a sentence, and the names in root. */
void verb_fail(const struct verb *v, const char *root, const char *fmt, ...) FSDPCK_PRINTF(3, 4);

#endif
