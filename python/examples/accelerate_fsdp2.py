#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A training with accelerate and FSDP2 that starts on the meta device, saves, and resumes at any number of ranks.

usage: accelerate launch --num-processes N accelerate_fsdp2.py MODEL_FOLDER CHECKPOINTS STEPS"""
import os
import sys

import torch
from accelerate import Accelerator, FullyShardedDataParallelPlugin
from torch.distributed.fsdp import fully_shard
from transformers import AutoConfig, AutoModelForCausalLM

from fsdpck.torch import load_extra, load_model, load_optimizer, save

SAVE_EVERY = 2


def newest(checkpoints):
    """Checkpoints appear whole or not at all, so the newest one is good."""
    names = [n for n in os.listdir(checkpoints) if n.startswith("step-") and n[5:].isdigit()]
    return os.path.join(checkpoints, max(names, key=lambda n: int(n[5:]))) if names else None


def main(folder, checkpoints, steps):
    accelerator = Accelerator(fsdp_plugin=FullyShardedDataParallelPlugin(fsdp_version=2))
    os.makedirs(checkpoints, exist_ok=True)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), dtype=torch.float32)
    for layer in [*model.model.layers, model]:
        fully_shard(layer)
    resumed = newest(checkpoints)
    load_model(model, resumed or folder, init_buffers=model._init_weights)  # each rank reads its own shards
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
    model, optimizer = accelerator.prepare(model, optimizer)  # leaves the shards as they are
    first = 0
    if resumed:
        load_optimizer(model, optimizer.optimizer, resumed)
        extra = load_extra(resumed)
        first = extra["step"]
        scheduler.load_state_dict(extra["scheduler"])

    for step in range(first + 1, steps + 1):
        ids = torch.randint(0, 1000, (2, 16), generator=torch.Generator().manual_seed(step)).to(accelerator.device)
        loss = model(input_ids=ids, labels=ids).loss
        accelerator.backward(loss)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        accelerator.print("step %d: loss %.4f" % (step, loss.item()), flush=True)
        if step % SAVE_EVERY == 0:
            save(model, optimizer.optimizer, {"step": step, "scheduler": scheduler.state_dict()},
                 os.path.join(checkpoints, "step-%d" % step))
    accelerator.end_training()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
