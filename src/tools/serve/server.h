/* SPDX-License-Identifier: Apache-2.0 */
/* The server of `fsdptrain serve`: adapters trained and sampled over the Tinker API. */
#ifndef SERVE_SERVER_H
#define SERVE_SERVER_H

#include <fsdpck/source.h>

#include "serve/serve_options.h"

/* Serves until a signal asks to stop. fs: notes. */
int service_run(const struct service_options *opt, const struct fsdpck_options *fs, struct fsdpck_error *err);

#endif
