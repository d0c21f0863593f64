/* SPDX-License-Identifier: Apache-2.0 */
/* Opens an adapter: the steps of adapter.c, adapter_config.c, experts.c and adapter_check.c in their order. */
#include "lora/adapter.h"
#include "lora/experts.h"

/* Cuts fused experts, and finds the adapter again in what the source is then. */
static int split_experts(struct fsdpck_lora_adapter *a, const struct fsdpck_lora_request *req, struct fsdpck_error *err)
{
    struct fsdpck_source *src = a->src;
    struct fsdpck_lora_config config;
    struct fsdpck_lora_split split;
    int rc = fsdpck_lora_experts_split(a, req, &split, err);
    if (rc || !split.nexperts)
        return rc;
    config = a->config;
    a->config = (struct fsdpck_lora_config){ 0 };
    fsdpck_lora_adapter_free(a);
    rc = fsdpck_lora_adapter_find(a, src, req->select, req->name, err);
    a->config = config;
    a->split = split;
    for (size_t i = 0; i < a->modules.count && !rc; i++)
        if (!(lora_modules(a)[i].named = fsdpck_lora_experts_path(&a->arena, lora_modules(a)[i].path, split, err)))
            rc = FSDPCK_ERR_NOMEM;
    return rc;
}

int fsdpck_lora_adapter_open(struct fsdpck_lora_adapter *a, struct fsdpck_source *src,
                             const struct fsdpck_lora_request *req, struct fsdpck_error *err)
{
    int rc = fsdpck_lora_adapter_find(a, src, req->select, req->name, err);
    if (!rc)
        rc = fsdpck_lora_adapter_configure(a, req, err);
    if (!rc)
        rc = split_experts(a, req, err);
    if (!rc)
        rc = fsdpck_lora_adapter_rest(a, err);
    return rc ? rc : fsdpck_lora_adapter_check(a, err);
}
