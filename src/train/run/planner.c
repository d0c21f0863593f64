/* SPDX-License-Identifier: Apache-2.0 */
/* train_plan and train_search: they open the job of a config, of which nothing will run. */
#include <train/search.h>

#include "price/rates_cache.h"
#include "run/automatic.h"
#include "run/open.h"
#include "run/plan.h"
#include "run/search.h"

/* The processors' rates say nothing of a device. */
static int find_rates(const struct train_options *opt, struct rates *found, const struct rates **out,
                      struct fsdpck_error *err)
{
    bool known;
    *out = NULL;
    if (opt->module && !opt->rates)
        return 0;
    int rc = rates_get(opt, found, &known, err);
    *out = !rc && known ? found : NULL;
    return rc;
}

int train_plan(const struct train_config *config, const struct train_options *opt, struct train_plan *out,
               struct fsdpck_error *err)
{
    struct train_config given = *config, settled;
    struct job job;
    struct rates found;
    const struct rates *rates;
    *out = (struct train_plan){ 0 };
    automatic_recall(&given, opt);
    int rc = job_open(&given, opt, &job, err);
    if (rc)
        return rc;
    rc = automatic_choose(&job, &settled, err);
    if (!rc)
        rc = find_rates(opt, &found, &rates, err);
    if (!rc)
        rc = plan_make(&job, rates, out, err);
    if (!rc)
        rc = plan_encoding(&job, out, err);
    job_close(&job);
    return rc;
}

int train_search(const struct train_config *config, const struct train_options *opt, struct train_search *out,
                 struct fsdpck_error *err)
{
    const unsigned fsdp = TRAIN_AUTO_STRATEGY | TRAIN_AUTO_FORWARD_PREFETCH | TRAIN_AUTO_BACKWARD_PREFETCH;
    struct train_config given = *config;
    struct rates rates;
    struct job job;
    *out = (struct train_search){ 0 };
    automatic_recall(&given, opt);
    int rc = job_open(&given, opt, &job, err);
    if (rc)
        return rc;
    out->limit_nbytes = search_limit(&job);
    rc = search_rates(opt, &rates, err);
    if (!rc)
        rc = search_job(&job, search_keys(&job, fsdp | given.automatic), true, &rates, out, err);
    job_close(&job);
    return rc;
}
