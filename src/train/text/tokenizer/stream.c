/* SPDX-License-Identifier: Apache-2.0 */
/* Decodes tokens as they arrive. A token may be a part of a character, and its text may depend on the token before it.
 * So show() decodes the last tokens with and without the new one. The difference is the new text, unless it ends within
 * a character. */
#include <train/tokenizer.h>

#include <stdlib.h>
#include <string.h>

#include "arrays/grow.h"

struct token_text {
    const struct tokenizer *tokenizer;
    bool skip_special;
    struct token_list list;
    size_t from, shown; /* token indices: decoding starts at `from`; tokens before `shown` have been returned */
    char *text, *before;
};

int token_text_new(const struct tokenizer *t, bool skip_special, struct token_text **out, struct fsdpck_error *err)
{
    struct token_text *w = calloc(1, sizeof *w);
    *out = w;
    if (!w)
        return fsdpck_error_nomem(err, sizeof *w);
    w->tokenizer = t;
    w->skip_special = skip_special;
    return 0;
}

void token_text_free(struct token_text *w)
{
    if (!w)
        return;
    token_list_free(&w->list);
    free(w->text);
    free(w->before);
    free(w);
}

static int append(struct token_text *w, uint32_t id, struct fsdpck_error *err)
{
    struct token_list *l = &w->list;
    if (!grow((void **)&l->ids, &l->capacity, l->count + 1, sizeof *l->ids))
        return fsdpck_error_nomem(err, (l->count + 1) * sizeof *l->ids);
    l->ids[l->count++] = id;
    return 0;
}

/* Decodes the tokens from w->from up to end. */
static int decode(struct token_text *w, size_t end, char **text, size_t *nbytes, struct fsdpck_error *err)
{
    free(*text);
    *text = NULL;
    return tokenizer_decode(w->tokenizer, w->list.ids + w->from, end - w->from, w->skip_special, text, nbytes, err);
}

/* True if the text ends with U+FFFD: an invalid or incomplete character. */
static bool ends_open(const char *text, size_t nbytes)
{
    return nbytes >= 3 && memcmp(text + nbytes - 3, "\xef\xbf\xbd", 3) == 0;
}

static int show(struct token_text *w, bool all, const char **out, size_t *nbytes, struct fsdpck_error *err)
{
    size_t n = 0, before = 0;
    *out = "";
    *nbytes = 0;
    int rc = decode(w, w->list.count, &w->text, &n, err);
    if (!rc)
        rc = decode(w, w->shown, &w->before, &before, err);
    if (rc || n <= before || (!all && ends_open(w->text, n)))
        return rc;
    *out = w->text + before;
    *nbytes = n - before;
    w->from = w->shown;
    w->shown = w->list.count;
    return 0;
}

int token_text_add(struct token_text *w, uint32_t id, const char **text, size_t *nbytes, struct fsdpck_error *err)
{
    int rc = append(w, id, err);
    return rc ? rc : show(w, false, text, nbytes, err);
}

int token_text_end(struct token_text *w, const char **text, size_t *nbytes, struct fsdpck_error *err)
{
    int rc = show(w, true, text, nbytes, err);
    w->list.count = w->from = w->shown = 0;
    return rc;
}
