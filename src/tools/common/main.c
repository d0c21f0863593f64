/* SPDX-License-Identifier: Apache-2.0 */
/* A program: the verbs that it is linked with. */
#include "common/tool.h"

int main(int argc, char **argv)
{
    return tool_main(&the_tool, argc, argv);
}
