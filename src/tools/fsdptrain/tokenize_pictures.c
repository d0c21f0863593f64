/* SPDX-License-Identifier: Apache-2.0 */
#include "tokenize_pictures.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <train/image.h>

#include "common/json_out.h"
#include "common/report.h"

struct bucket_count {
    int64_t width, height;
    uint64_t npictures;
};

struct survey {
    bool json;
    struct bucket_count *buckets; /* (nbuckets) in the order in which they were met. Owned */
    size_t nbuckets;
    uint64_t npictures, ncut;
    json_t *pictures;
    bool complete;
};

static int count_bucket(struct survey *s, const struct image_listed *one, struct fsdpck_error *err)
{
    size_t i = 0;
    while (i < s->nbuckets && (s->buckets[i].width != one->bucket_width || s->buckets[i].height != one->bucket_height))
        i++;
    if (i == s->nbuckets) {
        struct bucket_count *more = realloc(s->buckets, (i + 1) * sizeof *more);
        if (!more)
            return fsdpck_error_nomem(err, (i + 1) * sizeof *more);
        s->buckets = more;
        s->buckets[s->nbuckets++] = (struct bucket_count){ one->bucket_width, one->bucket_height, 0 };
    }
    s->buckets[i].npictures++;
    return 0;
}

static void keep(struct survey *s, const struct image_listed *one)
{
    json_t *o = json_object();
    s->complete &= json_out_put(o, "path", json_out_text(one->path));
    s->complete &= json_out_put(o, "width", json_out_u64((uint64_t)one->width));
    s->complete &= json_out_put(o, "height", json_out_u64((uint64_t)one->height));
    s->complete &= json_out_put(o, "bucket_width", json_out_u64((uint64_t)one->bucket_width));
    s->complete &= json_out_put(o, "bucket_height", json_out_u64((uint64_t)one->bucket_height));
    s->complete &= json_out_put(o, "caption", json_out_text(one->caption));
    s->complete &= json_out_put(o, "tokens", json_out_u64(one->ntok));
    s->complete &= json_out_put(o, "cut", json_boolean(one->cut));
    s->complete &= json_out_append(s->pictures, o);
}

static void print(const struct image_listed *one)
{
    json_t *path = json_out_text(one->path), *caption = json_out_text(one->caption);
    char size[32], bucket[32];
    snprintf(size, sizeof size, "%" PRId64 "x%" PRId64, one->width, one->height);
    snprintf(bucket, sizeof bucket, "%" PRId64 "x%" PRId64, one->bucket_width, one->bucket_height);
    printf("%-11s %-11s %6zu%s ", size, bucket, one->ntok, one->cut ? "!" : " ");
    json_out_write(path);
    printf("  ");
    json_out_write(caption);
    puts("");
    json_decref(path);
    json_decref(caption);
}

static int show(void *ctx, const struct image_listed *one, struct fsdpck_error *err)
{
    struct survey *s = ctx;
    if (!s->json && !s->npictures)
        printf("%-11s %-11s %6s  %s\n", "size", "bucket", "tokens", "picture and caption");
    s->npictures++;
    s->ncut += one->cut;
    if (s->json)
        keep(s, one);
    else
        print(one);
    return count_bucket(s, one, err);
}

static int by_number(const void *a, const void *b)
{
    const struct bucket_count *x = a, *y = b;
    return x->npictures != y->npictures ? (x->npictures < y->npictures ? 1 : -1)
                                        : (x->width > y->width) - (x->width < y->width);
}

static void print_buckets(const struct survey *s)
{
    printf("\n%-11s %s\n", "bucket", "pictures");
    for (size_t i = 0; i < s->nbuckets; i++) {
        char bucket[32];
        snprintf(bucket, sizeof bucket, "%" PRId64 "x%" PRId64, s->buckets[i].width, s->buckets[i].height);
        printf("%-11s %8" PRIu64 "\n", bucket, s->buckets[i].npictures);
    }
    if (s->ncut)
        printf("\n!: a caption has more tokens than are read: its end is left out\n");
}

static int print_json(struct survey *s)
{
    json_t *o = json_object(), *buckets = json_array();
    for (size_t i = 0; i < s->nbuckets; i++)
        s->complete &= json_out_append(buckets, json_pack("{s:I, s:I, s:I}", "width", (json_int_t)s->buckets[i].width,
                                                          "height", (json_int_t)s->buckets[i].height, "pictures",
                                                          (json_int_t)s->buckets[i].npictures));
    s->complete &= json_out_put(o, "pictures", json_incref(s->pictures));
    s->complete &= json_out_put(o, "buckets", buckets);
    return json_out_print(o, s->complete, EXIT_DONE);
}

static int check_from(const char *from, struct fsdpck_error *err)
{
    struct stat st;
    if (stat(from, &st) == 0 && (S_ISDIR(st.st_mode) || S_ISREG(st.st_mode)))
        return 0;
    fsdpck_error_set(err, FSDPCK_ERR_MISSING, from,
                     "of a pipeline, a folder of pictures is wanted, or JSONL that names them");
    fsdpck_error_hint(err, "a text is tokenized with the folder PIPELINE/tokenizer");
    return err->code;
}

int tokenize_pictures_run(const struct tokenize_pictures_args *args, const char *pipeline, const char *from,
                          int *status, struct fsdpck_error *err)
{
    struct survey s = { .json = args->json, .complete = true, .pictures = json_array() };
    const struct image_survey survey = { .resolution = args->resolution,
                                         .max_tokens = args->max_tokens,
                                         .trigger_word = args->trigger_word,
                                         .use_aspect_ratio_buckets = args->use_aspect_ratio_buckets,
                                         .aspect_ratio_buckets = args->aspect_ratio_buckets,
                                         .each = show,
                                         .ctx = &s };
    int rc = check_from(from, err);
    if (!rc)
        rc = image_survey(pipeline, from, &survey, err);
    if (!rc && s.nbuckets)
        qsort(s.buckets, s.nbuckets, sizeof *s.buckets, by_number);
    *status = EXIT_DONE;
    if (!rc && args->json)
        *status = print_json(&s);
    else if (!rc)
        print_buckets(&s);
    json_decref(s.pictures);
    free(s.buckets);
    return rc;
}
