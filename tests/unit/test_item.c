/* SPDX-License-Identifier: Apache-2.0 */
/* The envelope around a payload: alignment, sizes and records on random shapes, read back with the zip and pickle
 * readers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/hash.h"
#include "torch/zip/item.h"
#include "torch/pickle/pickle.h"
#include "torch/zip/zip.h"

static const char *const allowed[] = { "torch._utils *", "torch *", "torch.storage *", "collections OrderedDict",
                                       NULL };

/* A file with `head` at begin, a payload of zeros, which may be huge, and `tail` after it. */
struct sparse {
    struct fsdpck_item_layout at;
    uint8_t head[FSDPCK_ITEM_HEAD_MAX], tail[FSDPCK_ITEM_TAIL_MAX];
};

static int64_t sparse_pread(void *ctx, int fd, void *buf, uint64_t nbytes, uint64_t offset)
{
    const struct sparse *s = ctx;
    uint8_t *out = buf;
    uint64_t payload = s->at.begin + s->at.head_nbytes, tail = payload + s->at.payload_nbytes;
    (void)fd;
    for (uint64_t i = 0; i < nbytes; i++, offset++) {
        if (offset < s->at.begin || offset >= tail + s->at.tail_nbytes)
            return (int64_t)i;
        out[i] = offset < payload ? s->head[offset - s->at.begin] : offset < tail ? 0 : s->tail[offset - tail];
    }
    return (int64_t)nbytes;
}

static void assert_dims(const struct fsdpck_pickle *p, fsdpck_node n, uint32_t ndim, const uint64_t *want)
{
    assert_int_equal(fsdpck_pickle_count(p, n), ndim);
    for (uint32_t d = 0; d < ndim; d++) {
        int64_t v;
        assert_true(fsdpck_pickle_int(p, fsdpck_pickle_child(p, n, d), &v));
        assert_int_equal(v, want[d]);
    }
}

static void check_pickle(const struct sparse *s, const struct fsdpck_zip_record *record, enum fsdpck_dtype dtype,
                         uint32_t ndim, const uint64_t *size)
{
    const struct fsdpck_dtype_info *info = fsdpck_dtype_info(dtype);
    struct fsdpck_pickle *p;
    struct fsdpck_error err = { 0 };
    uint64_t strides[FSDPCK_MAX_DIMS], step = 1;
    int64_t v;
    char class[64] = "torch ";
    assert_int_equal(
        fsdpck_pickle_parse("f", 0, s->head + (record->offset - s->at.begin), record->nbytes, allowed, &p, &err), 0);
    assert_int_equal(fsdpck_pickle_used(p), record->nbytes);
    fsdpck_node root = fsdpck_pickle_root(p), args = fsdpck_pickle_child(p, root, 1);
    fsdpck_node id = fsdpck_pickle_child(p, fsdpck_pickle_child(p, args, 0), 0);
    assert_true(fsdpck_pickle_made_by(
        p, root, info->torch_storage ? "torch._utils _rebuild_tensor_v2" : "torch._utils _rebuild_tensor_v3"));
    strcat(class, info->torch_storage ? info->torch_storage : "");
    assert_true(fsdpck_pickle_is(p, fsdpck_pickle_child(p, id, 1),
                                 info->torch_storage ? class : "torch.storage UntypedStorage"));
    assert_true(fsdpck_pickle_int(p, fsdpck_pickle_child(p, id, 4), &v));
    assert_int_equal(v, s->at.payload_nbytes / (info->torch_storage ? info->nbytes : 1));
    for (uint32_t d = ndim; d-- > 0; step *= size[d] ? size[d] : 1)
        strides[d] = step;
    assert_dims(p, fsdpck_pickle_child(p, args, 2), ndim, size);
    assert_dims(p, fsdpck_pickle_child(p, args, 3), ndim, strides);
    fsdpck_pickle_free(p);
}

static void check(enum fsdpck_dtype dtype, uint32_t ndim, const uint64_t *size, uint64_t begin)
{
    static struct sparse s, again;
    struct fsdpck_error err = { 0 };
    struct fsdpck_zip zip;
    struct fsdpck_io io = { .ctx = &s, .pread = sparse_pread };
    uint64_t nbytes = fsdpck_dtype_info(dtype)->nbytes;
    for (uint32_t d = 0; d < ndim; d++)
        nbytes *= size[d];
    fsdpck_item_lay_out(dtype, ndim, size, begin, &s.at);
    assert_int_equal(s.at.begin, begin);
    assert_int_equal(s.at.payload_nbytes, nbytes);
    assert_true(s.at.head_nbytes <= FSDPCK_ITEM_HEAD_MAX && s.at.tail_nbytes <= FSDPCK_ITEM_TAIL_MAX);
    assert_int_equal((begin + s.at.head_nbytes) % (nbytes >= 65536 ? 4096 : 64), 0);
    again.at = s.at;
    fsdpck_item_write(dtype, ndim, size, &s.at, 0x12345678, s.head, s.tail);
    fsdpck_item_write(dtype, ndim, size, &s.at, 0x12345678, again.head, again.tail);
    assert_memory_equal(&s, &again, sizeof s);
    if (fsdpck_zip_open(&io, 0, "f", begin, s.at.head_nbytes + nbytes + s.at.tail_nbytes, &zip, &err))
        fail_msg("%s", err.message);
    const struct fsdpck_zip_record *payload = fsdpck_zip_find(&zip, "data/0"),
                                   *order = fsdpck_zip_find(&zip, "byteorder");
    assert_int_equal(zip.nrecords, 4);
    assert_ptr_equal(payload, &zip.records[3]);
    assert_int_equal(payload->offset, begin + s.at.head_nbytes);
    assert_int_equal(payload->nbytes, nbytes);
    assert_int_equal(payload->crc32, 0x12345678);
    assert_memory_equal(s.head + (order->offset - begin), "little", 6);
    for (int i = 0; i < 3; i++)
        assert_int_equal(zip.records[i].crc32,
                         fsdpck_crc32(0, s.head + (zip.records[i].offset - begin), zip.records[i].nbytes));
    check_pickle(&s, fsdpck_zip_find(&zip, "data.pkl"), dtype, ndim, size);
    fsdpck_zip_free(&zip);
}

static void test_random_shapes(void **state)
{
    (void)state;
    srand(7);
    for (int i = 0; i < 3000; i++) {
        uint64_t size[FSDPCK_MAX_DIMS];
        uint32_t ndim = (uint32_t)(rand() % 6);
        for (uint32_t d = 0; d < ndim; d++)
            size[d] = (uint64_t)(rand() % (rand() % 4 ? 40 : 3));
        check((enum fsdpck_dtype)(rand() % FSDPCK_NDTYPES), ndim, size, (uint64_t)rand() * (uint64_t)(rand() % 100000));
    }
}

static void test_many_dims(void **state)
{
    (void)state;
    uint64_t size[FSDPCK_MAX_DIMS];
    for (uint32_t d = 0; d < FSDPCK_MAX_DIMS; d++)
        size[d] = d == 5 ? 1ull << 40 : 1;
    check(FSDPCK_FLOAT8_E8M0FNU, FSDPCK_MAX_DIMS, size, 1);
    size[20] = 0; /* strides remain large, nothing is stored */
    check(FSDPCK_BFLOAT16, FSDPCK_MAX_DIMS, size, 4095);
}

/* Sizes around the limits beyond which zip needs 64-bit fields: for the record, and for the directory's offset. */
static void test_zip64(void **state)
{
    (void)state;
    const uint64_t near[] = { 0xffffffffull - 5000, 0xffffffffull - 4096, 0xffffffffull - 1,
                              0xffffffffull,        0x100000000ull,       1ull << 42 };
    for (size_t i = 0; i < sizeof near / sizeof *near; i++)
        for (uint64_t begin = 0; begin < 5000; begin += 1013)
            check(FSDPCK_UINT8, 1, &near[i], begin);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_random_shapes), cmocka_unit_test(test_many_dims),
                                        cmocka_unit_test(test_zip64) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
