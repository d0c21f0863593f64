/* SPDX-License-Identifier: Apache-2.0 */
/* A rank's sums of gradients in a file (fsdp.offload_gradients). One group is in memory at a time. */
#ifndef TRAIN_GRAD_FILE_H
#define TRAIN_GRAD_FILE_H

#include <kernels/stream.h>

#include "model/layout.h"
#include "rank/offload_file.h"

struct grad_file;

uint64_t grad_file_memory_nbytes(const struct layout *l);
uint64_t grad_file_disk_nbytes(const struct layout *l);
/* Where the sums of the group are. */
struct grad_file_memory {
    void *memory;                     /* (grad_file_memory_nbytes) aligned to 4096 */
    const struct kern_device *device; /* whose memory it is; NULL: host memory */
    int index;
    struct kern_stream *stream; /* the sums change on it, or before the calls; each call waits for it */
};

/* All is borrowed. folder: NULL for a file in host memory. io: NULL for the system's. */
int grad_file_new(const struct layout *l, uint32_t rank, const char *folder, const struct fsdpck_io *io,
                  const struct grad_file_memory *where, struct grad_file **out, struct fsdpck_error *err);
void grad_file_free(struct grad_file *f); /* NULL does nothing */

/* The sums of a parameter while its group is in memory. */
float *grad_file_sums(const struct grad_file *f, const struct param *p);
/* Elements of optimizer memory of the group: [*begin, *end). */
void grad_file_group(const struct grad_file *f, uint32_t group, int64_t *begin, int64_t *end);
/* Reads a group that is not in memory yet; the step waits. */
int grad_file_load(struct grad_file *f, uint32_t group, struct fsdpck_error *err);
/* Before the sums of a group change: reads them, unless all of them will be assigned. */
int grad_file_begin(struct grad_file *f, uint32_t group, bool all, struct fsdpck_error *err);
/* The sums of the group in memory have changed: writes them. */
int grad_file_store(struct grad_file *f, uint32_t group, struct fsdpck_error *err);
/* Not while another thread uses the file. The caller adds its waits for begin and store. */
struct offload_times *grad_file_times(struct grad_file *f);

#endif
