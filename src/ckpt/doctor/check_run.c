/* SPDX-License-Identifier: Apache-2.0 */
/* The folders of a training: files of ranks that are missing or left over, and files that name the newest save. */
#include <stdlib.h>
#include <string.h>

#include "base/ioutil.h"
#include "base/suffix.h"
#include "doctor/checks.h"
#include "engine/source_impl.h"
#include "torch/dcp/common.h"

enum { MAX_TAG_NBYTES = 255 };

/* The folder of one save. */
struct save {
    const char *path, *prefix; /* prefix: of its files' names in messages, "" or "iter_0000007/" */
    char *const *names;        /* (nnames) */
    size_t nnames;
};

static bool has(const struct save *s, const char *name)
{
    for (size_t i = 0; i < s->nnames; i++)
        if (strcmp(s->names[i], name) == 0)
            return true;
    return false;
}

static size_t count_distcp(const struct save *s)
{
    size_t n = 0;
    for (size_t i = 0; i < s->nnames; i++)
        n += ends_with(s->names[i], ".distcp");
    return n;
}

static bool is_of_ranks(const struct save *s)
{
    for (size_t i = 0; i < s->nnames; i++)
        if (fsdpck_deepspeed_is(s->names[i]) || fsdpck_dcp_ranks_is(s->names[i]))
            return true;
    return has(s, ".metadata");
}

static struct save own_save(const struct doctor_model *m)
{
    return (struct save){ m->path, "", m->names, m->nnames };
}

/* fsdpck's own directories have hashes: verify finds more in them. */
bool fsdpck_doctor_is_run(const struct doctor_model *m)
{
    const struct save s = own_save(m);
    if (has(&s, "index.json"))
        return false;
    for (size_t i = 0; i < m->nnames; i++)
        if (fsdpck_deepspeed_names_tag(m->names[i]))
            return true;
    return is_of_ranks(&s) || count_distcp(&s) > 0 || has(&s, FSDPCK_MEGATRON_LATEST);
}

/* ---- the files of one save ---- */

static void report(struct doctor *d, enum fsdpck_severity severity, const struct save *s, const char *name,
                   const char *tensor, const struct doctor_words *w)
{
    char file[600];
    snprintf(file, sizeof file, "%s%s", s->prefix, name);
    fsdpck_doctor_report(d, severity, file, tensor, w);
}

/* PyTorch writes .metadata last. */
static void blame_unfinished(struct doctor *d, const struct save *s, size_t nfiles)
{
    struct doctor_words w;
    doctor_say(w.found, "no such file beside %zu .distcp file%s", nfiles, fsdpck_plural(nfiles));
    doctor_say(w.expected, "it: a save writes it last, and without it no tensor can be found");
    doctor_say(w.mend, "copy the folder again if the copy stopped early; else take an earlier save: this one did "
                       "not end");
    report(d, FSDPCK_SEVERITY_ERROR, s, ".metadata", "", &w);
}

static void blame_unreadable(struct doctor *d, const struct save *s, const struct fsdpck_error *why)
{
    struct doctor_words w;
    const char *slash = strrchr(why->file, '/');
    doctor_say(w.found, "%.590s", why->message);
    doctor_say(w.expected, "the files of all ranks, of one save");
    doctor_say(w.mend, "%s", *why->hint ? why->hint : "copy the files of this save again, or take an earlier one");
    const char *name = strcmp(why->file, s->path) == 0 ? "" : slash ? slash + 1 : why->file;
    report(d, FSDPCK_SEVERITY_ERROR, s, name, why->tensor, &w);
}

/* Megatron-core writes metadata.json after .metadata, and refuses a folder without it. */
static void check_megatron(struct doctor *d, const struct save *s)
{
    struct doctor_words w;
    if (!has(s, "common.pt") || has(s, "metadata.json"))
        return;
    doctor_say(w.found, "no such file beside common.pt");
    doctor_say(w.expected, "it: Megatron-core writes it last, and takes a folder without it for no checkpoint");
    doctor_say(w.mend, "if fsdpck verify finds nothing wrong, copy metadata.json from another save of this run");
    report(d, FSDPCK_SEVERITY_ERROR, s, "metadata.json", "", &w);
}

static bool is_used(const struct fsdpck_source *src, const char *name)
{
    for (size_t i = 0; i < fsdpck_source_nfiles(src); i++)
        if (strcmp(fsdpck_source_file(src, i)->name, name) == 0)
            return true;
    return false;
}

/* PyTorch leaves the files of an earlier save by more ranks where they are, and never reads them. */
static void check_left_over(struct doctor *d, const struct save *s, const struct fsdpck_source *src)
{
    const char *first = NULL;
    struct doctor_words w;
    size_t n = 0;
    for (size_t i = 0; i < s->nnames; i++)
        if (ends_with(s->names[i], ".distcp") && !is_used(src, s->names[i]) && n++ == 0)
            first = s->names[i];
    if (!n)
        return;
    doctor_say(w.found, "%zu file%s that .metadata does not name", n, fsdpck_plural(n));
    doctor_say(w.expected, "only files of this save: others are left over from an earlier one, by more ranks");
    doctor_say(w.mend, "remove them, or convert the save with fsdpck: only what belongs to it is taken");
    report(d, FSDPCK_SEVERITY_WARNING, s, first, "", &w);
}

/* Returns false if the folder holds no save that can be judged. */
static bool check_save(struct doctor *d, const struct save *s)
{
    struct fsdpck_options opt = { .io = d->opt->io };
    struct fsdpck_source *src = NULL;
    struct fsdpck_error why = { 0 };
    if (!is_of_ranks(s)) {
        const size_t ndistcp = has(s, "index.json") ? 0 : count_distcp(s);
        if (ndistcp)
            blame_unfinished(d, s, ndistcp);
        return ndistcp > 0;
    }
    int rc = fsdpck_source_open(s->path, NULL, &opt, &src, &why);
    if (!rc) {
        d->result->ntensors += fsdpck_source_ntensors(src);
        d->result->nfiles += fsdpck_source_nfiles(src);
        check_left_over(d, s, src);
        check_megatron(d, s);
    } else if (rc == FSDPCK_ERR_FORMAT || rc == FSDPCK_ERR_MISSING || rc == FSDPCK_ERR_DAMAGED ||
               rc == FSDPCK_ERR_LIMIT) {
        blame_unreadable(d, s, &why);
    } else if (rc != FSDPCK_ERR_UNSUPPORTED) {
        *d->err = why;
    }
    fsdpck_source_close(src);
    return rc != FSDPCK_ERR_UNSUPPORTED;
}

bool fsdpck_doctor_ranks_files(struct doctor *d)
{
    const struct save s = own_save(d->model);
    return check_save(d, &s);
}

/* ---- the newest save ---- */

/* Reads the first line of a small file; false if it is no plain name. */
static bool read_line(const struct fsdpck_io *io, const char *path, char out[MAX_TAG_NBYTES + 1])
{
    struct fsdpck_error ignored = { 0 };
    char *text = NULL;
    uint64_t nbytes = 0;
    bool good = fsdpck_read_file(io, path, MAX_TAG_NBYTES, &text, &nbytes, &ignored) == 0;
    if (good) {
        text[strcspn(text, "\r\n")] = '\0';
        good = *text && !strchr(text, '/') && fsdpck_path_is_plain(text);
        snprintf(out, MAX_TAG_NBYTES + 1, "%s", text);
    }
    free(text);
    return good;
}

/* Megatron-core numbers its folders; DeepSpeed writes the folder's name. */
static void folder_of(const char *file, const char *line, char *out, size_t nbytes)
{
    if (strcmp(file, FSDPCK_MEGATRON_LATEST) == 0)
        fsdpck_megatron_folder(line, out, nbytes);
    else
        snprintf(out, nbytes, "%s", line);
}

/* Whether a folder holds what is written at the end of a save. Files of older releases of Megatron are in mp_rank_00/,
 * and those cannot be judged. */
static bool is_whole(const struct save *s)
{
    for (size_t i = 0; i < s->nnames; i++)
        if (strncmp(s->names[i], "mp_rank_", strlen("mp_rank_")) == 0)
            return true;
    return is_of_ranks(s) || has(s, "index.json");
}

static void blame_latest(struct doctor *d, const char *file, const char *found, const char *folder)
{
    struct doctor_words w;
    doctor_say(w.found, "%s%s%s%s", found, *folder ? " '" : "", folder, *folder ? "'" : "");
    doctor_say(w.expected, "the name of a whole save: programs resume from the one that is named here");
    doctor_say(w.mend, "write the name of the last whole save into '%s'", file);
    fsdpck_doctor_report(d, FSDPCK_SEVERITY_ERROR, file, "", &w);
}

static void check_named(struct doctor *d, const char *file, const char *folder, const char *path)
{
    char prefix[MAX_TAG_NBYTES + 16], **names = NULL;
    size_t count = 0;
    if (!fsdpck_is_directory(d->model->io, path)) {
        blame_latest(d, file, "no folder", folder);
        return;
    }
    snprintf(prefix, sizeof prefix, "%s/", folder);
    if (fsdpck_list_sorted(d->model->io, path, &names, &count, d->err) == 0) {
        const struct save s = { path, prefix, names, count };
        if (is_whole(&s))
            check_save(d, &s);
        else
            blame_latest(d, file, "a save that did not end:", folder);
    }
    fsdpck_list_free(names, count);
}

static void check_latest(struct doctor *d, const char *file, const char *path)
{
    char line[MAX_TAG_NBYTES + 1] = "", folder[MAX_TAG_NBYTES + 8];
    if (!read_line(d->model->io, path, line)) {
        blame_latest(d, file, "no name of a folder", "");
        return;
    }
    folder_of(file, line, folder, sizeof folder);
    char *below = fsdpck_path_join(d->model->path, folder, d->err);
    if (below)
        check_named(d, file, folder, below);
    free(below);
}

/* Some programs make a link to the newest save instead: not one of these files. */
bool fsdpck_doctor_latest(struct doctor *d)
{
    bool any = false;
    for (size_t i = 0; i < d->model->nnames && !d->err->code; i++) {
        const char *name = d->model->names[i];
        char *path = fsdpck_path_join(d->model->path, name, d->err);
        const bool is = path && (fsdpck_deepspeed_names_tag(name) || strcmp(name, FSDPCK_MEGATRON_LATEST) == 0) &&
                        fsdpck_is_file(d->model->io, path);
        if (is)
            check_latest(d, name, path);
        any = any || is;
        free(path);
    }
    return any;
}
