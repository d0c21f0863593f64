#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Pictures of random FLUX.2 [klein] pipelines: fsdptrain sample and diffusers make the same, from the same noise.

usage: check_flux2.py FSDPTRAIN [--count N] [--seed S]

A pipeline is make_flux2.py's with random sizes, base or distilled, in one file or several; some have an adapter of
PEFT, with alpha other than r. Pixels may differ by one where rounding decides."""
import argparse, json, pathlib, random, subprocess, sys, tempfile, warnings

import numpy as np
import torch

from make_flux2 import write_pipeline
from make_tiny import uniform

warnings.filterwarnings("ignore")
WORDS = "a red fox asleep in deep snow: naïve 夜市, 2026 'photo' — grain".split()


def philox(key, counter):
    """Philox4x32-10 (Salmon et al. 2011) of many counters: (4, n) uint32."""
    k0, k1 = (np.uint64(k) for k in key)
    c = [np.asarray(x, np.uint64) for x in counter]
    low = np.uint64(0xFFFFFFFF)
    for _ in range(10):
        p, q = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        c = [(q >> np.uint64(32)) ^ c[1] ^ k0, q & low, (p >> np.uint64(32)) ^ c[3] ^ k1, p & low]
        k0, k1 = (k0 + np.uint64(0x9E3779B9)) & low, (k1 + np.uint64(0xBB67AE85)) & low
    return c


def noise(seed, n):
    """The numbers that fsdptrain begins with."""
    index = np.arange(n, dtype=np.uint64)
    block = index // np.uint64(4)
    zero = np.zeros_like(block)
    words = np.stack(philox((seed, 0), (block, zero, zero, zero + np.uint64(0x696D6167))))
    pair = (index % np.uint64(4) // np.uint64(2) * np.uint64(2)).astype(int)
    at = np.arange(n)
    radius = np.sqrt(-2 * np.log((words[pair, at].astype(float) + 1) / 2**32))
    angle = 2 * np.pi * words[pair + 1, at].astype(float) / 2**32
    return (radius * np.where(index % np.uint64(2) == 0, np.cos(angle), np.sin(angle))).astype(np.float32)


def random_changes(rng):
    nhead, half, kv = rng.randint(1, 3), rng.choice([4, 8, 16]), rng.choice([1, 2])
    hidden, groups = rng.choice([16, 24, 40]), rng.choice([1, 2, 4])
    axes = [2 * rng.randint(0, 3) for _ in range(3)]
    axes.append(max(4 * half, sum(axes) + 2) - sum(axes))
    return {
        "text_encoder": {
            "hidden_size": hidden,
            "num_hidden_layers": rng.choice([27, 28, 30]),
            "num_attention_heads": 2 * kv,
            "num_key_value_heads": kv,
            "intermediate_size": rng.choice([32, 56])
        },
        "transformer": {
            "joint_attention_dim": 3 * hidden,
            "num_attention_heads": nhead,
            "attention_head_dim": sum(axes),
            "axes_dims_rope": axes,
            "num_layers": rng.randint(1, 3),
            "num_single_layers": rng.randint(1, 4),
            "mlp_ratio": rng.choice([2.0, 2.5, 3.0]),
            "rope_theta": rng.choice([500, 2000]),
            "in_channels": 16
        },
        "vae": {
            "block_out_channels": [groups * rng.randint(1, 5) for _ in range(4)],
            "norm_num_groups": groups,
            "layers_per_block": rng.randint(1, 2)
        }
    }


def make_adapter(folder, pipeline, rng):
    from diffusers import Flux2Transformer2DModel
    from peft import LoraConfig, get_peft_model
    targets = rng.sample([
        "to_q", "to_k", "to_v", "to_out.0", "add_q_proj", "to_add_out", "ff.linear_in", "linear_out", "to_qkv_mlp_proj",
        "single_transformer_blocks.0.attn.to_out", "x_embedder", "timestep_embedder.linear_1", "proj_out",
        "norm_out.linear", "double_stream_modulation_img.linear"
    ], 6)
    model = Flux2Transformer2DModel.from_pretrained(pipeline / "transformer", dtype=torch.float32)
    peft = get_peft_model(model, LoraConfig(r=rng.randint(1, 5), lora_alpha=rng.randint(1, 9), target_modules=targets))
    with torch.no_grad():
        for name, p in peft.named_parameters():
            if "lora_" in name:
                p.copy_(uniform(tuple(p.shape), 0.1, 7, name))
    peft.save_pretrained(folder)


def theirs(pipeline, adapter, prompt, x, spec):
    from diffusers import Flux2KleinPipeline
    from peft import PeftModel
    pipe = Flux2KleinPipeline.from_pretrained(pipeline, dtype=torch.float32)
    pipe.set_progress_bar_config(disable=True)
    if adapter:
        pipe.transformer = PeftModel.from_pretrained(pipe.transformer, adapter).merge_and_unload()
    with torch.no_grad():
        image = pipe(prompt=prompt,
                     height=spec["height"],
                     width=spec["width"],
                     num_inference_steps=spec["steps"],
                     guidance_scale=spec["guidance"],
                     latents=x,
                     max_sequence_length=spec["tokens"],
                     text_encoder_out_layers=(9, 18, 27),
                     output_type="np").images[0]
    return image * 255


def one(fsdptrain, seed, number):
    """What is wrong with it, or None."""
    from PIL import Image
    rng = random.Random(seed * 1000 + number)
    with tempfile.TemporaryDirectory() as folder:
        pipeline, adapter, out = (pathlib.Path(folder) / n for n in ("pipeline", "adapter", "a.png"))
        base = rng.random() < 0.5
        write_pipeline(pipeline,
                       seed=number,
                       changes=random_changes(rng),
                       base=base,
                       shards=rng.choice([1, 3]),
                       template_in_config=rng.random() < 0.3)
        spec = {
            "height": 16 * rng.randint(1, 6),
            "width": 16 * rng.randint(1, 6),
            "steps": rng.randint(1, 6),
            "guidance": rng.choice([1.0, 2.5, 4.0]),
            "tokens": rng.choice([20, 48, 130])
        }
        prompt = " ".join(rng.choices(WORDS, k=rng.randint(0, 40)))
        adapted = rng.random() < 0.6
        if adapted:
            make_adapter(adapter, pipeline, rng)
        command = [
            fsdptrain, "sample", pipeline, "--prompt", prompt, "--out", out, "--dtype", "fp32", "--seed", number,
            "--size", f"{spec['width']}x{spec['height']}", "--steps", spec["steps"], "--guidance", spec["guidance"],
            "--max-sequence-length", spec["tokens"], *(["--adapter", adapter] * adapted)
        ]
        done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
        if done.returncode:
            return f"pipeline {number}: {done.stderr}"
        nchannel = json.loads((pipeline / "transformer/config.json").read_text())["in_channels"]
        h, w = spec["height"] // 16, spec["width"] // 16
        x = torch.from_numpy(noise(number, h * w * nchannel)).reshape(1, h, w, nchannel).permute(0, 3, 1, 2)
        want = theirs(pipeline, adapter if adapted else None, prompt, x.contiguous(), spec)
        far = np.abs(np.asarray(Image.open(out)).astype(float) - want)
        return None if far.max() < 0.75 else f"pipeline {number}: {spec}, {'adapter, ' * adapted}off by {far.max():.3f}"


def check(fsdptrain, count=10, seed=1):
    torch.set_num_threads(2)
    return [bad for bad in (one(fsdptrain, seed, i) for i in range(count)) if bad]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("fsdptrain")
    ap.add_argument("--count", type=int, default=8)
    ap.add_argument("--seed", type=int, default=1)
    args = ap.parse_args()
    bad = check(args.fsdptrain, args.count, args.seed)
    print("\n".join([*bad, f"{args.count - len(bad)} passed, {len(bad)} failed"]))
    return len(bad) > 0


if __name__ == "__main__":
    sys.exit(main())
