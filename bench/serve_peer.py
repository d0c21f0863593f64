#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What bench/serve.py asks of transformers and PEFT: prompts of several adapters on one model, one after another, in
the faster of bf16 and fp32. Prints one JSON object.

usage: serve_peer.py MODEL PROMPTS.json [--new 64] [--threads 2]"""
import argparse
import json
import time
import warnings

warnings.filterwarnings("ignore")


def main():
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM
    p = argparse.ArgumentParser()
    p.add_argument("model")
    p.add_argument("prompts")
    p.add_argument("--new", type=int, default=64)
    p.add_argument("--threads", type=int, default=2)
    a = p.parse_args()
    torch.set_num_threads(a.threads)
    with open(a.prompts) as f:
        prompts = json.load(f)
    rates = {}
    for dtype in (torch.bfloat16, torch.float32):
        model = AutoModelForCausalLM.from_pretrained(a.model, dtype=dtype).eval()
        config = LoraConfig(r=16, target_modules="all-linear")
        model = get_peft_model(model, config, adapter_name="0")
        for i in range(1, 4):
            model.add_adapter(str(i), config)

        def sample(i):
            model.set_adapter(str(i % 4))
            model.generate(input_ids=torch.tensor([prompts[i]]), attention_mask=torch.ones(1, len(prompts[i])),
                           max_new_tokens=a.new, min_new_tokens=a.new, do_sample=False, pad_token_id=0)
        with torch.inference_mode():
            sample(0)
            started = time.perf_counter()
            for i in range(len(prompts)):
                sample(i)
        rates[str(dtype)] = len(prompts) * a.new / (time.perf_counter() - started)
    print(json.dumps({"tokens_per_second": max(rates.values()), "rates": rates}))


if __name__ == "__main__":
    main()
