/* SPDX-License-Identifier: Apache-2.0 */
/* Text out of a model: what `fsdptrain sample` calls. A model and perhaps an adapter are loaded once; prompts go through one after the other, each in one forward,
 * and any number of samples follow each. Tokens depend on the seed, the sample's number and the model: not on threads. */
#ifndef TRAIN_SAMPLE_H
#define TRAIN_SAMPLE_H

#include <fsdpck/source.h>
#include <train/chat.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { SAMPLE_STOPS = 64 };

/* How the next token is chosen, in the terms of transformers' generate. */
struct sample_rule {
    uint64_t max_new_tokens;
    double temperature;        /* 0: the most likely token, always */
    double top_p;              /* 0 < p ≤ 1: of the likeliest tokens that have this much together; 1: off */
    uint64_t top_k;            /* of so many likeliest tokens; 0: off */
    double repetition_penalty; /* of what was seen, the prompt included; 1: off */
    uint64_t seed;
    uint32_t stops[SAMPLE_STOPS]; /* (nstops) a sample ends with one of them */
    size_t nstops;
};

/* What the model's folder says (generation_config.json, config.json): stop tokens, and sampling where it is on there. Keys that would change the text and
 * are not done here go to opt->note. */
FSDPCK_API int sample_rule_read(const char *model, const struct fsdpck_options *opt, struct sample_rule *out, struct fsdpck_error *err);
/* Refuses values out of range. */
FSDPCK_API int sample_rule_check(const struct sample_rule *rule, struct fsdpck_error *err);

/* A prompt's tokens, added to list. A text as it is, or, with chat, as a user's message through the model's template; a list of messages, or an object with
 * "messages" (and "tools"), "prompt" or "text", as data.train has them. */
FSDPCK_API int sample_prompt_encode(const struct chat *chat, struct json_t *prompt, bool as_chat, struct token_list *list, struct fsdpck_error *err);

/* Zero-initialise: every zero means the default. */
struct sampler_options {
    const char *adapter;     /* a PEFT folder, or a training checkpoint of adapters */
    const char *dtype;       /* "bf16" (default) or "fp32": of weights, keys and values */
    unsigned nthreads;       /* default: the processors this process may use */
    struct fsdpck_options fs; /* notes, threads of reading */
};

struct sampler;
FSDPCK_API int sampler_open(const char *model, const struct sampler_options *opt, struct sampler **out, struct fsdpck_error *err);
FSDPCK_API void sampler_close(struct sampler *s); /* NULL does nothing */
FSDPCK_API int64_t sampler_nvocab(const struct sampler *s);

/* The prompt through the model, once; then samples of up to max_new_tokens each. */
FSDPCK_API int sampler_prompt(struct sampler *s, const uint32_t *ids, size_t count, uint64_t max_new_tokens, struct fsdpck_error *err);

struct sampled {
    const uint32_t *ids; /* (count) new tokens, the stop token included; borrowed until the next call */
    size_t count;
    bool stopped; /* by a stop token, not by the limit or by `each` */
};
/* each: called with every token as it is chosen, may be NULL; not 0: no more tokens are wanted. number: which sample of this seed. */
FSDPCK_API int sampler_run(struct sampler *s, const struct sample_rule *rule, uint64_t number, int (*each)(void *ctx, uint32_t id), void *ctx,
                           struct sampled *out, struct fsdpck_error *err);
/* Logits of the token after ids, by the prompt's forward, or token by token after the first `together` ones: for tests. (nvocab), borrowed. */
FSDPCK_API int sampler_logits(struct sampler *s, const uint32_t *ids, size_t count, size_t together, const float **logits, struct fsdpck_error *err);

#ifdef __cplusplus
}
#endif
#endif
