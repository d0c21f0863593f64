/* SPDX-License-Identifier: Apache-2.0 */
/* Error messages: how they are filled in, truncated, escaped and mapped to exit codes. */
#include <fsdpck/error.h>

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static const char *formatted(const struct fsdpck_error *err)
{
    static char buf[2048];
    return fsdpck_error_format(err, buf, sizeof buf);
}

static void parts_are_left_out_where_empty(void **state)
{
    (void)state;
    struct fsdpck_error err = { 0 };
    assert_int_equal(fsdpck_error_set(&err, FSDPCK_ERR_FORMAT, NULL, "span %d bytes", 7), FSDPCK_ERR_FORMAT);
    assert_string_equal(formatted(&err), "span 7 bytes");
    fsdpck_error_tensor(&err, "w");
    assert_string_equal(formatted(&err), "tensor 'w': span 7 bytes");

    struct fsdpck_error at = { 0 };
    assert_int_equal(fsdpck_error_at(&at, FSDPCK_ERR_DAMAGED, "m.safetensors", 0, "bad"), FSDPCK_ERR_DAMAGED);
    assert_string_equal(formatted(&at), "m.safetensors@0: bad");
    fsdpck_error_tensor(&at, "a.b");
    assert_string_equal(formatted(&at), "m.safetensors@0: tensor 'a.b': bad");

    struct fsdpck_error set = { 0 };
    fsdpck_error_set(&set, FSDPCK_ERR_FORMAT, "f", "bad");
    assert_string_equal(formatted(&set), "f: bad");
}

static void first_failure_wins(void **state)
{
    (void)state;
    struct fsdpck_error err = { 0 };
    fsdpck_error_set(&err, FSDPCK_ERR_LIMIT, "first", "one");
    assert_int_equal(fsdpck_error_set(&err, FSDPCK_ERR_IO, "second", "two"), FSDPCK_ERR_LIMIT);
    assert_int_equal(fsdpck_error_at(&err, FSDPCK_ERR_IO, "second", 9, "two"), FSDPCK_ERR_LIMIT);
    assert_int_equal(fsdpck_error_sys(&err, EIO, "second", "cannot read"), FSDPCK_ERR_LIMIT);
    assert_int_equal(fsdpck_error_nomem(&err, 5), FSDPCK_ERR_LIMIT);
    assert_string_equal(formatted(&err), "first: one");
    assert_int_equal(err.sys_errno, 0);
    fsdpck_error_tensor(&err, "t1");
    fsdpck_error_tensor(&err, "t2");
    fsdpck_error_hint(&err, "try %s", "this");
    fsdpck_error_hint(&err, "or that");
    assert_string_equal(err.tensor, "t1");
    assert_string_equal(err.hint, "try this");
}

static void nothing_is_added_to_success(void **state)
{
    (void)state;
    struct fsdpck_error err = { 0 };
    fsdpck_error_tensor(&err, "t");
    fsdpck_error_hint(&err, "h");
    assert_string_equal(err.tensor, "");
    assert_string_equal(err.hint, "");
}

static void null_gives_the_code_back(void **state)
{
    (void)state;
    assert_int_equal(fsdpck_error_set(NULL, FSDPCK_ERR_FORMAT, "f", "x"), FSDPCK_ERR_FORMAT);
    assert_int_equal(fsdpck_error_at(NULL, FSDPCK_ERR_LIMIT, "f", 1, "x"), FSDPCK_ERR_LIMIT);
    assert_int_equal(fsdpck_error_sys(NULL, ENOENT, "f", "x"), FSDPCK_ERR_MISSING);
    assert_int_equal(fsdpck_error_nomem(NULL, 1), FSDPCK_ERR_NOMEM);
    fsdpck_error_tensor(NULL, "t");
    fsdpck_error_hint(NULL, "h");
}

static void system_errors(void **state)
{
    (void)state;
    struct fsdpck_error missing = { 0 }, nomem = { 0 }, full = { 0 }, odd = { 0 };
    assert_int_equal(fsdpck_error_sys(&missing, ENOENT, "a/b", "cannot open"), FSDPCK_ERR_MISSING);
    assert_string_equal(formatted(&missing), "a/b: cannot open: No such file or directory");
    assert_int_equal(missing.sys_errno, ENOENT);
    assert_int_equal(fsdpck_error_sys(&nomem, ENOMEM, NULL, "cannot map"), FSDPCK_ERR_NOMEM);
    assert_int_equal(fsdpck_error_sys(&full, ENOSPC, "f", "cannot write"), FSDPCK_ERR_IO);
    assert_string_equal(formatted(&full), "f: cannot write: No space left on device");
    assert_int_equal(fsdpck_error_sys(&odd, 99999, "f", "cannot x"), FSDPCK_ERR_IO);
    assert_string_equal(formatted(&odd), "f: cannot x: system error 99999");
}

static void one_line_whatever_the_names_hold(void **state)
{
    (void)state;
    struct fsdpck_error err = { 0 };
    fsdpck_error_at(&err, FSDPCK_ERR_FORMAT, "a\nb", 3, "x\r\t\x1b[0m\x7f\x01\xff é\xc2\x9b\xe2\x80\xae\xc3");
    fsdpck_error_tensor(&err, "t\n");
    assert_string_equal(formatted(&err),
                        "a\\nb@3: tensor 't\\n': x\\r\\t\\x1b[0m\\x7f\\x01\\xff é\\xc2\\x9b\\xe2\\x80\\xae\\xc3");
}

static void long_texts_are_cut(void **state)
{
    (void)state;
    char name[2000];
    memset(name, 'n', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    struct fsdpck_error err = { 0 };
    fsdpck_error_set(&err, FSDPCK_ERR_FORMAT, name, "%s", name);
    fsdpck_error_tensor(&err, name);
    fsdpck_error_hint(&err, "%s", name);
    assert_int_equal(strlen(err.file), sizeof err.file - 1);
    assert_string_equal(err.file + sizeof err.file - 5, "n...");
    assert_string_equal(err.tensor + sizeof err.tensor - 5, "n...");
    assert_string_equal(err.message + sizeof err.message - 5, "n...");
    assert_string_equal(err.hint + sizeof err.hint - 5, "n...");

    name[sizeof err.file - 1] = '\0'; /* just fits */
    struct fsdpck_error fits = { 0 };
    fsdpck_error_set(&fits, FSDPCK_ERR_FORMAT, name, "x");
    assert_string_equal(fits.file, name);
}

static void a_cut_splits_no_character(void **state)
{
    (void)state;
    char name[1200];
    for (size_t shift = 0; shift < 3; shift++) {
        memset(name, 'n', sizeof name);
        for (size_t i = shift; i + 3 < sizeof name; i += 3)
            memcpy(name + i, "\xe2\x82\xac", 3);
        name[sizeof name - 1] = '\0';
        struct fsdpck_error err = { 0 };
        fsdpck_error_set(&err, FSDPCK_ERR_FORMAT, name, "x");
        size_t kept = strlen(err.file) - 3;
        assert_string_equal(err.file + kept, "...");
        assert_int_equal((kept - shift) % 3, 0);
        assert_memory_equal(err.file, name, kept);
    }
}

static void small_buffers_are_respected(void **state)
{
    (void)state;
    struct fsdpck_error err = { 0 };
    fsdpck_error_at(&err, FSDPCK_ERR_FORMAT, "file", 77, "some\nmessage");
    const char *whole = "file@77: some\\nmessage";
    for (size_t nbytes = 0; nbytes <= strlen(whole) + 2; nbytes++) {
        char buf[64];
        memset(buf, '#', sizeof buf);
        assert_ptr_equal(fsdpck_error_format(&err, buf, nbytes), buf);
        assert_int_equal(buf[nbytes], '#');
        if (nbytes == 0)
            continue;
        assert_true(strlen(buf) < nbytes);
        if (nbytes > strlen(whole))
            assert_string_equal(buf, whole);
        else if (nbytes >= 4)
            assert_non_null(strstr(buf, "..."));
    }
}

static void exit_codes(void **state)
{
    (void)state;
    static const struct {
        int code, exit;
    } table[] = {
        { FSDPCK_OK, 0 },          { FSDPCK_ERR_USAGE, 2 },       { FSDPCK_ERR_EXISTS, 2 },
        { FSDPCK_ERR_FORMAT, 3 },  { FSDPCK_ERR_UNSUPPORTED, 3 }, { FSDPCK_ERR_MISSING, 3 },
        { FSDPCK_ERR_DAMAGED, 3 }, { FSDPCK_ERR_LIMIT, 3 },       { FSDPCK_ERR_IO, 4 },
        { FSDPCK_ERR_NOMEM, 4 },   { FSDPCK_ERR_BUSY, 4 },        { FSDPCK_ERR_STOPPED, 4 },
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        assert_int_equal(fsdpck_error_exit_code(table[i].code), table[i].exit);
}

static void distances(void **state)
{
    (void)state;
    static const struct {
        const char *typed, *known;
        unsigned want;
    } table[] = {
        { "", "", 0 },
        { "ranks", "ranks", 0 },
        { "", "ranks", 5 },
        { "ranks", "", 5 },
        { "rank", "ranks", 1 },
        { "r", "ranks", 1 },
        { "rnaks", "ranks", 1 },
        { "rankss", "ranks", 1 },
        { "tanks", "ranks", 1 },
        { "snark", "ranks", 4 },
        { "ca", "abc", 3 },
        { "aab", "aba", 1 },
        { "lr", "learning_rate", 11 },
        { "model.layers.10.self_attn.q_proj.lora_A.default.weigth",
          "model.layers.10.self_attn.q_proj.lora_A.default.weight", 1 },
    };
    char a[100] = { 0 }, b[200] = { 0 };
    memset(a, 'a', sizeof a - 1);
    memset(b, 'b', sizeof b - 1);
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        assert_int_equal(fsdpck_name_distance(table[i].typed, table[i].known), table[i].want);
    assert_int_equal(fsdpck_name_distance(a, b), 64);
    assert_int_equal(fsdpck_name_distance(b, a), 64);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_are_left_out_where_empty),
        cmocka_unit_test(first_failure_wins),
        cmocka_unit_test(nothing_is_added_to_success),
        cmocka_unit_test(null_gives_the_code_back),
        cmocka_unit_test(system_errors),
        cmocka_unit_test(one_line_whatever_the_names_hold),
        cmocka_unit_test(long_texts_are_cut),
        cmocka_unit_test(a_cut_splits_no_character),
        cmocka_unit_test(small_buffers_are_respected),
        cmocka_unit_test(exit_codes),
        cmocka_unit_test(distances),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
