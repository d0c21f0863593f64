/* SPDX-License-Identifier: Apache-2.0 */
#include "picture.h"

#include <stdlib.h>

#include "common/json_out.h"
#include "common/out_file.h"
#include "common/page_out.h"
#include "ls.h"

enum { MOST_PROBLEMS = 1000, MOST_FILES = 256, MOST_RANKS = 65536 };

bool picture_problem(json_t *damage, const struct fsdpck_problem *problem)
{
    if (json_array_size(damage) >= MOST_PROBLEMS)
        return true;
    json_t *o = json_object();
    bool ok = json_out_put(o, "file", json_out_text(problem->file));
    ok &= json_out_put(o, "tensor", json_out_text(problem->tensor));
    ok &= json_out_put(o, "rank", json_integer(problem->rank));
    ok &=
        json_out_put(o, "rows", json_pack("[o, o]", json_out_u64(problem->row_begin), json_out_u64(problem->row_end)));
    ok &= json_out_put(o, "offset", json_out_u64(problem->offset));
    ok &= json_out_put(o, "bytes", json_out_u64(problem->nbytes));
    ok &= json_out_put(o, "what", json_out_text(problem->what));
    return json_out_append(damage, o) && ok;
}

static int by_nbytes(const void *a, const void *b)
{
    const struct fsdpck_file *x = *(const struct fsdpck_file *const *)a, *y = *(const struct fsdpck_file *const *)b;
    return x->nbytes < y->nbytes ? 1 : x->nbytes > y->nbytes ? -1 : x < y ? -1 : x > y;
}

/* The largest files; the others as one sum. */
static json_t *files_json(const struct fsdpck_source *src)
{
    const size_t n = fsdpck_source_nfiles(src);
    const struct fsdpck_file **files = calloc(n + 1, sizeof *files);
    json_t *list = files ? json_array() : NULL;
    uint64_t rest = 0;
    for (size_t i = 0; i < n && list; i++)
        files[i] = fsdpck_source_file(src, i);
    if (n && files)
        qsort(files, n, sizeof(void *), by_nbytes);
    for (size_t i = 0; i < n && list; i++) {
        if (i < MOST_FILES)
            json_out_append(list, json_pack("{s:o, s:o, s:I}", "name", json_out_text(files[i]->name), "bytes",
                                            json_out_u64(files[i]->nbytes), "rank", (json_int_t)files[i]->rank));
        else
            rest += files[i]->nbytes;
    }
    free(files);
    return json_pack("{s:o?, s:I, s:o}", "list", list, "count", (json_int_t)n, "rest_bytes", json_out_u64(rest));
}

/* Bytes of the files of each rank that wrote the source. */
static json_t *stored_json(const struct fsdpck_source *src)
{
    const uint64_t n = fsdpck_source_nranks(src);
    uint64_t *nbytes = n && n <= MOST_RANKS ? calloc(n, sizeof *nbytes) : NULL;
    if (!nbytes)
        return json_null();
    for (size_t i = 0; i < fsdpck_source_nfiles(src); i++) {
        const struct fsdpck_file *f = fsdpck_source_file(src, i);
        if (f->rank >= 0 && (uint64_t)f->rank < n)
            nbytes[f->rank] += f->nbytes;
    }
    json_t *list = json_out_u64s(nbytes, n);
    free(nbytes);
    return list;
}

static json_t *plan_json(const struct picture *p)
{
    json_t *o = json_object(), *ranks = json_array();
    bool ok = json_out_put(o, "mesh", json_out_mesh(p->mesh));
    for (uint64_t rank = 0; rank < fsdpck_mesh_nranks(p->mesh); rank++) {
        const struct fsdpck_plan *r = &p->plans[rank];
        const uint64_t numbers[] = { r->needed_nbytes, r->read_nbytes, r->nfiles, r->nruns, r->peak_nbytes };
        ok &= json_out_append(ranks, json_out_u64s(numbers, sizeof numbers / sizeof numbers[0]));
    }
    if (json_out_put(o, "ranks", ranks) && ok)
        return o;
    json_decref(o);
    return NULL;
}

static bool add_source(json_t *o, const struct fsdpck_source *src, const struct picture *p)
{
    struct picture_layout *layouts = NULL;
    size_t count = 0;
    bool ok = json_out_put(o, "source_kind", json_string(fsdpck_source_kind(src)));
    ok &= json_out_put(o, "source_ranks", json_out_u64(fsdpck_source_nranks(src)));
    ok &= json_out_put(o, "tensors", json_out_u64(fsdpck_source_ntensors(src)));
    ok &= json_out_put(o, "bytes", json_out_u64(ls_payload_nbytes(src)));
    ok &= json_out_put(o, "files", files_json(src));
    ok &= json_out_put(o, "stored", stored_json(src));
    ok &= json_out_put(o, "groups", picture_groups(src, p, &layouts, &count));
    if (p->mesh) {
        ok &= json_out_put(o, "plan", plan_json(p));
        ok &= json_out_put(o, "moves", picture_moves(p, layouts, count));
    }
    picture_layouts_free(layouts, count);
    return ok;
}

struct page {
    const struct fsdpck_source *src;
    const struct picture *picture;
};

static bool put_page(FILE *f, const void *ctx)
{
    static const unsigned char *const scripts[] = { page_picture_js, NULL };
    const struct page *page = ctx;
    const struct picture *p = page->picture;
    json_t *o = json_object();
    bool ok = json_out_put(o, "source", json_out_text(p->typed));
    if (p->damage) {
        ok &= json_out_put(o, "damage", json_incref(p->damage));
        ok &= json_out_put(o, "damage_count", json_out_u64(p->ndamage));
    }
    if (page->src)
        ok &= add_source(o, page->src, p);
    return page_out(f, "Checkpoint", o, scripts) && ok;
}

int picture_write(const char *out, const struct fsdpck_source *src, const struct picture *picture,
                  struct fsdpck_error *err)
{
    static const char *const heads[] = { PAGE_HEAD, NULL };
    const struct page page = { src, picture };
    return out_file_write(&(struct out_file){ out, "page of fsdpck", "--html", heads, put_page, &page }, err);
}
