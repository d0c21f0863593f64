/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the fuzz targets. A target is one file with LLVMFuzzerTestOneInput(), which libFuzzer or replay.c calls. A
 * violated property aborts the process, which both detect. */
#ifndef TESTS_FUZZ_H
#define TESTS_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes);

/* Aborts also in builds without assert(). */
#define FUZZ_CHECK(condition) \
    do { \
        if (!(condition)) { \
            fprintf(stderr, "%s:%d: does not hold: %s\n", __FILE__, __LINE__, #condition); \
            abort(); \
        } \
    } while (0)

/* Copies the input: with a NUL appended, or exactly, so that a sanitizer detects reads beyond it. Caller frees. */
char *fuzz_text(const uint8_t *data, size_t nbytes);
uint8_t *fuzz_copy(const uint8_t *data, size_t nbytes);

/* Draws choices from the start of the input; 0 when it is used up. */
struct fuzz_bytes {
    const uint8_t *at;
    size_t nbytes;
};
uint8_t fuzz_byte(struct fuzz_bytes *b);
uint64_t fuzz_below(struct fuzz_bytes *b, uint64_t n); /* 0 … n-1; n up to 2^16 */

#endif
