/* SPDX-License-Identifier: Apache-2.0 */
/* Layers of families that are not known in full: one that has fewer parts than several others of its kind has lost
 * them. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/ioutil.h"
#include "doctor/checks.h"
#include "doctor/layers.h"
#include "doctor/parts.h"

enum { MAX_LAYERS = 512, MAX_PARTS = 512 };

/* The names of the parts, without the numbers of experts, and which layer has which. */
struct alike {
    const char *prefix;
    uint64_t nlayers;
    struct fsdpck_arena arena;
    struct fsdpck_names names; /* -> column */
    const char *parts[MAX_PARTS];
    size_t nparts;
    bool *there; /* (nlayers, MAX_PARTS) */
};

static bool *row_of(const struct alike *a, uint64_t layer)
{
    return a->there + layer * MAX_PARTS;
}

static void mask_numbers(char *name)
{
    char *to = name;
    for (const char *s = name; *s; s++) {
        const bool digit = *s >= '0' && *s <= '9', begins = digit && (s == name || s[-1] == '.');
        if (!digit || begins || to == name || to[-1] != '#')
            *to++ = begins ? '#' : *s;
    }
    *to = '\0';
}

/* Returns false if there are more kinds of parts than a layer has, or memory ran out. */
static bool see(struct doctor *d, struct alike *a)
{
    const char *rest;
    uint64_t layer;
    for (size_t i = 0; i < d->model->tensors.count; i++) {
        size_t at;
        if (!fsdpck_doctor_split(doctor_tensors(d->model)[i].name, a->prefix, &layer, &rest) || layer >= a->nlayers)
            continue;
        char *part = fsdpck_arena_strndup(&a->arena, rest, strlen(rest), d->err);
        if (!part)
            return false;
        mask_numbers(part);
        if ((at = fsdpck_names_find(&a->names, part)) == SIZE_MAX) {
            size_t old;
            at = a->nparts;
            if (at == MAX_PARTS || fsdpck_names_add(&a->names, part, at, &old, d->err) != 0)
                return false;
            a->parts[a->nparts++] = part;
        }
        row_of(a, layer)[at] = true;
    }
    return true;
}

static uint64_t count_like(const struct alike *a, uint64_t layer)
{
    uint64_t n = 0;
    for (uint64_t l = 0; l < a->nlayers; l++)
        n += memcmp(row_of(a, l), row_of(a, layer), MAX_PARTS * sizeof(bool)) == 0;
    return n;
}

/* Returns how many parts `more` has beside all of `less`; 0: it lacks one of them, or they are equal. */
static size_t count_more(const bool *less, const bool *more, size_t nparts, size_t *first)
{
    size_t n = 0;
    for (size_t p = nparts; p-- > 0;) {
        if (less[p] && !more[p])
            return 0;
        if (!less[p] && more[p]) {
            *first = p;
            n++;
        }
    }
    return n;
}

/* A kind of layer is what several have: the nearest one that has all that this layer has counts. */
static void check_layer(struct doctor *d, const struct alike *a, uint64_t layer)
{
    size_t best = 0, first = 0, part = 0;
    uint64_t model = 0;
    struct doctor_words w;
    char subject[600];
    for (uint64_t l = 0; l < a->nlayers; l++) {
        const size_t n = count_more(row_of(a, layer), row_of(a, l), a->nparts, &first);
        if (n && (!best || n < best) && count_like(a, l) > 1) {
            best = n;
            model = l;
            part = first;
        }
    }
    if (!best)
        return;
    doctor_say(w.found, "no such tensor; this layer lacks %zu part%s that %" PRIu64 " others have", best,
               fsdpck_plural(best), count_like(a, model));
    doctor_say(w.expected, "the parts of layer %" PRIu64, model);
    fsdpck_doctor_advise_base(d, &w, "");
    snprintf(subject, sizeof subject, "%s%" PRIu64 ".%.400s", a->prefix, layer, a->parts[part]);
    fsdpck_doctor_report(d, FSDPCK_SEVERITY_WARNING, "", subject, &w);
}

/* The first layer may have no norm of its own (ModernBERT). */
bool fsdpck_doctor_alike(struct doctor *d)
{
    struct alike a = { .prefix = fsdpck_doctor_layer_prefix(d->model) };
    struct doctor_known known;
    if (!a.prefix || fsdpck_doctor_known_read(d->model, &known) || fsdpck_doctor_wrapped(d->model) ||
        !fsdpck_doctor_count(d->model, "num_hidden_layers", &a.nlayers) || a.nlayers > MAX_LAYERS)
        return false;
    a.there = calloc(a.nlayers * MAX_PARTS, sizeof *a.there);
    bool decided = a.there ? see(d, &a) : fsdpck_error_nomem(d->err, a.nlayers * MAX_PARTS) == 0;
    const bool nothing[MAX_PARTS] = { false };
    for (uint64_t l = 1; decided && l < a.nlayers; l++)
        if (memcmp(row_of(&a, l), nothing, sizeof nothing) != 0 && count_like(&a, l) == 1)
            check_layer(d, &a, l);
    free(a.there);
    fsdpck_names_free(&a.names);
    fsdpck_arena_free(&a.arena);
    return decided;
}
