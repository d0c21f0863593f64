/* SPDX-License-Identifier: Apache-2.0 */
/* A template, the byte 0xff, the context as JSON. Properties: rendering ends; an error has a message; spans lie in
 * order inside the text; a second run gives the same. */
#include <jansson.h>
#include <string.h>

#include "fuzz.h"
#include "text/jinja/jinja.h"

static void check_render(const struct jinja *j, json_t *context)
{
    struct fsdpck_error err = { 0 }, again_err = { 0 };
    struct jinja_output out = { 0 }, again = { 0 };
    int rc = jinja_render(j, context, 86400, &out, &err);
    FUZZ_CHECK(rc == err.code);
    size_t at = 0;
    for (size_t i = 0; rc == 0 && i < out.nspans; i++) {
        FUZZ_CHECK(out.spans[i].begin <= out.spans[i].end && out.spans[i].end <= out.nbytes);
        FUZZ_CHECK(out.spans[i].end >= at); /* spans may nest */
        at = out.spans[i].end;
    }
    FUZZ_CHECK(jinja_render(j, context, 86400, &again, &again_err) == rc);
    if (rc == 0)
        FUZZ_CHECK(again.nbytes == out.nbytes && memcmp(again.text, out.text, out.nbytes) == 0);
    jinja_output_free(&out);
    jinja_output_free(&again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes)
{
    struct fsdpck_error err = { 0 };
    struct jinja *j;
    const uint8_t *end = memchr(data, 0xff, nbytes);
    size_t n = end ? (size_t)(end - data) : nbytes;
    char *source = (char *)fuzz_copy(data, n);
    json_t *context = end ? json_loadb((const char *)end + 1, nbytes - n - 1, JSON_ALLOW_NUL, NULL) : NULL;
    int rc = jinja_parse("template", source, n, &j, &err);
    FUZZ_CHECK(rc == err.code && (rc == 0) == (j != NULL));
    if (rc == 0)
        check_render(j, context);
    jinja_free(j);
    json_decref(context);
    free(source);
    return 0;
}
