/* SPDX-License-Identifier: Apache-2.0 */
/* `fsdptrain plan`: shows memory and traffic of each rank before a run. */
#include "commands.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <train/train.h>

#include "common/json_out.h"
#include "common/model_path.h"
#include "common/report.h"
#include "common/text.h"
#include "device_arg.h"

struct plan_args {
    bool json, quiet;
    uint32_t ranks;
    struct strings sets;
    const char *gather, *device;
};

#define AT(field) offsetof(struct plan_args, field)

static const struct option plan_options[] = {
    { .name = "ranks",
      .type = OPTION_COUNT,
      .offset = AT(ranks),
      .value = "N",
      .help = "number of local processes that share the model (default 1)" },
    { .name = "gather",
      .type = OPTION_CHOICE,
      .offset = AT(gather),
      .value = "map|copy",
      .help = "how ranks read each other's parameters: map, as on one host (default), or copy, as between hosts" },
    { .name = "device",
      .type = OPTION_CHOICE,
      .offset = AT(device),
      .value = "cpu|cuda",
      .help = "device of the run (default: cuda where there is one); the plan itself needs no GPU" },
    { .name = "set",
      .type = OPTION_STRINGS,
      .offset = AT(sets),
      .value = "KEY=VALUE",
      .help = "set a key of the config, as in train.max_steps=10 (may be repeated)" },
    { .name = "json", .type = OPTION_FLAG, .offset = AT(json), .help = "print the result as one JSON object" },
    { .name = "quiet", .letter = 'q', .type = OPTION_FLAG, .offset = AT(quiet), .help = "print no notes" },
};

static void show_note(void *ctx, const char *line)
{
    const struct plan_args *args = ctx;
    if (!args->quiet)
        report_note(&(struct report){ 0 }, line);
}

struct line {
    const char *key, *text; /* text: NULL if only --json prints it */
    uint64_t value;
    bool is_bytes;
};

static int show(const struct plan_args *args, const struct line *lines, size_t n)
{
    char text[TEXT_NBYTES];
    if (!args->json) {
        for (size_t i = 0; i < n; i++) {
            if (lines[i].text && lines[i].is_bytes)
                printf("%-34s %s\n", lines[i].text, text_bytes(lines[i].value, text));
            else if (lines[i].text)
                printf("%-34s %llu\n", lines[i].text, (unsigned long long)lines[i].value);
        }
        return EXIT_DONE;
    }
    json_t *o = json_object();
    bool complete = true;
    for (size_t i = 0; i < n; i++)
        complete &= json_out_put(o, lines[i].key, json_out_u64(lines[i].value));
    return json_out_print(o, complete, EXIT_DONE);
}

static int run(struct plan_args *args, const char *path)
{
    struct fsdpck_error err = { 0 };
    struct report report = { 0 };
    struct train_config config;
    struct train_plan p;
    struct device_arg device;
    device_choose(args->device, &device);
    const struct train_options opt = { .device = device.name,
                                       .module = device.module,
                                       .nranks = args->ranks,
                                       .copy_gathers = args->gather && strcmp(args->gather, "copy") == 0,
                                       .note = show_note,
                                       .ctx = args };
    char model[PATH_MAX];
    int rc = train_config_read(path, (const char *const *)args->sets.at, args->sets.count, &config, &err);
    if (!rc)
        rc = model_path_resolve(config.model, model, sizeof model, &err);
    if (!rc) {
        config.model = model;
        rc = train_plan(&config, &opt, &p, &err);
    }
    train_config_free(&config);
    if (rc)
        return report_error(&report, &err);
    const struct line lines[] = {
        { "steps", "steps", p.nsteps, false },
        { "documents", "documents of an epoch", p.ndocs, false },
        { "rows", "rows they are packed into", p.nrows, false },
        { "tokens", "tokens of an epoch", p.ntok, false },
        { "supervised_tokens", "supervised tokens", p.nsupervised, false },
        { "longest_document_tokens", "tokens of the longest document", p.longest_ntok, false },
        { "parameters_trained", "parameters trained", p.ntrained, false },
        { "parameters_frozen", "parameters frozen", p.nfrozen, false },
        { "largest_micro_batch_tokens", "tokens of the largest micro-batch", p.largest_micro_ntok, false },
        { "shard_bytes", "a rank's shards", p.shard_nbytes, true },
        { "gradient_bytes", "a rank's gradients", p.gradient_nbytes, true },
        { "optimizer_bytes", p.on_device ? "a rank's reduced gradients, moments" : "a rank's moments",
          p.optimizer_nbytes, true },
        { "gather_buffer_bytes", "a rank's buffers to gather into", p.buffer_nbytes, true },
        { "snapshot_bytes", p.on_device ? "the host's copy of what is saved" : "a rank's copy of what is saved",
          p.snapshot_nbytes, true },
        { "blocks_recomputed", "blocks recomputed in the backward", p.nrecomputed, false },
        { "activation_bytes", "a rank's activations and scratch", p.activation_nbytes, true },
        { "sample_bytes", "a rank's keys and values of samples", p.sample_nbytes, true },
        { "peak_bytes", p.on_device ? "a rank's memory on its device" : "a rank's peak", p.peak_nbytes, true },
        { "least_bytes", p.least_nbytes ? "the same, every block recomputed" : NULL, p.least_nbytes, true },
        { "all_ranks_bytes", p.on_device ? "all ranks' devices together" : "all ranks together (PSS)",
          p.all_ranks_nbytes, true },
        { "gathered_bytes_per_step", "read of others' parameters a step", p.gathered_step_nbytes, true },
        { "reduced_bytes_per_step", "read of others' gradients a step", p.reduced_step_nbytes, true },
    };
    return show(args, lines, sizeof lines / sizeof lines[0]);
}

int cmd_plan(const struct command *self, int argc, char **argv)
{
    struct plan_args args = { .ranks = 1 };
    const struct option_group groups[] = { { "Options", plan_options, sizeof plan_options / sizeof plan_options[0],
                                             &args } };
    const struct command_line line = {
        .command = self,
        .positionals = "CONFIG.json",
        .required = "--ranks N",
        .groups = groups,
        .ngroups = 1,
        .notes = "The ranks of one host map parameters and hold them once between them, or gather them into "
                 "buffers (--gather copy). The figures leave out the program itself and its libraries. On GPUs "
                 "each rank has a device, and the driver takes about 0.5 GiB more.",
        .examples = "fsdptrain plan lora.json --ranks 2",
    };
    const char *at[MAX_POSITIONALS];
    int status = options_parse(&line, argc, argv, at);
    if (status == OPTIONS_OK)
        status = run(&args, at[0]);
    options_free(&line);
    return status;
}
