/* SPDX-License-Identifier: Apache-2.0 */
/* Reads weights for the checks that need values: all of them with --deep. Knows no checks. */
#ifndef CKPT_DOCTOR_READS_H
#define CKPT_DOCTOR_READS_H

#include "base/hash.h"
#include "doctor/checks.h"

/* Gets the next elements of a tensor, in row-major order. Returns false to end the reading. */
typedef bool (*doctor_values_fn)(void *ctx, const uint8_t *data, uint64_t nelem);

/* A folder's weights, opened for reading. */
struct doctor_reads {
    struct fsdpck_source *src;
    uint8_t *piece;
};

/* Returns false if the folder cannot be opened as a source: its values cannot be judged. fsdpck_doctor_reads_end()
 * releases r even then. */
bool fsdpck_doctor_reads_begin(struct doctor *d, const struct doctor_model *m, struct doctor_reads *r);
void fsdpck_doctor_reads_end(struct doctor_reads *r);
/* Visits elements [begin, end) of a tensor. A file that cannot be read ends the examination: d->err is set, and false
 * returned. */
bool fsdpck_doctor_read(struct doctor *d, struct doctor_reads *r, const char *name, uint64_t begin, uint64_t end,
                        doctor_values_fn visit, void *ctx);
enum doctor_likeness { DOCTOR_UNKNOWN, DOCTOR_EQUAL, DOCTOR_OTHER };
/* Compares all values of two tensors of d->model, or a few: then they are DOCTOR_OTHER or DOCTOR_UNKNOWN.
 * DOCTOR_UNKNOWN also if they could not be read. */
enum doctor_likeness fsdpck_doctor_compare(struct doctor *d, const struct doctor_tensor *a,
                                           const struct doctor_tensor *b, bool all);
/* Computes the hash of elements [begin, end), with the same failures. */
bool fsdpck_doctor_hash(struct doctor *d, struct doctor_reads *r, const struct doctor_tensor *t, uint64_t begin,
                        uint64_t end, struct fsdpck_hash128 *out);

#endif
