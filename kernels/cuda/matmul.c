/* SPDX-License-Identifier: Apache-2.0 */
/* The only file that knows cuBLASLt. Its heuristics choose a kernel per shape; the first choice is cached. fp32 never
 * becomes TF32. Sums that are split along k are added in fp32 in a fixed order, without atomics, so the same call gives
 * the same bits. */
#include "cuda/matmul.h"

#include <cublasLt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Cache key of a choice. Compared as bytes, so it is filled after memset. */
struct key {
    int64_t m, n, k, lda, ldb, ldc, ldd;
    int32_t trans_a, trans_b, in, out, adds;
    uint32_t align_a, align_b, align_c, align_d, align_bias; /* 0: no bias */
};

struct choice {
    struct key key;
    uint64_t used; /* time of the last use; the oldest entry is evicted */
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b, c, d;
    cublasLtMatmulAlgo_t algo;
    bool runs; /* false: cuBLASLt has no kernel for this key */
};

enum { MOST_CHOICES = 512 };

struct cuda_matmuls {
    cublasLtHandle_t handle;
    uint64_t clock;
    int nchoice;
    struct choice choices[MOST_CHOICES];
};

int cuda_matmuls_new(struct cuda_matmuls **out, char *message)
{
    struct cuda_matmuls *m = calloc(1, sizeof(*m));
    if (!m) {
        snprintf(message, KERN_MESSAGE_BYTES, "no memory for the choices of cuBLASLt");
        return KERN_ERR_MEMORY;
    }
    cublasStatus_t rc = cublasLtCreate(&m->handle);
    if (rc != CUBLAS_STATUS_SUCCESS) {
        snprintf(message, KERN_MESSAGE_BYTES, "cuBLASLt does not start: %s", cublasLtGetStatusString(rc));
        free(m);
        return KERN_ERR_LIBRARY;
    }
    *out = m;
    return KERN_OK;
}

static void choice_clear(struct choice *c)
{
    if (c->desc)
        cublasLtMatmulDescDestroy(c->desc);
    cublasLtMatrixLayout_t all[] = { c->a, c->b, c->c, c->d };
    for (int i = 0; i < 4; i++)
        if (all[i])
            cublasLtMatrixLayoutDestroy(all[i]);
    memset(c, 0, sizeof(*c));
}

void cuda_matmuls_free(struct cuda_matmuls *m)
{
    if (!m)
        return;
    for (int i = 0; i < m->nchoice; i++)
        choice_clear(&m->choices[i]);
    cublasLtDestroy(m->handle);
    free(m);
}

/* Largest power of two up to 16 that divides the address: kernels with 16-byte loads require it. */
static uint32_t alignment(const void *p)
{
    uintptr_t low = (uintptr_t)p | 16;
    return (uint32_t)(low & -low);
}

static struct key key_of(const struct cuda_matmul *p)
{
    struct key k;
    memset(&k, 0, sizeof(k));
    k.m = p->m, k.n = p->n, k.k = p->k;
    k.lda = p->lda, k.ldb = p->ldb, k.ldc = p->ldc, k.ldd = p->ldd;
    k.trans_a = p->trans_a, k.trans_b = p->trans_b, k.in = (int32_t)p->in, k.out = (int32_t)p->out;
    k.adds = p->beta != 0;
    k.align_a = alignment(p->a), k.align_b = alignment(p->b), k.align_c = alignment(p->c), k.align_d = alignment(p->d);
    k.align_bias = p->bias ? alignment(p->bias) : 0;
    return k;
}

static cudaDataType_t type_of(enum kern_dtype dtype)
{
    return dtype == KERN_BF16 ? CUDA_R_16BF : CUDA_R_32F;
}

/* cuBLASLt is column-major, this code row-major, so every matrix is transposed: D = A·B becomes D' = B'·A', and B is
 * the library's first operand. */
static cublasStatus_t layouts(struct choice *c, const struct cuda_matmul *p)
{
    cublasStatus_t rc = cublasLtMatrixLayoutCreate(&c->a, type_of(p->in), (uint64_t)(p->trans_b ? p->k : p->n),
                                                   (uint64_t)(p->trans_b ? p->n : p->k), p->ldb);
    if (rc == CUBLAS_STATUS_SUCCESS)
        rc = cublasLtMatrixLayoutCreate(&c->b, type_of(p->in), (uint64_t)(p->trans_a ? p->m : p->k),
                                        (uint64_t)(p->trans_a ? p->k : p->m), p->lda);
    if (rc == CUBLAS_STATUS_SUCCESS)
        rc = cublasLtMatrixLayoutCreate(&c->c, type_of(p->out), (uint64_t)p->n, (uint64_t)p->m, p->ldc);
    if (rc == CUBLAS_STATUS_SUCCESS)
        rc = cublasLtMatrixLayoutCreate(&c->d, type_of(p->out), (uint64_t)p->n, (uint64_t)p->m, p->ldd);
    return rc;
}

static cublasStatus_t describe(struct choice *c, const struct cuda_matmul *p)
{
    const cublasOperation_t first = p->trans_b ? CUBLAS_OP_T : CUBLAS_OP_N,
                            second = p->trans_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasLtEpilogue_t epilogue = p->bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
    const int32_t bias_type = (int32_t)type_of(p->out);
    const struct {
        cublasLtMatmulDescAttributes_t name;
        const void *value;
        size_t nbytes;
    } all[] = { { CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof(first) },
                { CUBLASLT_MATMUL_DESC_TRANSB, &second, sizeof(second) },
                { CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof(epilogue) },
                { CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &bias_type, sizeof(bias_type) },
                { CUBLASLT_MATMUL_DESC_BIAS_POINTER, &p->bias,
                  sizeof(p->bias) } }; /* the heuristics read its alignment */
    cublasStatus_t rc = cublasLtMatmulDescCreate(&c->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]) && rc == CUBLAS_STATUS_SUCCESS; i++)
        rc = cublasLtMatmulDescSetAttribute(c->desc, all[i].name, all[i].value, all[i].nbytes);
    return rc == CUBLAS_STATUS_SUCCESS ? layouts(c, p) : rc;
}

/* Limits of the choice. Reduction in place would use atomics; reduction in the output type would round twice. */
static cublasStatus_t prefer(cublasLtMatmulPreference_t preference, const struct key *k)
{
    const uint64_t workspace = CUDA_SCRATCH_BYTES;
    const uint32_t reduction = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    const struct {
        cublasLtMatmulPreferenceAttributes_t name;
        const void *value;
        size_t nbytes;
    } all[] = { { CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof(workspace) },
                { CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reduction, sizeof(reduction) },
                { CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &k->align_b, sizeof(uint32_t) },
                { CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &k->align_a, sizeof(uint32_t) },
                { CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &k->align_c, sizeof(uint32_t) },
                { CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &k->align_d, sizeof(uint32_t) } };
    cublasStatus_t rc = CUBLAS_STATUS_SUCCESS;
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]) && rc == CUBLAS_STATUS_SUCCESS; i++)
        rc = cublasLtMatmulPreferenceSetAttribute(preference, all[i].name, all[i].value, all[i].nbytes);
    return rc;
}

static cublasStatus_t choose(struct cuda_matmuls *m, struct choice *c, cublasLtMatmulPreference_t preference)
{
    cublasLtMatmulHeuristicResult_t best;
    int n = 0;
    cublasStatus_t rc =
        cublasLtMatmulAlgoGetHeuristic(m->handle, c->desc, c->a, c->b, c->c, c->d, preference, 1, &best, &n);
    c->runs = rc == CUBLAS_STATUS_SUCCESS && n == 1 && best.state == CUBLAS_STATUS_SUCCESS;
    if (c->runs)
        c->algo = best.algo;
    return rc == CUBLAS_STATUS_NOT_SUPPORTED || rc == CUBLAS_STATUS_INVALID_VALUE ? CUBLAS_STATUS_SUCCESS : rc;
}

static cublasStatus_t ask(struct cuda_matmuls *m, struct choice *c, const struct cuda_matmul *p)
{
    cublasLtMatmulPreference_t preference = NULL;
    cublasStatus_t rc = describe(c, p);
    if (rc == CUBLAS_STATUS_SUCCESS)
        rc = cublasLtMatmulPreferenceCreate(&preference);
    if (rc == CUBLAS_STATUS_SUCCESS)
        rc = prefer(preference, &c->key);
    if (rc == CUBLAS_STATUS_SUCCESS)
        rc = choose(m, c, preference);
    if (preference)
        cublasLtMatmulPreferenceDestroy(preference);
    return rc;
}

static struct choice *oldest(struct cuda_matmuls *m)
{
    if (m->nchoice < MOST_CHOICES)
        return &m->choices[m->nchoice++];
    struct choice *c = m->choices;
    for (int i = 1; i < MOST_CHOICES; i++)
        if (m->choices[i].used < c->used)
            c = &m->choices[i];
    choice_clear(c);
    return c;
}

static cublasStatus_t find(struct cuda_matmuls *m, const struct cuda_matmul *p, struct choice **out)
{
    const struct key key = key_of(p);
    cublasStatus_t rc = CUBLAS_STATUS_SUCCESS;
    *out = NULL;
    for (int i = 0; i < m->nchoice && !*out; i++)
        if (memcmp(&m->choices[i].key, &key, sizeof(key)) == 0)
            *out = &m->choices[i];
    if (!*out) {
        *out = oldest(m);
        (*out)->key = key;
        rc = ask(m, *out, p);
    }
    (*out)->used = ++m->clock;
    return rc;
}

bool cuda_matmul_run(struct kern_stream *stream, const struct cuda_matmul *p)
{
    struct choice *c;
    if (!cuda_has_scratch(stream))
        return true;
    cublasStatus_t rc = find(stream->matmuls, p, &c);
    if (rc == CUBLAS_STATUS_SUCCESS && !c->runs)
        return false;
    if (rc == CUBLAS_STATUS_SUCCESS && p->bias)
        rc = cublasLtMatmulDescSetAttribute(c->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &p->bias, sizeof(p->bias));
    if (rc == CUBLAS_STATUS_SUCCESS)
        rc = cublasLtMatmul(stream->matmuls->handle, c->desc, &p->alpha, p->b, c->a, p->a, c->b, &p->beta, p->c, c->c,
                            p->d, c->d, &c->algo, stream->scratch, CUDA_SCRATCH_BYTES, (cudaStream_t)stream->handle);
    if (rc != CUBLAS_STATUS_SUCCESS)
        cuda_fail(stream, KERN_ERR_LIBRARY, "cuBLASLt, %lld x %lld x %lld: %s", (long long)p->m, (long long)p->n,
                  (long long)p->k, cublasLtGetStatusString(rc));
    return true;
}
