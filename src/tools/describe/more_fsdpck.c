/* SPDX-License-Identifier: Apache-2.0 */
/* fsdpck has no config file, so there is little to describe besides its verbs. */
#include "describe/describe.h"

const struct describe_more describe_more = { .exit_no =
                                                 "The answer is no: diff found a difference, or verify found damage.",
                                             .also = "fsdpck(5)" };
