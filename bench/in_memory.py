#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times `convert` from memory to memory, with one and with two threads, beside cp.

usage: in_memory.py BUILD_DIR [FOLDER] [--runs 5] [--gb 1]

FOLDER must lie in a tmpfs (usually /dev/shm). Contenders run in turn; medians are printed. On a busy machine
seconds say little. Processor seconds do, and how often a thread gave its processor up of its own will, because it
waited for something (on a tmpfs, for another thread)."""
import argparse
import json
import os
import shutil
import statistics
import subprocess
import tempfile
import time


def write_model(path, nbytes):
    shape, block = [8192, 4096], os.urandom(1 << 24)
    each = 2 * shape[0] * shape[1]
    header = {"w%d" % i: {"dtype": "BF16", "shape": shape, "data_offsets": [i * each, (i + 1) * each]}
              for i in range(max(1, nbytes // each))}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text)
        for _ in range(len(header) * each // len(block)):
            f.write(block)
    return len(header) * each


def run(command):
    """Seconds, processor seconds, and waits."""
    start = time.monotonic()
    p = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, code, usage = os.wait4(p.pid, 0)
    assert code == 0, command
    return time.monotonic() - start, usage.ru_utime + usage.ru_stime, usage.ru_nvcsw


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("build")
    parser.add_argument("folder", nargs="?", default="/dev/shm")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--gb", type=float, default=1)
    args = parser.parse_args()
    tool = os.path.abspath(os.path.join(args.build, "src", "tools", "fsdpck"))
    with tempfile.TemporaryDirectory(dir=args.folder, prefix="fsdpck-in-memory-") as at:
        model, out = os.path.join(at, "model.safetensors"), os.path.join(at, "out")
        nbytes = write_model(model, int(args.gb * 1e9))
        contenders = {"1 thread": [tool, "convert", model, out, "--ranks", "8", "--threads", "1", "-q"],
                      "2 threads": [tool, "convert", model, out, "--ranks", "8", "--threads", "2", "-q"],
                      "cp": ["cp", model, out]}
        took = {name: [] for name in contenders}
        for _ in range(args.runs):
            for name, command in contenders.items():
                took[name].append(run(command))
                (shutil.rmtree if os.path.isdir(out) else os.unlink)(out)
        for name, runs in took.items():
            seconds, cpu, waits = (statistics.median(column) for column in zip(*runs))
            print("%-9s  %.2f s, %.2f GB/s; %.2f processor seconds, %.2f GB/s a core; %d waits" % (
                name, seconds, nbytes / seconds * 1e-9, cpu, nbytes / cpu * 1e-9, waits))


if __name__ == "__main__":
    main()
