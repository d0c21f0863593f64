# SPDX-License-Identifier: Apache-2.0
"""fsdpck.torch.save(), AsyncSaver, load_model() and load_optimizer(): a training that is resumed at another number of
ranks goes on as the one that was not interrupted."""
import collections
import gc
import os
import unittest.mock

import ckpt_common as c
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.fsdp import fully_shard

EXTRA = {"step": 2, "rates": [0.5, {"warm": True}], "order": torch.arange(5), "none": {},
         "of": [{}, [{}, 1], (2, {})]}


def made(device=None):
    torch.manual_seed(0)
    with torch.device(device or "cpu"):
        return nn.Sequential(nn.Linear(7, 5), nn.Tanh(), nn.Linear(5, 3))


def optimizer_of(model):
    return torch.optim.AdamW(model.parameters(), lr=0.05)


def train(model, optimizer, first, last):
    """Every rank has the same rows, so the results do not depend on the number of ranks."""
    for step in range(first, last):
        rows = torch.arange(14.0).reshape(2, 7) / (step + 9)
        model(rows).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def results(model):
    return {n: p.full_tensor() if hasattr(p, "full_tensor") else p for n, p in model.state_dict().items()}


def different(model, want):
    got = results(model)
    return [n for n in want if not torch.allclose(got[n], want[n], rtol=1e-5, atol=1e-7)]


def write(rank, nranks, work):
    """The state of step 2, at once and behind the steps that follow."""
    import fsdpck.torch
    model = made()
    fully_shard(model[0])
    fully_shard(model)
    optimizer = optimizer_of(model)
    train(model, optimizer, 0, 2)
    fsdpck.torch.save(model, optimizer, EXTRA, os.path.join(work, "at once"))
    with fsdpck.torch.AsyncSaver() as saver:
        for name in "behind", "again":
            saver.save(model, optimizer, EXTRA, os.path.join(work, name))
            kept = [b.data_ptr() for b in saver._buffers._kept]
            if name == "behind":
                saver.wait()
        reused = kept == [b.data_ptr() for b in saver._buffers._kept]
        train(model, optimizer, 2, 4)
    return [] if reused else ["buffers are not used again"]


def resume(rank, nranks, path, want):
    import fsdpck.torch
    model = made("meta")
    if nranks > 1:
        fully_shard(model[0])
        fully_shard(model)
    fsdpck.torch.load_model(model, path)
    optimizer = optimizer_of(model)
    fsdpck.torch.load_optimizer(model, optimizer, path)
    extra = fsdpck.torch.load_extra(path)
    bad = [] if {**extra, "order": 0} == {**EXTRA, "order": 0} and torch.equal(extra["order"], EXTRA["order"]) else [
        repr(extra)]
    train(model, optimizer, 2, 4)
    return bad + different(model, want)


def resumed(work):
    model = made()
    optimizer = optimizer_of(model)
    train(model, optimizer, 0, 4)
    want = {n: t.detach() for n, t in model.state_dict().items()}
    bad = [b for rank in c.run_ranks(2, write, work) for b in rank]
    for name, nranks in (("at once", 3), ("behind", 1), ("again", 2)):
        for rank, differ in enumerate(c.run_ranks(nranks, resume, os.path.join(work, name), want)):
            bad += ["%s, rank %d of %d: %s" % (name, rank, nranks, d) for d in differ]
    theirs = {"model": {n: torch.zeros_like(t) for n, t in want.items()}}
    dcp.load(theirs, checkpoint_id=os.path.join(work, "behind"), no_dist=True)
    import fsdpck
    with fsdpck.open(os.path.join(work, "behind"), "torch") as source:
        bad += ["torch reads another %s" % n for n, t in theirs["model"].items()
                if not torch.equal(t, source["model." + n][...])]
    return bad


def failed(work):
    """The error of a save comes with the next call; one that was there before stays."""
    import fsdpck.torch
    path, bad, model = os.path.join(work, "kept"), [], made()
    fsdpck.torch.save(model, None, {"step": 1}, path)
    saver = fsdpck.torch.AsyncSaver(overwrite=False)
    saver.save(model, None, {"step": 2}, path)
    try:
        saver.wait()
        bad.append("nothing was refused")
    except BaseException as e:
        if "exists" not in str(e):
            bad.append(str(e))
    with unittest.mock.patch("threading.Thread.start", side_effect=RuntimeError("no thread")):
        try:
            saver.save(model, None, {"step": 3}, path)
            bad.append("saved without a thread")
        except RuntimeError as e:
            bad += [str(e)] * (str(e) != "no thread")
    saver.wait()
    if fsdpck.torch.load_extra(path) != {"step": 1} or sorted(os.listdir(work)) != ["kept"]:
        bad.append("the old checkpoint is changed: %s" % os.listdir(work))
    try:
        fsdpck.torch.load_optimizer(model, optimizer_of(model), path)
        bad.append("a checkpoint without optimizer is accepted")
    except fsdpck.MissingError as e:
        if "extra, model" not in str(e) and "model" not in str(e):
            bad.append(str(e))
    return bad


def kept(work):
    """Values of the caller's come back with the keys that they had."""
    import fsdpck.torch
    bad = []
    for extra in ({}, {3: "x"}, {"": 1, "a.b": {"c": 2}}, {"e": {}, "l": [{0: {}}, ({4: 5}, {})], (1, 2): None},
                  {"by rank": {3: torch.arange(2), 1: [torch.arange(3), {0: torch.ones(1)}]}}):
        fsdpck.torch.save(nn.Linear(2, 2), None, extra, os.path.join(work, "extra"))
        found = fsdpck.torch.load_extra(os.path.join(work, "extra"))
        if repr(found) != repr(extra):
            bad.append("%r instead of %r" % (found, extra))
    model, path = nn.Linear(2, 2), os.path.join(work, "scheduler")
    optimizer = torch.optim.SGD(model.parameters(), 0.5)  # it has no tensors
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [1, 3])
    fsdpck.torch.save(model, optimizer, {"scheduler": scheduler.state_dict()}, path)
    found = fsdpck.torch.load_extra(path)["scheduler"]
    bad += [] if found == scheduler.state_dict() else [repr(found)]
    optimizer.param_groups[0]["lr"] = 0.25
    fsdpck.torch.load_optimizer(model, optimizer, path)
    return bad + ["the learning rate is not loaded"] * (optimizer.param_groups[0]["lr"] != 0.5)


Pair = collections.namedtuple("Pair", "left right")


def staged(work):
    """What async_save() saves is the state at its call; memory is used again, but not while a save needs it."""
    import fsdpck
    import fsdpck.torch
    bad, stager, tied = [], fsdpck.torch.AsyncStager(), torch.zeros(3, 2)
    state = {"w": torch.zeros(4, 3), "pair": Pair(tied, [tied]), "step": 0}

    def save(step):
        state["step"] = step
        state["w"].fill_(step)
        path = os.path.join(work, str(step))
        future = dcp.async_save(state, storage_writer=fsdpck.torch.StorageWriter(path), async_stager=stager)
        state["w"].fill_(-1)
        future.result()
        with fsdpck.open(path, "torch") as source:
            if not (source["w"][...] == step).all():
                bad.append("step %d: %s" % (step, source["w"][...]))

    for step in 1, 2, 3:
        save(step)
    gc.collect()
    first = stager.stage(state)
    if type(first["pair"]) is not Pair or first["pair"].left is not first["pair"].right[0] or first["step"] != 3:
        bad.append("the copy is %s" % first)
    second = stager.stage(state)
    if first["w"].data_ptr() == second["w"].data_ptr():
        bad.append("memory that is needed is used again")
    place = first["w"].data_ptr()
    del first
    if stager.stage(state)["w"].data_ptr() != place:
        bad.append("memory is not used again")
    return bad


def check_all(checks, work):
    for name, check in (("resumed at other numbers of ranks", resumed), ("of a save that fails", failed),
                        ("values of the caller", kept), ("AsyncStager", staged)):
        folder = os.path.join(work, check.__name__)
        os.makedirs(folder)
        checks.run("Python: save() and AsyncSaver: " + name, check, folder)
