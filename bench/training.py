# SPDX-License-Identifier: Apache-2.0
"""What the benchmarks of the trainer share: rows of random tokens and the plan file that says which rows each step
takes, the metrics of a run, the processor seconds of its processes, and options with a least value."""
import argparse
import json
import os
import random


def write_rows(path, model, nrows, seq):
    """Rows of seq tokens of the model's vocabulary, all supervised; the same ones each time."""
    with open(os.path.join(model, "config.json")) as f:
        nvocab = json.load(f)["vocab_size"]
    rng = random.Random(seq)
    with open(path, "w") as f:
        for _ in range(nrows):
            ids = [rng.randrange(nvocab) for _ in range(seq)]
            f.write(json.dumps({"input_ids": ids, "labels": ids}) + "\n")


def write_plan(path, steps, rows, micro=1):
    """Each step takes the next rows of the file, in micro-batches of `micro` rows."""
    plan = [[[[n] for n in range(first, first + micro)] for first in range(s * rows, (s + 1) * rows, micro)]
            for s in range(steps)]
    with open(path, "w") as f:
        json.dump({"steps": plan}, f)


def metrics(out):
    """One object a step."""
    with open(os.path.join(out, "metrics.jsonl")) as f:
        return [json.loads(line) for line in f]


def children_of(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as f:
        return [int(p) for p in f.read().split()]


def cpu_seconds(pid):
    """Processor seconds of a process, in its own code and in the kernel."""
    with open(f"/proc/{pid}/stat") as f:
        fields = f.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def at_least(least):
    """The type of an option whose value is an integer of this or more."""
    def parse(text):
        if (value := int(text)) < least:
            raise argparse.ArgumentTypeError(f"{value}: it must be {least} or more")
        return value
    parse.__name__ = "integer"  # argparse: "invalid integer value"
    return parse
