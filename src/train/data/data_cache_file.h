/* SPDX-License-Identifier: Apache-2.0 */
/* The file format of the token cache: a header page, sections, an end record. Numbers are in host byte order; hashes
 * cover every byte. */
#ifndef TRAIN_DATA_CACHE_FILE_H
#define TRAIN_DATA_CACHE_FILE_H

#include "data/data_impl.h"

enum { CACHE_PAGE = 4096 }; /* alignment of sections: hosts that share the folder never write to the same page */

/* Identifies a cache: its file, and the data that it must contain. */
struct data_cache_id {
    const char *path; /* must outlive the cache */
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
    uint64_t nsections, nbytes, hash; /* nbytes: of everything before this record */
};

void cache_header_make(struct cache_header *h, const struct data_cache_id *id);
void cache_end_make(struct cache_end *e, uint64_t nsections, uint64_t nbytes);
/* Serialises a section; the length is a multiple of CACHE_PAGE. Free with free(). NULL: out of memory. */
char *cache_section_pack(const struct data_section *s, size_t *nbytes);
/* Takes all documents of a file that was read or mapped; they point into it. *sound false: the file is damaged, or
 * holds other data. */
int cache_load(struct data *d, const struct data_cache_id *id, const char *bytes, uint64_t nbytes, bool *sound,
               struct fsdpck_error *err);

#endif
