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
#include <train/train.h>
#include <unistd.h>

#include "common/json_out.h"
#include "common/model_path.h"
#include "common/report.h"
#include "common/text.h"
#include "init_columns.h"

struct init_args {
    bool force, full;
    const char *out, *output_dir; /* output_dir NULL: runs/NAME, after the model */
    uint32_t ranks;
};

#define AT(field) offsetof(struct init_args, field)

static const struct option init_options[] = {
    { .name = "out",
      .type = OPTION_STRING,
      .offset = AT(out),
      .value = "FILE",
      .help = "config to write (default fsdptrain.json)" },
    { .name = "output-dir",
      .type = OPTION_STRING,
      .offset = AT(output_dir),
      .value = "DIR",
      .help = "output_dir of the config (default runs/ and the model's name)" },
    { .name = "ranks",
      .type = OPTION_COUNT,
      .offset = AT(ranks),
      .value = "N",
      .help = "number of local processes that the run must fit (default 1)" },
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

static uint64_t max_positions(const char *model)
{
    static const char *const places[] = { "config.json", "assets/config.json" };
    char path[PATH_MAX + 32];
    uint64_t n = 0;
    for (size_t i = 0; i < 2 && n == 0; i++) {
        snprintf(path, sizeof path, "%s/%s", model, places[i]);
        json_t *config = is_regular(path) ? json_load_file(path, 0, NULL) : NULL;
        json_int_t said = json_integer_value(json_object_get(config, "max_position_embeddings"));
        n = said > 0 ? (uint64_t)said : 0;
        json_decref(config);
    }
    return n ? n : LONGEST;
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
           json_out_put(section, strchr(name, '.') + 1, json_loads(key.usual, JSON_DECODE_ANY, NULL));
}

static json_t *complete(json_t *o, bool ok)
{
    if (ok)
        return o;
    json_decref(o);
    return NULL;
}

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

static json_t *config_json(const struct init_args *args, const char *model, const char *data, const struct choice *c)
{
    char folder[300];
    default_folder(model, folder, sizeof folder);
    json_t *o = json_pack("{s:s,s:s,s:s}", "//",
                          "every key that is left out has its default; keys that begin with // are comments", "model",
                          model, "output_dir", args->output_dir ? args->output_dir : folder);
    bool ok = json_out_put(o, "data", data_json(data, c));
    if (!args->full)
        ok &= json_out_put(o, "lora", lora_json());
    ok &= json_out_put(o, "train", train_json(args->full, c));
    ok &= json_out_put(o, "fsdp", json_pack("{s:s}", "activation_checkpointing", c->recompute ? "block" : "none"));
    ok &= json_out_put(o, "checkpoint", json_pack("{s:I}", "save_steps", (json_int_t)c->save_steps));
    return complete(o, ok);
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

/* Writes a config with these values to `path` and plans it. */
static int try(const struct init_args *args, const char *path, const char *model, const char *data,
               const struct choice *c, struct train_plan *plan, struct fsdpck_error *err)
{
    struct train_config config = { 0 };
    const struct train_options opt = { .nranks = args->ranks };
    char resolved[PATH_MAX];
    json_t *o = config_json(args, model, data, c);
    int rc = write_config(path, o, err);
    json_decref(o);
    if (!rc)
        rc = train_config_read(path, NULL, 0, &config, err);
    if (!rc)
        rc = model_path_resolve(model, resolved, sizeof resolved, err);
    if (!rc) {
        config.model = resolved;
        rc = train_plan(&config, &opt, plan, err);
    }
    train_config_free(&config);
    return rc;
}

/* Chooses rows as long as the longest document needs, a batch that gives an epoch some steps, and values that fit in
 * memory. */
static int choose(const struct init_args *args, const char *path, const char *model, const char *data, struct choice *c,
                  struct train_plan *plan, struct fsdpck_error *err)
{
    int rc = try(args, path, model, data, c, plan, err);
    if (rc)
        return rc;
    uint64_t limit = c->seq_len, memory = available_nbytes() / 10 * 8;
    for (c->seq_len = SHORTEST; c->seq_len < plan->longest_ntok && c->seq_len < limit; c->seq_len *= 2)
        ;
    c->seq_len = c->seq_len > limit ? limit : c->seq_len;
    uint64_t rows = plan->ntok / c->seq_len;
    c->batch = rows / 8 > LARGEST_BATCH ? LARGEST_BATCH : rows / 8 ? rows / 8 : 1;
    rc = try(args, path, model, data, c, plan, err);
    for (; !rc && plan->all_ranks_nbytes > memory && (!c->recompute || c->seq_len > SHORTEST);) {
        c->seq_len = c->recompute ? c->seq_len / 2 : c->seq_len;
        c->recompute = true;
        rc = try(args, path, model, data, c, plan, err);
    }
    c->save_steps = plan->nsteps / 4 > 100 ? 100 : plan->nsteps / 4 + 1;
    return rc ? rc : try(args, path, model, data, c, plan, err);
}

static void say_columns(const json_t *columns)
{
    const char *ours;
    json_t *theirs;
    json_object_foreach ((json_t *)columns, ours, theirs)
        printf("the data's '%s' is taken for '%s' (data.columns)\n", json_string_value(theirs), ours);
}

static void say(const struct init_args *args, const struct choice *c, const struct train_plan *p)
{
    char memory[TEXT_NBYTES];
    text_print(stdout, args->out);
    printf(": %llu documents of up to %llu tokens in %llu rows of %llu, %llu steps of %llu rows; %s in all ranks "
           "together\n",
           (unsigned long long)p->ndocs, (unsigned long long)p->longest_ntok, (unsigned long long)p->nrows,
           (unsigned long long)c->seq_len, (unsigned long long)p->nsteps, (unsigned long long)c->batch,
           text_bytes(p->all_ranks_nbytes, memory));
    say_columns(c->columns);
    fputs("fsdptrain run ", stdout);
    text_print(stdout, args->out);
    printf(" --ranks %u\n", args->ranks);
}

static int run(const struct init_args *args, const char *model, const char *data)
{
    struct fsdpck_error err = { 0 };
    struct report report = { 0 };
    struct train_plan plan = { 0 };
    char resolved[PATH_MAX], temporary[PATH_MAX];
    struct choice c = { .batch = 1, .epochs = 3, .save_steps = 1 };
    int n = snprintf(temporary, sizeof temporary, "%s.tmp-%ld", args->out, (long)getpid());
    if (n < 0 || (size_t)n >= sizeof temporary)
        return usage_error("--out: the path is too long");
    if (is_regular(model) && !is_regular(data))
        return usage_error("'%s' is a file%s '%s' %s: the model comes first: fsdptrain init MODEL DATA", model,
                           is_folder(data) ? ", and" : ";", data, is_folder(data) ? "a folder" : "is none");
    if (!args->force && access(args->out, F_OK) == 0)
        return usage_error("%s is there already; --force replaces it", args->out);
    int rc = model_path_resolve(model, resolved, sizeof resolved, &err);
    if (!rc) {
        uint64_t limit = max_positions(resolved);
        c.seq_len = limit > LONGEST ? LONGEST : limit;
        rc = init_columns(data, &c.columns, &err);
        if (!rc)
            rc = choose(args, temporary, model, data, &c, &plan, &err);
    }
    if (!rc && rename(temporary, args->out))
        rc = fsdpck_error_sys(&err, errno, args->out, "rename");
    if (rc)
        unlink(temporary);
    else
        say(args, &c, &plan);
    json_decref(c.columns);
    return rc ? report_error(&report, &err) : EXIT_DONE;
}

int cmd_init(const struct command *self, int argc, char **argv)
{
    struct init_args args = { .out = "fsdptrain.json", .ranks = 1 };
    const struct option_group groups[] = { { "Options", init_options, sizeof init_options / sizeof init_options[0],
                                             &args } };
    const struct command_line line = {
        .command = self,
        .positionals = "MODEL DATA",
        .groups = groups,
        .ngroups = 1,
        .notes = "init also tokenizes the data, into output_dir/cache. The run reads it from there.",
        .examples = "fsdptrain init model/ chat.jsonl --out lora.json --ranks 2",
    };
    const char *at[MAX_POSITIONALS];
    int status = options_parse(&line, argc, argv, at);
    if (status == OPTIONS_OK)
        status = run(&args, at[0], at[1]);
    options_free(&line);
    return status;
}
