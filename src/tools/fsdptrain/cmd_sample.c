/* SPDX-License-Identifier: Apache-2.0 */
/* `fsdptrain sample`: continues prompts and shows the text while it grows. */
#include "commands.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/model_path.h"
#include "common/stop.h"
#include "sample_out.h"
#include "sample_prompts.h"

struct sample_args {
    bool json, quiet, chat, seed_given;
    const char *adapter, *dtype, *system;
    struct strings prompts;
    uint32_t samples, threads, max_new_tokens;
    double temperature, top_p, top_k; /* negative: not given */
    double seed;
};

/* A number of the library as text, for the help. */
#define TEXT(macro) QUOTE(macro)
#define QUOTE(text) #text
#define AT(field)   offsetof(struct sample_args, field)

static const struct option sample_options[] = {
    { .name = "adapter",
      .type = OPTION_STRING,
      .offset = AT(adapter),
      .value = "DIR",
      .help = "apply an adapter: a PEFT folder, or a checkpoint of a LoRA run" },
    { .name = "prompt",
      .type = OPTION_STRINGS,
      .offset = AT(prompts),
      .value = "TEXT",
      .help = "prompt to continue (may be repeated)",
      .computed = "standard input" },
    { .name = "chat",
      .type = OPTION_FLAG,
      .offset = AT(chat),
      .help = "apply the chat template: a prompt is a user's message, or a JSON list of messages" },
    { .name = "system",
      .type = OPTION_STRING,
      .offset = AT(system),
      .value = "TEXT",
      .help = "system message before each --chat prompt" },
    { .name = "max-new-tokens",
      .type = OPTION_COUNT,
      .offset = AT(max_new_tokens),
      .value = "N",
      .help = "generate at most N tokens",
      .computed = "the model's, or " TEXT(SAMPLE_DEFAULT_MAX_NEW_TOKENS) },
    { .name = "temperature",
      .type = OPTION_NUMBER,
      .offset = AT(temperature),
      .value = "T",
      .help = "sampling temperature; 0 takes the likeliest token",
      .computed = "the model's, or " TEXT(SAMPLE_DEFAULT_TEMPERATURE) },
    { .name = "top-p",
      .type = OPTION_NUMBER,
      .offset = AT(top_p),
      .value = "P",
      .help = "sample from the likeliest tokens that together have this probability",
      .computed = "the model's, or " TEXT(SAMPLE_DEFAULT_TOP_P) },
    { .name = "top-k",
      .type = OPTION_NUMBER,
      .offset = AT(top_k),
      .value = "K",
      .help = "sample from the K likeliest tokens, or from all with 0",
      .computed = "the model's, or " TEXT(SAMPLE_DEFAULT_TOP_K) },
    { .name = "seed",
      .type = OPTION_NUMBER,
      .offset = AT(seed),
      .value = "S",
      .help = "random seed; the text does not depend on the number of threads",
      .usual = "42",
      .given = AT(seed_given) },
    { .name = "samples",
      .type = OPTION_COUNT,
      .offset = AT(samples),
      .value = "N",
      .help = "number of texts for each prompt",
      .usual = "1" },
    { .name = "dtype",
      .type = OPTION_CHOICE,
      .offset = AT(dtype),
      .value = "bf16|fp32",
      .help = "type of weights, keys and values",
      .usual = "bf16" },
    { .name = "threads",
      .type = OPTION_COUNT,
      .offset = AT(threads),
      .value = "T",
      .help = "number of threads",
      .computed = "the processors that this process may use" },
    { .name = "json", .type = OPTION_FLAG, .offset = AT(json), .help = "print the result as one JSON object" },
    { .name = "quiet", .letter = 'q', .type = OPTION_FLAG, .offset = AT(quiet), .help = "print no notes and no rates" },
};

/* Makes the sampling rule from the model's folder and the command line, which takes precedence. --top-p or --top-k
 * implies sampling. */
static int make_rule(const struct sample_args *args, const char *model, const struct fsdpck_options *fs,
                     struct sample_rule *rule, struct fsdpck_error *err)
{
    int rc = sample_rule_read(model, fs, rule, err);
    if (rc)
        return rc;
    if (args->temperature >= 0)
        rule->temperature = args->temperature;
    else if (rule->temperature == 0 && (args->top_p >= 0 || args->top_k >= 0))
        rule->temperature = 1;
    rule->top_p = args->top_p >= 0 ? args->top_p : rule->top_p;
    rule->top_k = args->top_k >= 0 ? (uint64_t)args->top_k : rule->top_k;
    rule->seed = (uint64_t)args->seed;
    rule->max_new_tokens = args->max_new_tokens ? args->max_new_tokens : rule->max_new_tokens;
    if (rule->temperature == 0 && (args->top_p >= 0 || args->top_k >= 0 || args->seed_given) && fs->note)
        fs->note(fs->ctx,
                 "the likeliest token is taken always (--temperature 0): --top-p, --top-k and --seed have no effect");
    if (rule->temperature == 0 && args->samples > 1)
        return fsdpck_error_set(
            err, FSDPCK_ERR_USAGE, NULL,
            "%u samples of the likeliest tokens would be the same text: --temperature makes them differ",
            args->samples);
    return sample_rule_check(rule, err);
}

static int check_args(const struct sample_args *args)
{
    if (args->system && !args->chat)
        return usage_error("--system is a message of a conversation: it wants --chat");
    if (args->seed > 0x1p53 || floor(args->seed) != args->seed)
        return usage_error("--seed: a whole number from 0 to 2^53 is wanted");
    if (args->top_k > 0x1p31 || (args->top_k >= 0 && floor(args->top_k) != args->top_k))
        return usage_error("--top-k: a whole number from 0 is wanted");
    return OPTIONS_OK;
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* The state of a sample while its tokens arrive. */
struct sample_progress {
    struct sample_out *out;
    double first; /* time of the first token; 0: none yet */
    struct fsdpck_error *err;
    int rc;
};

/* Returns true if output is no longer wanted: a signal arrived, or the reader of stdout is gone. */
static bool is_over(void)
{
    return stop_signal || ferror(stdout);
}

static int on_token(void *ctx, uint32_t id)
{
    struct sample_progress *g = ctx;
    g->first = g->first > 0 ? g->first : now();
    g->rc = sample_out_token(g->out, id, g->err);
    return g->rc || is_over();
}

static int run_prompt(const struct sample_args *args, struct sampler *s, const struct sample_rule *rule,
                      const struct token_list *prompt, size_t number, struct sample_out *out, struct fsdpck_error *err)
{
    double started = now();
    int rc = sampler_prompt(s, prompt->ids, prompt->count, rule->max_new_tokens, err);
    for (uint32_t i = 0; i < args->samples && !rc && !is_over(); i++) {
        struct sample_progress g = { .out = out, .err = err };
        struct sampled done;
        sample_out_begin(out, number, i, prompt);
        rc = sampler_run(s, rule, (uint64_t)number << 32 | i, on_token, &g, &done, err);
        rc = rc ? rc : g.rc;
        if (!rc)
            rc = sample_out_end(out, &done, g.first - started, now() - g.first, err);
        started = now();
    }
    return rc;
}

static int run_prompts(const struct sample_args *args, struct sampler *s, const struct chat *chat,
                       const struct sample_rule *rule, json_t *prompts, struct sample_out *out,
                       struct fsdpck_error *err)
{
    int rc = 0;
    for (size_t i = 0; i < json_array_size(prompts) && !rc && !is_over(); i++) {
        struct token_list list = { 0 };
        rc = sample_prompt_encode(chat, json_array_get(prompts, i), args->chat, &list, err);
        if (!rc)
            rc = run_prompt(args, s, rule, &list, i, out, err);
        token_list_free(&list);
    }
    return rc;
}

/* Checks everything that can be refused before it reads the weights. */
static int run(void *ctx, const char *const *at)
{
    const struct sample_args *args = ctx;
    const char *typed = at[0];
    struct fsdpck_error err = { 0 };
    struct report report = { 0 };
    struct sampler_options opt = {
        .dtype = args->dtype,
        .nthreads = args->threads,
        .fs = { .note = args->quiet ? NULL : report_note, .ctx = &report, .nthreads = args->threads }
    };
    struct sampler *sampler = NULL;
    struct chat *chat = NULL;
    struct sample_out *out = NULL;
    struct sample_rule rule;
    json_t *prompts = NULL;
    char model[4096], adapter[4096];
    if (check_args(args) != OPTIONS_OK)
        return EXIT_USAGE;
    int rc = model_path_resolve(typed, model, sizeof model, &err);
    if (!rc && args->adapter)
        rc = model_path_resolve(args->adapter, adapter, sizeof adapter, &err);
    opt.adapter = args->adapter ? adapter : NULL;
    if (!rc)
        rc = make_rule(args, model, &opt.fs, &rule, &err);
    if (!rc)
        rc = sample_prompts_read(&args->prompts, args->chat, args->system, &prompts, &err);
    if (!rc)
        rc = chat_open(model, &chat, &err);
    if (!rc)
        rc = sampler_open(model, &opt, &sampler, &err);
    if (!rc)
        rc = sample_out_new(chat_tokenizer(chat), args->json, args->quiet,
                            json_array_size(prompts) > 1 || args->samples > 1, &out, &err);
    if (!rc)
        rc = run_prompts(args, sampler, chat, &rule, prompts, out, &err);
    int status = sample_out_finish(out, !rc);
    sampler_close(sampler);
    chat_close(chat);
    json_decref(prompts);
    if (rc)
        return report_error(&report, &err);
    return stop_signal ? 128 + stop_signal : status;
}

int cmd_sample(const struct command *self, int argc, char **argv)
{
    struct sample_args args = { .temperature = -1, .top_p = -1, .top_k = -1 };
    const struct option_group groups[] = { { "Options", sample_options,
                                             sizeof sample_options / sizeof sample_options[0], &args } };
    const struct command_line line = {
        .command = self,
        .positionals = "MODEL",
        .groups = groups,
        .ngroups = 1,
        .notes = "Generated text goes to standard output as it grows, without the prompt. It ends with a stop "
                 "token of the model (eos_token_id in generation_config.json, or in config.json) or after "
                 "--max-new-tokens.",
        .examples = "fsdptrain sample model/ --prompt 'Once upon a time'\n"
                    "fsdptrain sample model/ --adapter runs/model/adapter --chat --prompt 'What have you learnt?'",
    };
    return options_run(&line, argc, argv, run, &args);
}
