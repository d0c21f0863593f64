/* SPDX-License-Identifier: Apache-2.0 */
/* Entry point of a program; the verbs are those that it is linked with. */
#include "common/tool.h"

int main(int argc, char **argv)
{
    return tool_main(&the_tool, argc, argv);
}
