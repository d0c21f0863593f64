/* SPDX-License-Identifier: Apache-2.0 */
/* Adapters that come and go on one base in memory, as `fsdptrain serve` needs them: tasks train, save, load and sample
 * them. The tasks of an adapter run in the order in which they were submitted; those of several adapters share the
 * ranks, fairly by tokens. An adapter's numbers do not depend on the other adapters, or on the number of ranks. Ranks
 * are threads of this process, on one host, and compute on the CPU. */
#ifndef TRAIN_SERVE_H
#define TRAIN_SERVE_H

#include <fsdpck/source.h>
#include <train/ranks.h>
#include <train/sample.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Zero-initialise: every zero means the default. */
struct serve_options {
    const char *model;        /* a folder; required */
    const char *dtype;        /* "bf16" (default) or "fp32": of weights and activations */
    uint32_t nranks;          /* default 1 */
    unsigned nthreads;        /* of a rank; default: its part of the processors */
    uint64_t seq_len;         /* most tokens of a sequence, and of a micro-batch; default 2048 */
    uint64_t max_rank;        /* the largest rank of an adapter; default 64 */
    bool recompute;           /* keep only the input of each block for the backward pass */
    uint64_t kv_nbytes;       /* most bytes of the keys and values of samples; default a quarter of the memory that the
                                 base leaves */
    struct fsdpck_options fs; /* notes, and threads for reading */
};

struct serve;
FSDPCK_API int serve_open(const struct serve_options *opt, struct serve **out, struct fsdpck_error *err);
/* Ends the tasks that run, and drops the others without calling their done(). NULL does nothing. */
FSDPCK_API void serve_close(struct serve *s);

struct serve_facts {
    int64_t nvocab, seq_len, max_rank;
    int64_t context;          /* tokens that the model has positions for */
    int64_t cached;           /* tokens of a prompt and its sample that surely have room; up to the context */
    uint64_t kv_nbytes;       /* of keys and values */
    uint64_t base_nbytes;     /* of the parameters in memory */
    const char *architecture; /* model_type of config.json; borrowed */
    uint32_t nranks;
    unsigned nthreads; /* of a rank */
};
FSDPCK_API struct serve_facts serve_facts(const struct serve *s);

/* An adapter: trained (values, gradients, moments), or frozen, for sampling. It is empty until a task has begun it. */
struct serve_adapter;
FSDPCK_API int serve_adapter_new(struct serve *s, bool frozen, struct serve_adapter **out, struct fsdpck_error *err);
/* Frees it once its tasks have run. */
FSDPCK_API void serve_adapter_release(struct serve_adapter *a);
/* The base alone, for sampling; borrowed. */
FSDPCK_API struct serve_adapter *serve_base(struct serve *s);

/* ---- tasks */

enum serve_kind {
    SERVE_BEGIN,    /* a new adapter, or one from a folder */
    SERVE_LOAD,     /* other values into an adapter that has begun, of the same shapes */
    SERVE_PASS,     /* forward, and backward if wanted: gradients are added up */
    SERVE_OPTIMIZE, /* AdamW; then the gradients are zero */
    SERVE_SAVE,
    SERVE_FREEZE, /* copies the values to a new, frozen adapter */
    SERVE_SAMPLE,
};

/* As PEFT draws it: A uniform in ±1/√in, B zero. */
struct serve_lora {
    uint64_t rank, seed;
    double alpha;
    bool attention, mlp, head; /* the linear layers that have an adapter */
};

/* The values of an adapter in files: a PEFT folder, or a checkpoint. */
struct serve_from {
    const char *path; /* NULL: a new one, as `lora` says */
    bool optimizer;   /* with the moments and steps of AdamW, which only a checkpoint of serve has */
};

enum serve_loss {
    SERVE_CROSS_ENTROPY,
    SERVE_IMPORTANCE_SAMPLING,
    SERVE_PPO,
    SERVE_CISPO,
    SERVE_DRO,
    SERVE_GSPO,
    SERVE_NLOSSES
};
/* The name of a loss as clients send it; NULL: there is none. */
FSDPCK_API const char *serve_loss_name(enum serve_loss loss);

/* A sequence. All arrays have n elements and are borrowed until the task is done; NULL: not given. */
struct serve_datum {
    int64_t n;
    const int32_t *tokens, *targets; /* below nvocab; targets[i] follows tokens[i] */
    const float *weights;            /* factors of the tokens' losses; default 1 */
    const float *logprobs, *advantages, *mask, *clip_low, *clip_high;
    float *target_logprobs; /* output: ln p of each target */
};

struct serve_pass {
    enum serve_loss loss;
    double clip_low, clip_high; /* of the ratio, where a datum has none */
    double beta;
    bool backward;
    const struct serve_datum *data; /* (ndata) */
    size_t ndata;
    double loss_sum; /* output */
};

struct serve_adamw {
    double learning_rate, beta1, beta2, eps, weight_decay;
    double max_grad_norm; /* 0: no clipping */
    double norm;          /* output: of the gradient, before clipping */
};

struct serve_save {
    const char *path;
    bool peft;      /* a PEFT folder; otherwise a checkpoint */
    bool optimizer; /* of a checkpoint: with the state of AdamW, to go on from it */
    bool force;     /* replace what is there */
};

struct serve_sampled {
    int32_t *ids;    /* (n) with the stop token; owned by the task: serve_sample_free() */
    float *logprobs; /* (n) of the model at temperature 1 */
    int32_t *top_ids;
    float *top_logprobs; /* (n, top_k) the likeliest tokens at each place; NULL: not wanted */
    size_t n;
    bool stopped; /* by a stop token or by `ends`, not by the limit */
};

struct serve_sample {
    const int32_t *prompt; /* (nprompt) */
    size_t nprompt;
    struct sample_rule rule;
    uint32_t nsamples;
    /* Whether the tokens so far end sample `number`; may be NULL. Called by the rank that samples, as each is chosen.
     */
    bool (*ends)(void *ctx, uint32_t number, const int32_t *ids, size_t n);
    void *ctx;
    bool prompt_logprobs; /* wanted */
    uint32_t top_k, prompt_top_k;
    /* Output, owned by the task: */
    struct serve_sampled *samples; /* (nsamples) */
    float *logprobs;               /* (nprompt) of the prompt's tokens; the first is NaN */
    int32_t *top_ids;
    float *top_logprobs;     /* (nprompt, prompt_top_k), of what precedes a token; the first row is not set */
    struct serve_read *read; /* private */
};
FSDPCK_API void serve_sample_free(struct serve_sample *x);

struct serve_task {
    enum serve_kind kind;
    struct serve_adapter *adapter;
    union {
        struct {
            struct serve_from from;
            struct serve_lora lora; /* without a path; output: what the adapter has */
        } begin;
        struct serve_pass pass;
        struct serve_adamw adamw;
        struct serve_save save;
        struct serve_adapter *frozen; /* SERVE_FREEZE: an empty one, which is begun */
        struct serve_sample sample;
    };
    struct fsdpck_error err; /* output; code 0: done */
    /* Called by a thread of the server when the task has run; then the task is the caller's again. */
    void (*done)(struct serve_task *t);
    void *ctx;
    struct serve_task *next;       /* in the queue; private until done */
    size_t nunits, nbegun, nended; /* private */
    const void *packets;           /* private */
    uint64_t ticket;               /* private */
};

/* The task is borrowed until done() is called. */
FSDPCK_API void serve_submit(struct serve *s, struct serve_task *t);
/* Checks what can be checked before: that a pass has data, and that its tokens are the model's and fit. */
FSDPCK_API int serve_check(const struct serve *s, const struct serve_task *t, struct fsdpck_error *err);
/* Fails if there is no room for such an adapter; the message tells the bytes that it takes. */
FSDPCK_API int serve_check_room(struct serve *s, const struct serve_lora *lora, struct fsdpck_error *err);

#ifdef __cplusplus
}
#endif
#endif
