#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tiny quantized models, one folder a case: the checkpoint as its tool writes it, and REF.safetensors, the
weights as that tool's own code dequantizes them.

OUT/source/ is the BF16 model that every case was quantized from: CASE/model/ is what quantizing it must give.
CASE/case.json says which library made it, in which dtype it multiplies, and which tensors stay as they are.
--few keeps three tensors."""

import argparse, pathlib, shutil

import torch

import ckpt_common as c
import quant_source
from make_smollm2 import write_json
from quant_forms import case_awq, case_bnb, case_ct, case_fp8_block, case_gpt_oss, case_modelopt
from quant_source import CONFIG, FP8, RAGGED, gpt_oss_source, kept, save_model, source_config, source_weights

# ---------------------------------------------------------------- the cases
def with_(fn, *args, **kwargs):
    """A form with these settings: a function of the source, its config and the folder."""
    return lambda source, config, folder: fn(source, config, folder, *args, **kwargs)


def ct(args, fmt, note):
    return with_(case_ct, {"type": "float", "symmetric": True, **args}, fmt, note=note)


CASES = {  # name: what it pins, how
    "fp8-block": (
        "block FP8 as DeepSeek-V3 and Qwen3-FP8: 128 x 128 blocks, matrices that are no multiple of it, scales in the "
        "other file",
        with_(case_fp8_block),
    ),
    "fp8-block-ue8m0": (
        "block FP8 with power-of-two scales stored as F8_E8M0 (scale_fmt ue8m0), blocks of 16 x 32, one Linear not "
        "quantized",
        with_(case_fp8_block, (16, 32), "ue8m0", ("o_proj",), 1),
    ),
    "fp8-tensor": (
        "compressed-tensors float-quantized, one scale a tensor",
        ct({"num_bits": 8, "strategy": "tensor"}, "float-quantized", "bfloat16(weight) * bfloat16 scale, in bfloat16"),
    ),
    "fp8-channel": (
        "compressed-tensors float-quantized, one scale a row, [rows, 1] bfloat16",
        ct({"num_bits": 8, "strategy": "channel"}, "float-quantized", "bfloat16(weight) * bfloat16 scale, in bfloat16"),
    ),
    "fp8-block-ct": (
        "compressed-tensors float-quantized, blocks of 32 x 32 and partial ones at the edges; the name is weight_scale",
        ct(
            {"num_bits": 8, "strategy": "block", "block_structure": [32, 32]},
            "float-quantized",
            "bfloat16(weight) * bfloat16 scale of its block, in bfloat16",
        ),
    ),
    "mxfp8-ct": (
        "compressed-tensors mxfp8-quantized: groups of 32, uint8 exponents",
        ct(
            {"num_bits": 8, "strategy": "group", "group_size": 32, "scale_dtype": torch.uint8},
            "mxfp8-quantized",
            "value * 2^(byte - 127), exact in bfloat16",
        ),
    ),
    "mxfp8-modelopt": (
        "modelopt MXFP8: the same stored form, another rule for the exponent (ceil)",
        with_(case_modelopt, "MXFP8"),
    ),
    "fp8-modelopt": ("modelopt FP8: scalar fp32 weight_scale", with_(case_modelopt, "FP8")),
    "mxfp4-gptoss": ("gpt-oss: blocks and scales of fused experts, transposed in memory", None),
    "mxfp4-ct": (
        "compressed-tensors mxfp4-pack-quantized",
        ct(
            {"num_bits": 4, "strategy": "group", "group_size": 32, "scale_dtype": torch.uint8},
            "mxfp4-pack-quantized",
            "E2M1 * 2^(byte - 127), exact in bfloat16",
        ),
    ),
    "nvfp4-ct": (
        "compressed-tensors nvfp4-pack-quantized: the global scale DIVIDES",
        ct(
            {"num_bits": 4, "strategy": "tensor_group", "group_size": 16, "scale_dtype": FP8},
            "nvfp4-pack-quantized",
            "fp32(scale) / weight_global_scale in fp32, times the value in fp32, rounded to bfloat16",
        ),
    ),
    "nvfp4-modelopt": ("modelopt NVFP4: weight_scale_2 MULTIPLIES", with_(case_modelopt, "NVFP4")),
    "int4-ct": (
        "compressed-tensors pack-quantized, 4 bits with zero points in groups of 32",
        with_(
            case_ct,
            {"num_bits": 4, "type": "int", "symmetric": False, "strategy": "group", "group_size": 32},
            "pack-quantized",
            note="(value - zero) * scale in fp32 (the scales are fp32 here), rounded to bfloat16",
        ),
    ),
    "bnb-nf4": ("bitsandbytes NF4, blocks of 64 values of the flattened matrix", with_(case_bnb, "nf4")),
    "bnb-nf4-double": ("bitsandbytes NF4 with quantized absmax", with_(case_bnb, "nf4", True)),
    "bnb-fp4": ("bitsandbytes FP4", with_(case_bnb, "fp4")),
    "bnb-int8": ("bitsandbytes LLM.int8: a scale a row (SCB)", with_(case_bnb, "int8")),
    "awq-int4": ("AutoAWQ gemm: int32 words along out, interleaved order; float16", with_(case_awq)),
}


def make(out, name, seed=7, case=None, change=None):
    about, fn = case or CASES[name]
    folder = out / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if fn is None:
        src, conf = gpt_oss_source(seed, **(change or {}))
        fn = case_gpt_oss
    else:
        conf = source_config(**(RAGGED if name == "fp8-block" and change is None else change or {}))
        src = source_weights(conf, seed)
    label = (
        "source"
        if conf["model_type"] == "qwen3" and conf["hidden_size"] == CONFIG["hidden_size"] and change is None
        else f"source-{name}"
    )
    if label != "source" or not (out / label).exists():
        shutil.rmtree(out / label, ignore_errors=True)
        save_model(out / label, src, conf, 1)
    ref, by, rule = fn(src, conf, folder)
    ref = kept(ref)
    c.write_ref(folder / "REF.safetensors", ref)
    stored = sorted(n for n in ref if n in src and torch.equal(ref[n].float(), src[n].float()))
    write_json(
        folder / "case.json",
        {
            "about": about,
            "source": label,
            "dequantized_by": by,
            "rule": rule,
            "not_quantized": stored,
            "versions": versions(),
        },
    )
    size = sum(f.stat().st_size for f in folder.rglob("*") if f.is_file())
    print(f"{folder}: {len(ref)} tensors, {size} bytes")


def versions():
    from importlib.metadata import PackageNotFoundError, version

    out = {}
    for p in ("torch", "transformers", "compressed-tensors", "bitsandbytes", "nvidia-modelopt", "autoawq"):
        try:
            out[p] = version(p)
        except PackageNotFoundError:
            pass
    return out


def main():
    ap = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, epilog="cases: " + ", ".join(CASES)
    )
    ap.add_argument("out", type=pathlib.Path)
    ap.add_argument("case", nargs="*", help="cases to make (default: all)")
    ap.add_argument("--seed", type=int, default=7)
    ap.add_argument("--few", action="store_true", help="keep only three tensors of each model")
    a = ap.parse_args()
    quant_source.few = a.few
    a.out.mkdir(parents=True, exist_ok=True)
    for name in a.case or CASES:
        make(a.out, name, a.seed)


if __name__ == "__main__":
    main()
