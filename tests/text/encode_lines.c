/* SPDX-License-Identifier: Apache-2.0 */
/* Server for the interop checks: encode_lines TOKENIZER.json [--regex] reads JSON strings, one per line, and writes for
 * each a line of JSON: the ids of the text, their decoding, and their decoding without special tokens. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <train/tokenizer.h>

static int fail(const struct fsdpck_error *err)
{
    char line[2048];
    fprintf(stderr, "%s\n", fsdpck_error_format(err, line, sizeof line));
    return 1;
}

static int put_decoded(const struct tokenizer *t, const struct token_list *list, bool skip, json_t *out,
                       struct fsdpck_error *err)
{
    char *text;
    size_t n;
    int rc = tokenizer_decode(t, list->ids, list->count, skip, &text, &n, err);
    if (!rc)
        json_array_append_new(out, json_stringn_nocheck(text, n));
    free(text);
    return rc;
}

static int run_line(const struct tokenizer *t, struct encoder *e, json_t *text, struct fsdpck_error *err)
{
    struct token_list list = { 0 };
    json_t *out = json_array(), *ids = json_array();
    int rc = tokenizer_encode(e, json_string_value(text), json_string_length(text), TOKENIZER_SPECIAL, &list, err);
    for (size_t i = 0; i < list.count; i++)
        json_array_append_new(ids, json_integer(list.ids[i]));
    json_array_append_new(out, ids);
    if (!rc)
        rc = put_decoded(t, &list, false, out, err);
    if (!rc)
        rc = put_decoded(t, &list, true, out, err);
    json_dumpf(out, stdout, JSON_COMPACT | JSON_ENSURE_ASCII);
    putchar('\n');
    json_decref(out);
    token_list_free(&list);
    return rc;
}

int main(int argc, char **argv)
{
    struct fsdpck_error err = { 0 };
    struct tokenizer *t;
    struct encoder *e;
    char *line = NULL;
    size_t capacity = 0;
    ssize_t n;
    if (argc != 2 || tokenizer_open(argv[1], &t, &err) || encoder_new(t, &e, &err))
        return fail(&err);
    int rc = 0;
    while (!rc && (n = getline(&line, &capacity, stdin)) > 0) {
        json_t *text = json_loadb(line, (size_t)n, JSON_ALLOW_NUL | JSON_DECODE_ANY, NULL);
        rc =
            text ? run_line(t, e, text, &err) : fsdpck_error_set(&err, FSDPCK_ERR_FORMAT, "stdin", "a line is no JSON");
        json_decref(text);
    }
    free(line);
    encoder_free(e);
    tokenizer_close(t);
    return rc ? fail(&err) : 0;
}
