/* SPDX-License-Identifier: Apache-2.0 */
/* Names of the table of one instruction set, and of the functions that other files of simd/ contribute. SIMD_SET is
 * base, avx2 or avx512. */
#ifndef SIMD_TABLE_H
#define SIMD_TABLE_H

#include "cpu/simd.h"

#define SIMD_JOIN2(a, b) a##b
#define SIMD_JOIN(a, b)  SIMD_JOIN2(a, b)
#define SIMD_TEXT2(a)    #a
#define SIMD_TEXT(a)     SIMD_TEXT2(a)

#define SIMD_NAME            SIMD_TEXT(SIMD_SET)
#define SIMD_TABLE           SIMD_JOIN(cpu_simd_, SIMD_SET)
#define SIMD_DROPOUT         SIMD_JOIN(cpu_dropout_, SIMD_SET)
#define SIMD_DOT_ROWS        SIMD_JOIN(cpu_dot_rows_, SIMD_SET)
#define SIMD_ADD_SCALED_ROWS SIMD_JOIN(cpu_add_scaled_rows_, SIMD_SET)
#define SIMD_SCALE_E4M3      SIMD_JOIN(cpu_scale_e4m3_, SIMD_SET)
#define SIMD_SCALE_NIBBLES   SIMD_JOIN(cpu_scale_nibbles_, SIMD_SET)

void SIMD_DROPOUT(float *y, const float *x, float p, float keep, const struct kern_philox *rng, uint64_t index,
                  int64_t n);
void SIMD_DOT_ROWS(float *y, const uint16_t *w, int64_t pitch, const float *x, int64_t nrow, int64_t n);
void SIMD_ADD_SCALED_ROWS(float *y, const uint16_t *w, int64_t pitch, const float *factors, int64_t nrow, int64_t n);
void SIMD_SCALE_E4M3(uint16_t *dst, const uint8_t *codes, float scale, int64_t n);
void SIMD_SCALE_NIBBLES(uint16_t *dst, const uint8_t *codes, const float values[16], float scale, int64_t first,
                        int64_t n);

#endif
