#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times views in processor seconds, which a busy machine changes little: experts fused and cut, beside a plain convert,
and weights quantized and dequantized.

usage: views.py BUILD_DIR WORKDIR [--runs 3] [--gb 2] [--jobs experts,quantized]

All files are in the page cache. Contenders run in turn; medians of processor seconds, gigabytes of output a processor
second, and the largest memory. bench/run.py has the same jobs by the clock, cold and warm."""
import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile

from run import warm, write_experts


def write_matrices(folder, nbytes, rows=4096, cols=4096):
    """Weights like trained ones: a bell curve, in BF16."""
    import json
    import random
    import struct
    rng = random.Random(1)
    values = [rng.gauss(0, 0.02) for _ in range(1 << 16)]
    block = b"".join(struct.pack("<I", struct.unpack("<I", struct.pack("<f", x))[0])[2:] for x in values)
    each = 2 * rows * cols
    header = {"model.layers.%d.mlp.up_proj.weight" % i: dict(dtype="BF16", shape=[rows, cols],
                                                           data_offsets=[i * each, (i + 1) * each])
              for i in range(max(1, nbytes // each))}
    os.makedirs(folder)
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(dict(model_type="llama", num_hidden_layers=len(header)), f)
    with open(os.path.join(folder, "model.safetensors"), "wb") as f:
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        f.write(len(text).to_bytes(8, "little") + text)
        for _ in range(len(header) * each // len(block)):
            f.write(block)


def run(command):
    """Processor seconds, and the largest memory."""
    p = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, code, usage = os.wait4(p.pid, 0)
    if code:
        sys.exit("%s: ended with status %d" % (" ".join(command), code))
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def measure(at, jobs, runs):
    """jobs: {name: (input, command without output)}."""
    took = {name: [] for name in jobs}
    out, size = os.path.join(at, "out"), {}
    for _ in range(runs):
        for name, (source, command) in jobs.items():
            warm(source)
            took[name].append(run([*command[:3], out, *command[3:], "-q", "--threads", "1"]))
            size[name] = sum(os.path.getsize(os.path.join(d, f)) for d, _, files in os.walk(out) for f in files)
            shutil.rmtree(out)
    for name, all_of in took.items():
        cpu, memory = statistics.median(c for c, _ in all_of), max(m for _, m in all_of)
        print("%-34s %.2f processor seconds, %.2f GB/s of output, %.0f MiB" % (name, cpu, size[name] / cpu * 1e-9,
                                                                            memory), flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("build")
    parser.add_argument("workdir")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--gb", type=float, default=2)
    parser.add_argument("--jobs", default="experts,quantized")
    args = parser.parse_args()
    tool = os.path.abspath(os.path.join(args.build, "src", "tools", "fsdpck"))
    with tempfile.TemporaryDirectory(dir=args.workdir, prefix="fsdpck-views-") as at:
        path = lambda name: os.path.join(at, name)
        if "experts" in args.jobs:
            write_experts(path("single"), int(args.gb * 1e9))
            subprocess.run([tool, "export", path("single"), path("fused"), "--names", "transformers", "-q"], check=True)
            convert = lambda source, *more: (path(source), [tool, "convert", path(source), "--ranks", "8", *more])
            measure(at, {"convert, experts one by one": convert("single"),
                         "experts fused": convert("single", "--names", "transformers"),
                         "convert, experts fused": convert("fused"),
                         "experts cut": convert("fused", "--names", "hf")}, args.runs)
        if "quantized" in args.jobs:
            write_matrices(path("plain"), int(args.gb * 1e9))
            export = lambda source, *more: (path(source), [tool, "export", path(source), *more])
            jobs = {"export": export("plain")}
            for form in ("fp8-block", "mxfp4", "nvfp4", "nf4"):
                subprocess.run([tool, "export", path("plain"), path(form), "--quantize", form, "-q"], check=True)
                jobs["to " + form] = export("plain", "--quantize", form)
                jobs["from " + form] = export(form, "--dequantize", "bf16")
            measure(at, jobs, args.runs)


if __name__ == "__main__":
    main()
