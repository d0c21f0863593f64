/* SPDX-License-Identifier: Apache-2.0 */
/* Prints usage errors. */
#include "common/usage.h"

#include <stdarg.h>
#include <stdio.h>

#include "common/command.h"
#include "common/json_out.h"
#include "common/text.h"

int usage_error(const char *fmt, ...)
{
    char text[1024];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    fprintf(stderr, "%s: ", tool_name);
    text_print(stderr, text);
    fputc('\n', stderr);
    json_out_error(text, NULL, EXIT_USAGE);
    return EXIT_USAGE;
}
