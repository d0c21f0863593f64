/* SPDX-License-Identifier: Apache-2.0 */
/* A group is some pages of the file, of one size. */
#include "rank/grad_file.h"

#include <kernels/memory.h>
#include <stdio.h>
#include <stdlib.h>

#include "comm/comm.h"
#include "comm/scratch_file.h"

enum { MOST_PAGE_NBYTES = 4 << 20, NO_GROUP = -1 };

struct span {
    int64_t begin, end; /* elements of optimizer memory */
    uint64_t page;      /* its first one in the file */
};

struct grad_file {
    struct offload_file *file;
    char whose[24];
    struct span *groups; /* (ngroups) */
    uint64_t page_nbytes;
    char *memory;
    const struct kern_device *device; /* whose memory it is; NULL: host memory */
    struct kern_stream *stream;
    struct kern_buffer page; /* pinned, between the device and the file */
    int64_t group;           /* in memory */
    struct offload_times times;
};

static uint64_t span_nbytes(const struct span *s)
{
    return (uint64_t)(s->end - s->begin) * sizeof(float);
}

/* The trained parameters of a group follow each other in optimizer memory. */
static struct span span_of(const struct layout *l, uint32_t group)
{
    struct span s = { 0 };
    for (size_t i = 0; i < l->nparams; i++) {
        const struct param *p = &l->params[i];
        if (!p->trainable || p->group != group)
            continue;
        s.begin = s.end ? s.begin : p->own_at;
        s.end = p->own_at + p->chunk * p->ncol;
    }
    return s;
}

uint64_t grad_file_memory_nbytes(const struct layout *l)
{
    uint64_t most = SCRATCH_ALIGNED;
    for (uint32_t g = 0; g < l->ngroups; g++) {
        const struct span s = span_of(l, g);
        const uint64_t nbytes = scratch_aligned(span_nbytes(&s));
        most = nbytes > most ? nbytes : most;
    }
    return most;
}

static uint64_t choose_page(const struct layout *l)
{
    const uint64_t most = grad_file_memory_nbytes(l);
    return most < MOST_PAGE_NBYTES ? most : MOST_PAGE_NBYTES;
}

/* Lists the groups if asked to, and returns the number of pages. */
static uint64_t list_groups(const struct layout *l, uint64_t page_nbytes, struct span *groups)
{
    uint64_t npages = 0;
    for (uint32_t g = 0; g < l->ngroups; g++) {
        struct span s = span_of(l, g);
        s.page = npages;
        npages += (span_nbytes(&s) + page_nbytes - 1) / page_nbytes;
        if (groups)
            groups[g] = s;
    }
    return npages;
}

uint64_t grad_file_disk_nbytes(const struct layout *l)
{
    const uint64_t page_nbytes = choose_page(l);
    return list_groups(l, page_nbytes, NULL) * page_nbytes;
}

static int pin_page(struct grad_file *f, int index, struct fsdpck_error *err)
{
    const struct kern_location pinned = { .kind = KERN_MEMORY_PINNED, .index = index };
    char message[KERN_MESSAGE_BYTES];
    if (!f->device || f->device->memory->alloc(pinned, f->page_nbytes, &f->page, message) == KERN_OK)
        return 0;
    return fsdpck_error_set(err, FSDPCK_ERR_NOMEM, NULL, "no pinned memory for sums of gradients: %s", message);
}

int grad_file_new(const struct layout *l, uint32_t rank, const char *folder, const struct fsdpck_io *io,
                  const struct grad_file_memory *where, struct grad_file **out, struct fsdpck_error *err)
{
    struct grad_file *f = calloc(1, sizeof *f);
    uint64_t npages = 0;
    *out = NULL;
    if (!f)
        return fsdpck_error_nomem(err, sizeof *f);
    f->memory = where->memory;
    f->device = where->device;
    f->stream = where->stream;
    f->group = NO_GROUP;
    snprintf(f->whose, sizeof f->whose, "rank %u", rank);
    f->groups = calloc(l->ngroups, sizeof *f->groups);
    f->page_nbytes = choose_page(l);
    if (f->groups)
        npages = list_groups(l, f->page_nbytes, f->groups);
    int rc = f->groups ? offload_file_new(io, folder, f->whose, "the gradients", npages, f->page_nbytes, &f->file, err)
                       : fsdpck_error_nomem(err, l->ngroups * sizeof *f->groups);
    if (!rc)
        rc = pin_page(f, where->index, err);
    if (rc)
        grad_file_free(f);
    else
        *out = f;
    return rc;
}

void grad_file_free(struct grad_file *f)
{
    if (!f)
        return;
    if (f->device)
        f->device->memory->free(&f->page);
    offload_file_free(f->file);
    free(f->groups);
    free(f);
}

float *grad_file_sums(const struct grad_file *f, const struct param *p)
{
    return (float *)(void *)f->memory + (p->own_at - f->groups[p->group].begin);
}

void grad_file_group(const struct grad_file *f, uint32_t group, int64_t *begin, int64_t *end)
{
    *begin = f->groups[group].begin;
    *end = f->groups[group].end;
}

static int copy_page(struct grad_file *f, void *dst, const void *src, uint64_t nbytes, struct fsdpck_error *err)
{
    char message[KERN_MESSAGE_BYTES];
    f->device->memory->copy(f->stream, dst, src, nbytes);
    return f->device->stream_sync(f->stream, message) == KERN_OK
               ? 0
               : fsdpck_error_set(err, FSDPCK_ERR_IO, NULL, "copies of sums of gradients (fsdp.offload_gradients): %s",
                                  message);
}

static int move_page(struct grad_file *f, uint64_t page, char *memory, uint64_t nbytes, bool write,
                     struct fsdpck_error *err)
{
    char *on_host = f->device ? f->page.data : memory;
    int rc = f->device && write ? copy_page(f, on_host, memory, nbytes, err) : 0;
    if (!rc)
        rc = write ? offload_file_write(f->file, page, on_host, nbytes, err)
                   : offload_file_read(f->file, page, on_host, nbytes, err);
    return !rc && f->device && !write ? copy_page(f, memory, on_host, nbytes, err) : rc;
}

static int move(struct grad_file *f, uint32_t group, bool write, struct fsdpck_error *err)
{
    const uint64_t started = comm_now_ns();
    const struct span *s = &f->groups[group];
    const uint64_t total = span_nbytes(s);
    int rc = 0;
    for (uint64_t at = 0, page = s->page; at < total && !rc; at += f->page_nbytes, page++) {
        const uint64_t nbytes = total - at < f->page_nbytes ? total - at : f->page_nbytes;
        rc = move_page(f, page, f->memory + at, nbytes, write, err);
    }
    f->times.busy_ns += comm_now_ns() - started;
    f->times.nbytes += total;
    f->group = rc ? NO_GROUP : (int64_t)group;
    return rc;
}

int grad_file_load(struct grad_file *f, uint32_t group, struct fsdpck_error *err)
{
    const uint64_t before = f->times.busy_ns;
    int rc = f->group == group ? 0 : move(f, group, false, err);
    f->times.waited_ns += f->times.busy_ns - before;
    return rc;
}

int grad_file_begin(struct grad_file *f, uint32_t group, bool all, struct fsdpck_error *err)
{
    if (!all && f->group != group)
        return move(f, group, false, err);
    f->group = all ? NO_GROUP : f->group;
    return 0;
}

struct offload_times *grad_file_times(struct grad_file *f)
{
    return &f->times;
}

int grad_file_store(struct grad_file *f, uint32_t group, struct fsdpck_error *err)
{
    return move(f, group, true, err);
}
