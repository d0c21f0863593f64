/* SPDX-License-Identifier: Apache-2.0 */
/* Modules that one layer leaves unquantized while other layers quantize them, and that no list of quantization_config
 * names: loaders make a quantized module there, and find no scales. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include <fsdpck/select.h>

#include "base/suffix.h"
#include "doctor/checks.h"
#include "doctor/layers.h"

/* The modules of one path below a layer, with '#' for the numbers of experts. */
struct kind {
    uint64_t nquantized, nplain;
    const struct doctor_tensor *plain; /* the first one that no list names */
    const char *module;                /* its path */
};

struct kinds {
    struct fsdpck_arena arena;
    struct fsdpck_vec list; /* struct kind */
    struct fsdpck_names names;
};

static const char *const lists[] = { "ignore", "ignored_layers", "modules_to_not_convert", "exclude_modules" };

/* Methods that quantize every linear module but those of a list. Other methods, and groups with targets of their own,
 * choose the modules by other rules. */
static bool quantizes_all(const json_t *config)
{
    static const char *const methods[] = { "fp8", "fbgemm_fp8", "compressed-tensors", "modelopt" };
    const char *method = json_string_value(json_object_get(config, "quant_method")), *name;
    json_t *groups = json_object_get(config, "config_groups"), *group;
    bool known = false;
    for (size_t i = 0; method && i < sizeof methods / sizeof *methods; i++)
        known = known || strcmp(method, methods[i]) == 0;
    json_object_foreach (groups, name, group) {
        const json_t *targets = json_object_get(group, "targets");
        const char *only = json_string_value(json_array_get(targets, 0));
        known = known && json_array_size(targets) == 1 && only && strcmp(only, "Linear") == 0;
    }
    return known;
}

/* Regular expressions are not evaluated: what they name is unknown. */
static bool has_expression(const json_t *config)
{
    for (size_t k = 0; k < sizeof lists / sizeof *lists; k++) {
        const json_t *list = json_object_get(config, lists[k]);
        for (size_t i = 0; i < json_array_size(list); i++) {
            const char *name = json_string_value(json_array_get(list, i));
            if (name && strncmp(name, "re:", 3) == 0)
                return true;
        }
    }
    return false;
}

/* Programs take an entry for a module's path, for a part of it, or for a pattern. */
static bool is_listed(const json_t *config, const char *module)
{
    for (size_t k = 0; k < sizeof lists / sizeof *lists; k++) {
        const json_t *list = json_object_get(config, lists[k]);
        for (size_t i = 0; i < json_array_size(list); i++) {
            const char *entry = json_string_value(json_array_get(list, i));
            if (entry && *entry && (strstr(module, entry) || fsdpck_glob_match(entry, module)))
                return true;
        }
    }
    return false;
}

static bool is_plain(const struct doctor_tensor *t)
{
    return t->ndim == 2 && (t->dtype == FSDPCK_BFLOAT16 || t->dtype == FSDPCK_FLOAT16 || t->dtype == FSDPCK_FLOAT32);
}

/* Writes '#' for each number of a path. */
static void mask_numbers(char *path)
{
    char *to = path;
    for (const char *s = path; *s; s++) {
        const bool digit = *s >= '0' && *s <= '9';
        if (!digit || to == path || to[-1] != '#')
            *to++ = digit ? '#' : *s;
    }
    *to = '\0';
}

/* part: the name below the layer; nbytes: of the module's path in it. */
static int count_module(struct doctor *d, struct kinds *k, const struct doctor_tensor *t, const char *part,
                        size_t nbytes)
{
    const json_t *config = fsdpck_doctor_key(d->model, "quantization_config");
    const size_t before = (size_t)(part - t->name);
    char *module = fsdpck_arena_strndup(&k->arena, t->name, before + nbytes, d->err);
    char *path = module ? fsdpck_arena_strndup(&k->arena, part, nbytes, d->err) : NULL;
    size_t at;
    if (path)
        mask_numbers(path);
    if (!path || fsdpck_names_add(&k->names, path, k->list.count, &at, d->err) != 0)
        return FSDPCK_ERR_NOMEM;
    struct kind *kind = at == SIZE_MAX ? fsdpck_vec_push(&k->list, d->err) : (struct kind *)k->list.data + at;
    if (!kind)
        return FSDPCK_ERR_NOMEM;
    if (at == SIZE_MAX)
        *kind = (struct kind){ .nplain = 0 };
    if (!is_plain(t))
        kind->nquantized++;
    else if (!is_listed(config, module) && kind->nplain++ == 0) {
        kind->plain = t;
        kind->module = module;
    }
    return 0;
}

/* Counts the weights of the layers that num_hidden_layers counts: layers for multi-token prediction often stay as they
 * are. */
static int count_weights(struct doctor *d, struct kinds *k)
{
    static const char *const suffixes[] = { ".weight", ".weight_packed" };
    const char *prefix = fsdpck_doctor_layer_prefix(d->model), *part;
    uint64_t nlayers, layer;
    if (!prefix || !fsdpck_doctor_count(d->model, "num_hidden_layers", &nlayers))
        return FSDPCK_ERR_UNSUPPORTED;
    for (size_t i = 0; i < d->model->tensors.count; i++) {
        const struct doctor_tensor *t = &doctor_tensors(d->model)[i];
        for (size_t s = 0; s < sizeof suffixes / sizeof *suffixes; s++)
            if (fsdpck_doctor_split(t->name, prefix, &layer, &part) && layer < nlayers &&
                ends_with(part, suffixes[s]) && count_module(d, k, t, part, strlen(part) - strlen(suffixes[s])) != 0)
                return d->err->code;
    }
    return 0;
}

static void blame(struct doctor *d, const struct kind *k)
{
    struct doctor_words w;
    doctor_say(w.found, "%s, with no scales, in %" PRIu64 " of %" PRIu64 " such modules",
               fsdpck_dtype_info(k->plain->dtype)->name, k->nplain, k->nplain + k->nquantized);
    doctor_say(w.expected, "quantized as the others, or a name in quantization_config's list of modules that are not");
    doctor_say(w.mend, "add '%.600s' to that list in config.json", k->module);
    fsdpck_doctor_report(d, FSDPCK_SEVERITY_ERROR, doctor_files(d->model)[k->plain->file].name, k->plain->name, &w);
}

bool fsdpck_doctor_quant_layers(struct doctor *d)
{
    const json_t *config = fsdpck_doctor_key(d->model, "quantization_config");
    struct kinds k = { .list = FSDPCK_VEC(struct kind) };
    if (!quantizes_all(config) || has_expression(config))
        return false;
    const bool decided = count_weights(d, &k) == 0;
    const struct kind *list = k.list.data;
    for (size_t i = 0; decided && i < k.list.count; i++)
        if (list[i].nplain && list[i].nquantized)
            blame(d, &list[i]);
    fsdpck_vec_free(&k.list);
    fsdpck_names_free(&k.names);
    fsdpck_arena_free(&k.arena);
    return decided;
}
