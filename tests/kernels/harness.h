/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the kernel tests: random but reproducible matrices with gaps between rows; and runs of one test with every
 * number of threads and every instruction set. Results must not depend on the number of threads, to the bit. */
#ifndef KERNELS_HARNESS_H
#define KERNELS_HARNESS_H

#include <kernels/ops.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

/* The environment of a test, and a hash of everything that it checked. */
struct rig {
    const struct kern_device *device;
    const struct kern_ops *ops;
    struct kern_stream *stream;
    bool slow;             /* the device is slow, or a sanitizer watches: run few of many cases */
    enum kern_dtype dtype; /* of the test's activations and weights */
    uint64_t hash;
    uint64_t random;
};

typedef void (*rig_test)(struct rig *rig);
/* The device under test: the CPU (harness_cpu.c), or the CUDA backend on the shim (harness_shim.c) or on a GPU
 * (harness_gpu.c). */
const struct kern_device *rig_device(void);
/* Runs a test in fp32 and bf16. CPU: with 1, 2, 3, 7 and 16 threads and every instruction set of this processor. Shim:
 * with several orders of threads. GPU: twice. All runs must give the same bits. */
void rig_run_all(rig_test test);
/* Runs a test once on a stream of rig_device with this pool. prepare, if not NULL, gets the stream first. Returns the
 * hash of what was checked. */
uint64_t rig_run_once(rig_test test, struct kern_pool *pool, enum kern_dtype dtype,
                      void (*prepare)(struct kern_stream *, const void *), const void *ctx);

double rig_uniform(struct rig *rig); /* uniform in -1 … 1 */

struct matrix {
    int64_t nrow, ncol, pitch;
    enum kern_dtype dtype;
    void *data;
};

/* Fills the gaps between rows with a pattern that matrix_free checks. */
struct matrix matrix_new(int64_t nrow, int64_t ncol, enum kern_dtype dtype);
struct matrix matrix_random(struct rig *rig, int64_t nrow, int64_t ncol, enum kern_dtype dtype, double scale);
struct matrix matrix_copy(const struct matrix *m);
void matrix_free(struct matrix *m);
double at(const struct matrix *m, int64_t row, int64_t col);

/* For plain references, which run in one thread over arrays of their own: sanitizers would make them up to twenty times
 * slower. */
#define ONE_THREAD __attribute__((no_sanitize("thread"), no_sanitize("address"), no_sanitize("undefined")))
void put(struct matrix *m, int64_t row, int64_t col, double value);
struct kern_mat view(const struct matrix *m);
struct kern_cmat cview(const struct matrix *m);

/* want: (nrow, ncol) without gaps. An element may differ by tolerance times the largest |want|, plus its rounding if
 * the matrix is bf16. */
void check_matrix(struct rig *rig, const struct matrix *m, const double *want, double tolerance, const char *what);
void check_floats(struct rig *rig, const float *x, int64_t n, const double *want, double tolerance, const char *what);
/* Fails if the stream has failed. */
void check_stream(struct rig *rig);

/* Allocates memory that host and device can both access. Everything that a kernel reads or writes must lie in such
 * memory, even a single number. */
void *must_alloc(size_t nbytes);
void must_free(void *p);
double *zeros(int64_t n);
float *float_zeros(int64_t n);

#endif
