/* SPDX-License-Identifier: Apache-2.0 */
/* `fsdptrain init`: writes a config for this machine, model and data. It tries values with the code of `plan` and
 * trains nothing. */
#include "commands.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <train/image.h>
#include <train/train.h>
#include <unistd.h>

#include "common/json_out.h"
#include "common/model_path.h"
#include "common/report.h"
#include "common/text.h"
#include "init_columns.h"
#include "init_from.h"
#include "init_pictures.h"

struct init_args {
    bool force, full;
    const char *out, *output_dir; /* output_dir NULL: of the files of --from, or runs/NAME, after the model */
    uint32_t ranks;               /* 0: of the files of --from, or 1 */
    struct strings from;
};

#define AT(field) offsetof(struct init_args, field)

static const struct option init_options[] = {
    { .name = "out",
      .type = OPTION_STRING,
      .offset = AT(out),
      .value = "FILE",
      .help = "config to write",
      .usual = "fsdptrain.json" },
    { .name = "output-dir",
      .type = OPTION_STRING,
      .offset = AT(output_dir),
      .value = "DIR",
      .help = "output_dir of the config",
      .computed = "of --from, or runs/ and the model's name" },
    { .name = "from",
      .type = OPTION_STRINGS,
      .offset = AT(from),
      .value = "FILE",
      .help = "take over a configuration of accelerate, a Trainer, TRL, axolotl or torchtitan; may be repeated" },
    { .name = "ranks",
      .type = OPTION_COUNT,
      .offset = AT(ranks),
      .value = "N",
      .help = "number of local processes that the run must fit",
      .computed = "of --from, or 1" },
    { .name = "full", .type = OPTION_FLAG, .offset = AT(full), .help = "train every parameter, without an adapter" },
    { .name = "force", .type = OPTION_FLAG, .offset = AT(force), .help = "replace FILE" },
};

/* The values to write. */
struct choice {
    uint64_t seq_len, batch, save_steps;
    double epochs;
    bool recompute;
    json_t *columns; /* data.columns, or NULL */
};

/* What is asked for. */
struct request {
    const struct init_args *args;
    struct init_from from;
};

enum { SHORTEST = 128, LONGEST = 2048, LARGEST_BATCH = 8 };

static bool is_regular(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode);
}

static bool is_folder(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

/* The model's config.json; NULL if there is none that can be read. */
static json_t *model_config(const char *model)
{
    static const char *const places[] = { "config.json", "assets/config.json" };
    char path[PATH_MAX + 32];
    json_t *config = NULL;
    for (size_t i = 0; i < 2 && !config; i++) {
        snprintf(path, sizeof path, "%s/%s", model, places[i]);
        config = is_regular(path) ? json_load_file(path, 0, NULL) : NULL;
    }
    return config;
}

static uint64_t max_positions(const json_t *config)
{
    const json_int_t window = json_integer_value(json_object_get(config, "max_position_embeddings"));
    return window > 0 ? (uint64_t)window : LONGEST;
}

static uint64_t available_nbytes(void)
{
    unsigned long long kib = 0;
    char line[200];
    FILE *f = fopen("/proc/meminfo", "re");
    while (f && fgets(line, sizeof line, f) && sscanf(line, "MemAvailable: %llu", &kib) != 1)
        ;
    if (f)
        fclose(f);
    return kib ? kib * 1024 : UINT64_MAX;
}

/* Makes output_dir from the model's name if none is given. */
static void default_folder(const char *model, char *folder, size_t nbytes)
{
    size_t end = strlen(model), begin;
    while (end > 0 && model[end - 1] == '/')
        end--;
    for (begin = end; begin > 0 && model[begin - 1] != '/';)
        begin--;
    bool named = end > begin && end - begin < 200 && model[begin] != '.';
    snprintf(folder, nbytes, "runs/%.*s", named ? (int)(end - begin) : 5, named ? model + begin : "first");
}

/* Adds key "section.name" with its default value, so that the user sees it. */
static bool put_default(json_t *section, const char *name)
{
    struct train_config_key key;
    return train_config_find(name, &key) &&
           json_out_put(section, strchr(name, '.') + 1, json_loads(key.default_value, JSON_DECODE_ANY, NULL));
}

static json_t *complete(json_t *o, bool ok)
{
    if (ok)
        return o;
    json_decref(o);
    return NULL;
}

static const char comment[] = "every key that is left out has its default; keys that begin with // are comments";

static json_t *data_json(const char *data, const struct choice *c)
{
    json_t *o = json_pack("{s:s,s:I}", "train", data, "seq_len", (json_int_t)c->seq_len);
    bool ok = put_default(o, "data.loss_on") && (!c->columns || json_object_set(o, "columns", c->columns) == 0);
    return complete(o, ok);
}

static json_t *lora_json(void)
{
    json_t *o = json_object();
    return complete(o, put_default(o, "lora.r") && put_default(o, "lora.lora_alpha") &&
                           put_default(o, "lora.target_modules"));
}

static json_t *train_json(bool full, const struct choice *c)
{
    json_t *o = json_pack("{s:f,s:I}", "num_train_epochs", c->epochs, "global_batch_size", (json_int_t)c->batch);
    bool ok = full ? json_out_put(o, "learning_rate", json_real(2e-5)) : put_default(o, "train.learning_rate");
    return complete(o, ok && put_default(o, "train.warmup_ratio"));
}

static json_t *config_json(const struct request *r, const struct choice *c)
{
    const struct init_from *from = &r->from;
    char folder[300];
    default_folder(from->model, folder, sizeof folder);
    json_t *o = json_pack("{s:s,s:s,s:s}", "//", comment, "model", from->model, "output_dir",
                          from->output_dir ? from->output_dir : folder);
    bool ok = json_out_put(o, "data", data_json(from->data, c));
    if (!from->full)
        ok &= json_out_put(o, "lora", lora_json());
    ok &= json_out_put(o, "train", train_json(from->full, c));
    ok &= json_out_put(o, "fsdp", json_pack("{s:s}", "activation_checkpointing", c->recompute ? "block" : "none"));
    ok &= json_out_put(o, "checkpoint", json_pack("{s:I}", "save_steps", (json_int_t)c->save_steps));
    return complete(o, ok && init_from_apply(from, o));
}

static int write_config(const char *path, json_t *o, struct fsdpck_error *err)
{
    FILE *f = o ? fopen(path, "we") : NULL;
    if (!o)
        return fsdpck_error_nomem(err, 1024);
    int rc = !f || json_dumpf(o, f, JSON_INDENT(2) | JSON_REAL_PRECISION(6)) || fputc('\n', f) == EOF
                 ? fsdpck_error_sys(err, errno ? errno : EIO, path, "write")
                 : 0;
    if (f && fclose(f) && !rc)
        rc = fsdpck_error_sys(err, errno, path, "close");
    return rc;
}

/* Writes the config, which it takes, to `path` and plans it. on_paper: the cache is not filled. */
static int try_config(const struct request *r, const char *path, json_t *o, bool on_paper, struct train_plan *plan,
                      struct fsdpck_error *err)
{
    struct train_config config = { 0 };
    const struct train_options opt = { .nranks = r->from.ranks, .on_paper = on_paper };
    char resolved[PATH_MAX];
    int rc = write_config(path, o, err);
    json_decref(o);
    if (!rc)
        rc = train_config_read(path, NULL, 0, &config, err);
    if (!rc)
        rc = model_path_resolve(r->from.model, resolved, sizeof resolved, err);
    if (!rc)
        rc = train_config_set_model(&config, resolved, err);
    if (!rc)
        rc = train_plan(&config, &opt, plan, err);
    train_config_free(&config);
    return rc;
}

static int try(const struct request *r, const char *path, const struct choice *c, struct train_plan *plan,
               struct fsdpck_error *err)
{
    return try_config(r, path, config_json(r, c), false, plan, err);
}

/* Chooses rows as long as the longest document needs, a batch that gives an epoch some steps, and values that fit in
 * memory. Values that the files of --from set are not chosen. */
static int choose(const struct request *r, const char *path, struct choice *c, struct train_plan *plan,
                  struct fsdpck_error *err)
{
    const struct init_from *from = &r->from;
    c->seq_len = from->seq_len ? from->seq_len : c->seq_len;
    int rc = try(r, path, c, plan, err);
    if (rc)
        return rc;
    uint64_t limit = c->seq_len, memory = available_nbytes() / 10 * 8;
    for (c->seq_len = SHORTEST; c->seq_len < plan->longest_ntok && c->seq_len < limit; c->seq_len *= 2)
        ;
    c->seq_len = from->seq_len || c->seq_len > limit ? limit : c->seq_len;
    uint64_t rows = plan->ntok / c->seq_len;
    c->batch = rows / 8 > LARGEST_BATCH ? LARGEST_BATCH : rows / 8 ? rows / 8 : 1;
    c->batch = from->batch ? from->batch : c->batch;
    rc = try(r, path, c, plan, err);
    bool recompute = c->recompute || from->recompute_known;
    for (; !rc && plan->all_ranks_nbytes > memory && (!recompute || (c->seq_len > SHORTEST && !from->seq_len));) {
        c->seq_len = recompute ? c->seq_len / 2 : c->seq_len;
        c->recompute = recompute = true;
        rc = try(r, path, c, plan, err);
    }
    c->save_steps = plan->nsteps / 4 > 100 ? 100 : plan->nsteps / 4 + 1;
    return rc ? rc : try(r, path, c, plan, err);
}

static void say_columns(const json_t *columns)
{
    const char *ours;
    json_t *theirs;
    json_object_foreach ((json_t *)columns, ours, theirs)
        printf("the data's '%s' is taken for '%s' (data.columns)\n", json_string_value(theirs), ours);
}

static void say_next(const struct request *r)
{
    fputs("next: fsdptrain run ", stdout);
    text_print(stdout, r->args->out);
    printf(" --ranks %u\n", r->from.ranks);
}

static void say(const struct request *r, const struct choice *c, const struct train_plan *p)
{
    char memory[TEXT_NBYTES];
    init_from_say(&r->from);
    text_print(stdout, r->args->out);
    printf(": %llu document%s of up to %llu token%s in %llu row%s of %llu, %llu step%s of %llu row%s; %s in all ranks "
           "together\n",
           (unsigned long long)p->ndocs, fsdpck_plural(p->ndocs), (unsigned long long)p->longest_ntok,
           fsdpck_plural(p->longest_ntok), (unsigned long long)p->nrows, fsdpck_plural(p->nrows),
           (unsigned long long)c->seq_len, (unsigned long long)p->nsteps, fsdpck_plural(p->nsteps),
           (unsigned long long)c->batch, fsdpck_plural(c->batch), text_bytes(p->all_ranks_nbytes, memory));
    say_columns(c->columns);
    say_next(r);
}

/* Chooses values for a pipeline and a folder of pictures, and writes the config. */
static int write_pictures(const struct request *r, const char *resolved, const char *path, struct fsdpck_error *err)
{
    enum { MOST_BATCH = 4 };
    const struct init_from *from = &r->from;
    char folder[300];
    struct train_plan plan = { 0 };
    if (from->full || r->args->from.count)
        return fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL,
                                "%s: a pipeline that makes pictures is trained with an adapter, by a config of its own",
                                from->full ? "--full" : "--from");
    default_folder(from->model, folder, sizeof folder);
    struct init_pictures p = { .comment = comment,
                               .model = from->model,
                               .data = from->data,
                               .output_dir = from->output_dir ? from->output_dir : folder,
                               .prompt = init_pictures_caption(resolved, from->data),
                               .batch = 1 };
    int rc = try_config(r, path, init_pictures_config(&p), true, &plan, err);
    p.batch = plan.ndocs < MOST_BATCH ? plan.ndocs : MOST_BATCH;
    p.recompute = plan.all_ranks_nbytes > available_nbytes() / 10 * 8;
    if (!rc)
        rc = try_config(r, path, init_pictures_config(&p), true, &plan, err);
    free(p.prompt);
    if (!rc && rename(path, r->args->out))
        rc = fsdpck_error_sys(err, errno, r->args->out, "rename");
    if (rc)
        return rc;
    text_print(stdout, r->args->out);
    init_pictures_say(&p, &plan);
    say_next(r);
    return 0;
}

/* Chooses values for a model and data, writes the config and says how it is run. */
static int write_planned(struct request *r, const char *path, struct fsdpck_error *err)
{
    struct choice c = { .batch = 1, .epochs = 3, .save_steps = 1 };
    struct train_plan plan = { 0 };
    char resolved[PATH_MAX];
    int rc = model_path_resolve(r->from.model, resolved, sizeof resolved, err);
    if (!rc && image_is_pipeline(resolved))
        return write_pictures(r, resolved, path, err);
    if (!rc) {
        json_t *config = model_config(resolved);
        const uint64_t limit = max_positions(config);
        c.seq_len = limit > LONGEST ? LONGEST : limit;
        if (json_is_object(json_object_get(config, "quantization_config")))
            init_from_keep_base(&r->from);
        json_decref(config);
        rc = init_columns(r->from.data, &c.columns, err);
    }
    if (!rc)
        rc = choose(r, path, &c, &plan, err);
    if (!rc && rename(path, r->args->out))
        rc = fsdpck_error_sys(err, errno, r->args->out, "rename");
    if (!rc)
        say(r, &c, &plan);
    json_decref(c.columns);
    return rc;
}

/* Writes what the files say where nobody names a model or data. */
static int write_partial(struct request *r, const char *path, struct fsdpck_error *err)
{
    const struct init_from *from = &r->from;
    json_t *o = json_pack("{s:s}", "//", comment);
    bool ok = o && init_from_apply(from, o);
    if (from->model)
        ok &= json_object_set_new(o, "model", json_string(from->model)) == 0;
    if (from->output_dir)
        ok &= json_object_set_new(o, "output_dir", json_string(from->output_dir)) == 0;
    int rc = write_config(path, complete(o, ok), err);
    if (ok)
        json_decref(o);
    if (!rc && rename(path, r->args->out))
        rc = fsdpck_error_sys(err, errno, r->args->out, "rename");
    if (rc)
        return rc;
    init_from_say(from);
    text_print(stdout, r->args->out);
    printf(": no file names %s%s%s; add %s, or give MODEL and DATA to init\n", from->model ? "" : "the model",
           from->model || from->data ? "" : " and ", from->data ? "" : "the data",
           from->model  ? "data.train"
           : from->data ? "model"
                        : "model and data.train");
    return 0;
}

static int run(void *ctx, const char *const *at)
{
    const struct init_args *args = ctx;
    const char *model = at[0];
    const char *data = at[1];
    struct fsdpck_error err = { 0 };
    struct report report = { 0 };
    struct request r = { .args = args,
                         .from = { .model = model,
                                   .data = data,
                                   .output_dir = args->output_dir,
                                   .ranks = args->ranks,
                                   .full = args->full } };
    char temporary[PATH_MAX];
    int n = snprintf(temporary, sizeof temporary, "%s.tmp-%ld", args->out, (long)getpid());
    if (n < 0 || (size_t)n >= sizeof temporary)
        return usage_error("--out: the path is too long");
    if (!data && args->from.count == 0)
        return usage_error("%s is missing; usage: fsdptrain init MODEL DATA", model ? "DATA" : "MODEL");
    if (data && is_regular(model) && !is_regular(data))
        return usage_error("'%s' is a file%s '%s' %s: the model comes first: fsdptrain init MODEL DATA", model,
                           is_folder(data) ? ", and" : ";", data, is_folder(data) ? "a folder" : "is none");
    if (!args->force && access(args->out, F_OK) == 0)
        return usage_error("%s is there already; --force replaces it", args->out);
    int rc = init_from_read(&args->from, &r.from, &err);
    if (!rc)
        rc = r.from.model && r.from.data ? write_planned(&r, temporary, &err) : write_partial(&r, temporary, &err);
    if (rc)
        unlink(temporary);
    init_from_free(&r.from);
    return rc ? report_error(&report, &err) : EXIT_DONE;
}

int cmd_init(const struct command *self, int argc, char **argv)
{
    struct init_args args = { 0 };
    const struct option_group groups[] = { { "Options", init_options, sizeof init_options / sizeof init_options[0],
                                             &args } };
    const struct command_line line = {
        .command = self,
        .positionals = "[MODEL] [DATA]",
        .groups = groups,
        .ngroups = 1,
        .notes = "init also tokenizes the data, into output_dir/cache. The run reads it from there.\n"
                 "With the folder of a FLUX.2 pipeline, DATA is a folder of pictures with captions; the run encodes "
                 "them.\n"
                 "With --from, MODEL and DATA may be left out; the config then has what the files say.",
        .examples = "fsdptrain init model/ chat.jsonl --out lora.json --ranks 2\n"
                    "fsdptrain init model/ chat.jsonl --from accelerate.yaml --from training_args.json --out args.json",
    };
    return options_run(&line, argc, argv, run, &args);
}
