#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes a PEFT adapter for every *_proj of a model, with random values; and with --checkpoint a safetensors file of
the model and the adapter together, under the names that a LoRA run has. numpy only; the same arguments give the same
bytes.

usage: make_adapter.py MODEL.safetensors OUT_FOLDER [--rank R] [--checkpoint FILE]"""
import argparse
import json
import os
import shutil
import struct
import sys

import numpy as np

from make_model import bf16


def read_header(path):
    with open(path, "rb") as f:
        n, = struct.unpack("<Q", f.read(8))
        return 8 + n, {k: v for k, v in json.loads(f.read(n)).items() if k != "__metadata__"}


def factors(header, rank):
    """name of the module, and the shapes of A and B."""
    for name, t in header.items():
        if name.endswith("_proj.weight"):
            yield name.removesuffix(".weight"), (rank, t["shape"][1]), (t["shape"][0], rank)


def write(path, tensors, base=None, base_data=0):
    """tensors: name -> array of bf16 bits. base: header entries that stand before them, whose data is copied from a
    file."""
    head, at = dict(base[1]) if base else {}, base_data
    for name, x in tensors.items():
        head[name] = {"dtype": "BF16", "shape": x.shape, "data_offsets": [at, at + x.nbytes]}
        at += x.nbytes
    text = json.dumps({"__metadata__": {"format": "pt"}, **head}).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        if base:
            with open(base[0], "rb") as model:
                model.seek(base[2])
                shutil.copyfileobj(model, f, 1 << 24)
        for x in tensors.values():
            f.write(x.tobytes())


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("model")
    ap.add_argument("out")
    ap.add_argument("--rank", type=int, default=16)
    ap.add_argument("--checkpoint", metavar="FILE")
    a = ap.parse_args()
    data, header = read_header(a.model)
    rng, tensors, found = np.random.Generator(np.random.PCG64(1)), {}, {}
    for module, *shapes in factors(header, a.rank):
        found[module] = [bf16(rng.standard_normal(s, dtype=np.float32) * np.float32(0.02)).reshape(s) for s in shapes]
        for x, part in zip(found[module], "AB"):
            tensors[f"base_model.model.{module}.lora_{part}.weight"] = x
    os.makedirs(a.out, exist_ok=True)
    write(os.path.join(a.out, "adapter_model.safetensors"), tensors)
    with open(os.path.join(a.out, "adapter_config.json"), "w") as f:
        json.dump(
            {
                "peft_type": "LORA",
                "task_type": "CAUSAL_LM",
                "r": a.rank,
                "lora_alpha": 2 * a.rank,
                "target_modules": sorted({m.split(".")[-1] for m in found}),
            },
            f,
        )
    if a.checkpoint:
        inner = lambda k: f"base_model.model.{k.removesuffix('.weight')}.base_layer.weight" if k.removesuffix(
            ".weight") in found else f"base_model.model.{k}"
        trained = {k.replace(".weight", ".default.weight"): x for k, x in tensors.items()}
        write(
            a.checkpoint,
            trained,
            (a.model, {inner(k): v for k, v in header.items()}, data),
            max(v["data_offsets"][1] for v in header.values()),
        )
    print(f"{a.out}: {len(tensors)} tensors, {sum(x.nbytes for x in tensors.values())} bytes", file=sys.stderr)


if __name__ == "__main__":
    main()
