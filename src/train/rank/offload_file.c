/* SPDX-License-Identifier: Apache-2.0 */
#include "rank/offload_file.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "comm/scratch_file.h"

struct page {
    bool written;
    uint64_t hash, nbytes;
};

struct offload_file {
    const char *folder, *whose, *what;
    struct scratch_file file;
    uint64_t npages, page_nbytes;
    struct page *pages; /* (npages) */
};

/* The code says that the system failed, not that a checkpoint is damaged: a resume must not set one aside for it. */
static int fail(const struct offload_file *f, const char *doing, uint64_t page, const char *why,
                struct fsdpck_error *err)
{
    return fsdpck_error_set(err, FSDPCK_ERR_IO, f->folder, "%s: %s in %s (fsdp.offload), %s of %llu bytes at %llu: %s",
                            f->whose, f->what, f->folder ? "a file of this folder" : "host memory", doing,
                            (unsigned long long)f->page_nbytes, (unsigned long long)(page * f->page_nbytes), why);
}

int offload_file_new(const struct fsdpck_io *io, const char *folder, const char *whose, const char *what,
                     uint64_t npages, uint64_t page_nbytes, struct offload_file **out, struct fsdpck_error *err)
{
    struct offload_file *f = calloc(1, sizeof *f);
    *out = NULL;
    if (!f)
        return fsdpck_error_nomem(err, sizeof *f);
    *f = (struct offload_file){ .folder = folder,
                                .whose = whose,
                                .what = what,
                                .file.fd = -1,
                                .npages = npages,
                                .page_nbytes = page_nbytes,
                                .pages = calloc(npages + 1, sizeof *f->pages) };
    int rc = f->pages ? scratch_file_open(io, folder, whose, what, npages * page_nbytes, &f->file, err)
                      : fsdpck_error_nomem(err, npages * sizeof *f->pages);
    if (rc)
        offload_file_free(f);
    else
        *out = f;
    return rc;
}

void offload_file_free(struct offload_file *f)
{
    if (!f)
        return;
    scratch_file_close(&f->file);
    free(f->pages);
    free(f);
}

bool offload_file_is_direct(const struct offload_file *f)
{
    return f->file.direct;
}

void offload_file_clear(struct offload_file *f)
{
    memset(f->pages, 0, f->npages * sizeof *f->pages);
}

int offload_file_read(struct offload_file *f, uint64_t page, void *data, uint64_t nbytes, struct fsdpck_error *err)
{
    const struct page *p = &f->pages[page];
    if (!p->written) {
        memset(data, 0, nbytes);
        return 0;
    }
    const char *why = scratch_file_read(&f->file, data, scratch_aligned(nbytes), page * f->page_nbytes);
    if (!why && (nbytes != p->nbytes || XXH3_64bits(data, nbytes) != p->hash))
        why = "the bytes are not those that were written there";
    return why ? fail(f, "read", page, why, err) : 0;
}

int offload_file_write(struct offload_file *f, uint64_t page, const void *data, uint64_t nbytes,
                       struct fsdpck_error *err)
{
    f->pages[page] = (struct page){ true, XXH3_64bits(data, nbytes), nbytes };
    const char *why = scratch_file_write(&f->file, data, scratch_aligned(nbytes), page * f->page_nbytes);
    return why ? fail(f, "write", page, why, err) : 0;
}
