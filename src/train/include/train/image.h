/* SPDX-License-Identifier: Apache-2.0 */
/* Pictures from texts, with a pipeline folder of diffusers: FLUX.2 [klein]. Its parts are in memory one after another:
 * the text encoder, the transformer, the decoder. A picture depends on text, seed, size, steps and model, not on the
 * number of threads. */
#ifndef TRAIN_IMAGE_H
#define TRAIN_IMAGE_H

#include <stdio.h>
#include <train/sample.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { IMAGE_UNIT = 16, IMAGE_MOST = 8192 }; /* pixels: sides are multiples of the first, up to the second */
#define IMAGE_DEFAULT_SIDE       1024
#define IMAGE_DEFAULT_RESOLUTION 512
#define IMAGE_DEFAULT_TOKENS     512
#define IMAGE_DISTILLED_STEPS    4
#define IMAGE_DEFAULT_STEPS      50
#define IMAGE_DEFAULT_GUIDANCE   4
#define IMAGE_DEFAULT_SEED       42 /* of sample.prompts */

/* True if the folder is a pipeline of diffusers, of whichever kind. */
FSDPCK_API bool image_is_pipeline(const char *folder);

/* Zero-initialise: every zero means the default. */
struct image_request {
    const char *const *prompts; /* (nprompts) UTF-8 */
    size_t nprompts;
    const char *negative;  /* what guidance leads away from; default: the empty text */
    int64_t height, width; /* pixels; default: 1024 */
    int64_t nstep;         /* default: 4 of a distilled model, else 50 */
    double guidance;       /* negative: the default, 4. A distilled model has none; 1 or less: none */
    int64_t max_tokens;    /* of a text; default: 512 */
    uint64_t seed;         /* picture i of a prompt is made with the seed + i */
    size_t count;          /* pictures of each prompt; default: 1 */
};

/* A picture: (height, width, 3) of red, green and blue. Borrowed during the call. */
struct image {
    size_t prompt, number;
    int64_t height, width;
    const uint8_t *pixels;
};

/* Writes a PNG file. False: it failed, and errno may say why. */
FSDPCK_API bool image_put_png(FILE *f, const struct image *image);

/* What is under way, for progress: done of total. */
enum image_phase { IMAGE_READS_TEXT, IMAGE_STEPS, IMAGE_DECODES };

struct image_calls {
    /* Nonzero ends the work with that code; err is set then. */
    int (*made)(void *ctx, const struct image *image, struct fsdpck_error *err);
    void (*progress)(void *ctx, enum image_phase phase, uint64_t done, uint64_t total); /* may be NULL */
    bool (*stop)(void *ctx); /* true ends the work with FSDPCK_ERR_STOPPED between two steps; may be NULL */
    void *ctx;
};

/* opt: adapter (of the transformer), dtype, threads. */
FSDPCK_API int image_sample(const char *pipeline, const struct sampler_options *opt,
                            const struct image_request *request, const struct image_calls *calls,
                            struct fsdpck_error *err);

/* A picture of a folder or of JSONL, as a run would train on it. Borrowed during the call. */
struct image_listed {
    const char *path, *caption; /* with the trigger word */
    int64_t height, width;      /* of the file, turned as EXIF says */
    int64_t bucket_height, bucket_width;
    size_t ntok; /* tokens of the caption in its template */
    bool cut;    /* they are more than a run reads */
};

/* Zero-initialise but for each: every zero means the default. */
struct image_survey {
    int64_t resolution, max_tokens; /* image.resolution, image.max_sequence_length; default: 512 */
    bool use_aspect_ratio_buckets;
    const char *trigger_word, *aspect_ratio_buckets; /* NULL: none */
    /* Nonzero ends the work with that code; err is set then. */
    int (*each)(void *ctx, const struct image_listed *one, struct fsdpck_error *err);
    void *ctx;
};

/* Lists what data.train of a run with the pipeline names, in its order; reads no pixels. */
FSDPCK_API int image_survey(const char *pipeline, const char *from, const struct image_survey *survey,
                            struct fsdpck_error *err);

#ifdef __cplusplus
}
#endif
#endif
