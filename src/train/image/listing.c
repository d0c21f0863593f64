/* SPDX-License-Identifier: Apache-2.0 */
#include "image/listing.h"

#include <dirent.h>
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <train/image.h>

#include "arrays/grow.h"
#include "text/file.h"
#include "text/trigger.h"
#include "text/utf8.h"

enum { MOST_CAPTION = 1 << 20, PATH = 4096, MOST_VARIANTS = 1 << 24 };

void listing_free(struct listing *l)
{
    for (size_t i = 0; i < l->n; i++) {
        free(l->items[i].path);
        free(l->items[i].caption);
    }
    free(l->items);
    *l = (struct listing){ 0 };
}

static bool is_picture(const char *name)
{
    static const char *const ends[] = { ".png", ".jpg", ".jpeg", ".webp" };
    const char *dot = strrchr(name, '.');
    for (size_t i = 0; dot && dot > name && i < sizeof ends / sizeof ends[0]; i++)
        if (strcasecmp(dot, ends[i]) == 0)
            return true;
    return false;
}

/* caption: ends of lines are cut off. */
static int add(struct listing *l, const char *path, char *caption, const struct train_config *config,
               struct fsdpck_error *err)
{
    size_t n = strlen(caption);
    while (n && (caption[n - 1] == '\n' || caption[n - 1] == '\r'))
        caption[--n] = '\0';
    if (!grow((void **)&l->items, &l->capacity, l->n + 1, sizeof *l->items))
        return fsdpck_error_nomem(err, (l->n + 1) * sizeof *l->items);
    l->items[l->n] =
        (struct listed){ .path = strdup(path), .caption = trigger_put(caption, config->image.trigger_word, true) };
    return l->items[l->n].path && l->items[l->n++].caption ? 0 : fsdpck_error_nomem(err, n + PATH);
}

/* The caption beside a picture; *out is owned. */
static int read_caption(const char *path, const struct train_config *config, char **out, struct fsdpck_error *err)
{
    struct fsdpck_error why = { 0 };
    char file[PATH];
    size_t nbytes;
    snprintf(file, sizeof file, "%.*s.%s", (int)(strrchr(path, '.') - path), path, config->image.caption_ext);
    int rc = text_file_read(file, MOST_CAPTION, out, &nbytes, &why);
    if (rc == FSDPCK_ERR_MISSING)
        return (*out = strdup("")) ? 0 : fsdpck_error_nomem(err, 1);
    if (rc)
        return fsdpck_error_set(err, rc, file, "%s", why.message);
    if (strlen(*out) == nbytes && utf8_valid_prefix(*out, nbytes) == nbytes)
        return 0;
    return fsdpck_error_set(err, FSDPCK_ERR_FORMAT, file, "the caption is no UTF-8 text");
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static int read_names(const char *folder, char ***names, size_t *n, struct fsdpck_error *err)
{
    DIR *d = opendir(folder);
    size_t capacity = 0;
    *names = NULL;
    *n = 0;
    if (!d)
        return fsdpck_error_sys(err, errno, folder, "open");
    int rc = 0;
    for (struct dirent *e; !rc && (e = readdir(d));) {
        if (!is_picture(e->d_name))
            continue;
        if (!grow((void **)names, &capacity, *n + 1, sizeof **names) || !((*names)[*n] = strdup(e->d_name)))
            rc = fsdpck_error_nomem(err, sizeof **names);
        else
            ++*n;
    }
    closedir(d);
    if (*n)
        qsort(*names, *n, sizeof **names, by_name);
    return rc;
}

static int read_folder(const char *folder, const struct train_config *config, struct listing *out,
                       struct fsdpck_error *err)
{
    char **names;
    size_t n;
    int rc = read_names(folder, &names, &n, err);
    for (size_t i = 0; i < n && !rc; i++) {
        char path[PATH], *caption = NULL;
        if (snprintf(path, sizeof path, "%s/%s", folder, names[i]) >= PATH - 64)
            rc = fsdpck_error_set(err, FSDPCK_ERR_LIMIT, folder, "a path of more than %d bytes", PATH - 64);
        if (!rc)
            rc = read_caption(path, config, &caption, err);
        if (!rc)
            rc = add(out, path, caption, config, err);
        free(caption);
    }
    for (size_t i = 0; i < n; i++)
        free(names[i]);
    free(names);
    return rc;
}

static int add_line(const char *file, uint64_t number, const json_t *line, const struct train_config *config,
                    struct listing *out, struct fsdpck_error *err)
{
    const char *image = json_string_value(json_object_get(line, "image")), *slash = strrchr(file, '/');
    json_t *caption = json_object_get(line, "caption");
    char path[PATH];
    if (!image || (caption && !json_is_string(caption)))
        return fsdpck_error_set(err, FSDPCK_ERR_FORMAT, file,
                                "line %llu: {\"image\": path, \"caption\": text} is wanted",
                                (unsigned long long)number);
    const int nfolder = *image == '/' || !slash ? 0 : (int)(slash + 1 - file);
    if (snprintf(path, sizeof path, "%.*s%s", nfolder, file, image) >= PATH)
        return fsdpck_error_set(err, FSDPCK_ERR_LIMIT, file, "line %llu: the path is too long",
                                (unsigned long long)number);
    char *text = strdup(caption ? json_string_value(caption) : "");
    int rc = text ? add(out, path, text, config, err) : fsdpck_error_nomem(err, 64);
    free(text);
    return rc;
}

static int read_lines(const char *file, const struct train_config *config, struct listing *out,
                      struct fsdpck_error *err)
{
    char *data;
    size_t nbytes;
    uint64_t number = 0;
    int rc = text_file_read(file, 1 << 30, &data, &nbytes, err);
    if (rc)
        return rc;
    for (char *at = data, *end; *at && !rc; at = end) {
        end = strchr(at, '\n');
        end = end ? end + 1 : at + strlen(at);
        number++;
        if (strspn(at, " \t\r\n") >= (size_t)(end - at))
            continue;
        json_t *line = json_loadb(at, (size_t)(end - at), JSON_REJECT_DUPLICATES, NULL);
        rc = add_line(file, number, line, config, out, err);
        json_decref(line);
        if (rc == FSDPCK_ERR_FORMAT && config->data.on_bad_line == TRAIN_BAD_LINE_SKIP) {
            *err = (struct fsdpck_error){ 0 };
            out->nbad++;
            rc = 0;
        }
    }
    free(data);
    return rc;
}

int listing_read(const char *from, const struct train_config *config, struct listing *out, struct fsdpck_error *err)
{
    struct stat st;
    *out = (struct listing){ 0 };
    if (stat(from, &st))
        return fsdpck_error_sys(err, errno, from, "open");
    int rc = S_ISDIR(st.st_mode) ? read_folder(from, config, out, err) : read_lines(from, config, out, err);
    if (!rc && out->n == 0)
        rc = fsdpck_error_set(err, FSDPCK_ERR_MISSING, from, "there is no picture in it (.png, .jpg, .jpeg, .webp)");
    return rc;
}

void listing_drop(struct listing *l, size_t i)
{
    char *path = l->items[i].path;
    size_t to = i;
    free(l->items[i].caption);
    for (size_t k = i + 1; k < l->n; k++) {
        if (strcmp(l->items[k].path, path) != 0) {
            l->items[to++] = l->items[k];
            continue;
        }
        free(l->items[k].path);
        free(l->items[k].caption);
    }
    l->n = to;
    free(path);
}

static int add_copy(struct listing *l, struct listed item, struct fsdpck_error *err)
{
    if (!grow((void **)&l->items, &l->capacity, l->n + 1, sizeof *l->items))
        return fsdpck_error_nomem(err, (l->n + 1) * sizeof *l->items);
    item.path = strdup(item.path);
    item.caption = strdup(item.caption);
    l->items[l->n++] = item;
    return item.path && item.caption ? 0 : fsdpck_error_nomem(err, PATH);
}

/* Adds all items from `start` on a second time, flipped. */
static int add_flipped(struct listing *l, size_t start, bool along_y, struct fsdpck_error *err)
{
    const size_t n = l->n;
    int rc = 0;
    for (size_t i = start; i < n && !rc; i++) {
        struct listed item = l->items[i];
        item.flip_x = item.flip_x || !along_y;
        item.flip_y = along_y;
        rc = add_copy(l, item, err);
    }
    return rc;
}

int listing_vary(struct listing *l, const struct train_config *config, bool once, struct fsdpck_error *err)
{
    const struct train_u64_list *sides = &config->image.resolution;
    const uint64_t nrepeat = once ? 1 : config->image.num_repeats;
    struct listing all = { 0 };
    int rc = 0;
    if (l->n * sides->n * nrepeat > MOST_VARIANTS)
        return fsdpck_error_set(err, FSDPCK_ERR_LIMIT, NULL, "image.num_repeats makes more than %d pictures",
                                MOST_VARIANTS);
    for (size_t s = 0; s < sides->n && !rc; s++) {
        const size_t start = all.n;
        for (size_t i = 0; i < l->n * nrepeat && !rc; i++) {
            struct listed item = l->items[i % l->n];
            item.resolution = sides->values[s];
            item.random_crop = config->image.random_crop && !once;
            item.copy = i / l->n;
            rc = add_copy(&all, item, err);
        }
        if (!rc && config->image.flip_x && !once)
            rc = add_flipped(&all, start, false, err);
        if (!rc && config->image.flip_y && !once)
            rc = add_flipped(&all, start, true, err);
    }
    all.nbad = l->nbad;
    listing_free(l);
    *l = all;
    return rc;
}
