/* SPDX-License-Identifier: Apache-2.0 */
/* `fsdptrain ui`: a page with a queue of runs, served by this machine. */
#include <stdio.h>

#include "commands.h"
#include "common/options.h"
#include "common/report.h"
#include "common/stop.h"
#include "ui/server.h"

#define AT(field) offsetof(struct ui_options, field)

static const struct option ui_options[] = {
    { .name = "dir",
      .type = OPTION_STRING,
      .offset = AT(dir),
      .value = "RUNS",
      .help = "folder for new runs and uploaded data; it is made if it is missing",
      .usual = "runs" },
    { .name = "port",
      .type = OPTION_COUNT,
      .offset = AT(port),
      .value = "PORT",
      .help = "port to listen at",
      .usual = "8675" },
    { .name = "listen",
      .type = OPTION_STRING,
      .offset = AT(listen),
      .value = "ADDRESS",
      .help = "address to listen at; 0.0.0.0 is all of this machine",
      .computed = "127.0.0.1",
      .excludes = "socket" },
    { .name = "socket",
      .type = OPTION_STRING,
      .offset = AT(socket),
      .value = "PATH",
      .help = "listen at a Unix socket instead, which no other user can open; ssh -L PORT:PATH reaches it" },
    { .name = "token",
      .type = OPTION_STRING,
      .offset = AT(token),
      .value = "TOKEN",
      .help = "secret that the page must know; other users see it in the list of processes",
      .computed = "a random one, kept in the state folder" },
    { .name = "gpus",
      .type = OPTION_LIST,
      .offset = AT(gpus),
      .value = "N,N",
      .help = "GPUs that runs may use, by their numbers, or none",
      .computed = "all of this machine" },
    { .name = "cpu-slots",
      .type = OPTION_COUNT,
      .offset = AT(nslots),
      .value = "N",
      .help = "how many runs may share the processors; each gets its part of the threads",
      .usual = "1" },
    { .name = "state",
      .type = OPTION_STRING,
      .offset = AT(state),
      .value = "DIR",
      .help = "folder of the queue, on a local disk",
      .computed = "$XDG_STATE_HOME/fsdpck/ui, or ~/.local/state/fsdpck/ui" },
};

static int serve(void *ctx, const char *const *at)
{
    struct report screen = { 0 };
    struct fsdpck_error err = { 0 };
    (void)at;
    const struct ui_options *opt = ctx;
    if (opt->port > 65535)
        return usage_error("--port: found %u, wanted 1 to 65535", opt->port);
    return server_run(opt, &err) ? report_error(&screen, &err) : EXIT_DONE;
}

int cmd_ui(const struct command *self, int argc, char **argv)
{
    struct ui_options args = { 0 };
    const struct option_group groups[] = { { "Options", ui_options, sizeof ui_options / sizeof ui_options[0], &args } };
    const struct command_line line = {
        .command = self,
        .positionals = "",
        .groups = groups,
        .ngroups = 1,
        .notes =
            "It prints the address of the page, with the token that lets a browser in. The token gives all rights of "
            "this user: a config names files to read and folders to write.\n"
            "Runs go on when the page or the server ends. The server finds them again.\n"
            "A run has devices for itself: GPUs by their numbers, or a slot of the processors. Others wait in the "
            "queue.",
        .examples = "fsdptrain ui\n"
                    "fsdptrain ui --dir runs --port 9000\n"
                    "fsdptrain ui --socket ui.sock",
    };
    return options_run(&line, argc, argv, serve, &args);
}
