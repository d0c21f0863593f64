/* SPDX-License-Identifier: Apache-2.0 */
/* Prepares the start of each verb (verbs.h): the old and the new model, as each kind of source. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "verbs_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "ranks.h"
#include "tree.h"

enum { OLD_RANKS = 3 };

static void make_numbers(struct model_tensor *t, float first)
{
    for (uint64_t i = 0; i < t->nelem; i++) {
        float v = first + (float)i;
        memcpy(t->data + i * sizeof v, &v, sizeof v);
    }
}

/* Makes an adapter for the tensor t2 of make_model, under the names of PEFT's file. If `first` is 0, merging it changes
 * nothing. */
static void make_adapter(struct model *m, float first)
{
    uint64_t seed = 1;
    struct model_tensor *a = model_add(m, &seed, FSDPCK_FLOAT32, 2, (uint64_t[]){ 2, 3 }), *b;
    make_numbers(a, first + 1);
    snprintf(a->name, sizeof a->name, "base_model.model.t2.lora_A.weight");
    b = model_add(m, &seed, FSDPCK_FLOAT32, 2, (uint64_t[]){ 5, 2 });
    make_numbers(b, first);
    if (first == 0)
        memset(b->data, 0, b->nbytes);
    snprintf(b->name, sizeof b->name, "base_model.model.t2.lora_B.weight");
}

/* Makes tensors for all paths: one that fills a direct write even as one piece, one whose halves exceed the size that
 * is aligned, and small ones. */
static void make_model(struct model *m, uint64_t seed)
{
    model_add(m, &seed, FSDPCK_FLOAT32, 2, (uint64_t[]){ 34, 1024 });
    model_add(m, &seed, FSDPCK_BFLOAT16, 2, (uint64_t[]){ 75, 1024 });
    make_numbers(model_add(m, &seed, FSDPCK_FLOAT32, 2, (uint64_t[]){ 5, 3 }),
                 (float)seed); /* no NaN, because a merge may quieten it */
    model_add(m, &seed, FSDPCK_FLOAT32, 0, NULL);
    model_add(m, &seed, FSDPCK_INT64, 1, (uint64_t[]){ 7 });
}

static void must_do(int code, const struct fsdpck_error *err)
{
    if (code == 0)
        return;
    print_error("%s: %s\n", err->file, err->message);
    abort();
}

/* Writes the adapter as a file, whose path it returns, and as a folder. */
static char *make_adapter_sources(const char *top, const char *name, const struct model *m,
                                  const struct fsdpck_lora_choice *choice)
{
    struct fsdpck_error err = { 0 };
    const struct fsdpck_io io = model_fast_io();
    const struct fsdpck_options opt = verb_options(&io, 1);
    char *dir = tree_path(top, name), *out = tree_path(dir, "adapter");
    tree_dir(top, name);
    char *file = tree_path(dir, "lora.safetensors");
    model_write_safetensors(m, file);
    must_do(verb_export_lora(file, out, choice, false, &opt, &err), &err);
    free(out);
    free(dir);
    return file;
}

/* Writes the model as a folder, as a checkpoint, and as exports of it. Returns the first two. */
static void make_sources(const char *top, const char *who, const struct model *m, char **folder, char **checkpoint)
{
    struct fsdpck_error err = { 0 };
    const struct fsdpck_io io = model_fast_io();
    const struct fsdpck_options opt = verb_options(&io, 1);
    char *dir = tree_path(top, who), config[64];
    snprintf(config, sizeof config, "{\"who\": \"%s\"}", who);
    tree_dir(dir, "folder");
    *folder = tree_path(dir, "folder");
    *checkpoint = tree_path(dir, "checkpoint");
    tree_file(*folder, "config.json", config);
    char *file = tree_path(*folder, "model.safetensors"), *exported = tree_path(dir, "export"),
         *one = tree_path(dir, "one.safetensors");
    model_write_safetensors(m, file);
    must_do(verb_convert(*folder, *checkpoint, OLD_RANKS, false, false, &opt, &err), &err);
    char *whole = tree_path(dir, "whole"), *compressed = tree_path(dir, "compressed");
    must_do(verb_export(*checkpoint, exported, false, false, &opt, &err), &err);
    must_do(verb_export(*checkpoint, whole, true, false, &opt, &err), &err);
    must_do(verb_export(*checkpoint, one, false, false, &opt, &err), &err);
    must_do(verb_convert(*folder, compressed, OLD_RANKS, false, true, &opt, &err), &err);
    free(compressed);
    free(whole);
    free(one);
    free(exported);
    free(file);
    free(dir);
}

/* Writes a checkpoint that names the new folder as its base, with its first tensor. */
static void refer(struct ground *g)
{
    const struct fsdpck_options opt = verb_options(NULL, 1);
    const struct verb save = { .kind = VERB_SAVE, .nranks = OLD_RANKS };
    const struct verb_how how = { 0 };
    struct verb_result result = { 0 };
    const struct model_tensor *t = &g->is.tensors[0];
    struct fsdpck_content content = { 0 };
    for (uint64_t row = 0; row < t->shape[0]; row++)
        fsdpck_content_add_row(&content, t->data + row * (t->nbytes / t->shape[0]), t->nbytes / t->shape[0], row);
    g->base_tensor =
        (struct fsdpck_base_tensor){ .name = t->name, .dtype = t->dtype, .ndim = t->ndim, .shape = t->shape };
    fsdpck_content_store(&content, g->base_tensor.content);
    g->base = (struct fsdpck_base){ .path = g->folder, .tensors = &g->base_tensor, .ntensors = 1 };
    g->referring = tree_path(g->top, "referring");
    ranks_save(&save, &g->is, g->referring, g->folder, &g->base, &opt, &how, &result);
    for (int i = 0; i < OLD_RANKS; i++)
        must_do(result.code[i], &result.err[i]);
}

/* Masks save ids, because they differ from run to run. */
char *ground_names(const char *root)
{
    uint8_t uuid[16];
    char *names = tree_names(root), text[37];
    for (char *p = names; strlen(p) >= 36; p++) {
        snprintf(text, sizeof text, "%s", p);
        if (fsdpck_uuid_parse(text, uuid)) {
            p[0] = 'U';
            memmove(p + 1, p + 36, strlen(p + 36) + 1);
        }
    }
    return names;
}

void ground_new(struct ground *g)
{
    char *folder, *checkpoint;
    memset(g, 0, sizeof *g);
    g->top = tree_new();
    g->root = tree_path(g->top, "root");
    g->crash = tree_path(g->top, "crash");
    g->boot = tree_path(g->top, "boot_id");
    tree_file(g->top, "boot_id", "22222222-2222-4222-9222-222222222222\n");
    make_model(&g->was, 1);
    make_model(&g->is, 2);
    make_sources(g->top, "old", &g->was, &folder, &checkpoint);
    make_sources(g->top, "new", &g->is, &g->folder, &g->checkpoint);
    free(folder);
    free(checkpoint);
    refer(g);
    struct model zero = { 0 };
    make_adapter(&g->adapter_was, 10);
    make_adapter(&g->adapter_is, 20);
    make_adapter(&zero, 0);
    free(make_adapter_sources(g->top, "old-lora", &g->adapter_was, &verb_old_scaling));
    g->adapter = make_adapter_sources(g->top, "new-lora", &g->adapter_is, &verb_scaling);
    g->no_change = make_adapter_sources(g->top, "zero-lora", &zero, &verb_scaling);
    model_free(&zero);
}

void ground_free(struct ground *g)
{
    tree_remove(g->top);
    free(g->top);
    free(g->root);
    free(g->crash);
    free(g->boot);
    free(g->folder);
    free(g->checkpoint);
    free(g->referring);
    free(g->out);
    free(g->old_names);
    free(g->new_names);
    model_free(&g->was);
    model_free(&g->is);
    free(g->adapter);
    free(g->no_change);
    model_free(&g->adapter_was);
    model_free(&g->adapter_is);
}

struct ground ground;

int group_set_up(void **state)
{
    (void)state;
    ground_new(&ground);
    return 0;
}

int group_tear_down(void **state)
{
    (void)state;
    ground_free(&ground);
    return 0;
}

void ground_reset(const struct ground *g, const struct verb *v)
{
    tree_remove(g->root);
    tree_dir(g->top, "root");
    if (!v->old)
        return;
    char *from = tree_path(g->top, v->old_from != NULL           ? v->old_from
                                   : v->kind == VERB_EXPORT_FILE ? "old/one.safetensors"
                                   : v->kind == VERB_EXPORT_LORA ? "old-lora/adapter"
                                   : verb_is_export(v)           ? "old/export"
                                                                 : "old/checkpoint");
    char *to = tree_path(g->root, verb_out(v));
    tree_copy(from, to);
    free(from);
    free(to);
}

void ground_set_up(struct ground *g, const struct verb *v)
{
    struct faulty *f[VERB_MAX_RANKS];
    struct verb_how how = { .force = v->old };
    struct verb_result result;
    const char *why;
    free(g->out);
    free(g->old_names);
    free(g->new_names);
    g->out = tree_path(g->root, verb_out(v));
    ground_reset(g, v);
    g->old_names = ground_names(g->root);
    verb_tables(v, g, f, &how);
    verb_run(v, g, &how, &result);
    for (uint32_t i = 0; i < verb_writers(v); i++) {
        if (result.code[i] != 0)
            verb_fail(v, g->root, "rank %u: %s: %s", i, result.err[i].file, result.err[i].message);
        g->nops[i] = faulty_nops(f[i]);
    }
    g->new_names = ground_names(g->root);
    if (verb_state(v, g, g->root, true, &why) != STATE_NEW)
        verb_fail(v, g->root, "without any fault it does not end in the new state: %s", why);
    verb_tables_free(f);
}
