#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times training steps of fsdptrain against PyTorch + transformers + PEFT, and prints a table of ratios.

usage: train.py BUILD_DIR MODEL_FOLDER WORKDIR --python PYTHON_WITH_TORCH [--rounds 2] [--steps 3] [--threads 2] [--only
ROW[,ROW…]] [--compiled]

A step is 2,048 tokens in rows of one length, all of them supervised. Each round runs every contender of a row in turn,
--steps steps each, the first of which does not count; the medians of all rounds are compared, so that a noisy machine
hits all alike. PyTorch runs under tcmalloc where there is one. Losses of the first and last step must agree, or the row
is refused. The ratio is the best peer's time over fsdptrain's: above 1, fsdptrain is faster. --compiled: with
torch.compile too, which takes minutes a contender."""
import argparse
import glob
import json
import os
import shutil
import statistics
import subprocess
import sys
import time

from training import at_least, metrics, write_plan, write_rows

HERE = os.path.dirname(os.path.abspath(__file__))
TOKENS = 2048
# name: (rows of so many tokens, rows a micro-batch of ours, dtype, full?, peers' modes)
ROWS = {
    "lora bf16 512x4": (512, 4, "bf16", False, ["bf16", "autocast"]),
    "lora bf16 512x4 by 1": (512, 1, "bf16", False, ["autocast"]),
    "lora bf16 2048x1": (2048, 1, "bf16", False, ["bf16", "autocast"]),
    "lora fp32 512x4": (512, 4, "fp32", False, ["fp32"]),
    "full bf16 512x4": (512, 4, "bf16", True, ["bf16", "autocast"]),
    "full fp32 512x4": (512, 4, "fp32", True, ["fp32"]),
    "toy bf16 64x1": (64, 1, "bf16", False, ["bf16", "autocast", "fp32"]),
}


def tcmalloc():
    found = sorted(glob.glob("/usr/lib/*/libtcmalloc_minimal.so.4"))
    return found[0] if found else None


class Bench:
    def __init__(self, a):
        self.a, self.tool = a, os.path.join(a.build, "src", "tools", "fsdptrain")
        self.steps, self.preload = a.steps, tcmalloc()

    def path(self, name):
        return os.path.join(self.a.workdir, "bench-train-" + name)

    def toy(self):
        """A toy model's folder, made by transformers."""
        out = self.path("toy")
        if not os.path.isdir(out):
            code = (
                "import sys, torch; from transformers import LlamaConfig, LlamaForCausalLM; torch.manual_seed(1);"
                " LlamaForCausalLM(LlamaConfig(vocab_size=4096, hidden_size=256, intermediate_size=688,"
                " num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=512,"
                " tie_word_embeddings=True)).to(torch.bfloat16).save_pretrained(sys.argv[1])"
            )
            subprocess.run(
                [self.a.python, "-c", code, out], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
        return out

    def prepare(self, name):
        seq, micro, dtype, full, _ = ROWS[name]
        toy = name.startswith("toy")
        model = self.toy() if toy else self.a.model
        rows, steps = (1 if toy else TOKENS // seq), (10 if toy else 1) * self.steps
        write_rows(self.path("tokens.jsonl"), model, rows * steps, seq)
        write_plan(self.path("plan.json"), steps, rows, micro)
        config = {
            "model": model, "output_dir": self.path("run"),
            "data": {"train": self.path("tokens.jsonl"), "plan": self.path("plan.json")}, "train": {
                "max_steps": steps, "gradient_accumulation_steps": rows // micro, "lr_scheduler_type": "constant",
                "warmup_steps": 0
            }, "dtype": {"param": dtype}, "checkpoint": {"save_steps": 0}
        }
        if not full:
            config["lora"] = {"r": 16, "lora_alpha": 32, "target_modules": "all-linear"}
        with open(self.path("config.json"), "w") as f:
            json.dump(config, f)
        return model, seq, rows, steps, full

    def ours(self):
        shutil.rmtree(self.path("run"), ignore_errors=True)
        began, first = time.monotonic(), 0.0
        process = subprocess.Popen(
            [self.tool, "run", self.path("config.json"), "--threads", str(self.a.threads)],
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        for line in process.stderr:
            if line.startswith("step 1 "):
                first = time.monotonic() - began
        if process.wait():
            sys.exit("fsdptrain failed")
        m = metrics(self.path("run"))
        return {
            "seconds": [x["step_seconds"] for x in m], "loss": [x["loss"] for x in m],
            "peak_bytes": max(x["rss_bytes"] for x in m), "first_step": first
        }

    def peer(self, model, seq, rows, steps, full, mode, options=()):
        env = dict(os.environ, **({"LD_PRELOAD": self.preload} if self.preload else {}))
        command = [
            self.a.python,
            os.path.join(HERE, "train_peer.py"),
            model,
            self.path("tokens.jsonl"),
            "--mode",
            mode,
            "--seq",
            str(seq),
            "--batch",
            str(rows),
            "--micro",
            str(rows),
            "--steps",
            str(steps),
            "--threads",
            str(self.a.threads),
            *(["--full"] if full else []),
            *options,
        ]
        return json.loads(
            subprocess.run(
                command,
                check=True,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            ).stdout
        )

    def row(self, name):
        job = self.prepare(name)
        modes = ROWS[name][4] + (
            ["compiled-fp32" if ROWS[name][2] == "fp32" else "compiled"] if self.a.compiled else []
        )
        said = {mode: [] for mode in ["ours", *modes]}
        for _ in range(self.a.rounds):
            for mode in said:
                said[mode].append(self.ours() if mode == "ours" else self.peer(*job, mode))
        self.compare(name, said)
        self.report(name, said, job[1] * job[2])

    def compare(self, name, said):
        for mode, runs in said.items():
            for which in (0, -1):
                ours, theirs = said["ours"][0]["loss"][which], runs[0]["loss"][which]
                if abs(ours - theirs) > 0.02 * abs(ours):
                    sys.exit(
                        f"{name}: the loss of {mode} is {theirs}, fsdptrain's is {ours}: they do not do the same work")

    def report(self, name, said, ntok):
        median = {mode: statistics.median([s for r in runs for s in r["seconds"][1:]]) for mode, runs in said.items()}
        peak = {mode: max(r["peak_bytes"] for r in runs) for mode, runs in said.items()}
        best = min((m for m in median if m != "ours"), key=median.get)
        least = min(peak[m] for m in peak if m != "ours")
        print(
            f"{name:22}  fsdptrain {ntok / median['ours']:8.1f} tok/s  "
            + "  ".join(f"{m} {ntok / t:.1f}" for m, t in median.items() if m != "ours")
            + f"  ratio {median[best] / median['ours']:.2f}  peak {peak['ours'] / 1e6:.0f} MB,"
            f" {peak['ours'] / least:.2f} of the least peer's",
            flush=True,
        )
        if name == "lora bf16 512x4":
            first = statistics.median(r["first_step"] - r["seconds"][0] for r in said[best])
            start = statistics.median(r["first_step"] - r["seconds"][0] for r in said["ours"])
            print(
                f"{'start to first step':22}  fsdptrain {start:.2f} s  {best} {first:.2f} s  ratio {first / start:.1f}",
                flush=True)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("build")
    p.add_argument("model")
    p.add_argument("workdir")
    p.add_argument("--python", required=True)
    p.add_argument("--rounds", type=at_least(1), default=2)
    p.add_argument("--steps", type=at_least(2), default=3)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--only")
    p.add_argument("--compiled", action="store_true")
    a = p.parse_args()
    os.makedirs(a.workdir, exist_ok=True)
    bench = Bench(a)
    print(
        f"{TOKENS} tokens a step, {a.threads} threads, medians of {a.rounds} x {a.steps - 1} steps; PyTorch's malloc:"
        f" {bench.preload or 'its own'}",
        flush=True,
    )
    for name in ROWS:
        if not a.only or name in a.only.split(","):
            bench.row(name)


if __name__ == "__main__":
    main()
