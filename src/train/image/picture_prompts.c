/* SPDX-License-Identifier: Apache-2.0 */
#include "image/picture_prompts.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "text/trigger.h"

/* The entry that is being read. */
struct entry {
    const json_t *value;
    size_t number; /* from 1 */
    struct fsdpck_error *err;
};

static int refuse(const struct entry *e, const char *key, const char *why)
{
    return fsdpck_error_set(e->err, FSDPCK_ERR_USAGE, NULL, "key 'sample.prompts': prompt %zu: %s%.60s%s%s", e->number,
                            key ? "key '" : "", key ? key : "", key ? "': " : "", why);
}

static int check_keys(const struct entry *e)
{
    static const char *const known[] = { "prompt", "negative_prompt",     "height",
                                         "width",  "num_inference_steps", "guidance_scale",
                                         "seed" };
    const char *key;
    json_t *value;
    json_object_foreach ((json_t *)e->value, key, value) {
        bool is_known = strncmp(key, "//", 2) == 0;
        for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
            is_known |= strcmp(key, known[i]) == 0;
        if (!is_known)
            return refuse(e, key,
                          "is none of prompt, negative_prompt, height, width, num_inference_steps, guidance_scale, "
                          "seed");
    }
    return 0;
}

/* Without the key, *out keeps its value. */
static int take_count(const struct entry *e, const char *key, int64_t most, int64_t *out)
{
    const json_t *value = json_object_get(e->value, key);
    if (!value)
        return 0;
    *out = json_integer_value(value);
    return json_is_integer(value) && *out >= 0 && *out <= most ? 0 : refuse(e, key, "a count is wanted");
}

static int take_sizes(const struct entry *e, struct image_request *r)
{
    int64_t seed = IMAGE_DEFAULT_SEED;
    const json_t *guidance = json_object_get(e->value, "guidance_scale");
    int rc = take_count(e, "height", IMAGE_MOST, &r->height);
    if (!rc)
        rc = take_count(e, "width", IMAGE_MOST, &r->width);
    if (!rc)
        rc = take_count(e, "num_inference_steps", 1000, &r->nstep);
    if (!rc)
        rc = take_count(e, "seed", (int64_t)1 << 53, &seed);
    if (!rc && guidance && (!json_is_number(guidance) || !(json_number_value(guidance) >= 0)))
        rc = refuse(e, "guidance_scale", "a number from 0 on is wanted");
    if (!rc && guidance)
        r->guidance = json_number_value(guidance);
    r->seed = (uint64_t)seed;
    return rc;
}

static int take_text(const struct entry *e, const char *key, const char *missing, const char *word, char **out)
{
    const json_t *value = json_is_string(e->value) ? e->value : json_object_get(e->value, key);
    const char *text = value ? json_string_value(value) : missing;
    if (!text)
        return refuse(e, key, "a text is wanted");
    *out = trigger_put(text, word, false);
    return *out ? 0 : fsdpck_error_nomem(e->err, strlen(text));
}

static int take_texts(const struct entry *e, const struct train_config *config, struct picture_prompt *p)
{
    const char *word = config->image.trigger_word;
    int rc = take_text(e, "prompt", NULL, word, &p->text);
    if (rc)
        return rc;
    if (json_is_string(e->value))
        return (p->negative = strdup("")) ? 0 : fsdpck_error_nomem(e->err, 1);
    return take_text(e, "negative_prompt", "", word, &p->negative);
}

static int take_one(const struct entry *e, const struct train_config *config, const struct fsdpck_options *opt,
                    const struct pipeline *pipeline, struct picture_prompt *p)
{
    const int64_t side = (int64_t)config->image.resolution.values[0] / IMAGE_UNIT * IMAGE_UNIT;
    struct image_request *r = &p->request;
    if (!json_is_string(e->value) && !json_is_object(e->value))
        return refuse(e, NULL, "a text or an object is wanted");
    *r = (struct image_request){ .nprompts = 1,
                                 .height = side,
                                 .width = side,
                                 .guidance = -1,
                                 .max_tokens = (int64_t)config->image.max_sequence_length,
                                 .count = 1 };
    int rc = check_keys(e);
    if (!rc)
        rc = take_texts(e, config, p);
    if (!rc)
        rc = take_sizes(e, r);
    r->prompts = (const char *const *)&p->text;
    r->negative = p->negative;
    struct fsdpck_error why = { 0 };
    if (rc || !image_request_complete(pipeline, opt, r, &why))
        return rc;
    return refuse(e, NULL, why.message);
}

int picture_prompts_read(const struct train_config *config, const struct fsdpck_options *opt,
                         struct picture_prompts *out, struct fsdpck_error *err)
{
    const json_t *prompts = config->sample.prompts;
    const size_t n = json_array_size(prompts);
    *out = (struct picture_prompts){ .n = n };
    int rc = pipeline_read(config->pipeline, &out->pipeline, err);
    if (rc)
        return rc;
    out->items = calloc(n + 1, sizeof *out->items);
    out->texts = calloc(2 * n + 1, sizeof *out->texts);
    rc = out->items && out->texts ? 0 : fsdpck_error_nomem(err, n * sizeof *out->items);
    for (size_t i = 0; i < n && !rc; i++) {
        const struct entry e = { json_array_get(prompts, i), i + 1, err };
        struct picture_prompt *p = &out->items[i];
        rc = take_one(&e, config, opt, &out->pipeline, p);
        p->guided = !rc && image_request_is_guided(&out->pipeline, &p->request);
        out->texts[i] = p->text;
        out->texts[n + i] = p->guided ? p->negative : p->text;
    }
    return rc;
}

void picture_prompts_free(struct picture_prompts *p)
{
    for (size_t i = 0; i < p->n && p->items; i++) {
        free(p->items[i].text);
        free(p->items[i].negative);
    }
    free(p->items);
    free(p->texts);
    *p = (struct picture_prompts){ 0 };
}
