# SPDX-License-Identifier: Apache-2.0
"""A torch program that trains, saves, is resharded by fsdpck, and goes on: with exactly the losses of the run that was
never broken.

Only rank 0 has a loss, so that sums over any number of ranks add zeros and nothing rounds differently: whatever differs
is the checkpoint's fault."""
import os

import ckpt_common as c
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

BEFORE, AFTER = 3, 3


def build(nranks):
    torch.manual_seed(7)
    model = nn.Sequential(nn.Embedding(13, 10), nn.Linear(10, 22), nn.GELU(), nn.LayerNorm(22),
                          nn.Linear(22, 13, bias=False))
    mesh = init_device_mesh("cpu", (nranks,))
    for part in [*model, model]:
        if list(part.parameters()):
            fully_shard(part, mesh=mesh)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)


def train(model, optim, first, count, rank):
    losses = []
    for step in range(first, first + count):
        g = torch.Generator().manual_seed(step)
        x, y = torch.randint(0, 13, (2, 32), generator=g)
        loss = nn.functional.cross_entropy(model(x), y)
        (loss * (rank == 0)).backward()
        optim.step()
        optim.zero_grad()
        losses.append(loss.item())
    return losses


def sum_only(model):
    for m in model.modules():
        if hasattr(m, "set_gradient_divide_factor"):
            m.set_gradient_divide_factor(1.0)
            m.set_force_sum_reduction_for_comms(True)


def state_of(model, optim):
    m, o = get_state_dict(model, optim)
    return {"model": m, "optim": o}


def unbroken(rank, n, folder, verl):
    """Trains, saves after BEFORE steps, goes on; returns the losses after the save."""
    model, optim = build(n)
    sum_only(model)
    train(model, optim, 0, BEFORE, rank)
    state = state_of(model, optim)
    dcp.save({**state, "step": BEFORE}, checkpoint_id=folder)
    os.makedirs(verl, exist_ok=True)
    torch.save(state["model"], os.path.join(verl, f"model_world_size_{n}_rank_{rank}.pt"))
    torch.save(state["optim"], os.path.join(verl, f"optim_world_size_{n}_rank_{rank}.pt"))
    return train(model, optim, BEFORE, AFTER, rank)


def resumed(rank, n, folder):
    model, optim = build(n)
    sum_only(model)
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
    state = state_of(model, optim)
    dcp.load(state, checkpoint_id=folder)
    set_state_dict(model, optim, model_state_dict=state["model"], optim_state_dict=state["optim"])
    return train(model, optim, BEFORE, AFTER, rank)


def check(tool, work):
    saved, verl, bad = os.path.join(work, "step-3"), os.path.join(work, "verl"), []
    want = c.run_ranks(4, unbroken, saved, verl)[0]
    for source in saved, verl:
        for n in 2, 6:
            there = f"{source}-{n}"
            tool("reshard", "-q", source, there, "--ranks", str(n))
            got = c.run_ranks(n, resumed, there)[0]
            if got != want:
                bad.append(f"{os.path.basename(there)}: losses {got}, unbroken {want}")
    return bad
