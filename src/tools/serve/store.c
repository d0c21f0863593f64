/* SPDX-License-Identifier: Apache-2.0 */
#include "serve/store.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char temporary[] = ".temporary", record[] = "run.json";

/* ---- Names and paths */

const char *store_kind_name(enum store_kind kind)
{
    static const char *const names[STORE_NKINDS] = { "weights", "sampler_weights", "external_weights" };
    return names[kind];
}

bool store_is_name(const char *name)
{
    const size_t n = strlen(name);
    if (n == 0 || n > 200 || name[0] == '.')
        return false;
    for (const char *c = name; *c; c++)
        if (*c == '/' || (unsigned char)*c < 0x20 || *c == 0x7f)
            return false;
    return true;
}

bool store_parse_parts(const char *run, const char *kind, const char *name, struct store_place *out)
{
    if (!store_is_name(run) || !store_is_name(name))
        return false;
    snprintf(out->run, sizeof out->run, "%s", run);
    snprintf(out->name, sizeof out->name, "%s", name);
    for (int k = 0; k < STORE_NKINDS; k++)
        if (strcmp(kind, store_kind_name((enum store_kind)k)) == 0) {
            out->kind = (enum store_kind)k;
            return true;
        }
    return false;
}

bool store_parse(const char *uri, struct store_place *out)
{
    static const char scheme[] = "tinker://";
    char text[1024], *rest = text + strlen(scheme), *kind, *name;
    if (strlen(uri) >= sizeof text || strncmp(uri, scheme, strlen(scheme)) != 0)
        return false;
    strcpy(text, uri);
    kind = strchr(rest, '/');
    name = kind ? strchr(kind + 1, '/') : NULL;
    if (!name)
        return false;
    *kind = *name = '\0';
    return store_parse_parts(rest, kind + 1, name + 1, out);
}

char *store_uri(const struct store_place *p)
{
    char *out = NULL;
    return asprintf(&out, "tinker://%s/%s/%s", p->run, store_kind_name(p->kind), p->name) < 0 ? NULL : out;
}

static bool join(char out[STORE_PATH], const char *a, const char *b)
{
    return (size_t)snprintf(out, STORE_PATH, "%s/%s", a, b) < STORE_PATH;
}

bool store_path(const struct store *s, const struct store_place *p, char out[STORE_PATH])
{
    return (size_t)snprintf(out, STORE_PATH, "%s/%s/%s/%s", s->dir, p->run, store_kind_name(p->kind), p->name) <
           STORE_PATH;
}

bool store_temporary(const struct store *s, const char *name, char out[STORE_PATH])
{
    return (size_t)snprintf(out, STORE_PATH, "%s/%s/%s", s->dir, temporary, name) < STORE_PATH;
}

/* ---- Folders */

static int make_folders(const char *path, mode_t mode, struct fsdpck_error *err)
{
    char part[STORE_PATH];
    snprintf(part, sizeof part, "%s", path);
    for (char *at = part + 1; *at; at++) {
        if (*at != '/')
            continue;
        *at = '\0';
        mkdir(part, mode);
        *at = '/';
    }
    return mkdir(part, mode) && errno != EEXIST ? fsdpck_error_sys(err, errno, path, "create") : 0;
}

int store_make_room(const struct store *s, const struct store_place *p, struct fsdpck_error *err)
{
    char path[STORE_PATH];
    if (!store_path(s, p, path))
        return fsdpck_error_sys(err, ENAMETOOLONG, p->name, "create");
    *strrchr(path, '/') = '\0';
    return make_folders(path, 0777, err);
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st;
    (void)type;
    (void)ftw;
    return remove(path);
}

static void remove_folder(const char *path)
{
    nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

int store_remove(const struct store *s, const struct store_place *p, struct fsdpck_error *err)
{
    static unsigned number;
    char path[STORE_PATH], aside[STORE_PATH], name[40];
    snprintf(name, sizeof name, "removed-%u", number++);
    if (!store_path(s, p, path) || !store_temporary(s, name, aside))
        return fsdpck_error_sys(err, ENAMETOOLONG, p->name, "remove");
    if (rename(path, aside))
        return fsdpck_error_sys(err, errno, path, "remove");
    remove_folder(aside);
    return 0;
}

static int sync_folder(const char *path, struct fsdpck_error *err)
{
    const int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int rc = fd < 0 || fsync(fd) ? fsdpck_error_sys(err, errno, path, "fsync") : 0;
    if (fd >= 0)
        close(fd);
    return rc;
}

int store_take_over(const struct store *s, const char *from, const struct store_place *p, struct fsdpck_error *err)
{
    char path[STORE_PATH];
    int rc = store_make_room(s, p, err);
    if (rc || !store_path(s, p, path))
        return rc ? rc : fsdpck_error_sys(err, ENAMETOOLONG, p->name, "rename");
    if (rename(from, path))
        return fsdpck_error_sys(err, errno, path, "rename");
    *strrchr(path, '/') = '\0';
    return sync_folder(path, err);
}

/* ---- Open and close */

static int choose_dir(const char *dir, char out[STORE_PATH], struct fsdpck_error *err)
{
    const char *xdg = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    char cwd[STORE_PATH];
    int n;
    if (dir && *dir != '/')
        n = getcwd(cwd, sizeof cwd) ? snprintf(out, STORE_PATH, "%s/%s", cwd, dir) : STORE_PATH;
    else if (dir)
        n = snprintf(out, STORE_PATH, "%s", dir);
    else if (xdg && *xdg == '/')
        n = snprintf(out, STORE_PATH, "%s/fsdpck/serve", xdg);
    else if (home && *home)
        n = snprintf(out, STORE_PATH, "%s/.local/state/fsdpck/serve", home);
    else
        return fsdpck_error_set(err, FSDPCK_ERR_USAGE, "--state", "there is no $HOME: name a folder for the state");
    return n < STORE_PATH - 600 ? 0 : fsdpck_error_set(err, FSDPCK_ERR_USAGE, "--state", "the path is too long");
}

int store_open(struct store *s, const char *dir, struct fsdpck_error *err)
{
    char path[STORE_PATH];
    int rc = choose_dir(dir, s->dir, err);
    if (!rc)
        rc = make_folders(s->dir, 0777, err);
    if (!rc)
        rc = fsdpck_folder_lock(s->dir, "server", NULL, &s->lock, err);
    if (!rc && join(path, s->dir, temporary)) {
        remove_folder(path);
        rc = make_folders(path, 0777, err);
    }
    return rc;
}

void store_close(struct store *s)
{
    fsdpck_folder_unlock(s->lock);
    s->lock = NULL;
}

/* ---- Lists */

static bool has_file(const char *folder, const char *name)
{
    char path[STORE_PATH];
    return join(path, folder, name) && access(path, F_OK) == 0;
}

bool store_has(const struct store *s, const struct store_place *p)
{
    char path[STORE_PATH];
    return store_path(s, p, path) && (has_file(path, "index.json") || has_file(path, "adapter_config.json"));
}

/* Names in a folder, ascending. */
static json_t *list_folder(const char *path)
{
    struct dirent **all = NULL;
    json_t *list = json_array();
    const int n = scandir(path, &all, NULL, alphasort);
    for (int i = 0; i < n; i++) {
        if (store_is_name(all[i]->d_name))
            json_array_append_new(list, json_string(all[i]->d_name)); /* names that are no UTF-8 are left out */
        free(all[i]);
    }
    free(all);
    return list;
}

json_t *store_runs(const struct store *s)
{
    json_t *all = list_folder(s->dir), *runs = json_array(), *name;
    char path[STORE_PATH];
    struct stat st;
    size_t i;
    json_array_foreach (all, i, name) {
        if (join(path, s->dir, json_string_value(name)) && stat(path, &st) == 0 && S_ISDIR(st.st_mode))
            json_array_append(runs, name);
    }
    json_decref(all);
    return runs;
}

json_t *store_run(const struct store *s, const char *run)
{
    char folder[STORE_PATH], path[STORE_PATH];
    struct stat st;
    if (!store_is_name(run) || !join(folder, s->dir, run) || stat(folder, &st) || !S_ISDIR(st.st_mode) ||
        !join(path, folder, record))
        return NULL;
    json_t *o = json_load_file(path, 0, NULL);
    if (json_is_object(o))
        return o;
    json_decref(o);
    return json_pack("{s:I}", "last_request_time", (json_int_t)st.st_mtime); /* a folder that somebody put there */
}

int store_write_run(const struct store *s, const char *run, json_t *facts, struct fsdpck_error *err)
{
    char folder[STORE_PATH], path[STORE_PATH], part[STORE_PATH];
    if (!join(folder, s->dir, run) || !join(path, folder, record) || !join(part, folder, ".run.json.part"))
        return fsdpck_error_sys(err, ENAMETOOLONG, run, "write");
    int rc = make_folders(folder, 0777, err);
    if (rc)
        return rc;
    const int fd = open(part, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0)
        return fsdpck_error_sys(err, errno, part, "write");
    if (json_dumpfd(facts, fd, JSON_INDENT(1) | JSON_SORT_KEYS) || fsync(fd))
        rc = fsdpck_error_sys(err, errno ? errno : EIO, part, "write");
    close(fd);
    if (!rc && rename(part, path))
        rc = fsdpck_error_sys(err, errno, path, "rename");
    return rc ? rc : sync_folder(folder, err);
}

static json_int_t folder_nbytes(const char *path)
{
    json_t *names = list_folder(path), *name;
    json_int_t sum = 0;
    char file[STORE_PATH];
    struct stat st;
    size_t i;
    json_array_foreach (names, i, name) {
        if (!join(file, path, json_string_value(name)) || stat(file, &st))
            continue;
        sum += S_ISDIR(st.st_mode) ? folder_nbytes(file) : S_ISREG(st.st_mode) ? (json_int_t)st.st_size : 0;
    }
    json_decref(names);
    return sum;
}

json_int_t store_nbytes(const struct store *s, const struct store_place *p)
{
    char path[STORE_PATH];
    return store_path(s, p, path) ? folder_nbytes(path) : 0;
}

static json_t *place_facts(const struct store *s, const struct store_place *p, const json_t *expiries)
{
    char path[STORE_PATH], key[NAME_MAX + 40];
    struct stat st;
    if (!store_has(s, p) || !store_path(s, p, path) || stat(path, &st))
        return NULL;
    snprintf(key, sizeof key, "%s/%s", store_kind_name(p->kind), p->name);
    const json_t *expires = json_object_get(expiries, key);
    json_t *o = json_pack("{s:i, s:s, s:I, s:I}", "kind", (int)p->kind, "name", p->name, "time",
                          (json_int_t)st.st_mtime, "size_bytes", folder_nbytes(path));
    if (o && json_is_integer(expires))
        json_object_set_new(o, "expires_at", json_integer(json_integer_value(expires)));
    return o;
}

json_t *store_checkpoints(const struct store *s, const char *run)
{
    json_t *facts = store_run(s, run), *list = json_array(), *name;
    const json_t *expiries = json_object_get(facts, "expires_at");
    struct store_place p;
    char path[STORE_PATH];
    size_t i;
    for (int k = 0; facts && k < STORE_NKINDS; k++) {
        snprintf(path, sizeof path, "%.3000s/%.200s/%s", s->dir, run, store_kind_name((enum store_kind)k));
        json_t *names = list_folder(path);
        json_array_foreach (names, i, name) {
            json_t *one = store_parse_parts(run, store_kind_name((enum store_kind)k), json_string_value(name), &p)
                              ? place_facts(s, &p, expiries)
                              : NULL;
            if (one)
                json_array_append_new(list, one);
        }
        json_decref(names);
    }
    json_decref(facts);
    return list;
}

int store_set_expiry(const struct store *s, const struct store_place *p, time_t expires, struct fsdpck_error *err)
{
    char key[NAME_MAX + 40];
    json_t *facts = store_run(s, p->run), *all = json_object_get(facts, "expires_at");
    snprintf(key, sizeof key, "%s/%s", store_kind_name(p->kind), p->name);
    if (!facts)
        return fsdpck_error_set(err, FSDPCK_ERR_MISSING, p->run, "there is no such run");
    if (!all) {
        all = json_object();
        json_object_set_new(facts, "expires_at", all);
    }
    const bool changes = expires || json_object_get(all, key);
    if (expires)
        json_object_set_new(all, key, json_integer((json_int_t)expires));
    else
        json_object_del(all, key);
    int rc = changes ? store_write_run(s, p->run, facts, err) : 0;
    json_decref(facts);
    return rc;
}

void store_sweep(const struct store *s, time_t now)
{
    json_t *runs = store_runs(s), *run, *one;
    size_t i, k;
    json_array_foreach (runs, i, run) {
        json_t *list = store_checkpoints(s, json_string_value(run));
        json_array_foreach (list, k, one) {
            const json_t *expires = json_object_get(one, "expires_at");
            struct fsdpck_error ignored = { 0 };
            struct store_place p;
            if (!json_is_integer(expires) || json_integer_value(expires) > (json_int_t)now)
                continue;
            const enum store_kind kind = (enum store_kind)json_integer_value(json_object_get(one, "kind"));
            if (store_parse_parts(json_string_value(run), store_kind_name(kind),
                                  json_string_value(json_object_get(one, "name")), &p) &&
                store_remove(s, &p, &ignored) == 0)
                store_set_expiry(s, &p, 0, &ignored);
        }
        json_decref(list);
    }
    json_decref(runs);
}

json_t *store_adapter_config(const struct store *s, const struct store_place *p)
{
    static const char *const places[] = { "assets/adapter_config.json", "adapter_config.json" };
    char folder[STORE_PATH], path[STORE_PATH];
    json_t *o = NULL;
    for (size_t i = 0; i < 2 && !o; i++)
        if (store_path(s, p, folder) && join(path, folder, places[i]))
            o = json_load_file(path, 0, NULL);
    if (json_is_object(o))
        return o;
    json_decref(o);
    return NULL;
}
