/* SPDX-License-Identifier: Apache-2.0 */
/* --from, --names and --no-verify, and opening a typed source with them. It must not know the verb. */
#include "source_arg.h"

#include <limits.h>
#include <stdio.h>

#include "common/model_path.h"

#define FROM \
    { \
        .name = "from", .type = OPTION_CHOICE, .offset = offsetof(struct source_args, from), \
        .value = "safetensors|hf|dcp|fsdpck|pt|ranks", .help = "kind of SOURCE (default: detected from its content)" \
    }

const struct option source_options[SOURCE_NOPTIONS] = { FROM };

const struct option read_options[READ_NOPTIONS] = {
    FROM,
    { .name = "no-verify",
      .type = OPTION_FLAG,
      .offset = offsetof(struct source_args, no_verify),
      .help = "do not check hashes and CRC-32s, to rescue what is left of a damaged file" },
};

const struct option names_options[NAMES_NOPTIONS] = {
    { .name = "names",
      .type = OPTION_CHOICE,
      .offset = offsetof(struct source_args, names),
      .value = "hf|torchtitan",
      .help = "name the weights of a Llama, and order the rows of q and k, as Hugging Face or torchtitan does" },
};

void source_arg_blame(const struct source_args *args, struct fsdpck_error *err)
{
    if (args->from)
        fsdpck_error_hint(err, "--from says that it is of kind '%s'; without --from, its content says", args->from);
}

/* The note names the source, because some verbs open several. */
static void note_no_verify(const char *typed, const struct fsdpck_options *opt)
{
    char line[600];
    snprintf(line, sizeof line, "--no-verify: tensors of %.500s are read without checking them", typed);
    opt->note(opt->ctx, line);
}

int source_arg_open(const char *typed, const struct source_args *args, const struct fsdpck_options *opt,
                    struct fsdpck_source **out, struct fsdpck_error *err)
{
    char path[PATH_MAX];
    struct fsdpck_options with = *opt;
    *out = NULL;
    with.no_verify = args->no_verify;
    int rc = model_path_resolve(typed, path, sizeof path, err);
    if (!rc)
        rc = fsdpck_source_open(path, args->from, &with, out, err);
    if (rc)
        source_arg_blame(args, err);
    else if (args->no_verify && opt->note)
        note_no_verify(typed, opt);
    if (!rc && args->names)
        rc = fsdpck_source_set_names(*out, args->names, args->config, err);
    return rc;
}
