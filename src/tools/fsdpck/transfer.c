/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a transfer from one source. It must not know the verb. */
#include "transfer.h"

#include "transfer_out.h"

int transfer_run(const struct transfer *t)
{
    struct fsdpck_error err = { 0 };
    struct report report = { 0 };
    struct fsdpck_options opt;
    struct select_spec select = { 0 };
    struct fsdpck_source *src = NULL;
    struct fsdpck_transfer_result result = { 0 };
    report_start(&report, t->common, &opt);
    int rc = t->prepare ? t->prepare(t->request, &err) : 0;
    if (!rc)
        rc = select_arg_resolve(t->select, &select, &err);
    if (!rc)
        rc = source_arg_open(t->in, t->source, &opt, &src, &err);
    if (!rc)
        rc = t->write(t->request, src, &select.select, &opt, &result, &err);
    report_clear(&report);
    int status = rc ? report_error(&report, &err) : transfer_out_print(t->out, t->mesh, &result, t->common->json);
    fsdpck_source_close(src);
    select_spec_free(&select);
    return status;
}
