/* SPDX-License-Identifier: Apache-2.0 */
/* The check of UTF-8, against jansson's. */
#include "base/utf8.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "draw.h"

/* By definition: every code point except surrogates has one encoding, the shortest. */
static void utf8_by_enumeration(void **state)
{
    (void)state;
    size_t nvalid = 0;
    for (uint32_t x = 0; x < 1u << 24; x += 1 + (uint32_t)draw(50)) {
        const unsigned char b[3] = { (unsigned char)(x >> 16), (unsigned char)(x >> 8), (unsigned char)x };
        json_t *theirs = json_stringn((const char *)b, 3);
        assert_int_equal(fsdpck_utf8_valid((const char *)b, 3), theirs != NULL);
        nvalid += theirs != NULL;
        json_decref(theirs);
    }
    assert_true(nvalid > 1000);
    for (int i = 0; i < 100000; i++) {
        char s[24];
        size_t n = 20 + draw(4), at = draw(16);
        memset(s, 'a', sizeof s);
        s[at] = (char)(0xF0 + draw(6));
        for (size_t k = 1; k < 4; k++)
            s[at + k] = (char)(0x80 + draw(draw(20) == 0 ? 128 : 64));
        json_t *theirs = json_stringn(s, n);
        assert_int_equal(fsdpck_utf8_valid(s, n), theirs != NULL);
        json_decref(theirs);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(utf8_by_enumeration),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
