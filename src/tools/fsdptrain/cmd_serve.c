/* SPDX-License-Identifier: Apache-2.0 */
/* `fsdptrain serve`: adapters trained and sampled on one base, over the Tinker API. */
#include <linux/limits.h>
#include <stdio.h>
#include <train/image.h>
#include <train/ranks.h>

#include "commands.h"
#include "common/model_path.h"
#include "common/options.h"
#include "common/report.h"
#include "common/stop.h"
#include "serve/server.h"

#define AT(field) offsetof(struct service_options, field)

static const struct option serve_options[] = {
    { .name = "ranks",
      .type = OPTION_COUNT,
      .offset = AT(nranks),
      .value = "N",
      .help = "ranks, threads of one process, that hold the base once between them",
      .usual = "1" },
    { .name = "threads",
      .type = OPTION_COUNT,
      .offset = AT(nthreads),
      .value = "N",
      .help = "threads per rank",
      .computed = "the processors, divided by the ranks" },
    { .name = "port",
      .type = OPTION_COUNT,
      .offset = AT(port),
      .value = "PORT",
      .help = "port to listen at",
      .usual = "8000" },
    { .name = "listen",
      .type = OPTION_STRING,
      .offset = AT(listen),
      .value = "ADDRESS",
      .help = "address to listen at; 0.0.0.0 is all of this machine",
      .computed = "127.0.0.1" },
    { .name = "api-key",
      .type = OPTION_STRING,
      .offset = AT(key),
      .value = "KEY",
      .help = "key that clients must have (TINKER_API_KEY); other users see it in the list of processes",
      .computed = "any" },
    { .name = "name",
      .type = OPTION_STRING,
      .offset = AT(name),
      .value = "NAME",
      .help = "name of the model for clients (base_model), by which they also find its tokenizer",
      .computed = "the absolute path of MODEL" },
    { .name = "state",
      .type = OPTION_STRING,
      .offset = AT(state),
      .value = "DIR",
      .help = "folder of what clients save",
      .computed = "$XDG_STATE_HOME/fsdpck/serve, or ~/.local/state/fsdpck/serve" },
    { .name = "session-timeout",
      .type = OPTION_COUNT,
      .offset = AT(session_timeout),
      .value = "SECONDS",
      .help = "end a session, with what it has not saved, after this time without a sign of life",
      .usual = "900" },
    { .name = "dtype",
      .type = OPTION_CHOICE,
      .offset = AT(dtype),
      .value = "bf16|fp32",
      .help = "dtype of weights and activations",
      .usual = "bf16" },
    { .name = "seq-len",
      .type = OPTION_COUNT,
      .offset = AT(seq_len),
      .value = "N",
      .help = "most tokens of a sequence that is trained, and of a micro-batch",
      .usual = "2048" },
    { .name = "max-rank",
      .type = OPTION_COUNT,
      .offset = AT(max_rank),
      .value = "R",
      .help = "largest rank of an adapter",
      .usual = "64" },
    { .name = "kv-cache",
      .type = OPTION_MEMORY,
      .offset = AT(kv_nbytes),
      .value = "SIZE",
      .help = "memory for the keys and values of samples, as 2GiB; samples wait until there is room for them",
      .computed = "a quarter of the memory that the base leaves" },
    { .name = "recompute",
      .type = OPTION_FLAG,
      .offset = AT(recompute),
      .help = "keep only the input of each block for the backward pass: less memory, a third more time" },
};

static void note(void *ctx, const char *line)
{
    (void)ctx;
    fprintf(stderr, "fsdptrain serve: %s\n", line);
}

static int serve(void *ctx, const char *const *at)
{
    struct report screen = { 0 };
    struct fsdpck_error err = { 0 };
    struct service_options *opt = ctx;
    const struct fsdpck_options fs = { .note = note };
    char model[PATH_MAX];
    if (opt->port > 65535)
        return usage_error("--port: found %u, wanted 1 to 65535", opt->port);
    if (opt->nranks > TRAIN_MAX_RANKS)
        return usage_error("--ranks: found %u, wanted 1 to %d", opt->nranks, TRAIN_MAX_RANKS);
    int rc = model_path_resolve(at[0], model, sizeof model, &err);
    if (!rc && image_is_pipeline(model))
        rc = fsdpck_error_set(&err, FSDPCK_ERR_UNSUPPORTED, model,
                              "this is a pipeline that makes pictures, and language models are served");
    opt->model = model;
    if (!rc)
        rc = service_run(opt, &fs, &err);
    opt->model = NULL;
    return rc ? report_error(&screen, &err) : EXIT_DONE;
}

int cmd_serve(const struct command *self, int argc, char **argv)
{
    struct service_options args = { 0 };
    const struct option_group groups[] = { { "Options", serve_options, sizeof serve_options / sizeof serve_options[0],
                                             &args } };
    const struct command_line line = {
        .command = self,
        .positionals = "MODEL",
        .groups = groups,
        .ngroups = 1,
        .notes =
            "MODEL is a Hugging Face folder. Clients of the Tinker API (the `tinker` package, with TINKER_BASE_URL and "
            "any TINKER_API_KEY that begins with tml-) create adapters on it, train them with their own loops, save "
            "and sample them. Several clients share the base and its ranks; an adapter's numbers do not depend on "
            "the others.\n"
            "Everything that a client saves is in the state folder as RUN/weights/NAME (with the state of AdamW), "
            "RUN/sampler_weights/NAME and RUN/external_weights/NAME: checkpoints that fsdpck verifies and exports, or "
            "PEFT folders. A PEFT folder put at RUN/weights/NAME loads as tinker://RUN/weights/NAME.",
        .examples = "fsdptrain serve model --ranks 2\n"
                    "fsdptrain serve model --name org/model --port 9000 --state saved",
    };
    return options_run(&line, argc, argv, serve, &args);
}
