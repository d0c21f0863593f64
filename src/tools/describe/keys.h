/* SPDX-License-Identifier: Apache-2.0 */
/* The keys of CONFIG.json as documentation. */
#ifndef TOOLS_KEYS_H
#define TOOLS_KEYS_H

#include "describe/describe.h"

void keys_put_man(const struct tool *tool);      /* fsdptrain-config(5) */
void keys_put_markdown(const struct tool *tool); /* docs/config.md */

#endif
