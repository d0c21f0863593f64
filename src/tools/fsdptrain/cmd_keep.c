/* SPDX-License-Identifier: Apache-2.0 */
/* `fsdptrain keep`: holds memory of a host while its ranks are lost and started again. */
#include <stdio.h>
#include <train/keep.h>
#include <unistd.h>

#include "commands.h"
#include "common/options.h"
#include "common/report.h"
#include "common/tool.h"

enum { SILENCE_MS = 60000 };

static void say_ready(void)
{
    puts("ready");
    fflush(stdout);
}

static int keep(void *ctx, const char *const *at)
{
    struct report report = { 0 };
    struct fsdpck_error err = { 0 };
    (void)ctx;
    int rc = train_keep(at[0], STDIN_FILENO, SILENCE_MS, say_ready, &err);
    return rc ? report_error(&report, &err) : EXIT_DONE;
}

int cmd_keep(const struct command *self, int argc, char **argv)
{
    const struct command_line line = {
        .command = self,
        .positionals = "NAME",
        .notes =
            "`fsdptrain run --hosts` starts it on each host if checkpoint.memory_every is set, and ends it. Ranks ask "
            "for the memory by the NAME (`fsdptrain run --keeper NAME`). Only those of the same user get it.\n"
            "It prints \"ready\", and ends with its standard input, or if nothing comes from there for 60 seconds. "
            "The memory is freed then.",
        .examples = "fsdptrain keep my-run",
    };
    return options_run(&line, argc, argv, keep, NULL);
}
