/* SPDX-License-Identifier: Apache-2.0 */
/* The shim's replacement for cuBLASLt: plain loops with fp32 sums. */
#include "cuda/matmul.h"

#include "cuda/vec.cuh"

#include <cstdlib>

struct cuda_matmuls {
    int nothing; /* unused: the loops need no state */
};

int cuda_matmuls_new(struct cuda_matmuls **out, char *message)
{
    (void)message;
    *out = static_cast<struct cuda_matmuls *>(calloc(1, sizeof(**out)));
    return *out ? KERN_OK : KERN_ERR_MEMORY;
}

void cuda_matmuls_free(struct cuda_matmuls *matmuls)
{
    free(matmuls);
}

static float sum(const struct cuda_matmul *p, int64_t i, int64_t j)
{
    const struct kern_cmat a = { p->a, p->lda, p->in }, b = { p->b, p->ldb, p->in };
    float total = 0;
    for (int64_t l = 0; l < p->k; l++)
        total += (p->trans_a ? load1<MIXED>(a, l, i) : load1<MIXED>(a, i, l)) *
                 (p->trans_b ? load1<MIXED>(b, j, l) : load1<MIXED>(b, l, j));
    return total;
}

bool cuda_matmul_run(struct kern_stream *stream, const struct cuda_matmul *p)
{
    const struct kern_cmat c = { p->c, p->ldc, p->out }, bias = { p->bias, 0, p->out };
    const struct kern_mat d = { p->d, p->ldd, p->out };
    for (int64_t i = 0; i < p->m && !stream->status; i++)
        for (int64_t j = 0; j < p->n; j++) {
            float x = p->alpha * sum(p, i, j);
            x += p->beta != 0 ? p->beta * load1<MIXED>(c, i, j) : 0.0f;
            store1<MIXED>(d, i, j, p->bias ? x + load1<MIXED>(bias, 0, j) : x);
        }
    return true;
}
