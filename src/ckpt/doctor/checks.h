/* SPDX-License-Identifier: Apache-2.0 */
/* What the checks share. A check is one function and one row of the table in doctor.c. */
#ifndef CKPT_DOCTOR_CHECKS_H
#define CKPT_DOCTOR_CHECKS_H

#include <fsdpck/doctor.h>
#include <stdio.h>

#include "doctor/model.h"

struct doctor {
    const struct doctor_model *model, *base; /* base: NULL without one */
    const char *consumer;                    /* NULL: any */
    bool deep;                               /* checks may read weights */
    const struct fsdpck_options *opt;
    const char *check; /* the one that runs */
    fsdpck_finding_fn report;
    void *ctx;
    struct fsdpck_doctor_result *result;
    struct fsdpck_error *err; /* a check that runs out of memory sets it */
};

struct doctor_words {
    char found[800], expected[800], mend[1600];
};
#define DOCTOR_LORA_A          ".lora_A.weight"
#define DOCTOR_LORA_B          ".lora_B.weight"
#define doctor_say(field, ...) snprintf(field, sizeof(field), __VA_ARGS__)

/* Advises to take tensors from the base: the one that was given, or the word BASE. before: another way out, or "". */
void fsdpck_doctor_advise_base(const struct doctor *d, struct doctor_words *words, const char *before);
/* Writes "8 x 16". */
void fsdpck_doctor_say_shape(const struct doctor_tensor *t, char *out, size_t nbytes);
void fsdpck_doctor_report(struct doctor *d, enum fsdpck_severity severity, const char *file, const char *subject,
                          const struct doctor_words *words);

/* Each returns false if it could not be decided: its input is absent. A defect is reported, and true returned. */
typedef bool doctor_check_fn(struct doctor *d);

/* check_files.c */
doctor_check_fn fsdpck_doctor_json, fsdpck_doctor_index, fsdpck_doctor_files, fsdpck_doctor_extra_files,
    fsdpck_doctor_placement, fsdpck_doctor_twice;
/* check_beside.c */
doctor_check_fn fsdpck_doctor_shards, fsdpck_doctor_total_size, fsdpck_doctor_second_set, fsdpck_doctor_entries;
/* check_run.c */
doctor_check_fn fsdpck_doctor_ranks_files, fsdpck_doctor_latest;
/* check_names.c */
doctor_check_fn fsdpck_doctor_wrappers, fsdpck_doctor_leftovers, fsdpck_doctor_empty;
/* check_layers.c */
doctor_check_fn fsdpck_doctor_layers, fsdpck_doctor_mtp;
/* check_parts.c */
doctor_check_fn fsdpck_doctor_layer_parts, fsdpck_doctor_shapes;
/* check_alike.c */
doctor_check_fn fsdpck_doctor_alike;
/* check_experts.c */
doctor_check_fn fsdpck_doctor_experts;
/* check_fused.c */
doctor_check_fn fsdpck_doctor_fused_experts;
/* check_head.c */
doctor_check_fn fsdpck_doctor_head, fsdpck_doctor_vocabulary_rows;
/* check_config.c */
doctor_check_fn fsdpck_doctor_dtype, fsdpck_doctor_dtype_keys, fsdpck_doctor_mixed_dtypes, fsdpck_doctor_vision,
    fsdpck_doctor_audio, fsdpck_doctor_remote_code;
/* check_quant.c */
doctor_check_fn fsdpck_doctor_quant_config, fsdpck_doctor_quant_parts;
/* check_quant_lists.c */
doctor_check_fn fsdpck_doctor_quant_ignored, fsdpck_doctor_quant_files;
/* check_quant_layers.c */
doctor_check_fn fsdpck_doctor_quant_layers;
/* check_values.c */
doctor_check_fn fsdpck_doctor_precision;
/* check_dialect.c */
doctor_check_fn fsdpck_doctor_rope_keys, fsdpck_doctor_tied_keys, fsdpck_doctor_processor, fsdpck_doctor_tower;
/* check_reads.c */
doctor_check_fn fsdpck_doctor_values, fsdpck_doctor_untrained;
/* check_rows.c */
doctor_check_fn fsdpck_doctor_new_rows, fsdpck_doctor_unchanged;
/* check_chat.c */
doctor_check_fn fsdpck_doctor_templates, fsdpck_doctor_no_template, fsdpck_doctor_template_tokens;
/* check_special.c */
doctor_check_fn fsdpck_doctor_special_tokens, fsdpck_doctor_special_files, fsdpck_doctor_padding;
/* check_tokenizer.c */
doctor_check_fn fsdpck_doctor_vocabulary, fsdpck_doctor_special_ids, fsdpck_doctor_tokenizer_files,
    fsdpck_doctor_chat_end, fsdpck_doctor_sampling;
/* check_adapter.c */
doctor_check_fn fsdpck_doctor_pairs, fsdpck_doctor_adapter_base, fsdpck_doctor_base_path;
/* check_targets.c */
doctor_check_fn fsdpck_doctor_ranks, fsdpck_doctor_targets, fsdpck_doctor_adapter_rows;
/* check_expert_adapter.c */
doctor_check_fn fsdpck_doctor_expert_adapter, fsdpck_doctor_expert_sizes;
/* check_consumer.c */
doctor_check_fn fsdpck_doctor_consumer;
/* check_base.c */
doctor_check_fn fsdpck_doctor_base_names, fsdpck_doctor_base_shapes, fsdpck_doctor_base_dtypes,
    fsdpck_doctor_base_config;

/* Returns whether a file of the folder begins so (at most 63 bytes), or is a pointer of Git LFS. */
bool fsdpck_doctor_starts_with(struct doctor *d, const char *file, const char *text);
bool fsdpck_doctor_is_pointer(struct doctor *d, const char *name);
/* Returns false for a link to nothing and a pointer of Git LFS. */
bool fsdpck_doctor_has_content(struct doctor *d, const char *name);

/* Returns whether names have wrappers of trainers in them: checks of single names would blame them again. */
bool fsdpck_doctor_wrapped(const struct doctor_model *m);

/* Codes of quantized weights have shapes of their own; 8-bit floats have the weight's. */
static inline bool doctor_has_own_shape(const struct doctor_tensor *t)
{
    return t->nbytes > 0 && (t->dtype == FSDPCK_BFLOAT16 || t->dtype == FSDPCK_FLOAT16 || t->dtype == FSDPCK_FLOAT32 ||
                             t->dtype == FSDPCK_FLOAT8_E4M3FN || t->dtype == FSDPCK_FLOAT8_E5M2);
}

/* Returns whether a folder holds files of ranks, or names the newest save: a training wrote it. */
bool fsdpck_doctor_is_run(const struct doctor_model *m);

/* Returns whether ids, a token's id or a list of them, has this one. */
bool fsdpck_doctor_has_id(const json_t *ids, uint64_t id);

/* Returns whether a lora_A is that of all experts of a layer: its rows are those of all, not the rank. */
bool fsdpck_doctor_is_fused_pair(const char *name);

/* Returns whether a word names a program that fsdpck_doctor_consumer() knows. */
bool fsdpck_doctor_is_consumer(const char *word);

/* 10000 and 10000.0 are equal. */
static inline bool doctor_same_json(const json_t *a, const json_t *b)
{
    return json_is_number(a) && json_is_number(b) ? json_number_value(a) == json_number_value(b)
                                                  : json_equal((json_t *)a, (json_t *)b);
}

/* For checks of models: an adapter's folder is not one. */
static inline bool doctor_is_adapter(const struct doctor_model *m)
{
    return fsdpck_doctor_has_file(m, "adapter_config.json");
}

#endif
