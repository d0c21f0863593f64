#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What bench/pictures.py asks of fsdptrain, done by PyTorch, diffusers and PEFT. Prints one JSON object: the seconds of
every step, the seconds from process start to the first step, the largest resident size, and the seconds of the
autoencoder, best of three.

usage: pictures_peer.py PIPELINE PICTURE --mode MODE [--steps N] [--threads N]

MODE: fp32, bf16 (weights, adapters and all), or either with "compiled-" before it. The pipeline is loaded, the picture
and its caption are encoded, then the text encoder and the autoencoder are put away, as diffusers' script for DreamBooth
does with --cache_latents."""
import argparse
import json
import os
import resource
import time
import warnings

warnings.filterwarnings("ignore")
TARGETS = ["to_q", "to_k", "to_v", "to_out.0", "to_qkv_mlp_proj"]


def process_age():
    """Seconds since the kernel started this process."""
    with open("/proc/self/stat") as f:
        ticks = int(f.read().rsplit(")", 1)[1].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")


def encoded(pipe, a, dtype):
    """Latents [1, tokens, channels] with their places, and the text's embedding with its own."""
    import numpy as np
    import torch
    from PIL import Image
    pixels = torch.from_numpy(np.asarray(Image.open(a.picture).convert("RGB"))).permute(2, 0, 1)[None]
    image = (pixels.float() / 127.5 - 1).to(dtype)
    with torch.no_grad():
        text, places = pipe.encode_prompt("a picture of a fox", max_sequence_length=512,
                                          text_encoder_out_layers=(9, 18, 27))
        z = pipe.vae.encode(image).latent_dist.mode()
    h, w = z.shape[2] // 2, z.shape[3] // 2
    x = z.reshape(1, z.shape[1], h, 2, w, 2).permute(0, 2, 4, 1, 3, 5).reshape(1, h * w, -1)
    grid = torch.cartesian_prod(*(torch.arange(n) for n in (1, h, w, 1)))[None]
    return x.to(dtype), grid, text.to(dtype), places


def of_autoencoder(vae, x, z):
    """Seconds of encoding and of decoding; x: pixels, z: latents."""
    import torch
    best = {}
    with torch.inference_mode():
        for name, run in (("encode", lambda: vae.encode(x)), ("decode", lambda: vae.decode(z))):
            for _ in range(3):
                started = time.perf_counter()
                run()
                best[name] = min(best.get(name, 1e9), time.perf_counter() - started)
    return best


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("pipeline")
    p.add_argument("picture")
    p.add_argument("--mode", choices=["fp32", "bf16", "compiled-fp32", "compiled-bf16"], required=True)
    p.add_argument("--steps", type=int, default=4)
    p.add_argument("--threads", type=int, default=2)
    a = p.parse_args()
    import torch
    from diffusers import AutoencoderKLFlux2, Flux2KleinPipeline
    from peft import LoraConfig, get_peft_model
    torch.set_num_threads(a.threads)
    dtype = torch.bfloat16 if a.mode.endswith("bf16") else torch.float32
    pipe = Flux2KleinPipeline.from_pretrained(a.pipeline, dtype=dtype)
    x, grid, text, places = encoded(pipe, a, dtype)
    transformer = pipe.transformer.requires_grad_(False)
    pipe.vae = pipe.text_encoder = None
    model = get_peft_model(transformer, LoraConfig(r=16, lora_alpha=16, target_modules=TARGETS),
                           autocast_adapter_dtype=False).train()
    params = [q for q in model.parameters() if q.requires_grad]
    optimizer = torch.optim.AdamW(params, lr=1e-4, fused=True)
    run = torch.compile(model) if a.mode.startswith("compiled") else model
    seconds, began = [], None
    for _ in range(a.steps):
        started = time.perf_counter()
        began = began or process_age()
        noise, sigma = torch.randn_like(x), float(torch.rand(()))
        out = run(hidden_states=(1 - sigma) * x + sigma * noise, encoder_hidden_states=text,
                  timestep=torch.tensor([sigma], dtype=dtype), img_ids=grid, txt_ids=places, guidance=None,
                  return_dict=False)[0]
        ((out.float() - (noise - x).float())**2).mean().backward()
        torch.nn.utils.clip_grad_norm_(params, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.perf_counter() - started)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    vae = AutoencoderKLFlux2.from_pretrained(a.pipeline, subfolder="vae", dtype=dtype)
    height, width = int(grid[0, -1, 1]) + 1, int(grid[0, -1, 2]) + 1
    found = of_autoencoder(vae, torch.rand(1, 3, 16 * height, 16 * width).to(dtype),
                           torch.randn(1, x.shape[2] // 4, 2 * height, 2 * width).to(dtype))
    print(json.dumps({"step_seconds": seconds, "start_seconds": began, "peak_bytes": peak,
                      "encode_seconds": found["encode"], "decode_seconds": found["decode"]}))


if __name__ == "__main__":
    main()
