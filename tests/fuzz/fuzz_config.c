/* SPDX-License-Identifier: Apache-2.0 */
/* Rewrites the dtypes of a config.json. Properties: valid JSON stays valid; only dtypes change; a second rewrite
 * changes nothing; the reported embedding tie agrees with jansson. */
#include <string.h>

#include <jansson.h>

#include "hf/config.h"
#include "fuzz.h"

static bool is_model(const char *key)
{
    const char *end = strlen(key) > 7 ? key + strlen(key) - 7 : "";
    return strcmp(end, "_config") == 0 && strcmp(key, "quantization_config") != 0;
}

static void drop_dtypes(json_t *object)
{
    json_object_del(object, "torch_dtype");
    json_object_del(object, "dtype");
}

/* Returns true if a and b are equal except for dtypes, including those of nested models. */
static bool same_otherwise(json_t *a, json_t *b)
{
    json_t *both[2] = { a, b }, *value;
    const char *key;
    for (int i = 0; i < 2; i++) {
        drop_dtypes(both[i]);
        json_object_foreach (both[i], key, value)
            if (is_model(key) && json_is_object(value))
                drop_dtypes(value);
    }
    return json_equal(a, b);
}

static void check_result(const char *text, size_t nbytes, const char *out, uint64_t out_nbytes)
{
    struct fsdpck_error err = { 0 };
    char *again;
    uint64_t again_nbytes;
    FUZZ_CHECK(strlen(out) <= out_nbytes);
    FUZZ_CHECK(fsdpck_config_set_dtype("config.json", out, out_nbytes, "bfloat16", &again, &again_nbytes, &err) == 0);
    FUZZ_CHECK(again_nbytes == out_nbytes && memcmp(again, out, out_nbytes) == 0);
    free(again);
    json_t *before = json_loadb(text, nbytes, 0, NULL), *after = json_loadb(out, out_nbytes, 0, NULL);
    if (before) { /* jansson refuses some numbers */
        FUZZ_CHECK(after && (json_object_get(after, "torch_dtype") || json_object_get(after, "dtype")));
        FUZZ_CHECK(same_otherwise(before, after));
    }
    json_decref(before);
    json_decref(after);
}

static void check_tied(const char *text, size_t nbytes)
{
    struct fsdpck_error err = { 0 };
    bool tied = false;
    int r = fsdpck_config_tied("config.json", text, nbytes, &tied, &err);
    FUZZ_CHECK(r == err.code);
    json_t *root = json_loadb(text, nbytes, 0, NULL), *own = json_object_get(root, "tie_word_embeddings");
    if (!own || json_is_null(own))
        own = json_object_get(json_object_get(root, "text_config"), "tie_word_embeddings");
    FUZZ_CHECK(r != 0 || !root || tied == json_is_true(own));
    json_decref(root);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes)
{
    struct fsdpck_error err = { 0 };
    char *text = fuzz_text(data, nbytes), *out;
    uint64_t out_nbytes;
    int r = fsdpck_config_set_dtype("config.json", text, nbytes, "bfloat16", &out, &out_nbytes, &err);
    FUZZ_CHECK(r == err.code);
    if (r == 0) {
        check_result(text, nbytes, out, out_nbytes);
        free(out);
    }
    check_tied(text, nbytes);
    free(text);
    return 0;
}
