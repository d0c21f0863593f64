#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One rank of what bench/train_ranks.py or bench/hosts.py asks of fsdptrain, done by torch's fully_shard over gloo.
Rank 0 prints the seconds and the loss of every step as JSON.

usage: fsdp_peer.py MODEL TOKENS.jsonl RANK NRANKS STORE --dtype fp32|bf16 [--batch N] [--steps N] [--full]
                    [--replicas N]

--full: all weights train, else LoRA. --replicas: a mesh of so many replicas; gradients are reduced in fp32.
Every block and the root are wrapped, one thread a rank. The program checks that parameters are sharded: some launchers
run DDP on a CPU without a word."""
import argparse
import json
import time
import warnings

warnings.filterwarnings("ignore")


def build(a):
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    from torch.distributed.tensor import DTensor
    from transformers import AutoModelForCausalLM
    model = AutoModelForCausalLM.from_pretrained(
        a.model, dtype=torch.bfloat16 if a.dtype == "bf16" else torch.float32, attn_implementation="sdpa"
    ).train()
    layers = model.model.layers
    if not a.full:
        from peft import LoraConfig, get_peft_model
        model = get_peft_model(
            model,
            LoraConfig(task_type="CAUSAL_LM", r=16, lora_alpha=32, target_modules="all-linear"),
            autocast_adapter_dtype=False,
        )
    how = {}
    if a.replicas > 1:
        sizes = (a.replicas, a.nranks // a.replicas)
        how["mesh"] = init_device_mesh("cpu", sizes, mesh_dim_names=("replicate", "shard"))
        how["mp_policy"] = MixedPrecisionPolicy(reduce_dtype=torch.float32)
    for layer in layers:
        fully_shard(layer, **how)
    fully_shard(model, **how)
    assert all(isinstance(p, DTensor) and p.to_local().numel() < p.numel() for p in model.parameters())
    return model, torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=2e-4, weight_decay=0.0)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, kind in (("model", str), ("tokens", str), ("rank", int), ("nranks", int), ("store", str)):
        parser.add_argument(name, type=kind)
    parser.add_argument("--dtype", choices=["fp32", "bf16"], required=True)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--replicas", type=int, default=1)
    a = parser.parse_args()
    import torch
    import torch.distributed as dist
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{a.store}", rank=a.rank, world_size=a.nranks)
    model, optimizer = build(a)
    with open(a.tokens) as f:
        rows = torch.tensor([json.loads(line)["input_ids"] for line in f])
    said = {"seconds": [], "loss": []}
    mine = a.batch // a.nranks
    for step in range(a.steps):
        began = time.monotonic()
        ids = rows[step * a.batch + a.rank * mine:][:mine]
        logits = model(input_ids=ids, use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_([p for p in model.parameters() if p.requires_grad], 1.0)
        optimizer.step()
        optimizer.zero_grad()
        whole = loss.detach().clone()
        dist.all_reduce(whole)
        said["loss"].append(whole.item() / a.nranks)
        said["seconds"].append(time.monotonic() - began)
    if a.rank == 0:
        print(json.dumps(said))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
