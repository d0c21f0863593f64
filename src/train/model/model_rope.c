/* SPDX-License-Identifier: Apache-2.0 */
/* Rotary positions in config.json, in both dialects: rope_theta with rope_scaling (transformers 4), and rope_parameters
 * (transformers 5). */
#include "model/family.h"
#include "model/model_reader.h"

#include <string.h>

static void read_rope_kind(struct model_reader *r, const json_t *scaling, struct kern_rope *rope)
{
    static const char *const names[] = { "default", "linear", "llama3", "yarn" };
    const char *type = json_string_value(json_object_get(scaling, "rope_type"));
    if (!type)
        type = json_string_value(json_object_get(scaling, "type"));
    for (int i = 0; i < 4 && type; i++) {
        if (strcmp(type, names[i]) == 0) {
            rope->kind = (enum kern_rope_kind)i;
            return;
        }
    }
    if (type)
        MODEL_REFUSE(r, FSDPCK_ERR_UNSUPPORTED,
                     "rope_type \"%.40s\" is not supported; default, linear, llama3 and yarn are", type);
}

/* An unknown key may mean anything, for example frequencies per kind of layer. */
static void check_rope_keys(struct model_reader *r, json_t *scaling, const char *where)
{
    static const char *const known[] = { "rope_type",
                                         "type",
                                         "rope_theta",
                                         "factor",
                                         "original_max_position_embeddings",
                                         "low_freq_factor",
                                         "high_freq_factor",
                                         "beta_fast",
                                         "beta_slow",
                                         "attention_factor",
                                         "mscale",
                                         "mscale_all_dim",
                                         "truncate",
                                         "partial_rotary_factor",
                                         "finetuned" };
    const char *key;
    json_t *value;
    json_object_foreach (scaling, key, value) {
        bool found = json_is_null(value);
        for (size_t i = 0; i < sizeof known / sizeof known[0] && !found; i++)
            found = strcmp(key, known[i]) == 0;
        if (!found)
            MODEL_REFUSE(r, FSDPCK_ERR_UNSUPPORTED, "key '%s.%.100s' may change the maths, and is not supported", where,
                         key);
    }
}

/* As in transformers 5: rope_scaling, the only name in earlier versions, takes precedence; what is not there is the
 * family's. */
static json_t *find_scaling(struct model_reader *r, const struct family *family)
{
    json_t *old = model_get(r, "rope_scaling");
    const bool is_old = old && !(json_is_object(old) && json_object_size(old) == 0);
    if (!is_old && !model_get(r, "rope_parameters") && family->keys.rope)
        json_object_set_new(r->root, "rope_parameters", json_loads(family->keys.rope, 0, NULL));
    json_t *scaling = is_old ? old : model_get(r, "rope_parameters");
    const char *where = is_old ? "rope_scaling" : "rope_parameters";
    if (scaling && !json_is_object(scaling))
        MODEL_REFUSE(r, FSDPCK_ERR_FORMAT, "key '%s': an object is wanted", where);
    check_rope_keys(r, scaling, where);
    return scaling;
}

/* How many features of a head are rotated; the same factor may be in either place. A null of config.json itself is 1 to
 * transformers, where a key that is not there is the family's. */
static int64_t read_rotary(struct model_reader *r, const struct model *m, const json_t *scaling)
{
    static const char *const key = "partial_rotary_factor";
    const double usual = json_object_get(r->root, key) ? 1 : m->family->keys.rotary,
                 own = m->family->keys.rotary > 0 ? model_get_number(r, r->root, key, usual, 0) : 1,
                 factor = model_get_number(r, scaling, key, own, 0);
    const int64_t n = (int64_t)((double)m->head_dim * (factor < 1 ? factor : 1));
    if (factor != 1 && m->family->keys.rotary == 0)
        MODEL_REFUSE(r, FSDPCK_ERR_UNSUPPORTED, "key '%s' changes the maths, and only 1 is supported", key);
    else if (factor > 1 || n < 2 || n % 2)
        MODEL_REFUSE(r, FSDPCK_ERR_FORMAT, "key '%s': of %lld features of a head, an even number must remain", key,
                     (long long)m->head_dim);
    return n;
}

void model_read_rope(struct model_reader *r, struct model *m)
{
    json_t *scaling = find_scaling(r, m->family);
    struct kern_rope *rope = &m->rope;
    const double theta = m->family->keys.theta > 0 ? m->family->keys.theta : 10000;
    rope->dim = read_rotary(r, m, scaling);
    rope->theta = model_get_number(r, scaling, "rope_theta", model_get_number(r, r->root, "rope_theta", theta, 1), 1);
    read_rope_kind(r, scaling, rope);
    if (rope->kind == KERN_ROPE_DEFAULT)
        return;
    if (model_get(r, "original_max_position_embeddings"))
        MODEL_REFUSE(
            r, FSDPCK_ERR_UNSUPPORTED,
            "key 'original_max_position_embeddings' changes the maths, and is supported inside of rope_scaling or "
            "rope_parameters only");
    rope->original_max_position =
        model_get_number(r, scaling, "original_max_position_embeddings", (double)m->max_position, 1);
    rope->factor = model_get_number(r, scaling, "factor", 0, 1);
    if (rope->factor == 0 && rope->kind == KERN_ROPE_YARN)
        rope->factor = (double)m->max_position / rope->original_max_position;
    if (rope->factor == 0)
        MODEL_REFUSE(r, FSDPCK_ERR_FORMAT, "the scaling of rotary positions has no 'factor'");
    rope->low_freq_factor = model_get_number(r, scaling, "low_freq_factor", 1, 0);
    rope->high_freq_factor = model_get_number(r, scaling, "high_freq_factor", 4, 0);
    rope->beta_fast = model_get_number(r, scaling, "beta_fast", 32, 0);
    rope->beta_slow = model_get_number(r, scaling, "beta_slow", 1, 0);
    rope->attention_factor = model_get_number(r, scaling, "attention_factor", 0, 0);
    rope->mscale = model_get_number(r, scaling, "mscale", 0, 0);
    rope->mscale_all_dim = model_get_number(r, scaling, "mscale_all_dim", 0, 0);
    rope->no_truncate = json_is_false(json_object_get(scaling, "truncate"));
}
