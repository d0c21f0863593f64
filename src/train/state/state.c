/* SPDX-License-Identifier: Apache-2.0 */
/* The keys that a checkpoint and the run that resumes it must share ("fixed"), and those that may differ ("free"). */
#include "state/state.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <train/chat.h>
#include <xxhash.h>

#include "config/config_keys.h"
#include "model/policy.h"
#include "rank/schedule.h"
#include "state/settings.h"

static json_t *hex(uint64_t value)
{
    char text[20];
    snprintf(text, sizeof text, "%016" PRIx64, value);
    return json_string(text);
}

static void add_scales(void *ctx, const struct linear *const *layers, int n)
{
    for (int i = 0; i < n; i++)
        XXH3_64bits_update(ctx, &layers[i]->scale, sizeof(float));
}

/* Hash of the scale of each trained module, which also tells the set of them. Shapes are compared with the tensors
 * themselves. */
static uint64_t scales_of(const struct layout *l)
{
    XXH3_state_t *x = XXH3_createState();
    if (!x)
        return 0;
    XXH3_64bits_reset(x);
    XXH3_64bits_update(x, &l->embed.scale, sizeof(float));
    XXH3_64bits_update(x, &l->head.scale, sizeof(float));
    layout_each(l, add_scales, x);
    uint64_t digest = XXH3_64bits_digest(x);
    XXH3_freeState(x);
    return digest;
}

/* Of a transformer that makes pictures. */
static uint64_t flux2_of(const struct model *m)
{
    const struct flux2 *f = &m->flux2;
    const int64_t sizes[] = { m->hidden,     m->inner,   m->nhead,   m->head_dim, f->ndouble, f->nsingle, f->nchannel,
                              f->text_width, f->axes[0], f->axes[1], f->axes[2],  f->axes[3], f->guided,  f->ntext };
    const double numbers[] = { m->eps, f->theta };
    return XXH3_64bits_withSeed(numbers, sizeof numbers, XXH3_64bits(sizes, sizeof sizes));
}

static uint64_t model_of(const struct model *m)
{
    if (!m->family)
        return flux2_of(m);
    const int64_t sizes[] = { m->nvocab,   m->hidden, m->inner,    m->nlayer, m->nhead,    m->nkv,
                              m->head_dim, m->tied,   m->bias_qkv, m->bias_o, m->bias_mlp, m->qk_norm };
    const double numbers[] = { m->eps,
                               m->rope.kind,
                               m->rope.theta,
                               m->rope.factor,
                               m->rope.original_max_position,
                               m->rope.low_freq_factor,
                               m->rope.high_freq_factor,
                               m->rope.beta_fast,
                               m->rope.beta_slow,
                               m->rope.attention_factor,
                               m->rope.mscale,
                               m->rope.mscale_all_dim,
                               m->rope.no_truncate };
    const int64_t experts[] = { m->nexperts, m->top_k, m->expert_inner, m->shared_inner, m->normalised };
    const double router[] = { m->sigmoid,          m->routed_scale, (double)m->ngroup, (double)m->top_groups,
                              (double)m->rope.dim, m->balance };
    uint64_t parts[] = { XXH3_64bits(sizes, sizeof sizes),
                         XXH3_64bits(numbers, sizeof numbers),
                         XXH3_64bits(m->window, (size_t)m->nlayer * sizeof *m->window),
                         XXH3_64bits(experts, sizeof experts),
                         XXH3_64bits(m->sparse, (size_t)m->nlayer * sizeof *m->sparse),
                         XXH3_64bits(router, sizeof router) };
    const size_t nparts = m->sigmoid || m->balance > 0 ? 6
                          : m->nexperts                ? 5
                                                       : 3; /* as in checkpoints from before there were others */
    return XXH3_64bits(parts, nparts * sizeof *parts);
}

/* Consecutive groups: an end's, or those of a block, which have the same types. */
struct group_range {
    uint32_t first, last;
};

/* Whether the groups have a dtype. */
typedef bool has_fn(const struct layout *l, struct group_range groups, enum kern_dtype dtype);

static bool has_values(const struct layout *l, struct group_range groups, enum kern_dtype dtype)
{
    return layout_dtype(l, groups.first) == dtype;
}

static bool has_gradients(const struct layout *l, struct group_range groups, enum kern_dtype dtype)
{
    for (size_t i = 0; i < l->nparams; i++) {
        const struct param *p = &l->params[i];
        if (p->group >= groups.first && p->group <= groups.last && p->trainable && p->reduce == dtype)
            return true;
    }
    return false;
}

/* How a block is cut changes no bit, so the names do not depend on it. */
static struct group_range range_from(const struct layout *l, uint32_t first, char path[POLICY_PATH])
{
    const uint32_t block = layout_is_end(l, first) ? 0 : layout_block_of(l, first);
    if (layout_is_end(l, first)) {
        policy_end_path(l, first, path);
        return (struct group_range){ first, first };
    }
    policy_block_path(l, block, path);
    return (struct group_range){ first, layout_last_group(l, block) };
}

static const char *word_of(enum kern_dtype dtype, char word[TRAIN_WORD_NBYTES])
{
    return train_config_word("dtype.param", dtype == KERN_BF16 ? TRAIN_BF16 : TRAIN_FP32, word);
}

/* "bf16", or "bf16, and fp32 in model.embed_tokens, model.layers.2" where fsdp.policy says so. */
static json_t *dtypes_of(const struct layout *l, enum kern_dtype most, has_fn *has)
{
    const enum kern_dtype other = most == KERN_BF16 ? KERN_F32 : KERN_BF16;
    char word[TRAIN_WORD_NBYTES], path[POLICY_PATH], *text = NULL;
    size_t nbytes, nothers = 0;
    FILE *f = open_memstream(&text, &nbytes);
    if (!f)
        return NULL;
    fputs(word_of(most, word), f);
    for (struct group_range g = { 0 }; g.first < l->ngroups; g.first = g.last + 1) {
        g = range_from(l, g.first, path);
        if (!has(l, g, other))
            continue;
        if (nothers++)
            fputs(", ", f);
        else
            fprintf(f, ", and %s in ", word_of(other, word));
        fputs(path, f);
    }
    json_t *out = fclose(f) ? NULL : json_string(text);
    free(text);
    return out;
}

/* Keys of hashes, with their names in earlier versions. */
static const struct {
    const char *key, *before;
} hashes[] = {
    { "data",
      "data (data.train, data.plan, data.seq_len, data.packing, train.global_batch_size or train.micro_batch_size)" },
    { "lora.scales", "lora.lora_alpha (or alpha_pattern, use_rslora)" },
};

/* Settings that must not differ. For each hash, "told" holds the user's settings (state/settings.h), so that an error
 * can name the key. */
static json_t *fixed_of(const struct job *job)
{
    const struct train_config *c = job->config;
    json_t *fixed = json_object();
    json_object_set_new(fixed, "model", hex(model_of(&job->model)));
    json_object_set_new(fixed, "seed", json_integer((json_int_t)c->seed));
    json_object_set_new(fixed, hashes[0].key, hex(data_fingerprint(job->data)));
    json_object_set_new(fixed, "train.gradient_accumulation_steps", json_integer((json_int_t)c->train.accumulation));
    json_object_set_new(fixed, "lora", json_boolean(c->lora.enabled));
    json_object_set_new(fixed, hashes[1].key, hex(scales_of(&job->layout)));
    json_object_set_new(fixed, "lora.lora_dropout", json_real(c->lora.dropout));
    const struct layout *l = &job->layout;
    json_object_set_new(fixed, "dtype.param", dtypes_of(l, l->masters ? KERN_BF16 : KERN_F32, has_values));
    json_object_set_new(fixed, "dtype.reduce",
                        dtypes_of(l, c->dtype.reduce == TRAIN_BF16 ? KERN_BF16 : KERN_F32, has_gradients));
    settings_put_word(fixed, "dtype.output", c->dtype.output);
    return fixed;
}

static json_t *free_of(const struct job *job)
{
    const struct train_config *c = job->config;
    json_t *loose = json_object();
    json_object_set_new(loose, "train.learning_rate", json_real(c->train.learning_rate));
    settings_put_word(loose, "train.lr_scheduler_type", c->train.scheduler);
    json_object_set_new(loose, "train.warmup_steps", json_integer((json_int_t)schedule_warmup(c, job->nsteps)));
    json_object_set_new(loose, "train.min_lr_ratio", json_real(c->train.min_lr_ratio));
    json_object_set_new(loose, "train.adam_beta1", json_real(c->train.beta1));
    json_object_set_new(loose, "train.adam_beta2", json_real(c->train.beta2));
    json_object_set_new(loose, "train.adam_epsilon", json_real(c->train.epsilon));
    json_object_set_new(loose, "train.weight_decay", json_real(c->train.weight_decay));
    json_object_set_new(loose, "train.max_grad_norm", json_real(c->train.max_grad_norm));
    json_object_set_new(loose, "steps of the run", json_integer((json_int_t)job->nsteps));
    return loose;
}

uint64_t state_model_fingerprint(const struct job *job)
{
    return model_of(&job->model);
}

uint64_t state_fingerprint(const struct job *job)
{
    json_t *all = json_pack("{s:o, s:o}", "fixed", fixed_of(job), "free", free_of(job));
    char *text = all ? json_dumps(all, JSON_COMPACT | JSON_SORT_KEYS | JSON_REAL_PRECISION(17)) : NULL;
    uint64_t hash = text ? XXH3_64bits(text, strlen(text)) : 0;
    free(text);
    json_decref(all);
    return hash;
}

char *state_write(const struct rank *r)
{
    json_t *state = json_object();
    json_object_set_new(state, "trainer", json_string("fsdptrain"));
    json_object_set_new(state, "step", json_integer((json_int_t)r->step));
    json_object_set_new(state, "updates", json_integer((json_int_t)r->updates));
    json_object_set_new(state, "last_update", json_integer((json_int_t)r->last_update));
    if (!r->job->config->lora.enabled)
        json_object_set_new(state, "model_dtype", json_string(fsdpck_dtype_info(r->model_dtype)->name));
    json_object_set_new(state, "fixed", fixed_of(r->job));
    json_object_set_new(state, "free", free_of(r->job));
    json_object_set_new(state, "told", settings_of(r->job));
    char *text = json_dumps(state, JSON_COMPACT | JSON_REAL_PRECISION(17));
    json_decref(state);
    return text;
}

static json_t *load(const struct fsdpck_source *src, struct fsdpck_error *err)
{
    const char *text = fsdpck_source_state(src);
    json_t *state = text ? json_loads(text, JSON_REJECT_DUPLICATES, NULL) : NULL;
    const char *trainer = json_string_value(json_object_get(state, "trainer"));
    if (trainer && strcmp(trainer, "fsdptrain") == 0)
        return state;
    json_decref(state);
    fsdpck_error_set(err, FSDPCK_ERR_UNSUPPORTED, fsdpck_source_path(src),
                     "not a checkpoint of a fsdptrain run: it has no state of one");
    return NULL;
}

int state_read_counts(const struct fsdpck_source *src, struct state_counts *counts, struct fsdpck_error *err)
{
    json_t *state = load(src, err), *last;
    if (!state)
        return err->code;
    json_int_t s = json_integer_value(json_object_get(state, "step")),
               u = json_integer_value(json_object_get(state, "updates"));
    last = json_object_get(state, "last_update");
    json_int_t l = last ? json_integer_value(last) : s; /* absent in older checkpoints */
    json_decref(state);
    if (s < 1 || u < 0 || u > s || l < 0 || l > s)
        return fsdpck_error_set(err, FSDPCK_ERR_FORMAT, fsdpck_source_path(src),
                                "its state says step %lld, %lld updates, and the last of them in step %lld",
                                (long long)s, (long long)u, (long long)l);
    *counts = (struct state_counts){ (uint64_t)s, (uint64_t)u, (uint64_t)l };
    return 0;
}

int state_check_base(const struct rank *r, const struct fsdpck_source *src, struct fsdpck_error *err)
{
    const struct fsdpck_base *then = fsdpck_source_base(src);
    const char *was_held = then && then->held ? then->held : "unquantized",
               *is_held = r->base.held ? r->base.held : "unquantized";
    if (strcmp(was_held, is_held) != 0)
        return fsdpck_error_set(err, FSDPCK_ERR_USAGE, fsdpck_source_path(src),
                                "key 'dtype.base': its adapters belong to a base held so: %s; '%s' is held so: %s",
                                was_held, r->job->config->model, is_held);
    if (r->base.ntensors != (then ? then->ntensors : 0))
        return fsdpck_error_set(err, FSDPCK_ERR_USAGE, fsdpck_source_path(src),
                                "key 'model': its adapters belong to a base of %zu tensors, and '%s' has %zu",
                                then ? then->ntensors : 0, r->job->config->model, r->base.ntensors);
    for (size_t i = 0; i < r->base.ntensors; i++) {
        const struct fsdpck_base_tensor *was = &then->tensors[i], *is = &r->base.tensors[i];
        if (memcmp(was->content, is->content, sizeof was->content) != 0)
            return fsdpck_error_set(
                err, FSDPCK_ERR_USAGE, fsdpck_source_path(src),
                "key 'model': its adapters belong to another base than '%s', '%s' being the first tensor that differs",
                r->job->config->model, is->name);
    }
    return 0;
}

/* Notes changes: "steps of the run: 200 in the checkpoint, 300 now". */
static void note_changes(const struct job *job, const struct fsdpck_source *src, const json_t *then, json_t *now)
{
    const char *key;
    json_t *value;
    char line[512];
    json_object_foreach (now, key, value) {
        json_t *was = json_object_get(then, key);
        if (!was || json_equal(was, value) || !job->opt->note)
            continue;
        char *a = json_dumps(was, JSON_ENCODE_ANY | JSON_REAL_PRECISION(17)),
             *b = json_dumps(value, JSON_ENCODE_ANY | JSON_REAL_PRECISION(17));
        snprintf(line, sizeof line, "%.200s: %s was %s and is now %s", fsdpck_source_path(src), key, a ? a : "?",
                 b ? b : "?");
        job->opt->note(job->opt->ctx, line);
        free(a);
        free(b);
    }
}

bool state_read_date(const struct fsdpck_source *src, char *date, size_t nbytes)
{
    struct fsdpck_error ignored = { 0 };
    json_t *state = load(src, &ignored);
    const char *found = json_string_value(json_object_get(json_object_get(state, "told"), "data.date"));
    time_t day;
    bool good = found && strlen(found) < nbytes && chat_read_date(found, &day, &ignored) == 0;
    if (good)
        snprintf(date, nbytes, "%s", found);
    json_decref(state);
    return good;
}

bool state_read_micro_batch(const struct fsdpck_source *src, uint64_t *nrows)
{
    struct fsdpck_error ignored = { 0 };
    json_t *state = load(src, &ignored);
    const json_int_t found =
        json_integer_value(json_object_get(json_object_get(state, "told"), "train.micro_batch_size"));
    json_decref(state);
    if (found < 1 || (double)found > config_key_find("train.micro_batch_size")->max)
        return false;
    *nrows = (uint64_t)found;
    return true;
}

/* Looks up a key by its name, or by its name in an earlier version. */
static json_t *find_fixed(const json_t *fixed, const char *key)
{
    json_t *found = json_object_get(fixed, key);
    for (size_t i = 0; !found && i < sizeof hashes / sizeof hashes[0]; i++)
        found = strcmp(hashes[i].key, key) == 0 ? json_object_get(fixed, hashes[i].before) : NULL;
    return found;
}

/* Lists every difference by its key in CONFIG.json. */
static bool diff_fixed(const struct job *job, const json_t *state, json_t *fixed, struct settings_diff *list)
{
    json_t *now = settings_of(job), *value;
    const char *key;
    json_object_foreach (fixed, key, value) {
        json_t *was = find_fixed(json_object_get(state, "fixed"), key);
        if (json_equal(was, value))
            continue;
        list->ndiffering++;
        if (strcmp(key, "model") == 0 || strcmp(key, "data") == 0 || strcmp(key, "lora.scales") == 0)
            settings_diff_find(list, key, json_object_get(state, "told"), now);
        else
            settings_diff_add(list, key, was, value);
    }
    json_decref(now);
    return list->ndiffering > 0;
}

int state_check(const struct job *job, const struct fsdpck_source *src, struct fsdpck_error *err)
{
    json_t *state = load(src, err), *fixed = fixed_of(job), *loose = free_of(job);
    struct settings_diff list = { 0 };
    int rc = state ? 0 : err->code;
    if (!rc && diff_fixed(job, state, fixed, &list))
        rc = fsdpck_error_set(err, FSDPCK_ERR_USAGE, fsdpck_source_path(src), "this checkpoint is of another run: %s",
                              list.text);
    if (!rc)
        note_changes(job, src, json_object_get(state, "free"), loose);
    else if (state)
        fsdpck_error_hint(
            err, "go on with the config of that run, or start anew with --resume never and another output_dir");
    json_decref(state);
    json_decref(fixed);
    json_decref(loose);
    return rc;
}

void state_diff_lora(const struct job *job, const struct fsdpck_source *src, struct settings_diff *list)
{
    struct fsdpck_error ignored = { 0 };
    json_t *state = load(src, &ignored), *now = settings_of(job);
    settings_diff_find(list, "lora", json_object_get(state, "told"), now);
    json_decref(state);
    json_decref(now);
}
