/* SPDX-License-Identifier: Apache-2.0 */
/* index.json of an fsdpck directory. The input is the document without its last 43 bytes: the target appends the hash,
 * as otherwise no change would get past it. The shard files beside it are valid. */
#include <string.h>

#include "base/json_write.h"
#include "fuzz.h"
#include "fuzz_source.h"
#include "format/index.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes)
{
    struct memory_io m;
    struct fsdpck_hash128 hash;
    memory_io_init(&m);
    fuzz_add_folder(&m, "tests/fuzz/beside/fsdpck");
    char *text = malloc(nbytes + FSDPCK_INDEX_TAIL_NBYTES + 1), *tail = text + nbytes;
    FUZZ_CHECK(text);
    if (nbytes)
        memcpy(text, data, nbytes);
    fsdpck_hash(text, nbytes, &hash);
    memcpy(tail, "\"hash\":\"", 8);
    memcpy(fsdpck_hex_format(hash.bytes, sizeof hash.bytes, tail + 8), "\"}\n", 3);
    memory_io_add(&m, MEMORY_ROOT "/index.json", text, nbytes + FSDPCK_INDEX_TAIL_NBYTES);
    fuzz_source(&m, MEMORY_ROOT, "fsdpck");
    free(text);
    return 0;
}
