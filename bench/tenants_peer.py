#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What bench/tenants.py asks of fsdptrain, done by transformers and PEFT: several adapters on one model, which take
turns. Prints one JSON object: the seconds in which each adapter has had a step.

usage: tenants_peer.py MODEL TOKENS-R.jsonl… --mode fp32|autocast [--steps N] [--rows N]

R, in the name of each file, is the rank of its adapter."""
import argparse
import json
import re
import time
import warnings

warnings.filterwarnings("ignore")


def main():
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM
    p = argparse.ArgumentParser()
    p.add_argument("model")
    p.add_argument("tokens", nargs="+")
    p.add_argument("--mode", choices=["fp32", "autocast"], required=True)
    p.add_argument("--steps", type=int, default=8)
    p.add_argument("--rows", type=int, default=1)
    a = p.parse_args()
    model, rows, optimizers = AutoModelForCausalLM.from_pretrained(a.model, dtype=torch.float32).train(), {}, {}
    for path in a.tokens:
        r = int(re.search(r"(\d+)\.jsonl$", path)[1])
        name, config = f"r{r}", LoraConfig(r=r, target_modules="all-linear")
        if rows:
            model.add_adapter(name, config)
        else:
            model = get_peft_model(model, config, adapter_name=name)
        with open(path) as f:
            rows[name] = torch.tensor([json.loads(line)["input_ids"] for line in f])
        model.set_adapter(name)
        optimizers[name] = torch.optim.AdamW([q for q in model.parameters() if q.requires_grad], lr=2e-4)
    seconds = []
    for step in range(a.steps):
        started = time.perf_counter()
        for name, ids in rows.items():
            model.set_adapter(name)
            batch = ids[step * a.rows:(step + 1) * a.rows]
            with torch.autocast("cpu", torch.bfloat16, enabled=a.mode == "autocast"):
                model(input_ids=batch, labels=batch, use_cache=False).loss.backward()
            torch.nn.utils.clip_grad_norm_([q for q in model.parameters() if q.requires_grad], 1.0)
            optimizers[name].step()
            optimizers[name].zero_grad()
        seconds.append(time.perf_counter() - started)
    print(json.dumps({"seconds": seconds}))


if __name__ == "__main__":
    main()
