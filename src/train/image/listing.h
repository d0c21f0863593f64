/* SPDX-License-Identifier: Apache-2.0 */
/* Pictures and their captions, from a folder or a JSONL file. */
#ifndef TRAIN_LISTING_H
#define TRAIN_LISTING_H

#include <train/config.h>

struct listed {
    char *path, *caption; /* owned */
};

struct listing {
    struct listed *items; /* (n) in the order of names, or of lines. Owned */
    size_t n, capacity;
};

/* from: a folder of .png, .jpg, .jpeg and .webp, each with NAME.txt beside it (image.caption_ext), or JSONL of
 * {"image", "caption"}, with paths relative to the file. A picture without a caption has an empty one. The trigger word
 * takes the place of [trigger], or the front. */
int listing_read(const char *from, const struct train_config *config, struct listing *out, struct fsdpck_error *err);
void listing_free(struct listing *l);

#endif
