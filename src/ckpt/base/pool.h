/* SPDX-License-Identifier: Apache-2.0 */
/* Runs numbered pieces of work on a few threads. The first error stops the run and is returned; pieces start in
 * order. */
#ifndef CKPT_POOL_H
#define CKPT_POOL_H

#include <pthread.h>

#include <fsdpck/error.h>

/* worker: 0 … nthreads-1, for per-thread buffers. err is the worker's own. */
typedef int (*fsdpck_pool_fn)(void *ctx, size_t piece, unsigned worker, struct fsdpck_error *err);

/* nthreads 1 runs in the caller's thread. stop: see fsdpck_options. */
int fsdpck_pool_run(unsigned nthreads, size_t npieces, fsdpck_pool_fn fn, void *ctx, const volatile int *stop,
                    struct fsdpck_error *err);
/* Number of workers per processor for work that mostly waits for the disk. */
#define FSDPCK_POOL_WAITING 4u

/* For a piece that waits for an earlier one, in a loop that also checks `stop`. Returns when the condition is
 * signalled, or after a short time: if a stop keeps the earlier piece from starting, nothing would signal. */
void fsdpck_pool_wait_a_little(pthread_cond_t *changed, pthread_mutex_t *lock);

#endif
