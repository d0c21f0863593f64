#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times how a sharded model starts: fsdpck.torch.load_model(), transformers' native FSDP, and dcp.load into a model on
the meta device.

usage: python_start.py PACKAGE FOLDER [--ranks 2] [--runs 3]

PACKAGE is the folder that holds the Python package fsdpck (BUILD/python), FOLDER a Hugging Face model. The ways take
turns, each in new processes. The table has medians of the slowest rank: from making the model to pages that are filled,
without imports, and of the processor seconds of all ranks. "peak" is the largest resident size of a rank above what it
had before; "shards" is what its parameters hold."""
import argparse
import os
import statistics
import sys
import tempfile
import time


def vm_peak():
    with open("/proc/self/status") as f:
        lines = dict(line.split(":", 1) for line in f)
    return int(lines["VmHWM"].split()[0]), int(lines["VmRSS"].split()[0])


def on_meta(folder):
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), dtype=torch.bfloat16)


def sharded_on_meta(folder):
    from torch.distributed.fsdp import fully_shard
    model = on_meta(folder)
    for layer in [*model.model.layers, model]:
        fully_shard(layer)
    return model


def by_fsdpck(folder, nranks):
    from fsdpck.torch import load_model
    model = sharded_on_meta(folder)
    load_model(model, folder, init_buffers=model._init_weights)
    return model


def by_transformers(folder, nranks):
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.distributed import DistributedConfig
    config = DistributedConfig(fsdp_size=nranks)
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, distributed_config=config)


def by_dcp(folder, nranks):
    """PyTorch's reader of such folders; it knows a tied tensor by one of its names."""
    import torch.distributed.checkpoint as dcp
    model = sharded_on_meta(folder)
    model.to_empty(device="cpu")
    reader = dcp.HuggingFaceStorageReader(folder)
    stored = reader.read_metadata().state_dict_metadata
    dcp.load({n: p for n, p in model.state_dict().items() if n in stored}, storage_reader=reader)
    return model


WAYS = {"fsdpck.torch.load_model": by_fsdpck, "transformers, native FSDP": by_transformers, "meta + dcp.load": by_dcp}


def start(rank, a, folder, way, results):
    import torch
    import torch.distributed as dist
    import transformers.distributed  # noqa: F401
    import fsdpck.torch  # noqa: F401
    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(a.ranks), LOCAL_WORLD_SIZE=str(a.ranks))
    dist.init_process_group("gloo", init_method="file://" + os.path.join(folder, "rendezvous"), rank=rank,
                            world_size=a.ranks)
    dist.barrier()
    before, begun, cpu = vm_peak()[1], time.perf_counter(), time.process_time()
    model = WAYS[way](a.folder, a.ranks)
    local = [p.to_local() for p in model.parameters()]
    for t in local:
        t.view(torch.uint8).flatten()[::4096].sum()
    seconds, cpu = time.perf_counter() - begun, time.process_time() - cpu
    shards = sum(t.numel() * t.element_size() for t in local)
    dist.barrier()
    results.put((seconds, (vm_peak()[0] - before) * 1024, shards, cpu))
    dist.destroy_process_group()


def once(a, way):
    import torch.multiprocessing as mp
    context = mp.get_context("fork")
    results = context.SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        ranks = [context.Process(target=start, args=(r, a, folder, way, results)) for r in range(a.ranks)]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join()
        if any(rank.exitcode for rank in ranks):
            sys.exit("a rank failed")
    columns = list(zip(*(results.get() for _ in ranks)))
    return [*map(max, columns[:3]), sum(columns[3])]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("package")
    p.add_argument("folder")
    p.add_argument("--ranks", type=int, default=2)
    p.add_argument("--runs", type=int, default=3)
    a = p.parse_args()
    sys.path.insert(0, os.path.abspath(a.package))
    on_meta(a.folder)  # imports what the ranks need, which are forked
    found = {way: [] for way in WAYS}
    for _ in range(a.runs):
        for way in WAYS:
            found[way].append(once(a, way))
    print("| %d ranks | seconds | over load_model | processor seconds | peak MB | shards MB |" % a.ranks)
    print("|---|---|---|---|---|---|")
    medians = {way: [statistics.median(c) for c in zip(*rows)] for way, rows in found.items()}
    ours = medians["fsdpck.torch.load_model"][0]
    for way, (seconds, peak, shards, cpu) in medians.items():
        print("| %s | %.2f | %.1f | %.2f | %.0f | %.0f |" %
              (way, seconds, seconds / ours, cpu, peak / 1e6, shards / 1e6))


if __name__ == "__main__":
    main()
