/* SPDX-License-Identifier: Apache-2.0 */
/* Parses the key `base` of index.json (FORMAT.md section 9): the path of a frozen base, and the expected tensors. Does
 * not open the base. */
#include "format/index_parse.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/paths.h"
#include "quant/hold.h"

enum { DTYPE, SHAPE, CONTENT, ALL_FIELDS = 7 };

static void parse_tensor(struct index_parse *p, struct fsdpck_base_tensor *t)
{
    static const char *const fields[] = { "dtype", "shape", "content", NULL };
    uint32_t seen = 0;
    fsdpck_json_object(&p->j);
    for (int field; (field = fsdpck_index_next_field(p, fields, &seen)) >= 0;)
        switch (field) {
        case DTYPE: fsdpck_index_parse_dtype(p, &t->dtype); break;
        case SHAPE: t->shape = fsdpck_index_parse_shape(p, &t->ndim); break;
        case CONTENT: fsdpck_index_parse_hash(p, t->content); break;
        }
    if (!p->j.failed && seen != ALL_FIELDS)
        fsdpck_index_bad(p, "a tensor of base wants dtype, shape and content");
}

static void parse_tensors(struct index_parse *p, struct fsdpck_base *base)
{
    struct fsdpck_vec v = FSDPCK_VEC(struct fsdpck_base_tensor);
    struct fsdpck_names names = { 0 };
    const char *key;
    fsdpck_json_object(&p->j);
    while (fsdpck_json_next_key(&p->j, &key)) {
        struct fsdpck_base_tensor *t = fsdpck_vec_push(&v, p->err);
        size_t old = SIZE_MAX;
        if (!t || !(t->name = fsdpck_arena_strndup(&p->src->arena, key, strlen(key), p->err)) ||
            fsdpck_names_add(&names, t->name, v.count - 1, &old, p->err) != 0)
            p->j.failed = true;
        else if (old != SIZE_MAX)
            fsdpck_json_fail(&p->j, FSDPCK_ERR_FORMAT, "tensor '%s' of base is there twice", t->name);
        else
            parse_tensor(p, t);
    }
    base->ntensors = v.count;
    base->tensors = fsdpck_index_keep(p, &v);
    fsdpck_names_free(&names);
}

/* Resolves the relative path of the base: it starts at the checkpoint's real path. */
static int find(struct index_parse *p, struct fsdpck_base *base)
{
    char here[PATH_MAX];
    int rc = p->src->io->resolve(p->src->io->ctx, p->src->path, here, sizeof here);
    if (rc < 0)
        return fsdpck_error_sys(p->err, -rc, p->src->path, "cannot resolve the path");
    char *path = fsdpck_path_follow(here, base->path, p->err);
    base->path = path ? fsdpck_arena_strndup(&p->src->arena, path, strlen(path), p->err) : NULL;
    free(path);
    return base->path ? 0 : FSDPCK_ERR_NOMEM;
}

void fsdpck_index_parse_base(struct index_parse *p)
{
    enum { PATH, TENSORS, HELD, ALL = 3 };
    static const char *const fields[] = { "path", "tensors", "held", NULL };
    uint32_t seen = 0;
    struct fsdpck_base *base = fsdpck_arena_alloc(&p->src->arena, sizeof *base, p->err);
    if (!base) {
        p->j.failed = true;
        return;
    }
    fsdpck_json_object(&p->j);
    for (int field; (field = fsdpck_index_next_field(p, fields, &seen)) >= 0;)
        if (field == PATH)
            base->path = fsdpck_index_parse_text(p);
        else if (field == HELD)
            base->held = fsdpck_index_parse_text(p);
        else
            parse_tensors(p, base);
    if (p->j.failed)
        return;
    if (base->held && !fsdpck_hold_is_known(base->held))
        fsdpck_json_fail(&p->j, FSDPCK_ERR_UNSUPPORTED, "base: held is '%s', which this version does not know",
                         base->held);
    else if ((seen & ALL) != ALL)
        fsdpck_index_bad(p, "base wants path and tensors");
    else if (!fsdpck_path_is_relative(base->path))
        fsdpck_index_bad(p, "base: path is not relative and plain but for leading '..'");
    if (p->j.failed || fsdpck_index_failed(p, find(p, base)))
        return;
    p->src->base = base;
}
