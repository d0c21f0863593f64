/* SPDX-License-Identifier: Apache-2.0 */
/* Rows begin anywhere, and reads past the page cache need whole blocks: a gather reads large windows and copies from
 * them. */
#include "comm/value_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <xxhash.h>

#include "comm/scratch_file.h"

enum { WINDOW_NBYTES = 4 << 20 };

struct value_file {
    const char *folder;
    struct scratch_file file;
    unsigned char *map;
    uint64_t nbytes;
    uint32_t npieces, nranks;
    uint64_t *hashes; /* (npieces, nranks) shared by all processes */
    bool borrows;     /* the hashes */
};

static uint64_t hashes_nbytes(const struct value_file *f)
{
    return ((uint64_t)f->npieces * f->nranks + 1) * sizeof *f->hashes;
}

static void *map(uint64_t nbytes, int flags, int fd)
{
    void *p = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED | flags, fd, 0);
    return p == MAP_FAILED ? NULL : p;
}

static int open_file(const struct value_file_request *req, struct value_file *f, struct fsdpck_error *err)
{
    return req->path ? scratch_file_join(req->io, req->path, "the parameters", &f->file, err)
                     : scratch_file_open(req->io, req->folder, "all ranks", "the parameters", f->nbytes, &f->file, err);
}

int value_file_new(const struct value_file_request *req, struct value_file **out, struct fsdpck_error *err)
{
    struct value_file *f = calloc(1, sizeof *f);
    *out = NULL;
    if (!f)
        return fsdpck_error_nomem(err, sizeof *f);
    *f = (struct value_file){ .folder = req->folder,
                              .file.fd = -1,
                              .nbytes = scratch_aligned(req->nbytes + 1),
                              .npieces = req->npieces,
                              .nranks = req->nranks,
                              .hashes = req->hashes,
                              .borrows = req->hashes != NULL };
    int rc = open_file(req, f, err);
    if (!rc) {
        f->map = map(f->nbytes, 0, f->file.fd);
        f->hashes = f->borrows ? f->hashes : map(hashes_nbytes(f), MAP_ANONYMOUS, -1);
        rc = f->map && f->hashes ? 0 : fsdpck_error_sys(err, errno, req->folder, "mmap");
    }
    if (rc)
        value_file_free(f);
    else
        *out = f;
    return rc;
}

void value_file_free(struct value_file *f)
{
    if (!f)
        return;
    if (f->map)
        munmap(f->map, f->nbytes);
    if (f->hashes && !f->borrows)
        munmap(f->hashes, hashes_nbytes(f));
    scratch_file_close(&f->file);
    free(f);
}

int value_file_fd(const struct value_file *f)
{
    return f->file.fd;
}

unsigned char *value_file_map(const struct value_file *f)
{
    return f->map;
}

static int fail(const struct value_file *f, uint32_t rank, const char *what, uint64_t nbytes, uint64_t at,
                const char *why, struct fsdpck_error *err)
{
    return fsdpck_error_set(err, FSDPCK_ERR_IO, f->folder,
                            "rank %u: the parameters in a file of this folder (fsdp.offload_params), %s of %llu bytes "
                            "at %llu: %s",
                            rank, what, (unsigned long long)nbytes, (unsigned long long)at, why);
}

/* The kernel writes whole pages: those at the ends of a chunk hold rows of its neighbours too. */
static int write_back(struct value_file *f, uint32_t rank, const struct comm_piece *p, unsigned flags,
                      struct fsdpck_error *err)
{
    size_t begin, nbytes = comm_piece_chunk(p, rank, &begin);
    if (nbytes && sync_file_range(f->file.fd, (off_t)(p->at + begin), (off_t)nbytes, flags))
        return fail(f, rank, "write", nbytes, p->at + begin, strerror(errno), err);
    return 0;
}

int value_file_publish(struct value_file *f, uint32_t rank, const struct comm_piece *pieces, size_t npieces,
                       struct fsdpck_error *err)
{
    int rc = 0;
    for (size_t i = 0; i < npieces && !rc; i++) {
        size_t begin, nbytes = comm_piece_chunk(&pieces[i], rank, &begin);
        f->hashes[pieces[i].number * f->nranks + rank] = XXH3_64bits(f->map + pieces[i].at + begin, nbytes);
        rc = write_back(f, rank, &pieces[i], SYNC_FILE_RANGE_WRITE, err);
    }
    return rc;
}

int value_file_release(struct value_file *f, uint32_t rank, const struct comm_piece *pieces, size_t npieces,
                       struct fsdpck_error *err)
{
    const unsigned all = SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER;
    int rc = 0;
    for (size_t i = 0; i < npieces && !rc; i++) {
        size_t begin, nbytes = comm_piece_chunk(&pieces[i], rank, &begin);
        const uint64_t at = pieces[i].at + begin, page = at / SCRATCH_ALIGNED * SCRATCH_ALIGNED;
        if (!nbytes) /* posix_fadvise() takes 0 bytes as all that follow */
            continue;
        rc = write_back(f, rank, &pieces[i], all, err);
        madvise(f->map + page, at + nbytes - page, MADV_DONTNEED); /* out of this process; the file keeps it */
        posix_fadvise(f->file.fd, (off_t)at, (off_t)nbytes, POSIX_FADV_DONTNEED); /* and out of the page cache */
    }
    return rc;
}

/* --- gathers --- */

void value_window_free(struct value_window *w)
{
    free(w->data);
    *w = (struct value_window){ 0 };
}

/* Copies bytes of the file. end: no byte from there on is asked for later. */
static const char *copy(const struct value_file *f, struct value_window *w, uint64_t at, uint64_t nbytes, uint64_t end,
                        char *into)
{
    while (nbytes > 0) {
        if (at < w->at || at >= w->at + w->nbytes) {
            w->at = at / SCRATCH_ALIGNED * SCRATCH_ALIGNED;
            w->nbytes = scratch_aligned(end) - w->at;
            w->nbytes = w->nbytes < WINDOW_NBYTES ? w->nbytes : WINDOW_NBYTES;
            const char *why = scratch_file_read(&f->file, w->data, w->nbytes, w->at);
            if (why)
                return why;
        }
        const uint64_t room = w->at + w->nbytes - at, n = nbytes < room ? nbytes : room;
        memcpy(into, w->data + (at - w->at), n);
        at += n;
        into += n;
        nbytes -= n;
    }
    return NULL;
}

/* Reads consecutive chunks of a piece. */
static const char *read_chunks(const struct value_file *f, struct value_window *w, const struct comm_piece *p,
                               uint32_t first, uint32_t last, uint64_t end, char *into)
{
    size_t begin, last_begin;
    comm_piece_chunk(p, first, &begin);
    const size_t stop = comm_piece_chunk(p, last, &last_begin);
    const char *why = copy(f, w, p->at + begin, last_begin + stop - begin, end, into + p->into + begin);
    for (uint32_t r = first; r <= last && !why; r++) {
        size_t nbytes = comm_piece_chunk(p, r, &begin);
        if (XXH3_64bits(into + p->into + begin, nbytes) != f->hashes[p->number * f->nranks + r])
            why = "the bytes are not those that were written there";
    }
    return why;
}

static const char *read_piece(const struct value_file *f, struct value_window *w, const bool *wanted,
                              const struct comm_piece *p, uint64_t end, char *into)
{
    const char *why = NULL;
    for (uint32_t r = 0, last; r < f->nranks && !why; r = last + 1) {
        last = r;
        if (wanted && !wanted[r])
            continue;
        while (last + 1 < f->nranks && (!wanted || wanted[last + 1]))
            last++;
        why = read_chunks(f, w, p, r, last, end, into);
    }
    return why;
}

int value_file_gather(const struct value_file *f, struct value_window *w, uint32_t rank, const bool *wanted,
                      const struct comm_piece *pieces, size_t npieces, char *into, struct fsdpck_error *err)
{
    uint64_t end = 0;
    if (!w->data)
        w->data = aligned_alloc(SCRATCH_ALIGNED, WINDOW_NBYTES);
    if (!w->data)
        return fsdpck_error_nomem(err, WINDOW_NBYTES);
    w->nbytes = 0; /* the file may have changed */
    for (size_t i = 0; i < npieces; i++)
        end = pieces[i].at + pieces[i].nbytes > end ? pieces[i].at + pieces[i].nbytes : end;
    for (size_t i = 0; i < npieces; i++) {
        const struct comm_piece *p = &pieces[i];
        const char *why = read_piece(f, w, wanted, p, end, into);
        if (why)
            return fail(f, rank, "read", p->nbytes, p->at, why, err);
    }
    return 0;
}
