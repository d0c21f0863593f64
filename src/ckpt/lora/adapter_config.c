/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the adapter_config.json of an adapter: the one that the user named, the source's own, or the one beside its
 * file. */
#include "lora/adapter.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/ioutil.h"
#include "lora/pattern.h"

/* Searches the assets: the adapter's own folder first, as PEFT stores several adapters. */
static const struct source_asset *find_config(const struct fsdpck_lora_adapter *a)
{
    char own[512];
    const struct source_asset *list = source_assets(a->src), *plain = NULL;
    snprintf(own, sizeof own, "%s/" FSDPCK_LORA_CONFIG_NAME, a->name);
    for (size_t i = 0; i < a->src->assets.count; i++) {
        if (strcmp(list[i].pub.path, own) == 0)
            return &list[i];
        if (strcmp(list[i].pub.path, FSDPCK_LORA_CONFIG_NAME) == 0)
            plain = &list[i];
    }
    return plain;
}

/* Refuses an --alpha that contradicts the file, so that neither is ignored. */
static int check_alpha(const struct fsdpck_lora_adapter *a, const struct fsdpck_lora_request *req,
                       struct fsdpck_error *err)
{
    if (!req->has_alpha || req->alpha == a->config.alpha)
        return 0;
    if (a->config.only_tokens)
        return fsdpck_error_set(err, FSDPCK_ERR_USAGE, a->config.file,
                                "is not LoRA's: there is no lora_alpha in it to be %g", req->alpha);
    fsdpck_error_set(err, FSDPCK_ERR_USAGE, a->config.file, "says lora_alpha %g, and %g is asked for", a->config.alpha,
                     req->alpha);
    fsdpck_error_hint(err, "leave out --alpha, or give another configuration: --adapter-config FILE");
    return FSDPCK_ERR_USAGE;
}

static int load_config(struct fsdpck_lora_adapter *a, const struct fsdpck_lora_request *req, const char *path,
                       const struct source_asset *asset, struct fsdpck_error *err)
{
    char *text = NULL;
    uint64_t nbytes;
    struct fsdpck_hash128 hash;
    int rc = fsdpck_read_file(a->src->io, path, FSDPCK_LORA_CONFIG_MAX_NBYTES, &text, &nbytes, err);
    if (!rc && asset && asset->has_hash) {
        fsdpck_hash(text, nbytes, &hash);
        if (memcmp(hash.bytes, asset->hash, sizeof asset->hash) != 0)
            rc = fsdpck_error_set(err, FSDPCK_ERR_DAMAGED, path,
                                  "its hash is not the one that the checkpoint has for it");
    }
    if (!rc)
        rc = fsdpck_lora_config_parse(&a->config, path, text, nbytes, err);
    if (!rc)
        rc = check_alpha(a, req, err);
    free(text);
    return rc;
}

static int try_folder(struct fsdpck_lora_adapter *a, const struct fsdpck_lora_request *req, const char *folder,
                      bool *found, struct fsdpck_error *err)
{
    char *path = fsdpck_path_join(folder, FSDPCK_LORA_CONFIG_NAME, err);
    int rc = path ? 0 : FSDPCK_ERR_NOMEM;
    *found = !rc && fsdpck_is_file(a->src->io, path);
    if (*found)
        rc = load_config(a, req, path, NULL, err);
    free(path);
    return rc;
}

/* A file of tensors has its configuration beside it, a folder has it inside; several adapters have it in folders of
 * their names. */
static int find_beside(struct fsdpck_lora_adapter *a, const struct fsdpck_lora_request *req, bool *found,
                       struct fsdpck_error *err)
{
    const char *path = fsdpck_source_path(a->src), *slash = strrchr(path, '/');
    bool file = fsdpck_is_file(a->src->io, path);
    char *folder = !file   ? strdup(path)
                   : slash ? strndup(path, slash == path ? 1 : (size_t)(slash - path))
                           : strdup("");
    char *own = folder ? fsdpck_path_join(folder, strchr(a->name, '/') ? "default" : a->name, err)
                       : NULL; /* a tensor's name is not a path */
    int rc = own ? try_folder(a, req, own, found, err) : FSDPCK_ERR_NOMEM;
    if (!folder)
        fsdpck_error_nomem(err, strlen(path));
    if (!rc && !*found)
        rc = try_folder(a, req, folder, found, err);
    free(folder);
    free(own);
    return rc;
}

int fsdpck_lora_adapter_configure(struct fsdpck_lora_adapter *a, const struct fsdpck_lora_request *req,
                                  struct fsdpck_error *err)
{
    const struct source_asset *asset = find_config(a);
    bool found = false;
    if (req->config)
        return load_config(a, req, req->config, NULL, err);
    if (asset)
        return load_config(a, req, asset->from, asset, err);
    int rc = find_beside(a, req, &found, err);
    if (rc || found)
        return rc;
    a->config.alpha = req->alpha;
    if (req->has_alpha || a->modules.count == 0)
        return 0;
    fsdpck_error_set(err, FSDPCK_ERR_USAGE, fsdpck_source_path(a->src),
                     "has no adapter_config.json: nothing says how the adapter '%s' is scaled", a->name);
    fsdpck_error_hint(err, "give --adapter-config FILE, or --alpha A where scaling is alpha / rank");
    return FSDPCK_ERR_USAGE;
}

/* ---- entries without effect ---- */

bool fsdpck_lora_is_saved(const struct fsdpck_lora_adapter *a, const char *name)
{
    for (size_t i = 0; i < a->whole.count; i++)
        if (lora_whole(a)[i].saved && fsdpck_lora_saves(name, a->names[lora_whole(a)[i].position].module))
            return true;
    return false;
}

static bool reaches_any(const struct fsdpck_lora_adapter *a, const char *expression)
{
    for (size_t i = 0; i < a->modules.count; i++)
        if (fsdpck_pattern_ends(expression, lora_modules(a)[i].named) != PATTERN_NO)
            return true;
    return false;
}

static void note_patterns(const struct fsdpck_lora_adapter *a, const char *key, const struct fsdpck_options *opt)
{
    const char *name;
    for (size_t i = 0; (name = fsdpck_lora_config_pattern(&a->config, key, i)); i++)
        if (!reaches_any(a, name))
            fsdpck_lora_note(opt, "%s has '%s', which is none of the adapter's modules", key, name);
}

void fsdpck_lora_note_config(const struct fsdpck_lora_adapter *a, const struct fsdpck_options *opt)
{
    const char *name;
    if (!a->config.doc || !opt->note)
        return;
    for (size_t i = 0; (name = fsdpck_lora_config_saved_name(&a->config, i)); i++)
        if (!fsdpck_lora_is_saved(a, name))
            fsdpck_lora_note(opt, "modules_to_save has '%s', and there is no tensor of it", name);
    note_patterns(a, "rank_pattern", opt);
    note_patterns(a, "alpha_pattern", opt);
    for (size_t i = 0; (name = fsdpck_lora_config_unknown(&a->config, i)); i++)
        fsdpck_lora_note(opt, FSDPCK_LORA_CONFIG_NAME " has the key '%s', which is not known here and changes nothing",
                         name);
}
