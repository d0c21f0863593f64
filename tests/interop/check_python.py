# SPDX-License-Identifier: Apache-2.0
"""The Python package with PyTorch: slices against safetensors' own, saves that torch.distributed.checkpoint loads, and
the sessions of docs/python.md."""
import os, random, subprocess, sys

import check_python_dcp, check_python_examples, check_python_model, check_python_state, check_python_writer
import ckpt_common as c
import torch
import torch.distributed.checkpoint as dcp
from safetensors import safe_open

HERE = os.path.dirname(os.path.abspath(__file__))
TOP = os.path.dirname(os.path.dirname(HERE))


def tensors():
    """Every dtype of torch that safetensors has, in awkward shapes."""
    generator = torch.Generator().manual_seed(3)
    out = {}
    for i, dtype in enumerate(c.ST):
        shape = [(), (17, ), (5, 7), (3, 4, 6)][i % 4]
        nbytes = dtype.itemsize
        for n in shape:
            nbytes *= n
        bits = torch.randint(0, 2 if dtype == torch.bool else 256, (nbytes, ), dtype=torch.uint8, generator=generator)
        out["t.%s" % c.dtype_name(dtype)] = bits.view(dtype).reshape(shape)
    return out


def same(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and c.raw_bytes(a) == c.raw_bytes(b)


def index(rng, shape):
    """An index that safetensors takes too: its steps are positive."""
    out = []
    for n in shape:
        if rng.random() < 0.3:
            out.append(rng.randrange(-n, n))
        else:
            out.append(slice(rng.choice([None, rng.randint(-n, n)]), rng.choice([None, rng.randint(-n, n)])))
    return tuple(out[:rng.randint(1, len(out))]) if rng.random() < 0.5 else tuple(out)


def slices(fsdpck, work):
    path, rng, bad = os.path.join(work, "python.safetensors"), random.Random(4), []
    c.write_ref(path, tensors())
    with fsdpck.open(path, "pytorch") as ours, safe_open(path, "pytorch") as theirs:
        if set(ours.keys()) != set(theirs.keys()):
            return ["keys() differ"]
        got, want = ours.get_tensors(), {name: theirs.get_tensor(name) for name in theirs.keys()}
        bad += ["get_tensors(): " + name for name in want if not same(got[name], want[name])]
        for name in theirs.keys():
            if not same(ours.get_tensor(name), theirs.get_tensor(name)):
                bad.append(name)
            a, b = ours.get_slice(name), theirs.get_slice(name)
            if (a.get_shape(), a.get_dtype()) != (b.get_shape(), b.get_dtype()):
                bad.append("%s: %s %s" % (name, a.get_shape(), a.get_dtype()))
            for _ in range(20 if a.get_shape() else 0):
                i = index(rng, a.get_shape())
                if not same(a[i], b[i]):
                    bad.append("%s%s" % (name, list(i)))
            for step in (-1, -2) if a.get_shape() else ():  # which PyTorch's own slices lack
                if not same(a[::step], torch.stack([want[name][i] for i in range(a.get_shape()[0])[::step]])):
                    bad.append("%s[::%d]" % (name, step))
    return bad


def out_memory(fsdpck, work):
    """Into a part of a tensor that requires gradients, and backwards."""
    path, want = os.path.join(work, "python.safetensors"), torch.arange(35.0).reshape(5, 7)
    c.write_ref(path, {"t": want})
    with fsdpck.open(path, "pt") as source:
        out = torch.zeros(want.shape[0], 2 * want.shape[1], requires_grad=True)
        source["t"].torch(out=out.data[:, ::2])
        turned = source["t"].torch((slice(None, None, -2), ...))
    return [w for w, ok in (("strided out", same(out.data[:, ::2], want) and not out.data[:, 1::2].any()),
                            ("negative step", same(turned, want.flip(0)[::2]))) if not ok]


def saving(fsdpck, work):
    """Saved here, loaded by torch; nested, tied, strided, and on a leaf that requires gradients."""
    path, want = os.path.join(work, "python-saved"), tensors()
    want["turned"] = torch.arange(12.0).reshape(3, 4).T
    want["grad"] = torch.ones(3, 2, requires_grad=True)
    fsdpck.save({"model": want, "tied": want["turned"]}, path)
    got = {"model": {n: torch.zeros_like(t) for n, t in want.items()}}
    dcp.load(got, checkpoint_id=path, no_dist=True)
    return [n for n, t in want.items() if not same(got["model"][n], t)]


def page(binary):
    env = dict(os.environ, FSDPCK_FIXTURES=os.path.join(TOP, "fixtures"), PYTHONPATH=package(binary))
    run = subprocess.run([sys.executable, os.path.join(TOP, "tests", "python", "test_page.py"), "--torch"], env=env,
                         capture_output=True, text=True)
    return (run.stdout + run.stderr).splitlines() or ["exit code %d" % run.returncode] if run.returncode else []


def package(binary):
    return os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(binary)))), "python")


def check_all(checks, tool, work):
    binary = tool.binary
    if not os.path.exists(os.path.join(package(binary), "fsdpck", "_native.abi3.so")):
        print("skipped: the Python package: it is not built (python3-dev, python3-cffi)")
        return
    sys.path.insert(0, package(binary))
    import fsdpck
    os.makedirs(work, exist_ok=True)
    checks.run("Python: slices as safetensors gives them", slices, fsdpck, work)
    checks.run("Python: slices into memory of the caller", out_memory, fsdpck, work)
    checks.run("Python: save(), loaded by torch", saving, fsdpck, work)
    check_python_dcp.check_all(checks, tool, work)
    check_python_writer.check_all(checks, tool, work)
    check_python_model.check_all(checks, work, TOP)
    check_python_state.check_all(checks, os.path.join(work, "state"))
    check_python_examples.check_all(checks, os.path.join(work, "examples"), package(binary))
    checks.run("Python: the sessions of docs/python.md", page, binary)
