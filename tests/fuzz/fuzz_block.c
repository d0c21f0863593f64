/* SPDX-License-Identifier: Apache-2.0 */
/* One stored block. Properties: any bytes decode to exactly the expected size or are refused; encoding and decoding any
 * bytes gives them back. The input begins with a dtype and the decoded size (one byte, and two). */
#include "base/block_codec.h"
#include "base/hash.h"
#include "fuzz.h"

#include <string.h>

static void check_there_and_back(const struct fsdpck_planes *p, const uint8_t *data, uint32_t nbytes)
{
    struct fsdpck_encoder *e = fsdpck_encoder_new();
    struct fsdpck_decoder *d = fsdpck_decoder_new();
    uint8_t *stored = malloc(nbytes), *back = malloc(nbytes);
    FUZZ_CHECK(e && d && stored && back);
    uint32_t n = fsdpck_block_encode(e, p, data, nbytes, stored);
    FUZZ_CHECK(n > 0 && n <= nbytes);
    FUZZ_CHECK(fsdpck_block_decode(d, p, stored, n, back, nbytes) && memcmp(back, data, nbytes) == 0);
    free(stored);
    free(back);
    fsdpck_encoder_free(e);
    fsdpck_decoder_free(d);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes)
{
    struct fuzz_bytes in = { data, nbytes };
    struct fsdpck_planes p = fsdpck_planes_of((enum fsdpck_dtype)fuzz_below(&in, FSDPCK_NDTYPES));
    uint32_t decoded = 1 + (uint32_t)fuzz_below(&in, FSDPCK_BLOCK_NBYTES),
             stored = (uint32_t)(in.nbytes < decoded ? in.nbytes : decoded);
    uint8_t *copy = fuzz_copy(in.at, stored), *out = malloc(decoded);
    struct fsdpck_decoder *d = fsdpck_decoder_new();
    FUZZ_CHECK(d && out && copy);
    if (stored > 0)
        fsdpck_block_decode(d, &p, copy, stored, out, decoded);
    if (stored >= p.unit)
        check_there_and_back(&p, copy, stored / p.unit * p.unit);
    fsdpck_decoder_free(d);
    free(copy);
    free(out);
    return 0;
}
