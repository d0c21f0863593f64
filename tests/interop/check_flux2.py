#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Pictures of random FLUX.2 [klein] pipelines: fsdptrain sample and diffusers make the same, from the same noise; and
fsdptrain run trains as diffusers with PEFT and torch do.

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


def noise(seed, n, step=0, name=0x696D6167):
    """The numbers that fsdptrain begins with; of another purpose if it is named."""
    index = np.arange(n, dtype=np.uint64)
    block = index // np.uint64(4)
    zero = np.zeros_like(block)
    words = np.stack(philox((seed, 0), (block, zero, zero + np.uint64(step), zero + np.uint64(name))))
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


BLOCKS = [
    "to_q", "to_k", "to_v", "to_out.0", "add_q_proj", "add_k_proj", "add_v_proj", "to_add_out", "ff.linear_in",
    "ff_context.linear_in", "linear_out", "to_qkv_mlp_proj", "single_transformer_blocks.0.attn.to_out"
]
ENDS = [
    "x_embedder", "context_embedder", "timestep_embedder.linear_1", "timestep_embedder.linear_2",
    "double_stream_modulation_img.linear", "double_stream_modulation_txt.linear", "single_stream_modulation.linear",
    "norm_out.linear"
]


def make_adapter(folder, pipeline, rng, targets=None, dora=False):
    from diffusers import Flux2Transformer2DModel
    from peft import LoraConfig, get_peft_model
    targets = targets or rng.sample(BLOCKS + ENDS + ["proj_out"], 6)
    model = Flux2Transformer2DModel.from_pretrained(pipeline / "transformer", dtype=torch.float32)
    peft = get_peft_model(
        model, LoraConfig(r=rng.randint(1, 5), lora_alpha=rng.randint(1, 9), target_modules=targets, use_dora=dora))
    with torch.no_grad():
        for name, p in peft.named_parameters():
            if "magnitude" in name:
                p.mul_(1 + uniform(tuple(p.shape), 0.1, 7, name))
            elif "lora_" in name:
                p.copy_(uniform(tuple(p.shape), 0.1, 7, name))
    peft.save_pretrained(folder)
    return peft


def save_as_diffusers(peft, folder):
    """The file that diffusers' training scripts leave; the path."""
    from diffusers import Flux2KleinPipeline
    from peft import get_peft_model_state_dict
    layers = {k.removeprefix("base_model.model."): v for k, v in get_peft_model_state_dict(peft).items()}
    Flux2KleinPipeline.save_lora_weights(folder,
                                         transformer_lora_layers=layers,
                                         transformer_lora_adapter_metadata=peft.peft_config["default"].to_dict())
    return folder / "pytorch_lora_weights.safetensors"


def make_tiles_small(pipeline):
    """The side of tiles, as vae.enable_tiling() takes it."""
    path = pipeline / "vae/config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "sample_size": 64}))


def theirs(pipeline, adapter, prompt, x, spec):
    from diffusers import Flux2KleinPipeline
    from peft import PeftModel
    pipe = Flux2KleinPipeline.from_pretrained(pipeline, dtype=torch.float32)
    pipe.set_progress_bar_config(disable=True)
    if spec["tiled"]:
        pipe.vae.enable_tiling()
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
            "tokens": rng.choice([20, 48, 130]),
            "tiled": number % 2 == 1
        }
        if spec["tiled"]:
            make_tiles_small(pipeline)
        prompt = " ".join(rng.choices(WORDS, k=rng.randint(0, 40)))
        adapted = rng.random() < 0.6
        given = adapter
        if adapted:
            peft = make_adapter(adapter, pipeline, rng, dora=rng.random() < 0.3)
            given = save_as_diffusers(peft, pathlib.Path(folder)) if number % 2 else adapter
        command = [
            fsdptrain, "sample", pipeline, "--prompt", prompt, "--out", out, "--dtype", "fp32", "--seed", number,
            "--size", f"{spec['width']}x{spec['height']}", "--steps", spec["steps"], "--guidance", spec["guidance"],
            "--max-sequence-length", spec["tokens"], *(["--adapter", given] * adapted),
            *(["--vae-tiling"] * spec["tiled"])
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


def uniform_time(seed, number):
    """The part of noise of picture `number` of a run."""
    words = philox((seed, 0), [np.array([x], np.uint64) for x in (0, 0, number, 0x0083C3F3)])
    return np.float32(1 - float(words[0][0]) / 2**32)


def trained_by_peft(pipeline, start, pixels, caption, spec):
    """AdamW on one picture, as often as the spec says, with what fsdptrain draws."""
    from diffusers import Flux2KleinPipeline
    from peft import PeftModel
    pipe = Flux2KleinPipeline.from_pretrained(pipeline, dtype=torch.float32)
    with torch.no_grad():
        text = pipe.encode_prompt(caption, max_sequence_length=spec["tokens"], text_encoder_out_layers=(9, 18, 27))[0]
        if spec["tiled"]:
            pipe.vae.enable_tiling()
        image = torch.from_numpy(pixels).permute(2, 0, 1)[None].float() / 127.5 - 1
        z = pipe._patchify_latents(pipe.vae.encode(image).latent_dist.mode())
        mean, variance = (s.view(1, -1, 1, 1) for s in (pipe.vae.bn.running_mean, pipe.vae.bn.running_var))
        z = (z - mean) / torch.sqrt(variance + pipe.vae.config.batch_norm_eps)
    c, h, w = z.shape[1:]
    grid = torch.cartesian_prod(*(torch.arange(n) for n in (1, h, w, 1)))
    places = torch.cartesian_prod(*(torch.arange(n) for n in (1, 1, 1, spec["tokens"])))
    pipe.transformer.requires_grad_(False)
    model = PeftModel.from_pretrained(pipe.transformer, start, is_trainable=True)
    params = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(params, lr=spec["lr"], weight_decay=0.01)
    losses = []
    for step in range(spec["steps"]):
        losses.append(0.0)
        for number in range(step * spec["batch"], (step + 1) * spec["batch"]):
            e = torch.from_numpy(noise(spec["seed"], c * h * w, number, 0xC4EBEB76)).reshape(h, w, c).permute(2, 0, 1)
            sigma = float(uniform_time(spec["seed"], number))
            x = ((1 - sigma) * z + sigma * e).flatten(2).transpose(1, 2)
            v = model(hidden_states=x,
                      encoder_hidden_states=text,
                      timestep=torch.tensor([sigma]),
                      img_ids=grid,
                      txt_ids=places,
                      guidance=None,
                      return_dict=False)[0]
            loss = ((v - (e - z).flatten(2).transpose(1, 2))**2).mean() / spec["batch"]
            loss.backward()
            losses[-1] += loss.item()
        torch.nn.utils.clip_grad_norm_(params, 1.0)
        optimizer.step()
        optimizer.zero_grad()
    names = {n: n.replace(".default.", ".").replace("_vector.weight", "_vector") for n, _ in model.named_parameters()}
    return losses, {names[n]: p.detach() for n, p in model.named_parameters() if p.requires_grad}


def difference_of_readers(pipeline, adapter):
    """How far the models are apart that PEFT and diffusers make of an adapter's folder, and how far it moves them."""
    from diffusers import Flux2KleinPipeline
    from peft import PeftModel

    def predicted(change):
        pipe = Flux2KleinPipeline.from_pretrained(pipeline, dtype=torch.float32)
        model = change(pipe) or pipe.transformer
        c, d = pipe.transformer.config.in_channels, pipe.transformer.config.joint_attention_dim
        with torch.no_grad():
            return model(hidden_states=uniform((1, 6, c), 1.0, 7, "x"),
                         encoder_hidden_states=uniform((1, 5, d), 1.0, 7, "text"),
                         timestep=torch.tensor([0.4]),
                         img_ids=torch.cartesian_prod(*(torch.arange(n) for n in (1, 2, 3, 1)))[None],
                         txt_ids=torch.zeros(1, 5, 4),
                         guidance=None,
                         return_dict=False)[0]

    plain = predicted(lambda pipe: None)
    by_peft = predicted(lambda pipe: PeftModel.from_pretrained(pipe.transformer, adapter))
    by_diffusers = predicted(lambda pipe: pipe.load_lora_weights(adapter))
    return (by_peft - by_diffusers).abs().max().item(), (by_peft - plain).abs().max().item()


def random_targets(rng, number):
    """Modules in blocks; or some that all blocks depend on too; or all."""
    if number % 3 == 2:
        return "all-linear"
    return rng.sample(BLOCKS, 5) + rng.sample(ENDS, 2) * (number % 3) + ["proj_out"] * (number % 2)


def train_one(fsdptrain, seed, number):
    """What is wrong with a run on one picture, or None."""
    from PIL import Image
    from safetensors.torch import load_file
    rng = random.Random(seed * 1000 + number)
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        write_pipeline(work / "pipeline", seed=number, changes=random_changes(rng))
        tiled = number % 2 == 1
        if tiled:
            make_tiles_small(work / "pipeline")
        pixels = np.random.default_rng(number).integers(0, 256, [16 * rng.randint(1, 4 + 3 * tiled)
                                                                 for _ in range(2)] + [3], np.uint8)
        caption = " ".join(rng.choices(WORDS, k=rng.randint(0, 9)))
        (work / "data").mkdir()
        Image.fromarray(pixels).save(work / "data/a.png")
        (work / "data/a.txt").write_text(caption, encoding="utf-8")
        spec = {
            "steps": 4,
            "batch": rng.randint(1, 3),
            "lr": 1e-3,
            "tokens": rng.choice([20, 40]),
            "seed": 7,
            "tiled": tiled
        }
        targets = random_targets(rng, number)
        make_adapter(work / "start", work / "pipeline", rng, targets, number % 4 >= 2)
        adapter = json.loads((work / "start/adapter_config.json").read_text())
        (work / "config.json").write_text(
            json.dumps({
                "model": str(work / "pipeline"),
                "output_dir": str(work / "run"),
                "seed": 7,
                "data": {
                    "train": str(work / "data")
                },
                "image": {
                    "max_sequence_length": spec["tokens"],
                    "vae_tiling": tiled
                },
                "lora": {
                    **{
                        k: adapter[k]
                        for k in ("r", "lora_alpha", "use_dora")
                    }, "target_modules": targets,
                    "init_adapter": str(work / "start")
                },
                "train": {
                    "max_steps": spec["steps"],
                    "global_batch_size": spec["batch"],
                    "learning_rate": spec["lr"],
                    "lr_scheduler_type": "constant",
                    "warmup_steps": 0,
                    "weight_decay": 0.01,
                    "weight_decay_on": "all",
                    "max_grad_norm": 1.0
                },
                "dtype": {
                    "param": "fp32"
                }
            }))
        done = subprocess.run(
            [fsdptrain, "run", str(work / "config.json"), "--ranks",
             str(rng.randint(1, 3))],
            capture_output=True,
            text=True)
        if done.returncode:
            return f"training {number}: {done.stderr[-500:]}"
        losses, want = trained_by_peft(work / "pipeline", work / "start", pixels, caption, spec)
        ours = load_file(work / "run/adapter/adapter_model.safetensors")
        start = load_file(work / "start/adapter_model.safetensors")
        said = [json.loads(x)["loss"] for x in (work / "run/metrics.jsonl").read_text().splitlines()]
        off = max(abs(a - b) / b for a, b in zip(said, losses))
        moved = sum(((want[k] - start[k])**2).sum().item() for k in start)**0.5
        far = sum(((want[k] - ours[k])**2).sum().item() for k in start)**0.5 / moved
        if set(ours) != set(start) or off > 3e-4 or far > 2e-2:
            return f"training {number}: losses off by {off:.1e}, the adapter by {far:.1e} of its way"
        if not all("transformer_blocks." in name for name in ours):  # diffusers refuses others under PEFT's names
            return None
        apart, moved = difference_of_readers(work / "pipeline", work / "run/adapter")
        return None if apart <= 1e-3 * moved else (
            f"training {number}: diffusers reads the folder {apart:.1e} off, and it moves the model by {moved:.1e}")


def check(fsdptrain, count=10, seed=1):
    torch.set_num_threads(2)
    return [
        bad for bad in (*(one(fsdptrain, seed, i) for i in range(count)), *(train_one(fsdptrain, seed, i)
                                                                            for i in range(count // 2))) if bad
    ]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("fsdptrain")
    ap.add_argument("--count", type=int, default=8)
    ap.add_argument("--seed", type=int, default=1)
    args = ap.parse_args()
    bad = check(args.fsdptrain, args.count, args.seed)
    print("\n".join([*bad, f"{args.count + args.count // 2 - len(bad)} passed, {len(bad)} failed"]))
    return len(bad) > 0


if __name__ == "__main__":
    sys.exit(main())
