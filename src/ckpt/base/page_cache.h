/* SPDX-License-Identifier: Apache-2.0 */
/* Whether bytes of a file lie in the page cache, found out without touching it: for io_posix.c alone. */
#ifndef CKPT_PAGE_CACHE_H
#define CKPT_PAGE_CACHE_H

#include <stdint.h>

/* 1: all of the range is cached; 0: not all; -EOPNOTSUPP: cannot be told. */
int fsdpck_page_cache_holds(int fd, uint64_t offset, uint64_t nbytes);

#endif
