#!/bin/sh
# run.sh FSDPCK EXAMPLE MODEL: the README's example on a model folder and on a sharded directory of it; all ranks together must hold every byte once.
set -eu
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
"$1" convert "$3" "$tmp/ckpt" --ranks 4 -q >/dev/null
for model in "$3" "$tmp/ckpt"; do
    total=0
    for rank in 0 1 2; do
        line=$("$2" "$model" $rank 3)
        echo "$line"
        total=$((total + $(echo "$line" | sed 's/.* slices, \([0-9]*\) bytes.*/\1/')))
    done
    echo "together $total"
    [ "$total" -gt 0 ]
    totals="${totals:-} $total"
done
set -- $totals
[ "$1" = "$2" ]
