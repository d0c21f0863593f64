/* SPDX-License-Identifier: Apache-2.0 */
/* Decodes ids: takes the tokens as written in the file, applies the decoder's steps to that list of strings, and joins
 * them. */
#include <stdlib.h>
#include <string.h>

#include "text/tokenizer/impl.h"
#include "text/utf8.h"

/* A list of strings in one buffer. */
struct strings {
    char *s;
    size_t *ends; /* (count) */
    size_t count, nbytes, capacity, ends_capacity;
};

static bool add_bytes(struct strings *l, const char *s, size_t nbytes)
{
    if (!grow((void **)&l->s, &l->capacity, l->nbytes + nbytes + 1, 1))
        return false;
    memcpy(l->s + l->nbytes, s, nbytes);
    l->nbytes += nbytes;
    return true;
}

/* Ends the current string: the bytes added since the last call. */
static bool end_string(struct strings *l)
{
    if (!grow((void **)&l->ends, &l->ends_capacity, l->count + 1, sizeof *l->ends))
        return false;
    l->ends[l->count++] = l->nbytes;
    return true;
}

static bool add_string(struct strings *l, const char *s, size_t nbytes)
{
    return add_bytes(l, s, nbytes) && end_string(l);
}

static void strings_free(struct strings *l)
{
    free(l->s);
    free(l->ends);
}

static bool to_text(const char *s, size_t nbytes, struct strings *out)
{
    if (!grow((void **)&out->s, &out->capacity, out->nbytes + 3 * nbytes + 1, 1))
        return false;
    out->nbytes += utf8_replace(s, nbytes, out->s + out->nbytes);
    return true;
}

/* Joins all tokens into one string of bytes. A token with characters outside the byte alphabet is copied as it is. */
static bool byte_level(const struct strings *in, struct strings *out)
{
    char *bytes = malloc(in->nbytes + 1);
    size_t n = 0, from = 0;
    for (size_t i = 0; bytes && i < in->count; from = in->ends[i++]) {
        size_t length = in->ends[i] - from, got;
        if (!tok_alphabet_bytes(in->s + from, length, bytes + n, &got)) {
            memcpy(bytes + n, in->s + from, length);
            got = length;
        }
        n += got;
    }
    bool ok = bytes && to_text(bytes, n, out) && end_string(out);
    free(bytes);
    return ok;
}

static bool replace(const char *base, const struct decode_step *s, const char *at, const char *end, struct strings *out)
{
    for (const char *hit;
         (hit = end > at ? memmem(at, (size_t)(end - at), base + s->from.at, s->from.nbytes) : NULL) != NULL;
         at = hit + s->from.nbytes) {
        if (!add_bytes(out, at, (size_t)(hit - at)) || !add_bytes(out, base + s->to.at, s->to.nbytes))
            return false;
    }
    return add_string(out, at, (size_t)(end - at));
}

/* Parses "<0x41>" as the library does: two hexadecimal digits, or '+' and one digit. */
static int fallback_byte(const char *s, size_t nbytes)
{
    int value = 0;
    if (nbytes != 6 || memcmp(s, "<0x", 3) != 0 || s[5] != '>')
        return -1;
    for (int i = 3; i < 5; i++) {
        char c = s[i];
        int digit = c >= '0' && c <= '9'   ? c - '0'
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                    : i == 3 && c == '+'   ? 0
                                           : -1;
        if (digit < 0)
            return -1;
        value = value * 16 + digit;
    }
    return value;
}

/* Ends a run of byte tokens: valid UTF-8 becomes a string; otherwise each byte becomes U+FFFD. */
static bool end_bytes(const char *run, size_t *n, struct strings *out)
{
    bool ok = true, valid = utf8_valid_prefix(run, *n) == *n;
    if (valid && *n)
        ok = add_string(out, run, *n);
    for (size_t i = 0; !valid && ok && i < *n; i++)
        ok = add_string(out, "\xef\xbf\xbd", 3);
    *n = 0;
    return ok;
}

static bool byte_fallback(const struct strings *in, struct strings *out)
{
    char *run = malloc(in->count + 1);
    size_t n = 0, from = 0;
    bool ok = run != NULL;
    for (size_t i = 0; ok && i < in->count; from = in->ends[i++]) {
        int byte = fallback_byte(in->s + from, in->ends[i] - from);
        if (byte >= 0)
            run[n++] = (char)byte;
        else
            ok = end_bytes(run, &n, out) && add_string(out, in->s + from, in->ends[i] - from);
    }
    ok = ok && end_bytes(run, &n, out);
    free(run);
    return ok;
}

static bool strip(const char *base, const struct decode_step *s, const char *at, const char *end, struct strings *out)
{
    const char *c = base + s->from.at;
    size_t n = s->from.nbytes;
    for (uint32_t i = 0; i < s->start && (size_t)(end - at) >= n && memcmp(at, c, n) == 0; i++)
        at += n;
    for (uint32_t i = 0; i < s->stop && (size_t)(end - at) >= n && memcmp(end - n, c, n) == 0; i++)
        end -= n;
    return add_string(out, at, (size_t)(end - at));
}

static bool metaspace(const char *base, const struct decode_step *s, bool first, const char *at, const char *end,
                      struct strings *out)
{
    bool ok = true;
    for (size_t n; ok && at < end; at += n) {
        n = utf8_nbytes((unsigned char)*at);
        if (n != s->from.nbytes || memcmp(at, base + s->from.at, n) != 0)
            ok = add_bytes(out, at, n);
        else if (!first || s->keeps_first)
            ok = add_bytes(out, " ", 1);
    }
    return ok && end_string(out);
}

static bool run_step(const struct tokenizer *t, const struct decode_step *s, const struct strings *in,
                     struct strings *out)
{
    size_t from = 0;
    bool ok = true;
    if (s->kind == DECODE_BYTE_LEVEL)
        return byte_level(in, out);
    if (s->kind == DECODE_BYTE_FALLBACK)
        return byte_fallback(in, out);
    if (s->kind == DECODE_FUSE)
        return add_string(out, in->s, in->nbytes);
    for (size_t i = 0; ok && i < in->count; from = in->ends[i++]) {
        const char *at = in->s + from, *end = in->s + in->ends[i];
        ok = s->kind == DECODE_REPLACE ? replace(t->strings.s, s, at, end, out)
             : s->kind == DECODE_STRIP ? strip(t->strings.s, s, at, end, out)
                                       : metaspace(t->strings.s, s, i == 0, at, end, out);
    }
    return ok;
}

/* Without a decoder, joins the tokens with spaces. */
static bool collect(const struct tokenizer *t, const uint32_t *ids, size_t count, bool skip_special,
                    struct strings *out)
{
    bool ok = grow((void **)&out->s, &out->capacity, 1, 1);
    for (size_t i = 0; ok && i < count; i++) {
        const char *token = tokenizer_token(t, ids[i]);
        if (!token || (skip_special && t->special[ids[i]]))
            continue;
        if (!t->has_decoder && out->count)
            ok = add_bytes(out, " ", 1);
        ok = ok && add_string(out, token, t->tokens[ids[i]].nbytes);
    }
    return ok;
}

int tokenizer_decode(const struct tokenizer *t, const uint32_t *ids, size_t count, bool skip_special, char **out,
                     size_t *nbytes, struct fsdpck_error *err)
{
    struct strings now = { 0 }, next = { 0 };
    bool ok = collect(t, ids, count, skip_special, &now);
    for (size_t i = 0; ok && i < t->ndecode; i++) {
        next = (struct strings){ 0 };
        ok = grow((void **)&next.s, &next.capacity, 1, 1) && run_step(t, &t->decode[i], &now, &next);
        strings_free(&now);
        now = next;
    }
    free(now.ends);
    *out = NULL;
    if (!ok) {
        free(now.s);
        return fsdpck_error_nomem(err, count * 8);
    }
    now.s[now.nbytes] = '\0';
    *out = now.s;
    *nbytes = now.nbytes;
    return 0;
}
