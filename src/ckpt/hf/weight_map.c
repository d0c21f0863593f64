/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the weight_map of a Hugging Face index. Trusts nothing in it: the caller compares it with the files. */
#include "hf/weight_map.h"

#include <stdlib.h>
#include <string.h>

#include "base/ioutil.h"

#define MAX_INDEX_NBYTES (256u << 20)

struct reading {
    const char *path;
    struct fsdpck_json j;
    fsdpck_weight_fn add;
    void *ctx;
    struct fsdpck_error *err;
};

static int parse_entry(struct reading *r, const char *key)
{
    char *name = strdup(key); /* the reader's next string overwrites it */
    if (!name)
        return fsdpck_error_nomem(r->err, strlen(key) + 1);
    const char *file = fsdpck_json_string(&r->j);
    int rc = 0;
    if (!file)
        fsdpck_error_tensor(r->err, name);
    else if (!fsdpck_path_is_plain(file))
        fsdpck_json_fail(&r->j, FSDPCK_ERR_FORMAT,
                         "tensor '%s' is said to lie in '%s', which is no plain path inside the folder", name, file);
    else
        rc = r->add(r->ctx, &r->j, name, file, r->err);
    free(name);
    return rc;
}

static int parse_weight_map(struct reading *r)
{
    const char *key;
    int rc = 0;
    fsdpck_json_object(&r->j);
    while (!rc && fsdpck_json_next_key(&r->j, &key))
        rc = parse_entry(r, key);
    return rc;
}

static int parse(struct reading *r)
{
    bool has_map = false;
    const char *key;
    int rc = 0;
    fsdpck_json_object(&r->j);
    while (!rc && fsdpck_json_next_key(&r->j, &key)) {
        if (strcmp(key, "weight_map") != 0) {
            fsdpck_json_skip(&r->j);
            continue;
        }
        if (has_map)
            fsdpck_json_fail(&r->j, FSDPCK_ERR_FORMAT, "weight_map is given twice");
        has_map = true;
        rc = parse_weight_map(r);
    }
    fsdpck_json_end(&r->j);
    if (!rc && !r->j.failed && !has_map)
        return fsdpck_error_set(r->err, FSDPCK_ERR_FORMAT, r->path, "has no weight_map");
    return rc ? rc : r->j.failed ? r->err->code : 0;
}

int fsdpck_weight_map_read(const struct fsdpck_io *io, const char *path, fsdpck_weight_fn add, void *ctx,
                           struct fsdpck_error *err)
{
    struct reading r = { .path = path, .add = add, .ctx = ctx, .err = err };
    char *text = NULL;
    uint64_t nbytes;
    int rc = fsdpck_read_file(io, path, MAX_INDEX_NBYTES, &text, &nbytes, err);
    if (!rc) {
        fsdpck_json_begin(&r.j, path, 0, text, nbytes, err);
        rc = parse(&r);
        fsdpck_json_free(&r.j);
    }
    free(text);
    return rc;
}
