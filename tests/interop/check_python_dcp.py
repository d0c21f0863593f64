# SPDX-License-Identifier: Apache-2.0
"""fsdpck.torch.StorageReader under dcp.load(): what torch and fsdpck wrote, at other numbers of ranks, on other meshes,
into other dtypes; damage and values that would run code."""
import datetime, os

import ckpt_common as c
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

SCHEDULE = {"lr": 0.125, "list": [1, {"name": "cosine"}]}


def full():
    return {"rows": c.rand((17, 5), torch.float32, 1), "half": c.rand((3, 4), torch.bfloat16, 2),
            "empty": torch.zeros(0, 3), "scalar": torch.tensor(3.5), "wide": c.rand((4, 64, 3), torch.float16, 4)}


def state(mesh, tensors, placements):
    model = {n: distribute_tensor(t, mesh, placements) if t.ndim else t for n, t in tensors.items()}
    return {"model": model, "step": 7, "schedule": {"lr": 0.125, "list": [1, {"name": "cosine"}]}}


def save(rank, nranks, path):
    dcp.save(state(init_device_mesh("cpu", (nranks, )), full(), [Shard(0)]), checkpoint_id=path)


def whole(t):
    return t.full_tensor() if isinstance(t, DTensor) else t


def load(rank, nranks, paths, shape, placements, dtype):
    from fsdpck.torch import StorageReader
    want, mesh, bad = {n: t.to(dtype or t.dtype) for n, t in full().items()}, init_device_mesh("cpu", shape), []
    for path in paths:
        into = state(mesh, {n: torch.zeros_like(t) for n, t in want.items()}, placements)
        into.update(step=0, schedule={"lr": 0.0, "list": [0, {"name": ""}]})
        dcp.load(into, storage_reader=StorageReader(path))
        bad += ["%s: %s" % (path, n) for n, t in want.items() if not torch.equal(whole(into["model"][n]), t)]
        bad += ["%s: %s" % (path, into[k]) for k, v in (("step", 7), ("schedule", SCHEDULE)) if into[k] != v]
    return bad


LOADS = [(1, (1, ), [Shard(0)], None), (2, (2, ), [Shard(0)], torch.float32), (3, (3, ), [Replicate()], None),
         (4, (2, 2), [Shard(0), Shard(1)], torch.float64)]


def resharded(tool, work):
    bad, theirs, ours = [], os.path.join(work, "theirs"), os.path.join(work, "ours")
    c.run_ranks(3, save, theirs)
    tool("reshard", theirs, ours, "--ranks", "2", "--compress", "-q")
    for nranks, shape, placements, dtype in LOADS:
        for rank, differ in enumerate(c.run_ranks(nranks, load, (theirs, ours), shape, placements, dtype)):
            bad += ["rank %d of %d %s: %s" % (rank, nranks, shape, d) for d in differ]
    return bad


def folder(work):
    """A folder of weights, into a state dict that has them below "model", with a view of a larger tensor in it."""
    import fsdpck
    from fsdpck.torch import StorageReader
    want, path = full(), os.path.join(work, "weights.safetensors")
    c.write_ref(path, want)
    big = torch.zeros(17, 20)
    into = {"model": {n: torch.zeros_like(t) for n, t in want.items()}}
    into["model"]["rows"] = big[:, 1::4]
    dcp.load(into, storage_reader=StorageReader(path, prefix="model."), no_dist=True)
    bad = [n for n, t in want.items() if not torch.equal(into["model"][n], t)]
    reader = StorageReader(path)
    with fsdpck.open(path, "torch", "meta") as source:
        out = torch.zeros(9, 5)
        filled, made = source.read([("rows", slice(0, 17, 2), out), ("rows", ...)])
        bad += ["out= is moved to another device"] * (filled is not out or not torch.equal(out, want["rows"][::2]))
        bad += ["the result stays on the CPU"] * (not made.is_meta)
    facts = reader.read_metadata().storage_meta
    bad += ["storage_meta is %s" % facts] * ((facts.checkpoint_id, facts.load_id) != (path, reader.load_id))
    return bad + ["written beside the view"] * bool(big[:, 0::4].any() or big[:, 2::4].any())


class Counting(dcp.DefaultLoadPlanner):
    def __init__(self):
        super().__init__()
        self.committed = []

    def commit_tensor(self, read_item, tensor):
        self.committed.append((read_item.dest_index.fqn, tensor.clone()))


def cast_in_parts(work):
    """Tensors that are cast, and those on a GPU if there is one, are read in parts that fit into a little memory."""
    from fsdpck.torch import StorageReader, _fill
    path, want, bad, before = os.path.join(work, "weights.safetensors"), full(), [], _fill._SLOT_NBYTES
    try:
        for nbytes, device in [(n, d) for n in (8, 100, 5000, before)
                               for d in ["cpu"] + ["cuda"] * torch.cuda.is_available()]:
            _fill._SLOT_NBYTES = nbytes
            into = {n: torch.zeros(t.shape, dtype=torch.float64 if n != "half" else t.dtype, device=device)
                    for n, t in want.items()}
            planner = Counting()
            dcp.load(into, storage_reader=StorageReader(path), planner=planner, no_dist=True)
            whats = sorted(n for n, t in planner.committed)
            bad += ["%d bytes: committed %s" % (nbytes, whats)] * (whats != sorted(n for n in want if n != "empty"))
            bad += ["%d bytes, %s: %s" % (nbytes, device, name) for name, t in [*planner.committed, *into.items()]
                    if not torch.equal(t.cpu(), want[name].to(t.dtype))]
    finally:
        _fill._SLOT_NBYTES = before
    return bad


def load_damaged(rank, nranks, path):
    from fsdpck.torch import StorageReader
    into = state(init_device_mesh("cpu", (nranks, )), full(), [Shard(0)])
    try:
        dcp.load(into, storage_reader=StorageReader(path))
    except dcp.CheckpointException as e:
        return {r: (type(f[0]).__name__, str(f[0]), f[0].tensor) for r, f in e.failures.items()}


def damaged(tool, work):
    """Every rank gets the error of the rank that met the damage, with file and tensor."""
    path = os.path.join(work, "damaged")
    tool("reshard", os.path.join(work, "theirs"), path, "--ranks", "2", "-q")
    with open(os.path.join(path, "__1_0.distcp"), "r+b") as f:
        data = f.read()
        at = data.index(c.raw_bytes(full()["rows"][9:]))
        f.seek(at)
        f.write(bytes([data[at] ^ 1]))
    bad = []
    for failures in c.run_ranks(2, load_damaged, path):
        kind, text, tensor = (failures or {}).get(1, ("", "", ""))
        if list(failures or {}) != [1] or (kind, tensor) != ("DamagedError", "model.rows") or "__1_0" not in text:
            bad.append(repr(failures))
    return bad


def untrusted(work):
    """A value of a class that may run code is refused, unless the caller trusts it."""
    import fsdpck
    from fsdpck.torch import StorageReader
    path, want = os.path.join(work, "values"), {"t": torch.ones(2), "when": datetime.timedelta(3), "n": 5}
    dcp.save(dict(want), checkpoint_id=path, no_dist=True)
    into = {"t": torch.zeros(2), "when": None, "n": 0}
    try:
        dcp.load(into, storage_reader=StorageReader(path), no_dist=True)
        return ["loaded"]
    except dcp.CheckpointException as e:
        error = e.failures[0][0]
        if not isinstance(error, fsdpck.UnsupportedError) or error.tensor != "when" or "trust=True" not in str(error):
            return [repr(error)]
    dcp.load(into, storage_reader=StorageReader(path, trust=True), no_dist=True)
    return [] if into["when"] == want["when"] and into["n"] == 5 and into["t"].all() else [repr(into)]


def missing(work):
    """What the user reads of a source that cannot be opened."""
    from fsdpck.torch import StorageReader
    try:
        dcp.load({"t": torch.zeros(1)}, storage_reader=StorageReader(os.path.join(work, "nowhere")), no_dist=True)
        return ["loaded"]
    except dcp.CheckpointException as e:
        return [] if "nowhere: cannot open: No such file" in str(e) else [str(e)]


def check_all(checks, tool, work):
    checks.run("Python: dcp.load() at other ranks, meshes and dtypes", resharded, tool, work)
    checks.run("Python: dcp.load() of a folder of weights", folder, work)
    checks.run("Python: dcp.load() with casts in parts", cast_in_parts, work)
    checks.run("Python: dcp.load() of damage", damaged, tool, work)
    checks.run("Python: dcp.load() of values that would run code", untrusted, work)
    checks.run("Python: dcp.load() of nothing", missing, work)
