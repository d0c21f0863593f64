/* SPDX-License-Identifier: Apache-2.0 */
/* Reads a checkpoint in memory once, in every way. Properties: an opened source has a consistent catalogue; a part of a
 * tensor equals that part of the whole; a plan counts what the read needs; a checkpoint without problems for verify can
 * be opened and read; no descriptor stays open. */
#include "fuzz_source.h"

#include <string.h>

#include <fsdpck/check.h>
#include <fsdpck/source.h>

#include "fuzz.h"
#include "base/ioutil.h"
#include "engine/source_impl.h"
#include "base/utf8.h"

#define MAX_READ_NBYTES (64u << 10) /* larger tensors are not read: slow, with no new coverage */
#define MAX_TENSORS     16u         /* most tensors read */

static struct fsdpck_options options_of(struct memory_io *m)
{
    return (struct fsdpck_options){ .io = &m->io, .nthreads = 1, .memory_nbytes = 8u << 20 };
}

static void check_error(int code, const struct fsdpck_error *err)
{
    char text[2048];
    FUZZ_CHECK(code == 0 ? err->code == 0 : err->code == code && err->message[0] != '\0');
    FUZZ_CHECK(code != FSDPCK_ERR_USAGE && code != FSDPCK_ERR_STOPPED);
    FUZZ_CHECK(fsdpck_error_format(err, text, sizeof text) == text);
}

/* ---- the catalogue ---- */

static void check_path(const struct fsdpck_key *path, uint32_t npath)
{
    FUZZ_CHECK(npath > 0);
    for (uint32_t i = 0; i < npath; i++)
        FUZZ_CHECK(!path[i].str || fsdpck_utf8_valid(path[i].str, strlen(path[i].str)));
}

static void check_rule(const struct fsdpck_tensor *t)
{
    FUZZ_CHECK(!t->placements || t->mesh);
    for (uint32_t d = 0; t->placements && d < t->mesh->ndim; d++) {
        FUZZ_CHECK(t->placements[d].kind == FSDPCK_REPLICATE || t->placements[d].dim < t->ndim);
        FUZZ_CHECK(t->mesh->sizes[d] > 0);
    }
}

static void check_tensor(const struct fsdpck_source *src, size_t i)
{
    const struct fsdpck_tensor *t = fsdpck_source_tensor(src, i);
    uint64_t nelem = 1;
    FUZZ_CHECK(fsdpck_source_find(src, t->name) == t);
    FUZZ_CHECK(fsdpck_utf8_valid(t->name, strlen(t->name)));
    check_path(t->path, t->npath);
    FUZZ_CHECK(t->dtype < FSDPCK_NDTYPES && t->ndim <= FSDPCK_MAX_DIMS);
    for (uint32_t d = 0; d < t->ndim; d++)
        nelem *= t->shape[d];
    FUZZ_CHECK(nelem == t->nelem && t->nbytes == nelem * fsdpck_dtype_info(t->dtype)->nbytes);
    check_rule(t);
    if (t->alias_of >= 0) {
        FUZZ_CHECK((size_t)t->alias_of < fsdpck_source_ntensors(src));
        const struct fsdpck_tensor *to = fsdpck_source_tensor(src, (size_t)t->alias_of);
        FUZZ_CHECK(to->alias_of < 0 && to->dtype == t->dtype && to->nbytes == t->nbytes);
    }
}

static void check_catalogue(const struct fsdpck_source *src)
{
    for (size_t i = 0; i < fsdpck_source_ntensors(src); i++)
        check_tensor(src, i);
    for (size_t i = 0; i < fsdpck_source_nfiles(src); i++)
        FUZZ_CHECK(fsdpck_path_is_plain(fsdpck_source_file(src, i)->name));
    for (size_t i = 0; i < fsdpck_source_nassets(src); i++)
        FUZZ_CHECK(fsdpck_path_is_plain(fsdpck_source_asset(src, i)->path));
    for (size_t i = 0; i < fsdpck_source_nitems(src); i++) {
        const struct source_item *item = &source_items(src)[i];
        uint64_t nbytes = fsdpck_source_file(src, item->file)->nbytes;
        check_path(item->pub.path, item->pub.npath);
        FUZZ_CHECK(item->offset <= nbytes && item->pub.nbytes <= nbytes - item->offset);
    }
}

/* ---- bytes ---- */

/* The middle of the tensor, read into a destination that is not dense: rows in reverse. */
struct middle {
    uint64_t offset[FSDPCK_MAX_DIMS], size[FSDPCK_MAX_DIMS];
    int64_t strides[FSDPCK_MAX_DIMS];
    uint64_t nelem, item, first; /* first: offset of the first element in the destination */
};

static void choose_middle(const struct fsdpck_tensor *t, struct middle *m)
{
    m->item = fsdpck_dtype_info(t->dtype)->nbytes;
    m->nelem = 1;
    for (uint32_t d = t->ndim; d-- > 0; m->nelem *= m->size[d]) {
        m->offset[d] = t->shape[d] / 3;
        m->size[d] = t->shape[d] - t->shape[d] / 3 - t->shape[d] / 4;
        m->strides[d] = (int64_t)(m->nelem * m->item);
    }
    m->first = 0;
    if (t->ndim) {
        m->first = (m->size[0] - 1) * (uint64_t)m->strides[0];
        m->strides[0] = -m->strides[0];
    }
}

static void compare_middle(const struct fsdpck_tensor *t, const struct middle *m, const uint8_t *whole,
                           const uint8_t *part)
{
    for (uint64_t n = 0; n < m->nelem; n++) {
        uint64_t rest = n, from = 0, scale = 1;
        const uint8_t *to = part + m->first;
        for (uint32_t d = t->ndim; d-- > 0; scale *= t->shape[d], rest /= m->size[d]) {
            from += (m->offset[d] + rest % m->size[d]) * scale;
            to += (int64_t)(rest % m->size[d]) * m->strides[d];
        }
        FUZZ_CHECK(memcmp(whole + from * m->item, to, m->item) == 0);
    }
}

static void check_plan(struct fsdpck_source *src, const struct fsdpck_read *read)
{
    struct fsdpck_plan plan;
    struct fsdpck_error err = { 0 };
    int r = fsdpck_source_plan(src, read, 1, &plan, &err);
    check_error(r, &err);
    /* Views of torch may repeat an element: stride 0, or rows that overlap. Items of DCP are saved as views too. */
    const char *kind = fsdpck_source_kind(src);
    bool views = strcmp(kind, "pt") == 0 || strcmp(kind, "ranks") == 0 || strcmp(kind, "dcp") == 0;
    FUZZ_CHECK(r != 0 ||
               (plan.needed_nbytes == read->tensor->nbytes && (views || plan.read_nbytes >= plan.needed_nbytes)));
}

/* Returns true if the tensor could be read. */
static bool read_tensor(struct fsdpck_source *src, const struct fsdpck_tensor *t)
{
    struct middle m;
    struct fsdpck_error err = { 0 };
    choose_middle(t, &m);
    uint8_t *whole = malloc(t->nbytes), *part = malloc(m.nelem * m.item);
    FUZZ_CHECK(whole && part);
    struct fsdpck_read reads[2] = {
        { .tensor = t, .dst = whole },
        { .tensor = t, .offset = m.offset, .size = m.size, .dst = part + m.first, .strides = m.strides }
    };
    check_plan(src, reads);
    int r = fsdpck_source_read(src, reads, 2, &err);
    check_error(r, &err);
    if (r == 0)
        compare_middle(t, &m, whole, part);
    free(whole);
    free(part);
    return r == 0;
}

static bool read_all(struct fsdpck_source *src)
{
    bool all = true;
    unsigned nread = 0;
    for (size_t i = 0; i < fsdpck_source_ntensors(src) && nread < MAX_TENSORS; i++) {
        const struct fsdpck_tensor *t = fsdpck_source_tensor(src, i);
        if (t->nbytes == 0 || t->nbytes > MAX_READ_NBYTES)
            continue;
        all = read_tensor(src, t) && all;
        nread++;
    }
    return all;
}

/* ---- the whole ---- */

static void check_problem(void *ctx, const struct fsdpck_problem *p)
{
    FUZZ_CHECK(p->file && p->what && p->what[0] != '\0' && p->row_begin <= p->row_end);
    ++*(uint64_t *)ctx;
}

/* Returns true if verify finds no problem. */
static bool verify(const char *path, const char *from, const struct fsdpck_options *opt)
{
    struct fsdpck_verify_result result;
    struct fsdpck_error err = { 0 };
    uint64_t nproblems = 0;
    int r = fsdpck_verify(path, from, false, opt, check_problem, &nproblems, &result, &err);
    check_error(r, &err);
    FUZZ_CHECK(nproblems == result.nproblems);
    return r == 0 && nproblems == 0;
}

/* Returns true if everything could be read. */
static bool open_and_read(struct memory_io *m, const char *path, const char *from, const struct fsdpck_options *opt)
{
    struct fsdpck_error err = { 0 };
    struct fsdpck_source *src;
    bool sound = false;
    int r = fsdpck_source_open(path, from, opt, &src, &err);
    check_error(r, &err);
    FUZZ_CHECK((r == 0) == (src != NULL));
    if (r == 0) {
        check_catalogue(src);
        sound = read_all(src);
        r = fsdpck_source_check(src, &err);
        check_error(r, &err);
        sound = sound && r == 0;
        fsdpck_source_close(src);
    }
    FUZZ_CHECK(m->nopen == 0);
    return sound;
}

void fuzz_source(struct memory_io *m, const char *path, const char *from)
{
    struct fsdpck_options opt = options_of(m), lax = options_of(m);
    lax.no_verify = true; /* skips the CRC-32s, which few mutated files pass */
    bool sound = open_and_read(m, path, from, &opt), read = open_and_read(m, path, from, &lax);
    FUZZ_CHECK(read || !sound);
    FUZZ_CHECK(!verify(path, from, &opt) || sound);
    FUZZ_CHECK(m->nopen == 0);
}
