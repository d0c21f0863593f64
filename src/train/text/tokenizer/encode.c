/* SPDX-License-Identifier: Apache-2.0 */
/* Encodes a text in four steps: cut out raw added tokens, normalise the rest and cut out normalised added tokens, split
 * the rest into words, merge each word. */
#include <stdlib.h>
#include <string.h>

#include "text/tokenizer/split.h"
#include "text/tokenizer/work.h"
#include "text/utf8.h"

int encoder_new(const struct tokenizer *t, struct encoder **out, struct fsdpck_error *err)
{
    struct encoder *e = calloc(1, sizeof *e);
    bool ok = e && (e->cache = calloc(CACHE_SLOTS, sizeof *e->cache));
    for (size_t i = 0; ok && i < t->nsplit; i++)
        ok = !t->split[i].regex || (e->regex[i] = split_work_new(t->split[i].regex));
    if (!ok)
        encoder_free(e);
    else
        e->t = t;
    *out = ok ? e : NULL;
    return ok ? 0 : fsdpck_error_nomem(err, CACHE_SLOTS * sizeof *e->cache);
}

void encoder_free(struct encoder *e)
{
    if (!e)
        return;
    for (size_t i = 0; i < TOK_MAX_STEPS; i++) {
        piece_buffer_free(&e->split[i]);
        split_work_free(e->regex[i]);
    }
    piece_buffer_free(&e->normal[0]);
    piece_buffer_free(&e->normal[1]);
    free(e->cache);
    free(e->symbols);
    free(e->heap);
    free(e);
}

/* --- words --- */

static int split(struct encoder *e, struct piece p, size_t step, struct token_list *out, struct fsdpck_error *err);

static int split_digits(struct encoder *e, const struct piece *p, size_t step, struct token_list *out,
                        struct fsdpck_error *err)
{
    const uint8_t *bits = e->t->bits;
    size_t begin = 0, n;
    int rc = 0;
    for (size_t at = 0; at < p->n && !rc; at += n) {
        bool digit = (unsigned char)p->s[at] < 0x80 ? (n = 1, p->s[at] >= '0' && p->s[at] <= '9')
                                                    : bits[utf8_get(p->s + at, &n)] & UNICODE_NUMERIC;
        if (!digit)
            continue;
        size_t end = at + n;
        for (size_t m;
             !e->t->split[step].individual && end < p->n && (bits[utf8_get(p->s + end, &m)] & UNICODE_NUMERIC);)
            end += m;
        if (at > begin)
            rc = split(e, piece_part(p, begin, at), step + 1, out, err);
        if (!rc)
            rc = split(e, piece_part(p, at, end), step + 1, out, err);
        begin = end;
        n = end - at;
    }
    return rc || begin == p->n ? rc : split(e, piece_part(p, begin, p->n), step + 1, out, err);
}

static int split_regex(struct encoder *e, const struct piece *p, size_t step, struct token_list *out,
                       struct fsdpck_error *err)
{
    const struct split_regex *r = e->t->split[step].regex;
    size_t at = 0, begin = 0, end = 0;
    int rc = split_work_set(e->regex[step], r, p->s, p->n, err);
    while (!rc && at < p->n) {
        rc = split_work_next(e->regex[step], r, at, &begin, &end, err);
        if (!rc && begin > at) /* text between matches is a word too */
            rc = split(e, piece_part(p, at, begin), step + 1, out, err);
        if (!rc && end > begin)
            rc = split(e, piece_part(p, begin, end), step + 1, out, err);
        at = end;
    }
    return rc;
}

/* Splits before each "▁". */
static int split_at_marks(struct encoder *e, const struct piece *p, struct span mark, size_t step,
                          struct token_list *out, struct fsdpck_error *err)
{
    const char *m = e->t->strings.s + mark.at;
    int rc = 0;
    for (size_t at = 0, end; at < p->n && !rc; at = end) {
        size_t from = at + utf8_nbytes((unsigned char)p->s[at]);
        const char *hit = from < p->n ? memmem(p->s + from, p->n - from, m, mark.nbytes) : NULL;
        end = hit ? (size_t)(hit - p->s) : p->n;
        rc = split(e, piece_part(p, at, end), step + 1, out, err);
    }
    return rc;
}

static int split_metaspace(struct encoder *e, const struct piece *p, size_t step, struct token_list *out,
                           struct fsdpck_error *err)
{
    const struct split_step *s = &e->t->split[step];
    struct piece_buffer *b = &e->split[step];
    const char *mark = e->t->strings.s + s->replacement.at;
    size_t n = s->replacement.nbytes;
    bool marked = p->s[0] == ' ' || (p->n >= n && memcmp(p->s, mark, n) == 0);
    bool wanted = s->prepend == PREPEND_ALWAYS || (s->prepend == PREPEND_FIRST && p->base == 0);
    b->n = 0;
    int rc = wanted && !marked ? piece_buffer_add(b, mark, n, piece_origin(p, 0), e->begins, err) : 0;
    if (!rc)
        rc = piece_replace(p, " ", 1, mark, n, e->begins, b, err);
    if (rc)
        return rc;
    struct piece whole = piece_of(b, p->base, e->begins);
    return s->individual ? split_at_marks(e, &whole, s->replacement, step, out, err)
                         : split(e, whole, step + 1, out, err);
}

static int prefix_space(struct encoder *e, const struct piece *p, size_t step, struct token_list *out,
                        struct fsdpck_error *err)
{
    struct piece_buffer *b = &e->split[step];
    if (p->s[0] == ' ')
        return split(e, *p, step + 1, out, err);
    b->n = 0;
    int rc = piece_buffer_add(b, " ", 1, piece_origin(p, 0), e->begins, err);
    if (!rc)
        rc = piece_replace(p, " ", 1, " ", 1, e->begins, b, err);
    return rc ? rc : split(e, piece_of(b, p->base, e->begins), step + 1, out, err);
}

/* Applies step `step` of the pre-tokenizer to p. After the last step, p is a word. Recursion depth is at most
 * TOK_MAX_STEPS. */
static int split(struct encoder *e, struct piece p, size_t step, struct token_list *out, struct fsdpck_error *err)
{
    if (p.n == 0)
        return 0;
    if (step == e->t->nsplit)
        return bpe_word(e, &p, out, err);
    const struct split_step *s = &e->t->split[step];
    int rc = 0;
    switch (s->kind) {
    case SPLIT_SCAN:
        for (size_t at = 0, n; at < p.n && !rc; at += n) {
            n = s->scan(e->t->bits, p.s + at, p.n - at);
            rc = split(e, piece_part(&p, at, at + n), step + 1, out, err);
        }
        return rc;
    case SPLIT_REGEX: return split_regex(e, &p, step, out, err);
    case SPLIT_DIGITS: return split_digits(e, &p, step, out, err);
    case SPLIT_METASPACE: return split_metaspace(e, &p, step, out, err);
    case SPLIT_PREFIX_SPACE: return prefix_space(e, &p, step, out, err);
    }
    return 0;
}

/* --- added tokens --- */

static uint8_t bits_before(const struct encoder *e, const struct piece *p, size_t at)
{
    size_t step;
    return e->t->bits[utf8_get(p->s + utf8_back(p->s, at), &step)];
}

static bool stands_alone(const struct encoder *e, const struct piece *p, size_t begin, size_t end)
{
    size_t step;
    return (begin == 0 || !(bits_before(e, p, begin) & UNICODE_WORD)) &&
           (end == p->n || !(e->t->bits[utf8_get(p->s + end, &step)] & UNICODE_WORD));
}

static size_t without_spaces_before(const struct encoder *e, const struct piece *p, size_t at, size_t least)
{
    while (at > least && (bits_before(e, p, at) & UNICODE_SPACE))
        at = utf8_back(p->s, at);
    return at;
}

static size_t without_spaces_behind(const struct encoder *e, const struct piece *p, size_t at)
{
    size_t step;
    while (at < p->n && (e->t->bits[utf8_get(p->s + at, &step)] & UNICODE_SPACE))
        at += step;
    return at;
}

typedef int (*rest_fn)(struct encoder *e, struct piece p, struct token_list *out, struct fsdpck_error *err);

static int add_token(struct encoder *e, uint32_t id, uint32_t begin, struct token_list *out, struct fsdpck_error *err)
{
    int rc = token_list_room(out, 1, e->begins, err);
    if (rc)
        return rc;
    if (e->begins)
        out->begins[out->count] = begin;
    out->ids[out->count++] = id;
    return 0;
}

/* Cuts the trie's tokens out of p and calls rest() for the text between them. */
static int cut(struct encoder *e, const struct trie *trie, struct piece p, rest_fn rest, struct token_list *out,
               struct fsdpck_error *err)
{
    size_t done = 0, from = 0, begin, end;
    uint32_t index;
    int rc = 0;
    while (!rc && trie_find(trie, p.s, p.n, from, &begin, &end, &index)) {
        const struct added *a = &e->t->added[index];
        from = end;
        if (a->single_word && !stands_alone(e, &p, begin, end))
            continue;
        if (a->lstrip)
            begin = without_spaces_before(e, &p, begin, done < begin ? done : begin);
        if (a->rstrip)
            end = without_spaces_behind(e, &p, end);
        if (done < begin)
            rc = rest(e, piece_part(&p, done, begin), out, err);
        if (!rc)
            rc = add_token(e, a->id, piece_origin(&p, begin), out, err);
        done = end;
    }
    return rc || done >= p.n ? rc : rest(e, piece_part(&p, done, p.n), out, err);
}

static int words(struct encoder *e, struct piece p, struct token_list *out, struct fsdpck_error *err)
{
    return split(e, p, 0, out, err);
}

static int normalize(struct encoder *e, struct piece p, struct token_list *out, struct fsdpck_error *err)
{
    int rc = tok_normalize(e->t, &p, e->normal, e->begins, err);
    return rc || p.n == 0 ? rc : cut(e, &e->t->normalized, p, words, out, err);
}

int tokenizer_encode(struct encoder *e, const char *text, size_t nbytes, int flags, struct token_list *list,
                     struct fsdpck_error *err)
{
    const struct tokenizer *t = e->t;
    if (nbytes > TOK_MAX_TEXT)
        return fsdpck_error_set(err, FSDPCK_ERR_LIMIT, NULL, "a text of %zu bytes; at most %d are wanted", nbytes,
                                TOK_MAX_TEXT);
    size_t valid = utf8_valid_prefix(text, nbytes);
    if (valid < nbytes)
        return fsdpck_error_set(err, FSDPCK_ERR_FORMAT, NULL, "byte %zu of the text, 0x%02x, is no UTF-8", valid,
                                (unsigned char)text[valid]);
    struct piece whole = { .s = text, .n = nbytes };
    e->begins = flags & TOKENIZER_BEGINS;
    int rc = 0;
    for (size_t i = 0; (flags & TOKENIZER_SPECIAL) && i < t->prefix.count && !rc; i++)
        rc = add_token(e, t->prefix.ids[i], 0, list, err);
    if (!rc)
        rc = cut(e, &t->raw, whole, normalize, list, err);
    for (size_t i = 0; (flags & TOKENIZER_SPECIAL) && i < t->suffix.count && !rc; i++)
        rc = add_token(e, t->suffix.ids[i], (uint32_t)nbytes, list, err);
    return rc;
}
