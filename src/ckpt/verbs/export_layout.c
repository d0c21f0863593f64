/* SPDX-License-Identifier: Apache-2.0 */
/* Assigns tensors to safetensors files and writes the headers and the index as text. Knows no sources and opens no
 * file. */
#include "verbs/export_layout.h"

#include <stdlib.h>
#include <string.h>

#include "base/buffer.h"
#include "base/hash.h"

#define PAGE_ALIGN_FROM_NBYTES (64u << 10)
#define MAX_HEADER_NBYTES      100000000u /* with a larger header, the reference reader refuses the file */

static struct export_tensor *tensors_of(const struct export_layout *l)
{
    return l->tensors.data;
}

/* ---- choosing the file ---- */

/* A file gets its number when it is closed: a tensor too large to share a file is numbered before the file that is open
 * at that time. */
static size_t assign_files(struct export_layout *l, uint64_t max_nbytes, size_t *number)
{
    struct export_tensor *t = tensors_of(l);
    size_t nopened = 0, nclosed = 0, open = SIZE_MAX;
    uint64_t filled = 0;
    for (size_t i = 0; i < l->tensors.count; i++) {
        if (open != SIZE_MAX && t[i].rank != t[i - 1].rank) {
            number[open] = nclosed++;
            open = SIZE_MAX;
        }
        if (t[i].nbytes > max_nbytes) {
            t[i].file = nopened++;
            number[t[i].file] = nclosed++;
            continue;
        }
        if (open != SIZE_MAX && t[i].nbytes > max_nbytes - filled) {
            number[open] = nclosed++;
            open = SIZE_MAX;
        }
        if (open == SIZE_MAX) {
            open = nopened++;
            filled = 0;
        }
        t[i].file = open;
        filled += t[i].nbytes;
    }
    if (open != SIZE_MAX)
        number[open] = nclosed++;
    for (size_t i = 0; i < l->tensors.count; i++)
        t[i].file = number[t[i].file];
    return nclosed;
}

static int by_file(const void *a, const void *b)
{
    const struct export_tensor *x = a, *y = b;
    if (x->file != y->file)
        return x->file < y->file ? -1 : 1;
    return x->order < y->order ? -1 : x->order > y->order;
}

static int by_width(const void *a, const void *b)
{
    const struct export_tensor *x = a, *y = b;
    uint32_t p = fsdpck_dtype_info(x->dtype)->nbytes, q = fsdpck_dtype_info(y->dtype)->nbytes;
    if (p != q)
        return p > q ? -1 : 1;
    return x->order < y->order ? -1 : x->order > y->order;
}

static int split(struct export_layout *l, uint64_t max_nbytes, struct fsdpck_error *err)
{
    size_t n = l->tensors.count, nfiles;
    size_t *number = malloc((n ? n : 1) * sizeof *number);
    if (!number)
        return fsdpck_error_nomem(err, n * sizeof *number);
    nfiles = assign_files(l, max_nbytes, number);
    free(number);
    l->nfiles = nfiles ? nfiles : 1;
    if (!(l->files = calloc(l->nfiles, sizeof *l->files)))
        return fsdpck_error_nomem(err, l->nfiles * sizeof *l->files);
    if (n)
        qsort(l->tensors.data, n, sizeof(struct export_tensor), by_file);
    for (size_t i = n; i-- > 0;) {
        struct export_file *f = &l->files[tensors_of(l)[i].file];
        f->first = i;
        f->count++;
    }
    return 0;
}

/* ---- choosing the offset ---- */

static bool place_in_order(struct export_tensor *t, size_t n, uint64_t *end)
{
    bool aligned = true;
    *end = 0;
    for (size_t i = 0; i < n; i++) {
        t[i].begin = *end;
        *end += t[i].nbytes;
        aligned = aligned && t[i].begin % fsdpck_dtype_info(t[i].dtype)->nbytes == 0;
    }
    return aligned;
}

static void assign_offsets(struct export_layout *l, struct export_file *f)
{
    struct export_tensor *t = tensors_of(l) + f->first;
    if (f->count && !place_in_order(t, f->count, &f->data_nbytes)) {
        qsort(t, f->count, sizeof *t, by_width);
        place_in_order(t, f->count, &f->data_nbytes);
    }
    l->total_nbytes += f->data_nbytes;
}

/* ---- the header ---- */

static void add_entry(struct fsdpck_text *h, const struct export_tensor *t)
{
    uint64_t shape[FSDPCK_MAX_DIMS];
    if (t->ndim)
        memcpy(shape, t->shape, t->ndim * sizeof *shape);
    if (t->dtype == FSDPCK_FLOAT4_E2M1FN_X2)
        shape[t->ndim - 1] *= 2; /* safetensors counts values, torch counts pairs of them */
    fsdpck_text_add(h, ",", 1);
    fsdpck_text_json(h, t->name);
    fsdpck_text_printf(h, ":{\"dtype\":\"%s\",\"shape\":", fsdpck_dtype_info(t->dtype)->safetensors);
    fsdpck_text_json_u64s(h, shape, t->ndim);
    fsdpck_text_printf(h, ",\"data_offsets\":[%llu,%llu]}", (unsigned long long)t->begin,
                       (unsigned long long)(t->begin + t->nbytes));
}

static int make_header(struct export_layout *l, struct export_file *f, const char *metadata, struct fsdpck_error *err)
{
    static const char start[] = "\0\0\0\0\0\0\0\0{\"__metadata__\":{\"format\":\"pt\"";
    struct fsdpck_text *h = &f->header;
    size_t align = f->data_nbytes >= PAGE_ALIGN_FROM_NBYTES ? FSDPCK_PAGE_NBYTES : 8;
    fsdpck_text_add(h, start, sizeof start - 1);
    if (metadata)
        fsdpck_text_add(h, metadata, strlen(metadata));
    fsdpck_text_add(h, "}", 1);
    for (size_t i = 0; i < f->count; i++)
        add_entry(h, &tensors_of(l)[f->first + i]);
    fsdpck_text_add(h, "}", 1);
    fsdpck_text_printf(h, "%*s", (int)((align - h->nbytes % align) % align), "");
    int rc = fsdpck_text_check(h, err);
    if (rc)
        return rc;
    if (h->nbytes - 8 > MAX_HEADER_NBYTES)
        return fsdpck_error_set(
            err, FSDPCK_ERR_UNSUPPORTED, NULL,
            "the header of %zu tensors in one file takes %zu bytes; safetensors allows %u: several files are needed",
            f->count, h->nbytes - 8, MAX_HEADER_NBYTES);
    fsdpck_put64((uint8_t *)h->data, h->nbytes - 8);
    return 0;
}

int fsdpck_export_lay_out(struct export_layout *l, uint64_t max_shard_nbytes, const char *metadata,
                          struct fsdpck_error *err)
{
    int rc = split(l, max_shard_nbytes, err);
    for (size_t i = 0; i < l->nfiles && !rc; i++) {
        assign_offsets(l, &l->files[i]);
        rc = make_header(l, &l->files[i], metadata, err);
    }
    return rc;
}

void fsdpck_export_layout_free(struct export_layout *l)
{
    for (size_t i = 0; i < l->nfiles && l->files; i++)
        fsdpck_text_free(&l->files[i].header);
    free(l->files);
    fsdpck_vec_free(&l->tensors);
    *l = (struct export_layout){ .tensors = FSDPCK_VEC(struct export_tensor) };
}

/* ---- the index ---- */

static int by_name(const void *a, const void *b)
{
    return strcmp((*(const struct export_tensor *const *)a)->name, (*(const struct export_tensor *const *)b)->name);
}

int fsdpck_export_index(const struct export_layout *l, const char *const *names, struct fsdpck_text *out,
                        struct fsdpck_error *err)
{
    size_t n = l->tensors.count;
    const struct export_tensor **sorted = malloc((n ? n : 1) * sizeof *sorted);
    if (!sorted)
        return fsdpck_error_nomem(err, n * sizeof *sorted);
    for (size_t i = 0; i < n; i++)
        sorted[i] = &tensors_of(l)[i];
    qsort(sorted, n, sizeof *sorted, by_name);
    fsdpck_text_printf(out, "{\n  \"metadata\": {\n    \"total_size\": %llu\n  },\n  \"weight_map\": {",
                       (unsigned long long)l->total_nbytes);
    for (size_t i = 0; i < n; i++) {
        fsdpck_text_printf(out, "%s\n    ", i ? "," : "");
        fsdpck_text_json(out, sorted[i]->name);
        fsdpck_text_printf(out, ": \"%s\"", names[sorted[i]->file]);
    }
    fsdpck_text_printf(out, "\n  }\n}\n");
    free(sorted);
    return fsdpck_text_check(out, err);
}
