#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The same jobs as bench/run.py asks of fsdpck, done by PyTorch and safetensors. Prints one JSON object: `work_s` is
the job without imports and process start, `peak_bytes` the largest resident size of a process.

usage: peers.py JOB MODEL OUT [--ranks N] [--rank R]

MODEL is a safetensors file, for load, merge and adapter a DCP directory, for merge_lora a model folder (--adapter:
PEFT's)."""
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


def save_rank(rank, nranks, model, out, rendezvous, safetensors=False):
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard
    from safetensors import safe_open
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method="file://" + os.path.abspath(rendezvous), rank=rank, world_size=nranks)
    mesh = init_device_mesh("cpu", (nranks,))
    local = slices(model, rank, nranks)
    with safe_open(model, framework="pt") as f:
        shapes = {k: f.get_slice(k).get_shape() for k in f.keys()}
    state = {k: DTensor.from_local(v, mesh, [Shard(0)], run_check=False, shape=torch.Size(shapes[k]),
                                   stride=torch.empty(shapes[k], device="meta").stride()) for k, v in local.items()}
    dist.barrier()
    if safetensors:
        from torch.distributed.checkpoint import HuggingFaceStorageWriter
        dcp.save(state, storage_writer=HuggingFaceStorageWriter(out, save_distributed=True))
    else:
        dcp.save(state, checkpoint_id=out)
    dist.barrier()
    dist.destroy_process_group()


def job_save(a, safetensors=False):
    import torch.multiprocessing as mp
    context = mp.get_context("fork")
    rendezvous = a.out + ".rendezvous"
    ranks = [
        context.Process(target=save_rank, args=(r, a.ranks, a.model, a.out, rendezvous, safetensors))
        for r in range(a.ranks)
    ]
    for p in ranks:
        p.start()
    for p in ranks:
        p.join()
    if os.path.exists(rendezvous):  # the last rank may have removed it
        os.unlink(rendezvous)
    if any(p.exitcode for p in ranks):
        sys.exit("a rank failed")


def job_shards(a):
    """DCP's safetensors form: what consolidate and hfload start from."""
    job_save(a, safetensors=True)


def job_rows(a):
    slices(a.model, a.rank, a.ranks)


def job_preadv(a):
    """The least that anyone could do for `rows`: the header, and one preadv for each tensor."""
    import numpy as np
    fd = os.open(a.model, os.O_RDONLY)
    n = int.from_bytes(os.pread(fd, 8, 0), "little")
    for k, t in json.loads(os.pread(fd, n, 8)).items():
        if k != "__metadata__":
            low, high = bounds(t["shape"][0], a.rank, a.ranks)
            row = (t["data_offsets"][1] - t["data_offsets"][0]) // t["shape"][0]
            out, at = np.empty((high - low) * row, np.uint8), 0
            while at < out.nbytes:
                at += os.preadv(fd, [out[at:]], 8 + n + t["data_offsets"][0] + low * row + at)
    os.close(fd)


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


def start_rank(rank, nranks, folder, rendezvous, results):
    import torch
    import torch.distributed as dist
    from torch.distributed.tensor import DTensor
    from transformers import AutoModelForCausalLM
    from transformers.distributed import DistributedConfig
    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(nranks), LOCAL_WORLD_SIZE=str(nranks))
    dist.init_process_group("gloo", init_method="file://" + os.path.abspath(rendezvous), rank=rank, world_size=nranks)
    dist.barrier()
    start = time.monotonic()
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16,
                                                 distributed_config=DistributedConfig(fsdp_size=nranks))
    local = [p.to_local() for p in model.parameters() if isinstance(p, DTensor)]
    assert local and sum(t.numel() for t in local) * nranks >= 0.99 * sum(
        p.numel() for p in model.parameters()
    ), "not sharded"
    # pages, not promises
    touched = sum(int(t.view(torch.uint8).flatten()[::4096].sum(dtype=torch.int64)) for t in local if t.numel())
    dist.barrier()
    results.put((time.monotonic() - start, touched))
    dist.destroy_process_group()


def job_start(a):
    """Every rank's shards in its memory, by transformers' own sharded loading. MODEL is a Hugging Face folder."""
    import torch.multiprocessing as mp
    context = mp.get_context("fork")
    rendezvous, results = a.out + ".rendezvous", context.SimpleQueue()
    ranks = [
        context.Process(target=start_rank, args=(r, a.ranks, a.model, rendezvous, results)) for r in range(a.ranks)
    ]
    for p in ranks:
        p.start()
    for p in ranks:
        p.join()
    if os.path.exists(rendezvous):
        os.unlink(rendezvous)
    if any(p.exitcode for p in ranks):
        sys.exit("a rank failed")
    return max(results.get()[0] for _ in ranks)


def job_consolidate(a):
    from torch.distributed.checkpoint import HuggingFaceStorageReader
    from torch.distributed.checkpoint._consolidate_hf_safetensors import consolidate_safetensors_files
    os.makedirs(a.out)
    names = HuggingFaceStorageReader(a.model).read_metadata().state_dict_metadata
    consolidate_safetensors_files(a.model, a.out, {k: 1 for k in names}, num_threads=2)


def job_hfload(a):
    import torch
    import torch.distributed.checkpoint as dcp
    reader = dcp.HuggingFaceStorageReader(a.model)
    meta = reader.read_metadata()
    state = {k: torch.empty(v.size, dtype=v.properties.dtype) for k, v in meta.state_dict_metadata.items()}
    dcp.load(state, storage_reader=dcp.HuggingFaceStorageReader(a.model), no_dist=True)


def job_header(a):
    from safetensors import safe_open
    with safe_open(a.model, framework="np") as f:
        f.keys()


def job_torch_save(a):
    from safetensors.torch import load_file
    import torch
    torch.save(load_file(a.model), a.out)


def job_pt(a):
    from torch.distributed.checkpoint.format_utils import torch_save_to_dcp
    torch_save_to_dcp(a.model, a.out)


def job_adapter(a):
    """An adapter out of a checkpoint: only its tensors are loaded."""
    import torch.distributed.checkpoint as dcp
    from safetensors.torch import save_file
    state = {k: v for k, v in template(a.model).items() if ".lora_" in k}
    dcp.load(state, checkpoint_id=a.model, no_dist=True)
    os.makedirs(a.out)
    save_file(
        {k.replace(".default.", "."): v for k, v in state.items()}, os.path.join(a.out, "adapter_model.safetensors")
    )


def job_merge_lora(a):
    from peft import PeftModel
    from transformers import AutoModelForCausalLM
    model = AutoModelForCausalLM.from_pretrained(a.model, dtype="auto")
    PeftModel.from_pretrained(model, a.adapter).merge_and_unload().save_pretrained(a.out)


IMPORTS = {
    "save": ("torch.distributed.checkpoint", "torch.distributed.tensor", "safetensors.torch"),
    "rows": ("safetensors.torch",),
    "columns": ("safetensors.torch",),
    "load": ("torch.distributed.checkpoint",),
    "merge": ("torch.distributed.checkpoint.format_utils",),
    "header": ("safetensors",),
    "start": ("torch.distributed.tensor", "transformers", "transformers.distributed"),
    "shards": ("torch.distributed.checkpoint", "torch.distributed.tensor"),
    "consolidate": ("torch.distributed.checkpoint",),
    "hfload": ("torch.distributed.checkpoint",),
    "preadv": ("numpy",),
    "torch_save": ("safetensors.torch",),
    "pt": ("torch.distributed.checkpoint.format_utils",),
    "adapter": ("torch.distributed.checkpoint", "safetensors.torch"),
    "merge_lora": ("transformers", "peft"),
}


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
    work = globals()["job_" + a.job](a) or time.monotonic() - start
    peak = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)) * 1024
    print(json.dumps({"work_s": work, "peak_bytes": peak}))


if __name__ == "__main__":
    main()
