/* SPDX-License-Identifier: Apache-2.0 */
/* Options of `fsdptrain ui`, as the command line fills them. */
#ifndef UI_UI_OPTIONS_H
#define UI_UI_OPTIONS_H

#include <stdint.h>

#include "common/values.h"

struct ui_options {
    const char *dir;    /* where new runs go; made if it is missing */
    const char *state;  /* NULL: $XDG_STATE_HOME/fsdpck/ui, or ~/.local/state/fsdpck/ui */
    const char *listen; /* an address; NULL: 127.0.0.1 */
    const char *socket; /* a path to listen at instead; or NULL */
    const char *token;  /* NULL: that of the state folder */
    uint32_t port, nslots;
    struct strings gpus; /* numbers, or "none"; empty: all GPUs */
};

#endif
