/* SPDX-License-Identifier: Apache-2.0 */
/* Presents the adapter of a FLUX.2 transformer in one file of diffusers, sd-scripts, ai-toolkit or ComfyUI as PEFT has
 * it: its names, and the configuration that PEFT would write. */
#include <fsdpck/lora.h>

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/names.h"
#include "base/vec.h"
#include "hf/safetensors_header.h"
#include "lora/flux2_names.h"
#include "view/layout.h"

enum role { ROLE_A, ROLE_B, ROLE_MAGNITUDE, ROLE_ALPHA, NROLES };

/* A module as the file has it; its tensors' ordinals. */
struct found {
    const char *name;
    size_t at[NROLES]; /* SIZE_MAX: absent */
    double alpha;
    uint64_t r;
};

struct reader {
    struct fsdpck_source *src;
    struct fsdpck_vec found; /* struct found */
    struct fsdpck_names names;
    struct fsdpck_arena arena;
    struct fsdpck_layout *layout;
    json_t *config;
    struct fsdpck_error *err;
};

static const struct {
    const char *ending;
    enum role role;
} endings[] = {
    { ".lora_A.weight", ROLE_A },  { ".lora_B.weight", ROLE_B }, { ".lora_down.weight", ROLE_A },
    { ".lora_up.weight", ROLE_B }, { ".alpha", ROLE_ALPHA },     { ".lora_magnitude_vector", ROLE_MAGNITUDE },
};

static bool begins(const char *text, const char *start)
{
    return strncmp(text, start, strlen(start)) == 0;
}

static struct found *found_at(const struct reader *x, size_t i)
{
    return (struct found *)x->found.data + i;
}

static int refuse(const struct reader *x, const char *tensor, int code, const char *what)
{
    fsdpck_error_set(x->err, code, fsdpck_source_path(x->src), "%s", what);
    fsdpck_error_tensor(x->err, tensor);
    return code;
}

/* ---- what the file has ---- */

static int add_tensor(struct reader *x, size_t ordinal)
{
    const char *name = source_tensors(x->src)[ordinal].name;
    const size_t n = strlen(name);
    size_t old, i = 0, m = 0;
    for (; i < sizeof endings / sizeof *endings; i++) {
        m = strlen(endings[i].ending);
        if (n > m && strcmp(name + n - m, endings[i].ending) == 0)
            break;
    }
    if (begins(name, "base_model.")) {
        refuse(x, name, FSDPCK_ERR_UNSUPPORTED, "is PEFT's name, and PEFT's files do not say how they are scaled");
        fsdpck_error_hint(x->err, "give the folder, with adapter_config.json beside the file");
        return x->err->code;
    }
    if (i == sizeof endings / sizeof *endings)
        return refuse(x, name, FSDPCK_ERR_UNSUPPORTED, "is no part of an adapter that is known here");
    char *module = fsdpck_arena_strndup(&x->arena, name, n - m, x->err);
    if (!module || fsdpck_names_add(&x->names, module, x->found.count, &old, x->err))
        return FSDPCK_ERR_NOMEM;
    struct found *f = old == SIZE_MAX ? fsdpck_vec_push(&x->found, x->err) : found_at(x, old);
    if (!f)
        return FSDPCK_ERR_NOMEM;
    if (old == SIZE_MAX)
        *f = (struct found){ module, { SIZE_MAX, SIZE_MAX, SIZE_MAX, SIZE_MAX }, NAN, 0 };
    if (f->at[endings[i].role] != SIZE_MAX)
        return refuse(x, name, FSDPCK_ERR_FORMAT, "is there twice, in two spellings");
    f->at[endings[i].role] = ordinal;
    return 0;
}

static int read_alpha(struct reader *x, struct found *f)
{
    const struct fsdpck_tensor *t = &source_tensors(x->src)[f->at[ROLE_ALPHA]];
    uint8_t raw[16];
    double alpha;
    float value;
    const struct fsdpck_read read = { .tensor = t, .dst = raw };
    if (t->nelem != 1 || t->nbytes > sizeof raw)
        return refuse(x, t->name, FSDPCK_ERR_FORMAT, "is an alpha, and not one number");
    int rc = fsdpck_source_read(x->src, &read, 1, x->err);
    if (rc)
        return rc;
    if (!fsdpck_dtype_cast(t->dtype, raw, FSDPCK_FLOAT32, &value, 1))
        return refuse(x, t->name, FSDPCK_ERR_UNSUPPORTED, "is an alpha of a dtype that is not read");
    alpha = (double)value;
    if (!isfinite(alpha))
        return refuse(x, t->name, FSDPCK_ERR_FORMAT, "is an alpha that is not finite");
    f->alpha = alpha;
    return 0;
}

static int check(struct reader *x, struct found *f)
{
    const struct fsdpck_tensor *all = source_tensors(x->src);
    for (int role = ROLE_A; role <= ROLE_B; role++) {
        if (f->at[role] == SIZE_MAX)
            return refuse(x, f->name, FSDPCK_ERR_MISSING, role == ROLE_A ? "has no lora_A" : "has no lora_B");
        if (all[f->at[role]].ndim != 2)
            return refuse(x, all[f->at[role]].name, FSDPCK_ERR_UNSUPPORTED,
                          "is no linear layer's, and FLUX.2 has no others");
    }
    f->r = all[f->at[ROLE_A]].shape[0];
    if (!f->r || f->r != all[f->at[ROLE_B]].shape[1])
        return refuse(x, f->name, FSDPCK_ERR_FORMAT, "has a lora_A and a lora_B of different ranks");
    return f->at[ROLE_ALPHA] == SIZE_MAX ? 0 : read_alpha(x, f);
}

static int find_all(struct reader *x)
{
    int rc = 0;
    for (size_t i = 0; i < x->src->tensors.count && !rc; i++)
        rc = add_tensor(x, i);
    for (size_t i = 0; i < x->found.count && !rc; i++)
        rc = check(x, found_at(x, i));
    return rc;
}

/* ---- how PEFT has it ---- */

/* Part `part` of a module: its path in diffusers' names. false: it has fewer, or none. */
static bool path_of(const char *name, unsigned part, char path[FSDPCK_FLUX2_NAME],
                    const struct fsdpck_flux2_naming **naming)
{
    static const char own[] = "transformer.", native[] = "diffusion_model.", flat[] = "lora_unet_";
    char ignored[FSDPCK_FLUX2_NAME];
    const char *inside = begins(name, own)      ? name + sizeof own - 1
                         : begins(name, native) ? name + sizeof native - 1
                         : begins(name, flat)   ? name + sizeof flat - 1
                                                : NULL;
    *naming = NULL;
    if (!inside || strlen(inside) > FSDPCK_FLUX2_NAME / 2)
        return false;
    if (!begins(name, flat) && fsdpck_flux2_native(inside, ignored, sizeof ignored)) {
        strcpy(path, inside);
        return part == 0;
    }
    *naming = begins(name, own) ? NULL : fsdpck_flux2_module(inside, part, path, FSDPCK_FLUX2_NAME);
    return *naming;
}

static int pass(struct reader *x, size_t inner, const char *path, const char *ending)
{
    const struct fsdpck_tensor *t = &source_tensors(fsdpck_layout_inner(x->layout))[inner];
    const uint64_t zeros[] = { 0, 0 };
    const uint32_t dims[] = { 0, 1 };
    const struct fsdpck_layout_piece whole = { inner, zeros, t->shape, zeros, dims };
    char name[2 * FSDPCK_FLUX2_NAME];
    snprintf(name, sizeof name, "base_model.model.%s%s", path, ending);
    return fsdpck_layout_add(x->layout, name, t->dtype, t->ndim, t->shape, &whole, 1, x->err);
}

/* The rows of B that are those of a part; of norm_out.linear, both halves in the other order. */
static int cut(struct reader *x, size_t inner, const char *path, const struct fsdpck_flux2_naming *naming)
{
    const struct fsdpck_tensor *t = &source_tensors(fsdpck_layout_inner(x->layout))[inner];
    const uint64_t npiece = naming->swapped ? 2 : 1, n = t->shape[0] / naming->nparts, shape[] = { n, t->shape[1] },
                   size[] = { n / npiece, t->shape[1] };
    const uint32_t dims[] = { 0, 1 };
    uint64_t to[2][2] = { { 0 } }, from[2][2] = { { 0 } };
    struct fsdpck_layout_piece pieces[2];
    char name[2 * FSDPCK_FLUX2_NAME];
    if (t->shape[0] % (npiece * naming->nparts))
        return refuse(x, t->name, FSDPCK_ERR_FORMAT, "has a number of rows that does not go into its parts");
    for (uint64_t k = 0; k < npiece; k++) {
        to[k][0] = k * size[0];
        from[k][0] = naming->part * n + (npiece - 1 - k) * size[0];
        pieces[k] = (struct fsdpck_layout_piece){ inner, to[k], size, from[k], dims };
    }
    snprintf(name, sizeof name, "base_model.model.%s.lora_B.weight", path);
    return fsdpck_layout_add(x->layout, name, t->dtype, 2, shape, pieces, npiece, x->err);
}

/* The key of a pattern that only this path fits. */
static void put_pattern(json_t *patterns, const char *path, json_t *value)
{
    char regex[2 * FSDPCK_FLUX2_NAME], *to = regex;
    for (; *path; path++) {
        if (*path == '.')
            *to++ = '\\';
        *to++ = *path;
    }
    *to = '\0';
    json_object_set_new(patterns, regex, value);
}

static void put_scaling(struct reader *x, const struct found *f, const char *path)
{
    const double alpha = isnan(f->alpha) ? (double)f->r : f->alpha;
    json_t *c = x->config;
    if (!json_object_get(c, "r")) {
        json_object_set_new(c, "r", json_integer((json_int_t)f->r));
        json_object_set_new(c, "lora_alpha", json_real(alpha));
    }
    if (json_integer_value(json_object_get(c, "r")) != (json_int_t)f->r)
        put_pattern(json_object_get(c, "rank_pattern"), path, json_integer((json_int_t)f->r));
    if (json_number_value(json_object_get(c, "lora_alpha")) != alpha)
        put_pattern(json_object_get(c, "alpha_pattern"), path, json_real(alpha));
}

static int add_module(struct reader *x, const struct found *f, const char *path,
                      const struct fsdpck_flux2_naming *naming, bool states_scaling)
{
    const bool whole = !naming || (naming->nparts == 1 && !naming->swapped);
    int rc = pass(x, f->at[ROLE_A], path, ".lora_A.weight");
    if (!rc)
        rc = whole ? pass(x, f->at[ROLE_B], path, ".lora_B.weight") : cut(x, f->at[ROLE_B], path, naming);
    if (!rc && f->at[ROLE_MAGNITUDE] != SIZE_MAX)
        rc = whole ? pass(x, f->at[ROLE_MAGNITUDE], path, ".lora_magnitude_vector")
                   : refuse(x, f->name, FSDPCK_ERR_UNSUPPORTED, "DoRA of a layer that is cut into others is not read");
    json_array_append_new(json_object_get(x->config, "target_modules"), json_string(path));
    if (!states_scaling)
        put_scaling(x, f, path);
    if (f->at[ROLE_MAGNITUDE] != SIZE_MAX)
        json_object_set_new(x->config, "use_dora", json_true());
    return rc;
}

static int add_all(struct reader *x, bool states_scaling)
{
    const struct fsdpck_flux2_naming *naming;
    char path[FSDPCK_FLUX2_NAME];
    int rc = fsdpck_layout_begin(x->src, &x->layout, x->err);
    for (size_t i = 0; i < x->found.count && !rc; i++) {
        const struct found *f = found_at(x, i);
        unsigned part = 0;
        for (; part < FSDPCK_FLUX2_PARTS && !rc && path_of(f->name, part, path, &naming); part++)
            rc = add_module(x, f, path, naming, states_scaling);
        if (!rc && !part)
            rc = refuse(x, f->name, FSDPCK_ERR_UNSUPPORTED, "a FLUX.2 transformer has no such module");
    }
    return rc;
}

/* The members of diffusers' metadata that are the transformer's; without any, alpha is the rank. */
static int begin_config(struct reader *x, bool *states_scaling)
{
    static const char component[] = "transformer.";
    char *text = NULL;
    const char *key;
    json_t *all, *value;
    int rc =
        fsdpck_safetensors_metadata(x->src->io, fsdpck_source_path(x->src), "lora_adapter_metadata", &text, x->err);
    x->config = json_pack("{s:s, s:{}, s:{}}", "peft_type", "LORA", "rank_pattern", "alpha_pattern");
    all = text ? json_loads(text, 0, NULL) : NULL;
    if (!rc && text && !json_is_object(all))
        rc = fsdpck_error_set(x->err, FSDPCK_ERR_FORMAT, fsdpck_source_path(x->src),
                              "lora_adapter_metadata in its header is no JSON object");
    json_object_foreach (all, key, value)
        if (begins(key, component))
            json_object_set(x->config, key + sizeof component - 1, value);
    *states_scaling = json_object_get(x->config, "lora_alpha") != NULL;
    json_object_set_new(x->config, "target_modules", json_array());
    json_decref(all);
    free(text);
    return rc;
}

int fsdpck_lora_open_file(const char *path, const struct fsdpck_options *opt, struct fsdpck_source **out, char **config,
                          struct fsdpck_error *err)
{
    struct reader x = { .found = FSDPCK_VEC(struct found), .err = err };
    bool states_scaling = false;
    *config = NULL;
    int rc = fsdpck_source_open(path, "safetensors", opt, &x.src, err);
    if (!rc)
        rc = find_all(&x);
    if (!rc)
        rc = begin_config(&x, &states_scaling);
    if (!rc)
        rc = add_all(&x, states_scaling);
    if (!rc && !(*config = json_dumps(x.config, JSON_INDENT(2))))
        rc = fsdpck_error_nomem(err, 4096);
    json_decref(x.config);
    fsdpck_vec_free(&x.found);
    fsdpck_names_free(&x.names);
    fsdpck_arena_free(&x.arena);
    if (rc) {
        fsdpck_source_close(x.src);
        x.src = NULL;
    }
    *out = x.src;
    return rc;
}
