/* SPDX-License-Identifier: Apache-2.0 */
/* Parses the JSON header of a safetensors file and checks it against the file's size. Knows one file; passes its
 * tensors to a visitor. */
#include "hf/safetensors_header.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/checked.h"
#include "base/hash.h"
#include "base/ioutil.h"
#include "base/json_read.h"

#define MAX_HEADER_NBYTES 100000000u /* the reference implementation's limit */

struct range {
    uint64_t begin, end; /* in the data */
    size_t entry;        /* counts the header's tensors from 0 */
};

struct header {
    const char *path;
    char *text;
    size_t nbytes;
    uint64_t data_nbytes;
    struct fsdpck_json json;
    struct fsdpck_vec ranges;
    safetensors_fn visit;
    void *ctx;
    char **slices; /* gets DCP_SHARDING_INFO; NULL: refuse a file that has it */
    struct fsdpck_error *err;
};

/* ---- the frame of the file ---- */

/* Recognises files that are often mistaken for safetensors files. True if it is one; err is then filled. */
static bool is_other_format(const char *path, const char *head, size_t nbytes, struct fsdpck_error *err)
{
    static const char lfs[] = "version https://git-lfs";
    size_t at = 0;
    if (nbytes >= sizeof lfs - 1 && memcmp(head, lfs, sizeof lfs - 1) == 0) {
        fsdpck_error_set(err, FSDPCK_ERR_FORMAT, path, "is a git-lfs pointer, not the file that it stands for");
        fsdpck_error_hint(err, "fetch the real file: git lfs pull");
        return true;
    }
    while (at < nbytes && (head[at] == ' ' || head[at] == '\r' || head[at] == '\n' || head[at] == '\t'))
        at++;
    if (nbytes - at >= 9 && (strncasecmp(head + at, "<!doctype", 9) == 0 || strncasecmp(head + at, "<html", 5) == 0)) {
        fsdpck_error_set(err, FSDPCK_ERR_FORMAT, path,
                         "is a web page (HTML), not a safetensors file: a download that went wrong");
        return true;
    }
    if (nbytes >= 4 && memcmp(head, "PK\3\4", 4) == 0) {
        fsdpck_error_set(err, FSDPCK_ERR_FORMAT, path, "is a zip file (as torch.save makes), not a safetensors file");
        return true;
    }
    if (nbytes >= 4 && memcmp(head, "GGUF", 4) == 0) {
        fsdpck_error_set(err, FSDPCK_ERR_FORMAT, path, "is a GGUF file, not a safetensors file");
        return true;
    }
    return false;
}

static int check_frame(struct header *h, const uint8_t *head, size_t head_nbytes, uint64_t file_nbytes)
{
    if (is_other_format(h->path, (const char *)head, head_nbytes, h->err))
        return FSDPCK_ERR_FORMAT;
    if (file_nbytes < 8)
        return fsdpck_error_set(h->err, FSDPCK_ERR_FORMAT, h->path,
                                "file of %llu bytes; a safetensors file begins with 8 bytes of header length",
                                (unsigned long long)file_nbytes);
    uint64_t n = fsdpck_le64(head);
    if (n > MAX_HEADER_NBYTES)
        return fsdpck_error_at(h->err, FSDPCK_ERR_LIMIT, h->path, 0,
                               "header length %llu; at most %u is allowed: is this a safetensors file?",
                               (unsigned long long)n, MAX_HEADER_NBYTES);
    if (n > file_nbytes - 8)
        return fsdpck_error_at(h->err, FSDPCK_ERR_MISSING, h->path, 0,
                               "header length %llu, but only %llu bytes follow: the file is cut short",
                               (unsigned long long)n, (unsigned long long)(file_nbytes - 8));
    h->nbytes = (size_t)n;
    h->data_nbytes = file_nbytes - 8 - n;
    return 0;
}

static int load_header(struct header *h, const struct fsdpck_io *io)
{
    struct fsdpck_stat st;
    uint8_t head[64];
    int fd = io->open(io->ctx, h->path, FSDPCK_OPEN_READ, 0);
    if (fd < 0)
        return fsdpck_error_sys(h->err, -fd, h->path, "cannot open");
    int rc = io->fstat(io->ctx, fd, &st);
    if (rc < 0) {
        rc = fsdpck_error_sys(h->err, -rc, h->path, "cannot stat");
        goto out;
    }
    size_t head_nbytes = st.nbytes < sizeof head ? (size_t)st.nbytes : sizeof head;
    if ((rc = fsdpck_read_full(io, fd, h->path, head, head_nbytes, 0, h->err)) != 0 ||
        (rc = check_frame(h, head, head_nbytes, st.nbytes)) != 0)
        goto out;
    if (!(h->text = malloc(h->nbytes + 1))) {
        rc = fsdpck_error_nomem(h->err, h->nbytes + 1);
        goto out;
    }
    rc = fsdpck_read_full(io, fd, h->path, h->text, h->nbytes, 8, h->err);
out:
    io->close(io->ctx, fd);
    return rc;
}

/* ---- one tensor ---- */

struct fields {
    bool has_dtype, has_shape, has_offsets;
    enum fsdpck_dtype dtype;
    uint32_t ndim;
    uint64_t shape[FSDPCK_MAX_DIMS];
    uint64_t begin, end;
};

static void parse_dtype(struct fsdpck_json *j, struct fields *f)
{
    const char *code = fsdpck_json_string(j);
    if (!code || fsdpck_dtype_from_safetensors(code, &f->dtype))
        return;
    if (strncmp(code, "F6_", 3) == 0)
        fsdpck_json_fail(j, FSDPCK_ERR_UNSUPPORTED, "dtype '%s' (6-bit floats) has no PyTorch type and is not read",
                         code);
    else
        fsdpck_json_fail(j, FSDPCK_ERR_FORMAT, "dtype '%s' is none that safetensors has", code);
}

static void parse_shape(struct fsdpck_json *j, struct fields *f)
{
    if (!fsdpck_json_array(j))
        return;
    while (fsdpck_json_next_item(j)) {
        if (f->ndim == FSDPCK_MAX_DIMS) {
            fsdpck_json_fail(j, FSDPCK_ERR_LIMIT, "more than %d dimensions", FSDPCK_MAX_DIMS);
            return;
        }
        f->shape[f->ndim++] = fsdpck_json_u64(j);
    }
}

static void parse_offsets(struct fsdpck_json *j, struct fields *f)
{
    uint64_t pair[2] = { 0, 0 };
    size_t n = 0;
    if (!fsdpck_json_array(j))
        return;
    while (fsdpck_json_next_item(j)) {
        uint64_t v = fsdpck_json_u64(j);
        if (n < 2)
            pair[n] = v;
        n++;
    }
    if (!j->failed && n != 2)
        fsdpck_json_fail(j, FSDPCK_ERR_FORMAT, "data_offsets has %zu values, wanted 2: begin and end", n);
    f->begin = pair[0];
    f->end = pair[1];
}

static void parse_once(struct fsdpck_json *j, struct fields *f, const char *field, bool *has,
                       void (*parse)(struct fsdpck_json *, struct fields *))
{
    if (*has)
        fsdpck_json_fail(j, FSDPCK_ERR_FORMAT, "%s is given twice", field);
    *has = true;
    if (!j->failed)
        parse(j, f);
}

static void parse_fields(struct fsdpck_json *j, struct fields *f)
{
    const char *key;
    if (!fsdpck_json_object(j))
        return;
    while (fsdpck_json_next_key(j, &key)) {
        if (strcmp(key, "dtype") == 0)
            parse_once(j, f, "dtype", &f->has_dtype, parse_dtype);
        else if (strcmp(key, "shape") == 0)
            parse_once(j, f, "shape", &f->has_shape, parse_shape);
        else if (strcmp(key, "data_offsets") == 0)
            parse_once(j, f, "data_offsets", &f->has_offsets, parse_offsets);
        else
            fsdpck_json_skip(j); /* the format allows more fields */
    }
    if (!j->failed && !(f->has_dtype && f->has_shape && f->has_offsets))
        fsdpck_json_fail(j, FSDPCK_ERR_FORMAT, "%s is missing",
                         !f->has_dtype   ? "dtype"
                         : !f->has_shape ? "shape"
                                         : "data_offsets");
}

/* F4 counts values; torch counts bytes of two values each. */
static void halve_float4(struct fsdpck_json *j, struct fields *f)
{
    if (f->ndim == 0 || f->shape[f->ndim - 1] % 2 != 0)
        fsdpck_json_fail(j, FSDPCK_ERR_UNSUPPORTED, "dtype F4 packs two values a byte, and the last dimension is %s",
                         f->ndim ? "odd" : "missing (a scalar)");
    else
        f->shape[f->ndim - 1] /= 2;
}

static void check_range(struct header *h, struct fields *f)
{
    struct fsdpck_json *j = &h->json;
    uint64_t nelem, nbytes;
    if (f->dtype == FSDPCK_FLOAT4_E2M1FN_X2)
        halve_float4(j, f);
    if (j->failed)
        return;
    if (!checked_shape(f->shape, f->ndim, fsdpck_dtype_info(f->dtype)->nbytes, &nelem, &nbytes))
        fsdpck_json_fail(j, FSDPCK_ERR_FORMAT, "shape times element size overflows");
    else if (f->end < f->begin)
        fsdpck_json_fail(j, FSDPCK_ERR_FORMAT, "data_offsets end at %llu, before they begin at %llu",
                         (unsigned long long)f->end, (unsigned long long)f->begin);
    else if (f->end - f->begin != nbytes)
        fsdpck_json_fail(j, FSDPCK_ERR_FORMAT, "data_offsets span %llu bytes, shape and dtype need %llu",
                         (unsigned long long)(f->end - f->begin), (unsigned long long)nbytes);
    else if (f->end > h->data_nbytes)
        fsdpck_json_fail(j, FSDPCK_ERR_MISSING, "data_offsets end at %llu, the file holds %llu bytes of data",
                         (unsigned long long)f->end, (unsigned long long)h->data_nbytes);
}

static int parse_tensor(struct header *h, const char *name)
{
    struct fields f = { 0 };
    parse_fields(&h->json, &f);
    if (!h->json.failed)
        check_range(h, &f);
    if (h->json.failed) {
        fsdpck_error_tensor(h->err, name);
        return 0; /* the caller checks json.failed */
    }
    struct range *r = fsdpck_vec_push(&h->ranges, h->err);
    if (!r)
        return FSDPCK_ERR_NOMEM;
    *r = (struct range){ f.begin, f.end, h->ranges.count - 1 };
    struct safetensors_entry e = { name, f.dtype, f.ndim, f.shape, 8 + h->nbytes + f.begin };
    return h->visit(h->ctx, &e, h->err);
}

/* ---- the whole header ---- */

/* PyTorch's DCP can write ranks' slices as shard-RANK-model-….safetensors: each slice looks like a whole tensor. */
static bool holds_slices(const char *path, const char *key)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    return strncmp(name, "shard-", 6) == 0 && strcmp(key, "DCP_SHARDING_INFO") == 0;
}

static void take_slices(struct header *h)
{
    const char *text = fsdpck_json_string(&h->json);
    if (!text || *h->slices)
        fsdpck_json_fail(&h->json, FSDPCK_ERR_FORMAT, "DCP_SHARDING_INFO is given twice");
    else if (!(*h->slices = strdup(text)))
        fsdpck_json_fail(&h->json, FSDPCK_ERR_NOMEM, "out of memory");
}

static void parse_metadata(struct header *h)
{
    struct fsdpck_json *j = &h->json;
    const char *key;
    if (!fsdpck_json_object(j))
        return;
    while (fsdpck_json_next_key(j, &key)) {
        bool slices = holds_slices(j->file, key);
        if (fsdpck_json_peek(j) != FSDPCK_JSON_STRING)
            fsdpck_json_fail(j, FSDPCK_ERR_FORMAT, "the value of '%s' in __metadata__ is no string", key);
        if (slices && !h->slices) {
            fsdpck_json_fail(j, FSDPCK_ERR_UNSUPPORTED,
                             "holds slices of tensors, of a PyTorch DCP save in safetensors form: give the folder");
        } else if (slices) {
            take_slices(h);
            continue;
        }
        fsdpck_json_skip(j);
    }
}

static int parse_entries(struct header *h)
{
    struct fsdpck_json *j = &h->json;
    bool has_metadata = false;
    const char *key;
    int rc = 0;
    if (!fsdpck_json_object(j))
        return 0;
    while (!rc && fsdpck_json_next_key(j, &key)) {
        if (strcmp(key, "__metadata__") == 0) {
            if (has_metadata)
                fsdpck_json_fail(j, FSDPCK_ERR_FORMAT, "__metadata__ is given twice");
            has_metadata = true;
            parse_metadata(h);
            continue;
        }
        char *name = strdup(key); /* the next string overwrites the key */
        rc = name ? parse_tensor(h, name) : fsdpck_error_nomem(h->err, strlen(key));
        free(name);
    }
    if (!rc)
        fsdpck_json_end(j);
    return rc;
}

static int by_begin(const void *a, const void *b)
{
    const struct range *x = a, *y = b;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    return x->end < y->end ? -1 : x->end > y->end;
}

/* Names the n-th tensor in err: parses again, since names were not kept. */
static void name_entry(struct header *h, size_t n)
{
    struct fsdpck_json j;
    const char *key;
    fsdpck_json_begin(&j, h->path, 8, h->text, h->nbytes, NULL);
    for (fsdpck_json_object(&j); fsdpck_json_next_key(&j, &key); fsdpck_json_skip(&j))
        if (strcmp(key, "__metadata__") != 0 && n-- == 0) {
            fsdpck_error_tensor(h->err, key);
            break;
        }
    fsdpck_json_free(&j);
}

static int check_cover(struct header *h)
{
    struct range *r = h->ranges.data;
    const uint64_t data = 8 + h->nbytes;
    uint64_t end = 0;
    size_t n = h->ranges.count, sorted = 1;
    while (sorted < n && by_begin(&r[sorted - 1], &r[sorted]) <= 0)
        sorted++;
    if (sorted < n)
        qsort(r, n, sizeof *r, by_begin);
    for (size_t i = 0; i < n; end = r[i++].end) {
        if (r[i].begin == end)
            continue;
        fsdpck_error_at(h->err, FSDPCK_ERR_FORMAT, h->path, data + end,
                        r[i].begin > end ? "begins at data byte %llu, but what lies before it ends at %llu: the bytes "
                                           "between belong to no tensor"
                                         : "begins at data byte %llu, inside another tensor that ends at %llu",
                        (unsigned long long)r[i].begin, (unsigned long long)end);
        name_entry(h, r[i].entry);
        return FSDPCK_ERR_FORMAT;
    }
    if (end != h->data_nbytes)
        return fsdpck_error_at(h->err, FSDPCK_ERR_FORMAT, h->path, data + end, "%llu more bytes after the last tensor",
                               (unsigned long long)(h->data_nbytes - end));
    return 0;
}

int fsdpck_safetensors_slices(const struct fsdpck_io *io, const char *path, safetensors_fn visit, void *ctx,
                              char **slices, struct fsdpck_error *err)
{
    struct fsdpck_error own = { 0 };
    struct header h = { .path = path,
                        .ranges = FSDPCK_VEC(struct range),
                        .visit = visit,
                        .ctx = ctx,
                        .slices = slices,
                        .err = err ? err : &own };
    int rc = load_header(&h, io);
    if (!rc) {
        fsdpck_json_begin(&h.json, path, 8, h.text, h.nbytes, h.err);
        rc = parse_entries(&h);
        if (!rc && h.json.failed)
            rc = h.err->code;
        fsdpck_json_free(&h.json);
    }
    if (!rc)
        rc = check_cover(&h);
    fsdpck_vec_free(&h.ranges);
    free(h.text);
    return rc;
}

int fsdpck_safetensors_header(const struct fsdpck_io *io, const char *path, safetensors_fn visit, void *ctx,
                              struct fsdpck_error *err)
{
    return fsdpck_safetensors_slices(io, path, visit, ctx, NULL, err);
}

/* Of the open object; the first one counts. */
static int take_value(struct fsdpck_json *j, const char *wanted, char **value, struct fsdpck_error *err)
{
    const char *key, *text;
    while (fsdpck_json_next_key(j, &key)) {
        if (strcmp(key, wanted) != 0 || *value)
            fsdpck_json_skip(j);
        else if ((text = fsdpck_json_string(j)) && !(*value = strdup(text)))
            return fsdpck_error_nomem(err, strlen(text));
    }
    return 0;
}

int fsdpck_safetensors_metadata(const struct fsdpck_io *io, const char *path, const char *key, char **value,
                                struct fsdpck_error *err)
{
    struct header h = { .path = path, .err = err };
    const char *member;
    int rc = load_header(&h, io);
    *value = NULL;
    if (!rc) {
        fsdpck_json_begin(&h.json, path, 8, h.text, h.nbytes, err);
        fsdpck_json_object(&h.json);
        while (!rc && fsdpck_json_next_key(&h.json, &member)) {
            if (strcmp(member, "__metadata__") != 0)
                fsdpck_json_skip(&h.json);
            else if (fsdpck_json_object(&h.json))
                rc = take_value(&h.json, key, value, err);
        }
        rc = !rc && h.json.failed ? err->code : rc;
        fsdpck_json_free(&h.json);
    }
    if (rc) {
        free(*value);
        *value = NULL;
    }
    free(h.text);
    return rc;
}
