/* SPDX-License-Identifier: Apache-2.0 */
/* Chat templates against the output of transformers: test_chat GOLDENS STYLE [FOLDER]. Text, ids, loss mask up to the
 * end token, and the errors of templates. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <train/chat.h>

#include "lines.h"

static unsigned nchecked, nfailed;

static void check(bool ok, const char *what, size_t line, const char *text)
{
    nchecked++;
    if (!ok && nfailed++ < 20)
        printf("line %zu: %s: %.300s\n", line + 1, what, text ? text : "");
}

static void fail(const struct fsdpck_error *err)
{
    char line[2048];
    printf("%s\n", fsdpck_error_format(err, line, sizeof line));
    exit(1);
}

static void check_text(struct chat_coder *w, json_t *o, size_t line)
{
    struct fsdpck_error err = { 0 };
    char *text;
    size_t n;
    json_t *want = json_object_get(o, "text");
    const char *error = json_string_value(json_object_get(o, "error"));
    int rc = chat_render(w, json_object_get(o, "messages"), NULL,
                         json_is_true(json_object_get(o, "add_generation_prompt")), &text, &n, &err);
    if (error)
        check(rc == FSDPCK_ERR_FORMAT && strstr(err.message, error), "the template's error", line, err.message);
    else
        check(rc == 0 && n == json_string_length(want) && memcmp(text, json_string_value(want), n) == 0, "text", line,
              rc ? err.message : text);
    free(text);
}

static bool same(json_t *list, const uint32_t *ids, const uint8_t *mask, size_t count)
{
    bool equal = json_array_size(list) == count;
    for (size_t i = 0; equal && i < count; i++)
        equal = json_integer_value(json_array_get(list, i)) == (json_int_t)(ids ? ids[i] : mask[i]);
    return equal;
}

static void check_tokens(struct chat_coder *w, json_t *o, size_t line)
{
    struct fsdpck_error err = { 0 };
    struct chat_tokens got;
    if (json_object_get(o, "error") || json_is_true(json_object_get(o, "add_generation_prompt")))
        return;
    if (chat_encode(w, o, CHAT_LOSS_ASSISTANT, &got, &err))
        fail(&err);
    check(same(json_object_get(o, "ids"), got.ids, NULL, got.count), "ids", line, NULL);
    check(same(json_object_get(o, "mask_to_end"), NULL, got.supervised, got.count), "mask", line, NULL);
}

int main(int argc, char **argv)
{
    char folder[4096], name[100];
    struct fsdpck_error err = { 0 };
    struct chat *c;
    struct chat_coder *w;
    size_t i;
    json_t *o;
    if (argc < 3)
        return 2;
    snprintf(folder, sizeof folder, "%s/%s", argv[1], argv[2]);
    snprintf(name, sizeof name, "%s.chat.jsonl", argv[2]);
    if (chat_open(argc > 3 ? argv[3] : folder, &c, &err) || chat_coder_new(c, &w, &err))
        fail(&err);
    json_t *lines = lines_read(argv[1], name);
    json_array_foreach (lines, i, o) {
        if (json_array_size(json_object_get(o, "messages")) ==
            0) /* the generator of the goldens omits the template; here it is refused */
            continue;
        check_text(w, o, i);
        check_tokens(w, o, i);
    }
    json_decref(lines);
    chat_coder_free(w);
    chat_close(c);
    printf("%u checks, %u failed\n", nchecked, nfailed);
    return nfailed ? 1 : 0;
}
