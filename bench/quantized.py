#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""LoRA on a base that stays quantized, beside the same base in bf16: time of a step, bytes of the base, bytes gathered.

    quantized.py FSDPTRAIN [MODEL] [--bases nf4,fp8-block] [--rounds N] [--steps N] [--tokens N] [--threads N]

Without MODEL, a random one with the shape of SmolLM2-135M. The runs of a round follow each other, so that a busy
machine slows all of them; a run's first step does not count. Processor seconds of a step are those of a long run less
those of a run of one step. Needs numpy for a random model."""
import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile

from training import at_least, metrics, write_rows

CONFIG = {
    "model_type": "llama", "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
    "num_attention_heads": 9, "num_key_value_heads": 3, "vocab_size": 49152, "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5, "rope_theta": 100000, "tie_word_embeddings": True, "hidden_act": "silu"
}


def make_model(folder):
    import numpy as np
    from make_model import write_tensor
    hidden, inner, kv = CONFIG["hidden_size"], CONFIG["intermediate_size"], 192
    shapes = {"model.embed_tokens": (CONFIG["vocab_size"], hidden), "model.norm": (hidden,)}
    for i in range(CONFIG["num_hidden_layers"]):
        for name, shape in (("self_attn.q_proj", (hidden, hidden)), ("self_attn.k_proj", (kv, hidden)),
                            ("self_attn.v_proj", (kv, hidden)), ("self_attn.o_proj", (hidden, hidden)),
                            ("mlp.gate_proj", (inner, hidden)), ("mlp.up_proj", (inner, hidden)),
                            ("mlp.down_proj", (hidden, inner)), ("input_layernorm", (hidden,)),
                            ("post_attention_layernorm", (hidden,))):
            shapes[f"model.layers.{i}.{name}"] = shape
    os.makedirs(folder)
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(CONFIG, f)
    head, at = {}, 0
    for name, shape in shapes.items():
        nbytes = 2 * int(np.prod(shape))
        head[name + ".weight"] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + nbytes]}
        at += nbytes
    text = json.dumps(head).encode()
    rng = np.random.default_rng(0)
    with open(os.path.join(folder, "model.safetensors"), "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text)
        for shape in shapes.values():
            write_tensor(f, rng, shape)


def config_of(args, tmp, base, out, steps):
    config = {
        "model": args.model, "output_dir": out,
        "data": {"train": os.path.join(tmp, "rows.jsonl"), "seq_len": args.tokens, "packing": False},
        "lora": {"r": 16, "lora_alpha": 32, "target_modules": "all-linear"},
        "train": {"max_steps": steps, "global_batch_size": 1}, "dtype": {"base": base},
        "checkpoint": {"save_steps": 0, "export_adapter": False}
    }
    path = os.path.join(tmp, "config.json")
    with open(path, "w") as f:
        json.dump(config, f)
    return path


def run(args, tmp, base, steps):
    """Seconds of each step but the first, and processor seconds of the whole run."""
    out = os.path.join(tmp, "run")
    shutil.rmtree(out, ignore_errors=True)
    command = [args.fsdptrain, "run", config_of(args, tmp, base, out, steps), "-q", "--device", "cpu", "--threads",
               str(args.threads)]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return [m["step_seconds"] for m in metrics(out)][1:], after.ru_utime - before.ru_utime


def plan(args, tmp, base):
    """Bytes of the blocks' base, and of all that a rank of two gathers."""
    path = config_of(args, tmp, base, os.path.join(tmp, "plan"), 1)
    done = subprocess.run([args.fsdptrain, "plan", path, "--json", "-q", "--device", "cpu", "--ranks", "2", "--gather",
                           "copy"], check=True, capture_output=True)
    p = json.loads(done.stdout)
    blocks = [g for g in p["groups"] if ".layers." in g["parameters"]]
    return sum(g["groups"] * g["gathered_bytes"] for g in blocks) - 2 * p["parameters_trained"], p[
        "gathered_bytes_per_step"]


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("fsdptrain")
    ap.add_argument("model", nargs="?")
    ap.add_argument("--bases", default="fp8-block,nf4")
    ap.add_argument("--rounds", type=at_least(1), default=5)
    ap.add_argument("--steps", type=at_least(2), default=5)
    ap.add_argument("--tokens", type=at_least(1), default=512)
    ap.add_argument("--threads", type=at_least(1), default=2)
    args = ap.parse_args()
    bases = ["as stored", *args.bases.split(",")]
    with tempfile.TemporaryDirectory() as tmp:
        if not args.model:
            args.model = os.path.join(tmp, "model")
            make_model(args.model)
        write_rows(os.path.join(tmp, "rows.jsonl"), args.model, args.steps, args.tokens)
        seconds, cpu = {base: [] for base in bases}, {base: [] for base in bases}
        for _ in range(args.rounds):
            for base in bases:
                steps, long = run(args, tmp, base, args.steps)
                seconds[base] += steps
                cpu[base].append((long - run(args, tmp, base, 1)[1]) / (args.steps - 1))
        sizes = {base: plan(args, tmp, base) for base in bases}
    def beside(numbers, unit, digits):
        """A number, and its ratio to that of the first base."""
        return f"{numbers[base]:.{digits}f} {unit} ({numbers[base] / numbers[bases[0]]:.3f})"

    step, least = ({b: f(x) for b, x in seconds.items()} for f in (statistics.median, min))
    busy = {b: statistics.median(x) for b, x in cpu.items()}
    blocks, gathered = ({b: x[i] / 1e6 for b, x in sizes.items()} for i in (0, 1))
    for base in bases:
        print(f"{base:10} step {beside(step, 's', 3)}, best {beside(least, 's', 3)}, processor {beside(busy, 's', 3)}; "
              f"blocks {beside(blocks, 'MB', 1)}, gathered {beside(gathered, 'MB', 1)} a step")


if __name__ == "__main__":
    sys.exit(main())
