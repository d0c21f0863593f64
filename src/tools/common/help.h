/* Help texts out of the tables that parse. */
#ifndef TOOLS_HELP_H
#define TOOLS_HELP_H

#include "common/options.h"

void help_print_verb(const struct command_line *line);

#endif
