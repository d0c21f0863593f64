/* SPDX-License-Identifier: Apache-2.0 */
/* A device on paper: its operations compute nothing and count the work that they would do. The code of a micro-batch
 * that runs on it so counts exactly the calls and shapes that a real device would get. It touches no memory, and
 * pointers may point anywhere. */
#ifndef TRAIN_PAPER_H
#define TRAIN_PAPER_H

#include <kernels/experts.h>
#include <kernels/image.h>
#include <kernels/memory.h>
#include <kernels/ops.h>

#include "price/rates.h"

/* Amounts of work, in the units of the rates. */
struct work {
    double typed[2][RATES_NTYPED];
    double plain[RATES_NPLAIN];
};

struct paper {
    struct kern_device device; /* sizes, streams and host memory are those of the device that it stands for */
    struct kern_memory memory;
    struct kern_ops ops;
    struct kern_expert_ops experts;
    struct kern_image_ops images; /* those of training */
    struct work work;             /* done since paper_open() */
};

/* The operations find the paper of their thread: one at a time, from paper_open() to paper_close(). */
void paper_open(const struct kern_device *real, struct paper *out);
void paper_close(struct paper *p);
/* Seconds that the work of a rank takes at these rates. nthreads: that run for it at the same time. */
double work_seconds(const struct work *work, const struct rates *rates, double nthreads);

#endif
