/* SPDX-License-Identifier: Apache-2.0 */
/* Reads quantization_config with the pull reader. Takes only what says how weights are stored; the lists of modules are
 * not read, because the tensors themselves say which weights are quantized. */
#include "quant/config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json_read.h"

/* Reads a number; 0 if the value is null, negative, fractional or something else. */
static uint64_t number(struct fsdpck_json *j)
{
    bool is_number = fsdpck_json_peek(j) == FSDPCK_JSON_NUMBER;
    const char *text;
    size_t nbytes;
    char digits[24] = "";
    fsdpck_json_raw(j, &text, &nbytes);
    if (j->failed || !is_number || nbytes >= sizeof digits)
        return 0;
    memcpy(digits, text, nbytes);
    return strspn(digits, "0123456789") == nbytes ? strtoull(digits, NULL, 10) : 0;
}

/* Reads a string; anything else is "". */
static void word(struct fsdpck_json *j, char *out, size_t nbytes)
{
    *out = '\0';
    if (fsdpck_json_peek(j) != FSDPCK_JSON_STRING) {
        fsdpck_json_skip(j);
        return;
    }
    const char *s = fsdpck_json_string(j);
    snprintf(out, nbytes, "%s", s ? s : "");
}

/* Reads [rows, columns]; anything else leaves zeros. */
static void pair(struct fsdpck_json *j, uint64_t out[2])
{
    uint64_t v[3] = { 0 };
    size_t n = 0;
    if (fsdpck_json_peek(j) != FSDPCK_JSON_ARRAY) {
        fsdpck_json_skip(j);
        return;
    }
    fsdpck_json_array(j);
    while (fsdpck_json_next_item(j)) {
        v[n] = number(j);
        n += n < 2;
    }
    out[0] = v[0];
    out[1] = v[1];
}

static void add_scheme(struct fsdpck_quant_config *c, const struct fsdpck_quant_scheme *s, struct fsdpck_json *j)
{
    if (c->nschemes == FSDPCK_QUANT_MAX_SCHEMES) {
        fsdpck_json_fail(j, FSDPCK_ERR_LIMIT, "has more than %d groups of quantized modules", FSDPCK_QUANT_MAX_SCHEMES);
        return;
    }
    c->schemes[c->nschemes++] = *s;
}

static bool opens(struct fsdpck_json *j)
{
    if (fsdpck_json_peek(j) == FSDPCK_JSON_OBJECT)
        return fsdpck_json_object(j);
    fsdpck_json_skip(j);
    return false;
}

/* One group of compressed-tensors: {"targets": …, "weights": {"num_bits": 8, …}}. */
static void read_group(struct fsdpck_json *j, struct fsdpck_quant_config *c)
{
    const char *key;
    if (!opens(j))
        return;
    while (fsdpck_json_next_key(j, &key)) {
        struct fsdpck_quant_scheme s = { 0 };
        if (strcmp(key, "weights") != 0) {
            fsdpck_json_skip(j);
            continue;
        }
        if (!opens(j))
            continue;
        while (fsdpck_json_next_key(j, &key)) {
            if (strcmp(key, "num_bits") == 0)
                s.bits = number(j);
            else if (strcmp(key, "group_size") == 0)
                s.group = number(j);
            else if (strcmp(key, "block_structure") == 0)
                pair(j, s.block);
            else
                fsdpck_json_skip(j);
        }
        add_scheme(c, &s, j);
    }
}

static void read_groups(struct fsdpck_json *j, struct fsdpck_quant_config *c)
{
    const char *key;
    if (!opens(j))
        return;
    while (fsdpck_json_next_key(j, &key))
        read_group(j, c);
}

static void read_quantization(struct fsdpck_json *j, struct fsdpck_quant_config *c)
{
    struct fsdpck_quant_scheme own = { 0 };
    char text[48];
    const char *key;
    if (!opens(j))
        return;
    c->present = true;
    while (fsdpck_json_next_key(j, &key)) {
        if (strcmp(key, "quant_method") == 0) {
            word(j, c->method, sizeof c->method);
        } else if (strcmp(key, "checkpoint_format") == 0) {
            word(j, text, sizeof text);
            c->gptq_v2 = strcmp(text, "gptq_v2") == 0;
        } else if (strcmp(key, "scale_fmt") == 0) {
            word(j, text, sizeof text);
            c->ue8m0 = strcmp(text, "ue8m0") == 0;
        } else if (strcmp(key, "weight_block_size") == 0) {
            pair(j, own.block);
        } else if (strcmp(key, "bits") == 0 || strcmp(key, "w_bit") == 0) {
            own.bits = number(j);
        } else if (strcmp(key, "group_size") == 0 || strcmp(key, "q_group_size") == 0) {
            own.group = number(j);
        } else if (strcmp(key, "config_groups") == 0) {
            read_groups(j, c);
        } else {
            fsdpck_json_skip(j);
        }
    }
    if (own.bits || own.group || own.block[0])
        add_scheme(c, &own, j);
}

static bool names_quantization(const char *key)
{
    return strcmp(key, "quantization_config") == 0 || strcmp(key, "compression_config") == 0;
}

/* A model within the model may have it: text_config. */
static bool names_model(const char *key)
{
    size_t n = strlen(key), k = strlen("_config");
    return n > k && strcmp(key + n - k, "_config") == 0;
}

static void read_model(struct fsdpck_json *j, int depth, struct fsdpck_quant_config *c)
{
    const char *key;
    while (fsdpck_json_next_key(j, &key)) {
        if (names_quantization(key)) {
            read_quantization(j, c);
        } else if (depth == 0 && strcmp(key, "quantization") == 0) { /* hf_quant_config.json */
            read_quantization(j, c);
            if (c->present && !*c->method)
                strcpy(c->method, "modelopt");
        } else if (depth == 0 && names_model(key) && fsdpck_json_peek(j) == FSDPCK_JSON_OBJECT) {
            fsdpck_json_object(j);
            read_model(j, 1, c);
        } else {
            fsdpck_json_skip(j);
        }
    }
}

int fsdpck_quant_config_read(const char *file, const char *text, size_t nbytes, struct fsdpck_quant_config *out,
                             struct fsdpck_error *err)
{
    struct fsdpck_json j;
    struct fsdpck_error own = { 0 };
    *out = (struct fsdpck_quant_config){ 0 };
    fsdpck_json_begin(&j, file, 0, text, nbytes, err ? err : (err = &own));
    fsdpck_json_object(&j);
    read_model(&j, 0, out);
    fsdpck_json_end(&j);
    fsdpck_json_free(&j);
    return j.failed ? err->code : 0;
}
