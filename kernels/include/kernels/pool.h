/* SPDX-License-Identifier: Apache-2.0 */
/* A pool of persistent threads for CPU kernels. Results must not depend on the number of threads or on which thread
 * takes which piece: the shape alone determines the pieces, or an element has the same bits in every division. */
#ifndef KERNELS_POOL_H
#define KERNELS_POOL_H

#include <kernels/types.h>

#ifdef __cplusplus
extern "C" {
#endif

struct kern_pool;

/* worker: 0 … nthreads-1, an index for per-thread scratch. */
typedef void (*kern_pool_fn)(void *ctx, int64_t piece, unsigned worker);

/* nthreads includes the calling thread: 1 starts none. Returns NULL if threads or memory are not available. */
struct kern_pool *kern_pool_new(unsigned nthreads);
/* Joins the threads. NULL does nothing. Must not be called from inside a piece. */
void kern_pool_free(struct kern_pool *pool);
unsigned kern_pool_nthreads(const struct kern_pool *pool);

/* Calls fn once for each piece and returns when all are done. The caller is worker 0. A pool runs one call at a time,
 * and none from inside a piece. pool NULL: the calling thread does everything. */
void kern_pool_run(struct kern_pool *pool, int64_t npieces, kern_pool_fn fn, void *ctx);

#ifdef __cplusplus
}
#endif
#endif
