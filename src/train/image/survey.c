/* SPDX-License-Identifier: Apache-2.0 */
/* Lists the pictures and captions of a run, without encoding them. */
#include <train/image.h>

#include "image/listing.h"
#include "image/prompt_tokens.h"
#include "pictures/bucket.h"
#include "pictures/pixels.h"

/* The config of a run on these pictures, for the rules that read them. */
static int make_config(const char *pipeline, const char *from, const struct image_survey *s, struct train_config *out,
                       struct fsdpck_error *err)
{
    json_t *image = json_pack("{s:I, s:I}", "resolution", (json_int_t)s->resolution, "max_sequence_length",
                              (json_int_t)s->max_tokens);
    const bool good = !s->trigger_word || json_object_set_new(image, "trigger_word", json_string(s->trigger_word)) == 0;
    json_t *root = json_pack("{s:s, s:s, s:{s:s}, s:o, s:{}}", "model", pipeline, "output_dir", "-", "data", "train",
                             from, "image", image, "lora");
    *out = (struct train_config){ 0 };
    if (root && good)
        return train_config_take(from, root, out, err);
    json_decref(root);
    return fsdpck_error_set(err, FSDPCK_ERR_USAGE, from, "a path or a word is no UTF-8");
}

static int show_one(const struct listed *x, const struct image_survey *s, const struct prompt_tokens *tokens,
                    struct fsdpck_error *err)
{
    struct image_listed one = { .path = x->path, .caption = x->caption };
    struct token_list list = { 0 };
    int rc = picture_size(x->path, &one.height, &one.width, err);
    if (!rc)
        rc = prompt_tokens_of(tokens, x->caption, &list, err);
    const struct bucket b = rc ? (struct bucket){ 0 } : bucket_of(one.height, one.width, s->resolution, IMAGE_UNIT);
    one.bucket_height = b.height;
    one.bucket_width = b.width;
    one.ntok = list.count;
    one.cut = (int64_t)list.count > s->max_tokens;
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
        rc = show_one(&listing.items[i], &s, &tokens, err);
    listing_free(&listing);
    prompt_tokens_close(&tokens);
    train_config_free(&config);
    return rc;
}
