/* SPDX-License-Identifier: Apache-2.0 */
/* What a report shows of a run, as JSON. */
#ifndef FSDPTRAIN_REPORT_JSON_H
#define FSDPTRAIN_REPORT_JSON_H

#include <jansson.h>
#include <train/history.h>

struct report_run {
    const char *name;        /* as it was typed */
    const char *folder_path; /* from which pictures are put into the page; NULL: they are only listed */
    struct train_history history;
    struct train_folder folder;
};

/* npoints: the most points of a curve. NULL: out of memory. */
json_t *report_json_run(const struct report_run *run, size_t npoints);

#endif
