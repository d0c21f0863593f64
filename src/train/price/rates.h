/* SPDX-License-Identifier: Apache-2.0 */
/* The rates of a machine: how much of each kind of work it does in a second. They are measured once and kept in a file,
 * or come from a file that describes another machine. Knows nothing of models or steps. */
#ifndef TRAIN_RATES_H
#define TRAIN_RATES_H

#include <fsdpck/error.h>
#include <kernels/types.h>

/* Rates that depend on the type of the activations. Products and attention count floating-point operations, their
 * rows and all others the bytes that are read and written. */
enum rates_typed {
    RATES_PRODUCT,       /* products with sides of some hundred elements */
    RATES_PRODUCT_THIN,  /* a side of RATES_THIN elements, as adapters have */
    RATES_GRADIENT,      /* dW = dYᵀ·X, whose sums run over tokens */
    RATES_GRADIENT_THIN, /* the same, with a side of RATES_THIN */
    RATES_ATTENTION,
    RATES_ATTENTION_ROWS, /* what attention costs besides, in bytes of Q, K, V and O */
    RATES_ATTENTION_GRAD,
    RATES_ATTENTION_GRAD_ROWS,
    RATES_NORM,
    RATES_NORM_GRAD,
    RATES_ROPE,
    RATES_SWIGLU,
    RATES_SWIGLU_GRAD,
    RATES_LOSS,
    RATES_ROWS, /* rows by index: embedding, supervised rows */
    RATES_ELEMENTS,
    RATES_NTYPED
};

/* The others count bytes, or calls. */
enum rates_plain {
    RATES_ADAMW,
    RATES_SQUARES,
    RATES_MEMORY,  /* bytes read and written by copies, zeroing and sums of gradients */
    RATES_LINK,    /* bytes that a rank receives from ranks on its host */
    RATES_NETWORK, /* bytes from other hosts: that a rank receives; of processors: that all ranks of a host do */
    RATES_CALLS,   /* kernels that do next to nothing */
    RATES_HOPS,    /* messages in a row: 1 / latency */
    RATES_DISK,    /* bytes that are read from a file or written to it */
    RATES_NPLAIN
};

enum { RATES_THIN = 16, RATES_MACHINE = 256 };

struct rates {
    char machine[RATES_MACHINE]; /* what was measured: another machine's rates are not used */
    unsigned cores;              /* the rates are those of so many threads, which ranks share; 0: each rank has a device
                                    with these rates, and communication takes nothing away from the computation */
    double busy;                 /* what rates_busy() gave while they were measured; 0: nothing is known */
    double typed[2][RATES_NTYPED]; /* [enum kern_dtype] */
    double plain[RATES_NPLAIN];
};

/* Reads a file. Every rate must be there, and positive. */
int rates_read(const char *path, struct rates *out, struct fsdpck_error *err);
/* Replaces the file atomically; its folder must exist. */
int rates_write(const char *path, const struct rates *rates, struct fsdpck_error *err);
/* Describes this machine and the kernels that it runs. */
void rates_describe_machine(char out[RATES_MACHINE]);
/* Threads of other programs that want a processor now, per processor: 0 on an idle machine, more than 1 where they wait
 * for each other. Memory and caches are shared with them, so that rates measured meanwhile are too low. */
double rates_busy(void);
/* Measures this machine, on all processors that this process may use. folder: on the disk to measure; NULL: a rate is
 * assumed. Takes less than a second. */
int rates_measure(const char *folder, struct rates *out, struct fsdpck_error *err);

#endif
