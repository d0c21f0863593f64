/* SPDX-License-Identifier: Apache-2.0 */
/* The body of a token cache between a valid header and end; the hashes of its sections are corrected where possible.
 * Properties: an accepted cache has documents inside the bytes, as many as it counts; a refused one leaves nothing
 * behind. */
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "data/data_cache_file.h"
#include "fuzz.h"

enum { NVOCAB = 1000, NFILES = 3, MOST_PAGES = 8 };

/* A section begins with its hash and its size. Corrects both, as far as the body reaches. Returns the number of
 * sections. */
static uint64_t mend(char *body, size_t nbytes)
{
    uint64_t nsections = 0;
    for (size_t at = 0; at < nbytes; nsections++) {
        uint64_t said, hash;
        memcpy(&said, body + at + 8, 8);
        size_t n = said % CACHE_PAGE == 0 && said > 0 && said <= nbytes - at ? (size_t)said : CACHE_PAGE;
        hash = XXH3_64bits(body + at + 8, n - 8);
        memcpy(body + at, &hash, 8);
        at += n;
    }
    return nsections;
}

static void check_documents(const struct data *d, const char *bytes, size_t nbytes)
{
    FUZZ_CHECK(d->nfiles == NFILES && d->file_ends[NFILES - 1] == d->ndocs);
    for (size_t i = 0; i < d->ndocs; i++) {
        const struct document *doc = &d->docs[i];
        FUZZ_CHECK(doc->ntok > 0 && doc->nsupervised < doc->ntok && (const char *)doc->ids >= bytes &&
                   (const char *)(doc->labels + doc->ntok) <= bytes + nbytes);
        for (uint32_t t = 0; t < doc->ntok; t++)
            FUZZ_CHECK(doc->ids[t] >= 0 && doc->ids[t] < NVOCAB && doc->labels[t] >= -1 && doc->labels[t] < NVOCAB);
    }
}

/* Returns the number of documents in the body, or SIZE_MAX if it is refused. */
static size_t take(const uint8_t *data, size_t body)
{
    static const struct data_cache_id id = { .path = "tokens.bin", .key = 7, .nfiles = NFILES, .nvocab = NVOCAB };
    static _Alignas(8) char bytes[sizeof(struct cache_header) + MOST_PAGES * CACHE_PAGE + sizeof(struct cache_end)];
    struct fsdpck_error err = { 0 };
    struct cache_header header;
    struct cache_end end;
    struct data d = { 0 };
    bool sound;
    memset(bytes, 0, sizeof bytes);
    memcpy(bytes + sizeof header, data, body);
    body = (body + CACHE_PAGE - 1) / CACHE_PAGE * CACHE_PAGE;
    cache_header_make(&header, &id);
    cache_end_make(&end, mend(bytes + sizeof header, body), sizeof header + body);
    memcpy(bytes, &header, sizeof header);
    memcpy(bytes + sizeof header + body, &end, sizeof end);
    FUZZ_CHECK(cache_load(&d, &id, bytes, sizeof header + body + sizeof end, &sound, &err) == 0);
    if (sound)
        check_documents(&d, bytes, sizeof header + body);
    size_t ndocs = sound ? d.ndocs : SIZE_MAX;
    data_free_documents(&d);
    return ndocs;
}

/* Encoding and decoding gives the data back. */
static void check_round_trip(void)
{
    struct data_section_doc docs[] = { { 2, 1 }, { 1, 0 } };
    int32_t ids[] = { 1, 2, NVOCAB - 1 }, labels[] = { -1, 2, -1 };
    const struct data_section s = { .docs = docs, .ndocs = 2, .ids = ids, .labels = labels, .ntok = 3, .file = 1 };
    size_t n;
    char *packed = cache_section_pack(&s, &n);
    FUZZ_CHECK(packed && take((const uint8_t *)packed, n) == 2);
    free(packed);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes)
{
    static bool checked;
    if (!checked)
        check_round_trip();
    checked = true;
    take(data, nbytes > MOST_PAGES * CACHE_PAGE ? MOST_PAGES * CACHE_PAGE : nbytes);
    return 0;
}
