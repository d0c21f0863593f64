/* SPDX-License-Identifier: Apache-2.0 */
/* Reads DTensor nodes. torch has changed the mesh's pickle twice and the module of the class three times; all forms are
 * accepted. */
#include "torch/pickle/dtensor_node.h"

#include <string.h>

#include "torch/pickle/tensor_node.h"

static fsdpck_node unwrap(const struct fsdpck_pickle *p, fsdpck_node n)
{
    while (fsdpck_pickle_made_by(p, n, "torch._utils _rebuild_parameter"))
        n = fsdpck_pickle_child(p, fsdpck_pickle_child(p, n, 1), 0);
    return n;
}

/* Returns whether n is the class, or an object of it, in any module; the list of allowed names limits the modules. */
static bool is_named(const struct fsdpck_pickle *p, fsdpck_node n, const char *class)
{
    const char *text = fsdpck_pickle_type(p, n) == FSDPCK_PICKLE_GLOBAL ? fsdpck_pickle_text(p, n, NULL) : NULL;
    const char *space = text ? strchr(text, ' ') : NULL;
    return space && !strcmp(space + 1, class);
}

static bool is_object(const struct fsdpck_pickle *p, fsdpck_node n, const char *class)
{
    return fsdpck_pickle_type(p, n) == FSDPCK_PICKLE_OBJECT && is_named(p, fsdpck_pickle_child(p, n, 0), class);
}

static fsdpck_node attribute(const struct fsdpck_pickle *p, fsdpck_node object, const char *key)
{
    return fsdpck_pickle_get(p, fsdpck_pickle_state(p, object), key);
}

bool fsdpck_dtensor_node_is(const struct fsdpck_pickle *p, fsdpck_node n)
{
    n = unwrap(p, n);
    fsdpck_node args = fsdpck_pickle_child(p, n, 1);
    return fsdpck_pickle_made_by(p, n, "torch._tensor _rebuild_from_type_v2") &&
           fsdpck_pickle_is(p, fsdpck_pickle_child(p, args, 0), "torch._utils _rebuild_wrapper_subclass") &&
           is_named(p, fsdpck_pickle_child(p, args, 1), "DTensor");
}

/* ---- the mesh ---- */

static bool set_size(struct fsdpck_dtensor_node *out, uint32_t d, uint64_t size)
{
    out->mesh.sizes[d] = (uint32_t)size;
    return size > 0 && size <= FSDPCK_MAX_RANKS;
}

/* Up to about torch 2.9: a tensor of ranks with the mesh's shape. */
static bool read_tensor_mesh(const struct fsdpck_pickle *p, fsdpck_node tensor, struct fsdpck_dtensor_node *out)
{
    struct fsdpck_tensor_node t;
    const char *why;
    if (fsdpck_tensor_node_read(p, tensor, &t, &why) || t.ndim == 0 || t.ndim > FSDPCK_MAX_MESH_DIMS)
        return false;
    out->mesh.ndim = t.ndim;
    for (uint32_t d = 0; d < t.ndim; d++)
        if (!set_size(out, d, t.size[d]))
            return false;
    out->rank_tensor = tensor;
    return true;
}

/* torch 2.15: a layout of (shape, stride) pairs over the flat list of ranks. The pair of a dimension of size 1 is
 * empty. */
static bool read_layout_mesh(const struct fsdpck_pickle *p, fsdpck_node mesh, struct fsdpck_dtensor_node *out)
{
    fsdpck_node axes = attribute(p, attribute(p, mesh, "_layout"), "axes");
    size_t count = fsdpck_pickle_count(p, axes);
    if (fsdpck_pickle_type(p, axes) != FSDPCK_PICKLE_TUPLE || count == 0 || count > FSDPCK_MAX_MESH_DIMS)
        return false;
    out->mesh.ndim = (uint32_t)count;
    for (uint32_t d = 0; d < count; d++) {
        uint64_t dims[FSDPCK_MAX_DIMS], size = 1;
        uint32_t ndims;
        if (!fsdpck_node_dims(p, attribute(p, fsdpck_pickle_child(p, axes, d), "shape"), &ndims, dims))
            return false;
        for (uint32_t i = 0; i < ndims && size && size <= FSDPCK_MAX_RANKS; i++)
            size = dims[i] <= FSDPCK_MAX_RANKS ? size * dims[i] : 0;
        if (!set_size(out, d, size))
            return false;
    }
    fsdpck_node root = attribute(p, mesh, "_root_mesh");
    out->sub_mesh = root != FSDPCK_NO_NODE && fsdpck_pickle_type(p, root) != FSDPCK_PICKLE_NONE;
    out->rank_tuple = attribute(p, mesh, "_flatten_rank_map");
    return true;
}

/* Reads the position of the saving rank on the mesh; not every torch version states it. */
static bool read_coordinate(const struct fsdpck_pickle *p, fsdpck_node mesh, struct fsdpck_dtensor_node *out)
{
    uint64_t coordinate[FSDPCK_MAX_DIMS];
    uint32_t count;
    out->has_coordinate =
        fsdpck_node_dims(p, attribute(p, mesh, "_coordinate_on_dim"), &count, coordinate) && count == out->mesh.ndim;
    for (uint32_t d = 0; out->has_coordinate && d < count; d++) {
        if (coordinate[d] >= out->mesh.sizes[d])
            return false;
        out->coordinate[d] = (uint32_t)coordinate[d];
    }
    return true;
}

/* Reads the names of the mesh's dimensions, if any. They are only informative. */
static void read_names(const struct fsdpck_pickle *p, fsdpck_node mesh, struct fsdpck_dtensor_node *out)
{
    static const char *const numbered[FSDPCK_MAX_MESH_DIMS] = { "dim0", "dim1", "dim2", "dim3",
                                                                "dim4", "dim5", "dim6", "dim7" };
    fsdpck_node names = attribute(p, mesh, "mesh_dim_names");
    if (names == FSDPCK_NO_NODE)
        names = attribute(p, mesh, "_mesh_dim_names");
    for (uint32_t d = 0; d < out->mesh.ndim; d++) {
        fsdpck_node name =
            fsdpck_pickle_type(p, names) == FSDPCK_PICKLE_TUPLE ? fsdpck_pickle_child(p, names, d) : FSDPCK_NO_NODE;
        out->mesh.names[d] = name != FSDPCK_NO_NODE && fsdpck_pickle_type(p, name) == FSDPCK_PICKLE_STRING
                                 ? fsdpck_pickle_text(p, name, NULL)
                                 : numbered[d];
    }
}

static bool read_mesh(const struct fsdpck_pickle *p, fsdpck_node mesh, struct fsdpck_dtensor_node *out)
{
    out->mesh_node = mesh;
    out->rank_tuple = out->rank_tensor = FSDPCK_NO_NODE;
    if (!is_object(p, mesh, "DeviceMesh"))
        return false;
    fsdpck_node tensor = attribute(p, mesh, "mesh");
    bool read = tensor != FSDPCK_NO_NODE ? read_tensor_mesh(p, tensor, out) : read_layout_mesh(p, mesh, out);
    read_names(p, mesh, out);
    return read && fsdpck_mesh_nranks(&out->mesh) <= FSDPCK_MAX_RANKS && read_coordinate(p, mesh, out);
}

/* ---- placements ---- */

static int read_placement(const struct fsdpck_pickle *p, fsdpck_node n, uint32_t ndim, struct fsdpck_placement *out,
                          const char **why)
{
    int64_t dim = 0, split = 0;
    bool strided = is_object(p, n, "_StridedShard");
    *why = "its placements are not what torch pickles";
    *out = (struct fsdpck_placement){ FSDPCK_REPLICATE, 0, 0 };
    if (is_object(p, n, "Replicate"))
        return 0;
    if (is_object(p, n, "Partial") || is_object(p, n, "_Partial")) {
        *why = "it was saved with Partial placement: each rank holds a term of a sum that was never taken";
        return FSDPCK_ERR_UNSUPPORTED;
    }
    if ((!strided && !is_object(p, n, "Shard")) || !fsdpck_pickle_int(p, attribute(p, n, "dim"), &dim) || dim < 0 ||
        dim >= ndim)
        return FSDPCK_ERR_FORMAT;
    if (strided &&
        (!fsdpck_pickle_int(p, attribute(p, n, "split_factor"), &split) || split < 1 || split > FSDPCK_MAX_RANKS))
        return FSDPCK_ERR_FORMAT;
    *out = (struct fsdpck_placement){ strided ? FSDPCK_STRIDED_SHARD : FSDPCK_SHARD, (uint32_t)dim, (uint32_t)split };
    return 0;
}

static int read_placements(const struct fsdpck_pickle *p, fsdpck_node list, struct fsdpck_dtensor_node *out,
                           const char **why)
{
    enum fsdpck_pickle_type type = fsdpck_pickle_type(p, list);
    *why = "it has not one placement for each dimension of its mesh";
    if ((type != FSDPCK_PICKLE_TUPLE && type != FSDPCK_PICKLE_LIST) || fsdpck_pickle_count(p, list) != out->mesh.ndim)
        return FSDPCK_ERR_FORMAT;
    int rc = 0;
    for (uint32_t d = 0; !rc && d < out->mesh.ndim; d++)
        rc = read_placement(p, fsdpck_pickle_child(p, list, d), out->ndim, &out->placements[d], why);
    return rc;
}

int fsdpck_dtensor_node_read(const struct fsdpck_pickle *p, fsdpck_node n, struct fsdpck_dtensor_node *out,
                             const char **why)
{
    fsdpck_node args = fsdpck_pickle_child(p, unwrap(p, n), 1), made = fsdpck_pickle_child(p, args, 2),
                state = fsdpck_pickle_child(p, args, 3);
    if (fsdpck_pickle_type(p, state) == FSDPCK_PICKLE_TUPLE) /* of a class with __slots__: (None, {…}) */
        state = fsdpck_pickle_child(p, state, 1);
    fsdpck_node spec = fsdpck_pickle_get(p, state, "_spec");
    *out = (struct fsdpck_dtensor_node){ .local = fsdpck_pickle_get(p, state, "_local_tensor") };
    *why = "it is a DTensor that is not pickled as torch 2.4 to 2.15 do";
    if (out->local == FSDPCK_NO_NODE || !is_object(p, spec, "DTensorSpec") ||
        !fsdpck_node_dtype(p, fsdpck_pickle_child(p, made, 1), &out->dtype) ||
        !fsdpck_node_dims(p, fsdpck_pickle_child(p, made, 2), &out->ndim, out->shape) ||
        !read_mesh(p, attribute(p, spec, "mesh"), out))
        return FSDPCK_ERR_FORMAT;
    return read_placements(p, attribute(p, spec, "placements"), out, why);
}
