/* SPDX-License-Identifier: Apache-2.0 */
/* Buffers for file operations. Knows page sizes, nothing of files. */
#include "base/buffer.h"

#include <stdbool.h>
#include <stdlib.h>
#include <sys/mman.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

#define HUGE_PAGE_NBYTES  (2u << 20)
#define CACHE_LINE_NBYTES 64u

void *fsdpck_buffer_new(uint64_t nbytes)
{
    uint64_t align = nbytes < HUGE_PAGE_NBYTES ? FSDPCK_PAGE_NBYTES : HUGE_PAGE_NBYTES;
    if (nbytes > SIZE_MAX - align)
        return NULL;
    void *p = aligned_alloc(align, (nbytes + align - 1) / align * align);
    if (p && align == HUGE_PAGE_NBYTES)
        /* a hint, refused if the system has no huge pages; not for a tail shorter than one */
        madvise(p, nbytes / align * align, MADV_HUGEPAGE);
    return p;
}

#if defined(__x86_64__)
static bool has_clflushopt(void)
{
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & 1u << 23);
}

__attribute__((target("clflushopt"))) static void flush(char *p, uint64_t nbytes)
{
    for (uint64_t at = 0; at < nbytes; at += CACHE_LINE_NBYTES)
        _mm_clflushopt(p + at);
    _mm_sfence();
}

void fsdpck_buffer_uncache(void *p, uint64_t nbytes)
{
    if (has_clflushopt())
        flush(p, nbytes);
}
#else
void fsdpck_buffer_uncache(void *p, uint64_t nbytes)
{
    (void)p;
    (void)nbytes;
}
#endif
