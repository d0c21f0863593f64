/* SPDX-License-Identifier: Apache-2.0 */
/* Serialises, parses and validates sections. */
#include "data/data_cache_file.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define MAGIC     "fsdptok3" /* version 3: turns found by comparing renderings; notes */
#define END_MAGIC "fsdpend3"

/* Followed by docs, ids, labels, and zeros to the end of the page. */
struct section_header {
    uint64_t hash; /* of all bytes of the section after this field */
    uint64_t nbytes, file, ndocs, ntok, nskipped, nnoted[CHAT_NNOTES];
};

static uint64_t hash_behind(const void *bytes, size_t nbytes)
{
    return XXH3_64bits((const char *)bytes + sizeof(uint64_t), nbytes - sizeof(uint64_t));
}

void cache_header_make(struct cache_header *h, const struct data_cache_id *id)
{
    *h = (struct cache_header){ .magic = MAGIC, .key = id->key, .nfiles = id->nfiles };
    h->hash = XXH3_64bits(h, offsetof(struct cache_header, hash));
}

void cache_end_make(struct cache_end *e, uint64_t nsections, uint64_t nbytes)
{
    *e = (struct cache_end){ .magic = END_MAGIC, .nsections = nsections, .nbytes = nbytes };
    e->hash = XXH3_64bits(e, offsetof(struct cache_end, hash));
}

/* Computes the length of a section. Returns false on overflow. */
static bool section_nbytes(uint64_t ndocs, uint64_t ntok, uint64_t *out)
{
    if (ndocs > UINT32_MAX || ntok > (uint64_t)1 << 48)
        return false;
    uint64_t n = sizeof(struct section_header) + ndocs * sizeof(struct data_section_doc) + ntok * 2 * sizeof(int32_t);
    *out = (n + CACHE_PAGE - 1) / CACHE_PAGE * CACHE_PAGE;
    return true;
}

static char *put(char *at, const void *bytes, size_t nbytes)
{
    if (nbytes)
        memcpy(at, bytes, nbytes);
    return at + nbytes;
}

char *cache_section_pack(const struct data_section *s, size_t *nbytes)
{
    struct section_header h = { .file = s->file, .ndocs = s->ndocs, .ntok = s->ntok, .nskipped = s->nskipped };
    memcpy(h.nnoted, s->nnoted, sizeof h.nnoted);
    char *bytes = section_nbytes(s->ndocs, s->ntok, &h.nbytes) ? calloc(1, h.nbytes) : NULL;
    if (!bytes)
        return NULL;
    char *at = put(bytes + sizeof h, s->docs, s->ndocs * sizeof *s->docs);
    at = put(at, s->ids, s->ntok * sizeof *s->ids);
    put(at, s->labels, s->ntok * sizeof *s->labels);
    memcpy(bytes, &h, sizeof h);
    h.hash = hash_behind(bytes, h.nbytes);
    memcpy(bytes, &h, sizeof h);
    *nbytes = h.nbytes;
    return bytes;
}

/* Sets pointers into the bytes, which must remain unmodified. */
static bool unpack(const char *bytes, uint64_t left, struct data_section *out, uint64_t *nbytes)
{
    struct section_header h;
    if (left < sizeof h)
        return false;
    memcpy(&h, bytes, sizeof h);
    if (!section_nbytes(h.ndocs, h.ntok, nbytes) || *nbytes != h.nbytes || *nbytes > left ||
        h.hash != hash_behind(bytes, *nbytes) || h.file > UINT32_MAX)
        return false;
    const char *docs = bytes + sizeof h, *ids = docs + h.ndocs * sizeof(struct data_section_doc);
    *out = (struct data_section){ .docs = (struct data_section_doc *)(uintptr_t)docs,
                                  .ndocs = h.ndocs,
                                  .ids = (int32_t *)(uintptr_t)ids,
                                  .ntok = h.ntok,
                                  .labels = (int32_t *)(uintptr_t)(ids + h.ntok * sizeof(int32_t)),
                                  .nskipped = h.nskipped,
                                  .file = (uint32_t)h.file };
    memcpy(out->nnoted, h.nnoted, sizeof h.nnoted);
    return true;
}

static bool ends_are_sound(const struct data_cache_id *id, const char *bytes, uint64_t nbytes, uint64_t *nsections)
{
    struct cache_header h;
    struct cache_end e, found;
    if (nbytes < sizeof h + sizeof e)
        return false;
    cache_header_make(&h, id);
    memcpy(&found, bytes + nbytes - sizeof e, sizeof e);
    cache_end_make(&e, found.nsections, nbytes - sizeof e);
    *nsections = e.nsections;
    return memcmp(bytes, &h, sizeof h) == 0 && memcmp(&found, &e, sizeof e) == 0;
}

int cache_load(struct data *d, const struct data_cache_id *id, const char *bytes, uint64_t nbytes, bool *sound,
               struct fsdpck_error *err)
{
    uint64_t at = sizeof(struct cache_header), nsections = 0, n;
    int rc = 0;
    *sound = ends_are_sound(id, bytes, nbytes, &nsections);
    if (*sound)
        rc = data_documents_begin(d, id->nfiles, err);
    for (uint64_t i = 0; i < nsections && *sound && !rc; i++) {
        struct data_section s;
        *sound = unpack(bytes + at, nbytes - sizeof(struct cache_end) - at, &s, &n);
        if (*sound)
            rc = data_documents_add(d, &s, id->nvocab, sound, err);
        at += n;
    }
    *sound = *sound && !rc && at == nbytes - sizeof(struct cache_end);
    data_documents_end(d);
    return rc;
}
