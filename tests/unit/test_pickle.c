/* SPDX-License-Identifier: Apache-2.0 */
/* The closed pickle reader: every opcode, every refusal, caps, and a real .metadata truncated and damaged at every
 * byte. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "torch/dcp/dcp.h"
#include "base/ioutil.h"
#include "torch/pickle/pickle.h"

static const char *const allowed[] = { "torch Size", "collections OrderedDict", "dtypes *",
                                       "below.* *",  "builtins getattr",        NULL };

#define BYTES(text) text, sizeof(text) - 1

static struct fsdpck_pickle *parse(const char *bytes, size_t nbytes)
{
    struct fsdpck_error err = { 0 };
    struct fsdpck_pickle *p = NULL;
    char text[1200];
    if (fsdpck_pickle_parse("f", 0, bytes, nbytes, allowed, &p, &err))
        fail_msg("%s", fsdpck_error_format(&err, text, sizeof text));
    assert_int_equal(fsdpck_pickle_used(p), nbytes);
    return p;
}

/* The bytes must be refused with this code, offset and message. */
static void refuse(const char *bytes, size_t nbytes, int code, uint64_t offset, const char *words)
{
    struct fsdpck_error err = { 0 };
    struct fsdpck_pickle *p = NULL;
    assert_int_equal(fsdpck_pickle_parse("f", 100, bytes, nbytes, allowed, &p, &err), code);
    assert_null(p);
    assert_int_equal(err.offset, 100 + offset);
    if (!strstr(err.message, words))
        fail_msg("'%s' does not say '%s'", err.message, words);
}

static int64_t int_of(const char *bytes, size_t nbytes)
{
    struct fsdpck_pickle *p = parse(bytes, nbytes);
    int64_t v = -999;
    assert_true(fsdpck_pickle_int(p, fsdpck_pickle_root(p), &v));
    fsdpck_pickle_free(p);
    return v;
}

static void test_integers(void **state)
{
    (void)state;
    assert_int_equal(int_of(BYTES("\x80\x02K\xff.")), 255);
    assert_int_equal(int_of(BYTES("\x80\x02M\xff\xff.")), 65535);
    assert_int_equal(int_of(BYTES("\x80\x02J\xff\xff\xff\xff.")), -1);
    assert_int_equal(int_of(BYTES("\x80\x02J\xff\xff\xff\x7f.")), INT32_MAX);
    assert_int_equal(int_of(BYTES("\x80\x02\x8a\x00.")), 0);
    assert_int_equal(int_of(BYTES("\x80\x02\x8a\x01\x80.")), -128);
    assert_int_equal(int_of(BYTES("\x80\x02\x8a\x05\x00\x00\x00\x00\x01.")), INT64_C(1) << 32);
    assert_int_equal(int_of(BYTES("\x80\x02\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f.")), INT64_MAX);
    assert_int_equal(int_of(BYTES("\x80\x02\x8b\x02\x00\x00\x00\x00\x01.")), 256);
    assert_int_equal(int_of(BYTES("\x80\x02\x88.")), 1);
    assert_int_equal(int_of(BYTES("\x80\x02\x89.")), 0);
    struct fsdpck_pickle *p = parse(BYTES("\x80\x02\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x00\x01."));
    size_t nbytes;
    int64_t v;
    assert_int_equal(fsdpck_pickle_type(p, fsdpck_pickle_root(p)), FSDPCK_PICKLE_BIGINT);
    assert_false(fsdpck_pickle_int(p, fsdpck_pickle_root(p), &v));
    assert_non_null(fsdpck_pickle_text(p, fsdpck_pickle_root(p), &nbytes));
    assert_int_equal(nbytes, 9);
    fsdpck_pickle_free(p);
}

static void test_scalars(void **state)
{
    (void)state;
    /* A tuple of None, 1.5, two kinds of text, bytes, and Python 2 strings (one of them not text). */
    struct fsdpck_pickle
        *p = parse(BYTES(
            "\x80\x05\x95\x2b\x00\x00\x00\x00\x00\x00\x00(NG\x3f\xf8\x00\x00\x00\x00\x00\x00X\x02\x00\x00\x00\xc3\xa9"
            "\x8c\x03"
            "a\x00"
            "bC\x01\xff"
            "B\x01\x00\x00\x00zU\x01yT\x01\x00\x00\x00\xfft.")),
        *q = p;
    fsdpck_node root = fsdpck_pickle_root(p);
    double d;
    size_t n;
    assert_int_equal(fsdpck_pickle_count(p, root), 8);
    assert_int_equal(fsdpck_pickle_type(p, fsdpck_pickle_child(p, root, 0)), FSDPCK_PICKLE_NONE);
    assert_true(fsdpck_pickle_float(p, fsdpck_pickle_child(p, root, 1), &d));
    assert_true(d == 1.5);
    assert_string_equal(fsdpck_pickle_text(p, fsdpck_pickle_child(p, root, 2), &n), "\xc3\xa9");
    assert_memory_equal(fsdpck_pickle_text(p, fsdpck_pickle_child(p, root, 3), &n), "a\0b", 4);
    assert_int_equal(n, 3);
    assert_int_equal(fsdpck_pickle_type(p, fsdpck_pickle_child(p, root, 4)), FSDPCK_PICKLE_BYTES);
    assert_int_equal(fsdpck_pickle_type(p, fsdpck_pickle_child(p, root, 6)), FSDPCK_PICKLE_STRING);
    assert_int_equal(fsdpck_pickle_type(p, fsdpck_pickle_child(p, root, 7)), FSDPCK_PICKLE_BYTES);
    assert_int_equal(fsdpck_pickle_child(p, root, 8), FSDPCK_NO_NODE);
    assert_int_equal(fsdpck_pickle_type(p, FSDPCK_NO_NODE), FSDPCK_PICKLE_NONE);
    assert_null(fsdpck_pickle_text(p, root, NULL));
    fsdpck_pickle_free(q);
}

static int64_t item(const struct fsdpck_pickle *p, fsdpck_node n, size_t i)
{
    int64_t v = -1;
    fsdpck_pickle_int(p, fsdpck_pickle_child(p, n, i), &v);
    return v;
}

static void test_containers(void **state)
{
    (void)state;
    /* [(), (1,), (1, 2), (1, 2, 3), (4, 5, 6, 7), {8, 9}], appended singly and together. */
    struct fsdpck_pickle *p =
        parse(BYTES("\x80\x02])aK\x01\x85"
                    "a(K\x01K\x02\x86K\x01K\x02K\x03\x87(K\x04K\x05K\x06K\x07te\x8f(K\x08K\x09\x90"
                    "a."));
    fsdpck_node root = fsdpck_pickle_root(p);
    const size_t counts[] = { 0, 1, 2, 3, 4, 2 };
    assert_int_equal(fsdpck_pickle_type(p, root), FSDPCK_PICKLE_LIST);
    assert_int_equal(fsdpck_pickle_count(p, root), 6);
    for (size_t i = 0; i < 6; i++) {
        fsdpck_node c = fsdpck_pickle_child(p, root, i);
        assert_int_equal(fsdpck_pickle_count(p, c), counts[i]);
        assert_int_equal(fsdpck_pickle_type(p, c), i == 5 ? FSDPCK_PICKLE_SET : FSDPCK_PICKLE_TUPLE);
        for (size_t k = 0; k < counts[i]; k++)
            assert_int_equal(item(p, c, k), (i < 4 ? 1 : i == 4 ? 4 : 8) + k);
    }
    fsdpck_pickle_free(p);
}

static void test_list_grows(void **state)
{
    (void)state;
    char bytes[8192] = "\x80\x02]";
    size_t n = 3;
    for (int i = 0; i < 1000; i++) {
        bytes[n++] = 'M';
        bytes[n++] = (char)i;
        bytes[n++] = (char)(i >> 8);
        bytes[n++] = 'a';
    }
    bytes[n++] = '.';
    struct fsdpck_pickle *p = parse(bytes, n);
    assert_int_equal(fsdpck_pickle_count(p, fsdpck_pickle_root(p)), 1000);
    for (size_t i = 0; i < 1000; i++)
        assert_int_equal(item(p, fsdpck_pickle_root(p), i), i);
    fsdpck_pickle_free(p);
}

static void test_dicts(void **state)
{
    (void)state;
    struct fsdpck_pickle *p = parse(BYTES("\x80\x02}(U\x01"
                                          "aK\x01U\x01"
                                          "bK\x02uU\x01"
                                          "aK\x03s."));
    int64_t v;
    assert_true(fsdpck_pickle_int(p, fsdpck_pickle_get(p, fsdpck_pickle_root(p), "a"), &v));
    assert_int_equal(v, 3); /* the last one wins */
    assert_true(fsdpck_pickle_int(p, fsdpck_pickle_get(p, fsdpck_pickle_root(p), "b"), &v));
    assert_int_equal(v, 2);
    assert_int_equal(fsdpck_pickle_get(p, fsdpck_pickle_root(p), "c"), FSDPCK_NO_NODE);
    fsdpck_pickle_free(p);
    /* OrderedDict() with entries and attributes, like a state dict. */
    p = parse(BYTES("\x80\x02"
                    "ccollections\nOrderedDict\n)R(U\x01"
                    "aK\x07u}U\x09_metadataNsb."));
    assert_int_equal(fsdpck_pickle_type(p, fsdpck_pickle_root(p)), FSDPCK_PICKLE_DICT);
    assert_true(fsdpck_pickle_int(p, fsdpck_pickle_get(p, fsdpck_pickle_root(p), "a"), &v));
    assert_int_equal(v, 7);
    fsdpck_pickle_free(p);
}

static void test_objects(void **state)
{
    (void)state;
    /* (Size((1,)), Size.__new__() with state 5, dtypes.f32 twice, persistent 'x') */
    struct fsdpck_pickle *p =
        parse(BYTES("\x80\x04(\x8c\x05torch\x94\x8c\x04Size\x94\x93\x94K\x01\x85\x85Rh\x02)\x81K\x05"
                    "bcdtypes\nf32\ncdtypes\nf32\nU\x01xQt."));
    fsdpck_node root = fsdpck_pickle_root(p), size = fsdpck_pickle_child(p, root, 0),
                object = fsdpck_pickle_child(p, root, 1);
    int64_t v;
    assert_int_equal(fsdpck_pickle_type(p, size), FSDPCK_PICKLE_CALL);
    assert_true(fsdpck_pickle_made_by(p, size, "torch Size"));
    assert_int_equal(fsdpck_pickle_state(p, size), FSDPCK_NO_NODE);
    assert_int_equal(item(p, fsdpck_pickle_child(p, fsdpck_pickle_child(p, size, 1), 0), 0), 1);
    assert_int_equal(fsdpck_pickle_type(p, object), FSDPCK_PICKLE_OBJECT);
    assert_true(fsdpck_pickle_int(p, fsdpck_pickle_state(p, object), &v));
    assert_int_equal(v, 5);
    assert_true(fsdpck_pickle_is(p, fsdpck_pickle_child(p, root, 3), "dtypes f32"));
    assert_int_equal(fsdpck_pickle_type(p, fsdpck_pickle_child(p, root, 4)), FSDPCK_PICKLE_PERSISTENT);
    assert_string_equal(fsdpck_pickle_text(p, fsdpck_pickle_child(p, fsdpck_pickle_child(p, root, 4), 0), NULL), "x");
    fsdpck_pickle_free(p);
}

static void test_memo(void **state)
{
    (void)state;
    struct fsdpck_pickle *p =
        parse(BYTES("\x80\x04K\x05q\x03K\x06r\x04\x00\x00\x00\x86\x94h\x03j\x04\x00\x00\x00h\x02\x87\x86."));
    fsdpck_node root = fsdpck_pickle_child(p, fsdpck_pickle_root(p), 1);
    assert_int_equal(item(p, root, 0), 5);
    assert_int_equal(item(p, root, 1), 6);
    assert_int_equal(fsdpck_pickle_count(p, fsdpck_pickle_child(p, root, 2)), 2); /* MEMOIZE counts puts: number 2 */
    fsdpck_pickle_free(p);
}

#define GETATTR \
    "\x80\x02" \
    "cbuiltins\ngetattr\n"

/* A member of an enum, as Python up to 3.11.3 writes it; any other use of getattr is refused. */
static void test_getattr(void **state)
{
    (void)state;
    struct fsdpck_pickle *p = parse(BYTES(GETATTR "ctorch\nSize\nU\x03"
                                                  "ABC\x86R."));
    assert_true(fsdpck_pickle_made_by(p, fsdpck_pickle_root(p), "builtins getattr"));
    fsdpck_pickle_free(p);
    refuse(BYTES(GETATTR "ctorch\nSize\nU\x03"
                         "_BC\x86R."),
           FSDPCK_ERR_UNSUPPORTED, 38, "no member of an enum");
    refuse(BYTES(GETATTR "ctorch\nSize\nU\x03"
                         "A.C\x86R."),
           FSDPCK_ERR_UNSUPPORTED, 38, "no member of an enum");
    refuse(BYTES(GETATTR "ctorch\nSize\nK\x03\x86R."), FSDPCK_ERR_UNSUPPORTED, 35, "no member of an enum");
    refuse(BYTES(GETATTR "U\x03"
                         "ABCU\x03"
                         "ABC\x86R."),
           FSDPCK_ERR_UNSUPPORTED, 31, "no member of an enum");
    refuse(BYTES(GETATTR "ctorch\nSize\n\x85R."), FSDPCK_ERR_UNSUPPORTED, 33, "no member of an enum");
    refuse(BYTES(GETATTR "ctorch\nSize\nU\x03"
                         "ABC\x86R)R."),
           FSDPCK_ERR_FORMAT, 40, "REDUCE wants a name");
}

/* "below.* *": modules below that one, plain names, and nothing that only begins so. */
static void test_modules_below(void **state)
{
    (void)state;
    fsdpck_pickle_free(parse(BYTES("\x80\x02"
                                   "cbelow.a.b\nC\n.")));
    refuse(BYTES("\x80\x02"
                 "cbelow\nC\n."),
           FSDPCK_ERR_UNSUPPORTED, 2, "'below.C'");
    refuse(BYTES("\x80\x02"
                 "cbelows.a\nC\n."),
           FSDPCK_ERR_UNSUPPORTED, 2, "'belows.a.C'");
    refuse(BYTES("\x80\x02"
                 "cbelow.a\nos.C\n."),
           FSDPCK_ERR_UNSUPPORTED, 2, "'below.a.os.C'");
}

static void test_refusals(void **state)
{
    (void)state;
    refuse(BYTES("\x80\x02(i"), FSDPCK_ERR_UNSUPPORTED, 3, "opcode 0x69 ('i' INST) has no place here");
    refuse(BYTES("\x80\x02\x92"), FSDPCK_ERR_UNSUPPORTED, 2, "opcode 0x92 (NEWOBJ_EX) has no place here");
    refuse(BYTES("\x80\x02\xff"), FSDPCK_ERR_UNSUPPORTED, 2, "opcode 0xff has no place here");
    refuse(BYTES("\x80\x02~"), FSDPCK_ERR_UNSUPPORTED, 2, "opcode 0x7e ('~') has no place here");
    refuse(BYTES("\x80\x02"
                 "cos\nsystem\n"),
           FSDPCK_ERR_UNSUPPORTED, 2, "'os.system'");
    refuse(BYTES("\x80\x04\x8c\x05posix\x8c\x06system\x93"), FSDPCK_ERR_UNSUPPORTED, 17, "'posix.system'");
    refuse(BYTES("\x80\x04\x8c\x06"
                 "dtypes\x8c\x05"
                 "a.f32\x93"),
           FSDPCK_ERR_UNSUPPORTED, 17, "'dtypes.a.f32'");
    refuse(BYTES("\x80\x02"
                 "ctorch Si\nze\n"),
           FSDPCK_ERR_FORMAT, 2, "is not the name of a Python object");
    refuse(BYTES("\x80\x01."), FSDPCK_ERR_UNSUPPORTED, 0, "pickle protocol 1");
    refuse(BYTES("\x80\x06."), FSDPCK_ERR_UNSUPPORTED, 0, "pickle protocol 6");
    refuse(BYTES("(lp0\n."), FSDPCK_ERR_FORMAT, 0, "not a pickle of protocol 2");
    refuse(BYTES(""), FSDPCK_ERR_FORMAT, 0, "not a pickle");
    refuse(BYTES("\x80\x02X\x01\x00\x00\x00\xff."), FSDPCK_ERR_FORMAT, 2, "not valid UTF-8");
    refuse(BYTES("\x80\x02X\xff\xff\xff\xff"
                 "a"),
           FSDPCK_ERR_FORMAT, 2, "4294967295 bytes wanted, 1 left");
    refuse(BYTES("\x80\x02\x8b\xff\xff\xff\xff."), FSDPCK_ERR_FORMAT, 2, "bytes wanted");
    refuse(BYTES("\x80\x04\x95\x00\x00\x00\x00\x00\x00\x00\x01N."), FSDPCK_ERR_FORMAT, 2, "a frame of");
    refuse(BYTES("\x80\x02K\x01\x86."), FSDPCK_ERR_FORMAT, 4, "TUPLE2 wants 2 values, there are 1");
    refuse(BYTES("\x80\x02K\x01(\x85."), FSDPCK_ERR_FORMAT, 5, "TUPLE1 wants 1 values, there are 0");
    refuse(BYTES("\x80\x02t."), FSDPCK_ERR_FORMAT, 2, "TUPLE without a MARK");
    refuse(BYTES("\x80\x02(K\x01K\x02t(."), FSDPCK_ERR_FORMAT, 9, "1 values and 1 marks");
    refuse(BYTES("\x80\x02NN."), FSDPCK_ERR_FORMAT, 4, "2 values");
    refuse(BYTES("\x80\x02}(K\x01u."), FSDPCK_ERR_FORMAT, 6, "a key that has no value");
    refuse(BYTES("\x80\x02}K\x01"
                 "a."),
           FSDPCK_ERR_FORMAT, 5, "no list");
    refuse(BYTES("\x80\x02)K\x01K\x01s."), FSDPCK_ERR_FORMAT, 7, "no dict");
    refuse(BYTES("\x80\x02K\x01)R."), FSDPCK_ERR_FORMAT, 5, "REDUCE wants a name and a tuple");
    refuse(BYTES("\x80\x02]Nb."), FSDPCK_ERR_FORMAT, 4, "no object");
    refuse(BYTES("\x80\x02h\x00."), FSDPCK_ERR_FORMAT, 2, "was never put");
    refuse(BYTES("\x80\x02Nr\xff\xff\xff\xff."), FSDPCK_ERR_LIMIT, 3, "memo number 4294967295");
    refuse(BYTES("\x80\x02q\x00."), FSDPCK_ERR_FORMAT, 2, "BINPUT wants 1");
    refuse(BYTES("\x80\x02K\x01"), FSDPCK_ERR_FORMAT, 4, "ends without STOP");
}

static void test_cycles(void **state)
{
    (void)state;
    refuse(BYTES("\x80\x02]q\x00h\x00"
                 "a."),
           FSDPCK_ERR_FORMAT, 7, "put into itself");
    refuse(BYTES("\x80\x02}q\x00U\x01x]h\x00"
                 "as."),
           FSDPCK_ERR_FORMAT, 12, "into itself");
    refuse(BYTES("\x80\x02]q\x00h\x00\x85q\x01h\x00h\x01"
                 "a."),
           FSDPCK_ERR_FORMAT, 14, "into itself");
    refuse(BYTES("\x80\x02"
                 "ctorch\nSize\n)\x81q\x00h\x00\x85"
                 "b."),
           FSDPCK_ERR_FORMAT, 21, "into itself");
    refuse(BYTES("\x80\x02"
                 "ctorch\nSize\n)\x81NbNb."),
           FSDPCK_ERR_FORMAT, 19, "twice");
}

static void test_depth(void **state)
{
    (void)state;
    char *bytes = malloc(2000000);
    size_t n = 0;
    memcpy(bytes, "\x80\x02)", 3);
    for (n = 3; n < 3 + 1000; n++)
        bytes[n] = '\x85';
    bytes[n] = '.';
    fsdpck_pickle_free(parse(bytes, n + 1)); /* 1000 levels above () */
    bytes[n++] = '\x85';
    bytes[n] = '.';
    refuse(bytes, n + 1, FSDPCK_ERR_LIMIT, 1003, "1000 deep");
    /* a million open lists and marks only use memory */
    memset(bytes + 2, '(', 1000000);
    bytes[1000002] = '.';
    refuse(bytes, 1000003, FSDPCK_ERR_FORMAT, 1000002, "1000000 marks");
    free(bytes);
}

static void read_fixture(const char *name, char **data, uint64_t *nbytes)
{
    struct fsdpck_error err = { 0 };
    char path[1024];
    const char *root = getenv("FSDPCK_FIXTURES");
    snprintf(path, sizeof path, "%s/dcp/%s/ckpt/.metadata", root ? root : "fixtures", name);
    if (fsdpck_read_file(&fsdpck_io_posix, path, 1 << 20, data, nbytes, &err))
        fail_msg("%s: %s", path, err.message);
}

/* Truncated at any length it is refused; with any byte changed it is read or refused, without a crash. */
static void test_real(void **state)
{
    (void)state;
    char *data;
    uint64_t nbytes;
    read_fixture("torch-2.15", &data, &nbytes);
    for (uint64_t n = 0; n <= nbytes; n++) {
        struct fsdpck_error err = { 0 };
        struct fsdpck_pickle *p = NULL;
        char *copy = malloc(n + 1); /* exact size, so that reads beyond it are detected */
        memcpy(copy, data, n);
        copy = realloc(copy, n ? n : 1);
        assert_int_equal(fsdpck_pickle_parse("f", 0, copy, n, fsdpck_dcp_metadata_names, &p, &err) == 0, n == nbytes);
        assert_int_equal(err.code == 0, n == nbytes);
        fsdpck_pickle_free(p);
        free(copy);
    }
    for (uint64_t n = 0; n < nbytes; n++)
        for (int bit = 0; bit < 8; bit += 3) {
            struct fsdpck_pickle *p = NULL;
            data[n] = (char)(data[n] ^ 1 << bit);
            fsdpck_pickle_parse("f", 0, data, nbytes, fsdpck_dcp_metadata_names, &p, NULL);
            fsdpck_pickle_free(p);
            data[n] = (char)(data[n] ^ 1 << bit);
        }
    free(data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_integers),   cmocka_unit_test(test_scalars), cmocka_unit_test(test_containers),
        cmocka_unit_test(test_list_grows), cmocka_unit_test(test_dicts),   cmocka_unit_test(test_objects),
        cmocka_unit_test(test_memo),       cmocka_unit_test(test_getattr), cmocka_unit_test(test_modules_below),
        cmocka_unit_test(test_refusals),   cmocka_unit_test(test_cycles),  cmocka_unit_test(test_depth),
        cmocka_unit_test(test_real),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
