/* SPDX-License-Identifier: Apache-2.0 */
/* `average`: exports or converts a view that presents the averages of several sources. */
#include <fsdpck/average.h>
#include <fsdpck/export.h>

#include "verbs/export_with.h"
#include "view/average.h"

static int write_out(struct fsdpck_source *src, const struct fsdpck_average_request *req,
                     const struct fsdpck_select *select, const struct fsdpck_options *opt,
                     struct fsdpck_transfer_result *result, struct fsdpck_error *err)
{
    const struct fsdpck_export_request export = { .out = req->out,
                                                  .max_shard_nbytes = req->max_shard_nbytes,
                                                  .select = *select,
                                                  .assets = req->assets,
                                                  .force = req->force };
    if (!req->sharded)
        return fsdpck_export(src, &export, opt, result, err);
    struct fsdpck_convert_request convert = *req->sharded;
    convert.out = req->out;
    convert.select = *select;
    convert.assets = req->assets;
    convert.force = req->force;
    return fsdpck_convert_with(src, &convert, NULL, opt, result, err);
}

int fsdpck_average(struct fsdpck_source *const *sources, size_t nsources, const struct fsdpck_average_request *req,
                   const struct fsdpck_options *opt, struct fsdpck_transfer_result *result, struct fsdpck_error *err)
{
    struct fsdpck_error own = { 0 };
    struct fsdpck_transfer_result none = { 0 };
    struct fsdpck_average_left left;
    const struct fsdpck_averaging averaging = {
        .sources = sources, .weights = req->weights, .n = nsources, .select = &req->select
    };
    struct fsdpck_select select = req->select; /* the view has applied the rest */
    select.include = select.exclude = NULL;
    select.ninclude = select.nexclude = 0;
    select.tree = NULL;
    err = err ? err : &own;
    result = result ? result : &none;
    if (nsources == 0)
        return fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL, "an average of no sources");
    for (size_t i = 1; i < nsources; i++) /* the first one becomes the view of all */
        if (sources[i] == sources[0])
            return fsdpck_error_set(err, FSDPCK_ERR_USAGE, fsdpck_source_path(sources[0]),
                                    "source %zu of the average is the first one; it has to be opened again", i + 1);
    int rc = fsdpck_source_average(&averaging, &left, err);
    if (!rc)
        rc = write_out(sources[0], req, &select, opt, result, err);
    result->nleft_tensors = rc ? 0 : left.ntensors;
    result->nleft_items += rc ? 0 : left.nitems;
    return rc;
}
