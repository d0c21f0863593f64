/* SPDX-License-Identifier: Apache-2.0 */
/* The parameters of all ranks of a host at rest in a file (fsdp.offload_params). Owners write their rows through a
 * shared mapping; gathers read them past the page cache. Each rank's chunk of a parameter has a hash, which is checked
 * when it is read. */
#ifndef TRAIN_VALUE_FILE_H
#define TRAIN_VALUE_FILE_H

#include <fsdpck/io.h>

#include "comm/comm.h"

struct value_file;

struct value_file_request {
    const struct fsdpck_io *io; /* NULL for the system's */
    const char *folder;
    size_t nbytes; /* of all parameters */
    uint32_t npieces, nranks;
    uint64_t *hashes; /* (npieces, nranks) shared by the processes, zeroed, borrowed; NULL: they fork later */
    const char *path; /* by which another process opens the file of the first one; NULL: a new file */
};

int value_file_new(const struct value_file_request *req, struct value_file **out, struct fsdpck_error *err);
void value_file_free(struct value_file *f); /* NULL does nothing */
int value_file_fd(const struct value_file *f);
/* (nbytes) at comm_piece.at; at the same address in all processes that fork later. Pages are in memory from the first
 * access to value_file_release(). */
unsigned char *value_file_map(const struct value_file *f);

/* The rank has changed its chunks, or has got them from their owner, `rank`: computes their hashes and begins to write
 * them. */
int value_file_publish(struct value_file *f, uint32_t rank, const struct comm_piece *pieces, size_t npieces,
                       struct fsdpck_error *err);
/* Waits until they are written, and frees their memory. */
int value_file_release(struct value_file *f, uint32_t rank, const struct comm_piece *pieces, size_t npieces,
                       struct fsdpck_error *err);

/* Reads for one thread. Zero-initialise. */
struct value_window {
    char *data;
    uint64_t at, nbytes;
};
void value_window_free(struct value_window *w);
/* The caller is a rank. wanted: (nranks) whose chunks are read; NULL: those of all ranks. */
int value_file_gather(const struct value_file *f, struct value_window *w, uint32_t rank, const bool *wanted,
                      const struct comm_piece *pieces, size_t npieces, char *into, struct fsdpck_error *err);

#endif
