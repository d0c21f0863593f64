#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the seconds and the memory that `fsdptrain plan` predicts with those of a run, in ten settings.

usage: planner.py BUILD_DIR MODEL_FOLDER WORKDIR [--clock] [--only NUMBER[,NUMBER…]] [--rounds N]

Random tokens, all supervised. Of --steps steps the first does not count, because it chooses among ways to compute.
Each rank has one thread, and measured is the mean processor time of a rank in the fastest step: on a machine that does
nothing else it is the time on the clock. --clock gives ranks all processors, and
takes the fastest step on the clock. The rates of the machine are measured anew for each setting, in WORKDIR: on a
shared machine the same work may take twice as long a minute later. The table has medians of --rounds rounds."""
import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time

from training import at_least, children_of, cpu_seconds, metrics, write_rows

# what: tokens a row, rows a micro-batch, rows a step, more keys, options
SETTINGS = [
    ("lora bf16", 512, 4, 4, {}, []),
    ("lora bf16, micro-batches of 1", 512, 1, 4, {}, []),
    ("lora bf16, long rows", 2048, 1, 1, {}, []),
    ("lora bf16, short rows", 128, 8, 8, {}, []),
    ("lora fp32", 512, 2, 2, {"dtype.param": "fp32"}, []),
    ("lora bf16, recomputed blocks", 512, 2, 2, {"fsdp.activation_checkpointing": "block"}, []),
    ("lora bf16, 2 ranks map", 512, 1, 4, {}, ["--ranks", "2"]),
    ("lora bf16, 2 ranks copy", 512, 1, 4, {}, ["--ranks", "2", "--gather", "copy"]),
    ("full bf16", 512, 4, 4, {"lora": None}, []),
    ("full fp32, 2 ranks SHARD_GRAD_OP", 512, 1, 2,
     {"lora": None, "dtype.param": "fp32", "fsdp.sharding_strategy": "SHARD_GRAD_OP"},
     ["--ranks", "2", "--gather", "copy"]),
]


def cpu_seconds_of_all(pid):
    """Processor seconds of a run: of its process and of those that it started, its ranks."""
    return cpu_seconds(pid) + sum(cpu_seconds(child) for child in children_of(pid))


class Bench:
    def __init__(self, a):
        self.a, self.tool = a, os.path.join(a.build, "src", "tools", "fsdptrain")
        self.env = {**os.environ, "XDG_CACHE_HOME": os.path.join(a.workdir, "cache")}

    def config(self, setting):
        what, seq, micro, rows, more, _ = setting
        data = os.path.join(self.a.workdir, f"rows-{seq}.jsonl")
        write_rows(data, self.a.model, rows * self.a.steps, seq)
        config = {
            "model": os.path.abspath(self.a.model), "output_dir": os.path.join(self.a.workdir, "out"),
            "data": {"train": data, "seq_len": seq},
            "lora": {"r": 16, "lora_alpha": 32, "target_modules": "all-linear"},
            "train": {"max_steps": self.a.steps, "micro_batch_size": micro, "global_batch_size": rows},
            "dtype": {}, "fsdp": {},
        }
        for key, value in more.items():
            if value is None:
                del config[key]
            else:
                section, name = key.split(".")
                config[section][name] = value
        path = os.path.join(self.a.workdir, "config.json")
        with open(path, "w") as f:
            json.dump(config, f)
        return path, config["output_dir"]

    def predict(self, path, options):
        said = subprocess.run([self.tool, "plan", path, "-q", "--json", *options], env=self.env, check=True,
                              stdout=subprocess.PIPE)
        return json.loads(said.stdout)

    def measure(self, config, out, options):
        """Seconds of a step after the first, and the memory of all ranks."""
        shutil.rmtree(out, ignore_errors=True)
        run = subprocess.Popen([self.tool, "run", config, "-q", *options], env=self.env,
                               stdout=subprocess.DEVNULL)
        times, path = [], os.path.join(out, "metrics.jsonl")
        while run.poll() is None and len(times) < self.a.steps - 1:
            time.sleep(0.01)
            try:
                with open(path, "rb") as f:
                    nlines = f.read().count(b"\n")
            except OSError:
                continue
            if nlines > len(times):
                times += [cpu_seconds_of_all(run.pid)] * (nlines - len(times))
        if run.wait():
            sys.exit(f"planner.py: the run ended with {run.returncode}")
        lines = metrics(out)
        if self.a.clock:
            return min(m["step_seconds"] for m in lines[1:]), lines[-1]["pss_bytes"]
        nranks = int(options[options.index("--ranks") + 1]) if "--ranks" in options else 1
        return min(b - a for a, b in zip(times, times[1:])) / nranks, lines[-1]["pss_bytes"]

    def compare(self, setting):
        """What was predicted and measured: seconds of a step, memory of all ranks."""
        shutil.rmtree(os.path.join(self.a.workdir, "cache"), ignore_errors=True)
        path, out = self.config(setting)
        options = setting[5] + ([] if self.a.clock else ["--threads", "1"])
        plan = self.predict(path, options)
        seconds, pss = self.measure(path, out, options)
        return plan["step_seconds"], seconds, plan["all_ranks_bytes"] / pss

    def run(self):
        wanted = [int(n) for n in self.a.only.split(",")] if self.a.only else range(1, len(SETTINGS) + 1)
        seen = {n: [] for n in wanted}
        for _ in range(self.a.rounds):
            for n in wanted:
                seen[n].append(self.compare(SETTINGS[n - 1]))
        good = 0
        print(f"{'':4}{'setting':36}{'predicted':>10}{'measured':>10}{'ratio':>7}{'least':>7}{'most':>7}{'memory':>8}")
        for n in wanted:
            ratios = sorted(predicted / seconds for predicted, seconds, _ in seen[n])
            predicted, seconds, memory = (statistics.median(values) for values in zip(*seen[n]))
            ratio = statistics.median(ratios)
            good += 1 / 1.15 <= ratio <= 1.15
            print(f"{n:2}  {SETTINGS[n - 1][0]:36}{predicted:8.3f} s{seconds:8.3f} s{ratio:7.2f}{ratios[0]:7.2f}"
                  f"{ratios[-1]:7.2f}{memory:8.2f}")
        print(f"within 15 %: {good} of {len(wanted)}")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("build")
    p.add_argument("model")
    p.add_argument("workdir")
    p.add_argument("--steps", type=at_least(3), default=4)
    p.add_argument("--clock", action="store_true")
    p.add_argument("--only")
    p.add_argument("--rounds", type=at_least(1), default=3)
    a = p.parse_args()
    os.makedirs(a.workdir, exist_ok=True)
    Bench(a).run()


if __name__ == "__main__":
    main()
