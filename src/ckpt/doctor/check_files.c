/* SPDX-License-Identifier: Apache-2.0 */
/* The folder against its index, and the index against the headers of the files. */
#include <stdlib.h>
#include <string.h>

#include "base/ioutil.h"
#include "base/suffix.h"
#include "doctor/checks.h"

/* A link to nothing, or a pointer of Git LFS, is another finding. */
bool fsdpck_doctor_has_content(struct doctor *d, const char *name)
{
    char *path = fsdpck_path_join(d->model->path, name, d->err);
    const bool there = path && fsdpck_is_file(d->model->io, path);
    free(path);
    return there && !fsdpck_doctor_is_pointer(d, name);
}

static void say_reindex(const struct doctor *d, struct doctor_words *w)
{
    doctor_say(w->mend,
               "fetch both again from one save; or, if the files are the truth: mv '%s/%s' '%s/%s.bak' && "
               "fsdpck export '%s' OUT",
               d->model->in_quotes, d->model->index_in_quotes, d->model->in_quotes, d->model->index_in_quotes,
               d->model->in_quotes);
}

bool fsdpck_doctor_json(struct doctor *d)
{
    for (int i = 0; i < DOCTOR_NJSON; i++) {
        struct doctor_words w;
        const char *name = fsdpck_doctor_json_name((enum doctor_json)i);
        if (!d->model->json_error[i].code || !fsdpck_doctor_has_content(d, name))
            continue;
        doctor_say(w.found, "%s", d->model->json_error[i].message);
        doctor_say(w.expected, "one JSON object");
        doctor_say(w.mend, "copy the file again from where the model came from");
        fsdpck_doctor_report(d, FSDPCK_SEVERITY_ERROR, name, "", &w);
    }
    return true;
}

bool fsdpck_doctor_index(struct doctor *d)
{
    struct doctor_words w;
    if (!d->model->index)
        return false;
    if (!d->model->index_error.code || !fsdpck_doctor_has_content(d, d->model->index))
        return true;
    doctor_say(w.found, "%s", d->model->index_error.message);
    doctor_say(w.expected, "a weight_map from tensors to files");
    say_reindex(d, &w);
    fsdpck_doctor_report(d, FSDPCK_SEVERITY_ERROR, d->model->index, "", &w);
    return true;
}

bool fsdpck_doctor_starts_with(struct doctor *d, const char *file, const char *text)
{
    char got[64] = "", *path = fsdpck_path_join(d->model->path, file, d->err);
    struct fsdpck_error ignored = { 0 };
    int fd = path ? d->model->io->open(d->model->io->ctx, path, FSDPCK_OPEN_READ, 0) : -1;
    if (fd >= 0) {
        fsdpck_read_full(d->model->io, fd, file, got, strlen(text), 0, &ignored);
        d->model->io->close(d->model->io->ctx, fd);
    }
    free(path);
    return memcmp(got, text, strlen(text)) == 0;
}

/* A file that is not there, or a link to nothing; or a download that stopped before it had its name. */
static void say_absent(struct doctor *d, const struct doctor_file *f, struct doctor_words *w)
{
    char part[300];
    snprintf(part, sizeof part, "%.280s.incomplete", f->name);
    if (fsdpck_doctor_has_file(d->model, f->name))
        doctor_say(w->found, "a link to nothing");
    else if (fsdpck_doctor_has_file(d->model, part))
        doctor_say(w->found, "only '%s': its download did not end", part);
    else
        doctor_say(w->found, "no such file, though %s names it", d->model->index);
}

static void blame_file(struct doctor *d, const struct doctor_file *f)
{
    struct doctor_words w;
    doctor_say(w.expected, "a whole safetensors file");
    doctor_say(w.mend, "fetch '%s' again", f->name);
    if (!f->there) {
        say_absent(d, f, &w);
    } else if (fsdpck_doctor_is_pointer(d, f->name)) {
        doctor_say(w.found, "a pointer of Git LFS instead of the file");
        doctor_say(w.mend, "git -C '%s' lfs pull", d->model->in_quotes);
    } else if (fsdpck_doctor_starts_with(d, f->name, "<?xml") || fsdpck_doctor_starts_with(d, f->name, "{\"error")) {
        doctor_say(w.found, "a server's answer, not a safetensors file: a download that went wrong");
    } else {
        doctor_say(w.found, "%s", f->error.message);
    }
    fsdpck_doctor_report(d, FSDPCK_SEVERITY_ERROR, f->name, f->error.tensor, &w);
}

bool fsdpck_doctor_files(struct doctor *d)
{
    for (size_t i = 0; i < d->model->files.count; i++) {
        const struct doctor_file *f = &doctor_files(d->model)[i];
        if (!f->there || f->error.code)
            blame_file(d, f);
    }
    return d->model->files.count > 0;
}

/* Mistral's own loader reads consolidated*.safetensors; good folders have both. */
bool fsdpck_doctor_extra_files(struct doctor *d)
{
    if (!d->model->index || d->model->index_error.code)
        return false;
    for (size_t i = 0; i < d->model->files.count; i++) {
        const struct doctor_file *f = &doctor_files(d->model)[i];
        struct doctor_words w;
        if (f->indexed || !f->there || strncmp(f->name, "consolidated", strlen("consolidated")) == 0)
            continue;
        doctor_say(w.found, "a file of weights that %s does not name", d->model->index);
        doctor_say(w.expected, "only files of the index: loaders that take every *.safetensors file read it too");
        doctor_say(w.mend, "if it is left over from another save: mv '%s/%s' '%s/%s.bak'", d->model->in_quotes,
                   f->in_quotes, d->model->in_quotes, f->in_quotes);
        fsdpck_doctor_report(d, FSDPCK_SEVERITY_WARNING, f->name, "", &w);
    }
    return true;
}

static bool is_readable(const struct doctor_model *m, uint32_t file)
{
    return doctor_files(m)[file].there && !doctor_files(m)[file].error.code;
}

/* Counts the tensors that the index puts elsewhere than they are. A file that cannot be read is another finding. */
static uint64_t count_misplaced(const struct doctor_model *m, const struct doctor_listed **first)
{
    const struct doctor_listed *l = m->listed.data;
    uint64_t n = 0;
    for (size_t i = 0; i < m->listed.count; i++) {
        const struct doctor_tensor *t = fsdpck_doctor_find(m, l[i].name);
        if (is_readable(m, l[i].file) && (!t || t->file != l[i].file) && n++ == 0)
            *first = &l[i];
    }
    return n;
}

static uint64_t count_unlisted(const struct doctor_model *m, const struct doctor_tensor **first)
{
    uint64_t n = 0;
    for (size_t i = 0; i < m->tensors.count; i++)
        if (fsdpck_names_find(&m->listed_names, doctor_tensors(m)[i].name) == SIZE_MAX && n++ == 0)
            *first = &doctor_tensors(m)[i];
    return n;
}

bool fsdpck_doctor_placement(struct doctor *d)
{
    const struct doctor_model *m = d->model;
    const struct doctor_listed *l = NULL;
    const struct doctor_tensor *t = NULL;
    struct doctor_words w;
    uint64_t n;
    if (!m->index || m->index_error.code)
        return false;
    say_reindex(d, &w);
    if ((n = count_misplaced(m, &l)) > 0) {
        const struct doctor_tensor *real = fsdpck_doctor_find(m, l->name);
        doctor_say(w.found, "%llu tensor%s not in the file that the index names; this one is in %s",
                   (unsigned long long)n, fsdpck_plural(n), real ? doctor_files(m)[real->file].name : "no file");
        doctor_say(w.expected, "it in '%s'", doctor_files(m)[l->file].name);
        fsdpck_doctor_report(d, FSDPCK_SEVERITY_ERROR, m->index, l->name, &w);
    }
    if ((n = count_unlisted(m, &t)) > 0) {
        doctor_say(w.found, "%llu tensor%s in the files and not in the index; this one is in '%s'",
                   (unsigned long long)n, fsdpck_plural(n), doctor_files(m)[t->file].name);
        doctor_say(w.expected, "every tensor of the files in the index");
        fsdpck_doctor_report(d, FSDPCK_SEVERITY_ERROR, m->index, t->name, &w);
    }
    return true;
}

/* Files that nothing puts together may well have tensors of the same names. */
bool fsdpck_doctor_twice(struct doctor *d)
{
    if (!d->model->index && !fsdpck_doctor_has_file(d->model, "config.json"))
        return false;
    for (size_t i = 0; i < d->model->tensors.count; i++) {
        const struct doctor_tensor *t = &doctor_tensors(d->model)[i];
        struct doctor_words w;
        if (!t->twice || (!d->model->index && strncmp(doctor_files(d->model)[t->file].name, "model", 5) != 0))
            continue;
        doctor_say(w.found, "this tensor in a second file too");
        doctor_say(w.expected, "each tensor once");
        doctor_say(w.mend, "remove the file that belongs to another save");
        fsdpck_doctor_report(d, FSDPCK_SEVERITY_ERROR, doctor_files(d->model)[t->file].name, t->name, &w);
        return true; /* one tells the story of all */
    }
    return d->model->tensors.count > 0;
}
