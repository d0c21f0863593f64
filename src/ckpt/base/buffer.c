/* Buffers for file operations. Knows the sizes of pages, and nothing of files. */
#include "base/buffer.h"

#include <stdlib.h>
#include <sys/mman.h>

#define HUGE_PAGE_NBYTES (2u << 20)

void *fsdpck_buffer_new(uint64_t nbytes)
{
    uint64_t align = nbytes < HUGE_PAGE_NBYTES ? FSDPCK_PAGE_NBYTES : HUGE_PAGE_NBYTES;
    if (nbytes > SIZE_MAX - align)
        return NULL;
    void *p = aligned_alloc(align, (nbytes + align - 1) / align * align);
    if (p && align == HUGE_PAGE_NBYTES)
        madvise(p, nbytes / align * align, MADV_HUGEPAGE); /* a wish, refused where the system has none; not for a rest that would fill none */
    return p;
}
