# SPDX-License-Identifier: Apache-2.0
"""fsdpck export --dequantize against the libraries that write quantized weights: models of random shapes, made by
make_quant.py, dequantized by both, compared bit for bit, through one folder and through shards of any number of
ranks."""

import importlib.util, json, pathlib, random, shutil, subprocess

import ckpt_common as c
import make_quant

# What every form needs of a matrix's columns.
MULTIPLE = {
    "mxfp8-ct": 32,
    "mxfp8-modelopt": 32,
    "mxfp4-gptoss": 32,
    "mxfp4-ct": 32,
    "nvfp4-ct": 16,
    "nvfp4-modelopt": 16,
    "int4-ct": 32,
    "awq-int4": 32,
    "bnb-int8": 16,
    "fp8-block-ue8m0": 32,
}


def shape(name, rng):
    """Sizes of a model's matrices: ragged for the forms that allow it."""
    m = MULTIPLE.get(name, 2)
    pick = lambda: m * rng.randrange(-(-32 // m), 400 // m)
    return (
        {"hidden_size": pick(), "intermediate_size": pick()}
        if name != "mxfp4-gptoss"
        else {"hidden_size": pick(), "intermediate_size": pick(), "num_local_experts": rng.randrange(1, 5)}
    )


def read_all(folder):
    out = {}
    for f in folder.glob("*.safetensors"):
        out.update(c.read_ref(f))
    return out


def compare(name, ref, folder):
    got = read_all(folder)
    bad = [f"{k}: missing" for k in ref.keys() - got.keys()] + [f"{k}: not wanted" for k in got.keys() - ref.keys()]
    bad += [d for k in ref.keys() & got.keys() if (d := c.compare(k, got[k], ref[k]))]
    conf = json.loads((folder / "config.json").read_text())
    return [f"{name}: {b}" for b in bad] + (
        [f"{name}: config.json still says quantization_config"] if "quantization_config" in conf else []
    )


def check(fsdpck, work, name, seed, exact):
    """One model of a form. exact: the library's own code allows only whole blocks of a certain size."""
    rng = random.Random(f"{name} {seed}")
    work = pathlib.Path(work)
    shutil.rmtree(work, ignore_errors=True)
    change = {} if exact else shape(name, rng)
    make_quant.make(work, name, seed, change=change or None)
    case, target = work / name, "fp16" if name.startswith("awq") else "bf16"
    ref = c.read_ref(case / "REF.safetensors")
    run = lambda *words: subprocess.run([fsdpck, *map(str, words), "-q"], check=True, stdout=subprocess.DEVNULL)
    run("export", case / "model", work / "out", "--dequantize", target)
    run("convert", case / "model", work / "shards", "--ranks", rng.randrange(1, 6))  # codes and scales, cut anywhere
    run("export", work / "shards", work / "again", "--dequantize", target)
    run("convert", case / "model", work / "plain", "--ranks", rng.randrange(1, 6), "--dequantize", target)
    run("export", work / "plain", work / "third")
    return [b for folder in ("out", "again", "third") for b in compare(f"{name} {change} {folder}", ref, work / folder)]


def check_all(checks, fsdpck, work, quick):
    """Forms whose reference takes whole blocks only (transformers' block FP8 with powers of two) keep their shape.
    AWQ is tried where AutoAWQ is installed; it is not among the requirements."""
    for name in make_quant.CASES:
        if name.startswith("awq") and not importlib.util.find_spec("awq"):
            continue
        for seed in range(1 if quick else 4):
            checks.run(f"dequantize {name}, model {seed}", check, fsdpck, work, name, seed, name == "fp8-block-ue8m0")
