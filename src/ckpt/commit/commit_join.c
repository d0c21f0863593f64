/* SPDX-License-Identifier: Apache-2.0 */
/* Lets the other ranks of a save find the staging directory that rank 0 made: the output's lock file names the save. */
#include <stdlib.h>
#include <string.h>

#include "commit/commit_impl.h"
#include "base/hash.h"
#include "base/ioutil.h"
#include "base/json_read.h"

#define MAX_LOCK_NBYTES 4096u

static int parse_save_id(const char *path, const char *text, size_t nbytes, uint8_t uuid[16], struct fsdpck_error *err)
{
    struct fsdpck_json j;
    const char *key, *id;
    bool ok = false;
    fsdpck_json_begin(&j, path, 0, text, nbytes, err);
    fsdpck_json_object(&j);
    while (fsdpck_json_next_key(&j, &key)) {
        if (strcmp(key, "save_id") == 0)
            ok = (id = fsdpck_json_string(&j)) != NULL && fsdpck_uuid_parse(id, uuid);
        else
            fsdpck_json_skip(&j);
    }
    fsdpck_json_end(&j);
    fsdpck_json_free(&j);
    return j.failed ? err->code : ok ? 0 : fsdpck_error_set(err, FSDPCK_ERR_FORMAT, path, "does not name a save");
}

static int read_lock(const struct fsdpck_io *io, const char *dir, const char *base, uint8_t uuid[16],
                     struct fsdpck_error *err)
{
    char *text = NULL, *path = fsdpck_commit_name_path(dir, base, NAME_LOCK, NULL, err);
    uint64_t nbytes;
    int rc = path ? fsdpck_read_file(io, path, MAX_LOCK_NBYTES, &text, &nbytes, err) : FSDPCK_ERR_NOMEM;
    if (!rc)
        rc = parse_save_id(path, text, nbytes, uuid, err);
    free(text);
    free(path);
    return rc;
}

int fsdpck_commit_join(const struct fsdpck_io *io, const char *out, uint8_t uuid[16], char **dir, bool *in_place,
                       struct fsdpck_error *err)
{
    struct commit_output output;
    struct fsdpck_error beside = { 0 };
    *dir = NULL;
    int rc = fsdpck_output_resolve(io, out, &output, err);
    if (rc)
        return rc;
    rc = read_lock(io, output.parent, output.base, uuid, &beside);
    if (rc == FSDPCK_ERR_MISSING) { /* a parent without write permission has no lock: then the lock is inside */
        beside = (struct fsdpck_error){ 0 };
        rc = read_lock(io, output.path, "", uuid, &beside);
    }
    if (rc == FSDPCK_ERR_MISSING)
        rc = fsdpck_error_set(
            err, FSDPCK_ERR_PEER, out,
            "the save was given up: rank 0 holds no lock; it failed and says why, or writes elsewhere");
    else if (rc && err && err->code == 0)
        *err = beside;
    if (!rc)
        rc = fsdpck_commit_staging_path(io, out, uuid, dir, err);
    *in_place = !rc && !fsdpck_is_directory(io, *dir);
    if (*in_place) {
        free(*dir);
        *dir = strdup(output.path);
        rc = *dir ? 0 : fsdpck_error_nomem(err, strlen(output.path));
    }
    fsdpck_output_free(&output);
    return rc;
}
