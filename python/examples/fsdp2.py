#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A training with FSDP2 that starts on the meta device, saves behind its steps, and resumes at any number of ranks.

usage: torchrun --nproc-per-node N fsdp2.py MODEL_FOLDER CHECKPOINTS STEPS"""
import os
import sys

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from transformers import AutoConfig, AutoModelForCausalLM

from fsdpck.torch import AsyncSaver, load_extra, load_model, load_optimizer

SAVE_EVERY = 2


def newest(checkpoints):
    """Checkpoints appear whole or not at all, so the newest one is good."""
    names = [n for n in os.listdir(checkpoints) if n.startswith("step-") and n[5:].isdigit()]
    return os.path.join(checkpoints, max(names, key=lambda n: int(n[5:]))) if names else None


def main(folder, checkpoints, steps):
    dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    os.makedirs(checkpoints, exist_ok=True)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), dtype=torch.float32)
    for layer in model.model.layers:
        fully_shard(layer)
    fully_shard(model)

    resumed = newest(checkpoints)
    load_model(model, resumed or folder, init_buffers=model._init_weights)  # each rank reads its own shards
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    first = 0
    if resumed:
        load_optimizer(model, optimizer, resumed)
        first = load_extra(resumed)["step"]

    with AsyncSaver() as saver:
        for step in range(first + 1, steps + 1):
            ids = torch.randint(0, 1000, (2, 16), generator=torch.Generator().manual_seed(step)).to(model.device)
            loss = model(input_ids=ids, labels=ids).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if dist.get_rank() == 0:
                print("step %d: loss %.4f" % (step, loss.item()), flush=True)
            if step % SAVE_EVERY == 0:
                saver.save(model, optimizer, {"step": step}, os.path.join(checkpoints, "step-%d" % step))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
