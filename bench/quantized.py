#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""LoRA on a base that stays quantized, beside the same base in bf16: time of a step, bytes of the base, bytes gathered.
With --python, beside the best that PyTorch has: bitsandbytes and PEFT on NF4, transformers and PEFT on FP8 dequantized.

    quantized.py FSDPTRAIN [MODEL] [--bases nf4,fp8-block] [--rounds N] [--steps N] [--tokens N] [--threads N]
                 [--shape smollm2|tinyllama] [--python PYTHON_WITH_TORCH]

Without MODEL, a random one with the shape of SmolLM2-135M, or of TinyLlama-1.1B with --shape tinyllama. The runs of a
round follow each other, so that a busy machine slows all of them; a run's first step does not count. Processor seconds
of a step are those of a long run less those of a run of one step. Needs numpy for a random model."""
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

SHAPES = {
    "smollm2": {
        "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9,
        "num_key_value_heads": 3, "vocab_size": 49152, "max_position_embeddings": 8192, "tie_word_embeddings": True
    },
    "tinyllama": {
        "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 22, "num_attention_heads": 32,
        "num_key_value_heads": 4, "vocab_size": 32000, "max_position_embeddings": 2048, "tie_word_embeddings": False
    }
}


def make_model(folder, shape):
    import numpy as np
    from make_model import write_tensor
    config = {"model_type": "llama", "rms_norm_eps": 1e-5, "rope_theta": 100000, "hidden_act": "silu", **SHAPES[shape]}
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    kv = hidden // config["num_attention_heads"] * config["num_key_value_heads"]
    shapes = {"model.embed_tokens": (config["vocab_size"], hidden), "model.norm": (hidden,)}
    if not config["tie_word_embeddings"]:
        shapes["lm_head"] = (config["vocab_size"], hidden)
    for i in range(config["num_hidden_layers"]):
        for name, shape in (("self_attn.q_proj", (hidden, hidden)), ("self_attn.k_proj", (kv, hidden)),
                            ("self_attn.v_proj", (kv, hidden)), ("self_attn.o_proj", (hidden, hidden)),
                            ("mlp.gate_proj", (inner, hidden)), ("mlp.up_proj", (inner, hidden)),
                            ("mlp.down_proj", (hidden, inner)), ("input_layernorm", (hidden,)),
                            ("post_attention_layernorm", (hidden,))):
            shapes[f"model.layers.{i}.{name}"] = shape
    os.makedirs(folder)
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(config, f)
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


PEERS = {"nf4": "nf4", "fp8-block": "dequantized"}  # base: how the peer holds it
MODES = ("bf16", "autocast")


def peers(args, tmp):
    """The peer's runs: base, mode, folder and how it holds the base."""
    said = []
    for base in args.bases.split(",") if args.python else ():
        how, folder = PEERS[base], args.model
        if how == "dequantized":
            folder = os.path.join(tmp, base)
            fsdpck = os.path.join(os.path.dirname(args.fsdptrain), "fsdpck")
            subprocess.run([fsdpck, "export", args.model, folder, "--quantize", base, "-q"], check=True)
        said += [(base, mode, folder, how) for mode in MODES]
    return said


def run_peer(args, tmp, mode, folder, how):
    """Seconds of each step but the first; none if the peer cannot load the base, with its reason on stderr."""
    command = [args.python, os.path.join(os.path.dirname(os.path.abspath(__file__)), "train_peer.py"), folder,
               os.path.join(tmp, "rows.jsonl"), "--mode", mode, "--base", how, "--seq", str(args.tokens), "--micro",
               "1", "--batch", "1", "--steps", str(args.steps), "--threads", str(args.threads)]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        print(done.stderr, file=sys.stderr)
        return []
    return json.loads(done.stdout.splitlines()[-1])["seconds"][1:]


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
    ap.add_argument("--shape", choices=SHAPES, default="smollm2")
    ap.add_argument("--python", help="a Python with torch, transformers, PEFT and bitsandbytes")
    args = ap.parse_args()
    if args.python and not set(args.bases.split(",")) <= set(PEERS):
        ap.error(f"--python: there is a peer for {' and '.join(PEERS)}")
    bases = ["as stored", *args.bases.split(",")]
    with tempfile.TemporaryDirectory() as tmp:
        if not args.model:
            args.model = os.path.join(tmp, "model")
            make_model(args.model, args.shape)
        write_rows(os.path.join(tmp, "rows.jsonl"), args.model, args.steps, args.tokens)
        seconds, cpu = {base: [] for base in bases}, {base: [] for base in bases}
        theirs = {peer: [] for peer in peers(args, tmp)}
        for _ in range(args.rounds):
            for base in bases:
                steps, long = run(args, tmp, base, args.steps)
                seconds[base] += steps
                cpu[base].append((long - run(args, tmp, base, 1)[1]) / (args.steps - 1))
            for peer in list(theirs):
                spent = run_peer(args, tmp, *peer[1:])
                theirs[peer] += spent
                if not spent:
                    theirs.pop(peer)
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
    for (base, mode, _, how), spent in theirs.items():
        other, best = statistics.median(spent), min(spent)
        print(f"{base:10} PyTorch, {how}, {mode}: step {other:.3f} s, {other / step[base]:.2f} times ours; best "
              f"{best:.3f} s, {best / least[base]:.2f} times ours")


if __name__ == "__main__":
    sys.exit(main())
