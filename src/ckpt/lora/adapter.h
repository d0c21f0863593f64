/* SPDX-License-Identifier: Apache-2.0 */
/* One LoRA adapter found in a source: its modules with their tensors, and its configuration, checked against each
 * other. Reads names, shapes and the configuration, no payload. */
#ifndef CKPT_LORA_ADAPTER_H
#define CKPT_LORA_ADAPTER_H

#include <fsdpck/lora.h>

#include "base/names.h"
#include "base/vec.h"
#include "engine/selection.h"
#include "engine/source_impl.h"
#include "lora/config.h"
#include "lora/names.h"

/* Positions below refer to the adapter's selection; -1: absent. */
struct fsdpck_lora_module {
    const char *path;    /* in the model: "model.layers.0.self_attn.q_proj" */
    const char *wrapper; /* of fused experts in PEFT's form: the path in names of tensors; else NULL */
    const char *named;   /* the same as the configuration has it: of an expert that was cut out, without its number */
    int64_t a, b, bias, magnitude;
    bool embedding;
    bool folded; /* the scaling is in B, for readers that know no alpha */
    uint64_t r;
    double alpha;
};

/* A whole parameter that the adapter replaces: one of modules_to_save, a bias, or any other in its file. PEFT loads
 * every tensor that has the name of a parameter, and saves embeddings this way. */
struct fsdpck_lora_whole {
    const char *name;  /* of the parameter in the model: "lm_head.weight" */
    const char *key;   /* in the adapter file, without base_model.model. */
    const char *saved; /* modules_to_save: the module's name as the configuration has it, or its path; else NULL */
    bool bias;         /* the configuration's `bias` claims it */
    int64_t position;
};

/* Rows of an embedding, or of a head, that the adapter replaces: trainable_token_indices. */
struct fsdpck_lora_tokens {
    const char *module, *key; /* as above */
    int64_t position;
    const uint64_t *rows; /* (nrows) */
    size_t nrows;
};

/* How fused experts were cut; the source is a view then. */
struct fsdpck_lora_split {
    uint64_t nexperts; /* 0: there were none */
    bool halves;       /* gate and up had factors of their own; else they stay together */
    bool turned;       /* PEFT took inputs for outputs, as in Llama-4, whose class does not say how experts lie */
};

struct fsdpck_lora_adapter {
    struct fsdpck_source *src;
    struct fsdpck_selection selection; /* of all the source's tensors */
    struct fsdpck_lora_name *names;    /* (selection.ntensors) */
    const char *name;                  /* of the adapter; "" if the tensors have none */
    struct fsdpck_lora_config config;
    struct fsdpck_vec modules; /* struct fsdpck_lora_module, in the source's order */
    struct fsdpck_vec whole;   /* struct fsdpck_lora_whole */
    struct fsdpck_vec tokens;  /* struct fsdpck_lora_tokens */
    struct fsdpck_lora_split split;
    bool *joined;      /* (selection.ntensors) that are parts of tensors behind them; NULL: none */
    bool beside_model; /* the source also holds the frozen model, as a training checkpoint does */
    struct fsdpck_arena arena;
    struct fsdpck_names index, whole_index; /* of modules, of whole parameters' names */
};

struct fsdpck_lora_request {
    const char *name;   /* of the adapter, or NULL: the only one */
    const char *config; /* path of its adapter_config.json, or NULL: the source's own */
    bool has_alpha;
    double alpha; /* used if there is no configuration; an error if the configuration states another value */
    const struct fsdpck_select *select;
    enum fsdpck_lora_expert_order order;
    bool halves;  /* of fused experts: cuts gate and up apart, which share their A then */
    bool mixtral; /* names them as Mixtral is published: block_sparse_moe.experts.3.w1 */
};

/* fsdpck_lora_adapter_free() releases a even after failure. Refused: no adapter, or several and none named; A without B
 * or B without A; shapes and ranks that do not fit; a configuration that contradicts the tensors; tensors of an unknown
 * kind. */
int fsdpck_lora_adapter_open(struct fsdpck_lora_adapter *a, struct fsdpck_source *src,
                             const struct fsdpck_lora_request *req, struct fsdpck_error *err);
void fsdpck_lora_adapter_free(struct fsdpck_lora_adapter *a);
/* The steps of fsdpck_lora_adapter_open(). This one finds tensors, names and modules, without the configuration. */
int fsdpck_lora_adapter_find(struct fsdpck_lora_adapter *a, struct fsdpck_source *src,
                             const struct fsdpck_select *select, const char *name, struct fsdpck_error *err);
/* Finds whole parameters and trained tokens, by the configuration. */
int fsdpck_lora_adapter_rest(struct fsdpck_lora_adapter *a, struct fsdpck_error *err);
/* Finds the configuration and reads it. */
int fsdpck_lora_adapter_configure(struct fsdpck_lora_adapter *a, const struct fsdpck_lora_request *req,
                                  struct fsdpck_error *err);
/* Returns whether the adapter has a tensor saved by this name in modules_to_save. */
bool fsdpck_lora_is_saved(const struct fsdpck_lora_adapter *a, const char *name);
/* Gives a note about configuration entries that have no effect on any tensor. */
void fsdpck_lora_note_config(const struct fsdpck_lora_adapter *a, const struct fsdpck_options *opt);
/* Checks everything that was found against the rules. */
int fsdpck_lora_adapter_check(struct fsdpck_lora_adapter *a, struct fsdpck_error *err);

static inline struct fsdpck_lora_module *lora_modules(const struct fsdpck_lora_adapter *a)
{
    return a->modules.data;
}
static inline struct fsdpck_lora_whole *lora_whole(const struct fsdpck_lora_adapter *a)
{
    return a->whole.data;
}
static inline struct fsdpck_lora_tokens *lora_tokens(const struct fsdpck_lora_adapter *a)
{
    return a->tokens.data;
}
static inline const struct fsdpck_tensor *lora_tensor(const struct fsdpck_lora_adapter *a, int64_t position)
{
    return fsdpck_source_tensor(a->src, a->selection.tensors[position].source);
}
/* Returns the factor of the product B·A. */
double fsdpck_lora_scale(const struct fsdpck_lora_adapter *a, const struct fsdpck_lora_module *m);
/* Sets an error about the tensor at the position; returns the code. */
int fsdpck_lora_refuse(const struct fsdpck_lora_adapter *a, int64_t position, int code, struct fsdpck_error *err,
                       const char *fmt, ...) FSDPCK_PRINTF(5, 6);
/* Returns whether a tensor belongs to the adapter by its name: not to another adapter, and not to the model. */
bool fsdpck_lora_is_part(const struct fsdpck_lora_adapter *a, size_t position);
/* Returns whether the parameter is a bias that the configuration's `bias` trains. */
bool fsdpck_lora_trains_bias(const struct fsdpck_lora_adapter *a, const struct fsdpck_lora_name *n);
/* Sets beside_model. */
int fsdpck_lora_find_model(struct fsdpck_lora_adapter *a, struct fsdpck_error *err);
/* used: (selection.ntensors) true for the tensors that were used. The others may belong to the frozen model or to
 * another adapter; a note says so. Any other tensor causes an error that names it. */
int fsdpck_lora_adapter_check_used(const struct fsdpck_lora_adapter *a, const bool *used,
                                   const struct fsdpck_options *opt, struct fsdpck_error *err);
/* Returns the number of whole parameters that the configuration does not name, and the first one's name. */
size_t fsdpck_lora_unnamed(const struct fsdpck_lora_adapter *a, const char **first);
/* Gives a note by the caller's options. */
void fsdpck_lora_note(const struct fsdpck_options *opt, const char *fmt, ...) FSDPCK_PRINTF(2, 3);

#endif
