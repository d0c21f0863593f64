#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains PEFT's LoRA with FSDP2: each rank reads its shards of the base and saves those of the adapter; one exports it.

usage: torchrun --nproc-per-node N peft_lora.py MODEL_FOLDER OUT STEPS"""
import os
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from peft import LoraConfig, get_peft_model
from peft.tuners.lora import LoraLayer
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard
from transformers import AutoConfig, AutoModelForCausalLM

import fsdpck
from fsdpck.torch import StorageWriter, load_model


def main(folder, out, steps):
    dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    with torch.device("meta"):
        base = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), dtype=torch.float32)
    model = get_peft_model(base, LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"]))
    torch.manual_seed(0)  # each rank makes the same adapter, and keeps its shards of it
    for module in model.modules():
        if isinstance(module, LoraLayer):  # on the meta device too, like the base
            torch.nn.ModuleList([module.lora_A, module.lora_B]).to_empty(device="cpu")
            module.reset_lora_parameters("default", init_lora_weights=True)
    for layer in [*base.model.layers, model]:
        fully_shard(layer)
    loaded = load_model(model, folder, names=lambda n: n.removeprefix("base_model.model.").replace(".base_layer.", "."),
                        strict=False, init_buffers=base._init_weights)
    assert all("lora_" in name for name in loaded.missing_keys) and not loaded.unexpected_keys, loaded
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    for step in range(1, steps + 1):
        ids = torch.randint(0, 1000, (2, 16), generator=torch.Generator().manual_seed(step)).to(base.device)
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if dist.get_rank() == 0:
            print("step %d: loss %.4f" % (step, loss.item()), flush=True)

    adapter = get_model_state_dict(model, options=StateDictOptions(ignore_frozen_params=True))
    dcp.save({"model": adapter}, storage_writer=StorageWriter(out + "/sharded"))
    if dist.get_rank() == 0:
        model.peft_config["default"].save_pretrained(out)
        fsdpck.export_lora(out + "/sharded", out + "/adapter", config=out + "/adapter_config.json")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
