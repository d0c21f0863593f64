/* SPDX-License-Identifier: Apache-2.0 */
/* See hosted.h: cuBLASLt as plain loops. Matrices are column-major; D = alpha * op(A) * op(B) + beta * C, plus a bias
 * along D's rows. */
#include "hosted.h"

#include <cublasLt.h>
#include <stdlib.h>
#include <string.h>

struct cublasLtContext {
    int device;
};

struct layout {
    cudaDataType_t type;
    uint64_t nrow, ncol;
    int64_t ld;
};

struct desc {
    cublasOperation_t trans_a, trans_b;
    cublasLtEpilogue_t epilogue;
    int32_t bias_type;
    const void *bias;
};

enum { ALIGNED_A, ALIGNED_B, ALIGNED_C, ALIGNED_D, NOPERANDS };

struct preference {
    uint64_t workspace;
    uint32_t reduction, alignment[NOPERANDS];
};

/* The problem that an algorithm was chosen for; it must not be used for another. */
struct problem {
    struct layout layout[NOPERANDS];
    cublasOperation_t trans_a, trans_b;
    cublasLtEpilogue_t epilogue;
};

struct algo {
    uint64_t problem;
    uint32_t alignment[NOPERANDS];
    uint64_t workspace;
};

_Static_assert(sizeof(struct algo) <= sizeof(cublasLtMatmulAlgo_t), "an algorithm has room");

static void *must(void *p)
{
    if (!p)
        hosted_die("cuBLASLt", "no memory");
    return p;
}

#define ENTER(name) \
    do { \
        const int code = hosted_fails(name, hosted_current()); \
        if (code) \
            return (cublasStatus_t)code; \
    } while (0)

const char *cublasLtGetStatusString(cublasStatus_t status)
{
    return status == CUBLAS_STATUS_NOT_INITIALIZED ? "hosted: not initialized" : "hosted: failed";
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t *out)
{
    ENTER("cublasLtCreate");
    *out = must(malloc(sizeof(**out)));
    (*out)->device = hosted_current();
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle)
{
    free(handle);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *out, cudaDataType type, uint64_t nrow, uint64_t ncol,
                                          int64_t ld)
{
    ENTER("cublasLtMatrixLayoutCreate");
    if (nrow == 0 || ncol == 0 || ld < (int64_t)nrow)
        return CUBLAS_STATUS_INVALID_VALUE;
    struct layout *l = must(calloc(1, sizeof(*l)));
    l->type = type, l->nrow = nrow, l->ncol = ncol, l->ld = ld;
    *out = (cublasLtMatrixLayout_t)l;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t l)
{
    free(l);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *out, cublasComputeType_t compute, cudaDataType_t scale)
{
    ENTER("cublasLtMatmulDescCreate");
    if (compute != CUBLAS_COMPUTE_32F || scale != CUDA_R_32F)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    struct desc *d = must(calloc(1, sizeof(*d)));
    d->trans_a = d->trans_b = CUBLAS_OP_N;
    d->epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    d->bias_type = -1;
    *out = (cublasLtMatmulDesc_t)d;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t d)
{
    free(d);
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t put(void *to, size_t size, const void *value, size_t nbytes)
{
    if (size != nbytes)
        return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(to, value, nbytes);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t name,
                                              const void *value, size_t nbytes)
{
    struct desc *d = (struct desc *)desc;
    ENTER("cublasLtMatmulDescSetAttribute");
    switch (name) {
    case CUBLASLT_MATMUL_DESC_TRANSA: return put(&d->trans_a, sizeof(d->trans_a), value, nbytes);
    case CUBLASLT_MATMUL_DESC_TRANSB: return put(&d->trans_b, sizeof(d->trans_b), value, nbytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE: return put(&d->epilogue, sizeof(d->epilogue), value, nbytes);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE: return put(&d->bias_type, sizeof(d->bias_type), value, nbytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER: return put(&d->bias, sizeof(d->bias), value, nbytes);
    default: return CUBLAS_STATUS_INVALID_VALUE;
    }
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *out)
{
    ENTER("cublasLtMatmulPreferenceCreate");
    struct preference *p = must(calloc(1, sizeof(*p)));
    p->reduction = CUBLASLT_REDUCTION_SCHEME_MASK;
    for (int i = 0; i < NOPERANDS; i++)
        p->alignment[i] = 256;
    *out = (cublasLtMatmulPreference_t)p;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t p)
{
    free(p);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t name, const void *value,
                                                    size_t nbytes)
{
    struct preference *p = (struct preference *)preference;
    ENTER("cublasLtMatmulPreferenceSetAttribute");
    switch (name) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES: return put(&p->workspace, sizeof(p->workspace), value, nbytes);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK: return put(&p->reduction, sizeof(p->reduction), value, nbytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
        return put(&p->alignment[ALIGNED_A], sizeof(uint32_t), value, nbytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
        return put(&p->alignment[ALIGNED_B], sizeof(uint32_t), value, nbytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
        return put(&p->alignment[ALIGNED_C], sizeof(uint32_t), value, nbytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
        return put(&p->alignment[ALIGNED_D], sizeof(uint32_t), value, nbytes);
    default: return CUBLAS_STATUS_INVALID_VALUE;
    }
}

/* --- products */

static size_t size_of(cudaDataType_t type)
{
    return type == CUDA_R_16BF ? 2 : 4;
}

static struct problem problem_of(const struct desc *d, const struct layout *a, const struct layout *b,
                                 const struct layout *c, const struct layout *out)
{
    struct problem p;
    memset(&p, 0, sizeof(p));
    p.layout[ALIGNED_A] = *a, p.layout[ALIGNED_B] = *b, p.layout[ALIGNED_C] = *c, p.layout[ALIGNED_D] = *out;
    p.trans_a = d->trans_a, p.trans_b = d->trans_b, p.epilogue = d->epilogue;
    return p;
}

static uint64_t hash_of(const struct problem *p)
{
    uint64_t hash = 14695981039346656037u;
    for (size_t i = 0; i < sizeof(*p); i++)
        hash = (hash ^ ((const unsigned char *)p)[i]) * 1099511628211u;
    return hash;
}

static uint64_t inner_of(const struct problem *p)
{
    return p->trans_a == CUBLAS_OP_N ? p->layout[ALIGNED_A].ncol : p->layout[ALIGNED_A].nrow;
}

static bool fits(const struct problem *p)
{
    const struct layout *a = &p->layout[ALIGNED_A], *b = &p->layout[ALIGNED_B], *c = &p->layout[ALIGNED_C],
                        *d = &p->layout[ALIGNED_D];
    const bool ta = p->trans_a == CUBLAS_OP_T, tb = p->trans_b == CUBLAS_OP_T;
    return (ta ? a->ncol : a->nrow) == d->nrow && (tb ? b->nrow : b->ncol) == d->ncol &&
           (tb ? b->ncol : b->nrow) == inner_of(p) && c->nrow == d->nrow && c->ncol == d->ncol;
}

static bool has_types(const struct problem *p, const struct desc *d)
{
    const cudaDataType_t in = p->layout[ALIGNED_A].type, out = p->layout[ALIGNED_D].type;
    const bool known =
        (in == CUDA_R_16BF && (out == CUDA_R_16BF || out == CUDA_R_32F)) || (in == CUDA_R_32F && out == CUDA_R_32F);
    return known && p->layout[ALIGNED_B].type == in && p->layout[ALIGNED_C].type == out &&
           (d->epilogue == CUBLASLT_EPILOGUE_DEFAULT || d->bias_type == (int32_t)out);
}

static bool is_refused(const struct problem *p, const struct preference *preference)
{
    bool refused = false;
    for (int i = 0; i < NOPERANDS; i++)
        refused |= preference->alignment[i] < 16 || (size_t)p->layout[i].ld * size_of(p->layout[i].type) % 16 != 0;
    return refused && getenv("FSDPTRAIN_HOSTED_REFUSE");
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int nwanted,
                                              cublasLtMatmulHeuristicResult_t results[], int *nfound)
{
    const struct preference *with = (const struct preference *)preference;
    const struct desc *what = (const struct desc *)desc;
    const struct problem p = problem_of(what, (const struct layout *)a, (const struct layout *)b,
                                        (const struct layout *)c, (const struct layout *)d);
    struct algo algo = { hash_of(&p), { 0 }, with->workspace };
    ENTER("cublasLtMatmulAlgoGetHeuristic");
    *nfound = 0;
    if (!handle || nwanted < 1 || !fits(&p))
        hosted_die("cublasLtMatmulAlgoGetHeuristic", "matrices that do not fit each other");
    if (with->reduction & (CUBLASLT_REDUCTION_SCHEME_INPLACE | CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE))
        hosted_die("cublasLtMatmulAlgoGetHeuristic", "sums by atomics or of rounded parts");
    if (!has_types(&p, what) || is_refused(&p, with))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    memcpy(algo.alignment, with->alignment, sizeof(algo.alignment));
    memset(&results[0], 0, sizeof(results[0]));
    memcpy(&results[0].algo, &algo, sizeof(algo));
    results[0].state = CUBLAS_STATUS_SUCCESS;
    *nfound = 1;
    return CUBLAS_STATUS_SUCCESS;
}

static float load(const void *p, cudaDataType_t type, int64_t i)
{
    float x;
    if (type == CUDA_R_32F)
        return ((const float *)p)[i];
    uint32_t bits = (uint32_t)((const uint16_t *)p)[i] << 16;
    memcpy(&x, &bits, sizeof(x));
    return x;
}

static void store(void *p, cudaDataType_t type, int64_t i, float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    if (type == CUDA_R_32F)
        ((float *)p)[i] = x;
    else
        ((uint16_t *)p)[i] =
            (uint16_t)((bits & 0x7fffffff) > 0x7f800000 ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* Checks that an operand lies on its device, with the promised alignment. */
static void look(const void *p, const struct layout *l, uint32_t alignment, int device)
{
    hosted_reach("cublasLtMatmul", p, ((size_t)l->ld * (l->ncol - 1) + l->nrow) * size_of(l->type), device);
    if ((uintptr_t)p % alignment != 0)
        hosted_die("cublasLtMatmul", "less aligned than was promised");
}

static float sum(const struct problem *p, const void *a, const void *b, int64_t row, int64_t col)
{
    const struct layout *la = &p->layout[ALIGNED_A], *lb = &p->layout[ALIGNED_B];
    const int64_t step_a = p->trans_a == CUBLAS_OP_T ? 1 : la->ld, step_b = p->trans_b == CUBLAS_OP_T ? lb->ld : 1;
    const int64_t from_a = p->trans_a == CUBLAS_OP_T ? row * la->ld : row,
                  from_b = p->trans_b == CUBLAS_OP_T ? col : col * lb->ld;
    float total = 0;
    for (int64_t k = 0; k < (int64_t)inner_of(p); k++)
        total += load(a, la->type, from_a + k * step_a) * load(b, lb->type, from_b + k * step_b);
    return total;
}

struct product {
    struct problem p;
    const void *bias, *a, *b, *c;
    void *d;
    float alpha, beta;
};

static void multiply(const void *what)
{
    const struct product *x = what;
    const struct layout *lc = &x->p.layout[ALIGNED_C], *ld = &x->p.layout[ALIGNED_D];
    for (int64_t col = 0; col < (int64_t)ld->ncol; col++)
        for (int64_t row = 0; row < (int64_t)ld->nrow; row++) {
            float y = x->alpha * sum(&x->p, x->a, x->b, row, col);
            if (x->beta != 0)
                y += x->beta * load(x->c, lc->type, col * lc->ld + row);
            if (x->p.epilogue == CUBLASLT_EPILOGUE_BIAS)
                y += load(x->bias, ld->type, row);
            store(x->d, ld->type, col * ld->ld + row, y);
        }
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void *alpha, const void *a,
                              cublasLtMatrixLayout_t a_layout, const void *b, cublasLtMatrixLayout_t b_layout,
                              const void *beta, const void *c, cublasLtMatrixLayout_t c_layout, void *d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t *algorithm, void *workspace,
                              size_t nbytes, cudaStream_t stream)
{
    const struct desc *what = (const struct desc *)desc;
    const struct layout *ld = (const struct layout *)d_layout, *lc = (const struct layout *)c_layout;
    const struct problem p = problem_of(what, (const struct layout *)a_layout, (const struct layout *)b_layout, lc, ld);
    struct algo algo;
    memcpy(&algo, algorithm, sizeof(algo));
    ENTER("cublasLtMatmul");
    if (hosted_stream_device(stream) != hosted_current() || handle->device != hosted_current())
        return CUBLAS_STATUS_EXECUTION_FAILED;
    if (algo.problem != hash_of(&p) || nbytes < algo.workspace || (uintptr_t)workspace % 256 != 0 ||
        (c == d && lc->ld != ld->ld))
        return CUBLAS_STATUS_INVALID_VALUE;
    hosted_reach("cublasLtMatmul", workspace, nbytes, handle->device);
    look(a, &p.layout[ALIGNED_A], algo.alignment[ALIGNED_A], handle->device);
    look(b, &p.layout[ALIGNED_B], algo.alignment[ALIGNED_B], handle->device);
    look(c, lc, algo.alignment[ALIGNED_C], handle->device);
    look(d, ld, algo.alignment[ALIGNED_D], handle->device);
    if (what->epilogue == CUBLASLT_EPILOGUE_BIAS)
        hosted_reach("cublasLtMatmul", what->bias, ld->nrow * size_of(ld->type), handle->device);
    const struct product product = { p, what->bias, a, b, c, d, *(const float *)alpha, *(const float *)beta };
    hosted_do(stream, multiply, &product, sizeof(product));
    return CUBLAS_STATUS_SUCCESS;
}
