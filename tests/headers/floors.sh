#!/bin/sh
# floors.sh SOURCE_ROOT CC [ARGS]: what the floors forbid does not compile. The command line sees the public headers of the library and nothing else
# of it; the library sees neither the command line nor the trainer.
set -eu
root=$1
shift
for header in "$root"/src/ckpt/*.h; do
    if echo "#include \"${header##*/}\"" | "$@" -x c -I "$root/src/ckpt/include" -iquote "$root/src/tools" -fsyntax-only - 2>/dev/null; then
        # a header of the same name in src/tools is that one
        [ -e "$root/src/tools/${header##*/}" ] || { echo "src/tools can include the private header ${header##*/}"; exit 1; }
    fi
done
if grep -nE '#include [<"](\.\./|tools/|train/)' "$root"/src/ckpt/*.[ch] "$root"/src/ckpt/include/fsdpck/*.h; then
    echo "the library includes what lies above it"
    exit 1
fi
if grep -nE '#include .*\.\.' -r "$root"/src "$root"/kernels --include='*.[ch]'; then
    echo "an include that climbs out of its folder"
    exit 1
fi
