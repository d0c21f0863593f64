/* SPDX-License-Identifier: Apache-2.0 */
/* The normaliser: Prepend, Replace and the Unicode normal forms. Tracks the origin of each byte. */
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "text/tokenizer/work.h"
#include "text/utf8.h"

int piece_buffer_add(struct piece_buffer *b, const char *s, size_t nbytes, uint32_t origin, bool begins,
                     struct fsdpck_error *err)
{
    if (b->n + nbytes > TOK_MAX_TEXT)
        return fsdpck_error_set(err, FSDPCK_ERR_LIMIT, NULL, "a text of more than %d bytes", TOK_MAX_TEXT);
    if (!grow((void **)&b->s, &b->capacity, b->n + nbytes + 1, 1) ||
        (begins && !grow((void **)&b->origin, &b->origin_capacity, b->n + nbytes + 1, sizeof *b->origin)))
        return fsdpck_error_nomem(err, b->n + nbytes);
    memcpy(b->s + b->n, s, nbytes);
    for (size_t i = 0; begins && i < nbytes; i++)
        b->origin[b->n + i] = origin;
    b->n += nbytes;
    return 0;
}

void piece_buffer_free(struct piece_buffer *b)
{
    free(b->s);
    free(b->origin);
}

struct piece piece_of(const struct piece_buffer *b, uint32_t base, bool begins)
{
    return (struct piece){ b->s, b->n, base, begins ? b->origin : NULL };
}

/* Appends bytes from … to of p unchanged. */
static int copy(struct piece_buffer *b, const struct piece *p, size_t from, size_t to, bool begins,
                struct fsdpck_error *err)
{
    size_t at = b->n;
    int rc = to > from ? piece_buffer_add(b, p->s + from, to - from, 0, begins, err) : 0;
    for (size_t i = from; !rc && begins && i < to; i++)
        b->origin[at++] = piece_origin(p, i);
    return rc;
}

int piece_replace(const struct piece *p, const char *from, size_t from_nbytes, const char *to, size_t to_nbytes,
                  bool begins, struct piece_buffer *b, struct fsdpck_error *err)
{
    size_t done = 0;
    int rc = 0;
    while (!rc) {
        const char *hit = done < p->n ? memmem(p->s + done, p->n - done, from, from_nbytes) : NULL;
        size_t at = hit ? (size_t)(hit - p->s) : p->n;
        rc = copy(b, p, done, at, begins, err);
        if (!hit)
            break;
        if (!rc && to_nbytes)
            rc = piece_buffer_add(b, to, to_nbytes, piece_origin(p, at), begins, err);
        done = at + from_nbytes;
    }
    return rc;
}

/* Appends the NFC of a character and those that may join it. The NFC of such a run is the same alone as within the
 * whole text. */
static int compose(struct piece_buffer *b, const struct piece *p, size_t from, size_t to, const uint8_t *bits,
                   bool begins, struct fsdpck_error *err)
{
    size_t step;
    uint32_t first = utf8_get(p->s + from, &step);
    /* The library's older Unicode does not know this mark and treats it as a letter: the marks that follow are
     * reordered behind it. */
    if (!(bits[first] & (UNICODE_JOINS | UNICODE_CHANGES)) &&
        utf8proc_get_property((utf8proc_int32_t)first)->combining_class != 0) {
        int rc = copy(b, p, from, from + step, begins, err);
        if (rc)
            return rc;
        from += step;
    }
    utf8proc_uint8_t *composed = NULL;
    utf8proc_ssize_t n = utf8proc_map((const utf8proc_uint8_t *)p->s + from, (utf8proc_ssize_t)(to - from), &composed,
                                      UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    if (n < 0)
        return fsdpck_error_nomem(err, to - from);
    int rc = n ? piece_buffer_add(b, (const char *)composed, (size_t)n, piece_origin(p, from), begins, err) : 0;
    free(composed);
    return rc;
}

static int to_nfc(const struct tokenizer *t, const struct piece *p, bool begins, struct piece_buffer *b, bool *changed,
                  struct fsdpck_error *err)
{
    size_t done = 0, at = 0, step, last = 0; /* last: where the character before `at` begins */
    *changed = false;
    while (at < p->n) {
        uint8_t bits = (unsigned char)p->s[at] < 0x80 ? 0 : t->bits[utf8_get(p->s + at, &step)];
        if (!(bits & (UNICODE_JOINS | UNICODE_CHANGES))) {
            last = at;
            at += utf8_nbytes((unsigned char)p->s[at]);
            continue;
        }
        size_t from = bits & UNICODE_JOINS ? last : at, to = at + step;
        if (from < done)
            from = done;
        while (to < p->n && (t->bits[utf8_get(p->s + to, &step)] & UNICODE_JOINS))
            to += step;
        int rc = copy(b, p, done, from, begins, err);
        if (!rc)
            rc = compose(b, p, from, to, t->bits, begins, err);
        if (rc)
            return rc;
        *changed = true;
        done = at = last = to;
    }
    return *changed ? copy(b, p, done, p->n, begins, err) : 0;
}

/* Decomposes each run of characters that change. Characters that do not change bound the runs: reordering never crosses
 * them. Characters that the library's older Unicode does not know count as unchanged. */
static int decompose(const struct tokenizer *t, const struct piece *p, bool compatibility, bool begins,
                     struct piece_buffer *b, bool *changed, struct fsdpck_error *err)
{
    const int options = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | (compatibility ? UTF8PROC_COMPAT : 0);
    size_t done = 0, step = 0;
    *changed = false;
    for (size_t at = 0; at < p->n; at += step) {
        size_t end = at;
        while (end < p->n && (unsigned char)p->s[end] >= 0x80 &&
               (t->bits[utf8_get(p->s + end, &step)] & UNICODE_DECOMPOSES))
            end += step;
        step = end > at ? end - at : utf8_nbytes((unsigned char)p->s[at]);
        if (end == at)
            continue;
        utf8proc_uint8_t *out = NULL;
        utf8proc_ssize_t n =
            utf8proc_map((const utf8proc_uint8_t *)p->s + at, (utf8proc_ssize_t)(end - at), &out, options);
        if (n < 0)
            return fsdpck_error_nomem(err, end - at);
        int rc = copy(b, p, done, at, begins, err);
        if (!rc && n)
            rc = piece_buffer_add(b, (const char *)out, (size_t)n, piece_origin(p, at), begins, err);
        free(out);
        if (rc)
            return rc;
        *changed = true;
        done = end;
    }
    return *changed ? copy(b, p, done, p->n, begins, err) : 0;
}

static int prepend(const struct tokenizer *t, const struct normalize_step *s, const struct piece *p, bool begins,
                   struct piece_buffer *b, bool *changed, struct fsdpck_error *err)
{
    *changed = p->n > 0 && s->to.nbytes > 0;
    if (!*changed)
        return 0;
    int rc = piece_buffer_add(b, t->strings.s + s->to.at, s->to.nbytes, piece_origin(p, 0), begins, err);
    return rc ? rc : copy(b, p, 0, p->n, begins, err);
}

int tok_normalize(const struct tokenizer *t, struct piece *p, struct piece_buffer buffers[2], bool begins,
                  struct fsdpck_error *err)
{
    int rc = 0;
    for (size_t i = 0, turn = 0; i < t->nnormalize && !rc; i++) {
        const struct normalize_step *s = &t->normalize[i];
        const char *base = t->strings.s;
        struct piece_buffer *b = &buffers[turn];
        bool changed = true;
        b->n = 0;
        if (s->kind == NORMALIZE_NFC)
            rc = to_nfc(t, p, begins, b, &changed, err);
        else if (s->kind == NORMALIZE_NFD || s->kind == NORMALIZE_NFKD)
            rc = decompose(t, p, s->kind == NORMALIZE_NFKD, begins, b, &changed, err);
        else if (s->kind == NORMALIZE_PREPEND)
            rc = prepend(t, s, p, begins, b, &changed, err);
        else
            rc = piece_replace(p, base + s->from.at, s->from.nbytes, base + s->to.at, s->to.nbytes, begins, b, err);
        if (!rc && changed) {
            *p = piece_of(b, p->base, begins);
            turn = !turn;
        }
    }
    return rc;
}
