/* SPDX-License-Identifier: Apache-2.0 */
#include "torch/pt/names.h"
#include "torch/pt/file.h"

const char *const fsdpck_pt_names[] = { FSDPCK_PT_NAMES, NULL };
