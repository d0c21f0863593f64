/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the model, the data and the config of a trial as files. */
#include "trial.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void trial_must(int rc, const struct fsdpck_error *err)
{
    char line[2048];
    if (rc)
        fail_msg("%s", fsdpck_error_format(err, line, sizeof line));
}

static void write_text(const struct trial *t, const char *name, json_t *tree)
{
    char path[80];
    snprintf(path, sizeof path, "%s/%s", t->folder, name);
    assert_int_equal(json_dump_file(tree, path, JSON_REAL_PRECISION(17)), 0);
    json_decref(tree);
}

static json_t *rope_of(const struct reference *m)
{
    static const char *const names[] = { "default", "linear", "llama3", "yarn" };
    json_t *o = json_pack("{s:s}", "rope_type", names[m->rope]);
    if (m->rope != REFERENCE_DEFAULT)
        json_object_set_new(o, "factor", json_real(m->factor));
    if (m->rope == REFERENCE_LLAMA3 || m->rope == REFERENCE_YARN)
        json_object_set_new(o, "original_max_position_embeddings", json_integer((json_int_t)m->original));
    if (m->rope == REFERENCE_LLAMA3)
        json_object_update_new(o, json_pack("{s:f, s:f}", "low_freq_factor", 1.0, "high_freq_factor", 4.0));
    return o;
}

static void write_router(const struct reference *m, json_t *o)
{
    json_object_update_new(o, json_pack("{s:I, s:I, s:f, s:I}", "n_group", (json_int_t)m->ngroup, "topk_group",
                                        (json_int_t)m->top_groups, "routed_scaling_factor", m->routed_scale,
                                        "n_shared_experts", (json_int_t)(m->shared_inner / m->expert_inner)));
}

static void write_model(const struct trial *t)
{
    const struct reference *m = &t->ref;
    const bool oss = m->slope > 0;
    bool qwen = strncmp(t->family, "qwen", 4) == 0, dots = strcmp(t->family, "dots1") == 0;
    json_t *o = json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:b, s:f, s:f, s:o}", "model_type", t->family,
                          "vocab_size", (json_int_t)m->nvocab, "hidden_size", (json_int_t)m->hidden,
                          "intermediate_size", (json_int_t)m->inner, "num_hidden_layers", (json_int_t)m->nlayer,
                          "num_attention_heads", (json_int_t)m->nhead, "num_key_value_heads", (json_int_t)m->nkv,
                          "head_dim", (json_int_t)m->head_dim, "tie_word_embeddings", m->tied, "rms_norm_eps", m->eps,
                          "rope_theta", m->theta, "rope_scaling", rope_of(m));
    assert_non_null(o);
    if (strcmp(t->family, "llama") == 0)
        json_object_set_new(o, "mlp_bias", json_boolean(t->mlp_bias));
    if (m->nexperts) {
        json_object_update_new(o, json_pack("{s:I, s:I, s:I, s:b}", "num_local_experts", (json_int_t)m->nexperts,
                                            "num_experts_per_tok", (json_int_t)m->top_k, "moe_intermediate_size",
                                            (json_int_t)m->expert_inner, "norm_topk_prob", m->normalised));
        if (m->sigmoid) {
            write_router(m, o);
            json_object_set_new(o, "first_k_dense_replace", json_integer(t->first_dense + 1));
        } else if (m->shared_inner || oss) {
            if (!oss)
                json_object_set_new(o, "shared_expert_intermediate_size", json_integer((json_int_t)m->shared_inner));
            json_t *types = json_array();
            for (int64_t i = 0; i < m->nlayer; i++)
                json_array_append_new(types, json_string(oss && !m->window ? "full_attention" : "sliding_attention"));
            json_object_set_new(o, "layer_types", types); /* without it, every second layer has a window */
        }
        json_object_update_new(
            o, json_pack("{s:b, s:f}", "output_router_logits", t->balance > 0, "router_aux_loss_coef", t->balance));
        if (t->first_dense >= 0)
            json_object_set_new(o, "mlp_only_layers", json_pack("[I]", (json_int_t)t->first_dense));
    }
    if (strcmp(t->family, "llama") == 0 || strncmp(t->family, "qwen3", 5) == 0 || trial_has_sigmoids(t) || oss)
        json_object_set_new(o, "attention_bias", json_boolean(t->attention_bias));
    if (qwen)
        json_object_update_new(o, json_pack("{s:b, s:I}", "use_sliding_window", m->window > 0, "max_window_layers",
                                            (json_int_t)m->first_window));
    if (strcmp(t->family, "glm4_moe") == 0)
        json_object_update_new(o, json_pack("{s:b, s:f}", "use_qk_norm", m->qk_norm, "partial_rotary_factor",
                                            (double)m->rotary / (double)m->head_dim));
    if (dots)
        json_object_set_new(o, "max_window_layers", json_integer((json_int_t)m->first_window));
    if (oss)
        json_object_set_new(o, "swiglu_limit", json_real(m->limit));
    if (qwen || dots || strncmp(t->family, "mi", 2) == 0 || (oss && m->window))
        json_object_set_new(o, "sliding_window", m->window ? json_integer((json_int_t)m->window) : json_null());
    write_text(t, "config.json", o);
}

static void write_weights(const struct trial *t)
{
    char path[80];
    json_t *header = json_object();
    int64_t at = 0;
    for (size_t i = 0; i < t->ref.ntensors; i++) {
        const struct reference_tensor *x = &t->ref.tensors[i];
        json_t *shape = x->ncol == 1 ? json_pack("[I]", (json_int_t)x->nrow)
                        : x->nmid    ? json_pack("[I, I, I]", (json_int_t)x->nrow, (json_int_t)x->nmid,
                                                 (json_int_t)(x->ncol / x->nmid))
                                     : json_pack("[I, I]", (json_int_t)x->nrow, (json_int_t)x->ncol);
        int64_t end = at + x->nrow * x->ncol * 4;
        json_object_set_new(header, x->name,
                            json_pack("{s:s, s:o, s:[I, I]}", "dtype", "F32", "shape", shape, "data_offsets",
                                      (json_int_t)at, (json_int_t)end));
        at = end;
    }
    snprintf(path, sizeof path, "%s/model.safetensors", t->folder);
    FILE *f = fopen(path, "wb");
    char *text = json_dumps(header, JSON_COMPACT);
    uint64_t nbytes = strlen(text);
    assert_true(f && fwrite(&nbytes, 8, 1, f) == 1 && fwrite(text, nbytes, 1, f) == 1);
    for (size_t i = 0; i < t->ref.ntensors; i++) {
        for (int64_t j = 0; j < t->ref.tensors[i].nrow * t->ref.tensors[i].ncol; j++) {
            float value = (float)t->ref.tensors[i].data[j];
            assert_int_equal(fwrite(&value, 4, 1, f), 1);
        }
    }
    assert_int_equal(fclose(f), 0);
    free(text);
    json_decref(header);
}

/* Three rows in two micro-batches with several documents each, and one with the document without labels. */
static void write_data(const struct trial *t)
{
    char path[80];
    snprintf(path, sizeof path, "%s/data.jsonl", t->folder);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    for (int d = 0; d < DOCUMENTS; d++) {
        json_t *ids = json_array(), *labels = json_array();
        for (int64_t i = 0; i < t->documents[d].ntok; i++) {
            json_array_append_new(ids, json_integer(t->documents[d].ids[i]));
            json_array_append_new(labels, json_integer(t->documents[d].labels[i]));
        }
        json_t *line = json_pack("{s:o, s:o}", "input_ids", ids, "labels", labels);
        json_dumpf(line, f, JSON_COMPACT);
        fputc('\n', f);
        json_decref(line);
    }
    assert_int_equal(fclose(f), 0);
    write_text(t, "plan.json", json_pack("{s:[[[[i, i, i], [i]], [[i, i]], [[i]]]]}", "steps", 0, 1, 2, 3, 4, 5, 6));
}

static void write_config(struct trial *t)
{
    struct fsdpck_error err = { 0 };
    char data[80], plan[80], path[80];
    snprintf(data, sizeof data, "%s/data.jsonl", t->folder);
    snprintf(plan, sizeof plan, "%s/plan.json", t->folder);
    json_t *o = json_pack("{s:s, s:I, s:{s:s, s:s}, s:{s:i, s:i}, s:{s:s}, s:{s:s}}", "model", t->folder, "seed",
                          (json_int_t)t->ref.seed, "data", "train", data, "plan", plan, "train", "max_steps", 1,
                          "gradient_accumulation_steps", 1 + (int)trial_below(t, 3), "dtype", "param", "fp32", "fsdp",
                          "activation_checkpointing", t->recompute ? "block" : "none");
    assert_non_null(o);
    if (t->lora) {
        json_t *lora = json_pack("{s:i, s:f, s:f, s:b}", "r", 3, "lora_alpha", t->ref.alpha, "lora_dropout",
                                 t->ref.dropout, "use_rslora", t->ref.rslora);
        if (strstr(t->targets, "all-linear") || strstr(t->targets, "k_proj") ||
            strstr(t->targets, "|k|")) /* a pattern that matches nothing is refused */
            json_object_set_new(lora, "rank_pattern", json_pack("{s:i}", "k_proj", 5));
        json_object_set_new(lora, "use_dora", json_boolean(t->ref.dora));
        json_object_set_new(lora, "target_modules", json_loads(t->targets, JSON_DECODE_ANY, NULL));
        json_object_set_new(o, "lora", lora);
    }
    char *model = json_dumps(json_object_get(o, "lora"), JSON_COMPACT);
    snprintf(t->text, sizeof t->text,
             "%s, hidden %d, inner %d, heads %d/%d of %d, rope %d, window %d from %d, tied %d, lora %.300s", t->family,
             (int)t->ref.hidden, (int)t->ref.inner, (int)t->ref.nhead, (int)t->ref.nkv, (int)t->ref.head_dim,
             (int)t->ref.rope, (int)t->ref.window, (int)t->ref.first_window, t->ref.tied, model ? model : "none");
    free(model);
    write_text(t, "run.json", o);
    snprintf(path, sizeof path, "%s/run.json", t->folder);
    trial_must(train_config_read(path, NULL, 0, &t->config, &err), &err);
}

void trial_write(struct trial *t)
{
    write_model(t);
    write_weights(t);
    write_data(t);
    write_config(t);
}

void trial_unlink(const struct trial *t)
{
    static const char *const files[] = { "config.json", "model.safetensors", "data.jsonl", "plan.json", "run.json" };
    char path[80];
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        snprintf(path, sizeof path, "%s/%s", t->folder, files[i]);
        assert_int_equal(unlink(path), 0);
    }
    assert_int_equal(rmdir(t->folder), 0);
}
