/* SPDX-License-Identifier: Apache-2.0 */
/* Converts sections to documents. Checks everything that a run relies on, even in sections of other processes. */
#include <stdlib.h>
#include <xxhash.h>

#include "data/data_impl.h"

void data_section_free(struct data_section *s)
{
    free(s->docs);
    free(s->ids);
    free(s->labels);
    *s = (struct data_section){ 0 };
}

int data_documents_begin(struct data *d, size_t nfiles, struct fsdpck_error *err)
{
    d->nfiles = nfiles;
    d->file_ends = calloc(nfiles, sizeof *d->file_ends);
    d->ids_hash = XXH3_createState();
    d->labels_hash = XXH3_createState();
    if (!d->file_ends || !d->ids_hash || !d->labels_hash)
        return fsdpck_error_nomem(err, nfiles * sizeof *d->file_ends);
    XXH3_64bits_reset(d->ids_hash);
    XXH3_64bits_reset(d->labels_hash);
    return 0;
}

/* Branch-free per token: there are hundreds of millions. */
static bool tokens_are_sound(const struct data_section *s, int64_t nvocab)
{
    unsigned bad = 0;
    for (size_t i = 0; i < s->ntok; i++)
        bad |= (unsigned)(s->ids[i] < 0) | (unsigned)(s->ids[i] >= nvocab) | (unsigned)(s->labels[i] < -1) |
               (unsigned)(s->labels[i] >= nvocab);
    return bad == 0;
}

static bool section_is_sound(const struct data *d, const struct data_section *s, int64_t nvocab)
{
    uint64_t ntok = 0;
    if (s->file >= d->nfiles || d->ndocs + s->ndocs > UINT32_MAX)
        return false;
    for (size_t i = 0; i < s->ndocs; i++) {
        if (s->docs[i].ntok == 0 || s->docs[i].nsupervised >= s->docs[i].ntok)
            return false;
        ntok += s->docs[i].ntok;
    }
    return ntok == s->ntok && tokens_are_sound(s, nvocab);
}

int data_documents_add(struct data *d, const struct data_section *s, int64_t nvocab, bool *sound,
                       struct fsdpck_error *err)
{
    size_t at = 0;
    *sound = section_is_sound(d, s, nvocab);
    if (!*sound)
        return 0;
    if (!grow((void **)&d->docs, &d->docs_capacity, d->ndocs + s->ndocs, sizeof *d->docs))
        return fsdpck_error_nomem(err, (d->ndocs + s->ndocs) * sizeof *d->docs);
    for (size_t i = 0; i < s->ndocs; i++) {
        d->docs[d->ndocs++] = (struct document){ s->ids + at, s->labels + at, s->docs[i].ntok, s->docs[i].nsupervised };
        at += s->docs[i].ntok;
    }
    for (size_t i = s->file; i < d->nfiles; i++)
        d->file_ends[i] = d->ndocs;
    d->nskipped += s->nskipped;
    for (int i = 0; i < CHAT_NNOTES; i++)
        d->nnoted[i] += s->nnoted[i];
    if (s->ntok) {
        XXH3_64bits_update(d->ids_hash, s->ids, s->ntok * sizeof *s->ids);
        XXH3_64bits_update(d->labels_hash, s->labels, s->ntok * sizeof *s->labels);
    }
    return 0;
}

void data_documents_end(struct data *d)
{
    if (d->ids_hash && d->labels_hash) {
        d->content[0] = XXH3_64bits_digest(d->ids_hash);
        d->content[1] = XXH3_64bits_digest(d->labels_hash);
    }
    XXH3_freeState(d->ids_hash);
    XXH3_freeState(d->labels_hash);
    d->ids_hash = d->labels_hash = NULL;
}
