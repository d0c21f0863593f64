/* SPDX-License-Identifier: Apache-2.0 */
/* Reads a folder's list, JSON files, index and headers, and keeps what fails beside what does not. */
#include "doctor/model.h"

#include <stdlib.h>
#include <string.h>

#include "base/ioutil.h"
#include "base/suffix.h"
#include "hf/config.h"
#include "hf/safetensors_header.h"
#include "view/vllm_source.h"
#include "hf/weight_map.h"

static const char index_suffix[] = ".safetensors.index.json", weights_suffix[] = ".safetensors";

struct reading {
    struct doctor_model *m;
    uint32_t file;
};

const char *fsdpck_doctor_json_name(enum doctor_json which)
{
    static const char *const names[DOCTOR_NJSON] = { "config.json", "generation_config.json", "tokenizer_config.json",
                                                     "adapter_config.json", "hf_quant_config.json" };
    return names[which];
}

bool fsdpck_doctor_has_file(const struct doctor_model *m, const char *name)
{
    for (size_t i = 0; i < m->nnames; i++)
        if (strcmp(m->names[i], name) == 0)
            return true;
    return false;
}

/* ---- JSON ---- */

static int read_json(struct doctor_model *m, enum doctor_json which, struct fsdpck_error *err)
{
    const char *name = fsdpck_doctor_json_name(which);
    struct fsdpck_error *own = &m->json_error[which];
    char *path = NULL, *text = NULL;
    uint64_t nbytes = 0;
    json_error_t e;
    if (!fsdpck_doctor_has_file(m, name))
        return 0;
    if (!(path = fsdpck_path_join(m->path, name, err)))
        return err->code;
    if (fsdpck_read_file(m->io, path, FSDPCK_CONFIG_MAX_NBYTES, &text, &nbytes, own) == 0 &&
        !(m->json[which] = json_loadb(text, nbytes, 0, &e)))
        fsdpck_error_set(own, FSDPCK_ERR_FORMAT, name, "line %d: %s", e.line, e.text);
    if (m->json[which] && !json_is_object(m->json[which])) {
        json_decref(m->json[which]);
        m->json[which] = NULL;
        fsdpck_error_set(own, FSDPCK_ERR_FORMAT, name, "is not a JSON object");
    }
    free(path);
    free(text);
    return 0;
}

const json_t *fsdpck_doctor_key(const struct doctor_model *m, const char *key)
{
    const json_t *config = m->json[DOCTOR_CONFIG];
    const json_t *inner = json_object_get(json_object_get(config, "text_config"), key);
    return inner ? inner : json_object_get(config, key);
}

bool fsdpck_doctor_count(const struct doctor_model *m, const char *key, uint64_t *out)
{
    const json_t *v = fsdpck_doctor_key(m, key);
    if (!json_is_integer(v) || json_integer_value(v) <= 0)
        return false;
    *out = (uint64_t)json_integer_value(v);
    return true;
}

/* ---- files ---- */

/* Returns s as it stands between single quotes in a shell's command; NULL if out of memory. Paths are not trusted:
 * their quotes must not end the word. */
static const char *in_quotes(struct fsdpck_arena *arena, const char *s, struct fsdpck_error *err)
{
    static const char quote[] = "'\\''";
    size_t nbytes = 1;
    for (const char *p = s; *p; p++)
        nbytes += *p == '\'' ? sizeof quote - 1 : 1;
    char *out = fsdpck_arena_alloc(arena, nbytes, err), *to = out;
    for (; out && *s; s++) {
        if (*s == '\'')
            to = stpcpy(to, quote);
        else
            *to++ = *s;
    }
    if (out)
        *to = '\0';
    return out;
}

static int add_file(struct doctor_model *m, const char *name, bool indexed, uint32_t *id, struct fsdpck_error *err)
{
    size_t old = fsdpck_names_find(&m->file_names, name);
    if (old == SIZE_MAX) {
        char *copy = fsdpck_arena_strndup(&m->arena, name, strlen(name), err);
        const char *quotable = copy ? in_quotes(&m->arena, name, err) : NULL;
        struct doctor_file *f = quotable ? fsdpck_vec_push(&m->files, err) : NULL;
        if (!f || fsdpck_names_add(&m->file_names, copy, m->files.count - 1, &old, err) != 0)
            return FSDPCK_ERR_NOMEM;
        f->name = copy;
        f->in_quotes = quotable;
        f->indexed = indexed;
        old = m->files.count - 1;
    }
    *id = (uint32_t)old;
    return 0;
}

static int add_listed(void *ctx, struct fsdpck_json *j, const char *key, const char *file, struct fsdpck_error *err)
{
    struct doctor_model *m = ctx;
    char *name = fsdpck_arena_strndup(&m->arena, key, strlen(key), err);
    struct doctor_listed *l = name ? fsdpck_vec_push(&m->listed, err) : NULL;
    size_t old;
    if (!l || add_file(m, file, true, &l->file, err) != 0 ||
        fsdpck_names_add(&m->listed_names, name, m->listed.count - 1, &old, err) != 0)
        return FSDPCK_ERR_NOMEM;
    l->name = name;
    if (old != SIZE_MAX)
        fsdpck_json_fail(j, FSDPCK_ERR_FORMAT, "tensor '%s' is listed twice", name);
    return 0;
}

static int read_index(struct doctor_model *m, struct fsdpck_error *err)
{
    for (size_t i = 0; i < m->nnames; i++)
        if (m->names[i][0] != '.' && ends_with(m->names[i], index_suffix) &&
            (!m->index || strcmp(m->names[i], "model.safetensors.index.json") == 0))
            m->index = m->names[i];
    if (!m->index)
        return 0;
    char *path = fsdpck_path_join(m->path, m->index, err);
    if (!path || !(m->index_in_quotes = in_quotes(&m->arena, m->index, err))) {
        free(path);
        return err->code;
    }
    if (fsdpck_weight_map_read(m->io, path, add_listed, m, &m->index_error) == FSDPCK_ERR_NOMEM)
        *err = m->index_error;
    free(path);
    return err->code;
}

static int add_tensor(void *ctx, const struct safetensors_entry *e, struct fsdpck_error *err)
{
    struct reading *r = ctx;
    struct doctor_model *m = r->m;
    char *name = fsdpck_arena_strndup(&m->arena, e->name, strlen(e->name), err);
    uint64_t *shape = name ? fsdpck_arena_array(&m->arena, e->ndim, sizeof *shape, err) : NULL;
    size_t old;
    if (!shape || fsdpck_names_add(&m->tensor_names, name, m->tensors.count, &old, err) != 0)
        return FSDPCK_ERR_NOMEM;
    if (old != SIZE_MAX) {
        ((struct doctor_tensor *)m->tensors.data)[old].twice = true;
        return 0;
    }
    struct doctor_tensor *t = fsdpck_vec_push(&m->tensors, err);
    if (!t)
        return FSDPCK_ERR_NOMEM;
    if (e->ndim)
        memcpy(shape, e->shape, e->ndim * sizeof *shape);
    *t = (struct doctor_tensor){ name, e->dtype, e->ndim, shape, fsdpck_dtype_info(e->dtype)->nbytes, r->file, false };
    for (uint32_t i = 0; i < e->ndim; i++)
        t->nbytes *= shape[i]; /* the header's reader has checked the product */
    return 0;
}

/* Only the files of the index are the model's, where there is an index. */
static int read_file(struct doctor_model *m, uint32_t i, struct fsdpck_error *err)
{
    struct doctor_file *f = (struct doctor_file *)m->files.data + i;
    struct reading r = { m, i };
    char *path = fsdpck_path_join(m->path, f->name, err);
    if (!path)
        return err->code;
    f->there = fsdpck_is_file(m->io, path);
    if (f->there && (f->indexed || !m->index) &&
        fsdpck_safetensors_header(m->io, path, add_tensor, &r, &f->error) == FSDPCK_ERR_NOMEM)
        *err = f->error;
    else if (f->error.code == FSDPCK_ERR_UNSUPPORTED && !m->index && !fsdpck_doctor_has_file(m, "config.json"))
        *err = f->error; /* sound, but of another kind of checkpoint */
    free(path);
    return err->code;
}

static int read_files(struct doctor_model *m, struct fsdpck_error *err)
{
    bool single = fsdpck_doctor_has_file(m, "model.safetensors");
    uint32_t id;
    int rc = 0;
    for (size_t i = 0; i < m->nnames && !rc; i++)
        if (m->names[i][0] != '.' && ends_with(m->names[i], weights_suffix) &&
            (m->index || !single || strcmp(m->names[i], "model.safetensors") == 0))
            rc = add_file(m, m->names[i], false, &id, err);
    for (uint32_t i = 0; i < m->files.count && !rc; i++)
        rc = read_file(m, i, err);
    return rc;
}

/* Files of vLLM's ranks have tensors of the same names. */
static int refuse_ranks(const struct doctor_model *m, struct fsdpck_error *err)
{
    if (m->index || fsdpck_doctor_has_file(m, "model.safetensors"))
        return 0;
    for (size_t i = 0; i < m->nnames; i++)
        if (fsdpck_vllm_is_file(m->names[i], NULL)) {
            fsdpck_error_set(err, FSDPCK_ERR_UNSUPPORTED, m->path,
                             "holds the parts of a model that vLLM's ranks have (%s …), and no published model",
                             m->names[i]);
            fsdpck_error_hint(err, "export it to a Hugging Face folder first");
            return err->code;
        }
    return 0;
}

/* ---- the whole ---- */

static bool agrees(const struct doctor_model *m)
{
    const struct doctor_listed *l = m->listed.data;
    if (m->index_error.code || m->tensors.count == 0 || (m->index && m->listed.count != m->tensors.count))
        return false;
    if (m->shards.odd || m->shards.nmissing)
        return false;
    for (size_t i = 0; i < m->files.count; i++)
        if (doctor_files(m)[i].error.code || !doctor_files(m)[i].there)
            return false;
    for (size_t i = 0; i < m->listed.count; i++) {
        const struct doctor_tensor *t = fsdpck_doctor_find(m, l[i].name);
        if (!t || t->file != l[i].file)
            return false;
    }
    for (size_t i = 0; i < m->tensors.count; i++)
        if (doctor_tensors(m)[i].twice)
            return false;
    return true;
}

int fsdpck_doctor_model_read(struct doctor_model *m, const char *path, const struct fsdpck_io *io,
                             struct fsdpck_error *err)
{
    *m = (struct doctor_model){ .io = io,
                                .path = path,
                                .files = FSDPCK_VEC(struct doctor_file),
                                .tensors = FSDPCK_VEC(struct doctor_tensor),
                                .listed = FSDPCK_VEC(struct doctor_listed) };
    struct fsdpck_stat st;
    int rc = io->stat(io->ctx, path, true, &st);
    if (rc < 0)
        return fsdpck_error_sys(err, -rc, path, "cannot open");
    rc = (m->in_quotes = in_quotes(&m->arena, path, err)) ? 0 : FSDPCK_ERR_NOMEM;
    if (!rc && st.type == FSDPCK_FILE_DIRECTORY)
        rc = fsdpck_list_sorted(io, path, &m->names, &m->nnames, err);
    for (int i = 0; i < DOCTOR_NJSON && !rc; i++)
        rc = read_json(m, (enum doctor_json)i, err);
    if (!rc)
        rc = read_index(m, err);
    if (!rc)
        rc = refuse_ranks(m, err);
    if (!rc)
        rc = read_files(m, err);
    if (!rc && !m->index && !fsdpck_doctor_has_file(m, "model.safetensors"))
        fsdpck_doctor_shards_read(m->names, m->nnames, &m->shards);
    m->found = m->files.count > 0 || m->index || fsdpck_doctor_has_file(m, "config.json");
    m->whole = !rc && agrees(m);
    return rc;
}

void fsdpck_doctor_model_free(struct doctor_model *m)
{
    fsdpck_list_free(m->names, m->nnames);
    fsdpck_vec_free(&m->files);
    fsdpck_vec_free(&m->tensors);
    fsdpck_vec_free(&m->listed);
    fsdpck_names_free(&m->file_names);
    fsdpck_names_free(&m->tensor_names);
    fsdpck_names_free(&m->listed_names);
    for (int i = 0; i < DOCTOR_NJSON; i++)
        json_decref(m->json[i]);
    fsdpck_arena_free(&m->arena);
}

const struct doctor_tensor *fsdpck_doctor_find(const struct doctor_model *m, const char *name)
{
    size_t i = fsdpck_names_find(&m->tensor_names, name);
    return i == SIZE_MAX ? NULL : &doctor_tensors(m)[i];
}

const struct doctor_tensor *fsdpck_doctor_find_part(const struct doctor_model *m, const char *part)
{
    for (size_t i = 0; i < m->tensors.count; i++)
        if (strstr(doctor_tensors(m)[i].name, part))
            return &doctor_tensors(m)[i];
    return NULL;
}
