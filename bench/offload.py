#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What it costs to keep the optimizer state in a file (fsdp.offload), and parameters and gradients too: a full fp32
fine-tuning of 2,048 tokens a step, in memory and on the disk of WORKDIR. Prints a table.

usage: offload.py BUILD_DIR MODEL_FOLDER WORKDIR [--rounds 1] [--steps 3] [--ranks 1] [--memory BYTES]

They run in turn; a run's first step does not count; medians of all rounds are compared. Losses must be the same bits.
The processor's seconds are those of whole runs, in the program and in the kernel, divided by the steps. The disk's rate
is that of one thread while it reads or writes."""
import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys

from training import at_least, metrics, write_plan, write_rows

SEQ, ROWS = 512, 4


class Bench:
    def __init__(self, a):
        self.a, self.tool = a, os.path.join(a.build, "src", "tools", "fsdptrain")
        self.tokens, self.out, self.path = (os.path.join(a.workdir, "bench-offload-" + n)
                                            for n in ("tokens.jsonl", "run", "config.json"))
        write_rows(self.tokens, a.model, ROWS * a.steps, SEQ)
        write_plan(self.path + ".plan", a.steps, ROWS)

    def run(self, **fsdp):
        shutil.rmtree(self.out, ignore_errors=True)
        with open(self.path, "w") as f:
            json.dump({"model": self.a.model, "output_dir": self.out, "fsdp": fsdp, "dtype": {"param": "fp32"},
                       "data": {"train": self.tokens, "plan": self.path + ".plan"},
                       "train": {"max_steps": self.a.steps, "gradient_accumulation_steps": ROWS // self.a.ranks,
                                 "lr_scheduler_type": "constant", "warmup_steps": 0},
                       "checkpoint": {"save_steps": 0, "export_model": False}}, f)
        options = [self.path, "-q", "--ranks", str(self.a.ranks)]
        planned = json.loads(subprocess.run([self.tool, "plan", *options, "--json"], check=True, capture_output=True,
                                            text=True).stdout)
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([self.tool, "run", *options], check=True, stdin=subprocess.DEVNULL)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = [(getattr(after, kind) - getattr(before, kind)) / self.a.steps for kind in ("ru_utime", "ru_stime")]
        return metrics(self.out), planned, cpu

    def compare(self):
        state = {"offload": os.path.abspath(self.a.workdir), "offload_memory": self.a.memory}
        kinds = {"in memory": {}, "state on disk": state,
                 "all on disk": {**state, "offload_params": True, "offload_gradients": True}}
        runs = {kind: [] for kind in kinds}
        for _ in range(self.a.rounds):
            for kind, fsdp in kinds.items():
                runs[kind].append(self.run(**fsdp))
        losses = [[m["loss"] for m in lines] for each in runs.values() for lines, *_ in each]
        if any(other != losses[0] for other in losses):
            sys.exit(f"the losses are not the same bits: {losses}")
        median = {kind: statistics.median(m["step_seconds"] for lines, *_ in each for m in lines[1:])
                  for kind, each in runs.items()}
        for kind, each in runs.items():
            lines, planned, _ = each[-1]
            user, system = (statistics.median(cpu[i] for *_, cpu in each) for i in (0, 1))
            print(f"{kind:13} {median[kind]:8.2f} s a step, {planned['step_seconds']:.2f} planned, "
                  f"{user:.2f} + {system:.2f} s of processors  {max(m['pss_bytes'] for m in lines) / 1e9:6.2f} GB PSS, "
                  f"{planned['all_ranks_bytes'] / 1e9:.2f} planned")
        for kind in list(runs)[1:]:
            last = [m for lines, *_ in runs[kind] for m in lines[1:]]
            moved, waited, hidden, gathers = (statistics.median(m[key] for m in last)
                                              for key in ("offload_bytes", "offload_wait_seconds",
                                                          "offload_hidden_seconds", "comm_gather_seconds"))
            print(f"{kind}: {median['in memory'] / median[kind]:.2f} of the speed in memory; {moved / 1e9:.2f} GB of "
                  f"state and gradients a step at {moved / 1e9 / (waited + hidden):.2f} GB/s, {waited:.2f} s of it "
                  f"waited for, and {gathers:.2f} s for parameters")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build")
    parser.add_argument("model")
    parser.add_argument("workdir")
    parser.add_argument("--rounds", type=at_least(1), default=1)
    parser.add_argument("--steps", type=at_least(2), default=3)
    parser.add_argument("--ranks", type=int, default=1, choices=(1, 2, 4))
    parser.add_argument("--memory", type=int, default=256 << 20)
    Bench(parser.parse_args()).compare()


if __name__ == "__main__":
    main()
