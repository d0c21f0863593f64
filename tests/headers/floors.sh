#!/bin/sh
# floors.sh SOURCE_ROOT CC [ARGS]: what the floors forbid does not compile. The command line sees the public headers of the library and of the trainer and nothing
# else of them; the library sees neither the command line nor the trainer.
set -eu
root=$1
shift
for header in "$root"/src/ckpt/*/*.h "$root"/src/train/*/*.h; do
    name=${header#"$root"/src/*/}
    if echo "#include \"$name\"" | "$@" -x c -I "$root/src/ckpt/include" -I "$root/src/train/include" -iquote "$root/src/tools" -fsyntax-only - 2>/dev/null; then
        echo "src/tools can include the private header $name"
        exit 1
    fi
done
if grep -nE '#include [<"](\.\./|tools/|train/)' "$root"/src/ckpt/*/*.[ch] "$root"/src/ckpt/include/fsdpck/*.h; then
    echo "the library includes what lies above it"
    exit 1
fi
if grep -nE '#include [<"](tools/|engine/|base/|format/|commit/|hf/|torch/|verbs/|tensor/|cpu/)' "$root"/src/train/*/*.[ch] "$root"/src/train/include/train/*.h; then
    echo "the trainer includes what lies above it, or what is private below"
    exit 1
fi
if grep -nE '#include .*\.\.' -r "$root"/src "$root"/kernels --include='*.[ch]'; then
    echo "an include that climbs out of its folder"
    exit 1
fi
