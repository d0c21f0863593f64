/* SPDX-License-Identifier: Apache-2.0 */
/* The version, as meson.build has it. */
#include <fsdpck/fsdpck.h>

const char *fsdpck_version(void)
{
    return FSDPCK_VERSION;
}
