/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU as the device under test. */
#include "harness.h"

#include "../support/sanitized.h"

#include "cpu/simd.h"
#include "cpu/stream.h"

static const unsigned thread_counts[] = { 1, 3, 2, 7, 16 };
enum { NCOUNTS = SANITIZED ? 2 : sizeof(thread_counts) / sizeof(thread_counts[0]) };

const struct kern_device *rig_device(void)
{
    char message[KERN_MESSAGE_BYTES];
    return kern_device_find("cpu", message);
}

static void choose_simd(struct kern_stream *stream, const void *simd)
{
    stream->simd = simd;
    if (simd != cpu_simd_best())
        stream->panels[KERN_F32] = stream->panels[KERN_BF16] = NULL; /* products by oneDNN */
}

static uint64_t run(rig_test test, unsigned nthreads, const struct cpu_simd *simd, enum kern_dtype dtype)
{
    struct kern_pool *pool = kern_pool_new(nthreads);
    assert_non_null(pool);
    uint64_t hash = rig_run_once(test, pool, dtype, choose_simd, simd);
    kern_pool_free(pool);
    return hash;
}

void rig_run_all(rig_test test)
{
    for (const struct cpu_simd *const *simd = cpu_simd_all(); *simd; simd++)
        for (int dtype = KERN_F32; dtype <= KERN_BF16; dtype++) {
            uint64_t first = run(test, thread_counts[0], *simd, (enum kern_dtype)dtype);
            for (size_t i = 1; i < NCOUNTS; i++)
                if (run(test, thread_counts[i], *simd, (enum kern_dtype)dtype) != first)
                    fail_msg("%s, dtype %d: other bits at %u threads than at 1", (*simd)->name, dtype,
                             thread_counts[i]);
        }
}
