/* SPDX-License-Identifier: Apache-2.0 */
/* A Hugging Face folder: the input is its model.safetensors.index.json, beside two valid files and a config.json. */
#include <string.h>

#include "fuzz.h"
#include "fuzz_source.h"

#define ONE "{\"model.embed_tokens.weight\":{\"dtype\":\"BF16\",\"shape\":[2,2],\"data_offsets\":[0,8]}}"
#define TWO \
    "{\"a\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]},\"b\":{\"dtype\":\"I64\",\"shape\":[],\"data_" \
    "offsets\":[3,11]}}"

struct sound {
    uint8_t bytes[256];
    size_t nbytes;
};

static void make(struct sound *s, const char *header, size_t payload_nbytes)
{
    size_t n = strlen(header);
    s->nbytes = 8 + n + payload_nbytes;
    FUZZ_CHECK(s->nbytes <= sizeof s->bytes && n < 256);
    s->bytes[0] = (uint8_t)n;
    memcpy(s->bytes + 8, header, n);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes)
{
    static const char config[] = "{\"tie_word_embeddings\": true}";
    struct sound one = { 0 }, two = { 0 };
    struct memory_io m;
    make(&one, ONE, 8);
    make(&two, TWO, 11);
    memory_io_init(&m);
    memory_io_add(&m, MEMORY_ROOT "/model.safetensors.index.json", data, nbytes);
    memory_io_add(&m, MEMORY_ROOT "/model-1.safetensors", one.bytes, one.nbytes);
    memory_io_add(&m, MEMORY_ROOT "/model-2.safetensors", two.bytes, two.nbytes);
    memory_io_add(&m, MEMORY_ROOT "/config.json", config, sizeof config - 1);
    fuzz_source(&m, MEMORY_ROOT, NULL);
    return 0;
}
