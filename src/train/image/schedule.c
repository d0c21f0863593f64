/* SPDX-License-Identifier: Apache-2.0 */
#include "image/schedule.h"

#include <math.h>
#include <string.h>

#include "model/flux2_read.h"

/* Keys with the only value that is supported; those of the shift that FLUX.2's pipelines do not use are free. */
int schedule_check(const struct pipeline *p, struct fsdpck_error *err)
{
    static const char *const known[] = { "base_image_seq_len",
                                         "base_shift",
                                         "invert_sigmas",
                                         "max_image_seq_len",
                                         "max_shift",
                                         "num_train_timesteps",
                                         "shift",
                                         "shift_terminal",
                                         "stochastic_sampling",
                                         "time_shift_type",
                                         "use_beta_sigmas",
                                         "use_dynamic_shifting",
                                         "use_exponential_sigmas",
                                         "use_karras_sigmas" };
    static const struct {
        const char *key;
        bool value;
    } flags[] = {
        { "invert_sigmas", false },     { "stochastic_sampling", false },    { "use_beta_sigmas", false },
        { "use_karras_sigmas", false }, { "use_exponential_sigmas", false }, { "use_dynamic_shifting", true }
    };
    struct model_reader r;
    int rc = pipeline_json(p, "scheduler", "scheduler_config.json", "FlowMatchEulerDiscreteScheduler", &r, err);
    if (!rc)
        model_refuse_unknown(&r, known, sizeof known / sizeof known[0]);
    for (size_t i = 0; i < sizeof flags / sizeof flags[0] && !rc; i++)
        if (model_get_bool(&r, flags[i].key, false) != flags[i].value)
            MODEL_REFUSE(&r, FSDPCK_ERR_UNSUPPORTED, "key '%s': only %s is supported", flags[i].key,
                         flags[i].value ? "true" : "false");
    const char *type = rc ? NULL : json_string_value(model_get(&r, "time_shift_type"));
    if (!rc && type && strcmp(type, "exponential") != 0)
        MODEL_REFUSE(&r, FSDPCK_ERR_UNSUPPORTED, "key 'time_shift_type': \"%.40s\" is not supported", type);
    if (!rc && model_get(&r, "shift_terminal"))
        MODEL_REFUSE(&r, FSDPCK_ERR_UNSUPPORTED, "key 'shift_terminal' is not supported");
    if (!rc && model_get_int(&r, "num_train_timesteps", 1000, 0, INT32_MAX) != 1000)
        MODEL_REFUSE(&r, FSDPCK_ERR_UNSUPPORTED, "key 'num_train_timesteps': only 1000 is supported");
    json_decref(r.root);
    return rc ? rc : r.rc;
}

static double shift_of(int64_t ntok, int64_t nstep)
{
    const double n = (double)ntok, at_200 = 0.00016927 * n + 0.45666666, at_10 = 8.73809524e-05 * n + 1.89833333,
                 slope = (at_200 - at_10) / 190;
    return ntok > 4300 ? at_200 : slope * (double)nstep + at_200 - 200 * slope;
}

void schedule_sigmas(int64_t ntok, int64_t nstep, float *sigmas)
{
    const float e = (float)exp(shift_of(ntok, nstep));
    for (int64_t i = 0; i < nstep; i++) {
        const float left = (float)(1 - (double)i / (double)nstep);
        sigmas[i] = e / (e + (1 / left - 1));
    }
    sigmas[nstep] = 0;
}
