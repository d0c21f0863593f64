/* SPDX-License-Identifier: Apache-2.0 */
/* The verbs of fsdptrain; each has its file, cmd_VERB.c. */
#ifndef TOOLS_FSDPTRAIN_COMMANDS_H
#define TOOLS_FSDPTRAIN_COMMANDS_H

#include "common/command.h"

int cmd_plan(const struct command *self, int argc, char **argv);
int cmd_keep(const struct command *self, int argc, char **argv);
int cmd_report(const struct command *self, int argc, char **argv);
int cmd_run(const struct command *self, int argc, char **argv);
int cmd_init(const struct command *self, int argc, char **argv);
int cmd_sample(const struct command *self, int argc, char **argv);
int cmd_serve(const struct command *self, int argc, char **argv);
int cmd_top(const struct command *self, int argc, char **argv);
int cmd_ui(const struct command *self, int argc, char **argv);
int cmd_tokenize(const struct command *self, int argc, char **argv);

#endif
