/* SPDX-License-Identifier: Apache-2.0 */
#include "quant/hold.h"

#include <string.h>

#include "quant/targets.h"

bool fsdpck_hold_is_known(const char *how)
{
    return strcmp(how, FSDPCK_HOLD_AS_STORED) == 0 || strcmp(how, FSDPCK_HOLD_DEQUANTIZED) == 0 ||
           fsdpck_quant_target_form(how);
}
