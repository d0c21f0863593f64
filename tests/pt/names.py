#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A Llama under torchtitan's names and under Hugging Face's: rows of q and k change places, whatever the sharding, and
back.

usage: names.py BINARY
"""
import array
import json
import shutil
import struct
import sys

from harness import run_checks, write

HEADS, KV_HEADS, HALF, COLUMNS = 4, 2, 3, 5
HF, TITAN = "model.layers.0.self_attn.%s_proj.weight", "layers.0.attention.w%s.weight"


def save(path, tensors):
    """name -> rows of floats"""
    header, blob = {}, b""
    for name, rows in tensors.items():
        data = array.array("f", [x for row in rows for x in row]).tobytes()
        header[name] = {
            "dtype": "F32",
            "shape": [len(rows), len(rows[0])],
            "data_offsets": [len(blob), len(blob) + len(data)],
        }
        blob += data
    text = json.dumps(header).encode()
    write(path, struct.pack("<Q", len(text)) + text + blob)


def weights(heads, seed):
    """(torchtitan's rows, Hugging Face's): row (head, pair, half) and row (head, half, pair) are the same."""
    row = lambda h, a, b: [float(seed + 1000 * h + 100 * a + 10 * b + c) for c in range(COLUMNS)]
    titan = [row(h, a, b) for h in range(heads) for b in range(HALF) for a in range(2)]
    return titan, [row(h, a, b) for h in range(heads) for a in range(2) for b in range(HALF)]


def check_names(t):
    (q, hf_q), (k, hf_k), (v, _) = weights(HEADS, 1), weights(KV_HEADS, 5), weights(KV_HEADS, 9)
    save(t.path("titan.safetensors"), {TITAN % "q": q, TITAN % "k": k, TITAN % "v": v, "norm.weight": [[1.0, 2.0]]})
    save(t.path("hf.safetensors"), {HF % "q": hf_q, HF % "k": hf_k, HF % "v": v, "model.norm.weight": [[1.0, 2.0]]})
    write(t.path("config", "config.json"),
          json.dumps({"num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS}).encode())
    for layout in (["--ranks", "1"], ["--ranks", "5"], ["--ranks", "23"], [
            "--mesh", "a=2,b=2", "--placement", "*.attention.*=shard(0)@a,shard(1)@b"
    ], ["--mesh", "a=3", "--placement", "*.attention.*=shard(1)@a"], ["--mesh", "a=3", "--dcp", "never"]):
        t.good("convert", "titan.safetensors", "sharded", *layout, "--force")
        t.good("convert", "sharded", "as-hf", "--ranks", "3", "--names", "hf", "--assets", "config", "--force")
        t.good("diff", "as-hf", "hf.safetensors", what="torchtitan's %s is Hugging Face's" % layout)
        # its own config.json says how many heads
        t.good("convert", "as-hf", "back", "--ranks", "2", "--names", "torchtitan", "--force")
        t.good("diff", "back", "titan.safetensors", what="%s and back" % layout)
        t.good("export", "sharded", "out.safetensors", "--names", "hf", "--assets", "config", "--force")
        t.good("diff", "out.safetensors", "hf.safetensors", what="%s exported" % layout)
    t.good("convert", "hf.safetensors", "same", "--ranks", "2", "--names", "hf", "--assets", "config")
    t.good("diff", "same", "hf.safetensors", what="names that are there stay")
    r = t.refused("an export without --names", "export", "sharded", "no.safetensors",
                  saying="as a Hugging Face model it would be wrong")
    t.check("--names hf" in r.err, "the hint", r)
    t.good("export", "sharded", "raw.safetensors", "--names", "torchtitan")
    t.good("diff", "raw.safetensors", "titan.safetensors", what="unless it is said that this is meant")
    t.refused("no config.json", "export", "sharded", "no.safetensors", "--names", "hf", saying="has no config.json")
    write(t.path("odd", "config.json"), b'{"num_attention_heads": 7}')
    t.refused("other heads", "export", "sharded", "no.safetensors", "--names", "hf", "--assets", "odd",
              saying="its rows cannot be those of the 7 heads", naming=TITAN % "q")
    write(t.path("zero", "config.json"), b'{"num_attention_heads": 0}')
    t.refused("no heads", "export", "sharded", "no.safetensors", "--names", "hf", "--assets", "zero",
              saying="no usable num_attention_heads")
    save(t.path("other.safetensors"), {TITAN % "q": q, "layers.0.moe.router.weight": v})
    t.refused("a weight of no Llama", "convert", "other.safetensors", "no", "--ranks", "2", "--names", "hf", "--assets",
              "config", saying="is no weight of a Llama", naming="layers.0.moe.router.weight")
    save(t.path("none.safetensors"), {"a": v})
    t.refused("no Llama", "convert", "none.safetensors", "no", "--ranks", "2", "--names", "hf", "--assets", "config",
              saying="no weight that is called as a Llama's")
    # A flipped bit under the view is still found, in the file and tensor it is in.
    shutil.rmtree(t.path("sharded"))
    t.good("convert", "titan.safetensors", "sharded", "--ranks", "1")
    with open(t.path("sharded", "__0_0.distcp"), "r+b") as f:
        data = f.read()
        at = data.index(array.array("f", q[0]).tobytes())
        f.seek(at)
        f.write(b"\x01")
    t.refused("damage", "export", "sharded", "no.safetensors", "--names", "hf", "--assets", "config", saying="damaged",
              naming="self_attn.q_proj")


if __name__ == "__main__":
    sys.exit(run_checks(check_names))
