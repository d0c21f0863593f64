#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""average.py BINARY: `fsdpck average` on random models in every kind and sharding, against fp32 arithmetic in Python.

A Python float has 53 bits: a product of two fp32 numbers is exact in it, and a sum or quotient of two that is rounded
to fp32 afterwards is the one that fp32 arithmetic gives (Figueroa 1995). So struct's "f" is all that fp32 needs.
"""
import json
import math
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile

from run_cases import write_safetensors

CODES = {"F64": "d", "F32": "f", "F16": "e", "BF16": "H", "I64": "q", "U8": "B", "BOOL": "B"}
CASTS = {"BF16": "bf16", "F16": "fp16", "F32": "fp32"}
SHARDINGS = (["--ranks", "1"], ["--ranks", "3"], ["--ranks", "2", "--compress"],
             ["--mesh", "a=2,b=2", "--placement", "grid*=shard(1)@b"],
             ["--ranks", "5", "--placement", "grid*=shard(1)"])
WEIGHTS = (None, [0.5, 0.25, 0.125, 0.3], [1, -1, 0.1, 1e-3], [0.7, 0, 1e30, -0.0])


def f32(x):
    try:
        return struct.unpack("f", struct.pack("f", x))[0]
    except OverflowError:
        return math.copysign(math.inf, x)


def to_bf16(x):
    near = f32(x)
    bits = struct.unpack("I", struct.pack("f", near))[0]
    if near != x and not bits & 1:  # what fp32 cut off from a float64 decides no tie: round to odd, then to nearest
        bits += 1 if abs(near) < abs(x) else -1
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16


def pack(dtype, values):
    out = b""
    for v in values:
        v = to_bf16(v) if dtype == "BF16" else f32(v) if dtype == "F32" else v
        try:
            out += struct.pack(CODES[dtype], v)
        except OverflowError:  # of float16
            out += struct.pack("e", math.copysign(math.inf, v))
    return out


def unpack(dtype, data):
    values = struct.unpack("<%d%s" % (len(data) // struct.calcsize(CODES[dtype]), CODES[dtype]), data)
    return [struct.unpack("f", struct.pack("I", v << 16))[0] for v in values] if dtype == "BF16" else list(values)


def average(dtype, columns, weights, to):
    """The element of each column, as the verb defines it, in type `to`."""
    near = f32 if dtype != "F64" else float
    out = []
    for column in columns:
        total = None
        for i, x in enumerate(column):
            term = near(x * near(weights[i])) if weights else x
            total = term if total is None else near(total + term)
        out.append(total if weights else near(total / len(column)))
    return pack(to, out)


def number(dtype):
    kind = random.random()
    if kind < 0.05:
        return random.choice([0.0, -0.0, 6e-8, -1e-7, 65504.0, 1.0])
    return random.gauss(0, 1) * 2.0**random.randint(-3, 3) * (1e-3 if dtype == "F16" else 1)


def models(count):
    """They share names, shapes, dtypes, and what is no floating-point number."""
    shapes = {
        "grid.%s" % d: (d, [random.randint(1, 40), random.randint(1, 50)])
        for d in ("F64", "F32", "F16", "BF16")
    }
    shapes.update({"cube": ("BF16", [3, random.randint(1, 9), 7]), "norm": ("F32", [17]), "scale": ("F32", []),
                   "none": ("BF16", [0, 4])})
    same = {"step": ("I64", [], pack("I64", [7])), "mask": ("BOOL", [9], bytes(k % 2 for k in range(9)))}
    return [
        dict(same, **{n: (d, s, pack(d, [number(d) for _ in range(math.prod(s))])) for n, (d, s) in shapes.items()})
        for _ in range(count)
    ]


def read(path):
    with open(path, "rb") as f:
        data = f.read()
    n = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + n])
    return {
        name: (t["dtype"], t["shape"], data[8 + n + t["data_offsets"][0]:8 + n + t["data_offsets"][1]])
        for name, t in header.items() if name != "__metadata__"
    }


class Test:
    def __init__(self, binary, folder):
        self.binary, self.folder, self.failures = os.path.abspath(binary), folder, []

    def tool(self, *args):
        p = subprocess.run([self.binary, *map(str, args)], cwd=self.folder, capture_output=True, text=True, timeout=300)
        return p.returncode, p.stderr

    def good(self, *args):
        code, err = self.tool(*args)
        if code:
            sys.exit("average.py: %s: exit %d: %s" % (" ".join(map(str, args)), code, err))

    def at(self, name):
        return os.path.join(self.folder, name)

    def write(self, name, model):
        """In a random kind; in a random order, as no order of names matters."""
        names = sorted(model, key=lambda n: random.random())
        write_safetensors(self.at(name + ".safetensors"), {n: model[n] for n in names})
        if random.random() < 0.2:
            return name + ".safetensors"
        self.good("convert", name + ".safetensors", name, "-q", *random.choice(SHARDINGS))
        return name

    def round(self, number):
        count = random.randint(2, 4)
        made = models(count)
        weights, cast = random.choice(WEIGHTS), random.choice([None, "BF16", "F16", "F32"])
        sources = [self.write("m%d" % i, m) for i, m in enumerate(made)]
        more = ["--weights", ",".join(map(repr, weights[:count]))] if weights else []
        more += ["--dtype", CASTS[cast]] if cast else []
        more += ["--threads", str(random.randint(1, 3)), "--memory", random.choice(["64MiB", "256MiB"])]
        self.good("average", *sources, "out.safetensors", "--force", "-q", *more)
        self.good("average", *sources, "sharded", "--force", "-q", *more, *random.choice(SHARDINGS))
        self.good("export", "sharded", "again.safetensors", "--force", "-q")
        for path in ("out.safetensors", "again.safetensors"):
            got = read(self.at(path))
            if set(got) != set(made[0]):
                self.failures.append("round %d: %s: names %s" % (number, path, sorted(got)))
            for name, found in got.items():
                dtype, shape, want = to, _, _ = made[0][name]
                if dtype in ("F64", "F32", "F16", "BF16"):
                    columns = zip(*(unpack(dtype, m[name][2]) for m in made))
                    to = cast or dtype
                    want = average(dtype, columns, weights, to)
                if found != (to, shape, want):
                    self.failures.append("round %d: %s of %s: '%s' differs" % (number, path, " ".join(sources), name))
        for name in os.listdir(self.folder):
            path = self.at(name)
            shutil.rmtree(path) if os.path.isdir(path) else os.remove(path)

    def rounded_once(self):
        """A sum that fits in the type of --dtype, and not in that of the sources."""
        for name, value in (("low", 1.0), ("high", 1.0078125)):
            write_safetensors(self.at(name + ".safetensors"), {"w": ("BF16", [1], pack("BF16", [value]))})
        self.good("average", "low.safetensors", "high.safetensors", "mean.safetensors", "-q", "--dtype", "fp32")
        got = read(self.at("mean.safetensors"))["w"]
        if got != ("F32", [1], pack("F32", [1.00390625])):
            self.failures.append("the mean of 1.0 and 1.0078125 in fp32: %s" % (got,))

    def aliases(self):
        """A second name stays one only where all sources have it so; else each name has its own average."""
        tied = {"e": ("F32", [4], pack("F32", [1, 2, 3, 4]))}
        apart = dict(tied, h=("F32", [4], pack("F32", [9, 9, 9, 9])))
        write_safetensors(self.at("tied.safetensors"), tied)
        write_safetensors(self.at("apart.safetensors"), apart)
        self.good("convert", "tied.safetensors", "tied", "--ranks", "2", "--alias", "h=e", "-q")
        self.good("average", "tied", "tied", "both", "--ranks", "1", "-q")
        self.good("average", "tied", "apart.safetensors", "one.safetensors", "-q")
        self.good("average", "apart.safetensors", "tied", "two.safetensors", "-q")
        p = subprocess.run([self.binary, "ls", "both", "--json"], cwd=self.folder, capture_output=True, text=True,
                           check=True)
        if sum("alias_of" in t for t in json.loads(p.stdout)["tensors"]) != 1:
            self.failures.append("the average of tied models is not tied: %s" % p.stdout)
        for path in ("one.safetensors", "two.safetensors"):
            got = read(self.at(path))
            if unpack("F32", got["h"][2]) != [5, 5.5, 6, 6.5] or unpack("F32", got["e"][2]) != [1, 2, 3, 4]:
                self.failures.append("%s: %s" % (path, got))


def main():
    random.seed(int(os.environ.get("SEED", "1")))
    with tempfile.TemporaryDirectory(prefix="fsdpck-average-") as folder:
        test = Test(sys.argv[1], folder)
        for number in range(12):
            test.round(number)
        test.rounded_once()
        test.aliases()
    print("\n".join(test.failures) or "average: all bits as computed in Python")
    return bool(test.failures)


if __name__ == "__main__":
    sys.exit(main())
