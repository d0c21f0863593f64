#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Random models through `convert | reshard | reshard | export`, every checkpoint on the way read by the second reader,
and damaged ones.

usage: run.py BINARY [--count N] [--seed S] [--keep DIR]

Prints a line for each check that fails (with its seed, so that it can be run alone: --seed S --count 1), and "N passed,
N failed".
"""
import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile

import fsdpck_reader
import models

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

TYPES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64", "I32": "int32",
    "I16": "int16", "I8": "int8", "U64": "uint64", "U32": "uint32", "U16": "uint16", "U8": "uint8", "BOOL": "bool",
    "C64": "complex64", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz", "F8_E8M0": "float8_e8m0fnu", "F4": "float4_e2m1fn_x2"
}
MOST_SECONDS = 1800   # for one command: far more than any needs; a hang should fail, not stay


class Failed(Exception):
    pass


def want(ok, text):
    if not ok:
        raise Failed(text)


class Tool:
    def __init__(self, binary):
        self.binary = os.path.abspath(binary)

    def __call__(self, *args, code=0, cwd=None):
        """Runs one command and returns its output; it must end with this exit code."""
        command = [self.binary, *args]
        p = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=MOST_SECONDS, cwd=cwd)
        out, err = p.stdout.decode("utf-8", "replace"), p.stderr.decode("utf-8", "replace")
        codes = code if isinstance(code, tuple) else (code,)
        want(p.returncode in codes, f"{' '.join(args)!r} ended with {p.returncode}, wanted {code}\n{out}{err}")
        return p.returncode, out, err


def shape_in_index(t):
    """A packed F4 tensor's last dimension counts bytes in a checkpoint, elements in safetensors."""
    return list(t.shape[:-1]) + [t.shape[-1] // 2] if t.dtype == "F4" else list(t.shape)


def check_dir(dir, model):
    """What the second reader sees in DIR is MODEL, bit for bit."""
    reader = fsdpck_reader.Reader(dir)
    arrays, bad = reader.run()
    want(not bad, f"{dir}: " + "\n".join(bad))
    want(arrays.keys() == model.keys(), f"{dir}: tensors {sorted(arrays)}, wanted {sorted(model)}")
    for name, t in model.items():
        entry = reader.index["tensors"][name]
        entry = reader.index["tensors"][entry.get("alias_of", name)]
        got = (entry["dtype"], entry["shape"])
        want(got == (TYPES[t.dtype], shape_in_index(t)), f"{dir}: {name!r} is {got}, wanted {t.dtype} {t.shape}")
        want(arrays[name].tobytes() == t.data, f"{dir}: {name!r}: other bytes")


def compressed(rng, layout):
    return ["--compress"] if rng.random() < 0.5 and "always" not in layout else []


def round_trip(tool, rng, work):
    """One model through three layouts and back. Returns one of the checkpoints and the model, for damage()."""
    model = models.random_model(rng)
    at = models.write_model(rng, os.path.join(work, "source"), model)
    verb, dirs = "convert", []
    for i in range(3):
        out = os.path.join(work, f"ckpt{i}")
        layout = models.random_layout(rng, model)
        tool(verb, "-q", at, out, *layout, *compressed(rng, layout))
        check_dir(out, model)
        dirs.append(out)
        verb, at = "reshard", out
    tool("verify", "-q", at)
    one_file, options = models.random_export(rng)
    out = os.path.join(work, "back" + (".safetensors" if one_file else ""))
    tool("export", "-q", at, out, *options)
    back = models.read_model(out)
    want(back.keys() == model.keys(), f"export: tensors {sorted(back)}, wanted {sorted(model)}")
    for name, t in model.items():
        want(back[name] == t,
             f"export: {name!r} came back as {back[name].dtype} {back[name].shape}, or with other bytes")
    tool("diff", "-q", dirs[0], out)
    return rng.choice(dirs), model


def checkpoint_files(dir):
    return sorted(os.path.relpath(os.path.join(d, f), dir) for d, _, fs in os.walk(dir) for f in fs)


def damage(tool, rng, dir, model, work):
    """One byte of a good checkpoint differs, or a file ends early or is gone: verify, the second reader and export
    notice."""
    work = tempfile.mkdtemp(dir=work)
    hurt, back = os.path.join(work, "hurt"), os.path.join(work, "back.safetensors")
    shutil.copytree(dir, hurt)
    file = rng.choice(checkpoint_files(hurt))
    path = os.path.join(hurt, file)
    size = os.path.getsize(path)
    how = rng.choice(["flip"] * 6 + ["cut", "gone"]) if file != "index.json" else "flip"
    if how == "gone":
        os.unlink(path)
    elif how == "cut":
        os.truncate(path, rng.randrange(size))
    else:
        at = rng.randrange(size)
        with open(path, "r+b") as f:
            f.seek(at)
            old = f.read(1)[0]
            f.seek(at)
            f.write(bytes([old ^ 1 << rng.randrange(8)]))
        how += f" at {at} of {size}"
    what = f"{file}: {how}"
    want(fsdpck_reader.read(hurt)[1], f"{what}: the second reader saw nothing")
    _, out, err = tool("verify", "-q", hurt, code=1)
    want(os.path.basename(file) in out + err, f"{what}: verify does not name the file: {out}{err}")
    # Export need not read .metadata and what is around the payloads; then what it writes must be right.
    code, _, _ = tool("export", "-q", hurt, back, code=(0, 3))
    if code == 0:
        want(models.read_model(back) == model, f"{what}: export wrote something else and was content")
    else:
        want(not os.path.exists(back), f"{what}: export refused it and left a file")


# --- other kinds of checkpoint: tied names, what PyTorch carried along, files under names of their own

def tied_model(tool, rng, work):
    """A Hugging Face folder with tied embeddings, its assets, and damage to it."""
    source, dir = os.path.join(TOP, "fixtures", "tiny-llama-tied"), os.path.join(work, "ckpt")
    model = models.read_model(source)
    model["lm_head.weight"] = model["model.embed_tokens.weight"]
    tool("convert", "-q", source, dir, "--mesh", "replicate=2,shard=2")
    check_dir(dir, model)
    want("config.json" in os.listdir(os.path.join(dir, "assets")), f"{dir}: config.json did not travel")
    del model["lm_head.weight"]   # exported once: config.json says that it is tied
    for _ in range(8):
        damage(tool, rng, dir, model, work)


def written_inside(tool, rng, work):
    """OUT is the directory that one stands in: it cannot be renamed, so the files carry the save id."""
    dir = os.path.join(work, "here")
    os.mkdir(dir)
    source = os.path.join(TOP, "fixtures", "tiny-llama-tied")
    tool("convert", "-q", source, ".", "--ranks", "3", cwd=dir)
    model = models.read_model(source)
    model["lm_head.weight"] = model["model.embed_tokens.weight"]
    check_dir(dir, model)


def from_pytorch(version, *options):
    """Nested names and values that are no tensors."""
    def run(tool, rng, work):
        source, dir = os.path.join(TOP, "fixtures", "dcp", f"torch-{version}"), os.path.join(work, "ckpt")
        with open(os.path.join(source, "REF.json"), encoding="utf-8") as f:
            truth = json.load(f)
        tool("reshard", "-q", os.path.join(source, "ckpt"), dir, "--ranks", "2", *options)
        reader = fsdpck_reader.Reader(dir)
        arrays, bad = reader.run()
        want(not bad, "\n".join(bad))
        want(arrays.keys() == truth["tensors"].keys(), f"tensors {sorted(arrays)}")
        want(reader.index["items"].keys() == truth["items"].keys(), f"items {sorted(reader.index['items'])}")
        for name, t in truth["tensors"].items():
            want(list(arrays[name].shape) == t["shape"], f"{name}: shape {arrays[name].shape}")
            if t["dtype"] == "float32":
                want(arrays[name].ravel().tolist() == t["values"], f"{name}: other values")
        want(reader.index["tensors"]["model.embed.weight"]["path"] == ["model", "embed.weight"],
             "path of model.embed.weight")
    return run


def with_base(tool, rng, work):
    """A checkpoint of adapters, elsewhere: its way to the base is another, its tensors are the same."""
    source, dir, deep = (
        os.path.join(TOP, "fixtures", "lora-run"),
        os.path.join(work, "first"),
        os.path.join(work, "a", "b"),
    )
    want(not fsdpck_reader.read(source)[1], "the fixture: " + "\n".join(fsdpck_reader.read(source)[1]))
    truth = fsdpck_reader.read(source)[0]
    tool("reshard", "-q", source, dir, "--ranks", "3")
    tool("convert", "-q", dir, deep, "--ranks", "2", "--compress")
    for one in (dir, deep):
        reader = fsdpck_reader.Reader(one)
        arrays, bad = reader.run()
        want(not bad, f"{one}: " + "\n".join(bad))
        there = os.path.realpath(os.path.join(os.path.realpath(one), reader.index["base"]["path"]))
        want(there == os.path.realpath(os.path.join(TOP, "fixtures", "tiny-llama-tied")), f"the base is at {there}")
        want(all(arrays[k].tobytes() == v.tobytes() for k, v in truth.items()), f"{one}: other bytes")


SPECIAL = [("tied model", tied_model), ("written inside its directory", written_inside), ("with a base", with_base)] + \
          [(f"from PyTorch {v}", from_pytorch(v)) for v in ("2.4", "2.6", "2.15", "2.15-python-3.11.2")] + \
          [("from PyTorch, compressed", from_pytorch("2.15", "--compress"))]


def random_case(tool, rng, work):
    dir, model = round_trip(tool, rng, work)
    damage(tool, rng, dir, model, work)


def run_one(tool, title, case, seed, keep):
    """None, or what failed."""
    work = keep or tempfile.mkdtemp(prefix="fsdpck-reader-")
    try:
        case(tool, random.Random(seed), work)
        return None
    except (Failed, OSError, ValueError, KeyError, subprocess.TimeoutExpired) as e:
        return f"{title}: {e}"
    finally:
        if not keep:
            shutil.rmtree(work, ignore_errors=True)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("binary", help="the fsdpck to test")
    ap.add_argument("--count", type=int, default=40, help="models (40)")
    ap.add_argument("--seed", type=int,
                    help="of the first model (1), the others follow; with it, only random models are run")
    ap.add_argument("--keep", metavar="DIR", help="work in this new folder and leave everything there; with --count 1")
    a = ap.parse_args()
    if a.keep:
        os.makedirs(a.keep)
    tool, first = Tool(a.binary), 1 if a.seed is None else a.seed
    cases = [] if a.seed is not None else [(title, case, 0) for title, case in SPECIAL]
    cases += [(f"seed {seed}", random_case, seed) for seed in range(first, first + a.count)]
    nfailed = 0
    for title, case, seed in cases:
        bad = run_one(tool, title, case, seed, a.keep)
        if bad:
            nfailed += 1
            print("FAIL " + bad, flush=True)
    print(f"{len(cases) - nfailed} passed, {nfailed} failed")
    return bool(nfailed)


if __name__ == "__main__":
    sys.exit(main())
