/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the kernel tests: random but reproducible matrices with gaps between rows; and runs of one test with every
 * number of threads and every instruction set. Results must not depend on the number of threads, to the bit. */
#ifndef KERNELS_HARNESS_H
#define KERNELS_HARNESS_H

#include <kernels/ops.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

/* Where a test runs, and a hash of all that it checked. */
struct rig {
    const struct kern_device *device;
    const struct kern_ops *ops;
    struct kern_stream *stream;
    bool slow;             /* the device takes long, or is watched: some of many cases will do */
    enum kern_dtype dtype; /* of what the test calls activations and weights */
    uint64_t hash;
    uint64_t random;
};

typedef void (*rig_test)(struct rig *rig);
/* The device that this program tests: the CPU (harness_cpu.c), or the CUDA row, on the shim (harness_shim.c) or a GPU
 * (harness_gpu.c). */
const struct kern_device *rig_device(void);
/* Runs a test in fp32 and bf16. The CPU: with 1, 2, 3, 7 and 16 threads and every instruction set that this processor
 * has; the shim: with its threads in several orders; a GPU: twice. Each must give the same bits. */
void rig_run_all(rig_test test);
/* One run on a stream of rig_device with this pool; prepare, if there is one, gets the stream first. Returns the hash
 * of what was checked. */
uint64_t rig_run_once(rig_test test, struct kern_pool *pool, enum kern_dtype dtype,
                      void (*prepare)(struct kern_stream *, const void *), const void *ctx);

double rig_uniform(struct rig *rig); /* -1 … 1 */

struct matrix {
    int64_t nrow, ncol, pitch;
    enum kern_dtype dtype;
    void *data;
};

/* The gaps between rows hold a pattern that matrix_free checks. */
struct matrix matrix_new(int64_t nrow, int64_t ncol, enum kern_dtype dtype);
struct matrix matrix_random(struct rig *rig, int64_t nrow, int64_t ncol, enum kern_dtype dtype, double scale);
struct matrix matrix_copy(const struct matrix *m);
void matrix_free(struct matrix *m);
double at(const struct matrix *m, int64_t row, int64_t col);
void put(struct matrix *m, int64_t row, int64_t col, double value);
struct kern_mat view(const struct matrix *m);
struct kern_cmat cview(const struct matrix *m);

/* want (nrow, ncol), without gaps. An element may be off by tolerance times the largest |want|, and where the matrix is
 * bf16 by its rounding. */
void check_matrix(struct rig *rig, const struct matrix *m, const double *want, double tolerance, const char *what);
void check_floats(struct rig *rig, const float *x, int64_t n, const double *want, double tolerance, const char *what);
/* Fails if the stream has failed. */
void check_stream(struct rig *rig);

/* What a kernel reads or writes lies in such memory, also a single number: host and device both reach it. */
void *must_alloc(size_t nbytes);
void must_free(void *p);
double *zeros(int64_t n);
float *float_zeros(int64_t n);

#endif
