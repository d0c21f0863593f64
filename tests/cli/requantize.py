#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""requantize.py BINARY: `fsdpck merge-lora` into quantized bases, against the same steps in Python.

The base's weights are dequantized, Python adds the adapter's product, and the sum is quantized again. All numbers of
the adapter are small integers over a power of two, so that its product is exact in float32, whatever the processor.
"""
import bisect
import json
import math
import os
import random
import re
import shutil
import struct
import subprocess
import sys
import tempfile

from doctor_folders import Model, read
from harness import fixtures
from run_cases import write_safetensors

OUT, IN, RANK = 136, 160, 2
WEIGHTS = ("model.layers.0.self_attn.q_proj.weight", "model.layers.0.self_attn.v_proj.weight",
           "model.layers.0.mlp.up_proj.weight")
MERGED, NORM = WEIGHTS[:2], "model.norm.weight"
FORMS = {"fp8-block": 2, "mxfp4": 2, "nvfp4": 3, "nf4": 4}


def floats(t):
    return struct.unpack("<%df" % (len(t[2]) // 4), t[2])


def f32(shape, values):
    return "F32", shape, struct.pack("<%df" % len(values), *values)


def make_base(path):
    tensors = {name: f32([OUT, IN], [random.gauss(0, 0.02) for _ in range(OUT * IN)]) for name in WEIGHTS}
    tensors[NORM] = f32([IN], [1.0] * IN)
    write_safetensors(path, tensors)
    return tensors


def make_adapter(folder):
    """Its products, and the folder."""
    os.mkdir(folder)
    tensors, products = {}, {}
    for name in MERGED:
        a = [random.randint(-8, 8) / 64 for _ in range(RANK * IN)]
        b = [random.randint(-8, 8) / 64 for _ in range(OUT * RANK)]
        module = "base_model.model." + name[:-len(".weight")]
        tensors[module + ".lora_A.weight"], tensors[module + ".lora_B.weight"] = f32([RANK, IN], a), f32([OUT, RANK], b)
        products[name] = [
            2 * sum(b[i * RANK + k] * a[k * IN + j] for k in range(RANK)) for i in range(OUT) for j in range(IN)
        ]
    write_safetensors(os.path.join(folder, "adapter_model.safetensors"), tensors)
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": 2 * RANK, "target_modules": ["q_proj", "v_proj"]}
    with open(os.path.join(folder, "adapter_config.json"), "w") as f:
        json.dump(config, f)
    return products


class Test:
    def __init__(self, binary, folder):
        self.binary, self.folder = os.path.abspath(binary), folder

    def tool(self, *args):
        p = subprocess.run([self.binary, *args], cwd=self.folder, capture_output=True, text=True, timeout=120)
        assert p.returncode == 0, (args, p.returncode, p.stderr)
        return p.stderr

    def tensors(self, name):
        return read(os.path.join(self.folder, name))

    def dequantized(self, name):
        self.tool("export", name, "plain.safetensors", "--dequantize", "fp32", "--force", "-q")
        return self.tensors("plain.safetensors")

    def check(self, form, products):
        base = form + ".safetensors"
        self.tool("export", "base.safetensors", base, "--quantize", form, "-q")
        before = self.dequantized(base)
        exact = dict(before)
        for name in MERGED:
            exact[name] = f32([OUT, IN], [x + y for x, y in zip(floats(before[name]), products[name])])
        write_safetensors(os.path.join(self.folder, "exact.safetensors"), exact)
        self.tool("export", "exact.safetensors", "wanted.safetensors", "--quantize", form, "--force", "-q")
        said = self.tool("merge-lora", base, "adapter", "merged.safetensors", "--force")
        wanted, stored, found = (self.tensors(n + ".safetensors") for n in ("wanted", form, "merged"))
        assert len(found) == FORMS[form] * len(WEIGHTS) + 1 and found.keys() == stored.keys(), found.keys()
        for name, t in found.items():
            changed = name.startswith(MERGED)
            assert t == (wanted if changed else stored)[name], (form, name)
        self.check_said(form, said, before, exact)
        self.tool("merge-lora", base, "adapter", "sharded", "--ranks", "3", "--force", "-q", "--memory", "128MiB")
        self.tool("diff", "sharded", "merged.safetensors")
        self.check_memory(base)
        self.tool("convert", base, "sharded-base", "--ranks", "3", "--force", "-q")  # with content ids
        self.tool("merge-lora", "sharded-base", "adapter", "again.safetensors", "--force", "-q")
        self.tool("diff", "again.safetensors", "merged.safetensors")

    def check_memory(self, base):
        """With as little memory as a refusal asks for, the same comes out."""
        args = (self.binary, "merge-lora", base, "adapter", "small.safetensors", "--force", "-q", "--memory")
        p = subprocess.run([*args, "64MiB"], cwd=self.folder, capture_output=True, text=True, timeout=120)
        least = re.search(r"budget of 67108864 bytes is too small; at least (\d+MiB) are needed", p.stderr)
        assert p.returncode == 2 and least, p.stderr
        self.tool(*args[1:], least[1])
        self.tool("diff", "small.safetensors", "merged.safetensors")

    def check_said(self, form, said, before, exact):
        after, lost = self.dequantized("merged.safetensors"), {}
        for name in MERGED:
            x, y, z = (floats(m[name]) for m in (before, exact, after))
            lost[name] = 100 * math.dist(z, y) / math.dist(y, x)
        worst = max(lost, key=lost.get)
        m = re.search(r"have ([\d.e+]+) % .* and ([\d.e+]+) % at most \('(.*)'\)", said)
        assert m and m[3] == worst, (form, said, lost)
        wanted = (sum(lost.values()) / len(lost), lost[worst])
        assert all(math.isclose(float(s), w, rel_tol=6e-3) for s, w in zip(m.groups(), wanted)), (form, said, lost)


# ---- forms that other libraries write, in fixtures/quant ----

E4M3 = [(m / 8 * 2**-6 if e == 0 else (1 + m / 8) * 2**(e - 7)) for e in range(16) for m in range(8)][:127]
E2M1 = [0, 0.5, 1, 1.5, 2, 3, 4, 6]


def single(x):
    """Rounded to float32."""
    return struct.unpack("<f", struct.pack("<f", x))[0]


def bf16(x):
    bits = struct.unpack("<I", struct.pack("<f", x))[0]
    return struct.unpack("<f", struct.pack("<I", (bits + 0x7fff + (bits >> 16 & 1)) >> 16 << 16))[0]


def nearest(table, x):
    """The code whose value is nearest to |x|, of two the even one; the sign goes to the bit above."""
    a = min(abs(x), table[-1])
    i = bisect.bisect_left(table, a)
    if i and (a - table[i - 1], (i - 1) % 2) < (table[i] - a, i % 2):
        i -= 1
    return i, math.copysign(1, x) < 0


def e4m3(x):
    code, negative = nearest(E4M3, x)
    return code | 0x80 * negative


def e2m1(values):
    """Two codes a byte, low nibble first; zero has no sign."""
    codes = [code | 8 * (negative and x != 0) for x in values for code, negative in [nearest(E2M1, x)]]
    return bytes(a | b << 4 for a, b in zip(codes[::2], codes[1::2]))


def fp8_of(rows, cols, to):
    """Blocks of this size with scales in this dtype."""
    def quantize(w, shape):
        rows_of, cols_of = rows or shape[0], cols or shape[1]
        codes, scales = bytearray(len(w)), []
        for i in range(0, shape[0], rows_of):
            for k in range(0, shape[1], cols_of):
                at = [r * shape[1] + c for r in range(i, min(i + rows_of, shape[0]))
                      for c in range(k, min(k + cols_of, shape[1]))]
                scales.append(to(single(max(abs(w[x]) for x in at) / 448)) or 1.0)
                for x in at:
                    codes[x] = e4m3(single(w[x] / scales[-1]))
        packed = b"".join(struct.pack("<f", s)[0 if to is single else 2:] for s in scales)
        return {"weight": bytes(codes), "weight_scale": packed}

    return quantize


def mxfp8_of(exponent_of):
    def quantize(w, _):
        codes, scales = [], []
        for at in range(0, len(w), 32):
            amax = max(map(abs, w[at:at + 32]))
            exponent = max(-127, min(127, exponent_of(amax))) if amax else -127
            scales.append(exponent + 127)
            codes += [e4m3(single(x * 2.0**-exponent)) for x in w[at:at + 32]]
        return {"weight": bytes(codes), "weight_scale": bytes(scales)}

    return quantize


def nvfp4_modelopt(w, _):
    whole = single(max(map(abs, w)) / 2688)
    packed, scales = b"", []
    for at in range(0, len(w), 16):
        amax = max(map(abs, w[at:at + 16]))
        scales.append(e4m3(max(2**-9, single(amax / single(6 * whole)))) if amax else 0x38)
        by = single(E4M3[scales[-1]] * whole)
        packed += e2m1([single(x / by) for x in w[at:at + 16]])
    return {"weight": packed, "weight_scale": bytes(scales), "weight_scale_2": struct.pack("<f", whole)}


def rounded_log2(amax):
    """A number from 1.75 times a power of two on counts as the next."""
    m, e = math.frexp(amax)
    return e - 1 + (m >= 0.875)


LIBRARIES = {
    "fp8-tensor": fp8_of(None, None, bf16),
    "fp8-channel": fp8_of(1, None, bf16),
    "fp8-block-ct": fp8_of(32, 32, bf16),
    "fp8-modelopt": fp8_of(None, None, single),
    "mxfp8-ct": mxfp8_of(lambda amax: rounded_log2(amax) - 8),
    "mxfp8-modelopt": mxfp8_of(lambda amax: math.ceil(math.log2(single(amax / 448)))),
    "nvfp4-modelopt": nvfp4_modelopt,
}
MODULES = ("model.layers.0.self_attn.k_proj", "model.layers.0.mlp.down_proj")


def write_small_adapter(folder, shapes):
    """Its products by module."""
    tensors, products = {}, {}
    for module, (rows, cols) in shapes.items():
        a = [random.randint(-8, 8) / 256 for _ in range(cols)]
        b = [random.randint(-8, 8) / 256 for _ in range(rows)]
        tensors["base_model.model.%s.lora_A.weight" % module] = f32([1, cols], a)
        tensors["base_model.model.%s.lora_B.weight" % module] = f32([rows, 1], b)
        products[module] = [x * y for x in b for y in a]
    os.makedirs(folder)
    write_safetensors(os.path.join(folder, "adapter_model.safetensors"), tensors)
    with open(os.path.join(folder, "adapter_config.json"), "w") as f:
        json.dump({"peft_type": "LORA", "r": 1, "lora_alpha": 1, "target_modules": ["k_proj", "down_proj"]}, f)
    return products


def check_library(test, name, quantize):
    """A base that the library wrote: merged weights have the bytes that its rule gives, all others their own."""
    model = os.path.join(fixtures(), "quant", name, "model")
    stored = {n: t for n, (_, t) in Model(model).tensors().items()}
    test.tool("export", model, "plain.safetensors", "--dequantize", "fp32", "--force", "-q")
    plain = test.tensors("plain.safetensors")
    shutil.rmtree(os.path.join(test.folder, "small"), ignore_errors=True)
    products = write_small_adapter(os.path.join(test.folder, "small"),
                                   {m: plain[m + ".weight"][1] for m in MODULES})
    said = test.tool("merge-lora", model, "small", "merged.safetensors", "--force")
    assert "2 merged weights are quantized again" in said, said
    found, wanted = test.tensors("merged.safetensors"), {}
    for m in MODULES:
        w = [single(x + y) + 0.0 for x, y in zip(floats(plain[m + ".weight"]), products[m])]  # no -0
        wanted.update({"%s.%s" % (m, leaf): data for leaf, data in quantize(w, plain[m + ".weight"][1]).items()})
    assert found.keys() == stored.keys(), (name, found.keys() ^ stored.keys())
    for tensor, t in found.items():
        assert t == (*stored[tensor][:2], wanted.get(tensor, stored[tensor][2])), (name, tensor)


def check_double(test):
    """Scales that are quantized themselves: codes by the exact ones, and their own by map and offset of the base."""
    model = os.path.join(fixtures(), "quant", "bnb-nf4-double", "model")
    stored = {n: t for n, (_, t) in Model(model).tensors().items()}
    test.tool("export", model, "plain.safetensors", "--dequantize", "fp32", "--force", "-q")
    plain, exact = test.tensors("plain.safetensors"), {}
    shutil.rmtree(os.path.join(test.folder, "small"), ignore_errors=True)
    products = write_small_adapter(os.path.join(test.folder, "small"), {m: plain[m + ".weight"][1] for m in MODULES})
    for m in MODULES:
        w = [single(x + y) + 0.0 for x, y in zip(floats(plain[m + ".weight"]), products[m])]
        exact[m + ".weight"] = f32(plain[m + ".weight"][1], w)
    write_safetensors(os.path.join(test.folder, "exact.safetensors"), exact)
    test.tool("export", "exact.safetensors", "wanted.safetensors", "--quantize", "nf4", "--force", "-q")
    said = test.tool("merge-lora", model, "small", "merged.safetensors", "--force")
    found, nf4 = test.tensors("merged.safetensors"), test.tensors("wanted.safetensors")
    for m in (m + ".weight" for m in MODULES):
        offset = single(json.loads(stored[m + ".quant_state.bitsandbytes__nf4"][2])["nested_offset"])
        values = floats(stored[m + ".nested_quant_map"])
        less = [single(x - offset) for x in floats(nf4[m + ".absmax"])]
        most = max(map(abs, less))
        codes = [min(range(256), key=lambda i, x=x: abs(single(values[i] - single(x / most)))) for x in less]
        assert found[m][2] == nf4[m][2], m
        assert found[m + ".absmax"][2] == bytes(codes) and floats(found[m + ".nested_absmax"]) == (most,), m
    changed = tuple(m + ".weight" + end for m in MODULES for end in ("", ".absmax", ".nested_absmax"))
    assert all(t == stored[n] for n, t in found.items() if n not in changed) and found.keys() == stored.keys()
    after = test.dequantized("merged.safetensors")
    lost = [100 * math.dist(floats(after[n]), floats(x)) / math.dist(floats(x), floats(plain[n]))
            for n, x in exact.items()]
    m = re.search(r"have ([\d.e+]+) %", said)
    assert m and math.isclose(float(m[1]), sum(lost) / len(lost), rel_tol=6e-3), (said, lost)


def check_experts(test):
    """Experts of gpt-oss, whose codes lie by outputs and whose values by inputs; small memory cuts them into bands."""
    model = os.path.join(fixtures(), "quant", "mxfp4-gptoss", "model")
    stored = {n: t for n, (_, t) in Model(model).tensors().items()}
    test.tool("export", model, "plain.safetensors", "--dequantize", "fp32", "--force", "-q")
    plain, tensors, wanted, exact = test.tensors("plain.safetensors"), {}, {}, {}
    for name in [n for n in plain if n.endswith("_proj") and ".experts." in n]:
        experts, ins, outs = plain[name][1]
        values = floats(plain[name])
        a = [random.randint(-8, 8) / 256 for _ in range(experts * ins)]
        b = [random.randint(-8, 8) / 256 for _ in range(experts * outs)]
        tensors["base_model.model.%s.lora_A.weight" % name] = f32([experts, 1, ins], a)
        tensors["base_model.model.%s.lora_B.weight" % name] = f32([experts, outs, 1], b)
        codes, scales, exact[name] = b"", [], list(values)
        for e in range(experts):
            for i in range(outs):
                row = [single(values[(e * ins + j) * outs + i] + b[e * outs + i] * a[e * ins + j]) + 0.0
                       for j in range(ins)]
                exact[name][e * ins * outs + i:(e + 1) * ins * outs:outs] = row
                for at in range(0, ins, 32):
                    amax = max(map(abs, row[at:at + 32]))
                    exponent = max(-127, math.frexp(amax)[1] - 1 - 2) if amax else -127
                    scales.append(exponent + 127)
                    codes += e2m1([single(x * 2.0**-exponent) for x in row[at:at + 32]])
        wanted.update({name + "_blocks": codes, name + "_scales": bytes(scales)})
    folder = os.path.join(test.folder, "experts")
    os.makedirs(folder)
    write_safetensors(os.path.join(folder, "adapter_model.safetensors"), tensors)
    with open(os.path.join(folder, "adapter_config.json"), "w") as f:
        json.dump({"peft_type": "LORA", "r": 1, "lora_alpha": 1, "target_modules": ["gate_up_proj", "down_proj"]}, f)
    said = test.tool("merge-lora", model, "experts", "merged.safetensors", "--force")
    m = re.search(r"merged weights? (?:is|are) quantized again .* have ([\d.e+]+) %", said)
    after = test.dequantized("merged.safetensors")
    lost = [100 * math.dist(floats(after[n]), x) / math.dist(x, floats(plain[n])) for n, x in exact.items()]
    assert m and math.isclose(float(m[1]), sum(lost) / len(lost), rel_tol=6e-3), (said, lost)
    found = test.tensors("merged.safetensors")
    assert found.keys() == stored.keys(), found.keys() ^ stored.keys()
    for tensor, t in found.items():
        assert t == (*stored[tensor][:2], wanted.get(tensor, stored[tensor][2])), tensor
    test.tool("merge-lora", model, "experts", "cut", "--mesh", "ranks=5", "--force", "-q")
    test.tool("diff", "cut", "merged.safetensors")


def nf4_parts(test, name, block, shape=lambda n: [n, 1], scales=lambda n: [n]):
    n, values = 1100 * 1000, test.tensors("nf4.safetensors")[WEIGHTS[0] + ".quant_map"]
    codes = bytearray(random.choices(range(1, 15), k=n))
    codes[block - 1::block], codes[-1] = b"\x0f" * (n // block), 15
    packed, nblocks = bytes(a << 4 | b for a, b in zip(codes[::2], codes[1::2])), -(-n // block)
    state = json.dumps({"quant_type": "nf4", "blocksize": block, "dtype": "float32", "shape": [1100, 1000]}).encode()
    return {name: ("U8", shape(n // 2), packed),
            name + ".absmax": f32(scales(nblocks), [2.0**random.randint(-6, 0) for _ in range(nblocks)]),
            name + ".quant_map": values, name + ".quant_state.bitsandbytes__nf4": ("U8", [len(state)], state)}


def check_blocks(test):
    """NF4 blocks that no power of two is a multiple of, with an adapter of zeros: only the last value of a block is as
    large as its scale, so that the same bytes must come out. What bitsandbytes does not write is refused."""
    name, module = MODULES[0] + ".weight", "base_model.model." + MODULES[0]
    parts, zero = nf4_parts(test, name, 48), os.path.join(test.folder, "zero")
    write_safetensors(os.path.join(test.folder, "blocks.safetensors"), parts)
    shutil.copytree(os.path.join(test.folder, "small"), zero)
    factors = {".lora_A.weight": f32([1, 1000], [1.0] * 1000), ".lora_B.weight": f32([1100, 1], [0.0] * 1100)}
    write_safetensors(os.path.join(zero, "adapter_model.safetensors"), {module + n: t for n, t in factors.items()})
    test.tool("merge-lora", "blocks.safetensors", "zero", "same.safetensors", "--force", "-q")
    assert {n: t[2] for n, t in test.tensors("same.safetensors").items()} == {n: t[2] for n, t in parts.items()}
    for odd in ({"block": 63}, {"block": 1 << 21}, {"block": 64, "shape": lambda n: [1, n]},
                {"block": 64, "scales": lambda n: [n, 1]}):
        write_safetensors(os.path.join(test.folder, "odd.safetensors"), nf4_parts(test, name, **odd))
        p = subprocess.run([test.binary, "merge-lora", "odd.safetensors", "zero", "never.safetensors"],
                           cwd=test.folder, capture_output=True, text=True, timeout=120)
        assert p.returncode == 3 and "of a kind that is read and not written" in p.stderr, (odd, p)


def check_wide_experts(test):
    """Experts of gpt-oss with few outputs and more inputs than are measured at once."""
    name, outs, ins = "model.layers.0.mlp.experts.gate_up_proj", 2, 1 << 20
    codes = bytearray(random.randbytes(outs * ins // 2).translate(bytes(0x11 if 8 in (b >> 4, b & 15) else b
                                                                        for b in range(256))))
    codes[15::16] = b"\x77" * (len(codes) // 16)
    tensors = {name + "_blocks": ("U8", [1, outs, ins // 32, 16], bytes(codes)),
               name + "_scales": ("U8", [1, outs, ins // 32], bytes([120]) * (outs * ins // 32))}
    os.mkdir(os.path.join(test.folder, "wide"))
    shutil.copytree(os.path.join(test.folder, "experts"), os.path.join(test.folder, "wide-adapter"))
    write_safetensors(os.path.join(test.folder, "wide", "model.safetensors"), tensors)
    shutil.copy(os.path.join(fixtures(), "quant/mxfp4-gptoss/model/config.json"), os.path.join(test.folder, "wide"))
    write_safetensors(os.path.join(test.folder, "wide-adapter", "adapter_model.safetensors"), {
        "base_model.model.%s.lora_A.weight" % name: f32([1, 1, ins], [1.0] * ins),
        "base_model.model.%s.lora_B.weight" % name: f32([1, outs, 1], [0.0] * outs)})
    test.tool("merge-lora", "wide", "wide-adapter", "wide.safetensors", "-q")
    assert {n: t[2] for n, t in test.tensors("wide.safetensors").items()} == {n: t[2] for n, t in tensors.items()}


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    random.seed(20)
    with tempfile.TemporaryDirectory(prefix="fsdpck-requantize-") as folder:
        make_base(os.path.join(folder, "base.safetensors"))
        products = make_adapter(os.path.join(folder, "adapter"))
        test = Test(sys.argv[1], folder)
        for form in FORMS:
            test.check(form, products)
        for name, quantize in LIBRARIES.items():
            check_library(test, name, quantize)
        check_experts(test)
        check_double(test)
        check_blocks(test)
        check_wide_experts(test)
    print("%d forms: the same bytes" % (len(FORMS) + len(LIBRARIES)))


if __name__ == "__main__":
    main()
