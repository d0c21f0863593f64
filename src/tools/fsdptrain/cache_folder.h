/* SPDX-License-Identifier: Apache-2.0 */
/* The folder that keeps what these programs would otherwise measure again. */
#ifndef FSDPTRAIN_CACHE_FOLDER_H
#define FSDPTRAIN_CACHE_FOLDER_H

#include <limits.h>
#include <stdbool.h>

/* $XDG_CACHE_HOME/fsdpck, or else $HOME/.cache/fsdpck, which may not exist. False: there is neither, or the name is too
 * long. */
bool cache_folder(char out[PATH_MAX]);

#endif
