/* SPDX-License-Identifier: Apache-2.0 */
/* Tells whether bytes of a file are in the page cache, without changing it; only for io_posix.c. */
#ifndef CKPT_PAGE_CACHE_H
#define CKPT_PAGE_CACHE_H

#include <stdint.h>

/* 1: the whole range is cached; 0: not all of it; -EOPNOTSUPP: unknown. */
int fsdpck_page_cache_holds(int fd, uint64_t offset, uint64_t nbytes);

#endif
