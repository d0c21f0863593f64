#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Matrix products of a training step beside PyTorch's: GFLOP/s of each shape that bench/kernels.c has, and their ratio;
above 1, fsdptrain's is faster.

usage: products.py BUILD_DIR --python PYTHON_WITH_TORCH [--rounds 3] [--threads 2 | --cpu]

--cpu counts the processor time of one thread instead, for a machine that is not idle. To stand in for a processor with
fewer instructions, set ONEDNN_MAX_CPU_ISA (AVX512_CORE: no bf16 instructions; AVX2), which both obey, and for PyTorch
MKL_ENABLE_INSTRUCTIONS and ATEN_CPU_CAPABILITY.

Both take turns, --rounds times, and the best of each counts: other work on a machine only ever makes a product slower.
PyTorch's operands lie where the last call left them, as fsdptrain's do, and its results are made anew, as autograd
makes them."""
import argparse
import json
import os
import re
import subprocess
import sys
import time


def measure(shapes, threads, clock):
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
            began, count = clock(), 0
            while clock() - began < 0.02:
                job()
                count += 1
            best = min(best, (clock() - began) / count)
        rates.append(2e-9 * m * n * k / best)
    print(json.dumps(rates))


def ours(build, threads, cpu):
    """(what, shape, rate) of every product that the bench prints."""
    text = subprocess.run(
        [os.path.join(build, "bench", "bench_kernels"), str(threads), *["cpu"] * cpu, "products"],
        check=True, text=True, stdout=subprocess.PIPE).stdout
    found = re.findall(r"^(.*?) +(\d+)x *(\d+)x *(\d+) ([TNW]) (bf16|fp32) +ours +([0-9.]+)", text, re.M)
    return [(what, (int(m), int(n), int(k), layout, dtype), float(rate))
            for what, m, n, k, layout, dtype, rate in found]


def main():
    if sys.argv[1:2] == ["--measure"]:
        clock = time.process_time if sys.argv[4] == "cpu" else time.perf_counter
        return measure(json.loads(sys.argv[2]), int(sys.argv[3]), clock)
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("build")
    p.add_argument("--python", required=True)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--cpu", action="store_true")
    a = p.parse_args()
    a.threads = 1 if a.cpu else a.threads
    best = {}
    for _ in range(a.rounds):
        mine = ours(a.build, a.threads, a.cpu)
        shapes = json.dumps([shape for _, shape, _ in mine])
        theirs = json.loads(subprocess.run(
            [a.python, __file__, "--measure", shapes, str(a.threads), "cpu" if a.cpu else "wall"],
            check=True, text=True, stdout=subprocess.PIPE).stdout)
        for (what, shape, rate), other in zip(mine, theirs):
            before = best.get((what, shape), (0, 0))
            best[what, shape] = (max(before[0], rate), max(before[1], other))
    for (what, (m, n, k, layout, dtype)), (rate, other) in best.items():
        print(
            f"{what:20} {m:5}x{n:5}x{k:5} {layout} {dtype}  fsdptrain {rate:7.1f}  torch {other:7.1f}  ratio"
            f" {rate / other:.2f}"
        )


if __name__ == "__main__":
    main()
