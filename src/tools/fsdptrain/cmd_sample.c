/* SPDX-License-Identifier: Apache-2.0 */
/* `fsdptrain sample`: continues prompts and shows the text while it grows, or makes pictures of them. */
#include "commands.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/model_path.h"
#include "common/stop.h"
#include "device_arg.h"
#include "sample_image.h"
#include "sample_out.h"
#include "sample_prompts.h"

struct sample_args {
    bool json, quiet, chat, seed_given, vae_tiling;
    const char *adapter, *dtype, *system, *device;
    struct strings prompts;
    uint32_t samples, threads, max_new_tokens;
    double temperature, top_p, top_k; /* negative: not given */
    double seed;
    const char *out, *size, *negative;
    uint32_t steps, max_sequence_length;
    double guidance; /* negative: not given */
};

#define AT(field) offsetof(struct sample_args, field)

static const struct option sample_options[] = {
    { .name = "adapter",
      .type = OPTION_STRING,
      .offset = AT(adapter),
      .value = "DIR",
      .help = "apply an adapter: a PEFT folder, a checkpoint of a LoRA run, or of FLUX.2 one .safetensors file" },
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
      .computed = "the model's, or " OPTION_TEXT(SAMPLE_DEFAULT_MAX_NEW_TOKENS) },
    { .name = "temperature",
      .type = OPTION_NUMBER,
      .offset = AT(temperature),
      .value = "T",
      .help = "sampling temperature; 0 takes the likeliest token",
      .computed = "the model's, or " OPTION_TEXT(SAMPLE_DEFAULT_TEMPERATURE) },
    { .name = "top-p",
      .type = OPTION_NUMBER,
      .offset = AT(top_p),
      .value = "P",
      .help = "sample from the likeliest tokens that together have this probability",
      .computed = "the model's, or " OPTION_TEXT(SAMPLE_DEFAULT_TOP_P) },
    { .name = "top-k",
      .type = OPTION_NUMBER,
      .offset = AT(top_k),
      .value = "K",
      .help = "sample from the K likeliest tokens, or from all with 0",
      .computed = "the model's, or " OPTION_TEXT(SAMPLE_DEFAULT_TOP_K) },
    { .name = "seed",
      .type = OPTION_NUMBER,
      .offset = AT(seed),
      .value = "S",
      .help = "random seed; text and picture do not depend on the number of threads",
      .usual = "42",
      .given = AT(seed_given) },
    { .name = "samples",
      .type = OPTION_COUNT,
      .offset = AT(samples),
      .value = "N",
      .help = "number of texts, or pictures, for each prompt",
      .usual = "1" },
    { .name = "dtype",
      .type = OPTION_CHOICE,
      .offset = AT(dtype),
      .value = "bf16|fp32",
      .help = "type of weights, keys and values",
      .usual = "bf16" },
    { .name = "device",
      .type = OPTION_CHOICE,
      .offset = AT(device),
      .value = "cpu|cuda",
      .help = "device to compute on",
      .computed = "cuda where there is one" },
    { .name = "threads",
      .type = OPTION_COUNT,
      .offset = AT(threads),
      .value = "T",
      .help = "number of threads",
      .computed = "the processors that this process may use" },
    { .name = "out",
      .type = OPTION_STRING,
      .offset = AT(out),
      .value = "FILE.png",
      .help = "pictures: where to write; with several, each name gets a number; - is standard output, for one" },
    { .name = "size",
      .type = OPTION_STRING,
      .offset = AT(size),
      .value = "WxH",
      .help = "pictures: width and height in pixels, multiples of 16",
      .computed = OPTION_TEXT(IMAGE_DEFAULT_SIDE) "x" OPTION_TEXT(IMAGE_DEFAULT_SIDE) },
    { .name = "steps",
      .type = OPTION_COUNT,
      .offset = AT(steps),
      .value = "N",
      .help = "pictures: steps from noise to picture",
      .computed = OPTION_TEXT(IMAGE_DISTILLED_STEPS) " of a distilled model, or " OPTION_TEXT(IMAGE_DEFAULT_STEPS) },
    { .name = "guidance",
      .type = OPTION_NUMBER,
      .offset = AT(guidance),
      .value = "G",
      .help = "pictures: how far to lead away from the negative prompt; 1 or less, or a distilled model: not at all",
      .computed = OPTION_TEXT(IMAGE_DEFAULT_GUIDANCE) },
    { .name = "negative-prompt",
      .type = OPTION_STRING,
      .offset = AT(negative),
      .value = "TEXT",
      .help = "pictures: the prompt that guidance leads away from",
      .computed = "an empty text" },
    { .name = "max-sequence-length",
      .type = OPTION_COUNT,
      .offset = AT(max_sequence_length),
      .value = "N",
      .help = "pictures: tokens of a text, padded or cut to this number",
      .computed = OPTION_TEXT(IMAGE_DEFAULT_TOKENS) },
    { .name = "vae-tiling",
      .type = OPTION_FLAG,
      .offset = AT(vae_tiling),
      .help = "pictures: decode large ones in overlapping tiles, with the memory of one" },
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

/* Options that have no effect on what the model makes. */
static int refuse_options(const struct sample_args *args, bool pictures)
{
    const struct {
        const char *name;
        bool given, of_pictures;
    } rows[] = { { "--chat", args->chat, false },
                 { "--system", args->system != NULL, false },
                 { "--max-new-tokens", args->max_new_tokens > 0, false },
                 { "--temperature", args->temperature >= 0, false },
                 { "--top-p", args->top_p >= 0, false },
                 { "--top-k", args->top_k >= 0, false },
                 { "--out", args->out != NULL, true },
                 { "--size", args->size != NULL, true },
                 { "--steps", args->steps > 0, true },
                 { "--guidance", args->guidance >= 0, true },
                 { "--negative-prompt", args->negative != NULL, true },
                 { "--max-sequence-length", args->max_sequence_length > 0, true },
                 { "--vae-tiling", args->vae_tiling, true } };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (rows[i].given && rows[i].of_pictures != pictures)
            return usage_error("%s is for models that make %s; this one makes %s", rows[i].name,
                               pictures ? "text" : "pictures", pictures ? "pictures" : "text");
    return OPTIONS_OK;
}

static int run_pictures(const struct sample_args *args, const char *pipeline, const struct sampler_options *opt,
                        struct report *report)
{
    const struct sample_image_args pictures = { .json = args->json,
                                                .quiet = args->quiet,
                                                .out = args->out,
                                                .size = args->size,
                                                .negative = args->negative,
                                                .steps = args->steps,
                                                .max_tokens = args->max_sequence_length,
                                                .samples = args->samples,
                                                .guidance = args->guidance,
                                                .seed = args->seed };
    struct fsdpck_error err = { 0 };
    json_t *prompts = NULL;
    if (refuse_options(args, true) != OPTIONS_OK)
        return EXIT_USAGE;
    int rc = sample_prompts_read(&args->prompts, false, NULL, &prompts, &err);
    const int status = rc ? report_error(report, &err) : sample_image_run(&pictures, pipeline, opt, prompts, report);
    json_decref(prompts);
    return status;
}

/* Checks everything that can be refused before it reads the weights. */
static int run_texts(const struct sample_args *args, const char *model, const struct sampler_options *opt,
                     struct report *report)
{
    struct fsdpck_error err = { 0 };
    struct sampler *sampler = NULL;
    struct chat *chat = NULL;
    struct sample_out *out = NULL;
    struct sample_rule rule;
    json_t *prompts = NULL;
    if (refuse_options(args, false) != OPTIONS_OK)
        return EXIT_USAGE;
    int rc = make_rule(args, model, &opt->fs, &rule, &err);
    if (!rc)
        rc = sample_prompts_read(&args->prompts, args->chat, args->system, &prompts, &err);
    if (!rc)
        rc = chat_open(model, &chat, &err);
    if (!rc)
        rc = sampler_open(model, opt, &sampler, &err);
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
        return report_error(report, &err);
    return stop_signal ? 128 + stop_signal : status;
}

static int run(void *ctx, const char *const *at)
{
    const struct sample_args *args = ctx;
    struct fsdpck_error err = { 0 };
    struct report report = { .quiet = args->quiet, .terminal = isatty(STDERR_FILENO) };
    struct device_arg device;
    device_choose(args->device, &device);
    struct sampler_options opt = {
        .dtype = args->dtype,
        .nthreads = args->threads,
        .device = device.name,
        .module = device.module,
        .vae_tiling = args->vae_tiling,
        .fs = { .note = args->quiet ? NULL : report_note, .ctx = &report, .nthreads = args->threads }
    };
    char model[4096], adapter[4096];
    if (check_args(args) != OPTIONS_OK)
        return EXIT_USAGE;
    int rc = model_path_resolve(at[0], model, sizeof model, &err);
    if (!rc && args->adapter)
        rc = model_path_resolve(args->adapter, adapter, sizeof adapter, &err);
    opt.adapter = args->adapter ? adapter : NULL;
    if (rc)
        return report_error(&report, &err);
    return image_is_pipeline(model) ? run_pictures(args, model, &opt, &report) : run_texts(args, model, &opt, &report);
}

int cmd_sample(const struct command *self, int argc, char **argv)
{
    struct sample_args args = { .temperature = -1, .top_p = -1, .top_k = -1, .guidance = -1 };
    const struct option_group groups[] = { { "Options", sample_options,
                                             sizeof sample_options / sizeof sample_options[0], &args } };
    const struct command_line line = {
        .command = self,
        .positionals = "MODEL",
        .groups = groups,
        .ngroups = 1,
        .notes =
            "Generated text goes to standard output as it grows, without the prompt. It ends with a stop "
            "token of the model (eos_token_id in generation_config.json, or in config.json) or after "
            "--max-new-tokens.\n"
            "Of a pipeline folder of diffusers (FLUX.2 [klein]) pictures are made, as PNG files: --out names them, "
            "and standard output lists them.",
        .examples = "fsdptrain sample model/ --prompt 'Once upon a time'\n"
                    "fsdptrain sample model/ --adapter runs/model/adapter --chat --prompt 'What have you learnt?'\n"
                    "fsdptrain sample flux2-klein/ --prompt 'a red fox in snow' --out fox.png --size 1024x768",
    };
    return options_run(&line, argc, argv, run, &args);
}
