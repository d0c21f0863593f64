#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# format.sh SOURCE_ROOT CLANG_FORMAT [-i]: every source file is as .clang-format has it; with -i, it is made so.
set -eu
cd "$1"
if [ "${3:-}" = -i ]; then mode='-i'; else mode='--dry-run -Werror --ferror-limit=1'; fi
find src kernels tests bench -name corpus -prune -o \( -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' -o -name '*.cpp' \) -print0 |
    xargs -0 -P "$(nproc 2>/dev/null || echo 1)" -n 40 "$2" $mode
