#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A Llama with random weights, made on the GPU, as a Hugging Face folder; and rows of random tokens to train it on.
Needs PyTorch.

    make_model.py 0.1B|0.6B|8B OUT"""
import json, pathlib, random, struct, sys
import torch

SHAPES = {
    "0.1B": dict(
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        head_dim=64,
        vocab_size=49152,
        tie_word_embeddings=True,
    ),
    "0.6B": dict(
        hidden_size=1024,
        intermediate_size=3072,
        num_hidden_layers=28,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=128,
        vocab_size=128256,
        tie_word_embeddings=True,
    ),
    "8B": dict(
        hidden_size=4096,
        intermediate_size=14336,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=128,
        vocab_size=128256,
        tie_word_embeddings=False,
    ),
}
FILE_BYTES = 4 << 30


def tensors(c):
    hidden, inner, q, kv = c["hidden_size"], c[
        "intermediate_size"], c["num_attention_heads"] * c["head_dim"], c["num_key_value_heads"] * c["head_dim"]
    yield "model.embed_tokens.weight", (c["vocab_size"], hidden)
    for i in range(c["num_hidden_layers"]):
        for name, shape in (
            ("input_layernorm", (hidden,)),
            ("self_attn.q_proj", (q, hidden)),
            ("self_attn.k_proj", (kv, hidden)),
            ("self_attn.v_proj", (kv, hidden)),
            ("self_attn.o_proj", (hidden, q)),
            ("post_attention_layernorm", (hidden,)),
            ("mlp.gate_proj", (inner, hidden)),
            ("mlp.up_proj", (inner, hidden)),
            ("mlp.down_proj", (hidden, inner)),
        ):
            yield f"model.layers.{i}.{name}.weight", shape
    yield "model.norm.weight", (hidden,)
    if not c["tie_word_embeddings"]:
        yield "lm_head.weight", (c["vocab_size"], hidden)


def values(name, shape, device):
    if len(shape) == 1:
        return torch.ones(shape, dtype=torch.bfloat16, device=device)
    # an embedding may be the head too: with more, logits are so far apart that no loss makes sense
    scale = 0.02 if "embed" in name else shape[1] ** -0.5
    return torch.empty(shape, dtype=torch.bfloat16, device=device).normal_(0, scale)


def write_file(path, part, device):
    header, at = {}, 0
    for name, shape in part:
        nbytes = 2 * torch.Size(shape).numel()
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [at, at + nbytes]}
        at += nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for name, shape in part:
            f.write(values(name, shape, device).view(torch.uint8).cpu().numpy().tobytes())


def main():
    name, out = sys.argv[1], pathlib.Path(sys.argv[2])
    device = "cuda" if torch.cuda.is_available() else "cpu"
    config = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_act": "silu",
        "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "torch_dtype": "bfloat16",
        **SHAPES[name]
    }
    out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(1)
    parts, nbytes = [[]], 0
    for tensor in tensors(config):
        nbytes += 2 * torch.Size(tensor[1]).numel()
        if nbytes > FILE_BYTES and parts[-1]:
            parts.append([])
            nbytes = 2 * torch.Size(tensor[1]).numel()
        parts[-1].append(tensor)
    where = {}
    for i, part in enumerate(parts):
        file = "model.safetensors" if len(parts) == 1 else f"model-{i + 1:05}-of-{len(parts):05}.safetensors"
        write_file(out / file, part, device)
        where.update({tensor: file for tensor, _ in part})
    if len(parts) > 1:
        (out / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))
    (out / "config.json").write_text(json.dumps(config))
    rng = random.Random(1)
    with open(out / "tokens.jsonl", "w") as f:
        for _ in range(32):
            ids = [rng.randrange(config["vocab_size"]) for _ in range(4096)]
            f.write(json.dumps({"input_ids": ids, "labels": ids}) + "\n")


if __name__ == "__main__":
    main()
