#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the weights and configuration of fixtures/tiny-llama-tied: a seeded, tied 2-layer Llama in three files.

Weights come from numpy's PCG64 integers on a fixed grid, so the same seed gives the same bytes on any machine. Norm
weights are random too: a loader that forgets one of them is found out. The tokenizer beside them was trained once and
is kept as it is."""
import argparse, math, pathlib, zlib
import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from make_smollm2 import save_weights, write_json

CONFIG = {
    "hidden_size": 128, "intermediate_size": 352, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 4, "vocab_size": 1112, "max_position_embeddings": 256, "rms_norm_eps": 1e-5,
    "rope_theta": 100000.0, "hidden_act": "silu", "tie_word_embeddings": True, "bos_token_id": 1105,
    "eos_token_id": 1109
}


def uniform(shape, std, seed, name, mean=0.0):
    """Uniform with this standard deviation; every tensor has its own stream, so order does not matter."""
    rng = np.random.Generator(np.random.PCG64([seed, zlib.crc32(name.encode())]))
    grid = rng.integers(-(1 << 23), 1 << 23, size=shape, dtype=np.int64).astype(np.float64) / (1 << 23)
    return torch.from_numpy((grid * (std * math.sqrt(3.0)) + mean).astype(np.float32))


def tensor_for(name, shape, seed):
    if name.endswith("norm.weight"):
        return uniform(shape, 0.15, seed, name, mean=1.0)
    if "embed_tokens" in name:
        return uniform(shape, 0.35, seed, name)
    gain = 1.4 if ".q_proj." in name or ".k_proj." in name else 0.9
    return uniform(shape, gain / math.sqrt(shape[1]), seed, name)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("out", type=pathlib.Path, help="folder to write")
    ap.add_argument("--seed", type=int, default=0)
    args = ap.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", **CONFIG))
    tensors = {name: tensor_for(name, tuple(t.shape), args.seed).to(torch.bfloat16)
               for name, t in model.state_dict().items() if name != "lm_head.weight"}
    save_weights(tensors, args.out, 3)
    flat = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "rope_scaling": None, "torch_dtype": "bfloat16",
        **CONFIG
    }
    write_json(args.out / "config.json", dict(sorted(flat.items())))
    write_json(args.out / "generation_config.json", {k: CONFIG[k] for k in ("bos_token_id", "eos_token_id")})


if __name__ == "__main__":
    main()
