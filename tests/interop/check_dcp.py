# SPDX-License-Identifier: Apache-2.0
"""Checks that DIR is a PyTorch DCP checkpoint holding exactly the tensors of REF, bit for bit: through torch itself,
and statically."""
import io, json, os, zipfile

import ckpt_common as c
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset


def box_volume(sizes):
    v = 1
    for s in sizes:
        v *= s
    return v


def overlap(a, b):
    return all(x < y + t and y < x + s for x, s, y, t in zip(a.offsets, a.sizes, b.offsets, b.sizes))


def check_metadata(dir, ref, extra, align):
    """Static facts: names, types, boxes, files, zips. Reads .metadata with a restricted unpickler only."""
    bad = []
    with open(os.path.join(dir, ".metadata"), "rb") as f:
        md = c.Restricted(f).load()
        if f.read(1):
            bad.append(".metadata: bytes after the pickle's end")
    tensors = {k: v for k, v in md.state_dict_metadata.items() if isinstance(v, TensorStorageMetadata)}
    other = {k for k, v in md.state_dict_metadata.items() if isinstance(v, BytesStorageMetadata)}
    bad += [f".metadata: tensor {k} missing" for k in sorted(ref.keys() - tensors.keys())]
    bad += [f".metadata: tensor {k} not in the reference" for k in sorted(tensors.keys() - ref.keys())]
    if extra is not None:
        bad += [f".metadata: item {k} missing" for k in sorted(extra.keys() - other)]
        bad += [f".metadata: item {k} not in the reference" for k in sorted(other - extra.keys())]
    if md.planner_data is not None:
        bad += [f"planner_data: {k} missing" for k in sorted(md.state_dict_metadata.keys() - md.planner_data.keys())]
    for k in sorted(tensors.keys() & ref.keys()):
        t, want = tensors[k], ref[k]
        if t.properties.dtype != want.dtype or tuple(t.size) != tuple(want.shape):
            bad.append(f".metadata: {k} is {t.properties.dtype} {tuple(t.size)}, want {want.dtype} {tuple(want.shape)}")
        if sum(box_volume(x.sizes) for x in t.chunks) != box_volume(t.size):
            bad.append(f".metadata: {k}: chunks do not fill the tensor")
        live = [x for x in t.chunks if box_volume(x.sizes)]
        bad += [
            f".metadata: {k}: chunks {i} and {j} overlap" for i in range(len(live)) for j in range(i)
            if overlap(live[i], live[j])
        ]
        for x in t.chunks:
            if not any(m.fqn == k and m.offset == x.offsets for m in md.storage_data):
                bad.append(f".metadata: {k}: no storage entry for the chunk at {tuple(x.offsets)}")
    for m, s in md.storage_data.items():
        where = f"{s.relative_path}@{s.offset} ({m.fqn})"
        path = os.path.join(dir, s.relative_path)
        if s.offset + s.length > os.path.getsize(path):
            bad.append(f"{where}: item ends beyond the file")
            continue
        with open(path, "rb") as f:
            f.seek(s.offset)
            z = zipfile.ZipFile(io.BytesIO(f.read(s.length)))
        if (broken := z.testzip()):
            bad.append(f"{where}: wrong CRC-32 of {broken}")
        for i in z.infolist():
            if i.compress_type != zipfile.ZIP_STORED:
                bad.append(f"{where}: {i.filename} is compressed")
            if align and i.file_size >= 65536 and "/data/" in i.filename:
                z.fp.seek(i.header_offset + 26)
                n, e = (int.from_bytes(z.fp.read(2), "little") for _ in range(2))
                at = s.offset + i.header_offset + 30 + n + e
                if at % align:
                    bad.append(f"{where}: payload at {at}, not a multiple of {align}")
    return bad


def check_portable(dir):
    """What torch 2.4 to 2.14 need, without having them: five TensorProperties, no path class, no frame of protocol
    5."""
    bad = []

    class Old(c.Restricted):
        def find_class(self, module, name):
            cls = super().find_class(module, name)
            if module.startswith("pathlib"):
                bad.append(f".metadata: {module}.{name}: its module moved in Python 3.13")
            if name != "TensorProperties":
                return cls

            class Five(cls):
                def __setstate__(self, state):
                    if len(state) != 5:
                        bad.append(f".metadata: TensorProperties has {len(state)} fields, torch before 2.15 reads 5")
                    super().__setstate__(state)
            return Five

    raw = open(os.path.join(dir, ".metadata"), "rb").read()
    Old(io.BytesIO(raw)).load()
    if raw[0] == 0x80 and raw[1] > 4:
        bad.append(f".metadata: pickle protocol {raw[1]}")
    return sorted(set(bad))


def same(got, want):
    """Loose equality of plain values, so that JSON (no tuples, no complex) can be the truth."""
    return json.loads(json.dumps(got, default=repr)) == want


def check_full(dir, ref, extra, no_dist=False):
    """Into full tensors, from a flat template and from an empty one (which follows planner_data)."""
    sd = {k: torch.empty(v.shape, dtype=v.dtype) for k, v in ref.items()}
    sd.update({k: None for k in extra or {}})
    dcp.load(sd, checkpoint_id=dir, no_dist=no_dist)
    bad = [d for k, v in ref.items() if (d := c.compare(k, sd[k], v))]
    bad += [f"{k}: {sd[k]!r}, want {v!r}" for k, v in (extra or {}).items() if not same(sd[k], v)]
    nested = {}
    _load_state_dict(nested, storage_reader=dcp.FileSystemReader(dir), planner=_EmptyStateDictLoadPlanner(),
                     no_dist=True)
    from torch.distributed.checkpoint._nested_dict import flatten_state_dict
    flat, _ = flatten_state_dict(nested)
    bad += [d for k, v in ref.items() if k in flat and (d := c.compare(k, flat[k], v, "nested: "))]
    bad += [f"nested: {k} missing" for k in ref.keys() - flat.keys()]
    return bad


def check_sharded(rank, nranks, dir, ref, dims, how, no_dist):
    """Into DTensors on a mesh; compares each rank's own box."""
    mesh = init_device_mesh("cpu", dims)
    sd = {}
    for k, v in ref.items():
        pl = [Shard(d) if d is not None and d < v.dim() else Replicate() for d in how]
        shape, off = compute_local_shape_and_global_offset(v.shape, mesh, pl)
        local = torch.zeros(shape, dtype=v.dtype)
        stride = torch.empty(v.shape, dtype=v.dtype, device="meta").stride()
        sd[k] = DTensor.from_local(local, mesh, pl, run_check=False, shape=v.shape, stride=stride)
    dcp.load(sd, checkpoint_id=dir, no_dist=no_dist)
    bad = []
    for k, v in ref.items():
        pl = sd[k].placements
        shape, off = compute_local_shape_and_global_offset(v.shape, mesh, pl)
        want = v
        for d, (o, s) in enumerate(zip(off, shape)):
            want = want.narrow(d, min(o, v.shape[d]), s)
        if (d := c.compare(k, sd[k].to_local(), want, f"rank {rank} of {'x'.join(map(str, dims))} {pl}: ")):
            bad.append(d)
    return bad


def load_plans(n):
    """(mesh sizes, tensor dimension that each mesh dimension shards, no_dist) of the loads on n ranks."""
    d = max(k for k in range(1, int(n ** 0.5) + 1) if n % k == 0)
    return [((n,), (0,), False), ((n,), (1,), False), ((n,), (0,), True), ((d, n // d), (0, 1), False),
            ((d, n // d), (None, 0), False), ((d, n // d), (0, 0), False)]


def check(dir, ref, extra=None, ranks=0, align=4096, portable=True):
    """[differences]. extra: the plain values that DIR must hold; ranks: load on so many gloo processes too; align: of
    payloads of 64 KiB or more; portable: could torch 2.4 to 2.14 read it (torch 2.15's own files fail)?"""
    steps = [(".metadata and items", check_metadata, dir, ref, extra, align)]
    if portable:
        steps.append(("portable to torch 2.4", check_portable, dir))
    steps += [("one process", check_full, dir, ref, extra), ("one process, no_dist", check_full, dir, ref, extra, True)]
    for dims, how, no_dist in load_plans(ranks) if ranks else []:
        steps.append((f"mesh {dims}, dims {how}, no_dist {no_dist}", on_ranks, ranks, dir, ref, dims, how, no_dist))
    bad = []
    for what, fn, *args in steps:
        try:
            bad += [f"{what}: {line}" for line in fn(*args)]
        except (Exception, dcp.api.CheckpointException) as e:   # the latter is only a BaseException
            bad.append(f"{what}: {type(e).__name__}: {(str(e).strip().splitlines() or [''])[-1]}")
    return bad


def on_ranks(n, *args):
    return [line for lines in c.run_ranks(n, check_sharded, *args) for line in lines]
