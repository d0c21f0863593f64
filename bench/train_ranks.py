#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What sharding costs: the same LoRA job of 2,048 tokens a step as 1 rank of 2 threads, as 2 ranks of 1 thread that map
each other's parameters, that gather them by copying, under mpirun, and by torch's fully_shard over gloo. Prints a
table.

usage: train_ranks.py BUILD_DIR MODEL_FOLDER WORKDIR [--python PYTHON_WITH_TORCH] [--rounds 3] [--steps 3] [--dtype
bf16|fp32]

Each round runs every contender in turn; a run's first step does not count; medians of all rounds are compared, so that
a noisy machine hits all alike. Losses of ours must be the same bits, those of torch close. PyTorch runs under tcmalloc
where there is one. Also printed: how long training stood still for the save after step 2, and PSS."""
import argparse
import glob
import json
import os
import shutil
import statistics
import subprocess
import sys

from training import at_least, metrics, write_plan, write_rows

HERE = os.path.dirname(os.path.abspath(__file__))
SEQ, ROWS = 512, 4
MPI_ENV = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


class Bench:
    def __init__(self, a):
        self.a, self.tool = a, os.path.join(a.build, "src", "tools", "fsdptrain")
        self.tokens, self.out, self.config = (os.path.join(a.workdir, "bench-ranks-" + n)
                                              for n in ("tokens.jsonl", "run", "config.json"))
        write_rows(self.tokens, a.model, ROWS * a.steps, SEQ)
        write_plan(self.config + ".plan", a.steps, ROWS)
        with open(self.config, "w") as f:
            json.dump(
                {
                    "model": a.model,
                    "output_dir": self.out,
                    "data": {"train": self.tokens, "plan": self.config + ".plan"},
                    "lora": {"r": 16, "lora_alpha": 32},
                    "train": {
                        "max_steps": a.steps,
                        "gradient_accumulation_steps": 2,
                        "lr_scheduler_type": "constant",
                        "warmup_steps": 0,
                    },
                    "dtype": {"param": a.dtype},
                    "checkpoint": {"save_steps": 2},
                },
                f,
            )

    def ours(self, launcher, *options):
        shutil.rmtree(self.out, ignore_errors=True)
        subprocess.run([*launcher, self.tool, "run", self.config, "-q", *options], check=True, stdin=subprocess.DEVNULL,
                       stdout=subprocess.DEVNULL, env=MPI_ENV)
        m = metrics(self.out)
        return {
            "seconds": [x["step_seconds"] for x in m], "loss": [x["loss"] for x in m],
            "stall": m[1]["save_stall_seconds"], "pss": m[-1]["pss_bytes"]
        }

    def torch(self):
        store = self.config + ".store"
        if os.path.exists(store):
            os.unlink(store)
        preload = sorted(glob.glob("/usr/lib/*/libtcmalloc_minimal.so.4"))
        env = dict(os.environ, **({"LD_PRELOAD": preload[0]} if preload else {}))
        ranks = [
            subprocess.Popen([
                self.a.python,
                os.path.join(HERE, "fsdp_peer.py"), self.a.model, self.tokens,
                str(r), "2", store, "--dtype", self.a.dtype, "--batch",
                str(ROWS), "--steps",
                str(self.a.steps)
            ], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=env) for r in range(2)
        ]
        said = [r.communicate()[0] for r in ranks]
        if any(r.returncode for r in ranks):
            sys.exit("torch's ranks failed")
        return json.loads(said[0])

    def contenders(self):
        all_of = {"1 rank x 2 threads": lambda: self.ours([], "--ranks", "1", "--threads", "2"),
                  "2 ranks, mapped": lambda: self.ours([], "--ranks", "2", "--threads", "1"),
                  "2 ranks, gathered": lambda: self.ours([], "--ranks", "2", "--threads", "1", "--gather", "copy")}
        if shutil.which("mpirun"):
            mpirun = ["mpirun", "--oversubscribe", "--bind-to", "none", "-n", "2"]
            all_of["2 ranks, mpirun, mapped"] = lambda: self.ours(mpirun, "--threads", "1")
            all_of["2 ranks, mpirun, gathered"] = lambda: self.ours(mpirun, "--threads", "1", "--gather", "copy")
        if self.a.python:
            all_of["torch fully_shard, gloo"] = self.torch
        return all_of

    def run(self):
        runs = {name: [] for name in self.contenders()}
        for _ in range(self.a.rounds):
            for name, run in self.contenders().items():
                runs[name].append(run())
        losses = runs["1 rank x 2 threads"][0]["loss"]
        base = None
        print(f"{'LoRA r 16, ' + self.a.dtype:26} {'tokens/s':>9} {'of 1 rank':>9} {'stall ms':>9} {'PSS MB':>8}")
        for name, said in runs.items():
            exact = not name.startswith("torch")
            for r in said:
                if (r["loss"] != losses) if exact else any(abs(x - y) > 0.02 * y for x, y in zip(r["loss"], losses)):
                    sys.exit(f"{name}: losses {r['loss']}, {losses} wanted")
            seconds = statistics.median(s for r in said for s in r["seconds"][1:])
            base = base or seconds
            extra = (
                f" {1e3 * max(r['stall'] for r in said):9.1f} {statistics.median(r['pss'] for r in said) / 1e6:8.0f}"
                if exact
                else ""
            )
            print(f"{name:26} {ROWS * SEQ / seconds:9.0f} {base / seconds:9.2f}{extra}")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("build", "model", "workdir"):
        p.add_argument(name)
    p.add_argument("--python")
    p.add_argument("--rounds", type=at_least(1), default=3)
    p.add_argument("--steps", type=at_least(2), default=3)
    p.add_argument("--dtype", choices=["bf16", "fp32"], default="bf16")
    Bench(p.parse_args()).run()


if __name__ == "__main__":
    main()
