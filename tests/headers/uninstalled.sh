#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A program is built with the pkg-config file of the build folder, before anything is installed.
# usage: uninstalled.sh FOLDER_OF_PC_FILES CC...
set -eu
pc=$1
shift
command -v pkg-config >/dev/null || { echo "SKIP the pkg-config file of the build folder: there is no pkg-config"; exit 77; }
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
cat >"$tmp/version.c" <<'C'
#include <fsdpck/fsdpck.h>
#include <stdio.h>
int main(void) { return puts(fsdpck_version()) < 0; }
C
flags=$(PKG_CONFIG_PATH=$pc pkg-config --cflags --libs fsdpck)
eval "\"\$@\" -o \"\$tmp/version\" \"\$tmp/version.c\" $flags" # pkg-config quotes what a shell would split
LD_LIBRARY_PATH=$pc/../src/ckpt "$tmp/version"
