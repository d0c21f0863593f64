/* SPDX-License-Identifier: Apache-2.0 */
/* Tells the files of a result (a checkpoint, a model folder) from foreign files in the same directory. A replacement
 * may remove only the files of a result: FORMAT.md section 6 has the rule. It knows names, and the asset lists in
 * index.json; not tensors. */
#include "commit/commit_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/ioutil.h"
#include "base/json_read.h"
#include "base/suffix.h"
#include "commit/result_names.h"

enum { MAX_DEPTH = 32, MAX_CONFIG_NBYTES = 1 << 20 };
#define MAX_INDEX_NBYTES (4ull << 30)

/* ---- index.json ---- */

struct index_names {
    bool is_ours; /* it begins with fsdpck's format key */
    bool is_whole;
    char folder[256];         /* of the assets */
    struct fsdpck_vec assets; /* char *, relative to folder */
};

static void parse_assets(struct fsdpck_json *j, struct index_names *x)
{
    const char *key, *path;
    fsdpck_json_array(j);
    while (fsdpck_json_next_item(j)) {
        fsdpck_json_object(j);
        while (fsdpck_json_next_key(j, &key)) {
            if (strcmp(key, "path") != 0)
                fsdpck_json_skip(j);
            else if ((path = fsdpck_json_string(j)) != NULL && fsdpck_strings_add(&x->assets, path, j->err) != 0)
                fsdpck_json_fail(j, FSDPCK_ERR_NOMEM, "memory is out");
        }
    }
}

/* Fails only if out of memory; a damaged index leaves is_whole false. */
static int parse_index(const char *path, const char *text, uint64_t nbytes, struct index_names *x,
                       struct fsdpck_error *err)
{
    static const char head[] = "{\"format\":\"fsdpck\"";
    struct fsdpck_error own = { 0 };
    struct fsdpck_json j;
    const char *key, *folder;
    strcpy(x->folder, "assets");
    x->is_ours = nbytes >= sizeof head - 1 && memcmp(text, head, sizeof head - 1) == 0;
    if (!x->is_ours)
        return 0;
    fsdpck_json_begin(&j, path, 0, text, nbytes, &own);
    fsdpck_json_object(&j);
    while (fsdpck_json_next_key(&j, &key)) {
        x->is_whole |= strcmp(key, "hash") == 0;
        if (strcmp(key, "assets") == 0)
            parse_assets(&j, x);
        else if (strcmp(key, "assets_folder") == 0 && (folder = fsdpck_json_string(&j)) != NULL)
            snprintf(x->folder, sizeof x->folder, "%s", folder);
        else
            fsdpck_json_skip(&j);
    }
    fsdpck_json_end(&j);
    x->is_whole &= !j.failed;
    fsdpck_json_free(&j);
    return own.code == FSDPCK_ERR_NOMEM ? fsdpck_error_nomem(err, nbytes) : 0;
}

static int read_index(const struct fsdpck_io *io, const char *dir, struct index_names *x, struct fsdpck_error *err)
{
    char *text = NULL, *path = fsdpck_path_join(dir, "index.json", err);
    uint64_t nbytes = 0;
    int rc = !path ? FSDPCK_ERR_NOMEM : 0;
    if (!rc && fsdpck_is_file(io, path))
        rc = fsdpck_read_file(io, path, MAX_INDEX_NBYTES, &text, &nbytes, err);
    if (!rc && text)
        rc = parse_index(path, text, nbytes, x, err);
    free(text);
    free(path);
    return rc;
}

/* ---- the entries ---- */

struct ownership_scan {
    const struct fsdpck_io *io;
    const char *dir;
    enum fsdpck_commit_kind kind; /* of the new result */
    const char *const *new_files;
    size_t nnew_files;
    struct index_names index;
    bool has_index, has_shards; /* by name */
    bool has_config;            /* of a model or an adapter */
    char *doubtful; /* the first file that belongs to the model only if the directory holds nothing foreign */
    struct commit_ownership *own;
    struct fsdpck_error *err;
};

static bool is_directory(const struct ownership_scan *l, const char *name)
{
    struct fsdpck_stat st;
    char *path = fsdpck_path_join(l->dir, name, NULL);
    bool is = path && l->io->stat(l->io->ctx, path, false, &st) == 0 && st.type == FSDPCK_FILE_DIRECTORY;
    free(path);
    return is;
}

static bool is_asset(const struct ownership_scan *l, const char *path)
{
    char **assets = l->index.assets.data;
    size_t n = strlen(l->index.folder);
    for (size_t i = 0; i < l->index.assets.count; i++)
        if (strncmp(path, l->index.folder, n) == 0 && path[n] == '/' && strcmp(path + n + 1, assets[i]) == 0)
            return true;
    return false;
}

static bool is_new_file(const struct ownership_scan *l, const char *path)
{
    for (size_t i = 0; i < l->nnew_files; i++)
        if (strcmp(path, l->new_files[i]) == 0)
            return true;
    return false;
}

/* Keeps the first path only. */
static int keep_first(const struct ownership_scan *l, char **first, const char *path)
{
    if (*first == NULL && (*first = strdup(path)) == NULL)
        return fsdpck_error_nomem(l->err, strlen(path) + 1);
    return 0;
}

/* Any program may use the name config.json, so this looks for the keys of a model's. */
static int is_config_of_model(const struct ownership_scan *l, const char *name, bool *is)
{
    static const char *const keys[] = { "\"model_type\"", "\"architectures\"", "\"peft_type\"", "\"_class_name\"" };
    struct fsdpck_error own = { 0 };
    char *text = NULL, *path = fsdpck_path_join(l->dir, name, &own);
    uint64_t nbytes;
    *is = false;
    if (path && fsdpck_is_file(l->io, path))
        fsdpck_read_file(l->io, path, MAX_CONFIG_NBYTES, &text, &nbytes, &own);
    for (size_t i = 0; text && i < sizeof keys / sizeof *keys; i++)
        *is |= strstr(text, keys[i]) != NULL;
    free(text);
    free(path);
    if (own.code != FSDPCK_ERR_NOMEM && own.code != FSDPCK_ERR_IO)
        return 0; /* a longer file is not a model's */
    *l->err = own;
    return own.code;
}

/* A folder belongs to the result if every file in it does; *foreign gets the first one that does not. */
static int scan_below(const struct ownership_scan *l, const char *folder, unsigned depth,
                      bool (*belongs)(const struct ownership_scan *, const char *), char **foreign)
{
    char **list = NULL, *full = fsdpck_path_join(l->dir, folder, l->err);
    size_t count = 0;
    int rc = !full ? FSDPCK_ERR_NOMEM : 0;
    if (!rc)
        rc =
            depth > MAX_DEPTH ? keep_first(l, foreign, folder) : fsdpck_list_sorted(l->io, full, &list, &count, l->err);
    for (size_t i = 0; !rc && i < count && *foreign == NULL; i++) {
        char *path = fsdpck_path_join(folder, list[i], l->err);
        if (!path)
            rc = FSDPCK_ERR_NOMEM;
        else if (is_directory(l, path))
            rc = scan_below(l, path, depth + 1, belongs, foreign);
        else if (!belongs(l, path))
            rc = keep_first(l, foreign, path);
        free(path);
    }
    fsdpck_list_free(list, count);
    free(full);
    return rc;
}

/* Files that a download adds: the cache of `huggingface_hub`, and Meta's original form of a Llama. */
static bool is_of_download(const struct ownership_scan *l, const char *path)
{
    return strncmp(path, ".cache/huggingface/", 19) == 0 || strcmp(path, "original/params.json") == 0 ||
           strcmp(path, "original/tokenizer.model") == 0 || strcmp(path, "original/checklist.chk") == 0 ||
           (strncmp(path, "original/consolidated.", 22) == 0 && ends_with(path, ".pth")) || is_new_file(l, path);
}

/* How certain it is that an entry belongs to a result in the directory. */
enum claim { FOREIGN, DOUBTFUL, OWN };

static int classify_directory(const struct ownership_scan *l, const char *name, enum claim *claim, char **foreign)
{
    const struct commit_ownership *own = l->own;
    bool is_folder = strcmp(name, l->index.folder) == 0 && l->index.is_whole,
         is_download = own->model && (strcmp(name, ".cache") == 0 || strcmp(name, "original") == 0);
    /* assets of a save that was not cleaned up: no other program uses this name */
    bool is_older = own->checkpoint && fsdpck_is_save_assets_name(name);
    bool is_guessed = own->checkpoint && l->has_index && !l->index.is_whole && strcmp(name, "assets") == 0;
    int rc = 0;
    if (is_folder)
        rc = scan_below(l, name, 0, is_asset, foreign);
    else if (is_download)
        rc = scan_below(l, name, 0, is_of_download, foreign);
    else if (!is_older && !is_guessed)
        rc = scan_below(l, name, 0, is_new_file, foreign);
    *claim = *foreign != NULL                                     ? FOREIGN
             : is_folder || is_download || is_older || is_guessed ? OWN
             : own->model                                         ? DOUBTFUL
                                                                  : FOREIGN;
    return rc;
}

static void classify_file(const struct ownership_scan *l, const char *name, enum claim *claim)
{
    const struct commit_ownership *own = l->own;
    *claim = FOREIGN;
    if (strcmp(name, "index.json") == 0) {
        *claim = l->index.is_ours || l->has_shards ? OWN : FOREIGN;
    } else if (own->checkpoint && fsdpck_is_checkpoint_name(name)) {
        *claim = OWN;
    } else if (own->model && fsdpck_is_model_name(name)) {
        *claim = l->has_config ? OWN : DOUBTFUL;
    } else if (own->model && (fsdpck_is_document_name(name) || is_new_file(l, name))) {
        *claim = is_new_file(l, name) ? DOUBTFUL : OWN;
    }
}

/* Returns whether the new result would replace this entry, or a file below it. */
static bool would_be_replaced(const struct ownership_scan *l, const char *name)
{
    size_t n = strlen(name);
    if (l->kind == FSDPCK_COMMIT_CHECKPOINT && (strcmp(name, "index.json") == 0 || strcmp(name, ".metadata") == 0))
        return true;
    for (size_t i = 0; i < l->nnew_files; i++)
        if (strncmp(l->new_files[i], name, n) == 0 && (l->new_files[i][n] == '\0' || l->new_files[i][n] == '/'))
            return true;
    return false;
}

static int classify_entry(struct ownership_scan *l, const char *name)
{
    struct commit_ownership *own = l->own;
    enum claim claim = FOREIGN;
    char *below = NULL;
    int rc = 0;
    if (is_directory(l, name))
        rc = classify_directory(l, name, &claim, &below);
    else
        classify_file(l, name, &claim);
    if (!rc && claim == FOREIGN)
        rc = keep_first(l, &own->foreign, below ? below : name);
    if (!rc && claim == FOREIGN && would_be_replaced(l, name))
        rc = keep_first(l, &own->contested, below ? below : name);
    if (!rc && claim == DOUBTFUL)
        rc = keep_first(l, &l->doubtful, name);
    if (!rc && claim != FOREIGN)
        rc = fsdpck_strings_add(&own->names, name, l->err);
    free(below);
    return rc;
}

/* A temporary file of a save inside the directory, or an entry that the file system puts into its root. */
static bool is_ignored(char **list, size_t count, const char *name)
{
    return strcmp(name, "lost+found") == 0 || fsdpck_commit_name_is_inner(list, count, name);
}

int fsdpck_ownership_scan(const struct fsdpck_io *io, const char *dir, enum fsdpck_commit_kind kind,
                          const char *const *new_files, size_t nnew_files, struct commit_ownership *own,
                          struct fsdpck_error *err)
{
    struct ownership_scan l = { .io = io,
                                .dir = dir,
                                .kind = kind,
                                .new_files = new_files,
                                .nnew_files = nnew_files,
                                .index.assets = FSDPCK_VEC(char *),
                                .own = own };
    char **list = NULL;
    size_t count = 0;
    struct fsdpck_error ignored = { 0 };
    l.err = err ? err : &ignored;
    *own = (struct commit_ownership){ .names = FSDPCK_VEC(char *) };
    int rc = fsdpck_list_sorted(io, dir, &list, &count, l.err);
    for (size_t i = 0; !rc && i < count; i++) {
        l.has_index |= strcmp(list[i], "index.json") == 0;
        l.has_shards |= fsdpck_is_shard_name(list[i]);
        own->model |= fsdpck_is_weights_name(list[i]);
    }
    if (!rc && l.has_index)
        rc = read_index(io, dir, &l.index, l.err);
    own->checkpoint = l.index.is_ours || l.has_shards;
    for (size_t i = 0; !rc && own->model && i < count && !l.has_config; i++)
        if (strcmp(list[i], "config.json") == 0 || strcmp(list[i], "adapter_config.json") == 0)
            rc = is_config_of_model(&l, list[i], &l.has_config);
    for (size_t i = 0; !rc && i < count; i++)
        if (!is_ignored(list, count, list[i]))
            rc = classify_entry(&l, list[i]);
    if (!rc && own->foreign && !own->contested && l.doubtful)
        rc = keep_first(&l, &own->contested, l.doubtful);
    fsdpck_list_free(list, count);
    fsdpck_strings_free(&l.index.assets);
    free(l.doubtful);
    if (rc)
        fsdpck_ownership_free(own);
    return rc;
}

void fsdpck_ownership_free(struct commit_ownership *own)
{
    fsdpck_strings_free(&own->names);
    free(own->foreign);
    free(own->contested);
    own->foreign = own->contested = NULL;
}

int fsdpck_is_checkpoint_remnant(const struct fsdpck_io *io, const char *dir, bool *is, struct fsdpck_error *err)
{
    char **list = NULL;
    size_t count = 0;
    int rc = fsdpck_list_sorted(io, dir, &list, &count, err);
    *is = !rc;
    for (size_t i = 0; !rc && i < count; i++)
        *is = *is && fsdpck_is_checkpoint_name(list[i]);
    fsdpck_list_free(list, count);
    return rc;
}
