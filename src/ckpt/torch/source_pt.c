/* torch.save files as a source: one file, or a folder of them. */
#include "torch/pt_file.h"

#include <string.h>

static const struct fsdpck_source_ops ops = {
    .kind = "pt",
    .extents = fsdpck_dcp_extents,
    .verify = fsdpck_pt_verify,
    .read_item = fsdpck_pt_read_item,
    .close = fsdpck_pt_close,
};

static int open_file(struct fsdpck_pt_reading *r)
{
    const char *slash = strrchr(r->src->path, '/');
    return fsdpck_pt_read(r, r->src->path, slash ? slash + 1 : r->src->path, -1, 0, NULL);
}

int fsdpck_open_pt(struct fsdpck_source *src, struct fsdpck_error *err)
{
    struct fsdpck_pt_reading r;
    src->ops = &ops;
    int rc = fsdpck_pt_begin(&r, src, err);
    if (!rc)
        rc = open_file(&r);
    if (!rc)
        rc = fsdpck_pt_finish(&r);
    fsdpck_pt_end(&r);
    return rc;
}
