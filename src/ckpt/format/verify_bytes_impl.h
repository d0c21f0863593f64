/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the files that read every byte of shard files: verify_bytes.c divides files into windows and reads them,
 * verify_blocks.c checks the payloads of a window, verify_envelope.c hashes the bytes between them. */
#ifndef CKPT_VERIFY_BYTES_IMPL_H
#define CKPT_VERIFY_BYTES_IMPL_H

#include "base/block_codec.h"
#include "format/verify_impl.h"
#include "format/verify_spans.h"

struct verify_worker {
    uint8_t *buffer; /* a window, plus alignment */
    struct fsdpck_decoder *decoder;
    uint8_t block[FSDPCK_BLOCK_NBYTES];
};

/* The envelope of a file: its bytes outside payloads, which have one hash. Windows add them in file order: window
 * number `turn` of those with gaps is next. */
struct verify_envelope {
    struct fsdpck_hasher *hasher; /* owned by the window whose turn it is */
    struct deferred_gaps *deferred;
    uint32_t turn, nturns; /* the current turn, and their number */
    bool unread;           /* part of it could not be read, which was reported */
};

struct verify_reader {
    struct fsdpck_verifier *v;
    struct fsdpck_vec spans, windows;
    struct verify_envelope *envelopes; /* (files) */
    struct verify_worker *workers;
    unsigned nworkers;
    pthread_mutex_t lock; /* guards turns and deferred gaps */
    pthread_cond_t turned;
    unsigned nwaiting;
    uint64_t deferred_nbytes;
    uint64_t done_nbytes, total_nbytes; /* of decoded payloads */
    uint64_t read_nbytes;               /* of payloads, as stored */
};

/* One window, read by one thread. */
struct verify_job {
    struct verify_reader *rd;
    struct verify_worker *w;
    uint32_t rank, turn;
    const struct fsdpck_table *t; /* of the file */
    const struct fsdpck_verify_span *spans;
    size_t nspans; /* at least 1 */
};

/* Returns the payload that a span belongs to; NULL: none. */
static inline const struct fsdpck_table_entry *verify_job_entry(const struct verify_job *w,
                                                                const struct fsdpck_verify_span *s)
{
    return s->entry == FSDPCK_NO_ENTRY ? NULL : &w->t->entries[s->entry];
}

/* Returns the file offset of a span of stored bytes. */
static inline uint64_t verify_job_position(const struct verify_job *w, const struct fsdpck_verify_span *s)
{
    const struct fsdpck_table_entry *e = verify_job_entry(w, s);
    return s->begin + (e ? e->payload : 0);
}

/* Returns whether the window is one gap that is too long for a buffer. */
static inline bool verify_job_is_long_gap(const struct verify_job *w)
{
    return !verify_job_entry(w, w->spans) && w->spans->end - w->spans->begin > FSDPCK_VERIFY_WINDOW_NBYTES;
}

/* ---- verify_blocks.c ---- */

/* Checks the blocks of a span of stored bytes, `data`, against their hashes, and passes them on for the content ids.
 * Reports damage and returns 0; returns an error if hashes could not be read. */
int fsdpck_verify_blocks(const struct verify_job *w, const struct fsdpck_verify_span *s, const uint8_t *data,
                         struct fsdpck_error *err);
/* Reads, checks and decodes the blocks of a window of a compressed payload; the rest as above. */
int fsdpck_verify_compressed(const struct verify_job *w, struct fsdpck_error *err);

/* ---- verify_envelope.c ---- */

/* Adds the window's gaps to the hash of its file, in file order: now, or by a later call from another thread. The last
 * window of a file compares the hash, and reports a mismatch. data: the window's bytes, unless it is a long gap. code:
 * the result of reading the window; returned if it is an error. An unreadable window must be passed too: otherwise the
 * next ones would wait forever. */
int fsdpck_verify_envelope_add(const struct verify_job *w, const uint8_t *data, int code, struct fsdpck_error *err);
void fsdpck_verify_envelope_free(struct verify_envelope *env);

#endif
