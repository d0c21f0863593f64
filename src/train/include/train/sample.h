/* SPDX-License-Identifier: Apache-2.0 */
/* Text generation, as in `fsdptrain sample`. The model and an optional adapter are loaded once. Each prompt goes
 * through the model in one forward pass, and any number of samples follow it. Tokens depend on the seed, the number of
 * the sample and the model, not on the number of threads. */
#ifndef TRAIN_SAMPLE_H
#define TRAIN_SAMPLE_H

#include <fsdpck/source.h>
#include <train/chat.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { SAMPLE_STOPS = 64 };

/* Defaults of models that have none. */
#define SAMPLE_DEFAULT_MAX_NEW_TOKENS 256
#define SAMPLE_DEFAULT_TEMPERATURE    0
#define SAMPLE_DEFAULT_TOP_P          1
#define SAMPLE_DEFAULT_TOP_K          50

/* How to choose the next token; names as in `generate` of transformers. */
struct sample_rule {
    uint64_t max_new_tokens;
    double temperature; /* 0: always the most likely token */
    double top_p;       /* sample from the likeliest tokens whose probabilities reach this sum, 0 < p ≤ 1; 1: off */
    uint64_t top_k;     /* sample from this many of the likeliest tokens; 0: off */
    double repetition_penalty; /* penalises tokens that occurred, also in the prompt; 1: off */
    uint64_t seed;
    uint32_t stops[SAMPLE_STOPS]; /* (nstops) any of them ends a sample */
    size_t nstops;
};

/* Reads the defaults of the model folder (generation_config.json, config.json): stop tokens, and sampling if it is on
 * there. Unsupported keys that would change the text go to opt->note. */
FSDPCK_API int sample_rule_read(const char *model, const struct fsdpck_options *opt, struct sample_rule *out,
                                struct fsdpck_error *err);
/* Checks the ranges of all values. */
FSDPCK_API int sample_rule_check(const struct sample_rule *rule, struct fsdpck_error *err);

/* Encodes a prompt and appends its tokens to list. A string is encoded unchanged or, with as_chat, as a user message in
 * the chat template of the model. A list of messages, or an object with "messages" (and "tools"), "prompt" or "text",
 * is encoded as in data.train. */
FSDPCK_API int sample_prompt_encode(const struct chat *chat, struct json_t *prompt, bool as_chat,
                                    struct token_list *list, struct fsdpck_error *err);

/* Zero-initialise: every zero means the default. */
struct sampler_options {
    const char *adapter;      /* a PEFT folder, a checkpoint of a LoRA run, or of FLUX.2 one file */
    const char *dtype;        /* "bf16" (default) or "fp32": of weights, keys and values */
    unsigned nthreads;        /* default: the processors this process may use */
    const char *device;       /* "cpu" (default), or a device of the module */
    const char *module;       /* path of the module that provides the device; NULL: none */
    bool vae_tiling;          /* of a pipeline: pictures larger than the autoencoder's sample_size in tiles */
    struct fsdpck_options fs; /* notes, and threads for reading */
};

struct sampler;
FSDPCK_API int sampler_open(const char *model, const struct sampler_options *opt, struct sampler **out,
                            struct fsdpck_error *err);
FSDPCK_API void sampler_close(struct sampler *s); /* NULL does nothing */
FSDPCK_API int64_t sampler_nvocab(const struct sampler *s);

/* Runs the prompt through the model once; samples of up to max_new_tokens each may follow. */
FSDPCK_API int sampler_prompt(struct sampler *s, const uint32_t *ids, size_t count, uint64_t max_new_tokens,
                              struct fsdpck_error *err);

struct sampled {
    const uint32_t *ids; /* (count) the new tokens with the stop token; borrowed until the next call */
    size_t count;
    bool stopped; /* ended by a stop token, not by the limit or by `each` */
};
/* each: called with every token as it is chosen; nonzero ends the sample; may be NULL. number: number of the sample
 * for this seed. */
FSDPCK_API int sampler_run(struct sampler *s, const struct sample_rule *rule, uint64_t number,
                           int (*each)(void *ctx, uint32_t id), void *ctx, struct sampled *out,
                           struct fsdpck_error *err);
/* For tests: logits (nvocab, borrowed) of the token after ids. The first `together` ids go through one forward pass,
 * the others one by one. */
FSDPCK_API int sampler_logits(struct sampler *s, const uint32_t *ids, size_t count, size_t together,
                              const float **logits, struct fsdpck_error *err);

#ifdef __cplusplus
}
#endif
#endif
