/* SPDX-License-Identifier: Apache-2.0 */
/* Files beside the weights: shards that no index joins, second sets of weights, and entries that hold no content. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/ioutil.h"
#include "base/suffix.h"
#include "doctor/checks.h"
#include "engine/source_impl.h"
#include "hf/safetensors_header.h"

/* ---- shards without an index ---- */

bool fsdpck_doctor_shards(struct doctor *d)
{
    const struct doctor_shards s = d->model->shards;
    struct doctor_words w;
    for (size_t i = 0; i < d->model->tensors.count; i++)
        if (doctor_tensors(d->model)[i].twice)
            return false; /* said already */
    if (!s.total)
        return false;
    if (s.odd) {
        doctor_say(w.found, "files of two saves: '%.200s' and '%.200s'", s.first, s.odd);
        doctor_say(w.expected, "the files of one, and its index");
        doctor_say(w.mend, "remove the files of the other save, and fetch model.safetensors.index.json");
    } else if (s.nmissing) {
        doctor_say(w.found, "%" PRIu64 " of %" PRIu64 " files, and no index; those that are missing: %s",
                   s.total - s.nmissing, s.total, s.missing);
        doctor_say(w.expected, "all of them: loaders that take every file keep random weights for the rest");
        doctor_say(w.mend, "fetch the missing files, and model.safetensors.index.json");
    } else if (s.total > 1) {
        doctor_say(w.found, "%" PRIu64 " files, and no model.safetensors.index.json", s.total);
        doctor_say(w.expected, "the index: transformers does not find the files without it");
        doctor_say(w.mend, "fsdpck export '%s' OUT", d->model->in_quotes);
    } else {
        return true;
    }
    fsdpck_doctor_report(d, FSDPCK_SEVERITY_ERROR, s.odd ? s.odd : s.first, "", &w);
    return true;
}

/* ---- the index's own count ---- */

static bool read_total(struct doctor *d, uint64_t *out)
{
    struct fsdpck_error ignored = { 0 };
    char *path = fsdpck_path_join(d->model->path, d->model->index, d->err), *text = NULL;
    uint64_t nbytes = 0;
    json_t *root = NULL;
    if (path && fsdpck_read_file(d->model->io, path, 256u << 20, &text, &nbytes, &ignored) == 0)
        root = json_loadb(text, nbytes, 0, NULL);
    const json_t *total = json_object_get(json_object_get(root, "metadata"), "total_size");
    const bool good = json_is_number(total) && json_number_value(total) >= 0 && json_number_value(total) < 1e18;
    if (good)
        *out = (uint64_t)json_number_value(total);
    json_decref(root);
    free(text);
    free(path);
    return good;
}

bool fsdpck_doctor_total_size(struct doctor *d)
{
    struct doctor_words w;
    uint64_t stated, sum = 0;
    if (!d->model->index || !read_total(d, &stated))
        return false;
    for (size_t i = 0; i < d->model->tensors.count; i++)
        sum += doctor_tensors(d->model)[i].nbytes;
    if (stated == sum)
        return true;
    doctor_say(w.found, "%" PRIu64, stated);
    doctor_say(w.expected, "%" PRIu64 " bytes of tensors: programs plan memory by it", sum);
    doctor_say(w.mend, "fsdpck export '%s' OUT", d->model->in_quotes);
    fsdpck_doctor_report(d, FSDPCK_SEVERITY_NOTE, d->model->index, "metadata.total_size", &w);
    return true;
}

/* ---- second sets of weights ---- */

static void warn_second(struct doctor *d, const char *file, const char *tensor, const char *found)
{
    struct doctor_words w;
    doctor_say(w.found, "%s", found);
    doctor_say(w.expected, "the same weights in both, or one set: programs load one or the other");
    doctor_say(w.mend, "if it is left over from another save, move it out of the folder");
    fsdpck_doctor_report(d, FSDPCK_SEVERITY_WARNING, file, tensor, &w);
}

static int add_elements(void *ctx, const struct safetensors_entry *e, struct fsdpck_error *err)
{
    uint64_t n = 1, *total = ctx;
    (void)err;
    for (uint32_t i = 0; i < e->ndim; i++)
        n *= e->shape[i]; /* the header's reader has checked the product */
    *total += n;
    return 0;
}

static uint64_t count_elements(const struct doctor_model *m)
{
    uint64_t total = 0;
    for (size_t i = 0; i < m->tensors.count; i++)
        total += doctor_tensors(m)[i].nbytes / fsdpck_dtype_info(doctor_tensors(m)[i].dtype)->nbytes;
    return total;
}

/* Mistral's files have names of their own, and the same number of values; a tied head may be in one and not in the
 * other. */
static bool check_consolidated(struct doctor *d)
{
    const struct doctor_tensor *head = fsdpck_doctor_find(d->model, "model.embed_tokens.weight");
    const uint64_t own = count_elements(d->model),
                   tied = head ? head->nbytes / fsdpck_dtype_info(head->dtype)->nbytes : 0;
    const char *first = NULL, *unread = NULL;
    uint64_t total = 0;
    char found[300];
    for (size_t i = 0; i < d->model->nnames; i++) {
        const char *name = d->model->names[i];
        struct fsdpck_error ignored = { 0 };
        if (strncmp(name, "consolidated", strlen("consolidated")) != 0 || !ends_with(name, ".safetensors"))
            continue;
        char *path = fsdpck_path_join(d->model->path, name, d->err);
        if (path && fsdpck_safetensors_header(d->model->io, path, add_elements, &total, &ignored) != 0)
            unread = name;
        free(path);
        first = first ? first : name;
    }
    if (unread && !fsdpck_doctor_is_pointer(d, unread))
        warn_second(d, unread, "", "a second set of weights, of which this file is damaged");
    if (!first || unread || fsdpck_doctor_key(d->model, "quantization_config"))
        return unread != NULL;
    const uint64_t more = total > own ? total - own : own - total;
    snprintf(found, sizeof found, "a second set of weights of %" PRIu64 " values; the model's files have %" PRIu64,
             total, own);
    if (more && more != tied)
        warn_second(d, first, "", found);
    return true;
}

/* Buffers and tied heads are saved by torch and not here. */
static bool is_left_out(const char *name)
{
    static const char *const parts[] = { "rotary_emb", "position_ids", ".attn.bias", ".masked_bias", "lm_head." };
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (strstr(name, parts[i]))
            return true;
    return false;
}

static bool has_same(const struct doctor_model *m, const struct fsdpck_tensor *t)
{
    const struct doctor_tensor *own = fsdpck_doctor_find(m, t->name);
    return own && own->ndim == t->ndim &&
           (t->ndim == 0 || memcmp(own->shape, t->shape, t->ndim * sizeof *t->shape) == 0);
}

static void compare_torch(struct doctor *d, const char *name, const struct fsdpck_source *src)
{
    const struct fsdpck_tensor *first = NULL;
    char found[200];
    uint64_t n = 0;
    for (size_t i = 0; i < fsdpck_source_ntensors(src); i++) {
        const struct fsdpck_tensor *t = fsdpck_source_tensor(src, i);
        if (!is_left_out(t->name) && !has_same(d->model, t) && n++ == 0)
            first = t;
    }
    snprintf(found, sizeof found, "a second set of weights; %" PRIu64 " of its tensors %s not in the safetensors files",
             n, n == 1 ? "is" : "are");
    if (n)
        warn_second(d, name, first->name, found);
}

static bool check_torch(struct doctor *d)
{
    struct fsdpck_options opt = { .io = d->model->io };
    bool any = false;
    for (size_t i = 0; i < d->model->nnames; i++) {
        const char *name = d->model->names[i];
        struct fsdpck_source *src = NULL;
        struct fsdpck_error ignored = { 0 };
        if (strncmp(name, "pytorch_model", strlen("pytorch_model")) != 0 || !ends_with(name, ".bin"))
            continue;
        char *path = fsdpck_path_join(d->model->path, name, d->err);
        if (path && fsdpck_source_open(path, "pt", &opt, &src, &ignored) == 0) {
            compare_torch(d, name, src);
            any = true;
        }
        fsdpck_source_close(src);
        free(path);
    }
    return any;
}

bool fsdpck_doctor_second_set(struct doctor *d)
{
    const bool consolidated = check_consolidated(d);
    return check_torch(d) || consolidated;
}

/* ---- entries without content ---- */

bool fsdpck_doctor_is_pointer(struct doctor *d, const char *name)
{
    return fsdpck_doctor_starts_with(d, name, "version https://git-lfs");
}

static void blame_entry(struct doctor *d, const char *name, const char *found, bool lfs)
{
    struct doctor_words w;
    doctor_say(w.found, "%s", found);
    doctor_say(w.expected, "the file itself");
    if (lfs)
        doctor_say(w.mend, "git -C '%s' lfs pull", d->model->in_quotes);
    else
        doctor_say(w.mend, "fetch '%s' again", name);
    fsdpck_doctor_report(d, FSDPCK_SEVERITY_ERROR, name, "", &w);
}

/* Whether the file that a download was to become is one of the index, and missing: that is said there. */
static bool is_awaited(const struct doctor_model *m, const char *name)
{
    char whole[300];
    snprintf(whole, sizeof whole, "%.*s", (int)(strlen(name) - strlen(".incomplete")), name);
    return fsdpck_names_find(&m->file_names, whole) != SIZE_MAX;
}

/* Files of weights have a check of their own. */
bool fsdpck_doctor_entries(struct doctor *d)
{
    enum { MAX_POINTER_NBYTES = 1024 };
    const struct doctor_model *m = d->model;
    for (size_t i = 0; i < m->nnames && !d->err->code; i++) {
        struct fsdpck_stat st;
        if (m->names[i][0] == '.' || fsdpck_names_find(&m->file_names, m->names[i]) != SIZE_MAX)
            continue;
        char *path = fsdpck_path_join(m->path, m->names[i], d->err);
        const int rc = path ? m->io->stat(m->io->ctx, path, true, &st) : 0;
        free(path);
        if (rc == -ENOENT || rc == -ELOOP)
            blame_entry(d, m->names[i], "a link to nothing", false);
        else if (path && !rc && st.type == FSDPCK_FILE_REGULAR && st.nbytes <= MAX_POINTER_NBYTES &&
                 fsdpck_doctor_is_pointer(d, m->names[i]))
            blame_entry(d, m->names[i], "a pointer of Git LFS instead of the file", true);
        else if (ends_with(m->names[i], ".incomplete") && !is_awaited(m, m->names[i]))
            blame_entry(d, m->names[i], "a download that did not end", false);
    }
    return m->nnames > 0;
}
