/* SPDX-License-Identifier: Apache-2.0 */
/* PyTorch DCP directories written by this test: a good one, and others with one defect each. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <fsdpck/source.h>

#include "../support/opened.h"
#include "../support/tree.h"
#include "torch/dcp/dcp.h"
#include "torch/dcp/metadata.h"
#include "base/hash.h"
#include "base/ioutil.h"
#include "torch/zip/item.h"
#include "engine/source_impl.h"

/* ---- directories written here: int32 [4, 2], one chunk per pair of rows ---- */

enum { NCHUNKS = 2, CHUNK_NBYTES = 16 };

struct made {
    char *dir;
    struct fsdpck_dcp_writer w;
    uint8_t file[2][8192];
    struct fsdpck_item_layout at[2];
    uint64_t nbytes[2];
};

static const char *const file_names[] = { "__0_0.distcp", "__1_0.distcp" };
static const uint64_t shape[] = { 4, 2 }, size[] = { 2, 2 }, offsets[2][2] = { { 0, 0 }, { 2, 0 } };

/* Writes both files, and .metadata up to storage_data. */
static struct made *begin(const char *const *names, size_t nnames, const uint64_t (*boxes)[2][2], size_t nboxes)
{
    struct made *m = calloc(1, sizeof *m);
    m->dir = tree_new();
    for (int i = 0; i < 2; i++) {
        fsdpck_item_lay_out(FSDPCK_INT32, 2, size, 0, &m->at[i]);
        uint8_t *payload = m->file[i] + m->at[i].head_nbytes;
        for (int k = 0; k < 4; k++)
            payload[4 * k] = (uint8_t)(4 * i + k);
        fsdpck_item_write(FSDPCK_INT32, 2, size, &m->at[i], fsdpck_crc32(0, payload, CHUNK_NBYTES), m->file[i],
                          payload + CHUNK_NBYTES);
        m->nbytes[i] = m->at[i].head_nbytes + CHUNK_NBYTES + m->at[i].tail_nbytes;
    }
    fsdpck_dcp_begin(&m->w);
    for (size_t n = 0; n < nnames; n++) {
        fsdpck_dcp_tensor(&m->w, names[n], FSDPCK_INT32, 2, shape);
        for (size_t b = 0; b < nboxes; b++)
            fsdpck_dcp_chunk(&m->w, 2, boxes[b][0], boxes[b][1]);
        fsdpck_dcp_tensor_end(&m->w);
    }
    fsdpck_dcp_paths_begin(&m->w);
    const struct fsdpck_key path[] = { { "list", 0 }, { NULL, 3 } };
    for (size_t n = 0; n < nnames; n++)
        fsdpck_dcp_path(&m->w, names[n], path, n == 0 ? 2 : 0);
    fsdpck_dcp_storage_begin(&m->w);
    return m;
}

static void store(struct made *m, const char *name, int chunk)
{
    fsdpck_dcp_storage(&m->w, name, 2, offsets[chunk], (uint64_t)chunk, file_names[chunk], 0, m->nbytes[chunk]);
}

static void write_file(const struct made *m, const char *name, const void *data, uint64_t nbytes)
{
    char *path = tree_path(m->dir, name);
    struct fsdpck_error err = { 0 };
    tree_remove(path);
    if (fsdpck_write_file(&fsdpck_io_posix, path, data, nbytes, &err))
        fail_msg("%s", err.message);
    free(path);
}

static void finish(struct made *m)
{
    fsdpck_dcp_end(&m->w);
    assert_false(m->w.text.failed);
    write_file(m, ".metadata", m->w.text.data, m->w.text.nbytes);
    for (int i = 0; i < 2; i++)
        write_file(m, file_names[i], m->file[i], m->nbytes[i]);
}

static void drop(struct made *m)
{
    tree_remove(m->dir);
    free(m->dir);
    fsdpck_dcp_free(&m->w);
    free(m);
}

static const uint64_t rows[2][2][2] = { { { 0, 0 }, { 2, 2 } }, { { 2, 0 }, { 2, 2 } } };
static const char *const one_name[] = { "w" };

static struct made *make_good(void)
{
    struct made *m = begin(one_name, 1, rows, NCHUNKS);
    store(m, "w", 0);
    store(m, "w", 1);
    finish(m);
    return m;
}

/* Opening must be refused; frees m. */
static void refuse_open(struct made *m, int code, const char *words)
{
    struct fsdpck_error err = { 0 };
    struct fsdpck_source *src;
    char text[1200];
    int r = fsdpck_source_open(m->dir, "dcp", NULL, &src, &err);
    fsdpck_error_format(&err, text, sizeof text);
    if (r != code || !strstr(text, words))
        fail_msg("%d, '%s'; want %d, '%s'", r, text, code, words);
    assert_null(src);
    drop(m);
}

static void test_good(void **state)
{
    (void)state;
    struct made *m = make_good();
    struct fsdpck_source *src = opened(m->dir, "dcp");
    const struct fsdpck_tensor *t = fsdpck_source_find(src, "w");
    int32_t *data = opened_read(src, t);
    for (int i = 0; i < 8; i++)
        assert_int_equal(data[i], i);
    assert_int_equal(t->npath, 2);
    assert_null(t->path[1].str);
    assert_int_equal(t->path[1].position, 3);
    assert_int_equal(fsdpck_source_nranks(src), 2);
    free(data);
    fsdpck_source_close(src);
    drop(m);
}

static void test_alias(void **state)
{
    (void)state;
    static const char *const names[] = { "w", "also" };
    struct made *m = begin(names, 2, rows, NCHUNKS);
    for (int i = 0; i < 4; i++)
        store(m, names[i / 2], i % 2);
    finish(m);
    struct fsdpck_source *src = opened(m->dir, "dcp");
    assert_int_equal(fsdpck_source_find(src, "w")->alias_of, -1);
    assert_int_equal(fsdpck_source_find(src, "also")->alias_of, 0);
    int32_t *data = opened_read(src, fsdpck_source_find(src, "also"));
    assert_int_equal(data[7], 7);
    free(data);
    fsdpck_source_close(src);
    drop(m);
}

static void test_boxes(void **state)
{
    (void)state;
    static const uint64_t hole[2][2][2] = { { { 0, 0 }, { 2, 2 } }, { { 2, 0 }, { 1, 2 } } };
    static const uint64_t overlap[2][2][2] = { { { 0, 0 }, { 3, 2 } }, { { 2, 0 }, { 2, 2 } } };
    static const uint64_t outside[2][2][2] = { { { 0, 0 }, { 2, 2 } }, { { 2, 0 }, { 3, 2 } } };
    static const uint64_t huge[2][2][2] = { { { 0, 0 }, { 2, 2 } }, { { 2, 0 }, { UINT64_MAX / 2, 2 } } };
    static const struct {
        const uint64_t (*boxes)[2][2];
        int code;
        const char *words;
    } cases[] = { { hole, FSDPCK_ERR_MISSING, "w" },
                  { overlap, FSDPCK_ERR_FORMAT, "overlap" },
                  { outside, FSDPCK_ERR_FORMAT, "reaches beyond the tensor's shape" },
                  { huge, FSDPCK_ERR_FORMAT, "reaches beyond the tensor's shape" } };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct made *m = begin(one_name, 1, cases[i].boxes, NCHUNKS);
        store(m, "w", 0);
        store(m, "w", 1);
        finish(m);
        refuse_open(m, cases[i].code, cases[i].words);
    }
    /* empty chunks of ranks without rows are ignored, whatever their offset */
    static const uint64_t empty[3][2][2] = { { { 4, 0 }, { 0, 2 } }, { { 0, 0 }, { 2, 2 } }, { { 2, 0 }, { 2, 2 } } };
    struct made *m = begin(one_name, 1, empty, 3);
    store(m, "w", 0);
    store(m, "w", 1);
    finish(m);
    fsdpck_source_close(opened(m->dir, "dcp"));
    drop(m);
}

/* One chunk with eight dimensions, listed so often, at two bytes each, that the list is refused before memory for it is
 * allocated. */
static void test_many_chunks(void **state)
{
    (void)state;
    static const uint64_t wide[8] = { 4, 1, 1, 1, 1, 1, 1, 1 }, at[8] = { 0 };
    struct made *m = calloc(1, sizeof *m);
    m->dir = tree_new();
    fsdpck_dcp_begin(&m->w);
    fsdpck_dcp_tensor(&m->w, "w", FSDPCK_INT32, 8, wide);
    fsdpck_dcp_chunk(&m->w, 8, at, wide);
    fsdpck_text_add(&m->w.text, "q\xc8", 2);
    for (int i = 0; i < 100000; i++)
        fsdpck_text_add(&m->w.text, "h\xc8", 2);
    fsdpck_dcp_tensor_end(&m->w);
    fsdpck_dcp_paths_begin(&m->w);
    fsdpck_dcp_path(&m->w, "w", NULL, 0);
    fsdpck_dcp_storage_begin(&m->w);
    finish(m);
    refuse_open(m, FSDPCK_ERR_LIMIT, "the file is too small for the 100001 chunks that it lists");
}

static void test_storage(void **state)
{
    (void)state;
    struct made *m = begin(one_name, 1, rows, NCHUNKS);
    store(m, "w", 0);
    finish(m);
    refuse_open(m, FSDPCK_ERR_MISSING, "tensor 'w': storage_data has no entry for the chunk at [2, 0]");

    m = begin(one_name, 1, rows, NCHUNKS);
    store(m, "w", 0);
    store(m, "w", 1);
    fsdpck_dcp_storage(&m->w, "w", 2, offsets[1], 1, file_names[0], 0, m->nbytes[0]);
    finish(m);
    refuse_open(m, FSDPCK_ERR_FORMAT, "two places for the chunk at [2, 0]");

    m = begin(one_name, 1, rows, NCHUNKS);
    store(m, "w", 0);
    fsdpck_dcp_storage(&m->w, "w", 2, offsets[1], 1, "../x.distcp", 0, 1);
    finish(m);
    refuse_open(m, FSDPCK_ERR_FORMAT, "'../x.distcp' is not a plain relative path");

    m = begin(one_name, 1, rows, NCHUNKS);
    store(m, "w", 0);
    store(m, "w", 1);
    m->w.text.nbytes -= 2; /* reopens the state of the last _StorageInfo */
    static const char zstd[] = "X\x15\0\0\0transform_descriptors]X\x0d\0\0\0stream.zstd/2aub";
    fsdpck_text_add(&m->w.text, zstd, sizeof zstd - 1);
    finish(m);
    refuse_open(m, FSDPCK_ERR_UNSUPPORTED, "tensor 'w': its item was transformed with 'stream.zstd/2'");
}

static void test_files(void **state)
{
    (void)state;
    struct made *m = make_good();
    write_file(m, file_names[1], m->file[1], m->nbytes[1] - 1);
    refuse_open(m, FSDPCK_ERR_MISSING, "__1_0.distcp@0: tensor 'w': the file ends at");

    m = make_good();
    char *path = tree_path(m->dir, file_names[0]);
    tree_remove(path);
    free(path);
    refuse_open(m, FSDPCK_ERR_MISSING, "__0_0.distcp");

    m = make_good();
    write_file(m, ".metadata", m->w.text.data, m->w.text.nbytes - 1);
    refuse_open(m, FSDPCK_ERR_FORMAT, "ends without STOP");

    m = make_good();
    path = tree_path(m->dir, ".metadata");
    tree_remove(path);
    free(path);
    write_file(m, "__0.metadata", "x", 1);
    refuse_open(m, FSDPCK_ERR_MISSING, "rank 1 is missing: '__1.metadata' is not there");
}

static void test_version(void **state)
{
    (void)state;
    struct made *m = make_good();
    m->w.text.nbytes -= 4; /* N u b . */
    static const char next[] = "X\5\0\0\0002.0.0ub.";
    fsdpck_text_add(&m->w.text, next, sizeof next - 1);
    write_file(m, ".metadata", m->w.text.data, m->w.text.nbytes);
    refuse_open(m, FSDPCK_ERR_UNSUPPORTED, "version '2.0.0'");
}

/* Writes .metadata with `from` replaced by other bytes. */
static struct made *make_lie(const char *from, size_t from_nbytes, const char *to, size_t nbytes)
{
    struct made *m = make_good();
    char *at = memmem(m->w.text.data, m->w.text.nbytes, from, from_nbytes);
    assert_non_null(at);
    memcpy(at, to, nbytes);
    write_file(m, ".metadata", m->w.text.data, m->w.text.nbytes);
    return m;
}

static void test_properties(void **state)
{
    (void)state;
    refuse_open(make_lie("torch.strided", 13, "torch._mkldnn", 13), FSDPCK_ERR_UNSUPPORTED,
                "its layout is 'torch._mkldnn'; only torch.strided is read");
    /* ( X list q n K 3 t */
    refuse_open(make_lie("(X\4\0\0\0list", 10, "X\12\0\0\0no tuple!!", 15), FSDPCK_ERR_FORMAT,
                "planner_data gives no tuple of keys");
}

/* ---- contents of items ---- */

/* Reading must fail with these words, and verify must report it; frees m. */
static void refuse_read(struct made *m, const char *words)
{
    struct fsdpck_error err = { 0 };
    struct fsdpck_source *src = opened(m->dir, "dcp");
    const struct fsdpck_tensor *t = fsdpck_source_find(src, "w");
    int32_t data[8];
    char text[1200];
    struct fsdpck_read read = { .tensor = t, .dst = data };
    assert_int_not_equal(fsdpck_source_read(src, &read, 1, &err), 0);
    fsdpck_error_format(&err, text, sizeof text);
    if (!strstr(text, words))
        fail_msg("'%s' does not say '%s'", text, words);
    assert_string_equal(err.tensor, "w");
    struct fsdpck_verify_result result;
    assert_true(opened_problems(src, &result) > 0);
    fsdpck_source_close(src);
    drop(m);
}

/* Makes file 1 an item of another tensor. */
static struct made *make_with_item(enum fsdpck_dtype dtype, uint32_t ndim, const uint64_t *dims)
{
    struct made *m = begin(one_name, 1, rows, NCHUNKS);
    fsdpck_item_lay_out(dtype, ndim, dims, 0, &m->at[1]);
    uint8_t *payload = m->file[1] + m->at[1].head_nbytes;
    memset(payload, 0, 64);
    fsdpck_item_write(dtype, ndim, dims, &m->at[1], fsdpck_crc32(0, payload, m->at[1].payload_nbytes), m->file[1],
                      payload + m->at[1].payload_nbytes);
    m->nbytes[1] = m->at[1].head_nbytes + m->at[1].payload_nbytes + m->at[1].tail_nbytes;
    store(m, "w", 0);
    store(m, "w", 1);
    finish(m);
    return m;
}

static void test_items(void **state)
{
    (void)state;
    refuse_read(make_with_item(FSDPCK_FLOAT32, 2, size), "holds float32, .metadata says int32");
    refuse_read(make_with_item(FSDPCK_UINT32, 2, size), "holds uint32, .metadata says int32");
    refuse_read(make_with_item(FSDPCK_INT32, 2, shape), "of shape [4, 2], .metadata says [2, 2]");
    refuse_read(make_with_item(FSDPCK_INT32, 1, shape), "of shape [4], .metadata says [2, 2]");
    struct made *m = make_good();
    m->file[1][m->nbytes[1] - 1] = 1;
    write_file(m, file_names[1], m->file[1], m->nbytes[1]);
    refuse_read(m, "no zip end record");
}

/* Removes the CRC-32 of each data.pkl from its two headers: torch can be configured to write none. */
static void forget_crcs(struct made *m)
{
    static const char name[] = "archive/data.pkl", none[4];
    for (size_t i = 0; i + 46 + sizeof name <= m->nbytes[1]; i++) {
        uint8_t *at = m->file[1] + i;
        if (!memcmp(at, "PK\3\4", 4) && !memcmp(at + 30, name, sizeof name - 1))
            memcpy(at + 14, none, sizeof none);
        if (!memcmp(at, "PK\1\2", 4) && !memcmp(at + 46, name, sizeof name - 1))
            memcpy(at + 16, none, sizeof none);
    }
}

/* Replaces bytes of file 1 wherever `from` occurs. */
static void patch(struct made *m, const char *from, const char *to, size_t nbytes)
{
    unsigned found = 0;
    for (size_t i = 0; i + nbytes <= m->nbytes[1]; i++)
        if (!memcmp(m->file[1] + i, from, nbytes)) {
            memcpy(m->file[1] + i, to, nbytes);
            found++;
        }
    assert_true(found > 0);
    forget_crcs(m);
    write_file(m, file_names[1], m->file[1], m->nbytes[1]);
}

/* data.pkl of [2, 2] contains: … K 4 t Q K 0 (K 2 K 2 t (K 2 K 1 t … */
static void test_layouts(void **state)
{
    (void)state;
    struct made *m = make_good();
    patch(m, "(K\2K\1t", "(K\1K\2t", 6); /* transposed */
    struct fsdpck_source *src = opened(m->dir, "dcp");
    int32_t *data = opened_read(src, fsdpck_source_find(src, "w"));
    const int32_t want[] = { 0, 1, 2, 3, 4, 6, 5, 7 };
    assert_memory_equal(data, want, sizeof want);
    free(data);
    fsdpck_source_close(src);
    drop(m);
    m = make_good();
    patch(m, "(K\2K\1t", "(K\0K\0t", 6); /* expanded */
    patch(m, "tQK\0", "tQK\3", 4);
    src = opened(m->dir, "dcp");
    data = opened_read(src, fsdpck_source_find(src, "w"));
    assert_int_equal(data[4], 7);
    assert_int_equal(data[7], 7);
    free(data);
    fsdpck_source_close(src);
    drop(m);
    m = make_good();
    patch(m, "tQK\0", "tQK\1", 4);
    refuse_read(m, "reaches beyond its storage of 4 elements");
    m = make_good();
    patch(m, "(K\2K\1t", "(K\3K\1t", 6);
    refuse_read(m, "reaches beyond its storage of 4 elements");
    m = make_good();
    patch(m, "cpuK\4", "cpuK\5", 5);
    refuse_read(m, "5 elements of 4 bytes, its record 'data/0' has 16 bytes");
    m = make_good();
    patch(m, "X\1\0\0\0000", "X\1\0\0\0001", 6);
    refuse_read(m, "no record 'data/1'");
    m = make_good();
    patch(m, "_rebuild_tensor_v2", "_rebuild_qtensor_2", 18);
    refuse_read(m, "'torch._utils._rebuild_qtensor_2', which has no place here");
}

/* Changes the record byteorder to "big": 3 bytes instead of 6, in both headers. */
static void test_big_endian(void **state)
{
    (void)state;
    struct made *m = make_good();
    uint32_t old = fsdpck_crc32(0, "little", 6), new = fsdpck_crc32(0, "big", 3);
    uint8_t from[12], to[12];
    fsdpck_put32(from, old), fsdpck_put32(from + 4, 6), fsdpck_put32(from + 8, 6);
    fsdpck_put32(to, new), fsdpck_put32(to + 4, 3), fsdpck_put32(to + 8, 3);
    patch(m, (const char *)from, (const char *)to, 12);
    patch(m, "little", "big\0\0\0", 6);
    struct fsdpck_source *src = opened(m->dir, "dcp");
    int32_t *data = opened_read(src, fsdpck_source_find(src, "w"));
    assert_int_equal(data[3], 3); /* the other file is little-endian */
    assert_int_equal(data[7], 7 << 24);
    free(data);
    fsdpck_source_close(src);
    drop(m);
}

static void keep_problem(void *ctx, const struct fsdpck_problem *problem)
{
    struct fsdpck_problem *kept = ctx;
    assert_string_equal(problem->file, "__1_0.distcp");
    assert_string_equal(problem->tensor, "w");
    assert_non_null(strstr(problem->what, "CRC-32"));
    *kept = *problem;
}

static void test_verify(void **state)
{
    (void)state;
    struct made *m = make_good();
    m->file[1][m->at[1].head_nbytes] ^= 1;
    write_file(m, file_names[1], m->file[1], m->nbytes[1]);
    struct fsdpck_source *src = opened(m->dir, "dcp");
    struct fsdpck_problem problem = { 0 };
    struct fsdpck_verify_result result = { 0 };
    assert_int_equal(src->ops->verify(src, true, keep_problem, &problem, &result, NULL), 0);
    assert_int_equal(result.nproblems, 0); /* --quick reads no payload */
    assert_int_equal(src->ops->verify(src, false, keep_problem, &problem, &result, NULL), 0);
    assert_int_equal(result.nproblems, 1);
    assert_int_equal(problem.offset, m->at[1].head_nbytes);
    assert_int_equal(problem.nbytes, CHUNK_NBYTES);
    assert_int_equal(problem.rank, 1);
    assert_int_equal(problem.row_begin, 2);
    assert_int_equal(problem.row_end, 4);
    fsdpck_source_close(src);
    drop(m);
}

/* With any byte of .metadata changed it is read or refused, without a crash and without allocating more than the file
 * justifies. */
static void test_damage(void **state)
{
    (void)state;
    struct made *m = make_good();
    for (size_t i = 0; i < m->w.text.nbytes; i++) {
        struct fsdpck_source *src;
        m->w.text.data[i] = (char)(m->w.text.data[i] ^ 1 << i % 8);
        write_file(m, ".metadata", m->w.text.data, m->w.text.nbytes);
        if (!fsdpck_source_open(m->dir, "dcp", NULL, &src, NULL))
            fsdpck_source_close(src);
        m->w.text.data[i] = (char)(m->w.text.data[i] ^ 1 << i % 8);
    }
    drop(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_good),        cmocka_unit_test(test_alias),      cmocka_unit_test(test_boxes),
        cmocka_unit_test(test_many_chunks), cmocka_unit_test(test_storage),    cmocka_unit_test(test_files),
        cmocka_unit_test(test_version),     cmocka_unit_test(test_properties), cmocka_unit_test(test_items),
        cmocka_unit_test(test_layouts),     cmocka_unit_test(test_big_endian), cmocka_unit_test(test_verify),
        cmocka_unit_test(test_damage),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
