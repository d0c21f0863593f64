#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times LoRA steps on mixtures of experts, against PyTorch + transformers + PEFT with each of transformers' ways to
compute experts, and against a dense model with as many products a token. The row "2 ranks" needs no PyTorch
(moe_ranks.py): experts that are gathered against experts that are whole on ranks.

usage: moe.py BUILD_DIR WORKDIR [--python PYTHON_WITH_TORCH] [--rounds 2] [--steps 3] [--threads 2] [--only ROW]

Models are Qwen3-MoE's and Qwen3's, of two layers and random weights, made by transformers. A step is 2,048 tokens in
rows of 512; adapters are those of attention. Each round runs every contender of a row in turn; the first step of a run
does not count. Losses must agree, or the row is refused. Ratios above 1: fsdptrain is faster, or the mixture is."""
import argparse
import json
import os
import statistics
import subprocess
import sys

import moe_ranks
from train import Bench
from training import at_least, write_plan, write_rows

SEQ, ROWS_A_STEP, HIDDEN, LAYERS = 512, 4, 1024, 2
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
ROWS = {  # experts, top k, width of an expert, dtype, modes of the peer
    "16 experts, top 2, bf16": (16, 2, 1024, "bf16", ("bf16", "autocast")),
    "16 experts, top 2, fp32": (16, 2, 1024, "fp32", ("fp32",)),
    "128 experts, top 8, bf16": (128, 8, 512, "bf16", ("bf16", "autocast")),
}
RANKS = "2 ranks"
WAYS = ("eager", "grouped_mm")  # of transformers
MAKE = """
import json, sys, torch
from transformers import AutoConfig, AutoModelForCausalLM
torch.manual_seed(1)
config = json.loads(sys.argv[1])
kind = config.pop("model_type")
AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **config)).to(torch.bfloat16).save_pretrained(sys.argv[2])
"""


class Moe(Bench):
    def model(self, name, experts, top, width, sparse):
        out = self.path(f"moe-{experts}-{top}-{width}-{'sparse' if sparse else 'dense'}")
        config = {"vocab_size": 4096, "hidden_size": HIDDEN, "num_hidden_layers": LAYERS, "num_attention_heads": 16,
                  "num_key_value_heads": 4, "head_dim": 64, "intermediate_size": top * width,
                  "max_position_embeddings": SEQ, "tie_word_embeddings": True}
        if sparse:
            config.update(model_type="qwen3_moe", num_experts=experts, num_experts_per_tok=top,
                          moe_intermediate_size=width, norm_topk_prob=True)
        if not os.path.isdir(out):
            subprocess.run([self.a.python, "-c", MAKE, json.dumps({"model_type": "qwen3", **config}), out], check=True,
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return out

    def prepare_for(self, model, dtype):
        write_rows(self.path("tokens.jsonl"), model, ROWS_A_STEP * self.steps, SEQ)
        write_plan(self.path("plan.json"), self.steps, ROWS_A_STEP, ROWS_A_STEP)
        config = {
            "model": model, "output_dir": self.path("run"), "dtype": {"param": dtype},
            "data": {"train": self.path("tokens.jsonl"), "plan": self.path("plan.json")},
            "lora": {"r": 16, "lora_alpha": 32, "target_modules": ATTENTION}, "checkpoint": {"save_steps": 0},
            "train": {"max_steps": self.steps, "lr_scheduler_type": "constant", "warmup_steps": 0}
        }
        with open(self.path("config.json"), "w") as f:
            json.dump(config, f)

    def of_peer(self, model, mode, way):
        options = ["--targets", ",".join(ATTENTION), "--experts", way]
        return self.peer(model, SEQ, ROWS_A_STEP, self.steps, False, mode, options)

    def row(self, name):
        experts, top, width, dtype, modes = ROWS[name]
        sparse, dense = (self.model(name, experts, top, width, which) for which in (True, False))
        said = {"ours": [], "dense": [], **{f"{mode} {way}": [] for mode in modes for way in WAYS}}
        for _ in range(self.a.rounds):
            for contender, runs in said.items():
                if contender in ("ours", "dense"):
                    self.prepare_for(dense if contender == "dense" else sparse, dtype)
                    runs.append(self.ours())
                else:
                    runs.append(self.of_peer(sparse, *contender.split()))
        other = said.pop("dense")
        self.compare(name, said)
        self.report(name, said, SEQ * ROWS_A_STEP)
        seconds = [statistics.median(s for r in runs for s in r["seconds"][1:]) for runs in (other, said["ours"])]
        print(f"{'':22}  dense {SEQ * ROWS_A_STEP / seconds[0]:8.1f} tok/s  ratio {seconds[0] / seconds[1]:.2f}",
              flush=True)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("build")
    p.add_argument("workdir")
    p.add_argument("--python", help=f"for all rows but {RANKS!r}")
    p.add_argument("--rounds", type=at_least(1), default=2)
    p.add_argument("--steps", type=at_least(2), default=3)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--only")
    a = p.parse_args()
    names = [a.only] if a.only else [*ROWS, RANKS]
    if unknown := [n for n in names if n not in (*ROWS, RANKS)]:
        sys.exit(f"--only: no row is called {unknown[0]!r}; there are {', '.join(map(repr, (*ROWS, RANKS)))}")
    if names != [RANKS] and not a.python:
        p.error(f"all rows but {RANKS!r} need --python")
    os.makedirs(a.workdir, exist_ok=True)
    bench = Moe(a)
    for name in names:
        if name == RANKS:
            moe_ranks.row(name, bench.tool, bench.path("moe-ranks"), a.rounds, a.steps, ATTENTION)
        else:
            bench.row(name)


if __name__ == "__main__":
    main()
