/* SPDX-License-Identifier: Apache-2.0 */
/* Finds layers in names. */
#include "doctor/layers.h"

#include <stdio.h>
#include <string.h>

bool fsdpck_doctor_split(const char *name, const char *prefix, uint64_t *index, const char **rest)
{
    size_t n = strlen(prefix);
    if (strncmp(name, prefix, n) != 0 || name[n] < '0' || name[n] > '9')
        return false;
    *index = 0;
    for (name += n; *name >= '0' && *name <= '9' && *index < 1000000; name++)
        *index = *index * 10 + (uint64_t)(*name - '0');
    *rest = name + 1;
    return *name == '.';
}

const char *fsdpck_doctor_layer_prefix(const struct doctor_model *m)
{
    static const char *const prefixes[] = { "model.layers.", "model.language_model.layers.",
                                            "language_model.model.layers." };
    uint64_t index;
    const char *rest;
    for (size_t p = 0; p < sizeof prefixes / sizeof *prefixes; p++)
        for (size_t i = 0; i < m->tensors.count; i++)
            if (fsdpck_doctor_split(doctor_tensors(m)[i].name, prefixes[p], &index, &rest))
                return prefixes[p];
    return NULL;
}

uint64_t fsdpck_doctor_experts_count(const struct doctor_model *m)
{
    static const char *const keys[] = { "num_experts", "n_routed_experts", "num_local_experts" };
    uint64_t count = 0;
    for (size_t i = 0; i < sizeof keys / sizeof *keys && !count; i++)
        fsdpck_doctor_count(m, keys[i], &count);
    return count;
}

bool fsdpck_doctor_mtp_prefix(const struct doctor_model *m, char *out, size_t nbytes, uint64_t *nlayers)
{
    static const char *const prefixes[] = { "mtp.", "model.mtp.", "language_model.mtp." };
    const char *rest;
    char layers[64];
    uint64_t index;
    bool found = false;
    *nlayers = 0;
    for (size_t p = 0; p < sizeof prefixes / sizeof *prefixes && !found; p++) {
        snprintf(layers, sizeof layers, "%slayers.", prefixes[p]);
        for (size_t i = 0; i < m->tensors.count; i++) {
            const char *name = doctor_tensors(m)[i].name;
            found = found || strncmp(name, prefixes[p], strlen(prefixes[p])) == 0;
            if (fsdpck_doctor_split(name, layers, &index, &rest) && index + 1 > *nlayers)
                *nlayers = index + 1;
        }
        snprintf(out, nbytes, "%s", prefixes[p]);
    }
    return found;
}

bool fsdpck_doctor_is_fragment(const struct doctor_model *m)
{
    const bool ends = fsdpck_doctor_find_part(m, "embed_tokens.") || fsdpck_doctor_find_part(m, "model.norm.") ||
                      fsdpck_doctor_find_part(m, "lm_head.");
    return !ends || !(fsdpck_doctor_find_part(m, ".self_attn.") || fsdpck_doctor_find_part(m, ".linear_attn."));
}
