/* SPDX-License-Identifier: Apache-2.0 */
/* Lists the pictures and captions of a run, without encoding them. */
#include <train/image.h>

#include "image/fit.h"
#include "image/prompt_tokens.h"

/* The config of a run on these pictures, for the rules that read them. */
static int make_config(const char *pipeline, const char *from, const struct image_survey *s, struct train_config *out,
                       struct fsdpck_error *err)
{
    json_t *image = json_pack("{s:I, s:I}", "resolution", (json_int_t)s->resolution, "max_sequence_length",
                              (json_int_t)s->max_tokens);
    bool good = !s->trigger_word || json_object_set_new(image, "trigger_word", json_string(s->trigger_word)) == 0;
    good =
        json_object_set_new(image, "use_aspect_ratio_buckets", json_boolean(s->use_aspect_ratio_buckets)) == 0 && good;
    if (s->aspect_ratio_buckets)
        good = json_object_set_new(image, "aspect_ratio_buckets", json_string(s->aspect_ratio_buckets)) == 0 && good;
    json_t *root = json_pack("{s:s, s:s, s:{s:s}, s:o, s:{}}", "model", pipeline, "output_dir", "-", "data", "train",
                             from, "image", image, "lora");
    *out = (struct train_config){ 0 };
    if (root && good)
        return train_config_take(from, root, out, err);
    json_decref(root);
    return fsdpck_error_set(err, FSDPCK_ERR_USAGE, from, "a path or a word is no UTF-8");
}

static int show_one(const struct train_config *config, struct listed *x, const struct image_survey *s,
                    const struct prompt_tokens *tokens, struct fsdpck_error *err)
{
    struct token_list list = { 0 };
    x->resolution = (uint64_t)s->resolution;
    int rc = picture_size(x->path, &x->height, &x->width, err);
    if (!rc)
        rc = prompt_tokens_of(tokens, x->caption, &list, err);
    const struct fit fit = rc ? (struct fit){ 0 } : fit_of(config, x);
    const struct image_listed one = { .path = x->path,
                                      .caption = x->caption,
                                      .height = x->height,
                                      .width = x->width,
                                      .bucket_height = fit.bucket.height,
                                      .bucket_width = fit.bucket.width,
                                      .ntok = list.count,
                                      .cut = (int64_t)list.count > s->max_tokens };
    if (!rc)
        rc = s->each(s->ctx, &one, err);
    token_list_free(&list);
    return rc;
}

int image_survey(const char *pipeline, const char *from, const struct image_survey *survey, struct fsdpck_error *err)
{
    struct image_survey s = *survey;
    struct pipeline p;
    struct prompt_tokens tokens = { 0 };
    struct train_config config = { 0 };
    struct listing listing = { 0 };
    s.resolution = s.resolution ? s.resolution : IMAGE_DEFAULT_RESOLUTION;
    s.max_tokens = s.max_tokens ? s.max_tokens : IMAGE_DEFAULT_TOKENS;
    int rc = pipeline_read(pipeline, &p, err);
    if (!rc)
        rc = make_config(pipeline, from, &s, &config, err);
    if (!rc)
        rc = prompt_tokens_open(&p, &tokens, err);
    if (!rc)
        rc = listing_read(from, &config, &listing, err);
    for (size_t i = 0; i < listing.n && !rc; i++)
        rc = show_one(&config, &listing.items[i], &s, &tokens, err);
    listing_free(&listing);
    prompt_tokens_close(&tokens);
    train_config_free(&config);
    return rc;
}
