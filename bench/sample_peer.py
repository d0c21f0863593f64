#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What bench/sample.py asks of fsdptrain, done by transformers (and PEFT): greedy tokens at batch 1, by generate with
its own cache. For each line on standard input it generates once and prints one JSON object: the seconds of all tokens
but the first, and the ids.

usage: sample_peer.py MODEL DTYPE TOKENS THREADS PROMPT_IDS [ADAPTER]"""
import json
import os
import sys
import time
import warnings

warnings.filterwarnings("ignore")


def main():
    model_path, dtype, tokens, threads, ids = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), json.loads(
        sys.argv[5])
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.generation.streamers import BaseStreamer
    torch.set_num_threads(threads)
    model = AutoModelForCausalLM.from_pretrained(model_path,
                                                 dtype=getattr(torch, {"bf16": "bfloat16", "fp32": "float32"}[dtype]),
                                                 attn_implementation="sdpa").eval()
    if len(sys.argv) > 6:
        from peft import PeftModel
        model = PeftModel.from_pretrained(model, sys.argv[6], autocast_adapter_dtype=False).to(model.dtype).eval()

    class Clock(BaseStreamer):
        def put(self, value):
            self.times.append(time.perf_counter())

        def end(self):
            pass

    clock, prompt = Clock(), torch.tensor([ids])
    for _ in sys.stdin:
        clock.times = []
        with torch.no_grad():
            out = model.generate(input_ids=prompt, attention_mask=torch.ones_like(prompt), do_sample=False,
                                 max_new_tokens=tokens, min_new_tokens=tokens, streamer=clock)
        # the first call is for the prompt
        print(json.dumps({"seconds": clock.times[-1] - clock.times[1], "ids": out[0, len(ids):].tolist()}), flush=True)


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    main()
