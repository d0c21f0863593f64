#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""fsdptrain serve: a step of an adapter over HTTP against the same step of `fsdptrain run`, and with --python samples
of several adapters at once against transformers and PEFT, one sequence after another.

usage: serve.py BUILD_DIR MODEL_FOLDER WORKDIR [--tokens 2048] [--steps 6] [--runs 3] [--threads 2] [--new 64]
                [--python PYTHON_WITH_TORCH]

A step is forward_backward of one row of --tokens tokens and optim_step, LoRA r 16 on all linear modules in bf16, by
one rank. Sampling: 8 prompts of 32 tokens, 2 of each of 4 adapters (r 16), --new tokens each, greedy; tokens a second
of all. Rounds are interleaved; medians."""
import argparse
import concurrent.futures
import json
import os
import shutil
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "tests", "train"))
from serve_client import Server
from training import at_least, metrics, write_rows

PROMPTS, ADAPTERS, LORA = 8, 4, {"rank": 16, "train_unembed": False}


class Bench:
    def __init__(self, a):
        self.a, self.tool = a, os.path.abspath(os.path.join(a.build, "src", "tools", "fsdptrain"))
        self.base = os.path.join(a.workdir, "bench-serve")
        self.tokens = self.base + ".jsonl"
        write_rows(self.tokens, a.model, a.steps, a.tokens)
        with open(self.tokens) as f:
            self.rows = [json.loads(line)["input_ids"] for line in f]

    def server(self, ranks):
        state = self.base + "-state"
        shutil.rmtree(state, ignore_errors=True)
        return Server(self.tool, self.a.model, state, "--ranks", ranks, "--threads",
                      self.a.threads // ranks, "--seq-len", self.a.tokens, name="bench", dtype="bf16")

    def served(self):
        """Seconds of each step."""
        seconds = []
        with self.server(1) as server:
            model = server.session().model(**LORA)
            for ids in self.rows:
                n = len(ids) - 1
                datum = {"tokens": ids[:-1], "inputs": {
                    "target_tokens": {"dtype": "int64", "shape": [n], "data": ids[1:]},
                    "weights": {"dtype": "float32", "shape": [n], "data": [1 / n] * n}}}
                started = time.perf_counter()
                requests = model.passes([datum]), model.optimize(learning_rate=1e-4)
                for request in requests:
                    server.wait(request)
                seconds.append(time.perf_counter() - started)
        return seconds

    def run(self):
        out, config = self.base + "-run", self.base + ".json"
        shutil.rmtree(out, ignore_errors=True)
        with open(config, "w") as f:
            json.dump({"model": self.a.model, "output_dir": out, "lora": {"r": 16, "target_modules": "all-linear"},
                       "data": {"train": self.tokens, "seq_len": self.a.tokens},
                       "train": {"max_steps": self.a.steps, "global_batch_size": 1, "warmup_steps": 0},
                       "checkpoint": {"save_steps": 0}}, f)
        subprocess.run([self.tool, "run", config, "-q", "--ranks", "1", "--threads", str(self.a.threads)], check=True,
                       stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        return [m["step_seconds"] for m in metrics(out)]

    def prompts(self):
        return [self.rows[0][32 * i:32 * i + 32] for i in range(PROMPTS)]

    def sampled(self):
        """Tokens a second of all samples together."""
        with self.server(self.a.threads) as server:
            session = server.session()
            samplers = [session.model(seed=i, **LORA).snapshot() for i in range(ADAPTERS)]
            jobs = [(samplers[i % ADAPTERS], ids) for i, ids in enumerate(self.prompts())]
            one = lambda job: job[0].sample(job[1], max_tokens=self.a.new, temperature=0, stop=[])
            with concurrent.futures.ThreadPoolExecutor(PROMPTS) as pool:
                list(pool.map(one, jobs))
                started = time.perf_counter()
                out = list(pool.map(one, jobs))
                seconds = time.perf_counter() - started
        return sum(len(x["sequences"][0]["tokens"]) for x in out) / seconds

    def peer(self):
        prompts = self.base + "-prompts.json"
        with open(prompts, "w") as f:
            json.dump(self.prompts(), f)
        done = subprocess.run([self.a.python, os.path.join(HERE, "serve_peer.py"), self.a.model, prompts, "--new",
                               str(self.a.new), "--threads", str(self.a.threads)], check=True,
                              stdin=subprocess.DEVNULL, capture_output=True, text=True)
        return json.loads(done.stdout)["tokens_per_second"]


def show(title, rounds):
    print(f"{title}: {statistics.median(rounds):.3f} ({', '.join(f'{x:.3f}' for x in rounds)})", flush=True)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("build")
    p.add_argument("model")
    p.add_argument("workdir")
    p.add_argument("--tokens", type=at_least(512), default=2048)
    p.add_argument("--steps", type=at_least(3), default=6)
    p.add_argument("--runs", type=at_least(1), default=3)
    p.add_argument("--threads", type=at_least(1), default=2)
    p.add_argument("--new", type=at_least(2), default=64)
    p.add_argument("--python")
    a = p.parse_args()
    bench, served, run, ours, theirs = Bench(a), [], [], [], []
    for _ in range(a.runs):
        served.append(statistics.median(bench.served()[2:]))
        run.append(statistics.median(bench.run()[2:]))
        ours.append(bench.sampled())
        if a.python:
            theirs.append(bench.peer())
    show("seconds of a step, serve", served)
    show("seconds of a step, run", run)
    show("serve / run", [x / y for x, y in zip(served, run)])
    show("tokens/s of 8 samples with 4 adapters, serve", ours)
    if theirs:
        show("tokens/s, transformers and PEFT one by one", theirs)
        show("times the rate", [x / y for x, y in zip(ours, theirs)])


if __name__ == "__main__":
    main()
