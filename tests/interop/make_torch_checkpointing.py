#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""make_torch_checkpointing.py OUT: a checkpoint by three ranks of torch_checkpointing, and beside it OUT.safetensors,
the tensors that are in it."""
import os
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from safetensors.torch import save_file
from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh
from torch_checkpointing.checkpoint_manager import CheckpointManager

RANKS = 3
ROWS = torch.arange(28.).reshape(7, 4).bfloat16()
COLS = torch.arange(10.).reshape(2, 5) / 3
WHOLE = torch.tensor([1.5, 2.5])
STEP = torch.tensor(3.)


def save(rank, out):
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(RANKS), LOCAL_RANK=str(rank), MASTER_ADDR="127.0.0.1",
                      MASTER_PORT="29813")
    dist.init_process_group("gloo", rank=rank, world_size=RANKS)
    mesh = init_device_mesh("cpu", (RANKS,), mesh_dim_names=("fsdp",))
    exp_avg = distribute_tensor(ROWS.float() / 7, mesh, [Shard(0)])
    manager = CheckpointManager.Config.with_sync_save().build()
    manager.save(out, {
        "model": {"rows": distribute_tensor(ROWS, mesh, [Shard(0)]), "cols": distribute_tensor(COLS, mesh, [Shard(1)]),
                  "whole": WHOLE},
        "optimizer": {"state": {"rows": {"exp_avg": exp_avg, "step": STEP}},
                      "param_groups": [{"lr": 0.5, "params": ["rows"]}]},
        "step": 3,
        "rng": {"seed": 11 + rank},
    })
    manager.close()
    dist.destroy_process_group()


def main():
    out = sys.argv[1]
    mp.spawn(save, (out,), nprocs=RANKS)
    save_file({"model.rows": ROWS, "model.cols": COLS, "model.whole": WHOLE,
               "optimizer.state.rows.exp_avg": ROWS.float() / 7, "optimizer.state.rows.step": STEP},
              out + ".safetensors")


if __name__ == "__main__":
    main()
