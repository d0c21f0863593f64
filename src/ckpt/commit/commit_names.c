/* SPDX-License-Identifier: Apache-2.0 */
/* Builds and recognises the names of a save's temporary files; lists of names. It knows text, not files. */
#include "commit/commit_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/ioutil.h"

enum { UUID_NCHARS = 36 };

static const struct {
    enum commit_name_kind kind;
    bool hidden; /* ".X.suffix" rather than "X.suffix" */
    const char *suffix;
} forms[] = {
    { NAME_STAGING, false, ".tmp-" },  { NAME_OLD, false, ".old-" },       { NAME_DAMAGED, false, ".damaged-" },
    { NAME_WRITER, true, ".writer-" }, { NAME_JOURNAL, true, ".commit-" }, { NAME_LOCK, true, ".fsdpck-lock" },
};
enum { NFORMS = sizeof forms / sizeof forms[0] };

static bool ends_with(const char *text, size_t ntext, const char *suffix)
{
    size_t n = strlen(suffix);
    return ntext >= n && memcmp(text + ntext - n, suffix, n) == 0;
}

/* name[0 … nstem) is the part before the UUID. */
static bool match(const char *name, size_t nstem, size_t i, struct commit_name *out)
{
    if (!ends_with(name, nstem, forms[i].suffix))
        return false;
    size_t nbase = nstem - strlen(forms[i].suffix);
    if (forms[i].hidden && nbase > 0) { /* ".X" */
        if (name[0] != '.' || nbase == 1)
            return false;
        name++;
        nbase--;
    } else if (!forms[i].hidden && nbase == 0) {
        return false;
    }
    if (nbase >= sizeof out->base)
        return false;
    memcpy(out->base, name, nbase);
    out->base[nbase] = '\0';
    out->kind = forms[i].kind;
    return true;
}

/* "step-N.removed" */
static bool parse_removed(const char *name, struct commit_name *out)
{
    size_t stem = strcspn(name, "."), ndigits = strspn(name + (stem > 5 ? 5 : stem), "0123456789");
    if (strncmp(name, "step-", 5) != 0 || ndigits == 0 || 5 + ndigits != stem || strcmp(name + stem, ".removed") != 0 ||
        stem >= sizeof out->base)
        return false;
    out->kind = NAME_REMOVED;
    memcpy(out->base, name, stem);
    return true;
}

void fsdpck_commit_name_parse(const char *name, struct commit_name *out)
{
    uint8_t uuid[16];
    size_t n = strlen(name);
    memset(out, 0, sizeof *out);
    if (parse_removed(name, out))
        return;
    bool has_uuid = n > UUID_NCHARS && fsdpck_uuid_parse(name + n - UUID_NCHARS, uuid);
    for (size_t i = 0; i < NFORMS; i++) {
        bool lock = forms[i].kind == NAME_LOCK;
        if (!lock && !has_uuid)
            continue;
        if (match(name, lock ? n : n - UUID_NCHARS, i, out)) {
            if (!lock)
                memcpy(out->uuid, name + n - UUID_NCHARS, UUID_NCHARS + 1);
            return;
        }
    }
}

char *fsdpck_commit_name_path(const char *dir, const char *base, enum commit_name_kind kind, const char *uuid,
                              struct fsdpck_error *err)
{
    char name[512];
    for (size_t i = 0; i < NFORMS; i++)
        if (forms[i].kind == kind) {
            int n = snprintf(name, sizeof name, "%s%s%s%s", forms[i].hidden && base[0] != '\0' ? "." : "", base,
                             forms[i].suffix, kind == NAME_LOCK ? "" : uuid);
            if (n < (int)sizeof name)
                return fsdpck_path_join(dir, name, err);
        }
    fsdpck_error_set(err, FSDPCK_ERR_USAGE, base, "a file name of %zu bytes is too long", strlen(base));
    return NULL;
}

bool fsdpck_commit_name_has_id(const char *name, const char *uuid)
{
    const char *at = strstr(name, uuid);
    return at && (size_t)(at - name) < strcspn(name, "/");
}

bool fsdpck_commit_name_is_inner(char *const *list, size_t count, const char *name)
{
    struct commit_name n;
    for (size_t i = 0; i < count; i++) {
        fsdpck_commit_name_parse(list[i], &n);
        if (n.kind == NAME_WRITER && n.base[0] == '\0' && fsdpck_commit_name_has_id(name, n.uuid))
            return true;
    }
    fsdpck_commit_name_parse(name, &n);
    return n.base[0] == '\0' && (n.kind == NAME_LOCK || n.kind == NAME_JOURNAL);
}

bool fsdpck_commit_name_is_temporary(const char *name, const char *uuid, size_t *nbytes)
{
    struct commit_name n;
    fsdpck_commit_name_parse(name, &n);
    *nbytes = strlen(n.base);
    return n.kind == NAME_STAGING && strcmp(n.uuid, uuid) == 0;
}

void fsdpck_strings_free(struct fsdpck_vec *strings)
{
    char **s = strings->data;
    for (size_t i = 0; i < strings->count; i++)
        free(s[i]);
    fsdpck_vec_free(strings);
}

int fsdpck_strings_take(struct fsdpck_vec *strings, char *s, struct fsdpck_error *err)
{
    if (!s)
        return FSDPCK_ERR_NOMEM;
    char **slot = fsdpck_vec_push(strings, err);
    if (!slot) {
        free(s);
        return FSDPCK_ERR_NOMEM;
    }
    *slot = s;
    return 0;
}

int fsdpck_strings_add(struct fsdpck_vec *strings, const char *s, struct fsdpck_error *err)
{
    char *copy = strdup(s);
    return !copy ? fsdpck_error_nomem(err, strlen(s) + 1) : fsdpck_strings_take(strings, copy, err);
}
