/* SPDX-License-Identifier: Apache-2.0 */
/* Commits inside a directory that cannot be renamed. Each new file has the save id in its name, as STEM-UUID.EXT or
 * NAME.tmp-UUID, so old and new files can exist together. The order; each step is durable before the next one:
 *
 *     data files, RECORD.tmp-UUID       written by the caller
 *     .commit-UUID                      the journal: RECORD's name and hash, the old files that the new save replaces
 *     RECORD.tmp-UUID -> RECORD         the commit, one rename
 *     NAME.tmp-UUID -> NAME             files with a fixed name (.metadata, assets); old files are removed
 *     .writer-UUID removed, then .commit-UUID
 *
 * The hash in a left-over journal tells whether its save was committed. If it was, recovery does the remaining steps,
 * which may be repeated. If not, recovery removes all files of that save. This file knows names and bytes, not their
 * meaning. */
#include "commit/commit_impl.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "base/hash.h"
#include "base/ioutil.h"
#include "base/json_read.h"
#include "base/json_write.h"
#include "base/suffix.h"
#include "commit/result_names.h"

enum { JOURNAL_MAX = 64 << 20, HASH_CHUNK = 65536 };

/* ---- the old files */

/* The files by which other programs recognise a checkpoint or a model. They are removed first. */
static bool is_record(const char *name)
{
    return strcmp(name, "index.json") == 0 || strcmp(name, ".metadata") == 0 ||
           strcmp(name, "model.safetensors") == 0 || strcmp(name, "adapter_model.safetensors") == 0 ||
           strcmp(name, "pytorch_lora_weights.safetensors") == 0 || ends_with(name, ".index.json");
}

int fsdpck_in_place_old(const struct commit_ownership *own, const char *record, struct fsdpck_vec *names,
                        struct fsdpck_error *err)
{
    char **list = own->names.data;
    int rc = 0;
    for (int records = 1; records >= 0; records--) /* they are removed in this order */
        for (size_t i = 0; !rc && i < own->names.count; i++)
            if (is_record(list[i]) == records && strcmp(list[i], record) != 0 && fsdpck_is_result_name(list[i]))
                rc = fsdpck_strings_add(names, list[i], err);
    return rc;
}

int fsdpck_in_place_check_empty(const struct fsdpck_io *io, const char *dir, struct fsdpck_error *err)
{
    char **list = NULL;
    size_t count = 0;
    int rc = fsdpck_list_sorted(io, dir, &list, &count, err);
    for (size_t i = 0; !rc && i < count; i++)
        if (strcmp(list[i], "lost+found") != 0 && !fsdpck_commit_name_is_inner(list, count, list[i])) {
            rc = fsdpck_error_set(err, FSDPCK_ERR_EXISTS, dir, "the directory exists and is not empty: '%s' is in it",
                                  list[i]);
            fsdpck_error_hint(err, "--force replaces what fsdpck wrote there, once the new one is complete");
        }
    fsdpck_list_free(list, count);
    return rc;
}

/* ---- the journal */

struct journal {
    char record[256];
    struct fsdpck_hash128 hash;
    struct fsdpck_vec old; /* char * */
};

static int hash_file(const struct fsdpck_io *io, const char *path, struct fsdpck_hash128 *hash,
                     struct fsdpck_error *err)
{
    uint64_t at = 0;
    int64_t n = 0;
    int fd = io->open(io->ctx, path, FSDPCK_OPEN_READ, 0);
    if (fd < 0)
        return fsdpck_error_sys(err, -fd, path, "cannot open");
    struct fsdpck_hasher *h = fsdpck_hasher_new();
    char *buf = malloc(HASH_CHUNK);
    int rc = !h || !buf ? fsdpck_error_nomem(err, HASH_CHUNK) : 0;
    while (!rc && ((n = io->pread(io->ctx, fd, buf, HASH_CHUNK, at)) > 0 || n == -EINTR)) {
        fsdpck_hasher_add(h, buf, n > 0 ? (size_t)n : 0);
        at += n > 0 ? (uint64_t)n : 0;
    }
    if (n < 0)
        rc = fsdpck_error_sys(err, (int)-n, path, "cannot read");
    if (!rc)
        fsdpck_hasher_finish(h, hash);
    fsdpck_hasher_free(h);
    free(buf);
    io->close(io->ctx, fd);
    return rc;
}

/* Accepts only names that fsdpck_in_place_old() can list: a foreign journal must not remove other files. */
static void parse_old(struct fsdpck_json *js, struct journal *j)
{
    fsdpck_json_array(js);
    while (fsdpck_json_next_item(js)) {
        const char *name = fsdpck_json_string(js);
        if (!name)
            return;
        if (!fsdpck_is_result_name(name))
            fsdpck_json_fail(js, FSDPCK_ERR_FORMAT, "'%s' in 'replaces' is no name of a checkpoint file", name);
        else if (fsdpck_strings_add(&j->old, name, js->err) != 0)
            fsdpck_json_fail(js, FSDPCK_ERR_NOMEM, "memory is out");
    }
}

static bool parse_record(struct fsdpck_json *js, struct journal *j)
{
    const char *record = fsdpck_json_string(js);
    if (!record || !fsdpck_path_is_plain(record) || strchr(record, '/') != NULL || strlen(record) >= sizeof j->record)
        return false;
    strcpy(j->record, record);
    return true;
}

static bool parse_hash(struct fsdpck_json *js, struct journal *j)
{
    const char *hash = fsdpck_json_string(js);
    return hash && strlen(hash) == 32 && fsdpck_hex_parse(hash, j->hash.bytes, 16);
}

/* Not jansson: out of memory, it may call a journal malformed, and a committed save would be undone. */
static int parse_journal(const char *path, const char *text, size_t nbytes, struct journal *j, struct fsdpck_error *err)
{
    struct fsdpck_json js;
    const char *key;
    bool record = false, hash = false;
    fsdpck_json_begin(&js, path, 0, text, nbytes, err);
    fsdpck_json_object(&js);
    while (fsdpck_json_next_key(&js, &key)) {
        if (strcmp(key, "record") == 0)
            record = parse_record(&js, j);
        else if (strcmp(key, "hash") == 0)
            hash = parse_hash(&js, j);
        else if (strcmp(key, "replaces") == 0)
            parse_old(&js, j);
        else
            fsdpck_json_skip(&js);
    }
    fsdpck_json_end(&js);
    int rc = js.failed        ? err->code
             : record && hash ? 0
                              : fsdpck_error_set(err, FSDPCK_ERR_FORMAT, path, "this is no journal of a save");
    fsdpck_json_free(&js);
    return rc;
}

/* A malformed journal was not durable when the machine stopped, so none of the later steps happened. */
static int read_journal(const struct fsdpck_io *io, const char *dir, const char *uuid, struct journal *j,
                        struct fsdpck_error *err)
{
    struct fsdpck_error own = { 0 };
    char *text = NULL;
    uint64_t nbytes = 0;
    err = err ? err : &own;
    char *path = fsdpck_commit_name_path(dir, "", NAME_JOURNAL, uuid, err);
    int rc = !path ? FSDPCK_ERR_NOMEM : fsdpck_read_file(io, path, JOURNAL_MAX, &text, &nbytes, err);
    if (!rc)
        rc = parse_journal(path, text, nbytes, j, err);
    free(text);
    free(path);
    return rc;
}

/* Returns whether the new save has a file of this name, which is moved there after the record. */
static bool is_moved(char **list, size_t count, const char *uuid, const char *name)
{
    size_t n;
    for (size_t i = 0; i < count; i++)
        if (fsdpck_commit_name_is_temporary(list[i], uuid, &n) && n == strlen(name) && memcmp(list[i], name, n) == 0)
            return true;
    return false;
}

/* Lists the files to remove: all old files except those that new files of the same name replace. */
static int replaced_json(const struct fsdpck_io *io, const char *dir, const char *uuid, const struct fsdpck_vec *old,
                         json_t **out, struct fsdpck_error *err)
{
    char **list = NULL, **names = old->data;
    size_t count = 0;
    int rc = fsdpck_list_sorted(io, dir, &list, &count, err);
    *out = json_array();
    for (size_t i = 0; !rc && i < old->count; i++)
        if (!is_moved(list, count, uuid, names[i]) && json_array_append_new(*out, json_string(names[i])) != 0)
            rc = fsdpck_error_nomem(err, strlen(names[i]));
    fsdpck_list_free(list, count);
    return rc;
}

static int write_journal(const struct fsdpck_io *io, const char *dir, const char *record, const char *record_path,
                         const char *uuid, const struct fsdpck_vec *old, struct fsdpck_error *err)
{
    struct fsdpck_hash128 hash;
    char hex[33];
    json_t *replaces = NULL, *o = NULL;
    char *text = NULL, *path = fsdpck_commit_name_path(dir, "", NAME_JOURNAL, uuid, err);
    int rc = !path ? FSDPCK_ERR_NOMEM : hash_file(io, record_path, &hash, err);
    if (!rc)
        rc = replaced_json(io, dir, uuid, old, &replaces, err);
    if (rc)
        goto out;
    for (int i = 0; i < 16; i++)
        snprintf(hex + 2 * i, 3, "%02x", hash.bytes[i]);
    o = json_pack("{s:s, s:s, s:O}", "record", record, "hash", hex, "replaces", replaces);
    text = o ? json_dumps(o, JSON_COMPACT) : NULL;
    rc = !text ? fsdpck_error_nomem(err, JOURNAL_MAX) : fsdpck_write_file(io, path, text, strlen(text), err);
out:
    json_decref(replaces);
    json_decref(o);
    free(text);
    free(path);
    return rc;
}

/* ---- commit, completion and undo */

int fsdpck_in_place_commit(const struct fsdpck_io *io, const char *dir, const char *record, const char *uuid,
                           const struct fsdpck_vec *old, bool *committed, struct fsdpck_error *err)
{
    char *from = fsdpck_commit_name_path(dir, record, NAME_STAGING, uuid, err),
         *to = fsdpck_path_join(dir, record, err);
    int rc = !from || !to ? FSDPCK_ERR_NOMEM : write_journal(io, dir, record, from, uuid, old, err);
    *committed = false;
    if (!rc)
        rc = fsdpck_fsync_path(io, dir, err);
    if (!rc) {
        rc = io->rename(io->ctx, from, to);
        *committed = !rc;
        rc = rc < 0 ? fsdpck_error_sys(err, -rc, to, "cannot rename the new record onto it")
                    : fsdpck_fsync_path(io, dir, err);
    }
    free(from);
    free(to);
    return rc;
}

int fsdpck_in_place_committed(const struct fsdpck_io *io, const char *dir, const char *uuid, bool *committed,
                              struct fsdpck_error *err)
{
    char record[256];
    struct fsdpck_vec replaced = FSDPCK_VEC(char *);
    int rc = fsdpck_in_place_state(io, dir, uuid, committed, record, &replaced, err);
    fsdpck_strings_free(&replaced);
    return rc;
}

int fsdpck_in_place_state(const struct fsdpck_io *io, const char *dir, const char *uuid, bool *committed,
                          char record[256], struct fsdpck_vec *replaced, struct fsdpck_error *err)
{
    struct journal j = { .old = FSDPCK_VEC(char *) };
    struct fsdpck_hash128 hash;
    struct fsdpck_error e = { 0 };
    char *path = NULL;
    int rc = read_journal(io, dir, uuid, &j, &e);
    if (!rc)
        rc = (path = fsdpck_path_join(dir, j.record, &e)) == NULL ? FSDPCK_ERR_NOMEM : hash_file(io, path, &hash, &e);
    *committed = !rc && fsdpck_hash_equal(&hash, &j.hash);
    if (rc == FSDPCK_ERR_MISSING || rc == FSDPCK_ERR_FORMAT)
        rc = 0; /* without a journal or a record there is no commit; on any other failure the state is unknown and no
                   file is touched */
    else if (rc)
        rc = fsdpck_error_set(err, e.code, e.file, "%s", e.message);
    free(path);
    fsdpck_strings_free(replaced);
    *replaced = j.old;
    strcpy(record, j.record);
    return rc;
}

/* NAME.tmp-UUID -> NAME. Renames a directory of that name to NAME.old-UUID first; replaces a file. */
static int move_one(const struct fsdpck_io *io, const char *dir, const char *temporary, size_t nbytes, const char *uuid,
                    struct fsdpck_error *err)
{
    char name[256];
    snprintf(name, sizeof name, "%.*s", (int)nbytes, temporary);
    char *from = fsdpck_path_join(dir, temporary, err), *to = fsdpck_path_join(dir, name, err);
    char *away = fsdpck_commit_name_path(dir, name, NAME_OLD, uuid, err);
    int rc = !from || !to || !away ? FSDPCK_ERR_NOMEM : 0;
    if (!rc && fsdpck_is_directory(io, to)) {
        rc = io->rename(io->ctx, to, away);
        rc = rc < 0 ? fsdpck_error_sys(err, -rc, to, "cannot rename it out of the way") : 0;
    }
    if (!rc) {
        rc = io->rename(io->ctx, from, to);
        rc = rc < 0 ? fsdpck_error_sys(err, -rc, to, "cannot rename the new one onto it") : 0;
    }
    free(from);
    free(to);
    free(away);
    return rc;
}

/* Renames (NAME_STAGING) or removes (NAME_OLD) every entry of this kind that the save made. */
static int finish_entries(const struct fsdpck_io *io, const char *dir, const char *uuid, enum commit_name_kind kind,
                          struct fsdpck_error *err)
{
    char **list = NULL;
    size_t count = 0;
    struct commit_name n;
    int rc = fsdpck_list_sorted(io, dir, &list, &count, err);
    for (size_t i = 0; !rc && i < count; i++) {
        fsdpck_commit_name_parse(list[i], &n);
        if (n.kind != kind || strcmp(n.uuid, uuid) != 0)
            continue;
        if (kind == NAME_STAGING) {
            rc = move_one(io, dir, list[i], strlen(n.base), uuid, err);
        } else {
            char *path = fsdpck_path_join(dir, list[i], err);
            rc = !path ? FSDPCK_ERR_NOMEM : fsdpck_remove_tree(io, path, err);
            free(path);
        }
    }
    fsdpck_list_free(list, count);
    return rc;
}

int fsdpck_in_place_complete(const struct fsdpck_io *io, const char *dir, const char *uuid, struct fsdpck_error *err)
{
    struct journal j = { .old = FSDPCK_VEC(char *) };
    int rc = read_journal(io, dir, uuid, &j, err);
    char **old = j.old.data;
    if (!rc)
        rc = finish_entries(io, dir, uuid, NAME_STAGING, err);
    if (!rc)
        rc = finish_entries(io, dir, uuid, NAME_OLD, err);
    for (size_t i = 0; !rc && i < j.old.count; i++) {
        char *path = fsdpck_path_join(dir, old[i], err);
        rc = !path ? FSDPCK_ERR_NOMEM : fsdpck_remove_tree(io, path, err);
        free(path);
    }
    if (!rc)
        rc = fsdpck_fsync_path(io, dir, err);
    fsdpck_strings_free(&j.old);
    return rc;
}

int fsdpck_in_place_undo(const struct fsdpck_io *io, const char *dir, const char *uuid, struct fsdpck_error *err)
{
    char **list = NULL;
    size_t count = 0;
    struct commit_name n;
    int rc = fsdpck_list_sorted(io, dir, &list, &count, err);
    for (size_t i = 0; !rc && i < count; i++) {
        fsdpck_commit_name_parse(list[i], &n);
        if (!fsdpck_commit_name_has_id(list[i], uuid) || (n.kind == NAME_WRITER && n.base[0] == '\0'))
            continue;
        char *path = fsdpck_path_join(dir, list[i], err);
        rc = !path ? FSDPCK_ERR_NOMEM : fsdpck_remove_tree(io, path, err);
        free(path);
    }
    if (!rc)
        rc = fsdpck_fsync_path(io, dir, err);
    fsdpck_list_free(list, count);
    return rc;
}
