/* fsdpck: the command table, and what holds for every verb: signals, closed descriptors, a stdout that cannot be written. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <fsdpck/fsdpck.h>

#include "commands.h"
#include "options.h"
#include "stop.h"
#include "values.h"

static const struct command commands[] = {
    { "convert", cmd_convert, "any source to a sharded checkpoint directory" },
    { "reshard", cmd_reshard, "a sharded checkpoint to another number of ranks or another mesh" },
    { "export", cmd_export, "to Hugging Face safetensors: a folder or one file" },
    { "export-lora", cmd_export_lora, "a LoRA adapter out of any checkpoint, for PEFT and others" },
    { "merge-lora", cmd_merge_lora, "base and adapter to full weights, as a folder or sharded" },
    { "ls", cmd_ls, "list tensors, dtypes, shapes, placements, files, left-over temporaries" },
    { "verify", cmd_verify, "check a checkpoint and report every problem" },
    { "diff", cmd_diff, "compare two checkpoints of any kind and sharding" },
    { "plan", cmd_plan, "show what each rank would read" },
    { "cat", cmd_cat, "print one tensor as numbers or bytes" },
    { "clean", cmd_clean, "remove left-over temporaries of writers that are gone" },
};

enum { NCOMMANDS = sizeof commands / sizeof commands[0] };

static int print_verbs(void)
{
    puts("usage: fsdpck VERB [arguments]\n");
    for (size_t i = 0; i < NCOMMANDS; i++)
        printf("  %-11s %s\n", commands[i].name, commands[i].summary);
    puts("\n'fsdpck VERB --help' says more, 'fsdpck --version' which version this is.");
    return EXIT_DONE;
}

static const struct command *find(const char *name)
{
    for (size_t i = 0; i < NCOMMANDS; i++) {
        if (strcmp(commands[i].name, name) == 0)
            return &commands[i];
    }
    return NULL;
}

static int unknown_verb(const char *name)
{
    const char *best = commands[0].name;
    for (size_t i = 1; i < NCOMMANDS; i++) {
        if (value_distance(name, commands[i].name) < value_distance(name, best))
            best = commands[i].name;
    }
    return usage_error("'%s' is no verb; the nearest is '%s'", name, best);
}

static int unknown_option(const char *name)
{
    const char *best = value_distance(name, "--version") < value_distance(name, "--help") ? "--version" : "--help";
    return usage_error("'%s' is no option of fsdpck itself; the nearest is '%s'", name, best);
}

static int dispatch(int argc, char **argv)
{
    char *help[] = { (char *)"--help", NULL };
    const char *name = argc > 1 ? argv[1] : "--help";
    bool helps = strcmp(name, "help") == 0;
    if (value_choice(name, "--help|-h") || (helps && argc == 2))
        return print_verbs();
    if (strcmp(name, "--version") == 0) {
        printf("fsdpck %s\n", fsdpck_version());
        return EXIT_DONE;
    }
    if (name[0] == '-')
        return unknown_option(name);
    const struct command *command = find(helps ? argv[2] : name);
    if (!command)
        return unknown_verb(helps ? argv[2] : name);
    return helps ? command->run(command, 1, help) : command->run(command, argc - 2, argv + 2);
}

/* A file opened as descriptor 1 because stdout was closed would get our output: fill the gaps with something unwritable (and, for stdin,
 * unreadable), so that using them fails as on a closed descriptor. */
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

/* A reader that went away ends us as SIGPIPE would have; anything else that kept output from its place is an error. */
static int close_stdout(int status)
{
    bool gone = reader_is_gone(STDOUT_FILENO);
    errno = 0;
    bool failed = ferror(stdout);
    if (fclose(stdout) == 0 && !failed)
        return status;
    if (gone || errno == EPIPE)
        return 128 + SIGPIPE;
    fprintf(stderr, "fsdpck: standard output: %s\n", errno ? strerror(errno) : "not everything could be written");
    return EXIT_SYSTEM;
}

int main(int argc, char **argv)
{
    fill_descriptors();
    stop_install();
    return close_stdout(dispatch(argc, argv));
}
