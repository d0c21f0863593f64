#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes torch.save files in the shapes found in the wild, each with the truth as safetensors.

  OUT/<case>/…            the .pt / .bin files
  OUT/<case>.safetensors  the tensors (nested keys joined by dots)
  OUT/cases.json          what each case is, and which names share storage"""
import argparse, collections, json, os, random, shutil, sys

import ckpt_common as c
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from make_dcp import shard

CASES = {}


def case(fn):
    CASES[fn.__name__] = fn
    return fn


def flat(obj, at=""):
    if isinstance(obj, torch.Tensor):
        return {at: obj}
    kids = obj.items() if isinstance(obj, dict) else enumerate(obj) if isinstance(obj, (list, tuple)) else ()
    return {k: v for n, o in kids for k, v in flat(o, f"{at}.{n}" if at else str(n)).items()}


def net():
    torch.manual_seed(1)
    m = nn.Sequential(
        collections.OrderedDict(
            emb=nn.Embedding(11, 6), fc=nn.Linear(6, 9), norm=nn.BatchNorm1d(9), head=nn.Linear(6, 11, bias=False)
        )
    )
    m.head.weight = m.emb.weight
    return m


@case
def module(d):
    """state_dict of a module: OrderedDict with _metadata, a 0-dim int64 buffer, tied weights (one storage)"""
    sd = net().state_dict()
    torch.save(sd, f"{d}/model.pt")
    return flat(sd), {"shared": [["emb.weight", "head.weight"]]}


@case
def bin_shards(d):
    """pytorch_model-0000i-of-00003.bin with pytorch_model.bin.index.json"""
    sd = {f"layers.{i}.w": c.rand((5, 4), torch.bfloat16, i)
          for i in range(5)} | {"norm": c.rand((4, ), torch.float32, 9)}
    names, total = list(sd), sum(t.numel() * t.element_size() for t in sd.values())
    wm = {}
    for i in range(3):
        f = f"pytorch_model-{i + 1:05}-of-00003.bin"
        torch.save({k: sd[k] for k in names[i::3]}, f"{d}/{f}")
        wm.update({k: f for k in names[i::3]})
    json.dump({"metadata": {"total_size": total}, "weight_map": wm}, open(f"{d}/pytorch_model.bin.index.json", "w"),
              indent=2)
    return sd, {}


@case
def views(d):
    """views that share one storage, offsets, transposes, expanded (stride 0), every other column, channels_last, an
    empty view"""
    base = torch.arange(240, dtype=torch.float32)
    sd = {
        "base": base,
        "mid": base[10:34].view(4, 6),
        "t": base[10:34].view(4, 6).t(),
        "every3": base[::3],
        "cols": base.view(12, 20)[:, 3:19:4],
        "expand": base[5:6].expand(3, 4),
        "scalar": base[7],
        "empty": base[3:3],
        "nhwc": base[:120].view(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
        "perm": base[:120].view(2, 3, 4, 5).permute(3, 1, 0, 2),
    }
    torch.save(sd, f"{d}/views.pt")
    return sd, {"shared": [["base", "mid", "t", "every3", "cols", "expand", "scalar", "empty", "perm"]]}


@case
def dtypes(d):
    """every dtype: typed storages through _rebuild_tensor_v2, the others through _rebuild_tensor_v3"""
    names = [
        "float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool", "uint64",
        "uint32", "uint16", "complex64", "complex128", "complex32", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz",
        "float8_e5m2fnuz", "float8_e8m0fnu"
    ]
    sd = {n: c.rand((3, 5), getattr(torch, n), i) for i, n in enumerate(names)}
    torch.save(sd, f"{d}/dtypes.pt")
    return sd, {}


@case
def training(d):
    """a trainer's checkpoint: model, Adam state, scheduler, RNG, scalars, Parameters, nested lists, int keys, None"""
    m = net()
    opt = torch.optim.AdamW(m.parameters(), lr=1e-3)
    for p in m.parameters():
        p.grad = torch.ones_like(p)
    opt.step()
    ck = {
        "model": m.state_dict(), "optimizer": opt.state_dict(), "param": nn.Parameter(torch.ones(2, 2)), "step": 12,
        "lr": 1e-3, "best": None, "done": False, "rng": {
            "torch": torch.get_rng_state()[:32].clone(), "python": random.Random(3).getstate()
        }, "list": [torch.zeros(2), [torch.ones(3)]], "size": torch.Size([1, 2]), "device": torch.device("cpu"),
        "dtype": torch.bfloat16, "big": 2**90, "name": "\u00e9", "bytes": b"\x00\xff", "set": {1, 2}
    }
    torch.save(ck, f"{d}/last.pt")
    return flat(ck), {}


@case
def legacy(d):
    """the format before zip (magic 0x1950a86a20f9469cfc6c), with shared storage"""
    w = torch.arange(12.0)
    sd = {"w": w.view(3, 4), "tail": w[8:], "i": torch.arange(5), "b": c.rand((2, 3), torch.bfloat16, 4)}
    torch.save(sd, f"{d}/legacy.pt", _use_new_zipfile_serialization=False)
    return sd, {"shared": [["w", "tail"]]}


@case
def protocols(d):
    """the same dict with pickle protocols 2, 3, 4 and 5"""
    sd = {"w": torch.arange(6.0).view(2, 3), "n": {"m": torch.arange(3)}}
    for p in (2, 3, 4, 5):
        torch.save(sd, f"{d}/p{p}.pt", pickle_protocol=p)
    return flat(sd), {}


@case
def aligned(d):
    """storage_alignment 4096 (torch.utils.serialization.config), CRC-32 left at zero"""
    from torch.utils.serialization import config
    sd = {"a": torch.arange(5.0), "b": torch.arange(7.0)}
    with config.patch({"save.storage_alignment": 4096, "save.compute_crc32": False}):
        torch.save(sd, f"{d}/aligned.pt")
    return sd, {}


@case
def wrapped(d):
    """names as wrappers leave them: module., _orig_mod., _fsdp_wrapped_module., _checkpoint_wrapped_module."""
    sd = {
        "module._orig_mod.a.weight": torch.ones(2),
        "_fsdp_wrapped_module.b._checkpoint_wrapped_module.weight": torch.zeros(3)
    }
    torch.save({"state_dict": sd}, f"{d}/wrapped.pt")
    return flat({"state_dict": sd}), {}


@case
def one_tensor(d):
    """a bare tensor, and a bare Parameter with requires_grad"""
    t = torch.arange(6.0).view(2, 3)
    torch.save(t, f"{d}/tensor.pt")
    torch.save(nn.Parameter(t), f"{d}/parameter.pt")
    return {"tensor": t}, {}


def verl_rank(rank, n, d, dims, how, full):
    mesh = init_device_mesh("cpu", dims, mesh_dim_names=("fsdp",) if len(dims) == 1 else ("ddp", "fsdp"))
    sd = collections.OrderedDict()
    for k, t in full.items():
        sd[k] = t if t.dim() == 0 else shard(t, mesh, [Replicate() if x is None else Shard(x) for x in how])
    torch.save(sd, f"{d}/model_world_size_{n}_rank_{rank}.pt")


def verl(d, dims, how):
    n = 1
    for x in dims:
        n *= x
    full = {
        "model.embed.weight": c.rand((13, 4), torch.bfloat16, 1), "model.layers.0.w": c.rand((8, 6), torch.float32, 2),
        "model.norm": c.rand((2, ), torch.float32, 3), "scale": torch.tensor(2.5)
    }
    c.run_ranks(n, verl_rank, d, dims, how, full)
    return full, {"mesh": dims}


@case
def verl3(d):
    """verl: model_world_size_3_rank_R.pt, DTensor shard(0) on 3 ranks, uneven, a rank with an empty shard, a replicated
    scalar"""
    return verl(d, (3,), (0,))


@case
def verl2x2(d):
    """the same on a 2x2 mesh, (replicate, shard(0)), as verl's HSDP"""
    return verl(d, (2, 2), (None, 0))


def strided_rank(rank, n, d, full):
    from torch.distributed.tensor.placement_types import _StridedShard
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("fsdp", "tp"))
    # FSDP over tensor parallelism: rank (i, j) has part i of tensor-parallel part j
    column = [_StridedShard(0, split_factor=2), Shard(0)]
    sd = {}
    for k, t in full.items():
        if k == "norm":
            sd[k] = shard(t, mesh, [Shard(0), Replicate()])
        elif k == "row":
            sd[k] = shard(t, mesh, [Shard(0), Shard(1)])
        elif k == "fused":  # a 1-D mesh inside: two intervals a rank
            one = init_device_mesh("cpu", (4,), mesh_dim_names=("fsdp",))
            half = t.shape[0] // 2
            local = torch.cat([t[:half].chunk(4)[rank], t[half:].chunk(4)[rank]])
            sd[k] = DTensor.from_local(
                local, one, [_StridedShard(0, split_factor=2)], run_check=False, shape=t.shape, stride=t.stride()
            )
        else:
            i, j = rank // 2, rank % 2
            sd[k] = DTensor.from_local(
                t.chunk(2)[j].chunk(2)[i].clone(), mesh, column, run_check=False, shape=t.shape, stride=t.stride())
    torch.save(sd, f"{d}/model_world_size_4_rank_{rank}.pt")
    optim = {
        "state": {k: {"step": torch.tensor(3.0), "exp_avg": v} for k, v in sd.items()},
        "param_groups": [{"lr": 1e-3, "betas": (0.9, 0.95), "params": list(sd)}],
    }
    torch.save(optim, f"{d}/optim_world_size_4_rank_{rank}.pt")
    torch.save(
        {
            "lr_scheduler": {"last_epoch": 3},
            "rng": {"cpu": torch.tensor([rank], dtype=torch.uint8), "python": random.Random(rank).getstate()[0]}
        }, f"{d}/extra_state_world_size_4_rank_{rank}.pt")


@case
def verl_tp(d):
    """FSDP over tensor parallelism (_StridedShard), an interleaved shard, with optimizer and extra state: three
    trees"""
    full = {
        "column": c.rand((16, 3), torch.float32, 1),
        "row": c.rand((6, 8), torch.bfloat16, 2),
        "norm": c.rand((4,), torch.float32, 3),
        "fused": c.rand((16, 2), torch.float32, 4),
    }
    c.run_ranks(4, strided_rank, d, full)
    ref = {f"model.{k}": v for k, v in full.items()}
    ref |= {f"optim.state.{k}.exp_avg": v for k, v in full.items()} | {
        f"optim.state.{k}.step": torch.tensor(3.0) for k in full
    }
    ref["extra_state.rng.cpu"] = torch.tensor([0], dtype=torch.uint8)
    return ref, {"ranks": 4}


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("out")
    ap.add_argument("--case", choices=sorted(CASES), action="append", help="only this one (may be repeated)")
    make(ap.parse_args())


def make(a):
    shutil.rmtree(a.out, ignore_errors=True)
    doc = {}
    for name, fn in CASES.items():
        if a.case and name not in a.case:
            continue
        d = f"{a.out}/{name}"
        os.makedirs(d)
        try:
            tensors, info = fn(d)
        except Exception as e:
            print(f"{name}: skipped: {type(e).__name__}: {str(e).strip().splitlines()[-1]}")
            shutil.rmtree(d)
            continue
        if tensors is not None:
            c.write_ref(f"{d}.safetensors", {k: v.detach() for k, v in tensors.items()})
        doc[name] = {"what": fn.__doc__, **info}
        print(f"{name}: {', '.join(sorted(os.listdir(d)))}")
    with open(f"{a.out}/cases.json", "w") as f:
        json.dump(doc, f, indent=1)


if __name__ == "__main__":
    sys.exit(main())
