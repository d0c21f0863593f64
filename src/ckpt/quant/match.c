/* SPDX-License-Identifier: Apache-2.0 */
/* The forms in which quantized weights are stored, as a table of names and dtypes, and the search for a weight's parts.
 */
#include "quant/weights.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/suffix.h"

#define BIT(dtype) (1u << (dtype))
enum {
    E4M3 = BIT(FSDPCK_FLOAT8_E4M3FN),
    E8M0 = BIT(FSDPCK_FLOAT8_E8M0FNU) | BIT(FSDPCK_UINT8),
    REAL = BIT(FSDPCK_FLOAT32) | BIT(FSDPCK_BFLOAT16) | BIT(FSDPCK_FLOAT16),
    F32 = BIT(FSDPCK_FLOAT32),
    U8 = BIT(FSDPCK_UINT8),
    I8 = BIT(FSDPCK_INT8),
    I32 = BIT(FSDPCK_INT32),
    I64 = BIT(FSDPCK_INT64),
    PAIRS = BIT(FSDPCK_UINT8) | BIT(FSDPCK_INT8) | BIT(FSDPCK_FLOAT4_E2M1FN_X2),
    STORAGE = U8 | REAL, /* bnb_4bit_quant_storage */
};

/* A part's name is the weight's with `suffix` after it; if the suffix begins with '~', the rest of it in place of the
 * weight's last word. */
struct part_rule {
    enum fsdpck_quant_part part;
    const char *suffix;
    unsigned dtypes;
    bool optional;
};

#define PART(name, suffix, dtypes) \
    { \
        FSDPCK_QUANT_##name, suffix, dtypes, false \
    }
#define OPTIONAL(name, suffix, dtypes) \
    { \
        FSDPCK_QUANT_##name, suffix, dtypes, true \
    }
/* The two forms of bitsandbytes with 4 bits differ in the name of their JSON. */
#define BNB_4BIT(what, state) \
    { \
        what, "", STORAGE, FSDPCK_DECODE_NIBBLE, FSDPCK_PACK_HIGH, FSDPCK_SCALE_FLOAT, true, \
        { \
            PART(SCALE, ".absmax", F32 | U8), PART(MAP, ".quant_map", F32), PART(STATE, state, U8), \
                OPTIONAL(NESTED, ".nested_absmax", F32), OPTIONAL(NESTED_MAP, ".nested_quant_map", F32) \
        } \
    }
/* Two E2M1 codes a byte, low nibble first. */
#define E2M1(what, codes, dtypes, rule, ...) \
    { \
        what, codes, dtypes, FSDPCK_DECODE_NIBBLE, FSDPCK_PACK_NIBBLES, rule, true, \
        { \
            __VA_ARGS__ \
        } \
    }
#define FP8(what, rule, has_blocks, ...) \
    { \
        what, "", E4M3, FSDPCK_DECODE_E4M3, FSDPCK_PACK_BYTES, rule, has_blocks, \
        { \
            __VA_ARGS__ \
        } \
    }

static const struct form {
    const char *what, *codes; /* the suffix of the codes */
    unsigned dtypes;
    enum fsdpck_decode_code code;
    enum fsdpck_quant_packing packing;
    enum fsdpck_quant_rule rule;
    bool has_blocks;
    struct part_rule parts[5];
} forms[] = {
    BNB_4BIT("bitsandbytes NF4", ".quant_state.bitsandbytes__nf4"),
    BNB_4BIT("bitsandbytes FP4", ".quant_state.bitsandbytes__fp4"),
    { "bitsandbytes int8",
      "",
      I8,
      FSDPCK_DECODE_INT8,
      FSDPCK_PACK_BYTES,
      FSDPCK_SCALE_127TH,
      false,
      { PART(SCALE, "~SCB", F32), OPTIONAL(STATE, "~weight_format", U8) } },
    { "GPTQ or AWQ",
      "~qweight",
      I32,
      FSDPCK_DECODE_NIBBLE,
      FSDPCK_PACK_AWQ,
      FSDPCK_SCALE_FLOAT,
      false,
      { PART(SCALE, "~scales", REAL), PART(ZERO, "~qzeros", I32), OPTIONAL(INDEX, "~g_idx", I32) } },
    { "packed integers of compressed-tensors",
      "_packed",
      I32,
      FSDPCK_DECODE_NIBBLE,
      FSDPCK_PACK_NIBBLES,
      FSDPCK_SCALE_FLOAT,
      false,
      { PART(SCALE, "_scale", REAL), PART(SHAPE, "_shape", I64), OPTIONAL(ZERO, "_zero_point", I32),
        OPTIONAL(INDEX, "_g_idx", I32) } },
    E2M1("NVFP4 of compressed-tensors", "_packed", PAIRS, FSDPCK_SCALE_DIVIDED, PART(SCALE, "_scale", E4M3),
         PART(GLOBAL, "_global_scale", F32)),
    E2M1("MXFP4 of compressed-tensors", "_packed", PAIRS, FSDPCK_SCALE_E8M0, PART(SCALE, "_scale", E8M0)),
    E2M1("MXFP4 of gpt-oss", "_blocks", U8, FSDPCK_SCALE_E8M0, PART(SCALE, "_scales", E8M0)),
    E2M1("NVFP4 of modelopt", "", PAIRS, FSDPCK_SCALE_TIMES, PART(SCALE, "_scale", E4M3),
         PART(GLOBAL, "_scale_2", F32)),
    E2M1("MXFP4", "", PAIRS, FSDPCK_SCALE_E8M0, PART(SCALE, "_scale", E8M0)),
    E2M1("MXFP4", "", PAIRS, FSDPCK_SCALE_E8M0, PART(SCALE, "~scale", E8M0)),
    FP8("block FP8", FSDPCK_SCALE_FLOAT, true, PART(SCALE, "_scale_inv", REAL | E8M0)),
    FP8("block FP8", FSDPCK_SCALE_FLOAT, true, PART(SCALE, "~scale", REAL | E8M0)),
    FP8("block FP8", FSDPCK_SCALE_FLOAT, true, PART(SCALE, "~qscale_weight", REAL | E8M0)),
    FP8("MXFP8", FSDPCK_SCALE_E8M0, true, PART(SCALE, "_scale", E8M0)),
    FP8("FP8", FSDPCK_SCALE_FLOAT, false, PART(SCALE, "_scale", REAL)),
};

int fsdpck_quant_refuse(const struct fsdpck_source *src, size_t ordinal, struct fsdpck_error *err, const char *fmt, ...)
{
    char text[600];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    int rc = fsdpck_error_set(err, FSDPCK_ERR_FORMAT, src->path, "%s", text);
    fsdpck_error_tensor(err, source_tensors(src)[ordinal].name);
    return rc;
}

/* Returns the weight's name for codes with this name, in the arena; NULL: the suffix is another, or err is set. */
static const char *weight_name(const char *name, const char *suffix, struct fsdpck_arena *arena,
                               struct fsdpck_error *err)
{
    static const char leaf[] = "weight";
    size_t n = strlen(name), k = strlen(suffix);
    if (*suffix != '~')
        return k == 0 ? name : ends_with(name, suffix) ? fsdpck_arena_strndup(arena, name, n - k, err) : NULL;
    if (strcmp(name, suffix + 1) != 0 && !(ends_with(name, suffix + 1) && name[n - k] == '.'))
        return NULL;
    char *out = fsdpck_arena_alloc(arena, n - (k - 1) + sizeof leaf, err);
    if (out) {
        memcpy(out, name, n - (k - 1));
        memcpy(out + n - (k - 1), leaf, sizeof leaf);
    }
    return out;
}

/* Returns the ordinal of a part, or SIZE_MAX. */
static size_t find_part(const struct fsdpck_source *src, const char *weight, const char *suffix)
{
    char name[2048];
    const char *dot = strrchr(weight, '.');
    size_t stem = *suffix != '~' ? strlen(weight) : dot ? (size_t)(dot + 1 - weight) : 0;
    int n = snprintf(name, sizeof name, "%.*s%s", (int)stem, weight, suffix + (*suffix == '~'));
    return n > 0 && (size_t)n < sizeof name ? fsdpck_names_find(&src->names, name) : SIZE_MAX;
}

static bool has_dtype(const struct fsdpck_source *src, size_t ordinal, unsigned dtypes)
{
    return (dtypes >> source_tensors(src)[ordinal].dtype & 1) != 0;
}

/* Sets *fits to whether all parts that the form must have are there. An optional part of another dtype is refused:
 * without it, the weight would have other values. */
static int find_parts(const struct fsdpck_source *src, const struct form *f, struct fsdpck_quant_weight *w, bool *fits,
                      struct fsdpck_error *err)
{
    size_t odd = SIZE_MAX;
    *fits = false;
    for (size_t i = 0; i < sizeof f->parts / sizeof *f->parts && f->parts[i].suffix; i++) {
        const struct part_rule *p = &f->parts[i];
        size_t ordinal = find_part(src, w->name, p->suffix);
        bool there = ordinal != SIZE_MAX && has_dtype(src, ordinal, p->dtypes);
        if (!there && !p->optional)
            return 0;
        w->part[p->part] = there ? ordinal : SIZE_MAX;
        if (!there && ordinal != SIZE_MAX)
            odd = ordinal;
    }
    if (odd != SIZE_MAX)
        return fsdpck_quant_refuse(src, odd, err, "is %s; a part of %s with this name is never of that dtype",
                                   fsdpck_dtype_info(source_tensors(src)[odd].dtype)->name, f->what);
    *fits = true;
    return 0;
}

static void clear_parts(struct fsdpck_quant_weight *w, size_t codes)
{
    for (int i = 0; i < FSDPCK_QUANT_NPARTS; i++)
        w->part[i] = SIZE_MAX;
    w->part[FSDPCK_QUANT_CODES] = codes;
}

/* Codes under a name, or of a dtype, that nothing but codes has. */
static bool must_match(const struct fsdpck_tensor *t)
{
    static const char *const suffixes[] = { "weight_packed", ".qweight", "_proj_blocks" };
    for (size_t i = 0; i < sizeof suffixes / sizeof *suffixes; i++)
        if (ends_with(t->name, suffixes[i]))
            return true;
    return t->dtype == FSDPCK_FLOAT8_E4M3FN && !ends_with(t->name, "_scale");
}

/* Lists the endings that the scales of such codes may have: of forms whose codes have a suffix, or of the others. */
static int list_wanted(const struct fsdpck_source *src, size_t ordinal, bool suffixed, struct fsdpck_arena *arena,
                       char *out, size_t nbytes, struct fsdpck_error *err)
{
    size_t used = 0;
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        const char *suffix = forms[i].parts[0].suffix + (*forms[i].parts[0].suffix == '~');
        char quoted[64];
        bool fits = *forms[i].codes ? suffixed : !suffixed;
        if (!fits || !has_dtype(src, ordinal, forms[i].dtypes) ||
            !weight_name(source_tensors(src)[ordinal].name, forms[i].codes, arena, err))
            continue;
        snprintf(quoted, sizeof quoted, "'%s'", suffix);
        if (!strstr(out, quoted) && used < nbytes)
            used += (size_t)snprintf(out + used, nbytes - used, "%s%s", used ? " or " : "", quoted);
    }
    return err->code;
}

static int refuse_alone(const struct fsdpck_source *src, size_t ordinal, struct fsdpck_arena *arena,
                        struct fsdpck_error *err)
{
    const struct fsdpck_tensor *t = &source_tensors(src)[ordinal];
    char wanted[300] = "";
    int rc = list_wanted(src, ordinal, true, arena, wanted, sizeof wanted, err);
    if (!rc && !*wanted)
        rc = list_wanted(src, ordinal, false, arena, wanted, sizeof wanted, err);
    if (rc)
        return rc;
    if (!*wanted)
        return fsdpck_quant_refuse(src, ordinal, err, "has the name of quantized codes, which are never %s",
                                   fsdpck_dtype_info(t->dtype)->name);
    return fsdpck_quant_refuse(src, ordinal, err,
                               "holds codes (%s) without the scales that belong to them: wanted a tensor beside it "
                               "whose name ends in %s",
                               fsdpck_dtype_info(t->dtype)->name, wanted);
}

int fsdpck_quant_match(const struct fsdpck_source *src, size_t ordinal, struct fsdpck_arena *arena,
                       struct fsdpck_quant_weight *out, bool *found, struct fsdpck_error *err)
{
    const struct fsdpck_tensor *t = &source_tensors(src)[ordinal];
    *found = false;
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        const struct form *f = &forms[i];
        *out = (struct fsdpck_quant_weight){
            .form = f->what, .code = f->code, .packing = f->packing, .rule = f->rule, .has_blocks = f->has_blocks
        };
        clear_parts(out, ordinal);
        if (!has_dtype(src, ordinal, f->dtypes))
            continue;
        out->name = weight_name(t->name, f->codes, arena, err);
        if (err->code)
            return err->code;
        int rc = out->name ? find_parts(src, f, out, found, err) : 0;
        if (rc || *found)
            return rc;
    }
    return t->alias_of < 0 && must_match(t) ? refuse_alone(src, ordinal, arena, err) : 0;
}
