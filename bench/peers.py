#!/usr/bin/env python3
"""The same jobs as bench/run.py asks of fsdpck, done by PyTorch and safetensors. Prints one JSON object: `work_s` is the job without imports and
process start, `peak_bytes` the largest resident size of a process.

usage: peers.py JOB MODEL OUT [--ranks N] [--rank R]

MODEL is a safetensors file, for load, merge and adapter a DCP directory, for merge_lora a model folder (--adapter: PEFT's)."""
import argparse
import json
import os
import resource
import sys
import time
import warnings

warnings.filterwarnings("ignore")


def bounds(rows, rank, nranks):
    c = -(-rows // nranks)
    a = min(rank * c, rows)
    return a, min(a + c, rows)


def slices(path, rank, nranks, columns=False):
    """This rank's part of every tensor, in memory of its own."""
    from safetensors import safe_open
    out = {}
    with safe_open(path, framework="pt") as f:
        for k in f.keys():
            s = f.get_slice(k)
            shape = s.get_shape()
            if columns and len(shape) > 1:
                a, b = bounds(shape[1], rank, nranks)
                out[k] = s[:, a:b].clone()
            else:
                a, b = bounds(shape[0], rank, nranks)
                out[k] = s[a:b].clone()
    return out


def save_rank(rank, nranks, model, out, rendezvous):
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard
    from safetensors import safe_open
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method="file://" + rendezvous, rank=rank, world_size=nranks)
    mesh = init_device_mesh("cpu", (nranks,))
    local = slices(model, rank, nranks)
    with safe_open(model, framework="pt") as f:
        shapes = {k: f.get_slice(k).get_shape() for k in f.keys()}
    state = {k: DTensor.from_local(v, mesh, [Shard(0)], run_check=False, shape=torch.Size(shapes[k]),
                                   stride=torch.empty(shapes[k], device="meta").stride()) for k, v in local.items()}
    dist.barrier()
    dcp.save(state, checkpoint_id=out)
    dist.barrier()
    dist.destroy_process_group()


def job_save(a):
    import torch.multiprocessing as mp
    context = mp.get_context("fork")
    rendezvous = a.out + ".rendezvous"
    ranks = [context.Process(target=save_rank, args=(r, a.ranks, a.model, a.out, rendezvous)) for r in range(a.ranks)]
    for p in ranks:
        p.start()
    for p in ranks:
        p.join()
    if os.path.exists(rendezvous):  # the last rank may have removed it
        os.unlink(rendezvous)
    if any(p.exitcode for p in ranks):
        sys.exit("a rank failed")


def job_rows(a):
    slices(a.model, a.rank, a.ranks)


def job_columns(a):
    slices(a.model, a.rank, a.ranks, columns=True)


def template(model):
    import torch
    import torch.distributed.checkpoint as dcp
    meta = dcp.FileSystemReader(model).read_metadata()
    return {k: torch.empty(v.size, dtype=v.properties.dtype) for k, v in meta.state_dict_metadata.items()}


def job_load(a):
    import torch.distributed.checkpoint as dcp
    dcp.load(template(a.model), checkpoint_id=a.model, no_dist=True)


def job_merge(a):
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
    dcp_to_torch_save(a.model, a.out)


def job_header(a):
    from safetensors import safe_open
    with safe_open(a.model, framework="np") as f:
        f.keys()


def job_adapter(a):
    """An adapter out of a checkpoint: only its tensors are loaded."""
    import torch.distributed.checkpoint as dcp
    from safetensors.torch import save_file
    state = {k: v for k, v in template(a.model).items() if ".lora_" in k}
    dcp.load(state, checkpoint_id=a.model, no_dist=True)
    os.makedirs(a.out)
    save_file({k.replace(".default.", "."): v for k, v in state.items()}, os.path.join(a.out, "adapter_model.safetensors"))


def job_merge_lora(a):
    from peft import PeftModel
    from transformers import AutoModelForCausalLM
    model = AutoModelForCausalLM.from_pretrained(a.model, dtype="auto")
    PeftModel.from_pretrained(model, a.adapter).merge_and_unload().save_pretrained(a.out)


IMPORTS = {"save": ("torch.distributed.checkpoint", "torch.distributed.tensor", "safetensors.torch"), "rows": ("safetensors.torch",),
           "columns": ("safetensors.torch",), "load": ("torch.distributed.checkpoint",), "merge": ("torch.distributed.checkpoint.format_utils",),
           "adapter": ("torch.distributed.checkpoint", "safetensors.torch"), "merge_lora": ("transformers", "peft"), "header": ("safetensors",)}


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("job", choices=sorted(IMPORTS))
    ap.add_argument("model")
    ap.add_argument("out")
    ap.add_argument("--ranks", type=int, default=8)
    ap.add_argument("--rank", type=int, default=3)
    ap.add_argument("--adapter")
    a = ap.parse_args()
    for module in IMPORTS[a.job]:
        __import__(module)
    start = time.monotonic()
    globals()["job_" + a.job](a)
    work = time.monotonic() - start
    peak = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)) * 1024
    print(json.dumps({"work_s": work, "peak_bytes": peak}))


if __name__ == "__main__":
    main()
