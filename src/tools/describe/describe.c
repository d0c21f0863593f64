/* SPDX-License-Identifier: Apache-2.0 */
/* describe-TOOL FORM [VERB]: writes one form of TOOL's description, for one verb or for all. */
#include "common/command.h"
#include "describe/describe.h"

#include <stdio.h>
#include <string.h>

static const struct form *const forms[] = { &form_man, &form_bash, &form_zsh, &form_fish };

static const struct form *find_form(const char *name)
{
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        if (strcmp(forms[i]->name, name) == 0)
            return forms[i];
    }
    for (size_t i = 0; i < describe_more.nforms; i++) {
        if (strcmp(describe_more.forms[i].name, name) == 0)
            return &describe_more.forms[i];
    }
    return NULL;
}

static int describe_verb(const struct command *verb, const struct form *form)
{
    char *help[] = { (char *)"--help", NULL };
    struct command described = *verb;
    described.describe = form->verb;
    return verb->run(&described, 1, help);
}

/* Describes one verb only. */
static int describe_alone(const struct form *form, const char *verb)
{
    for (size_t i = 0; i < the_tool.ncommands; i++) {
        if (strcmp(the_tool.commands[i].name, verb) == 0)
            return describe_verb(&the_tool.commands[i], form);
    }
    fprintf(stderr, "%s has no verb '%s'\n", the_tool.name, verb);
    return EXIT_USAGE;
}

static int describe_all(const struct form *form)
{
    int status = EXIT_DONE;
    if (form->begin)
        form->begin(&the_tool);
    for (size_t i = 0; i < the_tool.ncommands && form->end && form->verb && !status; i++)
        status = describe_verb(&the_tool.commands[i], form);
    if (form->end)
        form->end(&the_tool);
    return status;
}

int main(int argc, char **argv)
{
    tool_name = the_tool.name;
    const struct form *form = argc == 2 || argc == 3 ? find_form(argv[1]) : NULL;
    if (!form) {
        fprintf(stderr, "usage: %s FORM [VERB]\n", argv[0]);
        return EXIT_USAGE;
    }
    int status = argc == 3 ? describe_alone(form, argv[2]) : describe_all(form);
    return fclose(stdout) ? EXIT_SYSTEM : status;
}
