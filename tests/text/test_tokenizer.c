/* SPDX-License-Identifier: Apache-2.0 */
/* Tokenizers against the tokenizers library: test_tokenizer GOLDENS STYLE [TOKENIZER.json]. Ids with and without
 * special tokens, decoded text. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <train/tokenizer.h>

#include "lines.h"

static unsigned nchecked, nfailed;

static void check(bool ok, const char *what, size_t line, const char *text)
{
    nchecked++;
    if (!ok && nfailed++ < 20)
        printf("line %zu: %s: %.100s\n", line + 1, what, text ? text : "");
}

static void fail(const struct fsdpck_error *err)
{
    char line[2048];
    printf("%s\n", fsdpck_error_format(err, line, sizeof line));
    exit(1);
}

static bool same_ids(const struct token_list *got, json_t *want)
{
    bool same = got->count == json_array_size(want);
    for (size_t i = 0; same && i < got->count; i++)
        same = got->ids[i] == (json_int_t)json_integer_value(json_array_get(want, i));
    return same;
}

static void check_encode(struct encoder *e, json_t *text, int flags, json_t *want, const char *what, size_t line,
                         struct token_list *list)
{
    struct fsdpck_error err = { 0 };
    list->count = 0;
    if (tokenizer_encode(e, json_string_value(text), json_string_length(text), flags, list, &err))
        fail(&err);
    bool ordered = true; /* starts ascend and lie inside the text */
    for (size_t i = 0; (flags & TOKENIZER_BEGINS) && i < list->count; i++)
        ordered &= list->begins[i] <= json_string_length(text) && (i == 0 || list->begins[i] >= list->begins[i - 1]);
    check(same_ids(list, want), what, line, json_string_value(text));
    check(ordered, "begins", line, json_string_value(text));
}

static void check_decode(const struct tokenizer *t, const uint32_t *ids, size_t count, bool skip, json_t *want,
                         const char *what, size_t line)
{
    struct fsdpck_error err = { 0 };
    char *text;
    size_t n;
    if (tokenizer_decode(t, ids, count, skip, &text, &n, &err))
        fail(&err);
    check(n == json_string_length(want) && memcmp(text, json_string_value(want), n) == 0, what, line, text);
    free(text);
}

/* Decoding token by token gives the same text, and each piece consists of whole characters. */
static void check_stream(const struct tokenizer *t, const uint32_t *ids, size_t count, bool skip, json_t *want,
                         size_t line)
{
    struct fsdpck_error err = { 0 };
    struct token_text *w;
    char shown[1 << 16];
    const char *text;
    size_t n = 0, nbytes;
    if (token_text_new(t, skip, &w, &err))
        fail(&err);
    for (size_t i = 0; i <= count; i++) {
        if (i < count ? token_text_add(w, ids[i], &text, &nbytes, &err) : token_text_end(w, &text, &nbytes, &err))
            fail(&err);
        if (n + nbytes < sizeof shown)
            memcpy(shown + n, text, nbytes);
        n += nbytes;
        if (i < count && nbytes)
            check((text[0] & 0xc0) != 0x80, "a character shown in two parts", line, text);
    }
    check(n == json_string_length(want) && n < sizeof shown && memcmp(shown, json_string_value(want), n) == 0,
          "decoded token by token", line, json_string_value(want));
    token_text_free(w);
}

static void run_encode(const struct tokenizer *t, const char *folder, const char *style)
{
    char name[100];
    struct fsdpck_error err = { 0 };
    struct encoder *e;
    struct token_list list = { 0 };
    snprintf(name, sizeof name, "%s.encode.jsonl", style);
    json_t *strings = lines_read(folder, "strings.jsonl"), *wants = lines_read(folder, name), *o;
    size_t i;
    if (encoder_new(t, &e, &err))
        fail(&err);
    for (int again = 0; again < 2; again++) { /* the second time, words come from the cache */
        json_array_foreach (wants, i, o) {
            json_t *text = json_object_get(json_array_get(strings, i), "text"),
                   *special = json_object_get(o, "with_special"), *decoded;
            check_encode(e, text, TOKENIZER_SPECIAL, special ? special : json_object_get(o, "ids"),
                         "with special tokens", i, &list);
            check_encode(e, text, TOKENIZER_BEGINS, json_object_get(o, "ids"), "ids", i, &list);
            decoded = json_object_get(o, "decoded") ? json_object_get(o, "decoded") : text;
            check_decode(t, list.ids, list.count, false, decoded, "decoded", i);
            check_stream(t, list.ids, list.count, false, decoded, i);
            check_decode(t, list.ids, list.count, true,
                         json_object_get(o, "decoded_skip") ? json_object_get(o, "decoded_skip") : decoded,
                         "decoded without special tokens", i);
        }
    }
    token_list_free(&list);
    encoder_free(e);
    json_decref(strings);
    json_decref(wants);
}

static void run_decode(const struct tokenizer *t, const char *folder, const char *style)
{
    char name[100];
    snprintf(name, sizeof name, "%s.decode.jsonl", style);
    json_t *lines = lines_read(folder, name), *o;
    size_t i;
    json_array_foreach (lines, i, o) {
        json_t *list = json_object_get(o, "ids");
        uint32_t ids[1024];
        size_t n = json_array_size(list) < 1024 ? json_array_size(list) : 1024;
        for (size_t j = 0; j < n; j++)
            ids[j] = (uint32_t)json_integer_value(json_array_get(list, j));
        check_decode(t, ids, n, false, json_object_get(o, "text"), "decode", i);
        check_decode(t, ids, n, true, json_object_get(o, "text_skip"), "decode without special tokens", i);
    }
    json_decref(lines);
}

/* Bytes that are not UTF-8 are refused. */
static void run_invalid(const struct tokenizer *t, const char *folder)
{
    json_t *lines = lines_read(folder, "invalid-utf8.jsonl"), *o;
    struct fsdpck_error err = { 0 };
    struct encoder *e;
    size_t i;
    if (encoder_new(t, &e, &err))
        fail(&err);
    json_array_foreach (lines, i, o) {
        const char *hex = json_string_value(json_object_get(o, "hex"));
        char bytes[64];
        size_t n = strlen(hex) / 2;
        unsigned byte;
        struct token_list list = { 0 };
        for (size_t j = 0; j < n && sscanf(hex + 2 * j, "%2x", &byte) == 1; j++)
            bytes[j] = (char)byte;
        struct fsdpck_error why = { 0 };
        check(tokenizer_encode(e, bytes, n, 0, &list, &why) == FSDPCK_ERR_FORMAT, "invalid UTF-8", i, hex);
        token_list_free(&list);
    }
    encoder_free(e);
    json_decref(lines);
}

int main(int argc, char **argv)
{
    char path[4096];
    struct fsdpck_error err = { 0 };
    struct tokenizer *t;
    if (argc < 3)
        return 2;
    snprintf(path, sizeof path, "%s/%s/tokenizer.json", argv[1], argv[2]);
    if (tokenizer_open(argc > 3 ? argv[3] : path, &t, &err))
        fail(&err);
    run_encode(t, argv[1], argv[2]);
    run_decode(t, argv[1], argv[2]);
    run_invalid(t, argv[1]);
    tokenizer_close(t);
    printf("%u checks, %u failed\n", nchecked, nfailed);
    return nfailed ? 1 : 0;
}
