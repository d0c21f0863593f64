/* The verbs of fsdpck: one function each, in cmd_VERB.c. A verb parses its arguments, calls the library, prints, and returns the exit code. */
#ifndef TOOLS_COMMANDS_H
#define TOOLS_COMMANDS_H

struct command {
    const char *name;
    int (*run)(const struct command *self, int argc, char **argv); /* argv[0] is the first argument after the verb */
    const char *summary;
};

int cmd_cat(const struct command *self, int argc, char **argv);
int cmd_clean(const struct command *self, int argc, char **argv);
int cmd_convert(const struct command *self, int argc, char **argv);
int cmd_diff(const struct command *self, int argc, char **argv);
int cmd_export(const struct command *self, int argc, char **argv);
int cmd_export_lora(const struct command *self, int argc, char **argv);
int cmd_ls(const struct command *self, int argc, char **argv);
int cmd_merge_lora(const struct command *self, int argc, char **argv);
int cmd_plan(const struct command *self, int argc, char **argv);
int cmd_reshard(const struct command *self, int argc, char **argv);
int cmd_verify(const struct command *self, int argc, char **argv);

/* of fsdptrain */
int cmd_train_plan(const struct command *self, int argc, char **argv);
int cmd_run(const struct command *self, int argc, char **argv);
int cmd_init(const struct command *self, int argc, char **argv);
int cmd_sample(const struct command *self, int argc, char **argv);
int cmd_tokenize(const struct command *self, int argc, char **argv);

/* Exit codes that are no failure of the library: see fsdpck_error_exit_code() for the others. */
enum { EXIT_DONE = 0, EXIT_NO = 1, EXIT_USAGE = 2, EXIT_REFUSED = 3, EXIT_SYSTEM = 4 };

#endif
