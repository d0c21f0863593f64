/* SPDX-License-Identifier: Apache-2.0 */
/* An adapter's tensors against its adapter_config.json: ranks and targets; and its rows against the base's. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/ioutil.h"
#include "base/suffix.h"
#include "doctor/checks.h"
#include "lora/config.h"
#include "lora/names.h"

static const char config_file[] = FSDPCK_LORA_CONFIG_NAME;

static void blame(struct doctor *d, enum fsdpck_severity severity, const struct doctor_tensor *t,
                  const struct doctor_words *w)
{
    fsdpck_doctor_report(d, severity, doctor_files(d->model)[t->file].name, t->name, w);
}

/* Returns false for a configuration of another kind of adapter: it cannot be judged. c is released by the caller. */
static bool read_config(struct doctor *d, struct fsdpck_lora_config *c)
{
    struct fsdpck_error why = { 0 };
    char *path = fsdpck_path_join(d->model->path, config_file, &why), *text = NULL;
    uint64_t nbytes = 0;
    *c = (struct fsdpck_lora_config){ 0 };
    bool good = path &&
                fsdpck_read_file(d->model->io, path, FSDPCK_LORA_CONFIG_MAX_NBYTES, &text, &nbytes, &why) == 0 &&
                fsdpck_lora_config_parse(c, path, text, nbytes, &why) == 0;
    if (why.code == FSDPCK_ERR_NOMEM)
        *d->err = why;
    free(path);
    free(text);
    return good && !c->only_tokens;
}

/* Returns the module of a lora_A, from the arena; NULL: another tensor. */
static const char *module_of(struct doctor *d, struct fsdpck_arena *arena, const struct doctor_tensor *t)
{
    struct fsdpck_lora_name n;
    return ends_with(t->name, DOCTOR_LORA_A) && t->ndim == 2 && t->nbytes > 0 &&
                   !fsdpck_doctor_is_fused_pair(t->name) && fsdpck_lora_name_parse(arena, t->name, &n, d->err) == 0 &&
                   n.role == LORA_A
               ? n.module
               : NULL;
}

/* ---- ranks ---- */

bool fsdpck_doctor_ranks(struct doctor *d)
{
    struct fsdpck_lora_config c;
    struct fsdpck_arena arena = { 0 };
    const struct doctor_tensor *first = NULL;
    struct doctor_words w;
    uint64_t n = 0, wanted = 0, r;
    bool decided = read_config(d, &c);
    for (size_t i = 0; decided && i < d->model->tensors.count; i++) {
        const struct doctor_tensor *t = &doctor_tensors(d->model)[i];
        const char *module = module_of(d, &arena, t);
        struct fsdpck_error why = { 0 };
        if (!module)
            continue;
        decided = fsdpck_lora_config_rank(&c, module, &r, &why) == 0;
        if (decided && t->shape[0] != r && n++ == 0) {
            first = t;
            wanted = r;
        }
    }
    if (decided && n) {
        doctor_say(w.found, "rank %" PRIu64 ", as %" PRIu64 " tensor%s that %s does not explain", first->shape[0], n,
                   fsdpck_plural(n), config_file);
        doctor_say(w.expected, "rank %" PRIu64 ", from r or rank_pattern", wanted);
        doctor_say(w.mend, "put the right r, or a rank_pattern, into %s, and keep lora_alpha / r", config_file);
        blame(d, FSDPCK_SEVERITY_ERROR, first, &w);
    }
    fsdpck_arena_free(&arena);
    fsdpck_lora_config_free(&c);
    return decided;
}

/* ---- targets ---- */

static bool ends_at_part(const char *path, const char *name)
{
    size_t n = strlen(path), k = strlen(name);
    return k && k <= n && strcmp(path + n - k, name) == 0 && (k == n || path[n - k - 1] == '.');
}

/* An entry of a list that no module of the file ends with. */
static void check_entry(struct doctor *d, struct fsdpck_arena *arena, const char *name)
{
    struct doctor_words w;
    for (size_t i = 0; i < d->model->tensors.count; i++) {
        struct fsdpck_lora_name n;
        if (fsdpck_lora_name_parse(arena, doctor_tensors(d->model)[i].name, &n, d->err) != 0 ||
            (n.role >= LORA_A && ends_at_part(n.module, name)))
            return;
    }
    doctor_say(w.found, "'%.300s', which is no module of the adapter", name);
    doctor_say(w.expected, "only modules with tensors: PEFT gives such a module an untrained adapter, or fails");
    doctor_say(w.mend, "remove the entry from %s, or save the adapter whole", config_file);
    fsdpck_doctor_report(d, FSDPCK_SEVERITY_WARNING, config_file, "target_modules", &w);
}

static void check_modules(struct doctor *d, struct fsdpck_arena *arena, const struct fsdpck_lora_config *c)
{
    const struct doctor_tensor *first = NULL;
    struct doctor_words w;
    uint64_t n = 0;
    for (size_t i = 0; i < d->model->tensors.count; i++) {
        const char *module = module_of(d, arena, &doctor_tensors(d->model)[i]);
        if (module && (!fsdpck_lora_config_targets(c, module) || fsdpck_lora_config_leaves_out(c, module)) && n++ == 0)
            first = &doctor_tensors(d->model)[i];
    }
    if (n == 0)
        return;
    doctor_say(w.found, "%" PRIu64 " tensor%s of modules that %s does not target", n, fsdpck_plural(n), config_file);
    doctor_say(w.expected, "target_modules that reach every module: PEFT loads the others' tensors into nothing");
    doctor_say(w.mend, "add the modules to target_modules in %s", config_file);
    blame(d, FSDPCK_SEVERITY_ERROR, first, &w);
}

/* With parameters as targets, names do not tell the target (the check of experts looks at them). */
bool fsdpck_doctor_targets(struct doctor *d)
{
    struct fsdpck_lora_config c;
    struct fsdpck_arena arena = { 0 };
    const json_t *list = json_object_get(d->model->json[DOCTOR_ADAPTER], "target_modules");
    bool decided = read_config(d, &c);
    for (size_t i = 0; decided && i < json_array_size(list); i++)
        if (json_is_string(json_array_get(list, i)))
            check_entry(d, &arena, json_string_value(json_array_get(list, i)));
    if (decided)
        check_modules(d, &arena, &c);
    fsdpck_arena_free(&arena);
    fsdpck_lora_config_free(&c);
    return decided;
}

/* ---- rows of the vocabulary ---- */

/* Returns the rows that the tensor has for the vocabulary; 0: it is of another kind. */
static uint64_t rows_of(const struct doctor_tensor *t, const struct fsdpck_lora_name *n)
{
    if (t->ndim != 2)
        return 0;
    if (n->role == LORA_EMBEDDING_A)
        return t->shape[1];
    bool whole = n->role == LORA_PLAIN || n->role == LORA_BASE || n->role == LORA_SAVED;
    return whole && strcmp(n->leaf, "weight") == 0 &&
                   (ends_at_part(n->module, "embed_tokens") || ends_at_part(n->module, "lm_head"))
               ? t->shape[0]
               : 0;
}

bool fsdpck_doctor_adapter_rows(struct doctor *d)
{
    struct fsdpck_arena arena = { 0 };
    bool any = false;
    for (size_t i = 0; i < d->model->tensors.count && !d->err->code; i++) {
        const struct doctor_tensor *t = &doctor_tensors(d->model)[i];
        struct fsdpck_lora_name n;
        struct doctor_words w;
        char name[1024];
        uint64_t rows = fsdpck_lora_name_parse(&arena, t->name, &n, d->err) == 0 ? rows_of(t, &n) : 0;
        if (!rows)
            continue;
        snprintf(name, sizeof name, "%.1000s.weight", n.module);
        const struct doctor_tensor *b = fsdpck_doctor_find(d->base, name);
        if (!b || b->ndim != 2)
            continue;
        any = true;
        if (rows == b->shape[0])
            continue;
        doctor_say(w.found, "%" PRIu64 " rows of the vocabulary", rows);
        doctor_say(w.expected, "%" PRIu64 ", as the base has: loaders fail, or serve tokens without rows", b->shape[0]);
        doctor_say(w.mend, "give the base that the adapter was trained on, resized to the same vocabulary");
        blame(d, FSDPCK_SEVERITY_ERROR, t, &w);
    }
    fsdpck_arena_free(&arena);
    return any;
}
