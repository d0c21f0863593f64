#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times sampling at batch 1 against transformers' generate, and shows how near it is to what memory allows.

usage: sample.py BUILD_DIR MODEL_FOLDER --python PYTHON_WITH_TORCH [--rounds 5] [--tokens 100] [--threads 2] [--adapter
DIR] [--dtype bf16]

Each round runs fsdptrain, transformers and a plain read loop over as many bytes as the model has in turn, on the same
cores; medians of all rounds are compared. A token's time is without the first one, which the prompt gives. Memory
allows one reading of all weights for a token: its share is (model bytes · tokens a second) / bytes a second of the read
loop."""
import argparse
import glob
import json
import os
import statistics
import subprocess

HERE = os.path.dirname(os.path.abspath(__file__))
PROMPT = "Once upon a time, in a small village by the sea,"


def model_nbytes(folder, dtype):
    """Of the weights, tied ones once."""
    nelem = 0
    for path in glob.glob(os.path.join(folder, "*.safetensors")):
        with open(path, "rb") as f:
            header = json.loads(f.read(int.from_bytes(f.read(8), "little")))
        for name, tensor in header.items():
            count = 1
            for size in tensor.get("shape", [0]):
                count *= size
            nelem += count if name != "__metadata__" else 0
    return nelem * {"bf16": 2, "fp32": 4}[dtype]


class Bench:
    def __init__(self, a):
        self.a, self.nbytes, self.peer = a, model_nbytes(a.model, a.dtype), None

    def ours(self):
        command = [
            os.path.join(self.a.build, "src", "tools", "fsdptrain"),
            "sample",
            self.a.model,
            "--prompt",
            PROMPT,
            "--json",
            "--dtype",
            self.a.dtype,
            "--threads",
            str(self.a.threads),
            "--max-new-tokens",
            str(self.a.tokens),
            "--temperature",
            "0",
            *(["--adapter", self.a.adapter] if self.a.adapter else []),
        ]
        return json.loads(
            subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True).stdout
        )["samples"][0]

    def start_peer(self, ids):
        command = [
            self.a.python,
            os.path.join(HERE, "sample_peer.py"),
            self.a.model,
            self.a.dtype,
            str(self.a.tokens),
            str(self.a.threads),
            json.dumps(ids),
            *([self.a.adapter] if self.a.adapter else []),
        ]
        self.peer = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self.theirs()  # warm

    def theirs(self):
        self.peer.stdin.write("go\n")
        self.peer.stdin.flush()
        return json.loads(self.peer.stdout.readline())

    def read(self):
        command = [os.path.join(self.a.build, "bench", "read"), str(self.nbytes), str(self.a.threads)]
        return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    def run(self):
        first = self.ours()
        self.start_peer(first["prompt_ids"])
        ours, theirs, memory, shared = [], [], [], 0
        for _ in range(self.a.rounds):
            one, other = self.ours(), self.theirs()
            ours.append((len(one["ids"]) - 1) / one["seconds"])
            theirs.append((len(other["ids"]) - 1) / other["seconds"])
            memory.append(self.read())
            shared = next((i for i, (x, y) in enumerate(zip(one["ids"], other["ids"])) if x != y), len(one["ids"]))
        self.peer.stdin.close()
        self.peer.wait()
        mine, peers, rate = (statistics.median(x) for x in (ours, theirs, memory))
        print(
            f"| {self.a.dtype}{', adapter' if self.a.adapter else ''} | fsdptrain {mine:.1f} tokens/s | transformers"
            f" {peers:.1f} tokens/s | {mine / peers:.2f} times | {mine * self.nbytes / 1e9:.1f} of {rate:.1f} GB/s:"
            f" {mine * self.nbytes / 1e9 / rate:.2f} | the first {shared} of {self.a.tokens} tokens are the same |"
        )


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("build")
    ap.add_argument("model")
    ap.add_argument("--python", required=True)
    ap.add_argument("--adapter")
    ap.add_argument("--dtype", default="bf16", choices=["bf16", "fp32"])
    for name, default in (("rounds", 5), ("tokens", 100), ("threads", 2)):
        ap.add_argument("--" + name, type=int, default=default)
    Bench(ap.parse_args()).run()


if __name__ == "__main__":
    main()
