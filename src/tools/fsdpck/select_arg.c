/* SPDX-License-Identifier: Apache-2.0 */
/* Turns the options that select tensors into the library's request. It knows no tensors. */
#include "select_arg.h"

#include <stdlib.h>
#include <string.h>

#define AT(field) .offset = offsetof(struct select_args, field)

const struct option select_options[SELECT_NOPTIONS] = {
    { .name = "include",
      .type = OPTION_LIST,
      AT(include),
      .value = "GLOB",
      .help = "take only tensors whose name matches, as 'model.layers.*' (comma-separated; may be repeated)" },
    { .name = "exclude",
      .type = OPTION_LIST,
      AT(exclude),
      .value = "GLOB",
      .help = "leave out tensors whose name matches (comma-separated; may be repeated)" },
    { .name = "select",
      .type = OPTION_STRING,
      AT(tree),
      .value = "TREE",
      .help = "take only this top-level tree (model, optim …), and remove its prefix" },
    { .name = "rename",
      .type = OPTION_LIST,
      AT(rename),
      .value = "FROM=TO",
      .help = "replace the prefix FROM of names with TO; '*FROM=TO': anywhere in names (comma-separated; may be "
              "repeated)" },
    { .name = "alias",
      .type = OPTION_LIST,
      AT(alias),
      .value = "NEW=OLD",
      .help = "list the tensor OLD under a second name (comma-separated; may be repeated)" },
    { .name = "dtype",
      .type = OPTION_CHOICE,
      AT(dtype),
      .value = "bf16|fp16|fp32",
      .also = "bfloat16|float16|float32|torch.bfloat16|torch.float16|torch.float32",
      .help = "cast floating-point tensors (round to nearest even)" },
};

bool dtype_arg_parse(const char *text, enum fsdpck_dtype *out)
{
    static const struct {
        const char *shortened, *name;
    } names[] = { { "bf16", "bfloat16" }, { "fp16", "float16" }, { "fp32", "float32" } };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(text, names[i].shortened) == 0)
            text = names[i].name;
    }
    return fsdpck_dtype_from_name(strncmp(text, "torch.", 6) == 0 ? text + 6 : text, out);
}

/* Copies text, with "\," replaced by the comma that it quotes in a list. */
static char *copy_unquoted(const char *s, size_t nbytes)
{
    char *copy = malloc(nbytes + 1);
    size_t n = 0;
    for (size_t i = 0; copy && i < nbytes; i++) {
        if (s[i] == '\\' && i + 1 < nbytes && s[i + 1] == ',')
            i++;
        copy[n++] = s[i];
    }
    if (copy)
        copy[n] = '\0';
    return copy;
}

/* both: neither side may be empty. (An empty FROM adds a prefix, an empty TO removes one.) */
static int parse_pair(const char *text, const char *option, const char *wanted, bool both, struct fsdpck_pair *out,
                      struct fsdpck_error *err)
{
    const char *equals = strchr(text, '=');
    if (!equals || (both && (equals == text || !equals[1])))
        return fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL, "--%s: found '%s', wanted %s", option, text, wanted);
    out->key = copy_unquoted(text, (size_t)(equals - text));
    out->value = copy_unquoted(equals + 1, strlen(equals + 1));
    return out->key && out->value ? 0 : fsdpck_error_nomem(err, strlen(text));
}

static int parse_pairs(const struct select_args *args, struct select_spec *out, struct fsdpck_error *err)
{
    int rc = 0;
    size_t npairs = args->rename.count + args->alias.count;
    if (npairs == 0)
        return 0;
    out->pairs = calloc(npairs, sizeof *out->pairs);
    if (!out->pairs)
        return fsdpck_error_nomem(err, npairs * sizeof *out->pairs);
    out->npairs = npairs;
    struct fsdpck_pair *alias = out->pairs + args->rename.count;
    for (size_t i = 0; i < args->rename.count && !rc; i++)
        rc = parse_pair(args->rename.at[i], "rename", "FROM=TO", false, &out->pairs[i], err);
    for (size_t i = 0; i < args->alias.count && !rc; i++)
        rc = parse_pair(args->alias.at[i], "alias", "NEW=OLD", true, &alias[i], err);
    out->select.rename = out->pairs;
    out->select.nrename = args->rename.count;
    out->select.alias = alias;
    out->select.nalias = args->alias.count;
    return rc;
}

int select_arg_resolve(const struct select_args *args, struct select_spec *out, struct fsdpck_error *err)
{
    out->select.include = (const char *const *)args->include.at;
    out->select.ninclude = args->include.count;
    out->select.exclude = (const char *const *)args->exclude.at;
    out->select.nexclude = args->exclude.count;
    out->select.tree = args->tree;
    out->select.cast = args->dtype && dtype_arg_parse(args->dtype, &out->select.dtype);
    return parse_pairs(args, out, err);
}

void select_spec_free(struct select_spec *spec)
{
    for (size_t i = 0; i < spec->npairs; i++) {
        free((char *)spec->pairs[i].key);
        free((char *)spec->pairs[i].value);
    }
    free(spec->pairs);
    *spec = (struct select_spec){ 0 };
}
