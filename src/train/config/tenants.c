/* SPDX-License-Identifier: Apache-2.0 */
/* A tenant's config is the run's, with the tenant's sections over it: what trains it beside others trains it alone. */
#include "config/tenants.h"

#include <dirent.h>
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/file.h"

enum { NAME_NBYTES = 64, PATH_NBYTES = 4096 };

#define FAIL(...) fsdpck_error_set(err, FSDPCK_ERR_USAGE, path, __VA_ARGS__)

static const char *const own_keys[] = { "name", "share", "seed", "data", "lora", "train", "checkpoint", "sample" };

static bool is_own(const char *key)
{
    for (size_t i = 0; i < sizeof own_keys / sizeof *own_keys; i++)
        if (strcmp(own_keys[i], key) == 0)
            return true;
    return false;
}

/* The name is one of a folder too. */
static int check_name(const char *path, const char *name, size_t i, struct fsdpck_error *err)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    const size_t n = name ? strlen(name) : 0;
    if (!name)
        return FAIL("key 'tenants': entry %zu has no name", i);
    if (n == 0 || n > NAME_NBYTES || name[0] == '.' || strspn(name, letters) < n)
        return FAIL("key 'tenants': the name '%.80s' is to have 1 to %d letters, digits, '.', '_' and '-', and not to "
                    "begin with '.'",
                    name, NAME_NBYTES);
    return 0;
}

static int check_tenant(const char *path, const json_t *list, size_t i, struct fsdpck_error *err)
{
    json_t *tenant = json_array_get(list, i), *value;
    const char *key;
    if (!json_is_object(tenant))
        return FAIL("key 'tenants': entry %zu is no object", i);
    const char *name = json_string_value(json_object_get(tenant, "name"));
    int rc = check_name(path, name, i, err);
    for (size_t k = 0; k < i && !rc; k++)
        if (strcmp(name, json_string_value(json_object_get(json_array_get(list, k), "name"))) == 0)
            return FAIL("key 'tenants': two have the name '%s'", name);
    json_object_foreach (tenant, key, value) {
        const json_t *share = strcmp(key, "share") == 0 ? value : NULL;
        if (rc || strncmp(key, "//", 2) == 0)
            continue;
        if (share && !(json_is_number(share) && json_number_value(share) >= 0.001 && json_number_value(share) <= 1000))
            return FAIL("tenant '%s': key 'share': a number from 0.001 to 1000 is wanted", name);
        if (!is_own(key))
            return FAIL("tenant '%s': key '%s' is none of name, share, seed, data, lora, train, checkpoint, sample; "
                        "what all tenants share is at the top of the config",
                        name, key);
    }
    return rc;
}

static int is_json(const struct dirent *e)
{
    const size_t n = strlen(e->d_name);
    return e->d_name[0] != '.' && n > 5 && strcmp(e->d_name + n - 5, ".json") == 0;
}

static int read_file(const char *folder, const char *file, json_t *list, struct fsdpck_error *err)
{
    char path[PATH_NBYTES];
    json_t *tenant;
    if (snprintf(path, sizeof path, "%s/%s", folder, file) >= PATH_NBYTES)
        return fsdpck_error_set(err, FSDPCK_ERR_USAGE, folder, "the path is too long");
    int rc = text_file_json(path, &tenant, err);
    if (rc)
        return rc;
    if (json_is_object(tenant) && !json_object_get(tenant, "name"))
        json_object_set_new(tenant, "name", json_stringn(file, strlen(file) - 5));
    return json_array_append_new(list, tenant) ? fsdpck_error_nomem(err, sizeof *list) : 0;
}

static int read_folder(const char *folder, json_t *list, struct fsdpck_error *err)
{
    struct dirent **files;
    const int n = scandir(folder, &files, is_json, alphasort);
    int rc = n < 0 ? fsdpck_error_sys(err, errno, folder, "key 'tenants'") : 0;
    for (int i = 0; i < n; i++) {
        if (!rc)
            rc = read_file(folder, files[i]->d_name, list, err);
        free(files[i]);
    }
    if (n >= 0)
        free(files);
    return rc;
}

int tenants_expand(const char *path, struct train_config *c, struct fsdpck_error *err)
{
    if (json_is_string(c->tenants)) {
        json_t *list = json_array();
        int rc = list ? read_folder(json_string_value(c->tenants), list, err) : fsdpck_error_nomem(err, sizeof *list);
        if (json_object_set_new(c->root, "tenants", list) && !rc)
            rc = fsdpck_error_nomem(err, sizeof *list);
        c->tenants = json_object_get(c->root, "tenants");
        if (rc)
            return rc;
    }
    if (json_array_size(c->tenants) == 0)
        return FAIL("key 'tenants' has none");
    int rc = 0;
    for (size_t i = 0; i < json_array_size(c->tenants) && !rc; i++)
        rc = check_tenant(path, c->tenants, i, err);
    return rc;
}

/* The tenant's way to give a length counts, whichever the rest of the config gives. */
static void choose_one(json_t *section, const json_t *own, const char *strong, const char *weak)
{
    if (json_object_get(own, weak) && !json_object_get(own, strong))
        json_object_del(section, strong);
}

/* Puts the tenant's value over that of the run: of a section, key by key. */
static int put_over(json_t *tree, const char *key, json_t *value)
{
    json_t *section = json_object_get(tree, key);
    if (!json_is_object(section) || !json_is_object(value))
        return json_object_set(tree, key, value);
    if (strcmp(key, "train") == 0) {
        choose_one(section, value, "max_steps", "num_train_epochs");
        choose_one(section, value, "warmup_steps", "warmup_ratio");
    }
    return json_object_update(section, value);
}

static int make_tree(const struct train_config *c, json_t *tenant, json_t **out, struct fsdpck_error *err)
{
    json_t *tree = json_deep_copy(c->root), *value;
    const char *key;
    bool complete = tree != NULL;
    json_object_del(tree, "tenants");
    json_object_foreach (tenant, key, value) {
        if (strcmp(key, "name") != 0 && strcmp(key, "share") != 0)
            complete = complete && put_over(tree, key, value) == 0;
    }
    complete = complete && json_object_set_new(tree, "output_dir",
                                               json_sprintf("%s/tenants/%s", c->output_dir,
                                                            json_string_value(json_object_get(tenant, "name")))) == 0;
    *out = tree;
    return complete ? 0 : fsdpck_error_nomem(err, sizeof *tree);
}

static int read_tenant(const struct train_config *c, json_t *tenant, struct train_tenant *out, struct fsdpck_error *err)
{
    const json_t *share = json_object_get(tenant, "share");
    char where[NAME_NBYTES + 16];
    json_t *tree;
    out->name = json_string_value(json_object_get(tenant, "name"));
    out->share = share ? json_number_value(share) : 1;
    snprintf(where, sizeof where, "tenant '%s'", out->name);
    int rc = make_tree(c, tenant, &tree, err);
    if (rc) {
        json_decref(tree);
        return rc;
    }
    rc = train_config_take(where, tree, &out->config, err);
    if (!rc && !out->config.lora.enabled)
        return fsdpck_error_set(err, FSDPCK_ERR_USAGE, where,
                                "it has no section 'lora': tenants are adapters on a model that they share");
    return rc;
}

int train_config_tenants(const struct train_config *c, struct train_tenant **out, size_t *n, struct fsdpck_error *err)
{
    const size_t count = json_array_size(c->tenants);
    struct train_tenant *all = calloc(count + 1, sizeof *all);
    int rc = all ? 0 : fsdpck_error_nomem(err, count * sizeof *all);
    *out = NULL;
    *n = 0;
    for (size_t i = 0; i < count && !rc; i++) {
        rc = read_tenant(c, json_array_get(c->tenants, i), &all[i], err);
        all[i].config.model = c->model; /* it may have been resolved */
        all[i].config.pipeline = c->pipeline;
    }
    if (rc) {
        train_config_tenants_free(all, all ? count : 0);
        return rc;
    }
    *out = all;
    *n = count;
    return 0;
}

void train_config_tenants_free(struct train_tenant *tenants, size_t n)
{
    for (size_t i = 0; i < n; i++)
        train_config_free(&tenants[i].config);
    free(tenants);
}

int tenants_check(const struct train_config *c, struct fsdpck_error *err)
{
    struct train_tenant *tenants;
    size_t n;
    int rc = train_config_tenants(c, &tenants, &n, err);
    train_config_tenants_free(tenants, n);
    return rc;
}
