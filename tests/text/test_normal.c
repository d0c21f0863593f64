/* SPDX-License-Identifier: Apache-2.0 */
/* Unicode normal forms as in the tokenizers library, whose Unicode is older than utf8proc's: marks unknown to it are
 * not reordered. The expected values come from the library. tests/interop compares thousands of random strings. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/tokenizer/split.h"
#include "text/tokenizer/work.h"
#include "text/utf8.h"

static bool gives(const struct tokenizer *t, const char *text, const char *wanted)
{
    struct piece_buffer buffers[2] = { 0 };
    struct piece p = { text, strlen(text), 0, NULL };
    struct fsdpck_error err = { 0 };
    bool same =
        tok_normalize(t, &p, buffers, true, &err) == 0 && p.n == strlen(wanted) && memcmp(p.s, wanted, p.n) == 0;
    for (size_t i = 0; same && p.origin && i < p.n; i++) /* every byte comes from one of the text, in order */
        same = p.origin[i] < strlen(text) && (i == 0 || p.origin[i] >= p.origin[i - 1]);
    if (!same)
        printf("'%s' became '%.*s', '%s' is wanted\n", text, (int)p.n, p.s, wanted);
    piece_buffer_free(&buffers[0]);
    piece_buffer_free(&buffers[1]);
    return same;
}

/* Returns true if the first match of a pattern is the first `wanted` bytes of text. */
static bool matches(const uint8_t *bits, const char *pattern, const char *text, size_t wanted)
{
    struct split_regex *r;
    struct fsdpck_error err = { 0 };
    size_t begin = 1, end = 0;
    struct split_work *w = split_regex_new("test", pattern, bits, &r, &err) ? NULL : split_work_new(r);
    bool same = w && split_work_set(w, r, text, strlen(text), &err) == 0 &&
                split_work_next(w, r, 0, &begin, &end, &err) == 0 && begin == 0 && end == wanted;
    if (!same)
        printf("%s in '%s': %zu to %zu, 0 to %zu wanted. %s\n", pattern, text, begin, end, wanted, err.message);
    split_work_free(w);
    split_regex_free(r);
    return same;
}

int main(void)
{
    static const struct {
        const char *text, *forms[4];
    } cases[] = {
        { "e\314\201\314\247x",
          { "\310\251\314\201x", "e\314\247\314\201x", "\310\251\314\201x", "e\314\247\314\201x" } },
        { "\341\271\251", { "\341\271\251", "s\314\243\314\207", "\341\271\251", "s\314\243\314\207" } },
        { "\352\260\201",
          { "\352\260\201", "\341\204\200\341\205\241\341\206\250", "\352\260\201",
            "\341\204\200\341\205\241\341\206\250" } },
        { "\357\254\201\342\221\240", { "\357\254\201\342\221\240", "\357\254\201\342\221\240", "fi1", "fi1" } },
        { "\315\204", { "\314\210\314\201", "\314\210\314\201", "\314\210\314\201", "\314\210\314\201" } },
        { "\340\242\230\314\247e\340\242\230\314\247",
          { "\340\242\230\314\247e\340\242\230\314\247", "\340\242\230\314\247e\340\242\230\314\247",
            "\340\242\230\314\247e\340\242\230\314\247", "\340\242\230\314\247e\340\242\230\314\247" } },
        { "\341\204\200\341\205\241\341\206\250",
          { "\352\260\201", "\341\204\200\341\205\241\341\206\250", "\352\260\201",
            "\341\204\200\341\205\241\341\206\250" } },
        { "a\314\225\314\200\326\256b",
          { "\303\240\326\256\314\225b", "a\326\256\314\200\314\225b", "\303\240\326\256\314\225b",
            "a\326\256\314\200\314\225b" } },
        { "\302\275\342\204\253",
          { "\302\275\303\205", "\302\275A\314\212", "1\342\201\2042\303\205", "1\342\201\2042A\314\212" } },
        { "plain", { "plain", "plain", "plain", "plain" } },
    };
    static const enum normalize_kind steps[4][2] = {
        { NORMALIZE_NFC }, { NORMALIZE_NFD }, { NORMALIZE_NFKD, NORMALIZE_NFC }, { NORMALIZE_NFKD }
    };
    struct tokenizer t = { .bits = malloc(UNICODE_NPOINTS) };
    bool good = t.bits != NULL;
    unicode_fill(t.bits);
    for (int form = 0; form < 4; form++) {
        t.nnormalize = form == 2 ? 2 : 1;
        for (size_t i = 0; i < t.nnormalize; i++)
            t.normalize[i].kind = steps[form][i];
        for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
            good &= gives(&t, cases[i].text, cases[i].forms[form]);
    }
    /* Categories are those of the library, from Unicode 16 (U+1C89, a capital letter, and U+1C8A), even if PCRE2's
     * Unicode is older. */
    good &= matches(t.bits, "\\p{Lu}[\\p{Ll}\\p{M}]*", "\341\262\211\341\262\212\314\201.", 8);
    good &= matches(t.bits, "[^\\s\\p{P}]+", "a\341\262\211\342\200\246", 4);
    good &= matches(t.bits, "[\344\270\200-\351\276\245]+", "\344\270\211\351\276\245\360\260\200\200", 6);
    free(t.bits);
    return good ? 0 : 1;
}
