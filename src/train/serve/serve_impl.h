/* SPDX-License-Identifier: Apache-2.0 */
/* Internals of a server's base, ranks and adapters, shared by its files. */
#ifndef SERVE_IMPL_H
#define SERVE_IMPL_H

#include <pthread.h>
#include <train/serve.h>

#include "model/kv.h"
#include "rank/beside.h"
#include "sample/choose.h"
#include "serve/ranges.h"

/* A thread of the server. A rank computes; one thread more, without buffers for it, reads and writes files. */
struct lane {
    struct serve *s;
    uint32_t number; /* of the rank; nranks: the thread for files */
    struct comm *comm;
    struct rank *rank; /* bare; of the thread for files, only its computation: */
    struct compute *compute;
    struct kern_buffer activations; /* shared by the computations of all adapters */
    float *grads;                   /* (grads_capacity) of the packet that the rank computes */
    int64_t grads_capacity;
    struct choose *choose;
    uint32_t nsampling;      /* samples that it generates; under the mutex */
    struct fsdpck_error err; /* of its start */
    pthread_t thread;
    bool started;
};

struct serve {
    struct train_config config;
    struct train_options opt;
    struct job job; /* of the base: all of it frozen */
    struct job_status *job_status;
    struct comm_world *world;
    uint64_t seq_len, max_rank;
    uint32_t nranks;
    struct lane *lanes; /* (nranks + 1) */
    uint64_t activation_nbytes;
    uint64_t beside_nbytes; /* of parameter memory, for adapters */
    struct serve_adapter *base;
    struct kv_pool *kv; /* keys and values of the samples */

    pthread_mutex_t mutex; /* of what follows */
    pthread_cond_t changed;
    struct ranges ranges; /* of parameter memory, behind the base */
    struct serve_adapter *adapters;
    struct serve_task *awaited; /* of samples: the next to begin when there are pages for it; NULL: none */
    uint32_t nready;            /* lanes that have started, or failed to */
    bool opened, ends;          /* lanes may take tasks; must end */
};

/* The memory and state of an adapter that has begun. */
struct held {
    struct train_config config;
    struct job job;
    struct rank_beside beside; /* not of the base */
    struct range values;
    struct compute **computes; /* (nranks) each made by its lane, on first use */
    bool has_grads;            /* beside.rank->own holds the gradients of the passes so far */
};

struct serve_adapter {
    struct serve *s;
    bool frozen;
    struct held *held;               /* NULL: it has not begun */
    struct fsdpck_error why;         /* it could not begin */
    struct serve_task *first, *last; /* the queue; under s->mutex, as is what follows */
    double served;                   /* tokens that were computed for it */
    uint64_t tickets, folded;        /* packets with gradients that have begun; whose gradients are added */
    uint32_t nending;                /* lanes that end its tasks */
    bool released;
    struct serve_adapter *next;
};

/* adapter.c: each runs in a lane, while no other task of the adapter does. */
int adapter_begin(struct lane *lane, struct serve_task *t);
int adapter_load(struct lane *lane, struct serve_task *t);
int adapter_freeze(struct lane *lane, struct serve_task *t);
int adapter_begin_base(struct serve *s, struct serve_adapter *a, struct fsdpck_error *err);
void held_free(struct serve *s, struct held *h); /* NULL does nothing */
/* The config of a new adapter; owned. apart: with the experts' weights as parameters in any case, as an adapter that is
 * loaded may have them. */
int adapter_config_of(const struct serve *s, const struct serve_lora *lora, bool apart, struct train_config *out,
                      struct fsdpck_error *err);
/* The layout of an adapter that is placed nowhere. */
int adapter_layout(const struct serve *s, const struct train_config *config, struct layout *out,
                   struct fsdpck_error *err);
/* The computation of a lane for an adapter. */
int adapter_compute(struct lane *lane, struct held *h, struct compute **out, struct fsdpck_error *err);

/* pass.c */
/* Divides a pass into packets: sets t->nunits. */
int pass_plan(const struct serve *s, struct serve_task *t);
void pass_drop(struct serve_task *t);
/* Computes one packet. ticket: its number in the order in which gradients are added; unused by a forward pass. */
int pass_run(struct lane *lane, struct serve_task *t, size_t unit, uint64_t ticket, struct fsdpck_error *err);
int64_t pass_ntok(const struct serve_task *t, size_t unit);
int optimize_run(struct lane *lane, struct serve_task *t);

/* save.c */
int save_run(struct lane *lane, struct serve_task *t);
/* Reads the moments and the number of updates from a checkpoint that save_run() wrote. */
int save_read(struct held *h, const char *path, struct fsdpck_error *err);

/* generate.c. A unit of a task is a sample; the first one reads the prompt for all. */
struct serve_read {
    bool done; /* under the mutex, as is err: other units may begin */
    struct fsdpck_error err;
    struct kv kv;
    float *logits; /* (nvocab) of the first token */
};
struct generate_unit {
    struct serve_task *t;
    size_t number;           /* of the sample */
    struct fsdpck_error err; /* output */
};
/* Sets t->nunits, and allocates the samples. */
int generate_plan(struct serve_task *t);
/* Gives back the pages of the prompt, and what generate_plan() allocated beside the samples. */
void generate_drop(struct serve *s, struct serve_task *t);
/* The most pages of keys and values that the prompt takes, until the task is done; and that each sample takes. */
size_t generate_prompt_npages(const struct serve_sample *x);
size_t generate_sample_npages(const struct serve_sample *x);
/* Generates a sample, and those that queue_take_sample() gives meanwhile: a weight is read once for a token of each
 * sample. Their bits are those of each alone. */
void generate_run(struct lane *lane, const struct generate_unit *first);

/* queue.c */
void *queue_run(void *lane);
/* Waits until the gradients of all earlier packets are added; then the caller adds its own, and says so. */
void queue_await_turn(struct serve_adapter *a, uint64_t ticket);
void queue_pass_turn(struct serve_adapter *a);
/* Another sample for a lane that generates some; false: none is due. */
bool queue_take_sample(struct lane *lane, struct generate_unit *out);
bool queue_ends(struct serve *s); /* the server ends */
void queue_end_sample(struct lane *lane, const struct generate_unit *u);
void queue_end_prompt(struct serve_task *t); /* it is read: the other samples may begin */

#endif
