/* SPDX-License-Identifier: Apache-2.0 */
/* A file of fsdp.offload: pages of optimizer state or gradients, each checked against its hash when it is read. The
 * file has no name, so that nothing is left of it when its process ends in any way. Pages that were never written are
 * zero.
 */
#ifndef TRAIN_OFFLOAD_FILE_H
#define TRAIN_OFFLOAD_FILE_H

#include <fsdpck/io.h>

struct offload_file;

/* Kept by those who use a file. */
struct offload_times {
    uint64_t busy_ns;   /* the file was read or written for steps */
    uint64_t waited_ns; /* steps waited for it */
    uint64_t nbytes;    /* read and written for steps */
};

/* Reserves the file's room on the disk. folder: NULL for a file in host memory. io: NULL for the system's. whose, what:
 * of the file, for messages, as "rank 0" and "the optimizer state"; borrowed as is folder. */
int offload_file_new(const struct fsdpck_io *io, const char *folder, const char *whose, const char *what,
                     uint64_t npages, uint64_t page_nbytes, struct offload_file **out, struct fsdpck_error *err);
void offload_file_free(struct offload_file *f); /* NULL does nothing */
/* False: the file system does not support O_DIRECT, and the file goes through the page cache. */
bool offload_file_is_direct(const struct offload_file *f);
/* data: (nbytes) aligned to 4096, with room up to a multiple of 4096. Threads may use different pages at the same
 * time. */
int offload_file_read(struct offload_file *f, uint64_t page, void *data, uint64_t nbytes, struct fsdpck_error *err);
int offload_file_write(struct offload_file *f, uint64_t page, const void *data, uint64_t nbytes,
                       struct fsdpck_error *err);
/* All pages are zero again. */
void offload_file_clear(struct offload_file *f);

#endif
