/* SPDX-License-Identifier: Apache-2.0 */
/* Folds tensors into groups: "model.layers.#.mlp.up_proj.weight", 32 of one dtype, shape and placement. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/json_out.h"
#include "ls.h"
#include "picture.h"

/* Names without a pattern would make a page of many megabytes. */
enum { MOST_GROUPS = 4000 };

struct folding {
    const struct picture *picture;
    struct picture_layout *layouts;
    json_t *groups, *found; /* found: key of a group to its index */
    const struct fsdpck_mesh **meshes;
    size_t count, nmeshes;
    uint64_t nleft, left_nbytes;
};

static size_t mesh_index(const struct folding *f, const struct fsdpck_mesh *mesh)
{
    size_t i = 0;
    while (i < f->nmeshes && f->meshes[i] != mesh)
        i++;
    return i;
}

/* A row of digits is one "#". */
static void put_pattern(FILE *out, const char *name)
{
    for (; *name; name++) {
        const bool digit = *name >= '0' && *name <= '9';
        if (digit && name[1] >= '0' && name[1] <= '9')
            continue;
        putc(digit ? '#' : *name, out);
    }
}

static void put_placements(FILE *out, const struct fsdpck_placement *on, uint32_t ndim)
{
    char one[48];
    for (uint32_t d = 0; on && d < ndim; d++)
        fprintf(out, " %s", fsdpck_placement_format(&on[d], one, sizeof one));
}

/* What must be equal in a group, as text. Owned. */
static char *key_of(const struct folding *f, const struct fsdpck_tensor *t, const struct fsdpck_convert_place *place)
{
    char *key = NULL;
    size_t nbytes;
    FILE *out = open_memstream(&key, &nbytes);
    if (!out)
        return NULL;
    put_pattern(out, t->name);
    fprintf(out, " %u %zu", (unsigned)t->dtype, mesh_index(f, t->mesh));
    for (uint32_t d = 0; d < t->ndim; d++)
        fprintf(out, " %" PRIu64, t->shape[d]);
    put_placements(out, t->placements, t->mesh ? t->mesh->ndim : 0);
    if (place) {
        put_placements(out, place->on, f->picture->mesh->ndim);
        fprintf(out, " %u %u", place->only_dim, place->only_at);
    }
    if (fclose(out)) {
        free(key);
        return NULL;
    }
    return key;
}

static json_t *placements_json(const struct fsdpck_placement *on, uint32_t ndim)
{
    json_t *list = json_array();
    for (uint32_t d = 0; d < ndim; d++)
        json_out_append(list, json_pack("[i, i, i]", (int)on[d].kind, (int)on[d].dim, (int)on[d].split));
    return list;
}

static json_t *group_json(const struct folding *f, const struct fsdpck_tensor *t,
                          const struct fsdpck_convert_place *place)
{
    char *pattern = NULL;
    size_t nbytes;
    FILE *out = open_memstream(&pattern, &nbytes);
    json_t *o = json_object();
    if (!out)
        return o;
    put_pattern(out, t->name);
    fclose(out);
    json_out_put(o, "pattern", json_out_text(pattern));
    free(pattern);
    json_out_put(o, "first", json_out_text(t->name));
    json_out_put(o, "dtype", json_string(fsdpck_dtype_info(t->dtype)->name));
    json_out_put(o, "shape", json_out_u64s(t->shape, t->ndim));
    json_out_put(o, "bytes", json_out_u64(t->nbytes));
    if (t->mesh && t->placements) {
        json_out_put(o, "mesh", json_out_u64(mesh_index(f, t->mesh)));
        json_out_put(o, "on", placements_json(t->placements, t->mesh->ndim));
    }
    if (place) {
        json_out_put(o, "to", placements_json(place->on, f->picture->mesh->ndim));
        if (place->only_dim < f->picture->mesh->ndim)
            json_out_put(o, "only", json_pack("[i, i]", (int)place->only_dim, (int)place->only_at));
    }
    return o;
}

/* Counts the tensor among those whose replicas are owned in the same turn (FORMAT.md section 2). */
static void count_owner(struct picture_layout *l, const struct fsdpck_tensor *t, uint64_t ordinal)
{
    uint32_t coord[FSDPCK_MAX_MESH_DIMS] = { 0 };
    for (uint32_t r = 0; l->by_owner && r < l->nreplicas; r++) {
        uint32_t rest = r;
        for (uint32_t m = t->mesh->ndim; m-- > 0;) {
            const bool replicated = t->placements[m].kind == FSDPCK_REPLICATE;
            coord[m] = replicated ? rest % t->mesh->sizes[m] : 0;
            rest = replicated ? rest / t->mesh->sizes[m] : rest;
        }
        if (fsdpck_placement_owner(t->mesh, t->placements, ordinal, coord)) {
            l->by_owner[r]++;
            return;
        }
    }
}

static bool add_group(struct folding *f, const struct fsdpck_tensor *t, const struct fsdpck_convert_place *place,
                      const char *key)
{
    struct picture_layout *l = &f->layouts[f->count];
    *l = (struct picture_layout){ .tensor = t, .place = place, .nreplicas = 1 };
    for (uint32_t m = 0; t->mesh && t->placements && m < t->mesh->ndim; m++)
        l->nreplicas *= t->placements[m].kind == FSDPCK_REPLICATE ? t->mesh->sizes[m] : 1;
    const bool counts = f->picture->mesh && l->nreplicas > 1 && l->nreplicas <= PICTURE_REPLICAS;
    if (counts && !(l->by_owner = calloc(l->nreplicas, sizeof *l->by_owner)))
        return false;
    return json_out_append(f->groups, group_json(f, t, place)) &&
           json_out_put(f->found, key, json_integer((json_int_t)f->count++));
}

static bool add_tensor(struct folding *f, const struct fsdpck_tensor *t, uint64_t ordinal)
{
    const struct fsdpck_convert_place *place = f->picture->places ? &f->picture->places[ordinal] : NULL;
    char *key = key_of(f, t, place);
    const json_t *at = key ? json_object_get(f->found, key) : NULL;
    size_t i = at ? (size_t)json_integer_value(at) : f->count;
    bool ok = key != NULL;
    if (ok && !at && f->count >= MOST_GROUPS) {
        f->nleft++;
        f->left_nbytes += t->nbytes;
    } else if (ok && (at || (ok = add_group(f, t, place, key)))) {
        f->layouts[i].count++;
        count_owner(&f->layouts[i], t, ordinal);
    }
    free(key);
    return ok;
}

static json_t *result_json(const struct folding *f)
{
    json_t *meshes = json_array();
    for (size_t i = 0; i < f->nmeshes; i++) {
        const struct fsdpck_mesh *mesh = f->meshes[i];
        json_t *o = json_pack("{s:o}", "dims", json_out_mesh(mesh)), *ranks = json_array();
        for (uint64_t r = 0; mesh->ranks && r < fsdpck_mesh_nranks(mesh); r++)
            json_out_append(ranks, json_out_u64(mesh->ranks[r]));
        json_out_put(o, "ranks", mesh->ranks ? ranks : json_null());
        if (!mesh->ranks)
            json_decref(ranks);
        json_out_append(meshes, o);
    }
    for (size_t i = 0; i < f->count; i++)
        json_out_put(json_array_get(f->groups, i), "count", json_out_u64(f->layouts[i].count));
    return json_pack("{s:O, s:o, s:o, s:o}", "list", f->groups, "meshes", meshes, "left", json_out_u64(f->nleft),
                     "left_bytes", json_out_u64(f->left_nbytes));
}

json_t *picture_groups(const struct fsdpck_source *src, const struct picture *picture, struct picture_layout **layouts,
                       size_t *count)
{
    struct folding f = { .picture = picture, .groups = json_array(), .found = json_object() };
    f.layouts = calloc(MOST_GROUPS, sizeof *f.layouts);
    bool ok = f.layouts && f.groups && f.found && ls_meshes(src, &f.meshes, &f.nmeshes);
    for (size_t i = 0; i < fsdpck_source_ntensors(src) && ok; i++) {
        const struct fsdpck_tensor *t = fsdpck_source_tensor(src, i);
        if (t->alias_of < 0 && ls_listed(t, picture->glob))
            ok = add_tensor(&f, t, i);
    }
    json_t *out = ok ? result_json(&f) : NULL;
    json_decref(f.groups);
    json_decref(f.found);
    free(f.meshes);
    *layouts = f.layouts;
    *count = f.count;
    return out;
}

void picture_layouts_free(struct picture_layout *layouts, size_t count)
{
    for (size_t i = 0; i < count && layouts; i++)
        free(layouts[i].by_owner);
    free(layouts);
}
