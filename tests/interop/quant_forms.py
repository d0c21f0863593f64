# SPDX-License-Identifier: Apache-2.0
"""One function a form of quantized weights: it quantizes a model with the library whose form that is, saves it, and
returns the weights that the library's own code makes of it."""

import json, math

import torch

import ckpt_common as c
from make_smollm2 import write_json
from quant_source import FP8, kept, linears, save_model


# ---------------------------------------------------------------- block FP8 (DeepSeek, Qwen3-FP8)
def block_fp8(w, block, fmt):
    """weight and weight_scale_inv; partial blocks at the edges have a scale of their own. The arithmetic is that of
    transformers' Fp8Quantize, which itself passes partial blocks by unquantized: so the matrix is padded with zeros
    for it and cut again."""
    from types import SimpleNamespace
    from transformers.integrations.finegrained_fp8 import Fp8Quantize

    rows, cols = w.shape
    bm, bn = block
    padded = torch.zeros(math.ceil(rows / bm) * bm, math.ceil(cols / bn) * bn, dtype=w.dtype)
    padded[:rows, :cols] = w
    conf = SimpleNamespace(weight_block_size=list(block), scale_fmt=fmt)
    got = Fp8Quantize(SimpleNamespace(quantization_config=conf))._quantize_one("w.weight", padded)
    return got["w.weight"][:rows, :cols].contiguous(), got["w.weight_scale_inv"].contiguous()


def torch_reader(folder, names, dtype, block):
    """The block-FP8 and MXFP4 reader of torch.distributed.checkpoint on a real folder: {name: tensor}."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.quantized_hf_storage import QuantizedHuggingFaceStorageReader

    state = {n: torch.zeros(shape, dtype=dtype) for n, shape in names.items()}
    dcp.load(
        state,
        storage_reader=QuantizedHuggingFaceStorageReader(str(folder), target_dtype=dtype, block_size=block),
        no_dist=True,
    )
    return state


def case_fp8_block(src, conf, out, block=(128, 128), fmt="float", ignore=(), shards=2, scale_name="weight_scale_inv"):
    tensors, ref, quantized = {}, dict(src), linears(src, ignore)
    late = {}
    for n, w in src.items():
        if n not in quantized:
            tensors[n] = w
            continue
        q, s = block_fp8(w, block, fmt)
        tensors[n] = q
        late[n.removesuffix("weight") + scale_name] = (
            s  # after the weights: with two files, scales lie in the other file
        )
    tensors.update(late)
    qc = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": list(block)}
    if fmt == "ue8m0":
        qc["scale_fmt"] = "ue8m0"
    if ignore:
        qc["modules_to_not_convert"] = ["lm_head"] + [
            n.removesuffix(".weight") for n in src if any(i in n for i in ignore) and src[n].ndim == 2
        ]
    save_model(out / "model", tensors, {**conf, "quantization_config": qc}, shards)
    names = {n: tuple(src[n].shape) for n in kept({n: None for n in quantized})}
    if fmt == "float" and block[0] == block[1] and scale_name == "weight_scale_inv":
        ref.update(torch_reader(out / "model", names, torch.bfloat16, block[0]))
        by = "torch.distributed.checkpoint QuantizedHuggingFaceStorageReader, target_dtype bfloat16"
    else:  # transformers' own, which needs whole blocks
        from transformers.integrations.finegrained_fp8 import Fp8Dequantize

        ref.update(
            {
                n: Fp8Dequantize(None)._dequantize_one(
                    tensors[n], late[n.removesuffix("weight") + scale_name], torch.bfloat16
                )
                for n in names
            }
        )
        by = "transformers Fp8Dequantize, output bfloat16"
    return ref, by, "fp32(weight) * fp32(scale of its block), rounded once to bfloat16"


# ---------------------------------------------------------------- compressed-tensors
def ct_quantize(w, args, fmt):
    """{suffix: tensor} of one Linear as compressed-tensors writes it, and its own dequantized weight.
    Scales by its min-max rule."""
    from compressed_tensors.compressors.base import BaseCompressor
    from compressed_tensors.quantization import QuantizationScheme
    from compressed_tensors.quantization.utils.helpers import calculate_qparams, generate_gparam

    scheme = QuantizationScheme(targets=["Linear"], weights=args, format=fmt)
    strategy, glob = str(getattr(args.strategy, "value", args.strategy)), None
    x = w.float()  # scales and division in fp32, as its GPU kernels divide
    if strategy == "tensor":
        lo, hi = torch.aminmax(x)
    elif strategy == "channel":
        lo, hi = x.amin(1, keepdim=True), x.amax(1, keepdim=True)
    elif strategy == "block":
        bm, bn = args.block_structure
        p = torch.nn.functional.pad(x, (0, -x.shape[1] % bn, 0, -x.shape[0] % bm))
        p = p.reshape(p.shape[0] // bm, bm, p.shape[1] // bn, bn)
        lo, hi = p.amin((1, 3)), p.amax((1, 3))
    else:
        g = x.unflatten(1, (-1, args.group_size))
        lo, hi = g.amin(-1), g.amax(-1)
        if strategy == "tensor_group":
            glob = generate_gparam(x.min(), x.max())
    scale, zero = calculate_qparams(lo, hi, args, global_scale=glob)
    if strategy == "tensor":
        scale, zero = scale.reshape(1), zero.reshape(1)
    state = {"weight": x, "weight_scale": scale}
    if glob is not None:
        state["weight_global_scale"] = glob
    if not args.symmetric:
        state["weight_zero_point"] = zero
    comp = BaseCompressor.get_value_from_registry(fmt)
    state = comp.compress(state, scheme)
    if (
        args.type == "float"
        and args.num_bits == 8
        and state["weight_scale"].dtype == torch.float32
        and strategy != "group"
    ):
        state["weight_scale"] = state["weight_scale"].to(
            torch.bfloat16
        )  # the published ones are stored in the model's dtype
        state["weight"] = (x / expand(state["weight_scale"].float(), x.shape, args)).clamp(-448, 448).to(FP8)
    back = comp.decompress({k: v.clone() for k, v in state.items()}, scheme)["weight"]
    return state, back


def expand(scale, shape, args):
    if getattr(args.strategy, "value", args.strategy) != "block":
        return scale if scale.numel() > 1 else scale.reshape(())
    bm, bn = args.block_structure
    return scale.repeat_interleave(bm, 0)[: shape[0]].repeat_interleave(bn, 1)[:, : shape[1]]


def case_ct(src, conf, out, args, fmt, ignore=("o_proj",), note="", shards=1):
    from compressed_tensors.quantization import QuantizationArgs

    qa = QuantizationArgs(**args)
    tensors, ref, quantized = {}, dict(src), linears(src, ignore)
    for n, w in src.items():
        if n not in quantized:
            tensors[n] = w
            continue
        state, back = ct_quantize(w, qa, fmt)
        tensors.update({n.removesuffix("weight") + k: v.contiguous() for k, v in state.items() if v is not None})
        ref[n] = back.to(torch.bfloat16).contiguous()
    weights = json.loads(qa.model_dump_json())
    qc = {
        "quant_method": "compressed-tensors",
        "format": fmt,
        "quantization_status": "compressed",
        "global_compression_ratio": None,
        "ignore": ["lm_head"]
        + [n.removesuffix(".weight") for n in src if any(i in n for i in ignore) and src[n].ndim == 2],
        "kv_cache_scheme": None,
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": weights,
                "input_activations": None,
                "output_activations": None,
                "format": fmt,
            }
        },
    }
    save_model(out / "model", tensors, {**conf, "quantization_config": qc}, shards)
    return ref, f"compressed_tensors {fmt} decompress", note


# ---------------------------------------------------------------- modelopt
def case_modelopt(src, conf, out, algo, ignore=("o_proj",)):
    from modelopt.torch.quantization.qtensor.mxfp8_tensor import MXFP8QTensor
    from modelopt.torch.quantization.qtensor.nvfp4_tensor import NVFP4QTensor

    tensors, ref, quantized = {}, dict(src), linears(src, ignore)
    for n, w in src.items():
        if n not in quantized:
            tensors[n] = w
        elif algo == "NVFP4":
            q, scale, scale2 = NVFP4QTensor.quantize(w.float().clone(), 16)
            tensors.update({n: q._quantized_data, n + "_scale": scale, n + "_scale_2": scale2.reshape(())})
            ref[n] = q.dequantize(torch.bfloat16, scale=scale, double_scale=scale2, block_sizes={-1: 16}).contiguous()
        elif algo == "MXFP8":
            q, scale = MXFP8QTensor.quantize(w.clone())
            tensors.update({n: q._quantized_data, n + "_scale": scale})
            ref[n] = q.dequantize(torch.bfloat16, scale=scale).contiguous()
        else:  # FP8: one scale a tensor
            scale = w.float().abs().amax() / 448.0
            tensors.update({n: (w.float() / scale).clamp(-448, 448).to(FP8), n + "_scale": scale.reshape(())})
            ref[n] = (tensors[n].float() * scale).to(torch.bfloat16)
    size = {"NVFP4": 16, "MXFP8": 32}.get(algo)
    weights = {
        "dynamic": False,
        "num_bits": 4 if algo == "NVFP4" else 8,
        "type": "float",
        **({"group_size": size} if size else {}),
    }
    skip = ["lm_head"] + [n.removesuffix(".weight") for n in src if any(i in n for i in ignore) and src[n].ndim == 2]
    producer = {"name": "modelopt", "version": "0.47.0"}
    qc = {
        "config_groups": {"group_0": {"input_activations": None, "weights": weights, "targets": ["Linear"]}},
        "ignore": skip,
        "quant_algo": algo,
        "producer": producer,
        "quant_method": "modelopt",
    }
    save_model(out / "model", tensors, {**conf, "quantization_config": qc}, 1)
    write_json(
        out / "model" / "hf_quant_config.json",
        {
            "producer": producer,
            "quantization": {
                "quant_algo": algo,
                "kv_cache_quant_algo": None,
                **({"group_size": size} if size else {}),
                "exclude_modules": skip,
            },
        },
    )
    rule = {
        "NVFP4": "values are bfloat16; fp32(weight_scale) * weight_scale_2 in fp32, then the product with the "
        "value rounded to bfloat16",
        "MXFP8": "fp32(weight) * 2^(byte - 127), rounded to bfloat16",
        "FP8": "fp32(weight) * weight_scale, rounded to bfloat16",
    }[algo]
    return (
        ref,
        "modelopt QTensor dequantize" if algo != "FP8" else "the formula (modelopt keeps no code of its own for it)",
        rule,
    )


# ---------------------------------------------------------------- bitsandbytes
def bnb_dequantize(q, state):
    """Through the code that bitsandbytes runs on any device. Its native one for CPUs (0.50.2) is wrong
    where the columns are no multiple of the block."""
    import bitsandbytes.functional as F
    from bitsandbytes.backends.default import ops

    absmax = F.dequantize_blockwise(state.absmax, state.state2) + state.offset if state.nested else state.absmax
    fn = getattr(ops._dequantize_4bit_compute, "__wrapped__", ops._dequantize_4bit_compute)
    return (
        fn(q.view(torch.uint8).reshape(-1), absmax, state.code, state.blocksize, state.shape, state.dtype)
        .reshape(state.shape)
        .contiguous()
    )


def case_bnb(src, conf, out, kind, double=False, block=64, ignore=("o_proj",), storage=torch.uint8):
    import bitsandbytes.functional as F

    tensors, ref, quantized = {}, dict(src), linears(src, ignore)
    for n, w in src.items():
        if n not in quantized:
            tensors[n] = w
        elif kind == "int8":
            q, scb, _ = F.int8_vectorwise_quant(w.to(torch.float16))
            base = n.removesuffix("weight")
            tensors.update({n: q, base + "SCB": scb, base + "weight_format": torch.tensor(0, dtype=torch.uint8)})
            ref[n] = (q.float() * (scb.view(-1, 1) * (1.0 / 127.0))).to(torch.bfloat16)
        else:
            q, state = F.quantize_4bit(
                w, blocksize=block, quant_type=kind, compress_statistics=double, quant_storage=storage
            )
            tensors[n] = q
            tensors.update({f"{n}.{k}": v for k, v in state.as_dict(packed=True).items()})
            ref[n] = bnb_dequantize(q, state)
    qc = {
        "quant_method": "bitsandbytes",
        "_load_in_4bit": kind != "int8",
        "_load_in_8bit": kind == "int8",
        "load_in_4bit": kind != "int8",
        "load_in_8bit": kind == "int8",
        "bnb_4bit_compute_dtype": "bfloat16",
        "bnb_4bit_quant_storage": c.dtype_name(storage),
        "bnb_4bit_quant_type": "fp4" if kind == "int8" else kind,
        "bnb_4bit_use_double_quant": double,
        "llm_int8_enable_fp32_cpu_offload": False,
        "llm_int8_has_fp16_weight": False,
        "llm_int8_threshold": 6.0,
        "llm_int8_skip_modules": ["lm_head"]
        + [n.removesuffix(".weight") for n in src if any(i in n for i in ignore) and src[n].ndim == 2],
    }
    save_model(out / "model", tensors, {**conf, "quantization_config": qc}, 1)
    rule = "code[nibble] * absmax in fp32, rounded to bfloat16; the high nibble is the first value"
    if double:
        rule += "; absmax = nested_quant_map[byte] * nested_absmax + nested_offset in fp32"
    return (
        ref,
        (
            "bitsandbytes.backends.default (not its native CPU code)"
            if kind != "int8"
            else "the formula of int8_vectorwise_dequant"
        ),
        rule,
    )


# ---------------------------------------------------------------- 4-bit integers: AWQ
def case_awq(src, conf, out, group=32, ignore=("o_proj",)):
    """Rounds to nearest; packs in AutoAWQ's order; REF by AutoAWQ's dequantize_gemm."""
    awq = one_file("awq", "utils/packing_utils.py")
    order, dequantize_gemm = awq.AWQ_ORDER, awq.dequantize_gemm
    tensors, ref, quantized = {}, {n: w.to(torch.float16) for n, w in src.items()}, linears(src, ignore)
    shifts = torch.arange(8, dtype=torch.int64) * 4

    def pack(m):  # [rows, cols] of 0..15 -> int32 [rows, cols / 8]
        m = m.to(torch.int64).reshape(m.shape[0], -1, 8)[:, :, order]
        word = (m << shifts).sum(-1)
        return torch.where(word >= 1 << 31, word - (1 << 32), word).to(torch.int32)

    for n, w in src.items():
        if n not in quantized:
            tensors[n] = w.to(torch.float16)
            continue
        t = w.float().t().reshape(-1, group, w.shape[0])  # [in / group, group, out]
        hi, lo = t.amax(1).clamp(min=0), t.amin(1).clamp(max=0)
        scale = ((hi - lo).clamp(min=1e-5) / 15).to(torch.float16)
        zero = (-lo / scale.float()).round().clamp(0, 15)
        q = (t / scale.float()[:, None] + zero[:, None]).round().clamp(0, 15).reshape(w.shape[1], w.shape[0])
        base = n.removesuffix("weight")
        tensors.update({base + "qweight": pack(q), base + "qzeros": pack(zero), base + "scales": scale})
        ref[n] = dequantize_gemm(tensors[base + "qweight"], tensors[base + "qzeros"], scale, 4, group).t().contiguous()
    qc = {
        "quant_method": "awq",
        "bits": 4,
        "group_size": group,
        "zero_point": True,
        "version": "gemm",
        "modules_to_not_convert": ["o_proj"],
    }
    save_model(out / "model", tensors, {**conf, "torch_dtype": "float16", "quantization_config": qc}, 1)
    return ref, "AutoAWQ dequantize_gemm, transposed back", "(value - zero) * scale in float16"


def one_file(package, path):
    """A module of a package without what the package's __init__ imports."""
    import importlib.util

    root = importlib.util.find_spec(package).submodule_search_locations[0]
    spec = importlib.util.spec_from_file_location(package + "_file", f"{root}/{path}")
    mod = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(mod)
    return mod


# ---------------------------------------------------------------- MXFP4 as gpt-oss stores it
def mxfp4(w):
    """blocks uint8 [..., G, 16], scales uint8 [..., G] of [..., K]: the scale rule of the OCP MX specification
    (floor), values to nearest, ties to even."""
    g = w.float().unflatten(-1, (-1, 32))
    amax = g.abs().amax(-1)
    exp = torch.where(amax > 0, torch.floor(torch.log2(amax)) - 2, torch.full_like(amax, -127)).clamp(-127, 127)
    grid = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
    x = (g.double() * 2.0 ** -exp.double()[..., None]).clamp(-6, 6)
    mid = (grid[1:] + grid[:-1]).double() / 2
    low, up = torch.bucketize(x.abs(), mid), torch.bucketize(
        x.abs(), mid, right=True
    )  # at a tie they differ by one: take the even code
    code = torch.where(low % 2 == 0, low, up) | (torch.signbit(x).long() << 3)
    return (code[..., 0::2] | code[..., 1::2] << 4).to(torch.uint8), (exp + 127).to(torch.uint8)


def case_gpt_oss(src, conf, out, shards=1):
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    tensors, ref = {}, dict(src)
    for n, w in src.items():
        if not n.endswith(("experts.gate_up_proj", "experts.down_proj")):
            tensors[n] = w
            continue
        tensors[n + "_blocks"], tensors[n + "_scales"] = mxfp4(w.transpose(1, 2).contiguous())
        ref[n] = convert_moe_packed_tensors(tensors[n + "_blocks"], tensors[n + "_scales"], dtype=torch.bfloat16)
    skip = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]
    save_model(
        out / "model",
        tensors,
        {**conf, "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": skip}},
        shards,
    )
    return (
        ref,
        "transformers convert_moe_packed_tensors",
        "E2M1 value * 2^(byte - 127), exact in bfloat16; then dimensions 1 and 2 swapped: [E, in, out]",
    )
