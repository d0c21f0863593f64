/* SPDX-License-Identifier: Apache-2.0 */
/* `fsdpck ls --json`: prints all metadata of a source. It must not open or check anything. */
#include "ls.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <fsdpck/base.h>
#include <fsdpck/fsdpck.h>

static json_t *path_json(const struct fsdpck_key *path, uint32_t npath)
{
    json_t *array = json_array();
    bool ok = array;
    for (uint32_t i = 0; i < npath && ok; i++)
        ok = json_out_append(array, path[i].str ? json_out_text(path[i].str) : json_out_u64(path[i].position));
    if (ok)
        return array;
    json_decref(array);
    return NULL;
}

static json_t *placements_json(const struct fsdpck_tensor *t)
{
    char one[48];
    json_t *array = json_array();
    bool ok = array;
    for (uint32_t d = 0; d < t->mesh->ndim && ok; d++)
        ok = json_out_append(array, json_string(fsdpck_placement_format(&t->placements[d], one, sizeof one)));
    if (ok)
        return array;
    json_decref(array);
    return NULL;
}

static json_t *content_json(const uint8_t content[16])
{
    char hex[33];
    for (size_t i = 0; i < 16; i++)
        snprintf(hex + 2 * i, 3, "%02x", content[i]);
    return json_string(hex);
}

static size_t mesh_position(const struct fsdpck_mesh *const *meshes, const struct fsdpck_mesh *mesh)
{
    size_t i = 0;
    while (meshes[i] != mesh)
        i++;
    return i;
}

static bool add_tensor(json_t *tensors, const struct fsdpck_source *src, const struct fsdpck_tensor *t,
                       const struct fsdpck_mesh *const *meshes)
{
    json_t *o = json_object();
    bool ok = json_out_put(o, "name", json_out_text(t->name));
    ok = json_out_put(o, "path", path_json(t->path, t->npath)) && ok;
    ok = json_out_put(o, "dtype", json_string(fsdpck_dtype_info(t->dtype)->name)) && ok;
    ok = json_out_put(o, "shape", json_out_u64s(t->shape, t->ndim)) && ok;
    ok = json_out_put(o, "bytes", json_out_u64(t->nbytes)) && ok;
    if (t->mesh)
        ok = json_out_put(o, "mesh", json_out_u64(mesh_position(meshes, t->mesh))) && ok;
    if (t->mesh && t->placements)
        ok = json_out_put(o, "placements", placements_json(t)) && ok;
    if (t->alias_of >= 0)
        ok = json_out_put(o, "alias_of", json_out_text(fsdpck_source_tensor(src, (size_t)t->alias_of)->name)) && ok;
    if (t->has_content)
        ok = json_out_put(o, "content", content_json(t->content)) && ok;
    return json_out_append(tensors, o) && ok;
}

static bool add_tensors(json_t *object, const struct fsdpck_source *src, const char *glob)
{
    const struct fsdpck_mesh **meshes = NULL;
    size_t nmeshes = 0;
    json_t *mesh_array = json_array(), *tensors = json_array();
    bool ok = ls_meshes(src, &meshes, &nmeshes);
    for (size_t i = 0; i < nmeshes; i++)
        ok = json_out_append(mesh_array, json_out_mesh(meshes[i])) && ok;
    for (size_t i = 0; i < fsdpck_source_ntensors(src) && ok; i++) {
        const struct fsdpck_tensor *t = fsdpck_source_tensor(src, i);
        if (ls_listed(t, glob))
            ok = add_tensor(tensors, src, t, meshes);
    }
    free(meshes);
    ok = json_out_put(object, "meshes", mesh_array) && ok;
    return json_out_put(object, "tensors", tensors) && ok;
}

static json_t *entry(const char *key, const char *name, uint64_t nbytes)
{
    json_t *o = json_object();
    bool ok = json_out_put(o, key, json_out_text(name));
    ok = json_out_put(o, "bytes", json_out_u64(nbytes)) && ok;
    if (ok)
        return o;
    json_decref(o);
    return NULL;
}

static bool add_entries(json_t *object, const struct fsdpck_source *src)
{
    json_t *items = json_array(), *assets = json_array(), *files = json_array();
    bool ok = true;
    for (size_t i = 0; i < fsdpck_source_nitems(src) && ok; i++)
        ok =
            json_out_append(items, entry("name", fsdpck_source_item(src, i)->name, fsdpck_source_item(src, i)->nbytes));
    for (size_t i = 0; i < fsdpck_source_nassets(src) && ok; i++)
        ok = json_out_append(assets,
                             entry("path", fsdpck_source_asset(src, i)->path, fsdpck_source_asset(src, i)->nbytes));
    for (size_t i = 0; i < fsdpck_source_nfiles(src) && ok; i++) {
        const struct fsdpck_file *f = fsdpck_source_file(src, i);
        json_t *o = entry("name", f->name, f->nbytes);
        ok = f->rank < 0 || json_out_put(o, "rank", json_integer(f->rank));
        ok = json_out_append(files, o) && ok;
    }
    ok = json_out_put(object, "items", items) && ok;
    ok = json_out_put(object, "assets", assets) && ok;
    return json_out_put(object, "files", files) && ok;
}

/* The saver's own JSON, or its text if jansson refuses it (for example integers beyond 64 bits). */
static json_t *state_json(const char *state)
{
    json_t *parsed = json_loads(state, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    return parsed ? parsed : json_out_text(state);
}

static json_t *base_json(const struct fsdpck_base *base)
{
    json_t *o = json_object();
    bool ok = json_out_put(o, "path", json_out_text(base->path));
    ok = json_out_put(o, "there", json_boolean(access(base->path, F_OK) == 0)) && ok;
    ok = json_out_put(o, "tensors", json_out_u64(base->ntensors)) && ok;
    if (base->held)
        ok = json_out_put(o, "held", json_out_text(base->held)) && ok;
    if (ok)
        return o;
    json_decref(o);
    return NULL;
}

void ls_json_start(struct ls_json *ls, const struct fsdpck_source *src, const char *glob)
{
    const char *kind = fsdpck_source_kind(src), *save_id = fsdpck_source_save_id(src),
               *state = fsdpck_source_state(src);
    json_t *o = ls->object = json_object();
    bool ok = json_out_put(o, "path", json_out_text(fsdpck_source_path(src)));
    ok = json_out_put(o, "kind", json_string(kind)) && ok;
    if (strcmp(kind, "fsdpck") == 0)
        ok = json_out_put(o, "format_version", json_integer(FSDPCK_FORMAT_VERSION)) && ok;
    if (save_id)
        ok = json_out_put(o, "save_id", json_out_text(save_id)) && ok;
    if (fsdpck_source_nranks(src))
        ok = json_out_put(o, "ranks", json_out_u64(fsdpck_source_nranks(src))) && ok;
    if (state)
        ok = json_out_put(o, "state", state_json(state)) && ok;
    if (fsdpck_source_is_compressed(src)) {
        ok = json_out_put(o, "compressed", json_true()) && ok;
        ok = json_out_put(o, "ratio", json_out_double(ls_ratio(src))) && ok;
    }
    if (fsdpck_source_base(src))
        ok = json_out_put(o, "base", base_json(fsdpck_source_base(src))) && ok;
    ok = add_entries(o, src) && ok;
    ok = add_tensors(o, src, glob) && ok;
    ls->leftovers = json_array();
    ls->complete = json_out_put(o, "leftovers", ls->leftovers) && ok;
}

void ls_json_leftover(void *ctx, const struct fsdpck_leftover *l)
{
    struct ls_json *ls = ctx;
    json_t *o = json_object();
    bool ok = json_out_put(o, "path", json_out_text(l->path));
    ok = json_out_put(o, "alive", json_boolean(l->alive)) && ok;
    ok = json_out_put(o, "why", json_out_text(l->why)) && ok;
    ls->complete = json_out_append(ls->leftovers, o) && ok && ls->complete;
}
