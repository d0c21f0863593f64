/* SPDX-License-Identifier: Apache-2.0 */
/* One rank's shards: mesh, placements and rank determine the boxes; the local tensor consists of these boxes side by
 * side. */
#include "torch/pt/shard.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/hash.h"
#include "engine/checks.h"
#include "engine/files.h"
#include "tensor/box.h"
#include "torch/pickle/dtensor_node.h"

#define MAX_BOXES 4096u /* limit for one tensor on one rank; only strided shards have more than one */

struct shard {
    struct fsdpck_pt_reading *r;
    const char *name;
    struct fsdpck_dtensor_node d;
    struct fsdpck_tensor_node t; /* the local tensor */
    struct fsdpck_stored_box piece;
    struct fsdpck_vec boxes; /* (2 * ndim) integers each */
};

static int fail(struct shard *s, int code, const char *what)
{
    return fsdpck_pt_fail(s->r, code, s->name, what);
}

/* ---- the rank's position on the mesh ---- */

/* Reads rank number i of the mesh's flat list. */
static int mesh_rank(struct shard *s, uint64_t i, int64_t *out)
{
    const struct fsdpck_pickle *p = s->r->archive.pickle;
    struct fsdpck_tensor_node t;
    struct fsdpck_stored_box where;
    const struct fsdpck_zip_record *record;
    const char *why;
    uint8_t bytes[8] = { 0 };
    if (s->d.rank_tuple != FSDPCK_NO_NODE)
        return fsdpck_pickle_int(p, fsdpck_pickle_child(p, s->d.rank_tuple, i), out)
                   ? 0
                   : fail(s, FSDPCK_ERR_FORMAT, "its mesh lists too few ranks");
    int rc = fsdpck_tensor_node_read(p, s->d.rank_tensor, &t, &why);
    if (rc || (t.dtype != FSDPCK_INT32 && t.dtype != FSDPCK_INT64))
        return fail(s, FSDPCK_ERR_FORMAT, "the ranks of its mesh are no tensor of integers");
    if ((rc = fsdpck_pt_locate(s->r, s->name, &t, &where, &record)))
        return rc;
    const struct fsdpck_extent e = { .file = where.file, .payload = where.payload, .crc = where.crc };
    if ((rc = fsdpck_checks_extent(s->r->src, FSDPCK_CHECKS_NO_TENSOR, &e,
                                   s->r->err))) { /* verify: these bytes determine the location of the shards */
        fsdpck_error_tensor(s->r->err, s->name);
        return rc;
    }
    uint64_t at = 0, rest = i, width = fsdpck_dtype_info(t.dtype)->nbytes;
    for (uint32_t d = t.ndim; d-- > 0; rest /= t.size[d])
        at += rest % t.size[d] * t.strides[d];
    if ((rc = fsdpck_files_read(s->r->src, s->r->file, bytes, width, where.payload + at * width, s->r->err)))
        return rc;
    for (uint64_t k = 0; where.swap && k < width / 2; k++) {
        uint8_t b = bytes[k];
        bytes[k] = bytes[width - 1 - k];
        bytes[width - 1 - k] = b;
    }
    *out = width == 8 ? (int64_t)fsdpck_le64(bytes) : (int64_t)(int32_t)fsdpck_le32(bytes);
    return 0;
}

static int find_on_mesh(struct shard *s, uint32_t *coordinate)
{
    char text[128];
    uint64_t n = fsdpck_mesh_nranks(&s->d.mesh);
    int64_t rank = -1;
    for (uint64_t i = 0; i < n; i++) {
        int rc = mesh_rank(s, i, &rank);
        if (rc)
            return rc;
        if (rank != s->r->rank)
            continue;
        for (uint32_t d = s->d.mesh.ndim; d-- > 0; i /= s->d.mesh.sizes[d])
            coordinate[d] = (uint32_t)(i % s->d.mesh.sizes[d]);
        return 0;
    }
    snprintf(text, sizeof text,
             "rank %" PRId64 " is not on its mesh: the file belongs to another rank, or to another save", s->r->rank);
    return fail(s, FSDPCK_ERR_FORMAT, text);
}

/* Finds this rank's position on the mesh. A complete mesh that lists its ranks decides; a slice of another mesh states
 * the position itself. */
static int find_coordinate(struct shard *s, uint32_t *coordinate)
{
    if (fsdpck_mesh_nranks(&s->d.mesh) > s->r->nranks) {
        char text[128];
        snprintf(text, sizeof text, "is on a mesh of %" PRIu64 " ranks, the files are those of %" PRIu64,
                 fsdpck_mesh_nranks(&s->d.mesh), s->r->nranks);
        return fail(s, FSDPCK_ERR_FORMAT, text);
    }
    bool listed = !s->d.sub_mesh && (s->d.rank_tuple != FSDPCK_NO_NODE || s->d.rank_tensor != FSDPCK_NO_NODE);
    if (!listed && !s->d.has_coordinate)
        return fail(s, FSDPCK_ERR_UNSUPPORTED, "its mesh does not say which rank is where");
    if (!listed) {
        memcpy(coordinate, s->d.coordinate, sizeof s->d.coordinate);
        return 0;
    }
    struct fsdpck_pt_mesh *known = &s->r->mesh;
    if (known->node == s->d.mesh_node) { /* all tensors of a file share one */
        memcpy(coordinate, known->coordinate, sizeof known->coordinate);
        return 0;
    }
    int rc = find_on_mesh(s, coordinate);
    if (!rc) {
        known->node = s->d.mesh_node;
        memcpy(known->coordinate, coordinate, sizeof known->coordinate);
    }
    if (!rc && s->d.has_coordinate && memcmp(coordinate, s->d.coordinate, s->d.mesh.ndim * sizeof *coordinate) != 0)
        rc = fail(s, FSDPCK_ERR_FORMAT, "was saved by another rank than the file's name says");
    return rc;
}

/* ---- its boxes ---- */

static int add_box(void *ctx, const uint64_t *offset, const uint64_t *size)
{
    struct shard *s = ctx;
    if (s->boxes.count == MAX_BOXES)
        return fail(s, FSDPCK_ERR_LIMIT, "one rank holds more than 4096 pieces of it");
    uint64_t *box = fsdpck_vec_push(&s->boxes, s->r->err);
    if (!box)
        return FSDPCK_ERR_NOMEM;
    if (s->d.ndim) {
        memcpy(box, offset, s->d.ndim * sizeof *box);
        memcpy(box + s->d.ndim, size, s->d.ndim * sizeof *box);
    }
    return 0;
}

static const uint64_t *box_at(const struct shard *s, size_t i)
{
    return (const uint64_t *)((const char *)s->boxes.data + i * s->boxes.item_nbytes);
}

/* The boxes form a grid, visited in row-major order. Boxes that follow each other along d in the first row of the grid
 * lie side by side. *total: length of the local tensor along d; *before: length of the part before the box that begins
 * at `offset`. */
static void measure(const struct shard *s, uint32_t d, uint64_t offset, uint64_t *before, uint64_t *total)
{
    uint64_t last = UINT64_MAX;
    *before = *total = 0;
    for (size_t i = 0; i < s->boxes.count; i++) {
        const uint64_t *box = box_at(s, i);
        if (last != UINT64_MAX && box[d] <= last)
            continue;
        last = box[d];
        *before += box[d] < offset ? box[s->d.ndim + d] : 0;
        *total += box[s->d.ndim + d];
    }
}

static int check_local(struct shard *s)
{
    char text[384], have[128], want[128];
    uint64_t total[FSDPCK_MAX_DIMS], before;
    if (!s->boxes.count && fsdpck_box_nelem(s->t.size, s->t.ndim) == 0)
        return 0;
    for (uint32_t d = 0; d < s->d.ndim; d++)
        measure(s, d, 0, &before, &total[d]);
    if (s->t.dtype == s->d.dtype && s->t.ndim == s->d.ndim &&
        (!s->d.ndim || !memcmp(total, s->t.size, s->d.ndim * sizeof *total)))
        return 0;
    snprintf(text, sizeof text,
             "rank %" PRId64 " holds %s of shape %s, its mesh and placements make that %s of shape %s", s->r->rank,
             fsdpck_dtype_info(s->t.dtype)->name, fsdpck_format_dims(have, sizeof have, s->t.size, s->t.ndim),
             fsdpck_dtype_info(s->d.dtype)->name, fsdpck_format_dims(want, sizeof want, total, s->d.ndim));
    return fail(s, FSDPCK_ERR_FORMAT, text);
}

static int add_pieces(struct shard *s)
{
    int rc = 0;
    for (size_t i = 0; !rc && i < s->boxes.count; i++) {
        const uint64_t *box = box_at(s, i);
        uint64_t first = 0, before, total;
        for (uint32_t d = 0; d < s->d.ndim && s->boxes.count > 1; d++) {
            measure(s, d, box[d], &before, &total);
            first += before * s->t.strides[d];
        }
        struct fsdpck_stored_box piece = s->piece;
        piece.box = box;
        piece.payload += first * fsdpck_dtype_info(s->d.dtype)->nbytes;
        if (s->boxes.count > 1)
            piece.strides = s->t.strides; /* part of a dense tensor is usually not dense */
        rc = fsdpck_catalogue_add_box(&s->r->catalogue, &piece);
    }
    return rc;
}

static bool is_whole(const struct fsdpck_dtensor_node *d)
{
    for (uint32_t i = 0; i < d->mesh.ndim; i++)
        if (d->placements[i].kind != FSDPCK_REPLICATE && d->mesh.sizes[i] > 1)
            return false;
    return true;
}

static int add(struct shard *s, const struct fsdpck_key *path, uint32_t npath, fsdpck_node n)
{
    const struct fsdpck_zip_record *record;
    const char *why;
    uint32_t coordinate[FSDPCK_MAX_MESH_DIMS] = { 0 };
    int rc = fsdpck_dtensor_node_read(s->r->archive.pickle, n, &s->d, &why);
    if (!rc)
        rc = fsdpck_tensor_node_read(s->r->archive.pickle, s->d.local, &s->t, &why);
    if (rc)
        return fail(s, rc, why);
    if (s->r->rank < 0 && !is_whole(&s->d))
        return fail(s, FSDPCK_ERR_UNSUPPORTED,
                    "is one rank's shard of a DTensor; give the folder with the files of all ranks "
                    "(model_world_size_N_rank_R.pt, or ITEM_R.pt with --from ranks)");
    if ((rc = fsdpck_pt_locate(s->r, s->name, &s->t, &s->piece, &record)) ||
        (s->r->rank >= 0 && (rc = find_coordinate(s, coordinate))))
        return rc;
    s->boxes = (struct fsdpck_vec){ NULL, 0, 0, (2 * s->d.ndim + 1) * sizeof(uint64_t) };
    if (fsdpck_placement_boxes(&s->d.mesh, s->d.placements, s->d.ndim, s->d.shape, coordinate, add_box, s) != 0)
        return s->r->err->code ? s->r->err->code
                               : fail(s, FSDPCK_ERR_LIMIT, "its strided shards have too many stripes");
    if ((rc = check_local(s)) ||
        (rc = fsdpck_catalogue_tensor(&s->r->catalogue, fsdpck_pt_path(s->r), fsdpck_pt_rank(s->r), s->name, path,
                                      npath, s->d.dtype, s->d.ndim, s->d.shape, &s->piece.tensor)) ||
        (rc = fsdpck_catalogue_set_placements(&s->r->catalogue, s->piece.tensor, &s->d.mesh, s->d.placements)))
        return rc;
    return add_pieces(s);
}

int fsdpck_pt_add_shard(struct fsdpck_pt_reading *r, const char *name, const struct fsdpck_key *path, uint32_t npath,
                        fsdpck_node n)
{
    struct shard s = { .r = r, .name = name };
    int rc = add(&s, path, npath, n);
    fsdpck_vec_free(&s.boxes);
    return rc;
}

bool fsdpck_pt_differs(struct fsdpck_pt_reading *r, uint32_t ordinal, const struct fsdpck_zip_record *record)
{
    while (r->plain.count <= ordinal)
        if (!fsdpck_vec_push(&r->plain, NULL))
            return false; /* out of memory costs only a note */
    struct fsdpck_pt_plain *plain = (struct fsdpck_pt_plain *)r->plain.data + ordinal;
    if (!plain->known) {
        *plain = (struct fsdpck_pt_plain){ .known = true, .crc32 = record->crc32, .nbytes = record->nbytes };
        return false;
    }
    bool differs = !plain->differs && plain->crc32 && record->crc32 &&
                   (plain->crc32 != record->crc32 || plain->nbytes != record->nbytes);
    plain->differs |= differs;
    return differs;
}
