/* The small product inside attention: up to MR rows by NV vectors of C are held in registers while k runs. Compiled once for each instruction set. */
#include "cpu/simd/table.h"
#include "cpu/simd/vec.h"

#if defined(__AVX512F__)
enum { MR = 6, NV = 4 }; /* 24 of 32 registers hold C */
#elif defined(__AVX2__)
enum { MR = 6, NV = 2 }; /* 12 of 16 */
#else
enum { MR = 6, NV = 2 };
#endif

#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 8")
#endif

/* A's strides and B's. */
struct strides {
    int row_a, col_a, ldb, ldc;
};

INLINE void block(const int mr, const int nv, int k, const float *a, const float *b, float *c, struct strides s, bool accumulate)
{
    vf sum[MR][NV];
UNROLL
    for (int i = 0; i < mr; i++)
UNROLL
        for (int j = 0; j < nv; j++)
            sum[i][j] = accumulate ? vload(c + i * s.ldc + j * VL) : (vf){0};
    for (int l = 0; l < k; l++) {
        vf row[NV];
UNROLL
        for (int j = 0; j < nv; j++)
            row[j] = vload(b + (int64_t)l * s.ldb + j * VL);
UNROLL
        for (int i = 0; i < mr; i++) {
            vf x = vset(a[i * s.row_a + l * s.col_a]);
UNROLL
            for (int j = 0; j < nv; j++)
                sum[i][j] += x * row[j];
        }
    }
UNROLL
    for (int i = 0; i < mr; i++)
UNROLL
        for (int j = 0; j < nv; j++)
            vstore(c + i * s.ldc + j * VL, sum[i][j]);
}

INLINE void rows(const int nv, int m, int k, const float *a, const float *b, float *c, struct strides s, bool accumulate)
{
    for (; m >= MR; m -= MR, a += MR * s.row_a, c += MR * s.ldc)
        block(MR, nv, k, a, b, c, s, accumulate);
    switch (m) {
    case 5: block(5, nv, k, a, b, c, s, accumulate); break;
    case 4: block(4, nv, k, a, b, c, s, accumulate); break;
    case 3: block(3, nv, k, a, b, c, s, accumulate); break;
    case 2: block(2, nv, k, a, b, c, s, accumulate); break;
    case 1: block(1, nv, k, a, b, c, s, accumulate); break;
    default: break;
    }
}

void SIMD_TILE(int m, int n, int k, const float *a, int row_a, int col_a, const float *b, int ldb, float *c, int ldc, bool accumulate)
{
    struct strides s = {row_a, col_a, ldb, ldc};
    int j = 0;
    for (; j + NV * VL <= n; j += NV * VL)
        rows(NV, m, k, a, b + j, c + j, s, accumulate);
    for (; j < n; j += VL)
        rows(1, m, k, a, b + j, c + j, s, accumulate);
}
