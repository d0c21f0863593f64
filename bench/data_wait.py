#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How long training waits for data: data_wait.py BUILD MODEL WORKDIR [STEPS]. Many short conversations (30 MB, some
100,000 documents), packed and shuffled by the trainer itself, LoRA on all processors as 2 ranks. Prints the share of
the steps' time, from metrics.jsonl, and how long the run took to get to its first step, where the text was tokenized
before and where it was not."""
import json
import os
import random
import shutil
import subprocess
import sys
import time

from training import metrics

WORDS = (
    "the of a to in is that it was for on are with as his they be at one have this from by hot but some what there we"
    " can out other were all your when up use".split()
)


def write_conversations(path, nbytes):
    rng, n = random.Random(3), 0
    with open(path, "w") as f:
        while n < nbytes:
            said = [" ".join(rng.choices(WORDS, k=rng.randint(3, 60))) for _ in range(2)]
            n += f.write(
                json.dumps(
                    {"messages": [{"role": "user", "content": said[0]}, {"role": "assistant", "content": said[1]}]}
                )
                + "\n"
            )


def run(tool, config, out):
    """Seconds to the end of the first step, and the metrics."""
    start = time.monotonic()
    process = subprocess.Popen([tool, "run", config, "--ranks", "2"], stdin=subprocess.DEVNULL,
                               stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    first = None
    for line in process.stderr:
        if line.startswith("step ") and first is None:
            first = time.monotonic() - start
    if process.wait() or first is None:
        sys.exit("fsdptrain failed")
    return first, metrics(out)


def main():
    build, model, work = sys.argv[1:4]
    steps = int(sys.argv[4]) if len(sys.argv) > 4 else 10
    data, out, config = (os.path.join(work, "data-wait-" + n) for n in ("chat.jsonl", "run", "config.json"))
    write_conversations(data, 30e6)
    shutil.rmtree(out, ignore_errors=True)
    with open(config, "w") as f:
        json.dump(
            {
                "model": model, "output_dir": out, "data": {"train": data, "seq_len": 256}, "lora": {"r": 8},
                "train": {"max_steps": steps, "global_batch_size": 4}, "checkpoint": {"save_steps": 0}
            }, f)
    for what in ("tokenized on the way", "from the cache"):
        first, lines = run(os.path.join(build, "src", "tools", "fsdptrain"), config, out)
        wait, total = (sum(m[k] for m in lines) for k in ("data_wait_seconds", "step_seconds"))
        print(
            f"{what}: first step after {first - lines[0]['step_seconds']:.1f} s; data wait"
            f" {1e3 * wait / len(lines):.2f} ms a step of {1e3 * total / len(lines):.0f} ms,"
            f" {100 * wait / total:.3f} %"
        )
        for name in ("checkpoints", "adapter", "metrics.jsonl", "summary.json"):
            path = os.path.join(out, name)
            shutil.rmtree(path) if os.path.isdir(path) else os.path.exists(path) and os.unlink(path)


if __name__ == "__main__":
    main()
