/* SPDX-License-Identifier: Apache-2.0 */
/* The verbs of fsdpck; each has its file, cmd_VERB.c. */
#ifndef TOOLS_FSDPCK_COMMANDS_H
#define TOOLS_FSDPCK_COMMANDS_H

#include "common/command.h"

int cmd_average(const struct command *self, int argc, char **argv);
int cmd_cat(const struct command *self, int argc, char **argv);
int cmd_clean(const struct command *self, int argc, char **argv);
int cmd_convert(const struct command *self, int argc, char **argv);
int cmd_diff(const struct command *self, int argc, char **argv);
int cmd_doctor(const struct command *self, int argc, char **argv);
int cmd_export(const struct command *self, int argc, char **argv);
int cmd_export_lora(const struct command *self, int argc, char **argv);
int cmd_ls(const struct command *self, int argc, char **argv);
int cmd_merge_lora(const struct command *self, int argc, char **argv);
int cmd_plan(const struct command *self, int argc, char **argv);
int cmd_reshard(const struct command *self, int argc, char **argv);
int cmd_verify(const struct command *self, int argc, char **argv);

#endif
