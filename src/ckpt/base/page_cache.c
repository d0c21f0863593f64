/* SPDX-License-Identifier: Apache-2.0 */
/* Asks the kernel which pages are cached. preadv2(RWF_NOWAIT) could tell too, but starts readahead of missing pages:
 * the disk would then read everything twice, once for the cache and once directly. cachestat (Linux 6.5) counts pages;
 * before that, mincore inspects a mapping. */
#include "base/page_cache.h"

#include <errno.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef SYS_cachestat
#define SYS_cachestat 451 /* the same number on every architecture */
#endif

enum { PAGE = 4096, PAGES_AT_ONCE = 4096 };

struct cache_range {
    uint64_t offset, nbytes;
};

struct cache_stat { /* struct cachestat of linux/mman.h */
    uint64_t cached, dirty, writeback, evicted, recently_evicted;
};

static int by_cachestat(int fd, uint64_t begin, uint64_t npages)
{
    struct cache_range range = { begin, npages * PAGE };
    struct cache_stat st = { 0 };
    if (syscall(SYS_cachestat, fd, &range, &st, 0) != 0)
        return -errno;
    return st.cached >= npages;
}

/* The mapping is never read, so a file that shrinks meanwhile does no harm. */
static int by_mincore(int fd, uint64_t begin, uint64_t npages)
{
    unsigned char resident[PAGES_AT_ONCE];
    for (uint64_t at = 0; at < npages; at += PAGES_AT_ONCE) {
        uint64_t n = npages - at < PAGES_AT_ONCE ? npages - at : PAGES_AT_ONCE;
        void *map = mmap(NULL, n * PAGE, PROT_READ, MAP_SHARED, fd, (off_t)(begin + at * PAGE));
        if (map == MAP_FAILED)
            return -EOPNOTSUPP;
        bool all = mincore(map, n * PAGE, resident) == 0;
        for (uint64_t i = 0; all && i < n; i++)
            all = resident[i] & 1;
        munmap(map, n * PAGE);
        if (!all)
            return 0;
    }
    return 1;
}

int fsdpck_page_cache_holds(int fd, uint64_t offset, uint64_t nbytes)
{
    uint64_t begin = offset / PAGE * PAGE, npages = (offset + nbytes - begin + PAGE - 1) / PAGE;
    int rc = by_cachestat(fd, begin, npages);
    if (rc >= 0)
        return rc;
    return sysconf(_SC_PAGESIZE) == PAGE ? by_mincore(fd, begin, npages) : -EOPNOTSUPP;
}
