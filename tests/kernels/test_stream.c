/* SPDX-License-Identifier: Apache-2.0 */
/* Pools, streams, events and memory of the kernels. */
#include "harness.h"

#include <kernels/memory.h>
#include <stdlib.h>
#include <string.h>

static const struct kern_device *cpu(void)
{
    char message[KERN_MESSAGE_BYTES];
    return kern_device_find("cpu", message);
}

static void count_piece(void *ctx, int64_t piece, unsigned worker)
{
    unsigned char *seen = ctx;
    assert_in_range(worker, 0, 6);
    seen[piece]++;
}

static void test_pool(void **state)
{
    (void)state;
    unsigned char seen[500];
    for (unsigned nthreads = 0; nthreads <= 7; nthreads++) {
        struct kern_pool *pool = nthreads ? kern_pool_new(nthreads) : NULL;
        assert_int_equal(kern_pool_nthreads(pool), nthreads ? nthreads : 1);
        for (int64_t n = 0; n < 500; n += 7) {
            memset(seen, 0, sizeof(seen));
            kern_pool_run(pool, n, count_piece, seen);
            for (int64_t i = 0; i < 500; i++)
                assert_int_equal(seen[i], i < n);
        }
        kern_pool_free(pool);
    }
}

static void test_devices(void **state)
{
    (void)state;
    char message[KERN_MESSAGE_BYTES];
    struct kern_stream *stream = NULL;
    assert_null(kern_device_find("abacus", message));
    assert_string_equal(message, "there is no device 'abacus' in this build: it has 'cpu'");
    assert_int_equal(cpu()->stream_new(1, NULL, &stream, message), KERN_ERR_DEVICE);
    assert_null(stream);
    kern_cpu_describe(message);
    assert_non_null(strstr(message, "oneDNN "));
    cpu()->stream_free(NULL);
}

/* The table has no NULL entry. */
static void test_table(void **state)
{
    (void)state;
    void (*entry[sizeof(struct kern_ops) / sizeof(void (*)(void))])(void);
    memcpy(entry, cpu()->ops, sizeof(entry));
    for (size_t i = 0; i < sizeof(entry) / sizeof(entry[0]); i++)
        assert_non_null(entry[i]);
}

static void test_memory(void **state)
{
    (void)state;
    char message[KERN_MESSAGE_BYTES];
    const struct kern_memory *memory = cpu()->memory;
    struct kern_stream *stream;
    struct kern_buffer a, b;
    assert_int_equal(cpu()->stream_new(0, NULL, &stream, message), 0);
    assert_int_equal(
        memory->alloc((struct kern_location){ .kind = KERN_MEMORY_PINNED, .huge_pages = true, .numa_node = 1 }, 100000,
                      &a, message),
        0);
    assert_int_equal(memory->alloc((struct kern_location){ .kind = KERN_MEMORY_DEVICE }, 0, &b, message), 0);
    assert_null(b.data);
    memory->free(&b);
    assert_int_equal((uintptr_t)a.data % 4096, 0);
    unsigned char *bytes = a.data;
    for (int i = 0; i < 100000; i++)
        assert_int_equal(bytes[i], 0);
    memory->copy(stream, bytes, "abcdefghij", 10);
    memory->copy(stream, bytes + 100, bytes + 2, 3);
    assert_memory_equal(bytes + 99, "\0cde\0", 5);
    memory->zero(stream, bytes, 4);
    assert_memory_equal(bytes, "\0\0\0\0efghij", 10);
    memory->free(&a);
    assert_null(a.data);
    assert_int_equal(memory->alloc((struct kern_location){ 0 }, SIZE_MAX / 2, &a, message), KERN_ERR_MEMORY);
    assert_int_equal(memory->alloc((struct kern_location){ .numa_node = 5000 }, 4096, &a, message), KERN_ERR_ARG);
    cpu()->stream_free(stream);
}

static void test_events(void **state)
{
    (void)state;
    char message[KERN_MESSAGE_BYTES];
    struct kern_stream *stream;
    struct kern_event *from, *to;
    assert_int_equal(cpu()->stream_new(0, NULL, &stream, message), 0);
    assert_int_equal(cpu()->event_new(0, true, &from, message), 0);
    assert_int_equal(cpu()->event_new(0, true, &to, message), 0);
    cpu()->event_record(from, stream);
    cpu()->event_wait(from, stream);
    cpu()->event_record(to, stream);
    assert_int_equal(cpu()->event_sync(to), 0);
    assert_true(cpu()->event_elapsed_ns(from, to) < 60000000000u);
    cpu()->event_free(from);
    cpu()->event_free(to);
    cpu()->stream_free(stream);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_pool), cmocka_unit_test(test_devices),
                                        cmocka_unit_test(test_table), cmocka_unit_test(test_memory),
                                        cmocka_unit_test(test_events) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
