#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# floors.sh SOURCE_ROOT CC [ARGS]: what the floors forbid does not compile. The command line sees the public headers of the library and of the trainer and nothing
# else of them; the library sees neither the command line nor the trainer.
set -eu
root=$1
shift
find "$root/src/ckpt" "$root/src/train" -name '*.h' ! -path '*/include/*' | while read -r header; do
    name=${header#"$root"/src/*/}
    if echo "#include \"$name\"" | "$@" -x c -I "$root/src/ckpt/include" -I "$root/src/train/include" -iquote "$root/src/tools" -fsyntax-only - 2>/dev/null; then
        echo "src/tools can include the private header $name"
        exit 1
    fi
done
if grep -nE '#include [<"](\.\./|tools/|train/)' -r "$root/src/ckpt"; then
    echo "the library includes what lies above it"
    exit 1
fi
if grep -nE '#include [<"](tools/|engine/|base/|format/|commit/|hf/|torch/|verbs/|tensor/|cpu/)' -r "$root/src/train"; then
    echo "the trainer includes what lies above it, or what is private below"
    exit 1
fi
if grep -nE '#include .*\.\.' -r "$root"/src "$root"/kernels --include='*.[ch]'; then
    echo "an include that climbs out of its folder"
    exit 1
fi
