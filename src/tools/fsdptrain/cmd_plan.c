/* SPDX-License-Identifier: Apache-2.0 */
/* `fsdptrain plan`: shows memory and traffic of each rank before a run. */
#include "commands.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <train/train.h>

#include "common/json_out.h"
#include "common/model_path.h"
#include "common/report.h"
#include "common/text.h"
#include "cache_folder.h"
#include "device_arg.h"
#include "plan_search.h"
#include "plan_table.h"

struct plan_args {
    bool json, quiet, search;
    uint64_t memory;
    uint32_t ranks, threads, elastic, per_host;
    struct strings sets;
    const char *gather, *device, *rates;
};

#define AT(field) offsetof(struct plan_args, field)

static const struct option plan_options[] = {
    { .name = "ranks",
      .type = OPTION_COUNT,
      .offset = AT(ranks),
      .value = "N",
      .help = "number of local processes that share the model",
      .usual = "1" },
    { .name = "ranks-per-host",
      .type = OPTION_COUNT,
      .offset = AT(per_host),
      .value = "N",
      .help = "plan for several hosts with N ranks each, as mpirun or srun start them",
      .computed = "all ranks" },
    { .name = "threads",
      .type = OPTION_COUNT,
      .offset = AT(threads),
      .value = "T",
      .help = "threads of each rank, for the predicted times",
      .computed = "the processors, divided among the ranks" },
    { .name = "gather",
      .type = OPTION_CHOICE,
      .offset = AT(gather),
      .value = "map|copy",
      .help = "how ranks read each other's parameters: map, as on one host, or copy, as between hosts",
      .usual = "map" },
    { .name = "device",
      .type = OPTION_CHOICE,
      .offset = AT(device),
      .value = "cpu|cuda",
      .help = "device of the run; the plan itself needs no GPU",
      .computed = "cuda where there is one" },
    { .name = "search",
      .type = OPTION_FLAG,
      .offset = AT(search),
      .help = "plan every strategy, with and without recomputed blocks, and choose the fastest that fits" },
    { .name = "memory",
      .type = OPTION_SIZE,
      .offset = AT(memory),
      .value = "SIZE",
      .help = "memory that a rank may take, for --search and \"activation_checkpointing\": \"auto\"",
      .computed = "the free memory, divided among the ranks" },
    { .name = "rates",
      .type = OPTION_STRING,
      .offset = AT(rates),
      .value = "FILE",
      .help = "predict the time of a step from the rates in FILE",
      .computed = "those of this machine, measured once" },
    { .name = "elastic",
      .type = OPTION_COUNT,
      .offset = AT(elastic),
      .value = "MIN",
      .help = "count the copies in memory that a run with --elastic makes (checkpoint.memory_every)" },
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

/* Times are predicted where the rates are known. */
static void print_times(const struct train_plan *plan)
{
    if (plan->step_seconds <= 0)
        return;
    printf("%-34s %.3g s (predicted)\n", "a step", plan->step_seconds);
    printf("%-34s %.3g s\n", "exposed communication in it", plan->exposed_seconds);
    printf("%-34s %.0f\n", "tokens per second", plan->step_ntok / plan->step_seconds);
}

static bool put_times(json_t *o, const struct train_plan *plan)
{
    bool ok = json_out_put(o, "step_seconds", plan->step_seconds > 0 ? json_real(plan->step_seconds) : json_null());
    ok &= json_out_put(o, "exposed_seconds", plan->step_seconds > 0 ? json_real(plan->exposed_seconds) : json_null());
    return ok & json_out_put(o, "tokens_per_step", plan->step_seconds > 0 ? json_real(plan->step_ntok) : json_null());
}

static int show(const struct plan_args *args, const struct train_plan *plan, const struct line *lines, size_t n)
{
    char text[TEXT_NBYTES];
    if (!args->json) {
        for (size_t i = 0; i < n; i++) {
            if (lines[i].text && lines[i].is_bytes)
                printf("%-34s %s\n", lines[i].text, text_bytes(lines[i].value, text));
            else if (lines[i].text)
                printf("%-34s %llu\n", lines[i].text, (unsigned long long)lines[i].value);
        }
        print_times(plan);
        plan_table_print(plan);
        return EXIT_DONE;
    }
    json_t *o = json_object();
    bool complete = true;
    for (size_t i = 0; i < n; i++)
        complete &=
            json_out_put(o, lines[i].key, lines[i].value == UINT64_MAX ? json_null() : json_out_u64(lines[i].value));
    complete &= put_times(o, plan);
    complete &= json_out_put(o, "groups", plan_table_json(plan));
    return json_out_print(o, complete, EXIT_DONE);
}

static bool put_bytes(json_t *o, const char *key, uint64_t nbytes)
{
    return json_out_put(o, key, json_out_u64(nbytes));
}

static int print_tenants_json(const struct train_tenants_plan *p)
{
    json_t *o = json_object(), *list = json_array();
    bool complete = o && list;
    for (size_t i = 0; i < p->n; i++) {
        const struct train_tenant_plan *t = &p->tenants[i];
        json_t *row = json_object();
        complete &= json_out_put(row, "name", json_out_text(t->name));
        complete &= json_out_put(row, "parameters_trained", json_out_u64(t->alone.ntrained));
        complete &= json_out_put(row, "steps", json_out_u64(t->alone.nsteps));
        complete &= put_bytes(row, "own_bytes", t->own_nbytes);
        complete &= put_bytes(row, "alone_peak_bytes", t->alone.peak_nbytes);
        complete &= put_bytes(row, "alone_gathered_bytes_per_step", t->alone.gathered_step_nbytes);
        complete &= json_array_append_new(list, row) == 0;
    }
    complete &= json_out_put(o, "tenants", list);
    complete &= put_bytes(o, "base_bytes", p->base_nbytes);
    complete &= put_bytes(o, "peak_bytes", p->peak_nbytes);
    complete &= put_bytes(o, "gathered_bytes_per_cycle", p->gathered_cycle_nbytes);
    return json_out_print(o, complete, EXIT_DONE);
}

static void print_tenants(const struct train_tenants_plan *p)
{
    char a[TEXT_NBYTES], b[TEXT_NBYTES], c[TEXT_NBYTES];
    uint64_t apart = 0, gathered = 0;
    printf("%-20s %12s %8s %12s %12s %14s\n", "tenant", "trained", "steps", "its own", "alone", "gathered a step");
    for (size_t i = 0; i < p->n; i++) {
        const struct train_plan *alone = &p->tenants[i].alone;
        printf("%-20s %12llu %8llu %12s %12s %14s\n", p->tenants[i].name, (unsigned long long)alone->ntrained,
               (unsigned long long)alone->nsteps, text_bytes(p->tenants[i].own_nbytes, a),
               text_bytes(alone->peak_nbytes, b), text_bytes(alone->gathered_step_nbytes, c));
        apart += alone->peak_nbytes;
        gathered += alone->gathered_step_nbytes;
    }
    printf("\n%-34s %s\n", "a rank's base, and its buffers", text_bytes(p->base_nbytes, a));
    printf("%-34s %s\n", "a rank's peak", text_bytes(p->peak_nbytes, a));
    printf("%-34s %s\n", "a run for each, at the same time", text_bytes(apart, a));
    printf("%-34s %s\n", "gathered for a micro-batch of all", text_bytes(p->gathered_cycle_nbytes, a));
    printf("%-34s %s\n", "a run for each, for a step of all", text_bytes(gathered, a));
}

static int plan_tenants(const struct plan_args *args, const struct train_config *config,
                        const struct train_options *opt, struct fsdpck_error *err)
{
    struct train_tenants_plan p;
    if (args->search)
        return fsdpck_error_set(err, FSDPCK_ERR_UNSUPPORTED, NULL, "key 'tenants': --search is for one training");
    int rc = train_plan_tenants(config, opt, &p, err);
    if (rc)
        return rc;
    if (args->json)
        rc = print_tenants_json(&p);
    else
        print_tenants(&p);
    free(p.tenants);
    return rc;
}

static int run(void *ctx, const char *const *at)
{
    struct plan_args *args = ctx;
    const char *path = at[0];
    struct fsdpck_error err = { 0 };
    struct report report = { 0 };
    struct train_config config;
    struct train_plan p;
    struct device_arg device;
    char model[PATH_MAX], cache[PATH_MAX];
    device_choose(args->device, &device);
    if (args->elastic && args->elastic >= args->ranks)
        return usage_error("--elastic: found %u of %u ranks, wanted a smaller number than --ranks", args->elastic,
                           args->ranks);
    if (args->per_host && args->ranks % args->per_host)
        return usage_error("--ranks-per-host: found %u for %u ranks, wanted hosts with the same number of ranks",
                           args->per_host, args->ranks);
    const struct train_options opt = { .device = device.name,
                                       .module = device.module,
                                       .nranks = args->ranks,
                                       .nthreads = args->threads,
                                       .on_paper = true,
                                       .ranks_per_host = args->per_host,
                                       .several_hosts = args->per_host && args->per_host < args->ranks,
                                       .rank_nbytes = args->memory,
                                       .rates = args->rates,
                                       .cache = cache_folder(cache) ? cache : NULL,
                                       .elastic_nranks = args->elastic,
                                       .copy_gathers = strcmp(args->gather, "copy") == 0,
                                       .note = show_note,
                                       .ctx = args };
    int rc = train_config_read(path, (const char *const *)args->sets.at, args->sets.count, &config, &err);
    if (!rc)
        rc = model_path_resolve(config.model, model, sizeof model, &err);
    if (!rc)
        rc = train_config_set_model(&config, model, &err);
    if (!rc && config.tenants) {
        rc = plan_tenants(args, &config, &opt, &err);
        train_config_free(&config);
        return err.code ? report_error(&report, &err) : rc;
    }
    if (!rc && args->search) {
        rc = plan_search(&config, &opt, args->json, &err);
        train_config_free(&config);
        return err.code ? report_error(&report, &err) : rc;
    }
    if (!rc)
        rc = train_plan(&config, &opt, &p, &err);
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
        { "shard_ranks", p.nreplicas > 1 ? "ranks of a shard group" : NULL, p.nshards, false },
        { "replicas", p.nreplicas > 1 ? "shard groups with all parameters" : NULL, p.nreplicas, false },
        { "to_encode", p.nto_encode ? "pictures and texts to encode" : NULL, p.nto_encode, false },
        { "shard_bytes", "a rank's shards", p.shard_nbytes, true },
        { "gradient_bytes", "a rank's gradients", p.gradient_nbytes, true },
        { "optimizer_bytes",
          p.on_device             ? "a rank's reduced gradients, moments"
          : p.offload_file_nbytes ? "a rank's moments on their way"
                                  : "a rank's moments",
          p.optimizer_nbytes, true },
        { "offload_file_bytes", p.offload_file_nbytes ? "a rank's file of moments" : NULL, p.offload_file_nbytes,
          true },
        { "offload_host_bytes", p.offload_host_nbytes ? "a rank's host memory for moments" : NULL,
          p.offload_host_nbytes, true },
        { "offload_host_params_bytes", p.offload_rest_nbytes ? "a rank's parameters in host memory" : NULL,
          p.offload_rest_nbytes, true },
        { "offload_bytes_per_step", p.offload_step_nbytes ? "read, then written, of it a step" : NULL,
          p.offload_step_nbytes, true },
        { "offload_gradients_bytes", p.offload_grads_nbytes ? "a rank's file of gradients" : NULL,
          p.offload_grads_nbytes, true },
        { "offload_params_bytes", p.offload_params_nbytes ? "all ranks' file of parameters" : NULL,
          p.offload_params_nbytes, true },
        { "offload_written_bytes", p.offload_file_nbytes ? "a rank writes there in the run" : NULL,
          p.offload_written_nbytes * p.nsteps, true },
        { "gather_buffer_bytes", "a rank's buffers to gather into", p.buffer_nbytes, true },
        { "kept_bytes", p.kept_nbytes ? "a rank's parts kept for the backward" : NULL, p.kept_nbytes, true },
        { "exchange_buffer_bytes", p.exchange_nbytes ? "a rank's buffers for other hosts' sums" : NULL,
          p.exchange_nbytes, true },
        { "expert_bytes", p.expert_nbytes ? "a rank's whole experts" : NULL, p.expert_nbytes, true },
        { "token_message_bytes", p.message_nbytes ? "a rank's message to other experts" : NULL, p.message_nbytes,
          true },
        { "snapshot_bytes", p.on_device ? "the host's copy of what is saved" : "a rank's copy of what is saved",
          p.snapshot_nbytes, true },
        { "spare_bytes", p.spare_nbytes ? "a rank's part of the copies in memory" : NULL, p.spare_nbytes, true },
        { "blocks_recomputed", "blocks recomputed in the backward", p.nrecomputed, false },
        { "activation_bytes", "a rank's activations and scratch", p.activation_nbytes, true },
        { "sample_bytes", "a rank's memory for samples", p.sample_nbytes, true },
        { "encoding_bytes", p.encoding_nbytes ? "a rank's memory while it encodes" : NULL, p.encoding_nbytes, true },
        { "peak_bytes", p.on_device ? "a rank's memory on its device" : "a rank's peak", p.peak_nbytes, true },
        { "least_bytes", p.least_nbytes ? "the same, every block recomputed" : NULL, p.least_nbytes, true },
        { "all_ranks_bytes", p.on_device ? "all ranks' devices together" : "all ranks together (PSS)",
          p.all_ranks_nbytes, true },
        { "gathered_bytes_per_step", "read of others' parameters a step", p.gathered_step_nbytes, true },
        { "exchanged_token_bytes_per_step", p.tokens_step_nbytes ? "read of others' tokens a step" : NULL,
          p.tokens_step_nbytes, true },
        { "spread_bytes_per_step", p.spread_step_nbytes ? "new values from other replicas a step" : NULL,
          p.spread_step_nbytes, true },
        { "reduced_bytes_per_step", "read of others' gradients a step", p.reduced_step_nbytes, true },
        { "from_hosts_bytes_per_step",
          p.from_hosts_step_nbytes && p.from_hosts_step_nbytes != UINT64_MAX ? "from host to host a step, of all ranks"
                                                                             : NULL,
          p.from_hosts_step_nbytes, true },
    };
    return show(args, &p, lines, sizeof lines / sizeof lines[0]);
}

int cmd_plan(const struct command *self, int argc, char **argv)
{
    struct plan_args args = { 0 };
    const struct option_group groups[] = { { "Options", plan_options, sizeof plan_options / sizeof plan_options[0],
                                             &args } };
    const struct command_line line = {
        .command = self,
        .positionals = "CONFIG.json",
        .groups = groups,
        .ngroups = 1,
        .notes = "The ranks of one host map parameters and hold them once between them, or gather them into "
                 "buffers (--gather copy). The figures leave out the program itself and its libraries. On GPUs "
                 "each rank has a device, and the driver takes about 0.5 GiB more. Times follow from the rates of "
                 "this machine, which are measured once and kept in $XDG_CACHE_HOME/fsdpck or ~/.cache/fsdpck.",
        .exit_no = "--search found no settings under which the run fits",
        .examples = "fsdptrain plan lora.json --ranks 2\n"
                    "fsdptrain plan lora.json --ranks 8 --gather copy --search",
    };
    return options_run(&line, argc, argv, run, &args);
}
