#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times random slices of a safetensors file, through fsdpck.open() and safetensors' safe_open.

usage: python_slices.py PACKAGE FILE [--slices 10000] [--runs 5] [--cold]

PACKAGE is the folder that holds the Python package fsdpck (BUILD/python). The slices are 4 KiB to 1 MiB of rows, the
same for all, copied into memory of their own. The readers take turns; the table has medians. "at once": one read() of
all slices. "one by one": the loop that safe_open needs. --cold drops the file from the page cache before each turn."""
import argparse
import math
import os
import random
import statistics
import sys
import time


def requests(source, count):
    """Rows of matrices, as many as make 4 KiB to 1 MiB, evenly on a logarithmic scale."""
    rng = random.Random(1)
    tensors = [t for t in source.values() if t.ndim == 2 and t.nbytes >= 1 << 20]
    out = []
    while len(out) < count:
        t = rng.choices(tensors, [t.nbytes for t in tensors])[0]
        row = t.nbytes // t.shape[0]
        rows = max(1, int(math.exp(rng.uniform(math.log(4 << 10), math.log(1 << 20)))) // row)
        first = rng.randrange(max(1, t.shape[0] - rows))
        out.append((t.name, slice(first, first + rows)))
    return out


def drop(path):
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("package")
    p.add_argument("file")
    p.add_argument("--slices", type=int, default=10000)
    p.add_argument("--runs", type=int, default=5)
    p.add_argument("--cold", action="store_true")
    a = p.parse_args()
    sys.path.insert(0, os.path.abspath(a.package))
    import fsdpck
    import torch
    from safetensors import safe_open
    torch.set_num_threads(1)  # on a busy machine, its threads wait for each other longer than such slices take to copy
    with fsdpck.open(a.file, "torch") as source:
        wanted = requests(source, a.slices)
        nbytes = sum(source.plan([w]).needed_nbytes for w in wanted)

    def theirs():
        with safe_open(a.file, "pt") as f:
            slices = {}
            return [slices.setdefault(n, f.get_slice(n))[i].clone() for n, i in wanted]

    def one_by_one():
        with fsdpck.open(a.file, "torch") as f:
            return [f[n][i] for n, i in wanted]

    def at_once():
        with fsdpck.open(a.file, "torch") as f:
            return f.read(wanted)

    ways, seconds = {"safe_open": theirs, "fsdpck, at once": at_once, "fsdpck, one by one": one_by_one}, {}
    for turn in range(a.runs):
        for name, way in ways.items():
            if a.cold:
                drop(a.file)
            start, cpu = time.perf_counter(), time.process_time()
            got = way()
            seconds.setdefault(name, []).append((time.perf_counter() - start, time.process_time() - cpu))
            if turn == 0:
                first = got if name == "safe_open" else first
                assert all(torch.equal(x.view(torch.uint8), y.view(torch.uint8)) for x, y in zip(got, first)), name
            del got
    print("| %d slices, %.0f MB, %s | seconds | processor seconds | safe_open's seconds over it |\n|---|---|---|---|" %
          (a.slices, nbytes / 1e6, "cold" if a.cold else "warm"))
    medians = {name: [statistics.median(column) for column in zip(*turns)] for name, turns in seconds.items()}
    for name, (s, cpu) in medians.items():
        print("| %s | %.3f | %.2f | %.2f |" % (name, s, cpu, medians["safe_open"][0] / s))


if __name__ == "__main__":
    main()
