# SPDX-License-Identifier: Apache-2.0
"""fsdpck export --dequantize against the formulas, for forms that no installed library writes: GPTQ, 8-bit integers of
compressed-tensors, groups in another order, stacked FP8 experts, FP4 experts with one exponent for 32 values."""
import json, pathlib, random, shutil, subprocess

import ckpt_common as c
import torch
from safetensors.torch import save_file

E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0])
BF16 = torch.bfloat16


def pack(q, bits):
    """Integers [..., n] to words of 32 bits [..., n * bits / 32], the first one lowest; n is filled up with zeros."""
    per = 32 // bits
    q = torch.nn.functional.pad(q.long(), (0, -q.shape[-1] % per)).unflatten(-1, (-1, per))
    word = (q << (torch.arange(per) * bits)).sum(-1)
    return torch.where(word >= 1 << 31, word - (1 << 32), word).to(torch.int32).contiguous()


def gptq(rng, gen):
    bits, group, v2 = rng.choice([4, 8]), rng.choice([16, 32]), rng.random() < 0.5
    ngroups, out = rng.randrange(1, 9), 8 * rng.randrange(1, 30)
    rows = ngroups * group
    q = torch.randint(0, 1 << bits, (rows, out), generator=gen)
    z = torch.randint(0, (1 << bits) - 1, (ngroups, out), generator=gen)
    s = (torch.rand(ngroups, out, generator=gen) + 0.01).half()
    index = torch.arange(rows) // group
    if rng.random() < 0.5:
        index = index[torch.randperm(rows, generator=gen)]
    tensors = {"l.qweight": pack(q.t(), bits).t().contiguous(), "l.qzeros": pack(z, bits), "l.scales": s}
    tensors["l.g_idx"] = index.to(torch.int32)
    conf = {"quant_method": "gptq", "bits": bits, "group_size": group}
    conf.update({"checkpoint_format": "gptq_v2"} if v2 else {})
    ref = ((q - (z + (0 if v2 else 1))[index]).half() * s[index]).t()
    return conf, tensors, {"l.weight": ref.to(BF16).contiguous()}


def packed_int8(rng, gen):
    bits, rows, cols = rng.choice([4, 8]), rng.randrange(1, 90), rng.randrange(1, 200)
    group = rng.choice([0, 16])
    cols = cols if not group else cols // group * group + group
    q = torch.randint(0, 1 << bits, (rows, cols), generator=gen)
    s = (torch.rand(rows, cols // group if group else 1, generator=gen) + 0.01).to(BF16)
    index = torch.arange(cols) // group if group else torch.zeros(cols, dtype=torch.long)
    tensors = {"l.weight_packed": pack(q, bits), "l.weight_scale": s, "l.weight_shape": torch.tensor([rows, cols])}
    if group and rng.random() < 0.5:
        index = index[torch.randperm(cols, generator=gen)]
        tensors["l.weight_g_idx"] = index.to(torch.int32)
    args = {"num_bits": bits, "type": "int", "group_size": group or None}
    conf = {"quant_method": "compressed-tensors", "config_groups": {"g": {"targets": ["Linear"], "weights": args}}}
    return conf, tensors, {"l.weight": (q - (1 << bits - 1)).to(BF16) * s[:, index]}


def stacked_fp8(rng, gen):
    n, rows, cols = rng.randrange(1, 5), rng.randrange(1, 300), rng.randrange(1, 300)
    w = (torch.randn(n, rows, cols, generator=gen) * 50).to(torch.float8_e4m3fn)
    s = torch.rand(n, -(-rows // 128), -(-cols // 64), generator=gen) + 0.01
    big = s.repeat_interleave(128, 1)[:, :rows].repeat_interleave(64, 2)[:, :, :cols]
    conf = {"quant_method": "fp8", "weight_block_size": [128, 64]}
    return conf, {"e.up": w, "e.up_scale_inv": s}, {"e.up": (w.float() * big).to(BF16)}


def fp4_experts(rng, gen):
    rows, groups = rng.randrange(1, 90), rng.randrange(1, 9)
    q = torch.randint(0, 16, (rows, groups * 32), generator=gen)
    e = torch.randint(100, 150, (rows, groups), generator=gen)
    codes = (q[:, 0::2] | q[:, 1::2] << 4).to(torch.uint8).view(torch.int8)
    ref = E2M1[q] * torch.ldexp(torch.ones(()), e - 127).repeat_interleave(32, 1)
    tensors = {"l.weight": codes, "l.scale": e.to(torch.uint8).view(torch.float8_e8m0fnu)}
    return {"quant_method": "fp8", "expert_dtype": "fp4"}, tensors, {"l.weight": ref.to(BF16)}


FORMS = {"GPTQ": gptq, "packed integers": packed_int8, "stacked FP8": stacked_fp8, "FP4 experts": fp4_experts}


def check(fsdpck, work, name, count):
    for seed in range(count):
        rng, gen = random.Random(f"{name} {seed}"), torch.Generator().manual_seed(seed)
        conf, tensors, ref = FORMS[name](rng, gen)
        shutil.rmtree(work, ignore_errors=True)
        model = pathlib.Path(work, "model")
        model.mkdir(parents=True)
        save_file(tensors, model / "model.safetensors")
        (model / "config.json").write_text(json.dumps({"quantization_config": conf}))
        command = [fsdpck, "export", str(model), f"{work}/out.safetensors", "--dequantize", "bf16", "-q"]
        p = subprocess.run(command, capture_output=True, text=True)
        if p.returncode:
            return [f"model {seed}: {p.stderr.strip()}"]
        got = c.read_ref(f"{work}/out.safetensors")
        bad = [] if got.keys() == ref.keys() else [f"found {sorted(got)}, wanted {sorted(ref)}"]
        bad += [d for k in ref.keys() & got.keys() if (d := c.compare(k, got[k], ref[k]))]
        if bad:
            return [f"model {seed} ({conf}): {b}" for b in bad]
    return []


def check_all(checks, fsdpck, work, quick):
    for name in FORMS:
        checks.run(f"dequantize {name}, random shapes", check, fsdpck, work, name, 10 if quick else 100)
