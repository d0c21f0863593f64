#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# check.sh INCLUDE_DIR COMPILER [ARGS]: every public header compiles alone, without a warning.
set -eu
include=$1
shift
for header in "$include"/*/*.h; do
    echo "#include <${header#"$include"/}>" | "$@" -Wall -Wextra -Wpedantic -Werror -I "$include" -fsyntax-only - || exit 1
    echo "ok ${header##*/}"
done
