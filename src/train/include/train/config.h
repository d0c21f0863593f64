/* SPDX-License-Identifier: Apache-2.0 */
/* CONFIG.json as the user wrote it. An unknown key is an error that names it. Knows nothing of models, ranks or
 * steps. */
#ifndef TRAIN_CONFIG_H
#define TRAIN_CONFIG_H

#include <train/chat.h>

#ifdef __cplusplus
extern "C" {
#endif

struct json_t;

/* Values of keys with a fixed set of words, in the order of the words in the key table: documented words first, then
 * synonyms. */
enum train_on_bad_line { TRAIN_BAD_LINE_STOP, TRAIN_BAD_LINE_SKIP };
enum train_too_long { TRAIN_TOO_LONG_CUT, TRAIN_TOO_LONG_DROP };
enum train_scheduler {
    TRAIN_COSINE,
    TRAIN_LINEAR,
    TRAIN_CONSTANT,
    TRAIN_CONSTANT_WITH_WARMUP, /* the same as TRAIN_CONSTANT */
    TRAIN_COSINE_WITH_MIN_LR    /* the same as TRAIN_COSINE */
};
enum train_weight_decay_on { TRAIN_DECAY_MATRICES, TRAIN_DECAY_ALL };
enum train_on_nonfinite { TRAIN_NONFINITE_STOP, TRAIN_NONFINITE_SKIP };
enum train_wrap {
    TRAIN_TRANSFORMER_BASED_WRAP,
    TRAIN_SIZE_BASED_WRAP,
    TRAIN_NO_WRAP,
    TRAIN_HALF_BLOCK_WRAP,
    TRAIN_LINEAR_WRAP
};
enum train_sharding {
    TRAIN_FULL_SHARD,
    TRAIN_SHARD_GRAD_OP,
    TRAIN_NO_SHARD,
    TRAIN_HYBRID_SHARD,
    TRAIN_HYBRID_SHARD_ZERO2
};
enum train_recompute { TRAIN_RECOMPUTE_NONE, TRAIN_RECOMPUTE_BLOCK, TRAIN_RECOMPUTE_AUTO };
enum train_reduction { TRAIN_REDUCTION_INVARIANT };
enum train_dtype { TRAIN_BF16, TRAIN_FP32 };
enum train_report { TRAIN_REPORT_NONE, TRAIN_REPORT_TENSORBOARD };
enum train_base {
    TRAIN_BASE_STORED,
    TRAIN_BASE_BF16,
    TRAIN_BASE_FP8,
    TRAIN_BASE_MXFP4,
    TRAIN_BASE_NVFP4,
    TRAIN_BASE_NF4
};

/* Keys that "auto" leaves to the run (train/search.h), as bits. */
enum train_automatic {
    TRAIN_AUTO_STRATEGY = 1,
    TRAIN_AUTO_FORWARD_PREFETCH = 2,
    TRAIN_AUTO_BACKWARD_PREFETCH = 4,
    TRAIN_AUTO_MICRO_BATCH = 8,
    TRAIN_AUTO_OFFLOAD = 16
};

/* What leaves memory for a file: each with those before it. */
enum train_offload { TRAIN_OFFLOAD_NONE, TRAIN_OFFLOAD_STATE, TRAIN_OFFLOAD_GRADIENTS, TRAIN_OFFLOAD_PARAMETERS };

enum { TRAIN_WORD_NBYTES = 32 };

/* The word of a value: for "dtype.param" and TRAIN_BF16, "bf16". "" if the key has no such value. */
FSDPCK_API const char *train_config_word(const char *key, unsigned choice, char word[TRAIN_WORD_NBYTES]);
/* The value of a word; -1: the key has no such word. */
FSDPCK_API int train_config_choice(const char *key, const char *word);

enum { TRAIN_MOST_NUMBERS = 8 };

/* Sizes that image.aspect_ratio_buckets names. */
enum { TRAIN_MOST_BUCKETS = 64 };
struct train_buckets {
    size_t n;
    int64_t height[TRAIN_MOST_BUCKETS], width[TRAIN_MOST_BUCKETS]; /* (n) */
};

struct train_u64_list {
    uint64_t values[TRAIN_MOST_NUMBERS]; /* (n) */
    size_t n;                            /* at least 1 */
};

/* An entry of rank_pattern or alpha_pattern, such as "down_proj": 2, in the order of the file. */
struct train_pattern {
    const char *regex;
    double value;
};

/* A data file, and how often an epoch contains its documents: 2 is twice; 0.5 is a random half of them. */
struct train_data_file {
    const char *path;
    double weight;
};

struct train_lora_config {
    bool enabled;
    uint64_t r;
    double alpha, dropout;
    bool use_rslora, use_dora;
    const char *target_regex;        /* set if target_modules is a string other than "all-linear" */
    const char *const *target_names; /* (ntarget_names) set if target_modules is a list */
    size_t ntarget_names;
    bool all_linear;
    const char *const *target_parameters; /* (ntarget_parameters) parameters that get a pair of factors */
    size_t ntarget_parameters;
    const struct train_pattern *rank_pattern, *alpha_pattern; /* (nrank_pattern), (nalpha_pattern) */
    size_t nrank_pattern, nalpha_pattern;
    const char *const *modules_to_save; /* (nmodules_to_save) suffixes of the paths of modules that are trained in full,
                                           as copies in the adapter */
    size_t nmodules_to_save;
    const char *init_adapter; /* PEFT folder to continue from, or NULL */
};

/* The keys that an object of fsdp.policy may have. */
enum train_policy_key {
    TRAIN_POLICY_STRATEGY,
    TRAIN_POLICY_REPLICATE_SIZE,
    TRAIN_POLICY_SHARD_SIZE,
    TRAIN_POLICY_RESHARD,
    TRAIN_POLICY_WRAP,
    TRAIN_POLICY_MIN_PARAMS,
    TRAIN_POLICY_FORWARD_PREFETCH,
    TRAIN_POLICY_BACKWARD_PREFETCH,
    TRAIN_POLICY_CHECKPOINTING,
    TRAIN_POLICY_PARAM_DTYPE,
    TRAIN_POLICY_REDUCE_DTYPE,
    TRAIN_POLICY_OFFLOAD,
    TRAIN_POLICY_KEYS
};

/* An object of fsdp.policy: values for the groups of parameters whose modules it names. A value counts if it is given;
 * the others are those of fsdp. */
struct train_policy {
    const char *regex;        /* set if `modules` is a string */
    const char *const *names; /* (nnames) set if `modules` is a list */
    size_t nnames;
    bool given[TRAIN_POLICY_KEYS];
    enum train_sharding strategy;
    enum train_wrap wrap;
    enum train_recompute checkpointing;
    enum train_dtype param_dtype, reduce_dtype;
    bool offload_optimizer;
    uint64_t dp_replicate_size, dp_shard_size, reshard_after_forward, min_num_params, forward_prefetch,
        backward_prefetch;
};

/* How a picture's time is drawn: evenly; as the sigmoid of a normal number; the same, shifted to more noise for large
 * pictures. How its loss is weighted: not at all; by 1/sigma²; by 2/(π(1 - 2·sigma + 2·sigma²)). */
enum train_timestep { TRAIN_TIMESTEP_UNIFORM, TRAIN_TIMESTEP_LOGIT_NORMAL, TRAIN_TIMESTEP_SHIFT };
enum train_weighting { TRAIN_WEIGHTING_NONE, TRAIN_WEIGHTING_SIGMA_SQRT, TRAIN_WEIGHTING_COSMAP };

struct train_config {
    const char *model, *output_dir;
    const char *pipeline; /* of a model that makes pictures: the folder of the pipeline, whose transformer is `model`;
                             else NULL */
    char *transformer;    /* owned: that folder */
    uint64_t seed;
    struct {
        const char *train;                   /* the first of the files */
        const struct train_data_file *files; /* (nfiles) */
        size_t nfiles;
        const char *eval;                         /* the first of them, or NULL */
        const struct train_data_file *eval_files; /* (neval_files) */
        size_t neval_files;
        struct json_t *columns; /* an object that maps this trainer's column names to those of the data set, or NULL.
                                   Borrowed from root */
        const char *date;       /* "2026-11-23", for templates that show the date; NULL: the day of the first start */
        const char *plan;
        enum chat_loss loss_on;
        enum train_on_bad_line on_bad_line;
        enum train_too_long too_long;
        uint64_t seq_len;
        bool packing;
    } data;
    struct {
        struct train_u64_list resolution;
        uint64_t num_repeats, max_sequence_length;
        bool flip_x, flip_y, random_crop, vae_tiling, use_aspect_ratio_buckets;
        const char *aspect_ratio_buckets;       /* "512,384;384,512", or NULL */
        struct train_buckets buckets;           /* as read; n is 0 without any */
        const char *caption_ext, *trigger_word; /* trigger_word: NULL: none */
        double caption_dropout_rate;
        enum train_timestep timestep;
        enum train_weighting weighting;
    } image;
    struct train_lora_config lora;
    struct {
        uint64_t max_steps, eval_steps; /* eval_steps 0: evaluates data.eval at the end only */
        double num_train_epochs;        /* 0: use max_steps, which takes precedence if the file has both */
        uint64_t micro_batch_size, accumulation, global_batch_size, warmup_steps;
        bool warmup_given; /* the file has warmup_steps, which takes precedence over warmup_ratio (a fraction of the
                              run) */
        double warmup_ratio;
        double learning_rate, min_lr_ratio, beta1, beta2, epsilon, weight_decay,
            max_grad_norm; /* max_grad_norm 0: no clipping */
        enum train_scheduler scheduler;
        enum train_weight_decay_on weight_decay_on;
        enum train_on_nonfinite on_nonfinite;
    } train;
    struct {
        enum train_sharding strategy;
        enum train_recompute checkpointing;
        enum train_reduction reduction;
        uint64_t dp_replicate_size, dp_shard_size; /* 0: not given */
        uint64_t expert_parallel;       /* ranks that divide the experts of a block; 1: experts are gathered */
        uint64_t reshard_after_forward; /* 0: false; 1: true; else the number of ranks that the backward gathers from */
        uint64_t forward_prefetch, backward_prefetch;
        enum train_wrap wrap;
        const char *const *wrap_classes; /* (nwrap_classes) */
        size_t nwrap_classes;
        uint64_t min_num_params;
        const struct train_policy *policy; /* (npolicy) for each group, the first that matches counts */
        size_t npolicy;
        const char *offload;     /* NULL, "cpu", or the folder of a file for the optimizer state */
        char *offload_here;      /* owned: the folder that "auto" takes, output_dir with a slash; NULL without it */
        uint64_t offload_memory; /* bytes of a rank through which that file passes */
        bool offload_optimizer;  /* false: the optimizer state stays where the ranks compute */
        bool offload_params;     /* a folder holds the parameters too */
        bool offload_gradients;  /* and the sums of gradients */
    } fsdp;
    struct {
        enum train_dtype param, reduce, output;
        enum train_base base;
    } dtype;
    struct {
        uint64_t save_steps, keep_last; /* save_steps 0: only the last step; keep_last 0: keep all */
        uint64_t memory_every;          /* 0: no copies in memory */
        bool export_adapter;            /* of a LoRA run: write output_dir/adapter at the end */
        bool export_model;              /* of a run that trains all weights: write output_dir/model at the end */
    } checkpoint;
    struct {
        uint64_t every; /* 0: only on request */
        struct json_t
            *prompts; /* a list whose elements sample_prompt_encode accepts, or {"input_ids"} objects; or NULL */
    } sample;
    struct {
        uint64_t every;
        const char *jsonl;
        unsigned report_to; /* bits of enum train_report */
    } log;
    struct json_t *tenants; /* a list of objects, or NULL; borrowed from root */
    unsigned automatic;     /* enum train_automatic: the keys that are "auto". Until they are chosen, they have their
                               defaults */
    bool frozen;            /* nothing is trained: the model only generates */
    struct json_t *root;    /* owns every string above */
};

/* Reads PATH, applies `sets` ("train.max_steps=3"; the value is JSON, or else a string) and checks every key and
 * value. A wrong key or value is FSDPCK_ERR_USAGE and is named. On success the caller must call train_config_free();
 * on failure *out is empty. */
FSDPCK_API int train_config_read(const char *path, const char *const *sets, size_t nsets, struct train_config *out,
                                 struct fsdpck_error *err);
/* Same for a parsed tree; errors call it `name`. The config owns the tree afterwards, also on failure. */
FSDPCK_API int train_config_take(const char *name, struct json_t *root, struct train_config *out,
                                 struct fsdpck_error *err);
/* One of several adapters that a run trains: the config that trains it alone, with output_dir output_dir/tenants/NAME.
 */
struct train_tenant {
    const char *name; /* borrowed */
    double share;
    struct train_config config;
};

/* config.tenants as (*n) configs: owned, with strings borrowed from config. */
FSDPCK_API int train_config_tenants(const struct train_config *config, struct train_tenant **out, size_t *n,
                                    struct fsdpck_error *err);
FSDPCK_API void train_config_tenants_free(struct train_tenant *tenants, size_t n);

/* Facts besides the config on which the effect of some keys depends. */
struct train_job_size {
    uint32_t nranks;
    bool copies;    /* parameters are gathered by copying */
    bool elastic;   /* the run goes on after the loss of ranks */
    bool on_device; /* ranks compute on devices with memory of their own */
};
/* Calls say() with a sentence for each key with a non-default value that has no effect in such a run. */
FSDPCK_API void train_config_idle(const struct train_config *config, const struct train_job_size *size,
                                  void (*say)(void *ctx, const char *line), void *ctx);
FSDPCK_API void train_config_free(struct train_config *config);
/* Sets `model` to a folder (borrowed), or to the transformer of a pipeline's. */
FSDPCK_API int train_config_set_model(struct train_config *config, const char *folder, struct fsdpck_error *err);

/* A key of CONFIG.json, from the table that the parser uses: for manual pages and completions. */
struct train_config_key {
    const char *name;               /* "train.max_steps" */
    const char *doc;                /* what it does, in sentences */
    const char *choices, *synonyms; /* its choices, "true|false", and undocumented synonyms; NULL: see values */
    char values[200];               /* "whole number from 1 to 65536" */
    char default_value[40];         /* the default as JSON; "": none */
    bool required;                  /* the config must contain it */
    bool nullable;                  /* null is allowed */
};

FSDPCK_API size_t train_config_nkeys(void);
FSDPCK_API void train_config_key(size_t i, struct train_config_key *out);
/* Sections in the order of their keys; the name of the top level is "". */
FSDPCK_API size_t train_config_nsections(void);
FSDPCK_API const char *train_config_section(size_t i, const char **doc);
FSDPCK_API bool train_config_is_in(const char *key, const char *section);
/* Finds a key by name; false if there is none. */
FSDPCK_API bool train_config_find(const char *name, struct train_config_key *out);

#ifdef __cplusplus
}
#endif
#endif
