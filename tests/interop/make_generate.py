#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Greedy tokens of transformers (and PEFT) for the trainer's goldens, in float32.

usage: make_generate.py GOLDENS OUT.json        (tests/train/goldens/generate.json is its output)

Of each case: the model with its end_adapter (or, fully trained, as it is), a prompt from its data that is longer than
any window, the tokens that follow, and the margin between the best and the second logit of each."""
import json
import pathlib
import sys

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

PROMPT, NEW = 18, 24


def run(folder):
    model = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32).eval()
    adapter = folder / "end_adapter"
    if adapter.exists():
        model = PeftModel.from_pretrained(model, adapter).eval()
    ids = [i for line in (folder / "data.jsonl").read_text().splitlines()
           for i in json.loads(line)["input_ids"]][:PROMPT]
    new, margins = [], []
    with torch.no_grad():
        out = model(input_ids=torch.tensor([ids]), use_cache=True)
        for _ in range(NEW):
            top = out.logits[0, -1].topk(2)
            new.append(top.indices[0].item())
            margins.append(round((top.values[0] - top.values[1]).item(), 6))
            out = model(input_ids=top.indices[:1].unsqueeze(0), past_key_values=out.past_key_values, use_cache=True)
    return {"prompt": ids, "ids": new, "margins": margins}


goldens = pathlib.Path(sys.argv[1])
cases = sorted(p.parent.parent for p in goldens.glob("*/model/config.json"))
pathlib.Path(
    sys.argv[2]).write_text("{\n" + ",\n".join(f"{json.dumps(c.name)}: {json.dumps(run(c))}" for c in cases) + "\n}\n")
