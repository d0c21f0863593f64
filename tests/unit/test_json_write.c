/* SPDX-License-Identifier: Apache-2.0 */
/* The JSON writer: the form of its output, which jansson and our own reader read back. */
#include "base/json_read.h"
#include "base/json_write.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "draw.h"

static void what_is_written_comes_back(void **state)
{
    (void)state;
    for (int i = 0; i < 500; i++) {
        char s[40] = "";
        for (size_t n = (size_t)draw(30), k = 0; k < n; k++)
            s[k] = (char)(1 + draw(127));
        memcpy(s + strlen(s), "\xc3\xa9", 3);
        struct fsdpck_text t = { 0 };
        struct fsdpck_json j;
        struct fsdpck_error err = { 0 };
        fsdpck_text_json(&t, s);
        json_t *theirs = json_loadb(t.data, t.nbytes, JSON_DECODE_ANY, NULL);
        assert_string_equal(json_string_value(theirs), s);
        json_decref(theirs);
        fsdpck_json_begin(&j, "f", 0, t.data, t.nbytes, &err);
        const char *ours = fsdpck_json_string(&j);
        assert_non_null(ours);
        assert_string_equal(ours, s);
        fsdpck_json_end(&j);
        assert_false(j.failed);
        fsdpck_json_free(&j);
        fsdpck_text_free(&t);
    }
}

static void writer_forms(void **state)
{
    (void)state;
    struct fsdpck_text t = { 0 };
    const struct fsdpck_key path[] = { { "optim", 0 }, { NULL, 3 }, { "a\"\n\x01", 0 } };
    const uint64_t numbers[] = { 0, 7, UINT64_MAX };
    const uint8_t bytes[] = { 0, 255, 0x1a };
    fsdpck_text_json_path(&t, path, 3);
    fsdpck_text_printf(&t, " %d ", -5);
    fsdpck_text_json_u64s(&t, numbers, 3);
    fsdpck_text_json_u64s(&t, NULL, 0);
    fsdpck_text_hex(&t, bytes, 3);
    fsdpck_text_hex(&t, NULL, 0);
    const char *want = "[\"optim\",3,\"a\\\"\\n\\u0001\"] -5 [0,7,18446744073709551615][]\"00ff1a\"\"\"";
    assert_string_equal(t.data, want);
    assert_int_equal(t.nbytes, strlen(want));
    for (int i = 0; i < 1000; i++)
        fsdpck_text_printf(&t, "%d", i);
    assert_int_equal(strlen(t.data), t.nbytes);
    assert_int_equal(fsdpck_text_check(&t, NULL), 0);
    fsdpck_text_free(&t);

    uint8_t back[3];
    assert_true(fsdpck_hex_parse("00ff1a", back, 3));
    assert_memory_equal(back, bytes, 3);
    assert_false(fsdpck_hex_parse("00FF1a", back, 3) || fsdpck_hex_parse("00ff1", back, 3) ||
                 fsdpck_hex_parse("00ff1g", back, 3));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_written_comes_back),
        cmocka_unit_test(writer_forms),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
