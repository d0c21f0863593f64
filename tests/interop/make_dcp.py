#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes a real PyTorch DCP checkpoint on N gloo processes, with the truth beside it:

  OUT/ckpt/              what torch.distributed.checkpoint wrote
  OUT/REF.safetensors    every tensor, whole
  OUT/REF.json           dtype, shape and placements of each tensor, the mesh, and the plain values ("items")

1-D meshes are FSDP2 shard(0); --mesh AxB is HSDP (replicate, shard), or with --layout tp FSDP over tensor
parallelism."""
import argparse, json, os, random, shutil, sys

import ckpt_common as c
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset


class Block(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.norm = nn.LayerNorm(d)
        self.up = nn.Linear(d, h)
        self.down = nn.Linear(h, d, bias=False)


class Net(nn.Module):
    def __init__(self, uneven, tp):
        super().__init__()
        v, d, h = (13, 6, 10) if uneven else (16, 8, 16)
        if uneven and tp:
            d, h = 6, 12          # FSDP refuses a strided shard that does not divide
        self.emb = nn.Embedding(v, d)
        self.layers = nn.ModuleList(Block(d, h) for _ in range(2))
        self.few = nn.Parameter(torch.randn(2, d))        # fewer rows than ranks
        self.one = nn.Parameter(torch.randn(1))
        self.cube = nn.Parameter(torch.randn(5, 2, 3))
        self.none = nn.Parameter(torch.empty(0, 4))       # no element at all
        self.register_buffer("scale", torch.tensor(0.5))  # 0-dim: a buffer, FSDP refuses such parameters
        self.register_buffer("count", torch.tensor(41))
        self.register_buffer("table", torch.arange(12.0).reshape(3, 4))


def shard(full, mesh, placements):
    """A DTensor of FULL without any communication, so that every dtype works."""
    shape, off = compute_local_shape_and_global_offset(full.shape, mesh, placements)
    local = full
    for d, (o, s) in enumerate(zip(off, shape)):
        local = local.narrow(d, min(o, full.shape[d]), s)
    return DTensor.from_local(local.clone(), mesh, placements, run_check=False, shape=full.shape, stride=full.stride())


def dtype_tensors(mesh, seed):
    """(sharded, truth) for every dtype that torch can save; odd rows so that most shards are uneven."""
    names = [
        "float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool", "uint64",
        "uint32", "uint16", "complex64", "complex128", "complex32", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz",
        "float8_e5m2fnuz", "float8_e8m0fnu"
    ]
    sharded, truth = {}, {}
    for i, n in enumerate(names):
        full = c.rand((7, 3), getattr(torch, n), seed + i)
        truth[n], truth[n + "_plain"] = full, c.rand((2, 5), getattr(torch, n), seed + 100 + i)
        sharded[n] = shard(full, mesh, [Replicate()] * (mesh.ndim - 1) + [Shard(0)])
        sharded[n + "_plain"] = truth[n + "_plain"].clone()
    return sharded, truth


def build(rank, mesh, a):
    """The state dict to save, and the truths that cannot be gathered."""
    torch.manual_seed(a.seed)
    net = Net(a.uneven, a.layout == "tp")
    if a.bf16:
        net = net.to(torch.bfloat16)
    dp = mesh
    if a.layout == "tp":
        for b in net.layers:
            parallelize_module(b, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
        dp = mesh["dp"]
    for b in net.layers:
        fully_shard(b, mesh=dp)
    fully_shard(net, mesh=dp)
    state, truth = {"model": get_model_state_dict(net)}, {}
    if a.optimizer:
        opt = torch.optim.AdamW(net.parameters(), lr=1e-2, foreach=False)
        for p in net.parameters():   # FSDP cannot reduce an empty parameter, and training is not what is tested
            p.grad = p.detach().clone()
        opt.step()
        state = {"model": get_model_state_dict(net), "optim": get_optimizer_state_dict(net, opt)}
    if a.dtypes:
        state["dtypes"], t = dtype_tensors(mesh, a.seed)
        truth.update({"dtypes." + k: v for k, v in t.items()})
    rng = random.Random(a.seed)
    state["extra"] = {
        "step": 7,
        "lr": 1e-3,
        "big": 2**70,
        "neg": -5,
        "none": None,
        "yes": True,
        "name": "run \u00e9\u6f22 1",
        "inf": "inf",
        "list": [1, "two", [3, 4.5], {"five": 6}],
        "tuple": (1, (2, 3)),
        "empty_list": [],
        "empty_dict": {},
        "by_int": {0: torch.arange(3), 10: torch.arange(4, dtype=torch.int32)},
        "a.dotted.key": 1.25,
        "torch_rng": torch.Generator().manual_seed(a.seed).get_state()[:64].clone(),
        "python_rng": rng.getstate(),
        "transposed": torch.arange(12.0).reshape(3, 4).t(),
        "view": torch.arange(20.0)[5:9],
        "strided": torch.arange(20.0)[::3],
    }
    return state, truth


def placement(p):
    name = type(p).__name__
    if name == "_StridedShard":
        return f"strided_shard({p.dim},{p.split_factor})"
    return f"shard({p.dim})" if p.is_shard() else "replicate"


def save(rank, n, a):
    from torch.distributed.checkpoint._nested_dict import flatten_state_dict
    dims = c.mesh_of(a.mesh, n)
    names = ("shard",) if len(dims) == 1 else ("dp", "tp") if a.layout == "tp" else ("replicate", "shard")
    mesh = init_device_mesh("cpu", dims, mesh_dim_names=names)
    state, truth = build(rank, mesh, a)
    flat, _ = flatten_state_dict(state)
    tensors, info, items = {}, {}, {}
    for k, v in flat.items():
        if isinstance(v, torch.Tensor):
            tensors[k] = truth[k] if k in truth else v.full_tensor() if isinstance(v, DTensor) else v
            info[k] = {"dtype": c.dtype_name(v.dtype), "shape": list(v.shape)}
            if isinstance(v, DTensor):
                info[k]["placements"] = [placement(p) for p in v.placements]
                info[k]["mesh"] = list(v.device_mesh.mesh.shape)
        else:
            items[k] = v
    out = os.path.join(a.out, "ckpt")
    if a.hf:
        from torch.distributed.checkpoint import HuggingFaceStorageWriter
        flat = {k: v for k, v in flat.items() if isinstance(v, torch.Tensor) and v.dtype in c.ST}
        tensors = {k: v for k, v in tensors.items() if k in flat}
        dcp.save({k: v.contiguous() if not isinstance(v, DTensor) else v for k, v in flat.items()},
                 storage_writer=HuggingFaceStorageWriter(out, save_distributed=True))
        items = {}
    else:
        extensions = {}
        if a.zstd:
            from torch.distributed.checkpoint._extension import ZStandard
            extensions["_extensions"] = [ZStandard()]
        w = dcp.FileSystemWriter(out, single_file_per_rank=not a.file_per_item, thread_count=a.threads, **extensions)
        if a.asynchronous:
            dcp.async_save(state, storage_writer=w).result()
        else:
            dcp.save(state, storage_writer=w, use_collectives=not a.rank_local)
    if rank == 0:
        c.write_ref(os.path.join(a.out, "REF.safetensors"), tensors)
        ref = {"torch": torch.__version__, "mesh": {"names": names, "sizes": dims}, "tensors": info, "items": items}
        with open(os.path.join(a.out, "REF.json"), "w") as f:
            json.dump(ref, f, indent=1, sort_keys=True, default=repr)


def make(args):
    """Makes OUT as these command line arguments say; returns their namespace."""
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("out")
    ap.add_argument("--ranks", type=int, default=4)
    ap.add_argument("--mesh", metavar="AxB", help="2-D mesh; HSDP (replicate, shard) unless --layout tp")
    ap.add_argument("--layout", choices=["fsdp", "tp"], default="fsdp")
    ap.add_argument("--uneven", action="store_true", help="dimensions that the mesh does not divide")
    ap.add_argument("--bf16", action="store_true", help="bfloat16 parameters")
    ap.add_argument("--optimizer", action="store_true", help="one AdamW step, and its state")
    ap.add_argument("--dtypes", action="store_true", help="one sharded and one plain tensor of every dtype")
    ap.add_argument("--threads", type=int, default=1, help="writer threads = files a rank")
    ap.add_argument("--file-per-item", action="store_true")
    ap.add_argument("--async", dest="asynchronous", action="store_true", help="save through async_save")
    ap.add_argument("--seed", type=int, default=0)
    ap.add_argument("--rank-local", action="store_true",
                    help="use_collectives=False: one __R.metadata a rank, no .metadata")
    ap.add_argument("--zstd", action="store_true", help="every item a zstd stream")
    ap.add_argument("--hf", action="store_true", help="sharded safetensors through HuggingFaceStorageWriter")
    a = ap.parse_args(args)
    shutil.rmtree(a.out, ignore_errors=True)
    os.makedirs(a.out)
    c.run_ranks(a.ranks, save, a)
    return a


if __name__ == "__main__":
    make(sys.argv[1:])
