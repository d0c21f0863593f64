/* SPDX-License-Identifier: Apache-2.0 */
/* Files on a local disk for data that does not fit into memory. They have no name, so that nothing is left of them when
 * their process ends in any way. */
#ifndef TRAIN_SCRATCH_FILE_H
#define TRAIN_SCRATCH_FILE_H

#include <fsdpck/io.h>

enum { SCRATCH_ALIGNED = 4096 };

struct scratch_file {
    const struct fsdpck_io *io;
    int fd;
    bool direct; /* false: the file system does not support O_DIRECT, and the file goes through the page cache */
};

static inline uint64_t scratch_aligned(uint64_t nbytes)
{
    return (nbytes + SCRATCH_ALIGNED - 1) / SCRATCH_ALIGNED * SCRATCH_ALIGNED;
}

/* Reserves the file's room on the disk. folder: NULL for a file in host memory, which takes memory as it is written.
 * io: NULL for the system's, borrowed. whose, what: for messages, as "rank 0" and "the optimizer state". */
int scratch_file_open(const struct fsdpck_io *io, const char *folder, const char *whose, const char *what,
                      uint64_t nbytes, struct scratch_file *out, struct fsdpck_error *err);
/* Opens the file of another process by its path in /proc. */
int scratch_file_join(const struct fsdpck_io *io, const char *path, const char *what, struct scratch_file *out,
                      struct fsdpck_error *err);
void scratch_file_close(struct scratch_file *f);
/* data, nbytes and at: multiples of SCRATCH_ALIGNED. Returns NULL, or why it failed. Threads may use different parts at
 * the same time. */
const char *scratch_file_read(const struct scratch_file *f, void *data, uint64_t nbytes, uint64_t at);
const char *scratch_file_write(const struct scratch_file *f, const void *data, uint64_t nbytes, uint64_t at);

#endif
