/* SPDX-License-Identifier: Apache-2.0 */
/* Reads metrics.jsonl into curves. Knows no key but "step": a key that a later version writes is a curve too. */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <train/history.h>
#include <unistd.h>

#include "arrays/grow.h"
#include "look/scan.h"
#include "text/file.h"

enum { MAX_CURVES = 16384, NAME_NBYTES = 200 };

/* next: index of the curve that the next key probably has, as all lines have their keys in the same order. */
struct reader {
    struct train_history *h;
    struct scan scan;
    size_t next;
};

static bool is_named(const struct train_curve *c, const char *name, size_t n)
{
    return strncmp(c->name, name, n) == 0 && c->name[n] == '\0';
}

static struct train_curve *find_curve(struct reader *r, const char *name, size_t n)
{
    struct train_history *h = r->h;
    size_t i = r->next;
    if (i >= h->ncurves || !is_named(&h->curves[i], name, n))
        for (i = 0; i < h->ncurves && !is_named(&h->curves[i], name, n);)
            i++;
    r->next = i + 1;
    if (i < h->ncurves)
        return &h->curves[i];
    if (h->ncurves > MAX_CURVES || /* take_line() refuses the line; each new name is compared with all others */
        !grow((void **)&h->curves, &h->curves_capacity, h->ncurves + 1, sizeof *h->curves))
        return NULL;
    struct train_curve *c = &h->curves[h->ncurves];
    *c = (struct train_curve){ .name = strndup(name, n) };
    h->ncurves += c->name != NULL;
    return c->name ? c : NULL;
}

/* name: of n bytes, without a zero. value: NaN for null. */
static bool add_value(struct reader *r, const char *name, size_t n, uint64_t step, double value)
{
    struct train_curve *c = find_curve(r, name, n);
    if (c && c->count && c->steps[c->count - 1] == step) /* "a[0]" beside "a": the last one counts */
        c->count--;
    if (!c || !grow((void **)&c->steps, &c->steps_capacity, c->count + 1, sizeof *c->steps) ||
        !grow((void **)&c->values, &c->values_capacity, c->count + 1, sizeof *c->values))
        return false;
    c->steps[c->count] = step;
    c->values[c->count++] = value;
    return true;
}

/* Adds a number under its key, or that of a list under "key[3]". */
static bool add_number(struct reader *r, uint64_t step, const char *key, size_t nkey, int32_t index, double value)
{
    char element[NAME_NBYTES + 32];
    if (nkey >= NAME_NBYTES)
        return true;
    if (index == SCAN_ALONE)
        return (nkey == 4 && memcmp(key, "step", 4) == 0) || add_value(r, key, nkey, step, value);
    const int n = snprintf(element, sizeof element, "%.*s[%d]", (int)nkey, key, index);
    return add_value(r, element, (size_t)n, step, value);
}

static bool add_json(struct reader *r, uint64_t step, const char *key, int32_t index, const json_t *value)
{
    if (!json_is_number(value) && !json_is_null(value))
        return true;
    return add_number(r, step, key, strlen(key), index, json_is_null(value) ? NAN : json_number_value(value));
}

/* Removes what was read at `step` and beyond. */
static void forget(struct train_history *h, uint64_t step)
{
    while (h->nsteps && h->steps[h->nsteps - 1] >= step)
        h->nsteps--;
    for (size_t i = 0; i < h->ncurves; i++)
        while (h->curves[i].count && h->curves[i].steps[h->curves[i].count - 1] >= step)
            h->curves[i].count--;
}

static bool add_tree(struct reader *r, uint64_t step, const json_t *o)
{
    const char *key;
    json_t *value;
    bool ok = true;
    json_object_foreach ((json_t *)o, key, value) {
        if (!json_is_array(value))
            ok = ok && add_json(r, step, key, SCAN_ALONE, value);
        for (size_t i = 0; i < json_array_size(value); i++)
            ok = ok && add_json(r, step, key, (int32_t)i, json_array_get(value, i));
    }
    return ok;
}

/* The step of a line that was scanned; 0: it has none. */
static uint64_t scanned_step(const struct scan *s)
{
    for (size_t i = 0; i < s->count; i++) {
        const double value = s->at[i].value;
        if (s->at[i].index == SCAN_ALONE && s->at[i].nkey == 4 && memcmp(s->at[i].key, "step", 4) == 0)
            return value >= 1 && value < 0x1p53 && value == floor(value) ? (uint64_t)value : 0;
    }
    return 0;
}

/* Begins the line of a step. */
static bool begin_line(struct reader *r, uint64_t step)
{
    struct train_history *h = r->h;
    if (h->nsteps && step <= h->steps[h->nsteps - 1])
        forget(h, step);
    r->next = 0;
    if (!grow((void **)&h->steps, &h->steps_capacity, h->nsteps + 1, sizeof *h->steps))
        return false;
    h->steps[h->nsteps++] = step;
    return true;
}

static bool add_scanned(struct reader *r, uint64_t step)
{
    bool ok = begin_line(r, step);
    for (size_t i = 0; i < r->scan.count && ok; i++) {
        const struct scanned *s = &r->scan.at[i];
        ok = add_number(r, step, s->key, s->nkey, s->index, s->value);
    }
    return ok;
}

/* A line of another form is JSON too, or none. */
static bool add_parsed(struct reader *r, const char *line, size_t nbytes)
{
    json_t *o = line[nbytes - 1] == '\n' ? json_loadb(line, nbytes, 0, NULL) : NULL;
    const json_int_t step = json_integer_value(json_object_get(o, "step"));
    r->h->nbad += step < 1;
    const bool ok = step < 1 || (begin_line(r, (uint64_t)step) && add_tree(r, (uint64_t)step, o));
    json_decref(o);
    return ok;
}

static int take_line(struct reader *r, const char *path, const char *line, size_t nbytes, struct fsdpck_error *err)
{
    const uint64_t step = strlen(line) == nbytes && scan_line(line, &r->scan) ? scanned_step(&r->scan) : 0;
    const bool ok = step ? add_scanned(r, step) : add_parsed(r, line, nbytes);
    if (r->h->ncurves > MAX_CURVES)
        return fsdpck_error_set(err, FSDPCK_ERR_FORMAT, path, "more than %d kinds of numbers", MAX_CURVES);
    return ok ? 0 : fsdpck_error_nomem(err, r->h->nsteps * sizeof *r->h->steps);
}

int train_history_read(const char *path, struct train_history *out, struct fsdpck_error *err)
{
    return train_history_read_tail(path, UINT64_MAX, out, err);
}

int train_history_read_tail(const char *path, uint64_t max_nbytes, struct train_history *out, struct fsdpck_error *err)
{
    struct reader r = { .h = out };
    char *line = NULL;
    size_t capacity = 0;
    ssize_t n;
    uint64_t nbytes;
    int fd;
    *out = (struct train_history){ 0 };
    int rc = text_file_open(path, &fd, &nbytes, err);
    FILE *f = rc ? NULL : fdopen(fd, "r");
    if (!rc && !f) {
        rc = fsdpck_error_nomem(err, BUFSIZ);
        close(fd);
    }
    if (!rc && nbytes > max_nbytes &&
        (fseeko(f, (off_t)(nbytes - max_nbytes), SEEK_SET) || getline(&line, &capacity, f) < 0)) /* part of a line */
        rc = fsdpck_error_set(err, FSDPCK_ERR_IO, path, "could not be read");
    while (!rc && (n = getline(&line, &capacity, f)) > 0)
        rc = take_line(&r, path, line, (size_t)n, err);
    if (!rc && !feof(f))
        rc = fsdpck_error_set(err, FSDPCK_ERR_IO, path, "could not be read");
    if (!rc && out->nsteps == 0 && out->nbad)
        rc = fsdpck_error_set(err, FSDPCK_ERR_FORMAT, path, "no line is an object with a \"step\" from 1");
    free(line);
    free(r.scan.at);
    if (f)
        fclose(f);
    if (rc)
        train_history_free(out);
    return rc;
}

void train_history_free(struct train_history *h)
{
    for (size_t i = 0; i < h->ncurves; i++) {
        free(h->curves[i].name);
        free(h->curves[i].steps);
        free(h->curves[i].values);
    }
    free(h->curves);
    free(h->steps);
    *h = (struct train_history){ 0 };
}
