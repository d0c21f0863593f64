/* SPDX-License-Identifier: Apache-2.0 */
/* Pictures and their captions, from a folder or a JSONL file. */
#ifndef TRAIN_LISTING_H
#define TRAIN_LISTING_H

#include <train/config.h>

struct listed {
    char *path, *caption;  /* owned */
    uint64_t content;      /* hash of the file */
    int64_t height, width; /* of the picture */
    uint64_t resolution;   /* image.resolution, of this variant */
    bool flip_x, flip_y;
    bool random_crop; /* the part that is kept is drawn, another one for each copy */
    uint64_t copy;    /* of image.num_repeats */
};

struct listing {
    struct listed *items; /* (n) in the order of names, or of lines. Owned */
    size_t n, capacity;
    uint64_t nbad; /* lines left out (data.on_bad_line) */
};

/* from: a folder of .png, .jpg, .jpeg and .webp, each with NAME.txt beside it (image.caption_ext), or JSONL of
 * {"image", "caption"}, with paths relative to the file. A picture without a caption has an empty one. The trigger word
 * takes the place of [trigger], or the front. The rest of an item stays zero. */
int listing_read(const char *from, const struct train_config *config, struct listing *out, struct fsdpck_error *err);
void listing_free(struct listing *l);
/* Takes item i, and all behind it that are of the same file, out of the list. */
void listing_drop(struct listing *l, size_t i);
/* Puts in place of every picture its variants, as ai-toolkit has them: all of the list for each of image.resolution,
 * and of these image.num_repeats of each, then the same with flip_x, then all of these with flip_y. once: without
 * repeats and flips. */
int listing_vary(struct listing *l, const struct train_config *config, bool once, struct fsdpck_error *err);

#endif
