/* SPDX-License-Identifier: Apache-2.0 */
#include "view/megatron_table.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define ATTN   "self_attention."
#define SHARED "mlp.shared_experts."

/* Several rows for one weight: Transformer Engine keeps most norms in the linear layer behind them, others have them
 * apart. Its row comes first. */
const struct fsdpck_megatron_row fsdpck_megatron_layer_rows[] = {
    { ATTN "linear_qkv.weight",
      { "self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight" },
      INPUT_HIDDEN,
      FSDPCK_MEGATRON_QKV },
    { ATTN "linear_qkv.bias",
      { "self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.v_proj.bias" },
      ANY,
      FSDPCK_MEGATRON_QKV_BIAS },
    { ATTN "linear_qkv.layer_norm_weight", { "input_layernorm.weight" }, ANY, FSDPCK_MEGATRON_QKV },
    { "input_layernorm.weight", { "input_layernorm.weight" }, ANY, 0 },
    { ATTN "q_layernorm.weight", { "self_attn.q_norm.weight" }, ANY, FSDPCK_MEGATRON_QK_NORM },
    { ATTN "k_layernorm.weight", { "self_attn.k_norm.weight" }, ANY, FSDPCK_MEGATRON_QK_NORM },
    { ATTN "linear_q_down_proj.weight", { "self_attn.q_a_proj.weight" }, INPUT_HIDDEN, FSDPCK_MEGATRON_Q_RANK },
    { ATTN "linear_q_up_proj.layer_norm_weight", { "self_attn.q_a_layernorm.weight" }, ANY, FSDPCK_MEGATRON_Q_RANK },
    { ATTN "q_layernorm.weight", { "self_attn.q_a_layernorm.weight" }, ANY, FSDPCK_MEGATRON_Q_RANK },
    { ATTN "linear_q_up_proj.weight", { "self_attn.q_b_proj.weight" }, ANY, FSDPCK_MEGATRON_Q_RANK },
    { ATTN "linear_q_proj.weight", { "self_attn.q_proj.weight" }, INPUT_HIDDEN, FSDPCK_MEGATRON_Q_WHOLE },
    { ATTN "linear_q_proj.layer_norm_weight", { "input_layernorm.weight" }, ANY, FSDPCK_MEGATRON_Q_WHOLE },
    { ATTN "linear_kv_down_proj.weight", { "self_attn.kv_a_proj_with_mqa.weight" }, INPUT_HIDDEN, FSDPCK_MEGATRON_MLA },
    { ATTN "linear_kv_up_proj.layer_norm_weight", { "self_attn.kv_a_layernorm.weight" }, ANY, FSDPCK_MEGATRON_MLA },
    { ATTN "kv_layernorm.weight", { "self_attn.kv_a_layernorm.weight" }, ANY, FSDPCK_MEGATRON_MLA },
    { ATTN "linear_kv_up_proj.weight", { "self_attn.kv_b_proj.weight" }, ANY, FSDPCK_MEGATRON_MLA },
    { ATTN "linear_proj.weight", { "self_attn.o_proj.weight" }, OUTPUT_HIDDEN, 0 },
    { ATTN "linear_proj.bias", { "self_attn.o_proj.bias" }, ANY, FSDPCK_MEGATRON_O_BIAS },
    { "mlp.linear_fc1.layer_norm_weight", { "post_attention_layernorm.weight" }, ANY, FSDPCK_MEGATRON_DENSE },
    { "pre_mlp_layernorm.weight", { "post_attention_layernorm.weight" }, ANY, 0 },
    { "mlp.linear_fc1.layer_norm_weight", { "post_attention_layernorm.weight" }, ANY, FSDPCK_MEGATRON_EXPERTS },
    { "mlp.linear_fc1.weight", { "mlp.gate_proj.weight", "mlp.up_proj.weight" }, INPUT_HIDDEN, FSDPCK_MEGATRON_DENSE },
    { "mlp.linear_fc1.weight_w", { "mlp.gate_proj.weight" }, INPUT_HIDDEN, FSDPCK_MEGATRON_DENSE },
    { "mlp.linear_fc1.weight_v", { "mlp.up_proj.weight" }, INPUT_HIDDEN, FSDPCK_MEGATRON_DENSE },
    { "mlp.linear_fc2.weight", { "mlp.down_proj.weight" }, OUTPUT_HIDDEN, FSDPCK_MEGATRON_DENSE },
    { "mlp.router.weight", { "mlp.gate.weight" }, INPUT_HIDDEN, FSDPCK_MEGATRON_EXPERTS },
    { "mlp.router.expert_bias", { "mlp.gate.e_score_correction_bias" }, ANY, FSDPCK_MEGATRON_ROUTER_BIAS },
    { SHARED "linear_fc1.weight",
      { "mlp.shared_experts.gate_proj.weight", "mlp.shared_experts.up_proj.weight" },
      INPUT_HIDDEN,
      FSDPCK_MEGATRON_SHARED },
    { SHARED "linear_fc1.weight_w", { "mlp.shared_experts.gate_proj.weight" }, INPUT_HIDDEN, FSDPCK_MEGATRON_SHARED },
    { SHARED "linear_fc1.weight_v", { "mlp.shared_experts.up_proj.weight" }, INPUT_HIDDEN, FSDPCK_MEGATRON_SHARED },
    { SHARED "linear_fc2.weight", { "mlp.shared_experts.down_proj.weight" }, OUTPUT_HIDDEN, FSDPCK_MEGATRON_SHARED },
    { SHARED "linear_fc1.weight",
      { "mlp.shared_expert.gate_proj.weight", "mlp.shared_expert.up_proj.weight" },
      INPUT_HIDDEN,
      FSDPCK_MEGATRON_SHARED_GATED },
    { SHARED "linear_fc1.weight_w",
      { "mlp.shared_expert.gate_proj.weight" },
      INPUT_HIDDEN,
      FSDPCK_MEGATRON_SHARED_GATED },
    { SHARED "linear_fc1.weight_v",
      { "mlp.shared_expert.up_proj.weight" },
      INPUT_HIDDEN,
      FSDPCK_MEGATRON_SHARED_GATED },
    { SHARED "linear_fc2.weight",
      { "mlp.shared_expert.down_proj.weight" },
      OUTPUT_HIDDEN,
      FSDPCK_MEGATRON_SHARED_GATED },
    { SHARED "gate_weight", { "mlp.shared_expert_gate.weight" }, INPUT_HIDDEN, FSDPCK_MEGATRON_SHARED_GATED },
    { NULL, { NULL }, ANY, 0 },
};

const struct fsdpck_megatron_row fsdpck_megatron_expert_rows[] = {
    { "linear_fc1.weight", { "gate_proj", "up_proj" }, INPUT_HIDDEN, FSDPCK_MEGATRON_EXPERTS },
    { "linear_fc1.weight_w", { "gate_proj" }, INPUT_HIDDEN, FSDPCK_MEGATRON_EXPERTS },
    { "linear_fc1.weight_v", { "up_proj" }, INPUT_HIDDEN, FSDPCK_MEGATRON_EXPERTS },
    { "linear_fc2.weight", { "down_proj" }, OUTPUT_HIDDEN, FSDPCK_MEGATRON_EXPERTS },
    { NULL, { NULL }, ANY, 0 },
};

const struct fsdpck_megatron_row fsdpck_megatron_mtp_rows[] = {
    { "enorm.weight", { "enorm.weight" }, ANY, 0 },
    { "hnorm.weight", { "hnorm.weight" }, ANY, 0 },
    { "eh_proj.weight", { "eh_proj.weight" }, OUTPUT_HIDDEN, 0 },
    { "final_layernorm.weight", { "shared_head.norm.weight" }, ANY, 0 },
    { NULL, { NULL }, ANY, 0 },
};

static bool has(const struct fsdpck_megatron_row *row, unsigned traits)
{
    return (row->needs & ~traits) == 0;
}

const struct fsdpck_megatron_row *fsdpck_megatron_find(const struct fsdpck_megatron_row *rows, const char *from,
                                                       unsigned traits)
{
    for (; rows->from; rows++)
        if (strcmp(rows->from, from) == 0 && has(rows, traits))
            return rows;
    return NULL;
}

/* ---- names ---- */

void fsdpck_megatron_name(const struct fsdpck_megatron_config *c, uint64_t layer, const char *to, char *out,
                          size_t nbytes)
{
    char plain[FSDPCK_MEGATRON_NAME_NBYTES];
    snprintf(plain, sizeof plain, "model.layers.%" PRIu64 ".%s", layer, to);
    if (c->experts)
        fsdpck_expert_move(&c->moe, plain, false, out, nbytes);
    else
        snprintf(out, nbytes, "%s", plain);
}

void fsdpck_megatron_expert_name(const struct fsdpck_megatron_config *c, uint64_t layer, uint64_t expert,
                                 const char *to, char *out, size_t nbytes)
{
    struct fsdpck_expert x = { .form = FSDPCK_EXPERT_SINGLE, .layer = layer, .expert = expert };
    x.part = to[0] == 'g' ? FSDPCK_EXPERT_GATE : to[0] == 'u' ? FSDPCK_EXPERT_UP : FSDPCK_EXPERT_DOWN;
    fsdpck_expert_name(&c->moe, &x, out, nbytes);
}

/* ---- what must be there ---- */

struct check {
    const struct fsdpck_source *src;
    const struct fsdpck_megatron_config *c;
    struct fsdpck_error *err;
};

static int check_name(const struct check *k, const char *name, const char *from)
{
    if (fsdpck_names_find(&k->src->names, name) != SIZE_MAX)
        return 0;
    fsdpck_error_set(k->err, FSDPCK_ERR_MISSING, k->src->path, "is missing: Megatron's '%s' would hold it", from);
    fsdpck_error_tensor(k->err, name);
    return FSDPCK_ERR_MISSING;
}

static int check_experts(const struct check *k, uint64_t layer)
{
    char name[FSDPCK_MEGATRON_NAME_NBYTES];
    int rc = 0;
    for (uint64_t e = 0; e < k->c->experts; e++)
        for (const struct fsdpck_megatron_row *row = fsdpck_megatron_expert_rows; row->from; row++)
            for (int p = 0; p < FSDPCK_MEGATRON_MAX_PARTS && row->to[p] && !rc; p++) {
                fsdpck_megatron_expert_name(k->c, layer, e, row->to[p], name, sizeof name);
                rc = check_name(k, name, row->from);
            }
    return rc;
}

static int check_rows(const struct check *k, const struct fsdpck_megatron_row *row, uint64_t layer)
{
    char name[FSDPCK_MEGATRON_NAME_NBYTES];
    const unsigned traits = fsdpck_megatron_traits(k->c, layer);
    int rc = 0;
    for (; row->from && !rc; row++)
        for (int p = 0; has(row, traits) && p < FSDPCK_MEGATRON_MAX_PARTS && row->to[p] && !rc; p++) {
            fsdpck_megatron_name(k->c, layer, row->to[p], name, sizeof name);
            rc = check_name(k, name, row->from);
        }
    return rc;
}

static int check_layer(const struct check *k, uint64_t layer)
{
    int rc = check_rows(k, fsdpck_megatron_layer_rows, layer);
    if (!rc && layer >= k->c->layers)
        rc = check_rows(k, fsdpck_megatron_mtp_rows, layer);
    return rc || !(fsdpck_megatron_traits(k->c, layer) & FSDPCK_MEGATRON_EXPERTS) ? rc : check_experts(k, layer);
}

int fsdpck_megatron_check_all(const struct fsdpck_source *src, const struct fsdpck_megatron_config *c, uint64_t nmtp,
                              struct fsdpck_error *err)
{
    const struct check k = { src, c, err };
    int rc = check_name(&k, "model.norm.weight", "decoder.final_layernorm.weight");
    if (!rc && !c->tied)
        rc = check_name(&k, "lm_head.weight", "output_layer.weight");
    for (uint64_t i = 0; i < c->layers + nmtp && !rc; i++)
        rc = check_layer(&k, i);
    return rc;
}
