/* SPDX-License-Identifier: Apache-2.0 */
/* A small save in every mode of the commit protocol. Uses only the protocol's public interface. */
#include "save_case.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/ioutil.h"
#include "tree.h"

#define CKPT  FSDPCK_COMMIT_CHECKPOINT
#define FILE_ FSDPCK_COMMIT_FILE

const struct save_case save_cases[] = {
    { .name = "fresh", .kind = CKPT, .out = "out" },
    { .name = "fresh, no rename_new", .kind = CKPT, .out = "out", .no_rename_new = true },
    { .name = "missing parents", .kind = CKPT, .out = "p/q/out" },
    { .name = "empty directory", .kind = CKPT, .out = "out", .empty = true },
    { .name = "empty directory, no rename_new", .kind = CKPT, .out = "out", .empty = true, .no_rename_new = true },
    { .name = "replace by exchange", .kind = CKPT, .out = "out", .old = true },
    { .name = "replace in steps", .kind = CKPT, .out = "out", .old = true, .no_exchange = true, .no_rename_new = true },
    { .name = "in place", .kind = CKPT, .out = "out", .empty = true, .mount = true },
    { .name = "in place, replace", .kind = CKPT, .out = "out", .old = true, .mount = true },
    { .name = "file", .kind = FILE_, .out = "out" },
    { .name = "file, no rename_new", .kind = FILE_, .out = "out", .no_rename_new = true },
    { .name = "replace file by exchange", .kind = FILE_, .out = "out", .old = true, .spare_fsync = 3 },
    { .name = "replace file by rename", .kind = FILE_, .out = "out", .old = true, .no_exchange = true },
};
enum { NCASES = sizeof save_cases / sizeof save_cases[0] };
const size_t nsave_cases = NCASES;

static const char *const old_files[][2] = {
    { "__0_0.distcp", "old rank 0" }, { "__1_0.distcp", "old rank 1" },       { ".metadata", "old metadata" },
    { "index.json", "old index" },    { "assets/config.json", "old config" }, { "assets/old_only.txt", "old asset" },
};
static const char *const new_files[][2] = {
    { "__0_0.distcp", "new rank 0" },
    { ".metadata", "new metadata" },
    { "assets/config.json", "new config" },
    { "index.json", "new index" },
};
enum { NOLD = sizeof old_files / sizeof old_files[0], NNEW = sizeof new_files / sizeof new_files[0] };
static const char in_place_data[] = "__0_0-" SAVE_UUID ".distcp";
static const char foreign[] = "notes.txt"; /* a foreign file in a directory that is written in place */

static void put(const char *root, const char *out, const char *name, const char *text)
{
    char *dir = tree_path(root, out);
    tree_file(dir, name, text);
    free(dir);
}

void save_case_setup(const struct save_case *c, const char *root)
{
    if (c->empty)
        tree_dir(root, c->out);
    if (!c->old)
        return;
    if (c->kind == FILE_) {
        tree_file(root, c->out, "old file");
        return;
    }
    for (size_t i = 0; i < NOLD; i++)
        put(root, c->out, old_files[i][0], old_files[i][1]);
    if (c->mount)
        put(root, c->out, foreign, "mine");
}

void save_case_lies(const struct save_case *c, struct faulty *f, const char *root)
{
    char *out = tree_path(root, c->out);
    if (c->mount)
        faulty_other_device(f, out);
    if (c->no_exchange)
        faulty_no_exchange(f);
    if (c->no_rename_new)
        faulty_no_rename_new(f);
    free(out);
}

/* ---- the save */

static int write_one(struct fsdpck_commit *w, const struct fsdpck_io *io, const char *name, const char *text,
                     struct fsdpck_error *err)
{
    char *path = tree_path(fsdpck_commit_dir(w), name);
    int rc = fsdpck_write_file(io, path, text, strlen(text), err);
    free(path);
    return rc != 0 ? rc : fsdpck_commit_created(w, name, err);
}

static int write_assets(struct fsdpck_commit *w, const struct fsdpck_io *io, const char *name, struct fsdpck_error *err)
{
    char file[256], *dir = tree_path(fsdpck_commit_dir(w), name);
    snprintf(file, sizeof file, "%s/config.json", name);
    int rc = io->mkdir(io->ctx, dir, 0777);
    rc = rc < 0 ? fsdpck_error_sys(err, -rc, dir, "cannot create") : write_one(w, io, file, "new config", err);
    if (rc == 0)
        rc = fsdpck_fsync_path(io, dir, err);
    free(dir);
    return rc;
}

static int write_new(const struct save_case *c, struct fsdpck_commit *w, const struct fsdpck_io *io,
                     struct fsdpck_error *err)
{
    bool in_place = fsdpck_commit_in_place(w);
    if (c->kind == FILE_)
        return fsdpck_write_file(io, fsdpck_commit_dir(w), "new file", 8, err);
    int rc = write_one(w, io, in_place ? in_place_data : "__0_0.distcp", "new rank 0", err);
    if (rc == 0)
        rc = write_one(w, io, in_place ? ".metadata.tmp-" SAVE_UUID : ".metadata", "new metadata", err);
    if (rc == 0)
        rc = write_assets(w, io, in_place ? "assets.tmp-" SAVE_UUID : "assets", err);
    if (rc == 0)
        rc = fsdpck_write_file(io, fsdpck_commit_record(w), "new index", 9, err);
    return rc;
}

int save_case_run(const struct save_case *c, const struct fsdpck_io *io, const char *root, struct fsdpck_error *err)
{
    uint8_t uuid[16];
    struct fsdpck_commit *w = NULL;
    char *out = tree_path(root, c->out);
    if (!fsdpck_uuid_parse(SAVE_UUID, uuid))
        abort();
    int rc = fsdpck_commit_begin(io, out, c->kind, c->kind == FILE_ ? NULL : "index.json", uuid, c->old, &w, err);
    free(out);
    if (rc != 0)
        return rc;
    rc = write_new(c, w, io, err);
    if (rc == 0)
        return fsdpck_commit_finish(w, err);
    fsdpck_commit_abandon(w);
    return rc;
}

/* ---- the possible end states */

static void make_new(const struct save_case *c, const char *root, bool in_place)
{
    if (c->kind == FILE_) {
        tree_file(root, c->out, "new file");
        return;
    }
    for (size_t i = 0; i < NNEW; i++)
        put(root, c->out, i == 0 && in_place ? in_place_data : new_files[i][0], new_files[i][1]);
    if (in_place && c->mount && c->old)
        put(root, c->out, foreign, "mine");
}

enum model { MODEL_OLD, MODEL_NEW, MODEL_NEW_IN_PLACE, NMODELS };

/* Made once, as text, because they are compared with thousands of crashes. */
struct models {
    char *root[NMODELS], *out[NMODELS]; /* out: NULL if there is none */
};

static const struct models *models_of(const struct save_case *c)
{
    static struct models all[NCASES];
    struct models *m = &all[c - save_cases];
    for (int i = 0; i < NMODELS && m->root[i] == NULL; i++) {
        char *dir = tree_new(), *out = tree_path(dir, c->out);
        if (i == MODEL_OLD)
            save_case_setup(c, dir);
        else
            make_new(c, dir, i == MODEL_NEW_IN_PLACE);
        m->out[i] = tree_exists(dir, c->out) ? tree_dump(out) : NULL;
        m->root[i] = tree_dump(dir);
        tree_remove(dir);
        free(out);
        free(dir);
    }
    return m;
}

bool save_case_is_new(const struct save_case *c, const char *root)
{
    const struct models *m = models_of(c);
    char *dump = tree_dump(root);
    bool equal = strcmp(dump, m->root[MODEL_NEW]) == 0 || strcmp(dump, m->root[MODEL_NEW_IN_PLACE]) == 0;
    free(dump);
    return equal;
}

bool save_case_is_old(const struct save_case *c, const char *root)
{
    char *dump = tree_dump(root);
    bool nested = strchr(c->out, '/') != NULL;
    bool equal = strcmp(dump, models_of(c)->root[MODEL_OLD]) == 0 ||
                 (nested && (strcmp(dump, "p/\n") == 0 || strcmp(dump, "p/\np/q/\n") == 0));
    free(dump);
    return equal;
}

static bool holds(const char *dir, const char *name, const char *text)
{
    char *path = tree_path(dir, name), *dump = tree_dump(path), want[256];
    snprintf(want, sizeof want, "=%s\n", text);
    bool same = strcmp(dump, want) == 0;
    free(dump);
    free(path);
    return same;
}

/* In place, a record marks the directory as complete, so its data files must exist. */
static bool is_whole_in_place(const struct save_case *c, const char *out)
{
    if (c->old && !holds(out, foreign, "mine"))
        return false;
    if (!tree_exists(out, "index.json"))
        return !c->old;
    if (holds(out, "index.json", "new index"))
        return holds(out, in_place_data, "new rank 0");
    for (size_t i = 0; i < NOLD; i++)
        if (!holds(out, old_files[i][0], old_files[i][1]))
            return false;
    return c->old;
}

static bool is_whole_staged(const struct save_case *c, const char *root, const char *out)
{
    const struct models *m = models_of(c);
    if (!tree_exists(root, c->out)) /* between the two renames, the old one is beside it */
        return !c->empty &&
               (!c->old || (c->no_exchange && c->kind != FILE_ && tree_exists(root, "out.old-" SAVE_UUID)));
    char *dump = tree_dump(out);
    bool whole =
        (m->out[MODEL_OLD] != NULL && strcmp(dump, m->out[MODEL_OLD]) == 0) || strcmp(dump, m->out[MODEL_NEW]) == 0;
    free(dump);
    return whole;
}

bool save_case_is_whole(const struct save_case *c, const char *root)
{
    char *out = tree_path(root, c->out);
    bool whole = c->mount ? is_whole_in_place(c, out) : is_whole_staged(c, root, out);
    free(out);
    return whole;
}
