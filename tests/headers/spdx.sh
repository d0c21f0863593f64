#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# spdx.sh SOURCE_ROOT: every source file names its licence in its first line, a script in its second.
set -eu
cd "$1"
find kernels src bench tests python meson.build meson_options.txt pyproject.toml quickstart test -type f \
    \( -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' -o -name '*.cpp' -o -name '*.cpp.in' -o -name '*.inc' -o -name '*.py' -o -name '*.pyi' -o -name '*.toml' -o -name '*.sh' \
    -o -name 'meson*' -o -perm -u+x \) ! -path '*/corpus/*' ! -path '*/goldens/*' -exec awk '
    FNR == 1 { script = /^#!/ }
    FNR == 1 + script && !/SPDX-License-Identifier: Apache-2\.0/ { print FILENAME ": no SPDX-License-Identifier in its first line"; bad = 1 }
    END { exit bad }' {} +
