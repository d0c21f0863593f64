#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""make_deepspeed.py OUT: checkpoints that DeepSpeed 0.19.8 writes on CPUs.

OUT/universal-tp: two tensor-parallel by two data-parallel ranks after one step of AdamW under ZeRO-1, converted by
DeepSpeed's ds_to_universal; OUT/universal-tp.REF.safetensors and .REF-optimizer.safetensors are what that made of it.
OUT/moe: a mixture of four experts on two expert-parallel ranks; OUT/moe.REF.safetensors, the weights that went in."""
import glob
import os
import shutil
import sys
from types import SimpleNamespace

os.environ["DS_ACCELERATOR"] = "cpu"
import deepspeed
import deepspeed.comm.torch
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from deepspeed.checkpoint import ds_to_universal
from deepspeed.moe.layer import MoE
from deepspeed.moe.utils import split_params_into_different_moe_groups_for_optimizer
from safetensors.torch import save_file

TP, DP, STEP = 2, 2, "global_step1"
SHAPES = {"embed.weight": (12, 6), "column.weight": (8, 6), "column.bias": (8,), "row.weight": (6, 8),
          "norm.weight": (6,), "gate_up.weight": (8, 6)}
LAYOUT = {"universal_checkpoint_version": 0.2, "tp_replicated_parameter_patterns": ["norm.weight"],
          "parameter_with_row_parallelism_patterns": ["row.weight"],
          "vocabulary_parameter_patterns": ["embed.weight"],
          "parameter_with_2_sub_params_cat_dim_0": ["gate_up.weight"], "original_vocab_size": 11,
          "padded_vocab_size": 12}


def begin(rank, n):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(n), LOCAL_WORLD_SIZE=str(n),
                      MASTER_ADDR="127.0.0.1", MASTER_PORT="29819")
    deepspeed.comm.torch.build_shm_op = lambda: None  # would compile a kernel for nothing
    deepspeed.init_distributed(dist_backend="gloo", dist_init_required=True)


def engine_of(model, groups, **more):
    config = {"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True}, "zero_optimization": {"stage": 1},
              "zero_allow_untested_optimizer": True}
    return deepspeed.initialize(model=model, optimizer=torch.optim.AdamW(groups, lr=0.01), config=config, **more)[0]


def values(name, shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(name.encode()))).bfloat16()


# ---- tensor parallelism ----

def cut(name, t, rank):
    if name == "norm.weight":
        return t
    if name == "gate_up.weight":
        return torch.cat([half.chunk(TP)[rank] for half in t.chunk(2)])
    return t.chunk(TP, 1 if name == "row.weight" else 0)[rank]


class Sliced(torch.nn.Module):

    def __init__(self, rank):
        super().__init__()
        for name, shape in SHAPES.items():
            module, leaf = name.split(".")
            if not hasattr(self, module):
                self.add_module(module, torch.nn.Module())
            slice = cut(name, values(name, shape), rank).clone().contiguous()
            getattr(self, module).register_parameter(leaf, torch.nn.Parameter(slice))
        self.register_buffer("inv_freq", torch.arange(3.).bfloat16())

    def forward(self):
        return sum((p * p).sum() for p in self.parameters())


def parallel_state(rank):
    of_model = [dist.new_group([d * TP + t for t in range(TP)]) for d in range(DP)][rank // TP]
    of_data = [dist.new_group([d * TP + t for d in range(DP)]) for t in range(TP)][rank % TP]
    return SimpleNamespace(
        get_model_parallel_rank=lambda: rank % TP, get_model_parallel_world_size=lambda: TP,
        get_model_parallel_group=lambda: of_model, get_tensor_model_parallel_rank=lambda: rank % TP,
        get_tensor_model_parallel_world_size=lambda: TP, get_tensor_model_parallel_group=lambda: of_model,
        get_data_parallel_rank=lambda: rank // TP, get_data_parallel_world_size=lambda: DP,
        get_data_parallel_group=lambda: of_data)


def save_sliced(rank, out):
    begin(rank, TP * DP)
    model = Sliced(rank % TP)
    groups = [{"params": [p for p in model.parameters() if (p.ndim > 1) == wide]} for wide in (True, False)]
    engine = engine_of(model, groups, mpu=parallel_state(rank))
    engine.backward(engine())
    engine.step()
    engine.save_checkpoint(out, tag=STEP, client_state={"universal_checkpoint_info": LAYOUT})


def make_sliced(out):
    mp.spawn(save_sliced, (out + ".raw",), nprocs=TP * DP)
    os.makedirs(out)
    ds_to_universal.main(SimpleNamespace(
        input_folder=os.path.join(out + ".raw", STEP), output_folder=os.path.join(out, STEP + "_universal"),
        num_extract_workers=1, num_merge_workers=1, keep_temp_folder=False, strict=True, inject_missing_state=True))
    with open(os.path.join(out, "latest_universal"), "w") as f:
        f.write(STEP + "_universal")
    shutil.rmtree(out + ".raw")
    weights, states = {}, {}
    for path in sorted(glob.glob(os.path.join(out, STEP + "_universal", "zero", "*", "*.pt"))):
        name, kind = path.split("/")[-2], os.path.basename(path)[:-3]
        t = torch.load(path, weights_only=False)
        if kind != "step" and name in SHAPES:
            (weights if kind == "fp32" else states)[name if kind == "fp32" else name + "." + kind] = t["param"].clone()
    save_file(weights, out + ".REF.safetensors")
    save_file(states, out + ".REF-optimizer.safetensors")


# ---- experts ----

class Mixture(torch.nn.Module):

    def __init__(self):
        super().__init__()
        self.dense = torch.nn.Linear(6, 6)
        expert = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Linear(8, 6))
        self.moe = MoE(6, expert, num_experts=4, ep_size=2, k=1)


def global_name(name, rank):
    """Of a parameter, or of one of the rank's two experts."""
    before, experts, after = name.partition("deepspeed_experts.")
    return before + experts + str(int(after[0]) + 2 * rank) + after[1:] if experts else name


def save_mixture(rank, out):
    begin(rank, 2)
    model = Mixture()
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(values(global_name(name, rank), p.shape))
    groups = split_params_into_different_moe_groups_for_optimizer({"params": list(model.parameters()), "name": "all"})
    if rank == 0:
        names = {global_name(name, r): p.shape for name, p in model.named_parameters() for r in range(2)}
        save_file({name: values(name, shape) for name, shape in names.items()}, out + ".REF.safetensors")
    engine_of(model, groups).save_checkpoint(out, tag="global_step0")


def main():
    out = sys.argv[1]
    os.makedirs(out)
    make_sliced(os.path.join(out, "universal-tp"))
    mp.spawn(save_mixture, (os.path.join(out, "moe"),), nprocs=2)
    for script in glob.glob(os.path.join(out, "moe", "*.py")):
        os.remove(script)


if __name__ == "__main__":
    main()
