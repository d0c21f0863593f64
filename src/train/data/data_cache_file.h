/* SPDX-License-Identifier: Apache-2.0 */
/* The file format of the token cache: a header page, sections, an end. Numbers have the byte order of this machine; a
 * hash covers every byte. */
#ifndef TRAIN_DATA_CACHE_FILE_H
#define TRAIN_DATA_CACHE_FILE_H

#include "data/data_impl.h"

enum {
    CACHE_PAGE = 4096
}; /* sections begin at multiples, so that hosts which share the folder never write into the same page */

/* Which cache: its file, and the data that it must hold. */
struct data_cache_id {
    const char *path; /* outlives the cache */
    uint64_t key, nfiles;
    int64_t nvocab;
};

struct cache_header {
    char magic[8];
    uint64_t key, nfiles;
    char zero[CACHE_PAGE - 32];
    uint64_t hash;
};

struct cache_end {
    char magic[8];
    uint64_t nsections, nbytes, hash; /* nbytes: of all that lies before */
};

void cache_header_make(struct cache_header *h, const struct data_cache_id *id);
void cache_end_make(struct cache_end *e, uint64_t nsections, uint64_t nbytes);
/* The bytes of a section, a multiple of CACHE_PAGE; free(). NULL: no memory. */
char *cache_section_pack(const struct data_section *s, size_t *nbytes);
/* All documents of a file that was read or mapped; they point into it. *sound false: it is damaged, or of something
 * else. */
int cache_take(struct data *d, const struct data_cache_id *id, const char *bytes, uint64_t nbytes, bool *sound,
               struct fsdpck_error *err);

#endif
