/* SPDX-License-Identifier: Apache-2.0 */
/* tokenizer.json, the byte 0xff, a text. Properties: ids belong to the tokenizer; tokens begin in order, inside the
 * text; the cache of words gives the same as merging; text that is not UTF-8 is refused; every list of ids can be
 * decoded. */
#include <string.h>
#include <train/tokenizer.h>

#include "fuzz.h"

static void check_text(const struct tokenizer *t, const char *text, size_t nbytes)
{
    struct fsdpck_error err = { 0 };
    struct token_list list = { 0 };
    struct encoder *e;
    char *decoded;
    size_t decoded_nbytes;
    FUZZ_CHECK(encoder_new(t, &e, &err) == 0);
    int rc = tokenizer_encode(e, text, nbytes, TOKENIZER_SPECIAL | TOKENIZER_BEGINS, &list, &err);
    FUZZ_CHECK(rc == err.code);
    size_t count = list.count;
    for (size_t i = 0; i < count; i++) {
        FUZZ_CHECK(list.ids[i] < tokenizer_nvocab(t) && tokenizer_token(t, list.ids[i]));
        FUZZ_CHECK(list.begins[i] <= nbytes);
    }
    if (rc == 0) {
        FUZZ_CHECK(tokenizer_encode(e, text, nbytes, TOKENIZER_SPECIAL, &list, &err) == 0);
        FUZZ_CHECK(list.count == 2 * count &&
                   (count == 0 || memcmp(list.ids, list.ids + count, count * sizeof *list.ids) == 0));
        FUZZ_CHECK(tokenizer_decode(t, list.ids, count, true, &decoded, &decoded_nbytes, &err) == 0);
        FUZZ_CHECK(decoded[decoded_nbytes] == '\0');
        free(decoded);
    }
    token_list_free(&list);
    encoder_free(e);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes)
{
    struct fsdpck_error err = { 0 };
    struct tokenizer *t;
    const uint8_t *end = memchr(data, 0xff, nbytes);
    size_t json_nbytes = end ? (size_t)(end - data) : nbytes;
    char *json = (char *)fuzz_copy(data, json_nbytes);
    int rc = tokenizer_parse("tokenizer.json", json, json_nbytes, &t, &err);
    FUZZ_CHECK(rc == err.code && (rc == 0) == (t != NULL));
    if (rc == 0) {
        size_t text_nbytes = end ? nbytes - json_nbytes - 1 : 0;
        char *text = (char *)fuzz_copy(end ? end + 1 : data, text_nbytes);
        check_text(t, text, text_nbytes);
        free(text);
    }
    tokenizer_close(t);
    free(json);
    return 0;
}
