#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Matrix products of a training step beside PyTorch's: GFLOP/s of each shape that bench/kernels.c has, and their ratio; above 1, fsdptrain's is faster.

usage: products.py BUILD_DIR --python PYTHON_WITH_TORCH [--rounds 3] [--threads 2]

Both take turns, --rounds times, and the best of each counts: other work on a machine only ever makes a product slower. PyTorch's operands lie where the last
call left them, as fsdptrain's do, and its results are made anew, as autograd makes them."""
import argparse
import json
import os
import re
import subprocess
import sys
import time


def measure(shapes, threads):
    """In the Python that has torch: the best rate of each shape."""
    import torch
    torch.set_num_threads(threads)
    rates = []
    for m, n, k, layout, dtype in shapes:
        kind = torch.bfloat16 if dtype == "bf16" else torch.float32
        a = torch.rand((k, m) if layout == "W" else (m, k)).to(kind)
        b = torch.rand((n, k) if layout == "T" else (k, n)).to(kind)
        job = {"T": lambda: torch.nn.functional.linear(a, b), "N": lambda: a @ b, "W": lambda: a.t() @ b}[layout]
        best = 1e9
        for _ in range(7):
            began, count = time.perf_counter(), 0
            while time.perf_counter() - began < 0.02:
                job()
                count += 1
            best = min(best, (time.perf_counter() - began) / count)
        rates.append(2e-9 * m * n * k / best)
    print(json.dumps(rates))


def ours(build, threads):
    """(what, shape, rate) of every product that the bench prints."""
    text = subprocess.run([os.path.join(build, "bench", "bench_kernels"), str(threads)], check=True, text=True, stdout=subprocess.PIPE).stdout
    found = re.findall(r"^(.*?) +(\d+)x *(\d+)x *(\d+) ([TNW]) (bf16|fp32) +ours +([0-9.]+)", text, re.M)
    return [(what, (int(m), int(n), int(k), layout, dtype), float(rate)) for what, m, n, k, layout, dtype, rate in found]


def main():
    if sys.argv[1:2] == ["--measure"]:
        return measure(json.loads(sys.argv[2]), int(sys.argv[3]))
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("build")
    p.add_argument("--python", required=True)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--threads", type=int, default=2)
    a = p.parse_args()
    best = {}
    for _ in range(a.rounds):
        mine = ours(a.build, a.threads)
        theirs = json.loads(subprocess.run([a.python, __file__, "--measure", json.dumps([shape for _, shape, _ in mine]), str(a.threads)], check=True,
                                           text=True, stdout=subprocess.PIPE).stdout)
        for (what, shape, rate), other in zip(mine, theirs):
            before = best.get((what, shape), (0, 0))
            best[what, shape] = (max(before[0], rate), max(before[1], other))
    for (what, (m, n, k, layout, dtype)), (rate, other) in best.items():
        print(f"{what:20} {m:5}x{n:5}x{k:5} {layout} {dtype}  fsdptrain {rate:7.1f}  torch {other:7.1f}  ratio {rate / other:.2f}")


if __name__ == "__main__":
    main()
