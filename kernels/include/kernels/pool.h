/* SPDX-License-Identifier: Apache-2.0 */
/* Threads that stay, for CPU kernels. Results may not depend on how many threads there are or which of them takes which piece: work is cut by
 * the shape alone, or so that an element has the same bits in every cut. */
#ifndef KERNELS_POOL_H
#define KERNELS_POOL_H

#include <kernels/types.h>

#ifdef __cplusplus
extern "C" {
#endif

struct kern_pool;

/* worker: 0 … nthreads-1, for per-thread scratch. */
typedef void (*kern_pool_fn)(void *ctx, int64_t piece, unsigned worker);

/* nthreads counts the calling thread: 1 starts none. NULL where threads or memory are not to be had. */
struct kern_pool *kern_pool_new(unsigned nthreads);
/* Waits for the threads. NULL does nothing. Not from inside a piece. */
void kern_pool_free(struct kern_pool *pool);
unsigned kern_pool_nthreads(const struct kern_pool *pool);

/* Calls fn once for each piece and returns when all are done. The caller is worker 0. One call at a time a pool; not from inside a piece.
 * pool NULL: all in the calling thread. */
void kern_pool_run(struct kern_pool *pool, int64_t npieces, kern_pool_fn fn, void *ctx);

#ifdef __cplusplus
}
#endif
#endif
