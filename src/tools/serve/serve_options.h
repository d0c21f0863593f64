/* SPDX-License-Identifier: Apache-2.0 */
/* Options of `fsdptrain serve`, as the command line fills them. */
#ifndef SERVE_SERVE_OPTIONS_H
#define SERVE_SERVE_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

struct service_options {
    const char *model;  /* a folder */
    const char *name;   /* of the model, for clients; NULL: the absolute path of the folder */
    const char *state;  /* NULL: $XDG_STATE_HOME/fsdpck/serve, or ~/.local/state/fsdpck/serve */
    const char *listen; /* an address; NULL: 127.0.0.1 */
    const char *key;    /* the API key that clients must have; NULL: any */
    const char *dtype;  /* "bf16" or "fp32" */
    uint32_t port, nranks, nthreads, seq_len, max_rank;
    uint32_t session_timeout; /* seconds without a sign of life after which a session ends */
    bool recompute;
    uint64_t kv_nbytes; /* of keys and values; 0: by the memory */
};

#endif
