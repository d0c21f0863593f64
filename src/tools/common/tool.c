/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by all verbs of all programs: dispatch, signals, closed descriptors, errors of stdout. */
#include "common/tool.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <fsdpck/fsdpck.h>

#include "common/stop.h"
#include "common/usage.h"
#include "common/values.h"

const char *tool_name;

static int print_verbs(const struct tool *tool)
{
    printf("usage: %s VERB [arguments]\n\n", tool->name);
    for (size_t i = 0; i < tool->ncommands; i++)
        printf("  %-12s %s\n", tool->commands[i].name, tool->commands[i].summary);
    printf("\n'%s VERB --help' says more, '%s --version' which version this is.\n", tool->name, tool->name);
    return EXIT_DONE;
}

static const struct command *find(const struct tool *tool, const char *name)
{
    for (size_t i = 0; i < tool->ncommands; i++) {
        if (strcmp(tool->commands[i].name, name) == 0)
            return &tool->commands[i];
    }
    return NULL;
}

static int unknown_verb(const struct tool *tool, const char *name)
{
    const char *best = tool->commands[0].name;
    if (value_choice(name, tool->later))
        return usage_error("'%s' is not in this version", name);
    for (size_t i = 1; i < tool->ncommands; i++) {
        if (fsdpck_name_distance(name, tool->commands[i].name) < fsdpck_name_distance(name, best))
            best = tool->commands[i].name;
    }
    return usage_error("'%s' is no verb; the nearest is '%s'", name, best);
}

static int unknown_option(const struct tool *tool, const char *name)
{
    const char *best =
        fsdpck_name_distance(name, "--version") < fsdpck_name_distance(name, "--help") ? "--version" : "--help";
    return usage_error("'%s' is no option of %s itself; the nearest is '%s'", name, tool->name, best);
}

static int dispatch(const struct tool *tool, int argc, char **argv)
{
    char *help[] = { (char *)"--help", NULL };
    const char *name = argc > 1 ? argv[1] : "--help";
    bool helps = strcmp(name, "help") == 0;
    if (value_choice(name, "--help|-h") || (helps && argc == 2))
        return print_verbs(tool);
    if (strcmp(name, "--version") == 0) {
        printf("%s %s\n", tool->name, fsdpck_version());
        return EXIT_DONE;
    }
    if (name[0] == '-')
        return unknown_option(tool, name);
    const struct command *command = find(tool, helps ? argv[2] : name);
    if (!command)
        return unknown_verb(tool, helps ? argv[2] : name);
    return helps ? command->run(command, 1, help) : command->run(command, argc - 2, argv + 2);
}

/* If stdout is closed at start, the next file to be opened would become descriptor 1 and receive our output. Fill such
 * gaps with descriptors that cannot be written (stdin: read), so that using them fails as on a closed one. */
static void fill_descriptors(void)
{
    for (int fd = 0; fd <= 2; fd++) {
        if (fcntl(fd, F_GETFD) == -1 && errno == EBADF && open("/dev/null", fd == 0 ? O_WRONLY : O_RDONLY) == -1)
            _exit(EXIT_SYSTEM);
    }
}

static bool reader_is_gone(int fd)
{
    struct pollfd p = { .fd = fd, .events = POLLOUT };
    return poll(&p, 1, 0) == 1 && (p.revents & POLLERR);
}

/* If the reader of stdout is gone, returns the exit code of SIGPIPE. Any other failure to write is an error. */
static int close_stdout(const struct tool *tool, int status)
{
    bool gone = reader_is_gone(STDOUT_FILENO);
    errno = 0;
    bool failed = ferror(stdout);
    if (fclose(stdout) == 0 && !failed)
        return status;
    if (gone || errno == EPIPE)
        return 128 + SIGPIPE;
    fprintf(stderr, "%s: standard output: %s\n", tool->name,
            errno ? strerror(errno) : "not everything could be written");
    return EXIT_SYSTEM;
}

/* Line-buffers stderr, because ranks and the process that watches them share it. */
static void buffer_stderr(void)
{
    static char buffer[8192];
    setvbuf(stderr, buffer, _IOLBF, sizeof buffer);
}

int tool_main(const struct tool *tool, int argc, char **argv)
{
    tool_name = tool->name;
    fill_descriptors();
    buffer_stderr();
    stop_install(tool->name);
    return close_stdout(tool, dispatch(tool, argc, argv));
}
