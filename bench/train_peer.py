#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What bench/train.py asks of fsdptrain, done by PyTorch, transformers and PEFT. Prints one JSON object: the seconds
and the loss of every step, the seconds from process start to the end of the first step, and the largest resident size.

usage: train_peer.py MODEL TOKENS.jsonl --mode MODE [--full] [--experts WAY] [--targets NAMES] [--seq N] [--micro N]
                     [--steps N] [--threads N] [--lr X] [--base HOW]

HOW: nf4 (the base quantized by bitsandbytes at load, with double quantization) or dequantized (an FP8 folder, which
transformers loads as bf16).
MODE: fp32, bf16 (weights and all), autocast (fp32 weights, bf16 products), compiled (autocast under torch.compile),
compiled-fp32. Rows are whole documents of one length, so that attention needs no mask but the causal one: the fastest
that these libraries have."""
import argparse
import json
import os
import resource
import time
import warnings

warnings.filterwarnings("ignore")


def process_age():
    """Seconds since the kernel started this process."""
    with open("/proc/self/stat") as f:
        ticks = int(f.read().rsplit(")", 1)[1].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")


def rows_of(path, seq):
    import torch
    with open(path) as f:
        rows = [json.loads(line)["input_ids"] for line in f]
    assert all(len(r) == seq for r in rows)
    return torch.tensor(rows)


def base_of(a):
    """Arguments for from_pretrained, by --base."""
    import torch
    from transformers import BitsAndBytesConfig, FineGrainedFP8Config
    if a.base == "nf4":
        return {"quantization_config": BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4",
                                                          bnb_4bit_use_double_quant=True,
                                                          bnb_4bit_compute_dtype=torch.bfloat16)}
    return {"quantization_config": FineGrainedFP8Config(dequantize=True)} if a.base else {}


def build(a):
    import torch
    from transformers import AutoModelForCausalLM
    dtype = torch.bfloat16 if a.mode == "bf16" else torch.float32
    ways = {"experts_implementation": a.experts} if a.experts else {}
    model = AutoModelForCausalLM.from_pretrained(a.model, dtype=dtype, attn_implementation="sdpa", **ways,
                                                 **base_of(a)).train()
    if not a.full:
        from peft import LoraConfig, get_peft_model
        targets = a.targets if a.targets == "all-linear" else a.targets.split(",")
        model = get_peft_model(
            model, LoraConfig(task_type="CAUSAL_LM", r=16, lora_alpha=32, target_modules=targets)
        )
    optimizer = torch.optim.AdamW(
        [p for p in model.parameters() if p.requires_grad], lr=a.lr, weight_decay=0.0, foreach=True
    )
    return (torch.compile(model) if a.mode.startswith("compiled") else model), optimizer


def step(a, model, optimizer, rows):
    """One batch of rows in micro-batches: the loss is the mean over its supervised tokens."""
    import torch
    total, loss = rows.shape[0] * (rows.shape[1] - 1), 0.0
    for micro in rows.split(a.micro):
        with torch.autocast("cpu", torch.bfloat16, enabled=a.mode in ("autocast", "compiled")):
            logits = model(input_ids=micro, use_cache=False).logits
        part = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1).float(), micro[:, 1:].flatten(),
                                                 reduction="sum") / total
        part.backward()
        loss += part.item()
    torch.nn.utils.clip_grad_norm_([p for p in model.parameters() if p.requires_grad], 1.0)
    optimizer.step()
    optimizer.zero_grad()
    return loss


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model")
    p.add_argument("tokens")
    p.add_argument("--mode", choices=["fp32", "bf16", "autocast", "compiled", "compiled-fp32"], required=True)
    p.add_argument("--full", action="store_true")
    p.add_argument("--experts", help="how transformers computes experts")
    p.add_argument("--base", choices=["nf4", "dequantized"], help="how the base is held")
    p.add_argument("--targets", default="all-linear", help="all-linear, or names with commas between")
    for name, default in (("seq", 512), ("micro", 4), ("batch", 4), ("steps", 4), ("threads", 2)):
        p.add_argument(f"--{name}", type=int, default=default)
    p.add_argument("--lr", type=float, default=2e-4)
    a = p.parse_args()
    import torch
    torch.set_num_threads(a.threads)
    model, optimizer = build(a)
    rows = rows_of(a.tokens, a.seq)
    said = {"seconds": [], "loss": []}
    for i in range(a.steps):
        began = time.monotonic()
        at = i * a.batch % len(rows)
        said["loss"].append(step(a, model, optimizer, rows[at:at + a.batch]))
        said["seconds"].append(time.monotonic() - began)
        if i == 0:
            said["first_step"] = process_age()
    said["peak_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps(said))


if __name__ == "__main__":
    main()
