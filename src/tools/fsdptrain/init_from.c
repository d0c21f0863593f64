/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the files of --from with the library, and prints what became of each of their keys. */
#include "init_from.h"

#include <stdio.h>
#include <train/import.h>

#include "common/text.h"

static json_t *find(const struct init_from *from, const char *section, const char *key)
{
    return json_object_get(json_object_get(from->config, section), key);
}

/* The command line's value, which replaces the one in the files, or the files'. */
static const char *settle(const char *typed, json_t *section, const char *key, bool *replaced)
{
    if (!typed)
        return json_string_value(json_object_get(section, key));
    *replaced |= json_object_del(section, key) == 0;
    return typed;
}

int init_from_read(const struct strings *paths, struct init_from *out, struct fsdpck_error *err)
{
    struct train_import im = { 0 };
    const uint32_t typed = out->ranks;
    out->ranks = typed ? typed : 1;
    if (paths->count == 0)
        return 0;
    int rc = train_import_read((const char *const *)paths->at, paths->count, out->ranks, &im, err);
    if (rc)
        return rc;
    out->config = im.config;
    out->files = im.files;
    const json_t *lora = json_object_get(out->config, "lora");
    if (out->full && json_is_object(lora))
        return fsdpck_error_set(
            err, FSDPCK_ERR_USAGE, NULL,
            "--full trains every parameter, and the files of --from set up an adapter: leave --full "
            "out, or the adapter's keys");
    out->lora_unknown = !lora && !out->full;
    out->full |= json_is_null(lora);
    out->ranks = !typed && im.nranks ? im.nranks : out->ranks;
    out->model = settle(out->model, out->config, "model", &out->replaced);
    out->data = settle(out->data, json_object_get(out->config, "data"), "train", &out->replaced);
    out->output_dir = settle(out->output_dir, out->config, "output_dir", &out->replaced);
    out->seq_len = (uint64_t)json_integer_value(find(out, "data", "seq_len"));
    out->batch = (uint64_t)json_integer_value(find(out, "train", "global_batch_size"));
    out->recompute_known = find(out, "fsdp", "activation_checkpointing") != NULL;
    return 0;
}

void init_from_free(struct init_from *from)
{
    json_decref(from->config);
    json_decref(from->files);
    *from = (struct init_from){ 0 };
}

void init_from_keep_base(struct init_from *from)
{
    json_t *dtype = json_object_get(from->config, "dtype");
    from->keeps_base = json_object_del(dtype, "base") == 0;
    if (from->keeps_base && json_object_size(dtype) == 0)
        json_object_del(from->config, "dtype");
}

bool init_from_apply(const struct init_from *from, json_t *config)
{
    json_t *train = json_object_get(config, "train");
    if (!from->config)
        return true;
    if (find(from, "train", "max_steps") && !find(from, "train", "num_train_epochs"))
        json_object_del(train, "num_train_epochs");
    if (find(from, "train", "warmup_steps"))
        json_object_del(train, "warmup_ratio");
    return json_object_update_recursive(config, from->config) == 0;
}

static void say_list(const char *file, const char *title, const json_t *list)
{
    const json_t *item;
    size_t i;
    if (json_array_size(list) == 0)
        return;
    text_print(stdout, file);
    printf(": %s: ", title);
    json_array_foreach ((json_t *)list, i, item) {
        fputs(i ? ", " : "", stdout);
        text_print(stdout, json_string_value(item));
    }
    putchar('\n');
}

static void say_file(const json_t *report)
{
    const char *file = json_string_value(json_object_get(report, "file"));
    json_t *note;
    size_t i;
    text_print(stdout, file);
    printf(": %s\n", json_string_value(json_object_get(report, "kind")));
    say_list(file, "taken over", json_object_get(report, "taken"));
    say_list(file, "left out, and taken over from its defaults", json_object_get(report, "defaults"));
    say_list(file, "asks for nothing here", json_object_get(report, "unneeded"));
    json_array_foreach (json_object_get(report, "notes"), i, note) {
        text_print(stdout, file);
        fputs(": ", stdout);
        text_print(stdout, json_string_value(note));
        putchar('\n');
    }
}

void init_from_say(const struct init_from *from)
{
    json_t *report;
    size_t i;
    json_array_foreach (from->files, i, report)
        say_file(report);
    if (from->replaced)
        puts("MODEL, DATA and --output-dir of the command line replace those of the files");
    if (from->keeps_base)
        puts("the model is quantized already, and stays as it is stored (dtype.base)");
    if (from->files && from->lora_unknown)
        puts("no file says whether an adapter is trained: one is (section lora); --full trains every parameter");
}
