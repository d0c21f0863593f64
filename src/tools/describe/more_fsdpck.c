/* SPDX-License-Identifier: Apache-2.0 */
/* fsdpck has no config file, so there is little to describe besides its verbs. */
#include "describe/describe.h"

const struct describe_more describe_more = {
    .exit_no = "The answer is no: diff found a difference, verify found damage, or doctor an error.",
    .also = { "fsdpck(5)" }
};
