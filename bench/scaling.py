#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints how `fsdptrain plan` expects training to scale on hosts with 8 H100, from a model's config.json and published
rates. Nothing runs.

usage: scaling.py FSDPTRAIN [--check PAGE]

Each GPU computes a row of 8,192 tokens in a step. Efficiency is tokens per second and GPU, as a share of those of one
host. --check compares the table with the one in a Markdown page."""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

FIXTURES = pathlib.Path(__file__).resolve().parents[1] / "fixtures"
NTOK = 8192
GPUS = (8, 16, 64, 256, 1024)
LORA = {"r": 16, "lora_alpha": 32}
# what: shape, more keys
CASES = {
    "8B, all weights, FULL_SHARD": ("llama-8b", {}),
    "8B, all weights, HYBRID_SHARD": ("llama-8b", {"fsdp": {"sharding_strategy": "HYBRID_SHARD"}}),
    "8B, LoRA, FULL_SHARD": ("llama-8b", {"lora": LORA}),
    "70B, LoRA, FULL_SHARD, blocks recomputed":
        ("llama-70b", {"lora": LORA, "fsdp": {"activation_checkpointing": "block"}}),
}


def plan(tool, folder, shape, keys, gpus):
    config = {
        "model": str(FIXTURES / "shapes" / shape), "output_dir": "out", "data": {"train": "row.jsonl", "seq_len": NTOK},
        "train": {"max_steps": 1, "micro_batch_size": 1, "global_batch_size": gpus}, "dtype": {"reduce": "bf16"}, **keys
    }
    (folder / "config.json").write_text(json.dumps(config))
    said = subprocess.run([tool, "plan", "config.json", "-q", "--json", "--ranks", str(gpus), "--ranks-per-host", "8",
                           "--gather", "copy", "--rates", str(FIXTURES / "rates/h100.json")],
                          cwd=folder, check=True, stdout=subprocess.PIPE)
    return json.loads(said.stdout)


def rows(tool, folder):
    (folder / "row.jsonl").write_text(json.dumps({"input_ids": list(range(NTOK)), "labels": list(range(NTOK))}) + "\n")
    yield "| | GPUs | a step | exposed communication | tokens/s | efficiency |"
    yield "|---|---|---|---|---|---|"
    for what, (shape, keys) in CASES.items():
        for gpus in GPUS:
            p = plan(tool, folder, shape, keys, gpus)
            each = p["tokens_per_step"] / p["step_seconds"] / gpus
            alone = each if gpus == GPUS[0] else alone
            yield (f"| {what} | {gpus:,} | {p['step_seconds']:.2f} s | {p['exposed_seconds']:.3f} s | "
                   f"{each * gpus:,.0f} | {100 * each / alone:.0f} % |")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("fsdptrain", type=os.path.abspath)
    p.add_argument("--check", type=pathlib.Path, metavar="PAGE")
    a = p.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        table = list(rows(a.fsdptrain, pathlib.Path(folder)))
    if not a.check:
        print("\n".join(table))
    elif "\n".join(table) not in a.check.read_text():
        print("\n".join([f"{a.check} has another table:", *table]))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
