#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes a BF16 safetensors file with the shapes of a Llama of about 1.1 billion parameters (2.2 GB) and weights as
trained models have them: normal, standard deviation 0.02. numpy only. The same arguments give the same bytes."""
import argparse
import json
import struct
import sys

import numpy as np


def shapes(hidden, inner, layers, vocab):
    kv = hidden // 8
    yield "model.embed_tokens.weight", (vocab, hidden)
    for i in range(layers):
        for name, shape in (
            ("self_attn.q_proj", (hidden, hidden)),
            ("self_attn.k_proj", (kv, hidden)),
            ("self_attn.v_proj", (kv, hidden)),
            ("self_attn.o_proj", (hidden, hidden)),
            ("mlp.gate_proj", (inner, hidden)),
            ("mlp.up_proj", (inner, hidden)),
            ("mlp.down_proj", (hidden, inner)),
            ("input_layernorm", (hidden,)),
            ("post_attention_layernorm", (hidden,)),
        ):
            yield f"model.layers.{i}.{name}.weight", shape
    yield "model.norm.weight", (hidden,)
    yield "lm_head.weight", (vocab, hidden)


def bf16(x):
    """float32 to bfloat16 bits, to nearest, ties to even."""
    bits = x.view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype("<u2")


def write_tensor(f, rng, shape, rows=1 << 20):
    n = int(np.prod(shape))
    for at in range(0, n, rows):
        f.write(bf16(rng.standard_normal(min(rows, n - at), dtype=np.float32) * np.float32(0.02)).tobytes())


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("out", help="the .safetensors file to write")
    ap.add_argument("--hidden", type=int, default=2048)
    ap.add_argument("--inner", type=int, default=5632)
    ap.add_argument("--layers", type=int, default=22)
    ap.add_argument("--vocab", type=int, default=32000)
    ap.add_argument("--seed", type=int, default=0)
    a = ap.parse_args()
    tensors = list(shapes(a.hidden, a.inner, a.layers, a.vocab))
    head, at = {"__metadata__": {"format": "pt"}}, 0
    for name, shape in tensors:
        nbytes = 2 * int(np.prod(shape))
        head[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + nbytes]}
        at += nbytes
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    rng = np.random.Generator(np.random.PCG64(a.seed))
    with open(a.out, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for _, shape in tensors:
            write_tensor(f, rng, shape)
    print(f"{a.out}: {len(tensors)} tensors, {at} bytes of weights", file=sys.stderr)


if __name__ == "__main__":
    main()
