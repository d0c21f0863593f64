#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""LoRA of a FLUX.2 pipeline on a picture: fsdptrain against PyTorch, diffusers and PEFT. Ratios above 1 are in favour
of fsdptrain.

usage: pictures.py BUILD_DIR PIPELINE WORKDIR --python PYTHON_WITH_TORCH [--side 512] [--dtype bf16] [--steps 4]
                   [--runs 3] [--threads 2] [--compiled]

A step is one picture of --side x --side with 512 tokens of text, r 16 on diffusers' targets, AdamW; its seconds are the
median without the first step. The start is the time from process start to the first step: of ours with its caches,
counted with the end of the run, of theirs with encoding, which it does at each start. Memory is the largest resident
size. decode and encode: the autoencoder alone, best of three (bench/vae.c). Rounds are interleaved; medians. PyTorch
runs under tcmalloc where there is one. tests/interop/make_flux2.py makes random pipelines of any size."""
import argparse
import glob
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import time
import zlib

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
from pictures_peer import TARGETS
from training import at_least, metrics


def write_png(path, side):
    rng = random.Random(side)
    rows = b"".join(b"\0" + rng.randbytes(3 * side) for _ in range(side))
    head = side.to_bytes(4, "big") * 2 + bytes([8, 2, 0, 0, 0])
    with open(path, "wb") as f:
        f.write(b"\x89PNG\r\n\x1a\n")
        for kind, body in ((b"IHDR", head), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")):
            f.write(len(body).to_bytes(4, "big") + kind + body + zlib.crc32(kind + body).to_bytes(4, "big"))


class Bench:
    def __init__(self, a):
        self.a, self.tool = a, os.path.abspath(os.path.join(a.build, "src", "tools", "fsdptrain"))
        self.base = os.path.join(a.workdir, "bench-pictures")
        shutil.rmtree(self.base, ignore_errors=True)
        os.makedirs(self.base + "/data")
        self.picture = self.base + "/data/a.png"
        write_png(self.picture, a.side)
        with open(self.base + "/data/a.txt", "w") as f:
            f.write("a picture of a fox")
        self.run(1)  # fills the cache

    def run(self, steps):
        """Seconds of each step, of the whole process, and its largest resident size. The cache stays."""
        out, config = self.base + "/run", self.base + "/config.json"
        for name in ("checkpoints", "adapter"):
            shutil.rmtree(os.path.join(out, name), ignore_errors=True)
        with open(config, "w") as f:
            json.dump({"model": os.path.abspath(self.a.pipeline), "output_dir": out,
                       "data": {"train": self.base + "/data"},
                       "image": {"resolution": self.a.side, "max_sequence_length": 512},
                       "lora": {"r": 16, "lora_alpha": 16, "target_modules": TARGETS},
                       "train": {"max_steps": steps, "global_batch_size": 1, "warmup_steps": 0},
                       "dtype": {"param": self.a.dtype}, "checkpoint": {"save_steps": 0}}, f)
        if os.path.exists(out + "/metrics.jsonl"):
            os.remove(out + "/metrics.jsonl")
        began = time.perf_counter()
        process = subprocess.Popen([self.tool, "run", config, "-q", "--ranks", "1", "--threads", str(self.a.threads)],
                                   stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        if status:
            sys.exit(f"fsdptrain run ended with status {status}")
        return [m["step_seconds"] for m in metrics(out)], time.perf_counter() - began, usage.ru_maxrss * 1024

    def ours(self):
        steps, _, peak = self.run(self.a.steps)
        first, whole, _ = self.run(1)
        done = subprocess.run([os.path.join(self.a.build, "bench", "vae"), self.a.pipeline, str(self.a.side),
                               self.a.dtype, str(self.a.threads)], check=True, stdout=subprocess.PIPE, text=True)
        return {"step": statistics.median(steps[1:]), "start": whole - first[0], "memory": peak,
                **json.loads(done.stdout)}

    def theirs(self, mode):
        found = sorted(glob.glob("/usr/lib/*/libtcmalloc_minimal.so.4"))
        done = subprocess.run([self.a.python, os.path.join(HERE, "pictures_peer.py"), self.a.pipeline, self.picture,
                               "--mode", mode, "--steps", str(self.a.steps), "--threads", str(self.a.threads)],
                              check=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
                              env={**os.environ, **({"LD_PRELOAD": found[0]} if found else {})})
        said = json.loads(done.stdout.splitlines()[-1])
        return {"step": statistics.median(said["step_seconds"][1:]), "start": said["start_seconds"],
                "memory": said["peak_bytes"], "decode": said["decode_seconds"], "encode": said["encode_seconds"]}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("build")
    p.add_argument("pipeline")
    p.add_argument("workdir")
    p.add_argument("--python", required=True)
    p.add_argument("--side", type=at_least(64), default=512)
    p.add_argument("--dtype", choices=["bf16", "fp32"], default="bf16")
    p.add_argument("--steps", type=at_least(3), default=4)
    p.add_argument("--runs", type=at_least(1), default=3)
    p.add_argument("--threads", type=at_least(1), default=2)
    p.add_argument("--compiled", action="store_true", help="theirs under torch.compile too")
    a = p.parse_args()
    bench = Bench(a)
    modes = [a.dtype] + ["compiled-" + a.dtype] * a.compiled
    ours, theirs = [], {mode: [] for mode in modes}
    for _ in range(a.runs):
        ours.append(bench.ours())
        for mode in modes:
            theirs[mode].append(bench.theirs(mode))
    for what, unit, scale in (("step", "s", 1), ("start", "s", 1), ("memory", "MiB", 2**20), ("decode", "s", 1),
                              ("encode", "s", 1)):
        mine = statistics.median(r[what] for r in ours) / scale
        print(f"{what}: fsdptrain {mine:.4g} {unit}", flush=True)
        for mode in modes:
            other = statistics.median(r[what] for r in theirs[mode]) / scale
            print(f"{what}: {mode} of diffusers and PEFT {other:.4g} {unit}, {other / mine:.2f} times ours")


if __name__ == "__main__":
    main()
