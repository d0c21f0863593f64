# SPDX-License-Identifier: Apache-2.0
"""fsdpck.torch.StorageWriter under dcp.save() and dcp.async_save(): loaded at other numbers of ranks by our reader and
by PyTorch's, with planners of the caller, and what a failed or killed save leaves.

usage: check_python_writer.py PACKAGE PATH   (a save by processes that async_save() spawns: they import this file)"""
import dataclasses, os, signal, subprocess, sys

import check_python_dcp as d
import ckpt_common as c
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor


def state(nranks, shape, placements, tensors=None):
    mesh = init_device_mesh("cpu", shape)
    out = d.state(mesh, tensors or d.full(), placements)
    out["whole"] = distribute_tensor(c.rand((6, 3), torch.float32, 7), mesh, [Replicate()] * len(shape))
    out["plain"] = c.rand((5, 4), torch.float64, 8).t()
    return out


SAVES = [(1, (1, ), [Shard(0)]), (2, (2, ), [Shard(1)]), (3, (3, ), [Shard(0)]), (4, (2, 2), [Replicate(), Shard(0)])]


def save(rank, nranks, path, shape, placements, compress):
    from fsdpck.torch import StorageWriter
    dcp.save(state(nranks, shape, placements), storage_writer=StorageWriter(path, compress=compress))


def load(rank, nranks, paths, shape, placements):
    from fsdpck.torch import StorageReader
    want, bad = state(nranks, shape, placements), []
    for path in paths:
        readers = [StorageReader] + [dcp.FileSystemReader] * os.path.exists(os.path.join(path, ".metadata"))
        for reader in readers:
            into = state(nranks, shape, placements, {n: torch.zeros_like(t) for n, t in d.full().items()})
            into.update(step=0, schedule={"lr": 0.0, "list": [0, {"name": ""}]}, plain=torch.zeros(4, 5).double())
            into["whole"].to_local().zero_()
            dcp.load(into, storage_reader=reader(path))
            flat = lambda s: {**s["model"], "whole": s["whole"], "plain": s["plain"]}
            bad += ["%s by %s: %s" % (path, reader.__module__, n) for n, t in flat(want).items()
                    if not torch.equal(d.whole(flat(into)[n]), d.whole(t))]
            bad += ["%s by %s: %s" % (path, reader.__module__, into[k]) for k in ("step", "schedule")
                    if into[k] != want[k]]
    return bad


def resharded(tool, work):
    bad, paths = [], []
    for nranks, shape, placements in SAVES:
        paths.append(os.path.join(work, "writer%d" % nranks))
        c.run_ranks(nranks, save, paths[-1], shape, placements, nranks == 3)
        tool("verify", paths[-1])
    for nranks, shape, placements in SAVES:
        for rank, differ in enumerate(c.run_ranks(nranks, load, paths, shape, placements)):
            bad += ["rank %d of %d %s: %s" % (rank, nranks, shape, w) for w in differ]
    return bad


# --- planners of the caller ---


class Casting(dcp.DefaultSavePlanner):
    """Stores less than the state dict has, as an example of PyTorch does. The plan knows nothing of it."""

    def transform_object(self, write_item, object):
        value = super().transform_object(write_item, object)
        return value.to(torch.bfloat16) if isinstance(value, torch.Tensor) and value.is_floating_point() else value


class Repeating(dcp.DefaultSavePlanner):
    """Lets every rank write what all of them have."""

    def _dedup_save_plans(self, all_plans):
        return all_plans

    def create_global_plan(self, all_plans):
        first, metadata = dcp.default_planner.create_default_global_save_plan(all_plans[:1])
        plans = [dataclasses.replace(p, items=first[0].items) for p in all_plans]
        return plans, dataclasses.replace(metadata, planner_data=all_plans[0].planner_data)


class Failing(dcp.DefaultSavePlanner):
    def resolve_data(self, write_item):
        if dist.get_rank() == 1:
            raise ValueError("no data today")
        return super().resolve_data(write_item)


def plans(rank, nranks, path):
    """Casts, repeated values, a nested dict as one value, and cached plans, which carry an older save's numbers."""
    from fsdpck.torch import StorageReader, StorageWriter
    bad, t = [], c.rand((6, 5), torch.float32, 3)
    dcp.save({"t": t, "n": 5}, storage_writer=StorageWriter(path), planner=Casting())
    import fsdpck
    with fsdpck.open(path, "torch") as source:
        bad += ["cast"] * (not torch.equal(source["t"][...], t.bfloat16()))
    dcp.save({"t": t, "n": 5}, storage_writer=StorageWriter(path), planner=Repeating())
    into = {"t": torch.zeros(6, 5), "n": 0}
    dcp.load(into, storage_reader=StorageReader(path))
    bad += ["repeated"] * (not torch.equal(into["t"], t) or into["n"] != 5)
    dcp.save({"t": t, "deep": {"a": {"b": [1, 2]}}}, storage_writer=StorageWriter(path),
             planner=dcp.DefaultSavePlanner(flatten_state_dict=False))
    for reader in (StorageReader, dcp.FileSystemReader):
        into = {"t": torch.zeros(6, 5), "deep": {}}
        dcp.load(into, storage_reader=reader(path),
                 planner=dcp.DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False))
        bad += ["one value"] * (not torch.equal(into["t"], t) or into["deep"] != {"a": {"b": [1, 2]}})
    for step in range(3):
        dcp.save({"t": t + step, "n": step}, storage_writer=StorageWriter(path),
                 planner=dcp.DefaultSavePlanner(enable_plan_caching=True))
        into = {"t": torch.zeros(6, 5), "n": -1}
        dcp.load(into, storage_reader=StorageReader(path))
        bad += ["cached plan %d" % step] * (not torch.equal(into["t"], t + step) or into["n"] != step)
    return bad


# --- saves that fail ---


def refused(work):
    """A checkpoint that must not be replaced; ranks on their own; no path."""
    import fsdpck
    from fsdpck.torch import StorageWriter
    path, bad = os.path.join(work, "refused"), []
    dcp.save({"t": torch.ones(2)}, storage_writer=StorageWriter(path), no_dist=True)
    for kind, writer, more in ((fsdpck.ExistsError, StorageWriter(path, overwrite=False), {}),
                               (fsdpck.UsageError, StorageWriter(path), {"use_collectives": False}),
                               (fsdpck.UsageError, StorageWriter(), {})):
        try:
            dcp.save({"t": torch.zeros(2)}, storage_writer=writer, no_dist=True, **more)
            bad.append("saved: %s" % kind)
        except (dcp.CheckpointException, fsdpck.UsageError) as e:
            error = e.failures[0][0] if isinstance(e, dcp.CheckpointException) else e
            bad += [repr(error)] * (type(error) is not kind)
    into = {"t": torch.zeros(2)}
    dcp.load(into, checkpoint_id=path, no_dist=True)
    return bad + ["replaced"] * (not into["t"].all()) + leftovers(path)


def leftovers(path):
    """What lies beside a checkpoint that has the folder for itself."""
    name, beside = os.path.basename(path), os.listdir(os.path.dirname(path))
    return [n for n in beside if n != name and name in n]


def values(path):
    from fsdpck.torch import StorageReader
    into = {"t": torch.zeros(4, 2), "n": 0}
    dcp.load(into, storage_reader=StorageReader(path), no_dist=True)
    return into["n"] if bool((into["t"] == into["n"]).all()) else "mixed"


def step(n):
    return {"t": distribute_tensor(torch.full((4, 2), float(n)), init_device_mesh("cpu", (2, )), [Shard(0)]), "n": n}


def failing(rank, nranks, path):
    """Every rank hears of the rank that failed, the old checkpoint stays, and the next save is an ordinary one."""
    from fsdpck.torch import StorageWriter
    bad = []
    dcp.save(step(1), storage_writer=StorageWriter(path))
    for n in (2, 3):
        try:
            dcp.save(step(n), storage_writer=StorageWriter(path), planner=Failing())
            bad.append("saved")
        except dcp.CheckpointException as e:
            bad += [repr(e.failures)] * (list(e.failures) != [1] or "no data today" not in str(e))
        dist.barrier()
        bad += ["changed"] * (values(path) != 1)
        dist.barrier()
    dcp.save(step(4), storage_writer=StorageWriter(path))
    return bad + ["not replaced"] * (values(path) != 4) + leftovers(path)


def die(rank, nranks, path, n, phase, victim):
    from fsdpck.torch import StorageWriter

    def kill(here):
        if phase == here and rank == victim:
            os.kill(os.getpid(), signal.SIGKILL)

    class Mortal(StorageWriter):
        def prepare_global_plan(self, plans):
            out = super().prepare_global_plan(plans)
            kill("begun")
            return out

        def finish(self, metadata, results):
            kill("committing")
            super().finish(metadata, results)
            kill("committed")

    dcp.save(step(n), storage_writer=Mortal(path, progress=lambda done, total: kill("writing")))


def killed(work):
    """SIGKILL of a rank in each phase: the old checkpoint is whole, or the new one. The last save cleans up."""
    bad, path, have = [], os.path.join(work, "killed"), 1
    c.run_ranks(2, save_step, path, have)
    for n, (phase, victim) in enumerate((("begun", 0), ("writing", 1), ("committing", 0), ("committed", 0)), 2):
        codes = ended(2, die, path, n, phase, victim)
        have = n if phase == "committed" else have
        if codes[victim] != -signal.SIGKILL or values(path) != have:
            bad.append("%s, rank %d: exit codes %s, step %s" % (phase, victim, codes, values(path)))
    c.run_ranks(2, save_step, path, 9)
    return bad + ["not replaced"] * (values(path) != 9) + leftovers(path)


def save_step(rank, nranks, path, n):
    from fsdpck.torch import StorageWriter
    dcp.save(step(n), storage_writer=StorageWriter(path))


def ended(nranks, fn, *args):
    """Exit codes of ranks that may be killed. Those that wait for a dead one get an error of gloo."""
    context = mp.get_context("fork")
    with c.tempfile.TemporaryDirectory() as folder:
        rendezvous = os.path.join(folder, "rendezvous")
        ranks = [context.Process(target=alone, args=(r, nranks, rendezvous, fn, args)) for r in range(nranks)]
        for p in ranks:
            p.start()
        for p in ranks:
            p.join()
    return [p.exitcode for p in ranks]


def alone(rank, nranks, rendezvous, fn, args):
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method="file://" + rendezvous, rank=rank, world_size=nranks)
    fn(rank, nranks, *args)


# --- async_save ---


def background(rank, nranks, path, kind):
    """What is saved is what the state was when async_save() returned; the training then changes it."""
    from fsdpck.torch import StorageWriter
    group = dist.new_group(backend="gloo")
    for n in (1, 2):
        state = step(n)
        saved = dcp.async_save(state, storage_writer=StorageWriter(path), process_group=group,
                               async_checkpointer_type=getattr(dcp.state_dict_saver.AsyncCheckpointerType, kind))
        state["t"].to_local().fill_(9)
        saved.result()
        dist.barrier()
        if values(path) != n:
            return ["has step %s, not %d" % (values(path), n)]
        dist.barrier()
    return leftovers(path)


def by_threads(work):
    return sum(c.run_ranks(2, background, os.path.join(work, "threads"), "THREAD"), [])


def by_processes(work):
    import fsdpck
    package = os.path.dirname(os.path.dirname(fsdpck.__file__))
    run = subprocess.run([sys.executable, os.path.abspath(__file__), package, os.path.join(work, "processes")],
                         capture_output=True, text=True)
    return [run.stdout + run.stderr] if run.returncode else []


def check_all(checks, tool, work):
    checks.run("Python: dcp.save() at 1 to 4 ranks, loaded at 1 to 4", resharded, tool, work)
    checks.run("Python: dcp.save() by planners of the caller",
               lambda: sum(c.run_ranks(2, plans, os.path.join(work, "plans")), []))
    checks.run("Python: dcp.save() of what is refused", refused, work)
    checks.run("Python: dcp.save() with a rank that fails",
               lambda: sum(c.run_ranks(2, failing, os.path.join(work, "failing")), []))
    checks.run("Python: dcp.save() killed in each phase", killed, work)
    checks.run("Python: dcp.async_save() by threads", by_threads, work)
    checks.run("Python: dcp.async_save() by processes", by_processes, work)


if __name__ == "__main__":
    sys.path.insert(0, sys.argv[1])
    wrong = sum(c.run_ranks(2, background, sys.argv[2], "PROCESS"), [])
    print("\n".join(wrong))
    sys.exit(bool(wrong))
