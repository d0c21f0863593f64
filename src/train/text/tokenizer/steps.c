/* SPDX-License-Identifier: Apache-2.0 */
/* Reads "normalizer", "pre_tokenizer", "post_processor" and "decoder" of a tokenizer.json: lists of steps. A step that
 * cannot be reproduced exactly is an error that names it. */
#include <jansson.h>
#include <string.h>

#include "text/tokenizer/impl.h"
#include "text/tokenizer/split.h"
#include "text/utf8.h"

static const char *type_of(json_t *o)
{
    const char *type = json_string_value(json_object_get(o, "type"));
    return type ? type : "without a type";
}

static int keep(struct tokenizer *t, json_t *value, const char *what, struct span *out, struct fsdpck_error *err)
{
    if (!json_is_string(value))
        return TOK_FAIL(FSDPCK_ERR_FORMAT, "%s: a string is wanted", what);
    return text_add(&t->strings, json_string_value(value), json_string_length(value), out)
               ? 0
               : fsdpck_error_nomem(err, json_string_length(value));
}

static int one_character(struct tokenizer *t, json_t *value, const char *what, struct span *out,
                         struct fsdpck_error *err)
{
    int rc = keep(t, value, what, out, err);
    if (!rc && (out->nbytes == 0 || utf8_nbytes((unsigned char)t->strings.s[out->at]) != out->nbytes))
        rc = TOK_FAIL(FSDPCK_ERR_FORMAT, "%s: one character is wanted", what);
    return rc;
}

/* Calls `read` for o, or for each member of a Sequence. */
static int each(struct tokenizer *t, json_t *o, const char *members,
                int (*read)(struct tokenizer *, json_t *, struct fsdpck_error *), struct fsdpck_error *err)
{
    if (!o || json_is_null(o))
        return 0;
    if (strcmp(type_of(o), "Sequence") != 0)
        return read(t, o, err);
    size_t i;
    json_t *member;
    if (!json_is_array(json_object_get(o, members)))
        return TOK_FAIL(FSDPCK_ERR_FORMAT, "a Sequence has no list '%s'", members);
    json_array_foreach (json_object_get(o, members), i, member) {
        int rc = read(t, member, err);
        if (rc)
            return rc;
    }
    return 0;
}

/* Adds the steps of a Unicode normal form. Returns false if type is not one. */
static bool add_normal_form(struct tokenizer *t, const char *type)
{
    static const struct {
        const char *name;
        enum normalize_kind steps[2];
        size_t nsteps;
    } forms[] = { { "NFC", { NORMALIZE_NFC }, 1 },
                  { "NFD", { NORMALIZE_NFD }, 1 },
                  { "NFKD", { NORMALIZE_NFKD }, 1 },
                  { "NFKC", { NORMALIZE_NFKD, NORMALIZE_NFC }, 2 } };
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        for (size_t k = 0; strcmp(type, forms[i].name) == 0 && k < forms[i].nsteps; k++)
            t->normalize[t->nnormalize++].kind = forms[i].steps[k];
        if (strcmp(type, forms[i].name) == 0)
            return true;
    }
    return false;
}

static int read_normalizer(struct tokenizer *t, json_t *o, struct fsdpck_error *err)
{
    const char *type = type_of(o);
    if (t->nnormalize >= TOK_MAX_STEPS)
        return TOK_FAIL(FSDPCK_ERR_LIMIT, "normalizer: more than %d steps", TOK_MAX_STEPS);
    if (add_normal_form(t, type))
        return 0;
    struct normalize_step *s = &t->normalize[t->nnormalize++];
    if (strcmp(type, "Prepend") == 0) {
        s->kind = NORMALIZE_PREPEND;
        return keep(t, json_object_get(o, "prepend"), "normalizer Prepend, key 'prepend'", &s->to, err);
    }
    json_t *from = json_object_get(json_object_get(o, "pattern"), "String");
    if (strcmp(type, "Replace") != 0 || !from)
        return TOK_FAIL(FSDPCK_ERR_UNSUPPORTED,
                        "normalizer %.60s%s; this version knows NFC, NFD, NFKC, NFKD, Prepend and Replace of a string",
                        type, from ? "" : " (of a pattern)");
    s->kind = NORMALIZE_REPLACE;
    int rc = keep(t, from, "normalizer Replace, key 'pattern'", &s->from, err);
    if (!rc && s->from.nbytes == 0)
        rc = TOK_FAIL(FSDPCK_ERR_UNSUPPORTED, "normalizer Replace: an empty pattern");
    return rc ? rc : keep(t, json_object_get(o, "content"), "normalizer Replace, key 'content'", &s->to, err);
}

static int add_split(struct tokenizer *t, struct split_step **out, struct fsdpck_error *err)
{
    if (t->byte_level)
        return TOK_FAIL(FSDPCK_ERR_UNSUPPORTED, "pre_tokenizer: something after ByteLevel");
    if (t->nsplit == TOK_MAX_STEPS)
        return TOK_FAIL(FSDPCK_ERR_LIMIT, "pre_tokenizer: more than %d steps", TOK_MAX_STEPS);
    *out = &t->split[t->nsplit++];
    return 0;
}

static bool is_true(json_t *o, const char *key, bool absent)
{
    json_t *value = json_object_get(o, key);
    return value ? json_is_true(value) : absent;
}

static int read_byte_level(struct tokenizer *t, json_t *o, struct fsdpck_error *err)
{
    struct split_step *s = NULL;
    int rc = 0;
    if (is_true(o, "add_prefix_space", true)) {
        rc = add_split(t, &s, err);
        if (!rc)
            s->kind = SPLIT_PREFIX_SPACE;
    }
    if (!rc && is_true(o, "use_regex", true)) {
        rc = add_split(t, &s, err);
        if (!rc)
            *s = (struct split_step){ .kind = SPLIT_SCAN, .scan = split_scan_gpt2 };
    }
    t->byte_level = true;
    return rc;
}

static int read_split(struct tokenizer *t, json_t *o, struct fsdpck_error *err)
{
    const char *behavior = json_string_value(json_object_get(o, "behavior")),
               *regex = json_string_value(json_object_get(json_object_get(o, "pattern"), "Regex"));
    struct split_step *s = NULL;
    int rc = add_split(t, &s, err);
    if (rc)
        return rc;
    if (!regex)
        return TOK_FAIL(FSDPCK_ERR_UNSUPPORTED, "pre_tokenizer Split: a pattern that is no Regex");
    if (!behavior ||
        (strcmp(behavior, "Isolated") != 0 && !(strcmp(behavior, "Removed") == 0 && is_true(o, "invert", false))))
        return TOK_FAIL(FSDPCK_ERR_UNSUPPORTED,
                        "pre_tokenizer Split: behavior %.40s; this version knows Isolated, and Removed with invert",
                        behavior ? behavior : "not given");
    s->scan = split_scan_of(regex);
    s->kind = s->scan ? SPLIT_SCAN : SPLIT_REGEX;
    /* Inverted, Removed keeps the matches and drops the rest; the known patterns match everything. */
    if (!s->scan && strcmp(behavior, "Removed") == 0)
        return TOK_FAIL(FSDPCK_ERR_UNSUPPORTED,
                        "pre_tokenizer Split: behavior Removed with a pattern that this version does not know");
    return s->scan ? 0 : split_regex_new(t->name, regex, t->bits, &s->regex, err);
}

static int read_metaspace(struct tokenizer *t, json_t *o, struct fsdpck_error *err)
{
    static const char *const schemes[] = { "always", "first", "never" };
    const char *scheme = json_string_value(json_object_get(o, "prepend_scheme"));
    struct split_step *s = NULL;
    int rc = add_split(t, &s, err);
    if (!rc)
        rc = one_character(t, json_object_get(o, "replacement"), "pre_tokenizer Metaspace, key 'replacement'",
                           &s->replacement, err);
    if (rc)
        return rc;
    s->kind = SPLIT_METASPACE;
    s->individual = is_true(o, "split", true);
    s->prepend = is_true(o, "add_prefix_space", true) ? PREPEND_ALWAYS
                                                      : PREPEND_NEVER; /* for files from before prepend_scheme */
    for (int i = 0; scheme && i < 3; i++) {
        if (strcmp(scheme, schemes[i]) == 0) {
            s->prepend = i;
            scheme = NULL;
        }
    }
    return scheme ? TOK_FAIL(FSDPCK_ERR_FORMAT,
                             "pre_tokenizer Metaspace: prepend_scheme '%.40s' is none of always, first, never", scheme)
                  : 0;
}

static int read_pre_tokenizer(struct tokenizer *t, json_t *o, struct fsdpck_error *err)
{
    const char *type = type_of(o);
    if (strcmp(type, "ByteLevel") == 0)
        return t->byte_level ? TOK_FAIL(FSDPCK_ERR_UNSUPPORTED, "pre_tokenizer: ByteLevel twice")
                             : read_byte_level(t, o, err);
    if (strcmp(type, "Split") == 0)
        return read_split(t, o, err);
    if (strcmp(type, "Metaspace") == 0)
        return read_metaspace(t, o, err);
    if (strcmp(type, "Digits") != 0)
        return TOK_FAIL(FSDPCK_ERR_UNSUPPORTED,
                        "pre_tokenizer %.60s; this version knows ByteLevel, Split, Digits and Metaspace", type);
    struct split_step *s = NULL;
    int rc = add_split(t, &s, err);
    if (!rc)
        *s = (struct split_step){ .kind = SPLIT_DIGITS, .individual = is_true(o, "individual_digits", false) };
    return rc;
}

int tok_read_steps(struct tokenizer *t, struct json_t *root, struct fsdpck_error *err)
{
    int rc = each(t, json_object_get(root, "normalizer"), "normalizers", read_normalizer, err);
    return rc ? rc : each(t, json_object_get(root, "pre_tokenizer"), "pretokenizers", read_pre_tokenizer, err);
}

/* --- post_processor --- */

static int add_ids(struct tokenizer *t, struct id_list *list, json_t *ids, const char *name, struct fsdpck_error *err)
{
    size_t i;
    json_t *id;
    if (json_array_size(ids) == 0)
        return TOK_FAIL(FSDPCK_ERR_FORMAT, "post_processor: special token '%.60s' has no ids", name);
    json_array_foreach (ids, i, id) {
        if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) >= TOK_MAX_ID)
            return TOK_FAIL(FSDPCK_ERR_FORMAT, "post_processor: special token '%.60s' has an id that is none", name);
        if (!grow((void **)&list->ids, &list->capacity, list->count + 1, sizeof *list->ids))
            return fsdpck_error_nomem(err, sizeof *list->ids);
        list->ids[list->count++] = (uint32_t)json_integer_value(id);
    }
    return 0;
}

static int read_template(struct tokenizer *t, json_t *o, struct fsdpck_error *err)
{
    json_t *single = json_object_get(o, "single"), *part;
    size_t i;
    bool text = false;
    if (t->prefix.count || t->suffix.count)
        return TOK_FAIL(FSDPCK_ERR_UNSUPPORTED, "post_processor: TemplateProcessing twice");
    json_array_foreach (single, i, part) {
        const char *id = json_string_value(json_object_get(json_object_get(part, "SpecialToken"), "id"));
        if (!id && (text || !json_object_get(part, "Sequence")))
            return TOK_FAIL(FSDPCK_ERR_UNSUPPORTED,
                            "post_processor TemplateProcessing: 'single' is more than special tokens around one $A");
        text |= !id;
        int rc =
            id ? add_ids(t, text ? &t->suffix : &t->prefix,
                         json_object_get(json_object_get(json_object_get(o, "special_tokens"), id), "ids"), id, err)
               : 0;
        if (rc)
            return rc;
    }
    return text ? 0 : TOK_FAIL(FSDPCK_ERR_FORMAT, "post_processor TemplateProcessing: no $A in 'single'");
}

static int read_post(struct tokenizer *t, json_t *o, struct fsdpck_error *err)
{
    if (strcmp(type_of(o), "ByteLevel") == 0) /* changes offsets only */
        return 0;
    if (strcmp(type_of(o), "TemplateProcessing") == 0)
        return read_template(t, o, err);
    return TOK_FAIL(FSDPCK_ERR_UNSUPPORTED, "post_processor %.60s; this version knows ByteLevel and TemplateProcessing",
                    type_of(o));
}

int tok_read_post(struct tokenizer *t, struct json_t *post, struct fsdpck_error *err)
{
    return each(t, post, "processors", read_post, err);
}

/* --- decoder --- */

static int read_strip(struct tokenizer *t, json_t *o, struct decode_step *s, struct fsdpck_error *err)
{
    json_int_t start = json_integer_value(json_object_get(o, "start")),
               stop = json_integer_value(json_object_get(o, "stop"));
    s->kind = DECODE_STRIP;
    if (start < 0 || start > 1024 || stop < 0 || stop > 1024)
        return TOK_FAIL(FSDPCK_ERR_FORMAT, "decoder Strip: start and stop must be 0 to 1024");
    s->start = (uint32_t)start;
    s->stop = (uint32_t)stop;
    return one_character(t, json_object_get(o, "content"), "decoder Strip, key 'content'", &s->from, err);
}

static int read_decoder_replace(struct tokenizer *t, json_t *o, struct decode_step *s, struct fsdpck_error *err)
{
    json_t *from = json_object_get(json_object_get(o, "pattern"), "String");
    s->kind = DECODE_REPLACE;
    if (!json_is_string(from) || json_string_length(from) == 0)
        return TOK_FAIL(FSDPCK_ERR_UNSUPPORTED, "decoder Replace: a pattern that is no string");
    int rc = keep(t, from, "decoder Replace, key 'pattern'", &s->from, err);
    return rc ? rc : keep(t, json_object_get(o, "content"), "decoder Replace, key 'content'", &s->to, err);
}

static int read_decoder(struct tokenizer *t, json_t *o, struct fsdpck_error *err)
{
    const char *type = type_of(o);
    if (t->ndecode == TOK_MAX_STEPS)
        return TOK_FAIL(FSDPCK_ERR_LIMIT, "decoder: more than %d steps", TOK_MAX_STEPS);
    struct decode_step *s = &t->decode[t->ndecode++];
    t->has_decoder = true;
    if (strcmp(type, "Strip") == 0)
        return read_strip(t, o, s, err);
    if (strcmp(type, "Replace") == 0)
        return read_decoder_replace(t, o, s, err);
    if (strcmp(type, "Metaspace") == 0) {
        const char *scheme = json_string_value(json_object_get(o, "prepend_scheme"));
        s->kind = DECODE_METASPACE;
        s->keeps_first = scheme ? strcmp(scheme, "never") == 0 : !is_true(o, "add_prefix_space", true);
        return one_character(t, json_object_get(o, "replacement"), "decoder Metaspace, key 'replacement'", &s->from,
                             err);
    }
    s->kind = strcmp(type, "ByteLevel") == 0      ? DECODE_BYTE_LEVEL
              : strcmp(type, "ByteFallback") == 0 ? DECODE_BYTE_FALLBACK
                                                  : DECODE_FUSE;
    if (s->kind == DECODE_FUSE && strcmp(type, "Fuse") != 0)
        return TOK_FAIL(FSDPCK_ERR_UNSUPPORTED,
                        "decoder %.60s; this version knows ByteLevel, ByteFallback, Fuse, Metaspace, Replace and Strip",
                        type);
    return 0;
}

int tok_read_decoder(struct tokenizer *t, struct json_t *decoder, struct fsdpck_error *err)
{
    return each(t, decoder, "decoders", read_decoder, err);
}
