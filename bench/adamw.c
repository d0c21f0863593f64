/* SPDX-License-Identifier: Apache-2.0 */
/* AdamW on the processor as a part of the rate of memory: its bytes a second, and those of plain additions that read
 * and write the same arrays. Usage: adamw [THREADS]. Both take turns, and the best round of each counts. Processor time
 * is measured, divided by the threads: other work on the machine matters less. */
#include <kernels/memory.h>
#include <kernels/ops.h>
#include <kernels/pool.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { NELEM = 32 << 20, NARRAYS = 4, PIECE = 1 << 16, ROUNDS = 40 };

struct bench {
    const struct kern_device *device;
    struct kern_stream *stream;
    struct kern_pool *pool;
    float *arrays[NARRAYS]; /* (NELEM) each: values, first and second moments, gradients */
    uint16_t *rounded;      /* (NELEM); NULL: the values are fp32 */
};

static double now(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ts);
    return (double)ts.tv_sec + 1e-9 * (double)ts.tv_nsec;
}

static void *buffer(const struct kern_device *device, size_t nbytes)
{
    struct kern_buffer b;
    char message[KERN_MESSAGE_BYTES];
    if (device->memory->alloc((struct kern_location){ .huge_pages = true }, nbytes, &b, message) != KERN_OK) {
        fprintf(stderr, "adamw: %s\n", message);
        exit(4);
    }
    return b.data;
}

static void run_adamw(const struct bench *b)
{
    const struct kern_adamw_range range = { .nelem = NELEM,
                                            .p = b->arrays[0],
                                            .m = b->arrays[1],
                                            .v = b->arrays[2],
                                            .grad = b->arrays[3],
                                            .weight_decay = 0.01f,
                                            .rounded = b->rounded };
    const struct kern_adamw step = {
        .ranges = &range, .nranges = 1, .grad_scale = 1, .lr = 1e-4, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .t = 3
    };
    b->device->ops->adamw(b->stream, &step);
}

static void add_piece(void *ctx, int64_t piece, unsigned worker)
{
    const struct bench *b = ctx;
    float *restrict p = b->arrays[0] + piece * PIECE, *restrict m = b->arrays[1] + piece * PIECE,
                    *restrict v = b->arrays[2] + piece * PIECE;
    const float *restrict g = b->arrays[3] + piece * PIECE;
    (void)worker;
    for (int i = 0; i < PIECE; i++) {
        p[i] += g[i];
        m[i] += g[i];
        v[i] += g[i];
    }
    for (int i = 0; b->rounded && i < PIECE; i++)
        b->rounded[piece * PIECE + i] = (uint16_t)i;
}

static void run_additions(const struct bench *b)
{
    kern_pool_run(b->pool, NELEM / PIECE, add_piece, (void *)b);
}

static double seconds(void (*run)(const struct bench *), const struct bench *b, double best)
{
    const double started = now();
    run(b);
    const double taken = (now() - started) / kern_pool_nthreads(b->pool);
    return taken < best ? taken : best;
}

static void compare(const struct bench *b)
{
    const double nbytes = (double)NELEM * (b->rounded ? 30 : 28); /* reads 16 an element, writes the rest */
    double adamw = 1e9, additions = 1e9;
    for (int i = 0; i < ROUNDS; i++) {
        adamw = seconds(run_adamw, b, adamw);
        additions = seconds(run_additions, b, additions);
    }
    printf("%s: AdamW %.1f GB/s, additions %.1f GB/s: %.2f\n", b->rounded ? "bf16 values" : "fp32 values",
           nbytes / adamw * 1e-9, nbytes / additions * 1e-9, additions / adamw);
}

int main(int argc, char **argv)
{
    char message[KERN_MESSAGE_BYTES];
    struct bench b = { .device = kern_device_find("cpu", message),
                       .pool = kern_pool_new(argc > 1 ? (unsigned)atoi(argv[1]) : 2) };
    if (!b.pool || b.device->stream_new(0, b.pool, &b.stream, message) != 0)
        return 4;
    for (int i = 0; i < NARRAYS; i++) {
        b.arrays[i] = buffer(b.device, NELEM * sizeof(float));
        for (int64_t k = 0; k < NELEM; k++)
            b.arrays[i][k] = 1e-3f;
    }
    compare(&b);
    b.rounded = buffer(b.device, NELEM * sizeof *b.rounded);
    compare(&b);
    b.device->stream_free(b.stream);
    kern_pool_free(b.pool);
    return 0;
}
