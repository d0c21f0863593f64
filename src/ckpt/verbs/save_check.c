/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of a save's request, before anything is written. Knows nothing of files. */
#include "verbs/save_check.h"

#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "base/checked.h"
#include "base/json_read.h"
#include "base/utf8.h"
#include "tensor/box.h"

/* ---- a tensor ---- */

static int fail_tensor(const struct fsdpck_save_tensor *t, struct fsdpck_error *err, const char *what)
{
    fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL, "%s", what);
    fsdpck_error_tensor(err, t->name);
    return FSDPCK_ERR_USAGE;
}

struct box_match { /* compares the boxes of the rule with the caller's */
    const struct fsdpck_save_tensor *t;
    size_t nth;
};

static int match_box(void *ctx, const uint64_t *offset, const uint64_t *size)
{
    struct box_match *m = ctx;
    const struct fsdpck_save_box *b = m->nth < m->t->nboxes ? &m->t->boxes[m->nth] : NULL;
    m->nth++;
    size_t n = m->t->ndim * sizeof *offset;
    return !b || (n && (memcmp(b->offset, offset, n) != 0 || memcmp(b->size, size, n) != 0));
}

/* Checks that every coordinate is a rank of this save, and that no rank appears twice. */
static bool check_mesh(const struct fsdpck_mesh *mesh, uint32_t nranks)
{
    uint64_t n = 1, taken[FSDPCK_MAX_RANKS / 64] = { 0 };
    for (uint32_t d = 0; d < mesh->ndim; d++) {
        n *= mesh->sizes[d]; /* at most 2^16 * 2^32 before the check */
        if (!mesh->names[d] || n == 0 || n > nranks)
            return false;
    }
    for (uint64_t i = 0; mesh->ranks && i < n; i++) {
        uint32_t rank = mesh->ranks[i];
        if (rank >= nranks || taken[rank / 64] >> rank % 64 & 1)
            return false;
        taken[rank / 64] |= 1ull << rank % 64;
    }
    return true;
}

static int check_mesh_of(const struct fsdpck_save_request *req, const struct fsdpck_save_tensor *t,
                         struct fsdpck_error *err)
{
    if (!t->placements || t->mesh->ndim == 0 || t->mesh->ndim > FSDPCK_MAX_MESH_DIMS ||
        !check_mesh(t->mesh, req->nranks))
        return fail_tensor(
            t, err,
            "its mesh has no placements, too many dimensions, or ranks that the save does not have (or one "
            "of them twice)");
    for (uint32_t d = 0; d < t->mesh->ndim; d++)
        if (t->placements[d].kind != FSDPCK_REPLICATE && t->placements[d].dim >= t->ndim)
            return fail_tensor(t, err, "is sharded on a dimension that it does not have");
    return 0;
}

static int check_rule(const struct fsdpck_save_request *req, const struct fsdpck_save_tensor *t,
                      struct fsdpck_error *err)
{
    uint32_t coord[FSDPCK_MAX_MESH_DIMS];
    struct box_match m = { .t = t };
    if (!fsdpck_mesh_coordinate(t->mesh, req->rank, coord))
        return t->nboxes ? fail_tensor(t, err, "this rank is not on its mesh, but hands over boxes") : 0;
    if (fsdpck_placement_boxes(t->mesh, t->placements, t->ndim, t->shape, coord, match_box, &m) != 0 ||
        m.nth != t->nboxes)
        return fail_tensor(t, err, "the boxes are not those that mesh and placements give this rank");
    return 0;
}

static bool is_utf8(const char *text)
{
    return text && fsdpck_utf8_valid(text, strlen(text));
}

/* Checks a name and the keys that lead to it. kind: "tensor" or "item". */
static int check_name(const char *kind, const char *name, const struct fsdpck_key *path, uint32_t npath,
                      struct fsdpck_error *err)
{
    bool valid = is_utf8(name);
    for (uint32_t k = 0; valid && k < npath; k++)
        valid = !path[k].str || is_utf8(path[k].str);
    return valid ? 0
                 : fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL, "%s %s has no name, or one that is not valid UTF-8",
                                    kind[0] == 'i' ? "an" : "a", kind);
}

static int check_described(const struct fsdpck_save_request *req, const struct fsdpck_save_tensor *t,
                           struct fsdpck_error *err)
{
    uint64_t nelem, nbytes;
    int rc = check_name("tensor", t->name, t->path, t->npath, err);
    if (rc || t->alias_of)
        return rc;
    if (t->ndim > FSDPCK_MAX_DIMS || (unsigned)t->dtype >= FSDPCK_NDTYPES ||
        !checked_shape(t->shape, t->ndim, fsdpck_dtype_info(t->dtype)->nbytes, &nelem, &nbytes))
        return fail_tensor(t, err, "its shape or dtype makes no sense");
    return t->mesh ? check_mesh_of(req, t, err) : 0;
}

static int check_boxes(const struct fsdpck_save_request *req, const struct fsdpck_save_tensor *t,
                       struct fsdpck_error *err)
{
    if (t->alias_of)
        return t->nboxes ? fail_tensor(t, err, "is an alias, and hands over boxes") : 0;
    for (size_t i = 0; i < t->nboxes; i++)
        if ((!t->boxes[i].data && !t->boxes[i].read) ||
            !fsdpck_box_inside(t->ndim, t->boxes[i].offset, t->boxes[i].size, t->shape))
            return fail_tensor(t, err, "a box leaves its shape, or has no data");
    return t->mesh ? check_rule(req, t, err) : 0;
}

/* ---- the whole request ---- */

int fsdpck_save_check_ranks(const struct fsdpck_save_request *req, struct fsdpck_error *err)
{
    if (!req->out || req->nranks == 0 || req->nranks > FSDPCK_MAX_RANKS || req->rank >= req->nranks)
        return fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL,
                                "a save wants an output, and a rank below the number of ranks (at most %u)",
                                FSDPCK_MAX_RANKS);
    return 0;
}

int fsdpck_save_check_lists(const struct fsdpck_save_request *req, struct fsdpck_error *err)
{
    int rc = 0;
    for (size_t i = 0; !rc && i < req->ntensors; i++)
        rc = check_described(req, &req->tensors[i], err);
    for (size_t i = 0; !rc && i < req->nitems; i++)
        rc = check_name("item", req->items[i].name, req->items[i].path, req->items[i].npath, err);
    if (!rc && req->compress && req->dcp == FSDPCK_DCP_ALWAYS)
        rc = fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL,
                              "a compressed checkpoint has no .metadata: PyTorch could not read its chunks");
    return rc;
}

int fsdpck_save_check_data(const struct fsdpck_save_request *req, struct fsdpck_error *err)
{
    int rc = 0;
    for (size_t i = 0; !rc && i < req->ntensors; i++)
        rc = check_boxes(req, &req->tensors[i], err);
    for (size_t i = 0; !rc && i < req->nitems; i++)
        if (req->items[i].data && req->items[i].nbytes == 0) {
            rc = fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL, "an item has no bytes");
            fsdpck_error_tensor(err, req->items[i].name);
        }
    return rc;
}

/* ---- the state ---- */

static bool is_json(const char *text, struct fsdpck_error *err)
{
    struct fsdpck_json j;
    fsdpck_json_begin(&j, "", 0, text, strlen(text), err);
    fsdpck_json_skip(&j);
    fsdpck_json_end(&j);
    fsdpck_json_free(&j);
    return !j.failed;
}

int fsdpck_save_check_state(const char *state, struct fsdpck_error *err)
{
    struct fsdpck_error why = { 0 };
    json_error_t e = { 0 };
    json_t *o = state ? json_loads(state, JSON_REJECT_DUPLICATES, &e) : NULL;
    bool parsed = !state || o, object = !state || json_is_object(o);
    json_decref(o);
    if (object)
        return 0;
    /* jansson does not distinguish bad syntax from running out of memory */
    bool unclear =
        !parsed && (json_error_code(&e) == json_error_unknown || json_error_code(&e) == json_error_invalid_syntax);
    if (unclear && (is_json(state, &why) || why.code == FSDPCK_ERR_NOMEM))
        return fsdpck_error_nomem(err, strlen(state));
    return fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL, "the state is not a JSON object");
}
