/* SPDX-License-Identifier: Apache-2.0 */
/* Makes the data of a report. Values keep all their digits, so that they are those of metrics.jsonl. */
#include "report/report_json.h"

#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base64.h"
#include "common/json_out.h"

enum { SAMPLE_NBYTES = 8192, CONFIG_NBYTES = 100000, PNG_NBYTES = 1 << 28 };

static json_t *number(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

/* Least, greatest, mean and last of the finite values. */
static bool put_facts(json_t *o, const struct train_curve *c)
{
    double least = NAN, greatest = NAN, sum = 0;
    size_t n = 0;
    for (size_t i = 0; i < c->count; i++) {
        const double value = c->values[i];
        if (!isfinite(value))
            continue;
        least = n && least < value ? least : value;
        greatest = n && greatest > value ? greatest : value;
        sum += value;
        n++;
    }
    return json_out_put(o, "min", number(least)) && json_out_put(o, "max", number(greatest)) &&
           json_out_put(o, "mean", number(n ? sum / (double)n : NAN)) && json_out_put(o, "sum", number(sum)) &&
           json_out_put(o, "last", number(c->count ? c->values[c->count - 1] : NAN));
}

static json_t *curve_json(const struct train_curve *c, size_t npoints, size_t *kept)
{
    json_t *o = json_object(), *steps = json_array(), *values = json_array();
    const size_t n = train_curve_thin(c, npoints, kept);
    bool ok = true;
    for (size_t i = 0; i < n; i++)
        ok = ok && json_out_append(steps, json_out_u64(c->steps[kept[i]])) &&
             json_out_append(values, number(c->values[kept[i]]));
    ok &= json_out_put(o, "name", json_out_text(c->name));
    ok &= json_out_put(o, "count", json_out_u64(c->count));
    ok &= put_facts(o, c);
    ok &= json_out_put(o, "steps", steps);
    ok &= json_out_put(o, "values", values);
    if (ok)
        return o;
    json_decref(o);
    return NULL;
}

static json_t *curves_json(const struct train_history *h, size_t npoints)
{
    size_t *kept = calloc(npoints, sizeof *kept);
    json_t *list = kept ? json_array() : NULL;
    for (size_t i = 0; i < h->ncurves && list; i++) {
        if (!json_out_append(list, curve_json(&h->curves[i], npoints, kept))) {
            json_decref(list);
            list = NULL;
        }
    }
    free(kept);
    return list;
}

static json_t *sample_json(const struct train_sampled *s)
{
    const bool cut = s->nbytes > SAMPLE_NBYTES;
    size_t end = cut ? SAMPLE_NBYTES : s->nbytes;
    while (cut && end && (s->text[end] & 0xc0) == 0x80) /* not within a character */
        end--;
    s->text[end] = '\0';
    return json_pack("{s:o, s:o, s:b}", "step", json_out_u64(s->step), "text", json_out_text(s->text), "cut", cut);
}

/* A regular file whole; NULL: it cannot be read. Owned. */
static void *read_whole(const char *path, size_t *nbytes)
{
    struct stat st;
    const int fd = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    void *bytes = fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_size < PNG_NBYTES
                      ? malloc((size_t)st.st_size + 1)
                      : NULL;
    const ssize_t n = bytes ? read(fd, bytes, (size_t)st.st_size) : 0;
    if (fd >= 0)
        close(fd);
    if (bytes && n != st.st_size) {
        free(bytes);
        return NULL;
    }
    *nbytes = (size_t)n;
    return bytes;
}

/* The file in base64; NULL: it cannot be read any more. */
static json_t *png_json(const char *folder, const char *name)
{
    char path[PATH_MAX];
    size_t nbytes = 0;
    const int n = snprintf(path, sizeof path, "%s/samples/%s", folder, name);
    void *png = n > 0 && n < PATH_MAX ? read_whole(path, &nbytes) : NULL;
    char *text = png ? base64_of(png, nbytes) : NULL;
    json_t *o = text ? json_string(text) : NULL;
    free(png);
    free(text);
    return o;
}

static json_t *drawn_json(const struct train_drawn *d, const char *folder)
{
    char name[TRAIN_DRAWN_NAME];
    train_drawn_name(d, name);
    json_t *o =
        json_pack("{s:o, s:o, s:s}", "step", json_out_u64(d->step), "prompt", json_out_u64(d->prompt), "file", name);
    json_t *png = folder ? png_json(folder, name) : NULL;
    if (png)
        json_object_set_new(o, "png", png);
    return o;
}

/* A config with long lists, of prompts for example, would make most of the page. */
static json_t *events_json(const struct train_folder *f)
{
    json_t *o;
    size_t i;
    json_array_foreach (f->events, i, o) {
        const json_t *config = json_object_get(o, "config");
        const size_t nbytes = config ? json_dumpb(config, NULL, 0, JSON_COMPACT) : 0;
        if (nbytes > CONFIG_NBYTES && json_out_put(o, "config_bytes", json_out_u64(nbytes)))
            json_object_del(o, "config");
    }
    return json_incref(f->events);
}

json_t *report_json_run(const struct report_run *run, size_t npoints)
{
    const struct train_history *h = &run->history;
    const struct train_folder *f = &run->folder;
    json_t *o = json_object(), *saved = json_array(), *sampled = json_array(), *drawn = json_array();
    bool ok = true;
    for (size_t i = 0; i < f->nsaved; i++)
        ok &= json_out_append(saved,
                              json_pack("{s:o, s:o, s:o}", "step", json_out_u64(f->saved[i].step), "bytes",
                                        json_out_u64(f->saved[i].nbytes), "files", json_out_u64(f->saved[i].nfiles)));
    for (size_t i = 0; i < f->nsampled; i++)
        ok &= json_out_append(sampled, sample_json(&f->sampled[i]));
    for (size_t i = 0; i < f->ndrawn; i++)
        ok &= json_out_append(drawn, drawn_json(&f->drawn[i], run->folder_path));
    ok &= json_out_put(o, "name", json_out_text(run->name));
    ok &= json_out_put(o, "state", json_string(train_folder_state(f)));
    ok &= json_out_put(o, "lines", json_out_u64(h->nsteps));
    ok &= json_out_put(o, "unreadable_lines", json_out_u64(h->nbad));
    ok &= json_out_put(o, "step", json_out_u64(h->nsteps ? h->steps[h->nsteps - 1] : 0));
    ok &= json_out_put(o, "of_steps", f->nsteps ? json_out_u64(f->nsteps) : json_null());
    ok &= json_out_put(o, "parameters_trained", f->ntrained ? json_out_u64(f->ntrained) : json_null());
    ok &= json_out_put(o, "parameters_frozen", f->ntrained ? json_out_u64(f->nfrozen) : json_null());
    ok &= json_out_put(o, "checkpoints", saved);
    ok &= json_out_put(o, "samples", sampled);
    ok &= json_out_put(o, "samples_left_out", json_out_u64(f->nsampled_all - f->nsampled));
    ok &= json_out_put(o, "pictures", drawn);
    ok &= json_out_put(o, "pictures_left_out", json_out_u64(f->ndrawn_all - f->ndrawn));
    ok &= json_out_put(o, "events", events_json(f));
    ok &= json_out_put(o, "curves", curves_json(h, npoints));
    if (ok)
        return o;
    json_decref(o);
    return NULL;
}
