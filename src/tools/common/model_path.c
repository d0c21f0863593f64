/* SPDX-License-Identifier: Apache-2.0 */
/* Finds models in the local Hugging Face cache: models--ORG--NAME/refs/REVISION names a commit, snapshots/COMMIT is the
 * folder. Nothing is downloaded. Reads HF_HUB_CACHE, HF_HOME, XDG_CACHE_HOME and HOME. It must not know what a
 * checkpoint is. */
#include "common/model_path.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { NAME = 200 }; /* most bytes of an organisation, a model or a revision */

struct model {
    char org[NAME], name[NAME], revision[NAME]; /* revision "": not given */
};

/* Accepts one path component that cannot leave its folder: letters, digits, '.', '_', '-', not starting with '.'. */
static bool plain(const char *s, size_t nbytes)
{
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    return nbytes > 0 && nbytes < NAME && s[0] != '.' && strspn(s, allowed) >= nbytes;
}

/* Parses "org/name" or "org/name@revision". */
static bool parse(const char *typed, struct model *m)
{
    size_t norg = strcspn(typed, "/");
    if (!plain(typed, norg) || typed[norg] != '/')
        return false;
    const char *name = typed + norg + 1;
    size_t nname = strcspn(name, "@");
    const char *revision = name[nname] ? name + nname + 1 : "";
    if (!plain(name, nname) || (name[nname] && !plain(revision, strlen(revision))))
        return false;
    snprintf(m->org, sizeof m->org, "%.*s", (int)norg, typed);
    snprintf(m->name, sizeof m->name, "%.*s", (int)nname, name);
    snprintf(m->revision, sizeof m->revision, "%s", revision);
    return true;
}

static const char *environment(const char *name)
{
    const char *value = getenv(name);
    return value && *value ? value : NULL;
}

/* huggingface_hub expands a leading "~" itself, so a value that no shell saw works too. */
static bool join(char *out, const char *folder, const char *below)
{
    const char *home = strncmp(folder, "~/", 2) == 0 ? environment("HOME") : NULL;
    int n = snprintf(out, PATH_MAX, "%s%s%s", home ? home : "", home ? folder + 1 : folder, below);
    return n > 0 && n < PATH_MAX;
}

static bool cache_folder(char *out)
{
    const char *folder;
    if ((folder = environment("HF_HUB_CACHE")))
        return join(out, folder, "");
    if ((folder = environment("HF_HOME")))
        return join(out, folder, "/hub");
    if ((folder = environment("XDG_CACHE_HOME")))
        return join(out, folder, "/huggingface/hub");
    return join(out, "~/.cache/huggingface/hub", "");
}

static bool is_folder(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

/* Reads the commit that refs/REVISION names; "" if there is no such file. The file is untrusted: only a plain name is
 * accepted. */
static int read_ref(const char *model, const char *revision, char commit[NAME], struct fsdpck_error *err)
{
    char path[PATH_MAX];
    commit[0] = '\0';
    if (snprintf(path, sizeof path, "%s/refs/%s", model, revision) >= (int)sizeof path)
        return fsdpck_error_sys(err, ENAMETOOLONG, model, "open");
    FILE *f = fopen(path, "re");
    if (!f)
        return errno == ENOENT ? 0 : fsdpck_error_sys(err, errno, path, "open");
    size_t n = fread(commit, 1, NAME - 1, f);
    bool failed = ferror(f);
    fclose(f);
    if (failed)
        return fsdpck_error_sys(err, EIO, path, "read");
    commit[n] = '\0';
    commit[strcspn(commit, " \t\r\n")] = '\0';
    if (!plain(commit, strlen(commit)))
        return fsdpck_error_set(err, FSDPCK_ERR_FORMAT, path,
                                "found no plain commit name, wanted the name of a folder in snapshots");
    return 0;
}

/* Finds the only snapshot of a model without refs/main. */
static int only_snapshot(const char *model, const char *typed, char commit[NAME], struct fsdpck_error *err)
{
    char folder[PATH_MAX], names[256] = "";
    unsigned count = 0;
    if (snprintf(folder, sizeof folder, "%s/snapshots", model) >= (int)sizeof folder)
        return fsdpck_error_sys(err, ENAMETOOLONG, model, "open");
    DIR *dir = opendir(folder);
    if (!dir)
        return fsdpck_error_sys(err, errno, folder, "open");
    for (const struct dirent *e; (e = readdir(dir));) {
        if (!plain(e->d_name, strlen(e->d_name)))
            continue;
        size_t at = strlen(names);
        if (snprintf(names + at, sizeof names - at, "%s%s", count++ ? ", " : "", e->d_name) >= (int)(sizeof names - at))
            names[at] = '\0'; /* the list is full; name no more */
        snprintf(commit, NAME, "%.*s", NAME - 1, e->d_name);
    }
    closedir(dir);
    if (count == 1)
        return 0;
    if (count == 0)
        return fsdpck_error_set(err, FSDPCK_ERR_MISSING, folder, "found no snapshot of the model, wanted one");
    fsdpck_error_set(err, FSDPCK_ERR_USAGE, folder, "found %u snapshots and no refs/main, wanted one: %s", count,
                     names);
    fsdpck_error_hint(err, "say which: %s@%s", typed, commit);
    return FSDPCK_ERR_USAGE;
}

static int find_snapshot(const char *model, const struct model *m, const char *typed, char *path, size_t nbytes,
                         struct fsdpck_error *err)
{
    char commit[NAME];
    int rc = read_ref(model, *m->revision ? m->revision : "main", commit, err);
    if (!rc && !*commit && *m->revision)
        snprintf(commit, sizeof commit, "%s", m->revision); /* a full commit hash was typed */
    if (!rc && !*commit)
        rc = only_snapshot(model, typed, commit, err);
    if (rc)
        return rc;
    if (snprintf(path, nbytes, "%s/snapshots/%s", model, commit) >= (int)nbytes)
        return fsdpck_error_sys(err, ENAMETOOLONG, model, "open");
    if (!is_folder(path))
        return fsdpck_error_set(err, FSDPCK_ERR_MISSING, path, "the Hugging Face cache has no such snapshot of %s/%s",
                                m->org, m->name);
    return 0;
}

int model_path_resolve(const char *typed, char *path, size_t nbytes, struct fsdpck_error *err)
{
    struct model m;
    struct stat st;
    char cache[PATH_MAX], model[PATH_MAX];
    bool stands = lstat(typed, &st) == 0 || !parse(typed, &m);
    if (!stands && cache_folder(cache)) {
        int n = snprintf(model, sizeof model, "%s/models--%s--%s", cache, m.org, m.name);
        if (n < (int)sizeof model && is_folder(model))
            return find_snapshot(model, &m, typed, path, nbytes, err);
        fsdpck_error_set(err, FSDPCK_ERR_MISSING, typed,
                         "no such file or folder, and no such model in the Hugging Face cache '%s'", cache);
        fsdpck_error_hint(err, "a model of the Hub is downloaded by: hf download %s/%s", m.org, m.name);
        return FSDPCK_ERR_MISSING;
    }
    if (snprintf(path, nbytes, "%s", typed) >= (int)nbytes)
        return fsdpck_error_sys(err, ENAMETOOLONG, typed, "open");
    return 0;
}
