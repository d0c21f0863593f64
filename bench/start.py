#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How fast a LoRA run reads its base from a disk: a BF16 folder, and folders that are quantized and stay so.

    start.py BUILD WORKDIR [--shape smollm2|tinyllama] [--bases fp8-block,nf4] [--rounds N] [--ranks N]

A random model. Its files leave the page cache before each run, and as much memory as they take is touched and given
back, as bench/run.py does; beside it, BUILD/bench/disk reads the same bytes into
memory that is touched for the first time, which is the disk's limit. Medians of rounds, contenders in turn. WORKDIR
must be on the disk that is meant, and is emptied. Needs numpy."""
import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time

from quantized import SHAPES, config_of, make_model
from run import evict, touch_memory
from training import at_least, write_rows


def weights(folder):
    return [os.path.join(folder, name) for name in sorted(os.listdir(folder)) if name.endswith(".safetensors")]


def prepare(folder):
    evict(folder)
    touch_memory(sum(map(os.path.getsize, weights(folder))))


def load(args, folder):
    """Seconds in which the slowest rank loads its part of the model."""
    args.model, out = folder, os.path.join(args.workdir, "run")
    shutil.rmtree(out, ignore_errors=True)
    config = config_of(args, args.workdir, "as stored", out, 2)
    prepare(folder)
    subprocess.run([os.path.join(args.build, "src/tools/fsdptrain"), "run", config, "-q", "--device", "cpu", "--ranks",
                    str(args.ranks), "--profile"], check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                   stderr=subprocess.DEVNULL)
    with open(os.path.join(out, "profile.json")) as f:
        return json.load(f)["load"]["seconds"]


def disk(args, folder):
    prepare(folder)
    started = time.monotonic()
    for path in weights(folder):
        subprocess.run([os.path.join(args.build, "bench/disk"), "load", path], check=True)
    return time.monotonic() - started


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("build")
    ap.add_argument("workdir")
    ap.add_argument("--shape", choices=SHAPES, default="tinyllama")
    ap.add_argument("--bases", default="fp8-block,nf4")
    ap.add_argument("--rounds", type=at_least(1), default=5)
    ap.add_argument("--ranks", type=at_least(1), default=1)
    args = ap.parse_args()
    args.tokens = 32
    shutil.rmtree(args.workdir, ignore_errors=True)
    os.makedirs(args.workdir)
    folders = {"bf16": os.path.join(args.workdir, "bf16")}
    make_model(folders["bf16"], args.shape)
    write_rows(os.path.join(args.workdir, "rows.jsonl"), folders["bf16"], 2, args.tokens)
    for base in args.bases.split(","):
        folders[base] = os.path.join(args.workdir, base)
        subprocess.run([os.path.join(args.build, "src/tools/fsdpck"), "export", folders["bf16"], folders[base],
                        "--quantize", base, "-q"], check=True)
    seconds = {base: ([], []) for base in folders}
    for _ in range(args.rounds):
        for base, folder in folders.items():
            seconds[base][0].append(load(args, folder))
            seconds[base][1].append(disk(args, folder))
    for base, folder in folders.items():
        ours, limit = map(statistics.median, seconds[base])
        nbytes = sum(map(os.path.getsize, weights(folder)))
        print(f"{base:10} {nbytes / 1e9:.2f} GB: loaded in {ours:.3f} s, the disk alone {limit:.3f} s, "
              f"{limit / ours:.2f} of its rate")


if __name__ == "__main__":
    sys.exit(main())
