/* SPDX-License-Identifier: Apache-2.0 */
/* Byte-pair encoding of one word: merges the pair of lowest rank first, and the leftmost of equal ones. Scans short
 * words, uses a heap for long ones, and caches results. */
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "text/tokenizer/work.h"
#include "text/utf8.h"

enum { SHORT = 48 };

int token_list_room(struct token_list *list, size_t n, bool begins, struct fsdpck_error *err)
{
    if (!grow((void **)&list->ids, &list->capacity, list->count + n, sizeof *list->ids) ||
        (begins && !grow((void **)&list->begins, &list->begins_capacity, list->count + n, sizeof *list->begins)))
        return fsdpck_error_nomem(err, n * sizeof *list->ids);
    return 0;
}

void token_list_free(struct token_list *list)
{
    free(list->ids);
    free(list->begins);
    *list = (struct token_list){ 0 };
}

/* An unknown character becomes its byte tokens, unk, or nothing. This is the pending unk. */
struct unknown {
    uint32_t id, begin;
};

static size_t unknown_character(const struct tokenizer *t, const char *s, size_t nbytes, uint32_t begin,
                                struct symbol *out, struct unknown *pending)
{
    bool all = t->byte_fallback;
    for (size_t i = 0; all && i < nbytes; i++)
        all = t->fallback[(unsigned char)s[i]] != TOK_NONE;
    for (size_t i = 0; all && i < nbytes; i++)
        out[i] = (struct symbol){ .id = t->fallback[(unsigned char)s[i]], .begin = begin };
    if (all || t->unk == TOK_NONE)
        return all ? nbytes : 0;
    bool flush = pending->id != TOK_NONE && !t->fuse_unk;
    if (flush)
        out[0] = (struct symbol){ .id = pending->id, .begin = pending->begin };
    if (flush || pending->id == TOK_NONE)
        *pending = (struct unknown){ t->unk, begin };
    return flush;
}

/* Converts characters to symbols as the tokenizers library does: a pending unk is emitted before the next known
 * character, even if byte tokens of later characters come first. */
static size_t characters(const struct tokenizer *t, const struct piece *p, struct symbol *out)
{
    struct unknown pending = { .id = TOK_NONE };
    size_t count = 0, step;
    for (size_t at = 0; at < p->n; at += step) {
        unsigned char c = (unsigned char)p->s[at];
        uint32_t id = TOK_NONE;
        step = utf8_nbytes(c);
        if (c < 0x80)
            id = t->byte_ids[c];
        else
            string_map_get(&t->ids, t->strings.s, p->s + at, step, &id);
        if (id == TOK_NONE) {
            count += unknown_character(t, p->s + at, step, (uint32_t)at, out + count, &pending);
            continue;
        }
        if (pending.id != TOK_NONE)
            out[count++] = (struct symbol){ .id = pending.id, .begin = pending.begin };
        pending.id = TOK_NONE;
        out[count++] = (struct symbol){ .id = id, .begin = (uint32_t)at };
    }
    if (pending.id != TOK_NONE)
        out[count++] = (struct symbol){ .id = pending.id, .begin = pending.begin };
    return count;
}

static size_t bytes(const struct tokenizer *t, const struct piece *p, struct symbol *out)
{
    size_t count = 0;
    for (size_t at = 0; at < p->n; at++) {
        uint32_t id = t->byte_ids[(unsigned char)p->s[at]];
        if (id != TOK_NONE)
            out[count++] = (struct symbol){ .id = id, .begin = (uint32_t)at };
    }
    return count;
}

static inline uint32_t rank_of(const struct tokenizer *t, const struct symbol *a, const struct symbol *b, uint32_t *id)
{
    const struct pair_entry *e = pair_map_get(&t->merges, a->id, b->id);
    *id = e ? e->id : 0;
    return e ? e->rank : UINT32_MAX;
}

/* Quadratic; n <= SHORT. */
static size_t merge_short(const struct tokenizer *t, struct symbol *s, size_t n)
{
    uint32_t rank[SHORT], id[SHORT];
    for (size_t i = 0; i + 1 < n; i++)
        rank[i] = rank_of(t, &s[i], &s[i + 1], &id[i]);
    while (n > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < n; i++)
            best = rank[i] < rank[best] ? i : best;
        if (rank[best] == UINT32_MAX)
            break;
        s[best].id = id[best];
        n--;
        for (size_t i = best + 1; i < n; i++) {
            s[i] = s[i + 1];
            rank[i] = rank[i + 1 < n ? i + 1 : i];
            id[i] = id[i + 1 < n ? i + 1 : i];
        }
        if (best > 0)
            rank[best - 1] = rank_of(t, &s[best - 1], &s[best], &id[best - 1]);
        if (best + 1 < n)
            rank[best] = rank_of(t, &s[best], &s[best + 1], &id[best]);
    }
    return n;
}

static void heap_push(struct encoder *e, uint64_t key)
{
    size_t i = e->heap_count++;
    for (; i > 0 && e->heap[(i - 1) / 2] > key; i = (i - 1) / 2)
        e->heap[i] = e->heap[(i - 1) / 2];
    e->heap[i] = key;
}

static uint64_t heap_pop(struct encoder *e)
{
    uint64_t top = e->heap[0], last = e->heap[--e->heap_count];
    size_t i = 0;
    for (size_t child; (child = 2 * i + 1) < e->heap_count; i = child) {
        child += child + 1 < e->heap_count && e->heap[child + 1] < e->heap[child];
        if (e->heap[child] >= last)
            break;
        e->heap[i] = e->heap[child];
    }
    e->heap[i] = last;
    return top;
}

/* Key: rank in the high bits, position in the low bits. The smallest key is the next merge. */
static void offer(struct encoder *e, uint32_t at)
{
    const struct symbol *s = e->symbols;
    uint32_t id;
    if (at == UINT32_MAX || s[at].next == UINT32_MAX)
        return;
    uint32_t rank = rank_of(e->t, &s[at], &s[s[at].next], &id);
    if (rank != UINT32_MAX)
        heap_push(e, (uint64_t)rank << 32 | at);
}

/* Each merge removes one symbol and pushes at most two pairs. */
static int merge_long(struct encoder *e, size_t *n, struct fsdpck_error *err)
{
    struct symbol *s = e->symbols;
    if (!grow((void **)&e->heap, &e->heap_capacity, 3 * *n, sizeof *e->heap))
        return fsdpck_error_nomem(err, 3 * *n * sizeof *e->heap);
    e->heap_count = 0;
    for (uint32_t i = 0; i < *n; i++) {
        s[i].previous = i ? i - 1 : UINT32_MAX;
        s[i].next = i + 1 < *n ? i + 1 : UINT32_MAX;
    }
    for (uint32_t i = 0; i < *n; i++)
        offer(e, i);
    while (e->heap_count) {
        uint64_t key = heap_pop(e);
        uint32_t at = (uint32_t)key, id, right = s[at].next;
        if (s[at].id == TOK_NONE || right == UINT32_MAX || rank_of(e->t, &s[at], &s[right], &id) != key >> 32)
            continue; /* stale: another merge consumed one of the two */
        s[at].id = id;
        s[at].next = s[right].next;
        s[right].id = TOK_NONE;
        if (s[at].next != UINT32_MAX)
            s[s[at].next].previous = at;
        offer(e, s[at].previous);
        offer(e, at);
    }
    size_t left = 0;
    for (size_t i = 0; i < *n; i++) {
        if (s[i].id != TOK_NONE)
            s[left++] = s[i];
    }
    *n = left;
    return 0;
}

static void keep(struct cached_word *slot, const struct piece *w, const struct symbol *s, size_t n)
{
    if (w->n > CACHE_KEY || n > CACHE_IDS)
        return;
    memcpy(slot->key, w->s, w->n);
    slot->key_nbytes = (uint8_t)w->n;
    slot->count = (uint8_t)n;
    for (size_t i = 0; i < n; i++)
        slot->ids[i] = s[i].id | s[i].begin << 24;
}

static int merge_word(struct encoder *e, const struct piece *w, struct cached_word *slot, struct token_list *out,
                      struct fsdpck_error *err)
{
    const struct tokenizer *t = e->t;
    uint32_t whole;
    if (!grow((void **)&e->symbols, &e->symbols_capacity, w->n + 1, sizeof *e->symbols))
        return fsdpck_error_nomem(err, w->n * sizeof *e->symbols);
    struct symbol *s = e->symbols;
    size_t n = 1;
    int rc = 0;
    if (t->ignore_merges && string_map_get(t->byte_level ? &t->words : &t->ids, t->strings.s, w->s, w->n, &whole)) {
        s[0] = (struct symbol){ .id = whole };
    } else {
        n = t->byte_level ? bytes(t, w, s) : characters(t, w, s);
        if (n <= SHORT)
            n = merge_short(t, s, n);
        else
            rc = merge_long(e, &n, err);
    }
    if (rc)
        return rc;
    for (size_t i = 0; i < n; i++) {
        if (e->begins)
            out->begins[out->count] = piece_origin(w, s[i].begin);
        out->ids[out->count++] = s[i].id;
    }
    if (slot)
        keep(slot, w, s, n);
    return 0;
}

static int one_word(struct encoder *e, const struct piece *w, struct token_list *out, struct fsdpck_error *err)
{
    struct cached_word *slot = w->n <= CACHE_KEY ? &e->cache[XXH3_64bits(w->s, w->n) % CACHE_SLOTS] : NULL;
    int rc = token_list_room(out, w->n, e->begins, err);
    if (rc)
        return rc;
    if (!slot || slot->key_nbytes != w->n || memcmp(slot->key, w->s, w->n) != 0)
        return merge_word(e, w, slot, out, err);
    for (size_t i = 0; i < slot->count; i++) {
        if (e->begins)
            out->begins[out->count] = piece_origin(w, slot->ids[i] >> 24);
        out->ids[out->count++] = slot->ids[i] & 0xffffff;
    }
    return 0;
}

/* If no merge crosses the boundary before a "▁", each part between two boundaries is merged and cached by itself. */
int bpe_word(struct encoder *e, const struct piece *word, struct token_list *out, struct fsdpck_error *err)
{
    static const char mark[] = "\xe2\x96\x81";
    bool whole = !e->t->breaks_at_space || (e->t->ignore_merges && word->n > 0);
    size_t at = 0;
    int rc = 0;
    while (at < word->n && !rc) {
        size_t end = at;
        while (!whole && end < word->n && word->n - end >= 3 && memcmp(word->s + end, mark, 3) == 0)
            end += 3;
        const char *hit = !whole && end < word->n ? memmem(word->s + end, word->n - end, mark, 3) : NULL;
        end = hit ? (size_t)(hit - word->s) : word->n;
        struct piece part = piece_part(word, at, end);
        rc = one_word(e, &part, out, err);
        at = end;
    }
    return rc;
}
