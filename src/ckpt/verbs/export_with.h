/* SPDX-License-Identifier: Apache-2.0 */
/* Requests beyond the public ones, for verbs built on export and convert: other names and headers, tensors that no
 * source has, changed values. */
#ifndef CKPT_EXPORT_WITH_H
#define CKPT_EXPORT_WITH_H

#include <fsdpck/export.h>

#include "engine/transfer.h"
#include "hf/assets.h"

/* A tensor whose bytes are in memory. */
struct fsdpck_export_extra {
    const char *name;
    enum fsdpck_dtype dtype;
    uint32_t ndim;
    const uint64_t *shape; /* (ndim) */
    const void *data;
};

/* Everything is borrowed. Zero-initialised, it does the same as fsdpck_export(). */
struct fsdpck_export_with {
    const struct fsdpck_edit *edit;
    const struct fsdpck_selection
        *selection;                /* the tensors to write, instead of applying request.select; without aliases */
    const uint64_t *const *shapes; /* with selection: (ntensors) shape in the header if it differs from the source's,
                                      else NULL; may be NULL */
    const uint32_t *ndims;         /* as long as shapes */
    const char *file;              /* name of the one file of a folder, instead of model.safetensors */
    const char *metadata; /* members of __metadata__ after "format", as JSON text that begins with a comma; or NULL */
    const struct fsdpck_export_extra *extra; /* (nextra) more tensors, from memory */
    size_t nextra;
    struct fsdpck_assets_out *assets; /* instead of the source's; freed with the export */
};

int fsdpck_export_with(struct fsdpck_source *src, const struct fsdpck_export_request *req,
                       const struct fsdpck_export_with *with, const struct fsdpck_options *opt,
                       struct fsdpck_transfer_result *result, struct fsdpck_error *err);
/* Converts the model tree (as chosen by an export); its values pass through `edit`. */
int fsdpck_convert_with(struct fsdpck_source *src, const struct fsdpck_convert_request *req,
                        const struct fsdpck_edit *edit, const struct fsdpck_options *opt,
                        struct fsdpck_transfer_result *result, struct fsdpck_error *err);

#endif
