# SPDX-License-Identifier: Apache-2.0
"""Greedy tokens of a Hugging Face folder as transformers gives them: the proof that a folder still is the model it
was."""
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def greedy(folder, prompts, n=24):
    """[(token ids, text)] for each prompt, in float32."""
    tok = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    out = []
    for prompt in prompts:
        ids = torch.tensor([tok(prompt)["input_ids"]])
        with torch.no_grad():
            new = model.generate(ids, max_new_tokens=n, do_sample=False)[0, ids.shape[1]:].tolist()
        out.append((new, tok.decode(new)))
    return out
